package filter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

// Bounds of a request, as the proto says them.
const (
	maxSubjects    = 1_000
	maxPodsOnNodes = 10_000
	maxCandidates  = 100
)

// Replica is this worker's copy of the ledger, as internal/replica keeps it.
type Replica interface {
	// Read calls fn with the state, at version least or later, while nobody changes it.
	Read(ctx context.Context, least cluster.Version, fn func(*cluster.State) error) error
	// Ready returns why the state is not good, or nil.
	Ready() error
}

// Evaluator judges nodes, as engine.Evaluator does.
type Evaluator interface {
	Filter(st *cluster.State, s engine.Subject, r cluster.Range) (engine.Feasibility, bool)
	Node(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) (engine.Verdict, bool)
	Explain(st *cluster.State, s engine.Subject, verdict engine.Verdict, node cluster.NodeIndex) []engine.VerdictCount
	DryRun(st *cluster.State, pod cluster.PodID, r cluster.Range, limit int) (engine.DryRun, bool)
}

// Config is everything a Service needs.
type Config struct {
	Replica       Replica      // required
	Evaluator     Evaluator    // required
	MaxConcurrent int          // requests that are evaluated at the same time; 0 means twice GOMAXPROCS
	MaxWaiting    int          // requests that may wait for their turn, beyond which they are refused; 0 means 256
	Log           *slog.Logger // nil discards
}

// Service implements FilterService. It is safe for concurrent use.
type Service struct {
	filterv1.UnimplementedFilterServiceServer

	cfg  Config
	gate *rpc.Gate
}

