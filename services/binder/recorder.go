package binder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
)

// batchLimit and batchBytes bound the intents of one etcd transaction, to stay far below etcd's request size. One that is larger than batchBytes, which
// would be of more claims than a pod can have, is alone.
const (
	batchLimit = 1000
	batchBytes = 512 << 10
)

// gatherFor is how long a term's recorder gathers what is taken back.
const gatherFor = 100 * time.Millisecond

// unrecorded is the batch of fenced binds, but for those of units.
const unrecorded = 0

// termRecord is the part of a coord.Term that writes to etcd.
type termRecord interface {
	Record(ctx context.Context, v coord.Version, b *coord.Batch, finished []int64) error
	Shrink(ctx context.Context, batches []coord.Batch) error
}

// recorder writes what was assumed to etcd, many commits in one transaction, and lets the binds go only when that
// has succeeded. If binds are fenced, they are let go at once: see source.Source. Those of a unit are recorded in any case, for a binder that ends between its binds leaves the rest of them to the next one.
//
// The room of an intent that is in etcd is no other pod's: the intent is not decided yet, or the source shows what became of its pod. So one
// that is taken back leaves its batch before its room is free. A batch of which all intents are decided may stay for a while, and is removed
// with a later record.
//
// What is one unit is recorded whole or not at all. Where that takes several batches, each but the last says that it counts with the last one only, and no bind of the unit is let
// go before that is in etcd. A binder that ends in between has done nothing for the unit: the next one takes nothing of it over (coord.Record.Unfinished). When the last part is
// in etcd the others must go on to count: it stays there until each of them has left etcd, leaves with it, or has been written anew, as one that counts by itself.
type recorder struct {
	recorderConfig

	wake chan struct{} // capacity 1

	mu       sync.Mutex
	waiting  []*placement // bounded by term.unbound
	since    time.Time    // when the first of them came
	urgent   bool         // some of them do not wait for more
	expected int          // questions of which more comes, pod by pod
	nextID   int64
	units    int64                // that have been handed in
	parts    []int                // how many placements the next batches have, if they are parts of one unit
	open     map[int64]*openBatch // by id
	named    map[int64]int        // by the id of the last part of a unit: how many other parts say that they count with it. It does not leave etcd before them
	finished []finishedBatch
	back     []takenBack // bounded by term.unbound
	// sparse are batches of which etcd keeps much that is decided: those that are preparing may stay for long.
	sparse   map[int64]bool
	sparseAt time.Time // when some were written last
	backAt   time.Time // when the first of them came

	held []*placement // of a unit of which parts are in etcd and the last is not; recordOnce's own
}

// recorderConfig is everything a recorder needs. All of it is required, but for gather.
type recorderConfig struct {
	term    termRecord
	fenced  bool // source.Source.Fenced
	version func() cluster.Version
	out     chan<- *placement                     // gets those that may be bound
	move    func(*placement, placementState) bool // backlog.move
	// prepares takes recorded placements that are not to be bound yet.
	prepares func(*placement) bool
	took     func(time.Duration) // hears how long a record took
	// gather is for how long what is taken back waits for more of it. Each write of a batch that shrinks is of all that is left of it.
	gather time.Duration
	log    *slog.Logger
}

// finishedBatch is a batch that nothing is left of. It leaves etcd with a later version than it was recorded at: until then a delayed
// duplicate of the transaction that recorded it would bring it back.
type finishedBatch struct {
	id int64
	at cluster.Seq
}

// openBatch is a recorded batch of which some placements are not decided yet.
type openBatch struct {
	placements []*placement // as recorded; nil where it is decided
	open       int          // those that are not
	size       int          // those that were not when it was written last
	since      time.Time    // when it was recorded, or taken over
	at         cluster.Seq  // it was recorded with that version; 0, which is before all that a record has: in an earlier epoch
	with       int64        // the batch in etcd says that it counts with that one; 0: by itself
}

// left returns the intents that are not decided.
func (b *openBatch) left() []coord.Intent {
	left := make([]coord.Intent, 0, b.open)
	for _, p := range b.placements {
		if p != nil {
			left = append(left, p.intent())
		}
	}
	return left
}

// takenBack is a placement that is releasing.
type takenBack struct {
	*placement
	then func() error // called when no other binder can find its intent any more; an error ends the term
}

func newRecorder(cfg recorderConfig) *recorder {
	return &recorder{
		recorderConfig: cfg, wake: make(chan struct{}, 1), nextID: 1,
		open: make(map[int64]*openBatch), named: make(map[int64]int), sparse: make(map[int64]bool),
	}
}

