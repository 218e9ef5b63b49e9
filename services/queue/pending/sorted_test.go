package pending

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// sortedBy are settings with a profile whose pods a plugin of others sorts.
func sortedBy() cluster.SettingsSet {
	s := settings(1)
	s.Settings.Profiles[0].QueueSort, s.Settings.Profiles[0].PreEnqueues = "Deadline", []string{"Doorman"}
	return s
}

// newLine is a queue with so many pods that a plugin of others sorts, with the priorities 0, 1, … and the UIDs u0, u1, …, of the same second, and a node that has room for all.
func newLine(t testing.TB, now time.Time, pods int) (*Queue, *cluster.State) {
	t.Helper()
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	apply(t, q, st, now, sortedBy(), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)},
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(100_000)}},
		cluster.PodSet{ID: 99, Pod: cluster.Pod{UID: "keeps the class", NodeName: "elsewhere"}})
	for i := range pods {
		apply(t, q, st, now, cluster.PodSet{ID: cluster.PodID(i), Pod: cluster.Pod{UID: fmt.Sprint("u", i), Created: now.UnixNano(), Priority: int32(i)}})
	}
	return q, st
}

// sorts admits all who are to be asked about, in an order, with keys by UID, and returns whom it has, in order.
func sorts(q *Queue, now time.Time, order uint64, keys map[string]int64) (asked []string) {
	for _, x := range q.Entering(now, 100, nil) {
		asked = append(asked, x.UID)
		q.Admit(now, x, SortKey{Order: order, Key: keys[x.UID]})
	}
	return asked
}

func pops(q *Queue, now time.Time, limit int) (uids []string) {
	for _, a := range q.Pop(now, limit) {
		uids = append(uids, a.UID)
	}
	return uids
}

func uids(of ...string) []string { return of }

// Whoever has the lowest key goes first, whatever its priority; of equal keys it is the highest priority, and then who came first.
func TestPodsGoByTheKeysThatAPluginGivesThem(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 4)
	apply(t, q, st, now, cluster.PodSet{ID: 4, Pod: cluster.Pod{UID: "u4", Created: now.UnixNano(), Priority: 1}})
	if got := pops(q, now, 9); got != nil {
		t.Fatalf("%q are tried before anybody has said where they belong", got)
	}
	if _, ok := q.Next(); ok {
		t.Error("there is somebody to be tried before anybody has said so")
	}
	pods := q.Entering(now, 100, nil)
	for i, x := range pods { // the highest priority is asked about first
		if want := []string{"u3", "u2", "u1", "u4", "u0"}[i]; x.UID != want || x.OnlySorts || !x.First.Equal(now.Add(time.Duration(i))) || !x.Since.Equal(now) {
			t.Errorf("as number %d is asked about %+v, want %s", i, x, want)
		}
		q.Admit(now, x, SortKey{1, map[string]int64{"u0": -5, "u1": 7, "u2": 8, "u3": 8, "u4": 7}[x.UID]})
	}
	if s, ok := q.Standing(2, 5); !ok || s.Position != 4 || s.Ahead != nil {
		t.Errorf("u2 stands in line as %+v", s)
	}
	if got, want := pops(q, now, 9), uids("u0", "u1", "u4", "u3", "u2"); !slices.Equal(got, want) {
		t.Errorf("%q are tried, want %q", got, want)
	}
}

// What comes back is asked about again, with how it has fared, and goes by what is said then.
func TestWhoComesBackIsSortedAnew(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 2)
	sorts(q, now, 1, map[string]int64{"u0": 1, "u1": 2})
	for _, a := range q.Pop(now, 2) {
		if a.UID == "u0" {
			q.Reject(now, st, a, refused(st))
		} else {
			q.Retry(now, a) // it goes where it was
		}
	}
	later := now.Add(time.Minute)
	q.Activate(later, 0)
	x := asks(t, q, later)
	if want := (Entering{UID: "u0", Profile: testScheduler, Since: now, First: now.Add(1), Arrival: 1, Attempts: 1, Unschedulable: 1, number: x.number}); x != want {
		t.Errorf("asks about %+v, want %+v", x, want)
	}
	q.Admit(later, x, SortKey{1, 3})
	if got, want := pops(q, later, 9), uids("u1", "u0"); !slices.Equal(got, want) {
		t.Errorf("%q are tried, want %q", got, want)
	}
}

