package gateway

import (
	"context"

	"google.golang.org/grpc"

	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// addPending adds to the pods that are not placed what the queue members know of them.
func (s *Service) addPending(ctx context.Context, pods []*schedulingv1.Pod) {
	var uids []string
	for _, pod := range pods {
		if !isPlaced(pod) {
			uids = append(uids, pod.GetUid())
		}
	}
	known := s.pending(ctx, uids, false)
	for _, pod := range pods {
		if detail := known[pod.GetUid()]; detail != nil {
			setPending(pod, detail)
		}
	}
}

// isPlaced reports what the ledger says of a pod. If it is not placed, a queue knows more.
func isPlaced(pod *schedulingv1.Pod) bool {
	return pod.GetState() != schedulingv1.PodState_POD_STATE_UNSPECIFIED
}

// pending returns what the queue members know of pods, by uid: one call per member. What a member holds that does not answer is
// missing. Ahead asks who is ahead of them, too.
func (s *Service) pending(ctx context.Context, uids []string, ahead bool) map[string]*queuev1.PendingPod {
	queues, owners := s.peers.queues()
	if len(uids) == 0 || len(queues) == 0 {
		return nil
	}
	answers := make([]*queuev1.GetPendingResponse, len(queues))
	errs := s.ask(ctx, queues, func(ctx context.Context, i int, conn *grpc.ClientConn) (err error) {
		answers[i], err = queuev1.NewQueueServiceClient(rpc.RetryRefused(conn)).GetPending(ctx, &queuev1.GetPendingRequest{Uids: uids, Ahead: ahead})
		return err
	})
	known := make(map[string]*queuev1.PendingPod, len(uids))
	for i, queue := range queues {
		if errs[i] != nil {
			s.cfg.Log.Debug("queue does not tell its pods", "member", queue.ID, "err", errs[i])
			continue
		}
		for _, detail := range answers[i].GetPods() {
			// While a shard moves, the old owner may still answer for it: the owner's word is the last one.
			if known[detail.GetUid()] == nil || owners[int(detail.GetShard())] == queue.ID {
				known[detail.GetUid()] = detail
			}
		}
	}
	return known
}

// setPending says what a shard knows of a pod.
func setPending(pod *schedulingv1.Pod, detail *queuev1.PendingPod) {
	pod.State = podStates[detail.GetState()]
	pod.Since = detail.GetSince()
	pod.Attempts = detail.GetAttempts()
	pod.Message = detail.GetMessage()
	pod.Verdicts = verdictsOf(detail.GetVerdicts())
	pod.Shard = detail.GetShard()
	pod.Position = detail.GetPosition()
	for _, a := range detail.GetAhead() {
		pod.Ahead = append(pod.Ahead, &schedulingv1.Ahead{Priority: a.GetPriority(), Pods: a.GetPods(), Namespace: a.GetNamespace(), Name: a.GetName()})
	}
}

var podStates = map[queuev1.State]schedulingv1.PodState{
	queuev1.State_STATE_GATED:         schedulingv1.PodState_POD_STATE_GATED,
	queuev1.State_STATE_ACTIVE:        schedulingv1.PodState_POD_STATE_ACTIVE,
	queuev1.State_STATE_BACKOFF:       schedulingv1.PodState_POD_STATE_BACKOFF,
	queuev1.State_STATE_UNSCHEDULABLE: schedulingv1.PodState_POD_STATE_UNSCHEDULABLE,
	queuev1.State_STATE_IN_FLIGHT:     schedulingv1.PodState_POD_STATE_IN_FLIGHT,
}

func verdictsOf(counts []*filterv1.VerdictCount) []*schedulingv1.Verdict {
	verdicts := make([]*schedulingv1.Verdict, 0, len(counts))
	for _, c := range counts {
		verdicts = append(verdicts, &schedulingv1.Verdict{
			Plugin: c.GetPlugin(), Reason: c.GetReason(), Unresolvable: c.GetUnresolvable(),
			Nodes: c.GetCount(), Examples: c.GetExamples(),
		})
	}
	return verdicts
}
