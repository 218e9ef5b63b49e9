package queue

import (
	"context"
	"errors"
	"hash/fnv"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
)

const (
	retryClaims  = time.Second            // how soon a claim or a release that failed is tried again at the latest
	reclaimAfter = 200 * time.Millisecond // how soon a shard is claimed again that the binder said is another's
	closeSession = 2 * time.Second        // how long giving up the leases may take at the end
)

// keepShards owns the shards that this member should, under one session after another, until ctx ends.
func (s *Service) keepShards(ctx context.Context) error {
	for ctx.Err() == nil {
		session, err := s.cfg.NewSession(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("no session to own shards under, trying again", "err", err)
			}
			wait(ctx, retryClaims)
			continue
		}
		s.setLeases(true)
		began := time.Now()
		s.ownUnder(ctx, session)
		s.setLeases(false)
		brief := time.Since(began) < retryClaims

		// The leases of a session that is not lost are given up, so that others need not wait for their end.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeSession)
		if err := session.Close(closing); err != nil {
			s.log.Warn("session not closed, its shards stay taken until the lease ends", "err", err)
		}
		cancel()
		if brief { // etcd lets it have a session and claim nothing under it, say
			wait(ctx, retryClaims)
		}
	}
	return nil
}

func (s *Service) setLeases(has bool) {
	s.mu.Lock()
	s.hasLeases = has
	s.mu.Unlock()
}

// ownership is what this member holds under one session. Only the goroutine of ownUnder uses it.
type ownership struct {
	s       *Service
	session Session
	running map[int32]*shard
	release map[int32]bool      // its driver has ended, and the claim is to be given up
	notYet  map[int32]time.Time // not to be claimed before
	drivers sync.WaitGroup
	ended   chan struct{} // holds one value when a driver has ended
}

// ownUnder claims and releases shards as members come and go, until ctx ends or the session is lost. Then it drops
// all shards at once and waits for their drivers.
func (s *Service) ownUnder(ctx context.Context, session Session) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o := &ownership{
		s: s, session: session, running: make(map[int32]*shard), release: make(map[int32]bool),
		notYet: make(map[int32]time.Time), ended: make(chan struct{}, 1),
	}
	var watch sync.WaitGroup
	watch.Go(func() { // a claim that waits for etcd must not outlive the session
		select {
		case <-session.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	defer watch.Wait()
	defer cancel()
	defer o.drivers.Wait()
	defer s.dropAll()
	defer cancel()

	for {
		now, changed := s.directory.get()
		again := o.settle(ctx, now)
		select {
		case <-ctx.Done():
			select {
			case <-session.Done():
				s.log.Warn("session lost, its shards are dropped", "shards", len(o.running))
			default:
			}
			return
		case <-changed:
		case <-o.ended:
		case <-after(again):
		}
	}
}

// after returns a channel that ticks once after d, or never if d is 0.
func after(d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}
	return time.After(d)
}

// dropAll forgets all shards: nothing is popped from them and they hear of nothing any more.
func (s *Service) dropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.shards {
		sh.cancel()
	}
	clear(s.shards)
	s.floors.announce()
}

// settle takes one step towards the shards that this member should own. It returns when to take another even if
// nothing changes; 0: never.
func (o *ownership) settle(ctx context.Context, now view) (again time.Duration) {
	want := o.s.wanted(now)
	later := func(d time.Duration) {
		if again == 0 || d < again {
			again = d
		}
	}
	// 1. Shards whose driver has ended are no longer held.
	for n, sh := range o.running {
		select {
		case <-sh.done:
			o.s.mu.Lock()
			delete(o.s.shards, n)
			o.s.mu.Unlock()
			delete(o.running, n)
			if sh.lost {
				o.notYet[n] = time.Now().Add(reclaimAfter)
			} else {
				o.release[n] = true
			}
		default:
			if !want[n] {
				sh.drain(o.s.cfg.DrainTimeout)
				o.s.floors.announce()
			}
		}
	}
	// 2. Give up what another should own; and what this member should own again, to claim it anew below. The binder knows attempts by claim,
	// pod and number, and the next queue counts them from the last that was placed again.
	for n := range o.release {
		if err := o.session.ReleaseShard(ctx, int(n)); err != nil {
			o.s.log.Warn("shard not released, trying again", "shard", n, "err", err)
			later(retryClaims)
			continue
		}
		delete(o.release, n)
		o.s.log.Info("shard released", "shard", n)
	}
	// 3. Claim what this member should own.
	for n := range want {
		if o.running[n] != nil || o.release[n] {
			continue
		}
		if left := time.Until(o.notYet[n]); left > 0 {
			later(left)
			continue
		}
		revision, err := o.session.ClaimShard(ctx, int(n), o.s.cfg.ID)
		switch {
		case err == nil:
			o.start(ctx, n, revision)
		case errors.Is(err, coord.ErrTaken):
			later(retryClaims) // or sooner, when the directory sees it free
		case ctx.Err() != nil:
			return again
		default:
			o.s.log.Warn("shard not claimed, trying again", "shard", n, "err", err)
			later(retryClaims)
		}
	}
	return again
}

// wanted returns the shards that this member should own: those that rendezvous hashing over the live queue members
// gives to it, so that a member that comes or goes moves no shard between others.
func (s *Service) wanted(now view) map[int32]bool {
	s.mu.Lock()
	count := s.count
	s.mu.Unlock()
	want := make(map[int32]bool)
	for n := range count {
		if owner(n, now.queues) == s.cfg.ID {
			want[n] = true
		}
	}
	return want
}

// owner returns the member with the highest hash for the shard, "" if there is no member.
func owner(shard int32, members []string) string {
	best, highest := "", uint64(0)
	for _, id := range members {
		sum := fnv.New64a()
		_, _ = sum.Write([]byte(id)) // never fails
		h := cluster.Mix(sum.Sum64() ^ cluster.Mix(uint64(shard)+1))
		if best == "" || h > highest || h == highest && id < best {
			best, highest = id, h
		}
	}
	return best
}

// start runs the driver of a shard that has been claimed.
func (o *ownership) start(ctx context.Context, n int32, revision int64) {
	ctx, cancel := context.WithCancel(ctx)
	sh := newShard(n, revision, judge{o.s.cfg.Evaluator}, cancel)
	sh.queue.Observe(o.s.metrics)
	o.running[n] = sh
	o.drivers.Go(func() {
		defer func() {
			cancel()
			close(sh.done)
			select {
			case o.ended <- struct{}{}:
			default:
			}
		}()
		o.s.log.Info("shard claimed", "shard", n, "revision", revision)
		sh.lost = o.s.drive(ctx, sh)
	})
}

// wait waits for d, and reports false if ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
