package oracle

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

// world is one cluster as both schedulers see it.
type world struct {
	failer
	t        *rapid.T // what is drawn comes from here; nil where nothing is drawn
	width    int      // of the names of nodes
	profiles []config.KubeSchedulerProfile
	gates    gates
	kube     *upstream

	state      *cluster.State
	evaluator  *engine.Evaluator
	classes    map[string]cluster.ClassID
	nextClass  cluster.ClassID
	labels     map[string]cluster.LabelsID
	nextLabels cluster.LabelsID

	nodes      map[string]*v1.Node
	pods       []*v1.Pod // with a node, assumed ones included
	assumed    map[string]bool
	pending    map[cluster.PodID]*v1.Pod  // as they are now
	preempting map[cluster.PodID]eviction // pending pods whose victims are about to terminate
	objects    objects
	names      int
	// nominating says that pods can be nominated to nodes, storing that most of them have volumes.
	nominating, storing bool

	n      *tally
	judged *v1.Pod // the last one
	broken string  // what Berth said of itself that cannot be
}

// spread is how many node indexes there are for each node: nodes lie far apart, so that small clusters have many ranges.
const spread = 24

// drawWorld draws a cluster without nodes and pods.
func drawWorld(t *rapid.T, width int, n *tally) *world {
	storing := oneIn(t, 8, "storage")
	var g gates
	if storing {
		g = drawGates(t)
	}
	g.comparing = oneIn(t, 4, "TaintTolerationComparisonOperators")
	w := newWorld(t, drawProfiles(t), g, rapid.Uint64().Draw(t, "seed"), n)
	w.begin(t, width, storing)
	return w
}

// begin draws what there is before nodes and pods.
func (w *world) begin(t *rapid.T, width int, storing bool) {
	w.t, w.width, w.nominating = t, width, rapid.Bool().Draw(t, "nominations")
	w.drawObjects()
	if storing {
		w.drawStorage()
	}
}

// drawStorage draws what volumes are made of; from now on most pods have some.
func (w *world) drawStorage() {
	w.storing = true
	for _, o := range drawStorage(w.t, w.width) {
		w.keep(o)
	}
}

// newWorld is an empty cluster.
func newWorld(t failer, profiles []config.KubeSchedulerProfile, g gates, seed uint64, n *tally) *world {
	w := &world{
		failer: t, n: n, profiles: profiles, gates: g, kube: newUpstream(t, profiles, g),
		state:     cluster.New(cluster.Version{Epoch: 1}),
		evaluator: engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1}),
		classes:   make(map[string]cluster.ClassID), labels: make(map[string]cluster.LabelsID),
		nodes: make(map[string]*v1.Node), assumed: make(map[string]bool), pending: make(map[cluster.PodID]*v1.Pod),
		preempting: make(map[cluster.PodID]eviction), objects: newObjects(),
	}
	w.kube.podID = func(p *v1.Pod) cluster.PodID {
		id, _ := w.state.PodByUID(string(p.UID))
		return id
	}
	settings := cluster.Settings{Shards: 1, Seed: seed}
	for i := range profiles {
		settings.Profiles = append(settings.Profiles, g.profile(&profiles[i]))
	}
	w.apply(cluster.SettingsSet{Settings: settings})
	return w
}

func (w *world) apply(deltas ...cluster.Delta) {
	for _, d := range deltas {
		if err := w.state.Apply(d); err != nil {
			w.Fatalf("Apply(%#v): %v", d, err)
		}
	}
}

func (w *world) name() string {
	w.names++
	return fmt.Sprintf("p%d", w.names)
}

// nodeNames returns the names of the nodes, sorted.
func (w *world) nodeNames() []string { return sortedKeys(w.nodes) }

// drawPlace draws the index that a new node gets.
func (w *world) drawPlace() cluster.NodeIndex {
	return cluster.NodeIndex(rapid.IntRange(0, w.width*spread).Draw(w.t, "index"))
}

// setNode adds a node at the index, or the next that is free, or changes one.
func (w *world) setNode(node *v1.Node, index cluster.NodeIndex) {
	i := w.state.Nodes.ByName(node.Name)
	if old := w.nodes[node.Name]; old != nil {
		w.kube.cache.UpdateNode(w.kube.logger, old, node)
	} else {
		w.kube.cache.AddNode(w.kube.logger, node)
		for i = index; w.state.Nodes.Live.Has(i); i++ {
		}
	}
	w.nodes[node.Name] = node
	w.apply(cluster.NodeSet{Index: i, Node: source.ReduceNode(node)})
}

