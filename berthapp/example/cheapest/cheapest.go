// Package cheapest is a plugin for kube-scheduler: it keeps pods off nodes that cost more than they may pay, and prefers those that cost least.
package cheapest

import (
	"context"
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plugin's name.
const Name = "Cheapest"

// Price is the label by which nodes say what they cost, as a whole number, and Budget the annotation by which pods say what they may.
const (
	Price  = "example.com/price"
	Budget = "example.com/budget"
)

const stateKey fwk.StateKey = Name

// budget is what a pod may pay.
type budget int64

// Clone returns it: nobody changes it.
func (b budget) Clone() fwk.StateData { return b }

// Plugin is the plugin.
type Plugin struct{}

var (
	_ fwk.PreFilterPlugin = Plugin{}
	_ fwk.FilterPlugin    = Plugin{}
	_ fwk.ScorePlugin     = Plugin{}
	_ fwk.SignPlugin      = Plugin{}
)

// New makes the plugin. It takes no arguments.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return Plugin{}, nil }

// Name returns the plugin's name.
func (Plugin) Name() string { return Name }

// SignPod says that pods are alike that may pay the same: what else they are does not matter, and where one of them goes changes nothing of what a node costs.
func (Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	budget, ok := pod.Annotations[Budget]
	return []fwk.SignFragment{{Key: "v1.Pod.Annotations[" + Budget + "]", Value: budget}, {Key: Name + ".HasBudget()", Value: ok}}, nil
}

// PreFilter reads what the pod may pay. If it does not say, it may go anywhere.
func (Plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	text, ok := pod.Annotations[Budget]
	if !ok {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("the pod's budget %q is no number", text))
	}
	state.Write(stateKey, budget(n))
	return nil, nil
}

// PreFilterExtensions returns nothing: what other pods there are says nothing of what a node costs.
func (Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter refuses nodes that cost more than the pod may pay.
func (Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	data, err := state.Read(stateKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if price(node) > int64(data.(budget)) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) cost more than the pod may pay")
	}
	return nil
}

// Score is what the node costs: NormalizeScore makes a score of it.
func (Plugin) Score(_ context.Context, _ fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	return price(node), nil
}

// ScoreExtensions returns what normalises the scores.
func (p Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore gives 100 to the node that costs least, and 0 to the one that costs most.
func (Plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	least, most := scores[0].Score, scores[0].Score
	for _, s := range scores {
		least, most = min(least, s.Score), max(most, s.Score)
	}
	for i := range scores {
		if most == least {
			scores[i].Score = fwk.MaxScore
			continue
		}
		scores[i].Score = fwk.MaxScore * (most - scores[i].Score) / (most - least)
	}
	return nil
}

// price returns what a node costs; one that does not say costs nothing.
func price(node fwk.NodeInfo) int64 {
	n, _ := strconv.ParseInt(node.Node().Labels[Price], 10, 64)
	return n
}
