package binder

import (
	"fmt"
	"strings"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
)

// ledger is the authoritative state of one epoch, and the only writer of its log. Everything that changes the state
// goes through apply, under the lock.
type ledger struct {
	feed *replica.Feed

	mu     sync.Mutex
	state  *cluster.State
	fold   *ingest.Fold // of what the source tells
	opened bool
	// preempted is, of pods that have been nominated by a preemption, the last attempt that was.
	preempted map[string]attempt // by uid
	broken    error              // the first delta the state refused: a broken invariant
	// unsupported hears, under the lock, of objects that are told otherwise than they are; nil: nobody listens.
	unsupported func(source.Unsupported)
}

// attempt is an attempt of a pod. Whoever claims a shard anew may count its pods' attempts from the last assumed one.
type attempt struct {
	claim  int64 // the revision of the shard's claim
	number int32
}

func newLedger(epoch cluster.Epoch, settings cluster.Settings, feed *replica.Feed) (*ledger, error) {
	l := &ledger{feed: feed, state: cluster.New(cluster.Version{Epoch: epoch}), preempted: make(map[string]attempt)}
	l.fold = ingest.New(l.state, l.apply, ingest.Telling(wire.Tellable, func(u source.Unsupported) {
		if l.unsupported != nil {
			l.unsupported(u)
		}
	}))
	return l, l.apply(cluster.SettingsSet{Settings: settings})
}

// apply changes the state and appends to the log. The caller holds the lock, or is alone. An error means a broken
// invariant: the term has to end.
func (l *ledger) apply(d cluster.Delta) error {
	if l.broken != nil {
		return l.broken
	}
	err := l.state.Apply(d)
	if err == nil && l.opened {
		err = l.feed.Append(d, l.state.Version(), l.state.Digest())
	}
	if err != nil {
		l.broken = fmt.Errorf("append %T at %v: %w", d, l.state.Version(), err)
	}
	return l.broken
}

// open begins the epoch: from here on the ledger is published.
func (l *ledger) open() cluster.Version {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened = true
	l.feed.Open(l.state.Version(), l.state.Digest())
	return l.state.Version()
}

// Snapshot calls encode while nothing changes.
func (l *ledger) Snapshot(encode func(*cluster.State)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	encode(l.state)
}

func (l *ledger) version() cluster.Version {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Version()
}

func (l *ledger) digest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Digest()
}

// observe folds what the source tells. What changes nothing that scheduling reads appends no delta.
func (l *ledger) observe(e source.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Kind == source.PodGone {
		delete(l.preempted, e.Pod.UID)
	}
	return l.fold.Observe(e)
}

// nominatedTo returns those of the pending pods nominated to a node that are meant.
func (l *ledger) nominatedTo(node string, meant func(*cluster.PodRow) bool) []cluster.PodID {
	var out []cluster.PodID
	for _, id := range l.state.NominatedOn(node) {
		if meant(l.state.Pod(id)) {
			out = append(out, id)
		}
	}
	return out
}

// clearings returns the reports that end the nominations of pods, and say nothing else.
func (l *ledger) clearings(ids []cluster.PodID) []source.Report {
	out := make([]source.Report, len(ids))
	for i, id := range ids {
		out[i] = reportOf(l.state.Pod(id), "", "")
		out[i].Nominate = true
	}
	return out
}

// assumed returns the pod with that uid if it is assumed on that node.
func (l *ledger) assumed(b source.Binding) (cluster.PodID, bool) {
	id, ok := l.state.PodByUID(b.UID)
	if !ok {
		return 0, false
	}
	row := l.state.Pod(id)
	return id, row.Phase == cluster.Assumed && row.NodeName == b.Node
}

// bound settles an assumed pod whose bind succeeded. The source may have told it already.
func (l *ledger) bound(b source.Binding) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, ok := l.assumed(b); ok {
		return l.apply(cluster.PodBound{ID: id})
	}
	return nil
}

// forget makes an assumed pod pending again, nominated to no node. False: it is not assumed there any more.
func (l *ledger) forget(b source.Binding, reason string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.assumed(b)
	if !ok {
		return false, nil
	}
	if err := l.apply(cluster.PodForgotten{ID: id, Reason: ingest.Sound(reason)}); err != nil {
		return true, err
	}
	return true, l.fold.Nominate(id, "")
}

// told returns, in order, what the source has told about recorded placements: BindUnknown for those that are still
// only assumed.
func (l *ledger) told(batch []intent) []source.Result {
	results := make([]source.Result, len(batch))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range batch {
		id, ok := l.state.PodByUID(batch[i].UID)
		if !ok {
			results[i] = source.BindGone
			continue
		}
		switch row := l.state.Pod(id); {
		case batch[i].absent && row.Phase != cluster.Bound && !row.Deleting:
			// It was not assumed. If the pod is assumed by now, that is by a later commit, of which this bind knows nothing.
		case !row.Placed(): // it is being deleted
			results[i] = source.BindGone
		case row.NodeName != batch[i].Node:
			results[i] = source.BindElsewhere
		case row.Phase == cluster.Bound:
			results[i] = source.BindDone
		}
	}
	return results
}

// unplaced reports whether there is such a pod, it is not placed, and it is not another scheduler's to place.
func (l *ledger) unplaced(uid string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.state.PodByUID(uid)
	return ok && !l.state.Pod(id).Placed() && !l.state.Yields(l.state.Pod(id).Class)
}

// adoption is what becomes of an intent of an earlier epoch.
type adoption int

const (
	nothing adoption = iota // the pod is placed, being deleted or gone: there is nothing to bind
	foreign                 // no binder has meant that: the pod is not for it to place, or not there
	absent                  // its node is not known, but may come back
	misfit                  // a filter says no
	adopted                 // it fits, and is assumed again
)

// adopt assumes a pod again that an earlier epoch has recorded an intent for, if the filters find that it fits. A misfit, with
// what they have against it, is assumed only if insist.
func (l *ledger) adopt(b source.Binding, e *engine.Evaluator, insist bool) (what adoption, why string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.state.PodByUID(b.UID)
	if !ok || l.state.Pod(id).Placed() || l.state.Pod(id).Deleting {
		return nothing, "", nil
	}
	row := l.state.Pod(id)
	switch class := l.state.Class(row.Class); {
	case row.Namespace != b.Namespace || row.Name != b.Name:
		return foreign, "the pod of this uid is " + row.Namespace + "/" + row.Name, nil
	case l.state.Profile(class.Spec.SchedulerName) == nil:
		return foreign, "it is for another scheduler", nil
	case len(row.Gates) > 0:
		return foreign, "it has scheduling gates", nil
	case row.RequiredNode != "" && row.RequiredNode != b.Node:
		return foreign, "it may only go to " + row.RequiredNode, nil
	}
	node := l.state.Nodes.ByName(b.Node)
	if node == cluster.NoNode {
		return absent, "there is no such node", nil
	}
	subject := engine.SubjectOf(&row.Pod)
	verdict, known := e.Node(l.state, subject, id, node)
	if !known {
		return nothing, "", nil
	}
	what = adopted
	if !verdict.Feasible() {
		what = misfit
		var reasons []string
		for _, v := range e.Explain(l.state, subject, verdict, node) {
			reasons = append(reasons, v.Reason)
		}
		if why = strings.Join(reasons, ", "); !insist {
			return what, why, nil
		}
	}
	return what, why, l.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: max(row.Attempt, 1)})
}
