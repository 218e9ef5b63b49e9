package gateway_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// crowd returns the deltas of n pods and a node.
func crowd(n int) []cluster.Delta {
	deltas := append(slices.Clone(oneClass), node(0))
	for i := range n {
		deltas = append(deltas, pod(i))
	}
	return deltas
}

func TestPagesHoldEveryPodOnceWhilePodsComeAndGo(t *testing.T) {
	const stay = 300
	b := start(t, withState(stateOf(t, 7, crowd(stay)...)))
	random := rand.New(rand.NewPCG(1, 2))
	next := stay
	seen := make(map[string]int)
	for token, pages := "", 0; ; pages++ {
		response, err := b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{PageSize: 7, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range response.GetPods() {
			seen[p.GetName()]++
		}
		if token = response.GetNextPageToken(); token == "" {
			if pages < stay/7 {
				t.Fatalf("%d pages are too few for %d pods", pages, stay)
			}
			break
		}
		// A pod that comes anywhere, and one of those goes.
		come := pod(next)
		come.Pod.Name = fmt.Sprintf("pod-%04d-new", random.IntN(stay))
		come.Pod.UID = fmt.Sprintf("new-%d", next)
		b.ledger.apply(t, come)
		if next++; next%2 == 0 {
			b.ledger.apply(t, cluster.PodRemoved{ID: come.ID})
		}
	}
	for i := range stay {
		if n := seen[fmt.Sprintf("pod-%04d", i)]; n != 1 {
			t.Errorf("pod-%04d is on %d pages, want 1", i, n)
		}
	}
	for name, n := range seen {
		if n > 1 && !strings.HasSuffix(name, "-new") {
			t.Errorf("%s is on %d pages", name, n)
		}
	}
}

func TestPodsAreListedByNamespaceThenName(t *testing.T) {
	other := pod(9)
	other.Pod.Namespace = "a-first"
	b := start(t, withState(stateOf(t, 7, append(crowd(3), other, assumed(1, 0))...)))
	names := func(req *schedulingv1.ListPodsRequest) []string {
		t.Helper()
		response, err := b.client.ListPods(b.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if response.GetNextPageToken() != "" {
			t.Error("the last page has a token")
		}
		var all []string
		for _, p := range response.GetPods() {
			all = append(all, p.GetNamespace()+"/"+p.GetName())
		}
		return all
	}
	for _, test := range []struct {
		req  *schedulingv1.ListPodsRequest
		want []string
	}{
		{&schedulingv1.ListPodsRequest{}, []string{"a-first/pod-0009", "default/pod-0000", "default/pod-0001", "default/pod-0002"}},
		{&schedulingv1.ListPodsRequest{Namespace: "a-first"}, []string{"a-first/pod-0009"}},
		{&schedulingv1.ListPodsRequest{Node: "node-00"}, []string{"default/pod-0001"}},
		{&schedulingv1.ListPodsRequest{PendingOnly: true}, []string{"a-first/pod-0009", "default/pod-0000", "default/pod-0002"}},
		{&schedulingv1.ListPodsRequest{Namespace: "none"}, nil},
	} {
		if diff := cmp.Diff(test.want, names(test.req)); diff != "" {
			t.Errorf("ListPods(%v) (-want +got):\n%s", test.req, diff)
		}
	}
}

func TestPageSizeIsBounded(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(1100)...)))
	for _, test := range []struct {
		asked int32
		want  int
	}{{0, 100}, {1, 1}, {1000, 1000}, {1001, 1000}, {1 << 30, 1000}} {
		response, err := b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{PageSize: test.asked})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(response.GetPods()); got != test.want {
			t.Errorf("page_size %d: %d pods, want %d", test.asked, got, test.want)
		}
	}
}

