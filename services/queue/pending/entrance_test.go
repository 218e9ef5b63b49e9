package pending

import (
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// guarded are settings with a profile that has a plugin of others at PreEnqueue, and one of another name that has not.
func guarded(shards int32) cluster.SettingsSet {
	s := settings(shards)
	s.Settings.Profiles[0].PreEnqueues = []string{"Doorman"}
	s.Settings.Profiles = append(s.Settings.Profiles, engine.DefaultProfile("unguarded"))
	return s
}

// newPod is a queue with one pod of a profile with a plugin at PreEnqueue, which has just come, and a node that is too small for it.
func newPod(t testing.TB, now time.Time, change ...func(*cluster.Pod)) (*Queue, *cluster.State) {
	t.Helper()
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	pod := cluster.Pod{UID: "u", Name: "p", Created: now.UnixNano()}
	for _, f := range change {
		f(&pod)
	}
	apply(t, q, st, now, guarded(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)},
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(100)}},
		cluster.PodSet{ID: 9, Pod: cluster.Pod{UID: "keeps the class", NodeName: "elsewhere"}}, cluster.PodSet{ID: 0, Pod: pod})
	return q, st
}

// asks returns the only pod that is to be asked about.
func asks(t testing.TB, q *Queue, now time.Time) Entering {
	t.Helper()
	pods := q.Entering(now, 10, nil)
	if len(pods) != 1 {
		t.Fatalf("at %v, %d pods are to be asked about, want 1", now, len(pods))
	}
	return pods[0]
}

// asksNobody fails if somebody is to be asked about.
func asksNobody(t testing.TB, q *Queue, now time.Time) {
	t.Helper()
	if pods := q.Entering(now, 10, nil); len(pods) > 0 || q.Unasked() {
		t.Fatalf("at %v, %d pods are to be asked about", now, len(pods))
	}
}

// comings notes what an observer hears of pods that come.
type comings struct{ all []string }

func (c *comings) Incoming(_ *cluster.Pod, to Place, event string) {
	c.all = append(c.all, to.String()+" "+event)
}
func (*comings) Scheduled(int32, time.Duration, bool) {}
func (*comings) Unresolved()                          {}
func (c *comings) take() (out []string)               { out, c.all = c.all, nil; return out }
func message(t testing.TB, q *Queue) (message string) {
	t.Helper()
	e, _ := q.Entry(0)
	return e.Message
}

// A pod is tried when it has been let in, and asked about once each time that it comes to wait: not as its backoff ends.
func TestAPodIsTriedWhenItIsIn(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newPod(t, now)
	var heard comings
	q.Observe(&heard)
	if got := place(t, q); got != Gated || len(q.Pop(now, 1)) > 0 {
		t.Fatalf("before anybody has been asked it is %v", got)
	}
	x := asks(t, q, now)
	if want := (Entering{UID: "u", Profile: testScheduler, Since: now, First: now, Arrival: 1, number: x.number}); x != want {
		t.Errorf("asks about %+v, want %+v", x, want)
	}
	asksNobody(t, q, now)
	if got := heard.take(); got != nil {
		t.Errorf("an observer has heard %q of a pod of which nobody has said anything", got)
	}
	q.Admit(now, x, SortKey{})
	if got := heard.take(); !slices.Equal(got, []string{"active " + podAdd}) {
		t.Errorf("an observer has heard %q", got)
	}
	a := pop(t, q, now)
	q.Retry(now, a) // nothing is known against it: it has never left the queue
	asksNobody(t, q, now)
	a = pop(t, q, now)
	q.Fail(now, a, "broken")
	if got := place(t, q); got != Gated {
		t.Fatalf("after an error it is %v", got)
	}
	q.Admit(now, asks(t, q, now), SortKey{})
	if got := place(t, q); got != Backoff {
		t.Fatalf("in after an error, it is %v", got)
	}
	now = now.Add(10 * time.Second)
	a = pop(t, q, now) // its backoff is over
	asksNobody(t, q, now)
	q.Reject(now, st, a, refused(st))
	asksNobody(t, q, now)
	apply(t, q, st, now, cluster.PodActivated{ID: 0, AfterBackoff: true})
	x = asks(t, q, now)
	if q.Admit(now, x, SortKey{}); place(t, q) != Backoff {
		t.Fatalf("woken, and in, it is %v", place(t, q))
	}
	now = now.Add(10 * time.Second)
	a = pop(t, q, now)
	q.Reject(now, st, a, refused(st))
	apply(t, q, st, now, cluster.PodActivated{ID: 0})
	q.Admit(now, asks(t, q, now), SortKey{})
	if got := place(t, q); got != Active {
		t.Errorf("activated, and in, it is %v", got)
	}
	apply(t, q, st, now, cluster.PodAssumed{ID: 0, Node: 0, Attempt: 9})
	asksNobody(t, q, now)
	apply(t, q, st, now, cluster.PodForgotten{ID: 0, Reason: "the bind failed"})
	if x = asks(t, q, now); place(t, q) != Gated {
		t.Errorf("when its bind has failed it is %v", place(t, q))
	}
}

