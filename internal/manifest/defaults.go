package manifest

import (
	"cmp"
	"maps"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-scheduler/berth/internal/quantity"
)

// defaultPods is how many pods a node takes that does not say: kubelet's default.
const defaultPods = 110

// systemPriorities are the priorities of the classes that every cluster has.
var systemPriorities = map[string]int32{
	"system-cluster-critical": 2000000000,
	"system-node-critical":    2000001000,
}

// defaultNode takes what is not said to be allocatable from the capacity.
func defaultNode(node *v1.Node) {
	if len(node.Status.Allocatable) == 0 {
		node.Status.Allocatable = maps.Clone(node.Status.Capacity)
	}
	if _, ok := node.Status.Allocatable[v1.ResourcePods]; !ok && len(node.Status.Allocatable) > 0 {
		node.Status.Allocatable[v1.ResourcePods] = *resource.NewQuantity(defaultPods, resource.DecimalSI)
	}
	roundUp(node.Status.Allocatable)
}

// defaultReplicationController takes a selector that is not said from the template's labels.
func defaultReplicationController(controller *v1.ReplicationController) {
	if template := controller.Spec.Template; len(controller.Spec.Selector) == 0 && template != nil {
		controller.Spec.Selector = maps.Clone(template.Labels)
	}
}

// defaultPod fills in what the API server would, as far as scheduling reads it. Of the status it keeps whether the pod
// has ended; the node that a pod without one is nominated to; and since when a pod on a node runs.
func defaultPod(pod *v1.Pod) {
	status := pod.Status
	pod.Status = v1.PodStatus{}
	switch {
	case status.Phase == v1.PodSucceeded || status.Phase == v1.PodFailed:
		pod.Status.Phase = status.Phase
	case pod.Spec.NodeName == "":
		pod.Status.NominatedNodeName = status.NominatedNodeName
	default:
		pod.Status.StartTime = status.StartTime
	}
	mergeLabelKeys(pod)

	spec := &pod.Spec
	spec.SchedulerName = cmp.Or(spec.SchedulerName, v1.DefaultSchedulerName)
	if priority, ok := systemPriorities[spec.PriorityClassName]; ok && spec.Priority == nil {
		spec.Priority = &priority
	}
	for _, containers := range [][]v1.Container{spec.Containers, spec.InitContainers} {
		for i := range containers {
			defaultContainer(&containers[i], spec.HostNetwork)
		}
	}
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	defaultPodResources(pod)

	roundUp(spec.Overhead)
	if spec.Resources != nil {
		roundUp(spec.Resources.Limits, spec.Resources.Requests)
	}
	for _, containers := range [][]v1.Container{spec.Containers, spec.InitContainers} {
		for i := range containers {
			roundUp(containers[i].Resources.Limits, containers[i].Resources.Requests)
		}
	}
}

// defaultVolume says which pool a disk is of, and of what kind: by that volumes are the same, or are told to CSI.
func defaultVolume(volume *v1.Volume) {
	if volume.RBD != nil {
		volume.RBD.RBDPool = cmp.Or(volume.RBD.RBDPool, "rbd")
	}
	defaultAzureDisk(volume.AzureDisk)
}

// defaultAzureDisk says of what kind a disk is; there may be none.
func defaultAzureDisk(disk *v1.AzureDiskVolumeSource) {
	if disk != nil && disk.Kind == nil {
		shared := v1.AzureSharedBlobDisk
		disk.Kind = &shared
	}
}

// roundUp takes away what is finer than a thousandth, upwards.
func roundUp(lists ...v1.ResourceList) {
	for _, list := range lists {
		for name, amount := range list {
			quantity.RoundUp(&amount)
			list[name] = amount
		}
	}
}

func defaultContainer(c *v1.Container, hostNetwork bool) {
	for name, limit := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = v1.ResourceList{}
			}
			c.Resources.Requests[name] = limit.DeepCopy()
		}
	}
	for i := range c.Ports {
		port := &c.Ports[i]
		port.Protocol = cmp.Or(port.Protocol, v1.ProtocolTCP)
		if hostNetwork && port.HostPort == 0 {
			port.HostPort = port.ContainerPort
		}
	}
}

// defaultPodResources completes pod-level requests where there are pod-level limits: what the containers request
// together, and otherwise the limit. Huge pages cannot be overcommitted and are never taken from the containers' requests.
func defaultPodResources(pod *v1.Pod) {
	level := pod.Spec.Resources
	if level == nil || len(level.Limits)+len(level.Requests) == 0 {
		return
	}
	for name, limit := range quantity.ContainerLimits(pod) {
		_, requested := level.Requests[name]
		_, limited := level.Limits[name]
		if isHugePage(name) && !requested && !limited {
			if level.Limits == nil {
				level.Limits = v1.ResourceList{}
			}
			level.Limits[name] = limit
		}
	}
	if len(level.Limits) == 0 {
		return
	}
	if level.Requests == nil {
		level.Requests = v1.ResourceList{}
	}
	for name, request := range quantity.ContainerRequests(pod) {
		if _, ok := level.Requests[name]; !ok && resourcehelper.IsSupportedPodLevelResource(name) && !isHugePage(name) {
			level.Requests[name] = request
		}
	}
	for name, limit := range level.Limits {
		if _, ok := level.Requests[name]; !ok && resourcehelper.IsSupportedPodLevelResource(name) {
			level.Requests[name] = limit.DeepCopy()
		}
	}
}

func isHugePage(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}
