package binder

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

// slowWorld is a term of which some workers of the bind lane run, on a source whose binds take long in some namespaces.
type slowWorld struct {
	*term
	t   *testing.T
	src *fakeSource
}

const slowWorkers = 8 // so there are 32 places, of which a lone namespace has 16

// newSlowWorld makes one in which binds take as long as it is said, and are then as it is said.
func newSlowWorld(t *testing.T, takes func(namespace string) time.Duration, then source.Result, change ...func(*termConfig)) *slowWorld {
	t.Helper()
	w := &slowWorld{t: t, src: newFakeSource()}
	change = slices.Insert(change, 0, inPlaces(places(slowWorkers)), unboundAtMost(2000), func(c *termConfig) { c.EventLimit = 2000 })
	w.term = pureTerm(t, single{w.src}, change...)
	w.reports.failed = func(error) {}
	w.binds = make(chan *placement, 2000) // which tests may fill before a worker runs
	w.recorder.out = w.binds
	large := node("a", 1_000_000)
	large.Allocatable = slices.DeleteFunc(large.Allocatable, func(q cluster.Quantity) bool { return q.Name == "pods" })
	large.Allocatable = append(large.Allocatable, cluster.Quantity{Name: "pods", Value: 1_000_000})
	observe(t, w.term, large)
	w.src.answers(func(b source.Binding) source.Outcome {
		d := takes(b.Namespace)
		elapse(d)
		if d < lateAfter || then == source.BindDone {
			return source.Outcome{Result: source.BindDone}
		}
		return source.Outcome{Result: then, Err: errFake}
	})
	return w
}

// hangElsewhere says that binds take 10 s, but in the namespace default.
func hangElsewhere(namespace string) time.Duration {
	if namespace == "default" {
		return 50 * time.Millisecond
	}
	return 10 * time.Second
}

func (w *slowWorld) pod(uid, namespace string) {
	w.t.Helper()
	p := pod(uid, 1)
	p.Namespace = namespace
	w.src.setPod(p)
	observe(w.t, w.term, p)
}

// place has so many pods of a namespace placed, and recorded.
func (w *slowWorld) place(namespace string, n int) (uids []string) {
	w.t.Helper()
	for i := range n {
		uid := fmt.Sprint(namespace, "-", i)
		w.pod(uid, namespace)
		w.binds <- assume(w.t, w.term, uid, "a")
		uids = append(uids, uid)
	}
	return uids
}

// count returns how many of some pods are in a phase.
func (w *slowWorld) count(uids []string, phase string) (n int) {
	for _, uid := range uids {
		if where(w.term, uid) == phase {
			n++
		}
	}
	return n
}

// after lets time pass, and what has come of it be recorded.
func (w *slowWorld) after(d time.Duration) {
	w.t.Helper()
	elapse(d)
	synctest.Wait()
	record(w.t, w.term)
}

func TestAPlaceThatIsGivenBackGoesToWhoWaitsForIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
		w.place("one", 100)
		w.place("two", 100)
		defer runBinds(t, w.term, slowWorkers)()
		w.after(4 * lateAfter)
		// Four of 32 places are left to it, with 50 ms for each bind.
		healthy := w.place("default", 100)
		w.after(100/4*50*time.Millisecond + lateAfter/2)
		if n := w.count(healthy, "bound on a"); n != len(healthy) {
			t.Errorf("beside two namespaces that hang %d of %d are bound", n, len(healthy))
		}
	})
}

func TestPlacementsOfANamespaceWhoseBindsAreSlowAreTakenBackIfTheyFindNoPlace(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, func(string) time.Duration { return 5 * time.Second }, source.BindDone)
		uids := w.place("slow", 300)
		defer runBinds(t, w.term, slowWorkers)()
		w.after(giveBackAfter - 100*time.Millisecond)
		if n := w.unbound.count(); n != 300 || w.count(uids, "assumed on a") != 300 {
			t.Errorf("before %v %d count as unbound", giveBackAfter, n)
		}
		w.after(2 * noPlace)
		if n := w.unbound.count(); n > 2*places(slowWorkers) {
			t.Errorf("%d count as unbound, with %d places", n, places(slowWorkers))
		}
		if n := w.count(uids, "pending"); n < 200 {
			t.Errorf("%d of 300 are pending", n)
		}
		if n := len(w.src.withdrawals()); n != 0 {
			t.Errorf("%d were withdrawn, of which no bind was sent", n)
		}
		w.after(time.Minute)
		if n := w.unbound.count(); n != 0 || w.count(uids, "bound on a") != 300-w.count(uids, "pending") {
			t.Errorf("in the end %d count as unbound", n)
		}
		if refusals(t, w.term) != 0 {
			t.Error("a step was refused")
		}
	})
}

// noPlace is a little more than it takes to see that a wait has lasted for too long.
const noPlace = time.Second + time.Second/10

