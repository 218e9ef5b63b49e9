package pending

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// object is a node or a pod with its class and labels.
type object struct {
	node   cluster.Node
	pod    cluster.Pod
	class  cluster.ClassSpec
	labels []cluster.Label
}

// with changes a copy of an object.
type with func(*object)

func node(name string, changes ...with) object {
	o := object{node: cluster.Node{Name: name}}
	for _, change := range changes {
		change(&o)
	}
	return o
}

func pod(name string, changes ...with) object {
	o := object{pod: cluster.Pod{UID: name, Name: name, Namespace: "default"}, class: cluster.ClassSpec{SchedulerName: testScheduler}}
	for _, change := range changes {
		change(&o)
	}
	return o
}

func isPod(o *object) bool { return o.pod.Name != "" }

func label(key, value string) with {
	return func(o *object) {
		if isPod(o) {
			o.labels = append(o.labels, cluster.Label{Key: key, Value: value})
		} else {
			o.node.Labels = append(o.node.Labels, cluster.Label{Key: key, Value: value})
		}
	}
}

// amount is what a node has, with room for 32 pods, or a pod requests.
func amount(resource string, value int64) with {
	return func(o *object) {
		q := cluster.Quantity{Name: resource, Value: value}
		if isPod(o) {
			o.class.Requests, o.class.ScoreRequests = append(o.class.Requests, q), append(o.class.ScoreRequests, q)
			return
		}
		if len(o.node.Allocatable) == 0 && resource != "pods" {
			o.node.Allocatable = []cluster.Quantity{{Name: "pods", Value: 32}}
		}
		o.node.Allocatable = append(o.node.Allocatable, q)
	}
}

func taint(key, value string) with {
	return func(o *object) {
		o.node.Taints = append(o.node.Taints, cluster.Taint{Key: key, Value: value, Effect: "NoSchedule"})
	}
}

func cordoned(o *object) { o.node.Unschedulable = true }

func on(node string) with { return func(o *object) { o.pod.NodeName = node } }

func tolerates(key string) with {
	return func(o *object) {
		o.class.Tolerations = append(o.class.Tolerations, cluster.Toleration{Key: key, Operator: "Exists"})
	}
}

func wants(key, value string) with {
	return func(o *object) {
		o.class.HasRequired = true
		o.class.Required = []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: key, Operator: "In", Values: []string{value}}}}}
	}
}

func requiringNode(node string) with { return func(o *object) { o.pod.RequiredNode = node } }

func exists(key string) cluster.LabelSelector {
	return cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: key, Operator: "Exists"}}}
}

func podTerm(key, topology string) []cluster.PodTerm {
	return []cluster.PodTerm{{
		TopologyKey: topology, Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}, Selector: exists(key),
	}}
}

func near(key, topology string) with {
	return func(o *object) { o.class.Affinity = podTerm(key, topology) }
}

func farFrom(key, topology string) with {
	return func(o *object) { o.class.AntiAffinity = podTerm(key, topology) }
}

func spreads(topology, key string, minDomains int32) with {
	return func(o *object) {
		o.class.Spread = append(o.class.Spread, cluster.SpreadConstraint{
			TopologyKey: topology, MaxSkew: 1, MinDomains: minDomains, Hard: true, HonorAffinity: true, Selector: exists(key),
		})
	}
}

func port(number int32) with {
	return func(o *object) {
		o.class.HostPorts = append(o.class.HostPorts, cluster.HostPort{IP: "0.0.0.0", Protocol: "TCP", Port: number})
	}
}

func feature(name string) with {
	return func(o *object) {
		if isPod(o) {
			o.class.Features = append(o.class.Features, name)
		} else {
			o.node.Features = append(o.node.Features, name)
		}
	}
}

// gone is the name of a node or a pod that goes away.
type gone string

// hintWorld is a shard's queue that judges with the engine.
type hintWorld struct {
	t       *testing.T
	now     time.Time
	st      *cluster.State
	engine  *engine.Evaluator
	queue   *Queue
	classes map[string]cluster.ClassID
	labels  map[string]cluster.LabelsID
}

// newHintWorld enables only some plugins, or all if none is given.
func newHintWorld(t *testing.T, plugins ...string) *hintWorld {
	w := &hintWorld{
		t: t, now: time.Unix(1000, 0), st: cluster.New(cluster.Version{Epoch: 1}), engine: engine.NewEvaluator(engine.EvaluatorConfig{}),
		classes: make(map[string]cluster.ClassID), labels: make(map[string]cluster.LabelsID),
	}
	w.queue = NewQueue(0, evaluating{w.engine})
	profile := engine.DefaultProfile(testScheduler)
	if len(plugins) > 0 {
		other := func(name string) bool { return !slices.Contains(plugins, name) }
		profile.PreFilters = slices.DeleteFunc(profile.PreFilters, other)
		profile.Filters = slices.DeleteFunc(profile.Filters, other)
	}
	w.apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 7, Profiles: []cluster.Profile{profile}}})
	return w
}

func (w *hintWorld) apply(d cluster.Delta) {
	w.t.Helper()
	apply(w.t, w.queue, w.st, w.now, d)
}

// step adds or changes an object, or takes it away.
func (w *hintWorld) step(step any) {
	w.t.Helper()
	switch o := step.(type) {
	case gone:
		if n := w.st.Nodes.ByName(string(o)); n != cluster.NoNode {
			w.apply(cluster.NodeRemoved{Index: n})
		} else {
			w.apply(cluster.PodRemoved{ID: w.pod(string(o))})
		}
	case object:
		if isPod(&o) {
			w.set(o)
			return
		}
		at := w.st.Nodes.ByName(o.node.Name)
		if at == cluster.NoNode {
			at = w.st.Nodes.Free()
		}
		byKey := func(a, b cluster.Label) int { return cmp.Compare(a.Key, b.Key) }
		slices.SortFunc(o.node.Labels, byKey)
		slices.SortFunc(o.node.Allocatable, func(a, b cluster.Quantity) int { return cmp.Compare(a.Name, b.Name) })
		w.apply(cluster.NodeSet{Index: at, Node: o.node})
	}
}

func (w *hintWorld) set(o object) {
	w.t.Helper()
	slices.SortFunc(o.labels, func(a, b cluster.Label) int { return cmp.Compare(a.Key, b.Key) })
	set := cluster.LabelSet{Namespace: o.pod.Namespace, Labels: o.labels}
	class, labels := o.class.Key(), set.Key()
	if w.st.Class(w.classes[class]) == nil || w.classes[class] == 0 {
		w.classes[class] = cluster.ClassID(w.st.Version().Seq + 1)
		w.apply(cluster.ClassDefined{ID: w.classes[class], Spec: o.class})
	}
	if w.st.Labels(w.labels[labels]) == nil {
		w.labels[labels] = cluster.LabelsID(w.st.Version().Seq + 1)
		w.apply(cluster.LabelsDefined{ID: w.labels[labels], Set: set})
	}
	o.pod.Class, o.pod.Labels = w.classes[class], w.labels[labels]
	id, known := w.st.PodByUID(o.pod.UID)
	if !known {
		id = w.st.FreePod()
	}
	w.apply(cluster.PodSet{ID: id, Pod: o.pod})
}

func (w *hintWorld) pod(name string) cluster.PodID {
	w.t.Helper()
	id, ok := w.st.PodByUID(name)
	if !ok {
		w.t.Fatalf("no pod %q", name)
	}
	return id
}

// popped hands out everything that is ready.
func (w *hintWorld) popped() []Attempt {
	w.queue.Recheck(w.now, w.st)
	return w.queue.Pop(w.now, 1000)
}

