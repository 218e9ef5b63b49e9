package gateway_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// status asks until as many members and owned shards are told.
func (b *berth) status(members, owned int) *schedulingv1.GetStatusResponse {
	b.t.Helper()
	var got *schedulingv1.GetStatusResponse
	b.eventually(fmt.Sprintf("status tells %d members and %d owned shards", members, owned), func() bool {
		var err error
		if got, err = b.client.GetStatus(b.ctx, &schedulingv1.GetStatusRequest{}); err != nil {
			b.t.Fatal(err)
		}
		n := 0
		for _, s := range got.GetShards() {
			if s.GetOwner() != "" {
				n++
			}
		}
		return len(got.GetMembers()) == members && n == owned
	})
	return got
}

func TestStatusTellsMembersLagAndShards(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, append(crowd(4), assumed(3, 0), assumed(2, 0), cluster.PodBound{ID: 2})...)),
		with(func(cfg *gateway.Config) {
			cfg.Build, cfg.Etcd = "v1.2.4", func() (coord.Database, bool) { return coord.Database{Size: 3, InUse: 2, Quota: 4, Full: true}, true }
		}))
	b.ledger.apply(t, node(1), node(2), node(3))
	b.join(&peer{role: coord.RoleBinder, id: "binder-0", version: cluster.Version{Epoch: 7, Seq: 5}})
	b.join(&peer{role: coord.RoleFilterWorker, id: "f-0", version: cluster.Version{Epoch: 7, Seq: 1}})
	b.join(&peer{role: coord.RoleFilterWorker, id: "f-1", version: cluster.Version{Epoch: 6, Seq: 90}, ready: errors.New("another epoch")})
	b.join(&peer{role: coord.RoleQueue, id: "q-0", version: cluster.Version{Epoch: 7, Seq: 5}, shards: []*queuev1.Shard{
		{Shard: 0, Gated: 1, Active: 2, Backoff: 3, Unschedulable: 4, InFlight: 5},
		{Shard: 1, Active: 77}, // not its own
	}})
	b.cast.change(func() { b.cast.shards = []coord.ShardOwner{{Shard: 0, Owner: "q-0"}, {Shard: 9, Owner: "q-0"}} })

	got := b.status(4, 1)
	if got.GetAgeMillis() < 1000 || got.GetAgeMillis() > 60_000 {
		t.Errorf("age %d ms, want what has passed since the binder was heard", got.GetAgeMillis())
	}
	want := &schedulingv1.GetStatusResponse{
		Version: &schedulingv1.Version{Epoch: 7, Seq: 3}, Leader: "binder-0", AgeMillis: got.GetAgeMillis(), Source: "local", Build: "v1.2.4",
		Etcd: &schedulingv1.Etcd{SizeBytes: 3, InUseBytes: 2, QuotaBytes: 4, Full: true},
		Members: []*schedulingv1.Member{
			{Role: "binder", Id: "binder-0", Address: "binder-0", Version: &schedulingv1.Version{Epoch: 7, Seq: 5}, Ready: true},
			{
				Role: "filter-worker", Id: "f-0", Address: "f-0", Version: &schedulingv1.Version{Epoch: 7, Seq: 1}, Lag: 4, Ready: true,
				Range: &schedulingv1.NodeRange{End: 4},
			},
			{
				Role: "filter-worker", Id: "f-1", Address: "f-1", Version: &schedulingv1.Version{Epoch: 6, Seq: 90}, Lag: -1,
				NotReadyBecause: "another epoch",
			},
			{Role: "queue", Id: "q-0", Address: "q-0", Version: &schedulingv1.Version{Epoch: 7, Seq: 5}, Ready: true},
		},
		Shards: []*schedulingv1.Shard{
			{Shard: 0, Owner: "q-0", Depth: &schedulingv1.QueueDepth{Gated: 1, Active: 2, Backoff: 3, Unschedulable: 4, InFlight: 5}},
			{Shard: 1},
		},
		Nodes: 4,
		Pods:  &schedulingv1.PodCounts{Pending: 2, Assumed: 1, Bound: 1},
	}
	for _, m := range want.Members {
		m.Build, m.Started = "v1.2.3", timestamppb.New(started)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("GetStatus (-want +got):\n%s", diff)
	}
}

