package berthapp

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// hints have pods tried again that plugins have refused, when something has happened for which the plugins want that: as kube-scheduler's queue does, of what Berth's log does not tell, and that is objects of resources
// that Berth does not watch, and changes of pods that Berth does not read. Behind all else that happens, Berth tries these pods in any case. It is safe for concurrent use; plugins are asked one at a time, as in kube-scheduler.
type hints struct {
	registered []registered
	pods       cache.Indexer // of all pods, as the informer has them that tells of them
	tell       teller
	timeout    time.Duration // of plugins that are asked about all pods that wait

	asking sync.Mutex // plugins are asked; it is taken before mu

	mu      sync.Mutex
	refused map[types.UID]refusal // pods that plugins have refused
	judging types.UID             // of the pod that is judged right now; "": none is
	during  []happening           // what has happened since it is
	lost    bool                  // more than mostDuring has
}

// mostDuring are as many events as are kept while a pod is judged. With more, it is tried again in any case.
const mostDuring = 100

// registered is an event that a plugin has registered, and what it says of it; nil: pods are worth trying.
type registered struct {
	event  fwk.ClusterEvent
	plugin string
	hint   fwk.QueueingHintFn
	asked  bool // the plugin has said that it wants it: of others, kube-scheduler takes it that all may matter
}

// teller has Berth try pods, by their UIDs: now, or when they have served their backoff. It does not wait.
type teller interface {
	Activate(uids ...string)
	Wake(uids ...string)
}

// refusal says which plugins have refused a pod, and which of these wait for something.
type refusal struct {
	key         string // of the pod
	by, pending sets.Set[string]
}

// happening is what has happened: several events of one change.
type happening struct {
	events        []fwk.ClusterEvent
	before, after any
	of            types.UID // the only pod that it concerns; "": any
}

// newHints returns the hints of the plugins of a framework, of which some register events themselves. It has informers tell of those that it takes.
func newHints(ctx context.Context, extensions []fwk.EnqueueExtensions, register sets.Set[string], pods cache.SharedIndexInformer, custom func(schema.GroupVersionResource) (cache.SharedIndexInformer, error)) (*hints, error) {
	h := &hints{pods: pods.GetIndexer(), refused: make(map[types.UID]refusal)}
	actions := make(map[fwk.EventResource]fwk.ActionType)
	for _, plugin := range extensions {
		events, err := plugin.EventsToRegister(ctx)
		if err != nil {
			return nil, fmt.Errorf("events of plugin %q: %w", plugin.Name(), err)
		}
		for _, e := range events {
			h.registered = append(h.registered, registered{e.Event, plugin.Name(), e.QueueingHintFn, register.Has(plugin.Name())})
			actions[e.Event.Resource] |= e.Event.ActionType
		}
	}
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: h.podChanged, DeleteFunc: h.podGone}); err != nil {
		return nil, err
	}
	for resource, takes := range actions {
		if strings.Count(string(resource), ".") < 2 || strings.Contains(string(resource), "/") { // of Kubernetes' own: Berth watches those that plugins may know of
			continue
		}
		gvr, _ := schema.ParseResourceArg(string(resource))
		informer, err := custom(*gvr)
		if err == nil {
			_, err = informer.AddEventHandler(h.handler(resource, takes))
		}
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", resource, err)
		}
	}
	return h, nil
}

// handler has heard what happens to objects of a resource.
func (h *hints) handler(resource fwk.EventResource, takes fwk.ActionType) cache.ResourceEventHandlerFuncs {
	funcs := cache.ResourceEventHandlerFuncs{}
	is := func(action fwk.ActionType, before, after any) {
		h.happens(happening{events: []fwk.ClusterEvent{{Resource: resource, ActionType: action}}, before: before, after: after})
	}
	if takes&fwk.Add != 0 {
		funcs.AddFunc = func(object any) { is(fwk.Add, nil, object) }
	}
	if takes&fwk.Update != 0 {
		funcs.UpdateFunc = func(before, after any) { is(fwk.Update, before, after) }
	}
	if takes&fwk.Delete != 0 {
		funcs.DeleteFunc = func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			is(fwk.Delete, object, nil)
		}
	}
	return funcs
}

// podChanged hears that a pod has changed.
func (h *hints) podChanged(before, after any) {
	was, is := before.(*v1.Pod), after.(*v1.Pod)
	switch {
	case was.UID != is.UID:
		h.forget(was.UID)
	case was.Spec.NodeName == "" && is.Spec.NodeName != "": // it waits no more; Berth has heard of it
		h.forget(is.UID)
	case was.ResourceVersion != is.ResourceVersion && h.any():
		e := happening{events: framework.PodSchedulingPropertiesChange(is, was), before: was, after: is}
		if is.Spec.NodeName == "" {
			e.of = is.UID
		}
		h.happens(e)
	}
}

// podGone hears that a pod is gone.
func (h *hints) podGone(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if pod, ok := object.(*v1.Pod); ok {
		h.forget(pod.UID)
	}
}

func (h *hints) forget(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.refused, uid)
}

