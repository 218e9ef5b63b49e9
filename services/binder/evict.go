package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/source"
)

// How many preemptions are carried out at once, but for late ones, and how many evictions of each.
const (
	preemptionWorkers = 8
	evictionsAtOnce   = 8
)

// How often an eviction is tried.
const evictionTries = 4

// A preemption waits for its turn no longer than another may take: its preemptor is held back meanwhile, and keeps room. For a turn that does not come, as
// evictions hang in a namespace of its victims, that would be for ever.
const (
	turnWithin  = evictionTries * writeTimeout
	noTurnEvery = time.Second // how often it is looked who has waited for too long, or for nothing
)

// canceledWithin is how long each victim has at least to be canceled, of those of a preemption, which have writeTimeout together.
const canceledWithin = 2 * time.Second

// evictionBackoff is between tries of an eviction, and of asking whether the term holds.
var evictionBackoff = backoff{100 * time.Millisecond, time.Second}

// preemptionLane carries out preemptions. Any number may run. An error ends the term.
func (t *term) preemptionLane(ctx context.Context) error {
	return work(ctx, t.preemptions, t.preemptions.next, func(ctx context.Context, p preemption) error {
		t.evicting.giveOf("", -1)
		late := time.AfterFunc(lateAfter, func() {
			t.evicting.giveOf("", 1)
			t.preempting.addStuck(len(p.of))
		})
		err := t.carryOut(ctx, p)
		if late.Stop() {
			t.evicting.giveOf("", 1)
		} else {
			t.preempting.addStuck(-len(p.of))
		}
		t.preempting.giveAll(p.of)
		return err
	})
}

// errSpared stops the evictions of a preemption of which one has failed for good.
var errSpared = errors.New("a victim is spared")

// carryOut evicts the victims of a preemption and then ends it. kube-scheduler ends it before the last eviction, since it
// misses what happens while it holds the preemptor back. The log misses nothing, and this way the end knows of every
// failure.
func (t *term) carryOut(ctx context.Context, p preemption) error {
	// 1. An API server does not see the fence, so etcd is asked, as a bind's record does.
	if err := t.holds(ctx); err != nil {
		return err
	}
	// 2. Evict.
	p.began = time.Now()
	evicted := make([]bool, len(p.evict))
	g, going := errgroup.WithContext(ctx)
	g.SetLimit(evictionsAtOnce)
	for i := range p.evict {
		g.Go(func() (err error) {
			evicted[i], err = t.evict(ctx, going.Done(), p, p.evict[i])
			return err
		})
	}
	if err := g.Wait(); err != nil && !errors.Is(err, errSpared) {
		return err
	}
	if ctx.Err() != nil {
		return nil // what is not done is for the next term's attempt
	}
	// 3. End it.
	var spared []cluster.PodID
	for i, v := range p.evict {
		if !evicted[i] {
			spared = append(spared, v.id)
		}
	}
	t.metrics.evicted(time.Since(p.began), len(spared))
	return t.endPreemption(p, spared)
}

// endPreemption ends a preemption of which some victims are spared, and has it reported whose nominations end by that.
func (t *term) endPreemption(p preemption, spared []cluster.PodID) error {
	if len(spared) > 0 {
		t.metrics.evictions.WithLabelValues("spared").Add(float64(len(spared)))
	}
	return t.ledger.endPreemption(p, spared, func(cleared []source.Report) {
		for _, r := range cleared {
			if !t.reports.add(r) {
				t.metrics.laneDropped.WithLabelValues(laneReports).Inc()
			}
		}
	})
}

// noTurnLane ends the preemptions that wait for their turn and need it no more, for all their victims are on their way or the preemptor is, and
// those whose turn does not come. The latter have failed, as with evictions that do: the victims are spared, and the preemptor is tried again. So
// those who cannot have what they want come again no more often than evictions that hang are given up.
func (t *term) noTurnLane(ctx context.Context) error {
	return every(ctx, noTurnEvery, func(now time.Time) error {
		overdue := 0
		for _, p := range t.ledger.noTurn(t.preemptions, now) {
			if ctx.Err() != nil {
				return nil
			}
			var spared []cluster.PodID
			for _, v := range p.evict {
				if t.ledger.stays(v) {
					spared = append(spared, v.id)
				}
			}
			err := t.endPreemption(p, spared)
			t.preempting.giveAll(p.of)
			if err != nil {
				return err
			}
			if p.overdue(now) {
				overdue++
			}
		}
		if overdue > 0 {
			t.log.Warn("preemptions given up whose turn has not come: evictions hang, or are many", "pods", overdue)
		}
		return nil
	})
}

