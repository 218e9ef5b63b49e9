package oracle

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	kubeconfigv1 "k8s.io/kubernetes/pkg/scheduler/apis/config/v1"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	kubepreemption "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/extender"
)

// Extenders are asked twice about the same pod and nodes: by kube-scheduler, with a profile that has no filters and no scores of its own, and by package
// extender. A server notes each request. Compared are the requests, to the byte, and what has become of the answers.
//
// kube-scheduler's own code runs: scheduler.New, which orders the extenders, SchedulePod, with the flow around Filter and Prioritize, and
// preemption's Evaluator, with the flow around ProcessPreemption. Two extenders of its own kind, at the ends of its list, tell which nodes come in and which
// are left; totals are read from its log. Only the flow around Bind is written anew here (bindUpstream): nothing that is exported has it.

// behaviour is what the server of an extender does with one verb.
type behaviour struct {
	Fails string                             // "": it does not; else see failures
	Other string                             // a name that the answer has too, behind the others, if it is not ""
	Form  string                             // of a filter's answer: names, nodes, both or neither
	Said  map[string]int                     // by node: at a filter what becomes of it, at a prioritizer its score, at preemption how many victims there are to be
	Meta  map[string]*extenderv1.MetaVictims // the answer about preemption, if it is given
}

// served is an extender's server: what it does, by verb.
type served struct {
	filter, prioritize, bind, preempt behaviour
}

// extenderCase is a pod, nodes, and extenders.
type extenderCase struct {
	pod       *v1.Pod
	nodes     []*v1.Node
	on        map[string][]*v1.Pod // pods, by node
	victims   map[string]*extenderv1.Victims
	extenders []configv1.Extender
	served    []served
}

// asked is a request that a server has got, without what is a matter of connections.
type asked struct {
	Method, Path, Proto string
	Header              http.Header
	Length              int64
	Body                string
}

// extenderServer serves the extenders of one case at a time, the one with the number i below /i/.
type extenderServer struct {
	mu    sync.Mutex
	of    *extenderCase
	asked []asked
}

// take returns what was asked since it was last called. Prioritizers are asked at the same time: they are in order of their number.
func (s *extenderServer) take() []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.asked
	s.asked = nil
	first := slices.IndexFunc(out, func(a asked) bool { return strings.HasSuffix(a.Path, "/prioritize") })
	if first >= 0 {
		slices.SortStableFunc(out[first:], func(a, b asked) int { return strings.Compare(a.Path, b.Path) })
	}
	return out
}

func (s *extenderServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, asked{r.Method, r.URL.Path, r.Proto, r.Header.Clone(), r.ContentLength, string(body)})
	var i int
	var verb string
	if _, err := fmt.Sscanf(r.URL.Path, "/%d/%s", &i, &verb); err != nil {
		panic(fmt.Sprintf("%s: %v", r.URL.Path, err))
	}
	of := &s.of.served[i]
	switch verb {
	case "filter":
		of.filter.answer(w, func() any { return of.filter.filtered(body) })
	case "prioritize":
		of.prioritize.answer(w, func() any { return of.prioritize.scored() })
	case "bind":
		of.bind.answer(w, func() any { return extenderv1.ExtenderBindingResult{} })
	case "preempt":
		of.preempt.answer(w, func() any { return of.preempt.preempted(s.of) })
	}
}

// failures are the ways in which a server fails; rarely, since nobody is asked behind one that does.
var failures = []string{"", "", "", "", "", "", "500", "garbage", "text", "half", "empty", "null", "nothing", "type"}

// answer writes an answer, or fails.
func (b *behaviour) answer(w http.ResponseWriter, answer func() any) {
	switch b.Fails {
	case "500":
		http.Error(w, "no", http.StatusInternalServerError)
	case "garbage":
		_, _ = io.WriteString(w, "<html>")
	case "text":
		_, _ = io.WriteString(w, `{"Error":"the extender is <out> of order"}`)
	case "half":
		_, _ = io.WriteString(w, `{"NodeNames":["n0"`)
	case "empty":
	case "null":
		_, _ = io.WriteString(w, " null")
	case "nothing":
		_, _ = io.WriteString(w, "{} and more")
	case "type":
		_, _ = io.WriteString(w, `{"NodeNames":"n0","Error":7,"NodeNameToMetaVictims":[]}`)
	default:
		encode(w, answer())
	}
}

