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
	"github.com/berth-scheduler/berth/services/queue/pending"
)

const (
	// retryCommit is how long to wait before a commit is sent again when nobody said how long.
	retryCommit = 50 * time.Millisecond
	// mostMisfits is how often in a row the binder may find no node where workers found some, before the pod backs off.
	mostMisfits = 3
)

var errNoOutcome = errors.New("the binder's answer does not match the request")

// commit hands the pods that can go somewhere to the binder, in queue order. It returns those that preempt because they
// fit nowhere after all.
func (d *driver) commit(ctx context.Context, b *batch, open map[int]bool) (preemptors []int, err error) {
	// 1. Write the request.
	from := b.oldest() // of another epoch, it is refused
	request := &binderv1.CommitRequest{Shard: d.sh.number, ShardRevision: d.sh.revision, Version: wire.ToVersion(from)}
	index := make(map[*signatureWork]int32)
	var sent []int
	for i, a := range b.attempts {
		if !open[i] || !b.goes[i] {
			continue
		}
		w, on := b.signatureOf[i], b.nodeWorkOf[i]
		pod := &binderv1.PodAttempt{Id: int32(a.ID), Uid: a.UID, Attempt: a.Number, SubjectIndex: -1}
		switch {
		case a.RequiredNode != "":
		case len(w.groups) > 0:
			at, ok := index[w]
			if !ok {
				at = int32(len(request.Subjects))
				index[w] = at
				groups := w.groups
				if d.byImages != from.Epoch {
					groups = engine.WithoutImages(w.seed, groups)
				}
				request.Subjects = append(request.Subjects, &binderv1.SubjectCandidates{
					Subject: wire.ToSubject(w.subject), Groups: wire.ToGroups(groups),
				})
			}
			pod.SubjectIndex = at
		case on == nil || !on.Feasible:
			continue // its nodes were gone before they could be scored
		}
		sent = append(sent, i)
		request.Pods = append(request.Pods, pod)
	}
	if len(sent) == 0 {
		return nil, nil
	}
	// 2. Send it until the outcome is known.
	for _, i := range sent {
		d.s.binding.begin(b.attempts[i].ID, b.signatureOf[i].profile, b.popped, b.traced[i])
	}
	defer func() {
		for _, i := range sent {
			if !b.placed[i] {
				d.s.binding.end(b.attempts[i].ID)
			}
		}
	}()
	response, err := askBinder(ctx, d, len(sent), true, func(ctx context.Context, binder binderv1.BinderServiceClient) (*binderv1.CommitResponse, error) {
		return binder.Commit(ctx, request)
	})
	switch {
	case err == nil && len(response.GetOutcomes()) != len(sent):
		err = errNoOutcome
	case status.Code(err) == codes.Aborted:
		d.s.metrics.retries.WithLabelValues("aborted").Add(float64(len(sent)))
		d.log.Info("commit aborted, its pods are tried again", "pods", len(sent), "err", err)
		return nil, nil
	case errors.Is(err, errShardLost) || ctx.Err() != nil:
		return nil, err
	case rpc.TooLarge(err):
		return nil, d.tooLarge(ctx, b, open, "commit", err)
	}
	if err != nil {
		d.log.Error("binder refuses the commit", "pods", len(sent), "err", err)
		d.fail(b, open, sent, fmt.Sprintf("commit: %v", err))
		return nil, nil
	}
	// 3. Take the outcomes in.
	if response.GetByImages() {
		d.byImages = wire.Version(response.GetVersion()).Epoch
	}
	return d.shelve(ctx, b, open, d.settle(b, open, sent, response))
}

// settle gives every pod of a commit its outcome, but for those it returns: the pods ahead of them have not changed that
// no node fits, which the filter-workers had said.
func (d *driver) settle(b *batch, open map[int]bool, sent []int, response *binderv1.CommitResponse) (unchanged []int) {
	var tooOften []int
	exhausted := false
	version := wire.Version(response.GetVersion())
	d.answered(version)
	d.sh.with(func(q *pending.Queue, now time.Time) {
		for k, i := range sent {
			a := b.attempts[i]
			switch result := response.GetOutcomes()[k].GetResult(); result {
			case binderv1.Outcome_RESULT_ASSUMED, binderv1.Outcome_RESULT_PLACED:
				d.progress++
				d.s.metrics.algorithm.Observe(time.Since(b.popped).Seconds())
				b.placed[i] = true
				q.Await(now, a, version)
				delete(open, i)
			case binderv1.Outcome_RESULT_GONE:
				q.Await(now, a, version)
				delete(open, i)
			case binderv1.Outcome_RESULT_NO_FIT:
				if b.outlook(i) == hopeful {
					unchanged = append(unchanged, i)
					continue
				}
				// The next cycle asks the workers again, at this version or later, and then knows why.
				if d.tooOften(a) {
					tooOften = append(tooOften, i)
				} else {
					d.s.metrics.retries.WithLabelValues("no_fit").Inc()
				}
			default:
				exhausted = true
				d.s.metrics.retries.WithLabelValues("retry").Inc()
			}
		}
	})
	d.reach = d.reach.after(len(b.attempts), exhausted)
	d.fail(b, open, tooOften, "no node was left when the pod's turn came")
	return unchanged
}

// answered notes a version that the binder has answered.
func (d *driver) answered(version cluster.Version) {
	if d.committed.Less(version) {
		d.committed = version
	}
}

// tooOften counts that the binder did not find for a pod what workers had found, and reports whether this has happened
// so often in a row that the pod has to back off.
func (d *driver) tooOften(a pending.Attempt) bool {
	n := d.misfits[a.UID] + 1
	if n >= mostMisfits {
		return true
	}
	d.again[a.UID] = n
	return false
}

// askBinder puts a question about so many pods to whoever is the active binder until it is known what became of it. To
// ask twice is safe: the binder knows attempts by pod and number. Unless patient it does not wait for a binder that has
// too much to do.
func askBinder[Res any](
	ctx context.Context, d *driver, pods int, patient bool,
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
		response, err := askBinderOnce(ctx, d.s, now.leader.Address, ask)
		if err == nil {
			return response, nil
		}
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		switch code := status.Code(err); code {
		case codes.ResourceExhausted:
			if !patient {
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
	ctx context.Context, s *Service, address string, ask func(context.Context, binderv1.BinderServiceClient) (Res, error),
) (Res, error) {
	conn, err := s.cfg.Clients.Conn(address)
	if err != nil {
		var none Res
		return none, status.Errorf(codes.Unavailable, "connect to %s: %v", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.CommitTimeout)
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
