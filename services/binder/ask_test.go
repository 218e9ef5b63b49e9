package binder

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/test/bubble"
)

// webhook is an extender on loopback. What it says is up to the test.
type webhook struct {
	*httptest.Server
	mu         sync.Mutex
	filter     func(pod string, nodes []string) extenderv1.ExtenderFilterResult // nil: it leaves all
	prioritize func(nodes []string) map[string]int64                            // nil: 0 each
	bind       func(extenderv1.ExtenderBindingArgs) string                      // nil: it binds nothing, and says that it has
	asked      []string                                                         // "filter p: a b"
	hangs      chan struct{}                                                    // if not nil, calls hang until it is closed, or the client goes
}

func newWebhook(t *testing.T) *webhook {
	h := new(webhook)
	h.Server = httptest.NewUnstartedServer(h)
	h.Server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	h.Server.Start()
	t.Cleanup(h.Server.Close)
	return h
}

func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verb := strings.TrimPrefix(r.URL.Path, "/")
	if verb == "bind" {
		var args extenderv1.ExtenderBindingArgs
		_ = json.NewDecoder(r.Body).Decode(&args)
		h.note("bind " + args.PodName + ": " + args.Node)
		var out extenderv1.ExtenderBindingResult
		h.mu.Lock()
		bind := h.bind
		h.mu.Unlock()
		if bind != nil {
			out.Error = bind(args)
		}
		h.wait(r)
		_ = json.NewEncoder(w).Encode(out)
		return
	}
	var args extenderv1.ExtenderArgs
	_ = json.NewDecoder(r.Body).Decode(&args)
	var names []string
	if args.NodeNames != nil {
		names = *args.NodeNames
	}
	h.note(verb + " " + args.Pod.Name + ": " + strings.Join(names, " "))
	h.mu.Lock()
	filter, prioritize := h.filter, h.prioritize
	h.mu.Unlock()
	switch verb {
	case "filter":
		out := extenderv1.ExtenderFilterResult{NodeNames: &names}
		if filter != nil {
			out = filter(args.Pod.Name, names)
		}
		h.wait(r)
		_ = json.NewEncoder(w).Encode(out)
	case "prioritize":
		out := extenderv1.HostPriorityList{}
		if prioritize != nil {
			for name, score := range prioritize(names) {
				out = append(out, extenderv1.HostPriority{Host: name, Score: score})
			}
		}
		h.wait(r)
		_ = json.NewEncoder(w).Encode(out)
	}
}

func (h *webhook) note(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, what)
}

func (h *webhook) wait(r *http.Request) {
	h.mu.Lock()
	hangs := h.hangs
	h.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		case <-r.Context().Done():
		}
	}
}

func (h *webhook) set(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn()
}

// calls returns what was asked so far.
func (h *webhook) calls() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

// refusing refuses some nodes with a reason.
func refusing(reason string, refused ...string) func(string, []string) extenderv1.ExtenderFilterResult {
	return func(_ string, nodes []string) extenderv1.ExtenderFilterResult {
		out := extenderv1.ExtenderFilterResult{NodeNames: &[]string{}, FailedNodes: map[string]string{}}
		for _, n := range nodes {
			if slices.Contains(refused, n) {
				out.FailedNodes[n] = reason
			} else {
				*out.NodeNames = append(*out.NodeNames, n)
			}
		}
		return out
	}
}

// extenderAt is an extender that filters, and scores with weight 1.
func extenderAt(h *webhook) configv1.Extender {
	return configv1.Extender{URLPrefix: h.URL, FilterVerb: "filter", PrioritizeVerb: "prioritize", Weight: 1, NodeCacheCapable: true, HTTPTimeout: metav1.Duration{Duration: patience}}
}

// objects are those of a fake source.
type objects struct{ *fakeSource }

func (o objects) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.pods {
		if p.Namespace == namespace && p.Name == name {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(p.UID)}}
			pod.Spec.NodeName = p.NodeName
			requests := corev1.ResourceList{}
			for i := range extender.Interest(p.Extenders).Each() {
				requests[corev1.ResourceName(managedBy(i))] = resource.MustParse("1")
			}
			pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
			return pod, nil
		}
	}
	return nil, nil
}

func (o objects) Node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// NodeChanges is what it was before: no object changes.
func (o objects) NodeChanges() uint64 { return 0 }

// LastPod returns the same, with the node's name as extenders are told of it.
func (o objects) LastPod(namespace, name string) *corev1.Pod {
	pod, _ := o.Pod(context.Background(), namespace, name)
	return pod
}

// managedBy is the resource that the extender of an index manages.
func managedBy(index int) string { return fmt.Sprintf("example.com/r%d", index) }

