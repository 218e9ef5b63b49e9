package binder

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/source"
)

func TestWhatChangesNothingAppendsNoDelta(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	full := node("a", 1000)
	full.Labels = []cluster.Label{{Key: "zone", Value: "x"}}
	full.Taints = []cluster.Taint{{Key: "k", Effect: "NoSchedule"}}
	full.Images = []cluster.Image{{Names: []string{"nginx:1"}, Size: 7}}
	full.Features = []string{"FeatureA"}
	namespace := source.Event{Kind: source.NamespaceSet, Namespace: "default", Labels: []cluster.Label{{Key: "team", Value: "x"}}}
	bare := source.Event{Kind: source.NamespaceSet, Namespace: "bare"}
	web := selector(cluster.KindService, "web", "app", "web")
	everything := selector(cluster.KindReplicaSet, "all", "", "")
	nominated := pod("nominated", 100)
	nominated.Nominated = "b"
	observe(t, term, full, node("b", 10), namespace, bare, web, everything, pod("p", 100), on(pod("q", 100), "a"), pod("assumed", 10),
		labelled("r", "web"), nominated)
	assume(t, term, "assumed", "a")

	same := full // the same in other memory
	same.Labels = append([]cluster.Label{}, full.Labels...)
	same.Images = []cluster.Image{{Names: append([]string{}, "nginx:1"), Size: 7}}
	empty := node("b", 10) // absent and empty are the same
	empty.Labels, empty.Taints, empty.Images, empty.Features = []cluster.Label{}, []cluster.Taint{}, []cluster.Image{}, []string{}
	bare.Labels = []cluster.Label{}
	ungated := pod("p", 100)
	ungated.Gates = []string{}
	ungated.Class.Tolerations = []cluster.Toleration{}
	ungated.Labels.Labels = []cluster.Label{}
	everything.Selector.Selector.Requirements = []cluster.Requirement{}
	for _, thing := range []any{
		same, empty, namespace, bare, ungated, on(pod("q", 100), "a"), pod("assumed", 10), labelled("r", "web"), nominated,
		selector(cluster.KindService, "web", "app", "web"), everything,
		gone("unknown"), source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "unknown"}},
		source.Event{Kind: source.NamespaceGone, Namespace: "unknown"},
		source.Event{Kind: source.SelectorGone, Selector: source.Selector{Kind: cluster.KindReplicaSet, Namespace: "default", Name: "web"}},
	} {
		if n := observe(t, term, thing); n != 0 {
			t.Errorf("%+v took %d deltas", thing, n)
		}
	}
}

func TestABoundPodNeverBecomesUnbound(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), pod("p", 100))
	in := assume(t, term, "p", "a")
	if err := term.ledger.bound(in.binding()); err != nil {
		t.Fatal(err)
	}
	if n := observe(t, term, pod("p", 100)); n != 0 { // told before the bind
		t.Errorf("an older event took %d deltas", n)
	}
	changed := pod("p", 100)
	changed.Priority = 5
	observe(t, term, changed)
	if got := where(term, "p"); got != "bound on a" {
		t.Errorf("p is %s", got)
	}
	if n := observe(t, term, on(changed, "a")); n != 0 { // the watch has caught up
		t.Errorf("the bind's own event took %d deltas", n)
	}
}

func TestAnAssumedPodIsWhereTheSourceSaysItIs(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), node("b", 1000), pod("here", 100), pod("there", 100), pod("changed", 100), pod("deleted", 100))
	for _, uid := range []string{"here", "there", "changed", "deleted"} {
		assume(t, term, uid, "a")
	}
	observe(t, term, on(pod("here", 100), "a"), on(pod("there", 100), "b"), on(pod("changed", 200), "a"))
	deleting := pod("deleted", 100)
	deleting.Deleting = true
	observe(t, term, deleting)
	for uid, want := range map[string]string{
		"here": "bound on a", "there": "bound on b", "changed": "bound on a", "deleted": "pending",
	} {
		if got := where(term, uid); got != want {
			t.Errorf("%s is %s, want %s", uid, got, want)
		}
	}
}