// What becomes of a node at a filter.
const (
	left = iota
	leftAndChanged
	leftOut
	refused
	unresolvable
	refusedTwice
	leftAndRefused
	fates
)

// filtered is the answer to a filter.
func (b *behaviour) filtered(body []byte) any {
	var args extenderv1.ExtenderArgs
	if err := json.Unmarshal(body, &args); err != nil {
		panic(err)
	}
	nodes := &v1.NodeList{}
	if args.Nodes != nil {
		nodes.Items = args.Nodes.Items
	} else {
		for _, name := range *args.NodeNames {
			nodes.Items = append(nodes.Items, v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"known": "by name"}}})
		}
	}
	out := extenderv1.ExtenderFilterResult{Nodes: &v1.NodeList{}, NodeNames: &[]string{}}
	out.FailedNodes, out.FailedAndUnresolvableNodes = make(extenderv1.FailedNodesMap), make(extenderv1.FailedNodesMap)
	keep := func(n v1.Node) {
		out.Nodes.Items, *out.NodeNames = append(out.Nodes.Items, n), append(*out.NodeNames, n.Name)
	}
	for _, n := range slices.Backward(nodes.Items) {
		switch b.Said[n.Name] {
		case left:
			keep(n)
		case leftAndChanged:
			n.Labels = map[string]string{"changed": "<by> an extender"}
			keep(n)
		case refused:
			out.FailedNodes[n.Name] = "no & never " + n.Name
		case unresolvable:
			out.FailedAndUnresolvableNodes[n.Name] = "never " + n.Name
		case refusedTwice:
			out.FailedNodes[n.Name], out.FailedAndUnresolvableNodes[n.Name] = "once", "twice"
		case leftAndRefused:
			keep(n)
			out.FailedNodes[n.Name] = ""
		}
	}
	if b.Other != "" {
		keep(v1.Node{ObjectMeta: metav1.ObjectMeta{Name: b.Other}})
		out.FailedNodes["elsewhere"] = "is unknown"
	}
	switch b.Form {
	case "names":
		out.Nodes = nil
	case "nodes":
		out.NodeNames = nil
	case "neither":
		out.Nodes, out.NodeNames = nil, nil
	}
	return out
}

// scored is the answer to a prioritizer.
func (b *behaviour) scored() any {
	out := extenderv1.HostPriorityList{}
	for _, name := range slices.Sorted(maps.Keys(b.Said)) {
		out = append(out, extenderv1.HostPriority{Host: name, Score: int64(b.Said[name])})
	}
	if b.Other != "" {
		out = append(out, extenderv1.HostPriority{Host: b.Other, Score: 3})
	}
	return out
}

// preempted is the answer about preemption: some of the nodes, with other victims. One of them may be wrong.
func (b *behaviour) preempted(c *extenderCase) any {
	if b.Meta != nil {
		return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: b.Meta}
	}
	out := extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: make(map[string]*extenderv1.MetaVictims)}
	for name, n := range b.Said {
		pods := c.on[name]
		if n == 0 || len(pods) == 0 {
			continue
		}
		meta := &extenderv1.MetaVictims{NumPDBViolations: int64(n)}
		for k := range min(n, len(pods)) {
			meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(pods[len(pods)-1-k].UID)})
		}
		out.NodeNameToMetaVictims[name] = meta
	}
	if name := b.Other; name != "" { // a node without victims, or one that is unknown, or one with an unknown victim
		out.NodeNameToMetaVictims[name] = &extenderv1.MetaVictims{}
		if b.Form == "neither" {
			out.NodeNameToMetaVictims[name].Pods = []*extenderv1.MetaPod{{UID: "unknown"}}
		}
	}
	return out
}

