package cluster_test

import (
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// withPorts returns a state of a node, and the deltas that bring it pods of so many host ports each, no two of which are the same.
func withPorts(t testing.TB, pods, ports int) (*cluster.State, []cluster.Delta) {
	st := cluster.New(start)
	apply(t, st, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "a"}})
	var out []cluster.Delta
	for k := range pods {
		spec := cluster.ClassSpec{}
		for p := range ports {
			n := k*ports + p
			spec.HostPorts = append(spec.HostPorts, cluster.HostPort{
				IP: []string{"0.0.0.0", "10.0.0.1"}[n%2], Protocol: []string{"UDP", "TCP", "SCTP"}[n%3], Port: int32(n*7919%65535 + 1),
			})
		}
		apply(t, st, cluster.ClassDefined{ID: cluster.ClassID(k), Spec: spec},
			cluster.PodSet{ID: cluster.PodID(k), Pod: cluster.Pod{UID: fmt.Sprint(k), Class: cluster.ClassID(k)}})
		out = append(out, cluster.PodAssumed{ID: cluster.PodID(k), Node: 0, Attempt: 1})
	}
	return st, out
}

// Members of the last release compare their digests with those of this one.
func TestTheDigestOfHostPortsIsThatOfTheLastRelease(t *testing.T) {
	st, assumed := withPorts(t, 5, 40)
	apply(t, st, assumed...)
	if err := clustertest.Recompute(st); err != nil {
		t.Error(err)
	}
	if got, want := st.Digest(), uint64(0xa5b9a9048bbc8fa3); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
	apply(t, st, cluster.PodForgotten{ID: 2}, cluster.PodRemoved{ID: 4})
	if err := clustertest.Recompute(st); err != nil {
		t.Error(err)
	}
	if got, want := st.Digest(), uint64(0xc09d5ae9211a46fa); got != want {
		t.Errorf("without two of them %#x, want %#x", got, want)
	}
}

// BenchmarkPodOnANodeOfManyPorts places a pod, and takes it back, on a node of 100 pods of 1,000 host ports each: a plain pod, and one like them.
func BenchmarkPodOnANodeOfManyPorts(b *testing.B) {
	st, assumed := withPorts(b, 100, 1000)
	apply(b, st, cluster.ClassDefined{ID: 1000}, cluster.PodSet{ID: 1000, Pod: cluster.Pod{UID: "plain", Class: 1000}})
	apply(b, st, assumed...)
	for name, id := range map[string]cluster.PodID{"plain": 1000, "of ports": 50} {
		b.Run(name, func(b *testing.B) {
			if st.Pod(id).Placed() {
				apply(b, st, cluster.PodForgotten{ID: id})
			}
			for b.Loop() {
				apply(b, st, cluster.PodAssumed{ID: id, Node: 0, Attempt: 1}, cluster.PodForgotten{ID: id})
			}
		})
	}
}
