package pending

import "time"

// longestUnschedulable is how long a pod may be unschedulable, unless the settings say otherwise, as in kube-scheduler.
const longestUnschedulable = 5 * time.Minute

// flush brings back the pods that have been unschedulable for too long, whatever they wait for. That should help none of
// them: it is there in case a change that does help is not seen as such.
func (q *Queue) flush(now time.Time, enough func() bool) (done bool) {
	for e := q.aging.head(); e != nil && !now.Before(q.tooLong(e)); e = q.aging.head() {
		e.flushed = len(e.claims) == 0 || !q.looksAside() // else it may be about to come back in any case
		q.requeue(now, e, unschedulableTimeout)
		if enough() {
			return false
		}
	}
	return true
}

// tooLong returns when an unschedulable pod has been so for too long.
func (q *Queue) tooLong(e *entry) time.Time { return e.entered.Add(q.patience + time.Nanosecond) }
