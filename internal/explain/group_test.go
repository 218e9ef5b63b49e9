package explain

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// TestTheExplanationOfAPodOfAGangIsThatOfTheGang has what a gang may wait for, and what would help.
func TestTheExplanationOfAPodOfAGangIsThatOfTheGang(t *testing.T) {
	const rack = "example.com/rack"
	gang := func(minCount int32, topology ...string) cluster.Delta {
		return cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: "g", Gang: true, MinCount: minCount, Topology: topology}}
	}
	preferring := func(minCount int32) cluster.Delta {
		return cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: "g", Gang: true, MinCount: minCount, Preferred: []string{"example.com/block", rack}}}
	}
	pod := func(id cluster.PodID, change ...func(*cluster.Pod)) cluster.Delta {
		p := cluster.Pod{UID: fmt.Sprint("u", id), Namespace: "default", Name: fmt.Sprint("p", id), Class: 1, Group: "g", Created: int64(1 + id)}
		for _, c := range change {
			c(&p)
		}
		return cluster.PodSet{ID: id, Pod: p}
	}
	second := engine.DefaultProfile("second")
	asked := engine.DefaultProfile("default-scheduler")
	asked.Filters = append(slices.Clone(asked.Filters), "GPUModel")
	theirs := func(p *cluster.Pod) { p.Group = cluster.CoschedulingGroup("g") }
	for _, test := range []struct {
		name     string
		deltas   []cluster.Delta
		headline string
		says     []string
	}{
		{"there is none", []cluster.Delta{pod(0)}, "default/p0 is not tried: its PodGroup g does not exist.", nil},
		{"they cannot be read", []cluster.Delta{cluster.ObjectSet{Object: &cluster.Unserved{Name: cluster.PodGroupResource, Why: "no"}}, pod(0)}, "default/p0 is not tried: podgroups cannot be read: no.", nil},
		{"Coscheduling's cannot be read", []cluster.Delta{cluster.ObjectSet{Object: &cluster.Unserved{Name: cluster.CoschedulingResource, Why: "no"}}, pod(0, theirs)},
			"default/p0 is not tried: podgroups.scheduling.x-k8s.io cannot be read: no.", nil},
		{"one of Coscheduling does not fit", []cluster.Delta{
			cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: cluster.CoschedulingGroup("g"), Gang: true, MinCount: 4}}, pod(0, theirs), pod(1, theirs), pod(2, theirs), pod(3, theirs),
		}, "default/p0 is pending with its PodGroup: 3 of at least 4 pods of podgroup.scheduling.x-k8s.io/g fit.", []string{"It would fit with 1 more node like a1, or a minMember of 3."}},
		{"it has too few pods", []cluster.Delta{gang(3), pod(0), pod(1)}, "default/p0 is not tried: its PodGroup g wants at least 3 pods, and 2 are there.", nil},
		{"too few of its pods have no gates", []cluster.Delta{gang(2), pod(0), pod(1, func(p *cluster.Pod) { p.Gates = []string{"kueue.x-k8s.io/topology"} })},
			"default/p0 is not tried: its PodGroup g wants at least 2 pods, and of 2 that are there 1 have scheduling gates.", nil},
		{"it fits", []cluster.Delta{gang(3), pod(0), pod(1), pod(2)}, "default/p0 is pending, though its PodGroup g fits: it waits for its turn.",
			[]string{"PodGroup g has 3 pods, of which it wants at least 3 placed together."}},
		{"a plugin of others filters nodes for it", []cluster.Delta{cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{asked}}}, gang(3), pod(0), pod(1), pod(2)},
			"default/p0 is not tried: pods of a PodGroup that extenders or plugin services are asked about are not placed.", nil},
		{"it is of two schedulers", []cluster.Delta{
			cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler"), second}}},
			cluster.ClassDefined{ID: 2, Spec: cluster.ClassSpec{SchedulerName: "second"}}, gang(2), pod(0), pod(1, func(p *cluster.Pod) { p.Class = 2 }),
		}, `default/p0 is not tried: all pods in a single pod group should have the same .spec.schedulerName set, got: "default-scheduler" and "second".`, nil},
		{"it does not", []cluster.Delta{gang(4), pod(0), pod(1), pod(2), pod(3)}, "default/p0 is pending with its PodGroup: 3 of at least 4 pods of g fit.",
			[]string{"It would fit with 1 more node like a1, or a minCount of 3."}},
		{"as many as it wants are placed, and this one does not fit", []cluster.Delta{
			gang(2), pod(0), pod(1, func(p *cluster.Pod) { p.NodeName = "a1" }), pod(2, func(p *cluster.Pod) { p.NodeName = "a1" }), pod(3, func(p *cluster.Pod) { p.Group, p.NodeName = "", "b1" }),
		}, "default/p0 is pending because none of 2 nodes can take it: 2 lack cpu.", []string{"PodGroup g has 3 pods, of which it wants at least 2 placed together.\n2 are placed.", "One change would help:\n  1. Add one node like b1."}},
		{"as many as it wants are placed, and this one fits", []cluster.Delta{
			gang(2), pod(0), pod(1, func(p *cluster.Pod) { p.NodeName = "a1" }), pod(2, func(p *cluster.Pod) { p.NodeName = "a1" }), pod(3),
		}, "default/p0 is pending, though 1 of 2 nodes can take it: it waits for its turn.", []string{"2 are placed."}},
		{"as many as it wants are placed, and there is no room in their rack", []cluster.Delta{
			gang(2, rack), pod(0), pod(1, func(p *cluster.Pod) { p.NodeName = "a1" }), pod(2, func(p *cluster.Pod) { p.NodeName = "a1" }),
		}, "default/p0 is pending with its PodGroup: 2 are placed of g, which wants no more, and no other fits, in a.", []string{"It would fit with 1 more node like a1."}},
		{"no rack has room", []cluster.Delta{gang(5, rack), pod(0), pod(1), pod(2), pod(3), pod(4)}, "default/p0 is pending with its PodGroup: 2 of at least 5 pods of g fit, in a.",
			[]string{"PodGroup g has 5 pods, of which it wants at least 5 placed together, all with the same example.com/rack.", "It would fit with 2 more nodes like a1, or a minCount of 2."}},
		{"it prefers a topology", []cluster.Delta{preferring(3), pod(0), pod(1), pod(2)}, "default/p0 is pending, though its PodGroup g fits: it waits for its turn.",
			[]string{"PodGroup g has 3 pods, of which it wants at least 3 placed together, in as few domains of example.com/block, example.com/rack as they fit in."}},
		{"room is reserved for it", []cluster.Delta{
			gang(3), pod(0), pod(1, func(p *cluster.Pod) { p.Nominated = "a1" }), pod(2, func(p *cluster.Pod) { p.Nominated = "b1" }),
			pod(3, func(p *cluster.Pod) { p.Group, p.NodeName, p.Started, p.Ends = "", "b1", 1_000_000_000, math.MaxInt32 }),
		}, "default/p0 is pending with its PodGroup: 2 of at least 3 pods of g fit.", []string{"Note: room is held for its PodGroup g on a1, b1: 1 pod there is to end first, at the latest at 2038-01-19T03:14:08Z."}},
		{"others are being evicted for it", []cluster.Delta{
			gang(2), pod(0), pod(1), pod(2, func(p *cluster.Pod) { p.Group, p.NodeName = "", "a1" }), cluster.PreemptionStarted{ID: 1, Node: 0, Victims: []cluster.PodID{2}},
		}, "default/p0 is not tried: pods of lower priority are being evicted for its PodGroup g.", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			st := cluster.New(cluster.Version{Epoch: 1})
			request := []cluster.Quantity{{Name: "cpu", Value: 1000}}
			apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}},
				cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{SchedulerName: "default-scheduler", Requests: request, ScoreRequests: request, NonZeroCPU: 1000}})
			for i, node := range []struct {
				rack string
				cpu  int64
			}{{"a", 2000}, {"b", 1000}} {
				apply(t, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{
					Name: node.rack + "1", Labels: []cluster.Label{{Key: rack, Value: node.rack}},
					Allocatable: []cluster.Quantity{{Name: "cpu", Value: node.cpu}, {Name: "memory", Value: 1 << 40}, {Name: "pods", Value: 10}},
				}})
			}
			apply(t, st, test.deltas...)
			x := explained(t, st, 0)
			if got := x.Headline(); got != test.headline {
				t.Errorf("the headline is %q, want %q", got, test.headline)
			}
			text := Text(x)
			for _, want := range test.says {
				if !strings.Contains(text, want) {
					t.Errorf("it does not say %q:\n%s", want, text)
				}
			}
		})
	}
}
