package binder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/source"
)

// A bind that has failed for giveBackAfter, and so many times, or for twice as long, and hangingTries times, is withdrawn, and the pod goes
// back to its shard with what was the matter: an admission webhook, say, that fails for ever for one namespace holds up no other. While a namespace is in
// trouble, and for troubleLasts, binds of its pods are withdrawn as soon as they fail, so that they hold room and their share
// of Config.MaxUnbound for no longer than that takes.
const (
	giveBackAfter = 5 * time.Second
	giveBackTries = 4
	hangingTries  = 2
	// changedTries is how many tries may find that the pod has changed meanwhile before that counts as a failure, too.
	changedTries = 10
)

// givesBack reports whether a bind that began at a time and failed is to be withdrawn.
func (t *term) givesBack(p *placement, began time.Time, err error) bool {
	if t.source.Fenced() {
		return false // only etcd can be in the way, and if it stays there the term ends
	}
	if errors.Is(err, source.ErrChanged) && p.changed < changedTries {
		p.changed++
		return false
	}
	if p.failing.IsZero() {
		p.failing = began
	}
	p.failed++
	long := time.Since(p.failing)
	return t.troubles.has(p.with(), began) || p.failed >= giveBackTries && long >= giveBackAfter || p.failed >= hangingTries && long >= 2*giveBackAfter
}

// doubtful reports whether an earlier try of a bind that was refused may still happen.
func (t *term) doubtful(p *placement, o source.Outcome) bool {
	return p.tries > 0 && !t.source.Fenced() && !errors.Is(o.Err, coord.ErrFenced)
}

// withdraw makes an end of a placement that is withdrawing, if it can, by calls that end with a context of theirs.
func (t *term) withdraw(ctx, calls context.Context, p *placement, why error) error {
	stint := int64(0)
	if p.shared {
		stint = p.stint
	}
	report := refusal(p, why)
	report.Nominate = t.ledger.ours(p.UID) // else the nomination is another scheduler's
	call, done := t.callFor(calls, stint)
	o := t.source.Withdraw(call, t.fence, p.binding(), report)
	done()
	switch {
	case ctx.Err() != nil:
		return nil
	case o.Result == source.BindUnknown:
		if p.says() {
			t.log.Warn("bind not withdrawn, trying again", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "err", errors.Join(why, o.Err), p.attempt.Log())
		}
		t.fails(p.with())
		t.metrics.binds.WithLabelValues(resultName(o.Result)).Inc()
		t.again(ctx, []*placement{p})
		return nil
	case o.Result == source.BindRefused:
		if p.misfit == nil && p.binders == 0 { // an extender is asked again for as long as is promised
			t.troubles.note(p.Namespace, time.Now())
		}
		o.Err = why
	}
	return t.settle(p, o)
}

// maxReason bounds what is told of a refusal, in bytes: the text may be anybody's.
const maxReason = 1 << 10

// refusal returns what is told of a bind that was refused.
func refusal(p *placement, why error) source.Report {
	text := fmt.Sprintf("binding to %s was refused: %v", p.Node, why)
	var before preBindError
	if errors.As(why, &before) { // nothing was bound
		text = before.Error()
	}
	var step stepError
	reason := reasonError
	if errors.As(why, &step) {
		reason, text = step.reason, step.text
	}
	if len(text) > maxReason {
		text = text[:maxReason] + "…"
	}
	return source.Report{
		UID: p.UID, Namespace: p.Namespace, Name: p.Name, Reason: reason, Message: strings.ToValidUTF8(text, "?"), Nominate: true,
	}
}

// errTold stands in for the answer of a bind that was not sent.
var errTold = errors.New("told by the watch")

// settle tells the ledger, the recorder and the event lane the outcome of a placement. An error ends the term.
func (t *term) settle(p *placement, o source.Outcome) error {
	if errors.Is(o.Err, coord.ErrFenced) {
		t.metrics.fenced.Inc()
		return fmt.Errorf("bind %s/%s to %s: %w", p.Namespace, p.Name, p.Node, o.Err) // the intent is the next binder's
	}
	switch o.Result {
	case source.BindDone:
		err := t.ledger.bound(p.binding())
		binding, attempt := p.binding(), p.attempt
		others := p.tries == 0 && (p.preparation != nil && !p.preparation.done || p.state == statePermitting || p.state == statePreBinding) // it was their bind: none of this one's was sent
		if t.decided(p, stateBound, o.Result) && !others {
			t.events.add(p.Namespace, func(ctx context.Context) error { return t.source.Scheduled(attempt.Context(ctx), binding) })
		}
		return err
	case source.BindElsewhere:
		if p.preparation != nil {
			t.log.Warn("pod bound elsewhere", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "err", o.Err, p.attempt.Log())
			return t.strike(p, o.Result)
		}
		// Where it is, and that it is not here, comes from the source's watch: until then it counts here.
		t.log.Warn("pod bound elsewhere", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "err", o.Err, p.attempt.Log())
		t.decided(p, stateReleased, o.Result)
		return nil
	case source.BindGone:
		if errors.Is(o.Err, errTold) && p.preparation != nil {
			return t.strike(p, o.Result)
		}
		if errors.Is(o.Err, errTold) { // then its room has been given back, and no other binder finds the pod waiting
			t.decided(p, stateReleased, o.Result)
			return nil
		}
		return t.takeBack(p, o.Result, "the pod is gone", nil)
	default:
		refused := refusal(p, o.Err)
		if log := logs.V(t.log, logs.Failures); log != nil {
			log.Info("Failed to bind pod", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "err", refused.Message, p.attempt.Log())
		}
		return t.takeBack(p, o.Result, refused.Message, &refused)
	}
}

