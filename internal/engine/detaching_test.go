package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// seesVolumes has preemption see volumes.
func (w *storage) seesVolumes() {
	settings := w.st.Settings
	settings.PreemptionSeesVolumes = true
	w.apply(cluster.SettingsSet{Settings: settings})
}

// attach sets a VolumeAttachment of the volumes of claims to a node.
func (w *storage) attach(node string, claims ...string) {
	for _, claim := range claims {
		w.set(&cluster.VolumeAttachment{Name: claim + "-to-" + node, Attacher: "csi", Node: node, Volume: "pv-" + claim})
	}
}

// limit has so many volumes of the driver "csi" be attached to n0 at most.
func (w *storage) limit(n int32) {
	w.set(&cluster.CSINode{Name: "n0", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: n}}})
}

// detach makes of then, which is st without some pods, what becomes of it: volumes that only those used on a node are detached from it, and claims
// that were made for them are gone, unless somebody uses them by name. Unused: so are volumes detached that nobody uses as it is.
func detach(t fataler, st, then *cluster.State, i cluster.NodeIndex, unused bool) {
	uses := func(st *cluster.State, driver, handle string) bool {
		return slices.ContainsFunc(st.Attached(i), func(a cluster.Attachment) bool { return a.Driver == driver && a.Handle == handle && a.Uses > 0 })
	}
	var gone []cluster.ObjectKey
	for a := range then.VolumeAttachments() {
		v := then.PersistentVolume(a.Volume)
		if v == nil || then.Nodes.ByName(a.Node) != i || uses(then, a.Attacher, v.Handle) {
			continue
		}
		if unused || uses(st, a.Attacher, v.Handle) {
			gone = append(gone, a.Key())
		}
	}
	for claim := range then.PersistentVolumeClaims() {
		_, had := st.PodByUID(claim.Owner)
		if _, has := then.PodByUID(claim.Owner); had && !has && then.ClaimUsers(claim.Namespace, claim.Name) == 0 {
			gone = append(gone, claim.Key())
		}
	}
	for _, key := range gone {
		apply(t, then, cluster.ObjectRemoved{ObjectKey: key})
	}
}

// dryRun says what a dry run of n0 for a pod comes to: the names of the victims, or why there are none.
func (w *storage) dryRun(e *Evaluator, id cluster.PodID) (out []string) {
	found, _ := e.DryRun(w.st, id, cluster.Range{First: 0, End: 1}, 1)
	for _, c := range found.Candidates {
		for _, victim := range c.Victims {
			out = append(out, w.st.Pod(victim).Name)
		}
	}
	for _, v := range found.Verdicts {
		out = append(out, v.Reason)
	}
	return out
}

// TestUndetachedDriversAreThoseOfVolumesThatNobodyUses where the pod is nominated: of two drivers whose volumes it wants, it waits for one.
func TestUndetachedDriversAreThoseOfVolumesThatNobodyUses(t *testing.T) {
	w := newStorage(t, 2)
	for _, node := range []string{"n0", "n1"} {
		w.set(&cluster.CSINode{Name: node, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 1}, {Name: "other", Limited: true, Limit: 1}}})
	}
	other := func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) { v.Driver = "other" }
	w.bound("left", nil)
	w.bound("used", other)
	w.bound("x", nil)
	w.bound("y", other)
	w.attach("n0", "left")
	w.set(&cluster.VolumeAttachment{Name: "used-to-n0", Attacher: "other", Node: "n0", Volume: "pv-used"})
	w.pod("user", "n0", 1, nil, claims("used")...)
	id := w.pod("p", "", 10, nil, claims("x", "y")...)
	e := NewEvaluator(EvaluatorConfig{})
	if got := e.UndetachedDrivers(w.st, id); got != nil {
		t.Errorf("of a pod that is nominated nowhere: %q", got)
	}
	for node, want := range map[string][]string{"n0": {"csi"}, "n1": {}, "gone": nil} {
		w.apply(cluster.PodNominated{ID: id, Node: node})
		if got := e.UndetachedDrivers(w.st, id); !slices.Equal(got, want) {
			t.Errorf("on %s: %q, want %q", node, got, want)
		}
	}
	if got, want := e.LimitedDrivers(w.st, id), []string{"csi", "other"}; !slices.Equal(got, want) {
		t.Errorf("limited are %q, want %q", got, want)
	}
}