func TestABindThatHangsIsWithdrawnAfterTwoTries(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
		uids := w.place("hangs", 1)
		defer runBinds(t, w.term, slowWorkers)()
		w.after(20 * time.Second)
		if got := w.src.withdrawals(); len(got) > 0 {
			t.Errorf("withdrawn within 20 s: %+v", got)
		}
		w.after(2 * time.Second)
		if got := where(w.term, uids[0]); got != "pending" || len(w.src.withdrawals()) != 1 {
			t.Errorf("after two tries of 10 s it is %s", got)
		}
	})
}

// What a binder before has recorded may have been sent by it, and cannot be taken back but by a write to the pod.
func TestWhatWasTakenOverOfANamespaceWhoseBindsHangIsWithdrawn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
		uids := w.make("hangs", 600)
		w.takeOver("hangs", uids)
		defer runBinds(t, w.term, slowWorkers)()
		w.after(giveBackAfter + 2*noPlace)
		if n := w.unbound.count(); n > places(slowWorkers) {
			t.Errorf("%d of %d count as unbound, with %d places", n, len(uids), places(slowWorkers))
		}
		if n := w.count(uids, "pending"); n != len(w.src.withdrawals()) || n < 500 {
			t.Errorf("%d are pending, %d were withdrawn", n, len(w.src.withdrawals()))
		}
	})
}

func TestWhatIsWithdrawnOrToldNeedsNoPlaceOfBindsThatHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
		w.place("hangs", 100)
		defer runBinds(t, w.term, slowWorkers)()
		w.after(4 * lateAfter) // its share is under way, and the others wait
		cordoned := node("cordoned", 1000)
		cordoned.Unschedulable = true
		observe(t, w.term, cordoned)
		w.pod("misfit", "hangs")
		w.pod("told", "hangs")
		in := meant("misfit", "cordoned")
		in.Namespace = "hangs"
		taken, err := w.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 9999, Intents: []coord.Intent{in}}}})
		if err != nil || len(taken) != 1 {
			t.Fatalf("%v, %v", taken, err)
		}
		told := assume(t, w.term, "told", "a")
		observe(t, w.term, gone("told"))
		before := w.unbound.count()
		w.binds <- told
		w.binds <- taken[0]
		w.after(lateAfter / 10)
		if got, n := where(w.term, "misfit"), w.unbound.count(); got != "pending" || n != before-2 {
			t.Errorf("the misfit is %s, and %d count as unbound, want %d", got, n, before-2)
		}
	})
}

// Withdrawals that hang too have a share of their own, and no more.
func TestANamespaceWhoseWithdrawalsHangLeavesOthersTheirShare(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
		w.src.withdraw = func(source.Binding) source.Outcome {
			elapse(10 * time.Second)
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		}
		w.late.limit = places(slowWorkers) - slowWorkers
		w.place("hangs", 300)
		defer runBinds(t, w.term, slowWorkers)()
		for i := range 20 {
			w.after(30 * time.Second)
			uid := fmt.Sprint("good-", i)
			w.pod(uid, "default")
			w.binds <- assume(t, w.term, uid, "a")
			w.after(2 * lateAfter)
			if got := where(w.term, uid); got != "bound on a" {
				t.Errorf("after %d times 30 s %s is %s", i+1, uid, got)
			}
		}
	})
}

// commit has pods committed, and what is placed recorded. It returns how many have each outcome; nothing if the commit is refused.
func (w *slowWorld) commit(attempt int32, uids ...string) map[string]int {
	w.t.Helper()
	st := w.ledger.state
	resp, err := w.term.commit(requestOf(st, evaluate(st, len(uids)+1), attempt, uids...))
	if err != nil {
		wantError(w.t, err, codes.ResourceExhausted, "TOO_MANY_UNBOUND")
		return nil
	}
	record(w.t, w.term)
	outcomes := make(map[string]int)
	for _, o := range resp.GetOutcomes() {
		outcomes[resultText(o.GetResult())]++
	}
	return outcomes
}

