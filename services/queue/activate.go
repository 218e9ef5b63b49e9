package queue

import (
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Observer hears, while the queue is locked, what becomes of pods, for metrics. Its methods must not block.
type Observer interface {
	// Incoming: a pod has come to a place because of an event, which is named as kube-scheduler names it.
	Incoming(to Place, event string)
	// Scheduled: a pod is bound, so many attempts and so long after it first was active. Flushed says that nothing but
	// the flush of unschedulable pods brought it back before its last attempt.
	Scheduled(attempts int32, took time.Duration, flushed bool)
}

// Band returns the highest priority of the pods that are active, or in flight on their way to the binder.
// False: there is none.
func (q *Queue) Band() (priority int32, ok bool) { return 0, false }

// Activate makes a pod active that is unschedulable or in backoff, whatever it waits for. If its attempt is running, it
// is active again should that fail. False: the queue does not hold the pod, or it has gates.
func (q *Queue) Activate(now time.Time, id cluster.PodID) bool { return false }
