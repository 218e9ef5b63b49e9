package pending

import (
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// onePod returns a queue with one pod of 500m CPU, popped, and a node that is too small for it.
func onePod(t *testing.T, now time.Time) (*Queue, *cluster.State, Attempt) {
	t.Helper()
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	apply(t, q, st, now,
		settings(1),
		cluster.ClassDefined{ID: 0, Spec: cpuClass(500)},
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(100)}},
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Created: now.UnixNano()}})
	return q, st, pop(t, q, now)
}

func apply(t testing.TB, q *Queue, st *cluster.State, now time.Time, deltas ...cluster.Delta) {
	t.Helper()
	for _, d := range deltas {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
		q.Apply(now, st, d)
	}
}

func pop(t *testing.T, q *Queue, now time.Time) Attempt {
	t.Helper()
	batch := q.Pop(now, 1)
	if len(batch) != 1 {
		t.Fatalf("Pop at %v returned %d pods, want 1", now, len(batch))
	}
	return batch[0]
}

func place(t *testing.T, q *Queue) Place {
	t.Helper()
	e, ok := q.Entry(0)
	if !ok {
		t.Fatal("the pod is not in the queue")
	}
	return e.Place
}

func TestErrorBackoffDoublesToTenSecondsInWholeSeconds(t *testing.T) {
	start := time.Unix(1000, 300e6) // failing 0.3 s into a second
	q, _, a := onePod(t, start)
	var waits []string
	now := start
	for range 6 {
		q.Fail(now, a, "broken")
		failed := now
		for len(q.Pop(now, 1)) == 0 {
			now = now.Add(100 * time.Millisecond)
		}
		waits = append(waits, now.Sub(failed).String())
		e, _ := q.Entry(0)
		a = Attempt{ID: 0, UID: "u", Number: e.Attempts}
		now = now.Add(300 * time.Millisecond) // into the next second again
	}
	// The expiry is cut to the second and has to be over: 1.3 → 1, over at 2.
	want := []string{"1.7s", "2.7s", "4.7s", "8.7s", "10.7s", "10.7s"}
	if diff := gocmp.Diff(want, waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
}

func TestBackoffsAreThoseOfTheSettings(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st, _ := onePod(t, now)
	set := settings(1)
	set.Settings.InitialBackoffSeconds, set.Settings.MaxBackoffSeconds = 3, 7
	apply(t, q, st, now, set)
	a := pop(t, q, now)
	for _, want := range []time.Duration{3, 6, 7, 7} {
		q.Fail(now, a, "broken")
		e, _ := q.Entry(0)
		if until := now.Add((want + 1) * time.Second); !e.BackoffUntil.Equal(until) {
			t.Errorf("backoff until %v, want %v: %d s, and the second that has begun", e.BackoffUntil, until, want)
		}
		now = now.Add(time.Minute)
		a = pop(t, q, now)
	}
}

func TestNextSaysWhenAnErrorBackoffEnds(t *testing.T) {
	now := time.Unix(1000, 0)
	q, _, a := onePod(t, now)
	if _, ok := q.Next(); ok {
		t.Error("Next says that time alone brings a pod that is in flight")
	}
	q.Fail(now, a, "broken")
	at, ok := q.Next()
	if !ok || !at.Equal(time.Unix(1002, 0)) {
		t.Fatalf("Next = %v, %v; want 1002 s", at, ok)
	}
	if got := q.Pop(at.Add(-time.Millisecond), 1); got != nil {
		t.Errorf("Pop before that returned %v", got)
	}
	pop(t, q, at)
}

func TestSuccessfulAttemptBetweenErrorsResetsTheErrorBackoff(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st, a := onePod(t, now)
	for range 3 {
		q.Fail(now, a, "broken")
		now = now.Add(time.Minute)
		a = pop(t, q, now)
	}
	q.Reject(now, st, a, Diagnosis{Version: st.Version()})
	apply(t, q, st, now, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(1000)}})
	q.Recheck(now, st)
	e, _ := q.Entry(0)
	if want := now.Add(2 * time.Second); e.Place != Backoff || !e.BackoffUntil.Equal(want) {
		t.Errorf("%v until %v, want backoff until %v: one failure, no error", e.Place, e.BackoffUntil, want)
	}
}

