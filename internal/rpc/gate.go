package rpc

import (
	"context"
	"runtime"
	"time"

	"google.golang.org/grpc/codes"
)

// busyFor is how long a caller that a Gate refused is told to wait.
const busyFor = 20 * time.Millisecond

// Gate bounds how many requests a handler works on and how many may wait for their turn. It is safe for concurrent use.
type Gate struct {
	admitted chan struct{} // one value per request that runs or waits
	running  chan struct{} // one value per request that runs
}

// NewGate returns a Gate. No requests at a time means twice GOMAXPROCS, none waiting means 256.
func NewGate(atOnce, waiting int) *Gate {
	if atOnce <= 0 {
		atOnce = 2 * runtime.GOMAXPROCS(0)
	}
	if waiting <= 0 {
		waiting = 256
	}
	return &Gate{admitted: make(chan struct{}, atOnce+waiting), running: make(chan struct{}, atOnce)}
}

// Enter waits for a turn; the caller calls leave when it is done. It refuses with RESOURCE_EXHAUSTED (QUEUE_FULL) and
// RetryInfo when too many wait already, and returns ctx's error when ctx ends first.
func (g *Gate) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case g.admitted <- struct{}{}:
	default:
		return nil, WithRetry(Error(codes.ResourceExhausted, ReasonQueueFull, "%d requests run or wait", cap(g.admitted)), busyFor)
	}
	select {
	case g.running <- struct{}{}:
		return func() { <-g.running; <-g.admitted }, nil
	case <-ctx.Done():
		<-g.admitted
		return nil, ctx.Err()
	}
}