// Who keeps a pod out says when it is asked about again; what happens else does not matter, but that it is after a while.
func TestAPodThatIsKeptOutComesBackWhenItsPluginSaysSo(t *testing.T) {
	now := time.Unix(1000, 0)
	wakes := map[string]cluster.Delta{
		"it is woken":                       cluster.PodActivated{ID: 0, AfterBackoff: true},
		"it is activated":                   cluster.PodActivated{ID: 0},
		"nobody knows what has been missed": cluster.PodActivated{ID: cluster.NoPod},
	}
	others := map[string]cluster.Delta{
		"a node has come":     cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n2", Allocatable: cpu(1000)}},
		"the pod has changed": cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Priority: 7, Created: now.UnixNano()}},
	}
	for name, d := range wakes {
		t.Run(name, func(t *testing.T) {
			q, st := newPod(t, now)
			var heard comings
			q.Observe(&heard)
			q.Keep(now, asks(t, q, now), "Doorman", "not yet", true)
			if place(t, q) != Gated || message(t, q) != "gated by plugin Doorman: not yet" || len(heard.take()) != 1 {
				t.Fatalf("it is %v: %s", place(t, q), message(t, q))
			}
			for what, other := range others {
				apply(t, q, st, now, other)
				if q.Recheck(now, st); q.Unasked() {
					t.Fatalf("it is asked about since %s", what)
				}
			}
			apply(t, q, st, now, d)
			q.Keep(now, asks(t, q, now), "Doorman", "still not", true)
			if message(t, q) != "gated by plugin Doorman: still not" || len(heard.take()) != 0 {
				t.Errorf("%s, or it is counted twice", message(t, q))
			}
			asksNobody(t, q, now.Add(longestUnschedulable-time.Second))
			if at, ok := q.NextEntering(); !ok || !at.Equal(now.Add(longestUnschedulable)) {
				t.Errorf("it is asked about again at %v, %v", at, ok)
			}
			q.Admit(now, asks(t, q, now.Add(longestUnschedulable)), SortKey{})
			if got := pop(t, q, now); got.Number != 1 {
				t.Errorf("attempt %d: to be kept out is none", got.Number)
			}
		})
		t.Run(name+" while it is asked about", func(t *testing.T) {
			q, st := newPod(t, now)
			x := asks(t, q, now)
			apply(t, q, st, now, d)
			asksNobody(t, q, now)
			q.Keep(now, x, "Doorman", "not yet", true)
			asks(t, q, now) // what has been said may be of before
		})
	}
}