func TestPreemptionSeesVolumesThatOnlyVictimsUse(t *testing.T) {
	const high = 10
	full := []string{ReasonVolumeLimit}
	ephemeral := func(w *storage, name string) cluster.PodClaim {
		w.bound(name, func(c *cluster.PersistentVolumeClaim, _ *cluster.PersistentVolume) { c.Owner = "uid-" + name })
		return cluster.PodClaim{Name: name, Ephemeral: true, PodUID: "uid-" + name}
	}
	for _, tt := range []struct {
		name    string
		there   func(w *storage) // two volumes of "csi" can be attached to n0
		wants   []string         // claims of the pod, of volumes of its own if there are none
		off, on []string
	}{
		{"one goes, the least important", func(w *storage) {
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n0", 2, nil, claims("b")...)
			w.attach("n0", "a", "b")
		}, []string{"x"}, full, []string{"a"}},
		{"as many go as are needed", func(w *storage) {
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n0", 2, nil, claims("b")...)
			w.attach("n0", "a", "b")
		}, []string{"x", "y"}, full, []string{"b", "a"}},
		{"who has no volume stays", func(w *storage) {
			w.pod("a", "n0", 1, nil)
			w.pod("b", "n0", 2, nil, claims("b")...)
			w.pod("c", "n0", 11, nil, claims("c")...)
			w.attach("n0", "b", "c")
		}, []string{"x"}, full, []string{"b"}},
		{"a volume that several use is detached when all have gone", func(w *storage) {
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n0", 2, nil, claims("a")...)
			w.pod("c", "n0", 11, nil, claims("c")...)
			w.attach("n0", "a", "c")
		}, []string{"x"}, full, []string{"b", "a"}},
		{"a volume that somebody else uses is not detached", func(w *storage) {
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n0", 11, nil, claims("a", "b")...)
			w.attach("n0", "a", "b")
		}, []string{"x"}, full, full},
		{"who uses it on another node does not matter", func(w *storage) {
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n1", 11, nil, claims("a")...)
			w.pod("c", "n0", 11, nil, claims("c")...)
			w.attach("n0", "a", "c")
			w.attach("n1", "a")
		}, []string{"x"}, full, []string{"a"}},
		{"a volume of an ephemeral claim goes with its pod", func(w *storage) {
			w.pod("a", "n0", 1, nil, ephemeral(w, "a"))
			w.pod("b", "n0", 11, nil, claims("b")...)
			w.attach("n0", "a", "b")
		}, []string{"x"}, full, []string{"a"}},
		{"a volume that both use is attached again", func(w *storage) {
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n0", 2, nil, claims("b")...)
			w.attach("n0", "a", "b")
		}, []string{"a", "x"}, full, []string{"b"}},
		{"a volume that is not attached yet", func(w *storage) {
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n0", 11, nil, claims("b")...)
			w.attach("n0", "b")
		}, []string{"x"}, []string{"a"}, []string{"a"}},
		{"of another driver", func(w *storage) {
			w.bound("a", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) { v.Driver = "other" })
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n0", 11, nil, claims("b", "c")...)
			w.attach("n0", "a", "b", "c")
		}, []string{"x"}, full, full},
		{"one that comes back with a volume of the pod makes room for another", func(w *storage) {
			for _, name := range []string{"b", "y"} {
				w.bound(name, func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) { v.Driver = "other" })
			}
			w.set(&cluster.CSINode{Name: "n0", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 1}, {Name: "other", Limited: true, Limit: 1}}})
			w.pod("a", "n0", 3, nil, claims("a")...)
			w.pod("same", "n0", 2, nil, claims("x")...)
			w.pod("b", "n0", 1, nil, claims("b")...)
		}, []string{"x", "y"}, []string{"a", "b"}, []string{"b"}},
		{"what nobody uses is waited for", func(w *storage) {
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.attach("n0", "a", "b")
		}, []string{"x"}, full, []string{ReasonDetaching}},
		{"whom kube-scheduler finds goes, though what nobody uses is attached", func(w *storage) {
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.attach("n0", "b")
		}, []string{"x"}, []string{"a"}, []string{"a"}},
		{"likewise, though fewer would go once that is gone", func(w *storage) {
			w.limit(3)
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n0", 2, nil, claims("b")...)
			w.attach("n0", "c")
		}, []string{"x", "y"}, []string{"b", "a"}, []string{"b", "a"}},
		{"nobody goes who need not once that is gone", func(w *storage) {
			w.limit(3)
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n0", 2, nil, claims("b")...)
			w.attach("n0", "a", "b", "c")
		}, []string{"x", "y"}, full, []string{ReasonDetaching}},
		{"it is not waited for if it does not matter", func(w *storage) {
			w.limit(2)
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.pod("b", "n0", 2, nil, claims("b")...)
			w.set(&cluster.VolumeAttachment{Name: "other", Attacher: "other", Node: "n0", Volume: "pv-c"})
			w.attach("n0", "a", "b")
		}, []string{"x"}, full, []string{"a"}},
		{"a volume that a nominated pod is to use is not on its way out", func(w *storage) {
			w.pod("a", "n0", 1, nil, claims("a")...)
			w.apply(cluster.PodNominated{ID: w.pod("nominee", "", high, nil, claims("b")...), Node: "n0"})
			w.attach("n0", "a", "b")
		}, []string{"x"}, full, []string{"a"}},
	} {
		for _, on := range []bool{false, true} {
			w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{Parallelism: 1})
			want := tt.off
			if on {
				w.seesVolumes()
				want = tt.on
			}
			for _, name := range []string{"a", "b", "c", "x", "y"} {
				w.bound(name, nil)
			}
			tt.there(w)
			id := w.pod("judged", "", high, nil, claims(tt.wants...)...)
			if diff := gocmp.Diff(want, w.dryRun(e, id)); diff != "" {
				t.Errorf("%s, sees volumes %v (-want +got):\n%s", tt.name, on, diff)
			}
		}
	}
}

