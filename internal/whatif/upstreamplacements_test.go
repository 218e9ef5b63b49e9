package whatif

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// The cases of kube-scheduler 1.36's unit tests of placements of PodGroups, by the names of the tests and the cases.

// TestGeneratePlacements has those of pkg/scheduler/framework/plugins/topologyaware/topology_placement_test.go. There, a placement is made of those nodes that a placement around it has; here there is none around it: all nodes
// are considered, so that nodes of the right domain that are outside there are in the placement here.
func TestGeneratePlacements(t *testing.T) {
	type labels map[string]string
	six := map[string]labels{
		"node0": {"topology2": "d1"}, "node1": {"topology2": "d4"}, "node2": {"topology1": "d1"}, "node3": {"topology1": "d2"}, "node4": {"topology1": "d1"}, "node5": {"topology1": "d3"},
	}
	for _, test := range []struct {
		name   string
		key    string
		nodes  map[string]labels
		placed map[string]string // pods of the group, by name
		want   map[string]string
		why    string
	}{
		{name: "with topology key constraint, returns placement for each topology domain", key: "topology1", nodes: six, want: map[string]string{"d1": "node2 node4", "d2": "node3", "d3": "node5"}},
		{name: "without matching topology label, returns empty", key: "topology3", nodes: six, want: map[string]string{}},
		{
			// There: node1 alone, for node2 and node3 are not in the placement around it.
			name: "with pods already scheduled in a single domain, returns that domain", key: "topology",
			nodes:  map[string]labels{"node0": {"topology": "d2"}, "node1": {"topology": "d1"}, "node2": {"topology": "d1"}, "node3": {"topology": "d1"}},
			placed: map[string]string{"pod1": "node2", "pod2": "node3"}, want: map[string]string{"d1": "node1 node2 node3"},
		},
		{
			// There: none, likewise.
			name: "with pods already scheduled in a single domain not present in current placement, returns empty", key: "topology",
			nodes:  map[string]labels{"node0": {"topology": "d2"}, "node2": {"topology": "d1"}, "node3": {"topology": "d1"}},
			placed: map[string]string{"pod1": "node2", "pod2": "node3"}, want: map[string]string{"d1": "node2 node3"},
		},
		{
			name: "with pods already scheduled in conflicting domains, returns error", key: "topology",
			nodes:  map[string]labels{"node0": {"topology": "d2"}, "node1": {"topology": "d1"}, "node2": {"topology": "d0"}, "node3": {"topology": "d1"}},
			placed: map[string]string{"pod1": "node2", "pod2": "node3"},
			why:    "cannot determine domain for already scheduled pods: more than 1 domain found for pod group: d0, d1",
		},
		{
			name: "with already scheduled pod on node outside of snapshot, returns error", key: "topology",
			nodes:  map[string]labels{"node0": {"topology": "d2"}, "node1": {"topology": "d1"}, "node2": {"topology": "d1"}, "node3": {"topology": "d1"}},
			placed: map[string]string{"pod1": "node2", "pod2": "node4"},
			why:    "cannot determine domain for already scheduled pods: no topology domain found for pod default/pod2",
		},
		{
			name: "with already scheduled pod on node without topology label, returns error", key: "topology",
			nodes: map[string]labels{"node1": {"topology": "d2"}, "node2": {"foo": "bar"}}, placed: map[string]string{"pod1": "node2"},
			why: "cannot determine domain for already scheduled pods: no topology domain found for pod default/pod1",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := sandbox(t, placementEvents(test.key, test.nodes, test.placed)...)
			try(t, s, func(w *World) error {
				st := w.State()
				trial := trial{w: w, key: groupKey("g"), group: st.PodGroup(groupKey("g"))}
				all := domains(st, trial.group.Topology)
				why := ""
				if st.GroupPlaced(trial.key) > 0 {
					var err error
					if all, err = trial.whereItIs(all); err != nil {
						why = err.Error()
					}
				}
				if why != test.why {
					t.Errorf("%q, want %q", why, test.why)
				}
				if test.why != "" {
					return nil
				}
				got := make(map[string]string)
				for _, d := range all {
					var names []string
					for i := range cluster.NodeIndex(st.Nodes.Len()) {
						if slices.Contains(d.nodes, i) {
							names = append(names, st.Nodes.Spec[i].Name)
						}
					}
					slices.Sort(names)
					got[d.name] = strings.Join(names, " ")
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				return nil
			})
		})
	}
	t.Run("without constraint returns placement matching all nodes", func(t *testing.T) { // and there is no name for it: such a group is placed as if there were no domains
		s := sandbox(t, placementEvents("", map[string]map[string]string{"node1": nil, "node2": {"foo": "bar"}, "node3": nil}, nil)...)
		out := together(t, s, nil)
		if !out.Placed || out.Domain != "" || out.Fit != 1 {
			t.Errorf("%+v", out)
		}
	})
}

