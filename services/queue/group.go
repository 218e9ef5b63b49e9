package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

const (
	// groupWithin is how long the binder may take for the pods of a PodGroup each time that it is asked, its turn among other groups included: so long that one that comes to its end is rare.
	groupWithin = 10 * time.Minute
	// groupPatience is for how long others of a shard wait for the pods of a PodGroup.
	groupPatience = 100 * time.Millisecond
	// groupSearch is longer than the binder looks for places for the pods of a PodGroup, and for whom they could preempt, once it is their turn: a question that has been out for longer stands in line there, or has.
	groupSearch = 35 * time.Second
	// mostGivenUp bounds of how many groups it is remembered that they have been given up.
	mostGivenUp = 1000
)

// placing is the pods of a PodGroup that the binder has been asked to place. It finds their places itself, for where one goes depends on where the others do.
//
// Most take no longer than others; a few do, by orders of magnitude, and those behind them do not wait for that: they go on, but for other groups, which are tried again, in queue order, when this one
// is settled. So a shard asks about one group at a time, and its driver alone says what becomes of it.
type placing struct {
	c         *cycle
	asked     time.Time
	at        pending.InLine     // where its first pod stands, if others do not wait for it
	cancel    context.CancelFunc // ends the question
	given     bool               // it has been: the pods are to be tried again
	answered  chan struct{}      // closed when the binder has answered
	behind    []*cycle           // of other groups that have had their turn meanwhile
	outranked bool               // one of them comes first

	// Once it has answered:
	response *binderv1.PlaceGroupResponse
	took     time.Duration
	err      error
}

// waitBehind leaves the pods of the batch, which are those of a PodGroup, in flight until it is settled what becomes of another one. They are not tried, and it is not traced that they were: another attempt has their numbers.
func (c *cycle) waitBehind(p *placing) {
	p.behind = append(p.behind, c)
	p.outranked = c.leaveGroup().Outranks(p.at) || p.outranked
}

// placeGroup has the binder place the pods of the batch, which are those of a PodGroup that wait.
func (c *cycle) placeGroup(ctx context.Context) error {
	c.logGroup()
	p := c.askForGroup(ctx)
	timer := time.NewTimer(groupPatience)
	defer timer.Stop()
	select {
	case <-p.answered:
		return p.settle(ctx)
	case <-timer.C:
	}
	c.placing, p.at = p, c.leaveGroup()
	return nil
}

// yields returns when the question is to be given up as a more important group is behind it; zero: it is not to be. That is at once, but once until it is answered: else groups that fit nowhere could keep it from an answer for ever.
// After that it is when no search takes as long, and then twice as long: at the binder it stands in line by its own priority, and that may be for ever, while those behind it would have their turn.
func (p *placing) yields() time.Time {
	switch {
	case !p.outranked || p.given:
		return time.Time{}
	case p.c.gaveUp[*p.c.group] == 0:
		return p.asked
	}
	return p.asked.Add(groupSearch << min(p.c.gaveUp[*p.c.group]-1, 1))
}

// giveWay gives the question up if it is time that it yields.
func (p *placing) giveWay(now time.Time) {
	if at := p.yields(); at.IsZero() || now.Before(at) {
		return
	}
	if len(p.c.gaveUp) >= mostGivenUp { // their groups may be gone
		clear(p.c.gaveUp)
	}
	p.c.gaveUp[*p.c.group]++
	p.giveUp()
}

// giveUp ends the question: another group comes first, or nobody waits for the answer. Whatever the binder has done, the log tells.
func (p *placing) giveUp() {
	p.given = true
	p.cancel()
}

// leaveGroup leaves the pods in flight, and nobody waits for them any more. It returns where the first of them stands.
func (c *cycle) leaveGroup() (first pending.InLine) {
	c.aside = true
	c.progress++
	c.sh.with(func(q *pending.Queue, _ time.Time) {
		known := false
		for _, a := range c.attempts {
			if at, ok := q.Leave(a.Attempt); ok && !known {
				first, known = at, true
			}
		}
	})
	return first
}