// withExtenders configures a binder. Each extender manages a resource of its own.
func withExtenders(t *testing.T, src *fakeSource, extenders ...configv1.Extender) func(*Config) {
	t.Helper()
	for i := range extenders {
		extenders[i].ManagedResources = []configv1.ExtenderManagedResource{{Name: managedBy(i)}}
	}
	set, err := extender.New(extender.Config{Extenders: extenders, OnlyAsked: true, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	return func(c *Config) { c.Extenders, c.Objects = set, objects{src} }
}

// of returns a pod that interests extenders.
func of(p source.Pod, in extender.Interest) source.Pod {
	p.Extenders = uint64(in)
	return p
}

// question commits a pod, wants the answer that extenders are to be asked, and returns the question.
func (b *running) question(attempt int32, uid string) *binderv1.AskRequest {
	b.t.Helper()
	req, out := b.mayAsk(attempt, uid)
	if req == nil || out.GetTurn() == 0 || out.GetAskMilliseconds() < 1000 {
		b.t.Fatalf("the commit answers %v, want that extenders are to be asked", out)
	}
	return req
}

// mayAsk commits a pod, and returns the question if extenders are to be asked.
func (b *running) mayAsk(attempt int32, uid string) (*binderv1.AskRequest, *binderv1.Outcome) {
	b.t.Helper()
	resp, err := b.Commit(b.t.Context(), b.request(attempt, uid))
	if err != nil {
		b.t.Fatal(err)
	}
	out := resp.GetOutcomes()[0]
	if out.GetResult() != binderv1.Outcome_RESULT_ASK {
		return nil, out
	}
	req := &binderv1.AskRequest{ShardRevision: 1, Version: resp.GetVersion(), Uid: uid, Attempt: attempt}
	b.look(func(st *cluster.State) {
		id, _ := st.PodByUID(uid)
		req.Id = int32(id)
	})
	return req, out
}

// ask asks, and returns what became of it: "assumed on a", "refused: 2 no gpu", "failed: …" or as in a commit.
func (b *running) ask(req *binderv1.AskRequest) string {
	b.t.Helper()
	resp, err := b.Ask(b.t.Context(), req)
	if err != nil {
		return "error: " + err.Error()
	}
	return b.saidOf(&binderv1.AskedPod{Version: resp.GetVersion(), Outcome: resp.GetOutcome(), Refusals: resp.GetRefusals(), Error: resp.GetError()})
}

// saidOf returns what became of a pod as ask does.
func (b *running) saidOf(resp *binderv1.AskedPod) string {
	switch r := resp.GetOutcome().GetResult(); r {
	case binderv1.Outcome_RESULT_ASSUMED, binderv1.Outcome_RESULT_PLACED:
		name := ""
		b.look(func(st *cluster.State) { name = st.Nodes.Spec[resp.GetOutcome().GetNode()].Name })
		return resultText(r) + " on " + name
	case binderv1.Outcome_RESULT_REFUSED:
		out := "refused:"
		for _, v := range resp.GetRefusals() {
			out += fmt.Sprintf(" %s: %d %s %v", v.GetPlugin(), v.GetCount(), v.GetReason(), v.GetUnresolvable())
		}
		return out
	case binderv1.Outcome_RESULT_FAILED:
		return "failed: " + resp.GetError()
	default:
		return resultText(r)
	}
}

func TestExtendersAreAskedAboutPodsThatInterestThem(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	for _, name := range []string{"a", "b", "c"} {
		src.setNode(node(name, 4000))
	}
	src.setNode(node("small", 100))
	src.setPod(of(pod("p", 1000), 1))
	src.setPod(pod("other", 1000))
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	h.set(func() {
		h.filter = refusing("no gpu", "b")
		h.prioritize = func([]string) map[string]int64 { return map[string]int64{"a": 3, "c": 7} }
	})

	// The pod behind it is placed at once.
	if got := b.commit(b.request(1, "p", "other")); !slices.Equal(got, []string{"result 7", "assumed"}) {
		t.Fatalf("commit: %v", got)
	}
	req := b.question(1, "p")
	if got := b.ask(req); got != "assumed on c" {
		t.Errorf("asked: %s", got)
	}
	b.awaitPhase("p", "bound on c")
	if diff := cmp.Diff([]string{"filter p: a b c", "prioritize p: a c"}, h.calls()); diff != "" {
		t.Errorf("what the extender was asked (-want +got):\n%s", diff)
	}
	// To ask again is safe, and asks nobody.
	if got := b.ask(req); got != "already placed on c" || len(h.calls()) != 2 {
		t.Errorf("asked again: %s, calls %v", got, h.calls())
	}
}

func TestWhatExtendersRefuseAndHowTheyFail(t *testing.T) {
	src := newFakeSource()
	for _, name := range []string{"a", "b", "c"} {
		src.setNode(node(name, 4000))
	}
	must, may := newWebhook(t), newWebhook(t)
	ignorable := extenderAt(may)
	ignorable.Ignorable = true
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(must), ignorable))
	b.active()
	attempt := int32(0)
	for _, tt := range []struct {
		name   string
		in     extender.Interest
		filter func(string, []string) extenderv1.ExtenderFilterResult
		want   string
	}{
		{"all are refused", 1, refusing("no gpu", "a", "b", "c"), "refused: Extender: 3 no gpu false"},
		{"one is left out without a word, one is hopeless", 1, func(string, []string) extenderv1.ExtenderFilterResult {
			return extenderv1.ExtenderFilterResult{FailedNodes: map[string]string{"a": "busy", "b": "busy"}, FailedAndUnresolvableNodes: map[string]string{"b": "broken"}}
		}, "refused: Extender: 1 broken true Extender: 1 busy false"},
		{"it says that it has failed", 1, func(string, []string) extenderv1.ExtenderFilterResult {
			return extenderv1.ExtenderFilterResult{Error: "no disk"}
		}, "failed: no disk"},
		{"it leaves a node that is unknown", 1, func(string, []string) extenderv1.ExtenderFilterResult {
			return extenderv1.ExtenderFilterResult{NodeNames: &[]string{"elsewhere"}}
		}, fmt.Sprintf("failed: extender %q claims a filtered node %q which is not found in the input node list", must.URL, "elsewhere")},
		{"one that may be ignored fails", 2, func(string, []string) extenderv1.ExtenderFilterResult {
			return extenderv1.ExtenderFilterResult{Error: "no disk"}
		}, "assumed on"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			attempt++
			uid := fmt.Sprintf("p%d", attempt)
			src.setPod(of(pod(uid, 100), tt.in))
			for _, h := range []*webhook{must, may} {
				h.set(func() { h.filter = tt.filter })
			}
			if got := b.ask(b.question(1, uid)); got != tt.want && !(tt.want == "assumed on" && strings.HasPrefix(got, tt.want)) {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// What an extender has judged is what the pod gets: a node that has changed while it thought is not taken unless it is asked again.
func TestANodeThatChangesWhileExtendersThinkIsAskedAboutAgain(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 1000))
	src.setNode(node("b", 1000))
	src.setPod(of(pod("p", 1000), 1))
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	h.set(func() {
		h.prioritize = func(nodes []string) map[string]int64 {
			if slices.Contains(nodes, "a") { // somebody takes it meanwhile
				src.setPod(on(pod("quick", 1000), "a"))
				eventually(t, "the ledger is told", func() bool { return b.phase("quick") == "bound on a" })
			}
			return map[string]int64{"a": 10}
		}
	})
	if got := b.ask(b.question(1, "p")); got != "assumed on b" {
		t.Errorf("asked: %s", got)
	}
	if diff := cmp.Diff([]string{"filter p: a b", "prioritize p: a b", "filter p: b"}, h.calls()); diff != "" {
		t.Errorf("what the extender was asked (-want +got):\n%s", diff)
	}
}

// Pods that come to a pod's best node while extenders think have them asked again, but do not keep it from being placed: the third time it takes what room they have left. A
// node that changes itself each time does: what extenders judge is another one.
func TestAPodWhoseNodeAlwaysChanges(t *testing.T) {
	for name, c := range map[string]struct {
		each int64 // what each pod takes that comes meanwhile; 0: the node changes itself
		want string
	}{
		"pods come": {100, "assumed on a"}, "pods come, and take all": {1100, "retry"}, "it changes itself": {0, "retry"},
	} {
		t.Run(name, func(t *testing.T) {
			src, h := newFakeSource(), newWebhook(t)
			src.setNode(node("a", 4000))
			src.setPod(of(pod("p", 1000), 1))
			b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
			b.active()
			n := 0
			h.set(func() {
				h.filter = func(_ string, nodes []string) extenderv1.ExtenderFilterResult {
					n++
					if c.each == 0 {
						before := b.Version()
						src.setNode(node("a", 4000+int64(n)))
						eventually(t, "the ledger is told", func() bool { return before.Less(b.Version()) })
					} else {
						uid := fmt.Sprintf("quick%d", n)
						src.setPod(on(pod(uid, c.each), "a"))
						eventually(t, "the ledger is told", func() bool { return b.phase(uid) == "bound on a" })
					}
					return extenderv1.ExtenderFilterResult{NodeNames: &nodes}
				}
			})
			if got := b.ask(b.question(1, "p")); got != c.want || n != 3 {
				t.Errorf("asked %d times: %s, want %s", n, got, c.want)
			}
		})
	}
}

// A pod has no room beside its own nomination if it is judged as its class is, but what extenders say of the node that it is nominated to is told.
func TestWhatExtendersSayOfTheNodeThatAPodIsNominatedToIsTold(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 1000))
	for _, name := range []string{"p", "q"} {
		p := of(pod(name, 800), 1)
		if name == "p" {
			p.Nominated = "a"
		}
		src.setPod(p)
	}
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	ask := func(attempt int32, filter func(string, []string) extenderv1.ExtenderFilterResult, want string, calls ...string) {
		t.Helper()
		h.set(func() { h.filter, h.asked = filter, nil })
		if got := b.ask(b.question(attempt, "p")); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if diff := cmp.Diff(calls, h.calls()); diff != "" {
			t.Errorf("%s: what the extender was asked (-want +got):\n%s", want, diff)
		}
	}
	down := func(string, []string) extenderv1.ExtenderFilterResult {
		return extenderv1.ExtenderFilterResult{Error: "down"}
	}
	ask(1, refusing("no gpu", "a"), "refused: Extender: 1 no gpu false", "filter p: a")
	ask(2, down, "failed: down", "filter p: a")
	src.setNode(node("b", 1000))
	eventually(t, "the ledger is told", func() (known bool) {
		b.look(func(st *cluster.State) { known = st.Nodes.Count() == 2 })
		return known
	})
	ask(3, refusing("no gpu", "a", "b"), "refused: Extender: 2 no gpu false", "filter p: a", "filter p: b")
	ask(4, func(pod string, nodes []string) extenderv1.ExtenderFilterResult {
		if nodes[0] == "a" {
			return down(pod, nodes)
		}
		return refusing("no gpu", "b")(pod, nodes)
	}, "failed: down", "filter p: a", "filter p: b")
	ask(5, refusing("no gpu", "a"), "assumed on b", "filter p: a", "filter p: b")
}