func TestUnsupportedPodIsWokenByAnotherClassOnly(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st, a := onePod(t, now)
	q.Reject(now, st, a, Diagnosis{Version: st.Version(), Wake: WhenChanged})
	apply(t, q, st, now, cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n2", Allocatable: cpu(1000)}})
	q.Recheck(now, st)
	if got := place(t, q); got != Unschedulable {
		t.Fatalf("after a node came: %v, want unschedulable", got)
	}
	apply(t, q, st, now,
		cluster.ClassDefined{ID: 1, Spec: cpuClass(200)},
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Class: 1}})
	if got := place(t, q); got != Backoff {
		t.Errorf("after its class changed: %v, want backoff", got)
	}
}

func TestPodThatIsUnschedulableForTooLongIsTriedAgain(t *testing.T) {
	for _, c := range []struct {
		seconds int64
		want    time.Duration
	}{{0, 5 * time.Minute}, {60, time.Minute}, {3600, time.Hour}} {
		for name, wake := range map[string]Wake{"when it is feasible": WhenFeasible, "when there is a node": WhenAnyNode, "when it changes": WhenChanged} {
			t.Run(fmt.Sprintf("%v, %s", c.want, name), func(t *testing.T) {
				now := time.Unix(1000, 0)
				q, st, _ := onePod(t, now)
				set := settings(1)
				set.Settings.MaxUnschedulableSeconds = c.seconds
				apply(t, q, st, now, set, cluster.NodeRemoved{Index: 0})
				q.Reject(now, st, pop(t, q, now), Diagnosis{Version: st.Version(), Wake: wake})
				at, ok := q.Next()
				if !ok || at.Sub(now).Round(time.Second) != c.want {
					t.Fatalf("Next is %v later, %v; want %v", at.Sub(now), ok, c.want)
				}
				q.Recheck(now.Add(c.want), st)
				if got := place(t, q); got != Unschedulable {
					t.Errorf("after %v: %v, want unschedulable: it has to be longer", c.want, got)
				}
				q.Recheck(at, st)
				if got := place(t, q); got != Active {
					t.Errorf("at the time that Next said: %v, want active", got)
				}
			})
		}
	}
}

// scheduled is an observer that counts the pods that are scheduled, and those that the flush has rescued.
type scheduled struct{ all, flushed int }

func (s *scheduled) Incoming(*cluster.Pod, Place, string) {}

func (s *scheduled) Scheduled(_ int32, _ time.Duration, flushed bool) {
	s.all++
	if flushed {
		s.flushed++
	}
}

func (s *scheduled) Unresolved() {}

func TestOnlyThePodWhoseLastAttemptTheFlushBroughtCountsAsFlushed(t *testing.T) {
	for name, c := range map[string]struct {
		again bool // a failed attempt after the flush
		bound cluster.Delta
		want  scheduled
	}{
		"its next attempt placed it": {false, cluster.PodBound{ID: 0}, scheduled{1, 1}},
		"the source said so first":   {false, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", NodeName: "n1"}}, scheduled{1, 1}},
		"a later one did":            {true, cluster.PodBound{ID: 0}, scheduled{1, 0}},
		"it went away":               {false, cluster.PodRemoved{ID: 0}, scheduled{}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			q, st, a := onePod(t, now)
			var got scheduled
			q.Observe(&got)
			q.Reject(now, st, a, Diagnosis{Version: st.Version()})
			now = now.Add(time.Hour)
			q.Recheck(now, st)
			a = pop(t, q, now)
			if c.again {
				q.Reject(now, st, a, Diagnosis{Version: st.Version()})
				apply(t, q, st, now, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(1000)}})
				q.Recheck(now, st)
				a = pop(t, q, now)
			}
			apply(t, q, st, now, cluster.PodAssumed{ID: 0, Node: 0, Attempt: a.Number}, c.bound)
			if got != c.want {
				t.Errorf("%d scheduled, %d thanks to the flush; want %d and %d", got.all, got.flushed, c.want.all, c.want.flushed)
			}
		})
	}
}

