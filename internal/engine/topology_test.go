package engine

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// roomy makes nodes large and classes modest, so that what decides is mostly where other pods are.
func roomy(d cluster.Delta) cluster.Delta {
	switch d := d.(type) {
	case cluster.NodeSet:
		d.Node.Unschedulable, d.Node.Taints = false, d.Node.Taints[:min(len(d.Node.Taints), 1)]
		d.Node.Allocatable = nil
		for _, name := range []string{"cpu", "ephemeral-storage", "example.com/gpu", "memory", "pods"} {
			d.Node.Allocatable = append(d.Node.Allocatable, quantity(name, 10000))
		}
		d.Node.Labels = append(slices.Clone(d.Node.Labels), cluster.Label{Key: "zzz/name", Value: d.Node.Name})
		return d
	case cluster.ClassDefined:
		d.Spec.NodeSelector, d.Spec.HostPorts = nil, nil
		for k := range d.Spec.AntiAffinity {
			if k > 0 {
				d.Spec.AntiAffinity[k].TopologyKey = "zzz/name"
			}
		}
		for k := range d.Spec.Spread {
			if len(d.Spec.Spread[k].Selector.Requirements) > 1 {
				d.Spec.Spread[k].TopologyKey = "zzz/name"
			}
		}
		return d
	}
	return d
}

// judged is everything an Evaluator says of a subject.
type judged struct {
	Feasibility Feasibility
	Groups      []Group
	Scores      []GroupScores
	Possible    bool
	CrossNode   bool
}

func judge(t *rapid.T, e *Evaluator, st *cluster.State, s Subject) judged {
	var out judged
	out.CrossNode = e.CrossNode(st, s)
	out.Feasibility, _ = e.Filter(st, s, everything(st))
	out.Groups, _ = e.Score(st, s, everything(st), out.Feasibility.Eligible, 1000)
	scores, ok := e.Totals(st, s, out.Groups, cluster.NoNode)
	if !ok {
		t.Fatalf("groups %+v are not of their own state", out.Groups)
	}
	out.Scores, out.Possible = scores, e.Possible(st, s, cluster.NoNode)
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		v, ok := e.Node(st, s, cluster.NoPod, i)
		if ok != st.Nodes.Live.Has(i) {
			t.Fatalf("node %d is known: %v", i, ok)
		}
		if ok && v.Feasible() != (len(e.Explain(st, s, v, i)) == 0) {
			t.Fatalf("verdict %x on node %d is explained by %v", v, i, e.Explain(st, s, v, i))
		}
	}
	return out
}

// subjects returns those of all pods of a state, in the order of the pods.
func subjects(st *cluster.State) []Subject {
	var out []Subject
	for _, row := range st.Pods() {
		if s := SubjectOf(&row.Pod); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func TestCountsFollowTheLogAsIfTheyWereMadeAnew(t *testing.T) {
	crossing := 0
	rapid.Check(t, func(t *rapid.T) {
		st := cluster.New(cluster.Version{Epoch: 1})
		intn := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).IntN
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			for range rapid.IntRange(1, 25).Draw(t, "steps") {
				if err := st.Apply(roomy(clustertest.Delta(intn, st))); err != nil {
					t.Fatal(err)
				}
			}
			for _, s := range subjects(st) {
				want, got := judge(t, NewEvaluator(EvaluatorConfig{}), st, s), judge(t, e, st, s)
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("subject %+v of %+v, labels %+v (-anew +folded):\n%s", s, st.Class(s.Class).Spec, st.Labels(s.Labels), diff)
				}
				if got.CrossNode {
					crossing++
				}
			}
		}
	})
	if crossing == 0 {
		t.Error("no subject depended on other nodes' pods")
	}
}

func TestSubjectsOfOneSignatureAreJudgedAlike(t *testing.T) {
	shared := 0
	rapid.Check(t, func(t *rapid.T) {
		st := cluster.New(cluster.Version{Epoch: 1})
		intn := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).IntN
		for range rapid.IntRange(20, 120).Draw(t, "steps") {
			if err := st.Apply(roomy(clustertest.Delta(intn, st))); err != nil {
				t.Fatal(err)
			}
		}
		signatures := NewEvaluator(EvaluatorConfig{})
		first := make(map[Signature]judged)
		for _, s := range subjects(st) {
			// A new Evaluator each time: one that shares by signature would compare a judgement with itself.
			got := judge(t, NewEvaluator(EvaluatorConfig{}), st, s)
			k := signatures.Signature(st, s)
			want, seen := first[k]
			if !seen {
				first[k] = got
				continue
			}
			shared++
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("subject %+v, labels %+v, is not judged as others of its signature:\n%s", s, st.Labels(s.Labels), diff)
			}
		}
	})
	if shared == 0 {
		t.Error("no two subjects were of one signature")
	}
}

