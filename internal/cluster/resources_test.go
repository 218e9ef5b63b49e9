package cluster_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// rebuilt returns the state that a snapshot of one builds.
func rebuilt(t *testing.T, st *cluster.State) *cluster.State {
	t.Helper()
	out := cluster.New(start)
	for d := range st.Snapshot() {
		apply(t, out, d)
	}
	out.Restore(st.Version())
	return out
}

func nodeWith(i cluster.NodeIndex, name string, all ...cluster.Quantity) cluster.NodeSet {
	return cluster.NodeSet{Index: i, Node: cluster.Node{Name: name, Allocatable: all}}
}

func TestResourcesAreToldApartByTheirNames(t *testing.T) {
	for name, want := range map[string]struct{ scalar, extended bool }{
		"cpu": {false, false}, "pods": {false, false}, "hugepages-2Mi": {true, false}, "attachable-volumes-csi": {true, false},
		"kubernetes.io/batch": {true, false}, "x.kubernetes.io/y": {true, false}, "requests.nvidia.com/gpu": {false, false},
		"nvidia.com/gpu": {true, true}, "nvidia.com/": {false, false}, "nvidia.com/a/b": {false, false},
	} {
		if scalar, extended := cluster.IsScalar(name), cluster.IsExtended(name); scalar != want.scalar || extended != want.extended {
			t.Errorf("%s: scalar %v, extended %v; want %v", name, scalar, extended, want)
		}
	}
}

func TestACloneAndItsOriginalLearnOfResourcesApart(t *testing.T) {
	st := cluster.New(start)
	apply(t, st,
		cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{Requests: []cluster.Quantity{
			{Name: "cpu", Value: 1}, {Name: "memory", Value: 1}, {Name: "ephemeral-storage", Value: 1},
			{Name: "x/a", Value: 2}, {Name: "x/b", Value: 7},
		}}},
		nodeWith(0, "plain", cluster.Quantity{Name: "cpu", Value: 10}),
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Namespace: "default", Name: "p", Class: 1}},
	)
	clone := st.Clone()
	apply(t, st, nodeWith(1, "a", cluster.Quantity{Name: "x/a", Value: 4}))
	apply(t, clone, nodeWith(1, "b", cluster.Quantity{Name: "x/b", Value: 4}))
	for name, s := range map[string]*cluster.State{"original": st, "clone": clone} {
		apply(t, s, cluster.PodAssumed{ID: 0, Node: 1, Attempt: 1})
		if got, want := s.Digest(), rebuilt(t, s).Digest(); got != want {
			t.Errorf("%s: digest %016x, want %016x as its snapshot builds it", name, got, want)
		}
	}
	a, _ := st.Resource("x/a")
	b, _ := clone.Resource("x/b")
	if got := [2]int64{st.Nodes.Requested[a][1], clone.Nodes.Requested[b][1]}; got != [2]int64{2, 7} {
		t.Errorf("requested of x/a and x/b %v, want [2 7]", got)
	}
}

// Replicas of a version of Berth and of the one before may follow the same log.
func TestWhatPlacedPodsRequestOfWhatNoNodeHasIsInTheDigestAsEver(t *testing.T) {
	st := cluster.New(cluster.Version{Epoch: 1})
	two := nodeWith(2, "n2", cluster.Quantity{Name: "x/a", Value: 10})
	apply(t, st,
		cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{Requests: []cluster.Quantity{{Name: "cpu", Value: 1}, {Name: "x/a", Value: 2}, {Name: "x/b", Value: 7}}}},
		cluster.ClassDefined{ID: 2, Spec: cluster.ClassSpec{Requests: []cluster.Quantity{{Name: "x/a", Value: 3}, {Name: "x/a", Value: 1}, {Name: "pods", Value: 1}}}},
		nodeWith(0, "n0", cluster.Quantity{Name: "cpu", Value: 10}),
		nodeWith(1, "n1", cluster.Quantity{Name: "x/b", Value: 10}),
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u0", Namespace: "n", Name: "p0", Class: 1, NodeName: "n0"}},
		cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "u1", Namespace: "n", Name: "p1", Class: 2, NodeName: "n0"}},
		cluster.PodSet{ID: 2, Pod: cluster.Pod{UID: "u2", Namespace: "n", Name: "p2", Class: 2, NodeName: "n1"}},
		cluster.PodSet{ID: 3, Pod: cluster.Pod{UID: "u3", Namespace: "n", Name: "p3", Class: 1}},
	)
	const want = 0x9ae5f0c741667627 // of the version that had columns of all that was requested
	check := func(when string, want uint64) {
		t.Helper()
		if got := st.Digest(); got != want {
			t.Errorf("%s: digest %#016x, want %#016x", when, got, want)
		}
		if got := rebuilt(t, st).Digest(); got != want {
			t.Errorf("%s, as its snapshot builds it: digest %#016x, want %#016x", when, got, want)
		}
	}
	check("before any node has x/a", want)
	apply(t, st, two)
	if a, _ := st.Resource("x/a"); st.Nodes.Requested[a][0] != 6 || st.Nodes.Requested[a][1] != 4 {
		t.Errorf("requested of x/a %v, want 6 and 4", st.Nodes.Requested[a])
	}
	apply(t, st, cluster.PodRemoved{ID: 2}, cluster.NodeRemoved{Index: 2},
		cluster.PodSet{ID: 2, Pod: cluster.Pod{UID: "u2", Namespace: "n", Name: "p2", Class: 2, NodeName: "n1"}})
	check("after a node had some for a while", want)
}
