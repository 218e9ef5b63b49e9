package binder

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/internal/source"
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
		synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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
		turns := turns{more: make(chan struct{}, 1)}
		waits := map[whose][]*placement{}
		work := map[whose]int{}
		var working []*turn
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
				turns.add(p)
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
