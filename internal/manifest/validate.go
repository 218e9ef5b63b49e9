package manifest

import (
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-scheduler/berth/internal/quantity"
)

// The largest quantities that can be counted: cpu in thousandths, everything else in whole units. A quantity that is larger
// than an int64 is read as the largest int64, which is therefore too large as well.
var (
	maxQuantity = *resource.NewQuantity(math.MaxInt64-1, resource.DecimalSI)
	maxCPU      = *resource.NewMilliQuantity(math.MaxInt64-1, resource.DecimalSI)
)

func validateNamespace(namespace *v1.Namespace) field.ErrorList {
	return validateMeta(&namespace.ObjectMeta, validation.IsDNS1123Label)
}

func validateNode(node *v1.Node) field.ErrorList {
	errs := validateMeta(&node.ObjectMeta, validation.IsDNS1123Subdomain)
	if node.Namespace != "" {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "namespace"), "a node is in no namespace"))
	}
	taints := field.NewPath("spec", "taints")
	type identity struct {
		key    string
		effect v1.TaintEffect
	}
	seen := sets.New[identity]()
	for i, t := range node.Spec.Taints {
		path := taints.Index(i)
		errs = append(errs, metavalidation.ValidateLabelName(t.Key, path.Child("key"))...)
		errs = append(errs, validateLabelValue(t.Value, path.Child("value"))...)
		errs = append(errs, validateEffect(t.Effect, path.Child("effect"), false)...)
		id := identity{t.Key, t.Effect}
		if seen.Has(id) {
			errs = append(errs, field.Duplicate(path, t.Key+":"+string(t.Effect)))
		}
		seen.Insert(id)
	}
	status := field.NewPath("status")
	if len(node.Status.Allocatable) == 0 {
		errs = append(errs, field.Required(status.Child("allocatable"), "what pods can use of the node, such as cpu and memory; status.capacity would do"))
	}
	errs = append(errs, validateQuantities(node.Status.Capacity, status.Child("capacity"))...)
	errs = append(errs, validateQuantities(node.Status.Allocatable, status.Child("allocatable"))...)
	for i, image := range node.Status.Images {
		if image.SizeBytes < 0 {
			errs = append(errs, field.Invalid(status.Child("images").Index(i).Child("sizeBytes"), image.SizeBytes, "must not be negative"))
		}
	}
	return errs
}

// validateMeta checks the name, which nameErrors judges, the labels and the annotations.
func validateMeta(meta *metav1.ObjectMeta, nameErrors func(string) []string) field.ErrorList {
	path := field.NewPath("metadata")
	var errs field.ErrorList
	if meta.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "generateName is not supported"))
	} else {
		for _, e := range nameErrors(meta.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), meta.Name, e))
		}
	}
	errs = append(errs, validateLabels(meta.Labels, path.Child("labels"))...)
	errs = append(errs, apivalidation.ValidateAnnotations(meta.Annotations, path.Child("annotations"))...)
	return errs
}

// validateNamespaced is validateMeta for an object in a namespace.
func validateNamespaced(meta *metav1.ObjectMeta, nameErrors func(string) []string) field.ErrorList {
	errs := validateMeta(meta, nameErrors)
	for _, e := range validation.IsDNS1123Label(meta.Namespace) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "namespace"), meta.Namespace, e))
	}
	return errs
}

// validateOwners checks references as far as they are read: who controls the object.
func validateOwners(owners []metav1.OwnerReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	controlled := false
	for i, owner := range owners {
		p := path.Index(i)
		if owner.APIVersion == "" {
			errs = append(errs, field.Required(p.Child("apiVersion"), ""))
		}
		if owner.Kind == "" {
			errs = append(errs, field.Required(p.Child("kind"), ""))
		}
		if owner.Name == "" {
			errs = append(errs, field.Required(p.Child("name"), ""))
		}
		if owner.Controller != nil && *owner.Controller {
			if controlled {
				errs = append(errs, field.Invalid(p.Child("controller"), true, "only one owner can be the controller"))
			}
			controlled = true
		}
	}
	return errs
}

