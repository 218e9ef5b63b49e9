package manifest

import (
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The kinds of objects.
const (
	KindNode                  = "Node"
	KindPod                   = "Pod"
	KindNamespace             = "Namespace"
	KindService               = "Service"
	KindReplicationController = "ReplicationController"
	KindReplicaSet            = "ReplicaSet"
	KindStatefulSet           = "StatefulSet"
	KindPodDisruptionBudget   = "PodDisruptionBudget"
	KindPersistentVolume      = "PersistentVolume"
	KindPersistentVolumeClaim = "PersistentVolumeClaim"
	KindStorageClass          = "StorageClass"
	KindCSINode               = "CSINode"
	KindCSIDriver             = "CSIDriver"
	KindCSIStorageCapacity    = "CSIStorageCapacity"
	KindVolumeAttachment      = "VolumeAttachment"
	KindPodGroup              = "PodGroup"
)

// kinds are the kinds in the order in which they are listed to people.
var kinds = []kind{
	{
		name: KindNode, apiVersion: "v1", resource: "nodes", zero: func() Object { return Object{Node: &v1.Node{}} },
		complete: func(o Object) field.ErrorList {
			defaultNode(o.Node)
			return validateNode(o.Node)
		},
	}, {
		name: KindPod, apiVersion: "v1", resource: "pods", namespaced: true, zero: func() Object { return Object{Pod: &v1.Pod{}} },
		complete: func(o Object) field.ErrorList {
			defaultPod(o.Pod)
			return validatePod(o.Pod)
		},
	}, {
		name: KindNamespace, apiVersion: "v1", resource: "namespaces", zero: func() Object { return Object{Namespace: &v1.Namespace{}} },
		complete: func(o Object) field.ErrorList { return validateNamespace(o.Namespace) },
	},
	other(KindService, v1.SchemeGroupVersion, "services", validateService, func(from, to *v1.Service) {
		to.TypeMeta, to.Spec.Selector = from.TypeMeta, from.Spec.Selector
	}),
	other(KindReplicationController, v1.SchemeGroupVersion, "replicationcontrollers", func(c *v1.ReplicationController) field.ErrorList {
		defaultReplicationController(c)
		return validateReplicationController(c)
	}, func(from, to *v1.ReplicationController) {
		to.TypeMeta, to.Spec.Selector = from.TypeMeta, from.Spec.Selector
	}),
	other(KindReplicaSet, appsv1.SchemeGroupVersion, "replicasets", func(s *appsv1.ReplicaSet) field.ErrorList {
		return validateController(&s.ObjectMeta, s.Spec.Selector)
	}, func(from, to *appsv1.ReplicaSet) {
		to.TypeMeta, to.Spec.Selector = from.TypeMeta, from.Spec.Selector
	}),
	other(KindStatefulSet, appsv1.SchemeGroupVersion, "statefulsets", func(s *appsv1.StatefulSet) field.ErrorList {
		return validateController(&s.ObjectMeta, s.Spec.Selector)
	}, func(from, to *appsv1.StatefulSet) {
		to.TypeMeta, to.Spec.Selector = from.TypeMeta, from.Spec.Selector
	}),
	other(KindPodDisruptionBudget, policyv1.SchemeGroupVersion, "poddisruptionbudgets", validateBudget, func(from, to *policyv1.PodDisruptionBudget) {
		to.TypeMeta, to.Spec.Selector = from.TypeMeta, from.Spec.Selector
		to.Status.DisruptionsAllowed, to.Status.DisruptedPods = from.Status.DisruptionsAllowed, from.Status.DisruptedPods
	}),
	inNoNamespace(other(KindPersistentVolume, v1.SchemeGroupVersion, "persistentvolumes", func(v *v1.PersistentVolume) field.ErrorList {
		defaultPersistentVolume(v)
		return validatePersistentVolume(v)
	}, func(from, to *v1.PersistentVolume) {
		to.TypeMeta, to.Spec, to.Status.Phase = from.TypeMeta, from.Spec, from.Status.Phase
	})),
	other(KindPersistentVolumeClaim, v1.SchemeGroupVersion, "persistentvolumeclaims", validatePersistentVolumeClaim, func(from, to *v1.PersistentVolumeClaim) {
		to.TypeMeta, to.Spec, to.Status.Phase = from.TypeMeta, from.Spec, from.Status.Phase
	}),
	inNoNamespace(other(KindStorageClass, storagev1.SchemeGroupVersion, "storageclasses", func(c *storagev1.StorageClass) field.ErrorList {
		defaultStorageClass(c)
		return validateStorageClass(c)
	}, func(from, to *storagev1.StorageClass) {
		to.TypeMeta, to.Provisioner = from.TypeMeta, from.Provisioner
		to.VolumeBindingMode, to.AllowedTopologies = from.VolumeBindingMode, from.AllowedTopologies
	})),
	inNoNamespace(other(KindCSINode, storagev1.SchemeGroupVersion, "csinodes", validateCSINode, func(from, to *storagev1.CSINode) {
		to.TypeMeta, to.Spec = from.TypeMeta, from.Spec
	})),
	inNoNamespace(other(KindCSIDriver, storagev1.SchemeGroupVersion, "csidrivers", validateCSIDriver, func(from, to *storagev1.CSIDriver) {
		to.TypeMeta, to.Spec.StorageCapacity = from.TypeMeta, from.Spec.StorageCapacity
		to.Spec.PreventPodSchedulingIfMissing = from.Spec.PreventPodSchedulingIfMissing
	})),
	other(KindCSIStorageCapacity, storagev1.SchemeGroupVersion, "csistoragecapacities", validateCSIStorageCapacity, func(from, to *storagev1.CSIStorageCapacity) {
		to.TypeMeta, to.StorageClassName, to.NodeTopology = from.TypeMeta, from.StorageClassName, from.NodeTopology
		to.Capacity, to.MaximumVolumeSize = from.Capacity, from.MaximumVolumeSize
	}),
	inNoNamespace(other(KindVolumeAttachment, storagev1.SchemeGroupVersion, "volumeattachments", validateVolumeAttachment, func(from, to *storagev1.VolumeAttachment) {
		to.TypeMeta, to.Spec.Attacher, to.Spec.NodeName = from.TypeMeta, from.Spec.Attacher, from.Spec.NodeName
		to.Spec.Source.PersistentVolumeName = from.Spec.Source.PersistentVolumeName
	})),
	other(KindPodGroup, schedulingv1alpha2.SchemeGroupVersion, "podgroups", validatePodGroup, func(from, to *schedulingv1alpha2.PodGroup) {
		to.TypeMeta, to.Spec = from.TypeMeta, from.Spec
	}),
}

// kind is what there is to know of a kind of objects.
type kind struct {
	name, apiVersion, resource string
	namespaced                 bool
	zero                       func() Object
	// complete fills in the defaults of an object and returns what is wrong with it. If it is nil, no manifests of the kind are
	// taken: objects of it are only read from elsewhere.
	complete func(Object) field.ErrorList

	of   reflect.Type          // of Object.Other; nil if that is not what is set
	keep func(from, to Object) // copies what counts, but for the metadata, of Object.Other
}

// other returns a kind whose objects are Object.Other, and in a namespace. Keep copies what counts of one, but for the metadata.
func other[T any, O interface {
	*T
	metav1.Object
}](name string, version schema.GroupVersion, resource string, complete func(O) field.ErrorList, keep func(from, to O)) kind {
	k := kind{
		name: name, apiVersion: version.String(), resource: resource, namespaced: true, of: reflect.TypeFor[O](),
		zero: func() Object { return Object{Other: O(new(T))} },
		keep: func(from, to Object) { keep(from.Other.(O), to.Other.(O)) },
	}
	if complete != nil {
		k.complete = func(o Object) field.ErrorList { return complete(o.Other.(O)) }
	}
	return k
}

// inNoNamespace returns a kind whose objects are in no namespace.
func inNoNamespace(k kind) kind {
	k.namespaced = false
	return k
}

// kindNamed returns the kind of that name, nil if there is none.
func kindNamed(name string) *kind {
	if i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name }); i >= 0 {
		return &kinds[i]
	}
	return nil
}

