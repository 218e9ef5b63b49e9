package binder

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
)

// preemptHook is an extender on loopback that has a say in preemption.
type preemptHook struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(extenderv1.ExtenderPreemptionArgs) string // JSON; "": it hangs until the client goes
	asked  []extenderv1.ExtenderPreemptionArgs
}

func newPreemptHook(t *testing.T, answer func(extenderv1.ExtenderPreemptionArgs) string) *preemptHook {
	h := &preemptHook{answer: answer}
	h.Server = httptest.NewUnstartedServer(h)
	h.Server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	h.Server.Start()
	t.Cleanup(h.Server.Close)
	return h
}

func (h *preemptHook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var args extenderv1.ExtenderPreemptionArgs
	_ = json.NewDecoder(r.Body).Decode(&args)
	h.mu.Lock()
	h.asked = append(h.asked, args)
	answer := h.answer
	h.mu.Unlock()
	text := answer(args)
	if text == "" {
		<-r.Context().Done()
		return
	}
	_, _ = w.Write([]byte(text))
}

func (h *preemptHook) calls() []extenderv1.ExtenderPreemptionArgs {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

// at is an extender that is told of victims by their uids.
func (h *preemptHook) at() configv1.Extender {
	return configv1.Extender{URLPrefix: h.URL, PreemptVerb: "preempt", NodeCacheCapable: true, HTTPTimeout: metav1.Duration{Duration: patience}}
}

// leaves answers with nodes and their victims: "a: x y 2" are two, and two violations.
func leaves(nodes ...string) func(extenderv1.ExtenderPreemptionArgs) string {
	out := extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: make(map[string]*extenderv1.MetaVictims)}
	for _, n := range nodes {
		name, victims, _ := strings.Cut(n, ":")
		meta := &extenderv1.MetaVictims{Pods: []*extenderv1.MetaPod{}}
		for _, uid := range strings.Fields(victims) {
			if _, err := fmt.Sscan(uid, &meta.NumPDBViolations); err == nil {
				continue
			}
			meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: uid})
		}
		out.NodeNameToMetaVictims[name] = meta
	}
	text, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}
	return says(string(text))
}

func says(text string) func(extenderv1.ExtenderPreemptionArgs) string {
	return func(extenderv1.ExtenderPreemptionArgs) string { return text }
}

// leavesAll answers with what it is told.
func leavesAll(args extenderv1.ExtenderPreemptionArgs) string {
	out := extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: args.NodeNameToMetaVictims}
	if args.NodeNameToVictims != nil {
		out.NodeNameToMetaVictims = make(map[string]*extenderv1.MetaVictims)
		for node, victims := range args.NodeNameToVictims {
			meta := &extenderv1.MetaVictims{NumPDBViolations: victims.NumPDBViolations}
			for _, p := range victims.Pods {
				meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
			out.NodeNameToMetaVictims[node] = meta
		}
	}
	text, _ := json.Marshal(out)
	return string(text)
}

// preemptWorld is a term with nodes, each of which is full, and a pod that needs one of them and interests extenders.
type preemptWorld struct {
	*term
	t   *testing.T
	src *fakeSource

	meanwhile func() // happens while an extender thinks, if the test has it so
}

