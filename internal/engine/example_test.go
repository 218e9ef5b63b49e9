package engine

import (
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// must ends an example that is wrong.
type must struct{}

func (must) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// exampleCluster has nodes for 110 pods each, the plugins that score, and the class of the pods that are placed.
func exampleCluster(class cluster.ClassSpec, weights []cluster.PluginWeight, nodes ...cluster.Node) *cluster.State {
	profile := DefaultProfile("test")
	profile.Weights = weights
	class.SchedulerName = "test"
	st := cluster.New(cluster.Version{Epoch: 1})
	apply(must{}, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 7, Profiles: []cluster.Profile{profile}}},
		cluster.ClassDefined{ID: testClass, Spec: class})
	for i, n := range nodes {
		n.Allocatable = append(n.Allocatable, quantity("pods", 110))
		apply(must{}, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: n})
	}
	return st
}

// Why a choice is proven to be the best, in numbers. A node's fixed score depends on that node alone. Here it is that of
// NodeResourcesFit: the part of the node that stays free. TaintToleration is normalised over all feasible nodes: if t is how many
// taints of the node the pod does not tolerate, and T the most of any feasible node, it is 100 - 100·t/T. Which of two nodes with
// equal t is better depends on their fixed scores only. So the score-workers list, for each t, the best nodes by their fixed
// scores, here one each, and the Placer needs no others:
//
//   - Pod 1 goes to roomy, with 90+80. Only because T is 5 is that more than clean's 50+100: without the dirty nodes, roomy would
//     have 90+0.
//   - The Placer scores a node again once a pod has been placed there: pods 2 and 3 find roomy with 80+80 and 70+80. The latter
//     is as much as clean has, and the class's own order of nodes decides.
//   - dirty-2 is not listed. What is known of it is a ceiling: it had no more than dirty-1 when that was listed, 75+0. The nodes
//     chosen for pods 1 to 13 have at least as much, so dirty-2 need not be looked at.
//   - For pod 14 the best node that is known is dirty-1, now with 50+0. The ceiling is higher, so dirty-2 may be better (and is).
//     The answer is retry: the pod is tried again with new candidates.
func ExamplePlacer() {
	taints := func(n int) (taints []cluster.Taint) {
		for k := range n {
			taints = append(taints, cluster.Taint{Key: string(rune('a' + k)), Effect: "PreferNoSchedule"})
		}
		return taints
	}
	st := exampleCluster(smallPod, []cluster.PluginWeight{{Name: TaintToleration, Weight: 1}, {Name: NodeResourcesFit, Weight: 1}},
		cluster.Node{Name: "clean", Allocatable: requests(2000, 2000)},
		cluster.Node{Name: "roomy", Allocatable: requests(10000, 10000), Taints: taints(1)},
		cluster.Node{Name: "dirty-1", Allocatable: requests(4000, 4000), Taints: taints(5)},
		cluster.Node{Name: "dirty-2", Allocatable: requests(4000, 4000), Taints: taints(5)})
	e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
	f, _ := e.Filter(st, of(testClass), everything(st))
	groups, _ := e.Score(st, of(testClass), everything(st), f.Eligible, 1)
	totals, _ := e.Totals(st, of(testClass), groups, cluster.NoNode)
	for k, g := range groups {
		best := g.Nodes[0]
		fmt.Printf("taints: %d, nodes: %d, listed: %s with %d+%d\n",
			g.Raw.Scores[0], g.Count, st.Node(best.Node).Name, best.Fixed, totals[k].Normalized[0])
	}
	p := NewPlacer(e, st, st.Version().Seq, []Candidates{{of(testClass), groups}})
	for id := cluster.PodID(1); ; id++ {
		node, placement := p.Place(0)
		if placement != Placed {
			fmt.Printf("pod %d: %v\n", id, placement)
			return
		}
		fmt.Printf("pod %d: %s\n", id, st.Node(node).Name)
		apply(must{}, st, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint(id), Class: testClass}},
			cluster.PodAssumed{ID: id, Node: node, Attempt: 1})
	}
	// Output:
	// taints: 0, nodes: 1, listed: clean with 50+100
	// taints: 1, nodes: 1, listed: roomy with 90+80
	// taints: 5, nodes: 2, listed: dirty-1 with 75+0
	// pod 1: roomy
	// pod 2: roomy
	// pod 3: clean
	// pod 4: roomy
	// pod 5: roomy
	// pod 6: roomy
	// pod 7: roomy
	// pod 8: roomy
	// pod 9: clean
	// pod 10: roomy
	// pod 11: roomy
	// pod 12: roomy
	// pod 13: dirty-1
	// pod 14: retry
}

