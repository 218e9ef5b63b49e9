package queue

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/test/bubble"
)

// lostSession is lost as soon as it is there: etcd lets the role have a lease, say, and claim nothing under it.
type lostSession struct{ done chan struct{} }

func (lostSession) ClaimShard(context.Context, int, string) (int64, error) { return 0, nil }
func (lostSession) ReleaseShard(context.Context, int) error                { return nil }
func (s lostSession) Done() <-chan struct{}                                { return s.done }
func (lostSession) Close(context.Context) error                            { return nil }

func TestSessionsThatEndAtOnceAreBegunOnceASecond(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		close(ended)
		sessions := 0
		s := &Service{log: slog.New(slog.DiscardHandler), directory: newDirectory(), floors: newFloors(), shards: make(map[int32]*shard)}
		s.cfg.NewSession = func(context.Context) (Session, error) {
			sessions++
			return lostSession{ended}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.keepShards(ctx); err != nil {
			t.Fatal(err)
		}
		if sessions < 2 || sessions > 61 {
			t.Errorf("%d sessions in a minute, want one a second at most, and others after the first", sessions)
		}
	})
}