// drawBehaviour draws what a server does: numbers of nodes, from 0 to most, and seldom a name that is none of theirs, or comes twice.
func drawBehaviour(t *rapid.T, nodes []*v1.Node, most int) (b behaviour) {
	b.Fails = rapid.SampledFrom(failures).Draw(t, "fails")
	b.Said = make(map[string]int)
	for _, n := range nodes {
		if b.Said[n.Name] = rapid.IntRange(-2, most).Draw(t, n.Name); b.Said[n.Name] < 0 {
			b.Said[n.Name] = 0
		}
	}
	b.Other = rapid.SampledFrom([]string{"", "", "", "", "n0", "unknown"}).Draw(t, "other")
	b.Form = rapid.SampledFrom([]string{"names", "names", "nodes", "nodes", "both", "both", "neither"}).Draw(t, "form")
	return b
}

// managedResources are those that pods may ask for and extenders may manage.
var managedResources = []string{"example.com/a", "example.com/b", "example.com/c"}

func drawExtenderCase(t *rapid.T, urls []string, tls []*configv1.ExtenderTLSConfig) *extenderCase {
	c := &extenderCase{on: make(map[string][]*v1.Pod), victims: make(map[string]*extenderv1.Victims)}
	odd := rapid.SampledFrom([]string{"plain", "<&>", "\u2028", "ü"})
	c.pod = named(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Annotations: map[string]string{"a": odd.Draw(t, "annotation")}}}, "p")
	container := func(name string) (out v1.Container) {
		out.Name = name
		for _, list := range []*v1.ResourceList{&out.Resources.Requests, &out.Resources.Limits} {
			if rapid.Bool().Draw(t, name+" has") {
				*list = v1.ResourceList{v1.ResourceName(rapid.SampledFrom(append([]string{"cpu"}, managedResources...)).Draw(t, "resource")): *plain("", 0).Status.Allocatable.Cpu()}
			}
		}
		return out
	}
	c.pod.Spec.Containers = []v1.Container{container("c")}
	if rapid.Bool().Draw(t, "inits") {
		c.pod.Spec.InitContainers = []v1.Container{container("i")}
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "nodes") {
		n := plain(fmt.Sprintf("n%d", i), 1)
		n.Labels = map[string]string{"label": odd.Draw(t, "label")}
		c.nodes = append(c.nodes, n)
		for k := range rapid.IntRange(0, 3).Draw(t, "pods") {
			p := named(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: v1.PodSpec{NodeName: n.Name}}, fmt.Sprintf("p%d-%d", i, k))
			c.on[n.Name] = append(c.on[n.Name], p)
		}
		if pods := c.on[n.Name]; len(pods) > 0 && rapid.Bool().Draw(t, "candidate") {
			c.victims[n.Name] = &extenderv1.Victims{Pods: pods[:rapid.IntRange(1, len(pods)).Draw(t, "victims")], NumPDBViolations: int64(rapid.IntRange(0, 2).Draw(t, "violations"))}
		}
	}
	verb := func(name string) string { return rapid.SampledFrom([]string{"", name, name, name}).Draw(t, "verb") }
	binds := -1
	for i := range rapid.IntRange(1, 4).Draw(t, "extenders") {
		where := rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "server")
		e := configv1.Extender{
			URLPrefix:  fmt.Sprintf("%s/%d%s", urls[where], i, strings.Repeat("/", rapid.IntRange(0, 2).Draw(t, "slashes"))),
			FilterVerb: verb("filter"), PrioritizeVerb: verb("prioritize"), PreemptVerb: verb("preempt"), Weight: rapid.Int64Range(1, 5).Draw(t, "weight"),
			NodeCacheCapable: rapid.Bool().Draw(t, "nodeCacheCapable"), Ignorable: rapid.Bool().Draw(t, "ignorable"), EnableHTTPS: where > 0, TLSConfig: tls[where],
			HTTPTimeout: metav1.Duration{Duration: time.Minute},
		}
		if binds < 0 && rapid.Bool().Draw(t, "binds") {
			e.BindVerb, binds = "bind", i
		}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(managedResources), 0, 2, rapid.ID).Draw(t, "managed") {
			e.ManagedResources = append(e.ManagedResources, configv1.ExtenderManagedResource{Name: name, IgnoredByScheduler: rapid.Bool().Draw(t, "ignored")})
		}
		c.extenders = append(c.extenders, e)
		s := served{
			filter: drawBehaviour(t, c.nodes, fates-1), prioritize: drawBehaviour(t, c.nodes, 12), bind: drawBehaviour(t, nil, 0), preempt: drawBehaviour(t, c.nodes, 3),
		}
		c.served = append(c.served, s)
	}
	return c
}

