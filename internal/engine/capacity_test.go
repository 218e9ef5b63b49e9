package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// slowCapacity has pods come to each node until the next one is refused.
func slowCapacity(t *testing.T, st *cluster.State, e *Evaluator, s Subject, limit int64) Capacity {
	out := Capacity{}
	var verdicts [][]VerdictCount
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if !st.Nodes.Live.Has(i) {
			continue
		}
		out.Nodes++
		var came []cluster.PodID
		for n := int64(0); n < limit; n++ {
			v, _ := e.Node(st, s, cluster.NoPod, i)
			if !v.Feasible() {
				verdicts = append(verdicts, e.Explain(st, s, v, i))
				break
			}
			id := st.FreePod()
			apply(t, st, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: string(rune('A' + n)), Class: s.Class, NodeName: st.Nodes.Spec[i].Name}})
			came = append(came, id)
		}
		for _, id := range came {
			apply(t, st, cluster.PodRemoved{ID: id})
		}
		out.Pods = min(out.Pods+int64(len(came)), limit)
	}
	if out.Pods < limit {
		out.Verdicts = MergeVerdicts(verdicts...)
	}
	return out
}

func TestCapacityIsHowManyCanCome(t *testing.T) {
	for seed := range uint64(30) {
		w := newWorld(t, seed, 40, 8)
		for range 60 {
			w.step(t, true)
		}
		e := NewEvaluator(EvaluatorConfig{Parallelism: 2})
		e.spanNodes = 8
		for _, class := range w.classes {
			for _, limit := range []int64{1, 7, 500} {
				got, ok := e.Capacity(w.st, of(class), limit)
				if !ok {
					t.Fatalf("seed %d: class %d is not counted", seed, class)
				}
				if diff := cmp.Diff(slowCapacity(t, w.st, e, of(class), limit), got); diff != "" {
					t.Fatalf("seed %d, class %d, limit %d (-one by one +counted):\n%s", seed, class, limit, diff)
				}
			}
		}
	}
}

func TestCapacityHoldsTheRoomOfNominatedPods(t *testing.T) {
	st := fleet(t, 1)
	apply(t, st,
		cluster.ClassDefined{ID: 7, Spec: cluster.ClassSpec{Requests: requests(10_000, 1<<30)}},
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "nominated", Class: 7, Priority: 1, Nominated: "node-0"}})
	st.Settings.Profiles = []cluster.Profile{DefaultProfile("")}
	e := NewEvaluator(EvaluatorConfig{})
	for priority, want := range map[int32]int64{0: 2, 1: 2, 2: 3} { // of 32 CPUs
		if got, ok := e.Capacity(st, Subject{Class: 7, Priority: priority}, 100); !ok || got.Pods != want {
			t.Errorf("priority %d: %+v, want %d", priority, got, want)
		}
	}
}

func TestCapacityOfPodsWithVolumes(t *testing.T) {
	w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
	w.bound("c", nil)
	disk := w.pod("disk", "", 0, []cluster.Disk{{Kind: cluster.DiskGCE, ID: "d"}})
	if got, ok := e.Capacity(w.st, SubjectOf(&w.st.Pod(disk).Pod), 100); !ok || got.Pods != 3 {
		t.Errorf("of a disk that one pod of a node can use: %+v, %v, want 3", got, ok)
	}
	shares := w.pod("shares", "", 0, nil, claims("c")...)
	if got, ok := e.Capacity(w.st, SubjectOf(&w.st.Pod(shares).Pod), 100); ok {
		t.Errorf("of a claim that all share, each node is counted by itself: %+v", got)
	}
}

// kube-scheduler asks with the pods nominated to a node and without. A nominee that would use the same disk makes room for it, but is not there
// yet.
func TestCapacityCountsNoRoomThatOnlyNomineesMake(t *testing.T) {
	w, e := newStorage(t, 1), NewEvaluator(EvaluatorConfig{})
	disk := []cluster.Disk{{Migration: cluster.Migration{Plugin: "ebs", Driver: "csi", Handle: "shared"}}}
	w.set(&cluster.CSINode{Name: "n0", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true}}})
	nominee := w.pod("nominee", "", 10, disk)
	w.apply(cluster.PodNominated{ID: nominee, Node: "n0"})
	id := w.pod("p", "", 0, disk)
	s := SubjectOf(&w.st.Pod(id).Pod)
	f, _ := e.Filter(w.st, s, everything(w.st))
	got, ok := e.Capacity(w.st, s, 10)
	if !ok || got.Pods != 0 || f.FeasibleCount != 0 {
		t.Errorf("there is room for %d, and %d nodes are feasible, want none", got.Pods, f.FeasibleCount)
	}
}
