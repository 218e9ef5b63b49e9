package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	nodesResource   = "nodes"
	podsResource    = "pods"
	volumesResource = "persistentvolumes"
	claimsResource  = "persistentvolumeclaims"

	// livePods selects the pods that take, or will take, something from a node.
	livePods = "status.phase!=Succeeded,status.phase!=Failed"

	// listTimeout bounds one request of a list, which can be all pods of the cluster.
	listTimeout = 2 * time.Minute

	// While the API server is away it is tried after delays from firstDelay to maxDelay, so that its return is seen soon.
	firstDelay = 200 * time.Millisecond
	maxDelay   = 2 * time.Second
	// settled is how long it must have gone well for the delays to start from firstDelay again.
	settled = 10 * time.Second

	// A resource that is not served, or not to Berth, is waited for so long, since an API server that starts says so of all; then nobody waits for it, and it is looked for now and then.
	unservedFor  = 3 * time.Second
	unservedLook = 15 * time.Second
)

// resource is something that is followed: how it is listed, watched and told.
type resource struct {
	name    string
	example runtime.Object
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	fields  string // field selector
	kind    kind   // unset: as source.Reductions has it
	placing bool   // who places pods writes to it
	needed  bool   // without it, nothing is placed
	rare    bool   // most API servers do not serve it: one that does not is believed at once
	lists   *lists
}

// kubernetesKind is what Kubernetes calls the kind of the objects, with the version of the API that they are read in.
func (r *resource) kubernetesKind() schema.GroupVersionKind {
	kinds, _, _ := scheme.Scheme.ObjectKinds(r.example) // which knows what the clients of this module return
	return kinds[0]
}

// listing makes lists of one type lists of any.
func listing[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) }
}

// Watch follows nodes, namespaces, pods, services, controllers, PodDisruptionBudgets, PodGroups, and what volumes are made of, until ctx ends.
func (s *Source) Watch(ctx context.Context, sink func(source.Event)) error {
	s.start()
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(s.cfg.Log.Handler()))
	t := &teller{sink: sink, left: len(s.resources)}
	for _, r := range s.resources {
		if r.needed {
			t.neededLeft++
		}
	}
	var running sync.WaitGroup
	for _, r := range s.resources {
		var m *mirror
		m = newMirror(t, r.kind, func() {
			if m.streams {
				s.follows(m)
			}
			r.lists.told()
		})
		m.resource, m.needed, m.rare = r.name, r.needed, r.rare
		m.keeps = r.name == volumesResource || r.name == claimsResource
		if r.name == nodesResource {
			m.changes = &s.nodeChanges
		}
		s.mu.Lock()
		s.mirrors[r.name] = m
		s.mu.Unlock()
		s.nodeChanges.Add(1) // there are none again
		running.Go(func() {
			for ctx.Err() == nil {
				s.follow(r.lists.next(ctx), r, m)
			}
		})
	}
	running.Wait()
	return ctx.Err()
}