// The pod is nominated to n0, whom it has evicted is gone, and the volume is detached some seconds later.
func TestANominatedPodWaitsForVolumesToBeDetached(t *testing.T) {
	for _, tt := range []struct {
		name    string
		off     bool
		change  func(w *storage)
		waiting string
	}{
		{"it fits then", false, func(*storage) {}, notEligibleDetaching},
		{"preemption does not see volumes", true, func(*storage) {}, ""},
		{"it does not fit then, either", false, func(w *storage) { w.pod("b", "n0", 11, nil, claims("b", "c")...) }, ""},
		{"it fits", false, func(w *storage) { w.limit(3) }, ""},
		{"its node is on the way out", false, func(w *storage) {
			node := w.st.Node(0)
			node.Unschedulable = true
			w.apply(cluster.NodeSet{Index: 0, Node: node})
		}, ""},
		{"a victim is still there", false, func(w *storage) {
			victim := w.st.Pod(w.pod("a", "n0", 1, nil, claims("a")...)).Pod
			victim.Deleting, victim.Preempted = true, true
			id, _ := w.st.PodByUID(victim.UID)
			w.apply(cluster.PodSet{ID: id, Pod: victim})
		}, notEligibleTerminating},
		{"a nominated pod takes what becomes free", false, func(w *storage) {
			w.apply(cluster.PodNominated{ID: w.pod("other", "", 11, nil, claims("b")...), Node: "n0"})
		}, ""},
	} {
		w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{Parallelism: 1})
		if !tt.off {
			w.seesVolumes()
		}
		for _, name := range []string{"a", "b", "c", "x"} {
			w.bound(name, nil)
		}
		w.attach("n0", "a", "c")
		w.pod("stays", "n0", 2, nil, claims("c")...)
		id := w.pod("judged", "", 10, nil, claims("x")...)
		w.apply(cluster.PodNominated{ID: id, Node: "n0"})
		tt.change(w)
		if why, may := e.Preempts(w.st, id); why != tt.waiting || may != (tt.waiting == "") {
			t.Errorf("%s: %q, may preempt %v; want %q", tt.name, why, may, tt.waiting)
		}
	}
}

