package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

const (
	// defaultBindTimeout is kube-scheduler's default of VolumeBinding's bindTimeoutSeconds.
	defaultBindTimeout = 10 * time.Minute
	// preparedEvery is how often it is looked what has become of the claims of placements, if anything has been told of volumes, and
	// preparedAnyway how often otherwise: nodes may have changed, and time is up for some.
	preparedEvery  = 100 * time.Millisecond
	preparedAnyway = time.Second
	// stuckPart is which part of its time a placement waits until it counts as stuck: of ten minutes, 30 s.
	stuckPart = 20
	// preparedAtOnce bounds of how many claims it is looked under the ledger's lock at once.
	preparedAtOnce = 1024
)

// preparing are the placements between record and bind: what has been chosen for their claims is written to the source, and is waited for until it
// is bound. They do not count as unbound, for that may take minutes, but against a bound of their own, from the commit on.
type preparing struct {
	bound *bound                     // by namespace and StorageClass; as many as may be unbound
	turns *turns[string, *placement] // those that are to be written, by namespace

	mu      sync.Mutex
	waiting []*placement          // those that are written
	of      map[string]*placement // by the pod's uid: those that hold their claims
	claims  map[heldClaim]*held
	volumes map[string]heldClaim // by volume: the claim that it is chosen for
}

// heldClaim is a claim of which something has been chosen.
type heldClaim struct{ namespace, name, uid string }

// held is what has been chosen for a claim, of as many placements.
type held struct {
	volume, node string
	placements   int
}

// preparation is how far a placement is with its claims. It belongs to who has the placement.
type preparation struct {
	scheduler string // the pod's scheduler name, "" if it is not known
	timeout   time.Duration
	deadline  time.Time // of the wait, from when all is written
	share     string    // of preparing.bound: whose it counts as
	counted   bool      // against preparing.bound
	since     time.Time // when it was first counted
	stuck     bool      // as long as it counts, it does so as stuck
	holds     bool      // it is in preparing.claims: from its commit, or its takeover, to its end
	// doubt: a write may be under way of which nothing is known, of this binder or of an earlier one. Nothing is given back as long as that is so:
	// the claim might get what has been chosen before, and what is chosen then.
	doubt   bool
	written bool      // all is written, and the source has told so
	done    bool      // all is bound
	failed  bool      // volumes were to be provisioned for its node, and a provisioner has said that it cannot
	tries   int       // writes of which nothing is known
	failing time.Time // when the first of these began
	void    error     // why nothing is carried out: a write that may be under way is to come to nothing; nil: it is carried out
	// expected: it has been told which node the pod is to go to, and troubled: why that takes long.
	expected, troubled bool

	// These are preparing.mu's.
	past     bool          // a bind of it may have been sent, or is about to be
	ready    bool          // its claims are bound, and its bind is about to be sent
	canceled bool          // the pod is preempted
	over     chan struct{} // closed when it has come to an end
}

// preBindError is why an attempt ends of which the claims are not bound. Its text is kube-scheduler's.
type preBindError struct{ err error }

func (e preBindError) Error() string {
	return `running PreBind plugin "` + engine.JudgeOf(engine.BoundVolumes) + `": ` + e.err.Error()
}
func (e preBindError) Unwrap() error { return e.err }

func newPreparing(limit, workers int) *preparing {
	return &preparing{
		bound: &bound{limit: limit}, turns: newTurns[*placement](workers),
		of: make(map[string]*placement), claims: make(map[heldClaim]*held), volumes: make(map[string]heldClaim),
	}
}

// admits reports whether something can be chosen for a pod's claims: no placement that is not done with them has something else. The ledger
// knows that of pods that are there; of those that are gone, a write may still be under way.
func (b *preparing) admits(namespace, node string, choices []cluster.VolumeChoice) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !slices.ContainsFunc(choices, func(c cluster.VolumeChoice) bool { return !b.may(heldClaim{namespace, c.Claim, c.UID}, c.Volume, node) })
}

// free is admits of one volume for one claim.
func (b *preparing) free(claim *cluster.PersistentVolumeClaim, volume string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.may(heldClaim{claim.Namespace, claim.Name, claim.UID}, volume, "")
}

// may reports whether neither something else is held for a claim, nor the volume for another one. The node counts if there is no volume. The caller
// holds the lock.
func (b *preparing) may(claim heldClaim, volume, node string) bool {
	if h := b.claims[claim]; h != nil && (h.volume != volume || volume == "" && h.node != node) {
		return false
	}
	by, taken := b.volumes[volume] // never of ""
	return !taken || by == claim
}

