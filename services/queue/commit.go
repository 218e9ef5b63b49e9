package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/trace"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

const (
	// retryCommit is how long to wait before a commit is sent again when nobody said how long.
	retryCommit = 50 * time.Millisecond
	// mostMisfits is how often in a row the binder may find no node where workers found some, before the pod backs off.
	mostMisfits = 3
	// mostRetries is how often in a row the first pod of a commit may be retried, and with it all others, before it backs off. Its
	// candidates are as many as can be asked for, and so others have to place pods on all of them each time; or its worker judges it
	// otherwise than the binder, as one of another release may, and it would be so for ever.
	mostRetries = 8
	// busyMessage is told of a pod that the binder does not place for the binds of others of its namespace.
	busyMessage = "binds in its namespace take long, and as many of its pods wait for theirs as may"
	// claimsMessage is told of a pod whose claims change all the time.
	claimsMessage = "again and again, its claims came to something else while it was tried"
	// noNodeLeft is told of a pod for which no node is left, again and again.
	noNodeLeft = "no node was left when the pod's turn came"
)

var errNoOutcome = errors.New("the binder's answer does not match the request")

// commit hands the pods that can go somewhere to the binder, in queue order.
func (c *cycle) commit(ctx context.Context) error {
	if err := c.holdMixed(ctx); err != nil {
		return err
	}
	// 1. Write the request.
	from := c.oldest() // of another epoch, it is refused
	request := &binderv1.CommitRequest{Shard: c.sh.number, ShardRevision: c.sh.revision, Version: wire.ToVersion(from)}
	index := make(map[*signatureWork]int32)
	var sent, gone []*attempt
	for _, a := range c.attempts {
		if !a.open || !a.goes || a.mixed {
			continue
		}
		w, on := a.signature, a.onNode
		pod := &binderv1.PodAttempt{Id: int32(a.ID), Uid: a.UID, Attempt: a.Number, SubjectIndex: -1}
		switch {
		case a.RequiredNode != "":
		case len(w.groups) > 0:
			at, ok := index[w]
			if !ok {
				at = int32(len(request.Subjects))
				index[w] = at
				groups := w.groups
				if c.byImages != from.Epoch {
					groups = engine.WithoutImages(w.seed, groups)
				}
				request.Subjects = append(request.Subjects, &binderv1.SubjectCandidates{
					Subject: wire.ToSubject(w.subject), Groups: wire.ToGroups(groups),
				})
			}
			pod.SubjectIndex = at
		case on == nil || !on.Feasible:
			gone = append(gone, a) // its nodes were, before they could be scored
			continue
		}
		sent = append(sent, a)
		request.Pods = append(request.Pods, pod)
	}
	c.misfit(gone, "no_fit", noNodeLeft)
	if len(sent) == 0 {
		return nil
	}
	// 2. Send it until the outcome is known.
	c.s.mu.Lock() // what the log tells of their binds is told both binding and the queue before this, or neither
	for _, a := range sent {
		c.s.binding.begin(a.ID, a.signature.profile, c.popped, a.traced)
	}
	c.s.mu.Unlock()
	defer func(sent []*attempt) {
		for _, a := range sent {
			if !a.placed && !a.asked {
				c.s.binding.end(a.ID, c.popped)
			}
		}
	}(sent)
	all := len(sent)
	response, err := askBinder(ctx, c.driver, all, true, func(ctx context.Context, binder binderv1.BinderServiceClient) (*binderv1.CommitResponse, error) {
		response, err := binder.Commit(ctx, request)
		if n := len(request.Pods); n > 1 && rpc.ReasonOf(err) == "TOO_MANY_UNBOUND" {
			request.Pods = request.Pods[:n/2] // when it is asked again: smaller batches of others would take the room as it comes
		}
		return response, err
	})
	if sent = sent[:len(request.Pods)]; len(sent) < all {
		again(sent[len(sent):all], "too_many_unbound")
		c.most = len(sent)
	}
	switch {
	case err == nil && len(response.GetOutcomes()) != len(sent):
		err = errNoOutcome
	case status.Code(err) == codes.Aborted:
		again(sent, "aborted")
		if log := logs.V(c.log, logs.Failures); log != nil {
			log.Info("commit aborted, its pods are tried again", "pods", len(sent), "err", err)
		}
		return nil
	case errors.Is(err, errShardLost) || ctx.Err() != nil:
		return err
	case rpc.TooLarge(err):
		return c.tooLarge(ctx, "commit", err)
	case status.Code(err) == codes.InvalidArgument:
		c.apart("commit", err)
		return nil
	}
	if err != nil {
		c.log.Error("binder refuses the commit", "pods", len(sent), "err", err)
		c.fail(sent, fmt.Sprintf("commit: %v", err))
		return nil
	}
	// 3. Take the outcomes in.
	if response.GetByImages() {
		c.byImages = wire.Version(response.GetVersion()).Epoch
	}
	unchanged := c.settle(sent, response)
	c.ask(ctx, sent, response)
	return c.shelve(ctx, unchanged)
}

