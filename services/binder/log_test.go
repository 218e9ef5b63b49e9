package binder

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

// logStream collects deltas, and ends with those of a version: a message may have more than that, as the log goes on.
type logStream struct {
	grpc.ServerStream
	ctx    context.Context
	cancel context.CancelFunc
	until  cluster.Version
	last   cluster.Version // that it has been told of
	got    []cluster.Delta
	err    error
}

func (s *logStream) Context() context.Context { return s.ctx }

func (s *logStream) Send(m *logv1.FollowResponse) error {
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	if k := m.GetKind(); k != logv1.FollowResponse_KIND_DELTAS && k != logv1.FollowResponse_KIND_HEARTBEAT {
		s.err = fmt.Errorf("the log begins anew: %v", k)
		s.cancel()
	}
	for _, b := range m.GetDeltas() {
		d, err := wire.Decode(b)
		if err != nil {
			s.err = err
			s.cancel()
		}
		s.got = append(s.got, d)
	}
	if s.last = wire.Version(m.GetVersion()); !s.last.Less(s.until) {
		s.cancel()
	}
	return nil
}

// mark is a position of the log.
type mark struct {
	version cluster.Version
	digest  uint64
}

func (t *term) mark() mark { return mark{t.ledger.version(), t.ledger.digest()} }

// logSince returns what followers are told since a position.
func logSince(t testing.TB, term *term, from mark) []cluster.Delta {
	t.Helper()
	s := &logStream{until: term.ledger.version()}
	if s.until == from.version {
		return nil
	}
	s.ctx, s.cancel = context.WithTimeout(t.Context(), patience)
	defer s.cancel()
	req := &logv1.FollowRequest{From: wire.ToVersion(from.version), Digest: from.digest}
	_ = term.feed.Follow(req, s, term.ledger) // it ends because of cancel
	if s.err != nil || s.last.Less(s.until) || int(s.last.Seq-from.version.Seq) != len(s.got) {
		t.Fatalf("%d deltas from %v to %v, want them to %v at least: %v", len(s.got), from.version, s.last, s.until, s.err)
	}
	return s.got
}