func TestANamespaceWhoseBindsAreSlowLeavesOthersRoomToCommit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, func(namespace string) time.Duration {
			if namespace == "default" {
				return 50 * time.Millisecond
			}
			return 20 * time.Second
		}, source.BindDone, unboundAtMost(400))
		var slow, good []string
		for i := range 500 {
			slow = append(slow, fmt.Sprint("slow-", i))
			w.pod(slow[i], "slow")
		}
		for i := range 20 {
			good = append(good, fmt.Sprint("good-", i))
			w.pod(good[i], "default")
		}
		defer runBinds(t, w.term, slowWorkers)()
		// It takes what it gets, which is half of all.
		took := 0
		for took < 400 {
			outcomes := w.commit(1, slow[took:took+10]...)
			if outcomes["assumed"] == 0 {
				break
			}
			took += outcomes["assumed"]
		}
		if took != 200 {
			t.Errorf("a namespace has %d of 400", took)
		}
		if got := w.commit(1, good[:10]...); got["assumed"] != 10 {
			t.Errorf("while a namespace has its share, others are %v", got)
		}
		// A shard whose pods are in between waits until it is known that binds take long, and then no more.
		both := append(slow[400:490:490], good[10:]...)
		w.after(2*lateAfter + giveBackAfter + noPlace)
		room := places(slowWorkers)/2 - w.unbound.countOf("slow")
		if got := w.commit(2, both...); got["busy"] != 90-room || got["assumed"] != 10+room {
			t.Errorf("beside %d places others are %v", room, got)
		}
		for i := range 30 { // whatever it presses
			w.after(noPlace)
			w.commit(int32(3+i), slow[:300]...)
			if n := w.unbound.countOf("slow"); n > places(slowWorkers)/2 {
				t.Fatalf("it has %d unbound pods, and slow namespaces %d places", n, places(slowWorkers)/2)
			}
		}
		// When its binds are fast again, it has as many as any.
		w.src.answers(nil)
		w.after(time.Minute)
		w.pod("last", "slow")
		w.commit(1, "last")
		w.after(lateAfter)
		if got := w.commit(40, slow[:150]...); got["busy"] != 0 || got["assumed"]+got["already placed"] != 150 {
			t.Errorf("when binds are fast again, its pods are %v", got)
		}
		w.after(time.Minute)
		if n := w.unbound.count(); n != 0 || len(w.unbound.of) != 0 || refusals(t, w.term) != 0 {
			t.Errorf("in the end %d count as unbound, of %v", n, w.unbound.of)
		}
	})
}

// Binds that are not late bound no window. So a namespace has its share of what may be unbound, and is at it again as soon as one of them is done.
func TestANamespaceWhoseBindsTakeLongButAreNotLateLeavesOthersRoomToCommit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, almostLate, source.BindDone, unboundAtMost(400))
		long, good := w.make("tenant", 1500), w.make("default", 50)
		defer runBinds(t, w.term, slowWorkers)()
		busy := 0
		for i, uid := range good {
			for took := 1; took > 0; {
				outcomes := w.commit(int32(1+i), w.pending(long[:1400], 10)...)
				if took = outcomes["assumed"]; i > 0 && outcomes == nil {
					t.Fatal("a commit of it alone is refused whole, and holds up its shard")
				}
			}
			got := w.commit(int32(1+i), append(w.pending(long[1400:], 9), uid)...)
			if busy += got["busy"]; i > 0 && got == nil || got["assumed"] > 9 {
				t.Errorf("commit %d of a shard that has pods of it is %v", i, got)
			}
			w.after(lateAfter)
		}
		if n := w.count(good, "bound on a"); n < len(good)-1 || busy == 0 {
			t.Errorf("%d of %d others are bound, %d were busy", n, len(good), busy)
		}
	})
}

// Where binds are quick, room comes back before a pod could have backed off.
func TestPodsOfNamespacesWhoseBindsAreQuickAreNotBusy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, func(string) time.Duration { return 50 * time.Millisecond }, source.BindDone, unboundAtMost(100))
		one, other := w.make("one", 150), w.make("other", 10)
		defer runBinds(t, w.term, slowWorkers)()
		w.commit(1, one[0], other[0])
		w.after(lateAfter)
		if got := w.commit(1, one[1:51]...); got["assumed"] != 50 {
			t.Errorf("one is %v", got)
		}
		if got := w.commit(1, append(one[51:60:60], other[1])...); got != nil {
			t.Errorf("beyond its share both are %v", got)
		}
		w.after(lateAfter)
		if got := w.commit(1, append(one[51:60:60], other[1])...); got["assumed"] != 10 {
			t.Errorf("when it has room both are %v", got)
		}
	})
}

func TestNamespacesShareABound(t *testing.T) {
	b := &bound{limit: 100}
	for i, c := range []struct {
		wanted map[string]int
		taken  bool
	}{
		{map[string]int{"a": 40}, true},
		{map[string]int{"a": 21}, false}, // 61 of 100, with 60 free
		{map[string]int{"a": 20}, true},
		{map[string]int{"a": 1}, false},
		{map[string]int{}, true},
		{map[string]int{"b": 40, "c": 1}, false}, // 41, with 40 free
		{map[string]int{"a": 1, "b": 1}, false},
		{map[string]int{"b": 40}, true},
		{map[string]int{"c": 1}, false},
	} {
		if got := b.takeOf(c.wanted); got != c.taken {
			t.Errorf("%d: %v is taken: %v", i, c.wanted, got)
		}
	}
	b.giveOf("a", 60)
	b.giveOf("b", 40)
	if b.count() != 0 || len(b.of) != 0 {
		t.Errorf("%d are left, of %v", b.count(), b.of)
	}
	if !b.takeOf(map[string]int{"a": 1000}) {
		t.Error("what is larger than all is refused, and nothing is taken")
	}
}

