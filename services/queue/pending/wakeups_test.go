package pending

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// TestPodsWithClaimsLoseNoWakeUp draws logs, and looks at all of it or in parts, with what comes meanwhile: an unschedulable pod that is feasible on a
// node, or could preempt, whatever has changed, must have woken by the end of the look.
func TestPodsWithClaimsLoseNoWakeUp(t *testing.T) {
	for name, judge := range map[string]func() Judge{
		"by a judge that anybody can follow": func() Judge { return volumeJudge{newCPUJudge()} },
		"by the engine":                      func() Judge { return evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})} },
	} {
		t.Run(name, func(t *testing.T) { losesNoWakeUp(t, judge) })
	}
}

func losesNoWakeUp(t *testing.T, judge func() Judge) {
	rapid.Check(t, func(t *rapid.T) {
		w := newVolumeWorldOf(t, judge())
		w.diskClasses()
		whole := rapid.Bool().Draw(t, "after each delta")
		w.look = func(q *Queue, st *cluster.State) {
			if whole {
				q.Recheck(w.now, st)
				return
			}
			for range rapid.IntRange(0, 3).Draw(t, "steps") {
				if q.RecheckUntil(w.now, st, steps); rapid.Bool().Draw(t, "aside too") {
					q.RecheckAside(w.now, st, steps)
				}
			}
		}
		names := rapid.SampledFrom([]string{"one", "two", "three"})
		zones := rapid.SampledFrom([]string{"a", "b"})
		nodes := rapid.SampledFrom([]string{"n1", "n2"})
		coin := rapid.Bool()
		pods := 0
		var change func(*rapid.T)
		actions := map[string]func(*rapid.T){
			"node": func(t *rapid.T) {
				w.node(nodes.Draw(t, "node"), zones.Draw(t, "zone"), rapid.SampledFrom([]int64{100, 300, 700}).Draw(t, "cpu"))
			},
			"node goes": func(t *rapid.T) {
				if at := w.st.Nodes.ByName(nodes.Draw(t, "node")); at != cluster.NoNode {
					w.apply(cluster.NodeRemoved{Index: at})
				}
			},
			"pod": func(t *rapid.T) {
				if pods++; pods < 40 {
					claims := rapid.SliceOfNDistinct(names, 0, 2, func(s string) string { return s }).Draw(t, "claims")
					node := rapid.SampledFrom([]string{"", "", "n1", "n2"}).Draw(t, "on")
					w.pod(fmt.Sprint("pod-", pods), cluster.ClassID(rapid.IntRange(0, volumeClasses+1).Draw(t, "class")), rapid.Int32Range(0, 2).Draw(t, "priority"), node, claims...)
				}
			},
			"pod goes": func(t *rapid.T) {
				var ids []cluster.PodID
				for id, p := range w.st.Pods() {
					if p.NodeName != "elsewhere" {
						ids = append(ids, id)
					}
				}
				if len(ids) > 0 {
					w.apply(cluster.PodRemoved{ID: rapid.SampledFrom(ids).Draw(t, "pod")})
				}
			},
			"claim": func(t *rapid.T) {
				c := &cluster.PersistentVolumeClaim{
					Namespace: "default", Name: names.Draw(t, "claim"), Class: rapid.SampledFrom([]string{"", "late"}).Draw(t, "class"),
					HasRequest: true, Request: rapid.Int64Range(1, 3).Draw(t, "request"), Deleting: rapid.IntRange(0, 4).Draw(t, "deleting") == 0,
				}
				if coin.Draw(t, "bound") {
					c.Volume, c.Bound = names.Draw(t, "volume"), coin.Draw(t, "wholly")
				}
				if coin.Draw(t, "once") {
					c.AccessModes = []string{"ReadWriteOncePod"}
				}
				w.set(c)
			},
			"volume": func(t *rapid.T) {
				v := &cluster.PersistentVolume{
					Name: names.Draw(t, "volume"), Class: rapid.SampledFrom([]string{"", "late"}).Draw(t, "class"), Capacity: rapid.Int64Range(1, 3).Draw(t, "capacity"),
					Available: coin.Draw(t, "available"), Labels: []cluster.Label{{Key: topologyZone, Value: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "zone")}},
					Driver: "driver", Handle: names.Draw(t, "handle"),
				}
				if coin.Draw(t, "for a claim") {
					v.HasClaim, v.Claim = true, cluster.ClaimReference{Namespace: "default", Name: names.Draw(t, "claim")}
				}
				w.set(v)
			},
			"class": func(t *rapid.T) {
				w.set(&cluster.StorageClass{
					Name: rapid.SampledFrom([]string{"", "late"}).Draw(t, "class"), Provisioner: "driver",
					Mode: rapid.SampledFrom([]string{cluster.BindImmediately, cluster.BindToFirstConsumer}).Draw(t, "mode"),
				})
			},
			"room": func(t *rapid.T) {
				w.set(&cluster.CSIStorageCapacity{
					Namespace: "system", Name: nodes.Draw(t, "room"), Class: "late", HasLimit: coin.Draw(t, "limited"), Limit: rapid.Int64Range(0, 3).Draw(t, "limit"),
				})
			},
			"driver": func(t *rapid.T) { w.set(&cluster.CSIDriver{Name: "driver", StorageCapacity: coin.Draw(t, "capacity")}) },
			"CSINode": func(t *rapid.T) {
				w.set(&cluster.CSINode{Name: nodes.Draw(t, "node"), Drivers: []cluster.NodeDriver{{Name: "driver", Limited: true, Limit: rapid.Int32Range(0, 2).Draw(t, "limit")}}})
			},
			"attachment": func(t *rapid.T) {
				w.set(&cluster.VolumeAttachment{Name: names.Draw(t, "attachment"), Attacher: "driver", Node: nodes.Draw(t, "node"), Volume: names.Draw(t, "volume")})
			},
			"nomination": func(t *rapid.T) {
				if ids := w.pendingIDs(); len(ids) > 0 {
					w.apply(cluster.PodNominated{ID: rapid.SampledFrom(ids).Draw(t, "pod"), Node: rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "to")})
				}
			},
			"pod changes": func(t *rapid.T) {
				if ids := w.pendingIDs(); len(ids) > 0 {
					id := rapid.SampledFrom(ids).Draw(t, "pod")
					pod := w.st.Pod(id).Pod
					if coin.Draw(t, "labels") { // what it uses stays
						var claims []string
						for _, by := range w.st.Labels(pod.Labels).Claims {
							claims = append(claims, by.Name)
						}
						pod.Labels = w.labels(fmt.Sprint(pod.Name, "-", w.st.Version().Seq), claims...)
					} else {
						pod.Priority = rapid.Int32Range(0, 2).Draw(t, "priority")
					}
					w.apply(cluster.PodSet{ID: id, Pod: pod})
				}
			},
			"object goes": func(t *rapid.T) {
				var keys []cluster.ObjectKey
				for o := range w.st.Objects() {
					keys = append(keys, o.Object.Key())
				}
				if len(keys) > 0 {
					w.apply(cluster.ObjectRemoved{ObjectKey: rapid.SampledFrom(keys).Draw(t, "object")})
				}
			},
			"a cycle": func(t *rapid.T) {
				w.now = w.now.Add(time.Minute)
				w.cycle(func() {
					for range rapid.IntRange(0, 3).Draw(t, "deltas meanwhile") {
						change(t)
					}
				})
			},
			"": func(t *rapid.T) {
				if !whole && rapid.IntRange(0, 2).Draw(t, "goes on") > 0 {
					return
				}
				w.queue.Recheck(w.now, w.st) // the look that is under way, and then what has been noted since
				w.queue.Recheck(w.now, w.st)
				for e := range w.queue.Entries(w.queue.IDs()) {
					if e.Place == Unschedulable && w.helped(e.ID) && !w.waits(e.ID) {
						t.Fatalf("%s is unschedulable, and is feasible or could preempt: its wake-up was lost", e.Pod.Name)
					}
				}
				w.check(t)
			},
		}
		changes := []string{"node", "pod goes", "claim", "volume", "class", "room", "driver", "CSINode", "attachment", "object goes", "nomination", "pod changes"}
		change = func(t *rapid.T) { actions[rapid.SampledFrom(changes).Draw(t, "change")](t) }
		t.Repeat(actions)
	})
}