// A service that does not say when is asked again after a pause that doubles, and when the pod is another one.
func TestAPodIsAskedAboutAgainWhenNobodySaysWhen(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, tt := range []struct {
		name string
		keep func(q *Queue, now time.Time, x Entering)
		want []int
		says string
	}{
		{"kept out", func(q *Queue, now time.Time, x Entering) { q.Keep(now, x, "Doorman", "no", false) }, []int{1, 2, 4, 8, 16, 32, 60, 60}, "gated by plugin Doorman: no"},
		{"unanswered", func(q *Queue, now time.Time, x Entering) { q.Unanswered(now, x, "nobody is there") }, []int{1, 2, 4, 8, 10, 10, 10, 10}, "gated: nobody is there"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := start
			q, st := newPod(t, now)
			var pauses []int
			for range 8 {
				tt.keep(q, now, asks(t, q, now))
				at, _ := q.NextEntering()
				asksNobody(t, q, at.Add(-time.Nanosecond))
				pauses = append(pauses, int(at.Sub(now)/time.Second))
				now = at
			}
			if diff := gocmp.Diff(tt.want, pauses); diff != "" || message(t, q) != tt.says {
				t.Errorf("it says %q, and pauses are (-want +got):\n%s", message(t, q), diff)
			}
			q.Admit(now, asks(t, q, now), SortKey{})
			a := pop(t, q, now)
			q.Fail(now, a, "broken")
			tt.keep(q, now, asks(t, q, now))
			if at, _ := q.NextEntering(); at.Sub(now) != time.Second {
				t.Errorf("when it has come back, the first pause is %v", at.Sub(now))
			}
			apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Priority: 7}})
			x := asks(t, q, now)
			apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Priority: 8}})
			q.Keep(now, x, "Doorman", "as it was", false)
			asks(t, q, now)
		})
	}
}

// What has been said of a pod that is not the same any more, or has come back since, counts for nothing.
func TestAnswersAboutPodsThatAreNotAskedAboutAreVoid(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, change := range map[string]func(q *Queue, st *cluster.State){
		"it has gone": func(q *Queue, st *cluster.State) { apply(t, q, st, now, cluster.PodRemoved{ID: 0}) },
		"another one has come": func(q *Queue, st *cluster.State) {
			apply(t, q, st, now, cluster.PodRemoved{ID: 0}, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "v", Name: "p"}})
		},
		"all is built anew": func(q *Queue, st *cluster.State) { q.Reset(now, st) },
		"it is placed": func(q *Queue, st *cluster.State) {
			apply(t, q, st, now, cluster.PodAssumed{ID: 0, Node: 0, Attempt: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, st := newPod(t, now)
			x := asks(t, q, now)
			change(q, st)
			before, was := q.Entry(0)
			q.Admit(now, x, SortKey{})
			q.Keep(now, x, "Doorman", "no", true)
			q.Unanswered(now, x, "nobody is there")
			if after, is := q.Entry(0); was != is || !gocmp.Equal(before, after) {
				t.Errorf("(-before +after)\n%s", gocmp.Diff(before, after))
			}
		})
	}
}

// Scheduling gates keep a pod out that plugins let in, and the other way round; the pod is asked about again when its gates are gone.
func TestSchedulingGatesAndPluginsBothKeepOut(t *testing.T) {
	now := time.Unix(1000, 0)
	gates := func(p *cluster.Pod) { p.Gates = []string{"g"} }
	without := cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Created: now.UnixNano()}}
	q, st := newPod(t, now, gates)
	if q.Admit(now, asks(t, q, now), SortKey{}); place(t, q) != Gated {
		t.Fatalf("in with gates, it is %v", place(t, q))
	}
	apply(t, q, st, now, without)
	if q.Admit(now, asks(t, q, now), SortKey{}); place(t, q) != Active {
		t.Errorf("without gates, and in, it is %v", place(t, q))
	}

	q, st = newPod(t, now, gates)
	q.Keep(now, asks(t, q, now), "Doorman", "no", true)
	count := func() map[string]int {
		out := make(map[string]int)
		for r, n := range q.Rejected() {
			out[r.Plugin] += n
		}
		return out
	}
	if got := count(); !gocmp.Equal(got, map[string]int{"SchedulingGates": 1}) {
		t.Errorf("with gates, plugins against it are %v", got)
	}
	apply(t, q, st, now, without)
	asksNobody(t, q, now)
	if got := count(); place(t, q) != Gated || !gocmp.Equal(got, map[string]int{"Doorman": 1}) {
		t.Errorf("without gates it is %v, and plugins against it are %v", place(t, q), got)
	}
	apply(t, q, st, now, cluster.PodRemoved{ID: 0})
	if got := count(); len(got) > 0 {
		t.Errorf("when it is gone, plugins against it are %v", got)
	}
}

