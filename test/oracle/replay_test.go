package oracle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// replay plays a log of Berth to kube-scheduler, and asks it about every placement on the state before it.
type replay struct {
	failer
	n        *tally
	kube     *upstream
	script   *script // what the log's reduced objects were
	profiles []config.KubeSchedulerProfile
	settings map[string]*cluster.Profile // what Berth makes of the profiles, by scheduler name

	classes  map[cluster.ClassID]string // by key
	labels   map[cluster.LabelsID]string
	nodes    map[cluster.NodeIndex]*v1.Node
	pods     map[cluster.PodID]*v1.Pod // as they are at this point of the log
	ids      map[string]cluster.PodID  // by uid
	phases   map[cluster.PodID]cluster.Phase
	unbound  map[cluster.PodID]*v1.Pod // pods that are assumed, as they are without a node
	objects  objects
	promised promised
}

func newReplay(t failer, n *tally, s *script, profiles []config.KubeSchedulerProfile, g gates) *replay {
	r := &replay{
		failer: t, n: n, kube: newUpstream(t, profiles, g), script: s, profiles: profiles, settings: make(map[string]*cluster.Profile),
		classes: make(map[cluster.ClassID]string), labels: make(map[cluster.LabelsID]string),
		nodes: make(map[cluster.NodeIndex]*v1.Node), pods: make(map[cluster.PodID]*v1.Pod), phases: make(map[cluster.PodID]cluster.Phase),
		unbound: make(map[cluster.PodID]*v1.Pod), ids: make(map[string]cluster.PodID),
		objects:  newObjects(),
		promised: promised{make(map[cluster.PodID][]cluster.VolumeChoice), make(map[cluster.PodID]string), make(map[cluster.PodID]string)},
	}
	r.kube.podID = func(p *v1.Pod) cluster.PodID { return r.ids[string(p.UID)] }
	for i := range profiles {
		p := g.profile(&profiles[i])
		r.settings[p.SchedulerName] = &p
	}
	return r
}

// play plays one delta.
func (r *replay) play(d cluster.Delta) {
	switch d := d.(type) {
	case cluster.ClassDefined:
		r.classes[d.ID] = d.Spec.Key()
	case cluster.LabelsDefined:
		r.labels[d.ID] = d.Set.Key()
	case cluster.NodeSet:
		r.setNode(d)
	case cluster.NodeRemoved:
		r.kube.must("remove node", r.kube.cache.RemoveNode(r.kube.logger, r.nodes[d.Index]))
		delete(r.nodes, d.Index)
	case cluster.NodeTouched, cluster.PodActivated: // of extenders and plugins, of which there are none
	case cluster.NamespaceSet:
		n := version(r, "namespace "+d.Name, r.script.namespaces[d.Name], func(n *v1.Namespace) bool {
			_, labels := source.ReduceNamespace(n)
			return slices.Equal(labels, d.Labels)
		})
		r.kube.must("set namespace", r.kube.namespaces().Update(n))
		r.objects.namespaces[n.Name] = n
	case cluster.NamespaceRemoved:
		r.kube.must("remove namespace", r.kube.namespaces().Delete(r.objects.namespaces[d.Name]))
		delete(r.objects.namespaces, d.Name)
	case cluster.SelectorSet:
		r.setOwner(d)
	case cluster.SelectorRemoved:
		key := d.Kind + "/" + d.Namespace + "/" + d.Name
		r.kube.must("remove owner", r.kube.owners(d.Kind).Delete(r.objects.owners[key]))
		delete(r.objects.owners, key)
	case cluster.ObjectSet:
		key := d.Object.Key()
		o := version(r, fmt.Sprintf("%v %s/%s", key.Kind, key.Namespace, key.Name), r.script.kept[key], func(o metav1.Object) bool {
			return cmp.Equal(reduceKept(o), d.Object, cmpopts.EquateEmpty())
		})
		r.objects.kept[key] = o
		r.see(key)
	case cluster.ObjectRemoved:
		r.kube.must("remove "+d.Kind.String(), r.kube.kept(d.Kind).Delete(r.objects.kept[d.ObjectKey]))
		delete(r.objects.kept, d.ObjectKey)
	case cluster.PodSet:
		r.setPod(d)
	case cluster.PodNominated:
		r.nominate(d.ID, d.Node)
	case cluster.PreemptionStarted:
		r.preempt(d)
	case cluster.PreemptionEnded: // says nothing that kube-scheduler's cache or queue knows
	case cluster.PodAssumed:
		r.assume(d)
	case cluster.PodBound:
		r.unreserve(d.ID)
		r.confirm(d.ID, onNode(r.pods[d.ID], r.pods[d.ID].Spec.NodeName, v1.PodStatus{Phase: v1.PodRunning}))
	case cluster.PodForgotten:
		r.unreserve(d.ID)
		r.forget(d.ID)
		r.kube.enqueue(r.unbound[d.ID])
		r.pods[d.ID], r.phases[d.ID] = r.unbound[d.ID], cluster.Pending
	case cluster.PodRemoved:
		r.removePod(d.ID)
	default:
		r.Fatalf("the log has a %T", d)
	}
}

