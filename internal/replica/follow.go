package replica

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

// maxFollowerBytes bounds what a follower can make the binder log.
const maxFollowerBytes = 256

// Reasons of RESOURCE_EXHAUSTED.
const (
	ReasonSlowReader       rpc.Reason = "SLOW_READER"        // the follower is cut off; it may come back at once
	ReasonTooManyFollowers rpc.Reason = "TOO_MANY_FOLLOWERS" // come back later
)

func errNotActive() error {
	return rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "this binder is not active: ask the leader")
}

func errTermEnded() error {
	return rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "the binder's term has ended: follow the next one")
}

func errTooSlow(at cluster.Version) error {
	return rpc.Exhausted(ReasonSlowReader, 0, "the log after %v is no longer kept: the follower read too slowly", at)
}

func errReadsNothing(within time.Duration) error {
	return rpc.Exhausted(ReasonSlowReader, 0, "the follower has read nothing for %v", within)
}

func errTooManyFollowers(limit int) error {
	return rpc.Exhausted(ReasonTooManyFollowers, time.Second, "of %d members that may follow, as many do already as may, of all roles or of one", limit)
}

// Follow is the handler of LogService.Follow: it streams the log to one follower until the follower goes away or
// reads too slowly, or the term ends. Snapshots are taken from s.
func (f *Feed) Follow(req *logv1.FollowRequest, stream logv1.LogService_FollowServer, s Snapshotter) error {
	from := wire.Version(req.GetFrom())
	if from.Epoch < 0 || from.Seq < 0 {
		return rpc.Invalid(rpc.Violation{Field: "from", Description: "a version is not negative"})
	}
	if len(req.GetFollower()) > maxFollowerBytes {
		return rpc.Invalid(rpc.Violation{Field: "follower", Description: fmt.Sprintf("longer than %d bytes", maxFollowerBytes)})
	}
	t := f.current()
	if t == nil {
		return errNotActive()
	}
	caller := f.cfg.Caller(stream.Context())
	if !f.following.Take(caller, 1) {
		return errTooManyFollowers(f.cfg.Followers)
	}
	defer f.following.Give(caller, 1)
	f.metrics.followers.Inc()
	defer f.metrics.followers.Dec()

	ticker := time.NewTicker(f.cfg.Heartbeat)
	defer ticker.Stop()
	out := startSender(stream)
	defer out.stop()
	follower := &follower{term: t, at: from, ctx: stream.Context(), tick: ticker.C, within: f.cfg.SendWithin, out: out}

	log := f.cfg.Log.With("follower", req.GetFollower())
	if t.resume(from, req.GetDigest()) {
		log.Info("follower resumes", "version", from)
	} else {
		version, err := f.sendSnapshot(follower, s)
		if err != nil {
			return f.ended(err)
		}
		log.Info("follower has a snapshot", "had", from, "version", version)
	}
	return f.ended(follower.run())
}

// ended counts why a stream ended.
func (f *Feed) ended(err error) error {
	if rpc.ReasonOf(err) == ReasonSlowReader {
		f.metrics.cutOff.Inc()
	}
	return err
}

// sendSnapshot brings the follower to the version of a snapshot, which it returns.
func (f *Feed) sendSnapshot(to *follower, s Snapshotter) (cluster.Version, error) {
	to.at = to.term.newest() // who waits for a snapshot is not behind, whatever it had
	c, toMake := f.snapshots.acquire(to.term)
	defer f.snapshots.release(c)
	if toMake {
		var making sync.WaitGroup
		defer making.Wait() // others wait for it too, should this follower leave
		making.Go(func() { f.snapshots.make(c, s) })
	}
	if err := to.awaitSnapshot(c); err != nil {
		return cluster.Version{}, err
	}
	if c.version.Epoch != to.term.epoch {
		return cluster.Version{}, errTermEnded()
	}
	f.metrics.snapshots.Inc()
	to.at = c.version
	version := wire.ToVersion(c.version)
	for i, part := range c.parts {
		m := &logv1.FollowResponse{Kind: logv1.FollowResponse_KIND_SNAPSHOT_MORE, Version: version, Deltas: part, Head: version}
		if i == 0 {
			m.Kind = logv1.FollowResponse_KIND_SNAPSHOT_FIRST
		}
		if err := to.send(m); err != nil {
			return cluster.Version{}, err
		}
	}
	last := &logv1.FollowResponse{Kind: logv1.FollowResponse_KIND_SNAPSHOT_LAST, Version: version, Digest: c.digest, Head: version}
	if err := to.send(last); err != nil {
		return cluster.Version{}, err
	}
	return c.version, nil
}

