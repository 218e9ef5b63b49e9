package binder

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

// almostLate says that binds take almost as long as they may without being late, but in the namespace default.
func almostLate(namespace string) time.Duration {
	if namespace == "default" {
		return 10 * time.Millisecond
	}
	return lateAfter * 9 / 10
}

func TestBindsThatTakeLongButAreNotLateKeepOthersWaitingNoLongerThanOneOfThem(t *testing.T) {
	for _, namespaces := range []int{1, 5, 100} {
		bubble.Test(t, func(t *testing.T) {
			w := newSlowWorld(t, almostLate, source.BindDone)
			for i := range namespaces {
				w.place(fmt.Sprint("tenant", i), 1000/namespaces)
			}
			defer runBinds(t, w.term, slowWorkers)()
			w.after(lateAfter / 2)
			uids := w.place("default", 1)
			w.after(time.Duration(1+namespaces/slowWorkers) * lateAfter)
			if n := w.count(uids, "bound on a"); n != len(uids) {
				t.Errorf("behind 1000 pods of %d namespaces it is not bound", namespaces)
			}
		})
	}
}

// Workers are shared, not turns: else one of them would have a worker for 10 ms as often as the other has one for 900 ms.
func TestNamespacesShareTheWorkers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, almostLate, source.BindDone)
		w.place("tenant", 500)
		uids := w.place("default", 1000)
		defer runBinds(t, w.term, slowWorkers)()
		w.after(4 * lateAfter) // half of the workers bind 400 in a second
		if n := w.count(uids, "bound on a"); n != len(uids) {
			t.Errorf("%d of %d are bound", n, len(uids))
		}
	})
}

func TestAllWorkersWork(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, almostLate, source.BindDone)
		defer runBinds(t, w.term, slowWorkers)()
		synctest.Wait() // they wait
		uids := w.place("tenant", slowWorkers)
		w.after(lateAfter)
		if n := w.count(uids, "bound on a"); n != len(uids) {
			t.Errorf("%d of %d are bound in the time that one takes", n, len(uids))
		}
		if n := w.turns.waiting(); n != 0 || len(w.turns.of) != 0 || len(w.turns.order) != 0 {
			t.Errorf("%d wait, %v are kept", n, w.turns.of)
		}
	})
}

// Whatever comes and goes, a worker is for the namespace for which the fewest work, the first of it goes first, and all come out.
func TestAWorkerIsForTheNamespaceForWhichTheFewestWork(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		turns := turns[whose, *placement]{more: make(chan struct{}, 1)}
		waits := map[whose][]*placement{}
		work := map[whose]int{}
		var working []*turn[whose, *placement]
		waiting := 0
		serve := func() {
			select {
			case <-turns.more:
			default:
			}
			p, of := turns.next()
			if p == nil {
				if waiting > 0 {
					t.Fatalf("seed %d: nobody is the next of %d", seed, waiting)
				}
				return
			}
			for other, those := range waits {
				if len(those) > 0 && work[other] < work[of.whose] {
					t.Fatalf("seed %d: %d work for %v, and it is served before %v with %d", seed, work[of.whose], of.whose, other, work[other])
				}
			}
			if waits[of.whose][0] != p {
				t.Fatalf("seed %d: one that came later goes first", seed)
			}
			waits[of.whose] = waits[of.whose][1:]
			work[of.whose]++
			working = append(working, of)
			waiting--
			if len(turns.more) == 0 && waiting > 0 {
				t.Fatalf("seed %d: no other worker is told that %d wait", seed, waiting)
			}
		}
		done := func() {
			i := r.IntN(len(working))
			work[working[i].whose]--
			turns.done(working[i])
			working = slices.Delete(working, i, i+1)
		}
		for range 500 {
			switch k := r.IntN(5); {
			case k < 2:
				p := &placement{Namespace: fmt.Sprint(r.IntN(6))}
				if r.IntN(4) == 0 {
					p.state = stateWithdrawing
				}
				turns.add(p.whose(), p)
				waits[p.whose()] = append(waits[p.whose()], p)
				waiting++
			case k < 4 && len(working) < slowWorkers:
				serve()
			case len(working) > 0:
				done()
			}
			if n := turns.waiting(); n != waiting {
				t.Fatalf("seed %d: %d wait, counted as %d", seed, waiting, n)
			}
		}
		for waiting > 0 {
			serve()
		}
		for len(working) > 0 {
			done()
		}
		if len(turns.of) != 0 || len(turns.order) != 0 {
			t.Fatalf("seed %d: %v is left", seed, turns.of)
		}
	}
}

