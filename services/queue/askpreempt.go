package queue

import (
	"context"
	"errors"
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

// noCandidateLeft is what kube-scheduler's preemption says where extenders leave no node.
const noCandidateLeft = "no candidate node for preemption"

// preemptQuestion is a pod that fits nowhere and that extenders have a say in whom it preempts.
type preemptQuestion struct {
	request *binderv1.AskPreemptRequest
	tries   []string         // attempt's
	keepers engine.Rejectors // that keep it from preempting on nodes that are no candidates
}

// nowhere is that a pod fits nowhere, of a question.
type nowhere struct {
	diagnosis pending.Diagnosis
	onNode    *nodeWork // attempt's
	refused   *refusal  // attempt's
	said      *said     // attempt's
}

// nowhere returns what is known of an attempt that fits nowhere.
func (c *cycle) nowhere(a *attempt) *nowhere {
	return &nowhere{c.diagnosis(a), a.onNode, a.refused, a.said}
}

// askPreempt has a pod asked about that the binder is to ask extenders about. It waits for nobody in this cycle, and nobody waits for it.
func (c *cycle) askPreempt(ctx context.Context, a *attempt, request *binderv1.PreemptRequest, response *binderv1.PreemptResponse, keepers engine.Rejectors) {
	version := wire.Version(response.GetVersion())
	c.answered(version)
	request.Candidate, request.Version = nil, response.GetVersion()
	c.sh.with(func(q *pending.Queue, _ time.Time) { a.at, a.asked = q.Leave(a.Attempt) })
	a.open = false
	c.progress++
	if n, ok := c.vain[a.UID]; ok { // that it is asked about settles nothing
		c.stillVain[a.UID] = n
	}
	if !a.asked {
		return
	}
	c.asker.add(trace.Untraced(ctx), []*question{{
		Attempt: a.Attempt, attemptBegun: attemptBegun{a.signature.profile, c.popped, a.traced}, at: a.at, version: version,
		turn: response.GetTurn(), atMost: time.Duration(min(max(response.GetAskMilliseconds(), 1000), mostAskMillis)) * time.Millisecond,
		nowhere: c.nowhere(a), preempt: &preemptQuestion{&binderv1.AskPreemptRequest{Preemption: request, AsAttached: a.doubted}, a.tries, keepers},
	}})
}

// waitsForTurn reports whether a pod is refused since its turn has not come, or too much is asked of the binder: then it is asked about again, ahead of all others of its turn.
// It is not if there is no room for evictions or reports: pods that fit do not wait for that.
func waitsForTurn(refused error) bool {
	reason := rpc.ReasonOf(refused)
	return reason == "EXTENDER_BUSY" || reason == rpc.ReasonQueueFull
}

// preempt asks about one pod, and gives it its outcome.
func (k *asker) preempt(ctx context.Context, q *question) {
	began := time.Now()
	response, err := askBinderWithin(ctx, k.d, q.atMost, 1, waitsForTurn, func(ctx context.Context, binder binderv1.BinderServiceClient) (*binderv1.AskPreemptResponse, error) {
		return binder.AskPreempt(ctx, q.preempt.request)
	})
	took := time.Since(began)
	k.d.s.metrics.stage.WithLabelValues("ask_preempt").Observe(took.Seconds())
	measure := func(result, status string) { k.d.s.metrics.preempted(q.traced, q.profile, result, status, took) }
	if err != nil {
		measure(preemptionError, statusError)
	}
	switch {
	case ctx.Err() != nil:
		k.over(q, tracedUnknown)
	case errors.Is(err, errShardLost):
		k.over(q, tracedUnknown)
		k.d.end(err)
	case status.Code(err) == codes.Aborted:
		k.retry(q, "preempt_aborted")
	case status.Code(err) == codes.ResourceExhausted:
		k.d.s.metrics.retries.WithLabelValues("preempt_resource_exhausted").Inc()
		k.d.putOffPreemptions(err)
		if log := logs.V(k.d.log, logs.Failures); log != nil {
			log.Info("preemption put off", "uid", q.UID, "err", err, q.traced.log())
		}
		k.fail(q, waitingMessage, false) // what others have made room for is theirs
	case err != nil:
		k.d.log.Error("binder refuses the preemption", "uid", q.UID, "err", err, q.traced.log())
		k.fail(q, "preempt: "+status.Convert(err).Message(), true)
	default:
		k.settlePreempt(ctx, q, response.GetPreemption(), measure)
	}
}

// settlePreempt gives a pod its outcome.
func (k *asker) settlePreempt(ctx context.Context, q *question, response *binderv1.PreemptResponse, measure func(result, status string)) {
	result := response.GetResult()
	if result != binderv1.PreemptResponse_RESULT_RETRY {
		k.forget(q.UID)
	}
	switch result {
	case binderv1.PreemptResponse_RESULT_STARTED:
		measure(preemptionStarted, statusSuccess)
		k.d.sh.trying(q.preempt.tries, time.Now())
		k.reject(ctx, q, func(*cluster.Profile) postFilter { return postFilter{started: true} })
	case binderv1.PreemptResponse_RESULT_NO_CANDIDATE:
		measure(preemptionNoCandidate, statusUnschedulable)
		k.reject(ctx, q, func(p *cluster.Profile) postFilter {
			return q.nowhere.said.heard(p, noCandidateLeft, postFilter{asked: true, keepers: q.preempt.keepers})
		})
	case binderv1.PreemptResponse_RESULT_FAILED:
		measure(preemptionError, statusError)
		k.reject(ctx, q, func(*cluster.Profile) postFilter {
			return postFilter{message: engine.PreemptionError(response.GetError()), asked: true, keepers: q.preempt.keepers}
		})
	case binderv1.PreemptResponse_RESULT_UNREAD:
		measure(preemptionError, statusError)
		k.fail(q, response.GetError(), true)
	case binderv1.PreemptResponse_RESULT_GONE:
		measure(preemptionGone, statusError)
		k.over(q, tracedGone)
		k.d.sh.with(func(queue *pending.Queue, now time.Time) {
			queue.Await(now, q.Attempt, wire.Version(response.GetVersion()), pending.Unresolved)
		})
	default:
		measure(preemptionRetry, statusError)
		if k.tooOften(q) {
			k.fail(q, preemptionPutOff, true)
			return
		}
		k.retry(q, "preempt")
	}
}

// reject makes a pod unschedulable, with what has come of PostFilter, unless plugins of others are to be asked yet. Its nomination stays, as it does in kube-scheduler where extenders leave no node, or fail, unless something is said of it.
func (k *asker) reject(ctx context.Context, q *question, of func(*cluster.Profile) postFilter) {
	var asks []string
	message, known, runs := "", false, false
	_ = k.d.s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error {
		if on := q.nowhere.onNode; on != nil && st.Nodes.ByName(on.name) != on.Node {
			return nil // what was said was perhaps about another node
		}
		profile := st.Profile(q.profile)
		if profile == nil {
			profile = &cluster.Profile{}
		}
		k.d.sh.with(func(queue *pending.Queue, now time.Time) {
			known = true
			if runs = queue.Runs(q.Attempt); !runs {
				return
			}
			f := of(profile)
			if asks = f.asks; len(asks) > 0 {
				q.preempt, q.postFilter, q.turn = nil, &postFilterQuestion{f}, turnOfPostFilter(q.profile)
				return
			}
			message = k.d.rejectAs(queue, now, st, q.Attempt, q.nowhere.diagnosis, f)
		})
		return nil
	})
	switch {
	case !known: // there is no state
		k.retry(q, "preempt")
		return
	case !runs:
		k.over(q, tracedGone)
		return
	case len(asks) > 0:
		k.add(ctx, []*question{q})
		return
	}
	k.d.s.binding.end(q.ID, q.popped)
	q.traced.end(resultUnschedulable, message)
	k.d.s.metrics.algorithm.Observe(time.Since(q.popped).Seconds())
	k.d.s.metrics.attempt(resultUnschedulable, q.profile, time.Since(q.popped))
}
