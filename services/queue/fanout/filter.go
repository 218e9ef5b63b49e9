package fanout

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

// FilterQuestion asks which nodes can run pods.
type FilterQuestion struct {
	Least    cluster.Version  // what the answers have to be of, or later
	Length   int              // one more than the largest index of a node
	Subjects []engine.Subject // about all nodes
	OnNodes  []OnNode
	Traced   bool
}

// OnNode asks about one node.
type OnNode struct {
	Subject engine.Subject
	Self    cluster.PodID     // whose own nomination does not count against it
	Node    cluster.NodeIndex // NoNode: nobody is asked
}

// FilterAnswer answers in the order of the question.
type FilterAnswer struct {
	Versions
	Subjects []engine.Feasibility
	OnNodes  []OnNodeAnswer
	Calls    []Call // about the OnNodes of a range, and all subjects; also with an error. None unless traced
}

// OnNodeAnswer is whether one node can run a pod.
type OnNodeAnswer struct {
	Known    bool // the node exists
	Feasible bool
	Verdicts []engine.VerdictCount
}

// Filter asks the filter-workers. A RefusedError says that to ask again does not help.
func (w *Workers) Filter(ctx context.Context, q FilterQuestion) (FilterAnswer, error) {
	first, last := w.f.suspects.split(w.filters)
	subjects := make([]*filterv1.Subject, len(q.Subjects))
	for i, s := range q.Subjects {
		subjects[i] = wire.ToSubject(s)
	}
	var parts []part[*filterv1.FilterRequest, *filterv1.FilterResponse]
	for _, r := range ranges(q.Length, len(first)) {
		request := &filterv1.FilterRequest{MinVersion: wire.ToVersion(q.Least), First: int32(r.First), End: int32(r.End), Subjects: subjects}
		var about []int
		for i, p := range q.OnNodes {
			if p.Node != cluster.NoNode && r.First <= p.Node && p.Node < r.End {
				about = append(about, i)
				request.PodsOnNodes = append(request.PodsOnNodes, &filterv1.PodOnNode{
					Subject: wire.ToSubject(p.Subject), Node: int32(p.Node), Self: int32(p.Self),
				})
			}
		}
		if len(subjects)+len(about) == 0 {
			continue
		}
		parts = append(parts, part[*filterv1.FilterRequest, *filterv1.FilterResponse]{
			cut: r, about: about, request: request, span: w.f.span(q.Traced, "filter", r),
			call: func(ctx context.Context, conn grpc.ClientConnInterface, request *filterv1.FilterRequest) (*filterv1.FilterResponse, error) {
				return filterv1.NewFilterServiceClient(conn).Filter(ctx, request)
			},
		})
	}
	responses, err := askAll(ctx, w.f, first, last, parts)
	a := FilterAnswer{
		Subjects: make([]engine.Feasibility, len(q.Subjects)), OnNodes: make([]OnNodeAnswer, len(q.OnNodes)), Calls: callsOf(parts),
	}
	if err != nil {
		return a, err
	}
	for i, response := range responses {
		if err := a.add(parts[i].cut, parts[i].about, response); err != nil {
			return a, fmt.Errorf("range [%d, %d): %w", parts[i].cut.First, parts[i].cut.End, RefusedError{err})
		}
	}
	return a, nil
}

// add merges the response about one range; ranges come in order.
func (a *FilterAnswer) add(r cluster.Range, onNodes []int, response *filterv1.FilterResponse) error {
	if len(response.GetSubjects()) != len(a.Subjects) || len(response.GetPodsOnNodes()) != len(onNodes) {
		return fmt.Errorf("answer about %d subjects and %d pods on nodes, asked for %d and %d",
			len(response.GetSubjects()), len(response.GetPodsOnNodes()), len(a.Subjects), len(onNodes))
	}
	a.Versions.add(wire.Version(response.GetVersion()))
	for i, f := range response.GetSubjects() {
		s := &a.Subjects[i]
		bits, err := wire.Bitmap(f.GetEligible(), min((len(f.GetEligible())+7)/8, r.Len()/64))
		if err != nil {
			return err
		}
		if len(bits) > 0 {
			s.Eligible = s.Eligible.Grow(int(r.First) + len(bits)*64)
			copy(s.Eligible[r.First/64:], bits)
		}
		verdicts, err := wire.Verdicts(f.GetVerdicts())
		if err != nil {
			return err
		}
		s.Nodes += f.GetNodes()
		s.FeasibleCount += f.GetFeasibleCount()
		s.Verdicts = engine.MergeVerdicts(s.Verdicts, verdicts)
	}
	for i, answered := range response.GetPodsOnNodes() {
		verdicts, err := wire.Verdicts(answered.GetVerdicts())
		if err != nil {
			return err
		}
		a.OnNodes[onNodes[i]] = OnNodeAnswer{Known: answered.GetKnown(), Feasible: answered.GetFeasible(), Verdicts: verdicts}
	}
	return nil
}
