package kubetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Report is what the API server says about the placements of a cluster. Lists are in order of their names.
type Report struct {
	Nodes   int
	Bound   int // pods that have a node and have not ended
	Pending int // pods that have no node and have not ended
	Ended   int // pods that have succeeded or failed: they use nothing any more

	Overcommitted  []Overcommit
	PortCollisions []PortCollision
	Homeless       []Placement // pods on a node that does not exist
	ScheduledTwice []ScheduledTwice
	Violations     []Violation // in order of their rules

	// How pods are spread, which is what preferences are about.
	UsedNodes int            // nodes with a bound pod
	Zones     map[string]int // bound pods by the zone of their node, for each zone that a node names
}

// Placement is a pod and the node it is on.
type Placement struct {
	Pod  types.NamespacedName
	Node string
}

// Overcommit is a node whose pods request more of a resource than is allocatable. The number of pods is the resource pods.
type Overcommit struct {
	Node                   string
	Resource               corev1.ResourceName
	Requested, Allocatable resource.Quantity
}

// PortCollision is two pods of a node that use the same host port.
type PortCollision struct {
	Node        string
	Port        int32
	Protocol    corev1.Protocol
	First, Then types.NamespacedName
}

// ScheduledTwice is a pod with more than one Scheduled event, or with one that names another node than the pod's own. A
// repeated event that names the right node is what a takeover may do; anything else is a second binding.
type ScheduledTwice struct {
	Pod    types.NamespacedName
	Node   string   // the pod's; empty while it is pending
	Events int      // how many there were
	Nodes  []string // the nodes that the events name, each once
}

// Wrong reports whether the events say that the pod was bound to a node it is not on.
func (s ScheduledTwice) Wrong() bool {
	return slices.ContainsFunc(s.Nodes, func(n string) bool { return n != s.Node })
}

// Problems returns a sentence for each thing in the report that a correct scheduler does not do. Pending pods are none,
// and neither are repeated events about the node that the pod is on.
func (r Report) Problems() []string {
	var problems []string
	for _, o := range r.Overcommitted {
		problems = append(problems, fmt.Sprintf("node %s: %s of %s requested, %s allocatable", o.Node, o.Requested.String(), o.Resource, o.Allocatable.String()))
	}
	for _, c := range r.PortCollisions {
		problems = append(problems, fmt.Sprintf("node %s: host port %d/%s used by %s and %s", c.Node, c.Port, c.Protocol, c.First, c.Then))
	}
	for _, h := range r.Homeless {
		problems = append(problems, fmt.Sprintf("pod %s: bound to %s, which does not exist", h.Pod, h.Node))
	}
	for _, s := range r.ScheduledTwice {
		if s.Wrong() {
			problems = append(problems, fmt.Sprintf("pod %s: on node %q, but its events say %s", s.Pod, s.Node, strings.Join(s.Nodes, ", ")))
		}
	}
	for _, v := range r.Violations {
		problems = append(problems, fmt.Sprintf("pod %s: on node %s against its %s: %s", v.Pod, v.Node, v.Rule, v.Why))
	}
	return problems
}

// Check reads the nodes, pods, namespaces and Scheduled events of the whole cluster and judges them. It reads nothing else,
// so it believes no scheduler. It makes sense when nothing is being bound: the lists are not of the same moment. What it
// says about required constraints takes for granted that pods came one by one and stayed, on nodes that did not change.
func Check(ctx context.Context, kubeconfig string) (Report, error) {
	client, err := NewClient(kubeconfig)
	if err != nil {
		return Report{}, fmt.Errorf("check cluster: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Report{}, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return Report{}, fmt.Errorf("list pods: %w", err)
	}
	events, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "reason=Scheduled"})
	if err != nil {
		return Report{}, fmt.Errorf("list events: %w", err)
	}
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Report{}, fmt.Errorf("list namespaces: %w", err)
	}
	return check(objects{nodes.Items, pods.Items, events.Items, namespaces.Items}), nil
}

// objects is what there is to judge.
type objects struct {
	nodes      []corev1.Node
	pods       []corev1.Pod
	events     []corev1.Event
	namespaces []corev1.Namespace
}

