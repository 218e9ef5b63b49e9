package engine

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestNoMorePodsFitThanTheyRequest(t *testing.T) {
	st := cluster.New(cluster.Version{Epoch: 1})
	profile := DefaultProfile("default-scheduler")
	apply := func(d cluster.Delta) {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	requests := func(cpu, gpu int64) cluster.ClassSpec {
		return cluster.ClassSpec{SchedulerName: "default-scheduler", Requests: []cluster.Quantity{{Name: "cpu", Value: cpu}, {Name: "example.com/gpu", Value: gpu}}}
	}
	apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}})
	apply(cluster.ClassDefined{ID: 1, Spec: requests(1000, 1)})
	apply(cluster.ClassDefined{ID: 2, Spec: requests(3000, 2)})
	for i, has := range []struct{ cpu, gpu, pods int64 }{{4000, 8, 110}, {9000, 1, 110}, {9000, 8, 2}, {500, 8, 110}} {
		apply(cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{Name: string(rune('a' + i)), Allocatable: []cluster.Quantity{
			{Name: "cpu", Value: has.cpu}, {Name: "example.com/gpu", Value: has.gpu}, {Name: "pods", Value: has.pods},
		}}})
	}
	apply(cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "p", Class: 1, NodeName: "a"}}) // leaves 3 CPUs of a
	apply(cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "q", Class: 2}})
	nodes := []cluster.NodeIndex{0, 1, 2, 3}
	small, large := st.Class(1), st.Class(2)
	ignoring := profile
	ignoring.IgnoredResources = []string{"example.com/gpu"}
	without := profile
	without.Filters = []string{"NodeName"}
	for _, test := range []struct {
		name    string
		profile *cluster.Profile
		classes []*cluster.Class
		want    int
	}{
		{"small ones: by CPU, by cards, by pods, not at all", &profile, []*cluster.Class{small}, 3 + 1 + 2},
		{"large ones", &profile, []*cluster.Class{large}, 1 + 0 + 2},
		{"both: each may be small", &profile, []*cluster.Class{large, small}, 3 + 1 + 2},
		{"cards do not count", &ignoring, []*cluster.Class{small}, 3 + 9 + 2},
		{"nothing counts", &without, []*cluster.Class{small}, 100},
	} {
		if got := ComersOf(st, test.profile, test.classes).AtMost(st, nodes, 100); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
	if got := ComersOf(st, &profile, []*cluster.Class{small}).AtMost(st, nodes, 2); got < 2 || got > 3 {
		t.Errorf("of 2 that are enough: %d", got)
	}
}
