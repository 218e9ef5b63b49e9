package scenarios

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// namespace is where all pods and budgets are.
const namespace = "default"

// attributes are the key=value words of a command. A word without = is a key with an empty value.
type attributes map[string]string

func parseAttributes(words []string) attributes {
	a := make(attributes)
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		a[key] = value
	}
	return a
}

// names expands a list: a,b is a and b; w1..3 is w1, w2 and w3; w08..10 is w08, w09 and w10.
func names(list string) ([]string, error) {
	var out []string
	for item := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(item, "..")
		if !isRange {
			out = append(out, item)
			continue
		}
		stem := strings.TrimRight(first, "0123456789")
		from, err := strconv.Atoi(first[len(stem):])
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || to < from {
			return nil, fmt.Errorf("%q is no range of names", item)
		}
		for i := from; i <= to; i++ {
			out = append(out, fmt.Sprintf("%s%0*d", stem, len(first)-len(stem), i))
		}
	}
	return out, nil
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110"),
		}},
	}
}

// shapeNode gives a node what the attributes name, and leaves the rest as it is.
func shapeNode(n *corev1.Node, a attributes) error {
	for key, value := range a {
		switch key {
		case "cpu", "memory", "pods":
			q, err := resource.ParseQuantity(value)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			n.Status.Allocatable[corev1.ResourceName(key)] = q
		case "labels":
			n.Labels = pairs(value)
			n.Labels[corev1.LabelHostname] = n.Name
		case "taints":
			n.Spec.Taints = nil
			for t := range list(value) {
				key, effect, _ := strings.Cut(t, ":")
				key, value, _ := strings.Cut(key, "=")
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
			}
		case "cordoned":
			n.Spec.Unschedulable = value != "no"
		default:
			return fmt.Errorf("nodes have no %q", key)
		}
	}
	return nil
}

// newPod returns a pod that is gone as soon as it is deleted: there is no kubelet to end it.
func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64),
			Containers:                    []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}},
		},
	}
}

// shapePod gives a pod what the attributes name, and leaves the rest as it is.
func shapePod(p *corev1.Pod, a attributes) error {
	for key, value := range a {
		switch key {
		case "cpu", "memory":
			q, err := resource.ParseQuantity(value)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceName(key)] = q
		case "priority", "grace", "port":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			switch key {
			case "priority":
				p.Spec.Priority = new(int32(n))
			case "grace":
				p.Spec.TerminationGracePeriodSeconds = new(n)
			case "port":
				p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: int32(n), ContainerPort: int32(n), Protocol: corev1.ProtocolTCP}}
			}
		case "never-preempts":
			p.Spec.PreemptionPolicy = new(corev1.PreemptNever)
		case "scheduler":
			p.Spec.SchedulerName = value
		case "labels":
			p.Labels = pairs(value)
		case "selector":
			p.Spec.NodeSelector = pairs(value)
		case "gates":
			p.Spec.SchedulingGates = nil
			for gate := range list(value) {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
			}
		case "tolerates": // adds: the tolerations of a pod that exists cannot be taken away
			for t := range list(value) {
				p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: t, Operator: corev1.TolerationOpExists})
			}
		case "apart", "near":
			term := []corev1.PodAffinityTerm{affinityTerm(value)}
			if p.Spec.Affinity == nil {
				p.Spec.Affinity = &corev1.Affinity{}
			}
			if key == "apart" {
				p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}
			} else {
				p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}
			}
		case "spread":
			term := affinityTerm(value)
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: term.TopologyKey, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: term.LabelSelector,
			}}
		default:
			return fmt.Errorf("pods have no %q", key)
		}
	}
	return nil
}

// affinityTerm reads key:value@topology, or key:value for the topology of hostnames.
func affinityTerm(text string) corev1.PodAffinityTerm {
	labels, topology, ok := strings.Cut(text, "@")
	if !ok {
		topology = corev1.LabelHostname
	}
	return corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: pairs(labels)}, TopologyKey: topology}
}

func newBudget(name string, a attributes) (*policyv1.PodDisruptionBudget, error) {
	allowed, err := strconv.ParseInt(a["allows"], 10, 32)
	if err != nil {
		return nil, fmt.Errorf("allows: %w", err)
	}
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: pairs(a["protects"])}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(allowed)},
	}, nil
}

// list yields the items of a list, none of an empty one.
func list(text string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, item := range strings.Split(text, ",") {
			if item != "" && !yield(item) {
				return
			}
		}
	}
}

// pairs reads key:value,key:value.
func pairs(text string) map[string]string {
	out := make(map[string]string)
	for item := range list(text) {
		key, value, _ := strings.Cut(item, ":")
		out[key] = value
	}
	return out
}

// condition returns a pod's condition, or an empty one.
func condition(p *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	if i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind }); i >= 0 {
		return p.Status.Conditions[i]
	}
	return corev1.PodCondition{}
}
