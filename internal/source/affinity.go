package source

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// reduceNodeAffinity fills the class's node affinity and returns the required node taken out of it, if there is one.
// A preferred term that cannot be parsed makes the class unsupported; a required one matches nothing, as in kube-scheduler.
func reduceNodeAffinity(spec *v1.PodSpec, class *cluster.ClassSpec) (requiredNode string) {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return ""
	}
	affinity := spec.Affinity.NodeAffinity
	if required := affinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		class.HasRequired = true
		for _, t := range required.NodeSelectorTerms {
			class.Required = append(class.Required, reduceTerm(t))
		}
		if !countsOwnNodes(spec) {
			requiredNode = takeRequiredNode(class)
		}
	}

	preferred := affinity.PreferredDuringSchedulingIgnoredDuringExecution
	if _, err := nodeaffinity.NewPreferredSchedulingTerms(preferred); err != nil {
		refuse(class, engine.NodeTerms, "the pod's preferred node affinity is invalid: "+err.Error())
		return requiredNode
	}
	for _, t := range preferred {
		class.Preferred = append(class.Preferred, cluster.PreferredTerm{Weight: t.Weight, Term: reduceTerm(t.Preference)})
	}
	return requiredNode
}

// countsOwnNodes reports whether a hard spread constraint counts only nodes that the pod's node affinity selects, so that
// the name must stay in it.
func countsOwnNodes(spec *v1.PodSpec) bool {
	return slices.ContainsFunc(spec.TopologySpreadConstraints, func(c v1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == v1.DoNotSchedule && (c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == v1.NodeInclusionPolicyHonor)
	})
}

// takeRequiredNode moves the node's name out of the required terms if every one of them asks for the same name and for no other
// field, as the pods of a DaemonSet do: they are then of one class, whatever their nodes.
func takeRequiredNode(class *cluster.ClassSpec) string {
	requiredNode := ""
	for i, t := range class.Required {
		if len(t.Fields) != 1 {
			return ""
		}
		f := t.Fields[0]
		if f.Key != metav1.ObjectNameField || f.Operator != string(v1.NodeSelectorOpIn) || len(f.Values) != 1 || f.Values[0] == "" {
			return ""
		}
		if i > 0 && f.Values[0] != requiredNode {
			return ""
		}
		requiredNode = f.Values[0]
	}
	if requiredNode == "" {
		return ""
	}
	for i := range class.Required {
		class.Required[i].Fields = nil
	}
	// A term that asked for the name only now matches every node, and with it the terms as a whole.
	if slices.ContainsFunc(class.Required, func(t cluster.NodeSelectorTerm) bool { return len(t.Expressions) == 0 }) {
		class.Required, class.HasRequired = nil, false
	}
	return requiredNode
}

// RestoreRequiredNode returns the pod with its required node back in its node affinity: for a profile that does not keep pods to the nodes that
// their affinity names before it does anything else, and for one whose own constraints read the affinity.
func RestoreRequiredNode(p Pod) Pod {
	if p.RequiredNode == "" {
		return p
	}
	name := []cluster.Requirement{{Key: metav1.ObjectNameField, Operator: string(v1.NodeSelectorOpIn), Values: []string{p.RequiredNode}}}
	p.Class.Required = slices.Clone(p.Class.Required)
	for i := range p.Class.Required {
		p.Class.Required[i].Fields = name
	}
	if !p.Class.HasRequired {
		p.Class.Required, p.Class.HasRequired = []cluster.NodeSelectorTerm{{Fields: name}}, true
	}
	p.RequiredNode = ""
	return p
}

// KeepsRequiredNode reports whether a pod of the profile may be known by its required node: it goes to that node or to none, and nothing else
// asks for its node affinity.
func KeepsRequiredNode(profile *cluster.Profile) bool {
	return slices.Contains(profile.PreFilters, engine.JudgeOf(engine.NodeTerms)) && !slices.ContainsFunc(profile.DefaultSpread, func(c cluster.SpreadConstraint) bool {
		return c.Hard && c.HonorAffinity
	})
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
