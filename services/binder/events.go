package binder

import (
	"context"
	"sync"

	"github.com/berth-scheduler/berth/internal/source"
)

// eventLane writes events and conditions, apart from binds. It is bounded: placements' events are dropped and counted
// beyond the bound (the placement itself is in the API), reports are refused, and a newer report of a pod replaces
// one that still waits.
type eventLane struct {
	source   source.Source
	limit    int                   // of placements that wait, and of reports that do
	unplaced func(uid string) bool // whether what a report says is still so
	dropped  func()
	failed   func(error)
	wake     chan struct{}

	mu      sync.Mutex
	placed  []source.Binding
	reports map[string]source.Report // by uid
	order   []string                 // uids of reports, oldest first
}

func newEventLane(src source.Source, limit int, unplaced func(uid string) bool, m *metrics, failed func(error)) *eventLane {
	return &eventLane{
		source: src, limit: limit, unplaced: unplaced, dropped: m.eventsDropped.Inc, failed: failed,
		wake: make(chan struct{}, 1), reports: make(map[string]source.Report),
	}
}

// scheduled queues the event of a placement.
func (l *eventLane) scheduled(b source.Binding) {
	l.mu.Lock()
	if len(l.placed) >= l.limit {
		l.mu.Unlock()
		l.dropped()
		return
	}
	l.placed = append(l.placed, b)
	l.mu.Unlock()
	l.signal()
}

// report queues reports, all or none. False: the lane has no room for them. More than the lane takes at all pass while
// no other waits.
func (l *eventLane) report(reports ...source.Report) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.reports)+len(reports) > l.limit && len(l.reports) > 0 {
		return false
	}
	for _, r := range reports {
		if _, waits := l.reports[r.UID]; !waits {
			l.order = append(l.order, r.UID)
		}
		l.reports[r.UID] = r
	}
	l.signal()
	return true
}

func (l *eventLane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// next takes the oldest report or else the oldest placement.
func (l *eventLane) next() (func(context.Context) error, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.order) > 0 {
		uid := pop(&l.order)
		r := l.reports[uid]
		delete(l.reports, uid)
		return func(ctx context.Context) error {
			if !l.unplaced(uid) {
				return nil // placed, or gone, since it was reported
			}
			return l.source.Unschedulable(ctx, r)
		}, true
	}
	if len(l.placed) > 0 {
		b := pop(&l.placed)
		return func(ctx context.Context) error { return l.source.Scheduled(ctx, b) }, true
	}
	return nil, false
}

// pop takes the first of a list that is not empty. An empty list keeps no memory.
func pop[T any](list *[]T) T {
	var none T
	first := (*list)[0]
	(*list)[0] = none
	if *list = (*list)[1:]; len(*list) == 0 {
		*list = nil
	}
	return first
}

// run is one worker of the lane; any number may run.
func (l *eventLane) run(ctx context.Context) error {
	for ctx.Err() == nil {
		write, ok := l.next()
		if !ok {
			select {
			case <-ctx.Done():
			case <-l.wake:
			}
			continue
		}
		l.signal() // another worker may find more
		if err := write(ctx); err != nil && ctx.Err() == nil {
			l.failed(err)
		}
	}
	return nil
}
