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
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/services/queue/fanout"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// preemptFor is after how long a cycle begins no further preemption, so that pods that fit need not wait for the next
// batch. It begins at least one.
const preemptFor = 500 * time.Millisecond

// postFilter is what comes of kube-scheduler's PostFilter for a pod that fits nowhere.
type postFilter struct {
	preempts bool             // it may preempt: the rest is not known yet
	started  bool             // pods are evicted for it, and the binder has reported it
	message  string           // what FailedScheduling's text ends with
	clear    bool             // it is to be nominated to no node any more
	keepers  engine.Rejectors // keep it from preempting
	asked    bool             // extenders have been asked, or plugins of others instead, and nobody goes
	asks     []string         // plugins of others that are to be asked yet
	behind   bool             // these are: behind preemption, and not before all else
	why      string           // if so, what preemption has said

	detaching bool // it waits for volumes to be detached from the node that it is nominated to
	gaveUp    bool // it has done so for too long: it is to be tried again as soon as it is nominated no more
}

// detachFor is for how long a pod is nominated to a node where it only waits for volumes to be detached that nobody uses. Usually that takes seconds:
// until the node has unmounted them. On nodes that do not say so, and are not ready, the controller that attaches volumes has its own patience, six
// minutes (attachdetach's ReconcilerMaxWaitForUnmountDuration); what is attached for longer may be for ever.
const detachFor = 6 * time.Minute

// postFilter says what comes of PostFilter without a dry run. The caller holds the shard's lock.
func (c *cycle) postFilter(st *cluster.State, a *attempt, now time.Time) postFilter {
	if !c.judged(a) {
		return postFilter{clear: c.nodes == 0}
	}
	if a.fails != nil { // kube-scheduler's attempt ends with an error: it has no PostFilter, and the nomination ends
		return postFilter{clear: true}
	}
	profile := st.Profile(a.signature.profile)
	if profile == nil || len(profile.PostFilters) == 0 {
		return postFilter{clear: true}
	}
	if before, _ := engine.ForeignPostFilters(profile); len(before) > 0 && a.said == nil {
		return postFilter{asks: before}
	}
	why, ok := c.s.cfg.Evaluator.Preempts(st, a.ID)
	if ok {
		return postFilter{preempts: true}
	}
	if why != "" {
		c.preempted(a, preemptionNotEligible, statusUnschedulable, 0)
	}
	f := a.said.heard(profile, why, postFilter{detaching: engine.AwaitsDetachment(why)})
	if f.detaching && !a.Detaching.IsZero() && now.Sub(a.Detaching) >= detachFor {
		f.detaching, f.clear, f.gaveUp = false, true, true
		c.sh.doubt(c.s.cfg.Evaluator.UndetachedDrivers(st, a.ID), now)
	}
	return f
}

// preempt makes room for pods that fit nowhere, one after the other in queue order: each dry run sees the nomination
// that comes of the one before, which holds the room.
func (c *cycle) preempt(ctx context.Context, pods []*attempt) error {
	start := time.Now()
	// What preemption says where it cannot help is the same for all pods of a subject, in this batch.
	hopeless := make(map[engine.Subject]noRoom)
	for k, a := range pods {
		if c.preemptionWaits(pods[k:]) || c.sh.isDraining() {
			return nil
		}
		if k > 0 && time.Since(start) > preemptFor {
			again(pods[k:], "preempt_late")
			return nil
		}
		c.s.floors.works(c.sh.number, time.Now().Add(stalled))
		began := time.Now()
		none, ok := hopeless[a.Subject]
		var found fanout.DryRunAnswer
		if !ok || a.Node() != "" || a.refused != nil {
			var err error
			if found, err = c.dryRun(ctx, a); err != nil {
				c.preempted(a, preemptionError, statusError, time.Since(began))
				if refused := (fanout.RefusedError{}); errors.As(err, &refused) {
					c.log.Error("preemption refused", "uid", a.UID, "err", err)
					c.fail([]*attempt{a}, fmt.Sprintf("preempt: %v", err))
					continue
				}
				return c.refused(ctx, pods[k:], "preempt", err)
			}
			if found.Nodes == 0 { // the pod, or its class, is gone
				c.sh.with(func(q *pending.Queue, now time.Time) { q.Await(now, a.Attempt, found.Oldest, pending.Unresolved) })
				a.open = false
				continue
			}
			if found.Best == nil && found.Fallen > 0 {
				found.Verdicts = engine.MergeVerdicts(found.Verdicts, []engine.VerdictCount{engine.Undetached(found.Fallen)})
			}
			if a.refused != nil {
				found.Verdicts = a.refused.victims(found.Verdicts)
			}
			none = noRoom{engine.PreemptionMessage(found.Nodes, found.Verdicts), engine.KeepersOf(found.Verdicts)}
		}
		if found.Best == nil {
			if a.Node() == "" && a.refused == nil {
				hopeless[a.Subject] = none
			}
			c.preempted(a, preemptionNoCandidate, statusUnschedulable, time.Since(began))
			if err := c.rejectPreemptor(ctx, a, none); err != nil {
				return err
			}
			continue
		}
		goOn, err := c.evict(ctx, a, found, none.keepers, began)
		if err != nil {
			return err
		}
		if !goOn {
			again(pods[k:], "preempt_aborted")
			return nil
		}
	}
	return nil
}

