package fanout

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestAQuestionThatIsNotTracedAllocatesNoSpan(t *testing.T) {
	f := New(Config{})
	parts := make([]part[int, int], 2)
	allocs := testing.AllocsPerRun(100, func() {
		for k := range parts {
			parts[k].span = f.span(false, "filter", cluster.Range{End: 64})
			parts[k].span.start(t.Context())
			parts[k].span.answered("f")
			parts[k].span.finish()
		}
		if calls := callsOf(parts); len(calls) != 0 {
			t.Errorf("calls %v of a question that is not traced", calls)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}
