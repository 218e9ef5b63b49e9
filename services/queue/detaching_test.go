package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/test/bubble"
)

// attached returns a world with two nodes to each of which a volume is attached that a pod uses, and no other can be; low1 is of the least priority. A
// pod with a volume of its own is more important than both, and preemption sees volumes.
func attached(t *testing.T) *world {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	settings := w.ledger.st.Settings
	settings.PreemptionSeesVolumes = true
	w.ledger.apply(cluster.SettingsSet{Settings: settings})
	labels := make(map[string]cluster.LabelsID)
	for _, claim := range []string{"a1", "a2", "x"} {
		labels[claim] = w.ledger.claiming(claim)
		w.ledger.apply(cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: "pv-" + claim, Driver: "csi", Handle: "h-" + claim}})
	}
	for k := range 2 {
		node := fmt.Sprint("n", k+1)
		w.ledger.node(node, 1000)
		w.ledger.pod(fmt.Sprint("low", k+1), 100, func(p *cluster.Pod, _ *cluster.ClassSpec) {
			p.NodeName, p.Priority, p.Labels = node, int32(k), labels[fmt.Sprint("a", k+1)]
		})
		w.ledger.apply(
			cluster.ObjectSet{Object: &cluster.CSINode{Name: node, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 1}}}},
			cluster.ObjectSet{Object: &cluster.VolumeAttachment{Name: "to-" + node, Attacher: "csi", Node: node, Volume: fmt.Sprint("pv-a", k+1)}},
		)
	}
	w.ledger.pod("high", 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority, p.Labels = 10, labels["x"] })
	return w
}

// evicted is attached, where high has had low1 evicted.
func evicted(t *testing.T) *world {
	t.Helper()
	w := attached(t)
	w.queueMember("q1")
	elapse(time.Second)
	w.binder.evict(1)
	return w
}

const onN1 = "high/1 on n1: low1"

func TestAPreemptorWaitsForTheVolumeOfItsVictimToBeDetached(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := evicted(t)
		elapse(5 * time.Minute)
		if got := w.binder.report("high"); !strings.HasSuffix(got, "preemption: "+"not eligible due to volumes that are still attached to the nominated node.") || w.binder.clears("high") {
			t.Errorf("while the volume is attached: %q, its nomination is cleared: %v", got, w.binder.clears("high"))
		}
		w.ledger.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.VolumeAttachmentKind, Name: "to-n1"}})
		elapse(30 * time.Second)
		if got, preempted := w.ledger.nodeOf("high"), w.binder.preempted(); got != "n1" || !slices.Equal(preempted, []string{onN1}) {
			t.Errorf("it is on %q, after preemptions %q; want n1, after %q alone", got, preempted, onN1)
		}
	})
}

// The attacher of "csi" is dead: nothing is ever detached, on any node. After two hours it is tried once more.
func TestABrokenAttacherCostsNoSecondVictim(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := attached(t)
		w.queueMember("q1")
		evicted := 0
		for since := time.Now(); time.Since(since) < 150*time.Minute; elapse(time.Second) {
			if n := len(w.binder.preempted()); n > evicted {
				if evicted = n; n > 1 && time.Since(since) < 2*time.Hour {
					t.Errorf("%q after %v", w.binder.preempted(), time.Since(since))
				}
				w.binder.evict(n)
			}
			id, ok := w.ledger.st.PodByUID("uid-high")
			if ok && w.binder.clears("high") && w.ledger.st.Pod(id).Nominated != "" && !w.ledger.st.Pod(id).Preempting {
				w.ledger.apply(cluster.PodNominated{ID: id})
			}
		}
		if evicted != 2 {
			t.Errorf("%q, one node after the other, for a pod that is on %q; want two", w.binder.preempted(), w.ledger.nodeOf("high"))
		}
	})
}

// Of n1 and n2, kube-scheduler would evict a pod on n2, too: its volume is not attached yet.
func TestWhomKubeSchedulerEvictsGoesThoughTheAttacherIsBroken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := evicted(t)
		for since := time.Now(); !w.binder.clears("high") && time.Since(since) < time.Hour; {
			elapse(time.Second)
		}
		w.ledger.node("n3", 1000)
		labels := w.ledger.claiming("a3")
		w.ledger.pod("low3", 100, func(p *cluster.Pod, _ *cluster.ClassSpec) {
			p.NodeName, p.Priority, p.Labels = "n3", 5, labels
		})
		w.ledger.apply(
			cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: "pv-a3", Driver: "csi", Handle: "h-a3"}},
			cluster.ObjectSet{Object: &cluster.CSINode{Name: "n3", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 1}}}},
		)
		high, _ := w.ledger.st.PodByUID("uid-high")
		w.ledger.apply(cluster.PodNominated{ID: high})
		elapse(30 * time.Second)
		if got := w.binder.preempted(); len(got) != 2 || !strings.HasSuffix(got[1], "on n3: low3") {
			t.Errorf("preemptions %q, want one of low3 besides, and not of low2, which is less important", got)
		}
	})
}

