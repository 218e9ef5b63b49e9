package kube

import (
	"context"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/source"
	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	nodesResource      = "nodes"
	namespacesResource = "namespaces"
	podsResource       = "pods"

	// livePods selects the pods that take, or will take, something from a node.
	livePods = "status.phase!=Succeeded,status.phase!=Failed"

	// listTimeout bounds one request of a list, which can be all pods of the cluster.
	listTimeout = 2 * time.Minute

	// While the API server is away it is tried after delays from firstDelay to maxDelay, so that its return is seen soon.
	firstDelay = 200 * time.Millisecond
	maxDelay   = 2 * time.Second
	// settled is how long it must have gone well for the delays to start from firstDelay again.
	settled = 10 * time.Second
)

// resources are what is watched. The order is that in which Ready looks.
var resources = [...]string{nodesResource, namespacesResource, podsResource}

// resource is how one of them is listed, watched and reduced.
type resource struct {
	name    string
	example runtime.Object
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	reduce  func(any) *record
}

// Watch follows nodes, namespaces and pods until ctx ends.
func (s *Source) Watch(ctx context.Context, sink func(source.Event)) error {
	s.start()
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(s.cfg.Log.Handler()))
	core := s.reads.CoreV1()
	t := &teller{sink: sink, left: len(resources)}
	var running sync.WaitGroup
	for _, r := range []resource{
		{
			nodesResource, &v1.Node{},
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return core.Nodes().List(ctx, o)
			},
			func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return core.Nodes().Watch(ctx, o)
			},
			reduceNode,
		}, {
			namespacesResource, &v1.Namespace{},
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return core.Namespaces().List(ctx, o)
			},
			func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return core.Namespaces().Watch(ctx, o)
			},
			reduceNamespace,
		}, {
			podsResource, &v1.Pod{},
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = livePods
				return core.Pods(metav1.NamespaceAll).List(ctx, o)
			},
			func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = livePods
				return core.Pods(metav1.NamespaceAll).Watch(ctx, o)
			},
			s.reducePod,
		},
	} {
		m := newMirror(t, r.reduce, func() { s.waitFor(r.name, nil) })
		if r.name == podsResource {
			s.mu.Lock()
			s.pods = m
			s.mu.Unlock()
		}
		running.Go(func() { s.follow(ctx, r, m) })
	}
	running.Wait()
	return ctx.Err()
}

// follow keeps m like the resource until ctx ends.
func (s *Source) follow(ctx context.Context, r resource, m *mirror) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = "" // a reflector is content with a list of any age; Watch promises the newest
			}
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			list, err := r.list(ctx, o)
			if err != nil {
				s.waitFor(r.name, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := r.watch(ctx, o)
			switch {
			case err != nil && ctx.Err() == nil:
				s.waitFor(r.name, err)
			case err == nil && o.SendInitialEvents == nil:
				s.waitFor(r.name, nil) // the watch goes on where it broke; one that starts over is waited for until it has told all
			}
			return w, err
		},
	}
	reflector := cache.NewReflectorWithOptions(lw, r.example, m, cache.ReflectorOptions{
		Name:    "berth/" + r.name,
		Backoff: &wait.Backoff{Duration: firstDelay, Factor: 2, Jitter: 0.5, Steps: 10, Cap: maxDelay},
	})
	delay := firstDelay
	for {
		began := time.Now()
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			s.waitFor(r.name, err)
		}
		if time.Since(began) > settled {
			delay = firstDelay
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		delay = min(2*delay, maxDelay)
	}
}