// best returns the nodes of the largest total that a new Evaluator finds, and whether there is a feasible one.
func best(t *rapid.T, st *cluster.State, s Subject) map[cluster.NodeIndex]bool {
	now := judge(t, NewEvaluator(EvaluatorConfig{}), st, s)
	out := make(map[cluster.NodeIndex]bool)
	most := int64(-1)
	for k, g := range now.Groups {
		for n, total := range now.Scores[k].Totals {
			if total > most {
				most = total
				clear(out)
			}
			if total == most {
				out[g.Nodes[n].Node] = true
			}
		}
	}
	return out
}

func TestPlacerFollowsWhatItsPlacementsChangeForOthers(t *testing.T) {
	var placed, moved, retries, first int
	rapid.Check(t, func(t *rapid.T) {
		st := cluster.New(cluster.Version{Epoch: 1})
		intn := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).IntN
		for range rapid.IntRange(40, 160).Draw(t, "steps") {
			if err := st.Apply(roomy(clustertest.Delta(intn, st))); err != nil {
				t.Fatal(err)
			}
		}
		var pods []cluster.PodID
		index := make(map[Subject]int)
		var candidates []Candidates
		workers := NewEvaluator(EvaluatorConfig{})
		limit := rapid.SampledFrom([]int{1, 2, 1000}).Draw(t, "limit")
		for id, row := range st.Pods() {
			if row.Placed() {
				continue
			}
			pods = append(pods, id)
			s := SubjectOf(&row.Pod)
			if _, ok := index[s]; !ok {
				index[s] = len(candidates)
				f, _ := workers.Filter(st, s, everything(st))
				groups, _ := workers.Score(st, s, everything(st), f.Eligible, limit)
				candidates = append(candidates, Candidates{Subject: s, Groups: groups})
			}
		}
		e := NewEvaluator(EvaluatorConfig{})
		p := NewPlacer(e, st, st.Version().Seq, candidates)
		for k, id := range pods {
			row := st.Pod(id)
			s := SubjectOf(&row.Pod)
			want := best(t, st, s)
			node, placement := p.Place(index[s])
			switch placement {
			case Placed:
				if !want[node] {
					t.Fatalf("pod %d of %+v placed on %d, the best are %v: %+v", k, st.Class(s.Class).Spec, node, want, judge(t, NewEvaluator(EvaluatorConfig{}), st, s))
				}
				placed++
				if k > 0 {
					moved++
				}
				if err := st.Apply(cluster.PodAssumed{ID: id, Node: node, Attempt: 1}); err != nil {
					t.Fatal(err)
				}
			case NoFit:
				if len(want) > 0 {
					t.Fatalf("pod %d of %+v fits nowhere, but on %v", k, st.Class(s.Class).Spec, want)
				}
			default:
				retries++
				if k == 0 {
					first++
				}
			}
		}
	})
	if placed == 0 || moved == 0 || first > 0 || retries > placed {
		t.Errorf("%d placed, %d of them behind others, %d retries, %d of them of first pods", placed, moved, retries, first)
	}
}

func TestALabelSetThatComesBackCounts(t *testing.T) {
	const other = cluster.LabelsID(2)
	y := newYard(t, 3, 1, crossNodeClasses()["antiAffinity/hostname"])
	web := cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "web"}, {Key: "b", Value: "2"}}}
	const first, plain = cluster.PodID(10), cluster.ClassID(200)
	for _, stays := range []bool{false, true} {
		y.candidates(1)
		apply(t, y.st, cluster.ClassDefined{ID: plain}, cluster.LabelsDefined{ID: other, Set: web},
			cluster.PodSet{ID: first, Pod: cluster.Pod{UID: "first", Class: plain, Labels: other, NodeName: y.st.Nodes.Spec[1].Name}})
		if !stays {
			apply(t, y.st, cluster.PodRemoved{ID: first})
		}
		f, _ := y.worker.Filter(y.st, y.subject, everything(y.st))
		if want := map[bool]int32{false: 3, true: 2}[stays]; f.FeasibleCount != want {
			t.Errorf("%d nodes are feasible, want %d", f.FeasibleCount, want)
		}
		if stays && (len(f.Verdicts) != 1 || f.Verdicts[0].Count != 1 || f.Verdicts[0].Plugin != InterPodAffinity) {
			t.Errorf("the third is not, because of %+v, want one verdict of InterPodAffinity", f.Verdicts)
		}
	}
}
