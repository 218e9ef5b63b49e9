package score

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

// Bounds of a request, as the proto says them.
const (
	maxSubjects = 1_000
	maxLimit    = 10_000
)

// Replica is this worker's copy of the ledger, as internal/replica keeps it.
type Replica interface {
	// Read calls fn with the state, at version least or later, while nobody changes it.
	Read(ctx context.Context, least cluster.Version, fn func(*cluster.State) error) error
	// Ready returns why the state is not good, or nil.
	Ready() error
}

// Evaluator scores nodes, as engine.Evaluator does.
type Evaluator interface {
	Score(st *cluster.State, s engine.Subject, r cluster.Range, eligible cluster.Bitmap, limit int) ([]engine.Group, bool)
}

// Config is everything a Service needs.
type Config struct {
	Replica       Replica      // required
	Evaluator     Evaluator    // required
	MaxConcurrent int          // requests that are evaluated at the same time; 0 means twice GOMAXPROCS
	MaxWaiting    int          // requests that may wait for their turn, beyond which they are refused; 0 means 256
	Log           *slog.Logger // nil discards
}

// Service implements ScoreService. It is safe for concurrent use.
type Service struct {
	scorev1.UnimplementedScoreServiceServer

	cfg  Config
	gate *rpc.Gate
}

// New returns a service.
func New(cfg Config) (*Service, error) {
	if cfg.Replica == nil || cfg.Evaluator == nil {
		return nil, errors.New("create score-worker: Replica and Evaluator are required")
	}
	if cfg.MaxConcurrent < 0 || cfg.MaxWaiting < 0 {
		return nil, fmt.Errorf("create score-worker: MaxConcurrent %d, MaxWaiting %d: negative", cfg.MaxConcurrent, cfg.MaxWaiting)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{cfg: cfg, gate: rpc.NewGate(cfg.MaxConcurrent, cfg.MaxWaiting)}, nil
}

// Register makes the service answer on a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { scorev1.RegisterScoreServiceServer(r, s) }

// Ready returns why this worker cannot answer, or nil.
func (s *Service) Ready() error { return s.cfg.Replica.Ready() }

// Score returns the best nodes among the eligible ones of a range, for each subject.
func (s *Service) Score(ctx context.Context, request *scorev1.ScoreRequest) (*scorev1.ScoreResponse, error) {
	eligible, err := validate(request)
	if err != nil {
		return nil, err
	}
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	response := &scorev1.ScoreResponse{}
	err = s.cfg.Replica.Read(ctx, wire.Version(request.GetMinVersion()), func(st *cluster.State) error {
		return s.evaluate(ctx, st, request, eligible, response)
	})
	if err != nil {
		return nil, replica.Status(err)
	}
	return response, nil
}

func (s *Service) evaluate(ctx context.Context, st *cluster.State, request *scorev1.ScoreRequest, eligible []cluster.Bitmap, response *scorev1.ScoreResponse) error {
	response.Version = wire.ToVersion(st.Version())
	r := cluster.Range{First: cluster.NodeIndex(request.GetFirst()), End: cluster.NodeIndex(request.GetEnd())}
	for i, query := range request.GetSubjects() {
		if ctx.Err() != nil {
			return ctx.Err() // nobody waits for the rest
		}
		limit := min(max(int(query.GetLimit()), 1), maxLimit)
		answer := &scorev1.SubjectScores{}
		if groups, ok := s.cfg.Evaluator.Score(st, wire.Subject(query.GetSubject()), r, eligible[i], limit); ok {
			answer.Groups = wire.ToGroups(groups)
		}
		response.Subjects = append(response.Subjects, answer)
	}
	return nil
}

// validate returns the eligible nodes of each subject, or INVALID_ARGUMENT with what is wrong with the request.
func validate(request *scorev1.ScoreRequest) ([]cluster.Bitmap, error) {
	var violations []rpc.Violation
	bad := func(field, format string, args ...any) {
		violations = append(violations, rpc.Violation{Field: field, Description: fmt.Sprintf(format, args...)})
	}
	first, end := request.GetFirst(), request.GetEnd()
	if first < 0 || first%64 != 0 {
		bad("first", "%d is not a multiple of 64", first)
	}
	if end <= first {
		bad("end", "%d is not above first, %d", end, first)
	} else if end%64 != 0 && end < cluster.MaxIndex {
		bad("end", "%d is neither a multiple of 64 nor above every index", end)
	}
	if n := len(request.GetSubjects()); n > maxSubjects {
		bad("subjects", "%d of them, at most %d are possible", n, maxSubjects)
		return nil, rpc.Invalid(violations...)
	}
	eligible := make([]cluster.Bitmap, len(request.GetSubjects()))
	for i, query := range request.GetSubjects() {
		if query.GetLimit() < 0 {
			bad(fmt.Sprintf("subjects[%d].limit", i), "%d is negative", query.GetLimit())
		}
		words := (len(query.GetEligible()) + 7) / 8
		if int64(words)*64 > int64(end)-int64(first)+63 {
			bad(fmt.Sprintf("subjects[%d].eligible", i), "%d bytes are longer than the range", len(query.GetEligible()))
			continue
		}
		set, err := wire.Bitmap(query.GetEligible(), words)
		if err != nil {
			bad(fmt.Sprintf("subjects[%d].eligible", i), "%v", err)
			continue
		}
		eligible[i] = set
	}
	return eligible, rpc.Invalid(violations...)
}
