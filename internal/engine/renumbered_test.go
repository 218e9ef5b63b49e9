package engine

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// A state numbers its symbols and columns anew while nodes come and go. Who has evaluated it all along finds what somebody finds
// who has just begun.
func TestAnEvaluatorOutlivesSymbolsAndColumns(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	st := cluster.New(cluster.Version{Epoch: 1})
	apply := func(d cluster.Delta) {
		t.Helper()
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	// Where images score, a program is made again whenever a node comes or goes.
	plain := DefaultProfile("plain")
	plain.Weights = slices.DeleteFunc(plain.Weights, func(w cluster.PluginWeight) bool { return w.Name == ImageLocality })
	apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{DefaultProfile("s"), plain}}})
	specs := []cluster.ClassSpec{
		{NodeSelector: []cluster.Label{{Key: "pool", Value: "late"}}},
		{SchedulerName: "plain", NodeSelector: []cluster.Label{{Key: "rack", Value: "rack-1"}}},
		{Spread: []cluster.SpreadConstraint{{TopologyKey: "rack", MaxSkew: 1, MinDomains: 1, Hard: true}}},
		{Tolerations: []cluster.Toleration{{Key: "taint-3", Operator: "Exists"}}, Images: []string{"image-late", "image-0"}, ImageContainers: 1},
		{Requests: []cluster.Quantity{{Name: "cpu", Value: 10}, {Name: "example.com/0", Value: 1}, {Name: "example.com/3", Value: 2}}},
		{Requests: []cluster.Quantity{{Name: "example.com/nowhere", Value: 1}}},
		{Spread: []cluster.SpreadConstraint{{TopologyKey: "zone", MaxSkew: 1, MinDomains: 1, Hard: true}}},
	}
	// Some nodes stay, from a time on when there are symbols already that will be gone.
	const nodes, lasting = 40, 5
	for k := range specs {
		specs[k].SchedulerName = cmp.Or(specs[k].SchedulerName, "s")
		apply(cluster.ClassDefined{ID: cluster.ClassID(k), Spec: specs[k]})
		apply(cluster.LabelsDefined{ID: cluster.LabelsID(k + 1), Set: cluster.LabelSet{Namespace: "n", Labels: []cluster.Label{{Key: "app", Value: fmt.Sprint(k)}}}})
		apply(cluster.PodSet{ID: cluster.PodID(k), Pod: cluster.Pod{UID: fmt.Sprint(k), Namespace: "n", Class: cluster.ClassID(k), Labels: cluster.LabelsID(k + 1)}})
	}
	old := NewEvaluator(EvaluatorConfig{Parallelism: 1})
	clone, cloned := (*cluster.State)(nil), ""
	renumbered := 0
	for step := range 3000 {
		i := cluster.NodeIndex(rng.IntN(nodes))
		if step > 500 && i < lasting {
			i += lasting
		}
		if st.Nodes.Live.Has(i) {
			apply(cluster.NodeRemoved{Index: i})
		}
		pool, image := fmt.Sprint("pool-", step), fmt.Sprint("image-", step)
		if step > 2000 && step%3 == 0 {
			pool, image = "late", "image-late"
		}
		if step <= 500 && step > 500-lasting {
			if i = cluster.NodeIndex(500 - step); st.Nodes.Live.Has(i) {
				apply(cluster.NodeRemoved{Index: i})
			}
		}
		n := cluster.Node{
			Name:   fmt.Sprint("node-", step),
			Labels: []cluster.Label{{Key: "pool", Value: pool}, {Key: "zone", Value: fmt.Sprint("zone-", step%7)}},
			Taints: []cluster.Taint{{Key: fmt.Sprint("taint-", step%5), Value: fmt.Sprint(step), Effect: "NoSchedule"}}, Images: []cluster.Image{{Names: []string{image}, Size: 1 << 30}},
			Allocatable: []cluster.Quantity{{Name: "cpu", Value: int64(rng.IntN(100))}, {Name: "pods", Value: 10}},
		}
		if i < lasting && step > 500-lasting {
			n.Taints, n.Labels = nil, append(n.Labels, cluster.Label{Key: "rack", Value: fmt.Sprint("rack-", step%3)})
		}
		if r := rng.IntN(60); r < 5 {
			n.Allocatable = append(n.Allocatable, cluster.Quantity{Name: fmt.Sprint("example.com/", r), Value: 4})
		}
		before := st.Renumbered()
		apply(cluster.NodeSet{Index: i, Node: n})
		if st.Renumbered() != before {
			renumbered++
		}
		if step == 1000 {
			clone = st.Clone()
			cloned = clustertest.Dump(clone)
		}
		if step%10 > 0 {
			continue
		}
		if step > 500 { // those that stay change, and are judged again
			i := cluster.NodeIndex(step / 10 % lasting)
			n := st.Node(i)
			n.Unschedulable = !n.Unschedulable
			apply(cluster.NodeSet{Index: i, Node: n})
		}
		if err := clustertest.Recompute(st); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		all, fresh := cluster.Range{End: cluster.NodeIndex(st.Nodes.Len())}, NewEvaluator(EvaluatorConfig{Parallelism: 1})
		for k := range specs {
			s := Subject{Class: cluster.ClassID(k), Labels: cluster.LabelsID(k + 1)}
			a, _ := old.Filter(st, s, all)
			b, _ := fresh.Filter(st, s, all)
			if !reflect.DeepEqual(a, b) {
				t.Fatalf("step %d, class %d: %+v, anew %+v", step, k, a, b)
			}
			ga, _ := old.Score(st, s, all, a.Eligible, 3)
			gb, _ := fresh.Score(st, s, all, b.Eligible, 3)
			if fmt.Sprint(sortedGroups(ga)) != fmt.Sprint(sortedGroups(gb)) {
				t.Fatalf("step %d, class %d: groups %+v, anew %+v", step, k, ga, gb)
			}
		}
	}
	if renumbered == 0 || st.Symbols.Len() > 3000 {
		t.Errorf("%d times renumbered, %d symbols", renumbered, st.Symbols.Len())
	}
	if got := clustertest.Dump(clone); got != cloned {
		t.Errorf("a clone has changed with the state it was made of")
	}
}

