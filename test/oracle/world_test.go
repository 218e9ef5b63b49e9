package oracle

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

// world is one cluster as both schedulers see it.
type world struct {
	t     *rapid.T
	width int // of the names of nodes
	kube  *upstream

	state     *cluster.State
	evaluator *engine.Evaluator
	classes   map[string]cluster.ClassID
	nextClass cluster.ClassID

	nodes   map[string]*v1.Node
	pods    []*v1.Pod // with a node, assumed ones included
	assumed map[string]bool
	names   int
}

// spread is how many node indexes there are for each node: nodes lie far apart, so that small clusters have many ranges.
const spread = 24

func newWorld(t *rapid.T, width int) *world {
	profiles := drawProfiles(t)
	w := &world{
		t: t, width: width, kube: newUpstream(t, profiles),
		state:     cluster.New(cluster.Version{Epoch: 1}),
		evaluator: engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1}),
		classes:   make(map[string]cluster.ClassID),
		nodes:     make(map[string]*v1.Node), assumed: make(map[string]bool),
	}
	settings := cluster.Settings{Shards: 1, Seed: rapid.Uint64().Draw(t, "seed")}
	for i := range profiles {
		settings.Profiles = append(settings.Profiles, berthProfile(&profiles[i]))
	}
	w.apply(cluster.SettingsSet{Settings: settings})
	return w
}

func (w *world) apply(deltas ...cluster.Delta) {
	for _, d := range deltas {
		if err := w.state.Apply(d); err != nil {
			w.t.Fatalf("Apply(%#v): %v", d, err)
		}
	}
}

func (w *world) name() string {
	w.names++
	return fmt.Sprintf("p%d", w.names)
}

// nodeNames returns the names of the nodes, sorted.
func (w *world) nodeNames() []string {
	names := make([]string, 0, len(w.nodes))
	for name := range w.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// setNode adds a node, or changes one.
func (w *world) setNode(node *v1.Node) {
	i := w.state.Nodes.ByName(node.Name)
	if old := w.nodes[node.Name]; old != nil {
		w.kube.cache.UpdateNode(w.kube.logger, old, node)
	} else {
		w.kube.cache.AddNode(w.kube.logger, node)
		for i = cluster.NodeIndex(rapid.IntRange(0, w.width*spread).Draw(w.t, "index")); w.state.Nodes.Live.Has(i); i++ {
		}
	}
	w.nodes[node.Name] = node
	w.apply(cluster.NodeSet{Index: i, Node: source.ReduceNode(node)})
}

func (w *world) removeNode(name string) {
	if err := w.kube.cache.RemoveNode(w.kube.logger, w.nodes[name]); err != nil {
		w.t.Fatalf("kube-scheduler's cache: remove node %s: %v", name, err)
	}
	w.apply(cluster.NodeRemoved{Index: w.state.Nodes.ByName(name)})
	delete(w.nodes, name)
}

// class returns the id of a class, which it defines if it is new.
func (w *world) class(spec cluster.ClassSpec) cluster.ClassID {
	key := spec.Key()
	id, ok := w.classes[key]
	if !ok || w.state.Class(id) == nil {
		w.nextClass++
		id = w.nextClass
		w.classes[key] = id
		w.apply(cluster.ClassDefined{ID: id, Spec: spec})
	}
	return id
}

// tell puts a pod in Berth's ledger, or changes it there. A pending pod that names its node is judged as such.
func (w *world) tell(pod *v1.Pod, pending bool) cluster.PodID {
	name := pod.Spec.NodeName
	if pending && name != "" {
		pod = pod.DeepCopy()
		pod.Spec.NodeName = ""
	}
	reduced := source.ReducePod(pod)
	if pending {
		reduced.Class.NodeName = name
	}
	id, known := w.state.PodByUID(string(pod.UID))
	if !known {
		id = w.state.FreePod()
	}
	reduced.Pod.Class = w.class(reduced.Class)
	w.apply(cluster.PodSet{ID: id, Pod: reduced.Pod})
	return id
}

// hostPorts returns the host ports of a pod as Berth reads them.
func hostPorts(pod *v1.Pod) []cluster.HostPort { return source.ReducePod(pod).Class.HostPorts }

// run adds a pod that has its node already. It has no port that another pod of the node has: see the package's comment.
func (w *world) run(pod *v1.Pod) {
	for _, other := range w.pods {
		if other.Spec.NodeName != pod.Spec.NodeName {
			continue
		}
		taken := hostPorts(other)
		if slices.ContainsFunc(hostPorts(pod), func(p cluster.HostPort) bool { return slices.Contains(taken, p) }) {
			pod = pod.DeepCopy()
			for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
				for i := range containers {
					containers[i].Ports = nil
				}
			}
		}
	}
	if err := w.kube.cache.AddPod(w.kube.logger, pod); err != nil {
		w.t.Fatalf("kube-scheduler's cache: add pod %s: %v", pod.Name, err)
	}
	w.tell(pod, false)
	w.pods = append(w.pods, pod)
}