// ask has those pods of a commit asked about that are to be. They wait for nobody in this cycle, and nobody waits for them.
func (c *cycle) ask(ctx context.Context, sent []*attempt, response *binderv1.CommitResponse) {
	var questions []*question
	for k, a := range sent {
		if out := response.GetOutcomes()[k]; a.asked {
			questions = append(questions, &question{
				Attempt: a.Attempt, attemptBegun: attemptBegun{a.signature.profile, c.popped, a.traced}, at: a.at,
				version: wire.Version(response.GetVersion()), turn: out.GetTurn(),
				atMost: time.Duration(min(max(out.GetAskMilliseconds(), 1000), mostAskMillis)) * time.Millisecond, pods: min(int(out.GetAskPods()), mostAskPods),
			})
		}
	}
	if len(questions) > 0 {
		c.asker.add(trace.Untraced(ctx), questions)
	}
}

// holdMixed holds back pods that go whose claims, or those of the pod that was asked about in their place, have come to something else since the
// oldest of answers of several versions. Some nodes may have been judged for what they were before, others for what they are now, and no candidate
// tells which of all is best. One whose own claims have not is asked about by itself next. If the replica does not come to the newest answer, all are
// held back for which it may be so.
func (c *cycle) holdMixed(ctx context.Context) error {
	goes := c.those(func(a *attempt) bool {
		return a.open && a.goes && a.RequiredNode == "" && (a.claims || a.signature.claims) // the binder judges a required node itself
	})
	if len(goes) == 0 || !c.oldest().Less(c.newest) {
		return nil
	}
	var own []*attempt
	ask := func() (known bool) {
		c.sh.with(func(q *pending.Queue, _ time.Time) {
			if known = !q.Version().Less(c.newest); !known {
				return
			}
			firsts := make(map[*signatureWork]bool)
			for _, a := range goes {
				w := a.signature
				changed, asked := firsts[w]
				if !asked {
					changed = q.ClaimsChanged(w.first, c.oldest())
					firsts[w] = changed
				}
				switch {
				case q.ClaimsChanged(a.Attempt, c.oldest()):
					own = append(own, a)
				case changed:
					c.alone.add(q, a.Attempt)
				default:
					continue
				}
				a.mixed, a.again = true, "claims"
			}
		})
		return known
	}
	if !ask() {
		if err := c.catchUp(ctx); err != nil {
			return err
		}
		if !ask() {
			for _, a := range goes {
				a.mixed = true
			}
			again(goes, "claims")
			return nil
		}
	}
	c.misfit(own, "claims", claimsMessage)
	return nil
}

