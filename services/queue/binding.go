package queue

import (
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// binding is the pods on their way from the commit to the bind, to measure the whole of their attempts. It is safe for
// concurrent use.
type binding struct {
	mu   sync.Mutex
	pods map[cluster.PodID]attemptBegun
}

// attemptBegun is an attempt that a commit was sent for.
type attemptBegun struct {
	profile string
	popped  time.Time
	traced  *tracedAttempt // nil: it is not
}

func newBinding() *binding { return &binding{pods: make(map[cluster.PodID]attemptBegun)} }

// begin is called before the commit is sent, since the log may tell of the bind before the commit is answered.
func (b *binding) begin(pod cluster.PodID, profile string, popped time.Time, traced *tracedAttempt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods[pod] = attemptBegun{profile, popped, traced}
}

// end forgets an attempt by which a pod was not placed, begun when it was popped. The pod of that id may be another one by now.
func (b *binding) end(pod cluster.PodID, popped time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pods[pod].popped.Equal(popped) {
		delete(b.pods, pod)
	}
}

// reset forgets all pods: in another log they have other ids.
func (b *binding) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, begun := range b.pods {
		begun.traced.end(tracedUnknown, "")
	}
	clear(b.pods)
}

// apply ends the attempts that a delta tells the end of. st is the state after it.
func (b *binding) apply(st *cluster.State, d cluster.Delta, m *metrics) {
	var pod cluster.PodID
	result, message := resultScheduled, ""
	switch d := d.(type) {
	case cluster.PodBound:
		pod = d.ID
	case cluster.PodSet:
		if row := st.Pod(d.ID); row == nil || row.Phase != cluster.Bound {
			return
		}
		pod = d.ID
	case cluster.PodForgotten:
		pod, result, message = d.ID, resultError, d.Reason
	case cluster.PodRemoved:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.pods[d.ID].traced.end(tracedGone, "")
		delete(b.pods, d.ID)
		return
	default:
		return
	}
	b.mu.Lock()
	begun, ok := b.pods[pod]
	delete(b.pods, pod)
	b.mu.Unlock()
	if ok {
		m.attempt(result, begun.profile, time.Since(begun.popped))
		begun.traced.endPlaced(st, pod, result, message)
	}
}
