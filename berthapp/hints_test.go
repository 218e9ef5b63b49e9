package berthapp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// told is what Berth has been told, "now p" or "p".
type told struct {
	hints *hints
	pods  []string
}

func (t *told) Activate(uids ...string) {
	for _, uid := range uids {
		t.pods = append(t.pods, "now "+uid)
	}
}

func (t *told) Wake(uids ...string) { t.pods = append(t.pods, uids...) }

// take has plugins asked about what has happened, and returns what Berth is told.
func (t *told) take() []string {
	for len(t.hints.toAsk) > 0 {
		t.hints.ask(<-t.hints.toAsk)
	}
	pods := t.pods
	t.pods = nil
	slices.Sort(pods)
	return pods
}

// registers is a plugin that registers events.
type registers struct {
	name   string
	events []fwk.ClusterEventWithHint
	err    error
}

func (r registers) Name() string { return r.name }

func (r registers) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return r.events, r.err
}

const foos fwk.EventResource = "foos.v1.example.com"

// of returns an event of which a plugin says so.
func of(resource fwk.EventResource, action fwk.ActionType, says fwk.QueueingHint, err error) fwk.ClusterEventWithHint {
	return fwk.ClusterEventWithHint{
		Event:          fwk.ClusterEvent{Resource: resource, ActionType: action},
		QueueingHintFn: func(klog.Logger, *v1.Pod, any, any) (fwk.QueueingHint, error) { return says, err },
	}
}

// newTestHints returns hints of plugins: Queues, Skips and Fails register what becomes of foos, Labels the labels of pods, and Silent nothing.
func newTestHints(t *testing.T) (*hints, *told, map[schema.GroupVersionResource]bool) {
	t.Helper()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0) // never started
	watched := make(map[schema.GroupVersionResource]bool)
	h, err := newHints(t.Context(), []fwk.EnqueueExtensions{
		registers{name: "Queues", events: []fwk.ClusterEventWithHint{of(foos, fwk.Add|fwk.Delete, fwk.Queue, nil), of(fwk.Node, fwk.Add, fwk.Queue, nil)}},
		registers{name: "Skips", events: []fwk.ClusterEventWithHint{of(foos, fwk.Add|fwk.Update, fwk.QueueSkip, nil)}},
		registers{name: "Fails", events: []fwk.ClusterEventWithHint{of(foos, fwk.Add, fwk.QueueSkip, errors.New("oh no"))}},
		registers{name: "Labels", events: []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.UpdatePodLabel}}}},
		registers{name: "Silent", events: framework.UnrollWildCardResource()},
	}, sets.New("Queues", "Skips", "Fails", "Labels"), factory.Core().V1().Pods().Informer().GetIndexer(), informersOf{factory, func(resource schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
		watched[resource] = true
		return factory.Core().V1().ConfigMaps().Informer(), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	heard := &told{hints: h}
	h.tell, h.timeout = heard, time.Hour
	return h, heard, watched
}

// waits has a pod that plugins have refused.
func (h *hints) waits(t *testing.T, name string, code fwk.Code, by ...string) *v1.Pod {
	t.Helper()
	pod := podNamed(name)
	if err := h.pods.Add(pod); err != nil {
		t.Fatal(err)
	}
	h.begin(false)
	h.end(pod, refusedBy(code, by...), nil, false)
	return pod
}

// isGated has a pod that a plugin gates.
func (h *hints) isGated(t *testing.T, name, by string) *v1.Pod {
	t.Helper()
	pod := podNamed(name)
	if err := h.pods.Add(pod); err != nil {
		t.Fatal(err)
	}
	h.enter(pod.UID)
	h.entered(pod, by)
	return pod
}

// judgedNow says that a pod has been judged.
func (h *hints) judgedNow(pod *v1.Pod, by string, goesOn bool) {
	h.end(pod, refusedBy(fwk.Unschedulable, by), nil, goesOn)
}

func refusedBy(code fwk.Code, by ...string) []*fwk.Status {
	verdicts := []*fwk.Status{nil}
	for _, name := range by {
		verdicts = append(verdicts, fwk.NewStatus(code, "no").WithPlugin(name))
	}
	return verdicts
}

// Who is tried behind an event is whom a plugin that has refused it wants tried then; at once if that plugin waits for it.
func TestPluginsSayWhoIsTriedBehindAnEvent(t *testing.T) {
	h, heard, watched := newTestHints(t)
	if want := (schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "foos"}); len(watched) != 1 || !watched[want] {
		t.Errorf("watched: %v, want %v", watched, want)
	}
	on := h.handler(foos, fwk.Add|fwk.Update|fwk.Delete)
	for _, tt := range []struct {
		name string
		is   func()
		want []string
	}{
		{"an object has come", func() { on.OnAdd(&v1.ConfigMap{}, false) }, []string{"fails", "now pends", "queues"}},
		{"one has changed", func() { on.OnUpdate(&v1.ConfigMap{}, &v1.ConfigMap{}) }, nil},
		{"one is gone", func() { on.OnDelete(cache.DeletedFinalStateUnknown{Obj: &v1.ConfigMap{}}) }, []string{"now pends", "queues"}},
	} {
		h.waits(t, "queues", fwk.Unschedulable, "Queues")
		h.waits(t, "pends", fwk.Pending, "Skips", "Queues")
		h.waits(t, "skips", fwk.UnschedulableAndUnresolvable, "Skips")
		h.waits(t, "fails", fwk.Unschedulable, "Skips", "Fails")
		h.waits(t, "silent", fwk.Unschedulable, "Silent")
		h.waits(t, "placed", fwk.Unschedulable)
		tt.is()
		if diff := cmp.Diff(tt.want, heard.take()); diff != "" {
			t.Errorf("%s: tried (-want +got):\n%s", tt.name, diff)
		}
	}
	only := h.handler(foos, fwk.Delete)
	if only.AddFunc != nil || only.UpdateFunc != nil || only.DeleteFunc == nil {
		t.Error("of a resource, more or less is heard than is registered")
	}
}