func TestPagesOfHugeNodesStayBelowWhatClientsTake(t *testing.T) {
	var deltas []cluster.Delta
	for i := range 12 {
		n := node(i)
		n.Node.Labels = append(n.Node.Labels, cluster.Label{Key: "huge", Value: strings.Repeat("x", 600<<10)})
		deltas = append(deltas, n)
	}
	b := start(t, withState(stateOf(t, 7, deltas...)))
	var names []string
	for token := ""; ; {
		response, err := b.client.ListNodes(b.ctx, &schedulingv1.ListNodesRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		if size := proto.Size(response); size > 4<<20 {
			t.Errorf("a page has %d bytes", size)
		}
		for _, n := range response.GetNodes() {
			names = append(names, n.GetName())
		}
		if token = response.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(names) != 12 || !slices.IsSorted(names) {
		t.Errorf("nodes %v, want 12 in order", names)
	}
}

func TestQueueDetailsAreAddedToPendingPods(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, append(crowd(4), assumed(3, 0))...)))
	owner := &peer{role: coord.RoleQueue, id: "q-0", pending: map[string]*queuev1.PendingPod{
		"uid-0": {
			Uid: "uid-0", State: queuev1.State_STATE_UNSCHEDULABLE, Attempts: 3, Shard: 1, Message: "0/1 nodes are available",
			Verdicts: []*filterv1.VerdictCount{{Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Count: 1, Examples: []string{"node-00"}}},
		},
		"uid-1": {Uid: "uid-1", State: queuev1.State_STATE_ACTIVE, Shard: 0, Position: 5},
	}}
	former := &peer{role: coord.RoleQueue, id: "q-1", pending: map[string]*queuev1.PendingPod{
		"uid-0": {Uid: "uid-0", State: queuev1.State_STATE_BACKOFF, Attempts: 2, Shard: 1},
	}}
	b.join(owner)
	b.join(former)
	b.cast.change(func() { b.cast.shards = []coord.ShardOwner{{Shard: 0, Owner: "q-0"}, {Shard: 1, Owner: "q-0"}} })

	var got *schedulingv1.ListPodsResponse
	b.eventually("the owner's word is the last", func() bool {
		var err error
		if got, err = b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{}); err != nil {
			t.Fatal(err)
		}
		return got.GetPods()[0].GetAttempts() == 3
	})
	requests := []*schedulingv1.Resource{{Name: "cpu", Value: 500}, {Name: "memory", Value: 1 << 30}}
	want := []*schedulingv1.Pod{
		{
			Namespace: "default", Name: "pod-0000", Uid: "uid-0", Class: 1, Requests: requests,
			State: schedulingv1.PodState_POD_STATE_UNSCHEDULABLE, Attempts: 3, Shard: 1, Message: "0/1 nodes are available",
			Verdicts: []*schedulingv1.Verdict{{Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Nodes: 1, Examples: []string{"node-00"}}},
		},
		{
			Namespace: "default", Name: "pod-0001", Uid: "uid-1", Class: 1, Requests: requests,
			State: schedulingv1.PodState_POD_STATE_ACTIVE, Position: 5,
		},
		{Namespace: "default", Name: "pod-0002", Uid: "uid-2", Class: 1, Requests: requests, Shard: -1},
		{
			Namespace: "default", Name: "pod-0003", Uid: "uid-3", Class: 1, Requests: requests, Shard: -1,
			State: schedulingv1.PodState_POD_STATE_ASSUMED, Node: "node-00", Attempts: 1,
		},
	}
	if diff := cmp.Diff(want, got.GetPods(), protocmp.Transform()); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	owner.mu.Lock()
	defer owner.mu.Unlock()
	if last := owner.calls[len(owner.calls)-1]; !slices.Equal(last, []string{"uid-0", "uid-1", "uid-2"}) {
		t.Errorf("a queue was asked for %v, want the three pending pods in one call", last)
	}
}