// hold has nothing else be chosen for a placement's claims. What others hold already stays as it is.
func (b *preparing) hold(p *placement) {
	if p.preparation.holds {
		return
	}
	p.preparation.holds = true
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of[p.UID] = p
	p.preparation.past, p.preparation.over = p.tries > 0, make(chan struct{})
	for _, c := range p.Volumes {
		key := heldClaim{p.Namespace, c.Claim, c.UID}
		h := b.claims[key]
		if h == nil {
			h = &held{volume: c.Volume, node: p.Node}
			b.claims[key] = h
			if _, taken := b.volumes[c.Volume]; c.Volume != "" && !taken {
				b.volumes[c.Volume] = key
			}
		}
		h.placements++
	}
}

// release ends hold.
func (b *preparing) release(p *placement) {
	if p.preparation == nil || !p.preparation.holds {
		return
	}
	p.preparation.holds = false
	b.mu.Lock()
	defer b.mu.Unlock()
	close(p.preparation.over)
	if b.of[p.UID] == p {
		delete(b.of, p.UID)
	}
	for _, c := range p.Volumes {
		key := heldClaim{p.Namespace, c.Claim, c.UID}
		h := b.claims[key]
		if h.placements--; h.placements > 0 {
			continue
		}
		delete(b.claims, key)
		if b.volumes[h.volume] == key {
			delete(b.volumes, h.volume)
		}
	}
}

// cancel makes an end of a placement whose pod is preempted, if no bind of it can have been sent: its pod is not deleted then, but tried again, as
// kube-scheduler cancels PreBind. It returns what is closed when that is done. Nil: it is too late, or there is none.
func (b *preparing) cancel(uid, node string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.of[uid]
	if p == nil || p.Node != node || p.preparation.past {
		return nil
	}
	p.preparation.canceled = true
	return p.preparation.over
}

// spare takes cancel back, if nothing has been done about it.
func (b *preparing) spare(uid, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.of[uid]; p != nil && p.Node == node {
		p.preparation.canceled = false
	}
}

// isCanceled reports whether a placement has been canceled.
func (b *preparing) isCanceled(p *placement) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return p.preparation.canceled
}

// passes reports whether a placement goes on to be bound; it can be canceled no more then. False: it has been.
func (b *preparing) passes(p *placement) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.preparation.ready = !p.preparation.canceled
	p.preparation.past = p.preparation.ready
	return p.preparation.ready
}

// begin says of a placement that its claims are not bound, be it again.
func (b *preparing) begin(p *placement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.preparation.ready = false
}

// waits reports whether a report is of a pod that still waits for its claims, if it says that it does. One that is about to be bound is told nothing
// of that any more: the write would only change the version of the pod that its bind names.
func (b *preparing) waits(r source.Report) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.of[r.UID]
	return !r.Assumed || p != nil && !p.preparation.ready
}

// await has a placement wait for its claims to be bound.
func (b *preparing) await(p *placement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, p)
}

// take takes all that wait.
func (b *preparing) take() []*placement {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting := b.waiting
	b.waiting = nil
	return waiting
}

// volumeBinding returns what a source is asked to write for a placement's claims.
func (p *placement) volumeBinding() source.VolumeBinding {
	return source.VolumeBinding{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Node: p.Node, Choices: p.Volumes, Written: p.preparation.written, Void: p.preparation.void != nil}
}

// bindTimeoutOf returns how long pods of a scheduler name wait for their claims.
func (t *term) bindTimeoutOf(schedulerName string) time.Duration {
	if timeout, said := t.bindTimeouts[schedulerName]; said {
		return timeout
	}
	return defaultBindTimeout
}

// chooseVolumes returns what the claims of a pod get on the node that it is placed on. The caller holds the ledger's lock.
func (t *term) chooseVolumes(row *cluster.PodRow, node cluster.NodeIndex) ([]cluster.VolumeChoice, engine.Placement) {
	st := t.ledger.state
	if set := st.Labels(row.Labels); set == nil || len(set.Claims) == 0 {
		return nil, engine.Placed
	}
	subject := engine.SubjectOf(&row.Pod)
	volumes, ok := t.evaluator.ChooseVolumes(st, subject, node, nil)
	if ok && !t.preparing.admits(row.Namespace, st.Nodes.Spec[node].Name, volumes) { // what is held by claims of pods that are gone is nobody's in the ledger
		if others, found := t.evaluator.ChooseVolumes(st, subject, node, t.preparing.free); found {
			volumes = others
		}
	}
	if !ok || (&placement{choice: choice{Volumes: volumes}}).size() > batchBytes { // of more claims than a source tells of a pod
		return nil, engine.NoFit
	}
	return volumes, engine.Placed
}

