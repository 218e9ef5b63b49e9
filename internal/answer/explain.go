package answer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/explain"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// Explain says why a pod is where it is, or nowhere: the pod that the request names, as Find finds it. Its Pod is what the
// sandbox knows of it. Other pods are named only if may.Pods, and what its claims ask for and have is told only if may.Claims.
func Explain(ctx context.Context, box *whatif.Sandbox, pod cluster.PodID, req *schedulingv1.ExplainPodRequest, may MayKnow) (*schedulingv1.ExplainPodResponse, error) {
	var violations []rpc.Violation
	for _, bound := range []struct {
		field string
		value int32
		most  int32
	}{{"candidates", req.GetCandidates(), 10}, {"misses", req.GetMisses(), 5}} {
		if bound.value < 0 || bound.value > bound.most {
			violations = append(violations, rpc.Violation{Field: bound.field, Description: fmt.Sprintf("%d, want 0 to %d", bound.value, bound.most)})
		}
	}
	if err := rpc.Invalid(violations...); err != nil {
		return nil, err
	}
	x, err := explain.Explain(ctx, box, pod)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	if !may.Pods {
		x.WithholdNames()
	}
	if !may.Claims {
		x.WithholdClaims()
	}
	response := explanation(&x)
	response.Candidates = response.GetCandidates()[:min(len(response.GetCandidates()), atMost(req.GetCandidates()))]
	response.Misses = response.GetMisses()[:min(len(response.GetMisses()), atMost(req.GetMisses()))]
	return response, nil
}

// MayKnow says what whoever asks may be told besides the pod that is asked about.
type MayKnow struct {
	Pods   bool // the names of other pods
	Claims bool // claims of the pod's namespace, and the volumes that they have
}

// atMost reads a count of which 0 means the most there is.
func atMost(n int32) int {
	if n == 0 {
		return 1 << 30
	}
	return int(n)
}

func explanation(x *explain.Explanation) *schedulingv1.ExplainPodResponse {
	out := &schedulingv1.ExplainPodResponse{
		Pod: &schedulingv1.Pod{
			Namespace: x.Pod.Namespace, Name: x.Pod.Name, Uid: x.Pod.UID, Node: x.Pod.Node, Priority: x.Pod.Priority,
			Gates: x.Pod.Gates, Class: int32(x.Pod.Class), NominatedNode: x.Pod.Nominated, Shard: -1,
			State: phases[x.Pod.Phase], PodGroup: x.Pod.Group,
		},
		Summary: x.Headline(), Text: explain.Text(*x), Message: x.Message, NoPreemption: x.NoPreemption,
		ClassPods: &schedulingv1.PodCounts{Pending: int32(x.Pod.ClassPending), Bound: int32(x.Pod.ClassPlaced)},
		Nodes:     x.Nodes, Feasible: x.Feasible, NotAsked: x.NotAsked, Notes: x.Notes,
	}
	if !x.Version.IsZero() {
		out.Version = &schedulingv1.Version{Epoch: int64(x.Version.Epoch), Seq: int64(x.Version.Seq)}
	}
	if x.Judged {
		out.Profile = x.Pod.Profile
	}
	if g := x.Group; g != nil {
		out.Group = &schedulingv1.PodGroup{
			Name: g.Name, Pods: int32(g.Pods), Placed: int32(g.Placed), Wants: int32(g.Wants), Topology: g.Topology, Domain: g.Domain, Fit: int32(g.Fit), Fits: g.Fits,
			Lacking: g.Lacking, Changes: g.Changes, Text: g.Text(), Missing: g.Missing,
		}
	}
	for k := range x.Rejections {
		r := &x.Rejections[k]
		var reasons, examples []string
		for _, reason := range r.Reasons {
			if !slices.Contains(reasons, reason.Reason) { // some of the nodes resolvable, some not
				reasons = append(reasons, reason.Reason)
			}
			examples = append(examples, reason.Examples...)
		}
		out.Rejected = append(out.Rejected, &schedulingv1.Verdict{
			Plugin: r.Plugin, Reason: strings.Join(reasons, ", "), Unresolvable: r.Unresolvable == r.Nodes, Nodes: r.Nodes, UnresolvableNodes: r.Unresolvable,
			Examples: examples[:min(len(examples), 3)],
		})
		out.Reasons = append(out.Reasons, verdicts(r.Reasons)...)
	}
	for k := range x.Claims {
		out.Claims = append(out.Claims, claim(&x.Claims[k]))
	}
	for k := range x.Nearest {
		out.Misses = append(out.Misses, miss(&x.Nearest[k]))
	}
	for k := range x.Changes {
		out.Suggestions = append(out.Suggestions, suggestion(&x.Changes[k]))
	}
	here := false
	for k := range x.Candidates {
		c := candidate(&x.Candidates[k])
		if x.Here != nil && x.Here.Node == c.GetNode() {
			c.Chosen, here = true, true
		}
		out.Candidates = append(out.Candidates, c)
	}
	if x.Here != nil && x.Here.Feasible && !here && len(x.Here.Scores) > 0 {
		c := candidate(&x.Here.Candidate)
		c.Chosen = true
		out.Candidates = append(out.Candidates, c)
	}
	return out
}

var phases = map[cluster.Phase]schedulingv1.PodState{
	cluster.Pending: schedulingv1.PodState_POD_STATE_UNSPECIFIED, // its shard knows more
	cluster.Assumed: schedulingv1.PodState_POD_STATE_ASSUMED,
	cluster.Bound:   schedulingv1.PodState_POD_STATE_BOUND,
}

