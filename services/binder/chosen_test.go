package binder

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/coord"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/source"
)

// chosen is what a plugin chooses in tests.
var chosen = map[string]string{"example.com/cards": "GPU-1,GPU-2"}

// recordedOf returns what is recorded as chosen for a pod, and whether it is recorded.
func recordedOf(t testing.TB, c *coord.Client, uid string) (annotations map[string]string, is bool) {
	t.Helper()
	record, err := c.ReadRecord(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range record.Batches {
		if k := slices.IndexFunc(b.Batch.Intents, func(in coord.Intent) bool { return in.PodUID == uid }); k >= 0 {
			return b.Batch.Intents[k].Annotations, true
		}
	}
	return nil, false
}

func TestWhatPluginsChooseIsRecordedBeforeItIsWritten(t *testing.T) {
	etcd, src, g := startEtcd(t), newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 1000)))
	g.answers(when("reserve", "p", &pluginv1.PlaceResponse{Annotations: chosen}))
	other := connect(t, etcd, prefix)
	src.answers(func(b source.Binding) source.Outcome {
		if recorded, _ := recordedOf(t, other, "p"); cmp.Diff(chosen, recorded) != "" {
			t.Errorf("recorded is %v when the bind comes", recorded)
		}
		return source.Outcome{Result: source.BindDone}
	})
	b := start(t, etcd, src, withGate(t, g))
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on a" {
		t.Fatalf("p: %s", got)
	}
	b.awaitPhase("p", "bound on a")
	for _, sent := range src.tried("p") {
		if diff := cmp.Diff(chosen, sent.Annotations); diff != "" {
			t.Errorf("what is written (-want +got):\n%s", diff)
		}
	}
	b.nothingLeft()
	for _, step := range []string{"reserve p", "pre_bind p", "post_bind p"} {
		want := chosen
		if step == "reserve p" {
			want = nil
		}
		var told *pluginv1.Placement
		eventually(t, step+" is heard", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			told = g.told[step]
			return told != nil
		})
		if diff := cmp.Diff(want, told.GetAnnotations()); diff != "" || told.GetStands() {
			t.Errorf("what is told with %s, stands %v (-want +got):\n%s", step, told.GetStands(), diff)
		}
	}
}

// What was chosen is never chosen otherwise by the next binder: it is told of it, and binds with it.
func TestATakeoverChoosesNothingElse(t *testing.T) {
	etcd, src, g := startEtcd(t), newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 1000)))
	var second atomic.Bool
	src.answers(func(b source.Binding) source.Outcome {
		if !second.Load() {
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		}
		return source.Outcome{Result: source.BindDone}
	})
	g.answers(when("reserve", "p", &pluginv1.PlaceResponse{Annotations: chosen}))
	first := start(t, etcd, src, withGate(t, g), named("first"))
	first.active()
	if got := first.ask(first.question(1, "p")); got != "assumed on a" {
		t.Fatalf("p: %s", got)
	}
	eventually(t, "its bind is sent", func() bool { return len(src.tried("p")) > 0 })
	first.stop()
	before := len(src.tried("p"))
	g.answers(nil)
	second.Store(true)
	b := start(t, etcd, src, withGate(t, g), named("second"))
	b.active()
	b.awaitPhase("p", "bound on a")
	g.wants(t, "p", "reserve p on a", "permit p on a", "pre_bind p on a", "reserve p on a", "pre_bind p on a", "post_bind p on a")
	g.mu.Lock()
	defer g.mu.Unlock()
	if diff := cmp.Diff(chosen, g.told["reserve p"].GetAnnotations()); diff != "" || !g.told["reserve p"].GetStands() {
		t.Errorf("what the service is told, stands %v (-want +got):\n%s", g.told["reserve p"].GetStands(), diff)
	}
	for _, sent := range src.tried("p")[before:] {
		if diff := cmp.Diff(chosen, sent.Annotations); diff != "" {
			t.Errorf("what the second writes (-want +got):\n%s", diff)
		}
	}
}

// A plugin takes back what it has chosen when no other binder can find it any more, and before its room is others': else two pods could have it.
func TestWhatWasChosenLeavesTheRecordBeforeItIsTakenBack(t *testing.T) {
	etcd, src, g := startEtcd(t), newFakeSource(), newGate(t)
	src.setNode(node("a", 1000))
	src.setPod(gated(pod("p", 1000)))
	other := connect(t, etcd, prefix)
	var running atomic.Pointer[running]
	g.answers(func(step, _ string) *pluginv1.PlaceResponse {
		switch step {
		case "reserve":
			return &pluginv1.PlaceResponse{Annotations: chosen}
		case "pre_bind":
			if recorded, _ := recordedOf(t, other, "p"); cmp.Diff(chosen, recorded) != "" {
				t.Errorf("recorded is %v before the bind", recorded)
			}
			return rejects("no")
		case "unreserve":
			if recorded, is := recordedOf(t, other, "p"); is {
				t.Errorf("it is taken back, and recorded still, with %v", recorded)
			}
			if got := running.Load().phase("p"); got == "pending" {
				t.Errorf("it is taken back when its room is others': it is %s", got)
			}
		}
		return nil
	})
	b := start(t, etcd, src, withGate(t, g))
	running.Store(b)
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on a" {
		t.Fatalf("p: %s", got)
	}
	b.awaitPhase("p", "pending")
	g.wants(t, "p", "reserve p on a", "permit p on a", "pre_bind p on a", "unreserve p on a")
	b.nothingLeft()
}