func TestPodThatIsBoundByOthersIsNotCountedAsScheduled(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st, _ := onePod(t, now)
	var got scheduled
	q.Observe(&got)
	apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", NodeName: "n1"}})
	if got.all != 0 {
		t.Errorf("%d are counted", got.all)
	}
}

func TestPodThatOthersAreEvictedForIsHeldBackAfterARebuildToo(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st, a := onePod(t, now)
	apply(t, q, st, now,
		cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "victim", NodeName: "n1", Priority: -1}},
		cluster.PreemptionStarted{ID: 0, Node: 0, Victims: []cluster.PodID{1}})
	q.Reject(now, st, a, Diagnosis{Version: st.Version()})
	q = NewQueue(0, newCPUJudge())
	q.Reset(now, st)
	if got := place(t, q); got != Unschedulable {
		t.Fatalf("rebuilt: %v, want unschedulable", got)
	}
	if _, ok := q.Next(); ok {
		t.Error("it is to be flushed")
	}
	// Whatever it was unschedulable for is not known any more.
	apply(t, q, st, now, cluster.PreemptionEnded{ID: 0})
	q.Recheck(now, st)
	if got := place(t, q); got != Active {
		t.Errorf("when the evictions were asked for: %v, want active", got)
	}
}

func TestANominatedPodIsTriedAgainWhenAnothersVictimIsToStay(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st, a := onePod(t, now)
	apply(t, q, st, now,
		cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "victim", NodeName: "n1", Priority: -1}},
		cluster.PodSet{ID: 2, Pod: cluster.Pod{UID: "leaves", NodeName: "n1", Priority: -1}},
		cluster.PodNominated{ID: 0, Node: "n1"},
		cluster.PodSet{ID: 3, Pod: cluster.Pod{UID: "preemptor", Name: "preemptor", Created: now.UnixNano() + 1}},
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(600)}}, // enough for it, but for them
		cluster.PreemptionStarted{ID: 3, Node: 0, Victims: []cluster.PodID{1, 2}})
	q.Reject(now, st, a, Diagnosis{Version: st.Version()})
	for _, step := range []struct {
		delta cluster.Delta
		want  Place
	}{
		{cluster.PreemptionEnded{ID: cluster.NoPod, Spared: []cluster.PodID{1}}, Unschedulable}, // one still leaves
		{cluster.PreemptionEnded{ID: 3, Failed: true, Spared: []cluster.PodID{2}}, Backoff},
	} {
		apply(t, q, st, now, step.delta)
		q.Recheck(now, st)
		if got := place(t, q); got != step.want {
			t.Errorf("behind %+v it is %v, want %v", step.delta, got, step.want)
		}
	}
}

