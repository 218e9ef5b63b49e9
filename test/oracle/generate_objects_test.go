package oracle

import (
	"cmp"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/nodedeclaredfeatures/features"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// drawFeatures draws what a node declares: mostly all there is, and sometimes what nobody knows. It is sorted, as the API
// server demands.
func drawFeatures(t *rapid.T) []string {
	var out []string
	for _, f := range features.AllFeatures {
		if !oneIn(t, 4, "not declared") {
			out = append(out, f.Name())
		}
	}
	if oneIn(t, 4, "unknown feature") {
		out = append(out, "FeatureOfTheFuture")
	}
	slices.Sort(out)
	return out
}

// drawNeeds makes a few pods need features of their nodes.
func drawNeeds(t *rapid.T, s *v1.PodSpec) {
	if oneIn(t, 16, "user namespace on the host network") {
		s.HostNetwork, s.HostUsers = true, ptr.To(false)
	}
	if oneIn(t, 16, "restart rules") {
		rule := v1.ContainerRestartRule{
			Action:    pick(t, "action", v1.ContainerRestartRuleActionRestartAllContainers, v1.ContainerRestartRuleActionRestart),
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}},
		}
		containers := s.Containers
		if len(s.InitContainers) > 0 && rapid.Bool().Draw(t, "of an init container") {
			containers = s.InitContainers
		}
		containers[0].RestartPolicyRules = []v1.ContainerRestartRule{rule}
	}
}

// ownerNames are those of services and controllers; few, so that pods often have one that exists.
var ownerNames = []string{"o0", "o1"}

// drawOwnerReferences draws the owners of a pod: mostly a controller of a kind whose selector counts.
func drawOwnerReferences(t *rapid.T) []metav1.OwnerReference {
	kind := pick(t, "kind", "apps/v1/ReplicaSet", "v1/ReplicationController", "apps/v1/StatefulSet", "batch/v1/Job", "apps/v1beta1/ReplicaSet", "v1/ReplicaSet")
	version, kind := cutLast(kind)
	r := metav1.OwnerReference{APIVersion: version, Kind: kind, Name: rapid.SampledFrom(ownerNames).Draw(t, "owner"), Controller: ptr.To(true)}
	if oneIn(t, 8, "owner that does not control") {
		r.Controller = pick(t, "controller", nil, ptr.To(false))
	}
	if oneIn(t, 8, "another owner") {
		return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "o0"}, r}
	}
	return []metav1.OwnerReference{r}
}

func cutLast(s string) (version, kind string) {
	i := len(s) - 1
	for ; s[i] != '/'; i-- {
	}
	return s[:i], s[i+1:]
}

// kindOf returns what kind of service or controller an object is.
func kindOf(o metav1.Object) string {
	switch o.(type) {
	case *v1.Service:
		return cluster.KindService
	case *v1.ReplicationController:
		return cluster.KindReplicationController
	case *appsv1.ReplicaSet:
		return cluster.KindReplicaSet
	}
	return cluster.KindStatefulSet
}

// drawOwner draws a service or a controller.
func drawOwner(t *rapid.T) metav1.Object {
	meta := metav1.ObjectMeta{
		Namespace: rapid.SampledFrom(namespaceNames).Draw(t, "namespace"), Name: rapid.SampledFrom(ownerNames).Draw(t, "name"),
	}
	if !oneIn(t, 4, "another namespace") {
		meta.Namespace = namespaceNames[0]
	}
	// What selects by a map selects nothing without one, and everything with an empty one.
	match := func() map[string]string {
		switch rapid.IntRange(0, 9).Draw(t, "selector") {
		case 9:
			return nil
		case 8:
			return map[string]string{}
		case 7:
			return map[string]string{"app": pick(t, "app", podLabels["app"]...), "tier": pick(t, "tier", podLabels["tier"]...)}
		}
		return drawMatch(t, podLabels, sortedKeys(podLabels))
	}
	switch rapid.IntRange(0, 5).Draw(t, "kind of owner") {
	case 0:
		return &v1.ReplicationController{ObjectMeta: meta, Spec: v1.ReplicationControllerSpec{Selector: match()}}
	case 1:
		return &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: drawSelector(t, podLabels)}}
	case 2:
		return &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: drawSelector(t, podLabels)}}
	}
	return &v1.Service{ObjectMeta: meta, Spec: v1.ServiceSpec{Selector: match()}}
}

// drawNamespace draws one of the namespaces that can exist.
func drawNamespace(t *rapid.T) *v1.Namespace {
	return &v1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   rapid.SampledFrom(namespaceNames[:len(namespaceNames)-1]).Draw(t, "namespace"),
		Labels: drawLabels(t, namespaceLabels, 4),
	}}
}

// drawNomination draws the node that a pending pod is nominated to, mostly none.
func drawNomination(t *rapid.T, pod *v1.Pod, width int) string {
	if !oneIn(t, 4, "nominated") || pod.Spec.NodeName != "" || narrowed(pod) {
		return ""
	}
	return nodeName(rapid.IntRange(0, width).Draw(t, "nominated node"))
}

// narrowed reports whether the pod's required node affinity names nodes in every term.
func narrowed(pod *v1.Pod) bool {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if len(term.MatchFields) == 0 {
			return false
		}
	}
	return true
}

// named is the pod under a name of its own.
func named(p *v1.Pod, name string) *v1.Pod {
	p = p.DeepCopy()
	p.Name, p.UID = name, types.UID("uid-"+p.Namespace+"-"+name)
	return p
}

// onNode is the pod as it runs on a node; status is what the node's kubelet says of it.
func onNode(p *v1.Pod, node string, status v1.PodStatus) *v1.Pod {
	p = p.DeepCopy()
	p.Spec.NodeName, p.Status = node, status
	return p
}

// drawStatus draws what a kubelet says of a running pod, now and then in the middle of a resize.
func drawStatus(t *rapid.T, p *v1.Pod) v1.PodStatus {
	s := v1.PodStatus{Phase: v1.PodRunning, StartTime: drawStart(t)}
	if !oneIn(t, 4, "resize") {
		return s
	}
	status := func(c *v1.Container) v1.ContainerStatus {
		out := v1.ContainerStatus{Name: c.Name, AllocatedResources: resized.draw(t, "allocated")}
		if !oneIn(t, 4, "not actuated") {
			out.Resources = &v1.ResourceRequirements{Requests: resized.draw(t, "actuated")}
		}
		return out
	}
	for i := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, status(&p.Spec.Containers[i]))
	}
	for i := range p.Spec.InitContainers {
		s.InitContainerStatuses = append(s.InitContainerStatuses, status(&p.Spec.InitContainers[i]))
	}
	if oneIn(t, 2, "pod level") {
		s.AllocatedResources, s.Resources = resized.draw(t, "allocated"), &v1.ResourceRequirements{Requests: resized.draw(t, "actuated")}
	}
	if reason := pick(t, "resize", "", v1.PodReasonDeferred, v1.PodReasonInfeasible); reason != "" {
		s.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: reason}}
	}
	return s
}