func TestPreemptorsAndTheirVictimsAreShown(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, append(crowd(3), assumed(0, 0), cluster.PodNominated{ID: 2, Node: "node-09"},
		cluster.PreemptionStarted{ID: 1, Node: 0, Victims: []cluster.PodID{0}})...)))
	response, err := b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range response.GetPods() {
		got = append(got, fmt.Sprintf("%s nominated to %q, preempting %v, victim %v", p.GetName(), p.GetNominatedNode(), p.GetPreempting(), p.GetVictim()))
	}
	want := []string{
		`pod-0000 nominated to "", preempting false, victim true`,
		`pod-0001 nominated to "node-00", preempting true, victim false`,
		`pod-0002 nominated to "node-09", preempting false, victim false`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

func TestSilentQueueLeavesStatesOpenAndFailsNothing(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(1)...)), with(func(cfg *gateway.Config) { cfg.PeerTimeout = 50 * time.Millisecond }))
	b.join(&peer{role: coord.RoleQueue, id: "q-0", block: make(chan struct{})})
	b.member(coord.Member{Role: coord.RoleQueue, ID: "q-1", Address: "nobody"})
	b.eventually("members are known", func() bool {
		response, err := b.client.GetStatus(b.ctx, &schedulingv1.GetStatusRequest{})
		return err == nil && len(response.GetMembers()) == 2
	})
	response, err := b.client.GetPod(b.ctx, &schedulingv1.GetPodRequest{Name: "pod-0000"})
	if err != nil {
		t.Fatal(err)
	}
	if state := response.GetPod().GetState(); state != schedulingv1.PodState_POD_STATE_UNSPECIFIED {
		t.Errorf("state %v, want unspecified", state)
	}
}

func TestNodeIsShownWithWhatItHoldsAndItsPods(t *testing.T) {
	tainted := node(0)
	tainted.Node.Taints = []cluster.Taint{{Key: "gpu", Value: "yes", Effect: "NoSchedule"}, {Key: "drain", Effect: "NoExecute"}}
	tainted.Node.Unschedulable = true
	b := start(t, withState(stateOf(t, 7, append(slices.Clone(oneClass), tainted, pod(1), pod(0), assumed(1, 0), assumed(0, 0))...)))
	response, err := b.client.GetNode(b.ctx, &schedulingv1.GetNodeRequest{Name: "node-00"})
	if err != nil {
		t.Fatal(err)
	}
	want := &schedulingv1.GetNodeResponse{
		Version: &schedulingv1.Version{Epoch: 7},
		Node: &schedulingv1.Node{
			Name: "node-00", Unschedulable: true, PodCount: 2,
			Allocatable: []*schedulingv1.Resource{{Name: "cpu", Value: 8000}, {Name: "memory", Value: 16 << 30}, {Name: "pods", Value: 110}},
			Requested:   []*schedulingv1.Resource{{Name: "cpu", Value: 1000}, {Name: "memory", Value: 2 << 30}},
			Pods:        []string{"default/pod-0000", "default/pod-0001"},
			Taints:      []string{"gpu=yes:NoSchedule", "drain=:NoExecute"},
			Labels:      map[string]string{"zone": "a"},
		},
	}
	if diff := cmp.Diff(want, response, protocmp.Transform()); diff != "" {
		t.Errorf("GetNode (-want +got):\n%s", diff)
	}
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(1)...)))
	_, err := b.client.GetPod(b.ctx, &schedulingv1.GetPodRequest{Namespace: "other", Name: "pod-0000"})
	if status.Code(err) != codes.NotFound || rpc.ReasonOf(err) != rpc.ReasonNotFound {
		t.Errorf("GetPod: %v", err)
	}
	if _, err := b.client.GetNode(b.ctx, &schedulingv1.GetNodeRequest{Name: "nope"}); status.Code(err) != codes.NotFound {
		t.Errorf("GetNode: %v", err)
	}
}

func BenchmarkListPods(b *testing.B) {
	for _, size := range []int32{100, 1000} {
		b.Run(fmt.Sprintf("pods=100000/page=%d", size), func(b *testing.B) {
			deltas := append(slices.Clone(oneClass), node(0))
			random := rand.New(rand.NewPCG(1, 2))
			for i := range 100_000 {
				p := pod(i)
				p.Pod.Namespace = fmt.Sprintf("team-%d", random.IntN(50))
				p.Pod.Name = fmt.Sprintf("web-%d-%d", random.IntN(1000), i)
				deltas = append(deltas, p)
			}
			w := start(b, withState(stateOf(b, 7, deltas...)))
			for b.Loop() {
				if _, err := w.service.ListPods(w.ctx, &schedulingv1.ListPodsRequest{PageSize: size}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