// newPreemptWorld has the nodes a, with pods of priority 1 and 2, b, with one of priority 3, and c, with one of priority 20 and a small one of priority 0, of whom none
// makes room.
func newPreemptWorld(t *testing.T, extenders ...configv1.Extender) *preemptWorld {
	t.Helper()
	w := &preemptWorld{t: t, src: newFakeSource()}
	for i := range extenders {
		extenders[i].ManagedResources = []configv1.ExtenderManagedResource{{Name: managedBy(i)}}
	}
	set, err := extender.New(extender.Config{Extenders: extenders, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	w.term = pureTerm(t, w.src, func(c *termConfig) { c.extenders = newExtenders(set, nil, objects{w.src}) })
	observe(t, w.term, node("a", 1000), node("b", 1000), node("c", 1000))
	w.runs("a", "a1", 500, 1)
	w.runs("a", "a2", 500, 2)
	w.runs("b", "b3", 1000, 3)
	w.runs("c", "c20", 900, 20)
	w.runs("c", "c0", 100, 0)
	w.waits("high", 1000, 1<<len(extenders)-1)
	return w
}

func (w *preemptWorld) runs(node, name string, milliCPU int64, priority int32) {
	w.t.Helper()
	p := app(on(prior(pod(name, milliCPU), priority), node), "x")
	w.src.setPod(p)
	observe(w.t, w.term, p)
}

func (w *preemptWorld) waits(name string, milliCPU int64, in extender.Interest) {
	w.t.Helper()
	p := of(prior(pod(name, milliCPU), 10), in)
	w.src.setPod(p)
	observe(w.t, w.term, p)
}

// question is a preemption that is asked about.
func (w *preemptWorld) question(name string) *binderv1.PreemptRequest {
	w.t.Helper()
	req := preemptOf(w.ledger.state, name, "b", "b3")
	req.Candidate = nil
	return req
}

// ask returns what becomes of a question: "started on b: b3", or what it says.
func (w *preemptWorld) ask(req *binderv1.PreemptRequest) string {
	w.t.Helper()
	resp, err := w.askPreempt(w.t.Context(), req, false)
	if err != nil {
		return "error: " + err.Error()
	}
	switch r := resp.GetResult(); r {
	case binderv1.PreemptResponse_RESULT_STARTED:
		var names []string
		node := ""
		w.ledger.read(func(st *cluster.State) {
			node = st.Pod(cluster.PodID(req.GetPod().GetId())).Nominated
			for _, row := range st.PodsOn(st.Nodes.ByName(node)) {
				if row.Victim {
					names = append(names, row.Name)
				}
			}
		})
		slices.Sort(names)
		return "started on " + node + ": " + strings.Join(names, " ")
	case binderv1.PreemptResponse_RESULT_FAILED:
		return "failed: " + resp.GetError()
	case binderv1.PreemptResponse_RESULT_UNREAD:
		return "unread: " + resp.GetError()
	default:
		return preemptResult(r)
	}
}

func TestExtendersHaveTheirSayInWhoGoes(t *testing.T) {
	for name, c := range map[string]struct {
		answer    func(extenderv1.ExtenderPreemptionArgs) string
		ignorable bool
		want      string
	}{
		"they leave all":                               {answer: leavesAll, want: "started on a: a1 a2"},
		"they leave another node":                      {answer: leaves("b: b3"), want: "started on b: b3"},
		"they leave none":                              {answer: leaves(), want: "no_candidate"},
		"they say nothing":                             {answer: says("{}"), want: "no_candidate"},
		"they spare one":                               {answer: leaves("a: a1"), want: "started on a: a1"},
		"they take another one, whatever it is":        {answer: leaves("c: c20"), want: "started on c: c20"},
		"they name one twice":                          {answer: leaves("c: c20 c20"), want: "started on c: c20"},
		"they name one more often than there are pods": {answer: leaves("b: b3 b3"), want: `failed: extender "URL" names more victims on node "b" than it has pods: have it name each once`},
		"by their word, one violates a budget":         {answer: leaves("a: a1 a2 1", "b: b3"), want: "started on b: b3"},
		"the first is taken for the most important":    {answer: leaves("c: c0 c20", "b: b3"), want: "started on c: c0 c20"},
		"a node that there is not":                     {answer: leaves("z: b3"), want: `failed: nodeinfo not found for node name "z"`},
		"a pod that there is not":                      {answer: leaves("a: z"), want: "failed: extender: URL claims to preempt pod (UID: &{z}) on node: a, but the pod is not found on that node"},
		"a pod of another node":                        {answer: leaves("a: b3"), want: "failed: extender: URL claims to preempt pod (UID: &{b3}) on node: a, but the pod is not found on that node"},
		"the pod itself":                               {answer: leaves("a: high"), want: "failed: extender: URL claims to preempt pod (UID: &{high}) on node: a, but the pod is not found on that node"},
		"a node without victims":                       {answer: leaves("a:", "b: b3"), want: `failed: expected at least one victim pod on node "a"`},
		"likewise, and it may be ignored":              {answer: leaves("a:", "b: b3"), ignorable: true, want: "started on b: b3"},
		"nonsense":                                     {answer: says("<html>"), want: "failed: invalid character '<' looking for beginning of value"},
		"nonsense, and it may be ignored":              {answer: says("<html>"), ignorable: true, want: "started on a: a1 a2"},
		"null for victims":                             {answer: says(`{"NodeNameToMetaVictims":{"a":null}}`), want: `failed: extender "URL" answers null for the victims on node "a": leave the node out, or name its victims`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newPreemptHook(t, c.answer)
			at := h.at()
			at.Ignorable = c.ignorable
			w := newPreemptWorld(t, at)
			before := w.ledger.version()
			got := w.ask(w.question("high"))
			if got := strings.ReplaceAll(got, h.URL, "URL"); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if started := strings.HasPrefix(got, "started"); started != (w.preemptions.waiting() == 1) || started == (w.ledger.version() == before) {
				t.Errorf("%s: %d wait to be carried out, the log went from %v to %v", got, w.preemptions.waiting(), before, w.ledger.version())
			}
			want := map[string]*extenderv1.MetaVictims{
				"a": {Pods: []*extenderv1.MetaPod{{UID: "a2"}, {UID: "a1"}}}, "b": {Pods: []*extenderv1.MetaPod{{UID: "b3"}}},
			}
			calls := h.calls()
			if len(calls) != 1 || calls[0].Pod.Name != "high" {
				t.Fatalf("asked %v, want once, about the pod", calls)
			}
			if diff := cmp.Diff(want, calls[0].NodeNameToMetaVictims); diff != "" {
				t.Errorf("told of (-want +got):\n%s", diff)
			}
		})
	}
}

// Who goes is evicted, and the pod is nominated: by an answer that names others than the search has found, it is these.
func TestWhomExtendersNameIsEvicted(t *testing.T) {
	w := newPreemptWorld(t, newPreemptHook(t, leaves("c: c20 c0 c20")).at())
	w.runs("c", "another", 0, 0)
	if got := w.ask(w.question("high")); got != "started on c: c0 c20" {
		t.Fatal(got)
	}
	p, of := w.preemptions.next()
	defer w.preemptions.done(of)
	if err := w.carryOut(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(slices.Values(w.src.evictions())); !slices.Equal(got, []string{"c0", "c20"}) {
		t.Errorf("evicted %v, want each that is named, once", got)
	}
}

func TestExtendersAreAskedOneAfterTheOther(t *testing.T) {
	first, second := newPreemptHook(t, leaves("b: b3", "c: c0 1")), newPreemptHook(t, leavesAll)
	full := second.at()
	full.NodeCacheCapable = false
	w := newPreemptWorld(t, first.at(), full)
	if got := w.ask(w.question("high")); got != "started on b: b3" {
		t.Errorf("%s", got)
	}
	told := second.calls()[0]
	if told.NodeNameToMetaVictims != nil || len(told.NodeNameToVictims) != 2 {
		t.Fatalf("the second is told of %v", told)
	}
	c := told.NodeNameToVictims["c"]
	if p := c.Pods[0]; c.NumPDBViolations != 1 || p.Name != "c0" || p.Spec.NodeName != "c" || len(p.Spec.Containers) != 1 {
		t.Errorf("the second is told of %+v, want what the first has left, in full", c)
	}
}

// What an extender has judged is what happens: if a node has changed while it thought, it is asked again, and in the end nothing is done.
func TestVictimsThatMoveWhileExtendersThink(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(extenderv1.ExtenderPreemptionArgs) string
		takes  int64 // milli-CPU, whoever comes
		every  bool  // time it happens, not only once
		want   string
		asked  int
	}{
		"as it was told": {answer: leavesAll, want: "started on a: a1 a2", asked: 1},
		"as it was told, and another would have to go, too": {answer: leavesAll, takes: 200, want: "started on a: a1 a2 new1", asked: 2},
		"others than it was told":                           {answer: leaves("b: b3 other"), want: "started on b: b3 other", asked: 1},
		"one that is gone":                                  {answer: leaves("a: a1 moved"), want: "failed: extender: URL claims to preempt pod (UID: &{moved}) on node: a, but the pod is not found on that node", asked: 2},
		"one that is gone, every time":                      {answer: leaves("a: a1 moved"), every: true, want: "retry", asked: 3},
		"fewer than it was told":                            {answer: leaves("a: a1"), every: true, want: "retry", asked: 3},
		"a node that there is not, while another changes":   {answer: leaves("a: a1", "z: b3"), every: true, want: `failed: nodeinfo not found for node name "z"`, asked: 1},
		"nobody on the node that changes":                   {answer: leaves("a:"), every: true, want: `failed: expected at least one victim pod on node "a"`, asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var w *preemptWorld
			n := 0
			h := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
				if n++; n == 1 || c.every {
					if n == 1 {
						observe(t, w.term, gone("moved"))
					}
					w.runs("a", fmt.Sprint("new", n), 1+c.takes, 0) // a has changed
				}
				return c.answer(args)
			})
			w = newPreemptWorld(t, h.at())
			observe(t, w.term, node("a", 1100), node("b", 1010))
			w.runs("a", "moved", 100, 0)
			w.runs("b", "other", 10, 0)
			got := strings.ReplaceAll(w.ask(w.question("high")), h.URL, "URL")
			if got != c.want || len(h.calls()) != c.asked {
				t.Errorf("%s, asked %d times, want %s, %d times", got, len(h.calls()), c.want, c.asked)
			}
		})
	}
}

