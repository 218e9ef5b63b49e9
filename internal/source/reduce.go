package source

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/quantity"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// What kube-scheduler takes a container to request, where it scores, if the container does not name the resource.
var (
	defaultCPURequest    = *resource.NewMilliQuantity(100, resource.DecimalSI)
	defaultMemoryRequest = *resource.NewQuantity(200<<20, resource.BinarySI)
)

// ReduceNode reads of a node what scheduling reads. Nodes that differ only in heartbeats, conditions, annotations or the
// like are equal once reduced.
func ReduceNode(node *v1.Node) cluster.Node {
	n := cluster.Node{
		Name:          node.Name,
		Labels:        sortedLabels(node.Labels),
		Unschedulable: node.Spec.Unschedulable,
		Allocatable:   quantities(node.Status.Allocatable),
		Features:      slices.Sorted(slices.Values(node.Status.DeclaredFeatures)),
	}
	for _, t := range node.Spec.Taints {
		n.Taints = append(n.Taints, cluster.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	for _, image := range node.Status.Images {
		n.Images = append(n.Images, cluster.Image{Names: slices.Clone(image.Names), Size: max(0, min(image.SizeBytes, maxAmount))})
	}
	return n
}

// ReduceNamespace returns the name of a namespace and its labels by key.
func ReduceNamespace(namespace *v1.Namespace) (string, []cluster.Label) {
	return namespace.Name, sortedLabels(namespace.Labels)
}

// ReducePod reads of a pod what scheduling reads, as kube-scheduler 1.36 reads it with its default feature gates.
// Pods that ask for the same are of equal Class, whatever their names, labels, annotations and claims: labels and claims are in Labels,
// but for labels that spread constraints name in matchLabelKeys.
func ReducePod(pod *v1.Pod) Pod {
	p := Pod{
		Pod: cluster.Pod{
			UID:       string(pod.UID),
			Namespace: pod.Namespace,
			Name:      pod.Name,
			Deleting:  pod.DeletionTimestamp != nil,
			NodeName:  pod.Spec.NodeName,
			Nominated: pod.Status.NominatedNodeName,
			Preempted: preempted(pod),
		},
		Class: cluster.ClassSpec{
			SchedulerName:   pod.Spec.SchedulerName,
			NodeSelector:    sortedLabels(pod.Spec.NodeSelector),
			HostPorts:       hostPorts(&pod.Spec),
			Images:          images(&pod.Spec),
			ImageContainers: int32(len(pod.Spec.InitContainers) + len(pod.Spec.Containers)),
		},
		Labels: cluster.LabelSet{Namespace: pod.Namespace, Labels: sortedLabels(pod.Labels), Controller: controllerOf(pod)},
	}
	if pod.Spec.Priority != nil {
		p.Priority = *pod.Spec.Priority
	}
	if !pod.CreationTimestamp.IsZero() {
		p.Created = pod.CreationTimestamp.UnixNano()
	}
	if start := pod.Status.StartTime; start != nil {
		p.Started = start.UnixNano()
	}
	p.Ends = ends(&pod.Spec)
	p.NeverPreempts = pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == v1.PreemptNever
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		p.Group = *g.PodGroupName
	}
	for _, gate := range pod.Spec.SchedulingGates {
		p.Gates = append(p.Gates, gate.Name)
	}
	for _, t := range pod.Spec.Tolerations {
		p.Class.Tolerations = append(p.Class.Tolerations, cluster.Toleration{
			Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect),
		})
	}
	reduceRequests(pod, &p.Class)
	// Of several reasons why the pod cannot be judged the last one stands.
	p.RequiredNode = reduceNodeAffinity(&pod.Spec, &p.Class)
	reduceFeatures(pod, &p.Class)
	reducePodAffinity(pod, &p.Class)
	reduceSpread(pod, &p.Class)
	reduceVolumes(pod, &p)
	refuseUnsupported(pod, &p.Class, &p.Labels)
	return p
}

// ends returns Pod.Ends. A pod that has run for its activeDeadlineSeconds is ended whatever its restartPolicy.
func ends(spec *v1.PodSpec) int32 {
	switch by := spec.ActiveDeadlineSeconds; {
	case by != nil:
		return int32(max(1, min(*by, math.MaxInt32)))
	case spec.RestartPolicy == v1.RestartPolicyNever, spec.RestartPolicy == v1.RestartPolicyOnFailure:
		return cluster.EndsSometime
	}
	return cluster.NeverEnds
}

