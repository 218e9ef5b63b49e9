package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

// The pause between two attempts to follow the same binder grows from the first to the second.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

var (
	errNoLeader     = errors.New("no binder leads")
	errOtherLeader  = errors.New("another binder leads")
	errSilent       = errors.New("the binder is silent")
	errStreamClosed = errors.New("the binder has ended the stream")
)

// Run follows the log until ctx ends, and then returns nil. It follows whoever leads, and tries again when it breaks.
// It may be called once. An error means that the leader can no longer be watched.
func (r *Replica) Run(ctx context.Context) error {
	leaders := r.cfg.Leaders.WatchLeader(ctx)
	var leader coord.Leader
	var stream *following // nil while none is open
	defer func() { stream.stop(context.Canceled) }()
	var began time.Time // of the stream
	pause := firstPause
	var retry <-chan time.Time // ticks when it is time to follow the leader again
	r.broke(errNoLeader)
	for {
		select {
		case <-ctx.Done():
			return nil
		case next, open := <-leaders:
			if !open {
				if ctx.Err() != nil {
					return nil
				}
				return errors.New("follow the log: the watch of the leader has ended")
			}
			if next == leader {
				continue
			}
			leader = next
			if leader.Epoch == 0 {
				// The stream goes on for as long as its binder lets it.
				retry = nil
				continue
			}
			stream.stop(errOtherLeader)
			r.cfg.Log.Info("following the log", "binder", leader.ID, "address", leader.Address, "epoch", leader.Epoch)
			stream, began, retry, pause = r.start(ctx, leader), time.Now(), nil, firstPause
		case <-stream.ended():
			err := stream.err
			stream = nil
			r.broke(err)
			if leader.Epoch == 0 {
				continue
			}
			if time.Since(began) > maxPause {
				pause = firstPause
			}
			level := slog.LevelDebug
			if pause == firstPause {
				level = slog.LevelInfo // once, not for every attempt
			}
			r.cfg.Log.Log(ctx, level, "log broke off", "binder", leader.ID, "version", r.Version(), "err", err)
			asked, _ := rpc.RetryAfter(err) // of a binder that has too many followers
			retry, pause = time.After(max(pause/2, asked)+rand.N(pause)), min(2*pause, maxPause)
		case <-retry:
			stream, began, retry = r.start(ctx, leader), time.Now(), nil
		}
	}
}

// broke notes why the log is not followed, nil if it is.
func (r *Replica) broke(err error) { r.broken.Store(&err) }

// following is one attempt to follow a binder. A nil one has never begun and never ends.
type following struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // why it ended; never nil
}

func (r *Replica) start(ctx context.Context, leader coord.Leader) *following {
	ctx, cancel := context.WithCancelCause(ctx)
	f := &following{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		defer cancel(nil)
		f.err = r.follow(ctx, f, leader)
	}()
	return f
}

func (f *following) ended() <-chan struct{} {
	if f == nil {
		return nil
	}
	return f.done
}

func (f *following) stop(why error) {
	if f != nil {
		f.cancel(why)
		<-f.done
	}
}

// follow folds one stream, until it breaks. It always returns an error.
func (r *Replica) follow(ctx context.Context, f *following, leader coord.Leader) error {
	conn, err := r.cfg.Conns.Conn(leader.Address)
	if err != nil {
		return fmt.Errorf("follow binder %s: %w", leader.ID, err)
	}
	silence := time.AfterFunc(r.cfg.HeartbeatTimeout, func() { f.cancel(errSilent) })
	defer silence.Stop()
	stream, err := logv1.NewLogServiceClient(conn).Follow(ctx, &logv1.FollowRequest{
		Follower: r.cfg.Member, From: wire.ToVersion(r.Version()), Digest: r.Digest(),
	})
	if err != nil {
		return fmt.Errorf("follow binder %s: %w", leader.ID, because(ctx, err))
	}
	fold := folding{replica: r, epoch: max(cluster.Epoch(leader.Epoch), r.Version().Epoch)}
	for {
		silence.Reset(r.cfg.HeartbeatTimeout)
		m, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("follow binder %s: %w", leader.ID, because(ctx, err))
		}
		silence.Stop() // what folding takes is not the binder's silence
		if err := fold.message(m); err != nil {
			return fmt.Errorf("follow binder %s: %w", leader.ID, err)
		}
		r.broke(nil)
	}
}

// because returns why a stream broke: its context's cause says more than "context canceled".
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) {
		return errStreamClosed
	}
	return err
}
