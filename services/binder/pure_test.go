package binder

import (
	"context"
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/source"
)

// pureTerm returns a term without etcd, of which nothing runs, and which records what its source would not need. What it is made of may be
// changed before.
func pureTerm(t testing.TB, src source.Source, change ...func(*termConfig)) *term {
	t.Helper()
	m, err := newMetrics(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := termConfig{
		Config: Config{
			Source: src, Settings: settings(), MaxUnbound: 1000, Preemptions: 10, EventLimit: 100, Parallelism: 1, Log: testLog(t),
		},
		granted: granted{
			epoch: 1, confirm: func(context.Context) error { return nil }, record: &recorded{batches: make(map[int64][]coord.Intent)},
		},
		life:    life{spawn: func(func() error) {}, fail: func(err error) { t.Errorf("the term failed: %v", err) }},
		feed:    replica.NewFeed(replica.FeedConfig{}),
		metrics: m,
	}
	for _, change := range change {
		change(&cfg)
	}
	term, err := newTerm(cfg)
	if err != nil {
		t.Fatal(err)
	}
	failed := func(err error) { t.Errorf("not written, given up: %v", err) }
	term.events.failed, term.reports.failed = failed, failed
	term.recorder.fenced, term.recorder.gather = false, 0
	term.ledger.open()
	return term
}

// inPlaces has namespaces share so many places.
func inPlaces(places int) func(*termConfig) {
	return func(c *termConfig) { c.places = places }
}

// unboundAtMost is Config.MaxUnbound.
func unboundAtMost(limit int) func(*termConfig) {
	return func(c *termConfig) { c.MaxUnbound = limit }
}

// withNames has pods of the tests' scheduler name be placed in stints.
func withNames(c *termConfig) { c.Lease, c.shared = newFakeLease(), []string{scheduler} }

// gone is a pod that was deleted.
type gone string

// observe tells the ledger of nodes, pods and pods that are gone, and returns how many deltas that took.
func observe(t testing.TB, term *term, things ...any) int {
	t.Helper()
	before := term.ledger.version().Seq
	for _, thing := range things {
		var e source.Event
		switch thing := thing.(type) {
		case cluster.Node:
			e = source.Event{Kind: source.NodeSet, Node: thing}
		case source.Pod:
			e = source.Event{Kind: source.PodSet, Pod: thing}
		case gone:
			e.Kind, e.Pod.UID = source.PodGone, string(thing)
		case source.Event:
			e = thing
		}
		if err := term.ledger.observe(e); err != nil {
			t.Fatal(err)
		}
	}
	return int(term.ledger.version().Seq - before)
}

// assume places a pod as a commit does, and returns its placement as it is when the recorder has recorded it.
func assume(t testing.TB, term *term, uid, on string) *placement {
	t.Helper()
	var row *cluster.PodRow
	err := term.ledger.update(func(tx *tx) error {
		id, ok := tx.state.PodByUID(uid)
		if !ok {
			return fmt.Errorf("no pod %s", uid)
		}
		row = tx.state.Pod(id)
		return tx.apply(cluster.PodAssumed{ID: id, Node: tx.state.Nodes.ByName(on), Attempt: row.Attempt + 1})
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &placement{
		UID: uid, Namespace: row.Namespace, Name: row.Name, choice: choice{Node: on}, state: stateRecorded, batch: term.recorder.nextID,
	}
	term.ledger.read(func(*cluster.State) { p.binders = term.binders(uid) })
	term.unbound.giveOf(p.with(), -1)
	term.recorder.adopt(p.batch, 0, []*placement{p})
	return p
}

// recorded is a record in memory.
type recorded struct {
	version  coord.Version
	batches  map[int64][]coord.Intent
	finished []int64
	shrunk   []coord.Batch
	at       map[int64]coord.Version // at which batches were recorded
	fail     func() error            // asked before each write; nil: none fails
}

func (r *recorded) Record(_ context.Context, v coord.Version, b *coord.Batch, finished []int64) error {
	if r.fail != nil {
		if err := r.fail(); err != nil {
			return err
		}
	}
	r.version = v
	if b != nil {
		if r.at == nil {
			r.at = make(map[int64]coord.Version)
		}
		r.batches[b.ID], r.at[b.ID] = b.Intents, v
	}
	for _, id := range finished {
		// Else a delayed duplicate of the transaction that recorded it would record it again.
		if at, ok := r.at[id]; ok && at.Epoch == v.Epoch && at.Seq >= v.Seq {
			return fmt.Errorf("batch %d is finished at %v, and was recorded at %v", id, v, at)
		}
		delete(r.batches, id)
	}
	r.finished = append(r.finished, finished...)
	return nil
}

func (r *recorded) Shrink(_ context.Context, batches []coord.Batch) error {
	if r.fail != nil {
		if err := r.fail(); err != nil {
			return err
		}
	}
	for _, b := range batches {
		r.batches[b.ID] = b.Intents
	}
	r.shrunk = append(r.shrunk, batches...)
	return nil
}

// record makes the recorder write what waits, and returns what is recorded then.
func record(t testing.TB, term *term) *recorded {
	t.Helper()
	for {
		more, err := term.recorder.recordOnce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return term.recorder.term.(*recorded)
		}
	}
}

func where(term *term, uid string) (phase string) {
	term.ledger.Snapshot(func(st *cluster.State) { phase = phaseOf(st, uid) })
	return phase
}

var _ termRecord = (*coord.Term)(nil)

// noNode nominates pods to none.
func noNode(cluster.PodID) string { return "" }
