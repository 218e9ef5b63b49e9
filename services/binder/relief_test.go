package binder

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

// How the frames of workers begin.
const (
	bindWorker = "binder.(*term).bindLane("
	lateWorker = "binder.(*term).takeTurn(" // or one that is not late, but has a call
	workWorker = "binder.work[...].func1("
)

// goroutines returns how many goroutines have a frame that begins so.
func goroutines(frame string) int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), frame)
}

// working returns how many work for a turn.
func working[K comparable, V any](t *turns[K, V]) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.working
}

// With places and without.
var bothLanes = []int{0, places(slowWorkers)}

func TestHoweverManyCallsAreLateAtOnceEachFreesItsWorker(t *testing.T) {
	for _, places := range bothLanes {
		for _, late := range []int{1, slowWorkers - 1, slowWorkers} {
			bubble.Test(t, func(t *testing.T) {
				w := newSlowWorld(t, hangElsewhere, source.BindDone, inPlaces(places))
				hang := w.place("tenant", late)
				defer runBinds(t, w.term, slowWorkers)()
				w.after(lateAfter - time.Millisecond)
				if n, calls := goroutines(bindWorker), goroutines(lateWorker); n != slowWorkers || calls != late || w.late.count() != 0 {
					t.Errorf("%d workers, %d of them with calls, of which %d are late", n, calls, w.late.count())
				}
				w.after(time.Millisecond)
				if n, calls := goroutines(bindWorker), goroutines(lateWorker); n != slowWorkers+late || calls != late || w.late.count() != late {
					t.Errorf("then %d workers, %d of them with calls, of which %d are late", n, calls, w.late.count())
				}
				uids := w.place("default", slowWorkers) // each of which needs a worker
				w.after(hangElsewhere("default"))
				if n := w.count(uids, "bound on a"); n != len(uids) {
					t.Errorf("beside %d that are late %d of %d are bound at once", late, n, len(uids))
				}
				w.after(hangElsewhere("tenant"))
				if n, bound := goroutines(bindWorker), w.count(hang, "bound on a"); n != slowWorkers || bound != late || w.late.count() != 0 || w.flights.taken != 0 {
					t.Errorf("in the end %d workers, %d of %d are bound, %d are late, %d places are taken", n, bound, late, w.late.count(), w.flights.taken)
				}
			})
		}
	}
}

// Neither call ends with its context.
func TestTheEndOfALaneWaitsForCallsThatAreLateAndForThoseOfTheWorkersInTheirPlace(t *testing.T) {
	const first, second = 5 * time.Second, time.Minute
	ends := func(t *testing.T, stop func(), frame string) {
		t.Helper()
		began := time.Now()
		elapse(lateAfter * 3 / 2)
		synctest.Wait()
		if n := goroutines(frame); n != 2 {
			t.Errorf("%d workers, one of them with a call that is late", n)
		}
		stop()
		if took := time.Since(began); took != lateAfter+second {
			t.Errorf("it ends after %v", took)
		}
		synctest.Wait()
		if n := goroutines(frame); n != 0 {
			t.Errorf("then there are %d workers", n)
		}
	}
	for _, places := range bothLanes {
		bubble.Test(t, func(t *testing.T) {
			takes := map[string]time.Duration{"first": first, "second": second}
			w := newSlowWorld(t, func(namespace string) time.Duration { return takes[namespace] }, source.BindDone, inPlaces(places))
			w.place("first", 1)
			w.place("second", 1)
			ends(t, runBinds(t, w.term, 1), bindWorker)
			if w.late.count() != 0 || w.flights.taken != 0 {
				t.Errorf("%d are late, %d places are taken", w.late.count(), w.flights.taken)
			}
		})
	}
	bubble.Test(t, func(t *testing.T) {
		turns := newTurns[time.Duration](1)
		turns.add("first", first)
		turns.add("second", second)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			work(ctx, turns, turns.next, func(_ context.Context, takes time.Duration) error { elapse(takes); return nil })
		})
		ends(t, func() { cancel(); running.Wait() }, workWorker)
		if n := working(turns); n != 0 {
			t.Errorf("%d work", n)
		}
	})
}

func TestAnErrorOfACallThatIsLateEndsItsLane(t *testing.T) {
	for _, places := range bothLanes {
		bubble.Test(t, func(t *testing.T) {
			w := newSlowWorld(t, hangElsewhere, source.BindDone, inPlaces(places))
			w.src.answers(func(source.Binding) source.Outcome {
				elapse(10 * time.Second)
				return source.Outcome{Result: source.BindRefused, Err: coord.ErrFenced}
			})
			w.place("tenant", 1)
			g, ctx := errgroup.WithContext(t.Context())
			w.spawn = g.Go
			g.Go(func() error { return w.bindLane(ctx) })
			if err := g.Wait(); !errors.Is(err, coord.ErrFenced) || w.late.count() != 0 || w.flights.taken != 0 {
				t.Errorf("%v, %d are late, %d places are taken", err, w.late.count(), w.flights.taken)
			}
		})
	}
	bubble.Test(t, func(t *testing.T) {
		turns := newTurns[string](1)
		turns.add("fails", "fails")
		turns.add("other", "other")
		began := time.Now()
		err := work(t.Context(), turns, turns.next, func(ctx context.Context, v string) error {
			if v == "fails" {
				elapse(2 * lateAfter)
				return errFake
			}
			<-ctx.Done()
			return nil
		})
		if took := time.Since(began); !errors.Is(err, errFake) || took != 2*lateAfter || working(turns) != 0 {
			t.Errorf("%v after %v, and %d work", err, took, working(turns))
		}
	})
}