// diskClasses adds classes of pods that use a disk which only one can, and that may not be near each other.
func (w *volumeWorld) diskClasses() {
	disk, far := cpuClass(200), cpuClass(100)
	disk.Disks = []cluster.Disk{{Kind: cluster.DiskGCE, ID: "disk"}}
	far.Disks = []cluster.Disk{{Kind: cluster.DiskRBD, ID: "image", Monitors: []string{"x", "y"}}, {Kind: cluster.DiskGCE, ID: "disk", ReadOnly: true}}
	far.AntiAffinity = podTerm("nobody", topologyZone)
	for k, spec := range []cluster.ClassSpec{disk, far} {
		id := cluster.ClassID(volumeClasses + k)
		w.apply(cluster.ClassDefined{ID: id, Spec: spec})
		w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: fmt.Sprint("keeper-", id), Class: id, NodeName: "elsewhere"}})
	}
}

func (w *volumeWorld) pendingIDs() (ids []cluster.PodID) {
	for id, p := range w.st.Pods() {
		if p.NodeName == "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// waits reports whether a pod is nominated and is feasible nowhere: it waits for those that make room for it.
func (w *volumeWorld) waits(id cluster.PodID) bool {
	pod := w.st.Pod(id)
	if pod.Nominated == "" {
		return false
	}
	for n := range cluster.NodeIndex(w.st.Nodes.Len()) {
		if w.judge.Feasible(w.st, engine.SubjectOf(&pod.Pod), id, n) {
			return false
		}
	}
	return true
}
