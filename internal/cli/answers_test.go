package cli_test

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// asked are the questions that came, as they came.
type asked struct {
	mu  sync.Mutex
	all []proto.Message
}

func (a *asked) add(m proto.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, m)
}

// last returns the newest question.
func (a *asked) last() proto.Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) == 0 {
		return nil
	}
	return a.all[len(a.all)-1]
}

func version() *schedulingv1.Version { return &schedulingv1.Version{Epoch: 7, Seq: 42} }

func (g *gateway) ExplainPod(_ context.Context, req *schedulingv1.ExplainPodRequest) (*schedulingv1.ExplainPodResponse, error) {
	g.asked.add(req)
	switch req.GetName() {
	case "train-0":
		return pending(), nil
	case "web-1":
		return placed(), nil
	case "train-1":
		return &schedulingv1.ExplainPodResponse{
			Pod:     &schedulingv1.Pod{Namespace: "default", Name: "train-1", State: schedulingv1.PodState_POD_STATE_GATED, Gates: []string{"quota"}},
			Version: version(), Profile: "default-scheduler", Summary: "default/train-1 is not tried: scheduling gate quota has to be removed.",
			ClassPods: &schedulingv1.PodCounts{Pending: 1},
		}, nil
	case "gang-0":
		return &schedulingv1.ExplainPodResponse{
			Pod:     &schedulingv1.Pod{Namespace: "default", Name: "gang-0", State: schedulingv1.PodState_POD_STATE_UNSCHEDULABLE, PodGroup: "gang", Shard: -1},
			Version: version(), Profile: "default-scheduler", Summary: "default/gang-0 is pending with its PodGroup: 5 of at least 8 pods of gang fit, in rack-a.", Nodes: 12,
			Group: &schedulingv1.PodGroup{
				Name: "gang", Text: "PodGroup gang has 8 pods, of which it wants at least 8 placed together, all with the same rack.\nIt would fit with 3 more nodes like a1, or a minCount of 5.\n",
			},
		}, nil
	case "busy":
		return nil, rpc.Exhausted(rpc.ReasonQueueFull, time.Hour, "16 questions wait already")
	case "secret":
		return nil, rpc.Error(codes.PermissionDenied, "FORBIDDEN", "you may not get pods/secret in namespace default")
	case "anonymous":
		return nil, rpc.Error(codes.Unauthenticated, "NO_TOKEN", "no token was shown")
	case "broken":
		return nil, rpc.Error(codes.Internal, rpc.ReasonInternal, "internal error; the detail is in the server's log")
	case "loading":
		return nil, rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "no snapshot has come yet")
	}
	return nil, rpc.Error(codes.NotFound, rpc.ReasonNotFound, "pod %s/%s not found", req.GetNamespace(), req.GetName())
}

func pending() *schedulingv1.ExplainPodResponse {
	return &schedulingv1.ExplainPodResponse{
		Pod: &schedulingv1.Pod{
			Namespace: "default", Name: "train-0", State: schedulingv1.PodState_POD_STATE_ACTIVE, Since: timestamppb.New(now.Add(-7 * time.Minute)),
			Priority: 10, Attempts: 3, Shard: 1, Position: 1200, Class: 4, NominatedNode: "gpu-7",
			Ahead: []*schedulingv1.Ahead{
				{Priority: 100, Pods: 1150, Namespace: "shop", Name: "checkout-7"}, {Priority: 10, Pods: 50, Namespace: "default", Name: "train-9"},
			},
		},
		Version: version(), Profile: "default-scheduler",
		Summary:   "default/train-0 is pending because none of 1,003 nodes can take it: 1,000 lack nvidia.com/gpu, 3 have a taint that it does not tolerate.",
		ClassPods: &schedulingv1.PodCounts{Pending: 1001, Assumed: 1, Bound: 2},
		Nodes:     1003,
		Rejected: []*schedulingv1.Verdict{
			{Plugin: "TaintToleration", Reason: "node(s) had untolerated taint(s)", Unresolvable: true, Nodes: 3, Examples: []string{"infra-0", "infra-1"}},
			{Plugin: "NodeResourcesFit", Reason: "Insufficient nvidia.com/gpu", Nodes: 1000, Examples: []string{"gpu-0"}},
		},
		Misses: []*schedulingv1.Miss{
			{Node: "gpu-7", Obstacles: []*schedulingv1.Obstacle{{Plugin: "NodeResourcesFit", Reason: "Insufficient nvidia.com/gpu", Detail: "nvidia.com/gpu: requests 8, 1 free of 8"}}},
			{Node: "infra-0", Obstacles: []*schedulingv1.Obstacle{
				{Plugin: "TaintToleration", Reason: "node(s) had untolerated taint(s)", Unresolvable: true, Detail: "taint infra=yes:NoSchedule is not tolerated"},
				{Plugin: "NodeAffinity", Reason: "node(s) didn't match Pod's node affinity/selector"},
			}},
		},
		Suggestions: []*schedulingv1.Suggestion{
			{Kind: schedulingv1.SuggestionKind_SUGGESTION_KIND_REDUCE_REQUEST, Text: "Request less: nvidia.com/gpu from 8 to 1. Then it fits 40 nodes, gpu-7 among them.", Node: "gpu-7", Nodes: 40},
			{Kind: schedulingv1.SuggestionKind_SUGGESTION_KIND_PREEMPT, Text: "Evict shop/batch-1 (priority 0) from gpu-9, as preemption would.", Node: "gpu-9", Nodes: 1, Victims: []string{"shop/batch-1"}},
		},
		NoPreemption: "not eligible due to preemptionPolicy=Never.", NotAsked: []string{"GPUModel", "FewestPods"},
	}
}

