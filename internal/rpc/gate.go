package rpc

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// busyFor is how long a caller that a Gate refused is told to wait.
const busyFor = 20 * time.Millisecond

// Gate bounds how many requests a handler works on and how many may wait for their turn. It is safe for concurrent use.
type Gate struct {
	admitted chan struct{} // one value per request that runs or waits
	running  chan struct{} // one value per request that runs
	busyFor  time.Duration // what the refused are told
}

// NewGate returns a Gate. No requests at a time means twice GOMAXPROCS, none waiting means 256.
func NewGate(atOnce, waiting int) *Gate {
	if atOnce <= 0 {
		atOnce = 2 * runtime.GOMAXPROCS(0)
	}
	if waiting <= 0 {
		waiting = 256
	}
	return newGate(atOnce, waiting, busyFor)
}

func newGate(atOnce, waiting int, busyFor time.Duration) *Gate {
	return &Gate{admitted: make(chan struct{}, atOnce+waiting), running: make(chan struct{}, atOnce), busyFor: busyFor}
}

// Enter waits for a turn; the caller calls leave when it is done. It refuses with RESOURCE_EXHAUSTED (QUEUE_FULL) and
// RetryInfo when too many wait already, and returns ctx's error when ctx ends first.
func (g *Gate) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case g.admitted <- struct{}{}:
	default:
		return nil, Exhausted(ReasonQueueFull, g.busyFor, "%d requests run or wait", cap(g.admitted))
	}
	select {
	case g.running <- struct{}{}:
		return func() { <-g.running; <-g.admitted }, nil
	case <-ctx.Done():
		<-g.admitted
		return nil, ctx.Err()
	}
}

// The bounds of every method of every server, whatever the handler itself bounds. They are many times what a Berth's own
// roles ask at a time; what waits takes memory for its request only.
const (
	methodAtOnce  = 16
	methodWaiting = 128
	// methodBusyFor is long enough that thousands who come back do not cost the server what it needs for those it took.
	methodBusyFor = 250 * time.Millisecond
)

// gates has a Gate for each unary method, so that calls that wait for etcd do not hold up those that read memory. A large
// answer leaves it encoded, and counted as unread. Health passes: who asks for it would take a refusal for illness.
type gates struct {
	byMethod sync.Map // *Gate by full method; unknown methods do not get here
	unread   *unread
}

func (g *gates) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if strings.HasPrefix(info.FullMethod, "/grpc.health.v1.Health/") {
		return handler(ctx, req)
	}
	gate, ok := g.byMethod.Load(info.FullMethod)
	if !ok {
		gate, _ = g.byMethod.LoadOrStore(info.FullMethod, newGate(methodAtOnce, methodWaiting, methodBusyFor))
	}
	leave, err := gate.(*Gate).Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	answer, err := handler(ctx, req)
	if err != nil {
		return nil, err
	}
	return g.unread.count(ctx, answer)
}