// check judges the objects.
func check(o objects) Report {
	r := Report{Nodes: len(o.nodes)}
	nodes, loads := map[string]*corev1.Node{}, map[string]*load{}
	for i := range o.nodes {
		node := &o.nodes[i]
		nodes[node.Name] = node
		loads[node.Name] = &load{allocatable: node.Status.Allocatable, requested: corev1.ResourceList{}}
		if zone, ok := node.Labels[corev1.LabelTopologyZone]; ok {
			if r.Zones == nil {
				r.Zones = map[string]int{}
			}
			r.Zones[zone] += 0
		}
	}
	pods := o.pods
	var placed []*corev1.Pod
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return strings.Compare(nameOf(&a).String(), nameOf(&b).String())
	})
	for i := range pods {
		pod := &pods[i]
		switch {
		case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
			r.Ended++
		case pod.Spec.NodeName == "":
			r.Pending++
		default:
			r.Bound++
			node := nodes[pod.Spec.NodeName]
			if node == nil {
				r.Homeless = append(r.Homeless, Placement{nameOf(pod), pod.Spec.NodeName})
				continue
			}
			loads[node.Name].add(pod)
			placed = append(placed, pod)
			if zone, ok := node.Labels[corev1.LabelTopologyZone]; ok {
				r.Zones[zone]++
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(loads)) {
		r.Overcommitted = append(r.Overcommitted, loads[name].overcommits(name)...)
		r.PortCollisions = append(r.PortCollisions, loads[name].collisions(name)...)
		if !loads[name].requested.Pods().IsZero() {
			r.UsedNodes++
		}
	}
	r.ScheduledTwice = scheduledTwice(pods, o.events)
	r.Violations = violations(nodes, placed, o.namespaces)
	return r
}

// load is what the pods of a node ask of it.
type load struct {
	allocatable, requested corev1.ResourceList
	ports                  []portUse
}

// portUse is a host port of a pod.
type portUse struct {
	pod      types.NamespacedName
	ip       string
	port     int32
	protocol corev1.Protocol
}

func (l *load) add(pod *corev1.Pod) {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	requests[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	for name, quantity := range requests {
		sum := l.requested[name]
		sum.Add(quantity)
		l.requested[name] = sum
	}
	use := func(container corev1.Container) {
		for _, p := range container.Ports {
			if p.HostPort > 0 {
				l.ports = append(l.ports, portUse{nameOf(pod), p.HostIP, p.HostPort, p.Protocol})
			}
		}
	}
	for _, c := range pod.Spec.Containers {
		use(c)
	}
	for _, c := range pod.Spec.InitContainers {
		// Other init containers end before the pod's containers start.
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			use(c)
		}
	}
}

func (l *load) overcommits(node string) []Overcommit {
	var over []Overcommit
	for _, name := range slices.Sorted(maps.Keys(l.requested)) {
		requested, allocatable := l.requested[name], l.allocatable[name]
		if requested.Cmp(allocatable) > 0 {
			over = append(over, Overcommit{node, name, requested, allocatable})
		}
	}
	return over
}

func (l *load) collisions(node string) []PortCollision {
	var collisions []PortCollision
	for i, then := range l.ports {
		for _, first := range l.ports[:i] {
			if first.pod != then.pod && first.collides(then) {
				collisions = append(collisions, PortCollision{node, then.port, then.protocol, first.pod, then.pod})
			}
		}
	}
	return collisions
}

// collides reports whether both uses cannot be on one node: same port and protocol, and the same address or either all addresses.
func (u portUse) collides(v portUse) bool {
	every := func(ip string) bool { return ip == "" || ip == "0.0.0.0" }
	return u.port == v.port && u.protocol == v.protocol && (u.ip == v.ip || every(u.ip) || every(v.ip))
}

// scheduledTwice compares the Scheduled events with the pods they are about. Events about pods that are gone are left out.
func scheduledTwice(pods []corev1.Pod, events []corev1.Event) []ScheduledTwice {
	byPod := map[types.UID][]*corev1.Event{}
	for i := range events {
		byPod[events[i].InvolvedObject.UID] = append(byPod[events[i].InvolvedObject.UID], &events[i])
	}
	var twice []ScheduledTwice
	for i := range pods {
		s := ScheduledTwice{Pod: nameOf(&pods[i]), Node: pods[i].Spec.NodeName}
		for _, e := range byPod[pods[i].UID] {
			count := max(1, e.Count)
			if e.Series != nil {
				count = max(count, e.Series.Count)
			}
			s.Events += int(count)
			// "Successfully assigned default/pod-1 to node-1"
			if at := strings.LastIndex(e.Message, " to "); at >= 0 {
				s.Nodes = append(s.Nodes, e.Message[at+len(" to "):])
			}
		}
		slices.Sort(s.Nodes)
		s.Nodes = slices.Compact(s.Nodes)
		if s.Events > 1 || s.Wrong() {
			twice = append(twice, s)
		}
	}
	return twice
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