// diagnosis returns what the engine says of a pod that fits nowhere.
func (w *hintWorld) diagnosis(a Attempt) Diagnosis {
	w.t.Helper()
	p := Diagnosis{Version: w.st.Version()}
	if a.RequiredNode == "" {
		f, _ := w.engine.Filter(w.st, a.Subject, everyNode)
		if f.FeasibleCount > 0 {
			w.t.Fatalf("%s fits a node", a.UID)
		}
	} else {
		n := w.st.Nodes.ByName(a.RequiredNode)
		v, known := w.engine.Node(w.st, a.Subject, a.ID, n)
		if !known || v.Feasible() {
			w.t.Fatalf("%s fits %s, or the node is not known", a.UID, a.RequiredNode)
		}
	}
	_, p.Verdicts = w.engine.AnswersOf(w.st, a.ID).Unschedulable()
	p.CrossNode = engine.CrossNode(p.Verdicts)
	if _, may := w.engine.Preempts(w.st, a.ID); may {
		d, _ := w.engine.DryRun(w.st, a.ID, everyNode, 1)
		p.Keepers = engine.KeepersOf(d.Verdicts)
	}
	return p
}

// requeued returns the pods that are active or in backoff, by name.
func (w *hintWorld) requeued() []string {
	w.queue.Recheck(w.now, w.st)
	var names []string
	for e := range w.queue.Entries(w.queue.IDs()) {
		if e.Place == Active || e.Place == Backoff {
			names = append(names, e.Pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

const notReady = "node.kubernetes.io/not-ready"

// The cases of kube-scheduler 1.36's test/integration/scheduler/queueing, CoreResourceEnqueueTestCases, by their names.
var hintCases = []struct {
	name      string
	plugins   []string
	nodes     []object
	placed    []object
	pods      []object
	trigger   []any
	want      []string
	rejecting []string // the plugins that reject the first pod; nil: not asked
}{
	{
		name:    "Pod without a required toleration to a node isn't requeued to activeQ",
		plugins: []string{engine.TaintToleration, engine.NodeResourcesFit},
		nodes:   []object{node("fake-node", amount("cpu", 2000), taint(notReady, ""))},
		pods:    []object{pod("pod1", amount("cpu", 4000)), pod("pod2", tolerates(notReady), amount("cpu", 4000))},
		trigger: []any{node("fake-node", amount("cpu", 4000), taint(notReady, ""))},
		want:    []string{"pod2"},
	},
	{
		name:    "Pod rejected by the PodAffinity plugin is requeued when a new Node is created and turned to ready",
		plugins: []string{engine.InterPodAffinity},
		nodes:   []object{node("fake-node", label("node", "fake-node"), amount("cpu", 2000))},
		placed:  []object{pod("pod1", label("anti", "anti"), farFrom("anti", "node"), on("fake-node"))},
		pods:    []object{pod("pod2", label("anti", "anti"), farFrom("anti", "node"))},
		trigger: []any{
			node("fake-node2", label("node", "fake-node2"), amount("cpu", 2000), taint(notReady, "")),
			node("fake-node2", label("node", "fake-node2"), amount("cpu", 2000)),
		},
		want: []string{"pod2"},
	},
	{
		name:    "Pod rejected by the NodeAffinity plugin is requeued when a Node's label is updated",
		plugins: []string{engine.NodeAffinity},
		nodes:   []object{node("fake-node1", label("group", "a"))},
		pods:    []object{pod("pod1", wants("group", "b")), pod("pod2", wants("group", "c"))},
		trigger: []any{node("fake-node1", label("group", "b"))},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the NodeAffinity plugin is not requeued when an updated Node haven't changed the 'match' verdict",
		plugins: []string{engine.NodeAffinity, engine.NodeResourcesFit},
		nodes:   []object{node("node1", label("group", "a"), amount("cpu", 2000)), node("node2", label("group", "b"))},
		pods:    []object{pod("pod1", wants("group", "a"), amount("cpu", 4000))},
		trigger: []any{node("node1", label("group", "a"), label("node", "fake-node"), amount("cpu", 2000))},
	},
	{
		name:    "Pod rejected by the NodeAffinity plugin is requeued when a Node is added",
		plugins: []string{engine.NodeAffinity},
		nodes:   []object{node("fake-node1", label("group", "a"))},
		pods:    []object{pod("pod1", wants("group", "b")), pod("pod2", wants("group", "c"))},
		trigger: []any{node("fake-node2", label("group", "b"))},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod updated with toleration requeued to activeQ",
		plugins: []string{engine.TaintToleration},
		nodes:   []object{node("fake-node", taint("taint-key", ""))},
		pods:    []object{pod("pod1")},
		trigger: []any{pod("pod1", tolerates("taint-key"))},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the TaintToleration plugin is requeued when the Node's taint is updated",
		plugins: []string{engine.TaintToleration},
		nodes:   []object{node("fake-node", taint(notReady, ""))},
		pods:    []object{pod("pod1", tolerates("taint-key")), pod("pod2", tolerates("taint-key2")), pod("pod3")},
		trigger: []any{node("fake-node", taint("taint-key", ""))},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the TaintToleration plugin is requeued when a Node that has the correspoding taint is added",
		plugins: []string{engine.TaintToleration},
		nodes:   []object{node("fake-node1", taint(notReady, ""))},
		pods:    []object{pod("pod1", tolerates("taint-key")), pod("pod2")},
		trigger: []any{node("fake-node2", taint("taint-key", ""))},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the NodeResourcesFit plugin is requeued when the Pod is updated to scale down",
		plugins: []string{engine.NodeResourcesFit},
		nodes:   []object{node("fake-node", amount("cpu", 2000))},
		pods:    []object{pod("pod1", amount("cpu", 4000))},
		trigger: []any{pod("pod1", amount("cpu", 2000))},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the NodeResourcesFit plugin is requeued when a Pod is deleted",
		plugins: []string{engine.NodeResourcesFit},
		nodes:   []object{node("fake-node", amount("cpu", 2000))},
		placed:  []object{pod("pod1", amount("cpu", 2000), on("fake-node"))},
		pods:    []object{pod("pod2", amount("cpu", 2000))},
		trigger: []any{gone("pod1")},
		want:    []string{"pod2"},
	},
	{
		name:    "Pod rejected by the NodeResourcesFit plugin is requeued when a Node is created",
		plugins: []string{engine.NodeResourcesFit},
		nodes:   []object{node("fake-node1", amount("cpu", 2000))},
		pods:    []object{pod("pod1", amount("cpu", 4000)), pod("pod2", amount("cpu", 5000))},
		trigger: []any{node("fake-node2", amount("cpu", 4000))},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the NodeResourcesFit plugin is requeued when a Node is updated",
		plugins: []string{engine.NodeResourcesFit},
		nodes:   []object{node("fake-node", amount("cpu", 2000))},
		pods:    []object{pod("pod1", amount("cpu", 4000)), pod("pod2", amount("cpu", 5000))},
		trigger: []any{node("fake-node", amount("cpu", 4000))},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the NodeResourcesFit plugin isn't requeued when a Node has the extended resource, and DRAExtendedResource is disabled",
		plugins: []string{engine.NodeResourcesFit},
		nodes:   []object{node("fake-node1", amount("cpu", 4000), amount("example.com/gpu", 1))},
		pods:    []object{pod("pod1", amount("cpu", 5000), amount("example.com/gpu", 1))},
		trigger: []any{node("fake-node1", amount("cpu", 4000), amount("memory", 4000))},
	},
	{
		name:    "Pod rejected by the NodeResourcesFit plugin isn't requeued when a Node has the extended resource, and DRAExtendedResource is enabled",
		plugins: []string{engine.NodeResourcesFit},
		nodes:   []object{node("fake-node1", amount("cpu", 4000), amount("example.com/gpu", 1))},
		pods:    []object{pod("pod1", amount("cpu", 5000), amount("example.com/gpu", 1))},
		trigger: []any{node("fake-node1", amount("cpu", 4000), amount("memory", 4000))},
	},
	{
		name:    "Pod rejected by the NodeResourcesFit plugin isn't requeued when a Node does not have the extended resource, and DRAExtendedResource is disabled",
		plugins: []string{engine.NodeResourcesFit},
		nodes:   []object{node("fake-node1", amount("cpu", 4000))},
		pods:    []object{pod("pod1", amount("example.com/gpu", 1))},
		trigger: []any{node("fake-node1", amount("cpu", 4000), amount("memory", 4000))},
	},
	{
		name:    "Pod rejected by the NodeResourcesFit plugin isn't requeued when a Node is updated without increase in the requested resources",
		plugins: []string{engine.NodeResourcesFit, engine.NodeAffinity},
		nodes:   []object{node("fake-node1", amount("cpu", 4000)), node("fake-node2", amount("cpu", 2000), label("group", "b"))},
		pods:    []object{pod("pod1", amount("cpu", 4000), wants("group", "b"))},
		trigger: []any{node("fake-node1", amount("cpu", 4000), amount("memory", 4000))},
	},
	{
		name:    "Pod rejected by the NodeResourcesFit plugin is requeued when a Node is updated with increase in the requested resources",
		plugins: []string{engine.NodeResourcesFit, engine.NodeAffinity},
		nodes:   []object{node("fake-node1", amount("cpu", 4000)), node("fake-node2", amount("cpu", 2000), label("group", "b"))},
		pods:    []object{pod("pod1", amount("cpu", 4000), wants("group", "b"))},
		trigger: []any{node("fake-node1", amount("cpu", 5000))},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the NodeResourcesFit plugin is requeued when a Node is updated with increase in the allowed pods number",
		plugins: []string{engine.NodeResourcesFit, engine.NodeAffinity},
		nodes:   []object{node("fake-node1", amount("pods", 2)), node("fake-node2", amount("pods", 1), label("group", "b"))},
		placed:  []object{pod("pod1", wants("group", "b"), on("fake-node2"))},
		pods:    []object{pod("pod2", wants("group", "b"))},
		trigger: []any{node("fake-node1", amount("pods", 3))},
		want:    []string{"pod2"},
	},
	{
		name:    "Updating pod label doesn't retry scheduling if the Pod was rejected by TaintToleration",
		plugins: []string{engine.TaintToleration},
		nodes:   []object{node("fake-node", taint(notReady, ""))},
		pods:    []object{pod("pod1")},
		trigger: []any{pod("pod1", label("key", "val"))},
	},
	{
		name:    "Pod rejected by the PreFilter of NodeAffinity plugin and Filter of NodeResourcesFit is requeued based on both plugins",
		plugins: []string{engine.NodeAffinity, engine.NodeResourcesFit},
		nodes: []object{
			node("fake-node", label("node", "fake-node"), amount("cpu", 2000)),
			node("fake-node2", label("node", "fake-node2"), label("zone", "zone1"), amount("cpu", 2000)),
		},
		pods:      []object{pod("pod1", label("unscheduled", "plugins"), requiringNode("fake-node"), amount("cpu", 4000))},
		rejecting: []string{engine.NodeAffinity, engine.NodeResourcesFit},
	},
	{
		name:    "Pod rejected by the InterPodAffinity plugin is requeued when deleting the existed pod's label that matches the podAntiAffinity",
		plugins: []string{engine.InterPodAffinity},
		nodes:   []object{node("fake-node", label("node", "fake-node"))},
		placed:  []object{pod("pod1", label("anti1", "anti1"), label("anti2", "anti2"), on("fake-node"))},
		pods: []object{
			pod("pod2", label("anti1", "anti1"), farFrom("anti1", "node")),
			pod("pod3", label("anti2", "anti2"), farFrom("anti2", "node")),
		},
		trigger: []any{pod("pod1", label("anti2", "anti2"), on("fake-node"))},
		want:    []string{"pod2"},
	},
	{
		name:    "Pod rejected by the InterPodAffinity plugin is requeued when deleting the existing pod that matches the target podAntiAffinity",
		plugins: []string{engine.InterPodAffinity},
		nodes:   []object{node("fake-node", label("node", "fake-node"))},
		placed:  []object{pod("pod1", label("anti1", "anti1"), on("fake-node")), pod("pod2", label("anti2", "anti2"), on("fake-node"))},
		pods: []object{
			pod("pod3", label("anti1", "anti1"), farFrom("anti1", "node")),
			pod("pod4", label("anti2", "anti2"), farFrom("anti2", "node")),
		},
		trigger: []any{gone("pod1")},
		want:    []string{"pod3"},
	},
	{
		name:    "Pod rejected by the InterPodAffinity plugin is requeued when deleting the existing pod with podAntiAffinity that matches the target pod",
		plugins: []string{engine.InterPodAffinity},
		nodes:   []object{node("fake-node", label("node", "fake-node"))},
		placed:  []object{pod("pod1", farFrom("anti1", "node"), on("fake-node")), pod("pod2", farFrom("anti2", "node"), on("fake-node"))},
		pods:    []object{pod("pod3", label("anti1", "anti1")), pod("pod4", label("anti2", "anti2"))},
		trigger: []any{gone("pod1")},
		want:    []string{"pod3"},
	},
	{
		name:    "Pod rejected by the PodAffinity plugin is requeued when updating the existed pod's label to make it match the pod's podAffinity",
		plugins: []string{engine.InterPodAffinity},
		nodes:   []object{node("fake-node", label("node", "fake-node"))},
		placed:  []object{pod("pod1", on("fake-node"))},
		pods:    []object{pod("pod2", near("aaa", "node")), pod("pod3", near("bbb", "node"))},
		trigger: []any{pod("pod1", label("aaa", "bbb"), on("fake-node"))},
		want:    []string{"pod2"},
	},
	{
		name:    "Pod rejected by the InterPodAffinity plugin is requeued when creating the node with the topologyKey label of the pod affinity",
		plugins: []string{engine.InterPodAffinity},
		nodes:   []object{node("fake-node1", label("aaa", "fake-node"))},
		pods:    []object{pod("pod1", near("bbb", "zone")), pod("pod2", near("ccc", "region"))},
		trigger: []any{node("fake-node2", label("zone", "zone1"))},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the InterPodAffinity plugin is requeued when updating the node with the topologyKey label of the pod affinity",
		plugins: []string{engine.InterPodAffinity, engine.NodeAffinity},
		nodes:   []object{node("fake-node", label("region", "region-1")), node("fake-node2", label("region", "region-2"), label("group", "b"))},
		placed:  []object{pod("pod1", label("affinity1", "affinity1"), on("fake-node"))},
		pods: []object{
			pod("pod2", label("affinity1", "affinity1"), near("affinity1", "node")),
			pod("pod3", label("affinity1", "affinity1"), near("affinity1", "other")),
			pod("pod4", near("affinity1", "region"), wants("group", "b")),
		},
		trigger: []any{node("fake-node", label("node", "fake-node"), label("region", "region-2"))},
		want:    []string{"pod2", "pod4"},
	},
	{
		name:    "Pod rejected by the InterPodAffinity plugin is requeued when updating the node with the topologyKey label of the pod anti affinity",
		plugins: []string{engine.InterPodAffinity},
		nodes:   []object{node("fake-node", label("node", "fake-node"), label("service", "service-a"), label("other", "fake-node"))},
		placed:  []object{pod("pod1", label("anti1", "anti1"), on("fake-node"))},
		pods: []object{
			pod("pod2", label("anti1", "anti1"), farFrom("anti1", "node")),
			pod("pod3", label("anti1", "anti1"), farFrom("anti1", "service")),
			pod("pod4", label("anti1", "anti1"), farFrom("anti1", "other")),
		},
		trigger: []any{node("fake-node", label("service", "service-b"), label("region", "fake-node"), label("other", "fake-node"))},
		want:    []string{"pod2", "pod3"},
	},
	{
		name:    "Pod rejected by the InterPodAffinity plugin is requeued when creating the node with the topologyKey label of the pod anti affinity",
		plugins: []string{engine.InterPodAffinity},
		nodes:   []object{node("fake-node1", label("zone", "fake-node"), label("node", "fake-node"))},
		placed:  []object{pod("pod1", label("anti1", "anti1"), on("fake-node1"))},
		pods:    []object{pod("pod2", farFrom("anti1", "zone")), pod("pod3", farFrom("anti1", "node"))},
		trigger: []any{node("fake-node2", label("zone", "fake-node"))},
		want:    []string{"pod2", "pod3"},
	},
	{
		name:    "Pod rejected with hostport by the NodePorts plugin is requeued when pod with common hostport is deleted",
		plugins: []string{engine.NodePorts},
		nodes:   []object{node("fake-node", label("node", "fake-node"))},
		placed:  []object{pod("pod1", port(8080), on("fake-node")), pod("pod2", port(8081), on("fake-node"))},
		pods:    []object{pod("pod3", port(8080)), pod("pod4", port(8081))},
		trigger: []any{gone("pod1")},
		want:    []string{"pod3"},
	},
	{
		name:    "Pod rejected with hostport by the NodePorts plugin is requeued when new node is created",
		plugins: []string{engine.NodePorts},
		nodes:   []object{node("fake-node", label("node", "fake-node"))},
		placed:  []object{pod("pod1", port(8080), on("fake-node"))},
		pods:    []object{pod("pod2", port(8080))},
		trigger: []any{node("fake-node2", label("node", "fake-node2"))},
		want:    []string{"pod2"},
	},
	{
		name:    "Pod rejected by the NodeUnschedulable plugin is requeued when the node is turned to ready",
		plugins: []string{engine.NodeUnschedulable},
		nodes:   []object{node("fake-node", cordoned)},
		pods:    []object{pod("pod1")},
		trigger: []any{node("fake-node")},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the NodeUnschedulable plugin is requeued when a new node is created",
		plugins: []string{engine.NodeUnschedulable},
		nodes:   []object{node("fake-node1", cordoned)},
		pods:    []object{pod("pod1")},
		trigger: []any{node("fake-node2")},
		want:    []string{"pod1"},
	},
	{
		name:    "Pod rejected by the NodeUnschedulable plugin isn't requeued when another unschedulable node is created",
		plugins: []string{engine.NodeUnschedulable},
		nodes:   []object{node("fake-node1", cordoned)},
		pods:    []object{pod("pod1")},
		trigger: []any{node("fake-node2", cordoned)},
	},
	{
		name:    "Pods with PodTopologySpread should be requeued when a Pod with matching label is scheduled",
		plugins: []string{engine.PodTopologySpread},
		nodes:   []object{node("fake-node", label("node", "fake-node"), amount("cpu", 2000))},
		placed:  []object{pod("pod1", label("key1", "val"), on("fake-node")), pod("pod2", label("key2", "val"), on("fake-node"))},
		pods:    []object{pod("pod3", label("key1", "val"), spreads("node", "key1", 3)), pod("pod4", label("key2", "val"), spreads("node", "key2", 3))},
		trigger: []any{pod("pod5", label("key1", "val"), on("fake-node"))},
		want:    []string{"pod3"},
	},
	{
		name:    "Pods with PodTopologySpread should be requeued when a scheduled Pod label is updated to match the selector",
		plugins: []string{engine.PodTopologySpread},
		nodes:   []object{node("fake-node", label("node", "fake-node"), amount("cpu", 2000))},
		placed:  []object{pod("pod1", label("key1", "val"), on("fake-node")), pod("pod2", label("key2", "val"), on("fake-node"))},
		pods:    []object{pod("pod3", label("key1", "val"), spreads("node", "key1", 3)), pod("pod4", label("key2", "val"), spreads("node", "key2", 3))},
		trigger: []any{pod("pod1", label("key3", "val"), on("fake-node"))},
		want:    []string{"pod3"},
	},
	{
		name:    "Pods with PodTopologySpread should be requeued when a scheduled Pod with matching label is deleted",
		plugins: []string{engine.PodTopologySpread},
		nodes:   []object{node("fake-node", label("node", "fake-node"), amount("cpu", 2000))},
		placed:  []object{pod("pod1", label("key1", "val"), on("fake-node")), pod("pod2", label("key2", "val"), on("fake-node"))},
		pods:    []object{pod("pod3", label("key1", "val"), spreads("node", "key1", 2)), pod("pod4", label("key2", "val"), spreads("node", "key2", 3))},
		trigger: []any{gone("pod1")},
		want:    []string{"pod3"},
	},
	{
		name:    "Pods with PodTopologySpread should be requeued when a Node with topology label is created",
		plugins: []string{engine.PodTopologySpread},
		nodes:   []object{node("fake-node1", label("node", "fake-node")), node("fake-node2", label("zone", "fake-zone"))},
		placed:  []object{pod("pod1", label("key1", "val"), on("fake-node1")), pod("pod2", label("key1", "val"), on("fake-node2"))},
		pods:    []object{pod("pod3", label("key1", "val"), spreads("node", "key1", 2)), pod("pod4", label("key1", "val"), spreads("zone", "key1", 2))},
		trigger: []any{node("fake-node3", label("node", "fake-node"))},
		want:    []string{"pod3"},
	},
	{
		name:    "Pods with PodTopologySpread should be requeued when a Node is updated to have the topology label",
		plugins: []string{engine.PodTopologySpread},
		nodes: []object{
			node("fake-node1", label("node", "fake-node"), label("region", "fake-node"), label("service", "service-a")),
			node("fake-node2", label("node", "fake-node"), label("region", "fake-node"), label("service", "service-a")),
		},
		placed: []object{
			pod("pod1", label("key1", "val"), spreads("node", "key1", 1), on("fake-node1")),
			pod("pod2", label("key1", "val"), spreads("zone", "key1", 1), on("fake-node2")),
			pod("pod3", label("key1", "val"), spreads("region", "key1", 1), on("fake-node2")),
			pod("pod4", label("key1", "val"), spreads("service", "key1", 1), on("fake-node2")),
		},
		pods: []object{
			pod("pod5", label("key1", "val"), spreads("node", "key1", 3)),
			pod("pod6", label("key1", "val"), spreads("zone", "key1", 3)),
			pod("pod7", label("key1", "val"), spreads("region", "key1", 3)),
			pod("pod8", label("key1", "val"), spreads("other", "key1", 3)),
			pod("pod9", label("key1", "val"), spreads("service", "key1", 3)),
		},
		trigger: []any{node("fake-node2", label("zone", "fake-node"), label("region", "fake-node"), label("service", "service-b"))},
		want:    []string{"pod5", "pod6", "pod9"},
	},
	{
		name:    "Pods with PodTopologySpread should be requeued when a Node with a topology label is deleted (QHint: enabled)",
		plugins: []string{engine.PodTopologySpread},
		nodes:   []object{node("fake-node1", label("node", "fake-node")), node("fake-node2", label("zone", "fake-node"))},
		placed: []object{
			pod("pod1", label("key1", "val"), spreads("node", "key1", 1), on("fake-node1")),
			pod("pod2", label("key1", "val"), spreads("zone", "key1", 1), on("fake-node2")),
		},
		pods:    []object{pod("pod3", label("key1", "val"), spreads("node", "key1", 3)), pod("pod4", label("key1", "val"), spreads("zone", "key1", 3))},
		trigger: []any{gone("fake-node2")},
		want:    []string{"pod4"},
	},
	{
		name:    "Pods with PodTopologySpread should be requeued when a NodeTaint of a Node with a topology label has been updated",
		plugins: []string{engine.PodTopologySpread},
		nodes: []object{
			node("fake-node1", label("node", "fake-node")), node("fake-node2", label("zone", "fake-node")),
			node("fake-node3", label("zone", "fake-node"), taint(notReady, "")),
		},
		placed: []object{
			pod("pod1", label("key1", "val"), spreads("node", "key1", 1), on("fake-node1")),
			pod("pod2", label("key1", "val"), spreads("node", "key1", 1), on("fake-node2")),
		},
		pods: []object{
			pod("pod3", label("key1", "val"), spreads("node", "key1", 3)),
			pod("pod4", label("key1", "val"), spreads("zone", "key1", 3), tolerates("aaa")),
		},
		trigger: []any{node("fake-node3", label("zone", "fake-node"), taint("aaa", "bbb"))},
		want:    []string{"pod4"},
	},
	{
		name:    "pod becomes schedulable after node update with required feature",
		plugins: []string{engine.NodeDeclaredFeatures},
		nodes:   []object{node("node-1")},
		pods:    []object{pod("pod1", feature("FeatureA"))},
		trigger: []any{node("node-1", feature("FeatureA"))},
		want:    []string{"pod1"},
	},
	{
		name:    "pod remains unschedulable after node update that does not update declared features",
		plugins: []string{engine.NodeDeclaredFeatures},
		nodes:   []object{node("node-1")},
		pods:    []object{pod("pod1", feature("FeatureA"))},
		trigger: []any{node("node-1", label("foo", "bar"))},
	},
	{
		name:    "pod becomes schedulable after pod update that removes feature requirement",
		plugins: []string{engine.NodeDeclaredFeatures},
		nodes:   []object{node("node-1")},
		pods:    []object{pod("pod1", feature("FeatureA"))},
		trigger: []any{pod("pod1")},
		want:    []string{"pod1"},
	},
	{
		name:    "pod remains unschedulable after pod update that does not remove feature requirement",
		plugins: []string{engine.NodeDeclaredFeatures},
		nodes:   []object{node("node-1")},
		pods:    []object{pod("pod1", feature("FeatureA"))},
		trigger: []any{pod("pod1", feature("FeatureA"), label("foo", "bar"))},
	},
}

// upstreamHintCases is how many cases kube-scheduler has, and otherHintCases which of them are not told here.
const upstreamHintCases = 79

var otherHintCases = []struct {
	about string
	count int
	why   string
}{
	{"VolumeZone", 6, "Berth does not judge pods with volumes"},
	{"VolumeRestrictions", 2, "Berth does not judge pods with volumes"},
	{"VolumeBinding", 16, "Berth does not judge pods with volumes"},
	{"NodeVolumeLimits", 5, "Berth does not judge pods with volumes"},
	{"DeviceClass, for NodeResourcesFit", 3, "Berth does not judge pods with devices"},
	{"GangScheduling", 2, "who waits for its group is found out anew with each change of it"},
	{"PodTopologySpread without queueing hints", 1, "queueing hints cannot be switched off"},
}

func TestEveryCaseOfTheHintsIsToldOrNamed(t *testing.T) {
	names := make(map[string]bool)
	for _, c := range hintCases {
		names[c.name] = true
	}
	all := len(names)
	for _, other := range otherHintCases {
		all += other.count
	}
	if all != upstreamHintCases || len(names) != len(hintCases) {
		t.Errorf("%d cases are told and named, %d of them twice; want %d", all, len(hintCases)-len(names), upstreamHintCases)
	}
}

// TestUpstreamsQueueingHints: pods are requeued by what kube-scheduler requeues them by, whether it comes after they were
// unschedulable, or between their evaluation and the end of the attempt.
func TestUpstreamsQueueingHints(t *testing.T) {
	for _, c := range hintCases {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %v", c.name, late), func(t *testing.T) {
				w := newHintWorld(t, c.plugins...)
				for _, o := range slices.Concat(c.nodes, c.placed, c.pods) {
					w.step(o)
				}
				attempts := w.popped()
				if len(attempts) != len(c.pods) {
					t.Fatalf("%d pods popped, want %d", len(attempts), len(c.pods))
				}
				evaluated := make(map[string]Diagnosis)
				for _, a := range attempts {
					evaluated[a.UID] = w.diagnosis(a)
				}
				reject := func() {
					for _, a := range attempts {
						w.queue.Reject(w.now, w.st, a, evaluated[a.UID])
					}
				}
				if !late {
					reject()
					if got := w.requeued(); got != nil {
						t.Fatalf("before the trigger %v are requeued", got)
					}
				}
				for _, step := range c.trigger {
					w.step(step)
				}
				if late {
					reject()
				}
				if diff := gocmp.Diff(c.want, w.requeued()); diff != "" {
					t.Errorf("requeued (-want +got):\n%s", diff)
				}
				if c.rejecting != nil {
					var got []string
					for _, v := range evaluated[c.pods[0].pod.UID].Verdicts {
						got = append(got, v.Plugin)
					}
					slices.Sort(got)
					if diff := gocmp.Diff(c.rejecting, slices.Compact(got)); diff != "" {
						t.Errorf("rejected by (-want +got):\n%s", diff)
					}
				}
			})
		}
	}
}

// rejected adds a pod and makes it unschedulable, as rejected by plugins, whatever the engine says of it.
func (w *hintWorld) rejected(o object, plugins ...string) {
	w.t.Helper()
	w.step(o)
	attempts := w.popped()
	if len(attempts) != 1 {
		w.t.Fatalf("%d pods popped, want 1", len(attempts))
	}
	p := Diagnosis{Version: w.st.Version()}
	for _, plugin := range plugins {
		p.Verdicts = append(p.Verdicts, engine.VerdictCount{Plugin: plugin, Reason: "no", Count: 1})
	}
	p.CrossNode = engine.CrossNode(p.Verdicts)
	w.queue.Reject(w.now, w.st, attempts[0], p)
	if got := w.requeued(); got != nil {
		w.t.Fatalf("requeued at once: %v", got)
	}
}

func TestChangedPodIsRequeuedOnlyIfAPluginThatRejectedItWouldSo(t *testing.T) {
	base := []with{amount("cpu", 4000), feature("F"), spreads("zone", "app", 1)}
	honoring := func(o *object) { o.class.Spread[0].HonorTaints = true }
	changes := map[string][2]object{
		"label of a constraint":            {pod("p", base...), pod("p", append(slices.Clone(base), label("app", "web"))...)},
		"other label":                      {pod("p", base...), pod("p", append(slices.Clone(base), label("team", "web"))...)},
		"toleration":                       {pod("p", base...), pod("p", append(slices.Clone(base), tolerates("x"))...)},
		"toleration, taints being honored": {pod("p", append(slices.Clone(base), honoring)...), pod("p", append(slices.Clone(base), honoring, tolerates("x"))...)},
		"toleration of cordons":            {pod("p", base...), pod("p", append(slices.Clone(base), tolerates("node.kubernetes.io/unschedulable"))...)},
		"smaller request":                  {pod("p", base...), pod("p", amount("cpu", 3000), feature("F"), spreads("zone", "app", 1))},
		"larger request":                   {pod("p", base...), pod("p", amount("cpu", 5000), feature("F"), spreads("zone", "app", 1))},
		"feature":                          {pod("p", base...), pod("p", amount("cpu", 4000), spreads("zone", "app", 1))},
	}
	want := map[string][]string{
		engine.InterPodAffinity:     {"label of a constraint", "other label"},
		engine.PodTopologySpread:    {"label of a constraint", "toleration, taints being honored"},
		engine.NodeResourcesFit:     {"smaller request"},
		engine.TaintToleration:      {"toleration", "toleration, taints being honored", "toleration of cordons"},
		engine.NodeUnschedulable:    {"toleration of cordons"},
		engine.NodeDeclaredFeatures: {"feature"},
		engine.NodeAffinity:         nil,
		engine.NodePorts:            nil,
	}
	for plugin, requeuing := range want {
		for name, change := range changes {
			t.Run(plugin+"/"+name, func(t *testing.T) {
				w := newHintWorld(t)
				w.step(node("n1", amount("cpu", 1000)))
				w.rejected(change[0], plugin)
				w.step(change[1])
				if got := w.requeued() != nil; got != slices.Contains(requeuing, name) {
					t.Errorf("requeued: %v", got)
				}
			})
		}
	}
}

func TestPodIsRequeuedByAHintThoughItFitsNowhereYet(t *testing.T) {
	for name, c := range map[string]struct {
		pod            object
		plugin         string
		placed, change any
	}{
		"one of two that keep it away goes": {
			pod("p", amount("cpu", 4000), label("app", "web")), engine.InterPodAffinity, pod("other", farFrom("app", "zone"), on("n1")), gone("other"),
		},
		"a pod that it is to be far from goes": {
			pod("p", amount("cpu", 4000), farFrom("app", "zone")), engine.InterPodAffinity, pod("other", label("app", "web"), on("n1")), gone("other"),
		},
		"one that it wants near comes": {
			pod("p", amount("cpu", 4000), near("app", "zone")), engine.InterPodAffinity, nil, pod("other", label("app", "web"), on("n1")),
		},
		"a pod of its constraint goes": {
			pod("p", amount("cpu", 4000), spreads("zone", "app", 1)), engine.PodTopologySpread, pod("other", label("app", "web"), on("n1")), gone("other"),
		},
		"the taints of a node change": {
			pod("p", amount("cpu", 4000), spreads("zone", "app", 1)), engine.PodTopologySpread, nil,
			node("n1", label("zone", "a"), amount("cpu", 1000), taint("key", "value")),
		},
		"a node comes": {
			pod("p", amount("cpu", 4000), farFrom("app", "zone")), engine.InterPodAffinity, nil, node("n2", amount("cpu", 1000)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, plugin := range []string{c.plugin, engine.NodeResourcesFit} {
				w := newHintWorld(t)
				w.step(node("n1", label("zone", "a"), amount("cpu", 1000)))
				w.step(c.placed)
				w.rejected(c.pod, plugin)
				w.step(c.change)
				if got := w.requeued() != nil; got != (plugin == c.plugin) {
					t.Errorf("rejected by %s: requeued: %v", plugin, got)
				}
			}
		})
	}
}

func TestPodIsNotRequeuedByPodsOfOtherNamespaces(t *testing.T) {
	elsewhere := func(o *object) { o.pod.Namespace = "other" }
	w := newHintWorld(t)
	w.step(node("n1", label("zone", "a"), amount("cpu", 1000)))
	w.rejected(pod("p", amount("cpu", 4000), spreads("zone", "app", 1), near("app", "zone")), engine.PodTopologySpread, engine.InterPodAffinity)
	w.step(pod("other", label("app", "web"), on("n1"), elsewhere))
	w.step(gone("other"))
	if got := w.requeued(); got != nil {
		t.Errorf("requeued by a pod of another namespace: %v", got)
	}
	w.step(pod("web", label("app", "web"), on("n1")))
	if diff := gocmp.Diff([]string{"p"}, w.requeued()); diff != "" {
		t.Errorf("requeued by a pod of its own (-want +got):\n%s", diff)
	}
}

func priority(p int32) with { return func(o *object) { o.pod.Priority = p } }

func nominatedTo(node string) with { return func(o *object) { o.pod.Nominated = node } }

func never(o *object) { o.pod.NeverPreempts = true }

func TestPodIsRequeuedByAChangeOfANodeWhereItCouldPreempt(t *testing.T) {
	small := pod("p", amount("cpu", 500), wants("group", "b"), priority(10))
	for name, c := range map[string]struct {
		pod     object
		trigger []any
		want    bool
	}{
		"it becomes reachable":     {small, []any{node("n1", label("group", "b"), amount("cpu", 1000))}, true},
		"another does":             {small, []any{node("n2", label("group", "b"), amount("cpu", 100))}, false},
		"for a pod as important":   {pod("p", amount("cpu", 500), wants("group", "b")), []any{node("n1", label("group", "b"), amount("cpu", 1000))}, false},
		"for one that preempts no": {pod("p", amount("cpu", 500), wants("group", "b"), priority(10), never), []any{node("n1", label("group", "b"), amount("cpu", 1000))}, false},
		"for one that has preempted elsewhere": {pod("p", amount("cpu", 500), wants("group", "b"), priority(10), nominatedTo("n9")),
			[]any{node("n1", label("group", "b"), amount("cpu", 1000))}, false},
		"for one that asks for too much": {
			pod("p", amount("cpu", 1500), wants("group", "b"), priority(10)), []any{node("n1", label("group", "b"), amount("cpu", 1000))}, false,
		},
		"with relations": {
			pod("p", amount("cpu", 500), wants("group", "b"), priority(10), farFrom("nobody", "zone")),
			[]any{node("n1", label("group", "b"), amount("cpu", 1000))}, true,
		},
		"it is the pod's only one": {pod("p", amount("cpu", 500), requiringNode("n3"), priority(10)), []any{
			node("n3", amount("cpu", 600), cordoned), pod("other", amount("cpu", 400), on("n3")), node("n3", amount("cpu", 600)),
		}, true},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %v", name, late), func(t *testing.T) {
				w := newHintWorld(t)
				w.step(node("n1", label("group", "a"), amount("cpu", 1000)))
				w.step(pod("low", amount("cpu", 900), on("n1")))
				w.step(c.pod)
				a := w.popped()[0]
				p := Diagnosis{Version: w.st.Version(), Verdicts: []engine.VerdictCount{{Plugin: engine.NodeAffinity}}}
				if !late {
					w.queue.Reject(w.now, w.st, a, p)
				}
				for _, step := range c.trigger {
					w.step(step)
				}
				if late {
					w.queue.Reject(w.now, w.st, a, p)
				}
				if got := w.requeued() != nil; got != c.want {
					t.Errorf("requeued: %v, want %v", got, c.want)
				}
			})
		}
	}
}

