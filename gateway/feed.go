package gateway

import (
	"sort"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// feed is the recent placements, in a ring, as seen by following the ledger. Any number of watchers read it, each at its
// own place; none can hold it up or make it grow.
//
// It does not look at what a delta means but at what it does: whenever a pod's node differs from what it was, the feed
// says so. So a new state (of a new epoch, or a snapshot) is told by what differs from the old one, and a watcher that
// has seen everything before goes on without a gap.
type feed struct {
	mu      sync.Mutex
	loaded  bool
	version cluster.Version // everything up to here is in the ring, or was
	since   cluster.Version // nothing after here has left the ring
	ring    []placement     // by position, modulo its length
	end     uint64          // position of the next placement; positions only grow
	gap     uint64          // watchers before this position cannot go on
	places  []place         // by pod id: where each placed pod is
	changed chan struct{}   // closed when there is something new; nil while nobody waits
}

// place is where a pod is; without a uid there is no pod.
type place struct{ uid, namespace, name, node string }

// placement is one message of the stream. One without a uid only tells the version.
type placement struct {
	place
	placed bool
	at     cluster.Version // the version that brought it
	resume cluster.Version // what a watcher that has got this may resume from; before at while more of at follows
	// encoded is the message, for all who watch; nil: nobody has read it yet. It is final when the lock is let go under which it was pushed.
	encoded any
}

func newFeed(history int) *feed { return &feed{ring: make([]placement, history)} }

// Reset implements replica.Subscriber.
func (f *feed) Reset(st *cluster.State) {
	if st.Version().IsZero() {
		return // the replica starts from nothing: what it knew is told apart from what it will know, once it does
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.wake()
	old, before := f.places, f.version
	f.places, f.version, f.since = nil, st.Version(), st.Version()
	if !f.loaded {
		f.loaded = true
		for id, p := range st.Pods() {
			f.put(id, p)
		}
		return
	}
	was := make(map[string]place, len(old)) // by uid
	for _, p := range old {
		if p.uid != "" {
			was[p.uid] = p
		}
	}
	start := f.end
	for id, p := range st.Pods() {
		f.put(id, p)
		f.moved(was[p.UID], placeOf(p), before)
	}
	switch {
	case f.end-start >= uint64(len(f.ring)) || f.end > start && !before.Less(f.version):
		// What differs does not fit into the ring, or a watcher could not tell that it has seen only a part of it.
		f.gap = f.end
	default:
		f.push(placement{at: f.version, resume: f.version})
	}
}

// Applied implements replica.Subscriber.
func (f *feed) Applied(st *cluster.State, d cluster.Delta) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.version
	f.version = st.Version()
	var id cluster.PodID
	switch d := d.(type) {
	case cluster.PodSet:
		id = d.ID
	case cluster.PodAssumed:
		id = d.ID
	case cluster.PodForgotten:
		id = d.ID
	case cluster.PodRemoved: // not news of its placement: it took it along
		if int(d.ID) < len(f.places) {
			f.places[d.ID] = place{}
		}
		return
	default:
		return
	}
	p := st.Pod(id)
	if p == nil {
		return
	}
	var was place
	if int(id) < len(f.places) && f.places[id].uid == p.UID {
		was = f.places[id]
	}
	start := f.end
	f.put(id, p)
	f.moved(was, placeOf(p), before)
	if f.end > start {
		f.ring[(f.end-1)%uint64(len(f.ring))].resume = f.version
		f.wake()
	}
}

func placeOf(p *cluster.PodRow) place {
	return place{uid: p.UID, namespace: p.Namespace, name: p.Name, node: p.NodeName}
}

// put notes where a pod is now.
func (f *feed) put(id cluster.PodID, p *cluster.PodRow) {
	for int(id) >= len(f.places) {
		f.places = append(f.places, place{})
	}
	f.places[id] = place{}
	if p.NodeName != "" {
		f.places[id] = placeOf(p)
	}
}

// moved says what it takes to get a pod from one place to another. Watchers may resume from before only.
func (f *feed) moved(was, is place, before cluster.Version) {
	if was.node == is.node {
		return
	}
	if was.node != "" {
		f.push(placement{place: was, at: f.version, resume: before})
	}
	if is.node != "" {
		f.push(placement{place: is, placed: true, at: f.version, resume: before})
	}
}

// push adds to the ring; what falls out of it can no longer be resumed from.
func (f *feed) push(p placement) {
	slot := &f.ring[f.end%uint64(len(f.ring))]
	if f.end >= uint64(len(f.ring)) {
		f.since = later(f.since, slot.at)
	}
	*slot = p
	f.end++
}

func (f *feed) wake() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// first returns the position of the oldest placement in the ring.
func (f *feed) first() uint64 {
	if f.end < uint64(len(f.ring)) {
		return 0
	}
	return f.end - uint64(len(f.ring))
}

// open returns the position of the first placement after a version; of the next one to come if from is nil. behind
// means that the feed has not come to that version yet.
func (f *feed) open(from *cluster.Version) (position uint64, behind bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case from == nil:
		return f.end, false, nil
	case f.version.Less(*from):
		return 0, true, nil
	case from.Less(f.since):
		return 0, false, errTooOld(*from, f.since)
	}
	first := f.first()
	n := sort.Search(int(f.end-first), func(i int) bool {
		return from.Less(f.ring[(first+uint64(i))%uint64(len(f.ring))].at)
	})
	return max(first+uint64(n), f.gap), false, nil
}

// next copies what follows a position into buffer. If that is nothing, the watcher has seen everything up to version,
// and changed will be closed when there is more.
func (f *feed) next(position uint64, buffer []placement) (n int, version cluster.Version, changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case position < f.gap:
		return 0, f.version, nil, errGap(f.version)
	case position < f.first():
		return 0, f.version, nil, errTooSlow()
	}
	for ; n < len(buffer) && position < f.end; n++ {
		p := &f.ring[position%uint64(len(f.ring))]
		if p.encoded == nil {
			if p.encoded, err = rpc.Encode(messageOf(p)); err != nil {
				return 0, f.version, nil, err
			}
		}
		buffer[n] = *p
		position++
	}
	if n == 0 {
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed = f.changed
	}
	return n, f.version, changed, nil
}