// sortedGroups are groups without the texts of topology profiles, which are fingerprints.
func sortedGroups(groups []Group) map[string][]string {
	out := make(map[string][]string)
	for _, g := range groups {
		key := fmt.Sprint(g.Raw.Scores[0], g.Raw.Scores[1], g.Raw.TopologyProfile)
		out[key] = append(out[key], fmt.Sprint(g.Count, g.Nodes))
	}
	return out
}

func TestNoPodIsPlacedOnAnUnsupportedNode(t *testing.T) {
	st := cluster.New(cluster.Version{Epoch: 1})
	everything := []cluster.Toleration{{Operator: "Exists"}}
	bare := cluster.Profile{SchedulerName: "bare"} // without any filter
	for _, d := range []cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{bare}}},
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "good"}},
		cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "odd", Unsupported: "for a reason"}},
		cluster.ClassDefined{Spec: cluster.ClassSpec{SchedulerName: "bare", Tolerations: everything}},
		cluster.PodSet{Pod: cluster.Pod{UID: "p"}},
	} {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
	f, _ := e.Filter(st, Subject{}, cluster.Range{End: 2})
	want := []VerdictCount{{Plugin: NodeUnsupported, Reason: ReasonNodeUnsupported, Unresolvable: true, Count: 1, Examples: []string{"odd"}}}
	if f.FeasibleCount != 1 || !f.Eligible.Has(0) || !reflect.DeepEqual(f.Verdicts, want) {
		t.Errorf("found %+v", f)
	}
	survey, _, _ := e.Survey(st, 0, nil, func(i cluster.NodeIndex, lacks []Lack) {
		if i != 1 || len(lacks) != 1 || lacks[0].Plugin != NodeUnsupported {
			t.Errorf("node %d lacks %+v", i, lacks)
		}
	})
	if survey.Feasible != 1 {
		t.Errorf("survey %+v", survey)
	}
}
