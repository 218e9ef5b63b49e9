package kubetest

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Watcher follows all pods and remembers where each was bound, by UID, and nominated, by name, also after it is gone. It notices a binding that a
// later one has overwritten, which Check cannot see. Its methods may be called concurrently.
type Watcher struct {
	stop func()

	mu        sync.Mutex
	nodes     map[types.UID]string    // of the bound pods
	at        map[types.UID]time.Time // when they were seen to be bound, but for those that were when Watch returned
	twice     []Rebinding
	seen      int // pods whose binding was seen to happen
	first     time.Time
	last      time.Time
	waiters   map[chan<- struct{}]int         // each is closed when seen reaches its number
	nominated map[types.NamespacedName]string // the last node that each pod was nominated to
}

// Rebinding is a pod that changed its node.
type Rebinding struct {
	Pod      types.NamespacedName
	UID      types.UID
	From, To string
}

// Watch starts a Watcher, and returns when it has seen the pods that exist. It ends with ctx or Stop.
func Watch(ctx context.Context, kubeconfig string) (*Watcher, error) {
	client, err := NewClient(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	w := &Watcher{
		nodes: map[types.UID]string{}, at: map[types.UID]time.Time{},
		waiters: map[chan<- struct{}]int{}, nominated: map[types.NamespacedName]string{},
	}
	w.stop, err = follow(ctx, client, "pods", &corev1.Pod{}, fields.Everything(), trim, cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { w.observe(obj, initial) },
		UpdateFunc: func(_, obj any) { w.observe(obj, false) },
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// trim drops what a Watcher does not read, so that it holds 100,000 pods in little memory.
func trim(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	small := &corev1.Pod{}
	small.Namespace, small.Name, small.UID, small.ResourceVersion = pod.Namespace, pod.Name, pod.UID, pod.ResourceVersion
	small.Spec.NodeName, small.Status.NominatedNodeName = pod.Spec.NodeName, pod.Status.NominatedNodeName
	return small, nil
}

// observe notes where a pod is and was meant to go. A pod of the initial list may have been bound at any time before.
func (w *Watcher) observe(obj any, initial bool) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := pod.Status.NominatedNodeName; n != "" {
		w.nominated[nameOf(pod)] = n
	}
	if pod.Spec.NodeName == "" {
		return
	}
	from, bound := w.nodes[pod.UID]
	switch {
	case bound && from != pod.Spec.NodeName:
		w.twice = append(w.twice, Rebinding{nameOf(pod), pod.UID, from, pod.Spec.NodeName})
	case bound || initial:
	default:
		if w.seen == 0 {
			w.first = now
		}
		w.last = now
		w.at[pod.UID] = now
		w.seen++
		for ch, n := range w.waiters {
			if w.seen >= n {
				close(ch)
				delete(w.waiters, ch)
			}
		}
	}
	w.nodes[pod.UID] = pod.Spec.NodeName
}

// Bound returns how many pods were seen to be bound since Watch returned, and when the first and the last of them were.
func (w *Watcher) Bound() (n int, first, last time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen, w.first, w.last
}

// BoundAt returns when a pod was seen to be bound since Watch returned; false if it was not.
func (w *Watcher) BoundAt(pod types.UID) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.at[pod]
	return at, ok
}

// BoundTwice returns the pods whose node was changed after they had one, in the order in which this was seen.
func (w *Watcher) BoundTwice() []Rebinding {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Rebinding(nil), w.twice...)
}

// Nominated returns the last node that each pod was nominated to, if it was.
func (w *Watcher) Nominated() map[types.NamespacedName]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.nominated)
}

// AwaitBound returns nil when at least n pods were seen to be bound since Watch returned, or an error when ctx ends first.
func (w *Watcher) AwaitBound(ctx context.Context, n int) error {
	reached := make(chan struct{})
	w.mu.Lock()
	if w.seen >= n {
		w.mu.Unlock()
		return nil
	}
	w.waiters[reached] = n
	w.mu.Unlock()
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.waiters, reached)
		return fmt.Errorf("wait for %d bound pods, %d so far: %w", n, w.seen, ctx.Err())
	}
}

// Stop ends the watch and waits for its end. What was seen can still be read.
func (w *Watcher) Stop() { w.stop() }
