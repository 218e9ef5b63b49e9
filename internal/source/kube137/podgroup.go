// Package kube137 reads PodGroups of scheduling.k8s.io/v1beta1, which Kubernetes 1.37 has, as package source reads those of v1alpha2: the same group comes to the same cluster.PodGroup.
//
// Nothing follows them yet. They have been read as the types of 1.37 encode them, and of no API server.
package kube137

import (
	"encoding/json"
	"fmt"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Why a PodGroup is not told, and its pods wait.
const (
	noPolicy = "spec.schedulingPolicy of the PodGroup is neither basic nor gang: Berth knows no other"
	noMode   = "spec.disruptionMode of the PodGroup is neither single nor all: Berth knows no other"
	never    = "spec.preemptionPolicy of the PodGroup is %s: Berth knows that of pods only"
	parented = "the PodGroup is of the CompositePodGroup %q, which Berth does not follow: it would not be placed together with the others there"
)

// DecodePodGroup reads a PodGroup in JSON, as an API server sends it. Fields that 1.37 does not have are passed over. An error is of what is no PodGroup of v1beta1.
func DecodePodGroup(data []byte) (*cluster.PodGroup, error) {
	var group schedulingv1beta1.PodGroup
	if err := json.Unmarshal(data, &group); err != nil {
		return nil, fmt.Errorf("decode PodGroup: %w", err)
	}
	if want := schedulingv1beta1.SchemeGroupVersion.WithKind("PodGroup"); group.GroupVersionKind() != want {
		return nil, fmt.Errorf("decode PodGroup: it is %q of %q, want %q of %q", group.Kind, group.APIVersion, want.Kind, want.GroupVersion())
	}
	return ReducePodGroup(&group), nil
}

// ReducePodGroup reads of a PodGroup what scheduling reads. What cannot be honoured has its pods wait, and says so. What its claims are, its pods say too.
func ReducePodGroup(group *schedulingv1beta1.PodGroup) *cluster.PodGroup {
	g := &cluster.PodGroup{Namespace: group.Namespace, Name: group.Name, UID: string(group.UID)}
	if !group.CreationTimestamp.IsZero() {
		g.Created = group.CreationTimestamp.UnixNano()
	}
	if why := refused(&group.Spec); why != "" {
		g.Untold = why
		return g
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
	g.Whole = group.Spec.DisruptionMode != nil && group.Spec.DisruptionMode.All != nil
	return g
}

// refused returns why a group is not placed, "" if it may be. A policy and a mode of a later release are not there once they are decoded.
func refused(spec *schedulingv1beta1.PodGroupSpec) string {
	switch policy, mode, preempts := spec.SchedulingPolicy, spec.DisruptionMode, spec.PreemptionPolicy; {
	case spec.ParentCompositePodGroupName != nil:
		return fmt.Sprintf(parented, *spec.ParentCompositePodGroupName)
	case policy.Basic == nil && policy.Gang == nil:
		return noPolicy
	case mode != nil && mode.Single == nil && mode.All == nil:
		return noMode
	case preempts != nil && *preempts != schedulingv1beta1.PreemptLowerPriority:
		return fmt.Sprintf(never, *preempts)
	}
	return ""
}
