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
