package queue

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
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

	committed cluster.Version   // the newest version that a commit has answered
	next      cluster.NodeIndex // where the next sample of nodes to score starts
	misfits   map[string]int    // by pod uid: how often in a row the binder found no node where workers had found some
	progress  int               // pods of this cycle that are placed, parked or in backoff
	pause     time.Duration
}

// drive makes the shard known, and schedules its pods until ctx ends or the shard is drained. It reports whether the
// binder has said that another owns the shard.
func (s *Service) drive(ctx context.Context, sh *shard) (lost bool) {
	log := s.log.With("shard", sh.number)
	d := &driver{s: s, sh: sh, log: log, misfits: make(map[string]int), reports: newReporter(s, sh.number, log)}
	if !d.enlist(ctx) {
		return false
	}
	reporting, cancel := context.WithCancel(ctx)
	var reporter sync.WaitGroup
	reporter.Go(func() { d.reports.run(reporting) })
	defer reporter.Wait()
	defer cancel()

	err := d.run(ctx)
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
	for {
		// 1. Nothing is popped while there is nobody to ask.
		now, changed := d.s.directory.get()
		if now.missing() != nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-d.sh.draining:
				return nil
			case <-changed:
			}
			continue
		}
		// 2. Pop what is ready.
		b, next, err := d.pop(ctx)
		if err != nil {
			if !d.rest(ctx, firstPause*10) {
				return nil
			}
			continue
		}
		if b == nil {
			if !d.await(ctx, next) {
				return nil
			}
			continue
		}
		// 3. Run the cycle.
		if err := d.cycle(ctx, b, now); err != nil || ctx.Err() != nil {
			return err
		}
		// 4. Do not spin.
		if d.progress > 0 {
			d.pause = 0
			continue
		}
		d.pause = min(max(2*d.pause, firstPause), lastPause)
		if !d.rest(ctx, d.pause) {
			return nil
		}
	}
}

// await waits until the queue has changed or next has come, and reports false if the driver shall end.
func (d *driver) await(ctx context.Context, next time.Time) bool {
	var due <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-d.sh.draining:
		return false
	case <-d.sh.woken:
	case <-due:
	}
	return true
}

// pop takes the next batch with what the cycle has to know of the state. Without one it returns when there may be:
// the zero time if not by time alone.
func (d *driver) pop(ctx context.Context) (*batch, time.Time, error) {
	select {
	case <-d.sh.draining:
		return nil, time.Time{}, nil
	default:
	}
	var b *batch
	var next time.Time
	err := d.s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error {
		d.sh.mu.Lock()
		defer d.sh.mu.Unlock()
		now := time.Now()
		d.sh.queue.Recheck(now, st)
		attempts := d.sh.queue.Pop(now, d.s.cfg.BatchSize)
		if len(attempts) > 0 {
			b = newBatch(st, d.s.cfg.Evaluator, attempts, d.committed)
			return nil
		}
		next, _ = d.sh.queue.Next()
		return nil
	})
	return b, next, err
}
