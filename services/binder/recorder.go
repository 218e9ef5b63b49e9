package binder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/trace"
)

// batchLimit bounds the intents of one etcd transaction, to stay far below etcd's request size.
const batchLimit = 1000

// unrecorded is the batch of fenced binds.
const unrecorded = 0

// intent is a binding that was assumed. Before it leaves, its record is in etcd, if it needs one.
type intent struct {
	source.Binding
	batch   int64          // to which its record belongs
	tries   int            // binds with an unknown outcome
	attempt *trace.Attempt // nil: it is not traced, or was taken over
}

// termRecord is the part of a coord.Term that writes to etcd.
type termRecord interface {
	Record(ctx context.Context, v coord.Version, b *coord.Batch, finished []int64) error
}

// recorder writes what was assumed to etcd, many commits in one transaction, and lets the binds go only when that
// has succeeded. It also removes the intents of batches whose binds have all been decided. If binds are fenced, they are
// let go at once: see source.Source.
type recorder struct {
	term    termRecord
	fenced  bool
	version func() cluster.Version
	out     chan<- intent
	log     *slog.Logger
	took    func(time.Duration)

	wake chan struct{} // capacity 1

	mu       sync.Mutex
	waiting  []intent // bounded by term.unbound
	nextID   int64
	open     map[int64]int // batch → binds not decided yet
	finished []int64
}

func newRecorder(term termRecord, fenced bool, firstID int64, version func() cluster.Version, out chan<- intent, took func(time.Duration), log *slog.Logger) *recorder {
	return &recorder{
		term: term, fenced: fenced, version: version, out: out, log: log, took: took,
		wake: make(chan struct{}, 1), nextID: firstID, open: make(map[int64]int),
	}
}

// add hands in placements, in order. It never blocks.
func (r *recorder) add(placed []intent) {
	r.mu.Lock()
	r.waiting = append(r.waiting, placed...)
	r.mu.Unlock()
	r.signal()
}

// adopt registers a batch that an earlier epoch recorded, with the number of its intents that are bound again.
func (r *recorder) adopt(batch int64, open int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextID = max(r.nextID, batch+1)
	if open == 0 {
		r.finished = append(r.finished, batch)
	} else {
		r.open[batch] = open
	}
}

// decided says that one bind of a batch has an outcome.
func (r *recorder) decided(batch int64) {
	if batch == unrecorded {
		return
	}
	r.mu.Lock()
	r.open[batch]--
	done := r.open[batch] == 0
	if done {
		delete(r.open, batch)
		r.finished = append(r.finished, batch)
	}
	r.mu.Unlock()
	if done {
		r.signal()
	}
}

func (r *recorder) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run records until ctx ends. An error means that this binder is deposed, or cannot know.
func (r *recorder) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		for {
			more, err := r.recordOnce(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			if !more {
				break
			}
		}
	}
}

// recordOnce records what waits, if it has to be, and lets its binds go; false: nothing did.
func (r *recorder) recordOnce(ctx context.Context) (bool, error) {
	// 1. Take what waits.
	r.mu.Lock()
	n := min(len(r.waiting), batchLimit)
	placed := r.waiting[:n:n]
	if r.waiting = r.waiting[n:]; len(r.waiting) == 0 {
		r.waiting = nil // with what it holds on to
	}
	finished := r.finished
	r.finished = nil
	var batch *coord.Batch
	id := int64(unrecorded)
	if n > 0 && !r.fenced {
		id = r.nextID
		batch = &coord.Batch{ID: r.nextID}
		r.nextID++
		r.open[batch.ID] = n
	}
	r.mu.Unlock()
	if n == 0 && len(finished) == 0 {
		return false, nil
	}
	// 2. Record it.
	if batch != nil {
		for _, b := range placed {
			batch.Intents = append(batch.Intents, coord.Intent{PodUID: b.UID, Namespace: b.Namespace, Name: b.Name, Node: b.Node})
		}
	}
	if batch != nil || len(finished) > 0 {
		began := time.Now()
		if err := r.write(ctx, batch, finished); err != nil {
			return false, err
		}
		if batch != nil {
			traceRecord(batch, placed, began, time.Now())
		}
	}
	// 3. Let the binds go.
	for _, in := range placed {
		in.batch = id
		select {
		case r.out <- in:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return true, nil
}

// write writes a batch, if there is one, in one transaction with the version, which covers at least the batch's placements,
// and removes the finished batches. An unknown outcome is asked again until it is known or the term is over.
func (r *recorder) write(ctx context.Context, batch *coord.Batch, finished []int64) error {
	v := r.version()
	began := time.Now()
	for {
		err := r.term.Record(ctx, coord.Version{Epoch: int64(v.Epoch), Seq: int64(v.Seq)}, batch, finished)
		if err == nil {
			r.took(time.Since(began))
			return nil
		}
		if !errors.Is(err, coord.ErrUnknown) || ctx.Err() != nil {
			return fmt.Errorf("record at version %v: %w", v, err)
		}
		r.log.Warn("record outcome unknown, asking again", "version", v.String(), "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
