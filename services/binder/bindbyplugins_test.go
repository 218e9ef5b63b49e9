package binder

import (
	"slices"
	"strings"
	"testing"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/source"
)

// binding configures a binder whose pods of the scheduler name "gated" are bound by the plugin, and by Berth if it skips them and last is set.
func binding(t *testing.T, src *fakeSource, g *gate, last bool) func(*Config) {
	return func(cfg *Config) {
		withGate(t, g)(cfg)
		steps := pluginhost.Steps{Bind: []string{"Gate"}, BindsRest: last}
		h, err := pluginhost.New(pluginhost.Config{
			Services: []pluginhost.Service{{Name: "s", Plugins: []pluginhost.Plugin{{Name: "Gate"}}, Conn: g.conn, Timeout: patience, PreBindTimeout: patience}},
			Profiles: cfg.Settings.Profiles, Log: testLog(t), Steps: map[string]pluginhost.Steps{"gated": steps}, Objects: objects{src},
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Plugins, cfg.Objects = h, objects{src}
	}
}

// A pod is bound by the plugin, and by nobody else; what that skips, Berth binds, and so it does all other pods.
func TestAPluginBinds(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	all := []string{"bound", "rejected", "failed", "lied", "skipped", "late"}
	for _, name := range all {
		src.setPod(gated(pod(name, 100)))
	}
	src.setPod(pod("plain", 100))
	place := func(name string) {
		src.change(func() { src.place(source.Binding{UID: name, Namespace: "default", Name: name, Node: "a"}) })
	}
	g.answers(func(step, pod string) *pluginv1.PlaceResponse {
		if step != "bind" {
			return nil
		}
		switch pod {
		case "rejected":
			return rejects("not there")
		case "failed":
			return &pluginv1.PlaceResponse{Error: `running Bind plugin "Gate": it is ill`}
		case "lied": // it has bound it all the same
			place(pod)
			return &pluginv1.PlaceResponse{Error: "it is ill"}
		case "skipped":
			return &pluginv1.PlaceResponse{Skipped: true}
		case "late": // it binds, and does not say so
			place(pod)
			return later
		}
		place(pod)
		return nil
	})
	b := start(t, startEtcd(t), src, binding(t, src, g, true))
	b.active()
	if got := b.commit(b.request(1, append(all, "plain")...)); slices.Contains(got, "busy") {
		t.Fatalf("commit: %v", got)
	}
	for _, name := range []string{"bound", "lied", "skipped", "plain"} {
		b.awaitPhase(name, "bound on a")
	}
	for name, text := range map[string]string{"rejected": "not there", "failed": `running Bind plugin "Gate": it is ill`} {
		eventually(t, name+" is told", func() bool {
			return slices.ContainsFunc(src.reported(name), func(r source.Report) bool { return strings.Contains(r.Message, text) })
		})
		b.awaitPhase(name, "pending")
	}
	eventually(t, "the plugin is to bind the last one", func() bool { return slices.Contains(g.hears("late"), "bind late on a") })
	g.ends()
	b.awaitPhase("late", "bound on a")
	for _, tried := range src.tried("") {
		if tried.UID != "plain" && tried.UID != "skipped" {
			t.Errorf("the source was to bind %s", tried.UID)
		}
	}
	b.nothingLeft()
}

// Without Berth among those that bind, a pod that all skip is not bound, as in kube-scheduler.
func TestAPodThatAllSkipIsNotBound(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 100)))
	g.answers(when("bind", "p", &pluginv1.PlaceResponse{Skipped: true}))
	b := start(t, startEtcd(t), src, binding(t, src, g, false))
	b.active()
	if got := b.commit(b.request(1, "p")); !slices.Equal(got, []string{"assumed"}) {
		t.Fatalf("commit: %v", got)
	}
	eventually(t, "it is told", func() bool {
		return slices.ContainsFunc(src.reported("p"), func(r source.Report) bool {
			return strings.Contains(r.Message, "all Bind plugins have skipped the pod")
		})
	})
	b.awaitPhase("p", "pending")
	if tried := src.tried("p"); len(tried) > 0 {
		t.Errorf("the source was to bind it: %v", tried)
	}
	b.nothingLeft()
}

// A takeover does not have a pod bound that has been, and asks the plugin again about one that has not.
func TestATakeoverGoesOnWithABindByAPlugin(t *testing.T) {
	for _, done := range []bool{true, false} {
		src, g := newFakeSource(), newGate(t)
		src.setNode(node("a", 4000))
		src.setPod(gated(pod("p", 100)))
		first := make(chan struct{}, 1)
		first <- struct{}{}
		bind := func() { src.place(source.Binding{UID: "p", Namespace: "default", Name: "p", Node: "a"}) }
		g.answers(func(step, pod string) *pluginv1.PlaceResponse {
			if step != "bind" {
				return nil
			}
			select {
			case <-first:
				if done {
					src.change(bind)
				}
				return later
			default:
				src.change(bind)
				return nil
			}
		})
		endpoints := startEtcd(t)
		b := start(t, endpoints, src, binding(t, src, g, true), named("first"))
		b.active()
		if done {
			src.goAway(errFake) // the watch does not tell
		}
		if got := b.commit(b.request(1, "p")); !slices.Equal(got, []string{"assumed"}) {
			t.Fatalf("commit: %v", got)
		}
		eventually(t, "the plugin is to bind", func() bool { return slices.Contains(g.hears("p"), "bind p on a") })
		b.stop() // though the plugin does not answer
		src.goAway(nil)
		b = start(t, endpoints, src, binding(t, src, g, true), named("second"))
		b.active()
		b.awaitPhase("p", "bound on a")
		binds := 0
		for _, h := range g.hears("p") {
			if h == "bind p on a" {
				binds++
			}
		}
		if done != (binds == 1) {
			t.Errorf("bound before: %v; the plugin was to bind it %d times", done, binds)
		}
	}
}

// A service that is gone while it binds may have sent the bind: what it does still counts, and nobody has the room before that is over.
func TestABindThatOutlivesItsServiceCounts(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 100)))
	g.answers(when("bind", "p", later))
	b := start(t, startEtcd(t), src, binding(t, src, g, true))
	b.active()
	request := b.request(1, "p")
	src.goAway(errFake) // the watch does not tell
	if got := b.commit(request); !slices.Equal(got, []string{"assumed"}) {
		t.Fatalf("commit: %v", got)
	}
	eventually(t, "the plugin is to bind", func() bool { return slices.Contains(g.hears("p"), "bind p on a") })
	g.stop()
	eventually(t, "it is withdrawn", func() bool {
		return slices.ContainsFunc(src.withdrawals(), func(r source.Report) bool { return r.UID == "p" })
	})
	src.change(func() { src.place(source.Binding{UID: "p", Namespace: "default", Name: "p", Node: "a"}) })
	b.awaitPhase("p", "bound on a")
	if tried := src.tried("p"); len(tried) > 0 {
		t.Errorf("the source was to bind it: %v", tried)
	}
	b.nothingLeft()
}
