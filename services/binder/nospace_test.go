package binder

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/test/bubble"
)

// fullEtcd takes no record until it has room, and says why.
type fullEtcd struct {
	until time.Time
	why   error
	asked atomic.Int64
}

func (e *fullEtcd) Record(context.Context, coord.Version, *coord.Batch, []int64) error {
	e.asked.Add(1)
	if time.Now().Before(e.until) {
		return fmt.Errorf("record: %w", e.why)
	}
	return nil
}

// Shrink is not asked for: nothing is taken back.
func (e *fullEtcd) Shrink(context.Context, []coord.Batch) error { return nil }

// A new term would need a lease, which an etcd that is full does not grant.
func TestAnEtcdThatIsFullDoesNotEndTheTermAndNothingIsBoundMeanwhile(t *testing.T) {
	outlast(t, coord.ErrNoSpace)
}

func TestAnEtcdThatHasTooMuchToDoDoesNotEndTheTermAndNothingIsBoundMeanwhile(t *testing.T) {
	outlast(t, coord.ErrBusy)
}

// outlast lets a recorder ask an etcd for an hour that writes nothing, and says why, and then writes.
func outlast(t *testing.T, why error) {
	bubble.Test(t, func(t *testing.T) {
		etcd := &fullEtcd{until: time.Now().Add(time.Hour), why: why}
		out := make(chan *placement, 1)
		move := func(p *placement, next placementState) bool { return p.to(next) == nil }
		r := newRecorder(recorderConfig{
			term: etcd, version: func() cluster.Version { return cluster.Version{Epoch: 7, Seq: 1} }, out: out, move: move, prepares: func(*placement) bool { return false },
			took: func(time.Duration) {}, log: slog.New(slog.DiscardHandler),
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.run(ctx) }()
		r.add([]*placement{{UID: "u"}})
		time.Sleep(time.Hour - time.Minute)
		synctest.Wait()
		if asked := etcd.asked.Load(); len(out) != 0 || len(ended) != 0 || asked < 60 || asked > 3600 {
			t.Errorf("in an hour: %d let go, ended %v, asked %d times; want none, no, and about once a second", len(out), len(ended) != 0, asked)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(out) != 1 {
			t.Error("with room again, the bind does not leave")
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}