// That it has named a node that has changed excuses no extender that fails for another reason, nor the next one.
func TestAnExtenderThatFailsFailsThoughNodesChange(t *testing.T) {
	for name, answer := range map[string]func(extenderv1.ExtenderPreemptionArgs) string{
		"nonsense":                     says("<html>"),
		"a pod that was never anybody": leaves("b: nobody"),
	} {
		t.Run(name, func(t *testing.T) {
			var w *preemptWorld
			first := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
				w.runs("a", "new", 1, 0)
				return leaves("a: a1 a2")(args)
			})
			second := newPreemptHook(t, answer)
			w = newPreemptWorld(t, first.at(), second.at())
			if got := w.ask(w.question("high")); !strings.HasPrefix(got, "failed: ") || len(first.calls()) != 1 {
				t.Errorf("%s, asked %d times, want that it has failed, once", got, len(first.calls()))
			}
		})
	}
}

// A node of which an extender was told, and that is gone by the time of its answer, is none that it has made up.
func TestANodeThatGoesWhileExtendersThinkIsAskedAboutNoMore(t *testing.T) {
	var w *preemptWorld
	h := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
		observe(t, w.term, gone("a1"), gone("a2"), source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "a"}})
		return leavesAll(args)
	})
	w = newPreemptWorld(t, h.at())
	got, calls := w.ask(w.question("high")), h.calls()
	if got != "started on b: b3" || len(calls) != 2 || calls[1].NodeNameToMetaVictims["a"] != nil {
		t.Errorf("%s, asked %v", got, calls)
	}
}

