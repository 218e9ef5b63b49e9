package original

import (
	"context"
	"fmt"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// Name is the plugin's, as in its deployment.
const Name = "yoda"

var (
	_ fwk.QueueSortPlugin = (*Plugin)(nil)
	_ fwk.FilterPlugin    = (*Plugin)(nil)
	_ fwk.PreScorePlugin  = (*Plugin)(nil)
	_ fwk.ScorePlugin     = (*Plugin)(nil)
)

// Plugin places pods by the original's rules. It is safe for concurrent use.
type Plugin struct{ cards cache.Indexer }

// New returns the plugin when it has read the cards of all nodes, which it follows for as long as ctx lasts.
func New(ctx context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	cards, err := follow(ctx, h.KubeConfig())
	if err != nil {
		return nil, err
	}
	return &Plugin{cards}, nil
}

// Name returns the plugin's name.
func (*Plugin) Name() string { return Name }

// Less compares pods by their label alone: equal ones are in no order.
func (*Plugin) Less(a, b fwk.QueuedPodInfo) bool {
	return priority(a.GetPodInfo().GetPod()) > priority(b.GetPodInfo().GetPod())
}

// Filter refuses a node whose cards do not do, or that tells of none. The reason is the node's name.
func (p *Plugin) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	node := info.Node().Name
	infof("filter pod: %v, node: %v\n", pod.Name, node)
	told, err := p.get(node)
	if err != nil {
		infof("Get SCV Error: %v", err)
		return fwk.NewStatus(fwk.Unschedulable, "Node:"+node+" "+err.Error())
	}
	if !fits(pod, &told.Status) {
		return fwk.NewStatus(fwk.Unschedulable, "Node:"+node)
	}
	return nil
}

// maximaKey is where PreScore keeps the maxima for Score.
const maximaKey = "Max"

// Clone returns a copy for another cycle.
func (m *maxima) Clone() fwk.StateData {
	c := *m
	return &c
}

// PreScore copies the cards of all nodes, twice as the original does, whether pods may go to these nodes or not.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	infof("collect info for scheduling pod: %v\n", pod.Name)
	m := newMaxima()
	for _, item := range p.list() {
		m.add(pod, &item.deepCopy().Status)
	}
	state.Write(maximaKey, m)
	return nil
}

// Score returns what the original says of a node, before it is normalised.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	told, err := p.get(info.Node().Name)
	if err != nil {
		infof("Get SCV Error: %v", err)
		return 0, nil
	}
	data, err := state.Read(maximaKey)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	m, ok := data.(*maxima)
	if !ok {
		return 0, fwk.AsStatus(fmt.Errorf("state of scores is a %T", data))
	}
	others := make([]*v1.Pod, len(info.GetPods()))
	for i, other := range info.GetPods() {
		others[i] = other.GetPod()
	}
	return int64(min(score(m, pod, &told.Status, others), math.MaxInt64)), nil
}

// ScoreExtensions returns the plugin, which normalises its scores.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore has the worst node at 0 and the best at 100. It cannot be called with no node.
func (*Plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, pod *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	highest, lowest := int64(0), scores[0].Score
	for _, s := range scores {
		lowest, highest = min(lowest, s.Score), max(highest, s.Score)
	}
	if highest == lowest {
		lowest--
	}
	for i, s := range scores {
		scores[i].Score = (s.Score - lowest) * fwk.MaxScore / (highest - lowest)
		infof("Node: %v, Score: %v in Plugin: Yoda When scheduling Pod: %v/%v", scores[i].Name, scores[i].Score, pod.Namespace, pod.Name)
	}
	return nil
}

// get returns a copy of what is told of a node's cards.
func (p *Plugin) get(node string) (*Scv, error) {
	obj, found, err := p.cards.GetByKey(node)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("%s %q not found", v1alpha1.Resource, node)
	}
	return obj.(*Scv).deepCopy(), nil
}

// list returns copies of what is told of all nodes.
func (p *Plugin) list() []*Scv {
	objects := p.cards.List()
	out := make([]*Scv, len(objects))
	for i, obj := range objects {
		out[i] = obj.(*Scv).deepCopy()
	}
	return out
}

// nowhere is where lines of the log go. It is not io.Discard, for which nothing would be formatted.
type nowhere struct{}

func (nowhere) Write(line []byte) (int, error) { return len(line), nil }

// infof formats a line that the original logs, at a level that is always on, and throws it away: less than klog does with it, which locks, looks up the caller, and writes. So what is measured is in favour of the original.
func infof(format string, args ...any) { fmt.Fprintf(nowhere{}, format, args...) }
