package binder

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
)

// ledger is the authoritative state of one epoch, and the only writer of its log. Everything that changes the state
// goes through update, in transactions.
type ledger struct {
	ledgerConfig

	mu     sync.Mutex
	state  *cluster.State
	fold   *ingest.Fold // of what the source tells; it applies to the transaction that is under way
	tx     tx
	opened bool
	// preempted is, of pods that have been nominated by a preemption, the last that was.
	preempted map[string]lastPreemption // by uid
	// unprovided are the nodes, of pods that are not bound, for which no volumes could be provisioned for the pod.
	unprovided map[string][]string // by uid
	elsewhere  allowance           // for searches for other nodes for them
	// interests are, of pods without a node, the extenders that they interest.
	interests map[string]extender.Interest // by uid
	trail     trail
	broken    error // why the first transaction failed: a broken invariant
}

// ledgerConfig is everything a ledger needs.
type ledgerConfig struct {
	epoch    cluster.Epoch
	settings cluster.Settings
	feed     *replica.Feed
	// unsupported hears, under the lock, of objects that are told otherwise than they are.
	unsupported func(source.Unsupported)
	// ends has the log say of pods whether they end by themselves. Members that do not know of that have another digest then.
	ends bool
	// abandoned hears that the function of a transaction has panicked, whose caller then cannot say that the term has to end.
	abandoned func(error)
}

// attempt is an attempt of a pod. Whoever claims a shard anew may count its pods' attempts from the last assumed one.
type attempt struct {
	claim  int64 // the revision of the shard's claim
	number int32
}

// lastPreemption is what is remembered of a pod's last preemption.
type lastPreemption struct {
	by      attempt
	victims []string // uids of all that had to go
}

func newLedger(cfg ledgerConfig) (*ledger, error) {
	l := &ledger{ledgerConfig: cfg, state: cluster.New(cluster.Version{Epoch: cfg.epoch}), preempted: make(map[string]lastPreemption), unprovided: make(map[string][]string), interests: make(map[string]extender.Interest)}
	l.tx.state, l.tx.trail = l.state, &l.trail
	l.fold = ingest.New(l.state, l.tx.apply, ingest.Telling(wire.Tellable, cfg.unsupported))
	return l, l.update(func(tx *tx) error { return tx.apply(cluster.SettingsSet{Settings: cfg.settings}) })
}

// tx is a transaction of the ledger: any number of deltas, and what else others are to see of it. The ledger's state has each delta as
// soon as it is applied; followers, the recorder and the lanes get all of it together when it ends, or nothing.
type tx struct {
	state   *cluster.State
	trail   *trail
	running bool
	err     error            // of the first delta that the state refused
	changes []replica.Change // so far
	then    []func()
}

// errPanicked is why a ledger is broken whose last transaction has neither ended well nor failed.
var errPanicked = errors.New("change the ledger: its function has panicked")

// errNoTransaction is what a delta is refused with for which nobody has begun a transaction, or that comes behind one.
var errNoTransaction = errors.New("there is no transaction")

// apply applies the next delta. An error, which the transaction keeps, means a broken invariant.
func (t *tx) apply(d cluster.Delta) error {
	switch {
	case !t.running:
		return errNoTransaction
	case t.err != nil:
		return t.err
	}
	if t.err = t.state.Apply(d); t.err != nil {
		t.err = fmt.Errorf("apply %T behind %v: %w", d, t.state.Version(), t.err)
		return t.err
	}
	t.changes = append(t.changes, replica.Change{Delta: d, Digest: t.state.Digest()})
	t.trail.add(t.state, d)
	return nil
}

// tell has something called when followers have been told of the transaction, under the ledger's lock: it neither waits nor asks
// the ledger. It is not called if the transaction fails.
func (t *tx) tell(others func()) { t.then = append(t.then, others) }

// largestBuffer bounds how many changes a ledger keeps room for from one transaction to the next.
const largestBuffer = 1 << 14

// end forgets the transaction, but for the memory that the next one can use.
func (t *tx) end() {
	clear(t.changes)
	if cap(t.changes) > largestBuffer {
		t.changes = nil
	}
	clear(t.then)
	t.running, t.changes, t.then = false, t.changes[:0], t.then[:0]
}

// update changes the ledger in one transaction, under the lock. An error, be it of fn or because followers cannot be told, means a broken
// invariant, and the term has to end: what was applied is told to nobody, and the ledger does nothing from then on. It is not undone. A
// state that has refused a delta is not what it should be, and to undo deltas is to apply others, which nobody has tried either; but nothing
// of a term outlives it, the next one loads the cluster anew, and what nobody was told of nobody has acted on.
func (l *ledger) update(fn func(*tx) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return l.broken
	}
	l.broken = errPanicked
	defer func() {
		if l.broken == errPanicked {
			l.abandoned(errPanicked)
		}
	}()
	l.tx.running = true
	defer l.tx.end()
	err := fn(&l.tx)
	l.tx.running = false
	if err == nil {
		err = l.tx.err
	}
	if err == nil && l.opened && len(l.tx.changes) > 0 {
		err = l.feed.Append(l.state.Version(), l.tx.changes...)
	}
	if err != nil {
		l.broken = fmt.Errorf("change the ledger: %w", err)
		return l.broken
	}
	for _, others := range l.tx.then {
		others()
	}
	l.broken = nil
	return nil
}

