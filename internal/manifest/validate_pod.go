package manifest

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-scheduler/berth/internal/quantity"
)

func validatePod(pod *v1.Pod) field.ErrorList {
	errs := validateNamespaced(&pod.ObjectMeta, validation.IsDNS1123Subdomain)
	errs = append(errs, validateOwners(pod.OwnerReferences, field.NewPath("metadata", "ownerReferences"))...)
	if node := pod.Status.NominatedNodeName; node != "" {
		for _, e := range validation.IsDNS1123Subdomain(node) {
			errs = append(errs, field.Invalid(field.NewPath("status", "nominatedNodeName"), node, e))
		}
	}
	spec, path := &pod.Spec, field.NewPath("spec")
	errs = append(errs, validateContainers(spec, path)...)
	if level := spec.Resources; level != nil {
		errs = append(errs, validateContainerResources(level.Requests, level.Limits, path.Child("resources"))...)
		for _, name := range sets.List(sets.KeySet(level.Requests)) {
			if !resourcehelper.IsSupportedPodLevelResource(name) {
				errs = append(errs, field.Invalid(path.Child("resources", "requests").Key(string(name)), string(name), "a pod as a whole can only ask for cpu, memory and huge pages"))
			}
		}
	}
	errs = append(errs, validateQuantities(spec.Overhead, path.Child("overhead"))...)
	if len(errs) == 0 { // each amount can be counted: can their sums?
		errs = append(errs, validateQuantities(quantity.PodRequests(pod, resourcehelper.PodResourcesOptions{}), path.Child("containers").Child("(sum of requests)"))...)
	}
	errs = append(errs, validatePlacement(spec, path)...)
	errs = append(errs, validateTolerations(spec.Tolerations, path.Child("tolerations"))...)
	errs = append(errs, validateAffinity(spec.Affinity, path.Child("affinity"))...)
	errs = append(errs, validateSpread(spec.TopologySpreadConstraints, path.Child("topologySpreadConstraints"))...)
	return errs
}

var preemptionPolicies = []v1.PreemptionPolicy{v1.PreemptLowerPriority, v1.PreemptNever}

// validatePlacement checks the fields that say who places the pod, when, and where.
func validatePlacement(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, e := range validation.IsDNS1123Subdomain(spec.SchedulerName) {
		errs = append(errs, field.Invalid(path.Child("schedulerName"), spec.SchedulerName, e))
	}
	if spec.NodeName != "" {
		for _, e := range validation.IsDNS1123Subdomain(spec.NodeName) {
			errs = append(errs, field.Invalid(path.Child("nodeName"), spec.NodeName, e))
		}
		if len(spec.SchedulingGates) > 0 {
			errs = append(errs, field.Forbidden(path.Child("nodeName"), "a pod with scheduling gates cannot be on a node"))
		}
	}
	errs = append(errs, validateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	gates := sets.New[string]()
	for i, gate := range spec.SchedulingGates {
		p := path.Child("schedulingGates").Index(i).Child("name")
		for _, e := range validation.IsQualifiedName(gate.Name) {
			errs = append(errs, field.Invalid(p, gate.Name, e))
		}
		if gates.Has(gate.Name) {
			errs = append(errs, field.Duplicate(p, gate.Name))
		}
		gates.Insert(gate.Name)
	}
	if group := spec.SchedulingGroup; group != nil {
		p := path.Child("schedulingGroup", "podGroupName")
		if group.PodGroupName == nil {
			errs = append(errs, field.Required(p, ""))
		} else {
			for _, e := range validation.IsDNS1123Subdomain(*group.PodGroupName) {
				errs = append(errs, field.Invalid(p, *group.PodGroupName, e))
			}
		}
	}
	if policy := spec.PreemptionPolicy; policy != nil && !slices.Contains(preemptionPolicies, *policy) {
		errs = append(errs, field.NotSupported(path.Child("preemptionPolicy"), *policy, preemptionPolicies))
	}
	if spec.PriorityClassName != "" && spec.Priority == nil {
		errs = append(errs, field.Invalid(path.Child("priorityClassName"), spec.PriorityClassName,
			"only system-cluster-critical and system-node-critical are known here; set spec.priority as well"))
	}
	return errs
}

func validateContainers(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), "at least one container"))
	}
	names := sets.New[string]()
	type hostPort struct {
		ip       string
		protocol v1.Protocol
		port     int32
	}
	ports := sets.New[hostPort]()
	check := func(c *v1.Container, path *field.Path, concurrent bool) {
		if c.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
		} else {
			for _, e := range validation.IsDNS1123Label(c.Name) {
				errs = append(errs, field.Invalid(path.Child("name"), c.Name, e))
			}
			if names.Has(c.Name) {
				errs = append(errs, field.Duplicate(path.Child("name"), c.Name))
			}
			names.Insert(c.Name)
		}
		errs = append(errs, validateContainerResources(c.Resources.Requests, c.Resources.Limits, path.Child("resources"))...)
		for i, p := range c.Ports {
			at := path.Child("ports").Index(i)
			errs = append(errs, validatePort(p, at)...)
			key := hostPort{p.HostIP, p.Protocol, p.HostPort}
			if p.HostPort > 0 && concurrent {
				if ports.Has(key) {
					errs = append(errs, field.Duplicate(at.Child("hostPort"), fmt.Sprintf("%s/%s/%d", p.HostIP, p.Protocol, p.HostPort)))
				}
				ports.Insert(key)
			}
		}
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		check(c, path.Child("initContainers").Index(i), c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways)
	}
	for i := range spec.Containers {
		check(&spec.Containers[i], path.Child("containers").Index(i), true)
	}
	return errs
}