// What a node's topology profile says, in numbers. The pods that are placed have the label app=web and a hard constraint: no zone
// may have more than one pod of app=web more than the zone with the fewest. The constraint has one slot, whose key is the zone.
//
//   - a1 and a2 are in one zone. While any zone has several nodes, a profile names its zone (the mark 1, and the value), and what
//     the zone's pods count is one sum, kept with the slot. A pod that is placed changes the sum and no profile, so candidates
//     that were found before stay right, and the verdict is made anew once per profile, not once per node.
//   - Zones a and b have one pod, c has none: a second one on a or b would be two more than c has. Once c has one, each may have
//     another.
//   - d1 has no zone (the mark 0). It is no domain, and takes no pod.
//   - Without a2 no zone has several nodes. Then a profile does not name its zone (the mark 2), but says what is counted there, as
//     a varint: all zones with one pod are alike, however many they are.
func Example_topologyProfiles() {
	const (
		zone = "topology.kubernetes.io/zone"
		web  = cluster.LabelsID(1)
	)
	in := func(name string, labels ...cluster.Label) cluster.Node {
		return cluster.Node{Name: name, Allocatable: requests(8000, 8000), Labels: labels}
	}
	class := smallPod
	class.Spread = []cluster.SpreadConstraint{{
		TopologyKey: zone, MaxSkew: 1, MinDomains: 1, Hard: true,
		Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}},
	}}
	st := exampleCluster(class, []cluster.PluginWeight{{Name: NodeResourcesFit, Weight: 1}},
		in("a1", cluster.Label{Key: zone, Value: "a"}), in("a2", cluster.Label{Key: zone, Value: "a"}),
		in("b1", cluster.Label{Key: zone, Value: "b"}), in("c1", cluster.Label{Key: zone, Value: "c"}), in("d1"))
	apply(must{}, st, cluster.LabelsDefined{ID: web, Set: cluster.LabelSet{
		Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "web"}},
	}})
	e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
	show := func(c *evaluation) {
		t := c.topology
		t.judgeAll()
		for i := range cluster.NodeIndex(st.Nodes.Len()) {
			if !st.Nodes.Live.Has(i) {
				continue
			}
			tp := t.profileOf(i)
			of := t.plugins[0].crossNode.(*spread)
			count, least := of.levels(t, &of.hard[0], tp, nil)
			fmt.Printf("%s %-8q has %d, least %d, feasible %v\n",
				st.Node(i).Name, tp.text[len(t.prefix):], count, least, tp.verdict.Feasible())
		}
		fmt.Println()
	}
	showNow := func() { e.with(st, Subject{Class: testClass, Labels: web}, show) }
	for id, node := range []string{"a1", "b1", "c1"} {
		if node == "c1" {
			showNow()
		}
		apply(must{}, st, cluster.PodSet{ID: cluster.PodID(id), Pod: cluster.Pod{UID: node, Class: testClass, Labels: web, NodeName: node}})
	}
	showNow()
	apply(must{}, st, cluster.NodeRemoved{Index: 1})
	showNow()
	// Output:
	// a1 "\x01\x01a" has 1, least 0, feasible false
	// a2 "\x01\x01a" has 1, least 0, feasible false
	// b1 "\x01\x01b" has 1, least 0, feasible false
	// c1 "\x01\x01c" has 0, least 0, feasible true
	// d1 "\x00"   has 0, least 0, feasible false
	//
	// a1 "\x01\x01a" has 1, least 1, feasible true
	// a2 "\x01\x01a" has 1, least 1, feasible true
	// b1 "\x01\x01b" has 1, least 1, feasible true
	// c1 "\x01\x01c" has 1, least 1, feasible true
	// d1 "\x00"   has 0, least 1, feasible false
	//
	// a1 "\x02\x02" has 1, least 1, feasible true
	// b1 "\x02\x02" has 1, least 1, feasible true
	// c1 "\x02\x02" has 1, least 1, feasible true
	// d1 "\x00"   has 0, least 1, feasible false
}
