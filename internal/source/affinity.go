package source

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// reduceNodeAffinity fills the class's node affinity and returns the pin taken out of it, if there is one.
// A preferred term that cannot be parsed makes the class unsupported; a required one matches nothing, as in kube-scheduler.
func reduceNodeAffinity(spec *v1.PodSpec, class *cluster.ClassSpec) (pin string) {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return ""
	}
	affinity := spec.Affinity.NodeAffinity
	if required := affinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		class.HasRequired = true
		for _, t := range required.NodeSelectorTerms {
			class.Required = append(class.Required, reduceTerm(t))
		}
		pin = takePin(class)
	}

	preferred := affinity.PreferredDuringSchedulingIgnoredDuringExecution
	if _, err := nodeaffinity.NewPreferredSchedulingTerms(preferred); err != nil {
		class.UnsupportedPlugin = "NodeAffinity"
		class.Unsupported = "the pod's preferred node affinity is invalid: " + err.Error()
		return pin
	}
	for _, t := range preferred {
		class.Preferred = append(class.Preferred, cluster.PreferredTerm{Weight: t.Weight, Term: reduceTerm(t.Preference)})
	}
	return pin
}

// takePin moves the node's name out of the required terms if every one of them asks for the same name and for no other
// field, as the pods of a DaemonSet do: they are then of one class, whatever their nodes.
func takePin(class *cluster.ClassSpec) string {
	pin := ""
	for i, t := range class.Required {
		if len(t.Fields) != 1 {
			return ""
		}
		f := t.Fields[0]
		if f.Key != metav1.ObjectNameField || f.Operator != string(v1.NodeSelectorOpIn) || len(f.Values) != 1 || f.Values[0] == "" {
			return ""
		}
		if i > 0 && f.Values[0] != pin {
			return ""
		}
		pin = f.Values[0]
	}
	if pin == "" {
		return ""
	}
	for i := range class.Required {
		class.Required[i].Fields = nil
	}
	// A term that asked for the name only now matches every node, and with it the terms as a whole.
	if slices.ContainsFunc(class.Required, func(t cluster.NodeSelectorTerm) bool { return len(t.Expressions) == 0 }) {
		class.Required, class.HasRequired = nil, false
	}
	return pin
}

func reduceTerm(t v1.NodeSelectorTerm) cluster.NodeSelectorTerm {
	return cluster.NodeSelectorTerm{Expressions: reduceRequirements(t.MatchExpressions), Fields: reduceRequirements(t.MatchFields)}
}

func reduceRequirements(requirements []v1.NodeSelectorRequirement) []cluster.Requirement {
	var out []cluster.Requirement
	for _, r := range requirements {
		out = append(out, cluster.Requirement{Key: r.Key, Operator: string(r.Operator), Values: slices.Clone(r.Values)})
	}
	return out
}
