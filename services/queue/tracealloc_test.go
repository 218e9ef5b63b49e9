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
		c := &cycle{driver: d, attempts: make([]*attempt, 256)}
		for i := range c.attempts {
			c.attempts[i] = &attempt{Attempt: pending.Attempt{ID: cluster.PodID(i), UID: fmt.Sprintf("0d6d9a3e-7a54-4a6b-9c1f-%012d", i), Number: 1}}
		}
		allocs := testing.AllocsPerRun(100, func() {
			c.traceAttempts(st)
			c.traceCalls("filter", nil, func(a *attempt, _ *fanout.Call) bool { return a.RequiredNode == "" })
			for _, a := range c.attempts {
				a.traced.preempted(preemptionStarted, 1)
				a.traced.endPlaced(st, a.ID, resultScheduled, "")
			}
			c.endTraces()
		})
		if allocs != 0 {
			t.Errorf("tracing %s: %v allocations for %d attempts of which none is sampled, want none", name, allocs, len(c.attempts))
		}
		if allocs := testing.AllocsPerRun(100, func() { c.trace(t.Context()) }); allocs > 1 {
			t.Errorf("tracing %s: %v allocations for a cycle without a sampled attempt, want one context at most", name, allocs)
		}
	}
}
