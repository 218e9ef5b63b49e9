package manifest

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateAffinity(affinity *v1.Affinity, path *field.Path) field.ErrorList {
	if affinity == nil {
		return nil
	}
	var errs field.ErrorList
	if a := affinity.NodeAffinity; a != nil {
		p := path.Child("nodeAffinity")
		if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			p := p.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
			if len(required.NodeSelectorTerms) == 0 {
				errs = append(errs, field.Required(p, "at least one term"))
			}
			for i, term := range required.NodeSelectorTerms {
				errs = append(errs, validateTerm(term, p.Index(i))...)
			}
		}
		for i, preferred := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			p := p.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
			errs = append(errs, validateWeight(preferred.Weight, p.Child("weight"))...)
			errs = append(errs, validateTerm(preferred.Preference, p.Child("preference"))...)
		}
	}
	if a := affinity.PodAffinity; a != nil {
		errs = append(errs, validatePodTerms(a.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAffinity"))...)
	}
	if a := affinity.PodAntiAffinity; a != nil {
		errs = append(errs, validatePodTerms(a.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAntiAffinity"))...)
	}
	return errs
}

func validateWeight(weight int32, path *field.Path) field.ErrorList {
	if weight < 1 || weight > 100 {
		return field.ErrorList{field.Invalid(path, weight, "must be from 1 to 100")}
	}
	return nil
}

// selectorOperators are those of expressions on labels of nodes.
var selectorOperators = []v1.NodeSelectorOperator{
	v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist,
	v1.NodeSelectorOpGt, v1.NodeSelectorOpLt,
}

func validateTerm(term v1.NodeSelectorTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, r := range term.MatchExpressions {
		p := path.Child("matchExpressions").Index(i)
		errs = append(errs, metavalidation.ValidateLabelName(r.Key, p.Child("key"))...)
		values := p.Child("values")
		switch r.Operator {
		case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
			if len(r.Values) == 0 {
				errs = append(errs, field.Required(values, "at least one value for "+string(r.Operator)))
			}
			for j, value := range r.Values {
				errs = append(errs, validateLabelValue(value, values.Index(j))...)
			}
		case v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				errs = append(errs, field.Forbidden(values, "there can be none for "+string(r.Operator)))
			}
		case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
			if len(r.Values) != 1 {
				errs = append(errs, field.Required(values, "exactly one value for "+string(r.Operator)))
			} else if _, err := strconv.ParseInt(r.Values[0], 10, 64); err != nil {
				errs = append(errs, field.Invalid(values.Index(0), r.Values[0], "must be a whole number for "+string(r.Operator)))
			}
		default:
			errs = append(errs, field.NotSupported(p.Child("operator"), r.Operator, selectorOperators))
		}
	}
	for i, r := range term.MatchFields {
		p := path.Child("matchFields").Index(i)
		if r.Key != metav1.ObjectNameField {
			errs = append(errs, field.NotSupported(p.Child("key"), r.Key, []string{metav1.ObjectNameField}))
		}
		if r.Operator != v1.NodeSelectorOpIn && r.Operator != v1.NodeSelectorOpNotIn {
			errs = append(errs, field.NotSupported(p.Child("operator"), r.Operator, selectorOperators[:2]))
		}
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(p.Child("values"), "exactly one value for a field"))
			continue
		}
		for _, e := range validation.IsDNS1123Subdomain(r.Values[0]) {
			errs = append(errs, field.Invalid(p.Child("values").Index(0), r.Values[0], e))
		}
	}
	return errs
}