// Each may have as much as is free, but not all of them that.
func TestNamespacesThatAreContentWithLessShareWhatOthersLeave(t *testing.T) {
	for i, c := range []struct {
		wanted map[string]int
		some   []string
		want   map[string]int // nil: nothing is taken
	}{
		{map[string]int{"b": 60, "c": 60}, []string{"b", "c"}, map[string]int{"b": 60, "c": 0}},
		{map[string]int{"b": 40, "c": 40, "d": 10}, []string{"c", "b"}, map[string]int{"b": 10, "c": 40, "d": 10}},
		{map[string]int{"a": 40, "b": 40, "c": 40}, []string{"a", "b", "c"}, map[string]int{"a": 20, "b": 40, "c": 0}},
		{map[string]int{"b": 40, "d": 60}, []string{"b"}, map[string]int{"b": 0, "d": 60}},
		{map[string]int{"b": 40, "d": 61}, []string{"b"}, nil},
	} {
		b := &bound{limit: 100}
		b.giveOf("a", -40)
		taken := b.takeOf(c.wanted, c.some...)
		if taken != (c.want != nil) || taken && !maps.Equal(c.wanted, c.want) {
			t.Errorf("%d: %v of %v, want %v", i, c.wanted, taken, c.want)
		}
		for namespace, n := range c.want {
			if has := b.of[namespace]; namespace != "a" && has != n || namespace == "a" && has != 40+n {
				t.Errorf("%d: %s has %d, want %d more", i, namespace, has, n)
			}
		}
	}
}

func TestAPlaceGoesToTheNamespaceWithTheFewest(t *testing.T) {
	f := flights{most: 8, trust: func(string, time.Time) trust { return trusted }}
	now := time.Now()
	var has, waits []*placement
	come := func(namespaces ...string) {
		for _, namespace := range namespaces {
			p := &placement{Namespace: namespace}
			now = now.Add(1)
			if f.take(p, now) {
				has = append(has, p)
			} else {
				waits = append(waits, p)
			}
		}
	}
	come("a", "a", "a", "a", "a", "b", "b", "b", "c", "c")
	count := func(of []*placement, namespace string) (n int) {
		for _, p := range of {
			if p.Namespace == namespace {
				n++
			}
		}
		return n
	}
	if count(has, "a") != 4 || count(has, "b") != 2 || count(has, "c") != 1 {
		t.Fatalf("they have %d, %d and %d of 8", count(has, "a"), count(has, "b"), count(has, "c"))
	}
	for len(has) > 0 {
		next := f.give(has[0].place, time.Now())
		has = append(has[1:], next...)
		for _, p := range next {
			if p.place == nil || !slices.Contains(waits, p) {
				t.Fatalf("%s has a place, and did not wait for one", p.Namespace)
			}
		}
		waits = slices.DeleteFunc(waits, func(p *placement) bool { return slices.Contains(next, p) })
	}
	if len(waits) > 0 || f.taken != 0 || len(f.of) > 0 {
		t.Errorf("in the end %d wait, %d places are taken, %d namespaces are known", len(waits), f.taken, len(f.of))
	}
}

func TestPlacementsThatWaitBehindManyQuickBindsAreNotTakenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		// Of these places a lone namespace has four, with two binds a second each.
		w := newSlowWorld(t, func(string) time.Duration { return lateAfter / 2 }, source.BindDone, inPlaces(slowWorkers))
		uids := w.place("default", 100)
		defer runBinds(t, w.term, slowWorkers)()
		for range 20 {
			w.after(time.Second)
		}
		if n := w.count(uids, "bound on a"); n != len(uids) {
			t.Errorf("%d of %d are bound", n, len(uids))
		}
		if w.windows.trust("default", time.Now()) != trusted {
			t.Error("the namespace is said to be slow")
		}
	})
}

// make makes pods of a namespace, which are pending.
func (w *slowWorld) make(namespace string, n int) (uids []string) {
	w.t.Helper()
	for i := range n {
		uids = append(uids, fmt.Sprint(namespace, "-", i))
		w.pod(uids[i], namespace)
	}
	return uids
}

// takeOver has the term take over binds of a namespace's pods that the binder before had under way.
func (w *slowWorld) takeOver(namespace string, uids []string) {
	w.t.Helper()
	var intents []coord.Intent
	for _, uid := range uids {
		in := meant(uid, "a")
		in.Namespace = namespace
		intents = append(intents, in)
	}
	taken, err := w.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 1, Intents: intents}}})
	if err != nil || len(taken) != len(uids) {
		w.t.Fatalf("%d taken over, %v", len(taken), err)
	}
	for _, p := range taken {
		w.binds <- p
	}
}