// What happens on other nodes does not void what extenders have said of the best one.
func TestVictimsThatGoElsewhereWhileExtendersThinkEndNoPreemption(t *testing.T) {
	for name, happens := range map[string]func(*preemptWorld){
		"one is gone": func(w *preemptWorld) {
			w.runs("b", "b99", 1000, 99) // the pod does not fit there for all that
			observe(w.t, w.term, gone("b3"))
		},
		"its node is gone": func(w *preemptWorld) {
			observe(w.t, w.term, gone("b3"), source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "b"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var w *preemptWorld
			first := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
				happens(w)
				w.src.deletePod("b3")
				return leavesAll(args)
			})
			second := newPreemptHook(t, leavesAll)
			full := second.at()
			full.NodeCacheCapable = false
			w = newPreemptWorld(t, first.at(), full)
			if got := w.ask(w.question("high")); got != "started on a: a1 a2" || len(first.calls()) != 1 {
				t.Errorf("%s, asked %d times", got, len(first.calls()))
			}
			if b := second.calls()[0].NodeNameToVictims["b"]; b == nil || len(b.Pods) != 1 || b.Pods[0].Name != "b3" || len(b.Pods[0].Spec.Containers) != 1 {
				t.Errorf("the second is told of %v, want what the first was told of, in full", b)
			}
		})
	}
}

