package gateway

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	memberv1 "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// loaded returns UNAVAILABLE while there is no state to answer from.
func (s *Service) loaded() error {
	if !s.cfg.Replica.Version().IsZero() {
		return nil
	}
	why := "no snapshot yet"
	if err := s.cfg.Replica.Ready(); err != nil {
		why = err.Error()
	}
	return rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "the gateway is loading: %s", why)
}

// told returns what coordination last told, or UNAVAILABLE.
func (s *Service) told() ([]coord.Member, coord.Leader, []coord.ShardOwner, error) {
	if !s.peers.known() {
		return nil, coord.Leader{}, nil, rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "the gateway is starting: etcd has not told the members yet")
	}
	members, leader, shards := s.peers.all()
	return members, leader, shards, nil
}

// GetStatus implements SchedulingService. It answers without a version, and without nodes and pods, while the
// gateway has no replica: that is when people ask what is wrong.
func (s *Service) GetStatus(ctx context.Context, _ *schedulingv1.GetStatusRequest) (*schedulingv1.GetStatusResponse, error) {
	members, leader, shards, err := s.told()
	if err != nil {
		return nil, err
	}
	response := &schedulingv1.GetStatusResponse{Leader: leader.ID, Pods: &schedulingv1.PodCounts{}, Build: s.cfg.Build}

	if s.cfg.Etcd != nil {
		if d, known := s.cfg.Etcd(); known {
			response.Etcd = &schedulingv1.Etcd{SizeBytes: d.Size, InUseBytes: d.InUse, QuotaBytes: d.Quota, Full: d.Full}
		}
	}

	// 1. What the replica knows.
	shardCount, indexes := 0, 0
	if s.loaded() == nil {
		err := s.look(ctx, func(st *cluster.State) {
			response.Version = versionOf(st.Version())
			response.Nodes = int32(st.Nodes.Count())
			response.Pods.Pending = int32(st.Count(cluster.Pending))
			response.Pods.Assumed = int32(st.Count(cluster.Assumed))
			response.Pods.Bound = int32(st.Count(cluster.Bound))
			response.Source, shardCount, indexes = st.Settings.Source, int(st.Settings.Shards), st.Nodes.Len()
		})
		if err != nil {
			return nil, err
		}
	}
	if heard := s.cfg.Replica.Heard(); !heard.IsZero() {
		response.AgeMillis = max(time.Since(heard).Milliseconds(), 0)
	}

	// 2. What the members know: how they are, and what the queues hold.
	answers := make([]*memberv1.GetMemberResponse, len(members))
	depths := make([]*queuev1.GetShardsResponse, len(members))
	errs := s.ask(ctx, members, func(ctx context.Context, i int, conn *grpc.ClientConn) (err error) {
		if answers[i], err = memberv1.NewMemberServiceClient(conn).GetMember(ctx, &memberv1.GetMemberRequest{}); err != nil {
			return err
		}
		if members[i].Role == coord.RoleQueue {
			// A queue that answers for itself but not for its shards is told without depths.
			depths[i], err = queuev1.NewQueueServiceClient(conn).GetShards(ctx, &queuev1.GetShardsRequest{})
			if err != nil {
				s.cfg.Log.Debug("queue does not tell its shards", "member", members[i].ID, "err", err)
			}
		}
		return nil
	})

	// 3. Together.
	head := s.cfg.Replica.Head()
	for i, answer := range answers {
		if errs[i] == nil {
			head = later(later(head, fromLog(answer.GetHead())), fromLog(answer.GetVersion()))
		}
	}
	workers := rangesOf(members, indexes)
	for i, m := range members {
		member := memberOf(m, answers[i], errs[i], head)
		member.Range = workers[m.ID]
		response.Members = append(response.Members, member)
	}
	slices.SortFunc(response.Members, func(a, b *schedulingv1.Member) int {
		return cmp.Or(cmp.Compare(a.GetRole(), b.GetRole()), cmp.Compare(a.GetId(), b.GetId()))
	})
	response.Shards = shardsOf(shardCount, shards, members, depths)
	return response, nil
}

