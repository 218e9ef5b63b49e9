package binder

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// searched returns a question about the pod high, when the candidates have been found.
func (w *preemptWorld) searched(attached bool) *askedPreemption {
	w.t.Helper()
	a := &askedPreemption{term: w.term, req: w.question("high"), attached: attached}
	a.search(w.t.Context())
	if a.over() {
		w.t.Fatal(a.resp, a.err)
	}
	return a
}

// named returns pods of a node as extenders do, by their uids.
func (a *askedPreemption) named(t *testing.T, node string, uids ...string) (victims []podThere) {
	t.Helper()
	on, _, _ := a.on(node, false)
	for _, uid := range uids {
		if !slices.ContainsFunc(on, func(p *corev1.Pod) bool { return string(p.UID) == uid }) {
			t.Fatalf("%s is not on %s", uid, node)
		}
		victims = append(victims, a.pods[uid])
	}
	return victims
}

// protect has a budget that allows nobody to go.
func protect(t *testing.T, w *term) {
	t.Helper()
	observe(t, w, source.Event{Kind: source.ObjectSet, Object: &cluster.Budget{
		Namespace: "default", Name: "all", Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "Exists"}}},
	}})
}

// What extenders have said of a node holds as long as that is what it was when they were asked.
func TestWhatExtendersHaveSaidStandsUntilTheNodeChanges(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*preemptWorld) // behind the beginning of the search, and ahead of the look at the node
		node   string
		names  string
		then   func(*preemptWorld)
		want   bool
	}{
		"as it was told": {node: "a", names: "a1 a2", want: true},
		"as it was told, and another has come who need not go": {
			node: "a", names: "a1 a2", then: func(w *preemptWorld) { w.runs("a", "new", 0, 0) }, want: true,
		},
		"as it was told, and another has to go, too": {
			node: "a", names: "a1 a2", then: func(w *preemptWorld) { observe(t, w.term, node("a", 1100)); w.runs("a", "new", 200, 0) },
		},
		"as it was told, and a budget is violated by now": {node: "a", names: "a1 a2", then: func(w *preemptWorld) { protect(w.t, w.term) }},
		"as it was told, and another has the id of one": {
			node: "a", names: "a1 a2", then: func(w *preemptWorld) { observe(w.t, w.term, gone("a1")); w.runs("a", "other", 500, 1) },
		},
		"others than it was told": {node: "a", names: "a1", want: true},
		"others, and one has come": {
			node: "a", names: "a1", then: func(w *preemptWorld) { w.runs("a", "new", 0, 0) },
		},
		"others, and what has changed had so when the node was looked at": {
			before: func(w *preemptWorld) { w.runs("a", "new", 0, 0) }, node: "a", names: "a1", want: true,
		},
		"on a node that it was not told of": {node: "c", names: "c20", want: true},
		"on one that it was not told of, and that has changed": {
			node: "c", names: "c20", then: func(w *preemptWorld) { w.runs("c", "new", 0, 0) },
		},
		"on one that it was not told of, and that had changed since the search has begun": {
			before: func(w *preemptWorld) { w.runs("c", "new", 0, 0) }, node: "c", names: "c20",
		},
		"the node is gone": {
			node: "a", names: "a1", then: func(w *preemptWorld) {
				observe(w.t, w.term, source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "a"}})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPreemptWorld(t, newPreemptHook(t, leavesAll).at())
			began := w.ledger.version()
			if c.before != nil {
				c.before(w)
			}
			a := w.searched(false)
			a.since = began
			victims := a.named(t, c.node, strings.Fields(c.names)...)
			if c.then != nil {
				c.then(w)
			}
			var found []cluster.PodID
			var stands bool
			w.ledger.read(func(st *cluster.State) {
				now, ok := a.stands(cluster.PodID(a.req.GetPod().GetId()), c.node, victims)
				found, stands = now.Victims, ok
			})
			if stands != c.want {
				t.Errorf("it stands: %v, want %v", stands, c.want)
			}
			if stands && len(found) != len(victims) {
				t.Errorf("%v go, want %v", found, victims)
			}
		})
	}
}

// Whether a node is what it was is told by its own time, not by when the search began.
func TestANodeHasChangedIfItHasSinceItWasLookedAt(t *testing.T) {
	for name, c := range map[string]struct {
		node string
		want bool
	}{"a node that was told of": {"a", false}, "one that was not": {"c", true}} {
		t.Run(name, func(t *testing.T) {
			w := newPreemptWorld(t, newPreemptHook(t, leavesAll).at())
			began := w.ledger.version()
			w.runs(c.node, "new", 0, 0)
			a := w.searched(false)
			a.since = began
			if _, known, changed := a.on(c.node, false); !known || changed != c.want {
				t.Errorf("known: %v; changed: %v, want %v", known, changed, c.want)
			}
			w.runs(c.node, "newer", 0, 0)
			if _, _, changed := a.on(c.node, false); !changed {
				t.Error("it has not changed though another pod has come")
			}
			if _, _, changed := a.on("b", false); changed {
				t.Error("another node has changed, too")
			}
		})
	}
}