// With a new order, what was said in older ones counts no more: nobody is tried by it, and all who wait are asked about again, but not whether they may be tried.
func TestANewOrderHasAllSortedAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 4)
	sorts(q, now, 1, map[string]int64{"u0": 1, "u1": 2, "u2": 3, "u3": 4})
	running := q.Pop(now, 1) // u0
	now = now.Add(sortsAgain)
	apply(t, q, st, now, cluster.PodSet{ID: 4, Pod: cluster.Pod{UID: "u4", Created: now.UnixNano()}})
	q.Admit(now, asks(t, q, now), SortKey{2, 100})
	if !q.Unasked() {
		t.Error("nobody is to be asked about")
	}
	if got := pops(q, now, 9); got != nil {
		t.Errorf("%q are tried, and of others nobody has said whether they are before", got)
	}
	if at, ok := q.Next(); !ok || !at.Equal(now.Add(sortsFirst)) {
		t.Errorf("the next is tried at %v, %v", at, ok)
	}
	q.Retry(now, running[0])
	pods := q.Entering(now, 100, nil)
	for _, x := range pods {
		if !x.OnlySorts {
			t.Errorf("%s is asked about as if it were new", x.UID)
		}
	}
	if len(pods) != 4 {
		t.Fatalf("%d are asked about, want 4", len(pods))
	}
	q.Admit(now, pods[0], SortKey{1, 0}) // an answer of the old order, which was under way
	if x := asks(t, q, now); x.UID != pods[0].UID || !x.OnlySorts {
		t.Errorf("asks about %+v", x)
	} else {
		pods[0] = x
	}
	for _, x := range pods {
		q.Admit(now, x, SortKey{2, map[string]int64{"u0": 4, "u1": 3, "u2": 2, "u3": 1}[x.UID]})
	}
	asksNobody(t, q, now)
	if got, want := pops(q, now, 9), uids("u3", "u2", "u1", "u0", "u4"); !slices.Equal(got, want) {
		t.Errorf("%q are tried, want %q", got, want)
	}
}

// Whoever is to come first does, also behind a change of the shard's owner, or of the binder, however long it takes to say of all where they belong, but for those of whom nobody says it.
func TestNobodyIsTriedBeforeAllThatHaveWaitedAreSorted(t *testing.T) {
	now := time.Unix(1000, 0)
	begin := func(t *testing.T) (*Queue, *cluster.State, []Entering) {
		q, st := newLine(t, now, 4)
		q.Reset(now, st)
		pods := q.Entering(now, 3, nil) // u3, u2 and u1
		for _, x := range pods[:2] {
			q.Admit(now, x, SortKey{1, 7})
		}
		if got := pops(q, now.Add(sortsFirst-1), 9); got != nil {
			t.Fatalf("%q are tried", got)
		}
		return q, st, pods
	}
	for name, tt := range map[string]struct {
		then func(q *Queue, st *cluster.State, u1 Entering)
		want []string
	}{
		"said": {func(q *Queue, st *cluster.State, u1 Entering) {
			q.Admit(now, u1, SortKey{1, 8})
			q.Admit(now, asks(t, q, now), SortKey{1, 6})
		}, uids("u0", "u3", "u2", "u1")},
		"kept out, and gone": {func(q *Queue, st *cluster.State, u1 Entering) {
			q.Keep(now, u1, "Doorman", "no", true)
			apply(t, q, st, now, cluster.PodRemoved{ID: 0})
		}, uids("u3", "u2")},
		"not said": {func(q *Queue, st *cluster.State, u1 Entering) {
			q.Unanswered(now, u1, "it hangs")
			q.Unanswered(now, asks(t, q, now), "it hangs")
		}, uids("u3", "u2")},
		"one has come since": {func(q *Queue, st *cluster.State, u1 Entering) {
			q.Unanswered(now, u1, "it hangs")
			q.Unanswered(now, asks(t, q, now), "it hangs")
			apply(t, q, st, now, cluster.PodSet{ID: 5, Pod: cluster.Pod{UID: "u5", Created: now.UnixNano()}})
		}, uids("u3", "u2")},
	} {
		t.Run(name, func(t *testing.T) {
			q, st, pods := begin(t)
			tt.then(q, st, pods[2])
			if at, ok := q.Next(); !ok || at.After(now.Add(sortsFirst)) {
				t.Errorf("the next is tried at %v, %v", at, ok)
			}
			if got := pops(q, now, 9); !slices.Equal(got, tt.want) {
				t.Errorf("%q are tried, want %q", got, tt.want)
			}
		})
	}
	q, _, _ := begin(t)
	if got, want := pops(q, now.Add(sortsFirst), 9), uids("u3", "u2"); !slices.Equal(got, want) {
		t.Errorf("when it has taken too long, %q are tried, want %q", got, want)
	}
}