func TestPodOfANameThatIsYieldedIsHeldBackUntilItIsNotAnyMore(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st, _ := onePod(t, now)
	// Another one waits, a third has been placed, and a fourth is of another name.
	other := cpuClass(500)
	other.SchedulerName = "other"
	twoNames := settings(1)
	twoNames.Settings.Profiles = append(twoNames.Settings.Profiles, engine.DefaultProfile("other"))
	apply(t, q, st, now,
		cluster.ClassDefined{ID: 1, Spec: other},
		cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "u1", Name: "p1", Created: now.UnixNano() + 1}},
		cluster.PodSet{ID: 2, Pod: cluster.Pod{UID: "u2", Name: "p2", Created: now.UnixNano() + 2}},
		cluster.PodAssumed{ID: 2, Node: 0, Attempt: 1},
		twoNames)
	apply(t, q, st, now, cluster.PodSet{ID: 3, Pod: cluster.Pod{UID: "u3", Name: "p3", Class: 1, Created: now.UnixNano() + 3}})
	a := pop(t, q, now) // the settings were others: it is active again
	where := func() string {
		text := ""
		for id := range cluster.PodID(4) {
			e, ok := q.Entry(id)
			if !ok {
				text += "- "
				continue
			}
			text += e.Place.String() + " "
		}
		return text
	}
	is := func(want string) {
		t.Helper()
		if got := where(); got != want {
			t.Errorf("the pods are %s, want %s", got, want)
		}
	}
	is("in_flight active - active ")

	mine, yields := twoNames, twoNames
	yields.Settings = yields.Settings.Yielding([]string{testScheduler}, "somebody")
	apply(t, q, st, now, yields)
	is("gated gated - active ")
	q.Retry(now, a) // it is void
	if q.Activate(now, 1) {
		t.Error("a pod that is left to another scheduler was made active")
	}
	// One that is new, and one whose bind did not happen, are held back too.
	apply(t, q, st, now, cluster.PodForgotten{ID: 2, Reason: "r"}, cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "u1", Name: "p1", Priority: 7, Created: now.UnixNano() + 1}})
	is("gated gated gated active ")
	if got := q.Pop(now.Add(time.Hour), 10); len(got) != 1 || got[0].ID != 3 {
		t.Errorf("popped %v, want the pod of the other name alone", got)
	}
	for what := range q.Rejected() {
		t.Errorf("%v counts as a rejection", what)
	}
	// A queue that is built anew says the same.
	anew := NewQueue(0, newCPUJudge())
	anew.Reset(now, st)
	if e, _ := anew.Entry(0); e.Place != Gated {
		t.Errorf("after a rebuild the pod is %v", e.Place)
	}

	apply(t, q, st, now.Add(time.Hour), mine)
	is("active active active in_flight ") // the attempt of the other name has gone on
	if got := q.Pop(now.Add(time.Hour), 10); len(got) != 3 || got[0].ID != 1 {
		t.Errorf("popped %v, want three, the one of priority 7 first", got)
	}
}

func TestPodUnschedulableForWantOfNodesWakesWithTheFirstNode(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st, a := onePod(t, now)
	apply(t, q, st, now, cluster.NodeRemoved{Index: 0})
	q.Reject(now, st, a, Diagnosis{Version: st.Version(), Wake: WhenAnyNode})
	if got := place(t, q); got != Unschedulable {
		t.Fatalf("without nodes: %v, want unschedulable", got)
	}
	// It does not fit, but only another attempt can say so.
	apply(t, q, st, now, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(100)}})
	q.Recheck(now, st)
	if got := place(t, q); got != Backoff {
		t.Errorf("with a node: %v, want backoff", got)
	}
}

func TestAwaitedPodIsActiveAgainIfTheLogDoesNotMentionIt(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st, a := onePod(t, now)
	v := st.Version()
	v.Seq += 2
	q.Await(now, a, v, Unresolved)
	for step, want := range []Place{InFlight, Active} {
		apply(t, q, st, now, cluster.NamespaceSet{Name: fmt.Sprint(step)})
		if got := place(t, q); got != want {
			t.Errorf("%d deltas later: %v, want %v", step+1, got, want)
		}
	}
}

func TestPodOfAnotherShardOrSchedulerNeverEnters(t *testing.T) {
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	other := cpuClass(100)
	other.SchedulerName = "other"
	queues := []*Queue{NewQueue(0, newCPUJudge()), NewQueue(1, newCPUJudge())}
	all := []cluster.Delta{settings(2), cluster.ClassDefined{ID: 100, Spec: other}, cluster.PodSet{ID: 100, Pod: cluster.Pod{UID: "other", Class: 100}}}
	for k := range 20 {
		id := cluster.PodID(k)
		all = append(all, cluster.ClassDefined{ID: cluster.ClassID(k), Spec: cpuClass(int64(100 + k))},
			cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint(k), Class: cluster.ClassID(k)}})
	}
	for _, d := range all {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
		for _, q := range queues {
			q.Apply(now, st, d)
		}
	}
	first, second := queues[0].Count(Active), queues[1].Count(Active)
	if first+second != 20 || first == 0 || second == 0 {
		t.Errorf("the shards hold %d and %d pods, want 20 in all and some in each", first, second)
	}
	for _, q := range queues {
		if _, ok := q.Entry(100); ok {
			t.Error("a pod of another scheduler is in the queue")
		}
	}
}