// pending returns those of some pods that are pending, at most so many.
func (w *slowWorld) pending(uids []string, most int) (pending []string) {
	for _, uid := range uids {
		if len(pending) < most && where(w.term, uid) == "pending" {
			pending = append(pending, uid)
		}
	}
	return pending
}

// A webhook on all of pods, their status too, lets neither binds nor withdrawals of its namespace come to an end.
func TestANamespaceOfWhichNothingCanBeWrittenHoldsUpNoCommitOfOthers(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Millisecond, 10 * time.Second} {
		bubble.Test(t, func(t *testing.T) {
			w := newSlowWorld(t, hangElsewhere, source.BindUnknown, unboundAtMost(400))
			unknown := source.Outcome{Result: source.BindUnknown, Err: errFake}
			w.src.answers(func(b source.Binding) source.Outcome {
				if b.Namespace == "default" {
					return source.Outcome{Result: source.BindDone}
				}
				elapse(takes)
				return unknown
			})
			w.src.withdraw = func(source.Binding) source.Outcome { elapse(takes); return unknown }
			bad, good := w.make("bad", 600), w.make("default", 60)
			defer runBinds(t, w.term, slowWorkers)()
			for i, uid := range good {
				for range 20 {
					w.after(time.Second)
					if n := w.commit(int32(1+i), w.pending(bad, 10)...)["assumed"]; n == 0 {
						break
					}
				}
				w.after(20 * time.Second)
				if got := w.commit(int32(1+i), append(w.pending(bad, 9), uid)...); got["assumed"] == 0 {
					t.Fatalf("after %d rounds a pod beside those of the namespace is %v; it has %d unbound pods", i, got, w.unbound.countOf("bad"))
				}
			}
			w.after(lateAfter)
			if n := w.count(good, "bound on a"); n != len(good) {
				t.Errorf("%d of %d others are bound", n, len(good))
			}
		})
	}
}

// Of a webhook with several endpoints one hangs, so that a bind now and then is quick.
func TestANamespaceOfWhichFewBindsAreQuickHoldsUpNoCommitOfOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindDone, unboundAtMost(400))
		var mu sync.Mutex
		var quick time.Time
		w.src.answers(func(b source.Binding) source.Outcome {
			takes := 5 * time.Second
			mu.Lock()
			if now := time.Now(); b.Namespace == "default" || now.Sub(quick) > 3*time.Second {
				quick, takes = now, 10*time.Millisecond
			}
			mu.Unlock()
			elapse(takes)
			return source.Outcome{Result: source.BindDone}
		})
		bad, good := w.make("bad", 1500), w.make("default", 100)
		defer runBinds(t, w.term, slowWorkers)()
		refused := 0
		for i, uid := range good {
			w.after(time.Second)
			for range 20 {
				if n := w.commit(int32(1+i), w.pending(bad, 10)...)["assumed"]; n == 0 {
					break
				}
			}
			if w.commit(int32(1+i), bad[len(bad)-1], uid) == nil {
				refused++
			}
		}
		if refused > 1 {
			t.Errorf("%d of %d commits were refused whole", refused, len(good))
		}
	})
}

// However many namespaces a webhook hangs for, half of the places are left to others.
func TestBindsOfManyNamespacesThatHangHoldUpNoOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
		w.late.limit = places(slowWorkers)
		defer runBinds(t, w.term, slowWorkers)()
		var bad []string
		for i := range 100 {
			bad = append(bad, w.make(fmt.Sprint("tenant", i), 3)...)
		}
		hang := func() {
			for _, uid := range w.pending(bad, len(bad)) {
				w.binds <- assume(t, w.term, uid, "a")
			}
		}
		for i, uid := range w.make("default", 40) {
			if i > 0 { // it is trusted
				hang()
				w.after(5 * time.Second)
			}
			w.binds <- assume(t, w.term, uid, "a")
			w.after(2 * lateAfter)
			if got := where(w.term, uid); got != "bound on a" {
				t.Errorf("%d: beside 100 namespaces whose binds hang a pod is %s after %v", i, got, 2*lateAfter)
			}
		}
	})
}