// open begins the epoch: from here on the ledger is published.
func (l *ledger) open() cluster.Version {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened = true
	l.feed.Open(l.state.Version(), l.state.Digest())
	return l.state.Version()
}

// Snapshot calls encode between two transactions. Of a ledger that is broken there is none.
func (l *ledger) Snapshot(encode func(*cluster.State)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil {
		encode(l.state)
	}
}

// read calls fn between two transactions.
func (l *ledger) read(fn func(*cluster.State)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn(l.state)
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
	return l.update(func(*tx) error {
		if e.Kind == source.PodGone {
			delete(l.preempted, ingest.Sound(e.Pod.UID))
			delete(l.unprovided, ingest.Sound(e.Pod.UID))
		}
		l.noteInterest(&e)
		if !l.ends {
			e.Pod.Ends = cluster.NeverEnds
		}
		return l.fold.Observe(e)
	})
}

// noteInterest notes which extenders a pod interests, as long as it has no node. The caller holds the lock.
func (l *ledger) noteInterest(e *source.Event) {
	switch {
	case e.Kind == source.PodSet && e.Pod.Extenders != 0 && e.Pod.NodeName == "":
		l.interests[ingest.Sound(e.Pod.UID)] = extender.Interest(e.Pod.Extenders)
	case len(l.interests) > 0 && (e.Kind == source.PodSet || e.Kind == source.PodGone):
		delete(l.interests, ingest.Sound(e.Pod.UID))
	}
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
	return l.update(func(tx *tx) error {
		delete(l.unprovided, b.UID)
		if id, ok := l.assumed(b); ok {
			return tx.apply(cluster.PodBound{ID: id})
		}
		return nil
	})
}

// forget makes an assumed pod pending again, nominated to the node that then says, "" for none. False: it is not assumed there any more.
func (l *ledger) forget(b source.Binding, reason string, then func(cluster.PodID) string) (was bool, nominated string, err error) {
	err = l.update(func(tx *tx) error {
		var id cluster.PodID
		if id, was = l.assumed(b); !was {
			return nil
		}
		if err := tx.apply(cluster.PodForgotten{ID: id, Reason: ingest.Sound(reason)}); err != nil {
			return err
		}
		if err := l.fold.Nominate(id, ""); err != nil {
			return err
		}
		nominated = then(id)
		return l.fold.Nominate(id, nominated)
	})
	return was, nominated, err
}

// told returns, in order, what the source has told about recorded placements: BindUnknown for those that are still
// only assumed.
func (l *ledger) told(batch []*placement) []source.Result {
	results := make([]source.Result, len(batch))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range batch {
		id, ok := l.state.PodByUID(p.UID)
		if !ok {
			results[i] = source.BindGone
			continue
		}
		switch row := l.state.Pod(id); {
		case p.absent && row.Phase != cluster.Bound && !row.Deleting:
			// It was not assumed. If the pod is assumed by now, that is by a later commit, of which this bind knows nothing.
		case !row.Placed(): // it is being deleted
			results[i] = source.BindGone
		case row.NodeName != p.Node:
			results[i] = source.BindElsewhere
		case row.Phase == cluster.Bound:
			results[i] = source.BindDone
		}
	}
	return results
}

// stillSo reports whether there is such a PodGroup, or whether there is such a pod, it is not placed, or is assumed where the report says, and it is not another scheduler's to place. A ledger
// that is broken says so of none.
func (l *ledger) stillSo(r source.Report) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Group {
		is := l.state.PodGroup(cluster.GroupKey{Namespace: r.Namespace, Name: r.Name})
		return l.broken == nil && is != nil && is.UID == r.UID
	}
	id, ok := l.state.PodByUID(r.UID)
	if !ok || l.broken != nil {
		return false
	}
	row := l.state.Pod(id)
	so := !row.Placed()
	if r.Assumed {
		so = row.Phase == cluster.Assumed && row.NodeName == r.Nominated
	}
	return so && !l.state.Yields(row.Class) && l.profile(row) != nil
}

// ours reports whether a pod is not known to be for another scheduler.
func (l *ledger) ours(uid string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.state.PodByUID(uid)
	return !ok || l.profile(l.state.Pod(id)) != nil
}

// unresolved reports whether a write for the claims of a pod that is gone, or elsewhere, may be under way, by what was recorded of it.
func (l *ledger) unresolved(p *placement) (may bool) {
	l.read(func(st *cluster.State) {
		if id, ok := st.PodByUID(p.UID); ok && st.Pod(id).NodeName == p.Node && claimsBound(st, p) {
			return
		}
		may = st.CanPromise(p.Namespace, p.Node, p.Volumes) == ""
	})
	return may
}