func TestMembersThatDoNotAnswerAreListedWithWhy(t *testing.T) {
	b := start(t, withState(stateOf(t, 7)), with(func(cfg *gateway.Config) { cfg.PeerTimeout = time.Second }))
	b.join(&peer{role: coord.RoleScoreWorker, id: "s-0"})
	b.member(coord.Member{Role: coord.RoleScoreWorker, ID: "s-1", Address: "nobody"})
	b.member(coord.Member{Role: coord.RoleScoreWorker, ID: "s-2", Address: "s-0"}) // which is another's
	got := b.status(3, 0)
	if m := got.GetMembers()[0]; !m.GetReady() || m.GetNotReadyBecause() != "" {
		t.Errorf("the member that answers: %v", m)
	}
	for i, want := range []string{"does not answer", "score-worker s-0 answers at its address"} {
		if m := got.GetMembers()[i+1]; m.GetReady() || !strings.Contains(m.GetNotReadyBecause(), want) {
			t.Errorf("member %v, want not ready because %q", m, want)
		}
	}
}

func TestManySilentMembersDoNotDelayStatusForLong(t *testing.T) {
	b := start(t, withState(stateOf(t, 7)), with(func(cfg *gateway.Config) { cfg.PeerTimeout = time.Second }))
	block := make(chan struct{})
	silent := &peer{role: coord.RoleQueue, id: "q-000", block: block}
	b.join(silent)
	for i := 1; i < 200; i++ {
		b.member(coord.Member{Role: coord.RoleQueue, ID: fmt.Sprintf("q-%03d", i), Address: "q-000"})
	}
	begin := time.Now()
	b.status(200, 0)
	if took := time.Since(begin); took > 100*time.Second { // one after the other they would take twice as long
		t.Errorf("status took %v", took)
	}
}

func TestNothingIsAnsweredBeforeTheReplicaIsLoadedButStatus(t *testing.T) {
	b := start(t)
	b.eventually("status is answered", func() bool {
		_, err := b.client.GetStatus(b.ctx, &schedulingv1.GetStatusRequest{})
		return err == nil
	})
	if err := b.service.Ready(); err == nil {
		t.Error("the gateway is ready without a replica")
	}
	got := b.status(0, 0)
	if got.GetVersion() != nil || got.GetLeader() != "binder-0" {
		t.Errorf("status %v, want a leader and no version", got)
	}
	_, podsErr := b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{})
	_, podErr := b.client.GetPod(b.ctx, &schedulingv1.GetPodRequest{Name: "x"})
	_, nodesErr := b.client.ListNodes(b.ctx, &schedulingv1.ListNodesRequest{})
	_, nodeErr := b.client.GetNode(b.ctx, &schedulingv1.GetNodeRequest{Name: "x"})
	stream, err := b.client.WatchPlacements(b.ctx, &schedulingv1.WatchPlacementsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, watchErr := stream.Recv()
	for what, err := range map[string]error{
		"ListPods": podsErr, "GetPod": podErr, "ListNodes": nodesErr, "GetNode": nodeErr, "WatchPlacements": watchErr,
	} {
		if status.Code(err) != codes.Unavailable || rpc.ReasonOf(err) != rpc.ReasonNotReady {
			t.Errorf("%s: %v, want UNAVAILABLE, NOT_READY", what, err)
		}
	}
}

func TestStatusWaitsForEtcd(t *testing.T) {
	b := start(t, withState(stateOf(t, 7)), func(_ *gateway.Config, b *berth) { b.cast.silent = true })
	if _, err := b.client.GetStatus(b.ctx, &schedulingv1.GetStatusRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("GetStatus: %v, want UNAVAILABLE", err)
	}
	if err := b.service.Ready(); err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("Ready: %v, want what it waits for", err)
	}
	b.cast.change(func() { b.cast.silent = false })
	b.eventually("the gateway is ready", func() bool { return b.service.Ready() == nil })
}

func TestStatusTellsWhichNodesEachWorkerIsAskedAbout(t *testing.T) {
	deltas := oneClass
	for i := range 1100 {
		deltas = append(deltas, node(i))
	}
	b := start(t, withState(stateOf(t, 7, deltas...)))
	for _, id := range []string{"f-0", "f-1", "f-2"} { // 1,100 nodes are two ranges
		b.join(&peer{role: coord.RoleFilterWorker, id: id, version: cluster.Version{Epoch: 7}})
	}
	b.join(&peer{role: coord.RoleScoreWorker, id: "s-0", version: cluster.Version{Epoch: 7}})
	got := ""
	for _, m := range b.status(4, 0).GetMembers() {
		got += fmt.Sprintf("%s:%d-%d ", m.GetId(), m.GetRange().GetFirst(), m.GetRange().GetEnd())
	}
	if want := "f-0:0-576 f-1:576-1100 f-2:0-0 s-0:0-1100 "; got != want {
		t.Errorf("ranges %q, want %q", got, want)
	}
}
