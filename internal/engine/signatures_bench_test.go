package engine

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// BenchmarkManySignatures is the evaluation of pods of 100 signatures in turns, each spread over hostnames and zones, on 5,000 nodes:
// per pod, its share of filtering and scoring its signature, its placement, and the deltas.
func BenchmarkManySignatures(b *testing.B) {
	const nodes, signatures, batch = 5000, 100, 200
	b.ReportAllocs()
	f := newInterleaved(b, nodes, signatures)
	before := heap()
	f.batch(batch)
	size := float64(heap() - before)
	runtime.KeepAlive(f)
	for n := 0; b.Loop(); n++ {
		if n%batch == 0 {
			f.batch(batch)
		}
	}
	b.ReportMetric(size/signatures/2, "B/signature")
}

// interleaved is a cluster on which pods of many signatures are placed, in turns.
type interleaved struct {
	t              fataler
	st             *cluster.State
	signatures     []Subject
	worker, binder *Evaluator
	next           int
}

func newInterleaved(t fataler, nodes, signatures int) *interleaved {
	f := &interleaved{
		t: t, st: cluster.New(cluster.Version{Epoch: 1}),
		worker: NewEvaluator(EvaluatorConfig{Parallelism: 1}), binder: NewEvaluator(EvaluatorConfig{Parallelism: 1}),
	}
	apply(t, f.st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 42}})
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		apply(t, f.st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{
			Name: name, Allocatable: requests(32000, 128<<30, quantity("pods", 110)),
			Labels: []cluster.Label{{Key: hostname, Value: name}, {Key: "topology.kubernetes.io/zone", Value: fmt.Sprintf("z%d", i%10)}},
		}})
	}
	for k := range signatures {
		app := fmt.Sprintf("app-%d", k)
		selector := cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{app}}}}
		spec := cluster.ClassSpec{Spread: []cluster.SpreadConstraint{
			{TopologyKey: hostname, MaxSkew: 3, MinDomains: 1, HonorAffinity: true, Selector: selector},
			{TopologyKey: "topology.kubernetes.io/zone", MaxSkew: 5, MinDomains: 1, HonorAffinity: true, Selector: selector},
		}}
		spec.Requests, spec.ScoreRequests = requests(100, 500<<20), requests(100, 500<<20)
		spec.NonZeroCPU, spec.NonZeroMemory = 100, 500<<20
		s := Subject{Class: cluster.ClassID(k + 1), Labels: cluster.LabelsID(k + 1)}
		apply(t, f.st, cluster.ClassDefined{ID: s.Class, Spec: spec}, cluster.LabelsDefined{
			ID: s.Labels, Set: cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: app}}},
		})
		f.signatures = append(f.signatures, s)
	}
	return f
}

// batch places so many pods, one of each signature in turn, on candidates that are found for all signatures first, and forgets them.
func (f *interleaved) batch(pods int) {
	ids := make([]cluster.PodID, pods)
	for k := range ids {
		s := f.signatures[k%len(f.signatures)]
		ids[k] = f.st.FreePod()
		f.next++
		apply(f.t, f.st, cluster.PodSet{ID: ids[k], Pod: cluster.Pod{UID: fmt.Sprint(f.next), Class: s.Class, Labels: s.Labels}})
	}
	all := make([]Candidates, len(f.signatures))
	for k, s := range f.signatures {
		feasible, _ := f.worker.Filter(f.st, s, everything(f.st))
		groups, _ := f.worker.Score(f.st, s, everything(f.st), feasible.Eligible, 4*pods/len(f.signatures))
		all[k] = Candidates{s, groups}
	}
	p := NewPlacer(f.binder, f.st, f.st.Version().Seq, all)
	for k, id := range ids {
		if node, placement := p.Place(k % len(f.signatures)); placement == Placed {
			apply(f.t, f.st, cluster.PodAssumed{ID: id, Node: node, Attempt: 1})
		}
	}
	for _, id := range ids[:pods/2] {
		apply(f.t, f.st, cluster.PodRemoved{ID: id})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