// What has happened since the node was asked about may have changed the extender's mind.
func TestARefusalOfTheNodeThatAPodIsNominatedToIsAsOldAsTheQuestion(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 1000))
	src.setPod(on(pod("x", 100), "a"))
	p := of(pod("p", 800), 1)
	p.Nominated = "a"
	src.setPod(p)
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	var helped cluster.Version
	h.set(func() {
		h.filter = func(string, []string) extenderv1.ExtenderFilterResult {
			src.deletePod("x")
			eventually(t, "the ledger is told", func() bool { return b.phase("x") == "gone" })
			helped = b.Version()
			return extenderv1.ExtenderFilterResult{NodeNames: &[]string{}, FailedNodes: map[string]string{"a": "no gpu"}}
		}
	})
	resp, err := b.Ask(t.Context(), b.question(1, "p"))
	if err != nil || resp.GetOutcome().GetResult() != binderv1.Outcome_RESULT_REFUSED {
		t.Fatalf("%v, %v", resp, err)
	}
	if told := wire.Version(resp.GetVersion()); !told.Less(helped) {
		t.Errorf("told as of %v, and what may help is of %v", told, helped)
	}
}

// noPods are objects of an API server that has deleted all pods.
type noPods struct{ Objects }

func (noPods) Pod(context.Context, string, string) (*corev1.Pod, error) { return nil, nil }

