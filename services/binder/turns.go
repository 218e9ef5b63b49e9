package binder

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// turns are what waits for a worker. A worker that is free is for whom the fewest work, and of these for who was served longest ago:
// who has many binds, say, or some that take long but are not late, keeps others waiting no longer than one of them takes.
// It is safe for concurrent use.
type turns[K comparable, V any] struct {
	more chan struct{} // holds one value while a worker without work is to look again
	most int           // of what is under way, of which nobody has more than could begin beside, but one; 0: any number
	all  func(V) []K   // all for whom it is under way, who has the turn among them; nil: only who has the turn

	mu      sync.Mutex
	of      map[K]*turn[K, V] // those of which none waits and for which nobody works are not there
	order   []*turn[K, V]     // those of which some wait; who was served last comes last
	working int
}

// turn is what waits of somebody, a namespace say, and how many work for it.
type turn[K comparable, V any] struct {
	whose   K
	waiting []V // in the order in which they came
	workers int
	with    []*turn[K, V] // what is returned for one that is for several: theirs
}

// newTurns returns the turns of a lane with so many workers, by namespace.
func newTurns[V any](workers int) *turns[string, V] {
	return &turns[string, V]{more: make(chan struct{}, 1), most: places(workers)}
}

// add has something wait for its turn.
func (t *turns[K, V]) add(whose K, v V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(t.turnOf(whose), v)
	t.signal()
}

// turnOf returns the turn of somebody. The caller holds the lock.
func (t *turns[K, V]) turnOf(whose K) *turn[K, V] {
	n := t.of[whose]
	if n == nil {
		if t.of == nil {
			t.of = make(map[K]*turn[K, V])
		}
		n = &turn[K, V]{whose: whose}
		t.of[whose] = n
	}
	return n
}

// put has something wait for a turn. The caller holds the lock.
func (t *turns[K, V]) put(n *turn[K, V], v V) {
	if n.waiting = append(n.waiting, v); len(n.waiting) == 1 {
		t.order = append(t.order, n)
	}
}

// signal has a worker look. The caller holds the lock.
func (t *turns[K, V]) signal() {
	select {
	case t.more <- struct{}{}:
	default:
	}
}

// next returns what is the next, and whose turn that is: nil if nothing waits, or all for whom something does have their share. What is for
// several waits with one that has its share, so that it keeps nothing of the others waiting.
func (t *turns[K, V]) next() (v V, of *turn[K, V]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.order) > 0 {
		at := t.first()
		n := t.order[at]
		if t.has(n) {
			return v, nil
		}
		with, has := t.with(n)
		first := t.pop(at)
		if has != nil {
			t.put(has, first)
			t.drop(n)
			continue
		}
		for _, n := range with {
			n.workers++
		}
		t.working++
		if len(t.order) > 0 {
			t.signal()
		}
		if len(with) > 1 {
			n = &turn[K, V]{whose: n.whose, with: with}
		}
		return first, n
	}
	return v, nil
}

// first returns whose turn is the next of those in the order, of which there are some. The caller holds the lock.
func (t *turns[K, V]) first() (at int) {
	for i, n := range t.order {
		if n.workers < t.order[at].workers {
			at = i
		}
		if n.workers == 0 {
			break // hardly more than may work are looked at
		}
	}
	return at
}

// with returns all for whom the first that waits for a turn is, or one of the others that has its share. The caller holds the lock.
func (t *turns[K, V]) with(n *turn[K, V]) (with []*turn[K, V], has *turn[K, V]) {
	with = []*turn[K, V]{n}
	if t.all == nil {
		return with, nil
	}
	all := t.all(n.waiting[0])
	for _, whose := range all {
		if other := t.of[whose]; other != nil && other != n && t.has(other) {
			return nil, other
		}
	}
	for _, whose := range all {
		if whose != n.whose {
			with = append(with, t.turnOf(whose))
		}
	}
	return with, nil
}

// pop takes the first that waits for a turn. The caller holds the lock.
func (t *turns[K, V]) pop(at int) V {
	n := t.order[at]
	t.order = slices.Delete(t.order, at, at+1)
	v := pop(&n.waiting)
	if len(n.waiting) > 0 {
		t.order = append(t.order, n)
	}
	return v
}

// has reports whether as much is under way for somebody as may be: no more than could begin beside. For whom nothing is, something may
// begin beyond that, or a few who have their shares would keep all others waiting. The caller holds the lock.
func (t *turns[K, V]) has(n *turn[K, V]) bool {
	switch {
	case t.most == 0:
		return false
	case n.workers == 0:
		return t.working >= maxLate
	}
	return n.workers >= t.most-t.working
}

// slow reports whether as much is under way for somebody as may be, which it is where it ends late.
func (t *turns[K, V]) slow(whose K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.of[whose]
	return n != nil && t.has(n)
}

// done says that the work for a turn is done, if there was one.
func (t *turns[K, V]) done(n *turn[K, V]) {
	if n == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.working--
	with := n.with
	if with == nil {
		with = []*turn[K, V]{n}
	}
	for _, n := range with {
		n.workers--
		t.drop(n)
	}
	if len(t.order) > 0 {
		t.signal()
	}
}

// drop forgets somebody of whom nothing waits and for whom nobody works. The caller holds the lock.
func (t *turns[K, V]) drop(n *turn[K, V]) {
	if n.workers == 0 && len(n.waiting) == 0 {
		delete(t.of, n.whose)
	}
}

// takeOut takes out what waits and is meant, and returns it: its turn does not come.
func (t *turns[K, V]) takeOut(meant func(V) bool) (out []V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.order = slices.DeleteFunc(t.order, func(n *turn[K, V]) bool {
		n.waiting = slices.DeleteFunc(n.waiting, func(v V) bool {
			if !meant(v) {
				return false
			}
			out = append(out, v)
			return true
		})
		t.drop(n)
		return len(n.waiting) == 0
	})
	return out
}

// waiting returns how many wait for a worker.
func (t *turns[K, V]) waiting() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range t.order {
		n += len(of.waiting)
	}
	return n
}

// work is one worker of a lane; any number may run. It does what next returns, one after the other. If that is late, another worker takes
// its place, and it ends when that is done: so much is under way at once as the turns let. work returns, with an error of do, if there is
// one, when all of them have ended.
func work[V any](
	ctx context.Context, turns *turns[string, V], next func() (V, *turn[string, V]), do func(context.Context, V) error,
) error {
	g, ctx := errgroup.WithContext(ctx)
	var worker func() error
	worker = func() error {
		for ctx.Err() == nil {
			v, of := next()
			if of == nil {
				select {
				case <-ctx.Done():
				case <-turns.more:
				}
				continue
			}
			relieved := false
			err := inTime(func() error {
				defer turns.done(of)
				return do(ctx, v)
			}, func() {
				relieved = true
				g.Go(worker)
			})
			if relieved || err != nil {
				return err
			}
		}
		return nil
	}
	g.Go(worker)
	return g.Wait()
}

// inTime has a worker make a call, and returns the call's error. If the call takes longer than lateAfter, late is called meanwhile, once, by
// another goroutine, and has returned when inTime does.
//
// The worker makes the call itself, and is relieved if it is late: a goroutine of its own for each call would grow its stack anew each time (BenchmarkCall).
func inTime(call func() error, late func()) error {
	done := make(chan struct{})
	timer := time.AfterFunc(lateAfter, func() {
		defer close(done)
		late()
	})
	defer func() {
		if !timer.Stop() {
			<-done
		}
	}()
	return call()
}