// extenderOutcome is what becomes of a pod.
type extenderOutcome struct {
	Asked   []asked
	Err     string
	Kept    []string
	Refused map[string]extender.Refusal // if nobody is left in the end
	Totals  map[string]int64
}

func (o *extenderOutcome) failed(err error) {
	if err != nil {
		o.Err = err.Error()
	}
}

// outermost is an extender at one end of kube-scheduler's list.
type outermost struct {
	fwk.Extender
	seen   []string
	passes bool
}

func (*outermost) Name() string              { return "outermost" }
func (*outermost) IsInterested(*v1.Pod) bool { return true }
func (*outermost) IsIgnorable() bool         { return false }
func (*outermost) IsFilter() bool            { return true }
func (*outermost) IsPrioritizer() bool       { return true }
func (o *outermost) Filter(_ *v1.Pod, nodes []fwk.NodeInfo) (left []fwk.NodeInfo, no, never extenderv1.FailedNodesMap, err error) {
	for _, n := range nodes {
		o.seen = append(o.seen, n.Node().Name)
	}
	if o.passes {
		left = nodes
	}
	return left, nil, nil, nil
}
func (*outermost) Prioritize(*v1.Pod, []fwk.NodeInfo) (*extenderv1.HostPriorityList, int64, error) {
	return &extenderv1.HostPriorityList{}, 0, nil
}

// totals is a log that keeps the totals of nodes that kube-scheduler tells there.
type totals struct {
	klog.LogSink
	of map[string]int64
}

func (*totals) Init(klog.RuntimeInfo)            {}
func (*totals) Enabled(int) bool                 { return true }
func (*totals) Error(error, string, ...any)      {}
func (s *totals) WithValues(...any) klog.LogSink { return s }
func (s *totals) WithName(string) klog.LogSink   { return s }
func (s *totals) Info(_ int, text string, kv ...any) {
	if text != "Calculated node's final score for pod" {
		return
	}
	values := make(map[any]any)
	for i := 0; i+1 < len(kv); i += 2 {
		values[kv[i]] = kv[i+1]
	}
	s.of[values["node"].(string)] = values["score"].(int64)
}

// extenderUpstream is a whole kube-scheduler with the extenders of a case.
type extenderUpstream struct {
	*scheduler.Scheduler
	framework.Framework
	pod   *framework.QueuedPodInfo
	other *config.NodeResourcesFitArgs // what its profile has been given
}

func newExtenderUpstream(t failer, c *extenderCase) *extenderUpstream {
	initMetrics()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.New(&totals{})))
	t.Cleanup(cancel)
	profile := defaultProfile(t)
	profile.Plugins = &config.Plugins{
		QueueSort: config.PluginSet{Enabled: []config.Plugin{{Name: names.PrioritySort}}}, Bind: config.PluginSet{Enabled: []config.Plugin{{Name: names.DefaultBinder}}},
	}
	extenders := make([]config.Extender, len(c.extenders))
	for i := range c.extenders {
		if err := kubeconfigv1.Convert_v1_Extender_To_config_Extender(&c.extenders[i], &extenders[i], nil); err != nil {
			t.Fatalf("convert an extender: %v", err)
		}
	}
	s, err := scheduler.New(ctx, nil, scheduler.NewInformerFactory(nil, 0), nil, func(string) events.EventRecorderLogger { return &events.FakeRecorder{} },
		scheduler.WithProfiles(profile), scheduler.WithParallelism(1), scheduler.WithExtenders(extenders...))
	if err != nil {
		t.Fatalf("make kube-scheduler: %v", err)
	}
	u := &extenderUpstream{Scheduler: s, Framework: s.Profiles[profile.SchedulerName]}
	for _, of := range profile.PluginConfig {
		if of.Name == names.NodeResourcesFit {
			u.other = of.Args.(*config.NodeResourcesFitArgs)
		}
	}
	logger := klog.FromContext(ctx)
	for _, n := range c.nodes {
		s.Cache.AddNode(logger, n)
		for _, p := range c.on[n.Name] {
			if err := s.Cache.AddPod(logger, p); err != nil {
				t.Fatalf("add a pod: %v", err)
			}
		}
	}
	if err := s.Cache.UpdateSnapshot(logger, u.SnapshotSharedLister().(*internalcache.Snapshot)); err != nil {
		t.Fatalf("take a snapshot: %v", err)
	}
	info, err := framework.NewPodInfo(c.pod)
	if err != nil {
		t.Fatalf("read the pod: %v", err)
	}
	u.pod = &framework.QueuedPodInfo{PodInfo: info}
	return u
}