// Who binds pods itself does not write what was chosen.
func TestWhatIsNotWrittenFailsTheAttempt(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 1000))
	src.setPod(gated(pod("p", 1000)))
	g.answers(when("reserve", "p", &pluginv1.PlaceResponse{Annotations: chosen}))
	b := start(t, startEtcd(t), src, func(c *Config) { c.Objects = objects{src} }, withGate(t, g), func(c *Config) { withBindingGate(t, c, g) })
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on a" {
		t.Fatalf("p: %s", got)
	}
	eventually(t, "it is told", func() bool { return len(src.reported("p")) > 0 })
	const want = "plugins have chosen annotations for the pod, which the extender or the plugin that binds it does not write"
	if got := src.reported("p")[0]; got.Reason != reasonError || !strings.Contains(got.Message, want) {
		t.Errorf("what is told: %s %s, want %s", got.Reason, got.Message, want)
	}
	b.awaitPhase("p", "pending")
	if len(src.tried("p")) > 0 {
		t.Error("a bind was sent")
	}
	b.nothingLeft()
}

// What no binder can have recorded is not written: the intent is withdrawn.
func TestARecordedAnnotationThatMakesNoSenseIsNotWritten(t *testing.T) {
	etcd, src, g := startEtcd(t), newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 1000)))
	in := meant("p", "a")
	in.Annotations = map[string]string{"kubernetes.io/x": "1"}
	leave(t, etcd, coord.Batch{ID: 7, Intents: []coord.Intent{in}})
	b := start(t, etcd, src, withGate(t, g))
	b.active()
	b.awaitPhase("p", "pending")
	if len(src.tried("p")) > 0 {
		t.Error("a bind was sent")
	}
}

// withBindingGate has the plugin bind, too.
func withBindingGate(t testing.TB, cfg *Config, g *gate) {
	all := []string{"Gate"}
	h, err := pluginhost.New(pluginhost.Config{
		Services: []pluginhost.Service{{Name: "s", Plugins: []pluginhost.Plugin{{Name: "Gate"}}, Conn: g.conn, Timeout: patience, PreBindTimeout: patience, Annotations: []string{"example.com"}}},
		Profiles: cfg.Settings.Profiles, Log: testLog(t), Steps: map[string]pluginhost.Steps{"gated": {Reserve: all, Bind: all, BindsRest: true}}, Objects: cfg.Objects.(objects),
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Plugins = h
}

// A batch has no more than etcd takes, whatever was chosen for its pods: what JSON makes longer counts as it is written.
func TestABatchHasRoomForWhatWasChosen(t *testing.T) {
	var waiting []*placement
	for range batchLimit {
		p := &placement{UID: "p", Namespace: "default", Name: "p", choice: choice{Node: "a"}}
		p.chooses(pluginhost.Chosen{Annotations: map[string]string{"example.com/cards": strings.Repeat("<", 4000)}})
		waiting = append(waiting, p)
	}
	n := fitting(waiting)[0]
	if written := n * 6 * 4000; n < 2 || written > batchBytes {
		t.Errorf("%d of them are in a batch, with %d bytes of what was chosen: want no more than %d", n, written, batchBytes)
	}
}

// In a stint of another scheduler, what was chosen for a pod may have been given to another one: Berth cannot judge that, and chooses anew.
func TestWhatWasChosenBeforeAnothersStintIsWithdrawn(t *testing.T) {
	for _, annotations := range []map[string]string{nil, chosen} {
		src := newFakeSource()
		src.setPod(pod("p", 100))
		term := pureTerm(t, src, withNames)
		observe(t, term, node("a", 1000), pod("p", 100))
		assume(t, term, "p", "a")
		p := &placement{UID: "p", Namespace: "default", Name: "p", choice: choice{Node: "a", annotations: annotations}, state: stateAside, shared: true}
		if err := term.reassume([]*placement{p}); err != nil {
			t.Fatal(err)
		}
		if (p.misfit != nil) != (annotations != nil) || where(term, "p") != "assumed on a" {
			t.Errorf("with %v it is withdrawn: %v; it is %s", annotations, p.misfit, where(term, "p"))
		}
	}
}
