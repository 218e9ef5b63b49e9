package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// yard is a cluster in which pods of one subject are placed, batch after batch, as workers and the binder do it.
type yard struct {
	t              fataler
	st             *cluster.State
	subject        Subject
	worker, binder *Evaluator
	free           []cluster.PodID // pods that are pending
}

// newYard returns a cluster of nodes that are alike but for their hostname and their zone, one of ten, with so many
// pending pods of a class.
func newYard(t fataler, nodes, pods int, spec cluster.ClassSpec) *yard {
	const labels = cluster.LabelsID(1)
	y := &yard{
		t: t, st: cluster.New(cluster.Version{Epoch: 1}), subject: Subject{Class: testClass, Labels: labels},
		worker: NewEvaluator(EvaluatorConfig{Parallelism: 1}), binder: NewEvaluator(EvaluatorConfig{Parallelism: 1}),
	}
	spec.Requests, spec.ScoreRequests = requests(100, 500<<20), requests(100, 500<<20)
	spec.NonZeroCPU, spec.NonZeroMemory = 100, 500<<20
	web := cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "web"}}}
	apply(t, y.st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 42}},
		cluster.ClassDefined{ID: testClass, Spec: spec}, cluster.LabelsDefined{ID: labels, Set: web})
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		apply(t, y.st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{
			Name: name, Allocatable: requests(32000, 128<<30, quantity("pods", 110)),
			Labels: []cluster.Label{{Key: hostname, Value: name}, {Key: "topology.kubernetes.io/zone", Value: fmt.Sprintf("z%d", i%10)}},
		}})
	}
	for k := range pods {
		id := y.st.FreePod()
		apply(t, y.st, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint(k), Class: testClass, Labels: labels}})
		y.free = append(y.free, id)
	}
	return y
}

// candidates filters and scores.
func (y *yard) candidates(limit int) []Group {
	f, _ := y.worker.Filter(y.st, y.subject, everything(y.st))
	groups, _ := y.worker.Score(y.st, y.subject, everything(y.st), f.Eligible, limit)
	return groups
}

// place places so many pods on the candidates that are found for them.
func (y *yard) place(pods int) {
	p := NewPlacer(y.binder, y.st, y.st.Version().Seq, []Candidates{{y.subject, y.candidates(pods)}})
	for range pods {
		node, placement := p.Place(0)
		if placement != Placed {
			y.t.Fatalf("%v, want placed", placement)
		}
		apply(y.t, y.st, cluster.PodAssumed{ID: y.free[0], Node: node, Attempt: 1})
		y.free = y.free[1:]
	}
}

func TestAfterABatchOnlyTheNodesThatItChangedAreJudged(t *testing.T) {
	const nodes, pods = 20_000, 256
	y := newYard(t, nodes, 4*pods, cluster.ClassSpec{})
	y.place(pods)
	y.candidates(pods)
	for range 3 {
		y.place(pods)
		filter, score := unknownTo(y.worker, y.st, y.subject)
		if len(filter) == 0 || len(filter) > pods || !slices.Equal(filter, score) {
			t.Errorf("after %d pods %d nodes are to be filtered and %d to be scored, want as many, at most one a pod", pods, len(filter), len(score))
		}
		// What only a pass over all nodes would find is not found.
		c := y.worker.evaluations[y.worker.Signature(y.st, y.subject)]
		unlisted := cluster.NodeIndex(0)
		for slices.ContainsFunc(c.rankings.groups[0].best, func(n rankedNode) bool { return n.node == unlisted }) {
			unlisted++
		}
		c.scores[unlisted] = nodeScores{maxScore, maxScore}
		if best := y.candidates(pods)[0].Nodes[0].Node; best == unlisted {
			t.Errorf("node %d is the best: all nodes have been looked at, though few have changed", best)
		}
	}
}

// allocations returns how many allocations a decision takes: to place a pod, and to apply that.
func allocations(t *testing.T, nodes int, spec cluster.ClassSpec) float64 {
	const pods = 200
	y := newYard(t, nodes, 2*pods, spec)
	y.place(pods)
	p := NewPlacer(y.binder, y.st, y.st.Version().Seq, []Candidates{{y.subject, y.candidates(pods + 1)}})
	return testing.AllocsPerRun(pods-1, func() {
		node, placement := p.Place(0)
		if placement != Placed {
			t.Fatalf("%v, want placed", placement)
		}
		apply(t, y.st, cluster.PodAssumed{ID: y.free[0], Node: node, Attempt: 1})
		y.free = y.free[1:]
	})
}

func TestADecisionAllocatesLittleHoweverManyNodesThereAre(t *testing.T) {
	specs := crossNodeClasses()
	specs["plain"] = cluster.ClassSpec{}
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			few, many := allocations(t, 500, spec), allocations(t, 8000, spec)
			if most := 3.0; few > most || many > most {
				t.Errorf("%v allocations with 500 nodes, %v with 8,000, want at most %v", few, many, most)
			}
		})
	}
}

func TestACycleAllocatesTheSameHoweverManyNodesThereAre(t *testing.T) {
	const pods = 64
	cycle := func(nodes int) float64 {
		y := newYard(t, nodes, 100*pods, cluster.ClassSpec{})
		y.place(pods)
		return testing.AllocsPerRun(20, func() { y.candidates(pods); y.place(1) })
	}
	if few, many := cycle(500), cycle(16_000); many > few+2 || few > 60 {
		t.Errorf("%v allocations with 500 nodes, %v with 16,000, want as many, and at most 60", few, many)
	}
}

func TestAPodIsReadOnlyForTheSignaturesThatCountIt(t *testing.T) {
	const signatures = 20
	f := newInterleaved(t, 300, signatures)
	f.batch(2 * signatures)
	// read returns the signatures that read a node when they are brought up to date.
	read := func(node cluster.NodeIndex) (by []int) {
		for k, s := range f.signatures {
			f.worker.with(f.st, s, func(c *evaluation) {
				if slices.Contains(c.topology.changed, node) {
					by = append(by, k)
				}
			})
		}
		return by
	}
	read(0)
	for k, s := range f.signatures {
		node, id := cluster.NodeIndex(k), f.st.FreePod()
		pod := cluster.Pod{UID: fmt.Sprint("more-", k), Class: s.Class, Labels: s.Labels, NodeName: f.st.Nodes.Spec[node].Name}
		apply(t, f.st, cluster.PodSet{ID: id, Pod: pod})
		if by := read(node); !slices.Equal(by, []int{k}) {
			t.Fatalf("a pod of signature %d came: signatures %v have read its node", k, by)
		}
		apply(t, f.st, cluster.PodRemoved{ID: id})
		if by := read(node); !slices.Equal(by, []int{k}) {
			t.Fatalf("a pod of signature %d went: signatures %v have read its node", k, by)
		}
	}
}
