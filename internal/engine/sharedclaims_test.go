package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// sharingBatches is how many batches TestABatchOfPodsThatShareClaimsIsPlacedAsPodByPod places.
const sharingBatches = 10_000

// TestABatchOfPodsThatShareClaimsIsPlacedAsPodByPod has the candidates of a batch found once, for each signature that its pods have then, and each
// pod placed by these; and asks somebody who knows nothing where it goes in the state as it is at its turn. Where the Placer says that it cannot
// tell, it is right to; but not of the first pod if nothing has happened.
func TestABatchOfPodsThatShareClaimsIsPlacedAsPodByPod(t *testing.T) {
	placements := make(map[Placement]int)
	for seed := range uint64(sharingBatches) {
		rng := rand.New(rand.NewPCG(seed, 27))
		w, e := newStorage(t, 1+rng.IntN(5)), NewEvaluator(EvaluatorConfig{Parallelism: 1})
		randomStorage(w, rng)
		ids := sharingPods(w, rng)
		// 1. Where somebody else finds candidates, once for all.
		worker := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		bySignature, index := make(map[Signature]int), make([]int, len(ids))
		var all []Candidates
		for k, id := range ids {
			s := SubjectOf(&w.st.Pod(id).Pod)
			at, known := bySignature[worker.Signature(w.st, s)]
			if !known {
				at = len(all)
				bySignature[worker.Signature(w.st, s)] = at
				f, _ := worker.Filter(w.st, s, everything(w.st))
				groups, _ := worker.Score(w.st, s, everything(w.st), f.Eligible, 1+rng.IntN(8))
				all = append(all, Candidates{Subject: s, Groups: groups})
			}
			index[k] = at
		}
		evaluated := w.st.Version().Seq
		// 2. What happens before the commit.
		others := rng.IntN(3)
		for range others {
			interfere(w, rng)
		}
		// 3. The batch.
		p := NewPlacer(e, w.st, evaluated, all)
		for k, id := range ids {
			want, which := w.batch(NewEvaluator(EvaluatorConfig{Parallelism: 1}), id).Choose(id, 0)
			node, placement := p.Choose(id, index[k])
			if k == 0 && others == 0 && placement == Retry {
				t.Fatalf("seed %d: the first pod is not placed, though nothing has happened", seed)
			}
			if placements[placement]++; placement != Retry && (placement != which || node != want) {
				t.Fatalf("seed %d, pod %d of %d: %v on %d, want %v on %d", seed, k, len(ids), placement, node, which, want)
			}
			if placement == Placed {
				w.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: 1})
			}
		}
	}
	if placements[Placed] < 2*sharingBatches || placements[NoFit] < sharingBatches/10 || placements[Retry] > placements[Placed]/2 {
		t.Errorf("placements: %v", placements)
	}
}

// randomStorage makes claims of volumes, of which some are the same, some only one pod can use, and some are of a zone; nodes with room for few; and
// pods that use some.
func randomStorage(w *storage, rng *rand.Rand) {
	for k := range 6 {
		w.bound(fmt.Sprint("c", k), func(c *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
			if rng.IntN(4) == 0 {
				v.Handle = "same"
			}
			if rng.IntN(6) == 0 {
				c.AccessModes = []string{"ReadWriteOncePod"}
			}
			if rng.IntN(6) == 0 {
				v.Labels = []cluster.Label{{Key: "topology.kubernetes.io/zone", Value: string("ab"[rng.IntN(2)])}}
			}
		})
	}
	for i := range w.st.Nodes.Len() {
		if rng.IntN(2) == 0 {
			w.set(&cluster.CSINode{Name: fmt.Sprint("n", i), Drivers: []cluster.NodeDriver{{Name: "csi", Limited: rng.IntN(4) > 0, Limit: int32(rng.IntN(4))}}})
		}
	}
	for k := range rng.IntN(3) {
		w.pod(fmt.Sprint("there-", k), fmt.Sprint("n", rng.IntN(w.st.Nodes.Len())), 0, nil, randomClaims(rng)...)
	}
	if rng.IntN(3) == 0 {
		id := w.pod("nominee", "", int32(rng.IntN(3)), nil, randomClaims(rng)...)
		w.apply(cluster.PodNominated{ID: id, Node: fmt.Sprint("n", rng.IntN(w.st.Nodes.Len()))})
	}
}

