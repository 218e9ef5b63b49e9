package pending

import (
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Observer hears, while the queue is locked, what becomes of pods, for metrics. Its methods must not block.
type Observer interface {
	// Incoming: a pod, of which nothing is to be kept, has come to a place because of an event, which is named as kube-scheduler names it.
	Incoming(pod *cluster.Pod, to Place, event string)
	// Scheduled: a pod is bound, so many attempts and so long after it first was active. Flushed says that nothing but
	// the flush of unschedulable pods brought it back before its last attempt.
	Scheduled(attempts int32, took time.Duration, flushed bool)
	// Unresolved: a pod is active again, since the log up to the version that Await waited for says nothing of its attempt.
	Unresolved()
}

// Observe makes the queue tell o what becomes of pods from now on; nil: nobody.
func (q *Queue) Observe(o Observer) { q.observer = o }

// PriorityFloor returns the highest priority of the pods that are active, or in flight with an outcome that is neither awaited from the
// log nor of those that may take long; see Leave. False: there is none.
func (q *Queue) PriorityFloor() (priority int32, ok bool) {
	for _, h := range []*orderedPods{&q.active, &q.running} {
		if e := h.head(); e != nil && (!ok || e.pod.Priority > priority) {
			priority, ok = e.pod.Priority, true
		}
	}
	return priority, ok
}

// PossibleFloor returns the highest priority of the pods that nodes may have made schedulable which have changed, but have not been looked
// at yet. Those with claims count for as long as asideHolds, as looks at them may come one after the other without an end. False: there is none.
func (q *Queue) PossibleFloor() (priority int32, ok bool) {
	switch {
	case q.notes.any || q.looking != nil && len(q.looking.changed) > 0:
		return q.sleeping.highest()
	case (q.aside.any || q.lookingAside != nil) && !q.aside.late:
		return q.aside.sleeping.highest()
	}
	return 0, false
}

// Activate makes a pod active that is unschedulable or in backoff, whatever it waits for. If its attempt is running, it
// comes back after its backoff should that place nothing. Plugins of others have to let it in before, from wherever but a backoff. False: the queue does not hold the pod, or it has gates, or
// others are being evicted for it.
func (q *Queue) Activate(now time.Time, id cluster.PodID) bool {
	e := q.pods[id]
	if e == nil || e.held {
		return false
	}
	switch e.place {
	case Unschedulable, Backoff:
		if e.place == Unschedulable && e.entrance != nil {
			q.enter(now, e, forceActivate, true)
			break
		}
		q.move(now, e, Active, forceActivate)
	case Gated:
		q.askAgain(e, true)
		return e.shut()
	case InFlight:
		e.again = true
	case Active:
	default:
		return false
	}
	return true
}

// activated is Activate because a plugin wants it. Who is activated again before a backoff has passed since the last time has to wait for what is left of that, also if nobody else is active: so plugins
// that do it without an end do not take the time of others.
func (q *Queue) activated(now time.Time, id cluster.PodID) {
	e := q.pods[id]
	if e == nil {
		return
	}
	if q.pause(e) == 0 || now.Sub(e.activated) >= q.pause(e) {
		if e.held || e.place == Active { // others are being evicted for it; or it is tried next, perhaps by what was said before
			e.again = true
		} else if q.Activate(now, id) {
			e.activated = now
		}
		return
	}
	q.unlink(e)
	e.pressed = true
	q.link(e)
	q.woken(now, id)
}

// woken brings a pod back because of an event that a plugin knows of, as any other event would.
func (q *Queue) woken(now time.Time, id cluster.PodID) {
	e := q.pods[id]
	if e == nil {
		return
	}
	switch {
	case e.place == Unschedulable && !e.held:
		q.requeue(now, e, q.event)
	case e.place == Gated:
		q.askAgain(e, false)
	default:
		e.again = true // if its attempt is running, or it is held back
	}
}
