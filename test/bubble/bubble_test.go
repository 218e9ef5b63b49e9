package bubble_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/test/bubble"
)

// With the race detector, and without the package, it kills the process within seconds on two processors.
func TestManyMayMakeTimersThatAreDueAtOnce(t *testing.T) {
	const many, times = 8, 20_000
	var told atomic.Int64
	bubble.Test(t, func(*testing.T) {
		var running sync.WaitGroup
		for range many {
			running.Go(func() {
				for range times {
					timer := time.NewTimer(0)
					<-timer.C
					told.Add(1)
				}
			})
		}
		running.Wait()
	})
	if got := told.Load(); got != many*times {
		t.Errorf("%d timers told, want %d", got, many*times)
	}
}
