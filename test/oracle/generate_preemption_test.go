package oracle

import (
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// drawStart draws when a pod has started: few moments, so that pods often have started together, or never.
func drawStart(t *rapid.T) *metav1.Time {
	after := pick(t, "started", 0, time.Second, time.Minute, time.Hour, -1)
	if after < 0 {
		return nil
	}
	return ptr.To(metav1.NewTime(deleted.Add(after - 24*time.Hour)))
}

// terminate is the pod while it terminates, perhaps because a scheduler has preempted it. Why it does never changes.
func terminate(t *rapid.T, pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	if pod.DeletionTimestamp != nil {
		return pod
	}
	pod.DeletionTimestamp = &deleted
	if oneIn(t, 2, "disrupted") {
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{
			Type:   v1.DisruptionTarget,
			Status: pick(t, "disruption", v1.ConditionTrue, v1.ConditionTrue, v1.ConditionFalse),
			Reason: pick(t, "disrupted by", v1.PodReasonPreemptionByScheduler, v1.PodReasonPreemptionByScheduler, v1.PodReasonTerminationByKubelet),
		})
	}
	return pod
}

// drawBudget draws a PodDisruptionBudget; some of the pods may have been counted already.
func drawBudget(t *rapid.T, pods []string) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceNames[0], Name: pick(t, "budget", "b0", "b1", "b2")}}
	if oneIn(t, 4, "another namespace") {
		b.Namespace = rapid.SampledFrom(namespaceNames).Draw(t, "namespace")
	}
	b.Spec.Selector = drawSelector(t, podLabels)
	b.Status.DisruptionsAllowed = pick[int32](t, "allowed", 0, 1, 2, 3)
	if len(pods) > 0 && oneIn(t, 3, "disrupted pods") {
		b.Status.DisruptedPods = make(map[string]metav1.Time)
		for range rapid.IntRange(1, 3).Draw(t, "disrupted pods") {
			b.Status.DisruptedPods[rapid.SampledFrom(pods).Draw(t, "disrupted pod")] = deleted
		}
	}
	return b
}

// drawPriority draws a priority of those among which pods preempt.
func drawPriority(t *rapid.T) *int32 {
	if oneIn(t, 6, "the lowest or the highest") {
		return ptr.To(pick[int32](t, "priority", math.MinInt32, math.MinInt32, math.MinInt32, 2000001000))
	}
	return pick(t, "priority", nil, ptr.To[int32](0), ptr.To[int32](-5), ptr.To[int32](10), ptr.To[int32](11))
}

// drawCrowd draws a cluster with little room, pods of all priorities, and budgets.
func (w *world) drawCrowd() {
	t := w.t
	for _, node := range drawFleet(t, w.width) {
		if !oneIn(t, 4, "as it is") {
			node.Spec = v1.NodeSpec{}
			node.Status.Allocatable = v1.ResourceList{
				"cpu": resource.MustParse(pick(t, "cpu", "4", "2", "6")), "memory": resource.MustParse(pick(t, "memory", "8Gi", "4Gi")),
				"pods": resource.MustParse(pick(t, "pods", "8", "4", "110")), gpu: resource.MustParse("2"),
			}
		}
		w.setNode(node, w.drawPlace())
	}
	leaving := rapid.Bool().Draw(t, "many terminate")
	for range w.width * rapid.IntRange(1, 6).Draw(t, "pods per node") {
		pod := w.drawPod()
		pod.Spec.Priority = drawPriority(t)
		w.runOn(pod, nodeName(rapid.IntRange(0, w.width-1).Draw(t, "node")))
		if last := len(w.pods) - 1; leaving && rapid.Bool().Draw(t, "terminates") {
			w.update(last, terminate(t, w.pods[last]))
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "budgets") {
		w.keep(drawBudget(t, w.podNames()))
	}
}

// drawPreemptor draws a pod that mostly would have room on some node if others made it.
func (w *world) drawPreemptor() *v1.Pod {
	t := w.t
	pod := w.drawPod()
	pod.Spec.Priority = pick(t, "priority of the preemptor", ptr.To[int32](100), ptr.To[int32](10), ptr.To[int32](11), ptr.To[int32](2000001000), nil)
	if oneIn(t, 4, "as it is") {
		return pod
	}
	s := &pod.Spec
	s.NodeSelector, s.Resources = nil, nil
	s.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	if a := s.Affinity.NodeAffinity; a != nil {
		a.RequiredDuringSchedulingIgnoredDuringExecution = nil
	}
	if oneIn(t, 3, "spread evenly") {
		pod.Labels = map[string]string{"app": "a"}
		s.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			TopologyKey: pick(t, "topology key", v1.LabelHostname, zoneKey), MaxSkew: 1, WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
		}}
	}
	for _, containers := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			containers[i].RestartPolicyRules = nil
			containers[i].Resources = v1.ResourceRequirements{}
		}
	}
	s.Containers[0].Resources.Requests = v1.ResourceList{
		"cpu": resource.MustParse(pick(t, "cpu", "2", "1", "3", "4", "100m")), "memory": resource.MustParse(pick(t, "memory", "2Gi", "1Gi", "4Gi", "0")),
	}
	return pod
}

// evict does what follows a preemption: the preemptor is nominated to the node, and the victims terminate, all at once or,
// as Berth's ledger knows it, in two steps.
func (w *world) evict(id cluster.PodID, node string, v victims) {
	pod := w.pending[id]
	if !w.nominating || narrowed(pod) {
		return
	}
	nominated := nominatedTo(pod, node)
	for k, victim := range w.pods {
		if slices.Contains(v.Pods, victim.Name) && w.assumed[string(victim.UID)] {
			w.confirm(k) // kube-scheduler takes no news of a pod whose bind it has not heard of
		}
	}
	if rapid.Bool().Draw(w.t, "at once") {
		w.disrupt(v.Pods)
		w.amend(id, nominated)
		return
	}
	d := cluster.PreemptionStarted{ID: id, Node: w.state.Nodes.ByName(node)}
	for _, name := range v.Pods {
		k := slices.IndexFunc(w.pods, func(p *v1.Pod) bool { return p.Name == name })
		d.Victims = append(d.Victims, w.kube.podID(w.pods[k]))
	}
	w.apply(d)
	w.kube.requeue(pod, nominated)
	w.pending[id], w.preempting[id] = nominated, eviction{node, v.Pods}
}

// eviction is that of some pods from a node, by name.
type eviction struct {
	node    string
	victims []string
}

// evicting reports whether Berth knows of pods of a node that they will terminate, but the cluster does not yet.
func (w *world) evicting(node string) bool {
	for _, e := range w.preempting {
		if e.node == node {
			return true
		}
	}
	return false
}

// evicted ends what evict has begun.
func (w *world) evicted(id cluster.PodID) {
	w.disrupt(w.preempting[id].victims)
	w.apply(cluster.PreemptionEnded{ID: id})
	w.tell(w.pending[id], true)
	delete(w.preempting, id)
}

// disrupt makes pods terminate, those that are still there.
func (w *world) disrupt(names []string) {
	for k, pod := range w.pods {
		if slices.Contains(names, pod.Name) {
			w.update(k, preempted(pod))
		}
	}
}

// preempted is the pod once kube-scheduler, or Berth, has evicted it.
func preempted(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	pod.DeletionTimestamp = &deleted
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler}}
	return pod
}

// nominatedTo is the pod with another nomination.
func nominatedTo(pod *v1.Pod, node string) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Status.NominatedNodeName = node
	return pod
}