func TestAPodThatTheAPIServerDoesNotHaveBacksOffUntilTheLogTells(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 1000))
	src.setPod(of(pod("p", 100), 1))
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)), func(c *Config) { c.Objects = noPods{c.Objects} })
	b.active()
	if got := b.ask(b.question(1, "p")); got != "failed: the API server has no such pod any more" {
		t.Error(got)
	}
}

// Events and reports give way to binds, and a pod that extenders are asked about is none.
func TestPodsThatAreAskedAboutHoldUpNoEvents(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 1000))
	src.setPod(of(pod("p", 100), 1))
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	question := b.question(1, "p")
	h.set(func() {
		h.filter = func(_ string, nodes []string) extenderv1.ExtenderFilterResult {
			unbound := b.open().unbound
			unbound.mu.Lock()
			defer unbound.mu.Unlock()
			if unbound.taken != 1 || unbound.idle != nil {
				t.Errorf("%d count as unbound, and are waited for: %v", unbound.taken, unbound.idle != nil)
			}
			return extenderv1.ExtenderFilterResult{NodeNames: &nodes}
		}
	})
	if got := b.ask(question); got != "assumed on a" {
		t.Error(got)
	}
	b.awaitPhase("p", "bound on a")
	eventually(t, "nothing is unbound", func() bool {
		unbound := b.open().unbound
		unbound.mu.Lock()
		defer unbound.mu.Unlock()
		return unbound.taken == 0 && unbound.stuck == 0
	})
}

// A shard may have another owner while extenders think.
func TestAShardThatIsLostWhileExtendersThinkPlacesNothing(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 1000))
	src.setPod(of(pod("p", 100), 1))
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	question := b.question(1, "p")
	h.set(func() {
		h.filter = func(_ string, nodes []string) extenderv1.ExtenderFilterResult {
			b.open().shards.learn([]coord.ShardOwner{{Shard: int(question.GetShard()), Revision: question.GetShardRevision() + 1}})
			return extenderv1.ExtenderFilterResult{NodeNames: &nodes}
		}
	})
	_, err := b.Ask(t.Context(), question)
	wantError(t, err, codes.FailedPrecondition, "SHARD_LOST")
	if got := b.phase("p"); got != "pending" {
		t.Errorf("the pod is %s", got)
	}
}

// What an extender says of a node is told with its name, which may be anything.
func TestNamesOfNodesThatExtendersRefuseAreBounded(t *testing.T) {
	all := make(map[string]pluginhost.Refusal)
	for k := range 3 * mostRefusals {
		all[fmt.Sprint(k, strings.Repeat("x", extender.MaxText))] = pluginhost.Refusal{Plugin: extender.Plugin, Reason: fmt.Sprint("no ", k%mostRefusals)}
	}
	bytes, nodes := 0, int32(0)
	for _, v := range countRefusals(all) {
		nodes += v.Count
		for _, text := range append(v.Examples, v.Reason) {
			bytes += len(text)
		}
	}
	if nodes != 3*mostRefusals || bytes > 2*maxRefusals {
		t.Errorf("%d bytes are told of %d nodes", bytes, nodes)
	}
	for _, v := range countRefusals(map[string]pluginhost.Refusal{strings.Repeat("x", 1<<20): {Reason: "no"}}) {
		for _, name := range v.Examples {
			if len(name) > extender.MaxText+len("…") {
				t.Errorf("an example of %d bytes", len(name))
			}
		}
	}
}

func TestAPodThatGoesWhileExtendersThinkIsGone(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 4000))
	src.setPod(of(pod("p", 1000), 1))
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	h.set(func() {
		h.filter = func(_ string, nodes []string) extenderv1.ExtenderFilterResult {
			src.deletePod("p")
			eventually(t, "the ledger is told", func() bool { return b.phase("p") == "gone" })
			return extenderv1.ExtenderFilterResult{NodeNames: &nodes}
		}
	})
	if got := b.ask(b.question(1, "p")); got != "gone" {
		t.Errorf("asked: %s", got)
	}
}

