package binder

import (
	"context"
	"sync"
	"time"
)

// flights are the calls under way, by namespace. There are so many places for them, and namespaces share these:
//
//   - None has more places than are free. So a webhook of one namespace that does not answer leaves half of them to others, two such leave
//     a quarter, and so on.
//   - The binds of all slow namespaces together have half of the places. Their withdrawals, by which binds without an answer end, have a
//     quarter besides.
//   - All namespaces of which nothing is known have a quarter. A call of theirs that is late counts among those of slow ones from then on.
//
// Who finds no place waits until one is given back. It is safe for concurrent use.
type flights struct {
	most  int                           // places; 0: any number
	trust func(string, time.Time) trust // how far a namespace is trusted

	mu      sync.Mutex
	taken   int
	slow    map[bool]int      // by whose.withdraws: of these, those of namespaces that were slow then, and those that are late
	unknown int               // of these, those of namespaces of which nothing was known then, but for late ones
	of      map[whose]*flight // those with none under way of which none waits are not there
}

// whose says what turns and places are for.
type whose struct {
	namespace string // see bindsWith
	withdraws bool
}

// whose says whose turns of a placement are, as it is.
func (p *placement) whose() whose { return whose{p.with(), p.state == stateWithdrawing} }

// flight is what is under way of a namespace. While others of it wait, it has as many places as it may have.
type flight struct {
	whose
	taken   int
	late    int          // of those that are taken
	waiting []*placement // the lane's, in the order in which they came
}

// place is what a placement has for one turn.
type place struct {
	*flight
	trust       trust           // as which it is counted
	calls       context.Context // of its turn's calls
	late, given bool
}

// places returns how many calls may be under way with so many workers. Of those that get no answer for 10 s, half of four for each worker
// take a fifth of the workers' time, as each has one for lateAfter. All of them may be late.
func places(workers int) int { return min(4*workers, maxLate) }

// take takes a place for a placement's turn. False: its namespace has its share, and the placement waits.
func (f *flights) take(p *placement, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := p.whose()
	n := f.of[of]
	if n == nil {
		if f.of == nil {
			f.of = make(map[whose]*flight)
		}
		n = &flight{whose: of}
		f.of[of] = n
	}
	trust := f.trust(p.with(), now)
	if !f.admits(n, trust) {
		p.waits = now
		n.waiting = append(n.waiting, p)
		return false
	}
	f.takeFor(n, p, trust)
	return true
}

// admits reports whether a namespace may have one place more. One that is trusted, and has none, always may. The caller holds the lock.
func (f *flights) admits(n *flight, trust trust) bool {
	quarter := max(1, f.most/4)
	switch {
	case trust == slow && n.withdraws:
		if f.slow[true] >= quarter {
			return false
		}
	case trust == slow:
		if f.slow[false] >= 2*quarter {
			return false
		}
	case trust == unknown:
		if f.unknown >= quarter || f.unknown+f.slow[false]+f.slow[true] >= f.most {
			return false
		}
	}
	return n.taken == 0 || n.taken < f.most-f.taken
}

func (f *flights) takeFor(n *flight, p *placement, trust trust) {
	n.taken++
	f.taken++
	p.place = &place{flight: n, trust: trust}
	f.count(p.place, 1)
}

// count counts a place among those that are trusted as far. The caller holds the lock.
func (f *flights) count(p *place, by int) {
	switch p.trust {
	case slow:
		if f.slow == nil {
			f.slow = make(map[bool]int)
		}
		f.slow[p.withdraws] += by
	case unknown:
		f.unknown += by
	}
}

// late notes that the call of a place is late, and returns how many of its namespace are under way, and how many of these are late.
func (f *flights) late(p *place) (taken, late int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.given {
		return 0, 0
	}
	if !p.late {
		p.late = true
		p.flight.late++
		f.count(p, -1)
		p.trust = slow
		f.count(p, 1)
	}
	return p.taken, p.flight.late
}

// give gives a place back. It returns who has places from then on that waited for one: of the namespaces that may have one
// it goes to the one with the fewest, and of these to the longest wait.
func (f *flights) give(place *place, now time.Time) (next []*placement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken--
	place.taken--
	if place.given = true; place.late {
		place.flight.late--
	}
	f.count(place, -1)
	for {
		var of *flight
		var trust trust
		for _, n := range f.of {
			if len(n.waiting) == 0 || of != nil && !n.before(of) {
				continue
			}
			if t := f.trust(n.namespace, now); f.admits(n, t) {
				of, trust = n, t
			}
		}
		if of == nil {
			f.drop(place.flight)
			return next
		}
		p := pop(&of.waiting)
		f.takeFor(of, p, trust)
		next = append(next, p)
	}
}

// drop forgets a namespace if nothing of it is under way or waits. The caller holds the lock.
func (f *flights) drop(n *flight) {
	if n.taken == 0 && len(n.waiting) == 0 {
		delete(f.of, n.whose)
	}
}

// before reports whether a namespace gets a place before another. In both somebody waits.
func (n *flight) before(other *flight) bool {
	if n.taken != other.taken {
		return n.taken < other.taken
	}
	return n.waiting[0].waits.Before(other.waiting[0].waits)
}

// waiting returns how many wait for a place.
func (f *flights) waiting() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, of := range f.of {
		n += len(of.waiting)
	}
	return n
}

// overdue takes the binds of namespaces that are not trusted that have waited for longer than theirs may, and returns them. Of others
// nobody waits for too long: there are only many of them.
func (f *flights) overdue(now time.Time, patience func(namespace string) time.Duration) (gone []*placement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.of {
		if n.withdraws || len(n.waiting) == 0 || f.trust(n.namespace, now) == trusted {
			continue
		}
		atMost := patience(n.namespace)
		for len(n.waiting) > 0 && now.Sub(n.waiting[0].waits) >= atMost {
			gone = append(gone, pop(&n.waiting))
		}
		f.drop(n)
	}
	return gone
}
