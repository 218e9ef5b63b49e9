package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// GroupDecided patches the PodGroupScheduled condition of a PodGroup, as far as it differs from what the watch shows. Nothing is written of a group that the watch does not show,
// nor of one of Coscheduling, whose status is its controller's: the mirror has none of their names.
// That the group is gone or replaced is an error until the watch shows it, and then none.
func (s *Source) GroupDecided(ctx context.Context, r source.Report) error {
	groups := s.mirrorOf(cluster.PodGroupResource)
	if groups == nil {
		return nil
	}
	name := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
	is := groups.get(name)
	if is == nil || is.group == nil || is.uid != types.UID(r.UID) {
		return nil
	}
	c := groupCondition(is.group, r, s.cfg.Now())
	if c == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": r.UID}, // refused if it is not so
		"status":   map[string]any{"conditions": []metav1.Condition{*c}},
	})
	if err != nil {
		return fmt.Errorf("encode status of PodGroup %s: %w", name, err)
	}
	request, cancel := s.request(ctx)
	defer cancel()
	began := time.Now()
	written, err := s.conditions.SchedulingV1alpha2().PodGroups(r.Namespace).Patch(
		request, r.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	s.observe(s.conditions, began, err)
	if err != nil {
		return fmt.Errorf("write status of PodGroup %s: %w", name, err)
	}
	groups.wroteGroup(written)
	return nil
}

// groupCondition returns the PodGroupScheduled condition that a report makes, nil if none is to be written: it stands there already, or the group was scheduled once. Pods that come to it later, and
// find no place, do not change that.
func groupCondition(is *groupStatus, r source.Report, now time.Time) *metav1.Condition {
	c := &metav1.Condition{
		Type: schedulingv1alpha2.PodGroupScheduled, Status: metav1.ConditionFalse, Reason: r.Reason, Message: r.Message,
		ObservedGeneration: is.generation, LastTransitionTime: metav1.NewTime(now),
	}
	if r.Reason == source.Scheduled {
		c.Status = metav1.ConditionTrue
	}
	before := is.scheduled
	switch {
	case before == nil:
		return c
	case before.Status == metav1.ConditionTrue && c.Status != metav1.ConditionTrue:
		return nil
	case before.Status == c.Status:
		c.LastTransitionTime = before.LastTransitionTime
		if before.Reason == c.Reason && before.Message == c.Message && before.ObservedGeneration == c.ObservedGeneration {
			return nil
		}
	}
	return c
}

// wroteGroup remembers a PodGroup as it was written, until the watch has come as far.
func (m *mirror) wroteGroup(written *schedulingv1alpha2.PodGroup) {
	name := types.NamespacedName{Namespace: written.Namespace, Name: written.Name}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.objects[name]
	if s == nil || s.uid != written.UID || !later(written.ResourceVersion, cmp.Or(s.newest, s.version)) {
		return
	}
	changed := *s
	changed.newest, changed.group = written.ResourceVersion, groupStatusOf(written)
	m.objects[name] = &changed
}