// The last time, the best of what extenders have left whose node is what it was is taken: pods that come and go on the best one keep no pod from preempting.
func TestANodeThatChangesEachTimeIsGivenUpForTheNextBest(t *testing.T) {
	var w *preemptWorld
	n := 0
	h := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
		n++
		w.runs("a", fmt.Sprint("new", n), 1, 0) // it has to go, too
		return leavesAll(args)
	})
	w = newPreemptWorld(t, h.at())
	if got := w.ask(w.question("high")); got != "started on b: b3" || len(h.calls()) != mostAsks {
		t.Errorf("%s, asked %d times", got, len(h.calls()))
	}
}

// What an extender says that may be ignored is not, since a pod that it was told of has gone: whom it spares is spared.
func TestAnExtenderThatMayBeIgnoredIsNotSinceNodesChange(t *testing.T) {
	for name, answer := range map[string]func(extenderv1.ExtenderPreemptionArgs) string{
		"a victim that is gone": func(args extenderv1.ExtenderPreemptionArgs) string {
			delete(args.NodeNameToMetaVictims, "a")
			return leavesAll(args)
		},
		"another pod that is gone": func(args extenderv1.ExtenderPreemptionArgs) string {
			if args.NodeNameToMetaVictims["b"] == nil {
				return "{}"
			}
			return leaves("b: b3 other")(args)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var w *preemptWorld
			h := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
				if args.NodeNameToMetaVictims["b"] != nil {
					w.runs("b", "b99", 1000, 99)
					observe(t, w.term, gone("b3"), gone("other"))
				}
				return answer(args)
			})
			at := h.at()
			at.Ignorable = true
			w = newPreemptWorld(t, at)
			w.runs("b", "other", 0, 0)
			if got := w.ask(w.question("high")); got != "no_candidate" || len(h.calls()) != 2 {
				t.Errorf("%s, asked %d times", got, len(h.calls()))
			}
		})
	}
}

// A node that one extender has brought in, and that is gone when the next one names it, is none that this one has made up.
func TestANodeThatAnotherExtenderHasNamedMayGo(t *testing.T) {
	var w *preemptWorld
	first := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
		known := false
		w.ledger.read(func(st *cluster.State) { known = st.Nodes.ByName("c") != cluster.NoNode })
		if known {
			return leaves("c: c20")(args)
		}
		return leaves("b: b3")(args)
	})
	second := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
		if args.NodeNameToMetaVictims["c"] != nil {
			observe(t, w.term, gone("c20"), gone("c0"), source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "c"}})
		}
		return leavesAll(args)
	})
	w = newPreemptWorld(t, first.at(), second.at())
	if got := w.ask(w.question("high")); got != "started on b: b3" || len(second.calls()) != 2 {
		t.Errorf("%s, asked %d times", got, len(second.calls()))
	}
}

// A pod that interests no such extender starts its preemption at once; one that does is told to ask, and to ask again is safe.
func TestOnlyPodsThatInterestExtendersWaitForTheirSay(t *testing.T) {
	release := make(chan struct{})
	h := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
		<-release
		return leaves("b: b3")(args)
	})
	w := newPreemptWorld(t, h.at())
	w.waits("other", 1000, 0)
	resp, err := w.preempt(preemptOf(w.ledger.state, "high", "a", "a2", "a1"))
	if err != nil || resp.GetResult() != binderv1.PreemptResponse_RESULT_ASK || resp.GetTurn() == 0 || resp.GetAskMilliseconds() < patience.Milliseconds() {
		t.Fatalf("%v, %v, want that extenders are to be asked", resp, err)
	}
	// While an extender thinks, others go on.
	req := w.question("high")
	answered := make(chan string)
	go func() { answered <- w.ask(req) }()
	eventually(t, "it is asked", func() bool { return len(h.calls()) == 1 })
	if resp, err := w.preempt(preemptOf(w.ledger.state, "other", "a", "a2", "a1")); err != nil || resp.GetResult() != binderv1.PreemptResponse_RESULT_STARTED {
		t.Errorf("another pod: %v, %v, want that it has started", resp, err)
	}
	close(release)
	if got := <-answered; got != "started on b: b3" {
		t.Errorf("%s", got)
	}
	if got := w.ask(req); got != "started on b: b3" || len(h.calls()) != 1 {
		t.Errorf("again: %s, asked %d times", got, len(h.calls()))
	}
}

