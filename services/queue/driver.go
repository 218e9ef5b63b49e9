package queue

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// The pause after a cycle without progress grows from the first to the last, so that a driver that cannot get on
// does not spin.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
)

// errShardLost: the binder says that another member owns the shard.
var errShardLost = errors.New("shard is owned by another")

// driver runs the cycles of one shard, one after the other, in one goroutine.
type driver struct {
	s       *Service
	sh      *shard
	log     *slog.Logger
	reports *reporter
	asker   *asker
	end     context.CancelCauseFunc // ends the cycles, and what is asked meanwhile

	committed cluster.Version   // the newest version that the binder has answered
	byImages  cluster.Epoch     // whose binder has said that it tells groups apart by their nodes' images
	next      cluster.NodeIndex // where the next sample of nodes to score starts
	reach     reach
	most      int             // pods of the next batch, while batches have been too large for a message; 0: as many as may be
	vain      map[string]vain // by pod uid
	alone     alone
	pause     time.Duration // the last, after a cycle without progress
	placing   *placing      // pods of a PodGroup that others do not wait for; nil: there are none
	searches  sync.WaitGroup
	gaveUp    map[cluster.GroupKey]int // how often more important groups were asked about instead of one, until that is answered

	preemptFrom atomic.Pointer[time.Time] // until then the binder wants no preemption; nil: it has wanted all of them

	floors         <-chan struct{} // holds one value while the floor of another shard may have changed
	outrankedSince time.Time       // since when other shards work at higher priorities; zero: they do not
	doubtedSince   time.Time       // since when others may work at higher ones, as far as the driver has asked; zero: they do not
}

// drive makes the shard known, and schedules its pods until ctx ends or the shard is drained. It reports whether the
// binder has said that another owns the shard.
func (s *Service) drive(ctx context.Context, sh *shard) (lost bool) {
	log := s.log.With("shard", sh.number)
	changed, stop := s.floors.listen()
	defer stop()
	d := &driver{s: s, sh: sh, log: log, reports: newReporter(s, sh, log), floors: changed, gaveUp: make(map[cluster.GroupKey]int)}
	d.asker = newAsker(d)
	if !d.enlist(ctx) {
		return false
	}
	s.floors.works(sh.number, time.Time{})
	defer s.floors.rests(sh.number)
	reporting, cancel := context.WithCancel(ctx)
	var reporter sync.WaitGroup
	reporter.Go(func() { d.reports.run(reporting) })
	defer reporter.Wait()
	defer cancel()

	running, end := context.WithCancelCause(ctx)
	d.end = end
	var doorkeeper sync.WaitGroup
	doorkeeper.Go(func() { newDoorkeeper(d).run(running) })
	defer doorkeeper.Wait()
	defer d.abandon()
	defer d.searches.Wait()
	defer d.asker.running.Wait()
	defer end(nil)
	err := d.run(running)
	if why := context.Cause(running); errors.Is(why, errShardLost) { // it was the asker that heard of it
		err = why
	}
	if errors.Is(err, errShardLost) {
		log.Warn("shard lost", "err", err)
		return true
	}
	return false
}

// enlist builds the queue from the replica and has it follow the log from there, without a gap between the two.
func (d *driver) enlist(ctx context.Context) bool {
	for {
		err := d.s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error {
			d.s.mu.Lock()
			defer d.s.mu.Unlock()
			if ctx.Err() != nil {
				return ctx.Err() // dropped meanwhile
			}
			d.s.shards[d.sh.number] = d.sh
			d.sh.reset(st)
			return nil
		})
		if err == nil {
			return true
		}
		if !d.rest(ctx, firstPause*10) {
			return false
		}
	}
}

// rest waits for so long, and reports false if the driver shall end.
func (d *driver) rest(ctx context.Context, atMost time.Duration) bool {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-d.sh.draining:
	case <-timer.C:
		return true
	}
	return false
}

func (d *driver) run(ctx context.Context) error {
	if !d.awaitOthers(ctx) {
		return nil
	}
	for works := true; ; {
		if err := d.settlePlaced(ctx); err != nil {
			return err
		}
		// 1. Nothing is popped while there is nobody to ask.
		if works {
			d.s.floors.works(d.sh.number, time.Time{})
		}
		now, changed := d.s.directory.get()
		if now.missing() != nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-d.sh.draining:
				return nil
			case <-changed:
			case <-d.placed():
			}
			continue
		}
		// 2. Pop what is ready and not below what other shards work at.
		c, next, outranked, err := d.pop(ctx)
		if works = err == nil; !works { // there is no state: nobody waits for that
			d.s.floors.rests(d.sh.number)
			if !d.rest(ctx, firstPause*10) {
				return nil
			}
			continue
		}
		if outranked {
			if !d.giveWay(ctx) {
				return nil
			}
			continue
		}
		d.released()
		if c == nil {
			if !d.await(ctx, next) {
				return nil
			}
			continue
		}
		// 3. Run the cycle.
		looked := d.lookMeanwhile(ctx)
		err = c.run(ctx, d.s.fanout.Over(now.filters, now.scores))
		if looked(); err != nil || ctx.Err() != nil {
			return err
		}
		// 4. Do not spin, nor keep other shards waiting for nothing.
		if c.progress > 0 {
			if d.pause = 0; c.busy > 0 && !d.rest(ctx, c.busy) {
				return nil
			}
			continue
		}
		if d.pause = min(max(2*d.pause, firstPause), lastPause); d.pause == lastPause {
			d.s.floors.rests(d.sh.number)
		}
		if !d.rest(ctx, max(d.pause, c.busy)) {
			return nil
		}
	}
}

