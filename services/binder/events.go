package binder

import (
	"context"
	"slices"
	"sync"
	"time"
)

// How many writes of the event lane and of the report lane are under way at once, but for late ones, and how long one may take. With 20 ms
// per write, and two writes per report, 10,000 of each are out in 25 s.
const (
	eventWorkers  = 8
	reportWorkers = 16
	writeTimeout  = 10 * time.Second
)

// courtesy is how long a write of these lanes gives way to binds, and an event to evictions too: they share the API server,
// and a bind, or room, is what somebody waits for. A lane that is more than a quarter full gives way no more: to a lone namespace it is full at half.
const courtesy = 400 * time.Millisecond

// A write of these lanes that fails is tried again after a second, then after twice as long, up to half a minute. With so
// many tries that goes on for four minutes: an attempt to place a pod, with a report of its own, comes after five.
const (
	retryEvery    = time.Second // how often it is looked which writes are due
	maxRetryDelay = 30 * time.Second
	maxRetries    = 12
)

var writeBackoff = backoff{retryEvery, maxRetryDelay}

// retryWrites brings back to the lanes what has failed, each in its time.
func (t *term) retryWrites(ctx context.Context) error {
	return every(ctx, retryEvery, func(now time.Time) error {
		t.events.retry(now)
		t.reports.retry(now)
		return nil
	})
}

// eventLane writes events of what has happened, for people: placements and evictions. What comes while it is full is
// dropped and counted: the placement itself is in the API. An event whose write failed without an answer may be there, and
// then again.
type eventLane struct {
	ahead   []*bound // what it gives way to
	dropped func()
	failed  func(error)
	room    bound // for events that wait; no namespace has more of it than are free
	turns   *turns[string, event]

	mu      sync.Mutex
	failing []event // as many as retries has
	retries bound   // for those of failing
}

// event is the write of one event.
type event struct {
	namespace string
	write     func(context.Context) error
	attempts
}

func newEventLane(limit int, ahead []*bound, dropped func(), failed func(error)) *eventLane {
	return &eventLane{
		ahead: ahead, dropped: dropped, failed: failed, room: bound{limit: limit}, retries: bound{limit: limit}, turns: newTurns[event](eventWorkers),
	}
}

// add hands in the write of one event, of an object in a namespace. It never blocks.
func (l *eventLane) add(namespace string, write func(context.Context) error) {
	l.put(event{namespace: namespace, write: write})
}

func (l *eventLane) put(e event) {
	if !l.room.takeOf(map[string]int{e.namespace: 1}) {
		l.dropped()
		return
	}
	l.turns.add(e.namespace, e)
}

// depth returns how many events wait.
func (l *eventLane) depth() int { return l.room.count() + l.retries.count() }

// again takes back an event whose write has failed. False: it has failed too often, or too many have.
func (l *eventLane) again(e event, now time.Time) bool {
	if !e.failed(now) || !l.retries.takeOf(map[string]int{e.namespace: 1}) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing = append(l.failing, e)
	return true
}

// retry brings back the events whose time has come.
func (l *eventLane) retry(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing = slices.DeleteFunc(l.failing, func(e event) bool {
		if e.due.After(now) {
			return false
		}
		l.retries.giveOf(e.namespace, 1)
		l.put(e)
		return true
	})
}

// run is one worker of the lane; any number may run.
func (l *eventLane) run(ctx context.Context) error {
	next := func() (e event, of *turn[string, event]) {
		n := l.room.count()
		if n > 0 && n <= l.room.limit/4 {
			for _, b := range l.ahead {
				b.awaitIdle(ctx, courtesy) // before it takes one: while it gives way none is under way
			}
		}
		if n > 0 { // one that comes only now gives way too
			return l.turns.next()
		}
		return e, nil
	}
	return work(ctx, l.turns, next, func(ctx context.Context, e event) error {
		l.room.giveOf(e.namespace, 1)
		if err := timely(ctx, e.write); err != nil && ctx.Err() == nil && !l.again(e, time.Now()) {
			l.failed(err)
		}
		return nil
	})
}

// timely gives a write its deadline.
func timely(ctx context.Context, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return write(ctx)
}
