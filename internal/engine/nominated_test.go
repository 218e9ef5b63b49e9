package engine

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// crowdedOut is a pod with a volume of its own that is nominated to n0, as are two of higher priority whose volumes take all the room that there is
// for volumes. But for that n0 would be the best.
func crowdedOut(t *testing.T, nodes int) (*storage, cluster.PodID) {
	w := newStorage(t, nodes)
	for k, priority := range []int32{10, 11} {
		claim := fmt.Sprint("theirs-", k)
		w.bound(claim, nil)
		w.apply(cluster.PodNominated{ID: w.pod(claim, "", priority, nil, claims(claim)...), Node: "n0"})
	}
	for i := cluster.NodeIndex(1); int(i) < nodes; i++ {
		node := w.st.Node(i)
		node.Taints = []cluster.Taint{{Key: "reserved", Effect: "PreferNoSchedule"}}
		w.apply(cluster.NodeSet{Index: i, Node: node})
	}
	w.bound("mine", nil)
	id := w.pod("mine", "", 0, nil, claims("mine")...)
	w.apply(cluster.PodNominated{ID: id, Node: "n0"})
	return w, id
}

func TestANominatedPodDoesNotShareItsVolumeWithItself(t *testing.T) {
	w, id := crowdedOut(t, 1)
	e := NewEvaluator(EvaluatorConfig{})
	if on, got := w.batch(e, id).Choose(id, 0); got != NoFit {
		t.Errorf("%v on %d, want no fit: two others are nominated there, which come first", got, on)
	}
	nodes, why := e.AnswersOf(w.st, id).Unschedulable()
	want := []VerdictCount{{Plugin: NodeVolumeLimits, Reason: ReasonVolumeLimit, Count: 1, Examples: []string{"n0"}}}
	if diff := cmp.Diff(want, why); diff != "" || nodes != 1 {
		t.Errorf("of %d nodes (-want +got):\n%s", nodes, diff)
	}
	s := SubjectOf(&w.st.Pod(id).Pod)
	if e.Possible(w.st, s, 0) {
		t.Error("it may go somewhere, leaving out the only node")
	}
	if got := e.RefusedAsNominated(w.st, id); got != 0 {
		t.Errorf("refused by %d, want node 0", got)
	}
}

func TestANominatedPodThatIsCrowdedOutGoesElsewhere(t *testing.T) {
	w, id := crowdedOut(t, 3)
	e := NewEvaluator(EvaluatorConfig{})
	p := w.batch(e, id)
	for round := range 2 {
		on, got := p.Choose(id, 0)
		if got != Placed || on == 0 {
			t.Errorf("%v on %d, want it placed on another node than n0", got, on)
		}
		if round == 0 { // those that share the candidates see all of them
			w.apply(cluster.NodeSet{Index: 0, Node: w.st.Node(0)})
		}
	}
	s := SubjectOf(&w.st.Pod(id).Pod)
	if !e.Possible(w.st, s, 0) {
		t.Error("it can go nowhere")
	}
	// One that shares its volume may go to n0, where the volume is to be anyway, and is not kept from it by the other's having been refused there.
	other := w.pod("sharing", "", 0, nil, claims("mine")...)
	p = w.batch(e, id)
	p.Choose(id, 0)
	if on, got := p.Choose(other, 0); got != Placed || on != 0 {
		t.Errorf("a pod that shares the volume: %v on %d, want it placed on n0", got, on)
	}
}

// Which zone counts for how much depends on how many nodes are feasible. A node that has refused the pod is none of them, be it to others.
func TestANodeThatHasRefusedANominatedPodDoesNotWeighInHowPodsAreSpread(t *testing.T) {
	web := []cluster.Label{{Key: "app", Value: "web"}}
	selector := cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}}
	spread := func(key string) cluster.SpreadConstraint {
		return cluster.SpreadConstraint{TopologyKey: key, MaxSkew: 1, MinDomains: 1, Selector: selector}
	}
	for _, refusedToAll := range []bool{false, true} {
		w, id := crowdedOut(t, 4)
		for i := range cluster.NodeIndex(4) {
			node := w.st.Node(i)
			node.Taints, node.Unschedulable = nil, i == 3 || i == 0 && refusedToAll
			node.Labels = []cluster.Label{{Key: "kubernetes.io/hostname", Value: node.Name}, {Key: "topology.kubernetes.io/zone", Value: string("aabb"[i])}}
			w.apply(cluster.NodeSet{Index: i, Node: node})
		}
		const class, bare, running, mine = 900, 901, 900, 901
		w.apply(
			cluster.ClassDefined{ID: class, Spec: cluster.ClassSpec{
				SchedulerName: "default", Spread: []cluster.SpreadConstraint{spread("topology.kubernetes.io/zone"), spread("kubernetes.io/hostname")},
			}},
			cluster.ClassDefined{ID: bare, Spec: cluster.ClassSpec{SchedulerName: "default"}},
			cluster.LabelsDefined{ID: running, Set: cluster.LabelSet{Namespace: "shop", Labels: web}},
			cluster.LabelsDefined{ID: mine, Set: cluster.LabelSet{Namespace: "shop", Labels: web, Claims: claims("mine")}},
		)
		for node, pods := range map[string]int{"n1": 10, "n3": 21} {
			for k := range pods {
				name := fmt.Sprint(node, "-", k)
				w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: name, Namespace: "shop", Name: name, Class: bare, Labels: running, NodeName: node}})
			}
		}
		pod := w.st.Pod(id).Pod
		pod.Class, pod.Labels = class, mine
		w.apply(cluster.PodSet{ID: id, Pod: pod})
		e := NewEvaluator(EvaluatorConfig{})
		if on, got := w.batch(e, id).Choose(id, 0); got != Placed || on != 1 {
			t.Errorf("n0 refuses all others too: %v: %v on n%d, want it placed on n1", refusedToAll, got, on)
		}
		for _, i := range []cluster.NodeIndex{1, 2} {
			if !e.Possible(w.st, SubjectOf(&pod), 0) {
				t.Errorf("n0 refuses all others too: %v: it can go nowhere but to n0, though n%d is there", refusedToAll, i)
			}
			node := w.st.Node(i)
			node.Unschedulable = true
			w.apply(cluster.NodeSet{Index: i, Node: node})
		}
		if e.Possible(w.st, SubjectOf(&pod), 0) {
			t.Errorf("n0 refuses all others too: %v: it can go somewhere, though all other nodes are cordoned", refusedToAll)
		}
	}
}