// oftenLate are how long calls take, of which some are late, and some so nearly that either may be.
var oftenLate = []time.Duration{
	0, lateAfter / 10, lateAfter / 2, lateAfter - 1, lateAfter, lateAfter, lateAfter + 1, 2 * lateAfter, 10 * lateAfter, time.Minute,
}

// Whatever takes long, and fails, and in whatever order: as many workers as ever are there for what is not late.
func TestABindLaneHasAWorkerMoreForEachCallThatIsLateAndNoOther(t *testing.T) {
	for seed := range uint64(10) {
		bubble.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			w := newSlowWorld(t, hangElsewhere, source.BindDone, inPlaces(bothLanes[seed%2]))
			limit := 1 + r.IntN(2*slowWorkers)
			w.late.limit = limit
			var mu sync.Mutex
			calls := 0
			call := func(results ...source.Outcome) func(source.Binding) source.Outcome {
				return func(source.Binding) source.Outcome {
					mu.Lock()
					takes, outcome := oftenLate[r.IntN(len(oftenLate))], results[r.IntN(len(results))]
					if calls++; calls > slowWorkers+limit {
						t.Errorf("seed %d: %d calls are under way", seed, calls)
					}
					mu.Unlock()
					elapse(takes)
					mu.Lock()
					defer mu.Unlock()
					calls--
					return outcome
				}
			}
			refused, unknown := source.Outcome{Result: source.BindRefused, Err: errFake}, source.Outcome{Result: source.BindUnknown, Err: errFake}
			changed := source.Outcome{Result: source.BindUnknown, Err: errors.Join(source.ErrChanged, errFake)}
			w.src.answers(call(source.Outcome{Result: source.BindDone}, source.Outcome{Result: source.BindDone}, refused, unknown, changed))
			w.src.withdraw = call(refused, unknown)
			stop := runBinds(t, w.term, slowWorkers)
			var uids []string
			most := 0
			for step := range 60 {
				mu.Lock()
				many, namespace, d := r.IntN(8), fmt.Sprint(r.IntN(5)), time.Duration(r.IntN(20))*lateAfter/10
				mu.Unlock()
				for range many {
					uid := fmt.Sprint("p", len(uids))
					uids = append(uids, uid)
					w.pod(uid, namespace)
					w.binds <- assume(t, w.term, uid, "a")
				}
				w.after(d)
				late := w.late.count()
				most = max(most, late)
				if n := goroutines(bindWorker); n != slowWorkers+late || late > limit {
					t.Fatalf("seed %d, step %d: %d workers, and %d binds are late, of %d that may be", seed, step, n, late, limit)
				}
			}
			if most == 0 {
				t.Errorf("seed %d: none was late", seed)
			}
			w.src.answers(nil)
			w.src.change(func() { w.src.withdraw = nil })
			w.after(10 * time.Minute)
			if n, bound, pending := goroutines(bindWorker), w.count(uids, "bound on a"), w.count(uids, "pending"); n != slowWorkers || bound+pending != len(uids) || w.unbound.count() != 0 || w.late.count() != 0 || w.flights.taken != 0 || working(&w.turns) != 0 || refusals(t, w.term) != 0 {
				t.Errorf("seed %d: in the end %d workers, %d are bound and %d pending of %d, %d late", seed, n, bound, pending, len(uids), w.late.count())
			}
			stop()
			if n := goroutines(bindWorker); n != 0 {
				t.Errorf("seed %d: %d workers are left", seed, n)
			}
		})
	}
}

func TestALaneHasAWorkerMoreForEachWriteThatIsLateAndNoOther(t *testing.T) {
	for seed := range uint64(10) {
		bubble.Test(t, func(t *testing.T) {
			const workers = 3
			r := rand.New(rand.NewPCG(seed, 2))
			turns := newTurns[time.Duration](workers)
			var mu sync.Mutex
			began, last := map[int]time.Time{}, 0
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			for range workers {
				running.Go(func() {
					if err := work(ctx, turns, turns.next, func(_ context.Context, takes time.Duration) error {
						mu.Lock()
						last++
						call := last
						began[call] = time.Now()
						mu.Unlock()
						elapse(takes)
						mu.Lock()
						defer mu.Unlock()
						delete(began, call)
						return nil
					}); err != nil {
						t.Errorf("seed %d: %v", seed, err)
					}
				})
			}
			came, most := 0, 0
			for step := range 60 {
				for range r.IntN(4) {
					turns.add(fmt.Sprint(r.IntN(5)), oftenLate[r.IntN(len(oftenLate))])
					came++
				}
				elapse(time.Duration(r.IntN(20)) * lateAfter / 10)
				synctest.Wait()
				mu.Lock()
				late := 0
				for _, began := range began {
					if time.Since(began) >= lateAfter {
						late++
					}
				}
				most = max(most, late)
				if n := goroutines(workWorker); n != workers+late || len(began) != working(turns) {
					t.Fatalf("seed %d, step %d: %d workers, and %d of %d writes are late, which are counted as %d", seed, step, n, late, len(began), working(turns))
				}
				mu.Unlock()
			}
			if most == 0 {
				t.Errorf("seed %d: none was late", seed)
			}
			elapse(time.Hour)
			synctest.Wait()
			mu.Lock()
			written := last
			mu.Unlock()
			if n := goroutines(workWorker); n != workers || written != came || working(turns) != 0 || turns.waiting() != 0 {
				t.Errorf("seed %d: in the end %d workers, %d of %d are written", seed, n, written, came)
			}
			cancel()
			running.Wait()
			if n := goroutines(workWorker); n != 0 {
				t.Errorf("seed %d: %d workers are left", seed, n)
			}
		})
	}
}