// reserve counts a pod that is to be placed against the bound of those of which claims are to be bound. Nil: there are as many as may be, or a
// write of something else for one of its claims may still be under way. The caller holds the ledger's lock.
func (t *term) reserve(row *cluster.PodRow, node cluster.NodeIndex, volumes []cluster.VolumeChoice) *preparation {
	st := t.ledger.state
	share := t.shareOf(row.Namespace)
	if k := slices.IndexFunc(volumes, func(c cluster.VolumeChoice) bool { return c.Volume == "" }); k >= 0 && share != "" {
		share += "/" + st.PersistentVolumeClaim(row.Namespace, volumes[k].Claim).Class // whose provisioner may be dead, and that of others is not
	}
	if !t.preparing.admits(row.Namespace, st.Nodes.Spec[node].Name, volumes) || !t.preparing.bound.takeOf(map[string]int{share: 1}) {
		return nil
	}
	scheduler := st.Class(row.Class).Spec.SchedulerName
	return &preparation{scheduler: scheduler, timeout: t.bindTimeoutOf(scheduler), share: share, counted: true, since: time.Now()}
}

// prepares takes a recorded placement of which claims are to be bound first, or for which plugin services have something to do. False: there is nothing.
func (t *term) prepares(p *placement) bool {
	prep := p.preparation
	if prep == nil || prep.done || p.state != stateRecorded {
		return t.preBinds(p)
	}
	if !t.move(p, statePreparing) {
		return true // it has another owner
	}
	t.count(p)
	t.preparing.begin(p)
	t.preparing.turns.add(p.Namespace, p)
	return true
}

// count counts a placement among those that are prepared, if it is not: it was taken over, or put aside.
func (t *term) count(p *placement) {
	prep := p.preparation
	if prep.counted {
		return
	}
	prep.counted = true
	if prep.share == "" {
		prep.share = t.shareOf(p.Namespace)
	}
	if prep.since.IsZero() {
		prep.since = time.Now()
	}
	t.preparing.bound.giveOf(prep.share, -1)
}

// uncount says that a placement is not among those that are prepared any more. It holds its claims until it has come to an end.
func (t *term) uncount(p *placement) {
	prep := p.preparation
	if !prep.counted {
		return
	}
	prep.counted = false
	if prep.stuck {
		prep.stuck = false
		t.preparing.bound.addStuck(-1)
	}
	t.preparing.bound.giveOf(prep.share, 1)
}

// noteOverdue says of a placement that has been prepared for long that others do not give way to it: a provisioner that never answers would have
// all there is room for wait for it, of whatever class they are.
func (t *term) noteOverdue(p *placement, now time.Time) {
	if prep := p.preparation; prep.counted && !prep.stuck && now.Sub(prep.since) >= prep.timeout/stuckPart {
		prep.stuck = true
		t.preparing.bound.addStuck(1)
	}
}

// doubts notes whether a write for a placement's claims may be under way of which nothing is known. As with binds, the lease of a shared name is not
// given up meanwhile.
func (t *term) doubts(p *placement, is bool) {
	if p.preparation.doubt == is {
		return
	}
	if p.preparation.doubt = is; p.shared {
		t.names.count(map[bool]int{true: 1, false: -1}[is])
	}
}

// prepareLane writes what has been chosen for claims. Any number may run. An error ends the term.
func (t *term) prepareLane(ctx context.Context) error {
	return work(ctx, t.preparing.turns, t.preparing.turns.next, t.prepare)
}