// askForGroup asks the binder.
func (c *cycle) askForGroup(ctx context.Context) *placing {
	request := &binderv1.PlaceGroupRequest{
		Shard: c.sh.number, ShardRevision: c.sh.revision, Version: wire.ToVersion(c.least), Namespace: c.group.Namespace, Name: c.group.Name,
	}
	c.s.mu.Lock() // what the log tells of their binds is told both binding and the queue before this, or neither
	for _, a := range c.attempts {
		request.Pods = append(request.Pods, &binderv1.PodAttempt{Id: int32(a.ID), Uid: a.UID, Attempt: a.Number})
		c.s.binding.begin(a.ID, a.signature.profile, c.popped, a.traced)
	}
	c.s.mu.Unlock()
	start := time.Now()
	c.s.floors.works(c.sh.number, start.Add(stalled))
	ctx, cancel := context.WithCancel(ctx)
	p := &placing{c: c, asked: start, cancel: cancel, answered: make(chan struct{})}
	d := c.driver
	d.searches.Go(func() {
		defer close(p.answered)
		defer cancel()
		p.response, p.err = askBinderWithin(ctx, d, groupWithin, len(request.GetPods()), always, func(ctx context.Context, binder binderv1.BinderServiceClient) (*binderv1.PlaceGroupResponse, error) {
			return binder.PlaceGroup(ctx, request)
		})
		p.took = time.Since(start)
	})
	return p
}

// placed returns what is closed when the binder has answered about a group that others do not wait for; nil: there is none.
func (d *driver) placed() <-chan struct{} {
	if d.placing == nil {
		return nil
	}
	return d.placing.answered
}

// placingYields returns when such a group is to be given up if nothing else happens; zero: it is not to be.
func (d *driver) placingYields() time.Time {
	if d.placing == nil {
		return time.Time{}
	}
	return d.placing.yields()
}

// settlePlaced settles a group that others have not waited for, if the binder has answered, and has those behind it tried.
func (d *driver) settlePlaced(ctx context.Context) error {
	p := d.placing
	if p == nil {
		return nil
	}
	select {
	case <-p.answered:
	default:
		p.giveWay(time.Now())
		if !p.given && !p.waitedFor() {
			p.giveUp()
		}
		return nil
	}
	d.placing = nil
	err := p.settle(ctx)
	p.finish()
	return err
}

// waitedFor reports whether one of the pods is in flight still.
func (p *placing) waitedFor() (runs bool) {
	p.c.sh.peek(func(q *pending.Queue) {
		runs = slices.ContainsFunc(p.c.attempts, func(a *attempt) bool { return q.Runs(a.Attempt) })
	})
	return runs
}

// abandon ends what is remembered of a group of which it is not heard any more what becomes of it.
func (d *driver) abandon() {
	if p := d.placing; p != nil {
		d.placing = nil
		p.forget()
		p.finish()
	}
}

// finish ends the cycles of a group that others have not waited for, and of those behind it.
func (p *placing) finish() {
	p.c.finish()
	for _, c := range p.behind {
		c.sh.with(func(q *pending.Queue, now time.Time) {
			for _, a := range c.attempts {
				q.PutBack(now, a.Attempt)
			}
		})
	}
}

// forget ends what is measured of those pods that are not placed.
func (p *placing) forget() {
	for _, a := range p.c.attempts {
		if !a.placed {
			p.c.s.binding.end(a.ID, p.c.popped)
		}
	}
}

// settle gives every pod its outcome, once the binder has answered. An error means that the shard is lost or ctx has ended.
func (p *placing) settle(ctx context.Context) error {
	defer p.forget()
	c, err := p.c, p.err
	if err == nil || !p.given {
		delete(c.gaveUp, *c.group)
	}
	c.s.metrics.stage.WithLabelValues("group").Observe(p.took.Seconds())
	c.s.metrics.groupAlgorithm.Observe(p.took.Seconds())
	switch {
	case err == nil && len(p.response.GetPods()) != len(c.attempts):
		err = errNoOutcome
	case status.Code(err) == codes.Aborted:
		again(c.attempts, "aborted")
		return nil
	case err != nil && p.given && ctx.Err() == nil && !errors.Is(err, errShardLost):
		again(c.attempts, "group_outranked")
		return nil
	case errors.Is(err, errShardLost) || ctx.Err() != nil:
		return err
	}
	if err != nil {
		c.log.Error("binder refuses the PodGroup", "podGroup", c.group.String(), "pods", len(c.attempts), "err", err)
		c.groupDecided(resultError)
		c.fail(c.attempts, fmt.Sprintf("place group: %v", err))
		return nil
	}
	if result := groupResult(p.response); result != "" {
		c.groupDecided(result)
	}
	return c.settleGroup(ctx, c.attempts, p.response)
}