func TestNobodyHasMoreUnderWayThanCouldBeginBeside(t *testing.T) {
	turns := newTurns[int](4) // 16
	wants := []int{8, 4, 2, 1, 1}
	for range maxLate - 16 {
		wants = append(wants, 1) // who has none may always have one, within reason
	}
	for whose, want := range append(wants, 0) {
		for i := range 20 {
			turns.add(fmt.Sprint(whose), i)
		}
		n := 0
		for v, of := turns.next(); of != nil; v, of = turns.next() {
			if v != n || of.whose != fmt.Sprint(whose) {
				t.Fatalf("%d of %s is the next", v, of.whose)
			}
			n++
		}
		if n != want || !turns.slow(fmt.Sprint(whose)) {
			t.Errorf("behind %d others %d begin, want %d", whose, n, want)
		}
	}
	first := turns.of["0"]
	turns.done(first)
	if len(turns.more) != 1 {
		t.Error("nobody is told that one is done")
	}
	if _, of := turns.next(); of != turns.of[fmt.Sprint(len(wants))] {
		t.Errorf("then one of %v begins", of)
	}
}

// bothTurns are of namespaces that are words of what waits.
func bothTurns() *turns[string, string] {
	turns := newTurns[string](4) // 16
	turns.all = strings.Fields
	return turns
}

// begun takes as many as may begin.
func begun(turns *turns[string, string]) (begun []string, of []*turn[string, string]) {
	for v, n := turns.next(); n != nil; v, n = turns.next() {
		begun, of = append(begun, v), append(of, n)
	}
	return begun, of
}

func TestWhatIsOfSeveralNamespacesIsUnderWayForEach(t *testing.T) {
	turns := bothTurns()
	for range 20 {
		turns.add("a", "a")
	}
	of := make([]*turn[string, string], 0, 8)
	for range 8 {
		_, n := turns.next()
		of = append(of, n)
	}
	for range 20 {
		turns.add("b", "b a")
	}
	turns.add("b", "b")
	if got, _ := begun(turns); !slices.Equal(got, []string{"b"}) {
		t.Errorf("beside a, which has its share, %v begin", got)
	}
	turns.add("b", "b")
	turns.done(of[0])
	turns.done(of[1])
	if got, _ := begun(turns); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("when two of a are done, %v begin", got)
	}
}

// Whatever comes and goes, it counts for whom it is, none of them had its share before, and all come out.
func TestWhatIsOfSeveralNamespacesIsNeitherLostNorKept(t *testing.T) {
	kinds := []string{"a", "b", "c", "a b", "b a", "b c", "c a b", "d a"}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		turns := bothTurns()
		work := map[string]int{}
		var working []string
		var of []*turn[string, string]
		came, went := 0, 0
		serve := func() {
			v, n := turns.next()
			if n == nil {
				return
			}
			for _, whose := range strings.Fields(v) {
				if work[whose] > 0 && work[whose] >= 16-len(working) {
					t.Fatalf("seed %d: %q begins beside %v", seed, v, work)
				}
				work[whose]++
			}
			working, of = append(working, v), append(of, n)
		}
		done := func(i int) {
			for _, whose := range strings.Fields(working[i]) {
				work[whose]--
			}
			turns.done(of[i])
			working, of = slices.Delete(working, i, i+1), slices.Delete(of, i, i+1)
			went++
		}
		for range 300 {
			switch k := r.IntN(6); {
			case k == 5 && r.IntN(4) == 0:
				kind, before := kinds[r.IntN(len(kinds))], turns.waiting()
				out := turns.takeOut(func(v string) bool { return v == kind })
				for _, v := range out {
					if v != kind {
						t.Fatalf("seed %d: of %q %q is taken out", seed, kind, v)
					}
				}
				if n := turns.waiting(); n != before-len(out) || len(turns.takeOut(func(v string) bool { return v == kind })) > 0 {
					t.Fatalf("seed %d: of %d %d are taken out, and %d wait", seed, before, len(out), n)
				}
				went += len(out)
			case k < 2:
				v := kinds[r.IntN(len(kinds))]
				turns.add(strings.Fields(v)[0], v)
				came++
			case k < 4:
				serve()
			case len(of) > 0:
				done(r.IntN(len(of)))
			}
			for whose, n := range work {
				if is := turns.of[whose]; is == nil && n > 0 || is != nil && is.workers != n {
					t.Fatalf("seed %d: %d are under way for %s, counted as %+v", seed, n, whose, is)
				}
			}
			for whose, n := range turns.of {
				if n.workers == 0 && len(n.waiting) == 0 {
					t.Fatalf("seed %d: nothing is of %s, which is kept", seed, whose)
				}
			}
		}
		for went < came {
			for serve(); len(of) == 0; {
				t.Fatalf("seed %d: none of %d begins", seed, turns.waiting())
			}
			done(0)
		}
		if len(turns.of) != 0 || len(turns.order) != 0 || turns.working != 0 {
			t.Fatalf("seed %d: %v is left", seed, turns.of)
		}
	}
}

// hanging is a source whose binds take as long as it is said, unless their context ends.
type hanging struct {
	single
	takes func(namespace string) time.Duration
}