// Who backs off behind an error, and is to be sorted again, is when that is over: somebody hears of it.
func TestWhoBacksOffBehindAnErrorIsSortedAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 1)
	sorts(q, now, 1, nil)
	q.Fail(now, q.Pop(now, 1)[0], "broken")
	q.Admit(now, asks(t, q, now), SortKey{1, 1})
	apply(t, q, st, now, cluster.PodSet{ID: 4, Pod: cluster.Pod{UID: "u4", Created: now.UnixNano()}})
	q.Admit(now, asks(t, q, now), SortKey{2, 5})
	if got := pops(q, now, 9); !slices.Equal(got, uids("u4")) {
		t.Fatalf("%q are tried", got)
	}
	at, ok := q.Next()
	if !ok || q.Unasked() {
		t.Fatalf("its backoff ends at %v, %v", at, ok)
	}
	if got := pops(q, at, 9); got != nil || !q.Unasked() {
		t.Fatalf("%q are tried, and nobody asks about it", got)
	}
	q.Admit(at, asks(t, q, at), SortKey{2, 6})
	if got := pops(q, at, 9); !slices.Equal(got, uids("u0")) {
		t.Errorf("%q are tried", got)
	}
}

// One that changes whenever it is asked about is tried all the same.
func TestAPodThatChangesAllTheTimeIsTried(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 1)
	for i := range 20 {
		x := asks(t, q, now)
		p := st.Pod(0).Pod
		p.Priority = int32(100 + i)
		apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: p})
		q.Admit(now, x, SortKey{1, 1})
		if got := pops(q, now, 1); len(got) > 0 {
			if i != mostMoves {
				t.Errorf("it is tried after %d answers", i+1)
			}
			return
		}
	}
	t.Error("it is never tried")
}

// Of two that wait for extenders or plugins to be asked about them, who has been tried by an older order goes first, and of one order who belongs first.
func TestWhoWaitsToBeAskedAboutIsNotPassedByANewOrder(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 2)
	sorts(q, now, 1, map[string]int64{"u0": 1, "u1": 2})
	var at []InLine
	for _, a := range q.Pop(now, 2) {
		is, _ := q.Leave(a)
		at = append(at, is)
	}
	apply(t, q, st, now, cluster.PodSet{ID: 4, Pod: cluster.Pod{UID: "u4", Created: now.UnixNano()}})
	q.Admit(now, asks(t, q, now), SortKey{2, -9})
	is, _ := q.Leave(q.Pop(now, 1)[0])
	if at[0].Compare(at[1]) >= 0 || at[1].Compare(is) >= 0 || is.Compare(at[0]) <= 0 {
		t.Errorf("they stand as %v", append(at, is))
	}
}