// preempted reports whether the pod is on its way out because a scheduler has preempted it.
func preempted(pod *v1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonPreemptionByScheduler
	})
}

// refuse makes pods of the class ones that Berth cannot judge, for an aspect of theirs.
func refuse(class *cluster.ClassSpec, aspect engine.Aspect, why string) {
	class.UnsupportedPlugin, class.Unsupported = engine.JudgeOf(aspect), why
}

// Terminal reports whether the pod has succeeded or failed: it takes nothing from its node any more.
func Terminal(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// reduceRequests fills what the class requests and what it scores with.
//
// kube-scheduler sums them in three ways. A node is charged with pod-level resources and, once the pod is on the node,
// with what its status says is allocated while it is resized; the same with a default for each container that names no
// CPU or memory is charged as non-zero request, where only what the pod level does not name has a default; and the
// incoming pod is scored by NodeResourcesFit without pod-level resources, with defaults always.
func reduceRequests(pod *v1.Pod, class *cluster.ClassSpec) {
	if simpleRequests(pod) {
		reduceSimpleRequests(pod.Spec.Containers, class)
	} else {
		reduceAnyRequests(pod, class)
	}
}

// reduceAnyRequests is reduceRequests of any pod.
func reduceAnyRequests(pod *v1.Pod, class *cluster.ClassSpec) {
	assigned := pod.Spec.NodeName != ""
	options := resourcehelper.PodResourcesOptions{
		UseStatusResources: assigned,
		InPlacePodLevelResourcesVerticalScalingEnabled: assigned,
	}
	requests := quantity.PodRequests(pod, options)
	class.Requests = requestQuantities(requests)

	defaults := v1.ResourceList{v1.ResourceCPU: defaultCPURequest, v1.ResourceMemory: defaultMemoryRequest}
	score := quantity.PodRequests(pod, resourcehelper.PodResourcesOptions{
		SkipPodLevelResources: true, NonMissingContainerRequests: defaults,
	})
	class.ScoreRequests = requestQuantities(score)

	if resourcehelper.IsPodLevelRequestsSet(pod) {
		maps.DeleteFunc(defaults, func(name v1.ResourceName, _ resource.Quantity) bool {
			_, named := requests[name]
			return named
		})
	}
	nonZero := requests
	if len(defaults) > 0 {
		options.NonMissingContainerRequests = defaults
		nonZero = quantity.PodRequests(pod, options)
	}
	class.NonZeroCPU = min(maxAmount+1, quantity.Milli(nonZero[v1.ResourceCPU]))
	class.NonZeroMemory = min(maxAmount+1, quantity.Whole(nonZero[v1.ResourceMemory]))
}

// simpleRequests reports whether a pod requests the sum of what its containers' specs say, and nothing else matters: the
// three ways are one then, but for the defaults. Most pods are so, and are reduced much faster.
func simpleRequests(pod *v1.Pod) bool {
	if len(pod.Spec.InitContainers) > 0 || pod.Spec.Overhead != nil || pod.Spec.Resources != nil {
		return false
	}
	return pod.Spec.NodeName == "" || !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c v1.ContainerStatus) bool {
		return c.Resources != nil
	})
}

// reduceSimpleRequests is reduceRequests of a pod for which simpleRequests holds.
func reduceSimpleRequests(containers []v1.Container, class *cluster.ClassSpec) {
	sums := make([]namedQuantity, 0, 4)
	var cpu, memory resource.Quantity // what containers that name none count for
	for i := range containers {
		requests := containers[i].Resources.Requests
		for name, amount := range requests {
			sums = addQuantity(sums, name, amount)
		}
		if _, named := requests[v1.ResourceCPU]; !named {
			quantity.Add(&cpu, defaultCPURequest)
		}
		if _, named := requests[v1.ResourceMemory]; !named {
			quantity.Add(&memory, defaultMemoryRequest)
		}
	}
	class.Requests = requestsOf(sums)
	sums = addQuantity(addQuantity(sums, v1.ResourceCPU, cpu), v1.ResourceMemory, memory)
	class.ScoreRequests = requestsOf(sums)
	for _, q := range class.ScoreRequests {
		switch v1.ResourceName(q.Name) {
		case v1.ResourceCPU:
			class.NonZeroCPU = q.Value
		case v1.ResourceMemory:
			class.NonZeroMemory = q.Value
		}
	}
}