var protocols = []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}

func validatePort(p v1.ContainerPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, e := range validation.IsValidPortNum(int(p.ContainerPort)) {
		errs = append(errs, field.Invalid(path.Child("containerPort"), p.ContainerPort, e))
	}
	if p.HostPort != 0 {
		for _, e := range validation.IsValidPortNum(int(p.HostPort)) {
			errs = append(errs, field.Invalid(path.Child("hostPort"), p.HostPort, e))
		}
	}
	if !slices.Contains(protocols, p.Protocol) {
		errs = append(errs, field.NotSupported(path.Child("protocol"), p.Protocol, protocols))
	}
	if p.HostIP != "" {
		if _, err := netip.ParseAddr(p.HostIP); err != nil {
			errs = append(errs, field.Invalid(path.Child("hostIP"), p.HostIP, "must be an IP address"))
		}
	}
	return errs
}

var tolerationOperators = []v1.TolerationOperator{v1.TolerationOpEqual, v1.TolerationOpExists}

func validateTolerations(tolerations []v1.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range tolerations {
		p := path.Index(i)
		if t.Key != "" {
			for _, e := range validation.IsQualifiedName(t.Key) {
				errs = append(errs, field.Invalid(p.Child("key"), t.Key, e))
			}
		} else if t.Operator != v1.TolerationOpExists {
			errs = append(errs, field.Invalid(p.Child("operator"), t.Operator, "must be Exists if there is no key, which tolerates all keys"))
		}
		switch t.Operator {
		case v1.TolerationOpEqual, "":
			errs = append(errs, validateLabelValue(t.Value, p.Child("value"))...)
		case v1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs, field.Invalid(p.Child("value"), t.Value, "must be empty if the operator is Exists"))
			}
		default:
			errs = append(errs, field.NotSupported(p.Child("operator"), t.Operator, tolerationOperators))
		}
		errs = append(errs, validateEffect(t.Effect, p.Child("effect"), true)...)
		if t.TolerationSeconds != nil && t.Effect != v1.TaintEffectNoExecute {
			errs = append(errs, field.Invalid(p.Child("effect"), t.Effect, "must be NoExecute if tolerationSeconds is set"))
		}
	}
	return errs
}
