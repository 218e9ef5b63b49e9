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
}

// newTurns returns the turns of a lane with so many workers, by namespace.
func newTurns[V any](workers int) *turns[string, V] {
	return &turns[string, V]{more: make(chan struct{}, 1), most: places(workers)}
}

// add has something wait for its turn.
func (t *turns[K, V]) add(whose K, v V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.of[whose]
	if n == nil {
		if t.of == nil {
			t.of = make(map[K]*turn[K, V])
		}
		n = &turn[K, V]{whose: whose}
		t.of[whose] = n
	}
	if n.waiting = append(n.waiting, v); len(n.waiting) == 1 {
		t.order = append(t.order, n)
	}
	t.signal()
}

// signal has a worker look. The caller holds the lock.
func (t *turns[K, V]) signal() {
	select {
	case t.more <- struct{}{}:
	default:
	}
}

// next returns what is the next, and whose turn that is: nil if nothing waits, or all for whom something does have their share.
func (t *turns[K, V]) next() (v V, of *turn[K, V]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		return v, nil
	}
	at := 0
	for i, n := range t.order {
		if n.workers < t.order[at].workers {
			at = i
		}
		if n.workers == 0 {
			break // hardly more than may work are looked at
		}
	}
	n := t.order[at]
	if t.has(n) {
		return v, nil
	}
	t.order = slices.Delete(t.order, at, at+1)
	v = pop(&n.waiting)
	if len(n.waiting) > 0 {
		t.order = append(t.order, n)
	}
	n.workers++
	t.working++
	if len(t.order) > 0 {
		t.signal()
	}
	return v, n
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
	if n.workers--; n.workers == 0 && len(n.waiting) == 0 {
		delete(t.of, n.whose)
	}
	if len(t.order) > 0 {
		t.signal()
	}
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

// work is one worker of a lane; any number may run. It takes what next returns, and goes on when that is done, or late: the rest
// ends by itself, as much of it at once as the turns let. It returns, with an error of do, if there is one, when all has ended.
func work[V any](
	ctx context.Context, turns *turns[string, V], next func() (V, *turn[string, V]), do func(context.Context, V) error,
) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for ctx.Err() == nil {
			v, of := next()
			if of == nil {
				select {
				case <-ctx.Done():
				case <-turns.more:
				}
				continue
			}
			done := make(chan struct{})
			g.Go(func() error {
				defer close(done)
				defer turns.done(of)
				return do(ctx, v)
			})
			select {
			case <-done:
			case <-time.After(lateAfter):
			}
		}
		return nil
	})
	return g.Wait()
}