// schedule has the pod scheduled with kube-scheduler's extenders and maybe more.
func (u *extenderUpstream) schedule(extenders ...fwk.Extender) (result scheduler.ScheduleResult, sums map[string]int64, err error) {
	was := u.Scheduler.Extenders
	defer func() { u.Scheduler.Extenders = was }()
	u.Scheduler.Extenders = extenders
	sink := &totals{of: make(map[string]int64)}
	result, err = u.SchedulePod(klog.NewContext(context.Background(), klog.New(sink)), u.Framework, framework.NewCycleState(), u.pod)
	return result, sink.of, err
}

// TestExtendersAreAskedTheSame compares filters and prioritizers.
func TestExtendersAreAskedTheSame(t *testing.T) {
	server, urls, tls := startExtenderServers(t)
	seen := make(situations)
	check(t, func(t *rapid.T) {
		c := drawExtenderCase(t, urls, tls)
		server.of = c
		u := newExtenderUpstream(t, c)
		ours := newExtenderSet(t, c)

		// 1. Which extenders there are, in order, and what the pod is to them.
		upstreams := u.Scheduler.Extenders
		resources := extender.ResourceNames(c.pod)
		interested := slices.ContainsFunc(upstreams, func(e fwk.Extender) bool { return e.IsInterested(c.pod) })
		if got := ours.Interest(resources) != 0; got != interested {
			t.Fatalf("the pod interests an extender: %v, want %v", got, interested)
		}
		for verb, can := range map[extender.Verb]func(fwk.Extender) bool{
			extender.Filter: fwk.Extender.IsFilter, extender.Prioritize: fwk.Extender.IsPrioritizer, extender.Bind: fwk.Extender.IsBinder, extender.Preempt: fwk.Extender.SupportsPreemption,
		} {
			if got, want := ours.Can(verb) != 0, slices.ContainsFunc(upstreams, can); got != want {
				t.Fatalf("some extender can %s: %v, want %v", verb, got, want)
			}
			want := slices.ContainsFunc(upstreams, func(e fwk.Extender) bool { return can(e) && e.IsInterested(c.pod) })
			if got := ours.Interest(resources)&ours.Can(verb) != 0; got != want {
				t.Fatalf("some extender is asked to %s: %v, want %v", verb, got, want)
			}
		}
		if got := extender.IgnoredResources(c.extenders); len(got) > 0 && !slices.Equal(got, u.other.IgnoredResources) {
			t.Fatalf("%v are ignored, want %v", got, u.other.IgnoredResources)
		} else if len(got) == 0 && len(u.other.IgnoredResources) > 0 {
			t.Fatalf("nothing is ignored, want %v", u.other.IgnoredResources)
		}

		// 2. What kube-scheduler makes of it, twice: with an extender at the end that leaves no node, so that it says why; and as it is.
		first, last := &outermost{passes: true}, &outermost{}
		var want extenderOutcome
		_, _, err := u.schedule(slices.Concat([]fwk.Extender{first}, upstreams, []fwk.Extender{last})...)
		want.Kept = last.seen
		if fit, ok := errors.AsType[*framework.FitError](err); ok {
			want.Refused = make(map[string]extender.Refusal)
			fit.Diagnosis.NodeToStatus.ForEachExplicitNode(func(name string, s *fwk.Status) {
				want.Refused[name] = extender.Refusal{Reason: strings.Join(s.Reasons(), "\n"), Unresolvable: s.Code() == fwk.UnschedulableAndUnresolvable}
			})
		} else {
			want.failed(err)
		}
		filters := server.take()
		result, sums, err := u.schedule(slices.Concat([]fwk.Extender{&outermost{passes: true}}, upstreams)...)
		if _, unfit := errors.AsType[*framework.FitError](err); (err == nil || unfit) != (want.Err == "") || unfit != (want.Err == "" && len(want.Kept) == 0) {
			t.Fatalf("kube-scheduler says %v, and said %q", err, want.Err)
		}
		want.Asked, want.Totals = server.take(), sums
		if diff := cmp.Diff(filters, want.Asked[:min(len(filters), len(want.Asked))], cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("kube-scheduler asks something else the second time:\n%s", diff)
		}

		// 3. What Berth does.
		var got extenderOutcome
		pod := extender.NewPod(c.pod)
		nodes := make([]*extender.Node, 0, len(first.seen))
		for _, name := range first.seen {
			i := slices.IndexFunc(c.nodes, func(n *v1.Node) bool { return n.Name == name })
			nodes = append(nodes, extender.NewNode(c.nodes[i]))
		}
		filtered, err := ours.Filter(context.Background(), pod, nodes)
		got.failed(err)
		got.Refused = filtered.Refused
		for _, n := range filtered.Nodes {
			got.Kept = append(got.Kept, n.Name())
		}
		got.Totals = make(map[string]int64)
		if len(filtered.Nodes) > 1 {
			scores, err := ours.Prioritize(context.Background(), pod, filtered.Nodes)
			if err != nil {
				t.Fatalf("prioritize: %v", err)
			}
			for _, name := range got.Kept {
				got.Totals[name] = scores[name] * extender.Scale
			}
			c.best(t, result.SuggestedHost, got.Totals, scores)
		}
		got.Asked = server.take()
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("extenders %+v (-kube-scheduler +Berth):\n%s", c.extenders, diff)
		}
		seen.add(&want, c)
	})
	seen.assert(t, "left", "refused", "unresolvable", "failed", "skipped", "totals", "in full", "by name")
}