// overdue reports whether a preemption has waited for its turn for too long.
func (p *preemption) overdue(now time.Time) bool { return now.Sub(p.since) >= turnWithin }

// noTurn takes those out of the preemptions that wait whose turn is not to come.
func (l *ledger) noTurn(waiting *turns[string, preemption], now time.Time) []preemption {
	l.mu.Lock()
	defer l.mu.Unlock()
	return waiting.takeOut(func(p preemption) bool {
		return p.overdue(now) || !l.wants(p) || !slices.ContainsFunc(p.evict, l.remains)
	})
}

// wants reports whether a preemption still has its preemptor, which is held back for it. The caller holds the lock.
func (l *ledger) wants(p preemption) bool {
	return l.holdsBack(p) && !l.state.Pod(p.pod).Deleting
}

// holdsBack reports whether the preemptor of a preemption is held back for it, and not for a later one. The caller holds the lock.
func (l *ledger) holdsBack(p preemption) bool {
	row := l.state.Pod(p.pod)
	return row != nil && row.UID == p.uid && row.Preempting && l.preempted[p.uid].by == p.by
}

// holds waits until etcd says that the term holds. It returns nil, too, when ctx ends.
func (t *term) holds(ctx context.Context) error {
	for {
		err := timely(ctx, t.confirm)
		switch {
		case err == nil, ctx.Err() != nil:
			return nil
		case errors.Is(err, coord.ErrFenced):
			t.metrics.fenced.Inc()
			return fmt.Errorf("preempt: %w", err)
		}
		t.log.Warn("etcd does not say whether the term holds, asking again", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(evictionBackoff.first):
		}
	}
}

// evict makes a victim of a preemption go, unless it is on its way out already. False: it stays, since stop was closed or because of
// an error. errSpared: it could not be evicted, or the preemptor needs the room no more, or is another scheduler's to place by now. Another
// error ends the term.
func (t *term) evict(ctx context.Context, stop <-chan struct{}, p preemption, v victim) (bool, error) {
	select {
	case <-stop:
		return false, nil
	default:
	}
	if t.cancel(stop, p, v) {
		return true, nil
	}
	evicted, err := t.delete(ctx, stop, p, v)
	if !evicted {
		t.preparing.spare(v.UID, v.Node)
		t.stepping.spare(v.UID, v.Node)
	}
	return evicted, err
}

// delete is evict of one that is not only about to be bound.
func (t *term) delete(ctx context.Context, stop <-chan struct{}, p preemption, v victim) (bool, error) {
	for try := range evictionTries {
		if try > 0 {
			select {
			case <-stop:
				return false, nil
			case <-time.After(evictionBackoff.after(try)):
			}
		}
		select {
		case <-stop:
			return false, nil
		default:
		}
		if t.ended() {
			return false, errDeposed
		}
		switch stays, wanted := t.ledger.toEvict(p, v); {
		case !stays:
			return true, nil
		case !wanted:
			return false, errSpared
		}
		if p.shared && !t.names.lasts(p.stint) {
			return false, errSpared
		}
		stint := int64(0)
		if p.shared {
			stint = p.stint
		}
		call, done := t.callFor(ctx, stint)
		err := timely(call, func(ctx context.Context) error { return t.source.Evict(ctx, t.fence, v.Eviction) })
		done()
		switch {
		case err == nil:
			t.metrics.evictions.WithLabelValues("done").Inc()
			if log := logs.V(t.log, logs.Outcomes); log != nil {
				log.Info("Preemptor Pod preempted victim Pod", "preemptor", v.PreemptorNamespace+"/"+v.PreemptorName, "victim", v.Namespace+"/"+v.Name, "node", v.Node)
			}
			t.events.add(v.Namespace, func(ctx context.Context) error { return t.source.Preempted(ctx, v.Eviction) })
			return true, nil
		case errors.Is(err, coord.ErrFenced):
			t.metrics.fenced.Inc()
			return false, fmt.Errorf("evict %s/%s: %w", v.Namespace, v.Name, err)
		case ctx.Err() != nil:
			return false, nil
		}
		t.metrics.evictions.WithLabelValues("failed").Inc()
		t.log.Warn("eviction failed", "pod", v.Namespace+"/"+v.Name, "node", v.Node, "try", try+1, "err", err)
	}
	return false, errSpared
}