func TestAPreemptorGivesUpANodeFromWhichTheVolumeIsNeverDetached(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := evicted(t)
		since := time.Now()
		for !w.binder.clears("high") && time.Since(since) < time.Hour {
			elapse(time.Second)
		}
		if waited := time.Since(since); waited < 6*time.Minute || waited > 12*time.Minute {
			t.Errorf("its nomination is cleared after %v, want 6 minutes and what the next attempt is late", waited)
		}
		if n := len(w.binder.preempted()); n != 1 {
			t.Errorf("%d preemptions while it is nominated, want 1", n)
		}
		high, _ := w.ledger.st.PodByUID("uid-high")
		w.ledger.apply(cluster.PodNominated{ID: high})
		elapse(30 * time.Second)
		const want = "preemption: 0/2 nodes are available: 1 node(s) had volumes attached of a driver that has not detached others in time, 1 node(s) had volumes attached that no pod uses any more."
		if got := w.binder.report("high"); len(w.binder.preempted()) != 1 || !strings.HasSuffix(got, want) {
			t.Fatalf("preemptions %q and %q, want none besides, and %q", w.binder.preempted(), got, want)
		}
		elsewhere := func(driver string) {
			w.ledger.apply(
				cluster.ObjectSet{Object: &cluster.VolumeAttachment{Name: "elsewhere", Attacher: driver, Node: "n3", Volume: "pv-x"}},
				cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.VolumeAttachmentKind, Name: "elsewhere"}},
			)
			elapse(10 * time.Minute)
		}
		if elsewhere("other"); len(w.binder.preempted()) != 1 {
			t.Fatalf("preemptions %q, when another driver has detached a volume; want none besides", w.binder.preempted())
		}
		elsewhere("csi")
		if got := w.binder.preempted(); len(got) != 2 || !strings.HasSuffix(got[1], "on n2: low2") {
			t.Fatalf("preemptions %q, want one of low2 besides", got)
		}
		w.binder.evict(2)
		w.ledger.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.VolumeAttachmentKind, Name: "to-n2"}})
		elapse(30 * time.Second)
		if got := w.ledger.nodeOf("high"); got != "n2" {
			t.Errorf("it is on %q, want n2", got)
		}
	})
}

// Two volumes can be attached to each node by now, one is that a pod uses, and one that nobody does.
func TestNobodyIsEvictedWhereAVolumeIsBeingDetached(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := attached(t)
		for _, node := range []string{"n1", "n2"} {
			w.ledger.apply(
				cluster.ObjectSet{Object: &cluster.CSINode{Name: node, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 2}}}},
				cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: "pv-of-" + node, Driver: "csi", Handle: "of-" + node}},
				cluster.ObjectSet{Object: &cluster.VolumeAttachment{Name: "unused-" + node, Attacher: "csi", Node: node, Volume: "pv-of-" + node}},
			)
		}
		w.queueMember("q1")
		elapse(20 * time.Minute)
		const want = "preemption: 0/2 nodes are available: 2 node(s) had volumes attached that no pod uses any more."
		if got := w.binder.report("high"); !strings.HasSuffix(got, want) {
			t.Errorf("it says %q, want %q", got, want)
		}
		w.ledger.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.VolumeAttachmentKind, Name: "unused-n2"}})
		elapse(30 * time.Second)
		if got, preempted := w.ledger.nodeOf("high"), w.binder.preempted(); got != "n2" || len(preempted) > 0 {
			t.Errorf("it is on %q, after preemptions %q; want n2, after none", got, preempted)
		}
	})
}

// Whoever waits for a volume to be detached is tried again when it could not run there even then.
func TestAPreemptorLooksElsewhereIfItsNodeFillsUpWhileAVolumeIsBeingDetached(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := evicted(t)
		elapse(time.Minute)
		w.ledger.pod("other", 1000, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.NodeName, p.Priority = "n1", 11 })
		elapse(30 * time.Second)
		if got := w.binder.preempted(); len(got) != 2 || !strings.HasSuffix(got[1], "on n2: low2") {
			t.Errorf("preemptions %q, want one of low2 besides", got)
		}
	})
}

