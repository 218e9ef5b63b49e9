package source

import (
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	v1 "k8s.io/api/core/v1"
)

// reduceSpread fills the class's topology spread constraints, with the labels that matchLabelKeys name merged into the
// selectors. A selector that cannot be parsed makes the class unsupported.
func reduceSpread(pod *v1.Pod, class *cluster.ClassSpec) {
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		selector, err := reduceLabelSelector(c.LabelSelector)
		if err != nil {
			class.Spread = nil
			refuse(class, engine.Spreading, "get constraints from pod: "+err.Error())
			return
		}
		if !selector.Nothing {
			selector.Requirements = ordered(append(selector.Requirements, keyed(pod.Labels, c.MatchLabelKeys)...))
		}
		reduced := cluster.SpreadConstraint{
			TopologyKey:   c.TopologyKey,
			MaxSkew:       c.MaxSkew,
			MinDomains:    1,
			Hard:          c.WhenUnsatisfiable == v1.DoNotSchedule,
			HonorAffinity: c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == v1.NodeInclusionPolicyHonor,
			HonorTaints:   c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == v1.NodeInclusionPolicyHonor,
			Selector:      selector,
		}
		if c.MinDomains != nil {
			reduced.MinDomains = max(1, *c.MinDomains)
		}
		class.Spread = append(class.Spread, reduced)
	}
}

// keyed returns the requirements that the labels of these keys are the same; keys that are not there ask for nothing.
func keyed(labels map[string]string, keys []string) []cluster.Requirement {
	chosen := make(map[string]string, len(keys))
	for _, key := range keys {
		if value, ok := labels[key]; ok {
			chosen[key] = value
		}
	}
	return equalities(chosen)
}
