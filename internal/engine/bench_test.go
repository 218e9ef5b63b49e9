package engine

import (
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

var benchSizes = []int{5000, 1000000}

func benchmarkSizes(b *testing.B, run func(b *testing.B, st *cluster.State, e *Evaluator)) {
	for _, n := range benchSizes {
		st := fleet(b, n)
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			run(b, st, NewEvaluator(EvaluatorConfig{Parallelism: 1}))
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}

func BenchmarkFilterCold(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, st *cluster.State, e *Evaluator) {
		e.Filter(st, of(testClass), everything(st))
		for b.Loop() {
			clear(e.evaluations[Signature{class: testClass}].known)
			e.Filter(st, of(testClass), everything(st))
		}
	})
}

// BenchmarkFilterIncremental filters again after one node has changed.
func BenchmarkFilterIncremental(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, st *cluster.State, e *Evaluator) {
		e.Filter(st, of(testClass), everything(st))
		id := st.FreePod()
		for k := 0; b.Loop(); k++ {
			node := st.Nodes.Spec[k*7919%st.Nodes.Len()].Name
			apply(b, st, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: "p", Class: testClass, NodeName: node}})
			e.Filter(st, of(testClass), everything(st))
		}
	})
}

func BenchmarkScoreCold(b *testing.B) { benchmarkScore(b, true) }

// BenchmarkScoreKnown selects the best 256 of nodes whose scores are known.
func BenchmarkScoreKnown(b *testing.B) { benchmarkScore(b, false) }

func benchmarkScore(b *testing.B, cold bool) {
	benchmarkSizes(b, func(b *testing.B, st *cluster.State, e *Evaluator) {
		f, _ := e.Filter(st, of(testClass), everything(st))
		e.Score(st, of(testClass), everything(st), f.Eligible, 256)
		for b.Loop() {
			if cold {
				clear(e.evaluations[Signature{class: testClass}].scored)
			}
			e.Score(st, of(testClass), everything(st), f.Eligible, 256)
		}
	})
}

// BenchmarkPlace places batches of 256 pods, each assumed before the next; evaluating the candidates is not counted.
func BenchmarkPlace(b *testing.B) {
	const size = 256
	benchmarkSizes(b, func(b *testing.B, st *cluster.State, e *Evaluator) {
		var pods [size]cluster.PodID
		for k := range pods {
			pods[k] = st.FreePod()
			apply(b, st, cluster.PodSet{ID: pods[k], Pod: cluster.Pod{UID: fmt.Sprint(k), Class: testClass}})
		}
		var p *Placer
		var st0 *cluster.State
		placed := 0
		for k := size; b.Loop(); k++ {
			if k == size {
				b.StopTimer()
				for _, id := range pods {
					if st.Pod(id).Phase == cluster.Assumed {
						apply(b, st, cluster.PodForgotten{ID: id})
					}
				}
				f, _ := e.Filter(st, of(testClass), everything(st))
				groups, _ := e.Score(st, of(testClass), everything(st), f.Eligible, size)
				p, st0, k = NewPlacer(e, st, st.Version().Seq, []Candidates{{of(testClass), groups}}), st, 0
				b.StartTimer()
			}
			if node, placement := p.Place(0); placement == Placed {
				placed++
				apply(b, st0, cluster.PodAssumed{ID: pods[k], Node: node, Attempt: 1})
			}
		}
		if placed != b.N {
			b.Errorf("placed %d of %d pods", placed, b.N)
		}
	})
}

// BenchmarkChangedSince is what finding the nodes that others have changed costs a Placer.
func BenchmarkChangedSince(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, st *cluster.State, _ *Evaluator) {
		changed := 0
		for b.Loop() {
			st.Nodes.ChangedSince(st.Version().Seq, everything(st), func(cluster.NodeIndex) { changed++ })
		}
	})
}

// BenchmarkImageChurn evaluates a batch of 256 pods and places the first of them, while a node gets or loses their image between
// the two. It reports the share of pods that must be tried again.
func BenchmarkImageChurn(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, st *cluster.State, worker *Evaluator) {
		binder := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		id := st.FreePod()
		apply(b, st, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: "p", Class: testClass}})
		evaluate := func() []Group {
			f, _ := worker.Filter(st, of(testClass), everything(st))
			groups, _ := worker.Score(st, of(testClass), everything(st), f.Eligible, 256+16)
			return groups
		}
		evaluate()
		retried := 0
		for k := 0; b.Loop(); k++ {
			evaluated, groups := st.Version().Seq, evaluate()
			changes := cluster.NodeIndex(k * 7919 % st.Nodes.Len())
			node := st.Node(changes)
			if len(node.Images) > 0 {
				node.Images = nil
			} else {
				node.Images = []cluster.Image{{Names: []string{"app:1"}, Size: 500 * mib}}
			}
			apply(b, st, cluster.NodeSet{Index: changes, Node: node})
			switch chosen, placement := NewPlacer(binder, st, evaluated, []Candidates{{of(testClass), groups}}).Place(0); placement {
			case Placed:
				apply(b, st, cluster.PodAssumed{ID: id, Node: chosen, Attempt: 1})
				apply(b, st, cluster.PodForgotten{ID: id})
			case Retry:
				retried++
			}
		}
		b.ReportMetric(float64(retried)/float64(b.N), "retried/op")
	})
}
