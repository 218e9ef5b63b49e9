package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// world is a random cluster that changes by random deltas.
type world struct {
	st      *cluster.State
	rng     *rand.Rand
	width   int // node indexes are below it
	classes []cluster.ClassID
	keepers map[cluster.PodID]bool // one pending pod of each class, so that the class stays
	names   int
}

type fataler interface {
	Fatalf(format string, args ...any)
}

func apply(t fataler, st *cluster.State, deltas ...cluster.Delta) {
	for _, d := range deltas {
		if err := st.Apply(d); err != nil {
			t.Fatalf("Apply(%#v): %v", d, err)
		}
	}
}

var testProfiles = []cluster.Profile{
	DefaultProfile("default"),
	{
		SchedulerName: "most",
		PreFilters:    []string{NodeResourcesFit, NodeAffinity},
		Filters:       []string{NodePorts, "VolumeZone", NodeResourcesFit, NodeAffinity, TaintToleration, NodeName, NodeUnschedulable},
		Weights: []cluster.PluginWeight{
			{Name: TaintToleration, Weight: 1}, {Name: NodeAffinity, Weight: 7}, {Name: NodeResourcesFit, Weight: 5},
			{Name: NodeResourcesBalancedAllocation, Weight: 2},
		},
		FitStrategy: cluster.MostAllocated,
		FitResources: []cluster.PluginWeight{
			{Name: "cpu", Weight: 3}, {Name: "example.com/gpu", Weight: 5}, {Name: "ephemeral-storage", Weight: 1},
			{Name: "never-seen", Weight: 1},
		},
		BalancedResources: []string{"cpu", "memory", "example.com/gpu", "ephemeral-storage"},
	},
	{
		SchedulerName: "ratio",
		Filters:       []string{TaintToleration, NodeAffinity, NodeResourcesFit},
		Weights: []cluster.PluginWeight{
			{Name: NodeResourcesFit, Weight: 2}, {Name: ImageLocality, Weight: 3},
			{Name: TaintToleration, Weight: 2}, {Name: NodeResourcesBalancedAllocation, Weight: 1},
		},
		FitStrategy:       cluster.RequestedToCapacityRatio,
		FitResources:      []cluster.PluginWeight{{Name: "memory", Weight: 2}, {Name: "example.com/gpu", Weight: 3}},
		Shape:             []cluster.ShapePoint{{Utilization: 10, Score: 0}, {Utilization: 60, Score: 7}, {Utilization: 90, Score: 2}},
		BalancedResources: []string{"example.com/gpu"},
		IgnoredResources:  []string{"example.com/gpu", "cpu"},
		HasAddedRequired:  true,
		AddedRequired: []cluster.NodeSelectorTerm{
			{Expressions: []cluster.Requirement{{Key: "disk", Operator: "Exists"}}}, {},
			{Expressions: []cluster.Requirement{{Key: "zone", Operator: "In", Values: []string{"a", "b"}}}},
		},
		AddedPreferred: []cluster.PreferredTerm{
			{Weight: 20, Term: cluster.NodeSelectorTerm{Expressions: []cluster.Requirement{{Key: "size", Operator: "In", Values: []string{"a"}}}}},
		},
	},
	{
		SchedulerName:         "bare",
		PreFilters:            []string{NodeAffinity},
		Filters:               []string{NodeResourcesFit},
		Weights:               []cluster.PluginWeight{{Name: NodeAffinity, Weight: 1}},
		IgnoredResourceGroups: []string{"example.com", "hugepages-2Mi"},
		HasAddedRequired:      true, // though NodeAffinity does not filter
		AddedPreferred: []cluster.PreferredTerm{
			{Weight: 5, Term: cluster.NodeSelectorTerm{Expressions: []cluster.Requirement{{Key: "zone", Operator: "Exists"}}}},
		},
	},
}

func newWorld(t fataler, seed uint64, width, classes int) *world {
	w := &world{
		st: cluster.New(cluster.Version{Epoch: 1}), rng: rand.New(rand.NewPCG(seed, 1)), width: width,
		keepers: make(map[cluster.PodID]bool),
	}
	apply(t, w.st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: seed, Profiles: testProfiles}})
	for range classes {
		w.addClass(t)
	}
	for range width / 2 {
		apply(t, w.st, w.nodeSet())
	}
	return w
}

func pick[T any](w *world, from ...T) T { return from[w.rng.IntN(len(from))] }

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

var imageNames = []string{"app:1", "app:2", "registry/side:latest", "tiny:1"}

