package source

import (
	"github.com/berth-scheduler/berth/internal/cluster"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
)

// ReducePodGroup reads of a PodGroup what scheduling reads.
func ReducePodGroup(group *schedulingv1alpha2.PodGroup) *cluster.PodGroup {
	g := &cluster.PodGroup{Namespace: group.Namespace, Name: group.Name, UID: string(group.UID)}
	if !group.CreationTimestamp.IsZero() {
		g.Created = group.CreationTimestamp.UnixNano()
	}
	if gang := group.Spec.SchedulingPolicy.Gang; gang != nil {
		g.Gang, g.MinCount = true, gang.MinCount
	}
	if c := group.Spec.SchedulingConstraints; c != nil {
		for _, t := range c.Topology {
			g.Topology = append(g.Topology, t.Key)
		}
	}
	if p := group.Spec.Priority; p != nil {
		g.HasPriority, g.Priority = true, *p
	}
	g.Whole = group.Spec.DisruptionMode != nil && *group.Spec.DisruptionMode == schedulingv1alpha2.DisruptionModePodGroup
	return g
}
