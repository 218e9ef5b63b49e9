package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/plugins/yoda"
)

// Config is what a [Watch] needs.
type Config struct {
	// Cards is told. Required.
	Cards *Cards
	// Kube and Dynamic reach the API server. Required.
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	// Drivers are those that give out cards as devices of ResourceSlices. nil: gpu.nvidia.com.
	Drivers []string
	// Changed hears which nodes are others than before, and Wake which pods are worth trying then: always in this order. Required. Neither waits.
	Changed func(nodes ...string)
	Wake    func(pods ...string)
	// Synced is closed when all has been told that there was at the beginning. No card may be given before. Required.
	Synced chan<- struct{}
	// Log is told what goes wrong. Required.
	Log *slog.Logger
}

// Watch tells a [Cards] what the API server says.
type Watch struct {
	Config

	fail context.CancelCauseFunc // ends Run; set by it
}

// NewWatch returns a Watch, which Run runs, once.
func NewWatch(cfg Config) *Watch {
	if cfg.Drivers == nil {
		cfg.Drivers = []string{"gpu.nvidia.com"}
	}
	return &Watch{Config: cfg}
}

const (
	// tellEvery is how long changes are gathered before others hear of them.
	tellEvery = 50 * time.Millisecond
	// readWithin is how long a read of a pod may take, and mostReads how many there are at a time.
	readWithin = 5 * time.Second
	mostReads  = 16
)

// errPanicked is why Run has ended if what it is told makes it panic.
var errPanicked = errors.New("panic")

// guard calls what a word of the API server has done. A panic ends Run, and not the process, in which others may be.
func (w *Watch) guard(do func()) {
	defer func() {
		if p := recover(); p != nil {
			w.Log.Error("what is known of cards cannot go on", "err", fmt.Errorf("%w: %v\n%s", errPanicked, p, debug.Stack()))
			w.fail(fmt.Errorf("%w: %v", errPanicked, p))
		}
	}()
	do()
}

// Run watches until ctx ends, and returns nil then. A panic is an error. It runs once.
func (w *Watch) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	w.fail = fail
	if err := w.run(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(cause, errPanicked) {
		return cause
	}
	return nil
}

func (w *Watch) run(ctx context.Context) error {
	slices, err := w.givesDevices(ctx)
	if err != nil {
		return err
	}
	core := w.Kube.CoreV1().RESTClient()
	informers := []cache.Controller{
		w.inform(cache.NewListWatchFromClient(core, "nodes", "", fields.Everything()), &corev1.Node{}, stripNode, w.setNode, func(name string, _ any) { w.Cards.RemoveNode(name) }),
		w.inform(cache.NewListWatchFromClient(core, "pods", "", fields.Everything()), &corev1.Pod{}, stripPod, w.setPod, w.removePod),
		w.inform(w.scvs(), &unstructured.Unstructured{}, stripScv, w.setScv, func(name string, _ any) { w.Cards.SetStatus(name, nil, time.Now()) }),
	}
	if slices {
		informers = append(informers, w.inform(cache.NewListWatchFromClient(w.Kube.ResourceV1().RESTClient(), "resourceslices", "", fields.Everything()), &resourcev1.ResourceSlice{}, stripSlice, w.setSlice,
			func(name string, _ any) { w.Cards.SetSlice(name, "") }))
	}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	synced := make([]cache.InformerSynced, len(informers))
	for i, informer := range informers {
		all.Go(func() { informer.RunWithContext(ctx) })
		synced[i] = informer.HasSynced
	}
	all.Go(func() { w.guard(func() { w.settle(ctx) }) })
	if !cache.WaitForCacheSync(ctx.Done(), synced...) || ctx.Err() != nil { // or what has been told is not all
		return nil
	}
	w.Log.Info("the cards of the cluster are known")
	close(w.Synced)
	w.tell(ctx)
	return nil
}

// givesDevices reports whether the API server has ResourceSlices at all.
func (w *Watch) givesDevices(ctx context.Context) (bool, error) {
	for {
		_, err := w.Kube.Discovery().ServerResourcesForGroupVersion(resourcev1.SchemeGroupVersion.String())
		switch {
		case err == nil:
			return true, nil
		case apierrors.IsNotFound(err):
			return false, nil
		}
		w.Log.Warn("which resources the API server has is not known", "err", err)
		select {
		case <-ctx.Done():
			return false, nil
		case <-time.After(lookEvery):
		}
	}
}

// inform returns what calls set for each object that there is, and each time that it changes, and removed when it is gone. Strip leaves of an object what set reads.
func (w *Watch) inform(lw cache.ListerWatcher, object runtime.Object, strip cache.TransformFunc, set func(any), removed func(name string, object any)) cache.Controller {
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw, ObjectType: object,
		Transform: func(o any) (out any, err error) {
			out = o
			w.guard(func() { out, err = strip(o) })
			return out, err
		},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(is any) { w.guard(func() { set(is) }) },
			UpdateFunc: func(was, is any) {
				w.guard(func() {
					before, ok := was.(metav1.Object)
					if after, is := is.(metav1.Object); ok && is && before.GetUID() != after.GetUID() { // another one of its name: a list says no more
						removed(before.GetName(), before)
					}
					set(is)
				})
			},
			DeleteFunc: func(was any) {
				w.guard(func() {
					if unseen, ok := was.(cache.DeletedFinalStateUnknown); ok {
						was = unseen.Obj
					}
					if o, ok := was.(metav1.Object); ok {
						removed(o.GetName(), o)
					}
				})
			},
		},
	})
	return informer
}

// bare returns metadata by which an informer knows an object, and no more.
func bare(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}

// node is what matters of a node, as it is kept.
type node struct {
	metav1.ObjectMeta
	facts yoda.Facts
}

func stripNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	return &node{bare(n), yoda.FactsOf(n.Labels, amounts(n.Status.Allocatable), amounts(n.Status.Capacity))}, nil
}

func (w *Watch) setNode(o any) {
	if n, ok := o.(*node); ok {
		w.Cards.SetNode(n.Name, n.facts)
	}
}

func amounts(list corev1.ResourceList) map[string]int64 {
	out := make(map[string]int64, len(list))
	for name, quantity := range list {
		out[string(name)] = quantity.Value()
	}
	return out
}

// mostKept is how many bytes of an annotation are kept: more than any may have that makes sense, so that what is wrong stays so.
const mostKept = 16 << 10

func stripPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	out := &corev1.Pod{ObjectMeta: bare(p), Spec: corev1.PodSpec{NodeName: p.Spec.NodeName}, Status: corev1.PodStatus{Phase: p.Status.Phase}}
	if yoda.Asks(p.Labels) {
		out.Labels = p.Labels
	}
	for _, name := range []string{yoda.AnnotationRequest, yoda.AnnotationCards, yoda.AnnotationCardsMemory} {
		if value, ok := p.Annotations[name]; ok {
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, name, strings.Clone(value[:min(len(value), mostKept)]))
		}
	}
	return out, nil
}

// podOf returns what matters of a pod.
func podOf(p *corev1.Pod) Pod {
	return Pod{
		UID: p.UID, Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName, Labels: p.Labels, Annotations: p.Annotations,
		Ended: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
	}
}

func (w *Watch) setPod(o any) {
	if p, ok := o.(*corev1.Pod); ok {
		w.Cards.SetPod(podOf(p))
	}
}

func (w *Watch) removePod(_ string, o any) {
	if p, ok := o.(*corev1.Pod); ok {
		w.Cards.RemovePod(p.UID)
	}
}

func (w *Watch) scvs() cache.ListerWatcher {
	client := w.Dynamic.Resource(schema.GroupVersionResource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: v1alpha1.Resource})
	return &cache.ListWatch{ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) }, WatchFuncWithContext: client.Watch}
}

// said is what a collector says, as it is kept: a small part of what the API server's words take in memory, and all nodes' are kept for as long as they are there.
type said struct {
	metav1.ObjectMeta
	status *v1alpha1.Status // nil: it has been made, and not been written yet
	err    error            // it makes no sense
}

func stripScv(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	out := &said{ObjectMeta: bare(u)}
	var scv v1alpha1.Scv
	if out.err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &scv); out.err == nil && scv.Status.HeartbeatSeconds != 0 {
		out.status = &scv.Status
	}
	return out, nil
}

// setScv takes up what a collector says. What cannot be read is as if it had not been said: the API server checks what is written.
func (w *Watch) setScv(o any) {
	scv, ok := o.(*said)
	switch {
	case !ok:
	case scv.err != nil:
		w.Log.Warn("what a collector says makes no sense", "node", scv.Name, "err", scv.err)
	default:
		w.Cards.SetStatus(scv.Name, scv.status, time.Now())
	}
}

func stripSlice(o any) (any, error) {
	s, ok := o.(*resourcev1.ResourceSlice)
	if !ok {
		return o, nil
	}
	return &resourcev1.ResourceSlice{ObjectMeta: bare(s), Spec: resourcev1.ResourceSliceSpec{Driver: s.Spec.Driver, NodeName: s.Spec.NodeName}}, nil
}

func (w *Watch) setSlice(o any) {
	s, ok := o.(*resourcev1.ResourceSlice)
	if !ok {
		return
	}
	node := ""
	if s.Spec.NodeName != nil && slices.Contains(w.Drivers, s.Spec.Driver) {
		node = *s.Spec.NodeName
	}
	w.Cards.SetSlice(s.Name, node)
}

// tell has others hear of changes until ctx ends.
func (w *Watch) tell(ctx context.Context) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	gather := time.NewTicker(tellEvery)
	defer gather.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-w.Cards.News():
		}
		told := w.Cards.Tell(time.Now())
		if len(told.Nodes) > 0 {
			w.Changed(told.Nodes...)
		}
		if len(told.Pods) > 0 {
			w.Wake(told.Pods...)
		}
		select {
		case <-ctx.Done():
			return
		case <-gather.C:
		}
	}
}

// settle finds out until ctx ends what has become of pods that nobody places any more.
func (w *Watch) settle(ctx context.Context) {
	look := time.NewTicker(tellEvery)
	defer look.Stop()
	var reads sync.WaitGroup
	defer reads.Wait()
	room := make(chan struct{}, mostReads)
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		for _, d := range w.Cards.Doubts(time.Now(), mostReads-len(room)) {
			room <- struct{}{}
			reads.Go(func() {
				defer func() { <-room }()
				w.guard(func() {
					fate, err := w.read(ctx, d)
					if err != nil && ctx.Err() == nil {
						w.Log.Warn("what has become of a pod is not known, so its cards are not given away", "pod", d.Namespace+"/"+d.Name, "err", err)
					}
					w.Cards.Read(d, fate, time.Now())
				})
			})
		}
	}
}

// read asks the API server what has become of a pod.
func (w *Watch) read(ctx context.Context, d Doubt) (Fate, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readWithin, fmt.Errorf("not within %v", readWithin))
	defer cancel()
	pod, err := w.Kube.CoreV1().Pods(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Gone, nil
	case err != nil:
		return Unread, errors.Join(err, context.Cause(ctx))
	case pod.UID != d.UID, podOf(pod).Ended:
		return Gone, nil
	case pod.Spec.NodeName == "":
		return Waits, nil
	}
	return Bound, nil
}