// checkWaiting compares for what a nominated pod waits with what comes of it: it does not fit its node, and does when nothing is attached there that nobody
// uses. Others do not wait.
func (w *storage) checkWaiting(t fataler, e *Evaluator, id cluster.PodID, count map[string]int) {
	row := w.st.Pod(id)
	why, _ := e.Preempts(w.st, id)
	i := w.st.Nodes.ByName(row.Nominated)
	if i == cluster.NoNode {
		if why != "" {
			t.Fatalf("pod %s is not nominated, and waits: %q", row.Name, why)
		}
		return
	}
	then := without(t, w.st, nil)
	detach(t, w.st, then, i, true)
	now, _ := e.Node(w.st, SubjectOf(&row.Pod), id, i)
	later, _ := NewEvaluator(EvaluatorConfig{}).Node(then, SubjectOf(&row.Pod), id, i)
	want := ""
	if !now.Feasible() && later.Feasible() {
		want = notEligibleDetaching
		count["waits"]++
	}
	if why != want {
		t.Fatalf("pod %s, nominated to n%d, which it fits %v, and later %v: %q, want %q", row.Name, i, now.Feasible(), later.Feasible(), why, want)
	}
}

// A dry run is compared with one that removes pods, and what becomes of their volumes, from copies of the state: whoever is to go makes room with those
// who go with him, nobody goes for nothing, and if anybody's going would help, somebody's is proposed, unless volumes are being detached.
func TestPreemptionSeesOfVolumesWhatRemovingThemWouldShow(t *testing.T) {
	count := make(map[string]int)
	clustertest.CheckUntil(t, clustertest.Unseen(count,
		ReasonDetaching, ReasonVolumeLimit, ReasonNotHelpful, ReasonNoVictims, "1 victims", "2 victims", "with nominated pods", "waits",
	), func(t *rapid.T) {
		w := newStorage(t, rapid.IntRange(1, 2).Draw(t, "nodes"))
		w.seesVolumes()
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		node := func() string { return w.st.Nodes.Spec[rng.IntN(w.st.Nodes.Len())].Name }
		names := make([]string, 9)
		for k := range names {
			names[k] = fmt.Sprint("c", k)
			w.bound(names[k], func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
				if k%4 == 3 {
					v.Driver = "other"
				}
				if k == 8 {
					v.Handle = "h-c0"
				}
			})
		}
		w.set(&cluster.StorageClass{Name: "waits", Provisioner: "csi", Mode: cluster.BindToFirstConsumer})
		w.set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "unbound", Class: "waits"})
		pods := 0
		add := func(on string) {
			pods++
			name := fmt.Sprint("p", pods)
			var wants []cluster.PodClaim
			first := rng.IntN(len(names))
			for k := range rng.IntN(4) {
				wants = append(wants, cluster.PodClaim{Name: names[(first+k)%len(names)]})
			}
			if rng.IntN(4) == 0 {
				w.bound(name, func(c *cluster.PersistentVolumeClaim, _ *cluster.PersistentVolume) { c.Owner = "uid-" + name })
				wants = append(wants, cluster.PodClaim{Name: name, Ephemeral: true, PodUID: "uid-" + name})
			}
			if rng.IntN(6) == 0 {
				wants = append(wants, cluster.PodClaim{Name: "unbound"})
			}
			if on != "" {
				w.pod(name, on, int32(rng.IntN(4)), nil, wants...)
				for _, by := range wants {
					if claim := w.st.PersistentVolumeClaim("shop", by.Name); claim.Volume != "" && rng.IntN(4) > 0 {
						w.set(&cluster.VolumeAttachment{Name: by.Name + on, Attacher: w.st.PersistentVolume(claim.Volume).Driver, Node: on, Volume: claim.Volume})
					}
				}
				return
			}
			if id := w.pod(name, on, int32(1+rng.IntN(4)), nil, wants...); rng.IntN(2) == 0 {
				w.apply(cluster.PodNominated{ID: id, Node: node()})
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rng.IntN(10) {
			case 0, 1, 2, 3, 4:
				add(node())
			case 5, 6:
				add("")
			case 7:
				for id := range w.st.Pods() {
					if rng.IntN(4) == 0 {
						w.apply(cluster.PodRemoved{ID: id})
						break
					}
				}
			case 8:
				drivers := []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: int32(1 + rng.IntN(5))}, {Name: "other", Limited: rng.IntN(2) == 0, Limit: int32(rng.IntN(3))}}
				w.set(&cluster.CSINode{Name: node(), Drivers: drivers})
			default:
				of, on := names[rng.IntN(len(names))], node()
				attacher := w.st.PersistentVolume("pv-" + of).Driver
				w.set(&cluster.VolumeAttachment{Name: of + on, Attacher: attacher, Node: on, Volume: "pv-" + of})
			}
			if rng.IntN(3) > 0 {
				continue
			}
			var ids []cluster.PodID
			for id, row := range w.st.Pods() {
				if !row.Placed() && rng.IntN(3) > 0 {
					ids = append(ids, id)
				}
			}
			for _, id := range ids {
				row := w.st.Pod(id)
				w.checkWaiting(t, e, id, count)
				got, _ := e.DryRun(w.st, id, everything(w.st), 100)
				reasons := make(map[string]int32)
				for _, v := range got.Verdicts {
					reasons[v.Reason] += v.Count
				}
				var all []Preemption
				for i := range cluster.NodeIndex(w.st.Nodes.Len()) {
					slow, why := slowDryRun(t, w.st, id, i)
					for _, reason := range why {
						reasons[reason]--
						count[reason]++
					}
					if slow != nil {
						all = append(all, *slow)
						count[fmt.Sprint(min(len(slow.Victims), 2), " victims")]++
						if len(nominatedTo(w.st, i)) > 0 {
							count["with nominated pods"]++
						}
					}
				}
				slices.SortFunc(all, func(a, b Preemption) int { return a.Compare(&b, w.st.Settings.Seed) })
				if diff := gocmp.Diff(all, got.Candidates, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("pod %s, by reasons %v (-removing them shows +got):\n%s", row.Name, reasons, diff)
				}
				for reason, n := range reasons {
					if n != 0 {
						t.Fatalf("pod %s: %d more nodes say %q than removing pods shows", row.Name, n, reason)
					}
				}
				if len(all) == 0 || rng.IntN(2) == 0 {
					continue
				}
				// The victims go, and some of the volumes are not detached before it is tried again.
				w.apply(cluster.PodNominated{ID: id, Node: w.st.Nodes.Spec[all[0].Node].Name})
				for _, victim := range all[0].Victims {
					w.apply(cluster.PodRemoved{ID: victim})
				}
				w.checkWaiting(t, e, id, count)
				if v, _ := e.Node(w.st, SubjectOf(&row.Pod), id, all[0].Node); !v.Feasible() {
					if _, may := e.Preempts(w.st, id); may {
						t.Fatalf("pod %s has evicted others, does not fit yet, and may do so again", row.Name)
					}
				}
			}
		}
	})
	t.Log(count)
}