// Kinds returns the kinds of objects of which there are manifests.
func Kinds() []string {
	var names []string
	for i := range kinds {
		if kinds[i].complete != nil {
			names = append(names, kinds[i].name)
		}
	}
	return names
}

// Namespaced reports whether objects of a kind are in a namespace.
func Namespaced(kind string) bool {
	k := kindNamed(kind)
	return k != nil && k.namespaced
}

// Resource returns the name of the API's resource for a kind, such as "pods". False: there are no manifests of it.
func Resource(kind string) (string, bool) {
	if k := kindNamed(kind); k != nil && k.complete != nil {
		return k.resource, true
	}
	return "", false
}

// OfGroup reports whether objects of a kind are of the API group of an apiVersion, be it of another version.
func OfGroup(kind, apiVersion string) bool {
	k := kindNamed(kind)
	return k != nil && groupOf(k.apiVersion) == groupOf(apiVersion)
}

// groupOf returns the API group of an apiVersion, "" for the core group.
func groupOf(apiVersion string) string {
	group, _, found := strings.Cut(apiVersion, "/")
	if !found {
		return ""
	}
	return group
}

// New returns an empty object of a kind, false if there is no such kind.
func New(kind string) (Object, bool) {
	if k := kindNamed(kind); k != nil {
		return k.zero(), true
	}
	return Object{}, false
}
