package engine

import (
	"cmp"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// oracle is the slow and simple evaluation: one pod, one node, from the specs of nodes and pods, by Kubernetes' own
// functions where there are any.
type oracle struct {
	st   *cluster.State
	spec *cluster.ClassSpec
}

type failure struct {
	plugin       string
	reasons      []string
	unresolvable bool
}

func amount(of []cluster.Quantity, name string) int64 {
	for _, q := range of {
		if q.Name == name {
			return q.Value
		}
	}
	return 0
}

func (o oracle) podsOn(i cluster.NodeIndex) []*cluster.ClassSpec {
	var out []*cluster.ClassSpec
	for _, row := range o.st.PodsOn(i) {
		out = append(out, &o.st.Class(row.Class).Spec)
	}
	return out
}

func (o oracle) requested(i cluster.NodeIndex, name string) int64 {
	sum := int64(0)
	for _, p := range o.podsOn(i) {
		sum += amount(p.Requests, name)
	}
	return sum
}

func v1Node(n *cluster.Node) *v1.Node {
	out := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{}}}
	for _, l := range n.Labels {
		out.Labels[l.Key] = l.Value
	}
	for _, t := range n.Taints {
		out.Spec.Taints = append(out.Spec.Taints, v1.Taint{Key: t.Key, Value: t.Value, Effect: v1.TaintEffect(t.Effect)})
	}
	return out
}

func v1Term(t *cluster.NodeSelectorTerm) v1.NodeSelectorTerm {
	var out v1.NodeSelectorTerm
	for _, r := range t.Expressions {
		out.MatchExpressions = append(out.MatchExpressions, v1.NodeSelectorRequirement{Key: r.Key, Operator: v1.NodeSelectorOperator(r.Operator), Values: r.Values})
	}
	for _, r := range t.Fields {
		out.MatchFields = append(out.MatchFields, v1.NodeSelectorRequirement{Key: r.Key, Operator: v1.NodeSelectorOperator(r.Operator), Values: r.Values})
	}
	return out
}

func v1Pod(s *cluster.ClassSpec) *v1.Pod {
	pod := &v1.Pod{}
	for _, t := range s.Tolerations {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: t.Key, Operator: v1.TolerationOperator(t.Operator), Value: t.Value, Effect: v1.TaintEffect(t.Effect)})
	}
	for _, l := range s.NodeSelector {
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[l.Key] = l.Value
	}
	affinity := &v1.NodeAffinity{}
	if s.HasRequired {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{}
		for k := range s.Required {
			affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = append(
				affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, v1Term(&s.Required[k]))
		}
	}
	for k := range s.Preferred {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
			affinity.PreferredDuringSchedulingIgnoredDuringExecution,
			v1.PreferredSchedulingTerm{Weight: s.Preferred[k].Weight, Preference: v1Term(&s.Preferred[k].Term)})
	}
	pod.Spec.Affinity = &v1.Affinity{NodeAffinity: affinity}
	return pod
}

// allowedNames is the PreFilter of NodeAffinity; nil means all nodes.
func (o oracle) allowedNames() map[string]bool {
	if !o.spec.HasRequired || len(o.spec.Required) == 0 {
		return nil
	}
	all := map[string]bool{}
	for _, t := range o.spec.Required {
		var names map[string]bool
		for _, r := range t.Fields {
			if r.Key == "metadata.name" && r.Operator == "In" {
				now := map[string]bool{}
				for _, v := range r.Values {
					if names == nil || names[v] {
						now[v] = true
					}
				}
				names = now
			}
		}
		if names == nil {
			return nil
		}
		for v := range names {
			all[v] = true
		}
	}
	return all
}

// filter returns nil if the node is feasible.
func (o oracle) filter(i cluster.NodeIndex) *failure {
	spec, node, profile := o.spec, o.st.Node(i), o.profile()
	if spec.Unsupported != "" {
		return &failure{spec.UnsupportedPlugin, []string{spec.Unsupported}, true}
	}
	if names := o.allowedNames(); names != nil && slices.Contains(profile.PreFilters, "NodeAffinity") {
		if len(names) == 0 {
			return &failure{"NodeAffinity", []string{"pod affinity terms conflict"}, true}
		} else if !names[node.Name] {
			return &failure{"NodeAffinity", []string{"node(s) didn't satisfy plugin(s) [NodeAffinity]"}, true}
		}
	}
	for _, plugin := range profile.Filters {
		if f := o.filterOf(plugin, profile, i); f != nil {
			f.plugin = plugin
			return f
		}
	}
	return nil
}

