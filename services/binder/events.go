package binder

import (
	"context"
	"time"
)

// How many writes of the event lane and of the report lane are under way at once, and how long one may take. With 20 ms
// per write, and two writes per report, 10,000 of each are out in 25 s.
const (
	eventWorkers  = 8
	reportWorkers = 16
	writeTimeout  = 10 * time.Second
)

// courtesy is how long a write of these lanes gives way to binds, and an event to evictions too: they share the API server,
// and a bind, or room, is what somebody waits for. A lane of events that is more than half full gives way no more.
const courtesy = 400 * time.Millisecond

// eventLane writes events of what has happened, for people: placements and evictions. What comes while it is full is
// dropped and counted: the placement itself is in the API.
type eventLane struct {
	waiting chan func(context.Context) error // the writes; its capacity is the bound
	ahead   []*bound                         // what it gives way to
	dropped func()
	failed  func(error)
}

func newEventLane(limit int, ahead []*bound, dropped func(), failed func(error)) *eventLane {
	return &eventLane{waiting: make(chan func(context.Context) error, limit), ahead: ahead, dropped: dropped, failed: failed}
}

// add hands in the write of one event. It never blocks.
func (l *eventLane) add(write func(context.Context) error) {
	select {
	case l.waiting <- write:
	default:
		l.dropped()
	}
}

// run is one worker of the lane; any number may run.
func (l *eventLane) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case write := <-l.waiting:
			if len(l.waiting) <= cap(l.waiting)/2 {
				for _, b := range l.ahead {
					b.awaitIdle(ctx, courtesy)
				}
			}
			if err := timely(ctx, write); err != nil && ctx.Err() == nil {
				l.failed(err)
			}
		}
	}
}

// timely gives a write its deadline.
func timely(ctx context.Context, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return write(ctx)
}
