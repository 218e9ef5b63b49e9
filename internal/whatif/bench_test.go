package whatif

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

// fleet returns a sandbox with so many nodes in ten zones, and two pods on each, of 100 classes.
func fleet(b *testing.B, nodes int) *Sandbox {
	b.Helper()
	events := make([]source.Event, 0, 3*nodes)
	for k := range nodes {
		events = append(events, setNode(aNode(fmt.Sprint("node-", k), fmt.Sprint("zone-", k%10), 32_000)))
	}
	for k := range 2 * nodes {
		events = append(events, setPod(on(ofClass(k), fmt.Sprint("node-", k/2))))
	}
	return sandbox(b, events...)
}

func ofClass(k int) source.Pod {
	p := aPod(fmt.Sprint("pod-", k), int64(100+k%100))
	p.Labels.Labels = []cluster.Label{{Key: "app", Value: fmt.Sprint("app-", k%100)}}
	return p
}

// questions are what is asked, the k-th time.
var questions = []struct {
	name string
	ask  func(w *World, k int) error
}{
	{"place=1", func(w *World, k int) error { return placeSome(w, k, 1, nil) }},
	{"place=100", func(w *World, k int) error { return placeSome(w, k, 100, nil) }},
	{"place=1,spread", func(w *World, k int) error {
		return placeSome(w, k, 1, func(p *source.Pod) {
			p.Class.Spread = []cluster.SpreadConstraint{{
				TopologyKey: zoneLabel, MaxSkew: 1, MinDomains: 1, Hard: true, HonorAffinity: true,
				Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"app-1"}}}},
			}}
		})
	}},
	{"nofit", func(w *World, k int) error {
		return placeSome(w, k, 1, func(p *source.Pod) {
			p.Class.Requests = []cluster.Quantity{{Name: "cpu", Value: 40_000}}
			p.Priority = 1
		})
	}},
	{"preempt", func(w *World, k int) error {
		return placeSome(w, k, 1, func(p *source.Pod) {
			p.Class.Requests = []cluster.Quantity{{Name: "cpu", Value: 31_950}}
			p.Priority = 1
		})
	}},
	{"capacity", func(w *World, k int) error { _, err := Capacity(w, ofClass(k), MaxCapacity); return err }},
	{"drain", func(w *World, k int) error {
		_, err := Drain(w, []string{fmt.Sprint("node-", k%w.State().Nodes.Len())}, PlaceOptions{})
		return err
	}},
	{"usage", func(w *World, _ int) error { w.Usage(); return nil }},
}

func placeSome(w *World, k, n int, change func(*source.Pod)) error {
	pod := ofClass(k)
	pod.UID = "new"
	if change != nil {
		change(&pod)
	}
	var ids []cluster.PodID
	for _, p := range Copies(pod, n) {
		id, err := w.AddPod(p)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	_, err := Place(w, ids, PlaceOptions{Preempt: true})
	return err
}

// BenchmarkTry is what a question costs that has been asked about each of 100 classes before.
func BenchmarkTry(b *testing.B) {
	for _, nodes := range []int{5000, 100_000} {
		s := fleet(b, nodes)
		for _, q := range questions {
			b.Run(fmt.Sprintf("%s/nodes=%d", q.name, nodes), func(b *testing.B) {
				for k := range 100 {
					try(b, s, func(w *World) error { return q.ask(w, k) })
				}
				b.ReportAllocs()
				var took []time.Duration
				for k := 0; b.Loop(); k++ {
					began := time.Now()
					try(b, s, func(w *World) error { return q.ask(w, k) })
					took = append(took, time.Since(began))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			})
		}
	}
}

// BenchmarkNew is what a new sandbox costs until it has answered its first question.
func BenchmarkNew(b *testing.B) {
	for _, nodes := range []int{5000, 100_000} {
		st := fleet(b, nodes).state
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for b.Loop() {
				try(b, New(st, engine.EvaluatorConfig{}), func(w *World) error { return placeSome(w, 1, 1, nil) })
			}
		})
	}
}