func TestPodsOfOneClassAreLookedAtApartIfPriorityOrVersionTellThemApart(t *testing.T) {
	reachable := node("n1", label("group", "b"), amount("cpu", 1000))
	for name, relation := range map[string]with{"without relations": func(*object) {}, "with relations": farFrom("nobody", "zone")} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("priorities, %s, late %v", name, late), func(t *testing.T) {
				w := newHintWorld(t)
				w.step(node("n1", label("group", "a"), amount("cpu", 1000)))
				w.step(pod("placed", amount("cpu", 900), priority(5), on("n1")))
				w.step(pod("high", amount("cpu", 500), wants("group", "b"), priority(10), relation))
				w.step(pod("low", amount("cpu", 500), wants("group", "b"), relation))
				attempts, p := w.popped(), Diagnosis{Version: w.st.Version()}
				slices.Reverse(attempts) // low is looked at first
				if late {
					w.step(reachable)
				}
				for _, a := range attempts {
					w.queue.Reject(w.now, w.st, a, p)
				}
				if !late {
					w.step(reachable)
				}
				if diff := gocmp.Diff([]string{"high"}, w.requeued()); diff != "" {
					t.Errorf("requeued (-want +got):\n%s", diff)
				}
			})
		}
	}
	t.Run("versions", func(t *testing.T) {
		w := newHintWorld(t)
		w.step(node("n1", amount("cpu", 100)))
		w.step(pod("newer", amount("cpu", 500)))
		w.step(pod("older", amount("cpu", 500)))
		attempts, older := w.popped(), w.st.Version()
		w.step(node("n1", amount("cpu", 1000)))
		w.queue.Reject(w.now, w.st, attempts[0], Diagnosis{Version: w.st.Version()})
		w.queue.Reject(w.now, w.st, attempts[1], Diagnosis{Version: older})
		if diff := gocmp.Diff([]string{"older"}, w.requeued()); diff != "" {
			t.Errorf("requeued (-want +got):\n%s", diff)
		}
	})
}

