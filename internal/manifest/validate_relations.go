package manifest

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validatePodTerms(required []v1.PodAffinityTerm, preferred []v1.WeightedPodAffinityTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, term := range required {
		errs = append(errs, validatePodTerm(term, path.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i))...)
	}
	for i, term := range preferred {
		p := path.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		errs = append(errs, validateWeight(term.Weight, p.Child("weight"))...)
		errs = append(errs, validatePodTerm(term.PodAffinityTerm, p.Child("podAffinityTerm"))...)
	}
	return errs
}

func validatePodTerm(term v1.PodAffinityTerm, path *field.Path) field.ErrorList {
	errs := validateSelector(term.LabelSelector, path.Child("labelSelector"))
	errs = append(errs, validateSelector(term.NamespaceSelector, path.Child("namespaceSelector"))...)
	for i, name := range term.Namespaces {
		for _, e := range validation.IsDNS1123Label(name) {
			errs = append(errs, field.Invalid(path.Child("namespaces").Index(i), name, e))
		}
	}
	errs = append(errs, validateLabelKeys(term.MatchLabelKeys, term.MismatchLabelKeys, term.LabelSelector, path)...)
	if term.TopologyKey == "" {
		return append(errs, field.Required(path.Child("topologyKey"), ""))
	}
	return append(errs, metavalidation.ValidateLabelName(term.TopologyKey, path.Child("topologyKey"))...)
}

func validateSelector(selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return metavalidation.ValidateLabelSelector(selector, metavalidation.LabelSelectorValidationOptions{}, path)
}

// validateLabelKeys checks the keys whose values are merged into a selector, which has been done.
func validateLabelKeys(match, mismatch []string, selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, list := range []struct {
		path *field.Path
		keys []string
	}{{path.Child("matchLabelKeys"), match}, {path.Child("mismatchLabelKeys"), mismatch}} {
		if len(list.keys) > 0 && selector == nil {
			errs = append(errs, field.Forbidden(list.path, "there can be none without a labelSelector"))
			continue
		}
		for i, key := range list.keys {
			errs = append(errs, metavalidation.ValidateLabelName(key, list.path.Index(i))...)
		}
	}
	for i, key := range match {
		p := path.Child("matchLabelKeys").Index(i)
		if times(selector, key) > 1 { // one of them may be what was merged
			errs = append(errs, field.Invalid(p, key, "is in both matchLabelKeys and labelSelector"))
		}
		if slices.Contains(mismatch, key) {
			errs = append(errs, field.Invalid(p, key, "is in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	return errs
}

// times returns how often a selector asks about a key.
func times(selector *metav1.LabelSelector, key string) int {
	if selector == nil {
		return 0
	}
	n := 0
	if _, ok := selector.MatchLabels[key]; ok {
		n++
	}
	for _, e := range selector.MatchExpressions {
		if e.Key == key {
			n++
		}
	}
	return n
}

var (
	spreadActions  = []v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway}
	spreadPolicies = []v1.NodeInclusionPolicy{v1.NodeInclusionPolicyHonor, v1.NodeInclusionPolicyIgnore}
)

func validateSpread(constraints []v1.TopologySpreadConstraint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range constraints {
		p := path.Index(i)
		if c.MaxSkew < 1 {
			errs = append(errs, field.Invalid(p.Child("maxSkew"), c.MaxSkew, "must be at least 1"))
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(p.Child("topologyKey"), ""))
		}
		if !slices.Contains(spreadActions, c.WhenUnsatisfiable) {
			errs = append(errs, field.NotSupported(p.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, spreadActions))
		}
		if slices.ContainsFunc(constraints[:i], func(other v1.TopologySpreadConstraint) bool {
			return other.TopologyKey == c.TopologyKey && other.WhenUnsatisfiable == c.WhenUnsatisfiable
		}) {
			errs = append(errs, field.Duplicate(p, c.TopologyKey+", "+string(c.WhenUnsatisfiable)))
		}
		if c.MinDomains != nil && *c.MinDomains < 1 {
			errs = append(errs, field.Invalid(p.Child("minDomains"), *c.MinDomains, "must be at least 1"))
		}
		if c.MinDomains != nil && c.WhenUnsatisfiable != v1.DoNotSchedule {
			errs = append(errs, field.Invalid(p.Child("minDomains"), *c.MinDomains, "can only be used with whenUnsatisfiable DoNotSchedule"))
		}
		errs = append(errs, validatePolicy(c.NodeAffinityPolicy, p.Child("nodeAffinityPolicy"))...)
		errs = append(errs, validatePolicy(c.NodeTaintsPolicy, p.Child("nodeTaintsPolicy"))...)
		errs = append(errs, validateLabelKeys(c.MatchLabelKeys, nil, c.LabelSelector, p)...)
		errs = append(errs, validateSelector(c.LabelSelector, p.Child("labelSelector"))...)
	}
	return errs
}

func validatePolicy(policy *v1.NodeInclusionPolicy, path *field.Path) field.ErrorList {
	if policy == nil || slices.Contains(spreadPolicies, *policy) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, *policy, spreadPolicies)}
}

func validateService(service *v1.Service) field.ErrorList {
	errs := validateNamespaced(&service.ObjectMeta, validation.IsDNS1123Label)
	return append(errs, validateLabels(service.Spec.Selector, field.NewPath("spec", "selector"))...)
}

func validateReplicationController(controller *v1.ReplicationController) field.ErrorList {
	errs := validateNamespaced(&controller.ObjectMeta, validation.IsDNS1123Subdomain)
	path := field.NewPath("spec", "selector")
	if len(controller.Spec.Selector) == 0 {
		errs = append(errs, field.Required(path, "the labels of the controller's pods"))
	}
	return append(errs, validateLabels(controller.Spec.Selector, path)...)
}

// validateController checks what is read of a replica set or a stateful set.
func validateController(meta *metav1.ObjectMeta, selector *metav1.LabelSelector) field.ErrorList {
	errs := validateNamespaced(meta, validation.IsDNS1123Subdomain)
	path := field.NewPath("spec", "selector")
	if selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		return append(errs, field.Required(path, "matchLabels or matchExpressions of the controller's pods"))
	}
	return append(errs, validateSelector(selector, path)...)
}

// validateBudget checks what is read of a PodDisruptionBudget. One without a selector, or with an empty one, protects no pod.
func validateBudget(budget *policyv1.PodDisruptionBudget) field.ErrorList {
	errs := validateNamespaced(&budget.ObjectMeta, validation.IsDNS1123Subdomain)
	errs = append(errs, validateSelector(budget.Spec.Selector, field.NewPath("spec", "selector"))...)
	if allowed := budget.Status.DisruptionsAllowed; allowed < 0 {
		errs = append(errs, field.Invalid(field.NewPath("status", "disruptionsAllowed"), allowed, "must not be negative"))
	}
	return errs
}