// filterOf is the filter of one plugin.
func (o oracle) filterOf(plugin string, profile cluster.Profile, i cluster.NodeIndex) *failure {
	spec, node := o.spec, o.st.Node(i)
	pod, kube := v1Pod(spec), v1Node(&node)
	f := &failure{unresolvable: true}
	fail := func(bad bool, reason string) {
		if bad && len(f.reasons) == 0 {
			f.reasons = []string{reason}
		}
	}
	switch plugin {
	case "NodeUnschedulable":
		cordon := v1.Taint{Key: "node.kubernetes.io/unschedulable", Effect: v1.TaintEffectNoSchedule}
		fail(node.Unschedulable && !corev1helpers.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &cordon, false),
			"node(s) were unschedulable")
	case "NodeName":
		fail(spec.NodeName != "" && spec.NodeName != node.Name, "node(s) didn't match the requested node name")
	case "TaintToleration":
		hard := func(t *v1.Taint) bool {
			return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
		}
		_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), kube.Spec.Taints, pod.Spec.Tolerations, hard, false)
		fail(untolerated, "node(s) had untolerated taint(s)")
	case "NodeAffinity":
		if profile.HasAddedRequired {
			enforced := v1Pod(&cluster.ClassSpec{HasRequired: true, Required: profile.AddedRequired})
			match, _ := nodeaffinity.GetRequiredNodeAffinity(enforced).Match(kube)
			fail(!match, "node(s) didn't match scheduler-enforced node affinity")
		}
		match, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(kube)
		fail(!match, "node(s) didn't match Pod's node affinity/selector")
	case "NodePorts":
		f.unresolvable = false
		for _, other := range o.podsOn(i) {
			for _, a := range other.HostPorts {
				for _, b := range spec.HostPorts {
					fail(a.Port == b.Port && a.Protocol == b.Protocol && (a.IP == b.IP || a.IP == "0.0.0.0" || b.IP == "0.0.0.0"),
						"node(s) didn't have free ports for the requested pod ports")
				}
			}
		}
	case "NodeResourcesFit":
		f.unresolvable = false
		if int64(len(o.podsOn(i)))+1 > amount(node.Allocatable, "pods") {
			f.reasons = append(f.reasons, "Too many pods")
		}
		for _, q := range spec.Requests {
			group, _, extended := strings.Cut(q.Name, "/")
			if q.Name == "odd" || slices.Contains(profile.IgnoredResources, q.Name) && extended ||
				slices.Contains(profile.IgnoredResourceGroups, group) && extended {
				continue
			}
			allocatable := amount(node.Allocatable, q.Name)
			if q.Value > allocatable-o.requested(i, q.Name) {
				f.reasons = append(f.reasons, "Insufficient "+q.Name)
				f.unresolvable = f.unresolvable || q.Value > allocatable
			}
		}
	}
	if f.reasons == nil {
		return nil
	}
	return f
}

func (o oracle) profile() cluster.Profile {
	if p := o.st.Profile(o.spec.SchedulerName); p != nil {
		return *p
	}
	return DefaultProfile("")
}

func (o oracle) weight(plugin string) int64 {
	for _, w := range o.profile().Weights {
		if w.Name == plugin {
			return w.Weight
		}
	}
	return 0
}

func (o oracle) raw(i cluster.NodeIndex) Raw {
	var r Raw
	node := o.st.Node(i)
	pod, kube := v1Pod(o.spec), v1Node(&node)
	if o.weight("TaintToleration") != 0 {
		for _, t := range kube.Spec.Taints {
			if t.Effect == v1.TaintEffectPreferNoSchedule && !corev1helpers.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &t, false) {
				r.Scores[0]++
			}
		}
	}
	if o.weight("NodeAffinity") != 0 {
		both := v1Pod(&cluster.ClassSpec{Preferred: slices.Concat(o.spec.Preferred, o.profile().AddedPreferred)})
		terms, err := nodeaffinity.NewPreferredSchedulingTerms(both.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		if err == nil {
			r.Scores[1] = terms.Score(kube)
		}
	}
	if o.weight("ImageLocality") != 0 {
		r.Images = o.has(i)
	}
	return r
}