type namedQuantity struct {
	name v1.ResourceName
	sum  resource.Quantity
}

// addQuantity adds to the sum of that name.
func addQuantity(sums []namedQuantity, name v1.ResourceName, amount resource.Quantity) []namedQuantity {
	for i := range sums {
		if sums[i].name == name {
			quantity.Add(&sums[i].sum, amount)
			return sums
		}
	}
	return append(sums, namedQuantity{name, quantity.Bounded(amount).DeepCopy()}) // a large quantity shares its digits with its copies
}

// requestsOf returns the amounts that kube-scheduler counts, by name, without zeros and "pods".
func requestsOf(sums []namedQuantity) []cluster.Quantity {
	out := make([]cluster.Quantity, 0, len(sums))
	for i := range sums {
		if s := &sums[i]; s.name != v1.ResourcePods {
			out = appendCounted(out, s.name, s.sum)
		}
	}
	return sortedQuantities(out)
}

// requestQuantities is quantities without "pods", which a node has but a pod cannot ask for.
func requestQuantities(list v1.ResourceList) []cluster.Quantity {
	out := make([]cluster.Quantity, 0, len(list))
	for name, amount := range list {
		if name != v1.ResourcePods {
			out = appendCounted(out, name, amount)
		}
	}
	return sortedQuantities(out)
}

// quantities returns the amounts that kube-scheduler counts, by name, without zeros.
func quantities(list v1.ResourceList) []cluster.Quantity {
	out := make([]cluster.Quantity, 0, len(list))
	for name, amount := range list {
		out = appendCounted(out, name, amount)
	}
	for i := range out {
		out[i].Value = min(out[i].Value, maxAmount)
	}
	return sortedQuantities(out)
}

// maxAmount is the most of a resource that a node counts as having, and one more the most that a pod counts as requesting: that
// fits nowhere, and what a thousand such pods on a node request still adds up in an int64.
const maxAmount = 1 << 53

// appendCounted appends an amount, unless it is zero or kube-scheduler does not count it.
func appendCounted(out []cluster.Quantity, name v1.ResourceName, amount resource.Quantity) []cluster.Quantity {
	var value int64
	switch name {
	case v1.ResourceCPU:
		value = quantity.Milli(amount)
	case v1.ResourceMemory, v1.ResourceEphemeralStorage, v1.ResourcePods:
		value = quantity.Whole(amount)
	default:
		if cluster.IsScalar(string(name)) {
			value = quantity.Whole(amount)
		}
	}
	if value == 0 {
		return out
	}
	return append(out, cluster.Quantity{Name: string(name), Value: min(value, maxAmount+1)})
}

// sortedQuantities orders amounts by name; none are nil.
func sortedQuantities(out []cluster.Quantity) []cluster.Quantity {
	if len(out) == 0 {
		return nil
	}
	slices.SortFunc(out, func(a, b cluster.Quantity) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// hostPorts returns the host ports of containers and of init containers that keep running, each once, in order.
func hostPorts(spec *v1.PodSpec) []cluster.HostPort {
	var out []cluster.HostPort
	add := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				out = append(out, cluster.HostPort{
					IP: cmp.Or(p.HostIP, "0.0.0.0"), Protocol: cmp.Or(string(p.Protocol), string(v1.ProtocolTCP)), Port: p.HostPort,
				})
			}
		}
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range spec.Containers {
		add(&spec.Containers[i])
	}
	slices.SortFunc(out, func(a, b cluster.HostPort) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.IP, b.IP))
	})
	return slices.Compact(out)
}

// images returns the images of init containers, containers and image volumes.
func images(spec *v1.PodSpec) []string {
	var out []string
	for i := range spec.InitContainers {
		out = append(out, imageName(spec.InitContainers[i].Image))
	}
	for i := range spec.Containers {
		out = append(out, imageName(spec.Containers[i].Image))
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			out = append(out, imageName(image.Reference))
		}
	}
	return out
}

// imageName adds the tag that an image without one has.
func imageName(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}

// sortedLabels returns labels by key.
func sortedLabels(labels map[string]string) []cluster.Label {
	if len(labels) == 0 {
		return nil
	}
	out := make([]cluster.Label, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, cluster.Label{Key: key, Value: labels[key]})
	}
	return out
}