// The node that a pod is nominated to is asked about alone, and first; one that a pod requires is the only one.
func TestNodesThatMatterByThemselvesAreAskedAboutAlone(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	for _, name := range []string{"a", "b", "c"} {
		src.setNode(node(name, 4000))
	}
	for _, name := range []string{"fits", "refused"} {
		p := of(pod(name, 100), 1)
		p.Nominated = "b"
		src.setPod(p)
	}
	src.setPod(requiring(of(pod("required", 100), 1), "c"))
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	h.set(func() {
		h.filter = func(pod string, nodes []string) extenderv1.ExtenderFilterResult {
			if pod == "refused" {
				return refusing("no", "b", "c")(pod, nodes)
			}
			return extenderv1.ExtenderFilterResult{NodeNames: &nodes}
		}
	})
	for name, want := range map[string]string{"fits": "assumed on b", "refused": "assumed on a", "required": "assumed on c"} {
		h.set(func() { h.asked = nil })
		if got := b.ask(b.question(1, name)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		calls := map[string][]string{
			"fits": {"filter fits: b"}, "refused": {"filter refused: b", "filter refused: a b c"}, "required": {"filter required: c"},
		}[name]
		if diff := cmp.Diff(calls, h.calls()); diff != "" {
			t.Errorf("%s: what the extender was asked (-want +got):\n%s", name, diff)
		}
	}
}

// Who waits for an extender that hangs are its own pods, and nobody else; and its calls end with the term.
func TestAnExtenderThatHangsHoldsUpNobodyElse(t *testing.T) {
	src, hung, well := newFakeSource(), newWebhook(t), newWebhook(t)
	src.setNode(node("a", 40_000))
	src.setPod(of(pod("stuck", 100), 1))
	src.setPod(of(pod("behind", 100), 1))
	src.setPod(of(pod("both", 100), 3))
	src.setPod(of(pod("fine", 100), 2))
	src.setPod(pod("plain", 100))
	src.setPod(pod("late", 100))
	endpoints := startEtcd(t)
	b := start(t, endpoints, src, withExtenders(t, src, extenderAt(hung), extenderAt(well)))
	b.active()
	never := make(chan struct{})
	hung.set(func() { hung.hangs = never })
	questions := make(map[string]*binderv1.AskRequest)
	for _, name := range []string{"stuck", "behind", "both", "fine"} {
		questions[name] = b.question(1, name)
	}
	answers := make(chan error, 2)
	go func() {
		_, err := b.Ask(context.Background(), questions["stuck"])
		answers <- err
	}()
	eventually(t, "the extender is asked", func() bool { return len(hung.calls()) == 1 })
	began := time.Now()
	waiting := make(chan error, 1)
	go func() {
		_, err := b.Ask(context.Background(), questions["both"])
		waiting <- err
	}()
	if got := b.commit(b.request(1, "plain")); !slices.Equal(got, []string{"assumed"}) {
		t.Errorf("a pod that interests no extender: %v", got)
	}
	if got := b.ask(questions["fine"]); got != "assumed on a" {
		t.Errorf("a pod that interests another: %s", got)
	}
	if waited := time.Since(began); waited > time.Minute {
		t.Errorf("they have waited for %v", waited)
	}
	_, err := b.Ask(t.Context(), questions["behind"])
	wantError(t, err, codes.ResourceExhausted, "EXTENDER_BUSY")
	wantError(t, <-waiting, codes.ResourceExhausted, "EXTENDER_BUSY")
	// The term ends while the extender is asked: it is not waited for, and whoever is elected next asks again.
	late := b.request(1, "late")
	depose(t, endpoints)
	if _, err := b.Commit(t.Context(), late); err != nil && status.Code(err) != codes.Unavailable { // what is to be recorded of it is fenced, unless the term has ended before
		t.Fatal(err)
	}
	wantError(t, <-answers, codes.Unavailable, "NOT_ACTIVE")
	if got := src.nodeOf("stuck"); got != "" {
		t.Errorf("the pod is on %q", got)
	}
	hung.set(func() { hung.hangs = nil })
	epoch := cluster.Epoch(0)
	eventually(t, "it is elected again", func() bool {
		epoch = b.Version().Epoch
		return b.Ready() == nil && epoch > wire.Version(questions["stuck"].GetVersion()).Epoch
	})
	if got := b.ask(b.question(1, "stuck")); got != "assumed on a" {
		t.Errorf("asked by the next term: %s", got)
	}
}

func TestPodsAreAskedAboutOneAtATime(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	const pods = mostWaiting + 1 // one of which has its turn
	src.setNode(node("a", pods/2*100))
	src.setNode(node("b", pods/2*100))
	for k := range pods {
		src.setPod(of(pod(fmt.Sprintf("p%d", k), 100), 1))
	}
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	// Each counts what it has been asked about, as if that were placed: only one at a time makes that true.
	var mu sync.Mutex
	running, most := 0, 0
	h.set(func() {
		h.prioritize = func(nodes []string) map[string]int64 {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			eventually(t, "a moment has passed", func() bool { return true })
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		}
	})
	var all sync.WaitGroup
	results := make([]string, pods)
	for k := range pods {
		req := b.question(1, fmt.Sprintf("p%d", k))
		all.Go(func() { results[k] = b.ask(req) })
	}
	all.Wait()
	on := map[string]int{}
	for _, r := range results {
		on[r]++
	}
	if diff := cmp.Diff(map[string]int{"assumed on a": pods / 2, "assumed on b": pods / 2}, on); diff != "" || most != 1 {
		t.Errorf("at most %d at a time; results (-want +got):\n%s", most, diff)
	}
}

// An answer that names nodes twice is as long as the question, but what it does not name is refused all the same.
func TestANodeThatIsNamedTwiceIsLeftOnce(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	for name, cpu := range map[string]int64{"a": 1000, "b": 2000, "c": 4000} { // the last is the best
		src.setNode(node(name, cpu))
	}
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	for i, tt := range []struct {
		left []string
		want string
	}{
		{[]string{"a", "a", "b"}, "assumed on b"}, {[]string{"a", "a", "a"}, "assumed on a"}, {[]string{"a", "a", "a", "b", "b"}, "assumed on b"}, {[]string{"a", "b", "c", "c"}, "assumed on c"},
	} {
		h.set(func() {
			h.filter = func(string, []string) extenderv1.ExtenderFilterResult {
				out := extenderv1.ExtenderFilterResult{NodeNames: &tt.left, FailedNodes: map[string]string{}}
				for _, name := range []string{"a", "b", "c"} {
					if !slices.Contains(tt.left, name) {
						out.FailedNodes[name] = "no gpu"
					}
				}
				return out
			}
		})
		uid := fmt.Sprint("p", i)
		src.setPod(of(pod(uid, 100), 1))
		if got := b.ask(b.question(1, uid)); got != tt.want {
			t.Errorf("left %v: %s, want %s", tt.left, got, tt.want)
		}
	}
}

// unread are objects of which no pod can be read before it is said.
type unread struct {
	Objects
	reads atomic.Int32
	err   func() error
}

func (u *unread) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	u.reads.Add(1)
	if err := u.err(); err != nil {
		return nil, err
	}
	return u.Objects.Pod(ctx, namespace, name)
}

