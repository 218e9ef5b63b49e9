package berthapp

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

// postFilter has plugins look for a way for a pod that fits nowhere, as kube-scheduler's RunPostFilterPlugins does: those that come before Berth's preemption, or behind it. Their CycleState is that of the pod's verdicts, if any were asked for
// in this state.
func (w *world) postFilter(ctx context.Context, k *kind, q *pluginv1.Question, nodes []node) (*pluginv1.Answer, error) {
	pod, err := k.podOf()
	if err != nil {
		return nil, err
	}
	if pre := w.prefilter(ctx, k, pod); !pre.status.IsSuccess() && !pre.status.IsRejected() {
		k.state = nil
		return nil, pre.status.AsError()
	}
	w.kept = nil // they may change anything
	statuses, err := statusesOf(q, nodes)
	if err != nil {
		return nil, err
	}
	out := new(pluginv1.PostFiltered)
	var reasons []string
	for _, name := range q.GetPostFilters() {
		plugin, ok := w.profile.made[name].(fwk.PostFilterPlugin)
		if !ok {
			return nil, fmt.Errorf("there is no plugin %q that runs at PostFilter", name)
		}
		result, status := plugin.PostFilter(ctx, k.state, pod, statuses)
		switch {
		case status.IsSuccess():
			out.Success = true
			out.Nominated, out.ClearsNomination = nominates(result)
			return &pluginv1.Answer{PostFiltered: out}, nil
		case status.Code() == fwk.UnschedulableAndUnresolvable:
			out.Unresolvable, out.Reason = true, pluginproto.Cut(status.Message())
			_, out.ClearsNomination = nominates(result)
			return &pluginv1.Answer{PostFiltered: out}, nil
		case !status.IsRejected():
			return &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Error: pluginproto.Cut(cmp.Or(status.AsError().Error(), "plugin "+name+" has failed"))}}, nil
		}
		if _, clears := nominates(result); clears {
			out.ClearsNomination = true
		}
		reasons = append(reasons, status.Reasons()...)
	}
	out.Reason = pluginproto.Cut(strings.Join(reasons, ", "))
	return &pluginv1.Answer{PostFiltered: out}, nil
}

// nominates returns the node that a pod is nominated to, or whether it is to be nominated to none any more.
func nominates(result *fwk.PostFilterResult) (node string, clears bool) {
	if result == nil || result.Mode() != fwk.ModeOverride {
		return "", false
	}
	return result.NominatedNodeName, result.NominatedNodeName == ""
}

// statusesOf returns why nodes cannot run a pod, as kube-scheduler has it: of those that are not told, evictions would change nothing.
func statusesOf(q *pluginv1.Question, nodes []node) (*framework.NodeToStatus, error) {
	if n := len(q.GetVerdicts()); n != len(nodes) {
		return nil, fmt.Errorf("%d verdicts of %d nodes", n, len(nodes))
	}
	by := make(map[string]*fwk.Status, len(nodes))
	known := make([]*fwk.Status, len(q.GetRefusals()))
	for i, r := range q.GetRefusals() {
		code := fwk.Unschedulable
		if r.GetUnresolvable() {
			code = fwk.UnschedulableAndUnresolvable
		}
		known[i] = fwk.NewStatus(code, r.GetReason()).WithPlugin(r.GetPlugin())
	}
	for i, v := range q.GetVerdicts() {
		if v == 0 || int64(v) > int64(len(known)) {
			return nil, fmt.Errorf("verdict %d, of %d refusals", v, len(known))
		}
		by[nodes[i].name] = known[v-1]
	}
	return framework.NewNodeToStatus(by, fwk.NewStatus(fwk.UnschedulableAndUnresolvable)), nil
}