func placed() *schedulingv1.ExplainPodResponse {
	x := &schedulingv1.ExplainPodResponse{
		Pod:     &schedulingv1.Pod{Namespace: "shop", Name: "web-1", State: schedulingv1.PodState_POD_STATE_BOUND, Node: "node-d", Shard: -1, Class: 2},
		Version: version(), Profile: "default-scheduler", Summary: "shop/web-1 is on node-d, which is not the best node for it now.",
		ClassPods: &schedulingv1.PodCounts{Bound: 1}, Nodes: 5, Feasible: 4,
		Rejected: []*schedulingv1.Verdict{{Plugin: "NodeUnschedulable", Reason: "node(s) were unschedulable", Unresolvable: true, Nodes: 1, Examples: []string{"node-e"}}},
	}
	for k, name := range []string{"node-a", "node-b", "node-c", "node-d"} {
		x.Candidates = append(x.Candidates, &schedulingv1.Candidate{
			Node: name, Total: int64(360 - 10*k), Chosen: name == "node-d",
			Scores: []*schedulingv1.PluginScore{
				{Plugin: "TaintToleration", Normalized: 100, Weight: 3}, {Plugin: "NodeResourcesFit", Raw: int64(60 - 10*k), Normalized: int64(60 - 10*k), Weight: 1},
			},
		})
	}
	return x
}

func utilization(nodes, pods int32, cpu int64) *schedulingv1.Utilization {
	return &schedulingv1.Utilization{
		Nodes: nodes, Pods: pods,
		Resources: []*schedulingv1.ResourceUse{
			{Name: "cpu", Allocatable: 8000 * int64(nodes), Requested: cpu, MaxPermille: 937}, {Name: "memory", Allocatable: 16 << 30 * int64(nodes), Requested: 4 << 30, MaxPermille: 250},
		},
		Zones: []*schedulingv1.ZoneUse{{Nodes: 1}, {Zone: "a", Nodes: nodes - 1, Pods: pods}},
	}
}

func (g *gateway) WhatIf(_ context.Context, req *schedulingv1.WhatIfRequest) (*schedulingv1.WhatIfResponse, error) {
	g.asked.add(req)
	if len(req.GetChanges()) > 0 && req.GetChanges()[0].GetCordon() == "nope" {
		return nil, rpc.Invalid(rpc.Violation{Field: "changes[0].cordon", Description: `there is no node "nope"`})
	}
	response := &schedulingv1.WhatIfResponse{Version: version(), Before: utilization(2, 3, 4500), After: utilization(3, 5, 12500)}
	if req.GetManifests() == "" && !req.GetPending() && len(req.GetChanges()) > 0 && req.GetChanges()[0].GetDrain() == "" {
		return response, nil
	}
	const full = "0/3 nodes are available: 3 Insufficient cpu."
	response.Placed, response.Unplaced = 2, 5
	if req.GetSummaryOnly() {
		return response, nil
	}
	response.Outcomes = []*schedulingv1.Outcome{
		{Namespace: "shop", Name: "web-0", Node: "node-a", From: "node-c"}, {Namespace: "shop", Name: "web-1", Node: "node-b", Victims: []string{"default/batch-1", "default/batch-2"}},
		{Namespace: "shop", Name: "web-2", Message: full}, {Namespace: "shop", Name: "web-3", Message: full}, {Namespace: "shop", Name: "web-4", Message: full},
		{Namespace: "shop", Name: "web-5", Message: full}, {Namespace: "ml", Name: "pinned", Message: "0/3 nodes are available: 3 node(s) didn't match the requested node name."},
		{Namespace: "ml", Name: "gated", Skipped: "it has scheduling gates"},
	}
	if len(req.GetChanges()) > 0 && req.GetChanges()[0].GetDrain() != "" {
		response.Outcomes[0].Protected = []string{"web"}
		response.Outcomes = append(response.Outcomes, &schedulingv1.Outcome{Namespace: "kube-system", Name: "proxy-1", Node: "node-c", From: "node-c", Skipped: "it is of a DaemonSet"})
		response.Notes = []string{"profiles[0].percentageOfNodesToScore: all nodes are considered"}
	}
	return response, nil
}