// waitingMessage is told of pods that would preempt while the binder has too much to do for that.
const waitingMessage = "its preemption was put off: the binder has too much to do"

// preemptionPutOff is told of pods whose preemption the binder takes back again and again.
const preemptionPutOff = "its preemption was put off: the pods to be preempted had changed, or as many binds in its namespace, or evictions in theirs, are under way as may be"

// preemptionWaits puts pods in backoff if the binder wants no preemption now. Else, as many as a batch has would come again and again,
// ahead of those that fit.
func (c *cycle) preemptionWaits(pods []*attempt) bool {
	if from := c.preemptFrom.Load(); from == nil || !time.Now().Before(*from) {
		return false
	}
	c.backOff(pods, waitingMessage, false) // what others have made room for is theirs
	return true
}

// putOffPreemptions has no preemption begin before the binder wants one again.
func (d *driver) putOffPreemptions(refused error) {
	from := time.Now().Add(rpc.RetryPause(refused, retryCommit))
	d.preemptFrom.Store(&from)
}

// preempted measures a try to make room.
func (c *cycle) preempted(a *attempt, result, status string, took time.Duration) {
	c.s.metrics.preempted(a.traced, a.signature.profile, result, status, took)
}

func (m *metrics) preempted(traced *tracedAttempt, profile, result, status string, took time.Duration) {
	traced.preempted(result, took)
	m.preemptionAttempts.Inc()
	m.preemptions.WithLabelValues(result).Inc()
	m.points.WithLabelValues(pointPostFilter, status, profile).Observe(took.Seconds())
}

// noRoom is that no node is a candidate: what is said of it, and who may end it.
type noRoom struct {
	why     string
	keepers engine.Rejectors
}

// rejectPreemptor makes a pod unschedulable for which there is no room to be made.
func (c *cycle) rejectPreemptor(ctx context.Context, a *attempt, none noRoom) error {
	defer c.askPostFilters(ctx)
	return c.read(ctx, func(st *cluster.State) {
		f := postFilter{clear: true, keepers: none.keepers}
		if profile := st.Profile(a.signature.profile); profile != nil {
			f = a.said.heard(profile, none.why, f)
		}
		c.sh.with(func(q *pending.Queue, now time.Time) { c.reject(q, now, st, a, f) })
	})
}

// dryRun asks where a pod would fit if pods of lower priority were gone. If volumes of its drivers are not detached, whom kube-scheduler would not evict,
// either, does not count.
func (c *cycle) dryRun(ctx context.Context, a *attempt) (fanout.DryRunAnswer, error) {
	least := c.newest
	if c.committed.Epoch == least.Epoch && least.Less(c.committed) {
		least = c.committed
	}
	q := fanout.DryRunQuestion{Least: least, Length: c.length, Subject: a.Subject, Pod: a.ID, Seed: c.seed}
	if c.sh.doubtsAny() {
		var drivers []string
		if err := c.read(ctx, func(st *cluster.State) { drivers = c.s.cfg.Evaluator.LimitedDrivers(st, a.ID) }); err != nil {
			return fanout.DryRunAnswer{}, err
		}
		doubted, due := c.sh.doubts(drivers, time.Now())
		if a.tries, a.doubted = due, doubted; doubted {
			q.Stands = func(found *engine.Preemption) (stands bool) {
				_ = c.read(ctx, func(st *cluster.State) { stands = c.s.cfg.Evaluator.StandsAttached(st, a.ID, found) })
				return stands
			}
		}
	}
	return c.workers.DryRunPreemption(ctx, q)
}