// prepare writes what has been chosen for a placement's claims, once; or, of one that does not come about, and of which a write may be under way, makes
// sure that it does not happen any more.
func (t *term) prepare(ctx context.Context, p *placement) error {
	prep := p.preparation
	// 1. Is it still to be carried out?
	told := t.ledger.told([]*placement{p})[0]
	if told == source.BindDone && prep.doubt && t.ledger.claimsBound(p) {
		t.doubts(p, false)
	}
	switch {
	case told != source.BindUnknown && !prep.doubt:
		t.uncount(p)
		return t.settle(p, source.Outcome{Result: told, Err: errTold})
	case told != source.BindUnknown:
		prep.void = errTold
	case p.misfit != nil && prep.void == nil:
		prep.void = p.misfit
	}
	// 2. By whom?
	stint, again := int64(0), false
	if p.shared {
		stint, _ = t.names.now()
		again = stint != p.stint
		switch {
		case stint == 0 && prep.doubt: // nothing is written for another scheduler's pod, and nothing given back
			t.uncount(p)
			t.prepareAgain(ctx, p, bindBackoff.last)
			return nil
		case again && !prep.doubt: // it is to be judged again
			t.putAside(p)
			return nil
		}
		t.count(p)
	}
	if t.ended() { // the lease may have expired: they are the next binder's, by their intents
		return nil
	}
	if prep.void == nil && t.preparing.isCanceled(p) {
		if !prep.doubt {
			return t.giveUp(ctx, p, errCanceled)
		}
		prep.void = errCanceled
	}
	// 3. Write; or, of one that was judged in another stint, make sure that nothing is written before it is judged again.
	before, b := prep.doubt, p.volumeBinding()
	b.Void = b.Void || again
	t.doubts(p, true)
	call, done := t.callFor(source.WithEnd(ctx, t.ended), stint)
	o := t.source.BindVolumes(call, t.fence, b)
	done()
	if o.Result == source.BindDone || o.Result != source.BindUnknown && !before { // a refusal is of this try, and not of the one before
		t.doubts(p, false)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case o.Result == source.BindUnknown:
		t.notWritten(p, o.Err)
		t.prepareAgain(ctx, p, bindBackoff.after(prep.tries))
		return nil
	case errors.Is(o.Err, coord.ErrFenced):
		return o.Err
	}
	// 4. What follows?
	prep.tries = 0
	switch {
	case prep.doubt:
		if prep.void == nil && !again {
			prep.void = o.Err
		}
		t.prepareAgain(ctx, p, bindBackoff.first)
		return nil
	case prep.void != nil && told != source.BindUnknown:
		t.uncount(p)
		return t.settle(p, source.Outcome{Result: told, Err: errTold})
	case prep.void != nil:
		return t.giveUp(ctx, p, prep.void)
	case again:
		t.putAside(p)
		return nil
	case o.Result != source.BindDone && !prep.written:
		return t.giveUp(ctx, p, o.Err)
	case o.Result != source.BindDone: // the ledger knows why: it is as new
		is := t.lookAt([]*placement{p})[0]
		if is.err == nil {
			return t.giveUp(ctx, p, o.Err)
		}
		return t.giveUp(ctx, p, bindingVolumes(is.err))
	}
	if !prep.written {
		prep.written, prep.deadline = true, time.Now().Add(prep.timeout)
	}
	return t.goOn(ctx, p, t.lookAt([]*placement{p})[0], time.Now())
}

// notWritten notes that a write for a placement's claims has failed, and tells so if that goes on: unlike kube-scheduler's attempt, which ends then,
// it keeps its room, as the write may still happen.
func (t *term) notWritten(p *placement, err error) {
	prep := p.preparation
	now := time.Now()
	if prep.tries++; prep.tries == 1 {
		prep.failing = now
	}
	again := prep.tries&(prep.tries-1) == 0
	if again {
		t.log.Warn("claims not written, trying again", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "err", err, p.attempt.Log())
	}
	if now.Sub(prep.failing) < giveBackAfter || prep.troubled && !again || p.absent {
		return
	}
	report := refusal(p, preBindError{err})
	report.Nominate, report.Nominated, report.Assumed = prep.void == nil && !t.preparing.isCanceled(p), p.Node, true
	prep.troubled = t.reports.add(report)
	prep.expected = prep.expected && report.Nominate // else it is to be told again, if it is spared
}

// expect tells which node a pod is to go to whose claims are not bound at once: as kube-scheduler does before PreBind
// (NominatedNodeNameForExpectation), for whoever else makes room, or takes it.
func (t *term) expect(p *placement) {
	prep := p.preparation
	if prep.expected || prep.void != nil || p.absent || t.preparing.isCanceled(p) {
		return
	}
	prep.expected = t.reports.add(source.Report{
		UID: p.UID, Namespace: p.Namespace, Name: p.Name, Nominate: true, Nominated: p.Node, Assumed: true,
	})
}

// prepareAgain has a placement's claims be written after a delay.
func (t *term) prepareAgain(ctx context.Context, p *placement, delay time.Duration) {
	t.noteOverdue(p, time.Now())
	t.expect(p)
	t.spawn(func() error {
		if sleep(ctx, delay) {
			t.preparing.turns.add(p.Namespace, p)
		}
		return nil
	})
}

// putAside keeps a placement whose scheduler name another has, or had.
func (t *term) putAside(p *placement) {
	t.uncount(p)
	prep := p.preparation
	prep.since, prep.expected, prep.troubled = time.Time{}, false, false // what is reported meanwhile may not be written
	if t.move(p, stateAside) {
		t.names.putAside(p)
	}
}