func (g *gateway) GetCapacity(_ context.Context, req *schedulingv1.GetCapacityRequest) (*schedulingv1.GetCapacityResponse, error) {
	g.asked.add(req)
	if req.GetLimit() == 5 {
		return &schedulingv1.GetCapacityResponse{Version: version(), Fit: 5, AtLeast: true}, nil
	}
	if req.GetPodGroup() != "" {
		return &schedulingv1.GetCapacityResponse{
			Version: version(), Fit: 3, Message: "0/3 nodes are available: 3 Insufficient cpu. 0/2 placements are available, the best: pod group is unschedulable: 5 of at least 8 pods fit in rack-a",
			Verdicts: []*schedulingv1.Verdict{{Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Nodes: 3, Examples: []string{"node-a"}}},
			Group: &schedulingv1.GroupCapacity{
				Name: req.GetPodGroup(), Pods: 10, Wants: 8, Topology: []string{"example.com/rack"}, Domains: []*schedulingv1.DomainCapacity{{Name: "rack-a", Fit: 1}, {Name: "rack-b", Fit: 2}},
			},
		}, nil
	}
	return &schedulingv1.GetCapacityResponse{
		Version: version(), Fit: 1042, Message: "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable.",
		Verdicts: []*schedulingv1.Verdict{
			{Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Nodes: 1, Examples: []string{"node-a"}},
			{Plugin: "NodeUnschedulable", Reason: "node(s) were unschedulable", Unresolvable: true, Nodes: 1, Examples: []string{"node-b"}},
		},
	}, nil
}

func (g *gateway) Compare(_ context.Context, req *schedulingv1.CompareRequest) (*schedulingv1.CompareResponse, error) {
	g.asked.add(req)
	return &schedulingv1.CompareResponse{
		Version: version(), One: utilization(2, 4, 8000), Two: utilization(2, 3, 7000), OnlyOne: 1, Moved: 3, Same: 1,
		Moves: []*schedulingv1.Move{
			{Namespace: "shop", Name: "web-0", One: "node-a", Two: "node-b"}, {Namespace: "shop", Name: "web-1", One: "node-a", Two: "node-b"},
			{Namespace: "shop", Name: "web-2", One: "node-a"},
		},
	}, nil
}

func (g *gateway) GetQueue(context.Context, *schedulingv1.GetQueueRequest) (*schedulingv1.GetQueueResponse, error) {
	if g.away.Load() {
		return nil, rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "no snapshot has come yet")
	}
	if g.idle {
		return &schedulingv1.GetQueueResponse{Version: version(), Shards: []*schedulingv1.Shard{{Owner: "q-0", Depth: &schedulingv1.QueueDepth{}}}}, nil
	}
	response := &schedulingv1.GetQueueResponse{
		Version: version(), Placed_10S: 12_345, Placed_60S: 60_000, Arrived_10S: 3, Arrived_60S: 601,
		Priorities: []*schedulingv1.PriorityCount{{Priority: 1000, Pending: 12, Shards: []int32{0, 1}}},
		Shards: []*schedulingv1.Shard{
			{Shard: 0, Owner: "q-0", Depth: &schedulingv1.QueueDepth{Active: 1234, InFlight: 256}, PriorityFloor: proto.Int32(1000)},
			{Shard: 1, Owner: "q-0", Depth: &schedulingv1.QueueDepth{Gated: 1, Unschedulable: 12}}, {Shard: 2},
		},
	}
	for k := range int32(10) {
		response.Priorities = append(response.Priorities, &schedulingv1.PriorityCount{Priority: -k, Pending: 100 * (k + 1)})
	}
	return response, nil
}
