package pending

import (
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// refused is that an attempt finds no node, and that nothing but a change of the pod can bring it back.
func refused(st *cluster.State) Diagnosis {
	return Diagnosis{Wake: WhenChanged, Version: st.Version(), Verdicts: []engine.VerdictCount{{Plugin: "Plugin", Reason: "no", Count: 1}}}
}

// A plugin makes a pod active that is unschedulable or backs off, and one whose attempt is running comes back if that places nothing.
func TestAPluginActivatesAPod(t *testing.T) {
	now := time.Unix(1000, 0)
	activated := cluster.PodActivated{ID: 0}
	for name, c := range map[string]struct {
		before func(*Queue, *cluster.State, Attempt)
		want   Place
	}{
		"it is unschedulable": {func(q *Queue, st *cluster.State, a Attempt) { q.Reject(now, st, a, refused(st)) }, Active},
		"it has failed":       {func(q *Queue, _ *cluster.State, a Attempt) { q.Fail(now, a, "broken") }, Active},
		"it is active":        {func(q *Queue, _ *cluster.State, a Attempt) { q.Retry(now, a) }, Active},
		"it is in flight":     {func(*Queue, *cluster.State, Attempt) {}, InFlight},
		"it has gates": {func(q *Queue, st *cluster.State, _ Attempt) {
			apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Gates: []string{"g"}}})
		}, Gated},
		"others are evicted for it": {func(q *Queue, st *cluster.State, a Attempt) {
			q.Reject(now, st, a, refused(st))
			apply(t, q, st, now,
				cluster.PodSet{ID: 2, Pod: cluster.Pod{UID: "victim", Name: "victim", NodeName: "n1", Priority: -1}},
				cluster.PreemptionStarted{ID: 0, Node: 0, Victims: []cluster.PodID{2}})
		}, Unschedulable},
	} {
		t.Run(name, func(t *testing.T) {
			q, st, a := onePod(t, now)
			c.before(q, st, a)
			apply(t, q, st, now, activated)
			if got := place(t, q); got != c.want {
				t.Errorf("it is %v, want %v", got, c.want)
			}
		})
	}
	for _, delta := range []cluster.PodActivated{activated, {ID: 0, AfterBackoff: true}} {
		t.Run(fmt.Sprintf("others are evicted for it, and that ends, %v", delta), func(t *testing.T) {
			q, st, a := onePod(t, now)
			q.Reject(now, st, a, refused(st))
			apply(t, q, st, now,
				cluster.PodSet{ID: 2, Pod: cluster.Pod{UID: "victim", Name: "victim", NodeName: "n1", Priority: -1}},
				cluster.PreemptionStarted{ID: 0, Node: 0, Victims: []cluster.PodID{2}}, delta, cluster.PreemptionEnded{ID: 0, Spared: []cluster.PodID{2}})
			q.Recheck(now, st)
			if got := place(t, q); got != Backoff {
				t.Errorf("it is %v", got)
			}
		})
	}
	t.Run("amid its attempt", func(t *testing.T) {
		q, st, a := onePod(t, now)
		apply(t, q, st, now, activated)
		q.Reject(now, st, a, refused(st))
		if got := place(t, q); got != Backoff {
			t.Errorf("it is %v", got)
		}
	})
	t.Run("before its attempt", func(t *testing.T) {
		q, st, a := onePod(t, now)
		q.Retry(now, a)
		apply(t, q, st, now, activated)
		a = pop(t, q, now)
		q.Reject(now, st, a, refused(st))
		if got := place(t, q); got != Unschedulable {
			t.Errorf("it is %v", got)
		}
	})
}

// A pod that a plugin activates again and again is tried once more at once, and then no more often than its backoff has it.
func TestAPodThatAPluginActivatesWithoutAnEndBacksOff(t *testing.T) {
	start := time.Unix(1000, 0)
	now := start
	q, st, a := onePod(t, now)
	q.Reject(now, st, a, refused(st))
	var tried []string
	for ; now.Before(start.Add(20 * time.Second)); now = now.Add(50 * time.Millisecond) {
		apply(t, q, st, now, cluster.PodActivated{ID: 0})
		for _, a := range q.Pop(now, 1) {
			if len(tried)%2 == 1 {
				apply(t, q, st, now, cluster.PodActivated{ID: 0})
			}
			tried = append(tried, now.Sub(start).String())
			q.Reject(now, st, a, refused(st))
		}
	}
	if diff := gocmp.Diff([]string{"0s", "2s", "6s", "14s"}, tried); diff != "" { // backoffs are 2 s, 4 s, 8 s
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
}

// A plugin that knows of an event brings a pod back as any event does: with its backoff, also if its attempt was running. What it says of nobody concerns those that wait for anything.
func TestAPluginWakesAPod(t *testing.T) {
	now := time.Unix(1000, 0)
	woken, all := cluster.PodActivated{ID: 0, AfterBackoff: true}, cluster.PodActivated{ID: cluster.NoPod}
	for name, c := range map[string]struct {
		delta  cluster.PodActivated
		wake   Wake
		during bool
		want   Place
	}{
		"it":                        {woken, WhenChanged, false, Backoff},
		"it, amid its attempt":      {woken, WhenChanged, true, Backoff},
		"all":                       {all, WhenAnything, false, Backoff},
		"all, amid its attempt":     {all, WhenAnything, true, Backoff},
		"all, and it is not theirs": {all, WhenChanged, false, Unschedulable},
	} {
		t.Run(name, func(t *testing.T) {
			q, st, a := onePod(t, now)
			d := refused(st)
			d.Wake = c.wake
			if c.during {
				apply(t, q, st, now, c.delta)
			}
			q.Reject(now, st, a, d)
			if !c.during {
				q.Recheck(now, st)
				apply(t, q, st, now, c.delta)
				q.Recheck(now, st)
			}
			if got := place(t, q); got != c.want {
				t.Errorf("it is %v, want %v", got, c.want)
			}
		})
	}
}

// An attempt that is made by what was said before the last one says that the pod was to be tried again meanwhile: who rejects it by that then has it come back.
func TestAnAttemptKnowsThatAPluginWantedThePodTriedSinceTheLast(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, delta := range []cluster.PodActivated{{ID: 0}, {ID: 0, AfterBackoff: true}} {
		for _, inFlight := range []bool{true, false} {
			q, st, a := onePod(t, now)
			asked := st.Version()
			if a.Again {
				t.Error("nothing has happened yet")
			}
			if inFlight {
				apply(t, q, st, now, delta)
			}
			q.Retry(now, a)
			if !inFlight {
				apply(t, q, st, now, delta)
			}
			if a = pop(t, q, now); !a.Again {
				t.Errorf("%+v, in flight %v: the attempt does not know", delta, inFlight)
			}
			d := refused(st)
			d.Wake, d.Version = WhenAnything, cluster.Version{}
			q.Reject(now, st, a, d)
			if got := place(t, q); got != Backoff {
				t.Errorf("%+v, in flight %v: it is %v, by what was said as of %v", delta, inFlight, got, asked)
			}
		}
	}
}
