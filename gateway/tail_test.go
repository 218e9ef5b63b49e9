package gateway

import (
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestTailKeepsAllSinceItWasTakenOrNothing(t *testing.T) {
	var tail tail
	told := func(n int) (deltas []cluster.Delta) {
		for i := range n {
			d := cluster.PodBound{ID: cluster.PodID(i)}
			tail.Applied(nil, d)
			deltas = append(deltas, d)
		}
		return deltas
	}
	took := func(what string, want []cluster.Delta, all bool) {
		t.Helper()
		if got, whole := tail.take(); !slices.Equal(got, want) || whole != all {
			t.Errorf("%s: %d deltas, whole %v, want %d, %v", what, len(got), whole, len(want), all)
		}
	}
	told(3)
	took("before anybody asks", nil, false)
	took("nothing since", nil, true)
	took("three since", told(3), true)
	took("as many as are kept", told(tailLength), true)
	told(tailLength + 1)
	took("one more", nil, false)
	told(2)
	tail.Reset(nil)
	told(1)
	took("another state", nil, false)
	took("since then", told(1), true)
}
