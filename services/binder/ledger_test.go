package binder

import (
	"reflect"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

func TestWhatChangesNothingAppendsNoDelta(t *testing.T) {
	term := pureTerm(t, nil)
	full := node("a", 1000)
	full.Labels = []cluster.Label{{Key: "zone", Value: "x"}}
	full.Taints = []cluster.Taint{{Key: "k", Effect: "NoSchedule"}}
	full.Images = []cluster.Image{{Names: []string{"nginx:1"}, Size: 7}}
	namespace := source.Event{Kind: source.NamespaceSet, Namespace: "default", Labels: []cluster.Label{{Key: "team", Value: "x"}}}
	bare := source.Event{Kind: source.NamespaceSet, Namespace: "bare"}
	observe(t, term, full, node("b", 10), namespace, bare, pod("p", 100), on(pod("q", 100), "a"), pod("assumed", 10))
	assume(t, term, "assumed", "a")

	same := full // the same in other memory
	same.Labels = append([]cluster.Label{}, full.Labels...)
	same.Images = []cluster.Image{{Names: append([]string{}, "nginx:1"), Size: 7}}
	empty := node("b", 10) // absent and empty are the same
	empty.Labels, empty.Taints, empty.Images = []cluster.Label{}, []cluster.Taint{}, []cluster.Image{}
	bare.Labels = []cluster.Label{}
	ungated := pod("p", 100)
	ungated.Gates = []string{}
	ungated.Class.Tolerations = []cluster.Toleration{}
	for _, thing := range []any{
		same, empty, namespace, bare, ungated, on(pod("q", 100), "a"), pod("assumed", 10),
		gone("unknown"), source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "unknown"}},
		source.Event{Kind: source.NamespaceGone, Namespace: "unknown"},
	} {
		if n := observe(t, term, thing); n != 0 {
			t.Errorf("%+v took %d deltas", thing, n)
		}
	}
}

// Every field counts: what is not compared would never reach the log.
func TestEveryFieldOfANodeAndAPodIsCompared(t *testing.T) {
	eachChange(t, cluster.Pod{}, func(a, b cluster.Pod) bool { return samePod(&a, &b) })
	eachChange(t, cluster.Node{}, func(a, b cluster.Node) bool { return sameNode(&a, &b) })
	eachChange(t, cluster.Image{}, func(a, b cluster.Image) bool {
		return sameNode(&cluster.Node{Images: []cluster.Image{a}}, &cluster.Node{Images: []cluster.Image{b}})
	})
}

// eachChange changes one field at a time.
func eachChange[T any](t *testing.T, zero T, same func(a, b T) bool) {
	t.Helper()
	if !same(zero, zero) {
		t.Errorf("%T is not the same as itself", zero)
	}
	for i := range reflect.TypeFor[T]().NumField() {
		changed := zero
		field := reflect.ValueOf(&changed).Elem().Field(i)
		switch field.Kind() {
		case reflect.String:
			field.SetString("x")
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
		default:
			field.SetInt(1)
		}
		if same(zero, changed) {
			t.Errorf("%T.%s is not compared", zero, reflect.TypeFor[T]().Field(i).Name)
		}
	}
}

func TestABoundPodNeverBecomesUnbound(t *testing.T) {
	term := pureTerm(t, nil)
	observe(t, term, node("a", 1000), pod("p", 100))
	in := assume(t, term, "p", "a")
	if err := term.ledger.bound(in.Binding); err != nil {
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
	term := pureTerm(t, nil)
	observe(t, term, node("a", 1000), node("b", 1000), pod("here", 100), pod("there", 100), pod("changed", 100), pod("deleted", 100))
	for _, uid := range []string{"here", "there", "changed", "deleted"} {
		assume(t, term, uid, "a")
	}
	observe(t, term, on(pod("here", 100), "a"), on(pod("there", 100), "b"), on(pod("changed", 200), "a"))
	deleting := pod("deleted", 100)
	deleting.Deleting = true
	observe(t, term, deleting)
	for uid, want := range map[string]string{
		"here": "bound on a", "there": "bound on b", "changed": "bound on a", "deleted": "assumed on a",
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
		term.unbound.take(1)
		term.recorder.open[in.batch] = 2
		if err := term.settle(in, source.Outcome{Result: result, Err: errFake}); err != nil {
			t.Fatal(err)
		}
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

func TestClassesWithoutPodsAreForgotten(t *testing.T) {
	term := pureTerm(t, nil)
	observe(t, term, pod("p", 100), pod("q", 100), pod("r", 300))
	if n := len(term.ledger.classID); n != 2 {
		t.Fatalf("%d classes, want 2", n)
	}
	observe(t, term, gone("p"), gone("q"), pod("r", 500))
	if n := len(term.ledger.classID); n != 1 {
		t.Errorf("%d classes are known, want 1", n)
	}
	observe(t, term, pod("p", 100))
	term.ledger.Snapshot(func(st *cluster.State) {
		if n := len(st.Classes()); n != 2 {
			t.Errorf("%d classes in the state, want 2", n)
		}
	})
}
