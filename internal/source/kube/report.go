package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	maxNote      = 1024 // bytes in an event's note
	maxEventName = 253  // bytes in the name of an object
)

// Scheduled writes the event that a pod was placed.
func (s *Source) Scheduled(ctx context.Context, b source.Binding) error {
	event := s.event(b.Namespace, b.Name, b.UID, v1.EventTypeNormal, "Scheduled", "Binding",
		fmt.Sprintf("Successfully assigned %s/%s to %s", b.Namespace, b.Name, b.Node))
	s.series.forget(b.UID)
	return s.create(ctx, event)
}

// Unschedulable writes the event that a pod was not placed, and its PodScheduled condition if it differs. A repetition
// of the same message is counted, and shown in the event's series every few minutes. Nothing is
// written for a pod that the watch does not show waiting, in this moment, for one of our schedulers.
func (s *Source) Unschedulable(ctx context.Context, r source.Report) error {
	name, uid := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}, types.UID(r.UID)
	pods := s.watched()
	if pods == nil {
		return nil
	}
	status := pods.waiting(name, uid)
	if status == nil {
		return nil
	}
	eventErr := s.failedScheduling(ctx, r)
	if err := s.writeCondition(ctx, pods, name, uid, status, r); err != nil {
		return err
	}
	return eventErr
}

// failedScheduling writes the event, or counts it in the one that was written before.
func (s *Source) failedScheduling(ctx context.Context, r source.Report) error {
	now := s.cfg.Now()
	before, count, due := s.series.repeat(r.UID, r.Message, now)
	if before != "" && !due {
		return nil
	}
	if before != "" {
		err := s.patchSeries(ctx, r.Namespace, before, count, now)
		if !apierrors.IsNotFound(err) {
			return err
		}
		// The event has expired: write another.
	}
	event := s.event(r.Namespace, r.Name, r.UID, v1.EventTypeWarning, "FailedScheduling", "Scheduling", cutNote(r.Message))
	if err := s.create(ctx, event); err != nil {
		return err
	}
	s.series.wrote(r.UID, r.Message, event.Name, now)
	return nil
}

// event returns an event about a pod.
func (s *Source) event(namespace, name, uid, kind, reason, action, note string) *eventsv1.Event {
	controller := ""
	if pods := s.watched(); pods != nil {
		controller = pods.schedulerOf(types.NamespacedName{Namespace: namespace, Name: name}, types.UID(uid))
	}
	now := s.cfg.Now()
	suffix := "." + strconv.FormatInt(s.unique(now), 16)
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      strings.TrimRight(name[:min(len(name), maxEventName-len(suffix))], "-.") + suffix,
		},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: cmp.Or(controller, s.cfg.SchedulerNames[0]),
		ReportingInstance:   s.cfg.Instance,
		Action:              action,
		Reason:              reason,
		Type:                kind,
		Note:                note,
		Regarding:           v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(uid)},
	}
}

// unique returns the time in nanoseconds, or a little more so that no number is returned twice.
func (s *Source) unique(now time.Time) int64 {
	for {
		last := s.lastEvent.Load()
		next := max(now.UnixNano(), last+1)
		if s.lastEvent.CompareAndSwap(last, next) {
			return next
		}
	}
}

func (s *Source) create(ctx context.Context, event *eventsv1.Event) error {
	ctx, cancel := s.request(ctx)
	defer cancel()
	began := time.Now()
	_, err := s.events.EventsV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	s.observe("event", began, err)
	if err != nil {
		return fmt.Errorf("write event %s of pod %s/%s: %w", event.Reason, event.Namespace, event.Regarding.Name, err)
	}
	return nil
}

func (s *Source) patchSeries(ctx context.Context, namespace, name string, count int32, now time.Time) error {
	patch, err := json.Marshal(map[string]any{
		"series": eventsv1.EventSeries{Count: count, LastObservedTime: metav1.NewMicroTime(now)},
	})
	if err != nil {
		return fmt.Errorf("encode series of event %s/%s: %w", namespace, name, err)
	}
	ctx, cancel := s.request(ctx)
	defer cancel()
	began := time.Now()
	_, err = s.events.EventsV1().Events(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	s.observe("event", began, err)
	if err != nil {
		return fmt.Errorf("write series of event %s/%s: %w", namespace, name, err)
	}
	return nil
}

// cutNote shortens a note to what an event takes, as kube-scheduler does.
func cutNote(s string) string {
	const suffix = " ..."
	if len(s) <= maxNote {
		return s
	}
	return strings.ToValidUTF8(s[:maxNote-len(suffix)], "") + suffix
}

// writeCondition patches the pod's status unless it already says the same.
func (s *Source) writeCondition(
	ctx context.Context, pods *mirror, name types.NamespacedName, uid types.UID, status *podStatus, r source.Report,
) error {
	condition := v1.PodCondition{
		Type:               v1.PodScheduled,
		Status:             v1.ConditionFalse,
		Reason:             r.Reason,
		Message:            r.Message,
		ObservedGeneration: status.generation,
		LastTransitionTime: metav1.NewTime(s.cfg.Now()),
	}
	if old := status.scheduled; old != nil {
		if old.Status == condition.Status && old.Reason == condition.Reason && old.Message == condition.Message &&
			old.ObservedGeneration == condition.ObservedGeneration {
			return nil
		}
		if old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": uid}, // refused if the pod was replaced
		"status":   map[string]any{"conditions": []v1.PodCondition{condition}},
	})
	if err != nil {
		return fmt.Errorf("encode condition of pod %s: %w", name, err)
	}
	ctx, cancel := s.request(ctx)
	defer cancel()
	began := time.Now()
	_, err = s.conditions.CoreV1().Pods(name.Namespace).Patch(
		ctx, name.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	s.observe("condition", began, err)
	switch {
	case apierrors.IsNotFound(err), isReplaced(err):
		return nil // the pod is gone, and with it what there was to say
	case err != nil:
		return fmt.Errorf("write condition of pod %s: %w", name, err)
	}
	pods.written(name, uid, &condition)
	return nil
}

// isReplaced reports whether a patch was refused because the object of the name has another uid.
func isReplaced(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}