func TestWhatIsAskedAboutHasToBeWhatItWas(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*preemptWorld, *binderv1.PreemptRequest)
		want   string
		asked  int
	}{
		"the pod is gone":         {func(w *preemptWorld, _ *binderv1.PreemptRequest) { observe(w.t, w.term, gone("high")) }, "gone", 0},
		"the API server has none": {func(w *preemptWorld, _ *binderv1.PreemptRequest) { w.src.deletePod("high") }, "unread: the API server has no such pod any more", 0},
		"it cannot be read": {func(w *preemptWorld, _ *binderv1.PreemptRequest) {
			w.extenders.objects = &unread{Objects: w.extenders.objects, err: func() error { return errFake }}
		}, "unread: read the pod: " + errFake.Error(), 0},
		"it fits": {func(w *preemptWorld, _ *binderv1.PreemptRequest) { observe(w.t, w.term, node("d", 1000)) }, "retry", 0},
		"it fits by the time of the answer": {func(w *preemptWorld, _ *binderv1.PreemptRequest) {
			w.meanwhile = func() { observe(w.t, w.term, node("d", 1000)) }
		}, "retry", 1},
		"it is another class by the time of the answer": {func(w *preemptWorld, _ *binderv1.PreemptRequest) {
			w.meanwhile = func() { w.waits("high", 900, 1) }
		}, "retry", 1},
		"its victims are on their way out": {func(w *preemptWorld, _ *binderv1.PreemptRequest) {
			p := of(prior(pod("high", 1000), 10), 1)
			p.Nominated = "a"
			leaving := app(on(prior(pod("a1", 500), 1), "a"), "x")
			leaving.Deleting, leaving.Preempted = true, true
			observe(w.t, w.term, p, leaving)
		}, "gone", 0},
		"it fits where it is refused": {func(w *preemptWorld, r *binderv1.PreemptRequest) {
			observe(w.t, w.term, node("d", 1000), node("e", 1000))
			r.Refused, r.RefusedVersion = true, wire.ToVersion(w.ledger.version())
			w.runs("e", "new", 0, 0)
		}, "started on a: a1 a2", 1},
		"likewise, and it is not said when": {func(w *preemptWorld, r *binderv1.PreemptRequest) {
			r.Refused = true
			observe(w.t, w.term, node("d", 1000))
		}, "started on a: a1 a2", 1},
		"it fits on a node that has come since": {func(w *preemptWorld, r *binderv1.PreemptRequest) {
			r.Refused, r.RefusedVersion = true, wire.ToVersion(w.ledger.version())
			observe(w.t, w.term, node("d", 1000))
		}, "retry", 0},
		"a node has come since where it does not fit": {func(w *preemptWorld, r *binderv1.PreemptRequest) {
			r.Refused, r.RefusedVersion = true, wire.ToVersion(w.ledger.version())
			observe(w.t, w.term, node("d", 999))
		}, "started on a: a1 a2", 1},
		"it fits on a node that has come while extenders thought": {func(w *preemptWorld, r *binderv1.PreemptRequest) {
			r.Refused, r.RefusedVersion = true, wire.ToVersion(w.ledger.version())
			w.meanwhile = func() { observe(w.t, w.term, node("d", 1000)) }
		}, "retry", 1},
		"nobody can go": {func(w *preemptWorld, _ *binderv1.PreemptRequest) {
			for _, name := range []string{"a1", "b3"} {
				observe(w.t, w.term, gone(name))
			}
			w.runs("a", "a99", 500, 99)
			w.runs("b", "b99", 1000, 99)
		}, "retry", 0},
		"an attempt that is over": {func(w *preemptWorld, r *binderv1.PreemptRequest) {
			w.ledger.preempted["high"] = lastPreemption{by: attempt{r.GetShardRevision(), 7}}
		}, "retry", 0},
		"no extender of this binder": {func(w *preemptWorld, _ *binderv1.PreemptRequest) { w.ledger.interests["high"] = 0 }, "retry", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var w *preemptWorld
			h := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
				if w.meanwhile != nil {
					w.meanwhile()
				}
				return leavesAll(args)
			})
			at := h.at()
			at.FilterVerb = "filter"
			w = newPreemptWorld(t, at)
			req := w.question("high")
			c.change(w, req)
			req.Version = wire.ToVersion(w.ledger.version())
			if got := w.ask(req); got != c.want || len(h.calls()) != c.asked {
				t.Errorf("%s, asked %d times, want %s, %d times", got, len(h.calls()), c.want, c.asked)
			}
		})
	}
}

