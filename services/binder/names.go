package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/source"
)

// Lease is how the schedulers of a cluster agree which of them places the pods of a name that several have. A binder tries it from one
// goroutine. *kube.Lease implements it.
type Lease interface {
	// String names the lease, for people, and Name is the name of its object.
	String() string
	Name() string
	// Try takes it for a holder, or renews it. That another holds it is no error.
	Try(ctx context.Context, holder string) (source.Claim, error)
	// Duration is how long others leave it alone when its holder does not renew it.
	Duration() time.Duration
	// RetryPeriod is the time between two tries of who holds it.
	RetryPeriod() time.Duration
	// Wait is the time to the next try of a holder, or of who would be one, as of the last: that one looks more often, and when the lease runs out.
	Wait(holder string) time.Duration
	// Release gives it up, unless somebody has written it since the holder did.
	Release(ctx context.Context, holder string) error
	// CatchUp waits until the source's Watch has told all that others who place pods had written when it was called. An error is ctx's.
	CatchUp(ctx context.Context) error
}

// electionTolerance is for how long a lease may have run out before it is an error that it still counts as held: as in kube-scheduler.
const electionTolerance = 20 * time.Second

// lastWord is how long a term that ends waits for the answers to binds of shared names: the lease is given up only if all have come.
const lastWord = 2 * time.Second

// names knows which scheduler names are the term's. Those that other schedulers may have too, the shared ones, are so in stints: one
// begins when the lease has been taken and everything that others had placed before has been told, and it ends, by the local
// clock, before the lease can have run out for others. What was placed in one stint is judged again before it is bound in another.
type names struct {
	shared []string // in alphabetical order; empty: there is no lease
	lease  Lease
	host   string        // where etcd is, if it is this process's alone: a copy of its data elsewhere is another holder
	wake   chan struct{} // holds one value while there is something to be judged

	mu     sync.Mutex
	holder string // as which the lease is held; "" until it is known
	until  time.Time
	// renewed is when the lease was taken or renewed last, as long as it counts as held: until it is known to be lost, or a try has failed when its time was over. Zero: it does not.
	renewed time.Time
	stint   int64 // of the lease as it is held now, or was last, from 1
	begun   bool  // all is told that others had placed before the stint
	why     string
	// aside are the placements of shared names that wait for the next stint, recorded and assumed.
	aside []*placement
	open  int // binds of shared names that were sent, perhaps by an earlier term, and have no outcome yet
}

func newNames(lease Lease, shared []string) *names {
	return &names{lease: lease, shared: shared, wake: make(chan struct{}, 1)}
}

// sharedNames returns those of the settings' names that are among some, in alphabetical order.
func sharedNames(settings cluster.Settings, among []string) []string {
	var shared []string
	for i := range settings.Profiles {
		if name := settings.Profiles[i].SchedulerName; slices.Contains(among, name) {
			shared = append(shared, name)
		}
	}
	slices.Sort(shared)
	return shared
}

// shares reports whether the pods of a class are of a shared name.
func (n *names) shares(st *cluster.State, class cluster.ClassID) bool {
	if len(n.shared) == 0 {
		return false
	}
	c := st.Class(class)
	return c != nil && slices.Contains(n.shared, c.Spec.SchedulerName)
}

// sharesPod reports whether a pod is of a shared name. One that is gone was of the name that was recorded; if none was, it may have been.
func (l *ledger) sharesPod(names *names, uid, recorded string) bool {
	if len(names.shared) == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.state.PodByUID(uid)
	if !ok {
		return recorded == "" || slices.Contains(names.shared, recorded)
	}
	return names.shares(l.state, l.state.Pod(id).Class)
}

// sharesGroup reports whether pods of a PodGroup are of a shared name. They are all of one, or none is placed. Those of a group without pods may have been.
func (l *ledger) sharesGroup(names *names, key cluster.GroupKey) bool {
	if len(names.shared) == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	pods := l.state.GroupPods(key)
	return len(pods) == 0 || slices.ContainsFunc(pods, func(id cluster.PodID) bool { return names.shares(l.state, l.state.Pod(id).Class) })
}

// waits reports whether what a report says may be written: a PodGroup is there, or a pod is there, not placed, or not bound yet if the report is of such a pod, and the term's to write to, and until when: zero if
// no end is known.
func (n *names) waits(l *ledger, r source.Report) (until time.Time, ok bool) {
	if !l.stillSo(r) {
		return time.Time{}, false
	}
	shares := false
	if r.Group {
		shares = l.sharesGroup(n, cluster.GroupKey{Namespace: r.Namespace, Name: r.Name})
	} else {
		shares = l.sharesPod(n, r.UID, "")
	}
	if !shares {
		return time.Time{}, true
	}
	stint, until := n.now() // the log may say so only later
	return until, stint != 0
}