// await waits until the queue has changed or next has come, and reports false if the driver shall end.
func (d *driver) await(ctx context.Context, next time.Time) bool {
	due, stop := at(next)
	defer stop()
	yields, stopYields := at(d.placingYields())
	defer stopYields()
	select {
	case <-ctx.Done():
		return false
	case <-d.sh.draining:
		return false
	case <-d.sh.woken:
	case <-d.placed():
	case <-due:
	case <-yields:
	}
	return true
}

// at returns what receives a value at a time, never at the zero time, until stop is called.
func at(when time.Time) (due <-chan time.Time, stop func()) {
	if when.IsZero() {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Until(when))
	return timer.C, func() { timer.Stop() }
}

// pop takes the next batch, as the cycle that it has to go through. Without one it returns when there may be, the
// zero time if not by time alone, or that there is one but for what other shards work at.
func (d *driver) pop(ctx context.Context) (c *cycle, next time.Time, outranked bool, err error) {
	for looked := false; !looked && c == nil && err == nil; {
		if d.sh.isDraining() {
			return nil, time.Time{}, false, nil
		}
		c, next, looked, outranked, err = d.look(ctx)
	}
	return c, next, outranked, err
}

// look looks at a part of what has changed, so that the log is not held up. It is pop once that was the last part, or if the look takes long,
// as what is active does not wait for ever for what may wake.
func (d *driver) look(ctx context.Context) (c *cycle, next time.Time, looked, outranked bool, err error) {
	doubted := false
	err = d.s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error {
		now := time.Now()
		floor := d.floor(now)
		d.sh.mu.Lock()
		defer d.sh.mu.Unlock()
		_, doubted = d.sh.queue.PossibleFloor()
		if looked = d.sh.look(now, st); !looked && !d.sh.looksForLong(now) {
			return nil
		}
		var batch []pending.Attempt
		batch, outranked = d.popBatch(now, st, floor)
		d.sh.knock() // who has served its backoff may have to be asked about
		if len(batch) > 0 {
			c, outranked = d.newCycle(now, st, batch), false
			if group, ok := d.sh.queue.Group(batch[0]); ok {
				c.group = &group
			}
			return nil
		}
		next, _ = d.sh.queue.Next()
		return nil
	})
	if doubted && looked {
		d.s.floors.announce()
	}
	return c, next, looked, outranked, err
}

// popBatch pops the next batch: as many pods as it may have, or fewer if these have many claims; or all pods of a PodGroup. The caller holds the shard's lock.
func (d *driver) popBatch(now time.Time, st *cluster.State, floor int32) (batch []pending.Attempt, outranked bool) {
	for claims := 0; len(batch) < d.limit() && claims < claimsAtATime; {
		if len(batch) > 0 && d.sh.queue.NextIsGroup(now) {
			break
		}
		var next []pending.Attempt
		if next, outranked = d.sh.queue.PopAbove(now, 1, floor); len(next) == 0 {
			break
		}
		if _, grouped := d.sh.queue.Group(next[0]); grouped {
			return next, false
		}
		batch = append(batch, next...)
		claims += claimsOf(st, next[0].Subject)
	}
	return batch, outranked
}

// lookMeanwhile goes on looking at what has changed while a cycle runs, until the function that it returns is called: pods that wake are
// of the priorities that other shards are told to wait for. It takes half of its time at most.
func (d *driver) lookMeanwhile(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	d.sh.mu.Lock()
	looked := !d.sh.isLooking()
	d.sh.mu.Unlock()
	var looker sync.WaitGroup
	looker.Go(func() {
		for {
			if looked {
				select {
				case <-ctx.Done():
					return
				case <-d.sh.woken:
				}
			}
			began := time.Now()
			var err error
			for looked = false; !looked && err == nil && time.Since(began) < possible; {
				err = d.s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error {
					d.sh.mu.Lock()
					defer d.sh.mu.Unlock()
					looked = d.sh.look(time.Now(), st) || ctx.Err() != nil
					return nil
				})
			}
			looked = looked || err != nil
			d.s.floors.announce()
			if !wait(ctx, max(time.Since(began), time.Millisecond)) {
				return
			}
		}
	})
	return func() {
		cancel()
		looker.Wait()
	}
}