// Pods of another profile are tried at once, and of two profiles, one whose services hang does not hold up the other.
func TestProfilesAreAskedAboutApart(t *testing.T) {
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	s := guarded(1)
	s.Settings.Profiles[1].PreEnqueues = nil
	s.Settings.Profiles = append(s.Settings.Profiles, engine.DefaultProfile("guarded too"))
	s.Settings.Profiles[2].PreEnqueues = []string{"Doorman"}
	apply(t, q, st, now, s)
	for i, name := range []string{testScheduler, "unguarded", "guarded too"} {
		class := cpuClass(500)
		class.SchedulerName = name
		apply(t, q, st, now, cluster.ClassDefined{ID: cluster.ClassID(i), Spec: class})
	}
	for i := range 12 {
		apply(t, q, st, now, cluster.PodSet{ID: cluster.PodID(i), Pod: cluster.Pod{UID: fmt.Sprint(i), Class: cluster.ClassID(i % 3), Priority: int32(i), Created: now.UnixNano()}})
	}
	if got := q.Pop(now, 100); len(got) != 4 || got[0].UID != "10" {
		t.Errorf("%d pods are tried", len(got))
	}
	uids := func(most int, busy ...string) (out []string) {
		is := make(map[string]bool)
		for _, b := range busy {
			is[b] = true
		}
		for _, x := range q.Entering(now, most, is) {
			out = append(out, x.UID)
		}
		return out
	}
	for _, tt := range []struct {
		most int
		busy []string
		want []string
	}{
		{3, nil, []string{"9", "6", "3"}},
		{10, []string{testScheduler}, []string{"11", "8", "5", "2"}},
		{10, []string{testScheduler, "guarded too"}, nil},
		{10, []string{"guarded too"}, []string{"0"}},
		{10, nil, nil},
	} {
		if diff := gocmp.Diff(tt.want, uids(tt.most, tt.busy...)); diff != "" {
			t.Errorf("while %v are busy (-want +got):\n%s", tt.busy, diff)
		}
	}
}

// However often some that are kept out are woken, the others are asked about too: who has just come first, and then who was asked about longest ago.
func TestPodsThatAreWokenWithoutAnEndLeaveOthersTheirTurn(t *testing.T) {
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	apply(t, q, st, now, guarded(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)})
	const pods, atOnce = 131, 64
	for i := range cluster.PodID(pods) {
		apply(t, q, st, now, cluster.PodSet{ID: i, Pod: cluster.Pod{UID: fmt.Sprint(i), Created: now.UnixNano()}})
	}
	asked := make(map[cluster.PodID]int)
	for range 300 {
		for _, x := range q.Entering(now, atOnce, nil) {
			asked[x.ID]++
			q.Keep(now, x, "Doorman", "no", true)
			apply(t, q, st, now, cluster.PodActivated{ID: x.ID, AfterBackoff: true})
		}
		now = now.Add(time.Second)
	}
	for i := range cluster.PodID(pods) {
		if n := asked[i]; n < 300*atOnce/pods || n > 300*atOnce/pods+1 {
			t.Errorf("pod %d was asked about %d times", i, n)
		}
	}
	apply(t, q, st, now, cluster.PodSet{ID: pods, Pod: cluster.Pod{UID: "new", Priority: -1, Created: now.UnixNano()}})
	if got := q.Entering(now, 1, nil); got[0].UID != "new" {
		t.Errorf("one that has just come waits behind %s", got[0].UID)
	}
}

