package kubetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// FailureWatcher follows what a scheduler says about some pods that it has no node for: the condition PodScheduled=False with
// the reason Unschedulable, and a FailedScheduling event. Its methods may be called concurrently.
type FailureWatcher struct {
	stop  func()
	which func(types.NamespacedName) bool

	mu         sync.Mutex
	conditions map[types.NamespacedName]time.Time // when the first was seen
	events     map[types.NamespacedName]time.Time
	told       int           // pods with both
	want       int           // pods that AwaitTold waits for
	reached    chan struct{} // closed when told reaches want; nil if nobody waits
}

// Failures is what a FailureWatcher has seen.
type Failures struct {
	Conditions, Events, Both int // pods with a condition, an event and both
	// LastCondition and LastEvent are when the last of the pods' first ones were seen.
	LastCondition, LastEvent time.Time
}

// WatchFailures starts a FailureWatcher for the pods whose name which accepts, and returns when it has seen what exists. It
// ends with ctx or Stop.
func WatchFailures(ctx context.Context, kubeconfig string, which func(types.NamespacedName) bool) (*FailureWatcher, error) {
	client, err := NewClient(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("watch failures: %w", err)
	}
	w := &FailureWatcher{which: which, conditions: map[types.NamespacedName]time.Time{}, events: map[types.NamespacedName]time.Time{}}
	pods, err := follow(ctx, client, "pods", &corev1.Pod{}, fields.Everything(), trimToConditions, onChange(w.observePod))
	if err != nil {
		return nil, err
	}
	events, err := follow(ctx, client, "events", &corev1.Event{}, fields.OneTermEqualSelector("reason", "FailedScheduling"), nil, onChange(w.observeEvent))
	if err != nil {
		pods()
		return nil, err
	}
	w.stop = func() {
		pods()
		events()
	}
	return w, nil
}

// onChange calls observe with each object that is new or has changed.
func onChange(observe func(any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{AddFunc: observe, UpdateFunc: func(_, obj any) { observe(obj) }}
}

// trimToConditions drops what a FailureWatcher does not read.
func trimToConditions(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	small := &corev1.Pod{}
	small.Namespace, small.Name, small.UID, small.ResourceVersion = pod.Namespace, pod.Name, pod.UID, pod.ResourceVersion
	small.Status.Conditions = pod.Status.Conditions
	return small, nil
}

func (w *FailureWatcher) observePod(obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			w.note(w.conditions, nameOf(pod))
		}
	}
}

func (w *FailureWatcher) observeEvent(obj any) {
	if e, ok := obj.(*corev1.Event); ok {
		w.note(w.events, types.NamespacedName{Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name})
	}
}

// note remembers when it was first seen that a pod is in one of the maps.
func (w *FailureWatcher) note(in map[types.NamespacedName]time.Time, pod types.NamespacedName) {
	if !w.which(pod) {
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := in[pod]; known {
		return
	}
	in[pod] = now
	if w.conditions[pod].IsZero() || w.events[pod].IsZero() {
		return
	}
	w.told++
	if w.reached != nil && w.told >= w.want {
		close(w.reached)
		w.reached = nil
	}
}

// Failures returns what was seen so far.
func (w *FailureWatcher) Failures() Failures {
	w.mu.Lock()
	defer w.mu.Unlock()
	latest := func(of map[types.NamespacedName]time.Time) time.Time {
		var last time.Time
		for _, t := range of {
			if t.After(last) {
				last = t
			}
		}
		return last
	}
	return Failures{len(w.conditions), len(w.events), w.told, latest(w.conditions), latest(w.events)}
}

// AwaitTold returns nil when at least n pods have both a condition and an event, or an error when ctx ends first. One
// goroutine at a time may wait.
func (w *FailureWatcher) AwaitTold(ctx context.Context, n int) error {
	reached := make(chan struct{})
	w.mu.Lock()
	if w.told >= n {
		w.mu.Unlock()
		return nil
	}
	w.want, w.reached = n, reached
	w.mu.Unlock()
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		w.reached = nil
		return fmt.Errorf("wait for the failures of %d pods, %d so far: %w", n, w.told, ctx.Err())
	}
}

// Stop ends the watches and waits for their end. What was seen can still be read.
func (w *FailureWatcher) Stop() { w.stop() }
