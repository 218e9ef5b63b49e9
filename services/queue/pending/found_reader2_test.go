package pending

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

func TestReaderFailing2(t *testing.T) {
	for name, change := range map[string]func(w *volumeWorld){
		"node goes": func(w *volumeWorld) { w.apply(cluster.NodeRemoved{Index: w.st.Nodes.ByName("bad")}) },
		"csinode goes, node full": func(w *volumeWorld) {
			w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.CSINodeKind, Name: "bad"}})
		},
		"node is cordoned": func(w *volumeWorld) {
			i := w.st.Nodes.ByName("bad")
			n := w.st.Node(i)
			n.Unschedulable = true
			w.apply(cluster.NodeSet{Index: i, Node: n})
		},
		"node shrinks": func(w *volumeWorld) { w.node("bad", "a", 100) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newVolumeWorldOf(t, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})})
			heard := new(heardOf)
			w.queue.Observe(heard)
			w.node("n1", "a", 1000)
			cpuOf := int64(1000)
			if name == "csinode goes, node full" {
				cpuOf = 250
			}
			w.node("bad", "a", cpuOf)
			w.set(&cluster.CSINode{Name: "bad", Migrated: []string{"p"}})
			w.set(&cluster.PersistentVolume{Name: "pv", Migration: cluster.Migration{Plugin: "p", Error: "no such thing"}})
			w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "x", Volume: "pv", Bound: true})
			id := w.pod("waits", 0, 5, "", "x")
			if w.helped(id) {
				t.Fatal("helped at first")
			}
			w.rejectAll()
			if name == "csinode goes, node full" {
				w.pod("filler", 0, 9, "bad")
				if w.helped(id) {
					t.Skip("the filler has done it")
				}
			}
			change(w)
			if !w.helped(id) {
				t.Fatal("not helped")
			}
			if got := w.placeOf(id); got == Unschedulable {
				t.Errorf("it sleeps: n1 is feasible")
			} else {
				t.Log("woken by", heard.last)
			}
		})
	}
}
