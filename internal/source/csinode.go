package source

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// ReduceCSINode reads of a CSINode what VolumeBinding and NodeVolumeLimits read.
func ReduceCSINode(node *storagev1.CSINode) *cluster.CSINode {
	n := &cluster.CSINode{Name: node.Name}
	for _, d := range node.Spec.Drivers {
		driver := cluster.NodeDriver{Name: d.Name}
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			driver.Limited, driver.Limit = true, *d.Allocatable.Count
		}
		n.Drivers = append(n.Drivers, driver)
	}
	slices.SortStableFunc(n.Drivers, func(a, b cluster.NodeDriver) int { return cmp.Compare(a.Name, b.Name) })
	if migrated := node.Annotations[v1.MigratedPluginsAnnotationKey]; migrated != "" {
		n.Migrated = strings.Split(migrated, ",")
		slices.Sort(n.Migrated)
		n.Migrated = slices.Compact(n.Migrated)
	}
	return n
}

// ReduceCSIDriver reads of a CSIDriver what VolumeBinding and NodeVolumeLimits read.
func ReduceCSIDriver(driver *storagev1.CSIDriver) *cluster.CSIDriver {
	is := func(flag *bool) bool { return flag != nil && *flag }
	return &cluster.CSIDriver{
		Name:                          driver.Name,
		StorageCapacity:               is(driver.Spec.StorageCapacity),
		PreventPodSchedulingIfMissing: is(driver.Spec.PreventPodSchedulingIfMissing),
	}
}
