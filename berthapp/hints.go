package berthapp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// hints have pods tried again that plugins have refused, when something has happened for which the plugins want that: as kube-scheduler's queue does. The events are those of the process' own informers, which plugins read,
// so that what they say of an event is of a state that has it. Of nodes, volumes and what is placed where Berth's log tells too, and behind that Berth tries these pods in any case, but for those that a plugin gates at PreEnqueue,
// which nobody else has tried. It is safe for concurrent use; plugins are asked by run alone, one at a time, as in kube-scheduler.
type hints struct {
	registered []registered
	pods       cache.Indexer // of all pods, as the informer has them that tells of them
	tell       teller
	timeout    time.Duration // of a plugin that is asked about one pod
	line       line

	mu       sync.Mutex
	refused  map[types.UID]refusal // pods that plugins have refused, or gate
	judging  since                 // a pod has begun to be judged, the last that has
	entering since                 // it has begun to be asked whether a pod may be tried, the last: that is one at a time
	all      bool                  // more has happened than can be asked about: all are tried that are refused
	toAsk    chan toAsk
	turn     chan struct{} // who has put something in asks a plugin what kube-scheduler asks with its queue locked: whether a pod may be tried, or is worth trying behind an event
}

// since is what has happened since something.
type since struct {
	during []happening
	lost   bool // more than mostDuring has
}

func (s *since) add(e happening) {
	if s.lost = s.lost || len(s.during) == mostDuring; !s.lost {
		s.during = append(s.during, e)
	}
}

// toAsk is what plugins are to be asked about: what has happened, to all pods that they have refused by now, or to one that was judged meanwhile.
type toAsk struct {
	uid  types.UID // "": all
	what []happening
}

// mostToAsk are as many events, and pods that were judged meanwhile, as plugins are still to be asked about: who tells of events does not wait for them.
const mostToAsk = 1000

// mostDuring are as many events as are kept since a pod has begun to be judged. With more, it is tried again in any case.
const mostDuring = 100

// registered is an event that a plugin has registered, and what it says of it; nil: pods are worth trying.
type registered struct {
	event  fwk.ClusterEvent
	plugin string
	hint   fwk.QueueingHintFn
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
	told        bool // it is to be tried: until it has been, nobody is asked
	gated       bool // by a plugin at PreEnqueue: it is not judged
}

// happening is what has happened: several events of one change.
type happening struct {
	events        []fwk.ClusterEvent
	before, after any
	of            types.UID // the only pod that it concerns; "": any
	gated         bool      // it concerns those alone that a plugin gates: of the others Berth knows
}