func TestPodWhoseClassChangesShardMovesToTheOtherQueue(t *testing.T) {
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	queues := []*Queue{NewQueue(0, newCPUJudge()), NewQueue(1, newCPUJudge())}
	do := func(d cluster.Delta) {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
		for _, q := range queues {
			q.Apply(now, st, d)
		}
	}
	do(settings(2))
	class := map[int32]cluster.ClassID{} // one of each shard
	for k := range 20 {
		do(cluster.ClassDefined{ID: cluster.ClassID(k), Spec: cpuClass(int64(100 + k))})
		shard, _ := ShardOf(st, &cluster.PodRow{Pod: cluster.Pod{Class: cluster.ClassID(k)}})
		class[shard] = cluster.ClassID(k)
		do(cluster.PodSet{ID: cluster.PodID(k + 1), Pod: cluster.Pod{UID: fmt.Sprint(k), Class: cluster.ClassID(k), NodeName: "elsewhere"}})
	}
	// The binder knows attempts by shard, pod and number: no number comes twice.
	wants := []int32{1, 1, 2, 2, 3}
	for k, shard := range []int32{0, 1, 0, 1, 0} {
		do(cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Class: class[shard]}})
		if _, ok := queues[shard].Entry(0); !ok {
			t.Errorf("the pod is not in shard %d", shard)
		}
		if _, ok := queues[1-shard].Entry(0); ok {
			t.Errorf("the pod is still in shard %d", 1-shard)
		}
		if a := pop(t, queues[shard], now); a.Number != wants[k] {
			t.Errorf("in shard %d it is attempt %d, want %d", shard, a.Number, wants[k])
		}
		queues[1-shard].Reset(now, st)
	}
	do(cluster.PodRemoved{ID: 0})
	for _, q := range queues {
		if len(q.left) > 0 {
			t.Errorf("a pod that is gone is remembered: %v", q.left)
		}
	}
}

// A queue that fell out of the log sees of what happened meanwhile only the state.
func TestAttemptsOfAPodThatLeavesTheShardWithinAGapAreRemembered(t *testing.T) {
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	unseen := func(d cluster.Delta) {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	unseen(settings(2))
	class := map[int32]cluster.ClassID{} // one of each shard
	for k := range 20 {
		unseen(cluster.ClassDefined{ID: cluster.ClassID(k), Spec: cpuClass(int64(100 + k))})
		shard, _ := ShardOf(st, &cluster.PodRow{Pod: cluster.Pod{Class: cluster.ClassID(k)}})
		class[shard] = cluster.ClassID(k)
		unseen(cluster.PodSet{ID: cluster.PodID(k + 1), Pod: cluster.Pod{UID: fmt.Sprint(k), Class: cluster.ClassID(k), NodeName: "elsewhere"}})
	}
	for i, uid := range []string{"moves", "bound", "stays"} {
		unseen(cluster.PodSet{ID: cluster.PodID(100 + i), Pod: cluster.Pod{UID: uid, Class: class[0]}})
	}
	q.Reset(now, st)
	if n := len(q.Pop(now, 10)); n != 3 {
		t.Fatalf("%d pods are tried", n)
	}
	unseen(cluster.PodSet{ID: 100, Pod: cluster.Pod{UID: "moves", Class: class[1]}})
	unseen(cluster.PodSet{ID: 101, Pod: cluster.Pod{UID: "bound", Class: class[0], NodeName: "elsewhere"}})
	for range 2 { // and once more
		q.Reset(now, st)
	}
	if len(q.left) != 1 {
		t.Errorf("remembered of those that are not there: %v", q.left)
	}
	unseen(cluster.PodSet{ID: 100, Pod: cluster.Pod{UID: "moves", Class: class[0]}})
	q.Apply(now, st, cluster.PodSet{ID: 100, Pod: st.Pod(100).Pod})
	for _, a := range q.Pop(now, 10) {
		if a.Number != 2 {
			t.Errorf("%s is tried with number %d, want 2", a.UID, a.Number)
		}
	}
	if len(q.left) != 0 {
		t.Errorf("remembered of those that are not there: %v", q.left)
	}
}

func TestNominationThatEndsByThePodsOwnAttemptIsNoNews(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name    string
		resigns bool
		want    Place
	}{
		{"its own attempt has ended it", true, Unschedulable},
		{"another has", false, Backoff},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, st := rejectedPod(t, now, cpuClass(500), 100, 100)
			apply(t, q, st, now, cluster.PodNominated{ID: 0, Node: "n1"})
			q.Activate(now, 0)
			q.Reject(now, st, pop(t, q, now), Diagnosis{Version: st.Version(), Resigns: c.resigns})
			apply(t, q, st, now, cluster.PodNominated{ID: 0})
			if got := place(t, q); got != c.want {
				t.Errorf("the pod is %v, want %v", got, c.want)
			}
			// The next nomination and its end are another's doing.
			apply(t, q, st, now, cluster.PodNominated{ID: 0, Node: "n2"}, cluster.PodNominated{ID: 0})
			if got := place(t, q); got != Backoff {
				t.Errorf("when another had ended the next nomination: %v, want backoff", got)
			}
		})
	}
}