// New returns a service.
func New(cfg Config) (*Service, error) {
	if cfg.Replica == nil || cfg.Evaluator == nil {
		return nil, errors.New("create filter-worker: Replica and Evaluator are required")
	}
	if cfg.MaxConcurrent < 0 || cfg.MaxWaiting < 0 {
		return nil, fmt.Errorf("create filter-worker: MaxConcurrent %d, MaxWaiting %d: negative", cfg.MaxConcurrent, cfg.MaxWaiting)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{cfg: cfg, gate: rpc.NewGate(cfg.MaxConcurrent, cfg.MaxWaiting)}, nil
}

// Register makes the service answer on a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { filterv1.RegisterFilterServiceServer(r, s) }

// Ready returns why this worker cannot answer, or nil.
func (s *Service) Ready() error { return s.cfg.Replica.Ready() }

// Filter returns which nodes of a range can run each subject.
func (s *Service) Filter(ctx context.Context, request *filterv1.FilterRequest) (*filterv1.FilterResponse, error) {
	if err := validate(request); err != nil {
		return nil, err
	}
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	response := &filterv1.FilterResponse{}
	err = s.cfg.Replica.Read(ctx, wire.Version(request.GetMinVersion()), func(st *cluster.State) error {
		return s.evaluate(ctx, st, request, response)
	})
	if err != nil {
		return nil, replica.Status(err)
	}
	return response, nil
}

func (s *Service) evaluate(ctx context.Context, st *cluster.State, request *filterv1.FilterRequest, response *filterv1.FilterResponse) error {
	response.Version = wire.ToVersion(st.Version())
	r := cluster.Range{First: cluster.NodeIndex(request.GetFirst()), End: cluster.NodeIndex(request.GetEnd())}
	for _, subject := range request.GetSubjects() {
		if ctx.Err() != nil {
			return ctx.Err() // nobody waits for the rest
		}
		answer := &filterv1.SubjectFeasibility{}
		if f, ok := s.cfg.Evaluator.Filter(st, wire.Subject(subject), r); ok {
			answer.Eligible = wire.FromBitmap(f.Eligible)
			answer.FeasibleCount, answer.Nodes = f.FeasibleCount, f.Nodes
			answer.Verdicts = wire.ToVerdicts(f.Verdicts)
		}
		response.Subjects = append(response.Subjects, answer)
	}
	for _, question := range request.GetPodsOnNodes() {
		subject, node := wire.Subject(question.GetSubject()), cluster.NodeIndex(question.GetNode())
		answer := &filterv1.PodOnNodeFeasibility{}
		if verdict, ok := s.cfg.Evaluator.Node(st, subject, cluster.PodID(question.GetSelf()), node); ok {
			answer.Known, answer.Feasible = true, verdict.Feasible()
			answer.Verdicts = wire.ToVerdicts(s.cfg.Evaluator.Explain(st, subject, verdict, node))
		}
		response.PodsOnNodes = append(response.PodsOnNodes, answer)
	}
	return nil
}

// DryRunPreemption returns where in a range a pod would fit if pods of lower priority were gone.
func (s *Service) DryRunPreemption(ctx context.Context, request *filterv1.DryRunPreemptionRequest) (*filterv1.DryRunPreemptionResponse, error) {
	if err := validateDryRun(request); err != nil {
		return nil, err
	}
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var response *filterv1.DryRunPreemptionResponse
	err = s.cfg.Replica.Read(ctx, wire.Version(request.GetMinVersion()), func(st *cluster.State) error {
		if ctx.Err() != nil {
			return ctx.Err() // nobody waits for it
		}
		response = s.dryRun(st, request)
		return nil
	})
	if err != nil {
		return nil, replica.Status(err)
	}
	return response, nil
}

func (s *Service) dryRun(st *cluster.State, request *filterv1.DryRunPreemptionRequest) *filterv1.DryRunPreemptionResponse {
	var d engine.DryRun
	id := cluster.PodID(request.GetPod())
	if pod := st.Pod(id); pod != nil && engine.SubjectOf(&pod.Pod) == wire.Subject(request.GetSubject()) {
		r := cluster.Range{First: cluster.NodeIndex(request.GetFirst()), End: cluster.NodeIndex(request.GetEnd())}
		d, _ = s.cfg.Evaluator.DryRun(st, id, r, min(max(int(request.GetLimit()), 1), maxCandidates))
	}
	response := wire.ToDryRun(d)
	response.Version = wire.ToVersion(st.Version())
	return response
}

// violations are what is wrong with a request.
type violations []rpc.Violation

func (v *violations) add(field, format string, args ...any) {
	*v = append(*v, rpc.Violation{Field: field, Description: fmt.Sprintf(format, args...)})
}

func (v *violations) checkRange(first, end int32) {
	if first < 0 || first%64 != 0 {
		v.add("first", "%d is not a multiple of 64", first)
	}
	if end <= first {
		v.add("end", "%d is not above first, %d", end, first)
	} else if end%64 != 0 && end < cluster.MaxIndex {
		v.add("end", "%d is neither a multiple of 64 nor above every index", end)
	}
}

// validateDryRun returns INVALID_ARGUMENT with what is wrong with a request.
func validateDryRun(request *filterv1.DryRunPreemptionRequest) error {
	var bad violations
	bad.checkRange(request.GetFirst(), request.GetEnd())
	if request.GetPod() < 0 {
		bad.add("pod", "%d is no pod's id", request.GetPod())
	}
	if request.GetLimit() < 0 {
		bad.add("limit", "%d is negative", request.GetLimit())
	}
	return rpc.Invalid(bad...)
}

// validate returns INVALID_ARGUMENT with what is wrong with a request.
func validate(request *filterv1.FilterRequest) error {
	var bad violations
	first, end := request.GetFirst(), request.GetEnd()
	bad.checkRange(first, end)
	if n := len(request.GetSubjects()); n > maxSubjects {
		bad.add("subjects", "%d of them, at most %d are possible", n, maxSubjects)
	}
	if n := len(request.GetPodsOnNodes()); n > maxPodsOnNodes {
		bad.add("pods_on_nodes", "%d of them, at most %d are possible", n, maxPodsOnNodes)
	} else {
		for i, question := range request.GetPodsOnNodes() {
			if question.GetNode() < first || question.GetNode() >= end {
				bad.add(fmt.Sprintf("pods_on_nodes[%d].node", i), "%d is not within [%d, %d)", question.GetNode(), first, end)
			}
		}
	}
	return rpc.Invalid(bad...)
}