// What is told of all others does not wait for a placement that does not come to an end.
func TestEventsAndConditionsDoNotGiveWayToAPlacementThatIsStuck(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
		w.src.answers(func(source.Binding) source.Outcome { return source.Outcome{Result: source.BindUnknown, Err: errFake} })
		w.src.withdraw = func(source.Binding) source.Outcome { return source.Outcome{Result: source.BindUnknown, Err: errFake} }
		w.place("bad", 1)
		defer runBinds(t, w.term, slowWorkers)()
		w.after(time.Minute)
		if n := w.unbound.count(); n != 1 {
			t.Fatalf("%d are unbound", n)
		}
		began := time.Now()
		w.unbound.awaitIdle(t.Context(), courtesy)
		if took := time.Since(began); took != 0 {
			t.Errorf("others wait for %v", took)
		}
		// They do give way to one that may be bound at any moment.
		w.pod("p", "default")
		in := assume(t, w.term, "p", "a")
		began = time.Now()
		w.unbound.awaitIdle(t.Context(), courtesy)
		if took := time.Since(began); took != courtesy {
			t.Errorf("they gave way for %v", took)
		}
		w.src.answers(nil)
		w.binds <- in
		w.after(time.Minute)
		if n, stuck := w.unbound.count(), w.unbound.stuck; n != 0 || stuck != 0 {
			t.Errorf("in the end %d are unbound, and %d stuck", n, stuck)
		}
	})
}

// Nobody has to go for a pod that would not be placed then.
func TestAPodOfANamespaceWithoutRoomPreemptsNobody(t *testing.T) {
	term, req := full(t, newFakeSource(), 2, inPlaces(4))
	now := time.Now()
	term.windows.shut("default", 1, now)
	term.unbound.giveOf("default", -2)
	resp, err := term.preempt(req)
	if err != nil || resp.GetResult() != binderv1.PreemptResponse_RESULT_RETRY || term.preemptions.waiting() != 0 {
		t.Errorf("without room: %v, %v", resp, err)
	}
	term.unbound.giveOf("default", 1)
	resp, err = term.preempt(req)
	if err != nil || resp.GetResult() != binderv1.PreemptResponse_RESULT_STARTED || term.preemptions.waiting() != 1 {
		t.Errorf("with room: %v, %v", resp, err)
	}
}

// Whatever comes and goes, nobody waits who may have a place, and all come out.
func TestPlacesAreNeitherLostNorKept(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := &windows{places: 1 + r.IntN(20), limit: 100}
		f := flights{most: w.places, trust: w.trust}
		now := time.Unix(1000, 0)
		var has []*placement
		waits := map[*placement]bool{}
		give := func(p *placement) {
			for _, next := range f.give(p.place, now) {
				delete(waits, next)
				has = append(has, next)
			}
			for _, n := range f.of {
				if len(n.waiting) > 0 && f.admits(n, w.trust(n.namespace, now)) {
					t.Fatalf("seed %d: somebody waits who may go", seed)
				}
			}
		}
		check := func() {
			taken, late, waiting := 0, 0, 0
			for key, n := range f.of {
				if n.whose != key || n.taken == 0 && len(n.waiting) == 0 {
					t.Fatalf("seed %d: %+v is kept", seed, n)
				}
				taken, late, waiting = taken+n.taken, late+n.late, waiting+len(n.waiting)
			}
			of := map[trust]int{}
			for _, p := range has {
				of[p.place.trust]++
			}
			if of[slow] != f.slow[false]+f.slow[true] || of[unknown] != f.unknown {
				t.Fatalf("seed %d: %v of each trust, counted as %v and %d", seed, of, f.slow, f.unknown)
			}
			if taken != f.taken || taken != len(has) || waiting != len(waits) || late > taken || waiting > 0 && taken == 0 {
				t.Fatalf("seed %d: %d of %d are taken by %d, %d late, %d of %d wait", seed, taken, f.taken, len(has), late, waiting, len(waits))
			}
		}
		for range 500 {
			now = now.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
			namespace := fmt.Sprint(r.IntN(6))
			switch k := r.IntN(12); {
			case k == 0:
				for _, p := range f.overdue(now, func(string) time.Duration { return time.Duration(r.IntN(5)) * time.Second }) {
					delete(waits, p)
				}
			case k == 1:
				w.shut(namespace, 1, now)
			case k == 2:
				w.done(namespace, 0, now)
			case k == 3 && len(has) > 0:
				f.late(has[r.IntN(len(has))].place)
			case k < 8 || len(has) == 0:
				p := &placement{Namespace: namespace}
				if r.IntN(4) == 0 {
					p.state = stateWithdrawing
				}
				if f.take(p, now) {
					has = append(has, p)
				} else {
					waits[p] = true
				}
			default:
				i := r.IntN(len(has))
				p := has[i]
				has = slices.Delete(has, i, i+1)
				give(p)
			}
			check()
		}
		for len(has) > 0 {
			p := has[0]
			has = has[1:]
			give(p)
			check()
		}
		if len(f.of) != 0 || len(waits) != 0 {
			t.Fatalf("seed %d: %v are left, %d wait", seed, f.of, len(waits))
		}
	}
}

