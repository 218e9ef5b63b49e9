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

// groupWithin is how long the binder may take for the pods of a PodGroup each time that it is asked.
const groupWithin = time.Minute

// placeGroup has the binder place the pods of the batch, which are those of a PodGroup that wait: it finds their places itself, for where one goes depends on where the others do.
func (c *cycle) placeGroup(ctx context.Context) error {
	c.logGroup()
	sent := c.attempts
	request := &binderv1.PlaceGroupRequest{
		Shard: c.sh.number, ShardRevision: c.sh.revision, Version: wire.ToVersion(c.least), Namespace: c.group.Namespace, Name: c.group.Name,
	}
	c.s.mu.Lock() // what the log tells of their binds is told both binding and the queue before this, or neither
	for _, a := range sent {
		request.Pods = append(request.Pods, &binderv1.PodAttempt{Id: int32(a.ID), Uid: a.UID, Attempt: a.Number})
		c.s.binding.begin(a.ID, a.signature.profile, c.popped, a.traced)
	}
	c.s.mu.Unlock()
	defer func() {
		for _, a := range sent {
			if !a.placed {
				c.s.binding.end(a.ID, c.popped)
			}
		}
	}()
	var response *binderv1.PlaceGroupResponse
	took, err := c.stage("group", func() (err error) {
		response, err = askBinderWithin(ctx, c.driver, groupWithin, len(sent), func(refused error) bool { return rpc.ReasonOf(refused) != "GROUPS_BUSY" }, func(ctx context.Context, binder binderv1.BinderServiceClient) (*binderv1.PlaceGroupResponse, error) {
			return binder.PlaceGroup(ctx, request)
		})
		return err
	})
	c.s.metrics.groupAlgorithm.Observe(took.Seconds())
	switch {
	case err == nil && len(response.GetPods()) != len(sent):
		err = errNoOutcome
	case status.Code(err) == codes.Aborted:
		again(sent, "aborted")
		return nil
	case rpc.ReasonOf(err) == "GROUPS_BUSY": // another group takes long: those behind this one do not wait for that
		c.postpone(sent, "groups_busy")
		return nil
	case errors.Is(err, errShardLost) || ctx.Err() != nil:
		return err
	}
	if err != nil {
		c.log.Error("binder refuses the PodGroup", "podGroup", c.group.String(), "pods", len(sent), "err", err)
		c.groupDecided(resultError)
		c.fail(sent, fmt.Sprintf("place group: %v", err))
		return nil
	}
	if result := groupResult(response); result != "" {
		c.groupDecided(result)
	}
	return c.settleGroup(ctx, sent, response)
}

// settleGroup gives every pod of a PodGroup its outcome.
func (c *cycle) settleGroup(ctx context.Context, sent []*attempt, response *binderv1.PlaceGroupResponse) error {
	version := wire.Version(response.GetVersion())
	c.answered(version)
	var stuck, busy, postponed, failed []*attempt
	diagnoses := make(map[*attempt]pending.Diagnosis)
	why := ""
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
			if is.GetError() == "" {
				busy = append(busy, a)
			} else {
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
	c.backOff(busy, busyMessage, false)
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
