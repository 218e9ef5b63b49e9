package queue

import "container/heap"

// orderedPods is a binary heap of entries. An entry is in at most one, and knows its index there.
type orderedPods struct {
	entries []*entry
	less    func(a, b *entry) bool
}

func (h *orderedPods) Len() int           { return len(h.entries) }
func (h *orderedPods) Less(i, j int) bool { return h.less(h.entries[i], h.entries[j]) }
func (h *orderedPods) Swap(i, j int) {
	h.entries[i], h.entries[j] = h.entries[j], h.entries[i]
	h.entries[i].index, h.entries[j].index = i, j
}

// Push and Pop are for container/heap only.
func (h *orderedPods) Push(x any) {
	e := x.(*entry)
	e.index = len(h.entries)
	h.entries = append(h.entries, e)
}

func (h *orderedPods) Pop() any {
	last := len(h.entries) - 1
	e := h.entries[last]
	h.entries[last] = nil
	h.entries = h.entries[:last]
	return e
}

func (h *orderedPods) add(e *entry)    { heap.Push(h, e) }
func (h *orderedPods) remove(e *entry) { heap.Remove(h, e.index) }

// head returns the first entry, or nil.
func (h *orderedPods) head() *entry {
	if len(h.entries) == 0 {
		return nil
	}
	return h.entries[0]
}

// before calls visit for every entry that comes before e, in no order: where one does not, nothing below it does.
func (h *orderedPods) before(e *entry, visit func(*entry)) {
	open := []int{0}
	for len(open) > 0 {
		i := open[len(open)-1]
		open = open[:len(open)-1]
		if i < len(h.entries) && h.less(h.entries[i], e) {
			visit(h.entries[i])
			open = append(open, 2*i+1, 2*i+2)
		}
	}
}

// before is the order of the active queue: priority, then the time of the last entry into the queue, then arrival.
func before(a, b *entry) bool {
	if a.pod.Priority != b.pod.Priority {
		return a.pod.Priority > b.pod.Priority
	}
	if !a.entered.Equal(b.entered) {
		return a.entered.Before(b.entered)
	}
	return a.arrival < b.arrival
}

// inOrder compares by before.
func inOrder(a, b *entry) int {
	switch {
	case a == b:
		return 0
	case before(a, b):
		return -1
	}
	return 1
}

// outranks is the order of pods in flight.
func outranks(a, b *entry) bool { return a.pod.Priority > b.pod.Priority }

// expiresBefore is the order of backoffs.
func expiresBefore(a, b *entry) bool {
	if !a.expiry.Equal(b.expiry) {
		return a.expiry.Before(b.expiry)
	}
	return before(a, b)
}

// triedBefore is the order in which unschedulable pods are flushed.
func triedBefore(a, b *entry) bool {
	if !a.entered.Equal(b.entered) {
		return a.entered.Before(b.entered)
	}
	return before(a, b)
}