// settle gives every pod of a commit its outcome, but for those it returns: the pods ahead of them have not changed that
// no node fits, which the filter-workers had said.
func (c *cycle) settle(sent []*attempt, response *binderv1.CommitResponse) (unchanged []*attempt) {
	var misfits, busy, stuck []*attempt
	exhausted := false
	version := wire.Version(response.GetVersion())
	c.answered(version)
	c.sh.with(func(q *pending.Queue, now time.Time) {
		for k, a := range sent {
			switch result := response.GetOutcomes()[k].GetResult(); result {
			case binderv1.Outcome_RESULT_ASSUMED, binderv1.Outcome_RESULT_PLACED:
				c.progress++
				c.s.metrics.algorithm.Observe(time.Since(c.popped).Seconds())
				a.placed = q.Remembers(a.Attempt) // else its bind was told, and if that was before begin, binding would keep the attempt
				q.Await(now, a.Attempt, version, pending.Unresolved)
				a.open = false
			case binderv1.Outcome_RESULT_GONE:
				q.Await(now, a.Attempt, version, pending.Unresolved)
				a.open = false
			case binderv1.Outcome_RESULT_BUSY:
				busy = append(busy, a)
			case binderv1.Outcome_RESULT_ASK:
				c.progress++
				a.at, a.asked = q.Leave(a.Attempt)
				a.open = false
				if n, ok := c.vain[a.UID]; ok { // that it is asked about settles nothing
					c.stillVain[a.UID] = n
				}
			case binderv1.Outcome_RESULT_NO_FIT:
				if c.outlook(a) == hopeful {
					unchanged = append(unchanged, a)
					continue
				}
				// The next cycle asks the workers again, at this version or later, and then knows why.
				misfits = append(misfits, a)
			default:
				if n, ok := c.vain[a.UID]; ok && k > 0 {
					c.stillVain[a.UID] = n // it was not its turn
				} else if k == 0 && c.stuck(a) {
					stuck = append(stuck, a)
				}
				exhausted = true
				a.again = "retry"
			}
		}
	})
	c.reach = c.reach.after(len(c.attempts), exhausted)
	c.misfit(misfits, "no_fit", noNodeLeft)
	c.fail(stuck, "again and again, the nodes that were found for the pod were not what the binder found when its turn came")
	c.backOff(busy, busyMessage, false) // no bind was tried: what others have made room for is theirs
	return unchanged
}

// answered notes a version that the binder has answered.
func (d *driver) answered(version cluster.Version) {
	if d.committed.Less(version) {
		d.committed = version
	}
}

// vain is how often in a row the binder has come to something else about a pod than workers had.
type vain struct {
	id      cluster.PodID
	misfits int // it found no node, or not what is to be preempted; or somebody else came to something else
	retries int // its nodes were not what they were, of the first pod of a commit
}

// misfit has pods tried again with which it has come to something else than workers had, but those with which it has so too often back off.
func (c *cycle) misfit(pods []*attempt, reason, message string) {
	var tooOften []*attempt
	for _, a := range pods {
		if c.tooOften(a) {
			tooOften = append(tooOften, a)
		} else {
			a.again = reason
		}
	}
	if len(tooOften) > 0 {
		c.fail(tooOften, message)
	}
}

// tooOften counts a misfit, and reports whether there have been so many that the pod has to back off.
func (c *cycle) tooOften(a *attempt) bool {
	n := c.vain[a.UID]
	n.misfits++
	return c.oftener(a, n)
}

// stuck counts a retry, and reports whether there have been so many that the pod has to back off.
func (c *cycle) stuck(a *attempt) bool {
	n := c.vain[a.UID]
	n.retries++
	return c.oftener(a, n)
}

func (c *cycle) oftener(a *attempt, n vain) bool {
	if n.misfits >= mostMisfits || n.retries >= mostRetries {
		return true
	}
	n.id = a.ID
	c.stillVain[a.UID] = n
	return false
}