// held reports whether the lease is held, by both clocks that there are: the one that nobody sets stands still while the machine is suspended, and the other may be set back. The caller holds mu.
func (n *names) held() bool {
	now := time.Now()
	return now.Before(n.until) && now.Round(0).Before(n.until.Round(0))
}

// now returns the stint in which shared names are the term's, and until when they are at least; 0: they are not.
func (n *names) now() (stint int64, until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.begun || !n.held() {
		return 0, time.Time{}
	}
	return n.stint, n.until
}

// lasts reports whether a stint has not ended.
func (n *names) lasts(stint int64) bool {
	now, _ := n.now()
	return stint != 0 && stint == now
}

// taken takes in that the lease is held until a time, and reports whether a stint is to begin by it.
func (n *names) taken(until time.Time) (stint int64, fresh bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.held() { // others may have held it since
		n.stint++
		n.begun, fresh = false, true
		n.why = fmt.Sprintf("the lease %v has been taken, and what others have placed is being read", n.lease)
	}
	n.until, n.renewed = until, time.Now()
	return n.stint, fresh
}

// begin begins a stint, if the lease is still held as it was. It reports whether it did.
func (n *names) begin(stint int64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stint != stint || !n.held() {
		return false
	}
	n.begun, n.why = true, ""
	return true
}

// lost takes in that another holds the lease.
func (n *names) lost(why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.begun, n.until, n.renewed, n.why = false, time.Time{}, time.Time{}, why
}

// unknown takes in that nothing could be learnt about the lease. Until its time is over, it is held as before. It reports whether that is news.
func (n *names) unknown(why string) (news bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held() {
		return true
	}
	news = n.why != why
	n.begun, n.renewed, n.why = false, time.Time{}, why
	return news
}

// overdue returns an error if the lease still counts as held though it has run out for others long ago: nobody tries it any more, as if all stood still. Nothing is placed by it then, for its time is
// over; only a new process goes on.
func (n *names) overdue(now time.Time) error {
	if n.lease == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.renewed.IsZero() || now.Sub(n.renewed) <= n.lease.Duration()+electionTolerance {
		return nil
	}
	return fmt.Errorf("failed election to renew leadership on lease %s", n.lease.Name()) // kube-scheduler's text
}

// reason says why shared names are not the term's.
func (n *names) reason() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.why == "" {
		return fmt.Sprintf("the lease %v could not be renewed in time", n.lease)
	}
	return n.why
}

// putAside keeps a placement until it can be judged again.
func (n *names) putAside(p *placement) {
	n.mu.Lock()
	n.aside = append(n.aside, p)
	n.mu.Unlock()
	if stint, _ := n.now(); stint != 0 { // else the next one's begin does
		n.signal()
	}
}

func (n *names) countAside() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.aside)
}

func (n *names) takeAside() []*placement {
	n.mu.Lock()
	defer n.mu.Unlock()
	aside := n.aside
	n.aside = nil
	return aside
}

func (n *names) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// count changes how many binds of shared names have no outcome.
func (n *names) count(by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open += by
}

// yield tells replicas whose pods are left to another scheduler, unless they know. To whom may be any text: who holds a lease is what
// others have written there.
func (l *ledger) yield(tx *tx, names []string, to string) error {
	to = ingest.Reason(to)
	if s := &l.state.Settings; slices.Equal(s.Yielded, names) && s.YieldedTo == to {
		return nil
	}
	return tx.apply(cluster.SettingsSet{Settings: l.state.Settings.Yielding(names, to)})
}

// stint returns the stint in which pods of shared names are placed at the moment, 0 if they may not be. In that case the log says so:
// who is refused because of it finds the reason there. An error means a broken ledger.
func (t *term) stint(tx *tx) (int64, error) {
	if len(t.names.shared) == 0 {
		return 0, nil
	}
	stint, _ := t.names.now()
	if stint == 0 && len(t.ledger.state.Settings.Yielded) == 0 {
		return 0, t.ledger.yield(tx, t.names.shared, t.names.reason())
	}
	return stint, nil
}

// claimNames tries for the lease before the cluster is read: all that others have placed is told by that, then. The ledger is not open
// yet.
func (t *term) claimNames(ctx context.Context) error {
	if len(t.names.shared) == 0 {
		return nil
	}
	if stint, fresh := t.tryLease(ctx); fresh {
		t.names.begin(stint)
	}
	return t.tellNames()
}

