package pending

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// The events by which pods come to a place, as kube-scheduler names them.
const (
	podAdd = "UnschedulablePodAdd"

	attemptFailure       = "ScheduleAttemptFailure"
	backoffComplete      = "BackoffComplete"
	popFromBackoff       = "PopFromBackoffQ"
	forceActivate        = "ForceActivate"
	pluginEvent          = "PluginEvent" // of which only the plugin knows: kube-scheduler has a name for each, such as foos.v1.example.comAdd
	unschedulableTimeout = "UnschedulableTimeout"
)

// eventOf returns what kube-scheduler calls a delta; of several names it has for one, the first. It has none for what
// happens to namespaces, services, controllers and PodDisruptionBudgets, which bring no pod back there.
func eventOf(st *cluster.State, d cluster.Delta) string {
	switch d := d.(type) {
	case cluster.PodSet:
		return podEvent(st, st.Pod(d.ID))
	case cluster.PodAssumed, cluster.PodBound:
		return assignedPod.add
	case cluster.PodForgotten, cluster.PodRemoved, cluster.PodNominated, cluster.PreemptionStarted, cluster.PreemptionEnded:
		return "AssignedPodDelete"
	case cluster.NodeSet:
		return nodeEvent(st, &d.Node)
	case cluster.PodActivated:
		if d.AfterBackoff || d.ID == cluster.NoPod {
			return pluginEvent
		}
		return forceActivate
	case cluster.NodeRemoved:
		return "NodeDelete"
	case cluster.NodeTouched:
		return "NodeUpdateNodeAnnotation" // or NodeUpdateNodeCondition
	case cluster.NamespaceSet, cluster.NamespaceRemoved:
		return "NamespaceUpdate"
	case cluster.ObjectSet:
		if st.Before().Object == nil {
			return objectEvent(d.Object.Key().Kind, "Add")
		}
		return objectEvent(d.Object.Key().Kind, "Update")
	case cluster.ObjectRemoved:
		return objectEvent(d.Kind, "Delete")
	}
	return "SelectorUpdate"
}

// happens reports whether a delta is an event of kube-scheduler's by which it tries pods again of which it is not known what would help: it is about a pod that has, or
// had, a node, or was nominated to one, about a node, or about what volumes are made of.
func happens(st *cluster.State, d cluster.Delta) bool {
	switch d := d.(type) {
	case cluster.PodSet:
		row := st.Pod(d.ID)
		return row != nil && row.Placed()
	case cluster.PodNominated:
		return d.Node == ""
	case cluster.PodRemoved:
		was := &st.Before().Pod
		return was.Placed() || was.Nominated != ""
	case cluster.PodBound, cluster.PodForgotten, cluster.NodeSet, cluster.NodeRemoved, cluster.NodeTouched:
		return true
	case cluster.ObjectSet:
		return d.Object.Key().Kind.OfVolumes()
	case cluster.ObjectRemoved:
		return d.Kind.OfVolumes()
	}
	return false
}

// objectEvent names what happens to an object: those that volumes are made of are kube-scheduler's, by its names.
func objectEvent(kind cluster.ObjectKind, what string) string {
	if kind >= cluster.StorageClassKind && kind <= cluster.VolumeAttachmentKind {
		return "storage.k8s.io/" + kind.String() + what
	}
	return kind.String() + what
}

// podEvents are the events of pods that are on a node, or of those that are not.
type podEvents struct{ add, update, label, scaleDown, gates, toleration string }

var assignedPod = podEvents{
	add:        "AssignedPodAdd",
	update:     "AssignedPodUpdate",
	label:      "AssignedPodUpdatePodLabel",
	scaleDown:  "AssignedPodUpdatePodScaleDown",
	gates:      "AssignedPodUpdatePodSchedulingGatesEliminated",
	toleration: "AssignedPodUpdatePodToleration",
}

var unschedulablePod = podEvents{
	add:        podAdd,
	update:     "UnschedulablePodUpdate",
	label:      "UnschedulablePodUpdatePodLabel",
	scaleDown:  "UnschedulablePodUpdatePodScaleDown",
	gates:      "UnschedulablePodUpdatePodSchedulingGatesEliminated",
	toleration: "UnschedulablePodUpdatePodToleration",
}

func podEvent(st *cluster.State, row *cluster.PodRow) string {
	b, events := st.Before(), &unschedulablePod
	if row.Placed() {
		events = &assignedPod
	}
	class := st.Class(row.Class)
	switch {
	case b.Class == nil || !b.Pod.Placed() && row.Placed():
		return events.add
	case b.Pod.Labels != row.Labels:
		return events.label
	case engine.LessRequested(class.Spec.Requests, b.Class.Spec.Requests):
		return events.scaleDown
	case len(b.Pod.Gates) > 0 && len(row.Gates) == 0:
		return events.gates
	case len(b.Class.Spec.Tolerations) != len(class.Spec.Tolerations):
		return events.toleration
	}
	return events.update
}

func nodeEvent(st *cluster.State, is *cluster.Node) string {
	was := &st.Before().Node
	switch {
	case was.Name == "":
		return "NodeAdd"
	case was.Unschedulable && !is.Unschedulable:
		return "NodeUpdateNodeTaint"
	case !slices.Equal(was.Allocatable, is.Allocatable):
		return "NodeUpdateNodeAllocatable"
	case !slices.Equal(was.Labels, is.Labels):
		return "NodeUpdateNodeLabel"
	case !slices.Equal(was.Taints, is.Taints):
		return "NodeUpdateNodeTaint"
	case !slices.Equal(was.Features, is.Features):
		return "NodeUpdateNodeDeclaredFeature"
	}
	return "NodeUpdate"
}
