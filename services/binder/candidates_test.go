package binder

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
)

// nominated nominates a pod to a node.
func nominated(p source.Pod, node string) source.Pod {
	p.Nominated = node
	return p
}

func prior(p source.Pod, priority int32) source.Pod {
	p.Priority = priority
	return p
}

// app gives a pod a label.
func app(p source.Pod, value string) source.Pod {
	p.Labels.Labels = []cluster.Label{{Key: "app", Value: value}}
	return p
}

// apps matches pods of the same namespace with the value of the label, in the same zone.
func apps(value string) []cluster.PodTerm {
	return []cluster.PodTerm{{
		TopologyKey: "zone", Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true},
		Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{value}}}},
	}}
}

func inZone(n cluster.Node, zone string) cluster.Node {
	n.Labels = []cluster.Label{{Key: "zone", Value: zone}}
	return n
}

// commitPods commits and says for each pod what became of it.
func commitPods(t *testing.T, term *term, req *binderv1.CommitRequest) []string {
	t.Helper()
	return (&scenario{t: t, term: term}).commit(req)
}

func TestNominatedPodGoesToItsNodeThoughAnotherIsBetter(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("small", 1000), node("large", 2000), pod("free", 100), nominated(pod("nominated", 100), "small"))
	st := term.ledger.state
	got := commitPods(t, term, requestOf(st, evaluate(st, 10), 1, "nominated", "free"))
	if diff := cmp.Diff([]string{"nominated: assumed on small", "free: assumed on large"}, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

func TestNominatedPodWhoseNodeIsFullOrGoneGoesToTheBest(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("full", 1000), node("small", 1000), node("large", 2000), on(pod("there", 1000), "full"),
		nominated(pod("p", 100), "full"), nominated(pod("q", 100), "unknown"))
	st := term.ledger.state
	got := commitPods(t, term, requestOf(st, evaluate(st, 10), 1, "p", "q"))
	if diff := cmp.Diff([]string{"p: assumed on large", "q: assumed on large"}, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

func TestNominationHoldsTheRoomForItsPodAlone(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), prior(nominated(pod("high", 800), "a"), 10), pod("low", 800))
	st := term.ledger.state
	o := evaluate(st, 10)
	if diff := cmp.Diff([]string{"low: no fit"}, commitPods(t, term, requestOf(st, o, 1, "low"))); diff != "" {
		t.Errorf("a pod of lower priority (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"high: assumed on a"}, commitPods(t, term, requestOf(st, o, 1, "high"))); diff != "" {
		t.Errorf("the pod itself (-want +got):\n%s", diff)
	}
}

func TestNominatedPodNeedsNoCandidatesButItsNode(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile any
		want      []string
	}{
		"it fits":             {nil, []string{"p: assumed on a", "q: assumed on b"}},
		"the node is full":    {on(pod("other", 1000), "a"), []string{"p: retry", "q: retry"}},
		"the node is gone":    {source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "a"}}, []string{"p: retry", "q: retry"}},
		"nominated elsewhere": {nominated(pod("p", 100), "b"), []string{"p: assumed on b", "q: assumed on b"}},
		"nominated no more":   {pod("p", 100), []string{"p: gone", "q: assumed on b"}},
	} {
		t.Run(name, func(t *testing.T) {
			term := pureTerm(t, newFakeSource())
			observe(t, term, node("a", 1000), node("b", 2000), nominated(pod("p", 100), "a"), pod("q", 100))
			st := term.ledger.state
			req := requestOf(st, evaluate(st, 10), 1, "p", "q")
			req.Pods[0].SubjectIndex = -1
			if c.meanwhile != nil {
				observe(t, term, c.meanwhile)
			}
			if diff := cmp.Diff(c.want, commitPods(t, term, req)); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCandidatesOfAnotherSignatureProveNothing(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, inZone(node("a", 2000), "x"), inZone(node("b", 1000), "y"), app(pod("web", 100), "web"), app(pod("db", 100), "db"),
		app(pod("db2", 100), "db"))
	st := term.ledger.state
	before := requestOf(st, evaluate(st, 10), 1, "web", "db", "db2")
	if n := len(before.Subjects); n != 1 {
		t.Fatalf("%d subjects are asked about, want 1: nobody selects the labels", n)
	}
	// What repels db comes to zone x between evaluation and commit.
	repels := on(pod("repels", 100), "a")
	repels.Class.AntiAffinity = apps("db")
	observe(t, term, repels)
	got := commitPods(t, term, before)
	if diff := cmp.Diff([]string{"web: assumed on a", "db: retry", "db2: retry"}, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	got = commitPods(t, term, requestOf(st, evaluate(st, 10), 2, "db", "db2"))
	if diff := cmp.Diff([]string{"db: assumed on b", "db2: assumed on b"}, got); diff != "" {
		t.Errorf("outcomes with candidates of their own signature (-want +got):\n%s", diff)
	}
}

func TestPodThatWantsAPodOfItsOwnBatchNearGoesBehindIt(t *testing.T) {
	for _, order := range [][]string{{"first", "second"}, {"second", "first"}} {
		term := pureTerm(t, newFakeSource())
		second := pod("second", 100)
		second.Class.Affinity = apps("first")
		observe(t, term, inZone(node("a", 1000), "x"), inZone(node("b", 4000), "y"), inZone(node("c", 900), "x"),
			requiring(app(pod("first", 100), "first"), "a"), second)
		st := term.ledger.state
		want := []string{"first: assumed on a", "second: assumed on c"}
		if order[0] == "second" {
			want = []string{"second: no fit", "first: assumed on a"}
		}
		got := commitPods(t, term, requestOf(st, evaluate(st, 10), 1, slices.Clone(order)...))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("outcomes of %v (-want +got):\n%s", order, diff)
		}
	}
}