// keepNames holds the lease, or waits for it, until ctx ends. An error means a broken ledger.
func (t *term) keepNames(ctx context.Context) error {
	for len(t.names.shared) > 0 && sleep(ctx, t.names.lease.Wait(t.names.holder)) {
		if stint, fresh := t.tryLease(ctx); fresh {
			t.spawn(func() error { return t.catchUp(ctx, stint) })
		}
		if err := t.tellNames(); err != nil {
			return err
		}
	}
	return nil
}

// catchUp begins a stint when all is told that others have placed.
func (t *term) catchUp(ctx context.Context, stint int64) error {
	if t.names.lease.CatchUp(ctx) != nil || !t.names.begin(stint) {
		return nil // ctx has ended, or the lease is not held as it was
	}
	t.names.signal()
	return t.tellNames()
}

// judgeNames judges placements that were put aside, until ctx ends. An error means a broken ledger.
func (t *term) judgeNames(ctx context.Context) error {
	for len(t.names.shared) > 0 && sleepOrWake(ctx, t.names.lease.RetryPeriod(), t.names.wake) {
		if err := t.judgeAside(ctx); err != nil {
			return err
		}
	}
	return nil
}

// tryLease tries to take the lease, or to renew it. It reports whether a stint is to begin by it.
func (t *term) tryLease(ctx context.Context) (stint int64, fresh bool) {
	n := t.names
	claim, err := t.tryAs(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
	case err != nil:
		if n.unknown(fmt.Sprintf("nothing is known of the lease %v: %v", n.lease, err)) {
			t.log.Warn("lease not renewed", "lease", n.lease.String(), "err", err)
		}
	case claim.Until.IsZero():
		n.lost(fmt.Sprintf("%s holds the lease %v", claim.Holder, n.lease))
	default:
		return n.taken(claim.Until)
	}
	return 0, false
}

func (t *term) tryAs(ctx context.Context) (source.Claim, error) {
	if t.names.holder == "" { // only this goroutine writes it
		holder, err := t.identity(ctx)
		if err != nil {
			return source.Claim{}, err
		}
		if t.names.host != "" {
			holder += "_" + t.names.host
		}
		t.names.holder = holder
	}
	return t.names.lease.Try(ctx, t.names.holder)
}

// tellNames brings the log up to date with whose the shared names are. An error means a broken ledger.
func (t *term) tellNames() error { return t.ledger.update(t.tellNamesIn) }

func (t *term) tellNamesIn(tx *tx) error {
	was := tx.state.Settings
	names, to := []string(nil), ""
	if stint, _ := t.names.now(); stint == 0 {
		names, to = t.names.shared, t.names.reason()
	}
	if err := t.ledger.yield(tx, names, to); err != nil {
		return err
	}
	switch all := strings.Join(t.names.shared, ","); {
	case len(names) == 0 && (len(was.Yielded) > 0 || !t.ledger.opened):
		t.log.Info("pods are ours to place", "scheduler", all, "lease", t.names.lease.String())
	case len(names) > 0 && was.YieldedTo != tx.state.Settings.YieldedTo:
		t.log.Warn("pods are left to another scheduler", "scheduler", all, "why", tx.state.Settings.YieldedTo)
	}
	return nil
}

// errNoRoom is why a placement is taken back that was put aside.
var errNoRoom = errors.New("another scheduler has placed pods meanwhile")

// reassume judges assumed pods again, on the nodes that they are assumed on and without each other, and assumes them again: first
// those that fit, each before the next is judged. The others, for which it says why, keep their room only until their binds have been
// withdrawn. All of it is one transaction: nobody sees the room free meanwhile. An error means a broken ledger.
func (t *term) reassume(batch []*placement) error {
	return t.ledger.update(func(tx *tx) error { return t.reassumeIn(tx, batch) })
}