func TestPodThatComesToDependOnOtherNodesWakesByThem(t *testing.T) {
	w := newHintWorld(t)
	w.step(node("n1", label("zone", "a"), amount("cpu", 100)))
	w.step(node("n2", label("zone", "a"), amount("cpu", 1000)))
	w.rejected(pod("p", amount("cpu", 500), wants("group", "b")), engine.NodeAffinity)
	w.step(pod("p", amount("cpu", 500), near("app", "zone")))
	if got := w.requeued(); got != nil {
		t.Fatalf("by its own change: %v", got)
	}
	w.step(pod("friend", label("app", "web"), on("n1"))) // n2, where it fits, is as it was
	if diff := gocmp.Diff([]string{"p"}, w.requeued()); diff != "" {
		t.Errorf("requeued (-want +got):\n%s", diff)
	}
}

// countingJudge counts the questions.
type countingJudge struct {
	Judge
	nodes, signatures int // about one node, about all nodes
}

func (j *countingJudge) Feasible(st *cluster.State, s engine.Subject, self cluster.PodID, n cluster.NodeIndex) bool {
	j.nodes++
	return j.Judge.Feasible(st, s, self, n)
}

func (j *countingJudge) Preemptable(st *cluster.State, s engine.Subject, self cluster.PodID, n cluster.NodeIndex) bool {
	j.nodes++
	return j.Judge.Preemptable(st, s, self, n)
}