// placementEvents tells nodes with labels, a group that wants one domain of a label, if that is not empty, a pod of it that waits, and others that are on nodes.
func placementEvents[L ~map[string]string](key string, nodes map[string]L, placed map[string]string) []source.Event {
	g := cluster.PodGroup{Name: "g"}
	if key != "" {
		g.Topology = []string{key}
	}
	events := []source.Event{setGroup(g), setPod(ofGroup(aPod("unscheduled", 100), "g"))}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := aNode(name, "z", 4000)
		for _, k := range slices.Sorted(maps.Keys(nodes[name])) {
			n.Labels = append(n.Labels, cluster.Label{Key: k, Value: nodes[name][k]})
		}
		slices.SortFunc(n.Labels, func(a, b cluster.Label) int { return strings.Compare(a.Key, b.Key) })
		events = append(events, setNode(n))
	}
	for _, name := range slices.Sorted(maps.Keys(placed)) {
		events = append(events, setPod(on(ofGroup(aPod(name, 100), "g"), placed[name])))
	}
	return events
}

// TestScorePlacement has the cases of pkg/scheduler/framework/plugins/podgrouppodscount/podgroup_pods_count_test.go: a placement counts the pods of the group that have nodes, whatever nodes these are, and those that it would place.
func TestScorePlacement(t *testing.T) {
	for _, test := range []struct {
		name              string
		assigned, assumed int
		want              int
	}{
		{"existing assigned and assumed pods", 2, 1, 5},
		{"no assumed pods", 1, 0, 3},
		{"no assigned pods", 0, 1, 3},
		{"no assigned pods, no assumed pods", 0, 0, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			events := []source.Event{
				setNode(inRack("node1", "r", 4000)), setNode(inRack("node2", "r", 4000)), setNode(inRack("node3", "r", 4000)),
				setGroup(cluster.PodGroup{Name: "g", Topology: []string{rackKey}}),
				setPod(ofGroup(aPod("proposed-pod-1", 100), "g")), setPod(ofGroup(aPod("proposed-pod-2", 100), "g")),
			}
			for k := range test.assigned {
				events = append(events, setPod(on(ofGroup(aPod(fmt.Sprint("assigned-", k), 100), "g"), fmt.Sprint("node", 2+k))))
			}
			if test.assumed > 0 {
				events = append(events, setPod(ofGroup(aPod("assumed", 100), "g")))
			}
			s := sandbox(t, events...)
			try(t, s, func(w *World) error {
				st := w.State()
				var pods []cluster.PodID
				for _, id := range ids(st, "g") {
					if st.Pod(id).Name != "assumed" {
						pods = append(pods, id)
					} else if err := w.Apply(cluster.PodAssumed{ID: id, Node: st.Nodes.ByName("node1")}); err != nil {
						return err
					}
				}
				out, err := PlaceGroup(w, groupKey("g"), pods)
				if out.Fit != test.want {
					t.Errorf("%d, want %d", out.Fit, test.want)
				}
				return err
			})
		})
	}
}

// TestNormalizePlacementScore has the cases of the same file.
func TestNormalizePlacementScore(t *testing.T) {
	for _, test := range []struct {
		name         string
		scores, want []int
	}{
		{"distinct scores", []int{10, 50, 110}, []int{9, 45, 100}},
		{"equal scores", []int{50, 50}, []int{100, 100}},
		{"single score", []int{50}, []int{100}},
		{"some minimal score that is far from a group of scores located closely", []int{11, 100, 101, 102}, []int{10, 98, 99, 100}},
		// There, this is the error "no pods from pod group are assigned to any of the candidate placements". Here a domain has to be chosen all the same, to say how far the group comes in it.
		{"zero scores", []int{0, 0}, []int{0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for k, score := range test.scores {
				if got := podsScore(score, slices.Max(test.scores)); got != int64(test.want[k]) {
					t.Errorf("%d: %d, want %d", score, got, test.want[k])
				}
			}
		})
	}
}

// TestPodGroupSchedulingPlacementAlgorithm has those cases of pkg/scheduler/schedule_one_podgroup_test.go that are not about plugins that fail, of which there are none here.
func TestPodGroupSchedulingPlacementAlgorithm(t *testing.T) {
	for _, test := range []struct {
		name       string
		cpu1, cpu2 int64 // of the placements' only nodes
		label      string
		node, why  string
	}{
		{"respects higher score of placement1", 1000, 2000, rackKey, "node1", ""},
		{"respects higher score of placement2", 2000, 1000, rackKey, "node2", ""},
		{"filters out infeasible placements", 1000, 10, rackKey, "node1", ""},
		{"when no placements are generated, returns unschedulable", 1000, 1000, "none", "", "no feasible placements found"},
		// There, of the first placement: "0/2 placements are available, first placement status: pod group is unschedulable".
		{"when all placements are infeasible, returns unschedulable", 20, 10, rackKey, "", "0/2 placements are available, the best: pod group is unschedulable: none of its pods fits"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := sandbox(t, setNode(inRack("node1", "placement1", test.cpu1)), setNode(inRack("node2", "placement2", test.cpu2)),
				setGroup(cluster.PodGroup{Name: "g", Topology: []string{test.label}}), setPod(ofGroup(aPod("foo", 100), "g")))
			out := together(t, s, nil)
			node := ""
			if out.Placed {
				node = out.Pods[0].Node
			}
			if node != test.node || out.Message != test.why {
				t.Errorf("placed on %q, %q; want %q, %q", node, out.Message, test.node, test.why)
			}
		})
	}
}
