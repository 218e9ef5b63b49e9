package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// maxShapeScore is the largest score of a shape's point.
const maxShapeScore = 10

// validateArgs returns what kube-scheduler finds wrong with a plugin's arguments, which have their defaults.
func validateArgs(path *field.Path, args runtime.Object, options Options) error {
	var errs field.ErrorList
	switch a := args.(type) {
	case *configv1.DefaultPreemptionArgs:
		errs = validatePreemption(path, *a.MinCandidateNodesPercentage, *a.MinCandidateNodesAbsolute)
	case *configv1.DynamicResourcesArgs:
		if a.FilterTimeout.Duration < 0 {
			errs = append(errs, field.Invalid(path.Child("filterTimeout"), a.FilterTimeout, "must be zero or positive"))
		}
		if a.BindingTimeout.Duration < time.Second {
			errs = append(errs, field.Invalid(path.Child("bindingTimeout"), a.BindingTimeout, "must be at least 1 second"))
		}
	case *configv1.InterPodAffinityArgs:
		if w := *a.HardPodAffinityWeight; w < 0 || w > 100 {
			errs = append(errs, field.Invalid(path.Child("hardPodAffinityWeight"), w, "not in valid range [0, 100]"))
		}
	case *configv1.NodeAffinityArgs:
		return validateAddedAffinity(path.Child("addedAffinity"), a.AddedAffinity)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		errs = validateBalanced(path.Child("resources"), a.Resources)
	case *configv1.NodeResourcesFitArgs:
		errs = validateFit(path, a)
	case *configv1.PodTopologySpreadArgs:
		errs = validateSpread(path, a)
	case *configv1.VolumeBindingArgs:
		if *a.BindTimeoutSeconds < 0 {
			errs = append(errs, field.Invalid(path.Child("bindTimeoutSeconds"), *a.BindTimeoutSeconds, "invalid BindTimeoutSeconds, should not be a negative value"))
		}
		if options.StorageCapacityScoring {
			errs = append(errs, validateShape(path.Child("shape"), a.Shape)...)
		} else if a.Shape != nil {
			errs = append(errs, field.Invalid(path.Child("shape"), a.Shape, "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring"))
		}
	}
	if aggregate := errs.ToAggregate(); aggregate != nil {
		return aggregate
	}
	return nil
}

func validatePreemption(path *field.Path, percentage, absolute int32) (errs field.ErrorList) {
	percentagePath, absolutePath := path.Child("minCandidateNodesPercentage"), path.Child("minCandidateNodesAbsolute")
	if percentage < 0 || percentage > 100 {
		errs = append(errs, field.Invalid(percentagePath, percentage, "not in valid range [0, 100]"))
	}
	if absolute < 0 {
		errs = append(errs, field.Invalid(absolutePath, absolute, "not in valid range [0, inf)"))
	}
	if percentage == 0 && absolute == 0 {
		errs = append(errs,
			field.Invalid(percentagePath, percentage, "cannot be zero at the same time as minCandidateNodesAbsolute"),
			field.Invalid(absolutePath, absolute, "cannot be zero at the same time as minCandidateNodesPercentage"))
	}
	return errs
}

func validateAddedAffinity(path *field.Path, affinity *corev1.NodeAffinity) error {
	if affinity == nil {
		return nil
	}
	var errs []error
	if required := affinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		_, err := nodeaffinity.NewNodeSelector(required, field.WithPath(path.Child("requiredDuringSchedulingIgnoredDuringExecution")))
		errs = append(errs, err)
	}
	if preferred := affinity.PreferredDuringSchedulingIgnoredDuringExecution; len(preferred) > 0 {
		_, err := nodeaffinity.NewPreferredSchedulingTerms(preferred, field.WithPath(path.Child("preferredDuringSchedulingIgnoredDuringExecution")))
		errs = append(errs, err)
	}
	if errors.Join(errs...) == nil {
		return nil
	}
	return utilerrors.Flatten(utilerrors.NewAggregate(errs))
}

func validateBalanced(path *field.Path, resources []configv1.ResourceSpec) (errs field.ErrorList) {
	seen := make(map[string]bool)
	for i, r := range resources {
		if seen[r.Name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), r.Name))
		}
		seen[r.Name] = true
		if r.Weight != 1 {
			errs = append(errs, field.Invalid(path.Index(i).Child("weight"), r.Weight, "must be 1"))
		}
	}
	return errs
}