// The API server answers nothing for a minute, or refuses, or takes long, in one namespace or many; then it is well.
func TestAfterAnOutageOfTheSourceAllAreBoundSoon(t *testing.T) {
	for _, namespaces := range []int{1, 5, 60} {
		for _, takes := range []time.Duration{time.Millisecond, 10 * time.Second, 1500 * time.Millisecond} {
			bubble.Test(t, func(t *testing.T) {
				w := newSlowWorld(t, hangElsewhere, source.BindUnknown, unboundAtMost(400))
				w.late.limit = places(slowWorkers)
				began := time.Now()
				answer := func(well source.Outcome) source.Outcome {
					if time.Since(began) < time.Minute {
						elapse(takes)
						return source.Outcome{Result: source.BindUnknown, Err: errFake}
					}
					elapse(20 * time.Millisecond)
					return well
				}
				w.src.answers(func(source.Binding) source.Outcome { return answer(source.Outcome{Result: source.BindDone}) })
				w.src.withdraw = func(source.Binding) source.Outcome {
					return answer(source.Outcome{Result: source.BindRefused, Err: errFake})
				}
				var uids []string
				for i := range namespaces {
					uids = append(uids, w.make(fmt.Sprint("n", i), 600/namespaces)...)
				}
				defer runBinds(t, w.term, slowWorkers)()
				attempt := int32(0)
				for w.count(uids, "bound on a") < len(uids) && time.Since(began) < 5*time.Minute {
					w.after(time.Second)
					pending := w.pending(uids, 200)
					for i := 0; i < len(pending); i += 10 {
						attempt++
						w.commit(attempt, pending[i:min(i+10, len(pending))]...)
					}
				}
				if took := time.Since(began) - time.Minute; took > 30*time.Second {
					t.Errorf("%d namespaces, calls that take %v: all are bound %v after the end of the outage", namespaces, takes, took)
				}
				w.after(time.Minute)
				if n := w.unbound.count(); n != 0 || w.unbound.stuck != 0 || w.late.count() != 0 || w.flights.taken != 0 || len(w.flights.of) != 0 || refusals(t, w.term) != 0 {
					t.Errorf("in the end %d are unbound, %d stuck, %d late, %d places taken", n, w.unbound.stuck, w.late.count(), w.flights.taken)
				}
			})
		}
	}
}

// The client of the API server lets 50 requests through in a second. Each pod has changed before its first bind comes, so it takes two
// requests, and then another. There are as many workers as internal/roles makes of that.
func TestBindsThatWaitForTheirTurnWithTheClientAreNotTakenForSlow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const workers, between = 50 / 4, time.Second / 50
		w := newSlowWorld(t, hangElsewhere, source.BindDone, inPlaces(places(workers)))
		var mu sync.Mutex
		next := time.Now()
		changed := make(map[string]bool)
		request := func() {
			mu.Lock()
			if now := time.Now(); next.Before(now) {
				next = now
			}
			at := next
			next = next.Add(between)
			mu.Unlock()
			elapse(time.Until(at))
		}
		w.src.answers(func(b source.Binding) source.Outcome {
			request()
			mu.Lock()
			again := changed[b.UID]
			changed[b.UID] = true
			mu.Unlock()
			if !again {
				request()
				return source.Outcome{Result: source.BindUnknown, Err: errors.Join(source.ErrChanged, errFake)}
			}
			return source.Outcome{Result: source.BindDone}
		})
		uids := w.make("n", 1000)
		defer runBinds(t, w.term, workers)()
		began := time.Now()
		for attempt := int32(1); w.count(uids, "bound on a") < len(uids) && time.Since(began) < 5*time.Minute; attempt++ {
			if pending := w.pending(uids, 50); len(pending) > 0 {
				if got := w.commit(attempt, pending...); got["busy"] > 0 {
					t.Fatalf("after %v pods are %v", time.Since(began), got)
				}
			}
			w.after(time.Second / 4)
		}
		if took := time.Since(began); took > time.Duration(3*len(uids))*between+2*time.Second {
			t.Errorf("all are bound after %v", took)
		}
	})
}

// The same in many namespaces, so that what is stuck when it is found out is as much as may be unbound.
func TestManyNamespacesOfWhichNothingCanBeWrittenHoldUpNoCommitOfOthers(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Millisecond, 10 * time.Second} {
		bubble.Test(t, func(t *testing.T) {
			w := newSlowWorld(t, hangElsewhere, source.BindUnknown, unboundAtMost(400))
			w.late.limit = places(slowWorkers)
			unknown := source.Outcome{Result: source.BindUnknown, Err: errFake}
			w.src.answers(func(b source.Binding) source.Outcome {
				if b.Namespace == "default" {
					return source.Outcome{Result: source.BindDone}
				}
				elapse(takes)
				return unknown
			})
			w.src.withdraw = func(source.Binding) source.Outcome { elapse(takes); return unknown }
			var bad []string
			for i := range 30 {
				bad = append(bad, w.make(fmt.Sprint("bad", i), 50)...)
			}
			good := w.make("default", 4)
			defer runBinds(t, w.term, slowWorkers)()
			attempt := int32(0)
			press := func() {
				pending := w.pending(bad, len(bad))
				for i := 0; i < len(pending); i += 10 {
					attempt++
					w.commit(attempt, pending[i:min(i+10, len(pending))]...)
				}
			}
			press()
			for i, uid := range good {
				for range 5 {
					w.after(4 * time.Second)
					press()
				}
				attempt++
				if got := w.commit(attempt, uid); got["assumed"] != 1 {
					t.Fatalf("%d: a pod beside them is %v; %d are unbound, %d of them stuck", i, got, w.unbound.count(), w.unbound.stuck)
				}
			}
			w.after(lateAfter)
			if n := w.count(good, "bound on a"); n != len(good) {
				t.Errorf("%d of %d others are bound", n, len(good))
			}
		})
	}
}

