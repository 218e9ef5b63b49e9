package binder

import (
	"slices"
	"sync"
)

// turns are the placements that wait for a worker, where each needs a place. A worker that is free is for the namespace for which the fewest
// work, and of these for the one that was served longest ago: who has many binds, or some that take long but are not late, keeps others
// waiting no longer than one of them takes.
// It is safe for concurrent use.
type turns struct {
	more chan struct{} // holds one value while a worker without work is to look again

	mu    sync.Mutex
	of    map[whose]*turn // those of which none waits and for which nobody works are not there
	order []*turn         // those of which some wait; who was served last comes last
}

// turn is what waits of a namespace, and how many work for it.
type turn struct {
	whose
	waiting []*placement // in the order in which they came
	workers int
}

// add has a placement wait for its turn.
func (t *turns) add(p *placement) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := p.whose()
	n := t.of[of]
	if n == nil {
		if t.of == nil {
			t.of = make(map[whose]*turn)
		}
		n = &turn{whose: of}
		t.of[of] = n
	}
	if n.waiting = append(n.waiting, p); len(n.waiting) == 1 {
		t.order = append(t.order, n)
	}
}

// next returns who is the next, nil if nobody waits, and whose turn that is.
func (t *turns) next() (*placement, *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		return nil, nil
	}
	at := 0
	for i, n := range t.order {
		if n.workers < t.order[at].workers {
			at = i
		}
		if n.workers == 0 {
			break // hardly more than there are workers are looked at
		}
	}
	n := t.order[at]
	t.order = slices.Delete(t.order, at, at+1)
	p := pop(&n.waiting)
	if len(n.waiting) > 0 {
		t.order = append(t.order, n)
	}
	n.workers++
	if len(t.order) > 0 {
		select {
		case t.more <- struct{}{}:
		default:
		}
	}
	return p, n
}

// done says that a worker has done its work for a turn, if there was one.
func (t *turns) done(n *turn) {
	if n == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.workers--; n.workers == 0 && len(n.waiting) == 0 {
		delete(t.of, n.whose)
	}
}

// waiting returns how many wait for a worker.
func (t *turns) waiting() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range t.order {
		n += len(of.waiting)
	}
	return n
}
