package engine

import (
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// TestScorePlacement_Resources has the cases of kube-scheduler 1.36's test of that name (pkg/scheduler/framework/plugins/noderesources/fit_test.go): what NodeResourcesFit gives a placement of a PodGroup. Where a pod of the group is
// within the placement does not matter there either.
func TestScorePlacement_Resources(t *testing.T) {
	type amounts struct{ cpu, memory, gpu int64 }
	quantities := func(a amounts) []cluster.Quantity { // zeros are requests too, so that no default takes their place
		return []cluster.Quantity{{Name: "cpu", Value: a.cpu}, {Name: "memory", Value: a.memory}, {Name: "nvidia.com/gpu", Value: a.gpu}}
	}
	two := []amounts{{cpu: 5000, memory: 5000}, {cpu: 5000, memory: 5000}}
	twoWithGPUs := []amounts{{5000, 5000, 5}, {5000, 5000, 5}}
	fooBar := []amounts{{cpu: 1000}, {cpu: 2000, memory: 2000}}
	equal := []cluster.PluginWeight{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}}
	withGPUs := append(slices.Clone(equal), cluster.PluginWeight{Name: "nvidia.com/gpu", Weight: 1})
	for _, test := range []struct {
		name      string
		nodes     []amounts
		within    int // of the nodes, the first so many are the placement
		pods      []amounts
		existing  []amounts // on the first node
		resources []cluster.PluginWeight
		want      int64
	}{
		{"Computes score based on total requests", two, 2, fooBar, nil, equal, 25},
		{"Computes score using weights", two, 2, fooBar, nil, []cluster.PluginWeight{{Name: "cpu", Weight: 4}, {Name: "memory", Weight: 1}}, 28},
		{"Handles multiple pods per node", two, 2, fooBar, nil, []cluster.PluginWeight{{Name: "cpu", Weight: 4}, {Name: "memory", Weight: 1}}, 28},
		{"Does not include nodes from outside of placement", append(slices.Clone(two), two[0]), 2, fooBar, nil, equal, 25},
		{"Includes pre-existing pods from outside of pod group", two, 2, fooBar, []amounts{{cpu: 1000}}, equal, 30},
		{
			"Includes scalar resources if any pod in pod group has nonzero requests", twoWithGPUs, 2,
			[]amounts{{cpu: 1000}, {1000, 2000, 1}}, []amounts{{cpu: 1000}}, withGPUs, 20,
		},
		{
			"Does not include scalar resources if all pods in pod group have zero requests", twoWithGPUs, 2,
			[]amounts{{cpu: 1000}, {cpu: 1000, memory: 2000}}, []amounts{{cpu: 1000, gpu: 1}}, withGPUs, 25,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			profile := DefaultProfile("default-scheduler")
			profile.FitResources = test.resources
			st := cluster.New(cluster.Version{Epoch: 1})
			apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}})
			var placement []cluster.NodeIndex
			for i, has := range test.nodes {
				apply(t, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{Name: string(rune('a' + i)), Allocatable: quantities(has)}})
				if i < test.within {
					placement = append(placement, cluster.NodeIndex(i))
				}
			}
			class := func(id int, a amounts) {
				apply(t, st, cluster.ClassDefined{ID: cluster.ClassID(id), Spec: cluster.ClassSpec{
					SchedulerName: "default-scheduler", Requests: quantities(a), ScoreRequests: quantities(a), NonZeroCPU: a.cpu, NonZeroMemory: a.memory,
				}})
			}
			id := 0
			for _, a := range test.existing {
				id++
				class(id, a)
				apply(t, st, cluster.PodSet{ID: cluster.PodID(id), Pod: cluster.Pod{UID: "existing", Class: cluster.ClassID(id), NodeName: "a"}})
			}
			var pods []*cluster.Class
			for _, a := range test.pods {
				id++
				class(id, a)
				apply(t, st, cluster.PodSet{ID: cluster.PodID(id), Pod: cluster.Pod{UID: string(rune('p' + id)), Class: cluster.ClassID(id)}})
				pods = append(pods, st.Class(cluster.ClassID(id)))
			}
			if got := ComersOf(st, &profile, pods).Fullness(st, placement).Score; got != test.want {
				t.Errorf("%d, want %d", got, test.want)
			}
		})
	}
}
