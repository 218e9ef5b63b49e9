package gateway

import (
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestRatesCountTheLastSecondsOnly(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRates(func() time.Time { return now })
	want := func(seconds int64, arrived, placed int32) {
		t.Helper()
		if a, p := r.within(seconds); a != arrived || p != placed {
			t.Errorf("at %d, within %d s: %d arrived, %d placed, want %d, %d", now.Unix(), seconds, a, p, arrived, placed)
		}
	}
	for range 3 {
		r.add(&r.arrived)
	}
	r.add(&r.placed)
	want(10, 3, 1)
	now = now.Add(9 * time.Second)
	r.add(&r.placed)
	want(10, 3, 2)
	want(1, 0, 1)
	now = now.Add(time.Second) // the first second is the eleventh now
	want(10, 0, 1)
	want(60, 3, 2)
	now = now.Add(50 * time.Second)
	want(60, 0, 1)
	now = now.Add(time.Hour)
	want(60, 0, 0)
	now = now.Add(-time.Minute) // a clock that was set back
	r.add(&r.arrived)
	now = now.Add(time.Minute)
	want(60, 0, 0)
}

func TestRatesSeeWhatPodsAreAndWhatBecomesOfThem(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRates(func() time.Time { return now })
	st := cluster.New(cluster.Version{Epoch: 1})
	apply := func(d cluster.Delta) {
		t.Helper()
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
		r.Applied(st, d)
	}
	apply(cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{SchedulerName: "berth"}})
	apply(cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n"}})
	waiting := cluster.Pod{UID: "a", Namespace: "default", Name: "a", Class: 1}
	apply(cluster.PodSet{ID: 0, Pod: waiting})
	waiting.Priority = 7
	apply(cluster.PodSet{ID: 0, Pod: waiting}) // it changes, but does not come again
	apply(cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "b", Namespace: "default", Name: "b", Class: 1, NodeName: "n"}})
	apply(cluster.PodAssumed{ID: 0, Node: 0, Attempt: 1})
	apply(cluster.PodBound{ID: 0})
	if arrived, placed := r.within(10); arrived != 1 || placed != 1 {
		t.Errorf("%d arrived, %d placed, want 1 and 1: the second pod came bound", arrived, placed)
	}
}