func (w *world) node(name string) cluster.Node {
	n := cluster.Node{Name: name, Unschedulable: w.chance(10)}
	for _, key := range []string{"disk", "size", "zone"} {
		if w.chance(70) {
			n.Labels = append(n.Labels, cluster.Label{Key: key, Value: pick(w, "a", "b", "5", "-7", "9223372036854775808", "")})
		}
	}
	for range w.rng.IntN(3) {
		n.Taints = append(n.Taints, cluster.Taint{
			Key: pick(w, "dedicated", "spot", "x"), Value: pick(w, "", "a", "b"),
			Effect: pick(w, "NoSchedule", "NoExecute", "PreferNoSchedule", "PreferNoSchedule", "PreferNoSchedule", "Odd"),
		})
	}
	n.Allocatable = w.quantities(map[string][]int64{
		"cpu": {0, 1000, 4000, 64000, 1 << 58}, "memory": {0, 1 << 30, 64 << 30, 1 << 60},
		"ephemeral-storage": {0, 1 << 40}, "example.com/gpu": {0, 0, 1, 8}, "pods": {0, 3, 110, 110, 110},
		"hugepages-2Mi": {0, 4 << 20}, "odd": {1},
	})
	for _, name := range imageNames {
		if w.chance(30) {
			n.Images = append(n.Images, cluster.Image{Names: []string{name}, Size: pick[int64](w, 0, 50<<20, 700<<20, 3<<30)})
		}
	}
	return n
}

func (w *world) quantities(of map[string][]int64) []cluster.Quantity {
	var out []cluster.Quantity
	for _, name := range []string{"cpu", "ephemeral-storage", "example.com/gpu", "hugepages-2Mi", "memory", "odd", "pods"} {
		if values, ok := of[name]; ok {
			if v := pick(w, values...); v != 0 {
				out = append(out, cluster.Quantity{Name: name, Value: v})
			}
		}
	}
	return out
}

// term is a node selector term, now and then one that does not parse if it may.
func (w *world) term(mayBreak bool) cluster.NodeSelectorTerm {
	var t cluster.NodeSelectorTerm
	for range w.rng.IntN(3) {
		r := cluster.Requirement{Key: pick(w, "disk", "size", "zone", "none"), Operator: pick(w, "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")}
		switch r.Operator {
		case "In", "NotIn":
			r.Values = []string{pick(w, "a", "b", "5", "c"), pick(w, "a", "", "never")}
		case "Gt", "Lt":
			r.Values = []string{pick(w, "0", "5")}
			if mayBreak && w.chance(20) {
				r.Values = []string{pick(w, "-8", "many")} // -8 is no label value
			}
		}
		t.Expressions = append(t.Expressions, r)
	}
	if w.chance(10) {
		t.Fields = append(t.Fields, cluster.Requirement{
			Key: pick(w, "metadata.name", "metadata.name", "other"), Operator: pick(w, "In", "NotIn"),
			Values: []string{fmt.Sprintf("n%d", w.rng.IntN(w.width))},
		})
	}
	return t
}

func (w *world) spec() cluster.ClassSpec {
	s := cluster.ClassSpec{
		SchedulerName:   pick(w, "default", "default", "most", "ratio", "bare", "unknown"),
		ImageContainers: int32(1 + w.rng.IntN(2)),
		NonZeroCPU:      pick[int64](w, 100, 500), NonZeroMemory: pick[int64](w, 200<<20, 1<<30),
		Requests: w.quantities(map[string][]int64{
			"cpu": {0, 500, 2000, 1 << 57}, "memory": {0, 1 << 28, 8 << 30}, "ephemeral-storage": {0, 0, 1 << 39},
			"example.com/gpu": {0, 0, 0, 1}, "hugepages-2Mi": {0, 0, 0, 2 << 20}, "odd": {0, 0, 5},
		}),
	}
	s.ScoreRequests = slices.Clone(s.Requests)
	if len(s.Requests) == 0 {
		s.ScoreRequests = []cluster.Quantity{{Name: "cpu", Value: 100}, {Name: "memory", Value: 200 << 20}}
	}
	for range w.rng.IntN(3) {
		s.Tolerations = append(s.Tolerations, cluster.Toleration{
			Key: pick(w, "", "dedicated", "spot", "node.kubernetes.io/unschedulable", "never"), Operator: pick(w, "", "Equal", "Exists", "Exists", "Gt"),
			Value: pick(w, "", "a", "unseen"), Effect: pick(w, "", "NoSchedule", "PreferNoSchedule", "NoExecute"),
		})
	}
	if w.chance(20) {
		s.NodeSelector = []cluster.Label{{Key: pick(w, "zone", "disk"), Value: pick(w, "a", "b")}}
	}
	if s.HasRequired = w.chance(30); s.HasRequired {
		for range 1 + w.rng.IntN(2) {
			s.Required = append(s.Required, w.term(true))
		}
	}
	for range w.rng.IntN(3) {
		s.Preferred = append(s.Preferred, cluster.PreferredTerm{Weight: pick[int32](w, 0, 1, 30, 100), Term: w.term(false)})
	}
	if w.chance(25) {
		s.HostPorts = []cluster.HostPort{{IP: pick(w, "0.0.0.0", "10.0.0.1", "10.0.0.2"), Protocol: pick(w, "TCP", "UDP"), Port: pick[int32](w, 80, 443)}}
	}
	for range w.rng.IntN(3) {
		s.Images = append(s.Images, pick(w, imageNames...))
	}
	if w.chance(4) {
		s.Unsupported, s.UnsupportedPlugin = "pod wants more than Berth can judge", "InterPodAffinity"
	}
	if w.chance(4) {
		s.NodeName = fmt.Sprintf("n%d", w.rng.IntN(w.width))
	}
	return s
}