func clamp(s int64) int32 { return int32(min(max(s, 0), 100)) }

func (o oracle) scores(i cluster.NodeIndex) [fixedScores]int32 {
	out := [fixedScores]int32{NotScored, NotScored, NotScored, NotScored}
	if o.weight("NodeResourcesFit") != 0 {
		out[0] = clamp(o.fit(i))
	}
	asks := false
	for _, name := range o.profile().BalancedResources {
		asks = asks || amount(o.spec.Requests, name) != 0
	}
	if o.weight("NodeResourcesBalancedAllocation") != 0 && asks {
		out[1] = clamp(50 + (50+o.balance(i, 1)-o.balance(i, 0))/2)
	}
	if o.weight("ImageLocality") != 0 {
		out[2] = clamp(o.images(i))
	}
	return out
}

func (o oracle) fit(i cluster.NodeIndex) int64 {
	p := o.profile()
	var sum, weights int64
	for _, r := range p.FitResources {
		capacity, asked := amount(o.st.Nodes.Spec[i].Allocatable, r.Name), amount(o.spec.ScoreRequests, r.Name)
		if capacity == 0 || strings.Contains(r.Name, "/") && asked == 0 {
			continue
		}
		used := o.requested(i, r.Name)
		if r.Name == "cpu" || r.Name == "memory" {
			used = 0
			for _, other := range o.podsOn(i) {
				used += map[string]int64{"cpu": other.NonZeroCPU, "memory": other.NonZeroMemory}[r.Name]
			}
		}
		used += asked
		var s int64
		switch p.FitStrategy {
		case cluster.LeastAllocated:
			if s = (capacity - used) * 100 / capacity; used > capacity {
				s = 0
			}
		case cluster.MostAllocated:
			s = min(used, capacity) * 100 / capacity
		default:
			u := used * 100 / capacity
			if used > capacity {
				u = 100
			}
			s = lineThrough(p.Shape, u)
			if s <= 0 {
				continue
			}
		}
		sum, weights = sum+s*r.Weight, weights+r.Weight
	}
	if weights == 0 {
		return 0
	}
	if p.FitStrategy == cluster.RequestedToCapacityRatio {
		return int64(math.Round(float64(sum) / float64(weights)))
	}
	return sum / weights
}

func lineThrough(shape []cluster.ShapePoint, u int64) int64 {
	at := func(k int) (int64, int64) { return int64(shape[k].Utilization), int64(shape[k].Score) * 10 }
	if x, y := at(0); u <= x {
		return y
	}
	for k := 1; k < len(shape); k++ {
		x0, y0 := at(k - 1)
		if x, y := at(k); u <= x {
			return y0 + (y-y0)*(u-x0)/(x-x0)
		}
	}
	_, y := at(len(shape) - 1)
	return y
}

func (o oracle) balance(i cluster.NodeIndex, pods int64) int64 {
	var fractions []float64
	total := 0.0
	for _, name := range o.profile().BalancedResources {
		capacity, asked := amount(o.st.Nodes.Spec[i].Allocatable, name), amount(o.spec.Requests, name)
		if capacity == 0 || strings.Contains(name, "/") && asked == 0 {
			continue
		}
		f := min(1, float64(o.requested(i, name)+pods*asked)/float64(capacity))
		fractions = append(fractions, f)
		total += f
	}
	std := 0.0
	if len(fractions) == 2 {
		std = math.Abs((fractions[0] - fractions[1]) / 2)
	} else if len(fractions) > 2 {
		mean, sum := total/float64(len(fractions)), 0.0
		for _, f := range fractions {
			sum += (f - mean) * (f - mean)
		}
		std = math.Sqrt(sum / float64(len(fractions)))
	}
	return int64((1 - std) * 100)
}

