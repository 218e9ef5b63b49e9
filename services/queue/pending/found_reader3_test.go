package pending

import (
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

func TestReaderFailing3(t *testing.T) {
	w := newVolumeWorldOf(t, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})})
	w.node("n1", "a", 1000)
	w.node("bad", "a", 1000)
	w.set(&cluster.CSINode{Name: "bad", Migrated: []string{"p"}})
	w.set(&cluster.PersistentVolume{Name: "pv", Migration: cluster.Migration{Plugin: "p", Error: "no such thing"}})
	w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "x", Volume: "pv", Bound: true})
	id := w.pod("waits", 0, 5, "", "x")
	batch, at := w.queue.Pop(w.now, 1000), w.st.Version()
	w.apply(cluster.NodeRemoved{Index: w.st.Nodes.ByName("bad")}) // while the attempt runs
	for _, a := range batch {
		w.reject(a, at, "VolumeBinding")
	}
	w.now = w.now.Add(time.Minute)
	w.queue.Recheck(w.now, w.st)
	t.Log(w.helped(id), w.placeOf(id))
	if w.helped(id) && w.placeOf(id) == Unschedulable {
		t.Error("it sleeps")
	}
}