// settled returns the pods that have come to something, but that they are asked about.
func (c *cycle) settled() (uids []string) {
	for _, a := range c.attempts {
		if !a.open && !a.asked {
			uids = append(uids, a.UID)
		}
	}
	return uids
}

// unsettled returns what is counted on: it begins anew only for pods that have got an outcome, or are gone. That a batch did without a pod, or has not
// come to the binder with it, settles nothing.
func (c *cycle) unsettled() map[string]vain {
	was, is := c.vain, c.stillVain
	if len(was) == 0 {
		return is
	}
	tried := make(map[string]bool, len(c.attempts)) // and open still
	for _, a := range c.attempts {
		tried[a.UID] = a.open
	}
	c.sh.with(func(q *pending.Queue, _ time.Time) {
		for uid, n := range was {
			if _, counted := is[uid]; counted {
				continue
			}
			open, tried := tried[uid]
			e, ok := q.Entry(n.id)
			if ok = ok && e.Pod.UID == uid; !ok {
				continue
			}
			asked := e.Place == pending.InFlight && !tried
			if asked || e.Place == pending.Active && (open || !tried) {
				is[uid] = n
			}
		}
	})
	return is
}

// askBinder puts a question about so many pods to whoever is the active binder until it is known what became of it. To
// ask twice is safe: the binder knows attempts by pod and number. Unless patient it does not wait for a binder that has
// too much to do.
func askBinder[Res any](
	ctx context.Context, d *driver, pods int, patient bool,
	ask func(ctx context.Context, binder binderv1.BinderServiceClient) (Res, error),
) (Res, error) {
	return askBinderWithin(ctx, d, d.s.cfg.CommitTimeout, pods, func(error) bool { return patient }, ask)
}

// askBinderWithin is askBinder of a question that may take so long each time. Patient says whether it waits for what the binder has too much of.
func askBinderWithin[Res any](
	ctx context.Context, d *driver, atMost time.Duration, pods int, patient func(refused error) bool,
	ask func(ctx context.Context, binder binderv1.BinderServiceClient) (Res, error),
) (Res, error) {
	var none Res
	for {
		now, _ := d.s.directory.get()
		if !now.hasLeader() {
			d.s.directory.awaitLeader(ctx, now.leader, 0)
			if ctx.Err() != nil {
				return none, context.Cause(ctx)
			}
			continue
		}
		response, err := askBinderOnce(ctx, d.s, now.leader.Address, atMost, ask)
		if err == nil {
			return response, nil
		}
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		switch code := status.Code(err); code {
		case codes.ResourceExhausted:
			if !patient(err) {
				return none, err
			}
		case codes.FailedPrecondition:
			if rpc.ReasonOf(err) != rpc.ReasonEpochLost {
				return none, fmt.Errorf("%w: %w", errShardLost, err)
			}
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			d.log.Warn("no answer of the binder, asking again", "pods", pods, "binder", now.leader.ID, "err", err)
		default:
			return none, err
		}
		d.s.metrics.retries.WithLabelValues("binder_" + snake(status.Code(err))).Add(float64(pods))
		d.s.directory.awaitLeader(ctx, now.leader, rpc.RetryPause(err, retryCommit))
	}
}

func askBinderOnce[Res any](
	ctx context.Context, s *Service, address string, atMost time.Duration, ask func(context.Context, binderv1.BinderServiceClient) (Res, error),
) (Res, error) {
	conn, err := s.cfg.Clients.Conn(address)
	if err != nil {
		var none Res
		return none, status.Errorf(codes.Unavailable, "connect to %s: %v", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	return ask(ctx, binderv1.NewBinderServiceClient(conn))
}

// snake returns the label of a code.
func snake(code codes.Code) string {
	switch code {
	case codes.Unavailable:
		return "unavailable"
	case codes.DeadlineExceeded:
		return "deadline_exceeded"
	case codes.ResourceExhausted:
		return "resource_exhausted"
	case codes.FailedPrecondition:
		return "failed_precondition"
	}
	return "other"
}