// Who backs off is sorted again when it would be next, and serves its backoff all the same.
func TestWhoBacksOffIsSortedAgainBeforeItIsTried(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 2)
	sorts(q, now, 1, map[string]int64{"u0": 1, "u1": 2})
	a := q.Pop(now, 1)[0]
	q.Reject(now, st, a, refused(st))
	apply(t, q, st, now, cluster.PodActivated{ID: 0, AfterBackoff: true})
	q.Admit(now, asks(t, q, now), SortKey{1, 1})
	if got := place(t, q); got != Backoff {
		t.Fatalf("it is %v", got)
	}
	if got := pops(q, now, 1); !slices.Equal(got, uids("u1")) { // u1 is active
		t.Fatalf("%q are tried", got)
	}
	apply(t, q, st, now, cluster.PodSet{ID: 4, Pod: cluster.Pod{UID: "u4", Created: now.UnixNano()}})
	q.Admit(now, asks(t, q, now), SortKey{2, 5})
	if got := pops(q, now, 9); !slices.Equal(got, uids("u4")) {
		t.Fatalf("%q are tried", got)
	}
	x := asks(t, q, now)
	if x.UID != "u0" || !x.OnlySorts {
		t.Fatalf("asks about %+v", x)
	}
	q.Admit(now, x, SortKey{2, 6})
	if e, _ := q.Entry(0); e.Place != Backoff || !e.BackoffUntil.Equal(now.Add(2*time.Second)) {
		t.Errorf("it is %v until %v", e.Place, e.BackoffUntil)
	}
	if got := pops(q, now, 9); !slices.Equal(got, uids("u0")) { // nobody else is there
		t.Errorf("%q are tried", got)
	}
}

// A pod that changes is sorted again, wherever it is, and also if it is just asked about.
func TestAPodThatChangesIsSortedAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	change := func(st *cluster.State, priority int32) cluster.Delta {
		p := st.Pod(0).Pod
		p.Priority = priority
		return cluster.PodSet{ID: 0, Pod: p}
	}
	for name, to := range map[string]func(t *testing.T, q *Queue, st *cluster.State){
		"active": func(t *testing.T, q *Queue, st *cluster.State) { apply(t, q, st, now, change(st, 7)) },
		"in flight": func(t *testing.T, q *Queue, st *cluster.State) {
			a := q.Pop(now, 1)[0]
			apply(t, q, st, now, change(st, 7))
			q.Retry(now, a)
		},
		"asked about": func(t *testing.T, q *Queue, st *cluster.State) {
			apply(t, q, st, now, change(st, 6))
			x := asks(t, q, now)
			apply(t, q, st, now, change(st, 7))
			q.Admit(now, x, SortKey{1, 0})
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, st := newLine(t, now, 2)
			sorts(q, now, 1, map[string]int64{"u0": 1, "u1": 2})
			to(t, q, st)
			if got := pops(q, now, 1); got != nil && !slices.Equal(got, uids("u1")) {
				t.Fatalf("%q are tried by what was said before", got)
			}
			x := asks(t, q, now)
			if x.UID != "u0" || !x.OnlySorts {
				t.Fatalf("asks about %+v", x)
			}
			q.Admit(now, x, SortKey{1, 9})
			if got := pops(q, now, 9); len(got) == 0 || got[len(got)-1] != "u0" {
				t.Errorf("%q are tried, want u0 last", got)
			}
			asksNobody(t, q, now)
		})
	}
}

