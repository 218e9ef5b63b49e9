package rpc

import (
	"sync"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/test/bubble"
)

func TestManyWhoAreRefusedAtOnceAreNotAnsweredAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const many, bins = 100, 10
		began := time.Now()
		var mu sync.Mutex
		var told [bins]int
		var refused sync.WaitGroup
		for range many {
			refused.Go(func() {
				Pause(Exhausted(ReasonQueueFull, time.Second, "too many"))
				after := time.Since(began)
				if after < refusalPause || after >= 2*refusalPause {
					t.Errorf("a refusal took %v, not between %v and twice that", after, refusalPause)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				told[int((after-refusalPause)*bins/refusalPause)]++
			})
		}
		refused.Wait()
		for _, n := range told {
			if n >= many/2 { // ten are expected, and half of them come by chance once in 10^22 runs
				t.Errorf("of %d who were refused at once, so many were answered in each tenth of the time: %v", many, told)
				break
			}
		}
	})
}
