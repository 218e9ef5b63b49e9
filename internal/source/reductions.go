package source

import "github.com/berth-scheduler/berth/internal/cluster"

// Reductions are how objects are told, by what Kubernetes calls their kind. Nodes, namespaces and pods are not among them: each
// is told in a way of its own.
var Reductions = map[string]Reduction{
	cluster.KindService:               selectorReduction(cluster.KindService, ReduceService),
	cluster.KindReplicationController: selectorReduction(cluster.KindReplicationController, ReduceReplicationController),
	cluster.KindReplicaSet:            selectorReduction(cluster.KindReplicaSet, ReduceReplicaSet),
	cluster.KindStatefulSet:           selectorReduction(cluster.KindStatefulSet, ReduceStatefulSet),
	cluster.BudgetKind.String():       ObjectReduction(cluster.BudgetKind, ReduceBudget),

	cluster.PersistentVolumeKind.String():      ObjectReduction(cluster.PersistentVolumeKind, ReducePersistentVolume),
	cluster.PersistentVolumeClaimKind.String(): ObjectReduction(cluster.PersistentVolumeClaimKind, ReducePersistentVolumeClaim),
	cluster.StorageClassKind.String():          ObjectReduction(cluster.StorageClassKind, ReduceStorageClass),
	cluster.CSINodeKind.String():               ObjectReduction(cluster.CSINodeKind, ReduceCSINode),
	cluster.CSIDriverKind.String():             ObjectReduction(cluster.CSIDriverKind, ReduceCSIDriver),
	cluster.CSIStorageCapacityKind.String():    ObjectReduction(cluster.CSIStorageCapacityKind, ReduceCSIStorageCapacity),
	cluster.VolumeAttachmentKind.String():      ObjectReduction(cluster.VolumeAttachmentKind, ReduceVolumeAttachment),

	cluster.PodGroupKind.String(): ObjectReduction(cluster.PodGroupKind, ReducePodGroup),
}

// Reduction is how the objects of a kind are told.
type Reduction struct {
	// Reduce reads an object of the API, and returns what tells it. Nil: nothing is to be told of it, or it is of another type.
	Reduce func(object any) (tell func() Event)
	// Gone returns what tells the end of an object.
	Gone func(namespace, name string) Event
}

// ObjectReduction returns the Reduction of one of cluster's kinds of objects.
func ObjectReduction[O any, R cluster.Object](kind cluster.ObjectKind, reduce func(O) R) Reduction {
	return Reduction{
		Reduce: func(object any) func() Event {
			o, ok := object.(O)
			if !ok {
				return nil
			}
			reduced := reduce(o)
			return func() Event { return Event{Kind: ObjectSet, Object: reduced} }
		},
		Gone: func(namespace, name string) Event {
			return Event{Kind: ObjectGone, Key: cluster.ObjectKey{Kind: kind, Namespace: namespace, Name: name}}
		},
	}
}

// selectorReduction returns the Reduction of services, or of controllers of a kind. reduce returns false for those that are not to
// be told.
func selectorReduction[O any](kind string, reduce func(O) (Selector, bool)) Reduction {
	return Reduction{
		Reduce: func(object any) func() Event {
			o, ok := object.(O)
			if !ok {
				return nil
			}
			selector, ok := reduce(o)
			if !ok {
				return nil
			}
			return func() Event { return Event{Kind: SelectorSet, Selector: selector} }
		},
		Gone: func(namespace, name string) Event {
			return Event{Kind: SelectorGone, Selector: Selector{Kind: kind, Namespace: namespace, Name: name}}
		},
	}
}
