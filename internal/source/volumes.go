package source

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// reduceVolumes fills what a pod's volumes are: claims, and disks. Of others any node can mount any number.
func reduceVolumes(pod *v1.Pod, p *Pod) {
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		switch {
		case volume.PersistentVolumeClaim != nil:
			p.Labels.Claims = append(p.Labels.Claims, cluster.PodClaim{Name: volume.PersistentVolumeClaim.ClaimName})
		case volume.Ephemeral != nil:
			p.Labels.Claims = append(p.Labels.Claims, cluster.PodClaim{
				Name: ephemeral.VolumeClaimName(pod, volume), Ephemeral: true, PodUID: string(pod.UID),
			})
		default:
			if disk, ok := reduceDisk(volume); ok {
				p.Class.Disks = append(p.Class.Disks, disk)
			}
		}
	}
}

// reduceDisk returns what VolumeRestrictions and NodeVolumeLimits read of a volume, false if that is nothing.
func reduceDisk(volume *v1.Volume) (cluster.Disk, bool) {
	disk := cluster.Disk{Migration: inlineMigration(volume)}
	switch {
	case volume.AWSElasticBlockStore != nil:
		disk.Kind, disk.ID = cluster.DiskEBS, volume.AWSElasticBlockStore.VolumeID
	case volume.GCEPersistentDisk != nil:
		disk.Kind, disk.ID, disk.ReadOnly = cluster.DiskGCE, volume.GCEPersistentDisk.PDName, volume.GCEPersistentDisk.ReadOnly
	case volume.ISCSI != nil:
		disk.Kind, disk.ID, disk.ReadOnly = cluster.DiskISCSI, volume.ISCSI.IQN, volume.ISCSI.ReadOnly
	case volume.RBD != nil:
		disk.Kind, disk.ID, disk.ReadOnly = cluster.DiskRBD, volume.RBD.RBDImage, volume.RBD.ReadOnly
		disk.Pool, disk.Monitors = volume.RBD.RBDPool, slices.Compact(slices.Sorted(slices.Values(volume.RBD.CephMonitors)))
	}
	return disk, disk.Kind != "" || disk.Migration.Plugin != ""
}