// A pod that has changed itself is tried if a plugin that has refused it registers that, or registers nothing. A change of a pod that is placed may matter to all.
func TestPodsThatChangeMayBeTried(t *testing.T) {
	h, heard, _ := newTestHints(t)
	changed := func(pod *v1.Pod, change func(*v1.Pod)) *v1.Pod {
		out := pod.DeepCopy()
		out.ResourceVersion += "1"
		change(out)
		return out
	}
	labelled := func(pod *v1.Pod) { pod.Labels = map[string]string{"a": "b"} }
	annotated := func(pod *v1.Pod) { pod.Annotations = map[string]string{"a": "b"} }
	placed := changed(podNamed("placed"), func(pod *v1.Pod) { pod.Spec.NodeName = "n" })
	for _, tt := range []struct {
		name   string
		pod    *v1.Pod
		change func(*v1.Pod)
		want   []string
	}{
		{"its labels", podNamed("labels"), labelled, []string{"labels"}},
		{"its annotations", podNamed("labels"), annotated, nil},
		{"annotations, and its plugin registers nothing", podNamed("silent"), annotated, []string{"silent"}},
		{"labels of a pod that is placed", placed, labelled, []string{"labels", "silent"}},
		{"annotations of a pod that is placed", placed, annotated, []string{"silent"}},
		{"the status of a pod that is placed", placed, func(pod *v1.Pod) { pod.Status.Reason = "new" }, []string{"silent"}},
		{"labels of a pod that nobody has refused", podNamed("other"), labelled, nil},
		{"nothing", podNamed("labels"), nil, nil},
	} {
		h.waits(t, "labels", fwk.Unschedulable, "Labels")
		h.waits(t, "silent", fwk.Unschedulable, "Silent")
		h.waits(t, "queues", fwk.Unschedulable, "Queues")
		is := tt.pod
		if tt.change != nil {
			is = changed(tt.pod, tt.change)
		}
		h.podChanged(tt.pod, is)
		if diff := cmp.Diff(tt.want, heard.take()); diff != "" {
			t.Errorf("%s: tried (-want +got):\n%s", tt.name, diff)
		}
	}
}