// add hands in placements, in order. It never blocks, and is called under the ledger's lock.
func (r *recorder) add(placed []*placement) { r.wait(placed, true) }

// addUnit hands in placements as add does, to be recorded whole or not at all.
func (r *recorder) addUnit(placed []*placement) {
	if len(placed) > 1 {
		r.mu.Lock()
		r.units++
		for _, p := range placed {
			p.unit = r.units
		}
		r.mu.Unlock()
	}
	r.wait(placed, true)
}

// addOne hands in a placement as add does. As long as more is expected, it may wait for that, to be recorded with it, for recordedTogether at most.
func (r *recorder) addOne(p *placement) { r.wait([]*placement{p}, false) }

func (r *recorder) wait(placed []*placement, urgent bool) {
	r.mu.Lock()
	if len(r.waiting) == 0 {
		r.since = time.Now()
	}
	r.waiting, r.urgent = append(r.waiting, placed...), r.urgent || urgent
	r.mu.Unlock()
	r.signal()
}

// expect says that placements come one by one, until end.
func (r *recorder) expect() (end func()) {
	count := func(n int) {
		r.mu.Lock()
		r.expected += n
		r.mu.Unlock()
	}
	count(1)
	return func() {
		count(-1)
		r.signal()
	}
}

// recordedTogether is for how long placements that come one by one wait for more of them: a transaction costs as much for one as for many.
const recordedTogether = 20 * time.Millisecond

// gathers reports whether what waits is to wait for more. The caller holds the lock.
func (r *recorder) gathers() bool {
	return !r.fenced && r.expected > 0 && !r.urgent && len(r.waiting) > 0 && len(r.waiting) < askPods && time.Since(r.since) < recordedTogether
}

// adopt registers a batch that an earlier epoch recorded, and which it counts with: see coord.Batch.With. Those of its intents that were not taken over are nil. If
// that is all of them, it leaves etcd with the first record of this epoch.
func (r *recorder) adopt(batch, with int64, taken []*placement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextID = max(r.nextID, batch+1, with+1)
	b := &openBatch{placements: taken, size: len(taken), since: time.Now()}
	b.open = len(b.left())
	if b.open == 0 {
		r.finished = append(r.finished, finishedBatch{id: batch})
	} else {
		r.open[batch] = b
		r.name(b, with)
	}
}

// name notes that a batch counts with another, if it does, and unname that it is about not to: it is being finished, or written anew, of a unit that is in etcd whole. The caller
// holds the lock.
func (r *recorder) name(b *openBatch, with int64) {
	if b.with = with; with != 0 {
		r.named[with]++
	}
}

func (r *recorder) unname(b *openBatch) {
	if b.with == 0 {
		return
	}
	if r.named[b.with]--; r.named[b.with] == 0 {
		delete(r.named, b.with)
	}
	b.with = 0
}

// decided says that a placement has an outcome that the source shows: the pod is on a node, or gone.
func (r *recorder) decided(p *placement) {
	if p.batch == unrecorded {
		return
	}
	r.mu.Lock()
	b := r.open[p.batch]
	done := r.settle(p)
	if done {
		r.unname(b)
		r.finished = append(r.finished, finishedBatch{p.batch, b.at})
	}
	r.mu.Unlock()
	if done {
		r.signal()
	}
}

// takeFinished returns the batches that can leave etcd with a version, and keeps the others. The last part of a unit can if all others do, or have: these were recorded no later. The
// caller holds the lock.
func (r *recorder) takeFinished(now cluster.Seq) []int64 {
	var ids []int64
	r.finished = slices.DeleteFunc(r.finished, func(b finishedBatch) bool {
		if b.at >= now || r.named[b.id] > 0 {
			return false
		}
		ids = append(ids, b.id)
		return true
	})
	return ids
}

// settle strikes a placement out of its batch, where it is only once, and reports whether the batch is finished with that. The caller
// holds the lock.
func (r *recorder) settle(p *placement) bool {
	b := r.open[p.batch]
	if b == nil || b.placements[p.index] != p {
		return false
	}
	b.placements[p.index] = nil
	if b.open--; b.open > 0 {
		if b.open <= b.size/sparseBelow {
			r.sparse[p.batch] = true
		}
		return false
	}
	delete(r.open, p.batch)
	delete(r.sparse, p.batch)
	return true
}