func miss(m *explain.Miss) *schedulingv1.Miss {
	out := &schedulingv1.Miss{Node: m.Name}
	for k, detail := range m.Details() {
		out.Obstacles = append(out.Obstacles, obstacle(&m.Lacks[k], detail))
	}
	return out
}

func obstacle(l *engine.Lack, detail string) *schedulingv1.Obstacle {
	out := &schedulingv1.Obstacle{Plugin: l.Plugin, Reason: l.Reason, Unresolvable: l.Unresolvable, Detail: detail}
	if l.Resource != "" {
		out.Shortfall = &schedulingv1.Shortfall{Resource: l.Resource, Wanted: l.Requested, Free: l.Free, Allocatable: l.Capacity}
	}
	if l.Of != nil {
		out.Claims = l.Of.Claims
	}
	return out
}

var claimStates = map[engine.ClaimState]schedulingv1.ClaimState{
	engine.ClaimMissing:       schedulingv1.ClaimState_CLAIM_STATE_NOT_FOUND,
	engine.ClaimNotMade:       schedulingv1.ClaimState_CLAIM_STATE_NOT_MADE,
	engine.ClaimLost:          schedulingv1.ClaimState_CLAIM_STATE_LOST,
	engine.ClaimDeleting:      schedulingv1.ClaimState_CLAIM_STATE_DELETING,
	engine.ClaimNotOwned:      schedulingv1.ClaimState_CLAIM_STATE_NOT_OWNED,
	engine.ClaimMissingVolume: schedulingv1.ClaimState_CLAIM_STATE_MISSING_VOLUME,
	engine.ClaimBound:         schedulingv1.ClaimState_CLAIM_STATE_BOUND,
	engine.ClaimUnbound:       schedulingv1.ClaimState_CLAIM_STATE_UNBOUND,
	engine.ClaimProvisioning:  schedulingv1.ClaimState_CLAIM_STATE_PROVISIONING,
	engine.ClaimPromised:      schedulingv1.ClaimState_CLAIM_STATE_PROMISED,
	engine.ClaimWaiting:       schedulingv1.ClaimState_CLAIM_STATE_WAITING,
}

func claim(c *explain.Claim) *schedulingv1.Claim {
	out := &schedulingv1.Claim{
		Name: c.Name, State: claimStates[c.State], Text: c.Text(), Ephemeral: c.Ephemeral, StorageClass: c.Class, Request: c.Size, Volume: c.Volume, Where: c.Where,
		Node: c.Node, Driver: c.Driver, InUse: c.Exclusive, Nodes: c.Nodes,
	}
	if c.Exclusive {
		out.User = nameOf(c.User.Namespace, c.User.Name)
	}
	for k := range c.Obstacles {
		o := &c.Obstacles[k]
		of := o.Nearest.Of
		out.Obstacles = append(out.Obstacles, &schedulingv1.ClaimObstacle{
			Plugin: o.Plugin, Reason: o.Reason, Nodes: o.Nodes, Examples: o.Examples, Detail: c.Detail(o), Largest: max(of.Most, 0),
			Attached: of.Attached, Limit: of.Limit, Wanted: of.New,
		})
	}
	return out
}

var suggestionKinds = map[explain.ChangeKind]schedulingv1.SuggestionKind{
	explain.ReduceRequests: schedulingv1.SuggestionKind_SUGGESTION_KIND_REDUCE_REQUEST,
	explain.Tolerate:       schedulingv1.SuggestionKind_SUGGESTION_KIND_ADD_TOLERATION,
	explain.DropConditions: schedulingv1.SuggestionKind_SUGGESTION_KIND_LOOSEN_CONSTRAINT,
	explain.LabelNode:      schedulingv1.SuggestionKind_SUGGESTION_KIND_LABEL_NODE,
	explain.Uncordon:       schedulingv1.SuggestionKind_SUGGESTION_KIND_UNCORDON_NODE,
	explain.RemoveTaints:   schedulingv1.SuggestionKind_SUGGESTION_KIND_REMOVE_TAINT,
	explain.AddNode:        schedulingv1.SuggestionKind_SUGGESTION_KIND_ADD_NODE,
	explain.CreateClaim:    schedulingv1.SuggestionKind_SUGGESTION_KIND_CREATE_CLAIM,
	explain.AddVolume:      schedulingv1.SuggestionKind_SUGGESTION_KIND_ADD_VOLUME,
	explain.Preempt:        schedulingv1.SuggestionKind_SUGGESTION_KIND_PREEMPT,
}

func suggestion(c *explain.Change) *schedulingv1.Suggestion {
	out := &schedulingv1.Suggestion{Kind: suggestionKinds[c.Kind], Text: c.String(), Node: c.Node, Nodes: c.Opens, Violations: c.Violations}
	if c.Kind == explain.AddNode {
		out.Node = "" // it does not exist yet
	}
	for _, v := range c.Victims {
		out.Victims = append(out.Victims, nameOf(v.Namespace, v.Name))
	}
	return out
}

func candidate(c *explain.Candidate) *schedulingv1.Candidate {
	out := &schedulingv1.Candidate{Node: c.Node, Total: c.Total}
	for _, s := range c.Scores {
		out.Scores = append(out.Scores, &schedulingv1.PluginScore{Plugin: s.Plugin, Raw: s.Raw, Normalized: s.Normalized, Weight: s.Weight})
	}
	return out
}
