package ingest

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Sources tell the same thing again and again: heartbeats, annotations, status. What is the same changes nothing, and
// a list that is empty is the same as one that is absent.

func samePod(a, b *cluster.Pod) bool {
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name && a.Class == b.Class &&
		a.Priority == b.Priority && a.RequiredNode == b.RequiredNode && a.Created == b.Created && slices.Equal(a.Gates, b.Gates) &&
		a.Deleting == b.Deleting && a.NodeName == b.NodeName && a.Attempt == b.Attempt && a.Labels == b.Labels &&
		a.Nominated == b.Nominated && a.Started == b.Started && a.NeverPreempts == b.NeverPreempts && a.Preempted == b.Preempted && a.Group == b.Group && a.Ends == b.Ends
}

func sameNode(a, b *cluster.Node) bool {
	return a.Name == b.Name && a.Unschedulable == b.Unschedulable && a.Unsupported == b.Unsupported && slices.Equal(a.Labels, b.Labels) &&
		slices.Equal(a.Taints, b.Taints) && slices.Equal(a.Allocatable, b.Allocatable) && slices.Equal(a.Features, b.Features) &&
		slices.EqualFunc(a.Images, b.Images, func(x, y cluster.Image) bool {
			return x.Size == y.Size && slices.Equal(x.Names, y.Names)
		})
}

func sameSelector(a, b *cluster.LabelSelector) bool {
	return a.Nothing == b.Nothing && slices.EqualFunc(a.Requirements, b.Requirements, func(x, y cluster.Requirement) bool {
		return x.Key == y.Key && x.Operator == y.Operator && slices.Equal(x.Values, y.Values)
	})
}