// Whatever happens, pods are tried in the order of the newest keys, and none is forgotten.
func TestSortedPodsGoInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := time.Unix(1000, 0)
		q, st := newLine(t, now, 0)
		var asked []Entering
		var running []Attempt
		order, born := uint64(1), 0
		keys := make(map[string]SortKey) // that have been taken
		pick := func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(rt, what) }
		outcome := func(say func(a Attempt)) {
			if len(running) > 0 {
				k := pick(len(running), "attempt")
				a := running[k]
				running = slices.Delete(running, k, k+1)
				say(a)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"set": func(*rapid.T) {
				id := cluster.PodID(pick(5, "pod"))
				p := cluster.Pod{UID: fmt.Sprint("u", born), Created: now.UnixNano()}
				if row := st.Pod(id); row != nil {
					if p = row.Pod; row.Placed() {
						return
					}
				} else {
					born++
				}
				p.Priority = int32(pick(3, "priority"))
				apply(t, q, st, now, cluster.PodSet{ID: id, Pod: p})
			},
			"remove": func(*rapid.T) {
				if id := cluster.PodID(pick(5, "pod")); st.Pod(id) != nil {
					apply(t, q, st, now, cluster.PodRemoved{ID: id})
				}
			},
			"ask":   func(*rapid.T) { asked = append(asked, q.Entering(now, 1+pick(3, "most"), nil)...) },
			"order": func(*rapid.T) { order++ },
			"admit": func(*rapid.T) {
				if len(asked) == 0 {
					return
				}
				k := pick(len(asked), "question")
				x, at := asked[k], SortKey{order - uint64(pick(2, "late")), int64(pick(4, "key"))}
				asked = slices.Delete(asked, k, k+1)
				e := q.isAsked(x)
				if q.Admit(now, x, at); e != nil && !e.shut() {
					keys[x.UID] = at
				}
			},
			"unanswered": func(*rapid.T) {
				if len(asked) > 0 {
					q.Unanswered(now, asked[0], "nobody")
					asked = asked[1:]
				}
			},
			"pop": func(*rapid.T) {
				last := int64(-1)
				for _, a := range q.Pop(now, 1+pick(4, "limit")) {
					at, ok := keys[a.UID]
					if !ok || at.Order != q.sortOrder {
						rt.Fatalf("%s is tried by %+v, and the order is %d", a.UID, at, q.sortOrder)
					}
					if e := q.pods[a.ID]; e.failures == 0 && at.Key < last {
						rt.Fatalf("%s with key %d is tried behind %d", a.UID, at.Key, last)
					}
					last = at.Key
					running = append(running, a)
				}
			},
			"retry":  func(*rapid.T) { outcome(func(a Attempt) { q.Retry(now, a) }) },
			"fail":   func(*rapid.T) { outcome(func(a Attempt) { q.Fail(now, a, "broken") }) },
			"reject": func(*rapid.T) { outcome(func(a Attempt) { q.Reject(now, st, a, refused(st)) }) },
			"all":    func(*rapid.T) { apply(t, q, st, now, cluster.PodActivated{ID: cluster.NoPod}) },
			"reset": func(*rapid.T) {
				clear(keys)
				q.Reset(now, st)
			},
			"later": func(*rapid.T) { now = now.Add(time.Duration(pick(20, "seconds")) * time.Second); q.Recheck(now, st) },
			"": func(*rapid.T) {
				owed := 0
				for _, e := range q.pods {
					if e.entrance.owed {
						owed++
					}
				}
				if owed != q.owed {
					rt.Fatalf("%d are owed a word, want %d", q.owed, owed)
				}
				if _, ok := q.Next(); !ok && !q.Unasked() && (q.active.Len() > 0 || q.backoff.Len() > 0) {
					rt.Fatal("nobody hears of those that wait")
				}
			},
		})
		// All questions are answered in one order, and time passes: then all are tried.
		for range 3 {
			for _, a := range running {
				q.Retry(now, a)
			}
			running, now = nil, now.Add(time.Hour)
			q.Recheck(now, st)
			for _, x := range append(asked, q.Entering(now, 100, nil)...) {
				q.Admit(now, x, SortKey{order, 0})
			}
			asked = nil
			q.endBackoffs(now.Add(time.Hour))
		}
		for _, e := range q.pods {
			if e.place != Active || q.unsorted(e) {
				rt.Fatalf("%s is %v, sorted by %+v, and the order is %d", e.pod.UID, e.place, e.sorted, q.orders)
			}
		}
	})
}

