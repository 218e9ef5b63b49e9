package binder

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sync/errgroup"
)

func TestACallerMakesItsCallsInOneGoroutineUntilOneIsLeft(t *testing.T) {
	g, ctx := errgroup.WithContext(t.Context())
	spawned := 0
	c := caller{spawn: func(f func() error) {
		spawned++
		g.Go(f)
	}}
	nothing := func() error { return nil }
	for range 3 {
		<-c.do(ctx, nothing)
	}
	if spawned != 1 {
		t.Errorf("3 calls had %d goroutines", spawned)
	}
	answer := make(chan struct{})
	late := c.do(ctx, func() error { <-answer; return nil })
	c.leave()
	<-c.do(ctx, nothing) // it does not wait for the one before
	if spawned != 2 {
		t.Errorf("with one that was left there were %d goroutines", spawned)
	}
	select {
	case <-late:
		t.Error("the call that was left has ended")
	default:
	}
	close(answer)
	<-late
	c.leave()
	c.leave() // there is none
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestACallAfterOneThatFailsIsMade(t *testing.T) {
	g, ctx := errgroup.WithContext(t.Context())
	c := caller{spawn: g.Go}
	failed := errors.New("it fails")
	<-c.do(ctx, func() error { return failed })
	<-ctx.Done()
	made := false
	<-c.do(ctx, func() error { made = true; return context.Cause(ctx) })
	c.leave()
	if err := g.Wait(); !made || !errors.Is(err, failed) {
		t.Errorf("made %v, and the error is %v", made, err)
	}
}