// A batch is written anew, with the next record, without what is decided, when no more of it is left than one part of sparseBelow, so that all that is
// written of a batch in this way is less than it was itself; and not before sparseAfter: most are finished by then.
const (
	sparseBelow = 4
	sparseAfter = 10 * time.Second
	sparseEvery = time.Second // they are gathered
)

// takeBack takes a placement that is releasing, and calls then when the record does not say otherwise any more: until then
// the pod keeps its room. It returns then's error if it has been called already.
func (r *recorder) takeBack(p *placement, then func() error) error {
	if p.batch == unrecorded {
		return then()
	}
	r.mu.Lock()
	if len(r.back) == 0 {
		r.backAt = time.Now()
	}
	r.back = append(r.back, takenBack{p, then})
	r.mu.Unlock()
	r.signal()
	return nil
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
		case <-r.due():
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

// due returns a channel that tells when there is something to do of which nobody says so: what waits, or is taken back, has been gathered, or a
// batch may leave etcd with a later version.
func (r *recorder) due() <-chan time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case len(r.waiting) > 0: // and gathers
		return time.After(time.Until(r.since.Add(recordedTogether)))
	case len(r.back) > 0:
		return time.After(time.Until(r.backAt.Add(r.gather)))
	case len(r.finished) > 0:
		return time.After(time.Second)
	}
	return nil
}

