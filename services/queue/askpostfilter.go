package queue

import (
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/trace"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

const (
	// postFilterWithin is how long the binder may take to have plugins look for a way, once it is the pod's turn: a little longer than it gives them.
	postFilterWithin = 10 * time.Minute
	// noWayMessage is told of a pod that fits somewhere each time that plugins are to look for a way for it, and nowhere each time that it is tried.
	noWayMessage = "again and again, what fits the pod had changed when plugins were to look for a way for it"
)

// postFilterQuestion is a pod that fits nowhere, and for which plugins of others look for a way: those that postFilter.asks names.
type postFilterQuestion struct{ postFilter }

// said is what plugins of others have said that were to look for a way before preemption, and have found none.
type said struct {
	attempt pending.Attempt
	epoch   cluster.Epoch
	by      map[string]string // by the first of those that have said it together
	clears  bool              // the pod is to be nominated to no node any more
}

// heard returns what has come of PostFilter once preemption has said why it does nothing: what is told, with what plugins of others have said before, and whom to ask behind it.
func (s *said) heard(profile *cluster.Profile, why string, f postFilter) postFilter {
	var by map[string]string
	if s != nil {
		by, f.clear = s.by, f.clear || s.clears
	}
	f.message = engine.PostFilterMessage(profile, why, by)
	if _, behind := engine.ForeignPostFilters(profile); len(behind) > 0 {
		f.asks, f.behind, f.why = behind, true, why
	}
	return f
}

// turnOfPostFilter is the turn of pods of a profile for which plugins look for a way: of those, one is asked about at a time. The binder knows whose turn it is besides.
func turnOfPostFilter(profile string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(profile))
	return h.Sum64() | 1<<63
}

// leaveNowhere has plugins of others look for a way for a pod that fits nowhere, once the locks are free. It waits for nobody in this cycle, and nobody waits for it. The caller holds the shard's lock.
func (c *cycle) leaveNowhere(q *pending.Queue, a *attempt, f postFilter) {
	a.at, a.asked = q.Leave(a.Attempt)
	a.open = false
	c.progress++
	if n, ok := c.vain[a.UID]; ok { // that it is asked about settles nothing
		c.stillVain[a.UID] = n
	}
	if a.asked {
		c.toAsk = append(c.toAsk, &question{
			Attempt: a.Attempt, attemptBegun: attemptBegun{a.signature.profile, c.popped, a.traced}, at: a.at, version: c.newest, turn: turnOfPostFilter(a.signature.profile),
			nowhere: c.nowhere(a), postFilter: &postFilterQuestion{f},
		})
	}
}

// askPostFilters has those asked about that were left.
func (c *cycle) askPostFilters(ctx context.Context) {
	if len(c.toAsk) > 0 {
		c.asker.add(trace.Untraced(ctx), c.toAsk)
		c.toAsk = nil
	}
}

// postFilter has plugins look for a way for one pod, and gives it its outcome.
func (k *asker) postFilter(ctx context.Context, q *question) {
	request := &binderv1.AskPostFilterRequest{
		Shard: k.d.sh.number, ShardRevision: k.d.sh.revision, Version: wire.ToVersion(q.version), Attempt: q.Number, Plugins: q.postFilter.asks,
		Pod: &binderv1.PodReport{Id: int32(q.ID), Uid: q.UID, Reason: reasonUnschedulable, Message: q.nowhere.diagnosis.Message, Attempt: q.Number},
	}
	k.d.reports.withdraw(q.ID)
	began := time.Now()
	response, err := askBinderWithin(ctx, k.d, postFilterWithin, 1, always, func(ctx context.Context, binder binderv1.BinderServiceClient) (*binderv1.AskPostFilterResponse, error) {
		return binder.AskPostFilter(ctx, request)
	})
	took := time.Since(began)
	k.d.s.metrics.stage.WithLabelValues("ask_post_filter").Observe(took.Seconds())
	measure := func(status string) {
		k.d.s.metrics.points.WithLabelValues(pointPostFilter, status, q.profile).Observe(took.Seconds())
	}
	if err != nil {
		measure(statusError)
	}
	switch {
	case ctx.Err() != nil:
		k.over(q, tracedUnknown)
	case errors.Is(err, errShardLost):
		k.over(q, tracedUnknown)
		k.d.end(err)
	case status.Code(err) == codes.Aborted:
		k.retry(q, "post_filter_aborted")
	case err != nil:
		k.d.log.Error("binder refuses to have plugins look for a way", "uid", q.UID, "err", err, q.traced.log())
		k.fail(q, "post-filter: "+status.Convert(err).Message(), true)
	default:
		k.settlePostFilter(ctx, q, response, measure)
	}
}

