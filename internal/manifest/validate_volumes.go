package manifest

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-scheduler/berth/internal/quantity"
)

var (
	accessModes  = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod}
	volumeModes  = []v1.PersistentVolumeMode{v1.PersistentVolumeFilesystem, v1.PersistentVolumeBlock}
	bindingModes = []storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer}
)

// defaultPersistentVolume makes a volume that does not say how far it is one that may be bound: no controller says it.
func defaultPersistentVolume(volume *v1.PersistentVolume) {
	volume.Status.Phase = cmp.Or(volume.Status.Phase, v1.VolumeAvailable)
	defaultAzureDisk(volume.Spec.AzureDisk)
}

func validatePersistentVolume(volume *v1.PersistentVolume) field.ErrorList {
	errs := validateClusterScoped(&volume.ObjectMeta, "a persistent volume")
	spec, path := &volume.Spec, field.NewPath("spec")
	errs = append(errs, validateStorage(spec.Capacity, path.Child("capacity"))...)
	errs = append(errs, validateModes(spec.AccessModes, spec.VolumeMode, path)...)
	if ref := spec.ClaimRef; ref != nil && (ref.Namespace == "" || ref.Name == "") {
		errs = append(errs, field.Required(path.Child("claimRef"), "namespace and name of the claim"))
	}
	if affinity := spec.NodeAffinity; affinity != nil && affinity.Required != nil {
		p := path.Child("nodeAffinity", "required", "nodeSelectorTerms")
		if len(affinity.Required.NodeSelectorTerms) == 0 {
			errs = append(errs, field.Required(p, "at least one term"))
		}
		for i, term := range affinity.Required.NodeSelectorTerms {
			errs = append(errs, validateTerm(term, p.Index(i))...)
		}
	}
	return errs
}

func validatePersistentVolumeClaim(claim *v1.PersistentVolumeClaim) field.ErrorList {
	errs := validateNamespaced(&claim.ObjectMeta, validation.IsDNS1123Subdomain)
	errs = append(errs, validateOwners(claim.OwnerReferences, field.NewPath("metadata", "ownerReferences"))...)
	spec, path := &claim.Spec, field.NewPath("spec")
	errs = append(errs, validateStorage(spec.Resources.Requests, path.Child("resources", "requests"))...)
	errs = append(errs, validateModes(spec.AccessModes, spec.VolumeMode, path)...)
	return append(errs, validateSelector(spec.Selector, path.Child("selector"))...)
}

// defaultStorageClass makes volumes be bound immediately if the class does not say when, as the API server does.
func defaultStorageClass(class *storagev1.StorageClass) {
	class.VolumeBindingMode = cmp.Or(class.VolumeBindingMode, &bindingModes[0])
}

func validateStorageClass(class *storagev1.StorageClass) field.ErrorList {
	errs := validateClusterScoped(&class.ObjectMeta, "a storage class")
	if class.Provisioner == "" {
		errs = append(errs, field.Required(field.NewPath("provisioner"), ""))
	}
	if mode := *class.VolumeBindingMode; !slices.Contains(bindingModes, mode) {
		errs = append(errs, field.NotSupported(field.NewPath("volumeBindingMode"), mode, bindingModes))
	}
	for i, term := range class.AllowedTopologies {
		for j, e := range term.MatchLabelExpressions {
			p := field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j)
			errs = append(errs, metavalidation.ValidateLabelName(e.Key, p.Child("key"))...)
			if len(e.Values) == 0 {
				errs = append(errs, field.Required(p.Child("values"), "at least one value"))
			}
			for k, value := range e.Values {
				errs = append(errs, validateLabelValue(value, p.Child("values").Index(k))...)
			}
		}
	}
	return errs
}

func validateCSINode(node *storagev1.CSINode) field.ErrorList {
	errs := validateClusterScoped(&node.ObjectMeta, "a CSI node")
	seen := map[string]bool{}
	for i, d := range node.Spec.Drivers {
		p := field.NewPath("spec", "drivers").Index(i)
		switch {
		case d.Name == "":
			errs = append(errs, field.Required(p.Child("name"), ""))
		case seen[d.Name]:
			errs = append(errs, field.Duplicate(p.Child("name"), d.Name))
		}
		seen[d.Name] = true
		if a := d.Allocatable; a != nil && a.Count != nil && *a.Count < 0 {
			errs = append(errs, field.Invalid(p.Child("allocatable", "count"), *a.Count, "must not be negative"))
		}
	}
	return errs
}

func validateCSIDriver(driver *storagev1.CSIDriver) field.ErrorList {
	return validateClusterScoped(&driver.ObjectMeta, "a CSI driver")
}

func validateCSIStorageCapacity(capacity *storagev1.CSIStorageCapacity) field.ErrorList {
	errs := validateNamespaced(&capacity.ObjectMeta, validation.IsDNS1123Subdomain)
	if capacity.StorageClassName == "" {
		errs = append(errs, field.Required(field.NewPath("storageClassName"), ""))
	}
	errs = append(errs, validateSelector(capacity.NodeTopology, field.NewPath("nodeTopology"))...)
	errs = append(errs, validateSize(capacity.Capacity, field.NewPath("capacity"))...)
	return append(errs, validateSize(capacity.MaximumVolumeSize, field.NewPath("maximumVolumeSize"))...)
}

func validateVolumeAttachment(attachment *storagev1.VolumeAttachment) field.ErrorList {
	errs := validateClusterScoped(&attachment.ObjectMeta, "a volume attachment")
	if attachment.Spec.Attacher == "" {
		errs = append(errs, field.Required(field.NewPath("spec", "attacher"), ""))
	}
	if attachment.Spec.NodeName == "" {
		errs = append(errs, field.Required(field.NewPath("spec", "nodeName"), ""))
	}
	return errs
}

// validateClusterScoped is validateMeta for an object in no namespace.
func validateClusterScoped(meta *metav1.ObjectMeta, what string) field.ErrorList {
	errs := validateMeta(meta, validation.IsDNS1123Subdomain)
	if meta.Namespace != "" {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "namespace"), what+" is in no namespace"))
	}
	return errs
}

// validateModes checks how a volume, or one that is claimed, can be used.
func validateModes(access []v1.PersistentVolumeAccessMode, mode *v1.PersistentVolumeMode, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(access) == 0 {
		errs = append(errs, field.Required(path.Child("accessModes"), "at least one"))
	}
	for i, a := range access {
		if !slices.Contains(accessModes, a) {
			errs = append(errs, field.NotSupported(path.Child("accessModes").Index(i), a, accessModes))
		}
	}
	if mode != nil && !slices.Contains(volumeModes, *mode) {
		errs = append(errs, field.NotSupported(path.Child("volumeMode"), *mode, volumeModes))
	}
	return errs
}

// validateStorage checks the only amount that is read of a volume or a claim.
func validateStorage(list v1.ResourceList, path *field.Path) field.ErrorList {
	size, ok := list[v1.ResourceStorage]
	if !ok {
		return field.ErrorList{field.Required(path.Key(string(v1.ResourceStorage)), "")}
	}
	return validateSize(&size, path.Key(string(v1.ResourceStorage)))
}

func validateSize(size *resource.Quantity, path *field.Path) field.ErrorList {
	if size != nil && size.Sign() < 0 {
		return field.ErrorList{field.Invalid(path, quantity.Text(*size), "must not be negative")}
	}
	return nil
}