// A pod that cannot be read has failed after a few tries, and keeps no extender from others meanwhile.
func TestAPodThatCannotBeReadIsNotAskedAbout(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 4000))
	src.setPod(of(pod("p", 100), 1))
	src.setPod(of(pod("other", 100), 1))
	var broken atomic.Bool
	broken.Store(true)
	u := &unread{Objects: objects{src}, err: func() error {
		if broken.Load() {
			return errFake
		}
		return nil
	}}
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)), func(c *Config) { c.Objects = u })
	b.active()
	first, other := b.question(1, "p"), b.question(1, "other")
	answer := make(chan string, 1)
	go func() { answer <- b.ask(first) }()
	eventually(t, "it is read", func() bool { return u.reads.Load() > 0 })
	leave, err := b.open().extenders.take(t.Context(), 1)
	if err != nil {
		t.Errorf("it has the turn of its extender: %v", err)
	} else {
		leave()
	}
	if got, want := <-answer, "failed: read the pod: "+errFake.Error(); got != want || u.reads.Load() != mostReads {
		t.Errorf("read %d times: %s, want %s", u.reads.Load(), got, want)
	}
	broken.Store(false)
	if got := b.ask(other); got != "assumed on a" {
		t.Errorf("asked about another: %s", got)
	}
}

// Whatever becomes of a question, what was taken of the unbound pods for it is given back.
func TestAPanicWhileExtendersAreAskedKeepsNoRoom(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 4000))
	src.setPod(of(pod("p", 100), 1))
	u := &unread{Objects: objects{src}, err: func() error { panic("mine") }}
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)), func(c *Config) { c.Objects = u })
	b.active()
	req := b.question(1, "p")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it does not panic")
			}
		}()
		_, _ = b.Ask(t.Context(), req)
	}()
	if n := b.open().unbound.count(); n != 0 {
		t.Errorf("%d count as unbound", n)
	}
}

// So many wait for an extender that hangs, whatever else they wait for; others are told at once to come back, but not those whom it does not interest, nor who waits for one
// that is only busy.
func TestFewWaitForAnExtenderThatHangs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		e := newExtenders(new(extender.Set), nil, nil)
		ctx, cancel := context.WithCancel(t.Context())
		leave, err := e.take(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		began := func(i int, ago time.Duration) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.since[i] = time.Now().Add(-ago)
		}
		began(0, 2*turnWait)
		var waiting sync.WaitGroup
		for k := range mostWaiting {
			in := extender.Interest(1 | k<<1)
			waiting.Go(func() {
				if _, err := e.take(ctx, in); err != errNoTurn {
					t.Errorf("of %b: %v", in, err)
				}
			})
			synctest.Wait()
		}
		for _, in := range []extender.Interest{1, 3, 64 + 1} {
			if _, err := e.take(t.Context(), in); err != errCrowd {
				t.Errorf("extenders %b: %v, want %v", in, err, errCrowd)
			}
		}
		well, err := e.take(t.Context(), 2)
		if err != nil {
			t.Errorf("another extender: %v", err)
		} else {
			for range mostWaiting { // those that wait for the first do not count against the second
				waiting.Go(func() {
					leave, err := e.take(t.Context(), 2)
					if err != nil {
						t.Errorf("behind another: %v", err)
						return
					}
					leave()
				})
				synctest.Wait()
			}
			if e.crowd(2) || !e.crowd(3) {
				t.Errorf("a crowd for the second, which is busy: %v; for both: %v", e.crowd(2), e.crowd(3))
			}
			if began(1, turnWait+1); !e.crowd(2) {
				t.Error("no crowd for the second, which hangs")
			}
			well()
			synctest.Wait()
		}
		cancel()
		waiting.Wait()
		leave()
		if leave, err = e.take(t.Context(), 3); err != nil {
			t.Errorf("when nobody waits: %v", err)
		} else {
			leave()
		}
	})
}

