package rpc

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/test/bubble"
)

func TestGateBoundsWhoRunsAndWhoWaits(t *testing.T) {
	g := NewGate(1, 1)
	leave, err := g.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { _, err := g.Enter(waiting); left <- err }()
	for waits := 0; waits != 1; _, waits = g.load() { // until the second waits, Enter would take its place
		select {
		case err := <-left:
			t.Fatalf("the second did not wait: %v", err)
		default:
		}
	}
	_, err = g.Enter(t.Context())
	if after, ok := RetryAfter(err); status.Code(err) != codes.ResourceExhausted || ReasonOf(err) != ReasonQueueFull || !ok || after <= 0 {
		t.Errorf("a third: %v, retry after %v; want RESOURCE_EXHAUSTED, QUEUE_FULL and a time", err, after)
	}

	// One that stops waiting makes room for another, and so does one that is done.
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the end of the one that waited: %v", err)
	}
	leave()
	if leave, err = g.Enter(t.Context()); err != nil {
		t.Errorf("after both have left: %v", err)
	} else {
		leave()
	}
	if running, waiting := g.load(); running != 0 || waiting != 0 || len(g.turns)+len(g.inLine) != 0 {
		t.Errorf("%d run and %d wait, and nobody is there", running, waiting)
	}
}

// enter has a caller enter a gate, and returns its end.
func enter(t *testing.T, g *Gate, caller string) <-chan func() {
	t.Helper()
	in := make(chan func(), 1)
	go func() {
		leave, err := g.Enter(WithCaller(t.Context(), caller))
		if err != nil {
			t.Errorf("%s: %v", caller, err)
			close(in)
			return
		}
		in <- leave
	}()
	return in
}

func TestCallersTakeTurnsAtAGate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := NewGate(1, 64)
		first := <-enter(t, g, "hog")
		var hogs []<-chan func()
		for range 20 {
			hogs = append(hogs, enter(t, g, "hog"))
			synctest.Wait()
		}
		var others []<-chan func()
		for _, caller := range []string{"one", "other"} {
			others = append(others, enter(t, g, caller))
			synctest.Wait()
		}
		first()
		(<-hogs[0])() // it was the first in line, and the others come before its next
		for i, in := range others {
			synctest.Wait()
			select {
			case leave := <-in:
				leave()
			default:
				t.Fatalf("the other caller %d waits behind those of one that has many", i)
			}
		}
		for _, in := range hogs[1:] {
			(<-in)()
		}
	})
}

func TestOneCallerLeavesRoomAtAGate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := NewGate(16, 128)
		ctx, cancel := context.WithCancel(t.Context())
		entered, refused := 0, 0
		var mu sync.Mutex
		for range 500 {
			go func() {
				_, err := g.Enter(WithCaller(ctx, "hog"))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					entered++
				} else if ReasonOf(err) == ReasonQueueFull {
					refused++
				}
			}()
		}
		synctest.Wait()
		if running, waiting := g.load(); running != 8 || waiting != 64 || refused != 500-72 {
			t.Errorf("of one caller %d run, %d wait and %d were refused; want half of the room to be left", running, waiting, refused)
		}
		for _, caller := range []string{"one", "other"} {
			leave, err := g.Enter(WithCaller(t.Context(), caller))
			if err != nil {
				t.Fatalf("%s: %v", caller, err)
			}
			leave()
		}
		cancel()
		synctest.Wait()
	})
}

func TestNobodyHoldsMoreThanIsFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, each := rapid.IntRange(1, 100).Draw(t, "limit"), rapid.IntRange(0, 50).Draw(t, "each")
		s := NewShare(limit, each)
		held := map[string]int{}
		used := 0
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			caller := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "caller")
			n := rapid.IntRange(1, 5).Draw(t, "units")
			if rapid.Bool().Draw(t, "give") {
				n = min(n, held[caller])
				s.Give(caller, n)
				held[caller] -= n
				used -= n
				continue
			}
			free := limit - used
			want := n <= free && (caller == "" || held[caller]+n <= max(free, 1) && (each == 0 || held[caller]+n <= each))
			if got := s.Take(caller, n); got != want {
				t.Fatalf("%q takes %d of %d free, and has %d: %v, want %v", caller, n, free, held[caller], got, want)
			}
			if want {
				held[caller] += n
				used += n
			}
		}
		callers := 0
		for caller, n := range held {
			if caller != "" && n > 0 {
				callers++
			}
		}
		if units, who := s.Used(); units != used || who != callers {
			t.Fatalf("%d units of %d callers are taken, want %d of %d", units, who, used, callers)
		}
	})
}
