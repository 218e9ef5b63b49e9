package pending

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// one step asks about every node.
func TestReaderStepIsLong(t *testing.T) {
	w, _, asked := manyClaims(t, 100)
	for k := range 500 {
		w.node(fmt.Sprint("big-", k), "a", 50) // no room for any
	}
	*asked = 0
	most := 0
	for range 2000 {
		before := *asked
		done := w.queue.RecheckUntil(w.now, w.st, steps)
		most = max(most, *asked-before)
		if done {
			break
		}
	}
	if most > 4 {
		t.Errorf("%d questions in one step", most)
	}
}

// a pod that never preempts answers for one that may.
func TestReaderNeverPreempts(t *testing.T) {
	lost := 0
	for range 40 {
		w := newVolumeWorldOf(t, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})})
		w.node("n1", "a", 100)
		w.set(&cluster.PersistentVolume{Name: "pv"})
		for _, c := range []string{"x", "y"} {
			w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: c, Volume: "pv", Bound: true})
		}
		w.pod("victim", 0, 1, "n1")
		never := w.pod("never", 0, 5, "", "x")
		row := w.st.Pod(never).Pod
		row.NeverPreempts = true
		w.apply(cluster.PodSet{ID: never, Pod: row})
		may := w.pod("may", 0, 5, "", "y")
		for _, a := range w.queue.Pop(w.now, 1000) {
			w.reject(a, w.st.Version(), engine.NodeName)
		}
		w.now = w.now.Add(time.Minute)
		if w.helped(may) {
			t.Fatal("too early")
		}
		w.node("n1", "a", 300) // now it could preempt the victim
		if !w.helped(may) {
			t.Fatal("not helped")
		}
		if w.placeOf(may) == Unschedulable {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("lost %d of 40 times", lost)
	}
}

// the flush waits for the look aside.
func TestReaderFlush(t *testing.T) {
	w, plain, _ := manyClaims(t, 100)
	w.now = w.now.Add(6 * time.Minute)
	w.node("n1", "a", 500)
	n := 0
	for ; n < 5000; n++ {
		// something is noted for those with claims all the time
		w.node(fmt.Sprint("m-", n%50), "a", int64(500+n%2))
		w.queue.RecheckUntil(w.now, w.st, steps)
		if w.placeOf(plain) != Unschedulable {
			break
		}
	}
	t.Logf("the plain pod, overdue, came back after %d parts", n)
}

// the node on which a plugin fails goes.
func TestReaderFailingNodeGoes(t *testing.T) {
	w := newVolumeWorldOf(t, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})})
	w.node("n1", "a", 1000)
	w.node("bad", "a", 1000)
	w.set(&cluster.CSINode{Name: "bad", Migrated: []string{"p"}})
	w.set(&cluster.PersistentVolume{Name: "pv", Migration: cluster.Migration{Plugin: "p", Error: "no such thing"}})
	w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "x", Volume: "pv", Bound: true})
	id := w.pod("waits", 0, 5, "", "x")
	if w.helped(id) {
		t.Fatal("helped at first")
	}
	w.rejectAll()
	w.apply(cluster.NodeRemoved{Index: w.st.Nodes.ByName("bad")})
	if !w.helped(id) {
		t.Fatal("not helped")
	}
	if got := w.placeOf(id); got == Unschedulable {
		t.Errorf("it sleeps: n1 is feasible")
	}
}