// What is asked about a few nodes, or by name, leaves what is kept of all in full as it is.
func TestNodesAreEncodedOnce(t *testing.T) {
	src := newFakeSource()
	kept := map[string]*corev1.Node{}
	e := newExtenders(new(extender.Set), nil, keptObjects{objects{src}, kept})
	var seen []seenNode
	const nodes = 3000
	for i := range cluster.NodeIndex(nodes) {
		name := fmt.Sprint("n", i)
		kept[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		seen = append(seen, seenNode{engine.NodeTotal{Node: i}, name})
	}
	full := e.nodesOf(seen, true, nodes)
	names := e.nodesOf(seen, false, nodes)
	e.nodesOf(seen[:1], true, nodes)
	e.nodesOf(seen[:1], false, nodes)
	if !slices.Equal(full, e.nodesOf(seen, true, nodes)) || !slices.Equal(names, e.nodesOf(seen, false, nodes)) {
		t.Error("nodes are encoded again")
	}
	kept["n1"] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "2"}}
	delete(kept, "n2")
	now := e.nodesOf(seen, true, nodes)
	if now[0] != full[0] || now[1] == full[1] || now[1].Object() != kept["n1"] || len(now) != nodes-1 || now[2] != full[3] {
		t.Error("what has changed is not what is sent")
	}
	// They have gone.
	e.nodesOf(seen[:1], true, 10)
	if len(e.full) != 1 || len(e.names) != 0 {
		t.Errorf("%d are kept in full, %d by name", len(e.full), len(e.names))
	}
}

// keptObjects are objects whose nodes are kept.
type keptObjects struct {
	Objects
	nodes map[string]*corev1.Node
}

func (k keptObjects) Node(name string) *corev1.Node { return k.nodes[name] }

// Where not all nodes are asked about, they score as if there were no others.
func TestASampleOfNodesIsScoredByItself(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	const nodes = 300
	for i := range nodes {
		n := node(fmt.Sprintf("n%03d", i), 4000)
		taints := i % 2
		if i == 7 { // by which all others are measured that are in its sample
			taints = 3
		}
		n.Taints = []cluster.Taint{{Key: "a", Effect: "PreferNoSchedule"}, {Key: "b", Effect: "PreferNoSchedule"}, {Key: "c", Effect: "PreferNoSchedule"}}[:taints]
		src.setNode(n)
	}
	src.setPod(of(pod("p", 100), 1))
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)), func(c *Config) {
		c.Settings.Profiles = slices.Clone(c.Settings.Profiles)
		c.Settings.Profiles[0].PercentageOfNodesToScore = 1
	})
	b.active()
	a := asked{term: b.open(), req: b.question(1, "p"), scratch: new(scratch)}
	a.read(func(st *cluster.State, row *cluster.PodRow) {
		a.pod, a.subject = row.Pod, engine.SubjectOf(&row.Pod)
		all, differ := slices.Clone(a.totals(st, nil)), 0
		for range 3 {
			sample := slices.Clone(a.all(st, row, cluster.NoNode))
			if diff := cmp.Diff(a.totals(st, bitmapOf(st, a.named(st, sample))), sample); diff != "" || len(sample) != 100 {
				t.Errorf("%d nodes (-want +got):\n%s", len(sample), diff)
			}
			if slices.ContainsFunc(sample, func(n engine.NodeTotal) bool { return !slices.Contains(all, n) }) {
				differ++
			}
		}
		if differ != 2 {
			t.Errorf("of 3 samples, %d score otherwise than among all, want the 2 without n007", differ)
		}
		for i := range cluster.NodeIndex(nodes) {
			if slices.ContainsFunc(a.all(st, row, i), func(n engine.NodeTotal) bool { return n.Node == i }) {
				t.Fatalf("node %d is left out, and there", i)
			}
		}
	})
}