// validateLabels checks keys and values, in order.
func validateLabels(labels map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range sets.List(sets.KeySet(labels)) {
		p := path.Key(key)
		for _, e := range validation.IsQualifiedName(key) {
			errs = append(errs, field.Invalid(p, key, e))
		}
		errs = append(errs, validateLabelValue(labels[key], p)...)
	}
	return errs
}

func validateLabelValue(value string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, e := range validation.IsValidLabelValue(value) {
		errs = append(errs, field.Invalid(path, value, e))
	}
	return errs
}

// effects are those of taints, and of tolerations, for which "" means all.
var effects = []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute}

func validateEffect(effect v1.TaintEffect, path *field.Path, allowEmpty bool) field.ErrorList {
	switch {
	case effect == "" && allowEmpty || slices.Contains(effects, effect):
		return nil
	case effect == "":
		return field.ErrorList{field.Required(path, "")}
	}
	return field.ErrorList{field.NotSupported(path, effect, effects)}
}

// validateQuantities checks names and amounts of resources.
func validateQuantities(list v1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range sets.List(sets.KeySet(list)) {
		p := path.Key(string(name))
		for _, e := range validation.IsQualifiedName(string(name)) {
			errs = append(errs, field.Invalid(p, string(name), e))
		}
		q := list[name]
		limit := maxQuantity
		if name == v1.ResourceCPU {
			limit = maxCPU
		}
		switch {
		case q.Sign() < 0:
			errs = append(errs, field.Invalid(p, quantity.Text(q), "must not be negative"))
		case quantity.Compare(q, limit) > 0:
			errs = append(errs, field.Invalid(p, quantity.Text(q), "too large: at most "+quantity.Text(limit)+" can be counted"))
		case isCounted(name) && !quantity.IsWhole(q):
			errs = append(errs, field.Invalid(p, quantity.Text(q), "must be a whole number"))
		}
	}
	return errs
}

// isCounted reports whether there are only whole units of a resource.
func isCounted(name v1.ResourceName) bool {
	return name == v1.ResourcePods || isExtended(name)
}

// isExtended reports whether a resource is none of Kubernetes' own.
func isExtended(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix)
}

// validateContainerResources checks the requests and limits of a container, or of a pod as a whole.
func validateContainerResources(requests, limits v1.ResourceList, path *field.Path) field.ErrorList {
	errs := validateQuantities(limits, path.Child("limits"))
	errs = append(errs, validateQuantities(requests, path.Child("requests"))...)
	for _, list := range []struct {
		name  string
		items v1.ResourceList
	}{{"limits", limits}, {"requests", requests}} {
		for _, name := range sets.List(sets.KeySet(list.items)) {
			if !strings.Contains(string(name), "/") && !isHugePage(name) && name != v1.ResourceCPU &&
				name != v1.ResourceMemory && name != v1.ResourceEphemeralStorage {
				errs = append(errs, field.Invalid(path.Child(list.name).Key(string(name)), string(name),
					"must be cpu, memory, ephemeral-storage, hugepages-<size> or a name with a domain, such as example.com/gpu"))
			}
		}
	}
	for _, name := range sets.List(sets.KeySet(requests)) {
		request := requests[name]
		limit, ok := limits[name]
		p := path.Child("requests").Key(string(name))
		switch {
		case !ok:
		case quantity.Compare(request, limit) > 0:
			errs = append(errs, field.Invalid(p, quantity.Text(request), "must not be more than the limit of "+quantity.Text(limit)))
		case (isExtended(name) || isHugePage(name)) && quantity.Compare(request, limit) != 0:
			errs = append(errs, field.Invalid(p, quantity.Text(request), "must be equal to the limit of "+quantity.Text(limit)+": the resource cannot be overcommitted"))
		}
	}
	return errs
}
