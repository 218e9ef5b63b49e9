package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// modelled is what a client knows that it has told: the slow and plain way.
type modelled struct {
	kinds map[int32]string // what it is, as a plugin would print it
	nodes map[int32]modelledNode
}

type modelledNode struct {
	spec      string
	requested int64
	pods      map[string]int32 // by UID, the kind's id
}

// print is what a plugin of kind should see of a node.
func (m *modelled) print(kind, id int32) string {
	n := m.nodes[id]
	out := []string{m.kinds[kind], n.spec, fmt.Sprint(n.requested, len(n.pods))}
	for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
		out = append(out, uid+" is "+m.kinds[n.pods[uid]])
	}
	return strings.Join(out, ", ")
}

// printed is what a plugin sees.
func printed(kind *Kind, n *Node) string {
	type once struct{}
	show := func(k *Kind) string {
		is := func() any {
			return fmt.Sprint(k.Namespace, k.Labels, k.Requested, k.Priority, k.SchedulerName, k.Annotations)
		}
		if kept := k.Once(once{}, is); kept != is() {
			return fmt.Sprintf("%v, and what is kept of it is %v", is(), kept)
		}
		return is().(string)
	}
	out := []string{show(kind), fmt.Sprint(n.Name, n.Labels, n.Unschedulable, n.Allocatable, len(n.Taints)), fmt.Sprint(n.Requested["cpu"], n.PodCount)}
	for _, uid := range slices.Sorted(maps.Keys(n.Pods)) {
		out = append(out, n.Pods[uid].UID+" is "+show(n.Pods[uid].Kind))
	}
	return strings.Join(out, ", ")
}

// TestWhatIsToldIsWhatPluginsSee tells a stream random changes, and asks about every node after each.
func TestWhatIsToldIsWhatPluginsSee(t *testing.T) {
	var mu sync.Mutex
	var saw []string
	client := dial(t, serve(t, Config{Plugins: []Plugin{{Name: "P", Filter: func(_ context.Context, kind *Kind, node *Node) (*Refusal, error) {
		mu.Lock()
		defer mu.Unlock()
		saw = append(saw, printed(kind, node))
		return nil, nil
	}}}}).address)
	rapid.Check(t, func(rt *rapid.T) {
		s := open(t, client)
		defer s.cancel()
		m := &modelled{kinds: make(map[int32]string), nodes: make(map[int32]modelledNode)}
		few := rapid.Int32Range(0, 4)
		for range rapid.IntRange(1, 12).Draw(rt, "requests") {
			req := &pluginv1.JudgeRequest{}
			for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
				if few.Draw(rt, "forget node") == 0 {
					req.ForgottenNodes = append(req.ForgottenNodes, id)
					delete(m.nodes, id)
				}
			}
			forgetKinds(rt, m, req, few)
			for range few.Draw(rt, "kinds") {
				tellKind(rt, m, req, few)
			}
			for range few.Draw(rt, "nodes") {
				tellNode(rt, m, req, few)
			}
			var want []string
			for _, kind := range slices.Sorted(maps.Keys(m.kinds)) {
				q := &pluginv1.Question{Kind: kind, Filters: []string{"P"}, Nodes: slices.Sorted(maps.Keys(m.nodes))}
				req.Questions = append(req.Questions, q)
				for _, id := range q.Nodes {
					want = append(want, m.print(kind, id))
				}
			}
			mu.Lock()
			saw = nil
			mu.Unlock()
			s.ask(req)
			mu.Lock()
			diff := cmp.Diff(want, saw)
			mu.Unlock()
			if diff != "" {
				rt.Fatalf("plugins see (-want +got):\n%s\nafter %v", diff, req)
			}
		}
	})
}

// forgetKinds forgets kinds that nothing names.
func forgetKinds(rt *rapid.T, m *modelled, req *pluginv1.JudgeRequest, few *rapid.Generator[int32]) {
	named := make(map[int32]bool)
	for _, n := range m.nodes {
		for _, kind := range n.pods {
			named[kind] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.kinds)) {
		if !named[id] && few.Draw(rt, "forget kind") == 0 {
			req.ForgottenKinds = append(req.ForgottenKinds, id)
			delete(m.kinds, id)
		}
	}
}

// tellKind tells a kind, which may be there already.
func tellKind(rt *rapid.T, m *modelled, req *pluginv1.JudgeRequest, few *rapid.Generator[int32]) {
	k := &pluginv1.Kind{
		Id: few.Draw(rt, "kind"), Namespace: rapid.StringN(0, 3, -1).Draw(rt, "namespace"), Labels: map[string]string{"a": rapid.StringN(0, 2, -1).Draw(rt, "label")},
		Requested: map[string]int64{"cpu": rapid.Int64().Draw(rt, "cpu")}, Priority: rapid.Int32().Draw(rt, "priority"), SchedulerName: "s",
	}
	if rapid.Bool().Draw(rt, "annotations") {
		k.Annotations = map[string]string{"c": rapid.StringN(0, 2, -1).Draw(rt, "annotation")}
	}
	req.Kinds = append(req.Kinds, k)
	m.kinds[k.Id] = fmt.Sprint(k.Namespace, k.Labels, k.Requested, k.Priority, k.SchedulerName, k.Annotations)
}

// tellNode tells a node, a new one or one that has changed.
func tellNode(rt *rapid.T, m *modelled, req *pluginv1.JudgeRequest, few *rapid.Generator[int32]) {
	told := &pluginv1.Node{Id: few.Draw(rt, "node")}
	n, ok := m.nodes[told.Id]
	if !ok {
		n.pods = make(map[string]int32)
	}
	if !ok || rapid.Bool().Draw(rt, "spec") {
		told.Spec = &pluginv1.NodeSpec{
			Name: rapid.StringN(1, 3, -1).Draw(rt, "name"), Labels: map[string]string{"b": rapid.StringN(0, 2, -1).Draw(rt, "label")},
			Unschedulable: rapid.Bool().Draw(rt, "unschedulable"), Allocatable: map[string]int64{"pods": rapid.Int64().Draw(rt, "pods")},
			Taints: make([]*pluginv1.Taint, few.Draw(rt, "taints")),
		}
		for i := range told.Spec.Taints {
			told.Spec.Taints[i] = &pluginv1.Taint{Key: "k"}
		}
		n.spec = fmt.Sprint(told.Spec.Name, told.Spec.Labels, told.Spec.Unschedulable, told.Spec.Allocatable, len(told.Spec.Taints))
	}
	n.requested = rapid.Int64().Draw(rt, "requested")
	for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
		if rapid.Bool().Draw(rt, "leaves") {
			told.Removed = append(told.Removed, uid)
			delete(n.pods, uid)
		}
	}
	for range few.Draw(rt, "added") {
		kinds := slices.Sorted(maps.Keys(m.kinds))
		uid := fmt.Sprint("pod-", few.Draw(rt, "uid"))
		if _, there := n.pods[uid]; there || len(kinds) == 0 {
			continue
		}
		kind := rapid.SampledFrom(kinds).Draw(rt, "its kind")
		told.Added = append(told.Added, &pluginv1.PlacedPod{Uid: uid, Name: uid, Kind: kind})
		n.pods[uid] = kind
	}
	told.Requested, told.PodCount = map[string]int64{"cpu": n.requested}, int32(len(n.pods))
	m.nodes[told.Id] = n
	req.Nodes = append(req.Nodes, told)
}
