package queue

import (
	"fmt"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/trace"
	"github.com/berth-scheduler/berth/services/queue/fanout"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

func TestAttemptsThatAreNotSampledAllocateNothing(t *testing.T) {
	for name, provider := range map[string]*trace.Provider{
		"off": nil, "on": trace.NewProvider(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(1e-15))),
	} {
		d := &driver{s: &Service{cfg: Config{Trace: provider}}, sh: &shard{}}
		st := cluster.New(cluster.Version{Epoch: 1})
		b := &batch{attempts: make([]pending.Attempt, 256)}
		for i := range b.attempts {
			b.attempts[i] = pending.Attempt{ID: cluster.PodID(i), UID: fmt.Sprintf("0d6d9a3e-7a54-4a6b-9c1f-%012d", i), Number: 1}
		}
		open := map[int]bool{}
		allocs := testing.AllocsPerRun(100, func() {
			b.traced = d.traceAttempts(st, b.attempts)
			b.traceCalls("filter", nil, func(i int, _ *fanout.Call) bool { return b.attempts[i].RequiredNode == "" })
			for i := range b.attempts {
				b.traced[i].preempted(preemptionStarted, 1)
				b.traced[i].endPlaced(st, b.attempts[i].ID, resultScheduled, "")
			}
			b.endTraces(open)
		})
		if allocs != 0 {
			t.Errorf("tracing %s: %v allocations for %d attempts of which none is sampled, want none", name, allocs, len(b.attempts))
		}
		if allocs := testing.AllocsPerRun(100, func() { d.traceCycle(t.Context(), b) }); allocs > 1 {
			t.Errorf("tracing %s: %v allocations for a cycle without a sampled attempt, want one context at most", name, allocs)
		}
	}
}