// newHints returns the hints of the plugins of a framework, of which some register events themselves, or run at PreEnqueue: pods that these gate are tried behind nothing else. It has informers tell of those that it takes.
func newHints(ctx context.Context, extensions []fwk.EnqueueExtensions, register sets.Set[string], pods cache.Indexer, informers informersOf) (*hints, error) {
	h := &hints{pods: pods, refused: make(map[types.UID]refusal), toAsk: make(chan toAsk, mostToAsk), turn: make(chan struct{}, 1)}
	actions := make(map[fwk.EventResource]fwk.ActionType)
	for _, plugin := range extensions {
		events, err := plugin.EventsToRegister(ctx)
		if err != nil {
			return nil, fmt.Errorf("events of plugin %q: %w", plugin.Name(), err)
		}
		for _, e := range events {
			h.registered = append(h.registered, registered{e.Event, plugin.Name(), e.QueueingHintFn})
			switch {
			case e.Event.Resource == fwk.WildCard:
				for _, each := range known {
					actions[each] |= fwk.All
				}
			case register.Has(plugin.Name()) || e.Event.Resource == fwk.Node: // else Berth's log is enough
				actions[e.Event.Resource] |= e.Event.ActionType
			}
		}
	}
	for resource, takes := range actions {
		informer, err := informers.of(resource)
		switch {
		case err != nil:
		case informer == nil:
			continue
		case resource == fwk.Node:
			_, err = informer.AddEventHandler(h.nodeHandler())
		default:
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

// nodeHandler hears what happens to nodes.
func (h *hints) nodeHandler() cache.ResourceEventHandlerFuncs {
	funcs := h.handler(fwk.Node, fwk.All)
	funcs.UpdateFunc = func(before, after any) {
		was, is := before.(*v1.Node), after.(*v1.Node)
		if events := framework.NodeSchedulingPropertiesChange(is, was); len(events) > 0 {
			h.happens(happening{events: events, before: was, after: is})
		}
	}
	return funcs
}

// podAdded hears that there is a pod.
func (h *hints) podAdded(object any) {
	if pod := object.(*v1.Pod); pod.Spec.NodeName != "" {
		h.happens(happening{events: []fwk.ClusterEvent{framework.EventAssignedPodAdd}, after: pod})
	}
}

// podChanged hears that a pod has changed.
func (h *hints) podChanged(before, after any) {
	was, is := before.(*v1.Pod), after.(*v1.Pod)
	switch {
	case was.UID != is.UID: // it was deleted and made again between two looks
		h.podGone(was)
		h.podAdded(is)
	case was.Spec.NodeName == "" && is.Spec.NodeName != "":
		h.leaves(is.UID)
		h.podAdded(is)
	case was.ResourceVersion != is.ResourceVersion:
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
	pod, ok := object.(*v1.Pod)
	if !ok {
		return
	}
	h.leaves(pod.UID)
	if pod.Spec.NodeName != "" {
		h.happens(happening{events: []fwk.ClusterEvent{framework.EventAssignedPodDelete}, before: pod})
	}
}

// givenBack hears that a pod does not go to a node after all, where it was reserved: kube-scheduler has that heard as if it had been deleted there.
func (h *hints) givenBack(pod *v1.Pod) {
	h.happens(happening{events: []fwk.ClusterEvent{framework.EventAssignedPodDelete}, before: pod, gated: true})
}

// leaves hears that a pod waits no more.
func (h *hints) leaves(uid types.UID) {
	h.forget(uid)
	h.line.remove(uid)
}

func (h *hints) forget(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.refused, uid)
}

// begin says that pods are about to be judged, in a state that is taken up from here on; goesOn: they are still.
func (h *hints) begin(goesOn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !goesOn {
		h.judging = since{}
	}
}

// end says what plugins have said of a pod that was about to be judged, and which have chosen nodes for it; goesOn: they have said it of other nodes before. It does not wait: what has happened since begin is asked
// about behind it.
func (h *hints) end(pod *v1.Pod, verdicts []*fwk.Status, chose []string, goesOn bool) {
	r := refusal{key: cache.NewObjectName(pod.Namespace, pod.Name).String(), by: sets.New[string](), pending: sets.New[string]()}
	for _, s := range verdicts {
		if s == nil {
			continue
		}
		r.by.Insert(s.Plugin()).Insert(chose...)
		if s.Code() == fwk.Pending {
			r.pending.Insert(s.Plugin())
		}
	}
	h.mu.Lock()
	during, lost := slices.Clone(h.judging.during), h.judging.lost
	is := h.get(r.key, pod.UID)
	known := is != nil
	if known && is.ResourceVersion != pod.ResourceVersion { // it may have changed between when Berth has read it and begin
		lost = lost || !maps.Equal(is.Labels, pod.Labels) || !maps.Equal(is.Annotations, pod.Annotations) || !equality.Semantic.DeepEqual(is.Spec, pod.Spec)
	}
	was, ok := h.refused[pod.UID]
	if ok && was.gated { // meanwhile: who has judged it is late
		h.mu.Unlock()
		return
	}
	if ok && goesOn {
		r.by, r.pending, r.told = r.by.Union(was.by), r.pending.Union(was.pending), was.told
	}
	if len(r.by) > 0 && known {
		h.refused[pod.UID] = r
	} else {
		delete(h.refused, pod.UID)
	}
	h.mu.Unlock()
	switch {
	case len(r.by) == 0:
		return
	case !known: // the informer has not told of it yet, or that it is gone: what it has missed nobody knows
		lost = true
	case len(during) > 0 && !lost:
		h.later(toAsk{pod.UID, during})
	}
	if lost {
		h.tell.Wake(string(pod.UID))
	}
}

// enter says that plugins are about to say whether a pod may be tried, by what they read from here on: what was said of it before is void. The next comes when that is over.
func (h *hints) enter(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.entering = since{}
	delete(h.refused, uid)
}

// entered says what plugins have said of a pod since enter: which gates it, or "". That one waits for something is nothing special here, as in kube-scheduler. It does not wait, as end.
func (h *hints) entered(pod *v1.Pod, by string) {
	r := refusal{key: cache.NewObjectName(pod.Namespace, pod.Name).String(), by: sets.New(by), pending: sets.New[string](), gated: true}
	h.mu.Lock()
	is := h.entering
	h.entering = since{}
	waits := by != "" && h.get(r.key, pod.UID) != nil
	if waits {
		h.refused[pod.UID] = r
	} else {
		delete(h.refused, pod.UID)
	}
	h.mu.Unlock()
	switch {
	case !waits:
	case is.lost:
		h.tell.Wake(string(pod.UID))
	case len(is.during) > 0:
		h.later(toAsk{pod.UID, is.during})
	}
}

// later has plugins asked by run.
func (h *hints) later(is toAsk) {
	select {
	case h.toAsk <- is:
	default:
		h.mu.Lock()
		h.all = true
		h.mu.Unlock()
	}
}

// run asks plugins about what has happened, until ctx ends.
func (h *hints) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case is := <-h.toAsk:
			h.ask(is)
		}
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

// concerns reports whether a plugin is to be asked about an event that it may have registered.
func (at *registered) concerns(e *happening) bool {
	return slices.ContainsFunc(e.events, func(is fwk.ClusterEvent) bool { return framework.MatchClusterEvents(at.event, is) })
}

// happens hears that something has happened.
func (h *hints) happens(e happening) {
	if !slices.ContainsFunc(h.registered, func(at registered) bool { return at.concerns(&e) }) {
		return
	}
	h.mu.Lock()
	if !e.gated {
		h.judging.add(e)
	}
	h.entering.add(e)
	any := len(h.refused) > 0
	h.mu.Unlock()
	if any {
		h.later(toAsk{e.of, []happening{e}})
	}
}

// ask has pods tried for which plugins want that.
func (h *hints) ask(is toAsk) {
	h.mu.Lock()
	all := h.all
	h.all = false
	waiting := make(map[types.UID]refusal)
	if is.uid == "" || all {
		maps.Copy(waiting, h.refused)
	} else if r, ok := h.refused[is.uid]; ok {
		waiting[is.uid] = r
	}
	h.mu.Unlock()
	var now, later []string
	for uid, r := range waiting {
		pod := h.get(r.key, uid)
		if r.told || pod == nil {
			continue
		}
		worth, pending := all, false
		for k := 0; k < len(is.what) && !pending; k++ {
			if e := &is.what[k]; (e.of == "" || e.of == uid) && (r.gated || !e.gated) {
				tried, waits := h.worth(pod, r, e)
				worth, pending = worth || tried, waits
			}
		}
		switch {
		case pending:
			now = append(now, string(uid))
		case worth:
			later = append(later, string(uid))
		default:
			continue
		}
		h.mu.Lock()
		if is, ok := h.refused[uid]; ok && is.by.Equal(r.by) {
			is.told = true
			h.refused[uid] = is
		}
		h.mu.Unlock()
	}
	h.tell.Activate(now...)
	h.tell.Wake(later...)
}

// worth reports whether some plugin that has refused a pod wants it tried behind an event, and whether one does that waits for something: kube-scheduler's isPodWorthRequeuing.
func (h *hints) worth(pod *v1.Pod, r refusal, e *happening) (worth, pending bool) {
	for k := range h.registered {
		at := &h.registered[k]
		if !r.by.Has(at.plugin) || worth && !r.pending.Has(at.plugin) || !at.concerns(e) {
			continue
		}
		if !h.says(at, pod, e) {
			continue
		}
		if worth = true; r.pending.Has(at.plugin) {
			return true, true
		}
	}
	return worth, false
}

// says reports whether a plugin wants a pod tried behind an event that it has registered. One that hangs ends the process.
func (h *hints) says(at *registered, pod *v1.Pod, e *happening) bool {
	if at.hint == nil {
		return true
	}
	h.turn <- struct{}{}
	defer func() { <-h.turn }()
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	defer cancel()
	defer watch(ctx)()
	says, err := at.hint(klog.Background(), pod, e.before, e.after)
	if err != nil {
		klog.Background().Error(err, "A plugin does not say whether a pod is worth trying: it is tried", "plugin", at.plugin, "pod", klog.KObj(pod))
	}
	return err != nil || says != fwk.QueueSkip
}

// informersOf are the informers of a process, by what events are about.
type informersOf struct {
	known  informers.SharedInformerFactory
	custom func(schema.GroupVersionResource) (cache.SharedIndexInformer, error)
}

// known are the resources of Kubernetes' own, besides pods, of which somebody hears.
var known = []fwk.EventResource{fwk.Node, fwk.PersistentVolume, fwk.PersistentVolumeClaim, fwk.StorageClass, fwk.CSINode, fwk.CSIDriver, fwk.CSIStorageCapacity, fwk.VolumeAttachment}

// of returns the informer of what events are about, nil if nobody hears of these, or somebody else does.
func (i informersOf) of(resource fwk.EventResource) (cache.SharedIndexInformer, error) {
	switch resource {
	case fwk.Node:
		return i.known.Core().V1().Nodes().Informer(), nil
	case fwk.PersistentVolume:
		return i.known.Core().V1().PersistentVolumes().Informer(), nil
	case fwk.PersistentVolumeClaim:
		return i.known.Core().V1().PersistentVolumeClaims().Informer(), nil
	case fwk.StorageClass:
		return i.known.Storage().V1().StorageClasses().Informer(), nil
	case fwk.CSINode:
		return i.known.Storage().V1().CSINodes().Informer(), nil
	case fwk.CSIDriver:
		return i.known.Storage().V1().CSIDrivers().Informer(), nil
	case fwk.CSIStorageCapacity:
		return i.known.Storage().V1().CSIStorageCapacities().Informer(), nil
	case fwk.VolumeAttachment:
		return i.known.Storage().V1().VolumeAttachments().Informer(), nil
	}
	if strings.Count(string(resource), ".") < 2 || strings.Contains(string(resource), "/") { // pods, of which somebody hears, and what Berth knows nothing of: devices, pod groups, everything
		return nil, nil
	}
	gvr, _ := schema.ParseResourceArg(string(resource))
	return i.custom(*gvr)
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
