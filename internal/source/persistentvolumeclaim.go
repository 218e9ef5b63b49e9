package source

import (
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/quantity"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of claims.
const (
	bindCompleted = "pv.kubernetes.io/bind-completed"
	selectedNode  = "volume.kubernetes.io/selected-node"
)

// ReducePersistentVolumeClaim reads of a PersistentVolumeClaim what kube-scheduler's volume plugins read.
func ReducePersistentVolumeClaim(claim *v1.PersistentVolumeClaim) *cluster.PersistentVolumeClaim {
	spec := &claim.Spec
	c := &cluster.PersistentVolumeClaim{
		Namespace:       claim.Namespace,
		Name:            claim.Name,
		UID:             string(claim.UID),
		Class:           classOf(&claim.ObjectMeta, spec.StorageClassName),
		AccessModes:     accessModes(spec.AccessModes),
		Mode:            volumeMode(spec.VolumeMode),
		AttributesClass: deref(spec.VolumeAttributesClassName),
		Volume:          spec.VolumeName,
		Bound:           metav1.HasAnnotation(claim.ObjectMeta, bindCompleted),
		Lost:            claim.Status.Phase == v1.ClaimLost,
		Deleting:        claim.DeletionTimestamp != nil,
	}
	if request, ok := spec.Resources.Requests[v1.ResourceStorage]; ok {
		c.HasRequest, c.Request = true, quantity.Whole(request)
	}
	if spec.Selector != nil {
		var err error
		if c.Selector, err = reduceLabelSelector(spec.Selector); err != nil {
			c.Selector, c.SelectorError = cluster.LabelSelector{Nothing: true}, err.Error()
		}
	}
	c.SelectedNode, c.HasSelectedNode = claim.Annotations[selectedNode]
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil {
		c.Owner = string(owner.UID)
	}
	return c
}