func TestWhatIsStuckLeavesRoomForOthersUpToABound(t *testing.T) {
	b := &bound{limit: 100}
	take := func(namespace string, n int, want bool) {
		t.Helper()
		if got := b.takeOf(map[string]int{namespace: n}); got != want {
			t.Errorf("%s takes %d: %v; %d are taken, %d of them stuck", namespace, n, got, b.taken, b.stuck)
		}
	}
	take("a", 50, true)
	take("a", 1, false)
	b.addStuck(50)
	take("a", 51, false) // of a hundred, 50 of which it has
	take("b", 50, true)
	take("b", 1, false)
	b.addStuck(50)
	b.giveOf("c", -200)
	b.addStuck(200)
	take("d", 50, true)
	b.addStuck(50)
	take("e", 25, true) // 350 are stuck, of which 300 leave room
	take("e", 1, false)
	b.addStuck(25)
	b.giveOf("f", -25) // no more than 400 in all
	take("g", 1, false)
	b.addStuck(-200)
	b.giveOf("c", 200)
	take("g", 1, true)
}

// A binder takes over as many placements as may be unbound, and nothing can be written to their pods.
func TestWhatIsTakenOverAndCannotBeWithdrawnHoldsUpNoCommitOfOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown, unboundAtMost(400))
		w.src.withdraw = func(source.Binding) source.Outcome {
			elapse(10 * time.Second)
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		}
		w.takeOver("hangs", w.make("hangs", 500))
		defer runBinds(t, w.term, slowWorkers)()
		w.after(giveBackAfter + 2*noPlace)
		good := w.make("default", 10)
		if got := w.commit(1, good...); got["assumed"] != len(good) {
			t.Errorf("others are %v; %d are unbound, %d of them stuck", got, w.unbound.count(), w.unbound.stuck)
		}
		w.after(lateAfter)
		if n := w.count(good, "bound on a"); n != len(good) {
			t.Errorf("%d of %d others are bound", n, len(good))
		}
		w.src.answers(nil)
		w.src.change(func() { w.src.withdraw = nil })
		w.after(2 * time.Minute)
		if n, stuck := w.unbound.count(), w.unbound.stuck; n != 0 || stuck != 0 {
			t.Errorf("in the end %d are unbound, %d stuck", n, stuck)
		}
	})
}

// The same, with pods that back off as those of a shard do: when the outage ends all wait for 10 s, and who is busy then for as long again.
func TestAfterAnOutageOfTheSourceThoseThatHaveBackedOffAreBoundSoon(t *testing.T) {
	for _, namespaces := range []int{1, 30, 100} {
		bubble.Test(t, func(t *testing.T) {
			const workers, outage, wave = 64, time.Minute, 10 * time.Second
			w := newSlowWorld(t, hangElsewhere, source.BindUnknown, inPlaces(places(workers)))
			began := time.Now()
			w.src.answers(func(source.Binding) source.Outcome {
				if left := outage - time.Since(began); left > 0 {
					elapse(min(left, 10*time.Second))
					return source.Outcome{Result: source.BindUnknown, Err: errFake}
				}
				elapse(20 * time.Millisecond)
				return source.Outcome{Result: source.BindDone}
			})
			var uids []string
			for i := range namespaces {
				uids = append(uids, w.make(fmt.Sprint("n", i), 1500/namespaces)...)
			}
			defer runBinds(t, w.term, workers)()
			for attempt := int32(1); w.count(uids, "bound on a") < len(uids) && time.Since(began) < 2*outage; attempt++ {
				pending := w.pending(uids, len(uids))
				for i := 0; i < len(pending); i += 100 {
					w.commit(attempt, pending[i:min(i+100, len(pending))]...)
				}
				w.after(wave)
			}
			if took := time.Since(began) - outage; took > 3*wave {
				t.Errorf("%d namespaces: all are bound %v after the end of the outage", namespaces, took)
			}
		})
	}
}
