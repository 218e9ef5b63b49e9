package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/source"
	"go.opentelemetry.io/otel/trace"
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
	event := s.event(news{
		namespace: b.Namespace, name: b.Name, uid: b.UID, reason: "Scheduled", action: "Binding",
		note: fmt.Sprintf("Successfully assigned %s/%s to %s", b.Namespace, b.Name, b.Node),
	})
	s.series.forget(b.UID)
	return s.create(ctx, event)
}

// Preempted writes the event that a pod was evicted.
func (s *Source) Preempted(ctx context.Context, e source.Eviction) error {
	note := fmt.Sprintf("Preempted by pod %s on node %s", e.PreemptorUID, e.Node)
	if e.Canceled {
		note += " (in kube-scheduler memory)." // kube-scheduler's text
	}
	event := s.event(news{namespace: e.Namespace, name: e.Name, uid: e.UID, reason: "Preempted", action: "Preempting", note: note})
	event.ReportingController = e.PreemptorScheduler
	preemptor := podReference(e.PreemptorNamespace, e.PreemptorName, e.PreemptorUID)
	event.Related = &preemptor
	return s.create(ctx, event)
}

// Unsupported writes an event of the object.
func (s *Source) Unsupported(ctx context.Context, u source.Unsupported) error {
	event := s.event(news{
		namespace: cmp.Or(u.Namespace, metav1.NamespaceDefault), name: u.Name, warns: true, reason: "Unsupported", action: "Watching",
		note: cutNote(u.Why),
	})
	event.Regarding = s.objectReference(u)
	return s.create(ctx, event)
}

// objectReference refers to an object of one of the kinds that are followed.
func (s *Source) objectReference(u source.Unsupported) v1.ObjectReference {
	ref := v1.ObjectReference{Kind: u.Kind, Namespace: u.Namespace, Name: u.Name}
	for i := range s.resources {
		if kind := s.resources[i].kubernetesKind(); kind.Kind == u.Kind {
			ref.APIVersion = kind.GroupVersion().String()
			break // PodGroups of Coscheduling, which come last, are always told as they are
		}
	}
	if u.Kind == "Node" {
		ref.UID = types.UID(u.Name) // as kubelets write, and kubectl describe asks
	}
	return ref
}

// Unschedulable writes, in one patch, the pod's PodScheduled condition and its nomination as far as they differ, and the
// event that it was not placed. A repetition of the same message is counted, and shown in the event's series every few
// minutes. Nothing is written for a pod that the watch does not show waiting, in this moment, for one of our schedulers.
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
	var patch statusPatch
	if c := notScheduled(status, r, s.cfg.Now()); c != nil {
		patch.Conditions = []v1.PodCondition{*c}
	}
	by := s.conditions
	if r.Nominate && (r.Nominated != status.nominated || status.unsure) {
		patch.NominatedNodeName = &r.Nominated
		by = s.preemptions
	}
	// The status goes first: evictions wait for a nomination.
	statusErr := s.writeStatus(ctx, by, pods, name, uid, patch)
	return errors.Join(statusErr, s.failedScheduling(ctx, r))
}

// notScheduled returns the PodScheduled condition that says why a pod was not placed, nil if it stands there already.
func notScheduled(status *podStatus, r source.Report, now time.Time) *v1.PodCondition {
	c := &v1.PodCondition{
		Type:               v1.PodScheduled,
		Status:             v1.ConditionFalse,
		Reason:             r.Reason,
		Message:            r.Message,
		ObservedGeneration: status.generation,
	}
	if !differs(c, status.scheduled, now) {
		return nil
	}
	return c
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
	event := s.event(news{
		namespace: r.Namespace, name: r.Name, uid: r.UID, warns: true, reason: "FailedScheduling", action: "Scheduling",
		note: cutNote(r.Message),
	})
	if err := s.create(ctx, event); err != nil {
		return err
	}
	s.series.wrote(r.UID, r.Message, event.Name, now)
	return nil
}

// news is what an event tells.
type news struct {
	namespace, name, uid string // of the pod that it is about
	warns                bool
	reason, action, note string
}

// event returns an event about a pod, or about what the caller makes of it.
func (s *Source) event(n news) *eventsv1.Event {
	controller := ""
	if pods := s.watched(); pods != nil {
		controller = pods.schedulerOf(types.NamespacedName{Namespace: n.namespace, Name: n.name}, types.UID(n.uid))
	}
	kind := v1.EventTypeNormal
	if n.warns {
		kind = v1.EventTypeWarning
	}
	now := s.cfg.Now()
	suffix := "." + strconv.FormatInt(s.unique(now), 16)
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: n.namespace,
			Name:      strings.TrimRight(n.name[:min(len(n.name), maxEventName-len(suffix))], "-.") + suffix,
		},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: cmp.Or(controller, s.cfg.SchedulerNames[0]),
		ReportingInstance:   s.cfg.Instance,
		Action:              n.action,
		Reason:              n.reason,
		Type:                kind,
		Note:                n.note,
		Regarding:           podReference(n.namespace, n.name, n.uid),
	}
}

func podReference(namespace, name, uid string) v1.ObjectReference {
	return v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(uid)}
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

// traceAnnotation of an event names the trace of the attempt that it tells of, if that is sampled.
const traceAnnotation = "berth.dev/trace-id"

// create writes an event, and does not decode the answer, which is the event again.
func (s *Source) create(ctx context.Context, event *eventsv1.Event) error {
	if at := trace.SpanContextFromContext(ctx); at.IsSampled() {
		event.Annotations = map[string]string{traceAnnotation: at.TraceID().String()}
	}
	ctx, cancel := s.request(ctx)
	defer cancel()
	began := time.Now()
	err := s.events.EventsV1().RESTClient().Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
	s.observe(s.events, began, err)
	if err != nil {
		return fmt.Errorf("write event %s of %s %s/%s: %w", event.Reason, strings.ToLower(event.Regarding.Kind), event.Namespace, event.Regarding.Name, err)
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
	s.observe(s.events, began, err)
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