// decided ends a placement that has an outcome which the source shows. False: it was not there to be ended.
func (t *term) decided(p *placement, end placementState, result source.Result) bool {
	if !t.move(p, end) {
		return false
	}
	t.metrics.binds.WithLabelValues(resultName(result)).Inc()
	t.recorder.decided(p)
	t.leaves(p)
	if end == stateBound {
		if log := logs.V(t.log, logs.Outcomes); log != nil {
			log.Info("Successfully bound pod to node", "pod", p.Namespace+"/"+p.Name, "node", p.Node, p.attempt.Log())
		}
		t.tellBound(p)
	} else {
		t.tellReleased(p)
	}
	return true
}

// takeBack gives the room of a placement back that does not come about, and then reports why. Before that its intent leaves the
// record: another binder that found it there would take it for one that may have happened, and take the room again, which
// another pod may have by then. So it is with what plugin services have reserved, and chosen: they take it back when nobody finds the intent any more, and before the room is another's.
// But where they may be binding the pod themselves, the intent stays until they have: only then is it known that the pod is not bound. Of such a pod nothing is chosen.
func (t *term) takeBack(p *placement, result source.Result, reason string, report *source.Report) error {
	release := func(then func() error) error {
		if !t.move(p, stateReleasing) {
			return nil
		}
		if p.progress != nil {
			t.noteStuck(p) // until plugin services have said that they have taken it back, it may take long
		}
		return t.recorder.takeBack(p, then)
	}
	giveBack := func() error { return t.giveBack(p, result, reason, report) }
	if p.progress == nil {
		return release(giveBack)
	}
	if !t.mayBeBinding(p) {
		return release(func() error {
			t.stepping.fall(p)
			t.unreserve(p, func(context.Context, bool) error { return giveBack() })
			return nil
		})
	}
	t.stepping.fall(p)
	t.noteStuck(p)
	t.unreserve(p, func(ctx context.Context, confirmed bool) error {
		done := func() error { return t.boundOr(p, func() error { return release(giveBack) }) }
		if confirmed {
			return done()
		}
		t.spawn(func() error { return t.later(ctx, endsWithin, done) }) // they end soon
		return nil
	})
	return nil
}

// giveBack gives the room of a placement back that is releasing, and of which nobody finds an intent any more.
func (t *term) giveBack(p *placement, result source.Result, reason string, report *source.Report) error {
	var err error
	if !p.absent { // it was not assumed: if the pod is, that is by a later commit
		var nominated string
		if nominated, err = t.forget(p, reason); report != nil {
			report.Nominated = nominated
		}
	}
	if report != nil && !t.reports.add(*report) {
		t.metrics.laneDropped.WithLabelValues(laneReports).Inc()
	}
	t.leaves(p)
	t.metrics.binds.WithLabelValues(resultName(result)).Inc()
	t.move(p, stateReleased)
	return err
}

// leaves says that a placement is not any more: nothing of it counts, or is held.
func (t *term) leaves(p *placement) {
	if p.preparation != nil {
		t.uncount(p)
		t.preparing.release(p)
	}
	if p.progress != nil {
		t.uncountStep(p)
		t.stepping.end(p)
	}
}

// forget returns the node that the pod is nominated to then.
func (t *term) forget(p *placement, reason string) (string, error) {
	was, nominated, err := t.ledger.forget(p.binding(), reason, func(id cluster.PodID) string {
		if p.preparation == nil || !p.preparation.failed {
			return ""
		}
		t.ledger.noteUnprovided(p.UID, p.Node)
		return t.elsewhere(id)
	})
	if was {
		t.log.Warn("placement taken back", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "reason", reason, p.attempt.Log())
	}
	return nominated, err
}

func resultName(r source.Result) string {
	switch r {
	case source.BindDone:
		return "done"
	case source.BindElsewhere:
		return "elsewhere"
	case source.BindGone:
		return "gone"
	case source.BindRefused:
		return "refused"
	}
	return "unknown"
}
