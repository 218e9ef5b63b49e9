package source

import (
	"cmp"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/quantity"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// ReduceStorageClass reads of a StorageClass what kube-scheduler's volume plugins read.
func ReduceStorageClass(class *storagev1.StorageClass) *cluster.StorageClass {
	c := &cluster.StorageClass{Name: class.Name, Provisioner: class.Provisioner}
	if class.VolumeBindingMode != nil {
		c.Mode = string(*class.VolumeBindingMode)
	}
	for _, t := range class.AllowedTopologies {
		var term cluster.NodeSelectorTerm
		for _, e := range t.MatchLabelExpressions {
			term.Expressions = append(term.Expressions, cluster.Requirement{
				Key: e.Key, Operator: string(v1.NodeSelectorOpIn), Values: slices.Clone(e.Values),
			})
		}
		c.Topologies = append(c.Topologies, term)
	}
	return c
}

// ReduceCSIStorageCapacity reads of a CSIStorageCapacity what VolumeBinding reads. One whose topology is missing or cannot be parsed is
// about no node.
func ReduceCSIStorageCapacity(capacity *storagev1.CSIStorageCapacity) *cluster.CSIStorageCapacity {
	topology, err := reduceLabelSelector(capacity.NodeTopology)
	if err != nil {
		topology = cluster.LabelSelector{Nothing: true}
	}
	c := &cluster.CSIStorageCapacity{Namespace: capacity.Namespace, Name: capacity.Name, Class: capacity.StorageClassName, Topology: topology}
	if limit := cmp.Or(capacity.MaximumVolumeSize, capacity.Capacity); limit != nil {
		c.HasLimit, c.Limit = true, quantity.Whole(*limit)
	}
	if capacity.Capacity != nil {
		c.Capacity = quantity.Whole(*capacity.Capacity)
	}
	return c
}