// settlePostFilter gives a pod its outcome.
func (k *asker) settlePostFilter(ctx context.Context, q *question, response *binderv1.AskPostFilterResponse, measure func(status string)) {
	f, result := q.postFilter.postFilter, response.GetResult()
	f.asks = nil
	if result != binderv1.AskPostFilterResponse_RESULT_RETRY && (result != binderv1.AskPostFilterResponse_RESULT_NONE || f.behind) { // else preemption, which is next, may come to nothing each time
		k.forget(q.UID)
	}
	switch result {
	case binderv1.AskPostFilterResponse_RESULT_NOMINATED:
		measure(statusSuccess)
		k.reject(ctx, q, func(*cluster.Profile) postFilter { return postFilter{started: true} })
	case binderv1.AskPostFilterResponse_RESULT_SUCCESS:
		measure(statusSuccess)
		k.reject(ctx, q, func(*cluster.Profile) postFilter {
			return postFilter{clear: response.GetClearsNomination(), asked: true}
		})
	case binderv1.AskPostFilterResponse_RESULT_ENDS:
		measure(statusUnschedulable)
		f.message, f.clear, f.gaveUp, f.asked = response.GetMessage(), response.GetClearsNomination(), false, true
		k.reject(ctx, q, func(*cluster.Profile) postFilter { return f })
	case binderv1.AskPostFilterResponse_RESULT_NONE:
		measure(statusUnschedulable)
		by := map[string]string{q.postFilter.asks[0]: response.GetMessage()}
		if !f.behind {
			k.goOn(q, said{q.Attempt, wire.Version(response.GetVersion()).Epoch, by, response.GetClearsNomination()})
			return
		}
		if s := q.nowhere.said; s != nil {
			maps.Copy(by, s.by)
		}
		f.clear = f.clear || response.GetClearsNomination()
		k.reject(ctx, q, func(p *cluster.Profile) postFilter {
			f.message = engine.PostFilterMessage(p, f.why, by)
			return f
		})
	case binderv1.AskPostFilterResponse_RESULT_FAILED:
		measure(statusError)
		k.fail(q, response.GetMessage(), true)
	case binderv1.AskPostFilterResponse_RESULT_GONE:
		measure(statusError)
		k.over(q, tracedGone)
		k.d.sh.with(func(queue *pending.Queue, now time.Time) {
			queue.Await(now, q.Attempt, wire.Version(response.GetVersion()), pending.Unresolved)
		})
	default:
		measure(statusError)
		if k.tooOften(q) {
			k.fail(q, noWayMessage, true)
			return
		}
		k.retry(q, "post_filter")
	}
}

// goOn has the next attempt of a pod go on behind plugins that have found no way.
func (k *asker) goOn(q *question, is said) {
	k.mu.Lock()
	k.sweep()
	k.said[q.UID] = is
	if r := q.nowhere.refused; r != nil {
		k.refusals[q.UID] = refusal{q.Attempt, r.version, r.verdicts, r.again || q.Again}
	}
	k.mu.Unlock()
	k.retry(q, "post_filter_next")
}

// takeSaid returns what plugins of others have said of the attempt of a pod just before that one, in that epoch, nil if they have not been asked in it, or the pod is not what it was.
func (k *asker) takeSaid(a *pending.Attempt, epoch cluster.Epoch) *said {
	k.mu.Lock()
	defer k.mu.Unlock()
	s, ok := k.said[a.UID]
	if !ok {
		return nil
	}
	delete(k.said, a.UID)
	if !goesOn(&s.attempt, a) || s.epoch != epoch {
		return nil
	}
	return &s
}