func (w *world) addClass(t fataler) {
	id := cluster.ClassID(len(w.classes) + 10)
	w.classes = append(w.classes, id)
	apply(t, w.st, cluster.ClassDefined{ID: id, Spec: w.spec()})
	w.keepers[w.addPod(t, id, "")] = true
}

// addClassWithImages adds a class that asks for little but images.
func (w *world) addClassWithImages(t fataler) {
	spec := cluster.ClassSpec{SchedulerName: pick(w, "default", "default", "ratio"), ImageContainers: int32(1 + w.rng.IntN(2))}
	spec.NonZeroCPU, spec.NonZeroMemory = 100, 200<<20
	for range 1 + w.rng.IntN(4) {
		spec.Images = append(spec.Images, pick(w, imageNames...))
	}
	id := cluster.ClassID(len(w.classes) + 10)
	w.classes = append(w.classes, id)
	apply(t, w.st, cluster.ClassDefined{ID: id, Spec: spec})
	w.keepers[w.addPod(t, id, "")] = true
}

// churn changes the images of a node, or lets one join, leave or change.
func (w *world) churn(t fataler) {
	i := w.randomNode()
	switch {
	case i == cluster.NoNode || w.chance(15):
		apply(t, w.st, w.nodeSet())
	case w.chance(15):
		apply(t, w.st, cluster.NodeRemoved{Index: i})
	default:
		node := w.st.Node(i)
		node.Images = w.node("").Images
		apply(t, w.st, cluster.NodeSet{Index: i, Node: node})
	}
}

func (w *world) addPod(t fataler, class cluster.ClassID, node string) cluster.PodID {
	w.names++
	id := w.st.FreePod()
	name := fmt.Sprintf("p%d", w.names)
	apply(t, w.st, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: name, Name: name, Class: class, NodeName: node}})
	return id
}

// nodeSet is a new node at an index without one, or new content for one that is there.
func (w *world) nodeSet() cluster.Delta {
	i := cluster.NodeIndex(w.rng.IntN(w.width))
	name := fmt.Sprintf("n%d", i)
	if w.st.Nodes.Live.Has(i) {
		name = w.st.Nodes.Spec[i].Name
	}
	return cluster.NodeSet{Index: i, Node: w.node(name)}
}

func (w *world) randomNode() cluster.NodeIndex {
	var live []cluster.NodeIndex
	for i := range w.st.Nodes.Len() {
		if w.st.Nodes.Live.Has(cluster.NodeIndex(i)) {
			live = append(live, cluster.NodeIndex(i))
		}
	}
	if len(live) == 0 {
		return cluster.NoNode
	}
	return pick(w, live...)
}

// step applies one random delta. Without nodes, it leaves nodes as they are and only places and removes pods.
func (w *world) step(t fataler, nodes bool) {
	if nodes && w.chance(40) {
		if i := w.randomNode(); i != cluster.NoNode && w.chance(20) {
			apply(t, w.st, cluster.NodeRemoved{Index: i})
		} else {
			apply(t, w.st, w.nodeSet())
		}
		return
	}
	if w.chance(60) {
		if i := w.randomNode(); i != cluster.NoNode {
			w.addPod(t, pick(w, w.classes...), w.st.Nodes.Spec[i].Name)
		}
		return
	}
	var placed []cluster.PodID
	for id := range w.st.Pods() {
		if !w.keepers[id] {
			placed = append(placed, id)
		}
	}
	if len(placed) > 0 {
		apply(t, w.st, cluster.PodRemoved{ID: pick(w, placed...)})
	}
}

// shift is a copy of a bitmap of a range as one of the whole table.
func shift(into, part cluster.Bitmap, first cluster.NodeIndex) {
	copy(into[min(int(first)/64, len(into)):], part)
}

func describe(groups []Group) string {
	var b strings.Builder
	for _, g := range groups {
		fmt.Fprintf(&b, "%+v count %d: %v\n", g.Raw, g.Count, g.Nodes)
	}
	return b.String()
}

// of returns the subject of pods that no selector sees.
func of(class cluster.ClassID) Subject { return Subject{Class: class} }

// evaluationOf returns the evaluation of a subject, up to date, for a test in which nobody else asks.
func evaluationOf(e *Evaluator, st *cluster.State, s Subject) (of *evaluation) {
	e.with(st, s, func(c *evaluation) { of = c })
	return of
}