func (j *countingJudge) Possible(st *cluster.State, s engine.Subject, but cluster.NodeIndex) bool {
	j.signatures++
	return j.Judge.Possible(st, s, but)
}

func TestManyWaitingPodsCostFewQuestions(t *testing.T) {
	const many = 10000
	gate := func(o *object) { o.pod.Gates = []string{"quota"} }
	for name, c := range map[string]struct {
		pod               with
		nodes, signatures int // questions that a delta takes: about a node, about all nodes
	}{
		"gated":           {gate, 0, 0},
		"of one class":    {amount("cpu", 4000), 2, 0},
		"that preempt no": {func(o *object) { amount("cpu", 4000)(o); never(o) }, 1, 0},
		"with relations":  {func(o *object) { amount("cpu", 4000)(o); spreads("zone", "app", 1)(o) }, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHintWorld(t)
			counting := &countingJudge{Judge: w.queue.judge}
			w.queue.judge = counting
			w.step(node("n1", amount("cpu", 1000)))
			w.step(node("n2", amount("cpu", 1000)))
			for k := range many {
				w.step(pod(fmt.Sprintf("pod-%d", k), c.pod, priority(10)))
			}
			for attempts := w.popped(); len(attempts) > 0; attempts = w.popped() {
				for _, a := range attempts {
					w.queue.Reject(w.now, w.st, a, Diagnosis{Version: w.st.Version(), Verdicts: []engine.VerdictCount{{Plugin: engine.NodeResourcesFit}}})
				}
			}
			if counting.nodes+counting.signatures > 0 {
				t.Errorf("diagnosis them took questions about %d nodes, %d about all", counting.nodes, counting.signatures)
			}
			counting.nodes, counting.signatures = 0, 0
			w.step(node("n1", amount("cpu", 1001)))
			if got := w.requeued(); got != nil {
				t.Fatalf("%d are requeued", len(got))
			}
			if counting.nodes != c.nodes || counting.signatures != c.signatures {
				t.Errorf("a delta took %d questions about a node and %d about all, want %d and %d", counting.nodes, counting.signatures, c.nodes, c.signatures)
			}
			if name == "gated" && w.queue.local.len()+w.queue.crossNode.len()+w.queue.listeners.len()+w.queue.aging.Len() != 0 {
				t.Error("gated pods are among those that deltas look at")
			}
		})
	}
}