// TestExtendersHaveTheSameSayInPreemption compares what extenders make of candidates for preemption.
func TestExtendersHaveTheSameSayInPreemption(t *testing.T) {
	server, urls, tls := startExtenderServers(t)
	seen := make(situations)
	check(t, func(t *rapid.T) {
		c := drawExtenderCase(t, urls, tls)
		if len(c.victims) == 0 {
			return
		}
		server.of = c
		u := newExtenderUpstream(t, c)
		ours := newExtenderSet(t, c)
		want, wrong := u.preempt(t, c)
		requests := server.take()
		got, err := ours.Preempt(context.Background(), extender.NewPod(c.pod), c.victims, func(node string) (pods []*v1.Pod, known, changed bool) {
			known = slices.ContainsFunc(c.nodes, func(n *v1.Node) bool { return n.Name == node })
			return c.on[node], known, false
		})
		if diff := cmp.Diff(requests, server.take(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("requests (-kube-scheduler +Berth):\n%s", diff)
		}
		if fmt.Sprint(err) != fmt.Sprint(wrong) {
			t.Fatalf("the error is %v, want %v", err, wrong)
		}
		if diff := cmp.Diff(want, got); diff != "" && err == nil && len(want)+len(got) > 0 {
			t.Fatalf("victims (-kube-scheduler +Berth):\n%s", diff)
		}
		switch {
		case err != nil:
			seen["failed"]++
		case len(requests) == 0:
			seen["nobody is asked"]++
		case len(got) == 0:
			seen["no candidates"]++
		case cmp.Equal(got, c.victims):
			seen["as they were"]++
		default:
			seen["others"]++
		}
	})
	seen.assert(t, "failed", "nobody is asked", "no candidates", "as they were", "others")
}

// preemptible is how kube-scheduler's Evaluator finds candidates here: those of the case.
type preemptible struct {
	c   *extenderCase
	had map[string]*extenderv1.Victims // the candidates that it chooses from, if there are several
}

func (p *preemptible) GetOffsetAndNumCandidates(n int32) (int32, int32) { return 0, n }
func (p *preemptible) CandidatesToVictimsMap(candidates []kubepreemption.Candidate) map[string]*extenderv1.Victims {
	out := make(map[string]*extenderv1.Victims)
	for _, c := range candidates {
		out[c.Name()] = c.Victims()
	}
	return out
}
func (p *preemptible) PodEligibleToPreemptOthers(context.Context, *v1.Pod, *fwk.Status) (bool, string) {
	return true, ""
}
func (p *preemptible) SelectVictimsOnNode(_ context.Context, _ fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo, _ []*policyv1.PodDisruptionBudget) ([]*v1.Pod, int, *fwk.Status) {
	if v := p.c.victims[n.Node().Name]; v != nil {
		return v.Pods, int(v.NumPDBViolations), nil
	}
	return nil, 0, fwk.NewStatus(fwk.Unschedulable, "no candidate")
}
func (p *preemptible) OrderedScoreFuncs(_ context.Context, had map[string]*extenderv1.Victims) []func(string) int64 {
	p.had = had
	return nil
}

// handle is a framework with the extenders of a case, and without an API server.
type handle struct {
	framework.Framework
	extenders []fwk.Extender
}

func (h *handle) Extenders() []fwk.Extender { return h.extenders }
func (*handle) APICacher() fwk.APICacher    { return nil }

// preempt has kube-scheduler preempt for the pod, and returns from which candidates it has chosen.
func (u *extenderUpstream) preempt(t failer, c *extenderCase) (map[string]*extenderv1.Victims, error) {
	h := &handle{u.Framework, u.Scheduler.Extenders}
	from := &preemptible{c: c}
	executor := kubepreemption.NewExecutor(h, feature.Features{})
	var mu sync.Mutex
	only := make(map[string]*extenderv1.Victims)
	executor.PreemptPod = func(_ context.Context, chosen kubepreemption.Candidate, _ kubepreemption.ExecutorPreemptor, _ *v1.Pod, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		only[chosen.Name()] = chosen.Victims()
		return nil
	}
	evaluator := kubepreemption.NewEvaluator("extenders", h, from, executor)
	evaluator.PdbLister = nil
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := pods.Add(c.pod); err != nil {
		t.Fatalf("add the pod: %v", err)
	}
	evaluator.PodLister = corelisters.NewPodLister(pods)
	statuses := framework.NewDefaultNodeToStatus()
	for _, n := range c.nodes {
		statuses.Set(n.Name, fwk.NewStatus(fwk.Unschedulable, "full"))
	}
	_, status := evaluator.Preempt(klog.NewContext(context.Background(), klog.New(&totals{})), framework.NewCycleState(), c.pod, statuses)
	switch {
	case status.Code() == fwk.Error:
		return nil, status.AsError()
	case status.Code() == fwk.Unschedulable:
		return map[string]*extenderv1.Victims{}, nil
	case from.had != nil:
		return from.had, nil
	}
	return only, nil
}

// TestExtendersBindTheSame compares binders.
func TestExtendersBindTheSame(t *testing.T) {
	server, urls, tls := startExtenderServers(t)
	seen := make(situations)
	check(t, func(t *rapid.T) {
		c := drawExtenderCase(t, urls, tls)
		server.of = c
		u := newExtenderUpstream(t, c)
		bound, wrong := bindUpstream(u.Scheduler.Extenders, c.pod, "n0")
		requests := server.take()
		got, err := newExtenderSet(t, c).Bind(context.Background(), extender.ResourceNames(c.pod), extenderv1.ExtenderBindingArgs{
			PodName: c.pod.Name, PodNamespace: c.pod.Namespace, PodUID: c.pod.UID, Node: "n0",
		})
		if diff := cmp.Diff(requests, server.take(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("requests (-kube-scheduler +Berth):\n%s", diff)
		}
		if got != bound || fmt.Sprint(err) != fmt.Sprint(wrong) {
			t.Fatalf("%v, %v, want %v, %v", got, err, bound, wrong)
		}
		switch {
		case err != nil:
			seen["failed"]++
		case bound:
			seen["bound"]++
		case len(requests) > 0:
			seen["skipped"]++
		default:
			seen["nobody is asked"]++
		}
	})
	seen.assert(t, "failed", "bound", "skipped", "nobody is asked")
}

// bindUpstream is what kube-scheduler does with its extenders before a Bind plugin: the first that binds, and that the pod interests, binds. Nothing
// exported has it.
func bindUpstream(extenders []fwk.Extender, pod *v1.Pod, node string) (bool, error) {
	for _, e := range extenders {
		if e.IsBinder() && e.IsInterested(pod) {
			err := e.Bind(&v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, Target: v1.ObjectReference{Kind: "Node", Name: node}})
			if err == nil || !e.IsIgnorable() {
				return true, err
			}
		}
	}
	return false, nil
}

// situations counts what has been met, by its name.
type situations map[string]int

// add counts what has become of a pod.
func (s situations) add(o *extenderOutcome, c *extenderCase) {
	switch {
	case o.Err != "":
		s["failed"]++
	case len(o.Kept) > 0:
		s["left"]++
	}
	for _, r := range o.Refused {
		if r.Unresolvable {
			s["unresolvable"]++
		} else {
			s["refused"]++
		}
	}
	for _, total := range o.Totals {
		if total > 0 {
			s["totals"]++
		}
	}
	for _, a := range o.Asked {
		if strings.Contains(a.Body, `"NodeNames":null`) {
			s["in full"]++
		} else {
			s["by name"]++
		}
		var i int
		if _, err := fmt.Sscanf(a.Path, "/%d/filter", &i); err == nil && c.extenders[i].Ignorable && slices.Contains([]string{"500", "garbage", "text", "half", "empty", "type"}, c.served[i].filter.Fails) {
			s["skipped"]++
		}
	}
}

// assert fails unless, in a run of the usual length, each of these has been met.
func (s situations) assert(t *testing.T, each ...string) {
	t.Helper()
	t.Logf("met: %v", map[string]int(s))
	n, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	if err != nil {
		t.Fatal(err)
	}
	usual, err := strconv.Atoi(shortRun)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range each {
		if s[name] == 0 && n >= usual {
			t.Errorf("there was no case of %q", name)
		}
	}
}

// best fails unless a node that kube-scheduler has chosen has the best total, and a score if one of those with the best total has.
func (*extenderCase) best(t failer, chosen string, totals, scores map[string]int64) {
	most, scored := totals[chosen], false
	for name, total := range totals {
		if total > most {
			t.Fatalf("kube-scheduler chooses %s with %d, and %s has %d", chosen, most, name, total)
		}
		if _, has := scores[name]; has && total == most {
			scored = true
		}
	}
	if _, has := scores[chosen]; has != scored {
		t.Fatalf("kube-scheduler chooses %s: that it has a score is %v, and of the best some have %v: %v", chosen, has, scored, scores)
	}
}

// startExtenderServers starts one that is reached by HTTP, by HTTPS with its authority, and by HTTPS with none.
func startExtenderServers(t *testing.T) (s *extenderServer, urls []string, tls []*configv1.ExtenderTLSConfig) {
	s = new(extenderServer)
	for i := range 3 {
		server := httptest.NewUnstartedServer(s)
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		server.Config.SetKeepAlivesEnabled(false) // kube-scheduler never closes its connections
		var of *configv1.ExtenderTLSConfig
		if i == 0 {
			server.Start()
		} else {
			server.EnableHTTP2 = i == 2
			server.StartTLS()
			if i == 1 {
				of = &configv1.ExtenderTLSConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
			}
		}
		t.Cleanup(server.Close)
		urls, tls = append(urls, server.URL), append(tls, of)
	}
	return s, urls, tls
}

func newExtenderSet(t failer, c *extenderCase) *extender.Set {
	s, err := extender.New(extender.Config{Extenders: c.extenders, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("make extenders: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}
