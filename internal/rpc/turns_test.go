package rpc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/test/bubble"
)

// spend has a caller spend time in a gate.
func spend(t *testing.T, g *Gate, caller string, d time.Duration) {
	t.Helper()
	leave := <-enter(t, g, caller)
	time.Sleep(d) // of the bubble's fake clock
	leave()
}

// order returns in which order these callers, who begin to wait in this one while somebody runs, go through a gate.
func order(t *testing.T, g *Gate, callers ...string) (went []string) {
	t.Helper()
	first := <-enter(t, g, "first")
	for _, caller := range callers {
		go func() {
			leave, err := g.Enter(WithCaller(t.Context(), caller))
			if err != nil {
				t.Errorf("%s: %v", caller, err)
				return
			}
			went = append(went, caller)
			leave()
		}()
		synctest.Wait()
	}
	first()
	synctest.Wait()
	return went
}

func TestWhoHasHadLeastLatelyGoesFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := NewGate(1, 64)
		spend(t, g, "hog", 50*time.Millisecond)
		spend(t, g, "other hog", 20*time.Millisecond)
		spend(t, g, "honest", time.Millisecond)
		if got, want := fmt.Sprint(order(t, g, "hog", "other hog", "honest", "new")), "[new honest other hog hog]"; got != want {
			t.Errorf("they went in the order %s, want %s", got, want)
		}
		// What was long ago counts for less than what was just now.
		time.Sleep(20 * time.Second)
		spend(t, g, "honest", 2*time.Millisecond)
		if got, want := fmt.Sprint(order(t, g, "honest", "hog")), "[hog honest]"; got != want {
			t.Errorf("20 s later they went in the order %s, want %s", got, want)
		}
	})
}

func TestAGateRemembersFewCallers(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, each := range []time.Duration{time.Microsecond, time.Hour} {
		s := make(spent)
		s.add("hog", time.Second, now)
		for i := range 3 * spentCallers {
			s.add(fmt.Sprint(i), each, now)
			if len(s) > spentCallers {
				t.Fatalf("%d callers are remembered, who have taken %v each", len(s), each)
			}
		}
		if each < spentLittle && s.by("hog", now) != time.Second {
			t.Errorf("the one who has taken much is remembered with %v", s.by("hog", now))
		}
	}
}

// turnOf takes the turn of a caller.
func turnOf(ctx context.Context, turns *Turns, caller string) (*Turn, error) {
	return TakeTurn(WithTurns(WithCaller(ctx, caller), turns))
}

func TestWorkWaitsForATurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		var held []*Turn
		for i := range 2 {
			turn, err := turnOf(t.Context(), turns, fmt.Sprint(i))
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, turn)
		}
		took := make(chan error, 1)
		go func() {
			turn, err := turnOf(t.Context(), turns, "third")
			turn.End()
			took <- err
		}()
		synctest.Wait()
		select {
		case err := <-took:
			t.Fatalf("a third did not wait: %v", err)
		default:
		}
		held[0].End()
		held[0].End() // it is over
		if err := <-took; err != nil {
			t.Fatal(err)
		}
		if running, waiting := turns.gate.load(); running != 1 || waiting != 0 {
			t.Errorf("%d have a turn and %d wait, want 1 and 0", running, waiting)
		}
		held[1].End()
	})
}

func TestWhoLeavesWaitsForNoTurn(t *testing.T) {
	turns := NewTurns(1)
	turn, err := turnOf(t.Context(), turns, "one")
	if err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	other, err := turnOf(gone, turns, "other")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("who has left: %v, want that the context has ended", err)
	}
	other.End()
	turn.End()
	if running, waiting := turns.gate.load(); running != 0 || waiting != 0 {
		t.Errorf("%d have a turn and %d wait, and nobody is there", running, waiting)
	}
}

func TestWithoutTurnsNobodyWaits(t *testing.T) {
	for _, ctx := range []context.Context{t.Context(), WithTurns(t.Context(), nil)} {
		one, err := TakeTurn(ctx)
		two, other := TakeTurn(ctx)
		if err != nil || other != nil || one.Yield() != nil {
			t.Errorf("%v, %v", err, other)
		}
		if err := Aside(one.During(ctx), func() error { return nil }); err != nil {
			t.Error(err)
		}
		one.End()
		two.End()
	}
}

func TestAsideOthersHaveTheTurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		turn, err := turnOf(t.Context(), turns, "one")
		if err != nil {
			t.Fatal(err)
		}
		ctx, during := context.WithCancel(t.Context())
		var other *Turn
		failed := errors.New("the other side has failed")
		go func() {
			if err := Aside(turn.During(ctx), func() (err error) {
				if other, err = turnOf(t.Context(), turns, "other"); err != nil {
					t.Error(err)
				}
				return failed
			}); !errors.Is(err, failed) {
				t.Errorf("the error of what was waited for: %v", err)
			}
			during()
		}()
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatal("it goes on while another has the turn")
		}
		other.End()
		<-ctx.Done()
		if running, _ := turns.gate.load(); running != 1 {
			t.Errorf("%d have a turn, want the one that goes on", running)
		}
		turn.End()
	})
}

func TestLongWorkLetsOthersHaveATurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		long, err := turnOf(t.Context(), turns, "long")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(turnFor)
		if err := long.Yield(); err != nil || long.began.IsZero() {
			t.Errorf("nobody waits: %v", err)
		}
		began := long.began
		had := make(chan struct{})
		go func() {
			turn, err := turnOf(t.Context(), turns, "short")
			if err != nil {
				t.Error(err)
			}
			close(had)
			time.Sleep(time.Second)
			turn.End()
		}()
		synctest.Wait()
		long.began = time.Now().Add(-turnFor + 1)
		if err := long.Yield(); err != nil {
			t.Error(err)
		}
		select {
		case <-had:
			t.Fatal("a turn has ended that has only begun")
		default:
		}
		time.Sleep(time.Nanosecond)
		if err := long.Yield(); err != nil {
			t.Error(err)
		}
		select {
		case <-had:
		default:
			t.Error("the other has had no turn")
		}
		if got := time.Since(began); got < time.Second {
			t.Errorf("it went on after %v, while the other had the turn", got)
		}
		long.End()
	})
}
