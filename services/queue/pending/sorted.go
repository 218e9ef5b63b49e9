package pending

import "time"

// A plugin of others may sort the queue: kube-scheduler's QueueSort. It says of each pod that comes to wait by which key it goes, once plugins at PreEnqueue have let it in. Keys of an order can be compared with each other alone. When an order has
// ended, with the process of the plugin for example, and a key of another one is told, all pods that wait are asked about again: those of older orders are not tried until that is done, nor is any of which nobody has said anything, and for a while nobody is as long as there is one to be asked about who has waited since before the order began; but not where such a while has just been.

// SortKey is where a pod belongs in the queue, as a plugin of others says.
type SortKey struct {
	// Order is that in which Key counts. A higher one is newer.
	Order uint64
	// Key says which pods go first: those with lower ones, and of equal ones by priority, and then by time.
	Key int64
}

// sorted is where a pod belongs.
type sorted struct {
	key   int64
	order int32 // Queue.orders, of then
}

// sort has a pod go by a key, once it is linked again. False: the key is of an order that is not the newest.
func (q *Queue) sort(now time.Time, e *entry, at SortKey) bool {
	switch {
	case at.Order < q.sortOrder:
		return false
	case at.Order > q.sortOrder || q.orders == 0:
		q.orders++
		q.sortOrder = at.Order
		defer q.owe(now)
	}
	q.unlink(e)
	e.sorted = sorted{at.Key, q.orders}
	q.link(e)
	return true
}

const (
	// sortsFirst is how long nobody is tried, at most, until something has been said of all who have waited since before an order began. Who takes longer has no part in it: plugins that hang have pods of their own profiles wait. Then others are tried
	// for as long at least, whatever orders there are.
	sortsFirst = 5 * time.Second
	// sortsAgain is how long others are tried at least when something has been said of all in time.
	sortsAgain = time.Second
)

// owe has nobody tried until something has been said of all who wait: of an order that has just begun, else who comes first would be whoever is asked about first.
func (q *Queue) owe(now time.Time) {
	if q.holdsUp(now) || now.Before(q.oweAgain) {
		return
	}
	for _, e := range q.pods {
		is := e.entrance
		if is == nil || !is.sorts || is.owed || len(e.pod.Gates) > 0 || e.yielded {
			continue
		}
		if e.place == Active && q.unsorted(e) || e.place == Gated && (is.door == doorUnasked || is.door == doorAsked) {
			is.owed = true
			q.owed++
		}
	}
	if q.owed > 0 {
		q.owedUntil = now.Add(sortsFirst)
	}
}

// holdsUp reports whether somebody is owed a word before anybody is tried.
func (q *Queue) holdsUp(now time.Time) bool {
	switch {
	case q.owedUntil.IsZero():
	case q.owed == 0:
		q.owedUntil, q.oweAgain = time.Time{}, now.Add(sortsAgain)
	case !now.Before(q.owedUntil):
		q.owedUntil, q.oweAgain = time.Time{}, now.Add(sortsFirst)
	}
	return !q.owedUntil.IsZero()
}

// unsorted reports whether nobody has said yet where a pod belongs, in the newest order.
func (q *Queue) unsorted(e *entry) bool {
	return e.entrance != nil && e.entrance.sorts && (q.orders == 0 || e.sorted.order != q.orders)
}

// nextUnsorted returns one of the pods that are next to be tried, or behind all others, of which is to be asked where it belongs; nil if there is none.
func (q *Queue) nextUnsorted() *entry {
	for _, e := range []*entry{q.active.tail(), q.backoff.head()} {
		if e != nil && q.unsorted(e) {
			return e
		}
	}
	return nil
}

func (q *Queue) anyUnsorted() bool { return q.nextUnsorted() != nil }

// sortSome has some asked about again that are in, for somebody has said where another one belongs, in an order that is new.
func (q *Queue) sortSome(now time.Time) {
	for range recalledAtOnce {
		e := q.nextUnsorted()
		if e == nil {
			return
		}
		q.sortAgain(now, e)
	}
}

// resort has it asked where a pod belongs that has changed, before it is tried.
func (q *Queue) resort(e *entry) {
	switch {
	case e.entrance == nil || !e.entrance.sorts:
	case e.shut():
		q.doors(e, func(is *entrance) { is.moves = is.door == doorAsked })
	default:
		q.unlink(e)
		e.sorted = sorted{}
		q.link(e)
	}
}

// sortAgain has it asked where a pod belongs that is active, or in backoff. Until that is said, it is gated.
func (q *Queue) sortAgain(now time.Time, e *entry) {
	q.enter(now, e, "", e.place == Active)
	q.doors(e, func(is *entrance) { is.in = true })
}