func TestEventsHaveKubeSchedulersNames(t *testing.T) {
	w := newHintWorld(t)
	for _, c := range []struct {
		step any
		want string
	}{
		{node("n", amount("cpu", 1000), cordoned), "NodeAdd"},
		{node("n", amount("cpu", 1000)), "NodeUpdateNodeTaint"},
		{node("n", amount("cpu", 2000)), "NodeUpdateNodeAllocatable"},
		{node("n", amount("cpu", 2000), label("zone", "a")), "NodeUpdateNodeLabel"},
		{node("n", amount("cpu", 2000), label("zone", "a"), taint("key", "value")), "NodeUpdateNodeTaint"},
		{node("n", amount("cpu", 2000), label("zone", "a"), taint("key", "value"), feature("F")), "NodeUpdateNodeDeclaredFeature"},
		{pod("p", amount("cpu", 500)), "UnschedulablePodAdd"},
		{pod("p", amount("cpu", 500), label("app", "web")), "UnschedulablePodUpdatePodLabel"},
		{pod("p", amount("cpu", 400), label("app", "web")), "UnschedulablePodUpdatePodScaleDown"},
		{pod("p", amount("cpu", 400), label("app", "web"), tolerates("key")), "UnschedulablePodUpdatePodToleration"},
		{pod("p", amount("cpu", 500), label("app", "web"), tolerates("key")), "UnschedulablePodUpdate"},
		{pod("p", amount("cpu", 500), label("app", "web"), tolerates("key"), on("n")), "AssignedPodAdd"},
		{pod("p", amount("cpu", 500), label("app", "api"), tolerates("key"), on("n")), "AssignedPodUpdatePodLabel"},
		{pod("p", amount("cpu", 300), label("app", "api"), tolerates("key"), on("n")), "AssignedPodUpdatePodScaleDown"},
		{gone("p"), "AssignedPodDelete"},
		{gone("n"), "NodeDelete"},
	} {
		if w.step(c.step); w.queue.event != c.want {
			t.Errorf("%+v is %s, want %s", c.step, w.queue.event, c.want)
		}
	}
}

