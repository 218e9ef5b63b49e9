package binder

import (
	"math"
	"sync"
	"time"
)

// windows bound how many unbound pods each namespace may have whose binds, or withdrawals, are late or fail. They follow TCP's congestion
// window: each such call halves what the namespace may have, and each bind that is done in time lets it have a quarter more. So binds that
// are late now and then bound nothing, and where more than about one in four is, few are under way at a time.
//
// Namespaces that may have fewer unbound pods than there are places for binds are slow. However small their windows, they may have as many
// as half of the places are among all slow ones.
// It is safe for concurrent use.
type windows struct {
	places int // for binds; 0: nothing is bounded
	limit  int // Config.MaxUnbound

	mu   sync.Mutex
	of   map[string]window // those of which nothing is known are not there
	slow int               // how many of them are slow
}

type window struct {
	size   int       // limit: it bounds nothing
	halved time.Time // last
	bad    time.Time // when a call was last late, or failed
	good   time.Time // when a bind was last done in time
	long   bool      // that one took longAfter
}

const (
	// halvedEvery is how often a window is halved at most: calls that fail together are one piece of evidence.
	halvedEvery = 100 * time.Millisecond
	// longAfter is how long a bind takes that is done in time, but so that what its namespace has of the unbound pods comes back slowly.
	longAfter = lateAfter / 4
	// windowLasts is how long a call that was late or failed, or a bind that was done in time, is remembered.
	windowLasts = time.Minute
	// forgivenAfter is when a namespace is slow no more that has had a bind done in time since what was late or failed last. Pods that were held
	// back come again in waves, every 10 s, of which each would let the next be only a few times larger.
	forgivenAfter = 5 * time.Second
	// maxWindows bounds the namespaces that are remembered.
	maxWindows = 10_000
)

// halve halves the window of a namespace, which has so many unbound pods, since a call is late or has failed.
func (w *windows) halve(namespace string, unbound int, now time.Time) {
	w.bad(namespace, now, func(v *window) {
		if now.Sub(v.halved) >= halvedEvery {
			v.halved, v.size = now, min(v.size, unbound)/2
		}
	})
}

// shut makes the window of a namespace no larger than so many, since calls are late.
func (w *windows) shut(namespace string, size int, now time.Time) {
	w.bad(namespace, now, func(v *window) { v.size = min(v.size, size) })
}

func (w *windows) bad(namespace string, now time.Time, change func(*window)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.places == 0 {
		return
	}
	v := w.find(namespace, now)
	v.bad = now
	change(&v)
	v.size = max(v.size, 1)
	w.put(namespace, v)
}

// done notes that a bind of a namespace was done in time, and how long it took.
func (w *windows) done(namespace string, took time.Duration, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.places == 0 {
		return
	}
	v := w.find(namespace, now)
	v.good, v.long = now, took >= longAfter
	v.size += 1 + v.size/4
	w.put(namespace, v)
}

// allows returns how many unbound pods a namespace may have by what its window says.
func (w *windows) allows(namespace string, now time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.find(namespace, now)
	if v.size >= w.limit {
		return math.MaxInt
	}
	return max(v.size, w.places/2/max(w.slow, 1), 1)
}

// long reports whether binds of a namespace take long, though they are done in time.
func (w *windows) long(namespace string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.find(namespace, now)
	return v.long && now.Sub(v.good) < windowLasts
}

// trust is how far it is known that calls of a namespace end soon.
type trust uint8

const (
	slow    trust = iota // of late they did not
	unknown              // none was made of late
	trusted              // one was, and they do
)

// trust returns how far a namespace is trusted.
func (w *windows) trust(namespace string, now time.Time) trust {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch v := w.find(namespace, now); {
	case v.size < w.places:
		return slow
	case now.Sub(v.good) < windowLasts:
		return trusted
	}
	return unknown
}

// sweep forgets what was not lately.
func (w *windows) sweep(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for namespace := range w.of {
		if v := w.find(namespace, now); now.Sub(v.good) >= windowLasts && v.size == w.limit {
			w.drop(namespace)
		} else {
			w.put(namespace, v)
		}
	}
}

// find returns a namespace's window. The caller holds the lock.
func (w *windows) find(namespace string, now time.Time) window {
	v, there := w.of[namespace]
	switch since := now.Sub(v.bad); {
	case !there || since >= windowLasts:
		v.size = w.limit
	case since >= forgivenAfter && v.good.After(v.bad):
		v.size = max(v.size, w.places)
	}
	return v
}

// drop forgets a namespace's window. The caller holds the lock.
func (w *windows) drop(namespace string) {
	if v, there := w.of[namespace]; there && v.size < w.places {
		w.slow--
	}
	delete(w.of, namespace)
}

// put keeps a namespace's window. The caller holds the lock.
func (w *windows) put(namespace string, v window) {
	w.drop(namespace)
	if len(w.of) >= maxWindows {
		w.of, w.slow = nil, 0
	}
	if w.of == nil {
		w.of = make(map[string]window)
	}
	if v.size = min(v.size, w.limit); v.size < w.places {
		w.slow++
	}
	w.of[namespace] = v
}
