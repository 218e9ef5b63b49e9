package kubetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	kubeletWorkers = 8       // removals at once
	kubeletQueue   = 1 << 14 // pods that are being stopped; a full queue holds the watch up
)

// Kubelet plays the part of all kubelets in the end of pods: a bound pod that is told to go stays, terminating, until its
// kubelet has stopped it and removes it from the API server. It remembers the pods that went. Its methods may be called
// concurrently.
type Kubelet struct {
	client   *kubernetes.Clientset
	takes    time.Duration   // from the order to go until the pod is removed
	from     <-chan struct{} // closed when pods may be removed at all; nil: they may
	end      func()
	workers  sync.WaitGroup
	stopping <-chan struct{}
	leaving  chan leaver // in the order of their times
	stopped  chan *corev1.Pod

	mu      sync.Mutex
	noted   map[types.UID]bool
	evicted []*corev1.Pod
	err     error
}

// leaver is a pod that has been told to go.
type leaver struct {
	pod *corev1.Pod
	at  time.Time // when it is stopped
}

// PlayKubelets starts a Kubelet, which takes some time to stop a pod, and returns when it has seen the pods that exist. No pod has
// stopped before the channel is closed, unless that is nil. It ends with ctx or Stop.
func PlayKubelets(ctx context.Context, kubeconfig string, takes time.Duration, from <-chan struct{}) (*Kubelet, error) {
	client, err := NewClient(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("play kubelets: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	k := &Kubelet{
		client: client, takes: takes, from: from, stopping: ctx.Done(), noted: map[types.UID]bool{},
		leaving: make(chan leaver, kubeletQueue), stopped: make(chan *corev1.Pod),
	}
	k.workers.Go(func() { k.wait(ctx) })
	for range kubeletWorkers {
		k.workers.Go(func() { k.remove(ctx) })
	}
	unfollow, err := follow(ctx, client, "pods", &corev1.Pod{}, fields.Everything(), dropManagedFields, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { k.observe(obj, false) },
		UpdateFunc: func(_, obj any) { k.observe(obj, false) },
		DeleteFunc: func(obj any) { k.observe(obj, true) },
	})
	if err != nil {
		cancel()
		k.workers.Wait()
		return nil, err
	}
	k.end = func() {
		cancel()
		unfollow()
		k.workers.Wait()
	}
	return k, nil
}

func dropManagedFields(obj any) (any, error) {
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.ManagedFields = nil
	}
	return obj, nil
}

// observe notes a bound pod that is told to go, or that went without a kubelet being asked.
func (k *Kubelet) observe(obj any, gone bool) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || pod.DeletionTimestamp == nil && !gone {
		return
	}
	k.mu.Lock()
	known := k.noted[pod.UID]
	if !known {
		k.noted[pod.UID] = true
		k.evicted = append(k.evicted, pod)
	}
	k.mu.Unlock()
	if known || gone {
		return
	}
	select {
	case k.leaving <- leaver{pod, time.Now().Add(k.takes)}:
	case <-k.stopping:
	}
}

// wait hands on each pod when it is stopped, until ctx ends.
func (k *Kubelet) wait(ctx context.Context) {
	if k.from != nil {
		select {
		case <-ctx.Done():
			return
		case <-k.from:
		}
	}
	for {
		var next leaver
		select {
		case <-ctx.Done():
			return
		case next = <-k.leaving:
		}
		timer := time.NewTimer(time.Until(next.at))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		select {
		case <-ctx.Done():
			return
		case k.stopped <- next.pod:
		}
	}
}

// remove removes stopped pods until ctx ends.
func (k *Kubelet) remove(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case pod := <-k.stopped:
			now := metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
			err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, now)
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
				k.mu.Lock()
				k.err = errors.Join(k.err, fmt.Errorf("remove pod %s: %w", nameOf(pod), err))
				k.mu.Unlock()
			}
		}
	}
}

// Evicted returns the bound pods that were told to go, as they were then, in the order in which this was seen. They must not
// be changed.
func (k *Kubelet) Evicted() []*corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]*corev1.Pod(nil), k.evicted...)
}

// Stop ends the Kubelet and waits for its end. An error says which pods it could not remove.
func (k *Kubelet) Stop() error {
	k.end()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}