func (t *term) reassumeIn(tx *tx, batch []*placement) error {
	l := t.ledger
	type subject struct {
		*placement
		id      cluster.PodID
		node    cluster.NodeIndex
		attempt int32
		volumes []cluster.VolumeChoice
	}
	// 1. Take them off their nodes.
	var judged []subject
	for _, p := range batch {
		id, ok := l.assumed(p.binding())
		switch {
		case p.absent:
			continue // it is on no node, and is withdrawn
		case !ok:
			p.misfit = nil // what became of it has been told in this moment, and is seen where it is bound
			continue
		case l.state.Pod(id).Node == cluster.NoNode:
			p.misfit = errNoRoom // the node is gone: the pod stays assumed there
			continue
		}
		row := l.state.Pod(id)
		judged = append(judged, subject{p, id, row.Node, max(row.Attempt, 1), l.state.Chosen(id)})
		if err := tx.apply(cluster.PodForgotten{ID: id, Reason: errNoRoom.Error()}); err != nil {
			return err
		}
		if err := l.fold.Nominate(id, ""); err != nil { // it may be told where it is to go: the others are judged without it
			return err
		}
	}
	// 2. Judge them. What plugins have chosen for a pod may be another's since.
	var misfits []subject
	for _, p := range judged {
		row := l.state.Pod(p.id)
		fits := false
		if p.unfit || len(p.annotations) > 0 || row.Deleting || len(row.Gates) > 0 || !t.judge(row, func() {
			placer := engine.NewPlacer(t.evaluator, l.state, l.state.Version().Seq, nil)
			fits = placer.PlaceOn(engine.SubjectOf(&row.Pod), p.id, p.node) == engine.Placed
		}) || !fits {
			p.misfit = errNoRoom
			misfits = append(misfits, p)
			continue
		}
		p.misfit = nil
		if err := tx.apply(cluster.PodAssumed{ID: p.id, Node: p.node, Attempt: p.attempt, Volumes: p.volumes}); err != nil {
			return err
		}
	}
	// 3. Their binds may still happen.
	for _, p := range misfits {
		if err := tx.apply(cluster.PodAssumed{ID: p.id, Node: p.node, Attempt: p.attempt, Volumes: p.volumes}); err != nil {
			return err
		}
	}
	return nil
}

// judgeAside settles placements that were put aside and of which the source has told what became of them. In a stint, it judges the
// others again: those that still fit are bound, the others withdrawn. An error means a broken ledger.
func (t *term) judgeAside(ctx context.Context) error {
	aside := t.names.takeAside()
	if len(aside) == 0 {
		return nil
	}
	stint, _ := t.names.now()
	var open []*placement
	for i, told := range t.ledger.told(aside) {
		p := aside[i]
		if told == source.BindUnknown {
			open = append(open, p)
			continue
		}
		if err := t.settle(p, source.Outcome{Result: told, Err: errTold}); err != nil {
			return err
		}
	}
	if stint == 0 {
		t.names.mu.Lock()
		t.names.aside = append(t.names.aside, open...)
		t.names.mu.Unlock()
		return nil
	}
	if err := t.reassume(open); err != nil {
		return err
	}
	for _, p := range open {
		p.stint = stint
		p.failed, p.failing = 0, time.Time{} // the stint before may have been long ago
		next := stateRecorded
		if p.misfit != nil {
			next = stateWithdrawing
		} else if prep := p.preparation; prep != nil { // what was found of its claims in the stint before may be so no more
			prep.void, prep.done, prep.failed, prep.tries = nil, false, false, 0
		}
		if !t.move(p, next) || t.prepares(p) {
			continue
		}
		select {
		case t.binds <- p:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// callFor returns the context of a call that binds, and what to call when it has returned. With shared names, which were judged in a
// stint, it ends with that, and not with the term but some time later, unless another binder may have been elected. One that is cut off, with
// ctx alone, ends at once. 0: without.
func (t *term) callFor(ctx context.Context, stint int64) (context.Context, context.CancelFunc) {
	if stint == 0 {
		return ctx, func() {}
	}
	now, until := t.names.now()
	if now != stint {
		until = time.Time{} // it has ended
	}
	call, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-t.lease:
			cancel()
			return
		default:
		}
		select {
		case <-t.done:
			time.AfterFunc(lastWord, cancel)
		default:
			cancel()
		}
	})
	return call, func() {
		stop()
		cancel()
	}
}

// leaveNames gives the lease up at the end of a term, when nothing is under way any more: not if another binder may have been elected
// or stands by, which has the same name towards others, and not if a bind may still arrive.
func (t *term) leaveNames(ctx context.Context, contested func(context.Context) (bool, error)) {
	n := t.names
	if len(n.shared) == 0 {
		return
	}
	n.mu.Lock()
	holds, open := n.held(), n.open
	n.mu.Unlock()
	select {
	case <-t.lease:
		return
	default:
	}
	if !holds {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
	defer cancel()
	if other, err := contested(ctx); err != nil || other {
		return
	}
	if open > 0 {
		t.log.Warn("lease not given up, it will run out: binds have no answer", "lease", n.lease.String(), "pods", open)
		return
	}
	if err := n.lease.Release(ctx, n.holder); err != nil {
		t.log.Warn("lease not given up, it will run out", "lease", n.lease.String(), "err", err)
		return
	}
	t.log.Info("lease given up", "lease", n.lease.String())
}

// sleepOrWake reports false when ctx ends first.
func sleepOrWake(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-timer.C:
	}
	return true
}
