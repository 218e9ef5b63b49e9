package wire

import (
	"errors"
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
)

var errNoChange = errors.New("no change in it that this version of Berth knows")

// check says what is out of bounds in a delta. Both ends ask it, so that nothing is sent that would not be taken.
func check(m *logv1.Delta) error {
	switch m := m.GetChange().(type) {
	case *logv1.Delta_Settings:
		return least("settings.shards", m.Settings.GetShards(), 1)
	case *logv1.Delta_ClassDefined:
		return checkClass(m.ClassDefined)
	case *logv1.Delta_LabelsDefined:
		return checkLabels(m.LabelsDefined)
	case *logv1.Delta_SelectorSet:
		return kind("selector_set.kind", m.SelectorSet.GetKind())
	case *logv1.Delta_SelectorRemoved:
		return kind("selector_removed.kind", m.SelectorRemoved.GetKind())
	case *logv1.Delta_NodeSet:
		return index("node_set.index", m.NodeSet.GetIndex())
	case *logv1.Delta_NodeRemoved:
		return index("node_removed.index", m.NodeRemoved.GetIndex())
	case *logv1.Delta_NodeTouched:
		return index("node_touched.index", m.NodeTouched.GetIndex())
	case *logv1.Delta_NamespaceSet, *logv1.Delta_NamespaceRemoved, *logv1.Delta_ImageSized, *logv1.Delta_BudgetSet,
		*logv1.Delta_BudgetRemoved:
		return nil
	case *logv1.Delta_ObjectSet:
		_, err := objectSet(m.ObjectSet)
		return errors.Join(objectKind("object_set.kind", m.ObjectSet.GetKind()), err)
	case *logv1.Delta_ObjectRemoved:
		return objectKind("object_removed.kind", m.ObjectRemoved.GetKind())
	case *logv1.Delta_PodSet:
		return errors.Join(
			index("pod_set.id", m.PodSet.GetId()),
			least("pod_set.class", m.PodSet.GetClass(), 0),
			least("pod_set.labels", m.PodSet.GetLabels(), 0),
			least("pod_set.attempt", m.PodSet.GetAttempt(), 0))
	case *logv1.Delta_PodAssumed:
		return errors.Join(
			index("pod_assumed.id", m.PodAssumed.GetId()),
			index("pod_assumed.node", m.PodAssumed.GetNode()),
			least("pod_assumed.attempt", m.PodAssumed.GetAttempt(), 0))
	case *logv1.Delta_PodBound:
		return index("pod_bound.id", m.PodBound.GetId())
	case *logv1.Delta_PodForgotten:
		return index("pod_forgotten.id", m.PodForgotten.GetId())
	case *logv1.Delta_PodActivated:
		return least("pod_activated.id", m.PodActivated.GetId(), int32(cluster.NoPod))
	case *logv1.Delta_PodNominated:
		return index("pod_nominated.id", m.PodNominated.GetId())
	case *logv1.Delta_PreemptionStarted:
		return errors.Join(
			index("preemption_started.id", m.PreemptionStarted.GetId()),
			index("preemption_started.node", m.PreemptionStarted.GetNode()),
			indexes("preemption_started.victims", m.PreemptionStarted.GetVictims()))
	case *logv1.Delta_PreemptionEnded:
		return errors.Join(
			least("preemption_ended.id", m.PreemptionEnded.GetId(), int32(cluster.NoPod)),
			indexes("preemption_ended.spared", m.PreemptionEnded.GetSpared()))
	case *logv1.Delta_PodRemoved:
		return index("pod_removed.id", m.PodRemoved.GetId())
	}
	return errNoChange
}

func checkClass(m *logv1.ClassDefined) error {
	if err := least("class_defined.id", m.GetId(), 0); err != nil {
		return err
	}
	if m.GetSpec() == nil {
		return errors.New("class_defined.spec: missing")
	}
	for i, p := range m.GetSpec().GetHostPorts() {
		if p.GetPort() < 1 || p.GetPort() > 65535 {
			return fmt.Errorf("class_defined.spec.host_ports[%d].port: %d is not a port", i, p.GetPort())
		}
	}
	return least("class_defined.spec.image_containers", m.GetSpec().GetImageContainers(), 0)
}

func checkLabels(m *logv1.LabelsDefined) error {
	if err := least("labels_defined.id", m.GetId(), 1); err != nil {
		return err
	}
	switch k := m.GetControllerKind(); {
	case k == "" && m.GetControllerName() != "":
		return fmt.Errorf("labels_defined.controller_name: %q without a kind", m.GetControllerName())
	case k != "" && !isController(k):
		return fmt.Errorf("labels_defined.controller_kind: %q is not a kind of controllers", k)
	}
	return nil
}

// kind checks the kind of an object with a selector.
func kind(field, k string) error {
	if k != cluster.KindService && !isController(k) {
		return fmt.Errorf("%s: %q is not a kind with a selector", field, k)
	}
	return nil
}

// objectKind checks the number of a kind of objects, which need not be one that this release knows.
func objectKind(field string, k int32) error {
	if !cluster.ObjectKind(k).Possible() {
		return fmt.Errorf("%s: %d is not the number of a kind of objects", field, k)
	}
	return nil
}

func isController(k string) bool {
	return k == cluster.KindReplicationController || k == cluster.KindReplicaSet || k == cluster.KindStatefulSet
}

// index checks a node index or a pod id.
func index(field string, i int32) error {
	if i < 0 || i >= cluster.MaxIndex {
		return fmt.Errorf("%s: %d is not within [0, %d)", field, i, cluster.MaxIndex)
	}
	return nil
}

func indexes(field string, all []int32) error {
	for k, i := range all {
		if err := index(fmt.Sprintf("%s[%d]", field, k), i); err != nil {
			return err
		}
	}
	return nil
}

func least(field string, v, atLeast int32) error {
	if v < atLeast {
		return fmt.Errorf("%s: %d, want at least %d", field, v, atLeast)
	}
	return nil
}