// evict has the binder evict the best candidate's victims and nominate the pod. It reports false if what the shard knows of the state is too
// old for this pod, and so for the others. Keepers are the plugins that keep it from preempting elsewhere.
func (c *cycle) evict(ctx context.Context, a *attempt, found fanout.DryRunAnswer, keepers engine.Rejectors, began time.Time) (goOn bool, err error) {
	c.reports.withdraw(a.ID)
	request := &binderv1.PreemptRequest{
		Shard: c.sh.number, ShardRevision: c.sh.revision, Version: wire.ToVersion(found.Oldest),
		Attempt: a.Number, Candidate: found.Best,
		Pod: &binderv1.PodReport{Id: int32(a.ID), Uid: a.UID, Reason: reasonUnschedulable, Message: c.diagnosis(a).Message, Attempt: a.Number},
	}
	if a.refused != nil {
		request.Refused, request.RefusedVersion = true, wire.ToVersion(a.refused.version)
	}
	response, err := askBinder(ctx, c.driver, 1, false, func(ctx context.Context, binder binderv1.BinderServiceClient) (*binderv1.PreemptResponse, error) {
		return binder.Preempt(ctx, request)
	})
	if err != nil {
		c.preempted(a, preemptionError, statusError, time.Since(began))
	}
	switch code := status.Code(err); {
	case err == nil:
	case errors.Is(err, errShardLost) || ctx.Err() != nil:
		return false, err
	case code == codes.ResourceExhausted:
		c.s.metrics.retries.WithLabelValues("preempt_resource_exhausted").Inc()
		c.putOffPreemptions(err)
		if log := logs.V(c.log, logs.Failures); log != nil {
			log.Info("preemption put off", "uid", a.UID, "err", err, a.traced.log())
		}
		c.preemptionWaits([]*attempt{a})
		return true, nil
	case code == codes.Aborted:
		if log := logs.V(c.log, logs.Failures); log != nil {
			log.Info("preemption aborted", "uid", a.UID, "err", err, a.traced.log())
		}
		return false, nil
	default:
		c.log.Error("binder refuses the preemption", "uid", a.UID, "err", err, a.traced.log())
		c.fail([]*attempt{a}, fmt.Sprintf("preempt: %v", err))
		return true, nil
	}
	if response.GetResult() == binderv1.PreemptResponse_RESULT_ASK {
		c.askPreempt(ctx, a, request, response, keepers)
		return true, nil
	}
	return true, c.settlePreemption(ctx, a, response, began)
}

// settlePreemption gives the pod of a preemption its outcome.
func (c *cycle) settlePreemption(ctx context.Context, a *attempt, response *binderv1.PreemptResponse, began time.Time) error {
	version := wire.Version(response.GetVersion())
	c.answered(version)
	switch response.GetResult() {
	case binderv1.PreemptResponse_RESULT_STARTED:
		c.preempted(a, preemptionStarted, statusSuccess, time.Since(began))
		c.sh.trying(a.tries, time.Now())
		return c.read(ctx, func(st *cluster.State) {
			c.sh.with(func(q *pending.Queue, now time.Time) { c.reject(q, now, st, a, postFilter{started: true}) })
		})
	case binderv1.PreemptResponse_RESULT_GONE:
		c.preempted(a, preemptionGone, statusError, time.Since(began))
		c.sh.with(func(q *pending.Queue, now time.Time) { q.Await(now, a.Attempt, version, pending.Unresolved) })
		a.open = false
	default:
		c.preempted(a, preemptionRetry, statusError, time.Since(began))
		if c.tooOften(a) {
			c.fail([]*attempt{a}, preemptionPutOff)
			return nil
		}
		a.again = "preempt"
	}
	return nil
}