// any reports whether there is anybody whom an event could concern.
func (h *hints) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.refused) > 0 || h.judging != ""
}

// begin says that a pod is about to be judged; goesOn: it is still.
func (h *hints) begin(uid types.UID, goesOn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.judging, h.during, h.lost = uid, nil, false
	if !goesOn {
		delete(h.refused, uid)
	}
}

// end says what plugins have said of the pod that was about to be judged. What has happened since begin is asked about now.
func (h *hints) end(ctx context.Context, pod *v1.Pod, verdicts []*fwk.Status) {
	r := refusal{cache.NewObjectName(pod.Namespace, pod.Name).String(), sets.New[string](), sets.New[string]()}
	for _, s := range verdicts {
		if s == nil {
			continue
		}
		r.by.Insert(s.Plugin())
		if s.Code() == fwk.Pending {
			r.pending.Insert(s.Plugin())
		}
	}
	h.mu.Lock()
	during, lost := h.during, h.lost
	h.judging, h.during, h.lost = "", nil, false
	if len(r.by) == 0 || h.get(r.key, pod.UID) == nil { // of one that is gone, nobody will say so any more
		h.mu.Unlock()
		return
	}
	if was, ok := h.refused[pod.UID]; ok { // of other nodes, in the same attempt
		r.by, r.pending = r.by.Union(was.by), r.pending.Union(was.pending)
	}
	h.refused[pod.UID] = r
	h.mu.Unlock()
	if lost {
		h.tell.Wake(string(pod.UID))
		return
	}
	for _, e := range during {
		h.ask(ctx, e, map[types.UID]refusal{pod.UID: r})
	}
}

// get returns a pod that waits, nil if it is gone or does not wait any more.
func (h *hints) get(key string, uid types.UID) *v1.Pod {
	object, ok, err := h.pods.GetByKey(key)
	if pod, is := object.(*v1.Pod); err == nil && ok && is && pod.UID == uid && pod.Spec.NodeName == "" {
		return pod
	}
	return nil
}

// happens hears that something has happened.
func (h *hints) happens(e happening) {
	h.mu.Lock()
	if h.judging != "" && (e.of == "" || e.of == h.judging) {
		if h.lost = h.lost || len(h.during) == mostDuring; !h.lost {
			h.during = append(h.during, e)
		}
	}
	waiting := make(map[types.UID]refusal)
	for uid, r := range h.refused {
		if e.of == "" || e.of == uid {
			waiting[uid] = r
		}
	}
	h.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	defer cancel()
	h.ask(ctx, e, waiting)
}

// ask has pods tried for which plugins want that behind an event. If a plugin hangs when ctx has ended, so does the process.
func (h *hints) ask(ctx context.Context, e happening, waiting map[types.UID]refusal) {
	h.asking.Lock()
	defer h.asking.Unlock()
	defer watch(ctx)()
	var now, later []string
	for uid, r := range waiting {
		pod := h.get(r.key, uid)
		if pod == nil {
			continue
		}
		switch worth, pending := h.worth(pod, r, e); {
		case pending:
			now = append(now, string(uid))
		case worth:
			later = append(later, string(uid))
		}
	}
	h.tell.Activate(now...)
	h.tell.Wake(later...)
}

// worth reports whether some plugin that has refused a pod wants it tried behind an event, and whether one does that waits for something: kube-scheduler's isPodWorthRequeuing.
func (h *hints) worth(pod *v1.Pod, r refusal, e happening) (worth, pending bool) {
	for _, at := range h.registered {
		if !r.by.Has(at.plugin) || !at.asked && e.of == "" || worth && !r.pending.Has(at.plugin) {
			continue
		}
		if !slices.ContainsFunc(e.events, func(is fwk.ClusterEvent) bool { return framework.MatchClusterEvents(at.event, is) }) {
			continue
		}
		if at.hint != nil {
			switch says, err := at.hint(klog.Background(), pod, e.before, e.after); {
			case err != nil:
				klog.Background().Error(err, "A plugin does not say whether a pod is worth trying: it is tried", "plugin", at.plugin, "pod", klog.KObj(pod))
			case says == fwk.QueueSkip:
				continue
			}
		}
		if worth = true; r.pending.Has(at.plugin) {
			return true, true
		}
	}
	return worth, false
}

// customInformers returns informers of resources that client-go knows nothing of, and what starts and ends them. Nothing is made unless somebody asks for one.
func customInformers(ctx context.Context, cfg *restclient.Config) (of func(schema.GroupVersionResource) (cache.SharedIndexInformer, error), start, end func()) {
	var factory dynamicinformer.DynamicSharedInformerFactory
	of = func(resource schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
		if factory == nil {
			client, err := dynamic.NewForConfig(restclient.AddUserAgent(restclient.CopyConfig(cfg), "berth-plugins"))
			if err != nil {
				return nil, err
			}
			factory = dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
		}
		return factory.ForResource(resource).Informer(), nil
	}
	start = func() {
		if factory != nil {
			factory.Start(ctx.Done())
		}
	}
	end = func() {
		if factory != nil {
			factory.Shutdown()
		}
	}
	return of, start, end
}