// cancel makes an end of the placement of a victim that only waits for its claims, or for plugin services, and whose pod need not be deleted then. False: it stays, for
// all that is known.
func (t *term) cancel(stop <-chan struct{}, p preemption, v victim) bool {
	stays, wanted := t.ledger.toEvict(p, v)
	if !stays || !wanted || t.ended() || p.shared && !t.names.lasts(p.stint) {
		return false
	}
	over := t.preparing.cancel(v.UID, v.Node)
	if waits := t.stepping.cancel(v.UID, v.Node); over == nil { // it may do both
		over = waits
	}
	if over == nil {
		return false
	}
	timer := time.NewTimer(max(writeTimeout-time.Since(p.began), canceledWithin))
	defer timer.Stop()
	select {
	case <-over:
	case <-stop:
	case <-timer.C: // a write for its claims may be under way, and keeps its room; it loses that if it is deleted
	}
	if t.ledger.stays(v) {
		return false
	}
	if !t.ledger.there(v.UID) {
		return true // somebody has deleted it
	}
	t.metrics.evictions.WithLabelValues("canceled").Inc()
	v.Canceled = true
	t.events.add(v.Namespace, func(ctx context.Context) error { return t.source.Preempted(ctx, v.Eviction) })
	return true
}

// find returns the victim's row, nil if it is not on its node any more.
func (l *ledger) find(v victim) *cluster.PodRow {
	row := l.state.Pod(v.id)
	if row == nil || row.UID != v.UID || row.NodeName != v.Node {
		return nil
	}
	return row
}

// stays reports whether a victim is where it was and nobody has deleted it.
func (l *ledger) stays(v victim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remains(v)
}

// there reports whether a pod is there and nobody has deleted it.
func (l *ledger) there(uid string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.state.PodByUID(uid)
	return ok && !l.state.Pod(id).Deleting
}

// toEvict reports whether a victim of a preemption stays, and whether the preemptor wants it to go.
func (l *ledger) toEvict(p preemption, v victim) (stays, wanted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remains(v), l.wants(p)
}

// remains is stays for one who holds the lock.
func (l *ledger) remains(v victim) bool {
	row := l.find(v)
	return row != nil && !row.Deleting
}

// endPreemption ends a preemption of which some victims are spared. It has failed if a victim stays: its removal, which
// would wake the preemptor, will not come. Other pods may have preempted a spared one, too: their nominations to the node
// end, which wakes them, and are reported. Others keep theirs: their victims go. An error means a broken ledger.
func (l *ledger) endPreemption(p preemption, spared []cluster.PodID, report func([]source.Report)) error {
	return l.update(func(tx *tx) error {
		cleared, err := l.endPreemptionIn(tx, p, spared)
		tx.tell(func() { report(cleared) })
		return err
	})
}

func (l *ledger) endPreemptionIn(tx *tx, p preemption, spared []cluster.PodID) ([]source.Report, error) {
	// 1. Who is left?
	isSpared := make(map[cluster.PodID]bool, len(spared))
	for _, id := range spared {
		isSpared[id] = true
	}
	var staying []cluster.PodID // spared, and still there
	uids := make(map[string]bool)
	stays := false
	for _, v := range p.victims {
		row := l.find(v)
		if row == nil || row.Deleting || row.Victim && !isSpared[v.id] {
			continue // gone, or on its way
		}
		stays = true // perhaps another preemption has spared it
		if isSpared[v.id] {
			staying, uids[v.UID] = append(staying, v.id), true
		}
	}
	// 2. End it, and whatever relied on those who stay.
	ended := cluster.PreemptionEnded{ID: p.pod, Failed: stays, Spared: staying}
	if !l.holdsBack(p) {
		ended = cluster.PreemptionEnded{ID: cluster.NoPod, Spared: staying}
	}
	if ended.ID != cluster.NoPod || len(staying) > 0 {
		if err := tx.apply(ended); err != nil {
			return nil, err
		}
	}
	if len(staying) == 0 {
		return nil, nil
	}
	var others []cluster.PodID
	seen := make(map[string]bool) // of the victims of a pod group, nodes may be many
	for _, id := range staying {
		node := l.state.Pod(id).NodeName
		if seen[node] {
			continue
		}
		seen[node] = true
		others = append(others, l.nominatedTo(node, func(row *cluster.PodRow) bool {
			waits := slices.ContainsFunc(l.preempted[row.UID].victims, func(uid string) bool { return uids[uid] })
			return row.UID != p.uid && !row.Preempting && waits
		})...)
	}
	cleared := l.clearings(others)
	for _, id := range others {
		if err := l.fold.Nominate(id, ""); err != nil {
			return nil, err
		}
	}
	return cleared, nil
}