// version returns the latest of an object's forms that the log can mean.
func version[T any](r *replay, what string, of []T, is func(T) bool) T {
	for _, v := range slices.Backward(of) {
		if is(v) {
			return v
		}
	}
	r.Helper()
	r.Fatalf("the log tells of a %s that nobody has told the binder", what)
	panic("unreachable")
}

func (r *replay) setNode(d cluster.NodeSet) {
	node := version(r, "node "+d.Node.Name, r.script.nodes[d.Node.Name], func(n *v1.Node) bool {
		return cmp.Equal(source.ReduceNode(n), d.Node, cmpopts.EquateEmpty())
	})
	if old := r.nodes[d.Index]; old != nil {
		r.kube.cache.UpdateNode(r.kube.logger, old, node)
	} else {
		r.kube.cache.AddNode(r.kube.logger, node)
	}
	r.nodes[d.Index] = node
}

func (r *replay) setOwner(d cluster.SelectorSet) {
	key := d.Kind + "/" + d.Namespace + "/" + d.Name
	o := version(r, key, r.script.owners[key], func(o metav1.Object) bool {
		s, ok := reduceOwner(o)
		return ok && cmp.Equal(s.Selector, d.Selector, cmpopts.EquateEmpty())
	})
	r.kube.must("set owner", r.kube.owners(d.Kind).Update(o))
	r.objects.owners[key] = o
}

// setPod plays a pod that is new or has changed.
func (r *replay) setPod(d cluster.PodSet) {
	pod := version(r, "pod "+d.Pod.UID, r.script.pods[d.Pod.UID], func(p *v1.Pod) bool {
		reduced := reduce(p, r.settings[p.Spec.SchedulerName])
		return reduced.Class.Key() == r.classes[d.Pod.Class] && reduced.Labels.Key() == r.labels[d.Pod.Labels] &&
			reduced.Deleting == d.Pod.Deleting && reduced.Priority == d.Pod.Priority && reduced.RequiredNode == d.Pod.RequiredNode &&
			slices.Equal(reduced.Gates, d.Pod.Gates) && reduced.Started == d.Pod.Started && reduced.Preempted == d.Pod.Preempted &&
			(reduced.NodeName == d.Pod.NodeName || reduced.NodeName == "")
	})
	r.ids[d.Pod.UID] = d.ID
	if node := d.Pod.NodeName; node != "" {
		r.unreserve(d.ID)
		r.confirm(d.ID, onNode(pod, node, pod.Status))
		return
	}
	if pod.Status.NominatedNodeName != d.Pod.Nominated {
		pod = nominatedTo(pod, d.Pod.Nominated) // Berth knows before the source does
	}
	old := r.pods[d.ID]
	switch {
	case old == nil:
		r.kube.enqueue(pod)
	case r.phases[d.ID] == cluster.Pending:
		r.kube.requeue(old, pod)
	case r.phases[d.ID] == cluster.Assumed:
		r.forget(d.ID)
		r.unbound[d.ID] = pod
		pod = onNode(pod, old.Spec.NodeName, v1.PodStatus{})
		r.kube.must("assume pod", r.kube.cache.AssumePod(r.kube.logger, pod))
	default:
		r.Fatalf("the log takes pod %s from its node", pod.Name)
	}
	r.pods[d.ID] = pod
}

// nominate plays a nomination.
func (r *replay) nominate(id cluster.PodID, node string) {
	pod := nominatedTo(r.pods[id], node)
	r.kube.requeue(r.pods[id], pod)
	r.pods[id] = pod
}

// preempt checks the victims of a preemption, and plays the nomination. What other nodes offer is not checked: others may
// have changed them since the node was chosen.
func (r *replay) preempt(d cluster.PreemptionStarted) {
	pod, node := r.pods[d.ID], r.nodes[d.Node].Name
	var names []string
	for _, id := range d.Victims {
		names = append(names, r.pods[id].Name)
	}
	if want := r.kube.victimsOn(pod, node); !slices.Equal(want.Pods, names) {
		r.fail(pod, fmt.Sprintf("Berth evicts %v from %s, kube-scheduler would evict %v", names, node, want.Pods))
	}
	r.n.evictions++
	r.nominate(d.ID, node)
}