// giveUp gives a placement back whose claims will not be bound: nothing of what was chosen for them is under way. As in kube-scheduler, what has been
// written stays: the claims get the volumes that are kept for them.
func (t *term) giveUp(ctx context.Context, p *placement, why error) error {
	t.uncount(p)
	if p.misfit == nil {
		t.metrics.volumeErrors.WithLabelValues(stageBind).Inc()
		p.preparation.failed = errors.Is(why, engine.ErrNotProvisioned)
		why = preBindError{why}
	}
	if p.tries == 0 { // no bind was sent
		return t.settle(p, source.Outcome{Result: source.BindRefused, Err: why})
	}
	if t.move(p, stateWithdrawing) {
		p.misfit = why
		t.after(ctx, 0, []*placement{p})
	}
	return nil
}

// strike ends a placement that did not come about, though nothing is to be given back: its intent leaves the record before its claims may be promised
// something else. A binder that found it there could not know whether a write for them is under way.
func (t *term) strike(p *placement, result source.Result) error {
	if !t.move(p, stateReleasing) {
		return nil
	}
	return t.recorder.takeBack(p, func() error {
		t.leaves(p)
		t.metrics.binds.WithLabelValues(resultName(result)).Inc()
		t.move(p, stateReleased)
		t.tellReleased(p)
		return nil
	})
}

// preparedness is what the ledger says of a placement's claims.
type preparedness struct {
	told  source.Result // of the pod
	bound bool          // all claims are
	err   error         // they will not be
}

// lookAt returns what the ledger says of the claims of placements, in order.
func (t *term) lookAt(batch []*placement) []preparedness {
	out := make([]preparedness, len(batch))
	for k, told := range t.ledger.told(batch) {
		out[k].told = told
	}
	t.ledger.read(func(st *cluster.State) {
		for k, p := range batch {
			out[k].bound, out[k].err = engine.VolumesBound(st, p.Namespace, p.Node, p.Volumes)
		}
	})
	return out
}

// errTimeUp is why a placement is given back of which the claims were not bound in time.
var errTimeUp = bindingVolumes(context.DeadlineExceeded)

// errCanceled is why a placement is given back whose pod is preempted.
var errCanceled = bindingVolumes(context.Canceled)

func bindingVolumes(err error) error { return fmt.Errorf("binding volumes: %w", err) }

// goOn does what is next for a placement that is written.
func (t *term) goOn(ctx context.Context, p *placement, is preparedness, now time.Time) error {
	switch {
	case is.told != source.BindUnknown:
		t.uncount(p)
		return t.settle(p, source.Outcome{Result: is.told, Err: errTold})
	case p.shared && !t.names.lasts(p.stint):
		t.putAside(p)
		return nil
	case t.preparing.isCanceled(p):
		return t.giveUp(ctx, p, errCanceled)
	case is.err != nil:
		return t.giveUp(ctx, p, bindingVolumes(is.err))
	case is.bound && t.preparing.passes(p):
		t.uncount(p)
		p.preparation.done = true
		if t.move(p, stateRecorded) && !t.preBinds(p) {
			t.after(ctx, 0, []*placement{p})
		}
		return nil
	case !now.Before(p.preparation.deadline):
		return t.giveUp(ctx, p, errTimeUp)
	}
	t.noteOverdue(p, now)
	t.expect(p)
	t.preparing.await(p)
	return nil
}

// preparedLane lets placements go on whose claims are bound, or will not be. An error ends the term.
func (t *term) preparedLane(ctx context.Context) error {
	var seen cluster.Seq
	var looked time.Time
	return every(ctx, preparedEvery, func(now time.Time) error {
		var modified cluster.Seq
		t.ledger.read(func(st *cluster.State) { modified = st.VolumesModified() })
		if modified == seen && now.Sub(looked) < preparedAnyway {
			return nil
		}
		seen, looked = modified, now
		for rest := t.preparing.take(); len(rest) > 0; {
			n := leading(rest, preparedAtOnce)
			for k, is := range t.lookAt(rest[:n]) {
				if err := t.goOn(ctx, rest[k], is, now); err != nil {
					return err
				}
			}
			rest = rest[n:]
		}
		return nil
	})
}

// leading returns how many placements there are at the beginning of a list that is not empty which have at most so many claims, and at least one.
func leading(list []*placement, claims int) int {
	n := 1
	for claims -= len(list[0].Volumes); n < len(list) && len(list[n].Volumes) <= claims; n++ {
		claims -= len(list[n].Volumes)
	}
	return n
}