// followed returns all that is followed, by way of client, and PodGroups of Coscheduling by way of custom, unless it is nil.
func followed(client kubernetes.Interface, custom dynamic.Interface, pods, nodes kind) []resource {
	const everywhere = metav1.NamespaceAll
	core, apps, policy, storage, scheduling := client.CoreV1(), client.AppsV1(), client.PolicyV1(), client.StorageV1(), client.SchedulingV1alpha2()
	all := []resource{
		{
			name: nodesResource, example: &v1.Node{}, kind: nodes, needed: true,
			list: listing(core.Nodes().List), watch: core.Nodes().Watch,
		}, {
			name: "namespaces", example: &v1.Namespace{}, kind: namespaceKind(), needed: true,
			list: listing(core.Namespaces().List), watch: core.Namespaces().Watch,
		}, {
			name: podsResource, example: &v1.Pod{}, kind: pods, fields: livePods, placing: true, needed: true,
			list: listing(core.Pods(everywhere).List), watch: core.Pods(everywhere).Watch,
		}, {
			name: "services", example: &v1.Service{},
			list: listing(core.Services(everywhere).List), watch: core.Services(everywhere).Watch,
		}, {
			name: "replicationcontrollers", example: &v1.ReplicationController{},
			list: listing(core.ReplicationControllers(everywhere).List), watch: core.ReplicationControllers(everywhere).Watch,
		}, {
			name: "replicasets", example: &appsv1.ReplicaSet{},
			list: listing(apps.ReplicaSets(everywhere).List), watch: apps.ReplicaSets(everywhere).Watch,
		}, {
			name: "statefulsets", example: &appsv1.StatefulSet{},
			list: listing(apps.StatefulSets(everywhere).List), watch: apps.StatefulSets(everywhere).Watch,
		}, {
			name: "poddisruptionbudgets", example: &policyv1.PodDisruptionBudget{},
			list: listing(policy.PodDisruptionBudgets(everywhere).List), watch: policy.PodDisruptionBudgets(everywhere).Watch,
		}, {
			name: volumesResource, example: &v1.PersistentVolume{}, placing: true,
			list: listing(core.PersistentVolumes().List), watch: core.PersistentVolumes().Watch,
		}, {
			name: claimsResource, example: &v1.PersistentVolumeClaim{}, placing: true,
			list: listing(core.PersistentVolumeClaims(everywhere).List), watch: core.PersistentVolumeClaims(everywhere).Watch,
		}, {
			name: "storageclasses", example: &storagev1.StorageClass{},
			list: listing(storage.StorageClasses().List), watch: storage.StorageClasses().Watch,
		}, {
			name: "csinodes", example: &storagev1.CSINode{},
			list: listing(storage.CSINodes().List), watch: storage.CSINodes().Watch,
		}, {
			name: "csidrivers", example: &storagev1.CSIDriver{},
			list: listing(storage.CSIDrivers().List), watch: storage.CSIDrivers().Watch,
		}, {
			name: "csistoragecapacities", example: &storagev1.CSIStorageCapacity{},
			list: listing(storage.CSIStorageCapacities(everywhere).List), watch: storage.CSIStorageCapacities(everywhere).Watch,
		}, {
			name: "volumeattachments", example: &storagev1.VolumeAttachment{},
			list: listing(storage.VolumeAttachments().List), watch: storage.VolumeAttachments().Watch,
		}, {
			name: cluster.PodGroupResource, example: &schedulingv1alpha2.PodGroup{}, kind: podGroupKind(), rare: true,
			list: listing(scheduling.PodGroups(everywhere).List), watch: scheduling.PodGroups(everywhere).Watch,
		},
	}
	if custom != nil {
		groups := custom.Resource(source.CoschedulingPodGroups).Namespace(everywhere)
		example := new(unstructured.Unstructured)
		example.SetGroupVersionKind(source.CoschedulingKind)
		all = append(all, resource{
			name: cluster.CoschedulingResource, example: example, kind: reducedKind(source.CoschedulingReduction), rare: true,
			list: listing(groups.List), watch: groups.Watch,
		})
	}
	for i := range all {
		r := &all[i]
		if r.lists = new(lists); r.kind.reduce == nil {
			r.kind = reducedKind(source.Reductions[r.kubernetesKind().Kind])
		}
	}
	return all
}

// catchUp waits until the running Watch has told all that others who place pods had written when it was called, to pods, to volumes and
// to claims: these are listed again, at their newest, and what differs is told. An error is ctx's.
func (s *Source) catchUp(ctx context.Context) error {
	told := make(map[string]<-chan struct{})
	for _, r := range s.resources {
		if r.placing {
			told[r.name] = r.lists.again()
		}
	}
	for name, told := range told {
		select {
		case <-told:
		case <-ctx.Done():
			return fmt.Errorf("list %s again: %w", name, context.Cause(ctx))
		}
	}
	return nil
}