// confirm plays a pod that is bound.
func (r *replay) confirm(id cluster.PodID, pod *v1.Pod) {
	old := r.pods[id]
	if old != nil && r.phases[id] == cluster.Pending {
		r.kube.dequeue(old)
	}
	if r.phases[id] == cluster.Bound {
		r.kube.must("update pod", r.kube.cache.UpdatePod(r.kube.logger, old, pod))
	} else {
		r.kube.must("add pod", r.kube.cache.AddPod(r.kube.logger, pod))
	}
	r.pods[id], r.phases[id] = pod, cluster.Bound
}

func (r *replay) forget(id cluster.PodID) {
	r.kube.must("forget pod", r.kube.cache.ForgetPod(r.kube.logger, r.pods[id]))
}

func (r *replay) removePod(id cluster.PodID) {
	r.unreserve(id)
	switch r.phases[id] {
	case cluster.Pending:
		r.kube.dequeue(r.pods[id])
	case cluster.Assumed:
		r.forget(id)
	default:
		r.kube.must("remove pod", r.kube.cache.RemovePod(r.kube.logger, r.pods[id]))
	}
	delete(r.pods, id)
	delete(r.phases, id)
}

// assume checks a placement.
func (r *replay) assume(d cluster.PodAssumed) {
	pod := r.pods[d.ID]
	node := r.nodes[d.Node]
	if pod == nil || node == nil || r.phases[d.ID] != cluster.Pending {
		r.Fatalf("the log places pod %d, which is %v, on node %d", d.ID, r.phases[d.ID], d.Node)
	}
	want := r.kube.judge(pod)
	apart, why := r.kube.undecided(pod, want), want.refuses(node.Name, r.nodeNames())
	if why == "" {
		why = r.n.differChosen(node.Name, want.volumes[node.Name], d.Volumes)
	}
	if why != "" && apart == "" && r.shares(pod) {
		apart = undecidedShared
	}
	r.n.countAny(apart, want, len(want.feasible(r.nodeNames())))
	r.n.attempts++
	if why != "" && apart == "" {
		r.fail(pod, why)
	}
	r.n.proven++
	if want.Nominated != "" {
		r.n.nominated++
	}
	placed := onNode(pod, node.Name, v1.PodStatus{})
	r.kube.must("assume pod", r.kube.cache.AssumePod(r.kube.logger, placed))
	r.kube.dequeue(pod)
	r.reserve(d.ID, pod.Namespace, node.Name, d.Volumes)
	r.pods[d.ID], r.phases[d.ID], r.unbound[d.ID] = placed, cluster.Assumed, pod
}

// end checks that what is left has nowhere to go.
func (r *replay) end() {
	for _, id := range sortedKeys(r.pods) {
		pod := r.pods[id]
		if r.phases[id] != cluster.Pending || len(pod.Spec.SchedulingGates) > 0 || pod.DeletionTimestamp != nil {
			continue
		}
		want := r.kube.judge(pod)
		feasible := want.feasible(r.nodeNames())
		apart := r.kube.undecided(pod, want)
		r.n.countAny(apart, want, len(feasible))
		r.n.attempts++
		r.n.noFit++
		unjudged := source.ReducePod(pod).Class.Unsupported != ""
		if len(feasible) > 0 && apart == "" && !(unjudged && want.scoreError != nil) {
			r.fail(pod, fmt.Sprintf("Berth leaves the pod, kube-scheduler finds %v", feasible))
		}
	}
}

// nodeNames returns the names of the nodes, sorted.
func (r *replay) nodeNames() []string {
	var names []string
	for _, n := range r.nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}

// fail notes the cluster for tally.explain, and says how the schedulers differ about the pod.
func (r *replay) fail(pod *v1.Pod, why string) {
	s := &scene{profiles: r.profiles, pod: pod}
	for _, i := range sortedKeys(r.nodes) {
		s.nodes = append(s.nodes, r.nodes[i])
	}
	for _, id := range sortedKeys(r.pods) {
		switch p := r.pods[id]; {
		case r.phases[id] != cluster.Pending:
			s.pods = append(s.pods, p)
		case p.UID != pod.UID && p.Status.NominatedNodeName != "":
			s.waiting = append(s.waiting, p)
		}
	}
	for _, name := range sortedKeys(r.objects.namespaces) {
		s.namespaces = append(s.namespaces, r.objects.namespaces[name])
	}
	for _, key := range sortedKeys(r.objects.owners) {
		s.owners = append(s.owners, r.objects.owners[key])
	}
	s.kept = r.objects.kept.all()
	slices.SortFunc(s.nodes, func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
	r.n.failed, r.n.why = s, fmt.Sprintf("pod %s: %s", pod.Name, why)
	r.Fatalf("%s", r.n.why)
}