// What happens while a pod is judged is asked about when that is over, and what happened before is not: plugins have seen it.
func TestWhatHappensWhileAPodIsJudged(t *testing.T) {
	h, heard, _ := newTestHints(t)
	pod := h.waits(t, "p", fwk.Unschedulable, "Skips")
	on := h.handler(foos, fwk.Add)
	tried := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, heard.take()); diff != "" {
			t.Errorf("%s: tried (-want +got):\n%s", what, diff)
		}
	}
	h.begin(false)
	on.OnAdd(&v1.ConfigMap{}, false)
	tried("amid the attempt")
	h.judgedNow(pod, "Skips", false)
	tried("refused by who does not want it tried")
	h.begin(true)
	h.judgedNow(pod, "Queues", true) // its other nodes
	tried("refused by who wants that, of other nodes", "p")
	if by := h.refused[pod.UID].by; !by.Equal(sets.New("Skips", "Queues")) {
		t.Errorf("it is refused by %v", by)
	}
	h.begin(false)
	h.judgedNow(pod, "Queues", false)
	tried("anew, and nothing has happened since")
	changed := pod.DeepCopy()
	changed.ResourceVersion, changed.Labels = "9", map[string]string{"a": "b"}
	h.begin(false)
	h.podChanged(pod, changed)
	h.judgedNow(pod, "Labels", false)
	tried("it has changed itself", "p")
	h.begin(false)
	h.podChanged(podNamed("other"), changed)
	h.judgedNow(pod, "Queues", false)
	tried("another one has")
	h.begin(false)
	h.forget(pod.UID)
	for range mostDuring + 1 {
		on.OnAdd(&v1.ConfigMap{}, false)
	}
	h.judgedNow(pod, "Skips", false)
	tried("more has happened than is kept", "p")
	// Berth had read it before it changed, and it was judged as it had been.
	if err := h.pods.Update(changed); err != nil {
		t.Fatal(err)
	}
	h.begin(false)
	h.judgedNow(pod, "Skips", false)
	tried("it was judged as it had been", "p")
	status := changed.DeepCopy()
	status.ResourceVersion, status.Status.Reason = "10", "new"
	h.begin(false)
	h.judgedNow(status, "Skips", false)
	tried("nothing has changed but its status")
}

// Who is to be tried is not asked about again until it has been.
func TestWhoIsToBeTriedIsToldOnce(t *testing.T) {
	h, heard, _ := newTestHints(t)
	pod := h.waits(t, "p", fwk.Unschedulable, "Queues")
	on := h.handler(foos, fwk.Add)
	for _, want := range [][]string{{"p"}, nil} {
		on.OnAdd(&v1.ConfigMap{}, false)
		if diff := cmp.Diff(want, heard.take()); diff != "" {
			t.Errorf("tried (-want +got):\n%s", diff)
		}
	}
	h.begin(false)
	h.judgedNow(pod, "Queues", false)
	on.OnAdd(&v1.ConfigMap{}, false)
	if diff := cmp.Diff([]string{"p"}, heard.take()); diff != "" {
		t.Errorf("refused again: tried (-want +got):\n%s", diff)
	}
}

// Of a pod that does not wait any more, nothing is kept.
func TestNothingIsKeptOfPodsThatDoNotWait(t *testing.T) {
	h, heard, _ := newTestHints(t)
	bound := h.waits(t, "bound", fwk.Unschedulable, "Queues")
	is := bound.DeepCopy()
	is.Spec.NodeName = "n"
	h.podChanged(bound, is)
	h.podGone(cache.DeletedFinalStateUnknown{Obj: h.waits(t, "gone", fwk.Unschedulable, "Queues")})
	was := h.waits(t, "made anew", fwk.Unschedulable, "Queues")
	h.podChanged(was, podNamed("another"))
	h.forget(h.waits(t, "reserved", fwk.Unschedulable, "Queues").UID)
	fits := h.waits(t, "fits", fwk.Unschedulable, "Queues")
	h.end(fits, refusedBy(fwk.Unschedulable), nil, false)
	unknown := podNamed("unknown")
	h.begin(false)
	h.end(unknown, refusedBy(fwk.Unschedulable, "Queues"), nil, false)
	if len(h.refused) != 0 {
		t.Errorf("kept: %v", h.refused)
	}
	// What has happened to one that the informer does not know yet, nobody would say: it is tried in any case.
	if diff := cmp.Diff([]string{"unknown"}, heard.take()); diff != "" {
		t.Errorf("tried (-want +got):\n%s", diff)
	}
	late := h.waits(t, "late", fwk.Unschedulable, "Queues")
	if err := h.pods.Delete(late); err != nil { // nobody has been told so yet
		t.Fatal(err)
	}
	h.handler(foos, fwk.Add).OnAdd(&v1.ConfigMap{}, false)
	if got := heard.take(); got != nil {
		t.Errorf("%q are tried", got)
	}
}

