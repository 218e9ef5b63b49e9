package engine

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestReaderRBD(t *testing.T) {
	w, e := newStorage(t, 4), NewEvaluator(EvaluatorConfig{Parallelism: 1})
	heap := func() uint64 { var m runtime.MemStats; runtime.GC(); runtime.ReadMemStats(&m); return m.HeapAlloc }
	var ids []cluster.PodID
	const pods = 5
	for p := range pods {
		var ms []string
		for k := range 100000 {
			ms = append(ms, fmt.Sprintf("%06d", k))
		}
		ids = append(ids, w.pod(fmt.Sprint("p", p), "", 0, []cluster.Disk{{Kind: cluster.DiskRBD, ID: fmt.Sprint(p), Monitors: ms}}))
	}
	before := heap()
	began := time.Now()
	for _, id := range ids {
		e.Filter(w.st, SubjectOf(&w.st.Pod(id).Pod), everything(w.st))
	}
	t.Logf("%d pods: %v, %d MiB", pods, time.Since(began), (heap()-before)>>20)
	// one of them on a node: who comes there?
	for p := range 3 {
		w.apply(cluster.PodAssumed{ID: ids[p], Node: 0, Attempt: 1})
	}
	began = time.Now()
	e.Node(w.st, SubjectOf(&w.st.Pod(ids[4]).Pod), cluster.NoPod, 0)
	t.Log("one node with 10 such pods:", time.Since(began))
	// a new symbol, and a class that misses one
	runtime.KeepAlive(e)
}

func TestReaderDryRunNode(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{Parallelism: 1})
	for p := range 110 {
		var names []string
		for k := range 256 {
			names = append(names, fmt.Sprintf("c-%d-%d", p, k))
			w.bound(names[k], nil)
		}
		if p > 0 {
			w.pod(fmt.Sprint("placed-", p), "n0", 0, nil, claims(names...)...)
		} else {
			w.pod("x", "", 10, nil, claims(names[:1]...)...)
		}
	}
	w.set(&cluster.CSINode{Name: "n0", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 109 * 256}}})
	id, _ := w.st.PodByUID("uid-x")
	began := time.Now()
	_, ok := e.DryRunNode(w.st, id, 0)
	t.Log("DryRunNode", ok, time.Since(began))
}

func TestReaderNominees(t *testing.T) {
	w, e := newStorage(t, 20), NewEvaluator(EvaluatorConfig{Parallelism: 1})
	for p := range 16 {
		var names []string
		for k := range 255 {
			names = append(names, fmt.Sprintf("c-%d-%d", p, k))
			w.bound(names[k], nil)
		}
		id := w.pod(fmt.Sprint("nominated-", p), "", 10, nil, claims(names...)...)
		w.apply(cluster.PodNominated{ID: id, Node: fmt.Sprint("n", p)})
	}
	w.bound("mine", nil)
	var ids []cluster.PodID
	for k := range 100 {
		w.bound(fmt.Sprint("m", k), nil)
		ids = append(ids, w.pod(fmt.Sprint("m", k), "", 0, nil, claims(fmt.Sprint("m", k))...))
	}
	count := func() int {
		seen := map[Signature]bool{}
		for _, id := range ids {
			seen[e.Signature(w.st, SubjectOf(&w.st.Pod(id).Pod))] = true
		}
		return len(seen)
	}
	t.Log("signatures", count())
	began := time.Now()
	for k := range 100 {
		w.set(&cluster.PersistentVolumeClaim{Namespace: "x", Name: fmt.Sprint(k)})
		e.Signature(w.st, SubjectOf(&w.st.Pod(ids[0]).Pod))
	}
	t.Log("per change of any object", time.Since(began)/100)
	id := w.pod("one more", "", 10, nil, claims("c-0-0", "c-0-1", "c-0-2", "c-0-3", "c-0-4", "c-0-5", "c-0-6", "c-0-7", "c-0-8", "c-0-9", "c-0-10", "c-0-11", "c-0-12", "c-0-13", "c-0-14", "c-0-15", "c-0-16")...)
	w.apply(cluster.PodNominated{ID: id, Node: "n17"})
	t.Log("signatures beyond the bound", count())
}