func TestQuestionsAboutPreemptionThatMayNotBeAreRefused(t *testing.T) {
	h := newPreemptHook(t, leavesAll)
	w := newPreemptWorld(t, h.at())
	req := preemptOf(w.ledger.state, "high", "a", "a2", "a1")
	_, err := w.askPreempt(t.Context(), req, false)
	wantError(t, err, codes.InvalidArgument, rpc.ReasonInvalid)
	if v := rpc.Violations(err); len(v) != 1 || v[0].Field != "candidate" {
		t.Errorf("violations %v, want of the candidate", v)
	}
	req = w.question("high")
	req.Version.Epoch++
	_, err = w.askPreempt(t.Context(), req, false)
	wantError(t, err, codes.Aborted, "OTHER_EPOCH")
	w.preempting.take(10)
	_, err = w.askPreempt(t.Context(), w.question("high"), false)
	wantError(t, err, codes.ResourceExhausted, "PREEMPTIONS_FULL")
	w.preempting.give(1)
	w.reports.room.limit = 1
	w.reports.add(source.Report{UID: "other"})
	_, err = w.askPreempt(t.Context(), w.question("high"), false)
	wantError(t, err, codes.ResourceExhausted, "REPORTS_FULL")
	if n := len(h.calls()); n != 0 {
		t.Errorf("asked %d times in vain", n)
	}
	w.reports.next()
	req = w.question("high")
	if got := w.ask(req); got != "started on a: a1 a2" {
		t.Errorf("once there is room: %s", got)
	}
	if w.preempting.take(10); !w.preempting.full() {
		t.Fatal("there is room for more")
	}
	if got := w.ask(req); got != "started on a: a1 a2" {
		t.Errorf("asked again, when there is none any more: %s", got)
	}
}

// Whose shard another has claimed while extenders thought preempts nobody.
func TestAShardThatIsLostWhileExtendersThinkPreemptsNobody(t *testing.T) {
	var w *preemptWorld
	h := newPreemptHook(t, func(args extenderv1.ExtenderPreemptionArgs) string {
		w.shards.learn([]coord.ShardOwner{{Shard: 0, Revision: 1 << 40}})
		return leavesAll(args)
	})
	w = newPreemptWorld(t, h.at())
	before := w.ledger.version()
	_, err := w.askPreempt(t.Context(), w.question("high"), false)
	wantError(t, err, codes.FailedPrecondition, "SHARD_LOST")
	if len(h.calls()) != 1 || w.ledger.version() != before || w.preemptions.waiting() != 0 {
		t.Errorf("asked %d times; the log went from %v to %v, and %d wait to be carried out", len(h.calls()), before, w.ledger.version(), w.preemptions.waiting())
	}
}