// claimsBound reports whether the claims of a placement are bound to what was chosen for them: then each write before is of an older version. Where the
// pod is says nothing of that: another scheduler may have bound it there, with other volumes. Nor does what has become of its node since.
func (l *ledger) claimsBound(p *placement) (is bool) {
	l.read(func(st *cluster.State) { is = claimsBound(st, p) })
	return is
}

func claimsBound(st *cluster.State, p *placement) bool {
	return !slices.ContainsFunc(p.Volumes, func(c cluster.VolumeChoice) bool {
		claim := st.PersistentVolumeClaim(p.Namespace, c.Claim)
		return claim == nil || claim.UID != c.UID || !claim.Bound || claim.Volume == "" || c.Volume != "" && claim.Volume != c.Volume
	})
}

// schedulerOf returns a pod's scheduler name, "" if there is no such pod.
func (l *ledger) schedulerOf(uid string) (name string) {
	l.read(func(st *cluster.State) {
		if id, ok := st.PodByUID(uid); ok {
			name = st.Class(st.Pod(id).Class).Spec.SchedulerName
		}
	})
	return name
}

// profile returns the profile by which a pod is placed, nil if it is for another scheduler.
func (l *ledger) profile(row *cluster.PodRow) *cluster.Profile {
	return l.state.Profile(l.state.Class(row.Class).Spec.SchedulerName)
}

// adoption is what becomes of an intent of an earlier epoch.
type adoption int

const (
	nothing adoption = iota // the pod is placed, being deleted or gone: there is nothing to bind
	foreign                 // no binder has meant that: it is another pod, or one that was never to be placed
	absent                  // its node is not known, but may come back
	misfit                  // a filter says no, or the profiles do
	adopted                 // it fits, and is assumed again
)

// unnominate ends the nominations of pods to the nodes that they are to be assumed on.
func (l *ledger) unnominate(placements []*placement) error {
	return l.update(func(*tx) error {
		for _, p := range placements {
			if id, ok := l.state.PodByUID(p.UID); ok && !l.state.Pod(id).Placed() && l.state.Pod(id).Nominated == p.Node {
				if err := l.fold.Nominate(id, ""); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// adopt assumes a pod again that an earlier epoch has recorded an intent for, with what was chosen for its claims, if the filters find that it fits.
// A misfit, with what they have against it, is assumed only if insist.
func (l *ledger) adopt(p *placement, judge judge, insist bool) (what adoption, why string, err error) {
	err = l.update(func(tx *tx) (err error) {
		what, why, err = l.adoptIn(tx, p, judge, insist)
		return err
	})
	return what, why, err
}

func (l *ledger) adoptIn(tx *tx, p *placement, judge judge, insist bool) (what adoption, why string, err error) {
	id, ok := l.state.PodByUID(p.UID)
	if !ok || l.state.Pod(id).Placed() || l.state.Pod(id).Deleting {
		return nothing, "", nil
	}
	row := l.state.Pod(id)
	switch {
	case row.Namespace != p.Namespace || row.Name != p.Name:
		return foreign, "the pod of this uid is " + row.Namespace + "/" + row.Name, nil
	case len(row.Gates) > 0:
		return foreign, "it has scheduling gates", nil
	}
	node := l.state.Nodes.ByName(p.Node)
	if node == cluster.NoNode {
		return absent, "there is no such node", nil
	}
	if !judge(row, func(e *engine.Evaluator) { what, why = l.judge(e, row, id, node) }) {
		what, why = misfit, "it cannot be judged"
	}
	// No binder has meant what contradicts another intent: its claims are not promised anything.
	contradiction := l.state.CanPromise(p.Namespace, p.Node, p.Volumes)
	if contradiction != "" && what != nothing {
		what, why = misfit, contradiction
	}
	if what == nothing || what == misfit && !insist {
		return what, why, nil
	}
	volumes := p.Volumes
	if contradiction != "" {
		volumes, p.preparation, p.unfit = nil, nil, true
	}
	return what, why, tx.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: max(row.Attempt, 1), Volumes: volumes})
}

// judge says whether a pod that an earlier epoch has meant to bind to a node fits there: adopted or misfit, or nothing if that is not
// known. That epoch may have had other profiles, by which the pod was its own to place, or not pinned.
func (l *ledger) judge(e *engine.Evaluator, row *cluster.PodRow, id cluster.PodID, node cluster.NodeIndex) (what adoption, why string) {
	switch {
	case l.profile(row) == nil:
		return misfit, "it is for another scheduler"
	case row.RequiredNode != "" && row.RequiredNode != l.state.Nodes.Spec[node].Name:
		return misfit, "it may only go to " + row.RequiredNode
	}
	subject := engine.SubjectOf(&row.Pod)
	verdict, known := e.Node(l.state, subject, id, node)
	switch {
	case !known:
		return nothing, ""
	case verdict.Feasible():
		return adopted, ""
	}
	var reasons []string
	for _, v := range e.Explain(l.state, subject, verdict, node) {
		reasons = append(reasons, v.Reason)
	}
	return misfit, strings.Join(reasons, ", ")
}