func randomClaims(rng *rand.Rand) []cluster.PodClaim {
	first, n := rng.IntN(6), rng.IntN(4)
	var names []string
	for k := range n {
		names = append(names, fmt.Sprint("c", (first+k)%6))
	}
	return claims(names...)
}

// sharingPods makes pods that wait, of a class or two: one cares for pods on other nodes.
func sharingPods(w *storage, rng *rand.Rand) (ids []cluster.PodID) {
	term := cluster.PodTerm{TopologyKey: "topology.kubernetes.io/zone", Namespaces: []string{"shop"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}}
	term.Selector.Requirements = []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"none"}}}
	w.apply(cluster.ClassDefined{ID: 900, Spec: cluster.ClassSpec{SchedulerName: "default", AntiAffinity: []cluster.PodTerm{term}}})
	for k := range 2 + rng.IntN(6) {
		id := w.pod(fmt.Sprint("waits-", k), "", int32(rng.IntN(2)), nil, randomClaims(rng)...)
		if rng.IntN(4) == 0 {
			pod := w.st.Pod(id).Pod
			pod.Class = 900
			w.apply(cluster.PodSet{ID: id, Pod: pod})
		}
		ids = append(ids, id)
	}
	return ids
}

// interfere does what others may do meanwhile.
func interfere(w *storage, rng *rand.Rand) {
	node := fmt.Sprint("n", rng.IntN(w.st.Nodes.Len()))
	switch rng.IntN(4) {
	case 0:
		w.pod(fmt.Sprint("later-", w.st.Version().Seq), node, 0, nil, randomClaims(rng)...)
	case 1:
		w.set(&cluster.CSINode{Name: node, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: int32(rng.IntN(4))}}})
	case 2:
		for id, row := range w.st.Pods() {
			if row.Placed() {
				w.apply(cluster.PodRemoved{ID: id})
				break
			}
		}
	case 3:
		name := fmt.Sprint("c", rng.IntN(6))
		w.bound(name, func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
			v.Handle = fmt.Sprint("h", rng.IntN(3))
		})
	}
}

func TestCandidatesWithoutGroupsProveThatNoNodeFitsUnlessOneHasChanged(t *testing.T) {
	for _, claim := range []string{"", "c"} {
		w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
		w.bound("c", nil)
		w.bound("d", nil)
		for i := range cluster.NodeIndex(3) {
			spec := w.st.Nodes.Spec[i]
			w.apply(cluster.NodeSet{Index: i, Node: cluster.Node{Name: spec.Name, Unschedulable: true, Allocatable: append(requests(64000, 64000), quantity("pods", 110))}})
		}
		var uses []cluster.PodClaim
		if claim != "" {
			uses = claims(claim)
		}
		id, again := w.pod("p", "", 0, nil, uses...), w.pod("again", "", 0, nil, uses...)
		p := w.batch(NewEvaluator(EvaluatorConfig{}), id)
		p.e = e
		if n := len(p.sets[0].candidates.Groups); n != 0 {
			t.Fatalf("there are %d groups", n)
		}
		for range 2 {
			if _, placement := p.Choose(id, 0); placement != NoFit {
				t.Errorf("claim %q: %v, want no fit", claim, placement)
			}
		}
		if _, placement := p.Choose(id, 1); placement != Retry {
			t.Errorf("claim %q, of candidates that there are not: %v, want retry", claim, placement)
		}
		w.apply(cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n1", Allocatable: append(requests(64000, 64000), quantity("pods", 110))}})
		if node, placement := p.Choose(again, 0); placement != Placed || node != 1 {
			t.Errorf("claim %q, when n1 has changed: %v on %d, want n1", claim, placement, node)
		}
		w.bound("c", nil)
		want := Placed
		if claim != "" {
			want = Retry // the others may fit by now
		}
		if _, placement := p.Choose(again, 0); placement != want {
			t.Errorf("claim %q, when a volume has changed: %v, want %v", claim, placement, want)
		}
	}
}
