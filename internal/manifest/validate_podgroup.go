package manifest

import (
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-scheduler/berth/internal/source"
)

// highestUserPriority is Kubernetes' HighestUserDefinablePriority.
const highestUserPriority = 1_000_000_000

// validatePodGroup returns what is wrong with a PodGroup: what kube-apiserver 1.36 refuses, but that it may name source.MostTopologyKeys labels, where that takes one; and what Berth could not follow of its annotation.
func validatePodGroup(group *schedulingv1alpha2.PodGroup) field.ErrorList {
	errs := validateNamespaced(&group.ObjectMeta, validation.IsDNS1123Subdomain)
	if _, why := source.ReadPreferredTopology(group.Annotations); why != "" {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(source.PreferredTopology), group.Annotations[source.PreferredTopology], why))
	}
	spec := field.NewPath("spec")
	policy := group.Spec.SchedulingPolicy
	switch at := spec.Child("schedulingPolicy"); {
	case policy.Basic == nil && policy.Gang == nil:
		errs = append(errs, field.Required(at, "must be basic or gang"))
	case policy.Basic != nil && policy.Gang != nil:
		errs = append(errs, field.Forbidden(at.Child("gang"), "may not be there beside basic"))
	case policy.Gang != nil && policy.Gang.MinCount < 1:
		errs = append(errs, field.Invalid(at.Child("gang", "minCount"), policy.Gang.MinCount, "must be at least 1"))
	}
	if c := group.Spec.SchedulingConstraints; c != nil {
		at := spec.Child("schedulingConstraints", "topology")
		if n := len(c.Topology); n > source.MostTopologyKeys {
			errs = append(errs, field.TooMany(at, n, source.MostTopologyKeys))
		}
		seen := make(map[string]bool)
		for i, t := range c.Topology {
			p := at.Index(i).Child("key")
			for _, why := range validation.IsQualifiedName(t.Key) {
				errs = append(errs, field.Invalid(p, t.Key, why))
			}
			if seen[t.Key] {
				errs = append(errs, field.Duplicate(p, t.Key))
			}
			seen[t.Key] = true
		}
	}
	if mode := group.Spec.DisruptionMode; mode != nil && *mode != schedulingv1alpha2.DisruptionModePod && *mode != schedulingv1alpha2.DisruptionModePodGroup {
		errs = append(errs, field.NotSupported(spec.Child("disruptionMode"), *mode, []schedulingv1alpha2.DisruptionMode{schedulingv1alpha2.DisruptionModePod, schedulingv1alpha2.DisruptionModePodGroup}))
	}
	if p := group.Spec.Priority; p != nil && *p > highestUserPriority {
		errs = append(errs, field.Invalid(spec.Child("priority"), *p, "must not be above 1000000000"))
	}
	return errs
}