func validateFit(path *field.Path, a *configv1.NodeResourcesFitArgs) (errs field.ErrorList) {
	for i, name := range a.IgnoredResources {
		errs = append(errs, metav1validation.ValidateLabelName(name, path.Child("ignoredResources").Index(i))...)
	}
	for i, group := range a.IgnoredResourceGroups {
		at := path.Child("ignoredResourceGroups").Index(i)
		if strings.Contains(group, "/") {
			errs = append(errs, field.Invalid(at, group, "resource group name can't contain '/'"))
		}
		errs = append(errs, metav1validation.ValidateLabelName(group, at)...)
	}
	s, path := a.ScoringStrategy, path.Child("scoringStrategy")
	switch s.Type {
	case configv1.LeastAllocated, configv1.MostAllocated, configv1.RequestedToCapacityRatio:
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), s.Type,
			[]configv1.ScoringStrategyType{configv1.LeastAllocated, configv1.MostAllocated, configv1.RequestedToCapacityRatio}))
	}
	for i, r := range s.Resources {
		if r.Weight <= 0 || r.Weight > 100 {
			errs = append(errs, field.Invalid(path.Child("resources").Index(i).Child("weight"), r.Weight,
				fmt.Sprintf("resource weight of %v not in valid range (0, 100]", r.Name)))
		}
	}
	ratio := path.Child("requestedToCapacityRatio")
	switch {
	case s.Type == configv1.RequestedToCapacityRatio && s.RequestedToCapacityRatio == nil:
		errs = append(errs, field.Required(ratio, "must be specified when type is RequestedToCapacityRatio"))
	case s.Type == configv1.RequestedToCapacityRatio:
		errs = append(errs, validateShape(ratio.Child("shape"), s.RequestedToCapacityRatio.Shape)...)
	case s.RequestedToCapacityRatio != nil:
		errs = append(errs, field.Forbidden(ratio, "must be nil when type is not RequestedToCapacityRatio"))
	}
	return errs
}

func validateShape(path *field.Path, shape []configv1.UtilizationShapePoint) (errs field.ErrorList) {
	if len(shape) == 0 {
		return field.ErrorList{field.Required(path, "at least one point must be specified")}
	}
	for i := 1; i < len(shape); i++ {
		if shape[i-1].Utilization >= shape[i].Utilization {
			errs = append(errs, field.Invalid(path.Index(i).Child("utilization"), shape[i].Utilization, "values must be sorted in increasing order"))
			break
		}
	}
	for i, p := range shape {
		if p.Utilization < 0 || p.Utilization > 100 {
			errs = append(errs, field.Invalid(path.Index(i).Child("utilization"), p.Utilization, "not in valid range [0, 100]"))
		}
		if p.Score < 0 || p.Score > maxShapeScore {
			errs = append(errs, field.Invalid(path.Index(i).Child("score"), p.Score, fmt.Sprintf("not in valid range [0, %d]", maxShapeScore)))
		}
	}
	return errs
}

func validateSpread(path *field.Path, a *configv1.PodTopologySpreadArgs) (errs field.ErrorList) {
	switch typePath := path.Child("defaultingType"); {
	case a.DefaultingType != configv1.SystemDefaulting && a.DefaultingType != configv1.ListDefaulting:
		errs = append(errs, field.NotSupported(typePath, a.DefaultingType,
			[]configv1.PodTopologySpreadConstraintsDefaulting{configv1.SystemDefaulting, configv1.ListDefaulting}))
	case a.DefaultingType == configv1.SystemDefaulting && len(a.DefaultConstraints) > 0:
		errs = append(errs, field.Invalid(typePath, a.DefaultingType, "when .defaultConstraints are not empty"))
	}
	type identity struct {
		key  string
		when corev1.UnsatisfiableConstraintAction
	}
	seen := make(map[identity]bool)
	for i, c := range a.DefaultConstraints {
		at := path.Child("defaultConstraints").Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "not in valid range (0, inf)"))
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
		} else {
			errs = append(errs, metav1validation.ValidateLabelName(c.TopologyKey, at.Child("topologyKey"))...)
		}
		switch c.WhenUnsatisfiable {
		case corev1.DoNotSchedule, corev1.ScheduleAnyway:
		case "":
			errs = append(errs, field.Required(at.Child("whenUnsatisfiable"), "can not be empty"))
		default:
			errs = append(errs, field.NotSupported(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable,
				[]corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}))
		}
		if c.LabelSelector != nil {
			errs = append(errs, field.Forbidden(at.Child("labelSelector"), "constraint must not define a selector, as they deduced for each pod"))
		}
		id := identity{c.TopologyKey, c.WhenUnsatisfiable}
		if seen[id] {
			errs = append(errs, field.Duplicate(at, fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)))
		}
		seen[id] = true
	}
	return errs
}
