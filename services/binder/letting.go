package binder

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/source"
)

// letting is a placement that plugin services are to note, and to let come about. It is their turn: nobody else is placed before that is known, as in kube-scheduler's scheduling cycle.
type letting struct {
	*placement
	await func() (pluginhost.Chosen, error)
	ahead bool // services may be asked about the next pod before it ends
	ctx   context.Context
	done  func()
}

// let has plugin services note where a pod goes that has just been placed; sent is the pod, if it has been read. Whoever calls it calls lets then.
func (t *term) let(p *placement, sent *corev1.Pod) *letting {
	ctx, done := t.within(context.Background()) // whoever asked may have gone
	pod := t.podOf(p)
	if sent != nil {
		pod = func(context.Context) (*corev1.Pod, error) { return sent, nil }
	}
	await, ahead := t.services().BeginReserve(ctx, cluster.Epoch(t.epoch), p.progress.told, pod)
	return &letting{p, await, ahead, ctx, done}
}

// lets waits until plugin services have noted a placement, and asks whether it may be. False: it may not, and is given back. An error ends the term.
func (t *term) lets(l *letting) (may bool, err error) {
	defer l.done()
	p, ctx, epoch := l.placement, l.ctx, cluster.Epoch(t.epoch)
	chosen, err := l.await()
	var wait *pluginhost.Wait
	if err == nil {
		p.chooses(chosen)
		err = p.mayAnnotate()
	}
	if err == nil {
		t.stepping.stands(p) // a service that is begun anew hears of it, while another one thinks
		wait, err = t.services().Permit(ctx, epoch, p.progress.told, t.stepping.signal)
	}
	switch {
	case t.ended(): // nobody knows of it
		return true, nil
	case err != nil:
		t.stepping.fall(p)
		t.services().Unreserve(ctx, p.progress.told)
		why := p.refusedStep(err)
		t.uncountStep(p)
		p.progress = nil // there is nothing to be taken back any more
		return false, t.settle(p, source.Outcome{Result: source.BindRefused, Err: why})
	case wait == nil:
		t.permitted(p)
		return true, nil
	}
	p.progress.wait, p.progress.waits = wait, t.stepping.now()
	if t.move(p, statePermitting) {
		t.stepping.enter(p)
		t.stepping.await(p)
	}
	return true, nil
}

// lets waits until it is known whether the pod of the turn that was placed last may be, before this one is placed. False: what has been found out about this one meanwhile was of a state that has not come about, for that pod may not be, or services have said that nodes have changed since; or the
// ledger is broken.
func (a *asked) lets() bool {
	l := a.turn.letting
	if l == nil {
		return true
	}
	a.turn.letting = nil
	may, err := a.term.lets(l)
	a.broken = cmp.Or(a.broken, err)
	a.mistaken = !may || a.judges != nil && a.judges.Heard()
	return !a.mistaken && err == nil
}

// lookNow is look, of the state as it comes about: that the pod fits nowhere is not said while it is not known whether the one before it may be.
func (a *asked) lookNow(nominated bool) (s sight, ok bool) {
	s, ok = a.look(nominated)
	if a.turn.letting != nil && a.resp.GetOutcome().GetResult() == binderv1.Outcome_RESULT_NO_FIT && !a.lets() && a.broken == nil {
		a.resp = nil
		a.mistaken = false
		s, ok = a.look(nominated)
	}
	return s, ok
}

// lettings returns how many pods have been placed of which it is not known yet whether they may be.
func (t *askTurn) lettings() int {
	if t.letting == nil {
		return 0
	}
	return 1
}