// awaitSnapshot waits until a snapshot is made. That of a large cluster takes a while, in which the follower is told, with
// first parts that are empty, that the binder is not silent.
func (f *follower) awaitSnapshot(c *snapshot) error {
	for {
		select {
		case <-c.made:
			return c.err
		case <-f.tick:
			version := wire.ToVersion(cluster.Version{Epoch: f.term.epoch})
			err := f.send(&logv1.FollowResponse{Kind: logv1.FollowResponse_KIND_SNAPSHOT_FIRST, Version: version, Head: version})
			if err != nil {
				return err
			}
		case <-f.term.ended:
			return errTermEnded()
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
	}
}

// pace is the least time between two messages of deltas to a follower while the log is busy: what comes meanwhile
// travels together, which costs both ends far less than one message per delta. A delta after a rest goes at once.
const pace = time.Millisecond

// follower is one stream.
type follower struct {
	term   *term
	at     cluster.Version // what the follower has, once everything sent has arrived
	ctx    context.Context
	tick   <-chan time.Time // a heartbeat is due
	due    bool             // tick has ticked
	within time.Duration    // FeedConfig.SendWithin
	out    *sender
	sent   time.Time // when deltas were last sent
}

// run sends deltas as they come, and heartbeats, for as long as it can. It always returns an error.
func (f *follower) run() error {
	for {
		select {
		case <-f.tick:
			f.due = true
		default:
		}
		next, ok := f.term.next(f.at.Seq)
		if !ok {
			return errTooSlow(f.at)
		}
		head := wire.ToVersion(cluster.Version{Epoch: f.term.epoch, Seq: next.head})
		switch {
		case f.due:
			// Also when there are deltas: a log that never rests is to be proven too.
			f.due = false
			err := f.send(&logv1.FollowResponse{
				Kind: logv1.FollowResponse_KIND_HEARTBEAT, Version: wire.ToVersion(f.at), Digest: next.digest, Head: head,
			})
			if err != nil {
				return err
			}
		case len(next.deltas) > 0:
			f.at.Seq += cluster.Seq(len(next.deltas))
			f.sent = time.Now()
			err := f.send(&logv1.FollowResponse{
				Kind: logv1.FollowResponse_KIND_DELTAS, Version: wire.ToVersion(f.at), Deltas: next.deltas, Head: head,
			})
			if err != nil {
				return err
			}
		default:
			if err := f.await(next.wake); err != nil {
				return err
			}
		}
	}
}

// await waits for the next delta, and then for pace; or for the next tick.
func (f *follower) await(wake <-chan struct{}) error {
	var paced <-chan time.Time
	for {
		select {
		case <-wake:
			rest := pace - time.Since(f.sent)
			if rest <= 0 {
				return nil
			}
			wake, paced = nil, time.After(rest)
		case <-paced:
			return nil
		case <-f.tick:
			f.due = true
			return nil
		case <-f.term.ended:
			return errTermEnded()
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
	}
}

// send sends one message, and gives up when the follower lags so far behind that what comes next is not kept, or does not read.
func (f *follower) send(m *logv1.FollowResponse) error {
	sent := f.out.send(m)
	began := time.Now()
	for {
		select {
		case err := <-sent:
			f.out.busy = false
			return err
		case <-f.tick:
			f.due = true
			if !f.term.holds(f.at.Seq) {
				return errTooSlow(f.at)
			}
			if time.Since(began) > f.within {
				return errReadsNothing(f.within)
			}
		case <-f.term.ended:
			return errTermEnded()
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
	}
}

// sender sends from a goroutine of its own: a Send to a follower that does not read cannot be interrupted, it ends
// only once the handler of the stream has returned.
type sender struct {
	messages chan *logv1.FollowResponse
	results  chan error
	done     chan struct{}
	busy     bool // a Send is under way
}

func startSender(stream logv1.LogService_FollowServer) *sender {
	s := &sender{
		messages: make(chan *logv1.FollowResponse),
		results:  make(chan error, 1), // so that a result nobody waits for does not hold the goroutine
		done:     make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		for m := range s.messages {
			s.results <- stream.Send(m)
		}
	}()
	return s
}

// send begins to send a message and returns where its result comes. The one before must be done.
func (s *sender) send(m *logv1.FollowResponse) <-chan error {
	s.busy = true
	s.messages <- m
	return s.results
}

// stop ends the goroutine, and waits for it unless a Send is under way: that one fails as soon as the handler, which
// is about to return, has returned.
func (s *sender) stop() {
	close(s.messages)
	if !s.busy {
		<-s.done
	}
}
