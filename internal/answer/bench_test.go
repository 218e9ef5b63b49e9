package answer_test

import (
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/answer"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// following is a cluster that goes on being scheduled, with a sandbox that follows it.
type following struct {
	b     *testing.B
	st    *cluster.State
	box   *whatif.Sandbox
	nodes int
	next  int // the pod that is placed next, or taken off
}

const (
	benchPods    = 50_000
	benchClasses = 100
	changesEach  = 500 // placements between two questions
)

func newFollowing(b *testing.B, nodes int) *following {
	f := &following{b: b, st: cluster.New(cluster.Version{Epoch: 1}), nodes: nodes}
	deltas := []cluster.Delta{cluster.SettingsSet{Settings: cluster.Settings{
		Shards: 1, Seed: 1, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")},
	}}}
	for k := range benchClasses {
		cpu := []cluster.Quantity{{Name: "cpu", Value: int64(100 + k)}, {Name: "memory", Value: 100 << 20}}
		deltas = append(deltas, cluster.ClassDefined{ID: cluster.ClassID(k), Spec: cluster.ClassSpec{
			SchedulerName: "berth", Requests: cpu, ScoreRequests: cpu, NonZeroCPU: cpu[0].Value, NonZeroMemory: cpu[1].Value, ImageContainers: 1,
		}})
	}
	for k := range nodes {
		name, zone := fmt.Sprintf("node-%06d", k), fmt.Sprint("zone-", k%10)
		deltas = append(deltas, cluster.NodeSet{Index: cluster.NodeIndex(k), Node: cluster.Node{
			Name:        name,
			Labels:      []cluster.Label{{Key: "kubernetes.io/hostname", Value: name}, {Key: "topology.kubernetes.io/zone", Value: zone}},
			Allocatable: []cluster.Quantity{{Name: "cpu", Value: 64_000}, {Name: "memory", Value: 256 << 30}, {Name: "pods", Value: 110}},
		}})
	}
	for k := range benchPods {
		name := fmt.Sprintf("pod-%06d", k)
		deltas = append(deltas, cluster.PodSet{ID: cluster.PodID(k), Pod: cluster.Pod{UID: name, Namespace: "default", Name: name, Class: cluster.ClassID(k % benchClasses)}})
	}
	for _, d := range deltas {
		f.apply(d)
	}
	f.box = whatif.New(f.st, engine.EvaluatorConfig{Parallelism: 1})
	return f
}

func (f *following) apply(d cluster.Delta) {
	if err := f.st.Apply(d); err != nil {
		f.b.Fatal(err)
	}
}

// goOn places pods, or takes them off once all are placed, and returns the deltas.
func (f *following) goOn() (deltas []cluster.Delta) {
	for range changesEach {
		id := cluster.PodID(f.next % benchPods)
		var d cluster.Delta = cluster.PodAssumed{ID: id, Node: cluster.NodeIndex(f.next * 7919 % f.nodes), Attempt: 1}
		if f.next/benchPods%2 == 1 {
			d = cluster.PodForgotten{ID: id}
		}
		f.apply(d)
		deltas = append(deltas, d)
		f.next++
	}
	return deltas
}

// BenchmarkQuestion is what a question costs, following included, while pods are placed on thousands of nodes between one question
// and the next.
func BenchmarkQuestion(b *testing.B) {
	for _, nodes := range []int{5000, 100_000} {
		for name, ask := range map[string]func(f *following, k int) error{
			"why": func(f *following, k int) error {
				_, err := answer.Explain(f.b.Context(), f.box, cluster.PodID(k*7919%benchPods), &schedulingv1.ExplainPodRequest{}, answer.MayKnow{Pods: true, Claims: true})
				return err
			},
			"what-if": func(f *following, k int) error {
				_, err := answer.WhatIf(f.b.Context(), f.box, &schedulingv1.WhatIfRequest{Manifests: fmt.Sprintf(
					`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "what-if"}, "spec": {"schedulerName": "berth", "containers": [
						{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "%dm"}}}]}}`, 100+k%benchClasses)}, true)
				return err
			},
			"follow": func(*following, int) error { return nil },
		} {
			b.Run(fmt.Sprintf("%s/nodes=%d", name, nodes), func(b *testing.B) {
				f := newFollowing(b, nodes)
				b.ReportAllocs()
				for k := 0; b.Loop(); k++ {
					b.StopTimer()
					deltas := f.goOn()
					version, digest := f.st.Version(), f.st.Digest()
					b.StartTimer()
					if err := f.box.Follow(deltas, version, digest); err != nil {
						b.Fatal(err)
					}
					if err := ask(f, k); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