// One that hangs ends with its time, and with that the attempt; meanwhile the next of its pods has no turn.
func TestAnExtenderThatHangsEndsThePreemptionAfterItsTime(t *testing.T) {
	h := newPreemptHook(t, says(""))
	at := h.at()
	at.HTTPTimeout = metav1.Duration{Duration: 50 * time.Millisecond}
	w := newPreemptWorld(t, at)
	if got := w.ask(w.question("high")); !strings.HasPrefix(got, "failed: Post ") || !strings.Contains(got, "Client.Timeout exceeded") {
		t.Errorf("%s", got)
	}
	leave, err := w.extenders.take(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.askPreempt(t.Context(), w.question("high"), false)
	wantError(t, err, codes.ResourceExhausted, "EXTENDER_BUSY")
	leave()
}

// Of many nodes, extenders are asked about as many as kube-scheduler would find at least, each time others, and all of them if each violates a budget.
func TestExtendersAreAskedAboutSomeOfManyNodes(t *testing.T) {
	h := newPreemptHook(t, leaves())
	w := newPreemptWorld(t, h.at())
	observe(t, w.term, gone("a1"), gone("a2"), gone("b3"))
	for i := range 700 {
		name := fmt.Sprintf("n%d", i)
		observe(t, w.term, node(name, 1000))
		w.runs(name, "on-"+name, 1000, 1)
	}
	w.runs("a", "a99", 1000, 99)
	w.runs("b", "b99", 1000, 99)
	w.extenders.candidates = map[string]engine.CandidateNodes{scheduler: {Percentage: 20, Absolute: 10}}
	seen := make(map[string]int)
	asked := func() int {
		t.Helper()
		if got := w.ask(w.question("high")); got != "no_candidate" {
			t.Fatal(got)
		}
		calls := h.calls()
		for name := range calls[len(calls)-1].NodeNameToMetaVictims {
			seen[name]++
		}
		return len(calls[len(calls)-1].NodeNameToMetaVictims)
	}
	for range 5 {
		if n := asked(); n < 140 || n > 140+64 {
			t.Errorf("asked about %d, want 140 or up to 63 more", n)
		}
	}
	if len(seen) != 700 {
		t.Errorf("asked about %d in 5 attempts, want all 700", len(seen))
	}
	w.extenders.candidates = nil
	if n := asked(); n < 100 || n > 164 {
		t.Errorf("asked about %d, want 100 by default, or up to 63 more", n)
	}
	observe(t, w.term, source.Event{Kind: source.ObjectSet, Object: &cluster.Budget{
		Namespace: "default", Name: "all", Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "Exists"}}},
	}})
	w.extenders.candidates = map[string]engine.CandidateNodes{scheduler: {Absolute: 100}}
	if n := asked(); n != 100 {
		t.Errorf("asked about %d that violate a budget, want 100 of all", n)
	}
	w.extenders.candidates = map[string]engine.CandidateNodes{scheduler: {Absolute: 2000}}
	if n := asked(); n != 700 {
		t.Errorf("asked about %d, want all", n)
	}
}

// A percentage of a few nodes is none: one is looked for all the same, though it violates a budget.
func TestExtendersAreAskedAboutANodeAtLeast(t *testing.T) {
	h := newPreemptHook(t, leavesAll)
	w := newPreemptWorld(t, h.at())
	w.extenders.candidates = map[string]engine.CandidateNodes{scheduler: {Percentage: 10}}
	observe(t, w.term, source.Event{Kind: source.ObjectSet, Object: &cluster.Budget{
		Namespace: "default", Name: "all", Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "Exists"}}},
	}})
	if got := w.ask(w.question("high")); !strings.HasPrefix(got, "started on ") || len(h.calls()[0].NodeNameToMetaVictims) != 1 {
		t.Errorf("%s, asked %v", got, h.calls())
	}
}

// Its report goes with it, and the request is not changed by being asked.
func TestAPreemptionThatExtendersAgreeToIsReported(t *testing.T) {
	w := newPreemptWorld(t, newPreemptHook(t, leavesAll).at())
	req := w.question("high")
	before := proto.Clone(req)
	if got := w.ask(req); got != "started on a: a1 a2" || !proto.Equal(before, req) {
		t.Errorf("%s; %v", got, req)
	}
	if n := w.reports.depth(); n != 1 {
		t.Errorf("%d reports wait, want one", n)
	}
}