// One that is let in, fails and comes back has had its turn: who was asked about before it comes first.
func TestAPodThatComesBackIsNotAskedAboutBeforeOthers(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newPod(t, now)
	apply(t, q, st, now, cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "out", Name: "out", Priority: -1, Created: now.UnixNano()}})
	pods := q.Entering(now, 2, nil) // the pod of the higher priority, and then the other one
	q.Keep(now, pods[1], "Doorman", "no", true)
	q.Admit(now, pods[0], SortKey{})
	for range 3 {
		q.Fail(now, pop(t, q, now), "broken")
		apply(t, q, st, now, cluster.PodActivated{ID: 1})
		first := q.Entering(now, 1, nil)
		second := q.Entering(now, 1, nil)
		if len(first) != 1 || len(second) != 1 {
			t.Fatalf("asked about %v and %v", first, second)
		}
		for _, x := range append(first, second...) {
			if x.UID == "u" {
				q.Admit(now, x, SortKey{})
			} else {
				q.Keep(now, x, "Doorman", "no", true)
			}
		}
		if pods[0].UID != first[0].UID { // as they were asked about before
			t.Errorf("asked about %s first", first[0].UID)
		}
		now = now.Add(time.Minute)
	}
	// The other one is woken while it alone was asked about: it comes behind.
	q.Fail(now, pop(t, q, now), "broken")
	q.Admit(now, asks(t, q, now), SortKey{})
	now = now.Add(time.Minute)
	q.Fail(now, pop(t, q, now), "broken")
	apply(t, q, st, now, cluster.PodActivated{ID: 1})
	if got := q.Entering(now, 1, nil); got[0].UID != "out" {
		t.Errorf("%s is asked about again before one that was asked about longer ago", got[0].UID)
	}
}

// A pod for which others are being evicted is asked about when that is over.
func TestAPodThatIsHeldBackIsAskedAboutWhenThatEnds(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newPod(t, now)
	q.Admit(now, asks(t, q, now), SortKey{})
	a := pop(t, q, now)
	apply(t, q, st, now, cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "victim", NodeName: "n1", Priority: -1}}, cluster.PreemptionStarted{ID: 0, Node: 0, Victims: []cluster.PodID{1}})
	q.Reject(now, st, a, refused(st))
	asksNobody(t, q, now)
	q.Reset(now, st)
	if asksNobody(t, q, now); place(t, q) != Unschedulable {
		t.Errorf("it is %v", place(t, q))
	}
	apply(t, q, st, now, cluster.PreemptionEnded{ID: 0, Failed: true})
	q.Recheck(now, st)
	if q.Admit(now, asks(t, q, now), SortKey{}); place(t, q) != Active {
		t.Errorf("and then, in, it is %v", place(t, q))
	}
}

// A name that is left to another scheduler has none of its pods asked about that come meanwhile.
func TestPodsOfAnotherSchedulerAreNotAskedAbout(t *testing.T) {
	now := time.Unix(1000, 0)
	yielding := cluster.SettingsSet{Settings: guarded(1).Settings.Yielding([]string{testScheduler}, "another")}
	q, st := newPod(t, now)
	q.Admit(now, asks(t, q, now), SortKey{})
	apply(t, q, st, now, yielding)
	if asksNobody(t, q, now); place(t, q) != Gated {
		t.Fatalf("it is %v", place(t, q))
	}
	apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Priority: 3}})
	asksNobody(t, q, now)
	apply(t, q, st, now, guarded(1))
	if q.Admit(now, asks(t, q, now), SortKey{}); place(t, q) != Active {
		t.Errorf("when the name is Berth's again, and it is in, it is %v", place(t, q))
	}
	// One that is kept out stays so.
	q, st = newPod(t, now)
	q.Keep(now, asks(t, q, now), "Doorman", "no", true)
	apply(t, q, st, now, yielding, guarded(1))
	if asksNobody(t, q, now); place(t, q) != Gated {
		t.Errorf("it was kept out, and is %v", place(t, q))
	}
}

