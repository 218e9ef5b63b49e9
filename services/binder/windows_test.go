package binder

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// grown lets so many calls of a namespace end one after the other, of which one in every is late, and returns what it may have then.
func grown(calls, every int) int {
	w := windows{places: 256, limit: 10_000}
	now := time.Now()
	for k := range calls {
		now = now.Add(halvedEvery)
		if k%every == 0 {
			w.halve("n", 400, now)
		} else {
			w.done("n", 0, now)
		}
	}
	return w.allows("n", now)
}

func TestANamespaceMayHaveAsManyUnboundPodsAsItsBindsAllow(t *testing.T) {
	for _, c := range []struct {
		every  int
		bounds bool // to as many as a slow namespace gets places for
	}{{1, true}, {2, true}, {3, true}, {6, false}, {100, false}} {
		if got := grown(10*c.every, c.every); (got <= 128) != c.bounds {
			t.Errorf("where one bind in %d is late, %d may be unbound", c.every, got)
		}
	}
}

func TestAWindowIsHalvedOnceForCallsThatFailTogether(t *testing.T) {
	w := windows{places: 256, limit: 10_000}
	now := time.Now()
	for range 100 {
		w.halve("n", 4000, now)
	}
	if got := w.allows("n", now); got != 2000 {
		t.Errorf("%d of 4000 may be unbound, want 2000", got)
	}
	for k := range 20 {
		w.halve("n", 4000, now.Add(time.Duration(k+1)*halvedEvery))
	}
	if got := w.allows("n", now.Add(3*time.Second)); got != 128 {
		t.Errorf("when all fail %d may be unbound, want half of the places", got)
	}
}

func TestAWindowEndsWhenNothingHasFailedForLong(t *testing.T) {
	w := windows{places: 256, limit: 10_000}
	now := time.Now()
	w.shut("n", 1, now)
	if w.trust("n", now.Add(windowLasts-1)) != slow || w.trust("n", now.Add(windowLasts)) != unknown {
		t.Error("the window does not end when it should")
	}
	if got := w.allows("n", now.Add(windowLasts)); got != math.MaxInt {
		t.Errorf("afterwards %d may be unbound", got)
	}
	if w.sweep(now.Add(windowLasts)); len(w.of) != 0 || w.slow != 0 {
		t.Errorf("%v are left, of them %d slow", w.of, w.slow)
	}
}

func TestANamespaceIsSlowNoMoreWhenABindIsDoneInTimeAndNothingFailsAnyMore(t *testing.T) {
	w := windows{places: 256, limit: 10_000}
	now := time.Now()
	w.done("n", 0, now)
	w.shut("n", 1, now.Add(1))
	if now = now.Add(windowLasts - 1); w.trust("n", now) != slow {
		t.Error("a bind before the call that was late opens the window")
	}
	w.shut("n", 1, now)
	w.done("n", 0, now.Add(1))
	if got := w.trust("n", now.Add(forgivenAfter-1)); got != slow {
		t.Errorf("it is %v too soon", got)
	}
	if got, may := w.trust("n", now.Add(forgivenAfter)), w.allows("n", now.Add(forgivenAfter)); got != trusted || may != 256 {
		t.Errorf("long after a bind was done in time it is %v, and may have %d", got, may)
	}
	w.shut("n", 1, now.Add(2))
	if w.trust("n", now.Add(forgivenAfter)) != slow {
		t.Error("what came later is forgiven")
	}
}

func TestANamespaceIsTrustedWhoseBindsAreDoneInTime(t *testing.T) {
	w := windows{places: 16, limit: 100}
	now := time.Now()
	if w.trust("n", now) != unknown {
		t.Error("known before anything is known of it")
	}
	w.done("n", 0, now)
	if w.trust("n", now) != trusted || w.trust("n", now.Add(windowLasts)) != unknown {
		t.Error("not trusted when a bind is done, or for longer than that is remembered")
	}
	if w.shut("n", 1, now); w.trust("n", now) != slow {
		t.Error("trusted while it is slow")
	}
}

func TestSlowNamespacesShareTheirPlaces(t *testing.T) {
	w := windows{places: 256, limit: 10_000}
	now := time.Now()
	for n := range 500 {
		w.shut(fmt.Sprint(n), 1, now)
		if n != 0 && n != 3 && n != 499 {
			continue
		}
		if got, want := w.allows("0", now), max(1, 128/(n+1)); got != want {
			t.Errorf("one of %d slow namespaces may have %d unbound pods, want %d", n+1, got, want)
		}
	}
}

func TestHowManyNamespacesAreSlowIsKnown(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := windows{places: 16, limit: 100}
		now := time.Now()
		for range 500 {
			now = now.Add(time.Duration(r.Int64N(int64(3 * time.Second))))
			switch name := fmt.Sprint(r.IntN(20)); r.IntN(8) {
			case 0:
				w.halve(name, r.IntN(100), now)
			case 1:
				w.shut(name, r.IntN(10), now)
			case 2:
				w.sweep(now)
			default:
				w.done(name, 0, now)
			}
			slow := 0
			for _, v := range w.of {
				if v.size < w.places {
					slow++
				}
				if v.size < 1 || v.size > w.limit {
					t.Fatalf("a window of %d", v.size)
				}
			}
			if slow != w.slow {
				t.Fatalf("%d are slow, counted as %d", slow, w.slow)
			}
		}
	}
}

func TestWindowsOfInventedNamespacesAreForgotten(t *testing.T) {
	w := windows{places: 16, limit: 100}
	now := time.Now()
	for n := range 3 * maxWindows {
		w.shut(fmt.Sprint(n), 1, now)
		if len(w.of) > maxWindows {
			t.Fatalf("%d namespaces are remembered", len(w.of))
		}
	}
}