// The attempt ends the nomination that it began with, if any. What it has found does not speak of another one.
func TestNominationThatComesDuringAnAttemptIsForTheNextOneToJudge(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name    string
		before  string // the pod is nominated to it when the attempt begins
		resigns bool
		during  []cluster.Delta
		want    Place
	}{
		{"a first one", "", true, []cluster.Delta{cluster.PodNominated{ID: 0, Node: "n1"}}, Backoff},
		{"another than before", "n2", true, []cluster.Delta{cluster.PodNominated{ID: 0, Node: "n1"}}, Backoff},
		{"of an attempt that ends none", "", false, []cluster.Delta{cluster.PodNominated{ID: 0, Node: "n1"}}, Unschedulable},
		{"by the preemption that goes on", "", true, []cluster.Delta{
			cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "v", NodeName: "n1", Priority: -1}},
			cluster.PreemptionStarted{ID: 0, Node: 0, Victims: []cluster.PodID{1}},
		}, Unschedulable},
		{"none", "n1", true, nil, Unschedulable},
		{"one that has ended by then", "", true, []cluster.Delta{cluster.PodNominated{ID: 0, Node: "n1"}, cluster.PodNominated{ID: 0}}, Backoff},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, st := rejectedPod(t, now, cpuClass(500), 100, 100)
			if c.before != "" {
				apply(t, q, st, now, cluster.PodNominated{ID: 0, Node: c.before})
			}
			q.Activate(now, 0)
			a := pop(t, q, now)
			apply(t, q, st, now, c.during...)
			q.Reject(now, st, a, Diagnosis{Version: st.Version(), Resigns: c.resigns})
			if got := place(t, q); got != c.want {
				t.Fatalf("the pod is %v, want %v", got, c.want)
			}
			if c.want != Backoff {
				return
			}
			// The next attempt knows of it, and ends it if it has no use for it: that is no news.
			a = pop(t, q, now)
			if a.Nominated != st.Pod(0).Nominated {
				t.Errorf("the next attempt takes the pod to be nominated to %q", a.Nominated)
			}
			q.Reject(now, st, a, Diagnosis{Version: st.Version(), Resigns: true})
			apply(t, q, st, now, cluster.PodNominated{ID: 0})
			if got := place(t, q); got != Unschedulable {
				t.Errorf("after the next attempt the pod is %v", got)
			}
		})
	}
}
