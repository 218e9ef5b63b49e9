package gateway

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// maxPriorities is how many priorities GetQueue tells apart.
const maxPriorities = 100

// GetQueue implements SchedulingService. Like ListPods it looks at every pod once.
func (s *Service) GetQueue(ctx context.Context, _ *schedulingv1.GetQueueRequest) (*schedulingv1.GetQueueResponse, error) {
	response := &schedulingv1.GetQueueResponse{}
	pending := make(map[int32]int32) // by priority
	shards := 0
	err := s.read(ctx, func(st *cluster.State) {
		response.Version = versionOf(st.Version())
		shards = int(st.Settings.Shards)
		for _, p := range st.Pods() {
			if !p.Placed() {
				pending[p.Priority]++
			}
		}
	})
	if err != nil {
		return nil, err
	}
	response.Arrived_10S, response.Placed_10S = s.rates.within(10)
	response.Arrived_60S, response.Placed_60S = s.rates.within(60)

	members, _, owners := s.peers.all()
	response.Shards = shardsOf(shards, owners, members, s.askShards(ctx, members))
	response.Priorities = prioritiesOf(pending, response.GetShards())
	return response, nil
}

// askShards asks the queue members among these for their shards: one answer per member, nil where there is none.
func (s *Service) askShards(ctx context.Context, members []coord.Member) []*queuev1.GetShardsResponse {
	answers := make([]*queuev1.GetShardsResponse, len(members))
	errs := s.ask(ctx, members, func(ctx context.Context, i int, conn *grpc.ClientConn) (err error) {
		if members[i].Role == coord.RoleQueue {
			answers[i], err = queuev1.NewQueueServiceClient(conn).GetShards(ctx, &queuev1.GetShardsRequest{})
		}
		return err
	})
	for i, err := range errs {
		if err != nil {
			answers[i] = nil
			s.cfg.Log.Debug("queue does not tell its shards", "member", members[i].ID, "err", err)
		}
	}
	return answers
}

// prioritiesOf lists the pending pods by priority, highest first. What is beyond maxPriorities is added to the last.
func prioritiesOf(pending map[int32]int32, shards []*schedulingv1.Shard) []*schedulingv1.PriorityCount {
	var counts []*schedulingv1.PriorityCount
	for _, priority := range slices.SortedFunc(maps.Keys(pending), func(a, b int32) int { return cmp.Compare(b, a) }) {
		if len(counts) == maxPriorities {
			counts[maxPriorities-1].Pending += pending[priority]
			continue
		}
		counts = append(counts, &schedulingv1.PriorityCount{Priority: priority, Pending: pending[priority]})
	}
	for _, shard := range shards {
		if shard.PriorityFloor == nil {
			continue
		}
		for _, count := range counts {
			if count.GetPriority() == shard.GetPriorityFloor() {
				count.Shards = append(count.Shards, shard.GetShard())
			}
		}
	}
	return counts
}