func TestThePodThatReplacesAnotherHasNothingOfIt(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), pod("old", 100))
	in := assume(t, term, "old", "a")
	replacement := pod("new", 100)
	replacement.Name = "old"
	observe(t, term, gone("old"), replacement)
	var oldID, newID cluster.PodID
	term.ledger.Snapshot(func(st *cluster.State) { newID, _ = st.PodByUID("new") })
	if oldID != newID {
		t.Fatalf("the id %d was not used again, but %d", oldID, newID)
	}
	// Whatever the late bind of the old one is answered, it does not concern the new one.
	for _, result := range []source.Result{source.BindDone, source.BindGone, source.BindRefused, source.BindElsewhere} {
		late := *in
		term.unbound.take(1)
		term.recorder.adopt(in.batch, 0, []*placement{&late, {UID: "another"}})
		if err := term.settle(&late, source.Outcome{Result: result, Err: errFake}); err != nil {
			t.Fatal(err)
		}
		record(t, term)
		if got := where(term, "new"); got != "pending" {
			t.Errorf("after %s: new is %s", resultName(result), got)
		}
	}
	// Nor does an attempt of the old one.
	var req = requestOf(term.ledger.state, evaluate(term.ledger.state, 2), 1, "new")
	req.Pods[0].Uid = "old"
	resp, err := term.commit(req)
	if err != nil {
		t.Fatal(err)
	}
	if got := resultText(resp.Outcomes[0].Result); got != "gone" {
		t.Errorf("the attempt of the old pod: %s", got)
	}
}

func TestClassesAndLabelSetsWithoutPodsAreForgotten(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	known := func(classes, labels int) {
		t.Helper()
		l := term.ledger
		if c, s := l.fold.Known(); c != classes || s != labels {
			t.Errorf("%d classes and %d label sets are known, want %d and %d", c, s, classes, labels)
		}
		if c, s := len(l.state.Classes()), len(l.state.LabelSets()); c != classes || s != labels {
			t.Errorf("%d classes and %d label sets are in the state, want %d and %d", c, s, classes, labels)
		}
	}
	r := labelled("r", "web")
	r.Class = pod("r", 300).Class
	observe(t, term, pod("p", 100), pod("q", 100), r)
	known(2, 2)
	r.Class = pod("r", 500).Class
	observe(t, term, gone("p"), gone("q"), r)
	known(1, 1)
	observe(t, term, pod("p", 100))
	known(2, 2)
	// One change can end both.
	both := labelled("r", "api")
	both.Class = pod("r", 700).Class
	observe(t, term, both)
	known(2, 2)
	observe(t, term, gone("p"), gone("r"))
	known(0, 0)
}

func TestAnIDOfALabelSetIsNeverUsedAgain(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	idOf := func(uid string) (labels cluster.LabelsID) {
		term.ledger.Snapshot(func(st *cluster.State) {
			id, _ := st.PodByUID(uid)
			labels = st.Pod(id).Labels
		})
		return labels
	}
	if n := observe(t, term, labelled("p", "web")); n != 3 { // its class, its label set, and the pod
		t.Errorf("the first pod took %d deltas", n)
	}
	if n := observe(t, term, labelled("q", "web")); n != 1 {
		t.Errorf("another pod with the same labels took %d deltas", n)
	}
	if n := observe(t, term, labelled("r", "api")); n != 2 {
		t.Errorf("a pod with other labels took %d deltas", n)
	}
	if p, q, r := idOf("p"), idOf("q"), idOf("r"); p != 1 || q != 1 || r != 2 {
		t.Errorf("p, q and r have label sets %d, %d and %d", p, q, r)
	}
	observe(t, term, gone("p"), gone("q"))
	if n := observe(t, term, labelled("p", "web")); n != 2 || idOf("p") != 3 {
		t.Errorf("the labels came back in %d deltas as label set %d, want 2 and 3", n, idOf("p"))
	}
	elsewhere := labelled("s", "web")
	elsewhere.Labels.Namespace = "prod"
	owned := labelled("t", "web")
	owned.Labels.Controller = cluster.Controller{Kind: cluster.KindReplicaSet, Name: "web"}
	observe(t, term, elsewhere, owned)
	if s, u := idOf("s"), idOf("t"); s != 4 || u != 5 {
		t.Errorf("the same labels of another namespace and controller are label sets %d and %d, want 4 and 5", s, u)
	}
}