func TestEventsThatCannotBeRegisteredAreAnError(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	pods := factory.Core().V1().Pods().Informer().GetIndexer()
	custom := func(schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
		return nil, errors.New("no client")
	}
	for want, plugin := range map[string]registers{
		`events of plugin "P": oh no`:          {name: "P", err: errors.New("oh no")},
		"watch foos.v1.example.com: no client": {name: "P", events: []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: foos, ActionType: fwk.Add}}}},
		"<nil>":                                {name: "P", events: []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.CSINode, ActionType: fwk.Add}}}},
	} {
		if _, err := newHints(t.Context(), []fwk.EnqueueExtensions{plugin}, sets.New("P"), pods, informersOf{factory, custom}); fmt.Sprint(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A pod is refused by all plugins that have chosen nodes for it, whichever a verdict names, if any.
func TestAPodIsRefusedByAllWhoHaveChosenNodes(t *testing.T) {
	h, heard, _ := newTestHints(t)
	pod := podNamed("p")
	if err := h.pods.Add(pod); err != nil {
		t.Fatal(err)
	}
	h.begin(false)
	h.end(pod, refusedBy(fwk.UnschedulableAndUnresolvable, ""), []string{"Queues", "Skips"}, false)
	h.handler(foos, fwk.Add).OnAdd(&v1.ConfigMap{}, false)
	if diff := cmp.Diff([]string{"p"}, heard.take()); diff != "" {
		t.Errorf("tried (-want +got):\n%s", diff)
	}
}

// Events of Kubernetes' own resources are heard too if a plugin registers them: what it reads there may be older than what Berth knows.
func TestNodesAndPlacedPodsMayHavePodsTried(t *testing.T) {
	h, heard, _ := newTestHints(t)
	h.registered = append(h.registered, registered{fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add | fwk.Delete}, "Placed", nil},
		registered{fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}, "Nodes", nil})
	on := podNamed("on a node")
	on.Spec.NodeName = "n"
	node, labelled := &v1.Node{}, &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}
	for _, tt := range []struct {
		name string
		is   func()
		want []string
	}{
		{"a pod is placed", func() { h.podAdded(on) }, []string{"placed", "silent"}},
		{"a pod that waited is", func() { h.podChanged(podNamed("on a node"), on) }, []string{"placed", "silent"}},
		{"one waits", func() { h.podAdded(podNamed("another")) }, nil},
		{"one is gone", func() { h.podGone(on) }, []string{"placed", "silent"}},
		{"one that waited is gone", func() { h.podGone(podNamed("another")) }, nil},
		{"a node has come", func() { h.nodeHandler().OnAdd(node, false) }, []string{"nodes", "silent"}},
		{"it is told again", func() { h.nodeHandler().OnUpdate(node, node) }, nil},
		{"its labels have changed", func() { h.nodeHandler().OnUpdate(node, labelled) }, []string{"nodes", "silent"}},
		{"it is gone", func() { h.nodeHandler().OnDelete(node) }, []string{"silent"}},
	} {
		h.waits(t, "placed", fwk.Unschedulable, "Placed")
		h.waits(t, "nodes", fwk.Unschedulable, "Nodes")
		h.waits(t, "silent", fwk.Unschedulable, "Silent")
		tt.is()
		if diff := cmp.Diff(tt.want, heard.take()); diff != "" {
			t.Errorf("%s: tried (-want +got):\n%s", tt.name, diff)
		}
	}
}

// What happens while plugins judge a pod is asked about in a process that runs, and what becomes of an earlier placement takes nothing back of what plugins have said since.
func TestEventsAmidVerdictsAreHeardInAProcess(t *testing.T) {
	pod := podNamed("p")
	w := newWalk(t, pod)
	h := w.host.profile.Load().hints
	h.registered = append(h.registered, registered{event: fwk.ClusterEvent{Resource: foos, ActionType: fwk.Add}, plugin: "called A"})
	w.step(reserve, "p", "A", "B")
	w.expect("2")
	happens := func() { h.handler(foos, fwk.Add).OnAdd(&v1.ConfigMap{}, false) }
	w.say("a filter p", func() *fwk.Status {
		happens()
		return fwk.NewStatus(fwk.Unschedulable, "no")
	})
	ctx, cancel := context.WithCancel(t.Context())
	w.judgesOn(ctx, "p")
	w.expect("0 wakes [p]")
	cancel()
	w.say("a filter p", always(fwk.Unschedulable, "no"))
	w.judges("p")
	w.step(unreserve, "p", "A", "B")
	w.expect("3")
	happens()
	w.expect("0 wakes [p]")
}

// However much happens, who tells of it does not wait: of more than is kept, all are tried that are refused.
func TestMoreHappensThanPluginsCanBeAskedAbout(t *testing.T) {
	h, heard, _ := newTestHints(t)
	h.waits(t, "p", fwk.Unschedulable, "Skips")
	on := h.handler(foos, fwk.Add)
	for range mostToAsk {
		on.OnAdd(&v1.ConfigMap{}, false)
	}
	if got := heard.take(); got != nil {
		t.Errorf("%q are tried", got)
	}
	for range mostToAsk + 1 {
		on.OnAdd(&v1.ConfigMap{}, false)
	}
	if diff := cmp.Diff([]string{"p"}, heard.take()); diff != "" {
		t.Errorf("tried (-want +got):\n%s", diff)
	}
}
