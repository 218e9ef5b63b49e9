package pending

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"
)

// rank is where a pod stands among others. It is kept beside the pods, in their order, because a line may be long: to compare
// two pods by what is in them is to wait for memory twice.
type rank struct {
	due      int64 // where time counts first
	key      int64 // by which a plugin of others sorts, in an order
	entered  int64 // the time of the last entry into the queue
	arrival  int64
	order    int32
	priority int32
}

// compare orders by time, where that counts first, then by the key of a plugin of others, in the newest order first, then priority, then the time of the last entry into the queue, then arrival.
// No two pods of a queue have arrived at once.
func (a *rank) compare(b *rank) int {
	switch {
	case a.due != b.due:
		return cmp.Compare(a.due, b.due)
	case a.order != b.order:
		return cmp.Compare(b.order, a.order)
	case a.key != b.key:
		return cmp.Compare(a.key, b.key)
	case a.priority != b.priority:
		return cmp.Compare(b.priority, a.priority)
	case a.entered != b.entered:
		return cmp.Compare(a.entered, b.entered)
	}
	return cmp.Compare(a.arrival, b.arrival)
}

// inLine is the order of the active queue, and of the pods in flight.
func inLine(e *entry) rank {
	return rank{key: e.sorted.key, entered: nanos(e.entered), arrival: e.arrival, order: e.sorted.order, priority: e.pod.Priority}
}

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

// orderedPods are entries in the order of their ranks: to add one, to take any out and to find the first costs little however many
// there are, and so does to tell how many are ahead of one. An entry is in at most one of these. Its rank is what it was when it
// was added.
//
// They lie in blocks, as the leaves of a B+ tree do. What would be the inner nodes is searched in the blocks themselves: a million
// pods have some ten thousand.
type orderedPods struct {
	blocks [][]rankedPod // none is empty, unless it is the only one
	pods   int
	rankOf func(*entry) rank
}

type rankedPod struct {
	rank
	entry *entry
}

// blockPods is how many pods a block holds at most: to make room in one costs as much as to search all.
const blockPods = 128

// Len returns how many there are.
func (o *orderedPods) Len() int { return o.pods }

// head returns the first entry, or nil.
func (o *orderedPods) head() *entry {
	if o.pods == 0 {
		return nil
	}
	return o.blocks[0][0].entry
}

// search returns where the first pod is that is not ahead of r: its block, and its index there. If all are ahead, the block is one
// more than there are.
func (o *orderedPods) search(r *rank) (block, index int) {
	block = sort.Search(len(o.blocks), func(b int) bool {
		pods := o.blocks[b]
		return len(pods) > 0 && pods[len(pods)-1].compare(r) >= 0
	})
	if block < len(o.blocks) {
		pods := o.blocks[block]
		index = sort.Search(len(pods), func(i int) bool { return pods[i].compare(r) >= 0 })
	}
	return block, index
}

// tail returns the last entry, or nil.
func (o *orderedPods) tail() *entry {
	if o.pods == 0 {
		return nil
	}
	last := o.blocks[len(o.blocks)-1]
	return last[len(last)-1].entry
}

func (o *orderedPods) add(e *entry) {
	e.rank = o.rankOf(e)
	b, i := o.search(&e.rank)
	last := len(o.blocks) - 1
	switch {
	case b > last && (last < 0 || len(o.blocks[last]) == blockPods): // most pods come last: what is before them stays full
		o.blocks = append(o.blocks, make([]rankedPod, 0, blockPods))
	case b > last:
		b, i = last, len(o.blocks[last])
	case len(o.blocks[b]) == blockPods:
		const half = blockPods / 2
		upper := append(make([]rankedPod, 0, blockPods), o.blocks[b][half:]...)
		o.blocks[b] = slices.Delete(o.blocks[b], half, blockPods)
		o.blocks = slices.Insert(o.blocks, b+1, upper)
		if i > half {
			b, i = b+1, i-half
		}
	}
	o.blocks[b] = slices.Insert(o.blocks[b], i, rankedPod{e.rank, e})
	o.pods++
}

func (o *orderedPods) remove(e *entry) {
	b, i := o.search(&e.rank)
	o.blocks[b] = slices.Delete(o.blocks[b], i, i+1)
	o.pods--
	if len(o.blocks[b]) == 0 && len(o.blocks) > 1 {
		o.drop(b)
	}
	o.join(b)
	o.join(b - 1)
}

// join makes one block of a block and the next, if both together hold so little that there would soon be more blocks than pods ask
// for.
func (o *orderedPods) join(b int) {
	if b < 0 || b+1 >= len(o.blocks) || len(o.blocks[b])+len(o.blocks[b+1]) > blockPods/2 {
		return
	}
	o.blocks[b] = append(o.blocks[b], o.blocks[b+1]...)
	o.drop(b + 1)
}

func (o *orderedPods) drop(b int) {
	if b == 0 {
		o.blocks[0] = nil
		o.blocks = o.blocks[1:]
		return
	}
	o.blocks = slices.Delete(o.blocks, b, b+1)
}

// ahead returns how many pods are ahead of r.
func (o *orderedPods) ahead(r *rank) int {
	b, n := o.search(r)
	for _, pods := range o.blocks[:b] {
		n += len(pods)
	}
	return n
}

// at returns the entry that so many others are ahead of.
func (o *orderedPods) at(n int) *entry {
	b := 0
	for ; n >= len(o.blocks[b]); b++ {
		n -= len(o.blocks[b])
	}
	return o.blocks[b][n].entry
}