func TestWhatSelectorsSeeOfAPodReachesTheLog(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), labelled("p", "web"), labelled("q", "web"), labelled("assumed", "web"))
	assume(t, term, "assumed", "a")
	nominated := labelled("q", "web")
	nominated.Nominated = "a"
	for _, c := range []struct {
		name  string
		thing any
		want  int
	}{
		{"new labels", labelled("p", "api"), 2}, // the label set, and the pod
		{"new labels of an assumed pod", labelled("assumed", "api"), 1},
		{"a nomination", nominated, 1},
		{"the end of a nomination", labelled("q", "web"), 1},
		{"a service", selector(cluster.KindService, "web", "app", "web"), 1},
		{"its new selector", selector(cluster.KindService, "web", "app", "api"), 1},
		{"a controller of the same name", selector(cluster.KindStatefulSet, "web", "app", "api"), 1},
		{"the service is gone", source.Event{Kind: source.SelectorGone, Selector: selector(cluster.KindService, "web", "", "").Selector}, 1},
	} {
		if n := observe(t, term, c.thing); n != c.want {
			t.Errorf("%s took %d deltas, want %d", c.name, n, c.want)
		}
	}
	term.ledger.Snapshot(func(st *cluster.State) {
		_, service := st.Selector(cluster.KindService, "default", "web")
		set, controller := st.Selector(cluster.KindStatefulSet, "default", "web")
		if service || !controller || !set.Matches([]cluster.Label{{Key: "app", Value: "api"}}) {
			t.Errorf("the service is there: %v; the controller: %v, %+v", service, controller, set)
		}
		if n := st.Nominations(); n != 0 {
			t.Errorf("%d nominations are left", n)
		}
	})
	if got := where(term, "assumed"); got != "assumed on a" {
		t.Errorf("the pod with new labels is %s", got)
	}
}

func TestTheEndOfANominationThatComesWithTheNodeSettlesAnAssumedPod(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	p := pod("p", 100)
	p.Nominated = "a"
	observe(t, term, node("a", 1000), p)
	assume(t, term, "p", "a")
	if n := observe(t, term, on(pod("p", 100), "a")); n != 1 || where(term, "p") != "bound on a" {
		t.Errorf("p is %s after %d deltas", where(term, "p"), n)
	}
}

// labelled returns a pending pod with a label app.
func labelled(name, app string) source.Pod {
	p := pod(name, 100)
	p.Labels.Labels = []cluster.Label{{Key: "app", Value: app}}
	return p
}

// selector tells of a service or a controller that selects a label, or everything if the key is empty.
func selector(kind, name, key, value string) source.Event {
	s := source.Selector{Kind: kind, Namespace: "default", Name: name}
	if key != "" {
		s.Selector.Requirements = []cluster.Requirement{{Key: key, Operator: "In", Values: []string{value}}}
	}
	return source.Event{Kind: source.SelectorSet, Selector: s}
}

func TestRequiredNodesAreKeptOnlyWhereNothingElseReadsNodeAffinity(t *testing.T) {
	hard := cluster.SystemSpread()
	hard[0].Hard = true
	for name, tt := range map[string]struct {
		change func(*cluster.Profile)
		want   string
	}{
		"default":                  {func(*cluster.Profile) {}, "a"},
		"without NodeAffinity":     {func(p *cluster.Profile) { p.PreFilters = nil }, ""},
		"with hard default spread": {func(p *cluster.Profile) { p.DefaultSpread = hard }, ""},
	} {
		s := settings()
		tt.change(&s.Profiles[0])
		l, err := newLedger(ledgerConfig{epoch: 1, settings: s, feed: replica.NewFeed(replica.FeedConfig{})})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.observe(source.Event{Kind: source.PodSet, Pod: requiring(pod("p", 1), "a")}); err != nil {
			t.Fatal(err)
		}
		id, _ := l.state.PodByUID("p")
		row := l.state.Pod(id)
		if named := l.state.Class(row.Class).Spec.HasRequired; row.RequiredNode != tt.want || named != (tt.want == "") {
			t.Errorf("%s: the required node is %q and the class names the node: %v", name, row.RequiredNode, named)
		}
	}
}
