package source

import (
	"cmp"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/quantity"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReducePersistentVolume reads of a PersistentVolume what kube-scheduler's volume plugins read.
func ReducePersistentVolume(volume *v1.PersistentVolume) *cluster.PersistentVolume {
	spec := &volume.Spec
	v := &cluster.PersistentVolume{
		Name:            volume.Name,
		Labels:          sortedLabels(volume.Labels),
		Class:           classOf(&volume.ObjectMeta, &spec.StorageClassName),
		Capacity:        quantity.Whole(spec.Capacity[v1.ResourceStorage]),
		AccessModes:     accessModes(spec.AccessModes),
		Mode:            volumeMode(spec.VolumeMode),
		AttributesClass: deref(spec.VolumeAttributesClassName),
		Available:       volume.Status.Phase == v1.VolumeAvailable,
		Deleting:        volume.DeletionTimestamp != nil,
	}
	if v.Class != spec.StorageClassName {
		v.HasFieldClass, v.FieldClass = true, spec.StorageClassName
	}
	if ref := spec.ClaimRef; ref != nil {
		v.HasClaim, v.Claim = true, cluster.ClaimReference{Namespace: ref.Namespace, Name: ref.Name, UID: string(ref.UID)}
	}
	v.Affinity, v.HasAffinity = volumeAffinity(volume)
	if spec.CSI != nil {
		v.Driver, v.Handle = spec.CSI.Driver, spec.CSI.VolumeHandle
		return v
	}
	var translated *v1.PersistentVolume
	if v.Migration, translated = migration(volume); translated != nil {
		v.MigratedAffinity, v.HasMigratedAffinity = volumeAffinity(translated)
	}
	return v
}

// volumeAffinity returns the terms of which a node must meet one, and whether it must.
func volumeAffinity(volume *v1.PersistentVolume) (terms []cluster.NodeSelectorTerm, has bool) {
	affinity := volume.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil {
		return nil, false
	}
	for _, t := range affinity.Required.NodeSelectorTerms {
		terms = append(terms, reduceTerm(t))
	}
	return terms, true
}

// classOf returns the storage class of a volume or a claim, "" for none: the annotation comes before the field.
func classOf(meta *metav1.ObjectMeta, name *string) string {
	if class, annotated := meta.Annotations[v1.BetaStorageClassAnnotation]; annotated {
		return class
	}
	return deref(name)
}

// accessModes returns modes as the set that they are.
func accessModes(modes []v1.PersistentVolumeAccessMode) []string {
	var out []string
	for _, mode := range modes {
		out = append(out, string(mode))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func volumeMode(mode *v1.PersistentVolumeMode) string {
	if mode == nil {
		return string(v1.PersistentVolumeFilesystem)
	}
	return string(*mode)
}

// deref returns the text that is pointed to, "" if there is none.
func deref(text *string) string { return *cmp.Or(text, new(string)) }
