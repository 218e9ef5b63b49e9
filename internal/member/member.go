// Package member answers what every role tells about itself: who it is, how far its replica has come and whether it is
// ready to work. It also takes the request to end.
//
// The package knows nothing of what a role does, and does not register the member with etcd: that is internal/coord's.
package member

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	memberv1 "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// The reasons why a member is not drained, both FAILED_PRECONDITION.
const (
	ReasonWrongMember   rpc.Reason = "WRONG_MEMBER"   // another member is served here
	ReasonSharesProcess rpc.Reason = "SHARES_PROCESS" // end the process instead
)

// Config is what a member tells. Its functions are called once or a few times per call, concurrently, and must not wait.
type Config struct {
	ID   string // unique within the role; required
	Role string // as in etcd, for example "filter-worker"; required
	// Version returns the version of the replica, or of the active binder's ledger; zero while there is none. nil
	// means that the member has no replica.
	Version func() cluster.Version
	// Head returns the end of the log as last heard; zero while unknown. nil means that it is not known.
	Head func() cluster.Version
	// Digest returns the digest of the state that Version is of. nil means that it is not known.
	Digest func() uint64
	// Ready returns why the member is not ready to work, nil if it is. A nil func means always ready.
	Ready func() error
	// Available returns why the member does not do its part, which may be to stand by. A nil func means that it is as ready.
	Available func() error
	// Drain begins the end of the process, and returns at once. nil means that other roles share the process.
	Drain   func()
	Build   string    // what the program was built from; "" means not known
	Started time.Time // when the process started; zero means not known
}

// Service implements MemberService. It is safe for concurrent use.
type Service struct {
	memberv1.UnimplementedMemberServiceServer
	cfg      Config
	draining atomic.Bool
}

// New returns the service of one member. It fails if ID or Role is empty.
func New(cfg Config) (*Service, error) {
	if cfg.ID == "" {
		return nil, errors.New("create member: ID is empty")
	}
	if cfg.Role == "" {
		return nil, errors.New("create member: Role is empty")
	}
	return &Service{cfg: cfg}, nil
}

// Register makes the member answer on a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { memberv1.RegisterMemberServiceServer(r, s) }

// GetMember returns the member's own view.
func (s *Service) GetMember(context.Context, *memberv1.GetMemberRequest) (*memberv1.GetMemberResponse, error) {
	response := &memberv1.GetMemberResponse{
		Id: s.cfg.ID, Role: s.cfg.Role, Draining: s.draining.Load(), SharesProcess: s.cfg.Drain == nil, Build: s.cfg.Build,
	}
	version, digest := s.position()
	response.Version, response.Digest = toProto(version), digest
	if s.cfg.Head != nil {
		response.Head = toProto(s.cfg.Head())
	}
	if !s.cfg.Started.IsZero() {
		response.Started = timestamppb.New(s.cfg.Started)
	}
	if response.GetDraining() {
		response.NotReadyBecause = "it drains"
		return response, nil
	}
	response.Ready = true
	if s.cfg.Ready != nil {
		if err := s.cfg.Ready(); err != nil {
			response.Ready, response.NotReadyBecause = false, err.Error()
		}
	}
	response.Available = response.GetReady() || s.cfg.Available != nil && s.cfg.Available() == nil
	return response, nil
}

// Drain begins the end of the process. The answer gets out, since a server that stops waits for the calls in flight. From here
// on the member says that it is not ready.
func (s *Service) Drain(_ context.Context, req *memberv1.DrainRequest) (*memberv1.DrainResponse, error) {
	var violations []rpc.Violation
	for _, f := range []struct{ name, value string }{{"role", req.GetRole()}, {"id", req.GetId()}} {
		if f.value == "" {
			violations = append(violations, rpc.Violation{Field: f.name, Description: "required"})
		}
	}
	if err := rpc.Invalid(violations...); err != nil {
		return nil, err
	}
	switch {
	case req.GetRole() != s.cfg.Role || req.GetId() != s.cfg.ID:
		return nil, rpc.Error(codes.FailedPrecondition, ReasonWrongMember, "this is %s %s, not %s %s", s.cfg.Role, s.cfg.ID, req.GetRole(), req.GetId())
	case s.cfg.Drain == nil:
		return nil, rpc.Error(codes.FailedPrecondition, ReasonSharesProcess, "%s %s shares its process with other roles", s.cfg.Role, s.cfg.ID)
	}
	if !s.draining.Swap(true) {
		s.cfg.Drain()
	}
	return &memberv1.DrainResponse{}, nil
}

// positionTries is how often position looks for a digest that belongs to its version. The replica moves on between
// the two questions; a digest is worth less than a member that answers at once, so it does not wait for a pause.
const positionTries = 4

// position returns a version with its digest, which is 0, unknown, if the replica never stood still between the two.
func (s *Service) position() (cluster.Version, uint64) {
	if s.cfg.Version == nil {
		return cluster.Version{}, 0
	}
	version := s.cfg.Version()
	if s.cfg.Digest == nil || version.IsZero() {
		return version, 0
	}
	for range positionTries {
		digest := s.cfg.Digest()
		now := s.cfg.Version()
		if now == version {
			return version, digest
		}
		version = now
	}
	return version, 0
}

// toProto returns nil for no version.
func toProto(v cluster.Version) *logv1.Version {
	if v.IsZero() {
		return nil
	}
	return &logv1.Version{Epoch: int64(v.Epoch), Seq: int64(v.Seq)}
}