// recordOnce records what waits, if it has to be, lets its binds go, and gives back what was taken back; false: nothing
// waited.
func (r *recorder) recordOnce(ctx context.Context) (bool, error) {
	// 1. Take what waits. The version is asked for before the lock is taken, which the ledger takes under its own.
	now := r.version().Seq
	r.mu.Lock()
	if r.gathers() { // and all else with it
		r.mu.Unlock()
		return false, nil
	}
	if len(r.parts) == 0 {
		r.parts = fitting(r.waiting)
	}
	n := 0
	if len(r.parts) > 0 {
		n, r.parts = r.parts[0], r.parts[1:]
	}
	placed := r.waiting[:n:n]
	if r.waiting = r.waiting[n:]; len(r.waiting) == 0 {
		r.waiting, r.urgent = nil, false // with what it holds on to
	}
	var back []takenBack
	if len(r.back) >= batchLimit || time.Since(r.backAt) >= r.gather {
		back, r.back = r.back, nil
	}
	shrunk, emptied := r.shrink(back)
	finished := r.takeFinished(now)
	var batch *coord.Batch
	id, with := int64(unrecorded), int64(0)
	if n > 0 && (!r.fenced || slices.ContainsFunc(placed, func(p *placement) bool { return p.unit != 0 })) {
		id = r.nextID
		r.nextID++
		if more := len(r.parts); more > 0 { // which get the next ids
			with = id + int64(more)
		}
		batch = newBatch(id, with, placed)
		r.open[id] = &openBatch{placements: slices.Clone(placed), open: n, size: n, since: time.Now()} // none is decided before it is recorded
		r.name(r.open[id], with)
	}
	r.mu.Unlock()
	for i, p := range placed {
		p.batch, p.index = id, i
	}
	if n == 0 && len(finished) == 0 && len(back) == 0 && len(shrunk) == 0 {
		return false, nil
	}
	// 2. Record it.
	if len(shrunk) > 0 {
		if err := r.insist(ctx, func() error { return r.term.Shrink(ctx, shrunk) }); err != nil {
			return false, err
		}
	}
	if batch != nil || len(finished) > 0 {
		began := time.Now()
		at, err := r.write(ctx, batch, finished)
		if err != nil {
			return false, err
		}
		if batch != nil {
			r.mu.Lock()
			r.open[id].at = at
			r.mu.Unlock()
			traceRecord(batch, placed, began, time.Now())
		}
	}
	// 3. Nobody finds any more what was taken back: its room may be given away.
	for _, b := range back {
		if err := b.then(); err != nil {
			return false, err
		}
	}
	// The batches that nothing is left of stay, empty, until there is a later version.
	if len(emptied) > 0 {
		r.mu.Lock()
		r.finished = append(r.finished, emptied...)
		r.mu.Unlock()
		r.signal()
	}
	// 4. Let the binds go, those of a unit in parts when the last is recorded.
	if with != 0 {
		r.held = append(r.held, placed...)
		return true, nil
	}
	if len(r.held) > 0 {
		placed, r.held = append(r.held, placed...), nil
	}
	for _, p := range placed {
		if !r.move(p, stateRecorded) || r.prepares(p) {
			continue
		}
		select {
		case r.out <- p:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return true, nil
}

// fitting returns how many of the first of some placements the next batch has, which is of whole units; of a unit that is too large for one, and comes first, how many each of its
// parts has, all of which are in one batch alone; nil if there are none.
func fitting(waiting []*placement) []int {
	n := fill(waiting)
	switch {
	case n == 0:
		return nil
	case n == len(waiting) || waiting[n].unit == 0 || waiting[n].unit != waiting[n-1].unit:
		return []int{n}
	}
	within := func(p *placement) bool { return p.unit == waiting[n].unit }
	if begin := slices.IndexFunc(waiting, within); begin > 0 {
		return []int{begin}
	}
	var parts []int
	if end := slices.IndexFunc(waiting, func(p *placement) bool { return !within(p) }); end > 0 {
		waiting = waiting[:end]
	}
	for ; len(waiting) > 0; waiting = waiting[parts[len(parts)-1]:] {
		parts = append(parts, fill(waiting))
	}
	return parts
}

// fill returns how many of the first of some placements one batch has room for.
func fill(waiting []*placement) (n int) {
	for size := 0; n < min(len(waiting), batchLimit); n++ {
		if size += waiting[n].size(); size > batchBytes && n > 0 {
			break
		}
	}
	return n
}

// size returns about how many bytes are recorded of a placement.
func (p *placement) size() int {
	const each = 4 // quotes, comma, bracket
	size := len(p.UID) + len(p.Namespace) + len(p.Name) + len(p.Node) + 4*each + p.recorded
	for _, v := range p.Volumes {
		size += len(v.Claim) + len(v.UID) + len(v.Volume) + 3*each
	}
	if p.preparation != nil {
		size += len(p.preparation.scheduler) + each
	}
	return size
}

func newBatch(id, with int64, placed []*placement) *coord.Batch {
	batch := &coord.Batch{ID: id, Intents: make([]coord.Intent, len(placed)), With: with}
	for i, p := range placed {
		batch.Intents[i] = p.intent()
	}
	return batch
}

// shrink strikes out what was taken back, and returns what is left of the batches, by id, of those that are sparse too, and those that nothing is
// left of. What is written so is of whole units, for no placement is out of the recorder's hands before, so parts count by themselves from then on. The caller holds the lock.
func (r *recorder) shrink(back []takenBack) (batches []coord.Batch, emptied []finishedBatch) {
	touched := make(map[int64]*openBatch)
	if time.Since(r.sparseAt) >= sparseEvery {
		for id := range r.sparse {
			if b := r.open[id]; time.Since(b.since) >= sparseAfter {
				touched[id], r.sparseAt = b, time.Now()
			}
		}
	}
	for _, b := range back {
		if open := r.open[b.batch]; open != nil {
			touched[b.batch] = open
			r.settle(b.placement)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(touched)) {
		b := touched[id]
		b.size = b.open
		r.unname(b)
		delete(r.sparse, id)
		batches = append(batches, coord.Batch{ID: id, Intents: b.left()})
		if b.open == 0 {
			emptied = append(emptied, finishedBatch{id, b.at})
		}
	}
	return batches, emptied
}

// write writes a batch, if there is one, in one transaction with the version, which covers at least the batch's placements,
// and removes the finished batches. It returns the version's seq.
func (r *recorder) write(ctx context.Context, batch *coord.Batch, finished []int64) (cluster.Seq, error) {
	v := r.version()
	began := time.Now()
	err := r.insist(ctx, func() error {
		return r.term.Record(ctx, coord.Version{Epoch: int64(v.Epoch), Seq: int64(v.Seq)}, batch, finished)
	})
	if err != nil {
		return 0, fmt.Errorf("record at version %v: %w", v, err)
	}
	r.took(time.Since(began))
	return v.Seq, nil
}

// insist writes until the outcome is known or the term is over. It goes on where etcd has no room, or too much to do: to end the term
// would change neither, and the next one could not even begin.
func (r *recorder) insist(ctx context.Context, write func() error) error {
	said := false
	for {
		err := write()
		full, busy := errors.Is(err, coord.ErrNoSpace), errors.Is(err, coord.ErrBusy)
		if err == nil || !full && !busy && !errors.Is(err, coord.ErrUnknown) || ctx.Err() != nil {
			return err
		}
		again := 200 * time.Millisecond
		if busy {
			again = time.Second
			r.log.Warn("not recorded: etcd has too much to do, trying again", "err", err)
		} else if full {
			again = time.Second
			if !said {
				r.log.Error("not recorded: etcd is full, trying again until it has room", "err", err)
			}
			said = true
		} else {
			r.log.Warn("record outcome unknown, asking again", "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(again):
		}
	}
}
