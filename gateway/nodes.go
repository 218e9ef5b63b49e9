package gateway

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/cluster"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// ListNodes implements SchedulingService.
func (s *Service) ListNodes(ctx context.Context, req *schedulingv1.ListNodesRequest) (*schedulingv1.ListNodesResponse, error) {
	const scope = "nodes"
	limit, violations := pageSize(req.GetPageSize())
	token, wrong := readPageToken(req.GetPageToken(), scope)
	if err := rpc.Invalid(append(violations, wrong...)...); err != nil {
		return nil, err
	}
	response := &schedulingv1.ListNodesResponse{}
	err := s.read(ctx, func(st *cluster.State) {
		response.Version = versionOf(st.Version())
		page := smallest[cluster.NodeIndex]{
			limit:   limit + 1, // the one more tells whether there is a next page
			compare: func(a, b cluster.NodeIndex) int { return cmp.Compare(st.Nodes.Spec[a].Name, st.Nodes.Spec[b].Name) },
		}
		for i := range cluster.NodeIndex(st.Nodes.Len()) {
			if st.Nodes.Live.Has(i) && (token == nil || st.Nodes.Spec[i].Name > token[0]) {
				page.offer(i)
			}
		}
		bytes := 0
		rows := page.sorted()
		for i, index := range rows {
			if i == limit || bytes >= pageBytes {
				response.NextPageToken = pageToken(scope, st.Nodes.Spec[rows[i-1]].Name)
				break
			}
			node := nodeOf(st, index)
			bytes += proto.Size(node)
			response.Nodes = append(response.Nodes, node)
		}
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// GetNode implements SchedulingService.
func (s *Service) GetNode(ctx context.Context, req *schedulingv1.GetNodeRequest) (*schedulingv1.GetNodeResponse, error) {
	if err := rpc.Invalid(checkName("name", req.GetName(), true, maxObject)...); err != nil {
		return nil, err
	}
	names, err := access.MayNamePods(ctx)
	if err != nil {
		return nil, err
	}
	response := &schedulingv1.GetNodeResponse{}
	err = s.read(ctx, func(st *cluster.State) {
		response.Version = versionOf(st.Version())
		i := st.Nodes.ByName(req.GetName())
		if i == cluster.NoNode {
			return
		}
		response.Node = nodeOf(st, i)
		if !names {
			return // they are counted
		}
		for _, p := range st.PodsOn(i) {
			response.Node.Pods = append(response.Node.Pods, p.Namespace+"/"+p.Name)
		}
		slices.Sort(response.Node.Pods)
	})
	if err != nil {
		return nil, err
	}
	if response.GetNode() == nil {
		return nil, errNotFound("node %s not found", req.GetName())
	}
	return response, nil
}

// nodeOf returns what the ledger knows of a node, but its pods.
func nodeOf(st *cluster.State, i cluster.NodeIndex) *schedulingv1.Node {
	spec := st.Node(i)
	node := &schedulingv1.Node{
		Name: spec.Name, Unschedulable: spec.Unschedulable,
		Allocatable: resourcesOf(spec.Allocatable), PodCount: st.Nodes.PodCount[i],
		Labels: make(map[string]string, len(spec.Labels)),
	}
	for _, l := range spec.Labels {
		node.Labels[l.Key] = l.Value
	}
	for _, t := range spec.Taints {
		node.Taints = append(node.Taints, t.Key+"="+t.Value+":"+t.Effect)
	}
	for r := range cluster.ResourceID(st.Resources()) {
		if v := st.Nodes.Requested[r][i]; v != 0 {
			node.Requested = append(node.Requested, &schedulingv1.Resource{Name: st.ResourceName(r), Value: v})
		}
	}
	slices.SortFunc(node.Requested, func(a, b *schedulingv1.Resource) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return node
}
