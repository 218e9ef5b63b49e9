package pending

import (
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// What brings back a pod that extenders have refused is what kube-scheduler calls an event of pods with a node, of nodes, or of what volumes are made of: also if it came
// between what extenders were asked about and the end of the attempt.
func TestAPodThatWaitsForAnythingWakesByWhatKubeSchedulerCallsAnEvent(t *testing.T) {
	other := cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "other", Name: "other", Created: 1}}
	running := cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "other", Name: "other", Created: 1, NodeName: "n1"}}
	absent := cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "other", Name: "other", Created: 1, NodeName: "n2"}}
	nominated := cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "other", Name: "other", Created: 1, Nominated: "n1"}}
	for name, c := range map[string]struct {
		before, delta cluster.Delta
		wakes         bool
	}{
		"a pod has come that waits too":     {nil, other, false},
		"it is placed, and not bound yet":   {other, cluster.PodAssumed{ID: 1, Node: 0, Attempt: 1}, false},
		"a pod runs":                        {nil, running, true},
		"a pod that ran is gone":            {running, cluster.PodRemoved{ID: 1}, true},
		"a pod that waited is gone":         {other, cluster.PodRemoved{ID: 1}, false},
		"one that was nominated is gone":    {nominated, cluster.PodRemoved{ID: 1}, true},
		"one of no node that is known":      {absent, cluster.PodRemoved{ID: 1}, true},
		"a node has changed":                {nil, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(101)}}, true},
		"a node is gone":                    {nil, cluster.NodeRemoved{Index: 0}, true},
		"what extenders read of a node":     {nil, cluster.NodeTouched{Index: 0}, true},
		"a volume has come":                 {nil, cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: "v"}}, true},
		"a budget has come":                 {nil, cluster.ObjectSet{Object: &cluster.Budget{Namespace: "n", Name: "b"}}, false},
		"a namespace has come":              {nil, cluster.NamespaceSet{Name: "n"}, false},
		"what the pod itself asks for":      {cluster.ClassDefined{ID: 1, Spec: cpuClass(600)}, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Created: time.Unix(1000, 0).UnixNano(), Class: 1}}, true},
		"a pod of a node that there is not": {nil, absent, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			diagnosis := func(st *cluster.State) Diagnosis {
				return Diagnosis{Wake: WhenAnything, Version: st.Version(), Verdicts: []engine.VerdictCount{{Plugin: "Extender", Reason: "no", Count: 1}}}
			}
			for _, when := range []string{"after the attempt", "amid it"} {
				q, st, a := onePod(t, now)
				if c.before != nil {
					apply(t, q, st, now, c.before)
				}
				d := diagnosis(st)
				if when == "amid it" {
					apply(t, q, st, now, c.delta)
					q.Reject(now, st, a, d)
				} else {
					q.Reject(now, st, a, d)
					if got := place(t, q); got != Unschedulable {
						t.Fatalf("the pod is %v, want unschedulable", got)
					}
					q.Recheck(now, st)
					apply(t, q, st, now, c.delta)
					q.Recheck(now, st)
				}
				want := Unschedulable
				if c.wakes {
					want = Backoff
				}
				if got := place(t, q); got != want {
					t.Errorf("%s, the pod is %v, want %v", when, got, want)
				}
			}
		})
	}
}

// A pod that extenders are asked about is in flight, and no other shard waits for it.
func TestAPodThatIsLeftInFlightIsNoFloor(t *testing.T) {
	now := time.Unix(1000, 0)
	q, _, a := onePod(t, now)
	if _, ok := q.PriorityFloor(); !ok {
		t.Fatal("others do not wait for a pod that is in flight")
	}
	at, ok := q.Leave(a)
	if !ok || !q.Runs(a) || place(t, q) != InFlight {
		t.Errorf("left: %v, running: %v, %v", ok, q.Runs(a), place(t, q))
	}
	if floor, ok := q.PriorityFloor(); ok {
		t.Errorf("others wait for priority %d", floor)
	}
	if at.Compare(at) != 0 {
		t.Error("a pod is not where it is")
	}
	q.Retry(now, a)
	if _, ok := q.Leave(a); ok || q.Runs(a) || place(t, q) != Active {
		t.Errorf("an attempt that is over: left %v, running %v, %v", ok, q.Runs(a), place(t, q))
	}
}