func (w *world) removeNode(name string) {
	w.kube.must("remove node", w.kube.cache.RemoveNode(w.kube.logger, w.nodes[name]))
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

// labelSet returns the id of a label set, which it defines if it is new.
func (w *world) labelSet(set cluster.LabelSet) cluster.LabelsID {
	key := set.Key()
	id, ok := w.labels[key]
	if !ok || w.state.Labels(id) == nil {
		w.nextLabels++
		id = w.nextLabels
		w.labels[key] = id
		w.apply(cluster.LabelsDefined{ID: id, Set: set})
	}
	return id
}

// reduce reads a pod as the binder does for a profile.
func reduce(pod *v1.Pod, profile *cluster.Profile) source.Pod {
	reduced := source.ReducePod(pod)
	if profile != nil && !source.KeepsRequiredNode(profile) {
		reduced = source.RestoreRequiredNode(reduced)
	}
	return reduced
}

// tell puts a pod in Berth's ledger, or changes it there. A pending pod that names its node is judged as such.
func (w *world) tell(pod *v1.Pod, pending bool) cluster.PodID {
	name := pod.Spec.NodeName
	if pending && name != "" {
		pod = pod.DeepCopy()
		pod.Spec.NodeName = ""
	}
	reduced := source.ReducePod(pod)
	if p := w.state.Profile(pod.Spec.SchedulerName); p != nil && !source.KeepsRequiredNode(p) {
		reduced = source.RestoreRequiredNode(reduced)
	}
	if pending {
		reduced.Class.NodeName = name
	}
	id, known := w.state.PodByUID(string(pod.UID))
	if !known {
		id = w.state.FreePod()
	}
	reduced.Pod.Class = w.class(reduced.Class)
	reduced.Pod.Labels = w.labelSet(reduced.Labels)
	w.apply(cluster.PodSet{ID: id, Pod: reduced.Pod})
	return id
}

// enter puts a pending pod in both queues.
func (w *world) enter(pod *v1.Pod) cluster.PodID {
	if pod.Spec.NodeName == "" {
		w.kube.enqueue(pod)
	}
	id := w.tell(pod, true)
	w.pending[id] = pod
	return id
}

// amend changes a pending pod.
func (w *world) amend(id cluster.PodID, pod *v1.Pod) {
	if pod.Spec.NodeName == "" {
		w.kube.requeue(w.pending[id], pod)
	}
	w.tell(pod, true)
	w.pending[id] = pod
}

// leave takes a pending pod away.
func (w *world) leave(id cluster.PodID) {
	if pod := w.pending[id]; pod.Spec.NodeName == "" {
		w.kube.dequeue(pod)
	}
	w.apply(cluster.PodRemoved{ID: id})
	delete(w.pending, id)
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
	w.kube.must("add pod", w.kube.cache.AddPod(w.kube.logger, pod))
	w.tell(pod, false)
	w.pods = append(w.pods, pod)
}

// place assumes a pending pod on a node.
func (w *world) place(id cluster.PodID, node string) {
	pending := w.pending[id]
	pod := onNode(pending, node, v1.PodStatus{})
	w.kube.must("assume pod", w.kube.cache.AssumePod(w.kube.logger, pod))
	w.kube.dequeue(pending)
	w.apply(cluster.PodAssumed{ID: id, Node: w.state.Nodes.ByName(node), Attempt: 1})
	w.pods = append(w.pods, pod)
	w.assumed[string(pod.UID)] = true
	delete(w.pending, id)
}

// confirm tells both of an assumed pod's node, as the API server would.
func (w *world) confirm(k int) {
	pod := onNode(w.pods[k], w.pods[k].Spec.NodeName, v1.PodStatus{Phase: v1.PodRunning})
	w.kube.must("add pod", w.kube.cache.AddPod(w.kube.logger, pod))
	w.tell(pod, false)
	w.pods[k] = pod
	delete(w.assumed, string(pod.UID))
}

// update changes a pod that has its node.
func (w *world) update(k int, pod *v1.Pod) {
	w.kube.must("update pod", w.kube.cache.UpdatePod(w.kube.logger, w.pods[k], pod))
	w.tell(pod, false)
	w.pods[k] = pod
}

func (w *world) remove(k int) {
	pod := w.pods[k]
	w.kube.must("remove pod", w.kube.cache.RemovePod(w.kube.logger, pod))
	id, _ := w.state.PodByUID(string(pod.UID))
	w.apply(cluster.PodRemoved{ID: id})
	w.pods = slices.Delete(w.pods, k, k+1)
	delete(w.assumed, string(pod.UID))
}

// change lets something happen to the cluster that neither scheduler has done.
func (w *world) change() {
	t := w.t
	switch kind := rapid.IntRange(0, 9).Draw(t, "change"); {
	case kind == 0:
		w.setNode(drawNode(t, nodeName(rapid.IntRange(0, w.width-1).Draw(t, "node"))), w.drawPlace())
	case kind == 1 && len(w.nodes) > 0:
		w.removeNode(rapid.SampledFrom(w.nodeNames()).Draw(t, "node"))
	case kind <= 2:
		w.runDrawn()
	case kind == 3 && (!w.storing || oneIn(t, 4, "no storage")):
		w.changeObject()
	case kind == 3:
		w.changeStorage()
	case kind <= 5 && len(w.pending) > 0:
		w.changePending(rapid.SampledFrom(sortedKeys(w.pending)).Draw(t, "pending"))
	case len(w.pods) > 0:
		w.changePod(rapid.IntRange(0, len(w.pods)-1).Draw(t, "pod"))
	}
}

// drawPod draws a pod for this cluster.
func (w *world) drawPod() *v1.Pod {
	pod := drawPod(w.t, w.width)
	if w.storing && len(pod.Spec.Volumes) == 0 && !oneIn(w.t, 4, "no volumes") {
		pod.Spec.Volumes = drawPodVolumes(w.t)
	}
	return pod
}

// named is the pod under a name of its own. What its ephemeral volumes claim is there then, or is not.
func (w *world) named(pod *v1.Pod) *v1.Pod {
	pod = named(pod, w.name())
	for _, o := range drawEphemeralClaims(w.t, pod) {
		w.keep(o)
	}
	return pod
}

// drawNomination draws the node that a pending pod is nominated to, mostly none.
func (w *world) drawNomination(pod *v1.Pod) string {
	if !w.nominating {
		return ""
	}
	return drawNomination(w.t, pod, w.width)
}

// runDrawn adds a pod to a node, perhaps one that is not there yet.
func (w *world) runDrawn() {
	w.runOn(w.drawPod(), nodeName(rapid.IntRange(0, w.width).Draw(w.t, "node")))
}

// runOn adds a pod to a node under a name of its own, in a state that is drawn.
func (w *world) runOn(pod *v1.Pod, node string) {
	pod = w.named(pod)
	pod = onNode(pod, node, drawStatus(w.t, pod))
	if oneIn(w.t, 6, "terminating") {
		pod = terminate(w.t, pod)
	}
	w.run(pod)
}

// changePod lets something happen to a pod that has its node.
func (w *world) changePod(k int) {
	t, pod := w.t, w.pods[k].DeepCopy()
	switch kind := rapid.IntRange(0, 3).Draw(t, "what happens to the pod"); {
	case w.assumed[string(pod.UID)]:
		w.confirm(k)
	case kind == 0:
		w.remove(k)
	case kind == 1:
		pod.Labels = drawLabels(t, podLabels, 3)
		w.update(k, pod)
	case kind == 2:
		w.update(k, terminate(t, pod))
	default:
		why := slices.DeleteFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type != v1.DisruptionTarget })
		pod.Status = drawStatus(t, pod)
		pod.Status.Conditions = append(pod.Status.Conditions, why...)
		w.update(k, pod)
	}
}

// changePending lets something happen to a pod that has no node, and no gate: an update makes kube-scheduler count the
// nomination of a gated pod, which it does not count otherwise.
func (w *world) changePending(id cluster.PodID) {
	pod := w.pending[id].DeepCopy()
	if len(pod.Spec.SchedulingGates) > 0 {
		return
	}
	if rapid.Bool().Draw(w.t, "relabelled") {
		pod.Labels = drawLabels(w.t, podLabels, 3)
	} else {
		pod.Status.NominatedNodeName = w.drawNomination(pod)
	}
	w.amend(id, pod)
}
