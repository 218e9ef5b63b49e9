package oracle

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// keptObjects are objects that Berth's ledger only keeps: budgets, and what volumes are made of.
type keptObjects map[cluster.ObjectKey]metav1.Object

// keys returns the keys of the objects of some kinds, or of all, by kind, namespace and name.
func (k keptObjects) keys(kinds ...cluster.ObjectKind) []cluster.ObjectKey {
	if kinds == nil {
		kinds = cluster.ObjectKinds()
	}
	byText := make(map[string]cluster.ObjectKey)
	for place, kind := range kinds {
		for key := range k {
			if key.Kind == kind {
				byText[fmt.Sprintf("%d/%s/%s", place, key.Namespace, key.Name)] = key
			}
		}
	}
	var out []cluster.ObjectKey
	for _, text := range sortedKeys(byText) {
		out = append(out, byText[text])
	}
	return out
}

// all returns the objects in the order of keys.
func (k keptObjects) all() []metav1.Object {
	var out []metav1.Object
	for _, key := range k.keys() {
		out = append(out, k[key])
	}
	return out
}

// reduceKept reads what Berth's ledger keeps of an object.
func reduceKept(o metav1.Object) cluster.Object {
	for _, kind := range cluster.ObjectKinds() {
		if !kind.OfKubernetes() {
			continue
		}
		if tell := source.Reductions[kind.String()].Reduce(o); tell != nil {
			return tell().Object
		}
	}
	panic(fmt.Sprintf("nothing is kept of a %T", o))
}

// kept returns where kube-scheduler's plugins find the objects of a kind.
func (u *upstream) kept(kind cluster.ObjectKind) cache.Store {
	core, storage := u.informers.Core().V1(), u.informers.Storage().V1()
	return map[cluster.ObjectKind]cache.SharedIndexInformer{
		cluster.BudgetKind:                u.informers.Policy().V1().PodDisruptionBudgets().Informer(),
		cluster.PersistentVolumeKind:      core.PersistentVolumes().Informer(),
		cluster.PersistentVolumeClaimKind: core.PersistentVolumeClaims().Informer(),
		cluster.StorageClassKind:          storage.StorageClasses().Informer(),
		cluster.CSINodeKind:               storage.CSINodes().Informer(),
		cluster.CSIDriverKind:             storage.CSIDrivers().Informer(),
		cluster.CSIStorageCapacityKind:    storage.CSIStorageCapacities().Informer(),
		cluster.VolumeAttachmentKind:      storage.VolumeAttachments().Informer(),
	}[kind].GetStore()
}