// The pod is nominated to a node where it fits, but for a pod on another one in the same zone. What workers say of all nodes counts
// the pod's own nomination there, so the diagnosis names resources and no other node. Nothing else waits.
func TestANominatedPodWakesWhenWhatKeepsItFromItsNodeGoesAmidItsAttempt(t *testing.T) {
	for name, late := range map[string]bool{"after it": false, "amid it": true} {
		t.Run(name, func(t *testing.T) {
			w := newHintWorld(t)
			w.step(node("n0", label("zone", "a"), amount("cpu", 800)))
			w.step(node("n2", label("zone", "a"), amount("cpu", 300)))
			w.step(pod("enemy", label("app", "x"), amount("cpu", 300), priority(20), on("n2")))
			w.step(pod("p", amount("cpu", 600), farFrom("app", "zone"), priority(10), nominatedTo("n0")))
			a := w.popped()[0]
			d := w.diagnosis(a)
			if !late {
				w.queue.Reject(w.now, w.st, a, d)
			}
			w.step(gone("enemy"))
			if late {
				w.queue.Reject(w.now, w.st, a, d)
			}
			e := w.queue.pods[a.ID]
			if !w.queue.fits(w.st, e) {
				t.Fatal("it does not fit its node: nothing is tested")
			}
			if len(w.requeued()) == 0 {
				t.Errorf("it fits its node, and is %v", e.place)
			}
		})
	}
}

// A pod is rejected for room, which preemption would make but for a pod on another node. When that goes, its own node is as it was.
func TestAPodKeptFromPreemptingByWhatIsElsewhereWakesWhenThatGoes(t *testing.T) {
	n1 := node("n1", label("zone", "a"), label("group", "b"), amount("cpu", 1000))
	n2 := node("n2", label("zone", "a"), amount("cpu", 1000))
	low := pod("low", amount("cpu", 1000), on("n1"))
	also := func(key string) with {
		return func(o *object) { o.class.AntiAffinity = append(o.class.AntiAffinity, podTerm(key, "zone")...) }
	}
	byLabels := func(o *object) { // terms that select namespaces so
		for _, terms := range [][]cluster.PodTerm{o.class.Affinity, o.class.AntiAffinity} {
			for k := range terms {
				terms[k].Namespaces, terms[k].NamespaceSelector = nil, exists("team")
			}
		}
	}
	enemy := func(more ...with) object {
		return pod("enemy", append([]with{amount("cpu", 100), priority(1000), on("n2")}, more...)...)
	}
	p := func(more ...with) object {
		return pod("p", append([]with{amount("cpu", 500), wants("group", "b"), priority(10)}, more...)...)
	}
	spread := []object{
		n1, node("n2", label("zone", "a"), label("group", "b"), amount("cpu", 100)),
		node("n3", label("zone", "b"), label("group", "b"), amount("cpu", 100)), low, enemy(label("app", "x")),
	}
	ends := enemy(label("app", "x"))
	ends.pod.Deleting = true
	for name, c := range map[string]struct {
		cluster []object
		pod     object
		step    any
	}{
		"a pod that it is to be far from": {[]object{n1, n2, low, enemy(label("app", "x"))}, p(farFrom("app", "zone")), gone("enemy")},
		"one of several":                  {[]object{n1, n2, low, enemy(label("app", "x"))}, p(farFrom("app", "zone"), also("db")), gone("enemy")},
		"by a namespace's labels":         {[]object{n1, n2, low, enemy(label("app", "x"))}, p(farFrom("app", "zone"), byLabels), gone("enemy")},
		"that loses its labels":           {[]object{n1, n2, low, enemy(label("app", "x"))}, p(farFrom("app", "zone")), enemy()},
		"a pod that is to be far from it": {[]object{n1, n2, low, enemy(farFrom("app", "zone"))}, p(label("app", "x")), gone("enemy")},
		"by one of several terms":         {[]object{n1, n2, low, enemy(farFrom("app", "zone"), also("db"))}, p(label("app", "x")), gone("enemy")},
		"by its namespace's labels":       {[]object{n1, n2, low, enemy(farFrom("app", "zone"), byLabels)}, p(label("app", "x")), gone("enemy")},
		"whose node moves":                {[]object{n1, n2, low, enemy(farFrom("app", "zone"))}, p(label("app", "x")), node("n2", label("zone", "b"), amount("cpu", 1000))},
		"whose node goes":                 {[]object{n1, n2, low, enemy(farFrom("app", "zone"))}, p(label("app", "x")), gone("n2")},
		"whose namespace is another's": {
			[]object{n1, n2, low, enemy(label("app", "x"))}, p(farFrom("app", "zone"), byLabels), cluster.NamespaceSet{Name: "default"},
		},
		"a pod that counts":       {spread, p(label("app", "x"), spreads("zone", "app", 0)), gone("enemy")},
		"that is being deleted":   {spread, p(label("app", "x"), spreads("zone", "app", 0)), ends},
		"a domain without others": {spread, p(label("app", "x"), spreads("zone", "app", 0)), node("n3", label("zone", "b"), amount("cpu", 100))},
		"too few where it wants to be near": {
			[]object{n1, n2, pod("low", label("app", "x"), amount("cpu", 1000), on("n1"))}, p(near("app", "zone"), byLabels),
			enemy(label("app", "x")),
		},
	} {
		for when, late := range map[string]bool{"after its attempt": false, "amid it": true} {
			t.Run(name+", "+when, func(t *testing.T) {
				w := newHintWorld(t)
				w.apply(cluster.NamespaceSet{Name: "default", Labels: []cluster.Label{{Key: "team", Value: "a"}}})
				for _, o := range c.cluster {
					w.step(o)
				}
				w.step(c.pod)
				a := w.popped()[0]
				if _, ok := w.engine.DryRunNode(w.st, a.ID, w.st.Nodes.ByName("n1")); ok {
					t.Fatal("it could preempt before: nothing is tested")
				}
				d := w.diagnosis(a)
				if !late {
					w.queue.Reject(w.now, w.st, a, d)
					if got := w.requeued(); len(got) > 0 {
						t.Fatalf("requeued at once: %v", got)
					}
				}
				if d, ok := c.step.(cluster.Delta); ok {
					w.apply(d)
				} else {
					w.step(c.step)
				}
				if late {
					w.queue.Reject(w.now, w.st, a, d)
				}
				if _, ok := w.engine.DryRunNode(w.st, a.ID, w.st.Nodes.ByName("n1")); !ok {
					t.Fatal("it could not preempt after: nothing is tested")
				}
				if got := w.requeued(); len(got) != 1 {
					t.Errorf("requeued %v, want p", got)
				}
			})
		}
	}
}

