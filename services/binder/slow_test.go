package binder

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// slowWorld is a term of which some workers of the bind lane run, on a source whose binds take long in some namespaces.
type slowWorld struct {
	*term
	t   *testing.T
	src *fakeSource
}

const slowWorkers = 8 // so there are 32 places, of which a lone namespace has 16

// newSlowWorld makes one in which binds take as long as it is said, and are then as it is said.
func newSlowWorld(t *testing.T, takes func(namespace string) time.Duration, then source.Result) *slowWorld {
	t.Helper()
	w := &slowWorld{t: t, src: newFakeSource()}
	w.term = pureTerm(t, single{w.src})
	w.flights.most = places(slowWorkers)
	w.binds, w.unbound = make(chan *placement, 2000), &bound{limit: 2000}
	w.recorder = newRecorder(&recorded{batches: make(map[int64][]coord.Intent)}, false, w.ledger.version, make(chan *placement, 2000), w.move, func(time.Duration) {}, w.log)
	w.reports = newReportLane(w.src, 2000, w.unbound, w.waits, func(error) {})
	observe(t, w.term, node("a", 1_000_000))
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
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
		var uids []string
		var intents []coord.Intent
		for i := range 600 {
			uid := fmt.Sprint("hangs-", i)
			w.pod(uid, "hangs")
			uids = append(uids, uid)
			in := meant(uid, "a")
			in.Namespace = "hangs"
			intents = append(intents, in)
		}
		taken, err := w.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 1, Intents: intents}}})
		if err != nil || len(taken) != len(uids) {
			t.Fatalf("%d taken over, %v", len(taken), err)
		}
		for _, p := range taken {
			w.binds <- p
		}
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
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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

func TestAPlaceGoesToTheNamespaceWithTheFewest(t *testing.T) {
	f := flights{most: 8}
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
		next := f.give(has[0].place)
		has = has[1:]
		if next == nil {
			continue
		}
		if next.place == nil || !slices.Contains(waits, next) {
			t.Fatalf("%s has a place, and did not wait for one", next.Namespace)
		}
		waits = slices.DeleteFunc(waits, func(p *placement) bool { return p == next })
		has = append(has, next)
	}
	if len(waits) > 0 || f.taken != 0 || len(f.of) > 0 {
		t.Errorf("in the end %d wait, %d places are taken, %d namespaces are known", len(waits), f.taken, len(f.of))
	}
}
