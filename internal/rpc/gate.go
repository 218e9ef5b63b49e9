package rpc

import (
	"cmp"
	"context"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// busyFor is how long a caller that a Gate refused is told to wait.
const busyFor = 20 * time.Millisecond

// Gate bounds how many requests a handler works on and how many may wait for their turn. Both bounds are divided among callers
// ([CallerOf]) as a [Share] is. Of the callers who wait, the one goes first whose requests have taken the least time lately ([spent]); of
// those who have had as much, the one who has waited longest for its turn. It is safe for concurrent use.
type Gate struct {
	busyFor time.Duration // what the refused are told

	mu       sync.Mutex
	running  *Share // under mu, like the next
	waiting  *Share
	turns    map[string][]*turn // those that wait, by caller, the first to come first
	inLine   []string           // the callers of turns: the first one has waited longest for its turn
	spent    spent
	capacity int // of both
}

// turn is a request that waits.
type turn struct {
	granted chan struct{} // closed, under Gate.mu, when it runs
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
	return &Gate{
		busyFor: busyFor, running: NewShare(atOnce, 0), waiting: NewShare(waiting, 0), turns: make(map[string][]*turn),
		spent: make(spent), capacity: atOnce + waiting,
	}
}

// Enter waits for a turn; the caller calls leave when it is done. It refuses with RESOURCE_EXHAUSTED (QUEUE_FULL) and
// RetryInfo when too many wait already, and returns ctx's error when ctx ends first.
func (g *Gate) Enter(ctx context.Context) (leave func(), err error) {
	began, err := g.enter(ctx)
	if err != nil {
		return nil, err
	}
	return func() { g.leave(CallerOf(ctx), began) }, nil
}

// enter is Enter for who calls leave with when it began.
func (g *Gate) enter(ctx context.Context) (began time.Time, err error) {
	caller := CallerOf(ctx)
	g.mu.Lock()
	if len(g.turns[caller]) == 0 && g.running.take(caller, 1) { // who waits for others' room only is not overtaken: it has more running
		g.mu.Unlock()
		return time.Now(), nil
	}
	if !g.waiting.take(caller, 1) {
		g.mu.Unlock()
		return time.Time{}, Exhausted(ReasonQueueFull, g.busyFor, "%d requests run or wait at most, and of one caller as many as leave room for as many again", g.capacity)
	}
	t := g.line(caller)
	g.mu.Unlock()
	if err := g.await(ctx, caller, t); err != nil {
		return time.Time{}, err
	}
	return time.Now(), nil
}

// line has a caller wait for one more turn. The caller of line holds mu.
func (g *Gate) line(caller string) *turn {
	t := &turn{granted: make(chan struct{})}
	if len(g.turns[caller]) == 0 {
		g.inLine = append(g.inLine, caller)
	}
	g.turns[caller] = append(g.turns[caller], t)
	return t
}

// await waits for a turn until ctx ends.
func (g *Gate) await(ctx context.Context, caller string, t *turn) error {
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-t.granted: // meanwhile
		g.running.give(caller, 1)
	default:
		g.waiting.give(caller, 1)
		g.remove(caller, slices.Index(g.turns[caller], t))
	}
	g.grant()
	return ctx.Err()
}

func (g *Gate) leave(caller string, began time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.spent.add(caller, now.Sub(began), now)
	g.running.give(caller, 1)
	g.grant()
}

// wanted reports whether anybody waits.
func (g *Gate) wanted() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.inLine) > 0
}

// grant lets run who may, caller by caller. The caller of grant holds mu.
func (g *Gate) grant() {
	if len(g.inLine) == 0 {
		return
	}
	now := time.Now()
	slices.SortStableFunc(g.inLine, func(a, b string) int { return cmp.Compare(g.spent.by(a, now), g.spent.by(b, now)) })
	for i := 0; i < len(g.inLine); {
		caller := g.inLine[i]
		if !g.running.take(caller, 1) {
			i++ // it runs as many as it may, or there is no room
			continue
		}
		g.waiting.give(caller, 1)
		close(g.turns[caller][0].granted)
		g.remove(caller, 0)
		if at := slices.Index(g.inLine, caller); at >= 0 { // it has more: behind the others
			g.inLine = append(slices.Delete(g.inLine, at, at+1), caller)
		}
		i = 0
	}
}

// remove takes a turn out of the line. The caller holds mu.
func (g *Gate) remove(caller string, at int) {
	g.turns[caller] = slices.Delete(g.turns[caller], at, at+1)
	if len(g.turns[caller]) == 0 {
		delete(g.turns, caller)
		g.inLine = slices.DeleteFunc(g.inLine, func(c string) bool { return c == caller })
	}
}

// spent is how much time the requests of each caller have taken, as if half of it were forgotten every second: what somebody did long ago
// tells little of what they want now.
type spent map[string]spending

type spending struct {
	time time.Duration
	at   time.Time // when it was that much
}

// Whose requests have taken less than this is forgotten, once so many callers are remembered.
const (
	spentLittle  = 100 * time.Microsecond
	spentCallers = 1024
)

// by returns how much a caller's requests have taken.
func (s spent) by(caller string, now time.Time) time.Duration {
	of, ok := s[caller]
	if !ok {
		return 0
	}
	return time.Duration(float64(of.time) * math.Exp2(-now.Sub(of.at).Seconds()))
}

// add adds what a request has taken.
func (s spent) add(caller string, took time.Duration, now time.Time) {
	if took <= 0 {
		return
	}
	s[caller] = spending{s.by(caller, now) + took, now}
	if len(s) <= spentCallers {
		return
	}
	for other := range s {
		if s.by(other, now) < spentLittle {
			delete(s, other)
		}
	}
	if len(s) > spentCallers { // so many who have taken that much: they are remembered no more than the others
		clear(s)
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
	byMethod sync.Map       // *Gate by full method; unknown methods do not get here
	atOnce   map[string]int // by full method, where it is not methodAtOnce
	unread   *unread
}

func (g *gates) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if strings.HasPrefix(info.FullMethod, healthService) {
		return handler(ctx, req)
	}
	gate, ok := g.byMethod.Load(info.FullMethod)
	if !ok {
		gate, _ = g.byMethod.LoadOrStore(info.FullMethod, newGate(cmp.Or(g.atOnce[info.FullMethod], methodAtOnce), methodWaiting, methodBusyFor))
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
