package queue

import (
	"cmp"
	"container/heap"
	"math"
	"time"
)

// rank is where a pod stands among others. It is kept beside the pods, in their order, because a line may be long: to compare
// two pods by what is in them is to wait for memory twice.
type rank struct {
	due      int64 // in heaps that are ordered by time first
	entered  int64 // the time of the last entry into the queue
	arrival  int64
	priority int32
}

// compare orders by time, if the heap is, then priority, then the time of the last entry into the queue, then arrival.
func (a *rank) compare(b *rank) int {
	switch {
	case a.due != b.due:
		return cmp.Compare(a.due, b.due)
	case a.priority != b.priority:
		return cmp.Compare(b.priority, a.priority)
	case a.entered != b.entered:
		return cmp.Compare(a.entered, b.entered)
	}
	return cmp.Compare(a.arrival, b.arrival)
}

// inLine is the order of the active queue.
func inLine(e *entry) rank {
	return rank{entered: nanos(e.entered), arrival: e.arrival, priority: e.pod.Priority}
}

// byPriority is the order of pods in flight.
func byPriority(e *entry) rank { return rank{priority: e.pod.Priority} }

// byExpiry is the order of backoffs.
func byExpiry(e *entry) rank {
	r := inLine(e)
	r.due = nanos(e.expiry)
	return r
}

// byAge is the order in which unschedulable pods are flushed.
func byAge(e *entry) rank {
	r := inLine(e)
	r.due = r.entered
	return r
}

// nanos returns a time as a number; no time comes before all others.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return math.MinInt64
	}
	return t.UnixNano()
}

// orderedPods is a binary heap of entries. An entry is in at most one, and knows its index there. Its rank is what it was
// when the entry was added.
type orderedPods struct {
	ranked []rankedPod
	rankOf func(*entry) rank
}

type rankedPod struct {
	rank
	entry *entry
}

func (h *orderedPods) Len() int           { return len(h.ranked) }
func (h *orderedPods) Less(i, j int) bool { return h.ranked[i].compare(&h.ranked[j].rank) < 0 }
func (h *orderedPods) Swap(i, j int) {
	h.ranked[i], h.ranked[j] = h.ranked[j], h.ranked[i]
	h.ranked[i].entry.index, h.ranked[j].entry.index = i, j
}

// Push and Pop are for container/heap only.
func (h *orderedPods) Push(x any) {
	e := x.(*entry)
	e.index = len(h.ranked)
	h.ranked = append(h.ranked, rankedPod{h.rankOf(e), e})
}

func (h *orderedPods) Pop() any {
	last := len(h.ranked) - 1
	e := h.ranked[last].entry
	h.ranked[last] = rankedPod{}
	h.ranked = h.ranked[:last]
	return e
}

func (h *orderedPods) add(e *entry)    { heap.Push(h, e) }
func (h *orderedPods) remove(e *entry) { heap.Remove(h, e.index) }

// head returns the first entry, or nil.
func (h *orderedPods) head() *entry {
	if len(h.ranked) == 0 {
		return nil
	}
	return h.ranked[0].entry
}
