package queue

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// shard is a queue that this member owns, with its driver.
type shard struct {
	number   int32
	revision int64 // of the claim in etcd

	mu    sync.Mutex
	queue *pending.Queue
	// lookingSince is when the look began that is under way, and asideSince likewise that at pods with claims, which comes behind it; zero: none is.
	lookingSince, asideSince time.Time

	woken  chan struct{} // holds one value while the queue may have changed since the driver looked
	enters chan struct{} // holds one value while there may be pods of which plugins of others are to say whether they may be tried
	// undetached are the drivers for whose volumes a preemptor has waited in vain, and since when: none of their volumes has been detached from any node
	// since, as far as is known. Nobody is evicted so that they be detached, for undetachedFor, and then for one preemptor at a time. At most maxUndetached.
	undetached map[string]time.Time

	draining chan struct{} // closed: start no further cycle
	once     sync.Once
	cancel   context.CancelFunc // ends the driver
	done     chan struct{}      // closed when the driver has ended
	lost     bool               // the binder says that another owns the shard; read after done
}

func newShard(number int32, revision int64, judge pending.Judge, cancel context.CancelFunc) *shard {
	return &shard{
		number: number, revision: revision, queue: pending.NewQueue(number, judge),
		woken: make(chan struct{}, 1), enters: make(chan struct{}, 1), draining: make(chan struct{}), cancel: cancel, done: make(chan struct{}),
	}
}

// with calls fn with the queue locked, and lets the driver look at what has changed.
func (sh *shard) with(fn func(q *pending.Queue, now time.Time)) {
	sh.mu.Lock()
	fn(sh.queue, time.Now())
	sh.knock()
	sh.mu.Unlock()
	sh.wake()
}

// wake lets the driver look at what has changed. It does not wait.
func (sh *shard) wake() {
	select {
	case sh.woken <- struct{}{}:
	default:
	}
}

// knock has those asked about who have come, or come back. The caller holds the lock.
func (sh *shard) knock() {
	if !sh.queue.Unasked() {
		return
	}
	select {
	case sh.enters <- struct{}{}:
	default:
	}
}

// entering returns pods of a profile that is not busy, to ask plugins of others about, and if there are none when there may be though nothing happens, the zero time if not by time alone.
func (sh *shard) entering(busy map[string]bool) (pods []pending.Entering, next time.Time) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	gated := sh.queue.Count(pending.Gated)
	pods = sh.queue.Entering(time.Now(), mostEntering, busy)
	next, _ = sh.queue.NextEntering()
	if sh.queue.Count(pending.Gated) != gated { // others may be tried instead of those that are to be sorted again
		sh.wake()
	}
	return pods, next
}

// peek calls fn with the queue locked. It changes nothing.
func (sh *shard) peek(fn func(q *pending.Queue)) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	fn(sh.queue)
}

// standing returns where a pod stands in line, as Queue.Standing does: zero if it is not there any more.
func (sh *shard) standing(id cluster.PodID, priorities int) pending.Standing {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s, _ := sh.queue.Standing(id, priorities)
	return s
}

// depth returns how many pods the queue has in each place, and whether some may come back by what has not been looked at yet.
func (sh *shard) depth() (counts [pending.Places]int, looks bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for p := range counts {
		counts[p] = sh.queue.Count(pending.Place(p))
	}
	return counts, sh.queue.Looks()
}

// entriesAtATime bounds for how many pods the queue, and with it the log, waits.
const entriesAtATime = 1024

// entries yields the pods of the queue, some at a time, and does not hold it meanwhile.
func (sh *shard) entries() iter.Seq[[]pending.Entry] {
	return func(yield func([]pending.Entry) bool) {
		sh.mu.Lock()
		ids := sh.queue.IDs()
		sh.mu.Unlock()
		for some := range slices.Chunk(ids, entriesAtATime) {
			sh.mu.Lock()
			entries := slices.Collect(sh.queue.Entries(some))
			sh.mu.Unlock()
			if !yield(entries) {
				return
			}
		}
	}
}

// lookFor is for how long a shard looks for pods to bring back before it lets the log go on.
const lookFor = 200 * time.Microsecond

// asideFor is the share of pods with claims in lookFor, so that they are looked at even if there are always others to look at.
const asideFor = lookFor / 4

// look looks at a part of what has changed, and reports whether that was the last. The caller holds the lock.
func (sh *shard) look(now time.Time, st *cluster.State) (done bool) {
	until := func(end time.Duration) func() bool { return func() bool { return time.Since(now) >= end } }
	if done = sh.queue.RecheckUntil(now, st, until(lookFor-asideFor)); !done {
		sh.queue.RecheckAside(now, st, until(lookFor))
	}
	sh.knock()
	ahead, aside := sh.queue.Looking()
	since(&sh.lookingSince, now, ahead)
	since(&sh.asideSince, now, aside)
	return !ahead && !aside
}