// attachable has one volume of a driver be attached to a and b each, a1 use one on a, and high want one.
func (w *preemptWorld) attachable(extenders uint64) {
	w.t.Helper()
	set := func(objects ...cluster.Object) {
		for _, o := range objects {
			observe(w.t, w.term, source.Event{Kind: source.ObjectSet, Object: o})
		}
	}
	err := w.ledger.update(func(tx *tx) error {
		settings := tx.state.Settings
		settings.PreemptionSeesVolumes = true
		return tx.apply(cluster.SettingsSet{Settings: settings})
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		set(&cluster.CSINode{Name: name, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 1}}})
	}
	for _, name := range []string{"used", "wanted"} {
		set(&cluster.PersistentVolume{Name: "pv-" + name, Driver: "csi", Handle: name},
			&cluster.PersistentVolumeClaim{Namespace: "default", Name: name, Volume: "pv-" + name, Bound: true})
	}
	for name, p := range map[string]source.Pod{
		"used": app(on(prior(pod("a1", 500), 1), "a"), "x"), "wanted": of(prior(pod("high", 1000), 10), 1),
	} {
		p.Labels.Claims = []cluster.PodClaim{{Name: name}}
		w.src.setPod(p)
		observe(w.t, w.term, p)
	}
}

func (w *preemptWorld) attach() {
	w.t.Helper()
	observe(w.t, w.term, source.Event{Kind: source.ObjectSet, Object: &cluster.VolumeAttachment{Name: "used", Attacher: "csi", Node: "a", Volume: "pv-used"}})
}

// Where volumes have not been detached in time, extenders are asked only about nodes where kube-scheduler, too, would have the same pods go.
func TestExtendersAreAskedAboutVictimsAsOfAttachedVolumes(t *testing.T) {
	for name, c := range map[string]struct {
		attached bool
		want     string
	}{"as if they were detached": {false, "a b"}, "as attached": {true, "b"}} {
		t.Run(name, func(t *testing.T) {
			h := newPreemptHook(t, func(extenderv1.ExtenderPreemptionArgs) string { return "{}" })
			w := newPreemptWorld(t, h.at())
			w.attachable(1)
			w.attach()
			if _, err := w.askPreempt(t.Context(), w.question("high"), c.attached); err != nil {
				t.Fatal(err)
			}
			var asked []string
			for _, call := range h.calls() {
				asked = append(asked, slices.Sorted(maps.Keys(call.NodeNameToMetaVictims))...)
			}
			if got := strings.Join(asked, " "); got != c.want {
				t.Errorf("asked about %q, want %q", got, c.want)
			}
		})
	}
}

// A volume that is attached by the time of the answer would keep the pod from its node.
func TestWhatExtendersHaveSaidOfVictimsStandsAsOfAttachedVolumes(t *testing.T) {
	for _, attached := range []bool{false, true} {
		t.Run(fmt.Sprintf("as attached: %v", attached), func(t *testing.T) {
			w := newPreemptWorld(t, newPreemptHook(t, leavesAll).at())
			w.attachable(1)
			a := w.searched(attached)
			victims := a.named(t, "a", "a1", "a2")
			stands := func() (ok bool) {
				w.ledger.read(func(*cluster.State) { _, ok = a.stands(cluster.PodID(a.req.GetPod().GetId()), "a", victims) })
				return ok
			}
			if !stands() {
				t.Fatal("it does not stand though nothing has changed")
			}
			w.attach()
			if got := stands(); got == attached {
				t.Errorf("it stands: %v, want %v", got, !attached)
			}
		})
	}
}

// A victim whose bind is under way is on its node for extenders, as kube-scheduler's assumed pods are.
func TestExtendersAreToldOfTheNodeOfAVictimThatIsNotBoundYet(t *testing.T) {
	h := newPreemptHook(t, leavesAll)
	full := h.at()
	full.NodeCacheCapable = false
	w := newPreemptWorld(t, full)
	observe(t, w.term, node("d", 1000))
	p := prior(pod("assumed", 1000), 0)
	w.src.setPod(p)
	observe(t, w.term, p)
	assume(t, w.term, "assumed", "d")
	if got := w.ask(w.question("high")); got != "started on d: assumed" {
		t.Fatal(got)
	}
	if pods := h.calls()[0].NodeNameToVictims["d"].Pods; len(pods) != 1 || pods[0].Name != "assumed" || pods[0].Spec.NodeName != "d" {
		t.Errorf("told of %+v", pods)
	}
}