// lists counts how often a resource is listed from scratch.
type lists struct {
	mu      sync.Mutex
	begun   int
	end     context.CancelFunc    // of what follows the list that was begun last; nil before the first
	waiting map[chan struct{}]int // closed when that list, or a later one, has been told
}

// again asks for a list that begins later, and returns what is closed when it has been told.
func (l *lists) again() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := make(chan struct{})
	if l.waiting == nil {
		l.waiting = make(map[chan struct{}]int)
	}
	l.waiting[told] = l.begun + 1
	if l.end != nil {
		l.end()
	}
	return told
}

// next begins the next list: the context ends when it is to be left for another one.
func (l *lists) next(ctx context.Context) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		l.end()
	}
	l.begun++
	ctx, l.end = context.WithCancel(ctx)
	return ctx
}

// told says that what was begun last has been told.
func (l *lists) told() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, list := range l.waiting {
		if list <= l.begun {
			close(c)
			delete(l.waiting, c)
		}
	}
}

// unserved returns why a resource cannot be read, if that is how things are: the API server does not serve it, or not to Berth. "": it may be otherwise the next time.
func unserved(err error) string {
	switch {
	case apierrors.IsNotFound(err):
		return "the API server does not serve it"
	case apierrors.IsForbidden(err):
		return "the API server does not let Berth list it, or watch it"
	}
	return ""
}

// follow keeps m like the resource, from a list at its newest on, until ctx ends.
func (s *Source) follow(ctx context.Context, r resource, m *mirror) {
	run := ctx
	mayLack := func(err error) bool { return !r.needed && unserved(err) != "" } // what comes of that is said below
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = "" // a reflector is content with a list of any age; Watch promises the newest
			}
			o.FieldSelector = r.fields
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			list, err := r.list(ctx, o)
			if err != nil && run.Err() == nil && !mayLack(err) {
				s.waitFor(r.name, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = r.fields
			w, err := r.watch(ctx, o)
			m.streams = err == nil && o.SendInitialEvents != nil
			switch {
			case err != nil && ctx.Err() == nil && !mayLack(err):
				m.refused = time.Time{} // the reflector may try again by itself
				s.waitFor(r.name, err)
			case err == nil && o.SendInitialEvents == nil:
				s.follows(m) // it goes on behind a list, or where another broke; one that begins with all that there is, is waited for until it has told that
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
		err := reflector.ListAndWatchWithContext(ctx)
		if time.Since(began) > settled {
			delay = firstDelay
		}
		look := delay
		switch {
		case err == nil || ctx.Err() != nil:
		case !mayLack(err):
			m.refused = time.Time{}
			s.waitFor(r.name, err)
		case s.mayDoWithout(m):
			s.lacks(r.name, r.rare, err)
			m.unserved(cluster.Unserved{Name: r.name, Why: unserved(err)})
			r.lists.told()
			look = unservedLook
		default:
			s.waitFor(r.name, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(look):
		}
		delay = min(2*delay, maxDelay)
	}
}

// follows notes that a resource has been told, and is watched. A list alone is not enough: who may list, and not watch, would be waited for and not by turns.
func (s *Source) follows(m *mirror) {
	s.waitFor(m.resource, nil)
	s.serves(m.resource)
	m.served()
}

// mayDoWithout reports whether nobody is to wait any longer for a resource that has just been refused. An API server that starts refuses all, for as long as it takes: so what is needed has to have
// been told, and some time gone by. What was lacking when the last Watch ended is not waited for again.
func (s *Source) mayDoWithout(m *mirror) bool {
	now := time.Now()
	if m.refused.IsZero() {
		m.refused = now
	}
	told := m.teller.neededSince()
	switch {
	case m.lacking != nil, m.rare:
		return true
	case told.IsZero():
		return false
	case s.awaitsNeeded(): // the API server starts anew
		m.refused = time.Time{}
		return false
	case s.lackedBefore(m.resource):
		return true
	}
	return now.Sub(m.refused) >= unservedFor && now.Sub(told) >= unservedFor
}
