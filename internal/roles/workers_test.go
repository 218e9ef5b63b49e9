package roles

import "testing"

// See TestBindsThatWaitForTheirTurnWithTheClientAreNotTakenForSlow of the binder.
func TestBindsUnderWayAreLetThroughWithinASecond(t *testing.T) {
	for qps := float32(4); qps < 6000; qps++ {
		workers := bindWorkersOf(qps)
		if requests := workers * 2 * 2; float32(requests) > qps || workers < min(mostBindWorkers, int(qps)/4) {
			t.Errorf("with %v requests a second there are %d workers", qps, workers)
		}
	}
	if bindWorkersOf(0.1) != 1 || bindWorkersOf(5000) != mostBindWorkers {
		t.Errorf("%d and %d workers", bindWorkersOf(0.1), bindWorkersOf(5000))
	}
}
