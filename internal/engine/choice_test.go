package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// choiceYard is a yard of three nodes with a pod of its own kind besides, which goes where the test says, and an evaluation of the others.
func choiceYard(t *testing.T, pod cluster.Pod) (*yard, *Placer, cluster.PodID) {
	y := newYard(t, 3, 1, cluster.ClassSpec{})
	pod.UID, pod.Name, pod.Namespace = "p", "p", "default"
	if pod.Class == 0 {
		pod.Class, pod.Labels = y.subject.Class, y.subject.Labels
	}
	id := y.st.FreePod()
	apply(t, y.st, cluster.PodSet{ID: id, Pod: pod})
	return y, NewPlacer(y.binder, y.st, y.st.Version().Seq, []Candidates{{y.subject, y.candidates(10)}}), id
}

func TestPodThatRequiresANodeGoesThereOrNowhere(t *testing.T) {
	for node, want := range map[string]Placement{"node-1": Placed, "unknown": NoFit} {
		_, p, id := choiceYard(t, cluster.Pod{RequiredNode: node, Nominated: "node-2"})
		if on, got := p.Choose(id, 0); got != want || (got == Placed) != (on == 1) {
			t.Errorf("required %s: %v on %d, want %v", node, got, on, want)
		}
	}
	y, p, id := choiceYard(t, cluster.Pod{RequiredNode: "node-1"})
	full := y.st.Node(1)
	full.Unschedulable = true
	apply(t, y.st, cluster.NodeSet{Index: 1, Node: full})
	if on, got := p.Choose(id, 0); got != NoFit {
		t.Errorf("the required node is cordoned: %v on %d, want no fit", got, on)
	}
}

func TestNominatedPodGoesThereIfItFitsWithoutALookAtScores(t *testing.T) {
	y, p, id := choiceYard(t, cluster.Pod{})
	best, _ := p.Choose(id, 0)
	other := (best + 1) % 3
	apply(t, y.st, cluster.PodNominated{ID: id, Node: y.st.Nodes.Spec[other].Name})
	if on, got := p.Choose(id, -1); got != Placed || on != other {
		t.Errorf("nominated to %d: %v on %d", other, got, on)
	}
	cordoned := y.st.Node(other)
	cordoned.Unschedulable = true
	apply(t, y.st, cluster.NodeSet{Index: other, Node: cordoned})
	if on, got := p.Choose(id, 0); got != Placed || on == other {
		t.Errorf("nominated to a node that is cordoned: %v on %d, want it placed elsewhere", got, on)
	}
	apply(t, y.st, cluster.NodeRemoved{Index: other})
	if on, got := p.Choose(id, 0); got != Placed || on == other {
		t.Errorf("nominated to a node that is gone: %v on %d, want it placed elsewhere", got, on)
	}
}

func TestCandidatesOfAnotherSignatureProveNothing(t *testing.T) {
	y, p, id := choiceYard(t, cluster.Pod{})
	for _, index := range []int{-1, 1} {
		if on, got := p.Choose(id, index); got != Retry {
			t.Errorf("without candidates, index %d: %v on %d, want retry", index, got, on)
		}
	}
	apply(t, y.st, cluster.ClassDefined{ID: otherClass, Spec: cluster.ClassSpec{Requests: requests(1, 1)}},
		cluster.PodSet{ID: 100, Pod: cluster.Pod{UID: "other", Class: otherClass}})
	if on, got := p.Choose(100, 0); got != Retry {
		t.Errorf("a pod of another class: %v on %d, want retry", got, on)
	}
	// Another subject of the same signature is placed by the same candidates.
	apply(t, y.st, cluster.PodSet{ID: 101, Pod: cluster.Pod{UID: "same", Class: testClass, Labels: y.subject.Labels, Priority: 7}})
	if on, got := p.Choose(101, 0); got != Placed {
		t.Errorf("a pod of the same signature: %v on %d, want placed", got, on)
	}
}

func TestVerdictsOfAnUnschedulablePodAreCountedOverAllNodes(t *testing.T) {
	cpu := VerdictCount{Plugin: NodeResourcesFit, Reason: "Insufficient cpu", Count: 1}
	aside := func(n int32) VerdictCount {
		return VerdictCount{Plugin: NodeAffinity, Reason: ReasonNodeAffinityOutside, Unresolvable: true, Count: n}
	}
	unsupported := UnsupportedVerdict(&cluster.ClassSpec{Unsupported: "volumes", UnsupportedPlugin: "VolumeBinding"}, 5)
	if got := UnsupportedVerdict(&cluster.ClassSpec{}, 5); got != nil {
		t.Errorf("a class that can be judged: %+v", got)
	}
	for name, tt := range map[string]struct {
		answers Answers
		nodes   int
		want    []VerdictCount
	}{
		"no node":       {Answers{Unsupported: unsupported, Required: true}, 0, nil},
		"unsupported":   {Answers{Nodes: 5, Unsupported: unsupported, Required: true}, 5, []VerdictCount{{Plugin: "VolumeBinding", Reason: "volumes", Unresolvable: true, Count: 5}}},
		"anywhere":      {Answers{Nodes: 5, Known: true, There: []VerdictCount{aside(1)}, Seen: 4, Everywhere: []VerdictCount{cpu}}, 4, []VerdictCount{cpu}},
		"required":      {Answers{Nodes: 5, Required: true, Known: true, There: []VerdictCount{cpu}}, 5, []VerdictCount{aside(4), cpu}},
		"the only node": {Answers{Nodes: 1, Required: true, Known: true, There: []VerdictCount{cpu}}, 1, []VerdictCount{cpu}},
		"unknown node":  {Answers{Nodes: 5, Required: true, There: []VerdictCount{cpu}}, 5, []VerdictCount{aside(5)}},
	} {
		nodes, got := tt.answers.Unschedulable()
		if diff := cmp.Diff(tt.want, got); diff != "" || nodes != tt.nodes {
			t.Errorf("%s: of %d nodes, want %d (-want +got):\n%s", name, nodes, tt.nodes, diff)
		}
	}
}

func TestBudgetsAreChargedForEachPodThatGoes(t *testing.T) {
	y := newYard(t, 1, 3, cluster.ClassSpec{})
	apply(t, y.st, budget("one", 1, selects("app", "In", "web")), budget("two", 2, selects("app", "Exists")), budget("none", 0, selects("app", "In", "api")))
	var account Disruptions
	for k, want := range [][]string{nil, {"one"}, {"one", "two"}} {
		got := make(map[string]bool)
		for _, b := range account.Charge(y.st, y.st.Pod(y.free[k]), nil) {
			got[b.Name] = true
		}
		if len(got) != len(want) {
			t.Errorf("pod %d: refused by %v, want %v", k, got, want)
		}
		for _, name := range want {
			if !got[name] {
				t.Errorf("pod %d: refused by %v, want %v", k, got, want)
			}
		}
	}
}