// place assumes a pending pod on a node.
func (w *world) place(id cluster.PodID, pod *v1.Pod, node string) {
	pod = onNode(pod, node, v1.PodStatus{})
	if err := w.kube.cache.AssumePod(w.kube.logger, pod); err != nil {
		w.t.Fatalf("kube-scheduler's cache: assume pod %s: %v", pod.Name, err)
	}
	w.apply(cluster.PodAssumed{ID: id, Node: w.state.Nodes.ByName(node), Attempt: 1})
	w.pods = append(w.pods, pod)
	w.assumed[pod.Name] = true
}

// confirm tells both of an assumed pod's node, as the API server would.
func (w *world) confirm(k int) {
	pod := onNode(w.pods[k], w.pods[k].Spec.NodeName, v1.PodStatus{Phase: v1.PodRunning})
	if err := w.kube.cache.AddPod(w.kube.logger, pod); err != nil {
		w.t.Fatalf("kube-scheduler's cache: add pod %s: %v", pod.Name, err)
	}
	w.tell(pod, false)
	w.pods[k] = pod
	delete(w.assumed, pod.Name)
}

func (w *world) resize(k int) {
	pod := onNode(w.pods[k], w.pods[k].Spec.NodeName, drawStatus(w.t, w.pods[k]))
	if err := w.kube.cache.UpdatePod(w.kube.logger, w.pods[k], pod); err != nil {
		w.t.Fatalf("kube-scheduler's cache: update pod %s: %v", pod.Name, err)
	}
	w.tell(pod, false)
	w.pods[k] = pod
}

func (w *world) remove(k int) {
	pod := w.pods[k]
	if err := w.kube.cache.RemovePod(w.kube.logger, pod); err != nil {
		w.t.Fatalf("kube-scheduler's cache: remove pod %s: %v", pod.Name, err)
	}
	id, _ := w.state.PodByUID(string(pod.UID))
	w.apply(cluster.PodRemoved{ID: id})
	w.pods = slices.Delete(w.pods, k, k+1)
	delete(w.assumed, pod.Name)
}

// change lets something happen to the cluster that neither scheduler has done.
func (w *world) change() {
	t := w.t
	switch kind := rapid.IntRange(0, 5).Draw(t, "change"); {
	case kind == 0:
		w.setNode(drawNode(t, nodeName(rapid.IntRange(0, w.width-1).Draw(t, "node"))))
	case kind == 1 && len(w.nodes) > 0:
		w.removeNode(rapid.SampledFrom(w.nodeNames()).Draw(t, "node"))
	case kind <= 2:
		node := nodeName(rapid.IntRange(0, w.width-1).Draw(t, "node")) // perhaps one that is not there yet
		pod := named(drawPod(t, w.width), w.name())
		w.run(onNode(pod, node, drawStatus(t, pod)))
	case len(w.pods) > 0:
		k := rapid.IntRange(0, len(w.pods)-1).Draw(t, "pod")
		switch {
		case w.assumed[w.pods[k].Name]:
			w.confirm(k)
		case kind == 3:
			w.remove(k)
		default:
			w.resize(k)
		}
	}
}