// A queue that nobody else sorts costs nothing more, and goes by priority.
func TestPodsOfOtherProfilesAreNotAskedAbout(t *testing.T) {
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	apply(t, q, st, now, settings(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)}, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Created: now.UnixNano()}})
	if e := q.pods[0]; e.entrance != nil || e.sorted != (sorted{}) || engine.SubjectOf(&e.pod).Class != 0 {
		t.Errorf("its entry is %+v", e)
	}
	asksNobody(t, q, now)
}

// A pod that is active stays so when it is sorted again, also if what had it active has cut its backoff short.
func TestWhoIsActiveStaysSoWhenItIsSortedAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 1)
	sorts(q, now, 1, nil)
	q.Reject(now, st, q.Pop(now, 1)[0], refused(st))
	q.Activate(now, 0)
	q.Admit(now, asks(t, q, now), SortKey{1, 1})
	if got := place(t, q); got != Active {
		t.Fatalf("it is %v", got)
	}
	apply(t, q, st, now, cluster.PodSet{ID: 4, Pod: cluster.Pod{UID: "u4", Created: now.UnixNano()}})
	q.Admit(now, asks(t, q, now), SortKey{2, 5})
	q.Admit(now, asks(t, q, now), SortKey{2, 6})
	if got := place(t, q); got != Active {
		t.Errorf("it is %v", got)
	}
}

// Who has the shard anew, or hears of another binder, knows nothing of orders: what that one says is the newest, whatever number it has.
func TestANewBinderBeginsTheOrdersAnew(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 2)
	sorts(q, now, 9, map[string]int64{"u0": 1, "u1": 2})
	q.Reset(now, st)
	if got := pops(q, now, 9); got != nil {
		t.Fatalf("%q are tried before anybody has said where they belong", got)
	}
	sorts(q, now, 1, map[string]int64{"u0": 2, "u1": 1})
	if got, want := pops(q, now, 9), uids("u1", "u0"); !slices.Equal(got, want) {
		t.Errorf("%q are tried, want %q", got, want)
	}
}

// However often orders begin, pods are tried in between.
func TestOrdersWithoutAnEndLetPodsBeTried(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 3)
	sorts(q, now, 1, nil)
	tried := 0
	for order := uint64(2); order < 200; order++ {
		now = now.Add(time.Second)
		for id := cluster.PodID(0); id < 3; id++ {
			if st.Pod(id) == nil {
				apply(t, q, st, now, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint(id, order), Created: now.UnixNano()}})
			}
		}
		for _, x := range q.Entering(now, 2, nil) { // never all
			q.Admit(now, x, SortKey{Order: order})
		}
		for _, a := range q.Pop(now, 1) {
			tried++
			apply(t, q, st, now, cluster.PodRemoved{ID: a.ID})
		}
	}
	if tried < 60 {
		t.Errorf("in 198 s, %d pods are tried", tried)
	}
}

// Who may not be tried in any case is not waited for.
func TestNobodyWaitsForPodsWithGates(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := newLine(t, now, 1)
	apply(t, q, st, now, cluster.PodSet{ID: 5, Pod: cluster.Pod{UID: "gated", Created: now.UnixNano() - 1, Gates: []string{"g"}}})
	q.Reset(now, st)
	for _, x := range q.Entering(now, 100, nil) {
		if x.UID == "u0" {
			q.Admit(now, x, SortKey{1, 1})
		}
	}
	if got := pops(q, now, 9); !slices.Equal(got, uids("u0")) {
		t.Errorf("%q are tried", got)
	}
}