func (h hanging) Bind(ctx context.Context, fence coord.Cond, bindings []source.Binding) []source.Outcome {
	timer := time.NewTimer(h.takes(bindings[0].Namespace))
	defer timer.Stop()
	select {
	case <-timer.C:
		return h.single.Bind(ctx, fence, bindings)
	case <-ctx.Done():
		return []source.Outcome{{Result: source.BindUnknown, Err: ctx.Err()}}
	}
}

// Nothing says which of the namespaces are slow that were quick until now, but a bind of each. No worker waits for one of them longer
// than it takes to know.
func TestWorkersWaitForNoBindForLongHoweverManyHangAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const namespaces = 100
		var hangs atomic.Bool
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
		w.src.answers(nil)
		w.late.limit = places(slowWorkers)
		w.source = hanging{single{w.src}, func(namespace string) time.Duration {
			if namespace == "default" || !hangs.Load() {
				return 10 * time.Millisecond
			}
			return 10 * time.Second
		}}
		defer runBinds(t, w.term, slowWorkers)()
		var uids []string
		place := func(uid, namespace string) {
			uids = append(uids, uid)
			w.pod(uid, namespace)
			w.binds <- assume(t, w.term, uid, "a")
		}
		all := func(name string) {
			for i := range namespaces {
				place(fmt.Sprint(name, i), fmt.Sprint("tenant", i))
			}
		}
		all("before")
		w.after(2 * lateAfter)
		hangs.Store(true)
		all("first")
		all("second")
		place("other", "default")
		// So many are late, and then each worker takes a second to know another.
		w.after(time.Duration(namespaces/slowWorkers+2) * lateAfter)
		if got := where(w.term, "other"); got != "bound on a" {
			t.Errorf("beside %d namespaces whose binds hang all at once a pod is %s", namespaces, got)
		}
		hangs.Store(false)
		w.after(time.Minute)
		if bound, pending := w.count(uids, "bound on a"), w.count(uids, "pending"); bound+pending != len(uids) || w.unbound.count() != 0 || w.late.count() != 0 || w.flights.taken != 0 {
			t.Errorf("in the end %d are bound and %d pending of %d, %d places are taken", bound, pending, len(uids), w.flights.taken)
		}
	})
}

// A call that binds pods of a shared name goes on for a while when the term ends, but not when it is cut off.
func TestAWorkerWaitsNoLongerForABindOfASharedNameThatIsCutOff(t *testing.T) {
	for _, c := range []struct {
		end   func(w *slowWorld, cut func())
		after time.Duration
	}{
		{func(_ *slowWorld, cut func()) { cut() }, 0},
		{func(w *slowWorld, cut func()) { w.term.done = over(); cut() }, lastWord},
		{func(w *slowWorld, cut func()) { w.term.lease = over(); cut() }, 0},
		{func(w *slowWorld, cut func()) { w.term.lease, w.term.done = over(), over(); cut() }, 0},
	} {
		bubble.Test(t, func(t *testing.T) {
			w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
			w.term.lease, w.term.done = make(chan struct{}), make(chan struct{})
			stint, _ := w.names.taken(time.Now().Add(time.Hour))
			w.names.begin(stint)
			ctx, cut := context.WithCancel(t.Context())
			call, done := w.callFor(ctx, stint)
			defer done()
			c.end(w, cut)
			began := time.Now()
			<-call.Done()
			if took := time.Since(began); took != c.after {
				t.Errorf("the call ends after %v, want %v", took, c.after)
			}
		})
	}
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
		w.source = hanging{single{w.src}, hangElsewhere}
		w.term.lease, w.term.done = make(chan struct{}), make(chan struct{})
		stint, _ := w.names.taken(time.Now().Add(time.Hour))
		w.names.begin(stint)
		w.late.limit, w.late.taken = 0, 1 // as many are late as may be
		w.pod("p", "tenant")
		p := assume(t, w.term, "p", "a")
		p.shared, p.stint = true, stint
		defer runBinds(t, w.term, 0)()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		relieved, err := w.takeTurn(ctx, []*placement{p}, nil)
		if took := time.Since(began); took != lateAfter || relieved || err != nil {
			t.Errorf("the worker is held for %v, is relieved %v, and returns %v", took, relieved, err)
		}
	})
}

// over returns what is closed when something has ended.
func over() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestABindThatIsCutOffSaysWhy(t *testing.T) {
	w := newSlowWorld(t, hangElsewhere, source.BindUnknown)
	w.source = hanging{single{w.src}, hangElsewhere}
	w.pod("p", "tenant")
	p := assume(t, w.term, "p", "a")
	calls, cut := context.WithCancel(t.Context())
	cut()
	p.place = &place{flight: &flight{whose: p.whose()}, calls: calls}
	w.troubles.note("tenant", time.Now()) // so it is withdrawn at once
	if err := w.bind(t.Context(), []*placement{p}); err != nil {
		t.Fatal(err)
	}
	if got := w.src.withdrawals(); len(got) != 1 || !strings.Contains(got[0].Message, errCutOff.Error()) {
		t.Errorf("it is said %+v", got)
	}
}
