package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

const (
	// mostEntering is how many pods are asked about at a time, of each profile.
	mostEntering = 64
	// preEnqueueWithin is how long the binder may take to have services say which of them may be tried, one service after the other, each behind pods of other shards.
	preEnqueueWithin = mostAskMillis * time.Millisecond
	// logAgain is how often it is logged that the binder refuses.
	logAgain = 10 * time.Second
)

// doorkeeper has the binder ask plugins of others which pods of a shard may be tried: kube-scheduler's PreEnqueue. Of each profile some pods are asked about at a time, so that services which hang hold up no pods that do not use
// them; nobody else waits for any of it.
type doorkeeper struct {
	d       *driver
	answers chan string // profiles whose pods have been asked about

	mu     sync.Mutex
	logged time.Time // when it was logged last that the binder refuses
}

func newDoorkeeper(d *driver) *doorkeeper { return &doorkeeper{d: d, answers: make(chan string)} }

// run asks until ctx ends, or the shard is drained.
func (k *doorkeeper) run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	busy := make(map[string]bool)
	for {
		pods, next := k.d.sh.entering(busy)
		if len(pods) > 0 {
			busy[pods[0].Profile] = true
			asking.Go(func() {
				k.ask(ctx, pods)
				select {
				case k.answers <- pods[0].Profile:
				case <-ctx.Done():
				}
			})
			continue
		}
		if !k.await(ctx, next, busy) {
			return
		}
	}
}

// await waits until somebody may be to be asked about: at next, or never if that is zero, unless something happens before. False: nobody is any more.
func (k *doorkeeper) await(ctx context.Context, next time.Time, busy map[string]bool) bool {
	due, stop := at(next)
	defer stop()
	select {
	case <-ctx.Done():
		return false
	case <-k.d.sh.draining:
		return false
	case profile := <-k.answers:
		delete(busy, profile)
	case <-k.d.sh.enters:
	case <-due:
	}
	return true
}

// ask asks about pods of a profile, and gives each its outcome.
func (k *doorkeeper) ask(ctx context.Context, pods []pending.Entering) {
	request := &binderv1.AskPreEnqueueRequest{Shard: k.d.sh.number, ShardRevision: k.d.sh.revision}
	for _, p := range pods {
		pod := &binderv1.EnteringPod{
			Id: int32(p.ID), Uid: p.UID, OnlySorts: p.OnlySorts, SinceUnixNanos: p.Since.UnixNano(), FirstUnixNanos: p.First.UnixNano(), Arrival: p.Arrival, Attempts: p.Attempts, Unschedulable: int32(p.Unschedulable), Errors: int32(p.Errors),
		}
		request.Pods = append(request.Pods, pod)
	}
	k.d.sh.peek(func(q *pending.Queue) { request.Version = wire.ToVersion(q.Version()) })
	began := time.Now()
	response, err := askBinderWithin(ctx, k.d, preEnqueueWithin, len(pods), always, func(ctx context.Context, binder binderv1.BinderServiceClient) (*binderv1.AskPreEnqueueResponse, error) {
		return binder.AskPreEnqueue(ctx, request)
	})
	took := time.Since(began)
	k.d.s.metrics.stage.WithLabelValues("ask_pre_enqueue").Observe(took.Seconds())
	why := ""
	switch {
	case ctx.Err() != nil: // whoever has the shard next asks anew
		return
	case errors.Is(err, errShardLost):
		k.d.end(err)
		return
	case status.Code(err) == codes.Aborted:
		why = "the binder is another one: it is asked again whether the pod may be tried"
	case err != nil:
		k.refused(len(pods), err)
		why = "pre-enqueue: " + status.Convert(err).Message()
	case len(response.GetEntrances()) != len(pods):
		why = fmt.Sprintf("pre-enqueue: the binder has answered about %d pods, and was asked about %d", len(response.GetEntrances()), len(pods))
		k.refused(len(pods), errors.New(why))
	}
	k.d.sh.with(func(q *pending.Queue, now time.Time) {
		for i, p := range pods {
			if why != "" {
				q.Unanswered(now, p, why)
				continue
			}
			measured := statusUnschedulable
			switch e := response.GetEntrances()[i]; e.GetResult() {
			case binderv1.Entrance_RESULT_ENTERS:
				q.Admit(now, p, pending.SortKey{Order: e.GetSortOrder(), Key: e.GetSortKey()})
				measured = statusSuccess
			case binderv1.Entrance_RESULT_GATED:
				q.Keep(now, p, e.GetPlugin(), e.GetMessage(), e.GetTold())
			case binderv1.Entrance_RESULT_GONE: // the log tells
				q.Unanswered(now, p, "the pod is gone")
				continue
			default:
				q.Unanswered(now, p, e.GetMessage())
				measured = statusError
			}
			if p.OnlySorts {
				continue
			}
			k.d.s.metrics.points.WithLabelValues(pointPreEnqueue, measured, p.Profile).Observe(took.Seconds())
		}
	})
}

// refused logs that the binder refuses, now and then: each of many pods is asked about again.
func (k *doorkeeper) refused(pods int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); now.Sub(k.logged) >= logAgain {
		k.logged = now
		k.d.log.Error("binder refuses to have plugins say which pods may be tried", "pods", pods, "err", err)
	}
}
