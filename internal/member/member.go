// Package member answers what every role tells about itself: who it is, how far its replica has come and whether it is
// ready to work.
//
// The package knows nothing of what a role does, and does not register the member with etcd: that is internal/coord's.
package member

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	memberv1 "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
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
}

// Service implements MemberService. It is safe for concurrent use.
type Service struct {
	memberv1.UnimplementedMemberServiceServer
	cfg Config
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
	response := &memberv1.GetMemberResponse{Id: s.cfg.ID, Role: s.cfg.Role, Ready: true}
	version, digest := s.position()
	response.Version, response.Digest = toProto(version), digest
	if s.cfg.Head != nil {
		response.Head = toProto(s.cfg.Head())
	}
	if s.cfg.Ready != nil {
		if err := s.cfg.Ready(); err != nil {
			response.Ready, response.NotReadyBecause = false, err.Error()
		}
	}
	return response, nil
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
