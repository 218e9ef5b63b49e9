package fanout

import (
	"context"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

// DryRunQuestion asks where a pod would fit if pods of lower priority were gone.
type DryRunQuestion struct {
	Least   cluster.Version // what the answers have to be of, or later
	Length  int             // one more than the largest index of a node
	Subject engine.Subject
	Pod     cluster.PodID
	Seed    uint64 // of ties
	// Stands says which candidates count; nil: all do. Then it is asked about the best of each worker only, at most as many as one tells of.
	Stands func(*engine.Preemption) bool
}

// DryRunAnswer is where, and why not elsewhere.
type DryRunAnswer struct {
	Versions
	Nodes    int                           // that exist; 0: the pod, or its class, is gone
	Best     *filterv1.PreemptionCandidate // nil: none. As the binder is told it
	Verdicts []engine.VerdictCount         // why the nodes are no candidates
	Fallen   int32                         // how many candidates there were that do not count
}

// maxCandidates is of how many candidates a worker tells at most.
const maxCandidates = 100

// DryRunPreemption asks the filter-workers. A RefusedError says that to ask again does not help.
func (w *Workers) DryRunPreemption(ctx context.Context, q DryRunQuestion) (DryRunAnswer, error) {
	limit := int32(1)
	if q.Stands != nil {
		limit = maxCandidates
	}
	first, last := w.f.suspects.split(w.filters)
	var parts []part[*filterv1.DryRunPreemptionRequest, *filterv1.DryRunPreemptionResponse]
	for _, r := range ranges(q.Length, len(first)) {
		parts = append(parts, part[*filterv1.DryRunPreemptionRequest, *filterv1.DryRunPreemptionResponse]{
			cut: r,
			request: &filterv1.DryRunPreemptionRequest{
				MinVersion: wire.ToVersion(q.Least), First: int32(r.First), End: int32(r.End),
				Subject: wire.ToSubject(q.Subject), Pod: int32(q.Pod), Limit: limit,
			},
			call: func(ctx context.Context, conn grpc.ClientConnInterface, request *filterv1.DryRunPreemptionRequest) (*filterv1.DryRunPreemptionResponse, error) {
				return filterv1.NewFilterServiceClient(conn).DryRunPreemption(ctx, request)
			},
		})
	}
	responses, err := askAll(ctx, w.f, first, last, parts)
	if err != nil {
		return DryRunAnswer{}, err
	}
	var a DryRunAnswer
	var best *engine.Preemption
	for _, response := range responses {
		d, err := wire.DryRun(response)
		if err != nil {
			return DryRunAnswer{}, RefusedError{err}
		}
		a.Versions.add(wire.Version(response.GetVersion()))
		a.Nodes += int(d.Nodes)
		a.Verdicts = engine.MergeVerdicts(a.Verdicts, d.Verdicts)
		for n := range d.Candidates {
			p := &d.Candidates[n]
			if best != nil && p.Compare(best, q.Seed) >= 0 {
				continue
			}
			if q.Stands != nil && !q.Stands(p) {
				a.Fallen++
				continue
			}
			best, a.Best = p, response.GetCandidates()[n]
		}
	}
	return a, nil
}
