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
	preempts bool   // it may preempt: the rest is not known yet
	started  bool   // pods are evicted for it, and the binder has reported it
	message  string // what FailedScheduling's text ends with
	clear    bool   // it is to be nominated to no node any more
}

// postFilter says what comes of PostFilter without a dry run.
func (d *driver) postFilter(st *cluster.State, b *batch, i int) postFilter {
	if !b.judged(i) {
		return postFilter{clear: b.nodes == 0}
	}
	profile := st.Profile(b.signatureOf[i].profile)
	if profile == nil || len(profile.PostFilters) == 0 {
		return postFilter{clear: true}
	}
	why, ok := d.s.cfg.Evaluator.Preempts(st, b.attempts[i].ID)
	if ok {
		return postFilter{preempts: true}
	}
	if why != "" {
		d.preempted(b, i, preemptionNotEligible, statusUnschedulable, 0)
	}
	return postFilter{message: engine.PostFilterMessage(profile, why)}
}

// preempt makes room for pods that fit nowhere, one after the other in queue order: each dry run sees the nomination
// that comes of the one before, which holds the room.
func (d *driver) preempt(ctx context.Context, b *batch, to workers, open map[int]bool, pods []int) error {
	start := time.Now()
	// What preemption says where it cannot help is the same for all pods of a subject, in this batch.
	hopeless := make(map[engine.Subject]string)
	for k, i := range pods {
		if k > 0 && time.Since(start) > preemptFor || d.sh.isDraining() || time.Now().Before(d.preemptFrom) {
			return nil // the others are tried again
		}
		d.s.bands.works(d.sh.number, time.Now().Add(stalled))
		a, began := b.attempts[i], time.Now()
		why, ok := hopeless[a.Subject]
		var found fanout.DryRunAnswer
		if !ok || a.Node() != "" {
			var err error
			if found, err = d.dryRun(ctx, b, a, to); err != nil {
				d.preempted(b, i, preemptionError, statusError, time.Since(began))
				return d.refused(ctx, b, open, []int{i}, "preempt", err)
			}
			if found.Nodes == 0 { // the pod, or its class, is gone
				d.sh.with(func(q *pending.Queue, now time.Time) { q.Await(now, a, found.Oldest) })
				delete(open, i)
				continue
			}
			why = engine.PreemptionMessage(found.Nodes, found.Verdicts)
		}
		if found.Best == nil {
			if a.Node() == "" {
				hopeless[a.Subject] = why
			}
			d.preempted(b, i, preemptionNoCandidate, statusUnschedulable, time.Since(began))
			if err := d.parkPreemptor(ctx, b, open, i, why); err != nil {
				return err
			}
			continue
		}
		goOn, err := d.evict(ctx, b, open, i, found, began)
		if err != nil || !goOn {
			return err
		}
	}
	return nil
}

// preempted measures a try to make room.
func (d *driver) preempted(b *batch, i int, result, status string, took time.Duration) {
	b.traced[i].preempted(result, took)
	d.s.metrics.preemptionAttempts.Inc()
	d.s.metrics.preemptions.WithLabelValues(result).Inc()
	d.s.metrics.points.WithLabelValues(pointPostFilter, status, b.signatureOf[i].profile).Observe(took.Seconds())
}

// parkPreemptor parks a pod for which there is no room to be made. Why says so.
func (d *driver) parkPreemptor(ctx context.Context, b *batch, open map[int]bool, i int, why string) error {
	return d.read(ctx, func(st *cluster.State) {
		f := postFilter{clear: true}
		if profile := st.Profile(b.signatureOf[i].profile); profile != nil {
			f.message = engine.PostFilterMessage(profile, why)
		}
		d.sh.with(func(q *pending.Queue, now time.Time) { d.parkOne(q, now, st, b, open, i, f) })
	})
}

// dryRun asks where a pod would fit if pods of lower priority were gone.
func (d *driver) dryRun(ctx context.Context, b *batch, a pending.Attempt, to workers) (fanout.DryRunAnswer, error) {
	least := b.newest
	if d.committed.Epoch == least.Epoch && least.Less(d.committed) {
		least = d.committed
	}
	return to.DryRunPreemption(ctx, fanout.DryRunQuestion{Least: least, Length: b.length, Subject: a.Subject, Pod: a.ID, Seed: b.seed})
}

// evict has the binder evict the best candidate's victims and nominate the pod. It reports false if the binder takes no further
// preemption now.
func (d *driver) evict(
	ctx context.Context, b *batch, open map[int]bool, i int, found fanout.DryRunAnswer, began time.Time,
) (goOn bool, err error) {
	a := b.attempts[i]
	d.reports.withdraw(a.ID)
	request := &binderv1.PreemptRequest{
		Shard: d.sh.number, ShardRevision: d.sh.revision, Version: wire.ToVersion(found.Oldest),
		Attempt: a.Number, Candidate: found.Best,
		Pod: &binderv1.PodReport{Id: int32(a.ID), Uid: a.UID, Reason: reasonUnschedulable, Message: b.parking(i).Message, Attempt: a.Number},
	}
	response, err := askBinder(ctx, d, 1, false, func(ctx context.Context, binder binderv1.BinderServiceClient) (*binderv1.PreemptResponse, error) {
		return binder.Preempt(ctx, request)
	})
	if err != nil {
		d.preempted(b, i, preemptionError, statusError, time.Since(began))
	}
	switch code := status.Code(err); {
	case err == nil:
	case errors.Is(err, errShardLost) || ctx.Err() != nil:
		return false, err
	case code == codes.Aborted || code == codes.ResourceExhausted:
		d.s.metrics.retries.WithLabelValues("preempt_" + snake(code)).Inc()
		if code == codes.ResourceExhausted {
			d.preemptFrom = time.Now().Add(rpc.RetryPause(err, retryCommit))
		}
		d.log.Info("preemption put off", "uid", a.UID, "err", err, b.traced[i].log())
		return false, nil
	default:
		d.log.Error("binder refuses the preemption", "uid", a.UID, "err", err, b.traced[i].log())
		d.fail(b, open, []int{i}, fmt.Sprintf("preempt: %v", err))
		return true, nil
	}
	return true, d.settlePreemption(ctx, b, open, i, response, began)
}

// settlePreemption gives the pod of a preemption its outcome.
func (d *driver) settlePreemption(
	ctx context.Context, b *batch, open map[int]bool, i int, response *binderv1.PreemptResponse, began time.Time,
) error {
	a, version := b.attempts[i], wire.Version(response.GetVersion())
	d.answered(version)
	switch response.GetResult() {
	case binderv1.PreemptResponse_RESULT_STARTED:
		d.preempted(b, i, preemptionStarted, statusSuccess, time.Since(began))
		return d.read(ctx, func(st *cluster.State) {
			d.sh.with(func(q *pending.Queue, now time.Time) { d.parkOne(q, now, st, b, open, i, postFilter{started: true}) })
		})
	case binderv1.PreemptResponse_RESULT_GONE:
		d.preempted(b, i, preemptionGone, statusError, time.Since(began))
		d.sh.with(func(q *pending.Queue, now time.Time) { q.Await(now, a, version) })
		delete(open, i)
	default:
		d.preempted(b, i, preemptionRetry, statusError, time.Since(began))
		if d.tooOften(a) {
			d.fail(b, open, []int{i}, "the pods to be preempted had changed when it came to it")
			return nil
		}
		d.s.metrics.retries.WithLabelValues("preempt").Inc()
	}
	return nil
}
