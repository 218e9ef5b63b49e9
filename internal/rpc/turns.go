package rpc

import (
	"context"
	"math"
	"runtime"
	"time"
)

// turnFor is how long a turn lasts at least of work that could go on in another one.
const turnFor = 2 * time.Millisecond

// Turns are those in which a process does the work of people's calls, which takes a processor and waits for nobody: reading the cluster,
// answering questions, decoding and encoding. There are fewer turns than threads that run Go code, so that somebody is always left who looks
// at the network and does what is short; else whoever comes next waits behind everything that runs, however many calls of one caller that
// is. Callers share turns as they share a [Gate]: whoever has had least lately goes first.
//
// A turn is for one piece of work. Who waits for something else meanwhile, such as another process, does so without one.
// Turns are safe for concurrent use, and those that are nil are there for everybody at once.
type Turns struct{ gate *Gate }

// NewTurns returns so many turns; 0 means two less than GOMAXPROCS, one less of two or three, and at least one.
func NewTurns(atOnce int) *Turns {
	if atOnce <= 0 {
		atOnce = max(runtime.GOMAXPROCS(0)-2, min(runtime.GOMAXPROCS(0), 3)-1, 1)
	}
	// Whoever waits has been let in elsewhere, and is counted there.
	return &Turns{newGate(atOnce, math.MaxInt/4, busyFor)}
}

type turnsKey struct{}

// WithTurns returns a context of calls that work in turns.
func WithTurns(ctx context.Context, t *Turns) context.Context {
	if t == nil {
		return ctx
	}
	return context.WithValue(ctx, turnsKey{}, t)
}

// Turn is that of one call. It is not safe for concurrent use.
type Turn struct {
	ctx   context.Context
	gate  *Gate     // nil: there is nothing to wait for
	began time.Time // zero: it is over
}

// TakeTurn waits for the turn of a call's caller, in a context of [WithTurns]; in others there is nothing to wait for. It returns ctx's
// error when ctx ends first.
func TakeTurn(ctx context.Context) (*Turn, error) {
	t := &Turn{ctx: ctx}
	if turns, ok := ctx.Value(turnsKey{}).(*Turns); ok {
		t.gate = turns.gate
	}
	return t, t.Begin()
}

// Begin waits for the turn, if it is over.
func (t *Turn) Begin() (err error) {
	if t.gate != nil && t.began.IsZero() {
		t.began, err = t.gate.enter(t.ctx)
	}
	return err
}

// End ends the turn, if it is not over.
func (t *Turn) End() {
	if !t.began.IsZero() {
		t.gate.leave(CallerOf(t.ctx), t.began)
		t.began = time.Time{}
	}
}

type turnKey struct{}

// During returns a context of what is done during a turn, for [Aside].
func (t *Turn) During(ctx context.Context) context.Context {
	return context.WithValue(ctx, turnKey{}, t)
}

// Aside calls wait, which waits for somebody else, without the turn during which that is done ([Turn.During]), if there is one.
func Aside(ctx context.Context, wait func() error) error {
	t, ok := ctx.Value(turnKey{}).(*Turn)
	if !ok || t.began.IsZero() {
		return wait()
	}
	t.End()
	err := wait()
	if ended := t.Begin(); err == nil {
		err = ended
	}
	return err
}

// Yield is for work that takes long, between its parts: if the turn has lasted for turnFor, and somebody waits, it ends, and another begins
// when it is the caller's again.
func (t *Turn) Yield() error {
	if t.began.IsZero() || time.Since(t.began) < turnFor || !t.gate.wanted() {
		return nil
	}
	t.End()
	return t.Begin()
}