// since keeps since when something is so; zero: it is not.
func since(at *time.Time, now time.Time, is bool) {
	switch {
	case !is:
		*at = time.Time{}
	case at.IsZero():
		*at = now
	}
}

// isLooking reports whether a look is under way. The caller holds the lock.
func (sh *shard) isLooking() bool { return !sh.lookingSince.IsZero() || !sh.asideSince.IsZero() }

// looksForLong reports whether what is active need not wait for the end of the look that is under way: nor do other shards then. However long pods
// with claims have been looked at, a look at others that has begun since is waited for. The caller holds the lock.
func (sh *shard) looksForLong(now time.Time) bool {
	began := sh.lookingSince
	if began.IsZero() {
		began = sh.asideSince
	}
	return !began.IsZero() && now.Sub(began) >= possible
}

func (sh *shard) reset(st *cluster.State) {
	sh.with(func(q *pending.Queue, now time.Time) {
		sh.undoubt(st)
		q.Reset(now, st)
	})
}

func (sh *shard) apply(st *cluster.State, d cluster.Delta) {
	sh.with(func(q *pending.Queue, now time.Time) {
		if gone, ok := d.(cluster.ObjectRemoved); ok && gone.Kind == cluster.VolumeAttachmentKind {
			if was, ok := st.Before().Object.(*cluster.VolumeAttachment); ok {
				delete(sh.undetached, was.Attacher)
			}
		}
		q.Apply(now, st, d)
	})
}

// maxUndetached bounds for how many drivers a shard remembers that they do not detach: a cluster has a few.
// undetachedFor is how long. Then a preemptor tries whether they do, and others do not for triedFor: it needs detachFor to find out, and its next
// attempt may be late.
const (
	maxUndetached = 64
	undetachedFor = 2 * time.Hour
	triedFor      = 15 * time.Minute
)

// doubt remembers drivers that do not detach; of too many, those that are doubted last. The caller holds the lock.
func (sh *shard) doubt(drivers []string, now time.Time) {
	if sh.undetached == nil {
		sh.undetached = make(map[string]time.Time)
	}
	for _, driver := range drivers {
		if _, known := sh.undetached[driver]; !known && len(sh.undetached) == maxUndetached {
			oldest, first := "", now
			for of, since := range sh.undetached {
				if !since.After(first) {
					oldest, first = of, since
				}
			}
			delete(sh.undetached, oldest)
		}
		sh.undetached[driver] = now
	}
}

// doubtsAny reports whether any driver is doubted.
func (sh *shard) doubtsAny() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return len(sh.undetached) > 0
}

// doubts reports whether one of the drivers is doubted. If not, it returns those of which it is time that a preemptor tries whether they detach by now.
func (sh *shard) doubts(drivers []string, now time.Time) (doubted bool, due []string) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, driver := range drivers {
		switch since, known := sh.undetached[driver]; {
		case !known:
		case now.Sub(since) < undetachedFor:
			return true, nil
		default:
			due = append(due, driver)
		}
	}
	return false, due
}

// trying notes that a preemptor tries whether drivers detach.
func (sh *shard) trying(drivers []string, now time.Time) {
	if len(drivers) == 0 {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, driver := range drivers {
		if _, known := sh.undetached[driver]; known {
			sh.undetached[driver] = now.Add(triedFor - undetachedFor)
		}
	}
}

// undoubt forgets the drivers of which no volume is attached that nobody uses: what they have detached may not have been told. The caller holds the lock.
func (sh *shard) undoubt(st *cluster.State) {
	maps.DeleteFunc(sh.undetached, func(driver string, _ time.Time) bool {
		for i := range cluster.NodeIndex(st.Nodes.Len()) {
			if st.Nodes.Live.Has(i) && slices.ContainsFunc(st.AttachedOf(i, driver), func(a cluster.Attachment) bool { return a.Uses == 0 }) {
				return false
			}
		}
		return true
	})
}

// drain lets the cycle that is running end, for at most so long, and starts no other.
func (sh *shard) drain(atMost time.Duration) {
	sh.once.Do(func() {
		close(sh.draining)
		time.AfterFunc(atMost, sh.cancel)
	})
}

// owned returns the owned shards by number.
func (s *Service) owned() []*shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.shards), func(a, b *shard) int { return cmp.Compare(a.number, b.number) })
}
