package binder

import (
	"testing"
	"time"
)

func TestSearchesForOtherNodesTakeATwentiethOfTheTime(t *testing.T) {
	var a allowance
	began := time.Now()
	took := time.Duration(0)
	now := began
	for now = began; now.Sub(began) < 10*time.Minute; now = now.Add(10 * time.Millisecond) { // a pod is refused each time
		if a.any(now) {
			a.spend(30 * time.Millisecond)
			took += 30 * time.Millisecond
			now = now.Add(30 * time.Millisecond)
		}
	}
	if most := now.Sub(began)/elsewherePart + elsewhereAtOnce + 30*time.Millisecond; took > most || took < most-time.Second {
		t.Errorf("%v of %v", took, now.Sub(began))
	}
}
