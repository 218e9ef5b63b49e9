package source

import (
	"github.com/berth-scheduler/berth/internal/cluster"
	storagev1 "k8s.io/api/storage/v1"
)

// ReduceVolumeAttachment reads of a VolumeAttachment what NodeVolumeLimits reads.
func ReduceVolumeAttachment(attachment *storagev1.VolumeAttachment) *cluster.VolumeAttachment {
	spec := &attachment.Spec
	return &cluster.VolumeAttachment{
		Name: attachment.Name, Attacher: spec.Attacher, Node: spec.NodeName, Volume: deref(spec.Source.PersistentVolumeName),
	}
}
