package gateway_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// zonal returns a node of a zone, with GPUs if there are any.
func zonal(i int, zone string, gpus int64) cluster.NodeSet {
	n := node(i)
	n.Node.Labels = nil
	if zone != "" {
		n.Node.Labels = []cluster.Label{{Key: "topology.kubernetes.io/zone", Value: zone}}
	}
	if gpus > 0 {
		n.Node.Allocatable = append(n.Node.Allocatable, cluster.Quantity{Name: "nvidia.com/gpu", Value: gpus})
	}
	return n
}

func TestMapTellsNodesByZone(t *testing.T) {
	cordoned := zonal(3, "a", 0)
	cordoned.Node.Unschedulable = true
	withGPU := cluster.ClassDefined{ID: 2, Spec: cluster.ClassSpec{
		SchedulerName: "berth", Requests: []cluster.Quantity{{Name: "cpu", Value: 1000}, {Name: "nvidia.com/gpu", Value: 3}},
	}}
	user := pod(2)
	user.Pod.Class = 2
	st := stateOf(t, 7, append(oneClass, withGPU, zonal(0, "b", 4), zonal(1, "", 0), zonal(2, "a", 0), cordoned,
		pod(1), user, assumed(1, 2), assumed(2, 0))...)
	b := start(t, withState(st))
	got, err := b.client.GetMap(b.ctx, &schedulingv1.GetMapRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &schedulingv1.GetMapResponse{
		Version: &schedulingv1.Version{Epoch: 7}, Nodes: 4, NodesPerTile: 1,
		Zones: []*schedulingv1.Zone{
			{Name: "", Nodes: 1, Tiles: []*schedulingv1.Tile{{Node: "node-01", Nodes: 1, DevicePermille: -1}}},
			{Name: "a", Nodes: 2, Tiles: []*schedulingv1.Tile{
				{Node: "node-02", Nodes: 1, Pods: 1, CpuPermille: 62, MemoryPermille: 62, DevicePermille: -1},
				{Node: "node-03", Nodes: 1, Unschedulable: 1, DevicePermille: -1},
			}},
			{Name: "b", Nodes: 1, Tiles: []*schedulingv1.Tile{
				{Node: "node-00", Nodes: 1, Pods: 1, CpuPermille: 125, DevicePermille: 750},
			}},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("GetMap (-want +got):\n%s", diff)
	}
}

func TestMapOfManyNodesPutsSeveralOfOneZoneTogether(t *testing.T) {
	deltas := oneClass
	for i := range 10 {
		deltas = append(deltas, zonal(i, fmt.Sprintf("z%d", i%2), 0))
	}
	b := start(t, withState(stateOf(t, 7, deltas...)))
	got, err := b.client.GetMap(b.ctx, &schedulingv1.GetMapRequest{MaxTiles: 5})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetNodesPerTile() != 2 || len(got.GetZones()) != 2 {
		t.Fatalf("%d nodes per tile in %d zones, want 2 in 2", got.GetNodesPerTile(), len(got.GetZones()))
	}
	var sizes []int32
	for _, zone := range got.GetZones() {
		for _, tile := range zone.GetTiles() {
			sizes = append(sizes, tile.GetNodes())
		}
	}
	if diff := cmp.Diff([]int32{2, 2, 1, 2, 2, 1}, sizes); diff != "" {
		t.Errorf("nodes per tile (-want +got):\n%s", diff)
	}
	_, err = b.client.GetMap(b.ctx, &schedulingv1.GetMapRequest{MaxTiles: -1})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("max_tiles -1: %v, want INVALID_ARGUMENT", err)
	}
}

func TestQueueTellsBandsShardsAndRates(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, append(oneClass, node(0))...)))
	deltas := []cluster.Delta{}
	for i := range 5 {
		p := pod(i)
		p.Pod.Priority = int32(i / 2 * 100)
		deltas = append(deltas, p)
	}
	b.ledger.apply(t, append(deltas, assumed(4, 0))...)
	floor := int32(100)
	b.join(&peer{role: coord.RoleQueue, id: "q-0", shards: []*queuev1.Shard{{Shard: 0, Active: 2, PriorityFloor: &floor}}})
	b.cast.change(func() { b.cast.shards = []coord.ShardOwner{{Shard: 0, Owner: "q-0"}} })
	b.status(1, 1)

	got, err := b.client.GetQueue(b.ctx, &schedulingv1.GetQueueRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &schedulingv1.GetQueueResponse{
		Version: &schedulingv1.Version{Epoch: 7, Seq: 6},
		Priorities: []*schedulingv1.PriorityCount{
			{Priority: 100, Pending: 2, Shards: []int32{0}},
			{Priority: 0, Pending: 2},
		},
		Shards:     []*schedulingv1.Shard{{Shard: 0, Owner: "q-0", Depth: &schedulingv1.QueueDepth{Active: 2}, PriorityFloor: &floor}, {Shard: 1}},
		Placed_10S: 1, Placed_60S: 1, Arrived_10S: 5, Arrived_60S: 5,
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("GetQueue (-want +got):\n%s", diff)
	}
}

func TestMapTellsWhereAPodFits(t *testing.T) {
	full := node(1)
	full.Node.Allocatable = []cluster.Quantity{{Name: "cpu", Value: 100}, {Name: "memory", Value: 16 << 30}, {Name: "pods", Value: 110}}
	deltas := append(oneClass, cluster.SettingsSet{Settings: cluster.Settings{
		Shards: 2, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")},
	}}, node(0), full, pod(1))
	b := start(t, withState(stateOf(t, 7, deltas...)))
	feasible := func(pod string) (tiles string, sum int32) {
		t.Helper()
		got, err := b.client.GetMap(b.ctx, &schedulingv1.GetMapRequest{Pod: pod})
		if err != nil {
			t.Fatal(err)
		}
		for _, tile := range got.GetZones()[0].GetTiles() {
			tiles += fmt.Sprintf("%s:%d ", tile.GetNode(), tile.GetFeasible())
		}
		return tiles, got.GetFeasible()
	}
	if tiles, sum := feasible("pod-0001"); tiles != "node-00:1 node-01:0 " || sum != 1 {
		t.Errorf("the pod fits on %s, in all %d, want node-00 alone", tiles, sum)
	}
	// A pod that has come since is seen, and one that is placed is asked about as if it were not.
	b.ledger.apply(t, pod(2), assumed(2, 0))
	if tiles, _ := feasible("pod-0002"); tiles != "node-00:1 node-01:0 " {
		t.Errorf("the placed pod fits on %s, want node-00 alone", tiles)
	}
	_, err := b.client.GetMap(b.ctx, &schedulingv1.GetMapRequest{Pod: "nobody"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("a pod that is not there: %v, want NOT_FOUND", err)
	}
	// What is tried is seen by nobody: the pod is where it was.
	pod, err := b.client.GetPod(b.ctx, &schedulingv1.GetPodRequest{Name: "pod-0002"})
	if err != nil || pod.GetPod().GetNode() != "node-00" {
		t.Errorf("GetPod: %v, %v, want it on node-00", pod, err)
	}
}