func TestAnExtenderBinds(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 4000))
	for _, name := range []string{"bound", "refused", "quiet", "plain"} {
		p := pod(name, 100)
		if name != "plain" {
			p = of(p, 1)
		}
		src.setPod(p)
	}
	binds := configv1.Extender{URLPrefix: h.URL, BindVerb: "bind", HTTPTimeout: metav1.Duration{Duration: time.Second}}
	b := start(t, startEtcd(t), src, withExtenders(t, src, binds))
	b.active()
	place := func(name string) {
		src.change(func() { src.place(source.Binding{UID: name, Namespace: "default", Name: name, Node: "a"}) })
	}
	h.set(func() {
		h.bind = func(args extenderv1.ExtenderBindingArgs) string {
			switch args.PodName {
			case "refused":
				return "not there"
			default:
				place(args.PodName)
			}
			return ""
		}
	})
	// It has no say in where pods go, and so is not asked about that.
	for _, name := range []string{"bound", "refused", "plain"} {
		if got := b.commit(b.request(1, name)); !slices.Equal(got, []string{"assumed"}) {
			t.Fatalf("%s: %v", name, got)
		}
	}
	b.awaitPhase("bound", "bound on a")
	b.awaitPhase("plain", "bound on a")
	eventually(t, "the refusal is told", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return slices.ContainsFunc(src.reports, func(r source.Report) bool { return r.UID == "refused" && strings.Contains(r.Message, "not there") })
	})
	if got := b.phase("refused"); got != "pending" {
		t.Errorf("the refused pod is %s", got)
	}
	for _, tried := range src.tried("") {
		if tried.UID != "plain" {
			t.Errorf("the source was to bind %s", tried.UID)
		}
	}
	// Its answer is lost: that the pod is there is found out from the pod.
	never := make(chan struct{})
	h.set(func() {
		h.hangs = never
		h.asked = nil
	})
	quiet := b.request(1, "quiet")
	src.goAway(errFake) // nor does the watch tell
	if got := b.commit(quiet); !slices.Equal(got, []string{"assumed"}) {
		t.Fatalf("quiet: %v", got)
	}
	b.awaitPhase("quiet", "bound on a")
	if got := h.calls(); !slices.Equal(got, []string{"bind quiet: a"}) {
		t.Errorf("asked: %v", got)
	}
}

// That it fits somewhere is no reason against the preemption of a pod that extenders do not let go there.
func TestAPodThatExtendersRefuseMayPreemptThoughItFits(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 4000))
	src.setNode(node("b", 100))
	src.setPod(on(pod("low", 100), "b"))
	src.setPod(prior(of(pod("high", 100), 1), 10))
	src.setPod(prior(pod("plain", 100), 10))
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	for _, tt := range []struct {
		pod     string
		refused bool
		want    binderv1.PreemptResponse_Result
	}{
		{"high", false, binderv1.PreemptResponse_RESULT_RETRY},
		{"plain", true, binderv1.PreemptResponse_RESULT_RETRY},
		{"high", true, binderv1.PreemptResponse_RESULT_STARTED},
	} {
		var req *binderv1.PreemptRequest
		b.look(func(st *cluster.State) { req = preemptOf(st, tt.pod, "b", "low") })
		req.Refused = tt.refused
		resp, err := b.Preempt(t.Context(), req)
		if err != nil || resp.GetResult() != tt.want {
			t.Errorf("%s, refused %v: %v, %v, want %v", tt.pod, tt.refused, resp, err, tt.want)
		}
	}
}

// A binder that takes over asks anew about pods that nobody has placed, and has the extender bind again what was recorded and is not bound.
func TestTheNextBinderGoesOnWithExtenders(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 4000))
	src.setPod(of(pod("asked", 100), 1))
	src.setPod(of(pod("recorded", 100), 1))
	endpoints := startEtcd(t)
	all := extenderAt(h)
	all.BindVerb = "bind"
	with := withExtenders(t, src, all)
	first := start(t, endpoints, src, with, named("first"))
	first.active()
	never := make(chan struct{})
	h.set(func() {
		h.bind = func(extenderv1.ExtenderBindingArgs) string {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.hangs = never
			return ""
		}
	})
	if got := first.ask(first.question(1, "recorded")); got != "assumed on a" {
		t.Fatalf("asked: %s", got)
	}
	eventually(t, "the extender is to bind", func() bool { return slices.Contains(h.calls(), "bind recorded: a") })
	asked := first.question(1, "asked")
	answer := make(chan error, 1)
	go func() {
		_, err := first.Ask(context.Background(), asked)
		answer <- err
	}()
	eventually(t, "it is asked about the other", func() bool { return slices.Contains(h.calls(), "filter asked: a") })
	first.stop()
	wantError(t, <-answer, codes.Unavailable, "NOT_ACTIVE")
	h.set(func() {
		h.asked, h.hangs = nil, nil
		h.bind = func(args extenderv1.ExtenderBindingArgs) string {
			src.change(func() {
				src.place(source.Binding{UID: args.PodName, Namespace: args.PodNamespace, Name: args.PodName, Node: args.Node})
			})
			return ""
		}
	})
	second := start(t, endpoints, src, with, named("second"))
	second.active()
	second.awaitPhase("recorded", "bound on a")
	if got := second.phase("asked"); got != "pending" {
		t.Errorf("the pod that nobody has placed is %s", got)
	}
	if got := second.ask(second.question(1, "asked")); got != "assumed on a" {
		t.Errorf("asked anew: %s", got)
	}
	second.awaitPhase("asked", "bound on a")
	if diff := cmp.Diff([]string{"bind recorded: a", "filter asked: a", "bind asked: a"}, h.calls()); diff != "" {
		t.Errorf("what the extender was asked (-want +got):\n%s", diff)
	}
	if tried := src.tried(""); len(tried) > 0 {
		t.Errorf("the source was to bind %v", tried)
	}
}