// settleGroup gives every pod of a PodGroup its outcome.
func (c *cycle) settleGroup(ctx context.Context, sent []*attempt, response *binderv1.PlaceGroupResponse) error {
	version := wire.Version(response.GetVersion())
	c.answered(version)
	var stuck, busy, postponed, failed []*attempt
	diagnoses := make(map[*attempt]pending.Diagnosis)
	why, busyWhy := "", ""
	for k, a := range sent {
		switch is := response.GetPods()[k]; is.GetOutcome().GetResult() {
		case binderv1.Outcome_RESULT_NO_FIT:
			d, err := groupDiagnosis(is, response.GetMessage(), version)
			if err != nil {
				c.fail([]*attempt{a}, fmt.Sprintf("place group: %v", err))
				continue
			}
			diagnoses[a], stuck = d, append(stuck, a)
		case binderv1.Outcome_RESULT_BUSY:
			busy, busyWhy = append(busy, a), cmp.Or(is.GetError(), busyMessage)
		case binderv1.Outcome_RESULT_RETRY:
			if is.GetError() != "" { // nothing is known against it, and those behind it do not wait
				postponed = append(postponed, a)
			}
		case binderv1.Outcome_RESULT_FAILED:
			failed, why = append(failed, a), is.GetError()
		}
	}
	c.sh.with(func(q *pending.Queue, now time.Time) {
		for k, a := range sent {
			switch response.GetPods()[k].GetOutcome().GetResult() {
			case binderv1.Outcome_RESULT_ASSUMED, binderv1.Outcome_RESULT_PLACED:
				c.progress++
				c.s.metrics.algorithm.Observe(time.Since(c.popped).Seconds())
				a.placed = q.Remembers(a.Attempt)
				fallthrough
			case binderv1.Outcome_RESULT_GONE:
				q.Await(now, a.Attempt, version, pending.Unresolved)
				a.open = false
			case binderv1.Outcome_RESULT_RETRY:
				a.again = "retry"
			}
		}
	})
	c.backOff(busy, busyWhy, false)
	c.postpone(postponed, "group_disturbed")
	c.fail(failed, why)
	return c.shelveGroup(ctx, stuck, postFilter{clear: !response.GetPreempts() && !response.GetWaits(), started: response.GetPreempts(), asked: true}, func(a *attempt) pending.Diagnosis { return diagnoses[a] })
}

// postpone leaves pods of a group alone for a moment, of which nothing is known: those behind them are tried meanwhile.
func (c *cycle) postpone(pods []*attempt, reason string) {
	c.sh.with(func(q *pending.Queue, now time.Time) {
		for _, a := range pods {
			if a.open {
				q.Postpone(now, a.Attempt)
				c.s.metrics.retries.WithLabelValues(reason).Inc()
				c.progress++
				a.traced.end(tracedRetry, "")
				a.open = false
			}
		}
	})
}

// groupDiagnosis returns why a pod of a group is not placed.
func groupDiagnosis(is *binderv1.GroupedPod, group string, version cluster.Version) (pending.Diagnosis, error) {
	verdicts, err := wire.Verdicts(is.GetVerdicts())
	if err != nil {
		return pending.Diagnosis{}, err
	}
	d := pending.Diagnosis{Verdicts: verdicts, Version: version, CrossNode: engine.CrossNode(verdicts), Message: group}
	if len(verdicts) > 0 || is.GetNodes() > 0 {
		d.Message = engine.FitMessage(int(is.GetNodes()), verdicts)
		if group != "" {
			d.Message += " " + group
		}
	}
	return d, nil
}

// shelveGroup makes pods of a group unschedulable, in parts: the log waits meanwhile. What happens on a node where one of them fits wakes them, though the group may not fit: so they serve their backoff in full.
func (c *cycle) shelveGroup(ctx context.Context, pods []*attempt, f postFilter, diagnosis func(*attempt) pending.Diagnosis) error {
	for len(pods) > 0 {
		left := pods
		err := c.read(ctx, func(st *cluster.State) {
			c.sh.with(func(q *pending.Queue, now time.Time) {
				for enough := false; len(left) > 0 && !enough; enough = time.Since(now) >= lookFor {
					a := left[0]
					left = left[1:]
					message := c.rejectAs(q, now, st, a.Attempt, diagnosis(a), f)
					c.progress++
					c.decided(a, resultUnschedulable, message)
					a.open = false
				}
			})
		})
		if err != nil || len(left) == len(pods) { // there is no state: they are tried again
			return err
		}
		pods = left
	}
	return nil
}
