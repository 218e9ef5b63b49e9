package binder

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Sources tell the same thing again and again: heartbeats, annotations, status. What is the same changes nothing, and
// a list that is empty is the same as one that is absent.

func samePod(a, b *cluster.Pod) bool {
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name && a.Class == b.Class &&
		a.Priority == b.Priority && a.Pin == b.Pin && a.Created == b.Created && slices.Equal(a.Gates, b.Gates) &&
		a.Deleting == b.Deleting && a.NodeName == b.NodeName && a.Attempt == b.Attempt
}

func sameNode(a, b *cluster.Node) bool {
	return a.Name == b.Name && a.Unschedulable == b.Unschedulable && slices.Equal(a.Labels, b.Labels) &&
		slices.Equal(a.Taints, b.Taints) && slices.Equal(a.Allocatable, b.Allocatable) &&
		slices.EqualFunc(a.Images, b.Images, func(x, y cluster.Image) bool {
			return x.Size == y.Size && slices.Equal(x.Names, y.Names)
		})
}