// Whatever happens in whatever order, a pod is tried only if it has been let in since it came to wait, and none is forgotten: who is out is asked about, or will be.
func TestNobodyIsTriedWhoIsNotInAndNobodyIsForgotten(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := time.Unix(1000, 0)
		st := cluster.New(cluster.Version{Epoch: 1})
		q := NewQueue(0, newCPUJudge())
		fold := func(deltas ...cluster.Delta) {
			for _, d := range deltas {
				if err := st.Apply(d); err != nil {
					rt.Fatal(err)
				}
				q.Apply(now, st, d)
			}
		}
		fold(guarded(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)}, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(100)}},
			cluster.PodSet{ID: 9, Pod: cluster.Pod{UID: "keeps the class", NodeName: "elsewhere"}}, cluster.PodSet{ID: 8, Pod: cluster.Pod{UID: "victim", NodeName: "n1", Priority: -1}})
		in := make(map[string]bool) // by uid: let in since it came to wait
		var asked []Entering
		var running []Attempt
		born := 0
		pick := func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(rt, what) }
		pod := func() cluster.PodID { return cluster.PodID(pick(4, "pod")) }
		set := func(id cluster.PodID) {
			p := cluster.Pod{UID: fmt.Sprint("u", born), Created: now.UnixNano()}
			if row := st.Pod(id); row == nil {
				born++
			} else if p = row.Pod; row.Placed() {
				return
			}
			p.Priority = int32(pick(3, "priority"))
			p.Gates = nil
			if pick(4, "gates") == 0 {
				p.Gates = []string{"g"}
			}
			fold(cluster.PodSet{ID: id, Pod: p})
		}
		answer := func(say func(x Entering)) {
			if len(asked) > 0 {
				k := pick(len(asked), "question")
				x := asked[k]
				asked = slices.Delete(asked, k, k+1)
				say(x)
			}
		}
		outcome := func(say func(a Attempt)) {
			if len(running) > 0 {
				k := pick(len(running), "attempt")
				a := running[k]
				running = slices.Delete(running, k, k+1)
				say(a)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"set": func(*rapid.T) { set(pod()) },
			"remove": func(*rapid.T) {
				if id := pod(); st.Pod(id) != nil {
					delete(in, st.Pod(id).UID)
					fold(cluster.PodRemoved{ID: id})
				}
			},
			"ask": func(*rapid.T) { asked = append(asked, q.Entering(now, 1+pick(3, "most"), nil)...) },
			"admit": func(*rapid.T) {
				answer(func(x Entering) {
					if q.isAsked(x) != nil {
						in[x.UID] = true
					}
					q.Admit(now, x, SortKey{})
				})
			},
			"keep":       func(*rapid.T) { answer(func(x Entering) { q.Keep(now, x, "Doorman", "no", pick(2, "told") == 0) }) },
			"unanswered": func(*rapid.T) { answer(func(x Entering) { q.Unanswered(now, x, "nobody") }) },
			"wake":       func(*rapid.T) { activate(st, fold, pod(), true) },
			"activate":   func(*rapid.T) { activate(st, fold, pod(), false) },
			"all":        func(*rapid.T) { fold(cluster.PodActivated{ID: cluster.NoPod}) },
			"pop": func(*rapid.T) {
				for _, a := range q.Pop(now, 2) {
					if !in[a.UID] {
						rt.Fatalf("%s is tried, and is not in", a.UID)
					}
					running = append(running, a)
				}
			},
			"retry": func(*rapid.T) { outcome(func(a Attempt) { q.Retry(now, a) }) },
			"fail": func(*rapid.T) {
				outcome(func(a Attempt) {
					if q.Runs(a) {
						delete(in, a.UID)
					}
					q.Fail(now, a, "broken")
				})
			},
			"reject": func(*rapid.T) {
				outcome(func(a Attempt) {
					if q.Runs(a) {
						delete(in, a.UID)
					}
					q.Reject(now, st, a, refused(st))
				})
			},
			"place": func(*rapid.T) {
				outcome(func(a Attempt) {
					if q.Runs(a) {
						fold(cluster.PodAssumed{ID: a.ID, Node: 0, Attempt: a.Number})
					}
				})
			},
			"forget": func(*rapid.T) {
				if id := pod(); st.Pod(id) != nil && st.Pod(id).Phase == cluster.Assumed {
					delete(in, st.Pod(id).UID)
					fold(cluster.PodForgotten{ID: id, Reason: "the bind failed"})
				}
			},
			"preempt": func(*rapid.T) {
				if row := st.Pod(pod()); row != nil && !row.Placed() && !row.Preempting && !st.Pod(8).Victim {
					id, _ := st.PodByUID(row.UID)
					fold(cluster.PreemptionStarted{ID: id, Node: 0, Victims: []cluster.PodID{8}})
				}
			},
			"preempted": func(*rapid.T) {
				for id, row := range st.Pods() {
					if row.Preempting {
						if failed := pick(2, "failed") == 0; !failed {
							fold(cluster.PreemptionEnded{ID: id, Spared: []cluster.PodID{8}})
						} else {
							fold(cluster.PreemptionEnded{ID: id, Spared: []cluster.PodID{8}, Failed: true})
						}
						break
					}
				}
			},
			"yield": func(*rapid.T) {
				if pick(2, "yields") == 0 {
					fold(cluster.SettingsSet{Settings: guarded(1).Settings.Yielding([]string{testScheduler}, "another")})
				} else {
					fold(guarded(1))
				}
			},
			"rebuild": func(*rapid.T) { clear(in); q.Reset(now, st) },
			"later":   func(*rapid.T) { now = now.Add(time.Duration(pick(20, "seconds")) * time.Second); q.Recheck(now, st) },
			"": func(*rapid.T) {
				questions := make(map[string]bool)
				for _, x := range asked {
					if q.isAsked(x) != nil {
						questions[x.UID] = true
					}
				}
				for _, e := range q.pods {
					is := e.entrance
					switch {
					case e.place != Gated:
						if is.door != doorOpen {
							rt.Fatalf("%s is %v, and its door %v", e.pod.UID, e.place, is.door)
						}
					case is.door == doorOpen && len(e.pod.Gates) == 0 && !e.yielded:
						rt.Fatalf("%s is in, and gated", e.pod.UID)
					case is.door == doorAsked && !questions[e.pod.UID]:
						rt.Fatalf("%s is asked about, and nobody has the question", e.pod.UID)
					}
				}
				unasked, closed := 0, 0
				for _, e := range q.pods {
					if e.place == Gated && e.entrance.door == doorUnasked {
						unasked++
					}
					if e.place == Gated && e.entrance.door == doorClosed {
						closed++
					}
				}
				if got := q.enteringOf(testScheduler).Len(); got != unasked || q.Unasked() != (unasked+q.recalled.Len() > 0) || q.closed.Len()+q.recalled.Len() != closed {
					rt.Fatalf("%d are to be asked about, want %d; %d are out, want %d", got, unasked, q.closed.Len()+q.recalled.Len(), closed)
				}
			},
		})
		// All questions are answered, and time passes: then all are in that have no gates.
		fold(guarded(1))
		for range 3 {
			for _, x := range append(asked, q.Entering(now, 100, nil)...) {
				q.Admit(now, x, SortKey{})
			}
			asked, now = nil, now.Add(time.Hour)
		}
		for _, e := range q.pods {
			if e.place == Gated && len(e.pod.Gates) == 0 {
				rt.Fatalf("%s is forgotten: its door is %v", e.pod.UID, e.entrance.door)
			}
		}
	})
}

func activate(st *cluster.State, fold func(...cluster.Delta), id cluster.PodID, later bool) {
	if row := st.Pod(id); row != nil && !row.Placed() {
		fold(cluster.PodActivated{ID: id, AfterBackoff: later})
	}
}