func TestPodsThatCanPreemptNobodyAreNotRequeuedByPodsElsewhere(t *testing.T) {
	w := newHintWorld(t)
	w.step(node("n1", label("zone", "a"), amount("cpu", 1000)))
	w.step(node("n2", label("zone", "b"), label("other", "x"), amount("cpu", 100)))
	w.step(pod("full", amount("cpu", 1000), on("n1")))
	for k := range 5 {
		w.step(pod(fmt.Sprint("p", k), label("app", "x"), amount("cpu", 500), spreads("zone", "app", 0)))
	}
	for _, a := range w.popped() {
		w.queue.Reject(w.now, w.st, a, w.diagnosis(a))
	}
	w.step(pod("small", label("app", "x"), amount("cpu", 10), on("n2")))
	w.step(gone("small"))
	if got := w.requeued(); len(got) > 0 {
		t.Errorf("requeued %v, want none", got)
	}
}

// A pod is outbid on the node that it is nominated to, and its attempt ends the nomination: the log says so later.
func TestAPodThatResignsWakesWhenItCouldPreemptElsewhere(t *testing.T) {
	for name, more := range map[string]with{"alone": func(*object) {}, "with pods elsewhere that matter": farFrom("nobody", "zone")} {
		for _, resigned := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the nomination has ended %v", name, resigned), func(t *testing.T) {
				w := newHintWorld(t)
				w.step(node("n9", amount("cpu", 1000)))
				w.step(pod("big", amount("cpu", 1000), on("n9"), priority(100)))
				w.step(node("n1", amount("cpu", 1000), cordoned))
				w.step(pod("low", amount("cpu", 1000), on("n1")))
				w.step(pod("p", amount("cpu", 500), priority(10), nominatedTo("n9"), more))
				a := w.popped()[0]
				d := w.diagnosis(a)
				d.Resigns = true
				w.queue.Reject(w.now, w.st, a, d)
				end := func() {
					w.apply(cluster.PodNominated{ID: a.ID})
					if got := w.requeued(); len(got) > 0 && resigned {
						t.Fatalf("requeued by the end of its nomination: %v", got)
					}
				}
				if resigned {
					end()
				}
				w.step(node("n1", amount("cpu", 1000)))
				w.queue.Recheck(w.now, w.st)
				if !resigned {
					end()
				}
				if _, ok := w.engine.DryRunNode(w.st, a.ID, w.st.Nodes.ByName("n1")); !ok {
					t.Fatal("it could not preempt: nothing is tested")
				}
				if got := w.requeued(); len(got) != 1 {
					t.Errorf("requeued %v, want p", got)
				}
				w.step(gone("p"))
				if n := w.queue.listeners.len(); n > 0 {
					t.Errorf("%d listeners are left", n)
				}
			})
		}
	}
}

func TestAPodThatWaitsForVictimsWhereItCanNotRunAnyMoreWakes(t *testing.T) {
	for when, late := range map[string]bool{"after its attempt": false, "amid it": true} {
		t.Run(when, func(t *testing.T) {
			w := newHintWorld(t)
			w.step(node("n9", label("group", "b"), amount("cpu", 1000)))
			w.step(pod("victim", amount("cpu", 900), on("n9"), func(o *object) { o.pod.Deleting, o.pod.Preempted = true, true }))
			w.step(pod("p", amount("cpu", 500), wants("group", "b"), priority(10), nominatedTo("n9")))
			a := w.popped()[0]
			d := w.diagnosis(a)
			if !late {
				w.queue.Reject(w.now, w.st, a, d)
				w.step(node("n9", label("group", "b"), label("other", "x"), amount("cpu", 1000)))
				if got := w.requeued(); len(got) > 0 {
					t.Fatalf("requeued while it may wait: %v", got)
				}
			}
			w.step(node("n9", label("group", "b"), amount("cpu", 1000), cordoned))
			if late {
				w.queue.Reject(w.now, w.st, a, d)
			}
			if got := w.requeued(); len(got) != 1 {
				t.Errorf("requeued %v, want p, which may preempt elsewhere by now", got)
			}
		})
	}
}

// TestPodsWakeWhenWhatPreemptionNeedsCanBeReadAgain is about pods of which nothing else changes: where they may go, and whom they could preempt there, is as it was.
func TestPodsWakeWhenWhatPreemptionNeedsCanBeReadAgain(t *testing.T) {
	p := func(more ...with) object {
		return pod("p", append([]with{amount("cpu", 500), priority(10), label("app", "x")}, more...)...)
	}
	for name, is := range map[string]object{
		"one like any other":              p(),
		"one to which other nodes matter": p(farFrom("app", "zone")),
		"one that requires a node":        p(requiringNode("n1")),
	} {
		for when, late := range map[string]bool{"after its attempt": false, "amid it": true} {
			t.Run(name+", "+when, func(t *testing.T) {
				w, budgets := newHintWorld(t), &cluster.Unserved{Name: cluster.BudgetResource, Why: "nobody may list it"}
				w.step(node("n1", label("zone", "a"), amount("cpu", 1000)))
				w.step(pod("low", label("app", "x"), amount("cpu", 1000), on("n1")))
				w.apply(cluster.ObjectSet{Object: budgets})
				w.step(is)
				a := w.popped()[0]
				d := w.diagnosis(a)
				if !late {
					w.queue.Reject(w.now, w.st, a, d)
					if got := w.requeued(); len(got) > 0 {
						t.Fatalf("requeued at once: %v", got)
					}
				}
				w.apply(cluster.ObjectRemoved{ObjectKey: budgets.Key()})
				if late {
					w.queue.Reject(w.now, w.st, a, d)
				}
				if got := w.requeued(); len(got) != 1 {
					t.Errorf("requeued %v, want p", got)
				}
			})
		}
	}
}