// has returns which of the pod's images a node has, as Raw.Images.
func (o oracle) has(i cluster.NodeIndex) string {
	var names []string
	for _, name := range o.spec.Images {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	set, last, some := []byte{0}, 7, false
	for k, name := range names {
		switch has := slices.ContainsFunc(o.st.Nodes.Spec[i].Images, func(im cluster.Image) bool { return im.Names[0] == name }); {
		case !has:
		case k < 8:
			set[0], some = set[0]|1<<k, true
		default:
			left := k - last - 1
			for ; left >= 128; left /= 128 {
				set = append(set, byte(128+left%128))
			}
			set, last, some = append(set, byte(left)), k, true
		}
	}
	if !some {
		return ""
	}
	return string(set)
}

func (o oracle) images(i cluster.NodeIndex) int64 {
	has := map[string]bool{}
	for _, image := range o.st.Nodes.Spec[i].Images {
		has[image.Names[0]] = true
	}
	sum := int64(0)
	for _, name := range o.spec.Images {
		if has[name] {
			nodes, all := 0, 0
			for k := range o.st.Nodes.Spec {
				if o.st.Nodes.Live.Has(cluster.NodeIndex(k)) {
					all++
					if slices.ContainsFunc(o.st.Nodes.Spec[k].Images, func(im cluster.Image) bool { return im.Names[0] == name }) {
						nodes++
					}
				}
			}
			size := o.st.Image(o.st.Symbols.Lookup(name)).Size // which node showed it first is the state's knowledge
			sum += int64(float64(size) * (float64(nodes) / float64(all)))
		}
	}
	least, most := int64(23<<20), int64(1000<<20)*int64(o.spec.ImageContainers)
	return 100 * (max(least, min(sum, most)) - least) / (most - least)
}

// groups returns all feasible nodes, grouped and in order.
func (o oracle) groups() []Group {
	byRaw := map[Raw][]Scored{}
	for i := range cluster.NodeIndex(o.st.Nodes.Len()) {
		if !o.st.Nodes.Live.Has(i) || o.filter(i) != nil {
			continue
		}
		s := Scored{Node: i, Scores: o.scores(i)}
		for k, plugin := range []string{"NodeResourcesFit", "NodeResourcesBalancedAllocation"} {
			s.Fixed += o.weight(plugin) * int64(max(s.Scores[k], 0))
		}
		raw := o.raw(i)
		byRaw[raw] = append(byRaw[raw], s)
	}
	out := []Group{}
	for raw, nodes := range byRaw {
		slices.SortFunc(nodes, func(a, b Scored) int {
			return cmp.Or(cmp.Compare(b.Fixed, a.Fixed), cmp.Compare(o.tie(a.Node), o.tie(b.Node)))
		})
		out = append(out, Group{Raw: raw, Count: int32(len(nodes)), Nodes: nodes, OfImages: o.image(&nodes[0])})
	}
	slices.SortFunc(out, func(a, b Group) int {
		return cmp.Or(cmp.Compare(a.Raw.Scores[0], b.Raw.Scores[0]), cmp.Compare(b.Raw.Scores[1], a.Raw.Scores[1]),
			cmp.Compare(a.Raw.Images, b.Raw.Images))
	})
	return out
}

// image returns what ImageLocality adds to a node's total.
func (o oracle) image(s *Scored) int64 { return o.weight("ImageLocality") * int64(max(s.Scores[2], 0)) }

func (o oracle) tie(i cluster.NodeIndex) uint64 {
	return cluster.Mix(uint64(i) ^ o.st.Settings.Seed ^ o.spec.Hash())
}

// best returns the node a pod of the class goes to, NoNode if none is feasible.
func (o oracle) best() cluster.NodeIndex {
	groups := o.groups()
	var maxTaints, maxAffinity int64
	for _, g := range groups {
		maxTaints, maxAffinity = max(maxTaints, g.Raw.Scores[0]), max(maxAffinity, g.Raw.Scores[1])
	}
	best, bestTotal := cluster.NoNode, int64(0)
	for _, g := range groups {
		taints, affinity := int64(100), int64(0)
		if maxTaints > 0 {
			taints = 100 - 100*g.Raw.Scores[0]/maxTaints
		}
		if maxAffinity > 0 {
			affinity = 100 * g.Raw.Scores[1] / maxAffinity
		}
		for _, s := range g.Nodes {
			total := s.Fixed + o.image(&s) + o.weight("TaintToleration")*taints + o.weight("NodeAffinity")*affinity
			if best == cluster.NoNode || total > bestTotal || total == bestTotal && o.tie(s.Node) < o.tie(best) {
				best, bestTotal = s.Node, total
			}
		}
	}
	return best
}