// crowdedOut is a world with a node on which one volume can be attached, and two pods with a volume that are nominated to it: "first", of higher priority,
// which waits for its volume's zone, and "crowded".
func crowdedOut(t *testing.T, edit func(*cluster.Pod, *cluster.ClassSpec)) *world {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.zoneNode("n1", "z1", 1000)
	w.ledger.apply(cluster.ObjectSet{Object: &cluster.CSINode{Name: "n1", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 1}}}})
	for _, pod := range []string{"first", "crowded"} {
		labels := w.ledger.claiming(pod)
		volume := &cluster.PersistentVolume{Name: "pv-" + pod, Driver: "csi", Handle: "h-" + pod}
		if pod == "first" {
			volume.HasAffinity, volume.Affinity = true, []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "zone", Operator: "In", Values: []string{"nowhere"}}}}}
		}
		w.ledger.apply(cluster.ObjectSet{Object: volume})
		w.ledger.pod(pod, 100, func(p *cluster.Pod, c *cluster.ClassSpec) {
			p.Nominated, p.Labels, p.NeverPreempts = "n1", labels, true
			if pod == "first" {
				p.Priority = 10
			} else if edit != nil {
				edit(p, c)
			}
		})
	}
	return w
}

// To others of its signature a pod is there already where it is nominated to: one that is crowded out would share its volume there with itself, and be
// sent to the binder for ever.
func TestAPodThatIsCrowdedOutOfItsNodeIsUnschedulable(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := crowdedOut(t, nil)
		w.queueMember("q1")
		elapse(time.Minute)
		if got, want := w.binder.report("crowded"), "0/1 nodes are available: 1 node(s) exceed max volume count."; !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if sent := w.binder.sent(); len(sent) > 0 {
			t.Errorf("sent to the binder: %q", sent)
		}
	})
}

func TestAPodThatIsCrowdedOutOfItsNodeSleepsWhateverHappensThere(t *testing.T) {
	for name, edit := range map[string]func(*cluster.Pod, *cluster.ClassSpec){
		"volumes alone": nil,
		"and terms":     func(_ *cluster.Pod, c *cluster.ClassSpec) { c.AntiAffinity = apps("nobody") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := crowdedOut(t, edit)
				q, _ := w.queueMember("q1")
				elapse(5 * time.Second)
				before := w.tried(q)["crowded"]
				for k := range 100 {
					w.ledger.pod(fmt.Sprint("other", k), 0, bound("n1"))
					elapse(100 * time.Millisecond)
				}
				if after := w.tried(q)["crowded"]; before != 1 || after != before {
					t.Errorf("tried %d times, then %d; want once", before, after)
				}
				// Once the other is gone it fits there, and is told so.
				w.ledger.mu.RLock()
				first, _ := w.ledger.st.PodByUID("uid-first")
				w.ledger.mu.RUnlock()
				w.ledger.apply(cluster.PodRemoved{ID: first})
				elapse(time.Minute)
				if got := w.ledger.nodeOf("crowded"); got != "n1" {
					t.Errorf("it is on %q, want n1", got)
				}
			})
		})
	}
}

// A pod that pods elsewhere alone keep from its own node is not tried along with others as long as no node is left for its signature: nobody could place it.
func TestANominatedPodForWhoseSignatureNoNodeIsLeftIsToldWhy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		checkLeaks(t)
		w := newWorld(t, 1)
		w.filterWorker("f1", nil)
		w.scoreWorker("s1")
		w.ledger.preemptNot()
		w.ledger.zoneNode("a1", "a", 100)
		w.ledger.zoneNode("a2", "a", 1000)
		w.ledger.zoneNode("c", "c", 400)
		w.ledger.pod("db", 100, with(labelled(w.ledger.labels("app", "db")), bound("a1")))
		w.ledger.pod("high", 900, with(farFrom("db"), func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority, p.Nominated = 10, "a2" }))
		n := 0
		small := func() {
			w.ledger.pod(fmt.Sprint("small", n), 10, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority = 20 })
			n++
		}
		small()
		w.binder.before = func(int, *binderv1.CommitRequest) error {
			if n < 20 {
				small()
			}
			return nil
		}
		w.queueMember("q1")
		elapse(time.Second)
		if got, want := w.binder.report("high"), "0/3 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 2 Insufficient cpu."; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
