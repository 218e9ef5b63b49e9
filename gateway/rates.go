package gateway

import (
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// rateSeconds is how far back rates are known.
const rateSeconds = 64

// rates counts, second by second, the pods that came to be placed and the pods that were placed, as seen by following the ledger. A
// pod whose placement is taken back has been placed all the same.
type rates struct {
	now func() time.Time

	mu              sync.Mutex
	arrived, placed window
}

// window is a count for each of the last seconds.
type window struct {
	counts [rateSeconds]int32
	last   int64 // the second of the newest count; older ones precede it
}

func newRates(now func() time.Time) *rates { return &rates{now: now} }

// Reset implements replica.Subscriber. What a snapshot holds has not come now.
func (r *rates) Reset(*cluster.State) {}

// Applied implements replica.Subscriber.
func (r *rates) Applied(st *cluster.State, d cluster.Delta) {
	switch d := d.(type) {
	case cluster.PodSet:
		if st.Before().Class == nil && !st.Pod(d.ID).Placed() {
			r.add(&r.arrived)
		}
	case cluster.PodAssumed:
		r.add(&r.placed)
	}
}

func (r *rates) add(w *window) {
	second := r.now().Unix()
	r.mu.Lock()
	defer r.mu.Unlock()
	w.advance(second)
	w.counts[second%rateSeconds]++
}

// within returns how many pods came and how many were placed in the last seconds, the present one included; at most
// rateSeconds.
func (r *rates) within(seconds int64) (arrived, placed int32) {
	now := r.now().Unix()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.arrived.sum(now, seconds), r.placed.sum(now, seconds)
}

// advance forgets what is older than the window that ends with a second. Time that goes backwards counts for the
// newest second there was.
func (w *window) advance(second int64) {
	for w.last < second && second-w.last < rateSeconds {
		w.last++
		w.counts[w.last%rateSeconds] = 0
	}
	if w.last < second {
		*w = window{last: second}
	}
}

func (w *window) sum(now, seconds int64) int32 {
	w.advance(now)
	var sum int32
	for back := range min(seconds, rateSeconds) {
		sum += w.counts[(now-back)%rateSeconds]
	}
	return sum
}