// rangesOf returns, by member, the nodes that queue members ask each worker about: the first range is the first worker's, and so
// on, in the order in which etcd tells the members.
func rangesOf(members []coord.Member, indexes int) map[string]*schedulingv1.NodeRange {
	ranges := make(map[string]*schedulingv1.NodeRange)
	for _, role := range []coord.Role{coord.RoleFilterWorker, coord.RoleScoreWorker} {
		var workers []string
		for _, m := range members {
			if m.Role == role {
				workers = append(workers, m.ID)
			}
		}
		for i, r := range cluster.Ranges(indexes, len(workers), cluster.LeastRange) {
			if i < len(workers) {
				ranges[workers[i]] = &schedulingv1.NodeRange{First: int32(r.First), End: int32(min(int(r.End), indexes))}
			}
		}
	}
	return ranges
}

// memberOf says how a member is; err is why it did not answer.
func memberOf(m coord.Member, answer *memberv1.GetMemberResponse, err error, head cluster.Version) *schedulingv1.Member {
	member := &schedulingv1.Member{Role: string(m.Role), Id: m.ID, Address: m.Address, Lag: -1}
	switch {
	case err != nil:
		member.NotReadyBecause = "it does not answer: " + status.Convert(err).Message()
		return member
	case answer.GetId() != m.ID || answer.GetRole() != string(m.Role):
		member.NotReadyBecause = fmt.Sprintf("%s %s answers at its address", answer.GetRole(), answer.GetId())
		return member
	}
	member.Ready, member.NotReadyBecause = answer.GetReady(), answer.GetNotReadyBecause()
	member.Build, member.Started = answer.GetBuild(), answer.GetStarted()
	if v := fromLog(answer.GetVersion()); !v.IsZero() {
		member.Version = versionOf(v)
		if v.Epoch == head.Epoch {
			member.Lag = int64(head.Seq - v.Seq)
		}
	}
	return member
}

// shardsOf lists the shards, with the depths that their owners have told. There are count of them; while that is not
// known, those that have an owner.
func shardsOf(count int, owners []coord.ShardOwner, members []coord.Member, depths []*queuev1.GetShardsResponse) []*schedulingv1.Shard {
	byOwner := make(map[string]*queuev1.GetShardsResponse)
	for i, m := range members {
		if depths[i] != nil {
			byOwner[m.ID] = depths[i]
		}
	}
	var shards []*schedulingv1.Shard
	for n := range count {
		shards = append(shards, &schedulingv1.Shard{Shard: int32(n)})
	}
	for _, o := range owners {
		if count == 0 {
			shards = append(shards, &schedulingv1.Shard{Shard: int32(o.Shard)})
		}
		k := slices.IndexFunc(shards, func(s *schedulingv1.Shard) bool { return s.GetShard() == int32(o.Shard) })
		if k < 0 {
			continue // left over from an epoch with more shards
		}
		shards[k].Owner = o.Owner
		for _, d := range byOwner[o.Owner].GetShards() {
			if d.GetShard() == int32(o.Shard) {
				shards[k].Depth = &schedulingv1.QueueDepth{
					Gated: d.GetGated(), Active: d.GetActive(), Backoff: d.GetBackoff(),
					Unschedulable: d.GetUnschedulable(), InFlight: d.GetInFlight(),
				}
				shards[k].PriorityFloor = d.PriorityFloor
			}
		}
	}
	return shards
}

func fromLog(v *logv1.Version) cluster.Version {
	return cluster.Version{Epoch: cluster.Epoch(v.GetEpoch()), Seq: cluster.Seq(v.GetSeq())}
}

func later(a, b cluster.Version) cluster.Version {
	if a.Less(b) {
		return b
	}
	return a
}
