package extender

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// recorder is a server that answers each path with a text, and keeps what it was asked, in order.
type recorder struct {
	*httptest.Server
	answers map[string]string // by path; none: 404

	mu    sync.Mutex
	asked []string // paths
	last  map[string]string
}

func record(t *testing.T, texts map[string]string) *recorder {
	r := &recorder{answers: texts, last: make(map[string]string)}
	r.Server = serve(t, func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked = append(r.asked, request.URL.Path)
		r.last[request.URL.Path] = string(body)
		text, ok := r.answers[request.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, text)
	})
	return r
}

// extender returns one of several that the recorder is.
func (r *recorder) extender(name string, change func(*configv1.Extender)) configv1.Extender {
	e := configv1.Extender{
		URLPrefix: r.URL + "/" + name + "/", FilterVerb: "filter", PrioritizeVerb: "prioritize", BindVerb: "bind", PreemptVerb: "preempt", Weight: 1, NodeCacheCapable: true, HTTPTimeout: patient,
	}
	if change != nil {
		change(&e)
	}
	return e
}

func (r *recorder) wasAsked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

func ignorable(e *configv1.Extender) { e.Ignorable = true }

func managing(resources ...string) func(*configv1.Extender) {
	return func(e *configv1.Extender) {
		for _, name := range resources {
			e.ManagedResources = append(e.ManagedResources, configv1.ExtenderManagedResource{Name: name, IgnoredByScheduler: strings.HasSuffix(name, "-ignored")})
		}
	}
}

func TestExtendersAreAskedInOrderAboutWhatIsLeft(t *testing.T) {
	r := record(t, map[string]string{
		"/a/filter": `{"NodeNames":["4","3","2"],"FailedNodes":{"1":"a refuses 1","2":"a will not say so again"},"FailedAndUnresolvableNodes":{"5":"never"}}`,
		"/c/filter": `{"NodeNames":["3"],"FailedNodes":{"2":"c refuses 2","4":"c refuses 4","5":"after all"},"FailedAndUnresolvableNodes":{"4":"never 4"}}`,
	})
	h := newSet(t, r.extender("b", ignorable), r.extender("a", nil), r.extender("other", managing("example.com/other")), r.extender("c", nil))
	out, err := h.Filter(hangs(t), NewPod(testPod("p", "cpu")), testNodes("1", "2", "3", "4", "5"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/a/filter", "/c/filter", "/b/filter"}; !slices.Equal(r.wasAsked(), want) {
		t.Errorf("%v were asked, want %v", r.wasAsked(), want)
	}
	if want := []string{"3"}; !slices.Equal(namesOf(out.Nodes), want) {
		t.Errorf("%v are left, want %v", namesOf(out.Nodes), want)
	}
	want := map[string]Refusal{"1": {Reason: "a refuses 1"}, "2": {Reason: "c refuses 2"}, "4": {"never 4", true}, "5": {Reason: "after all"}}
	if diff := cmp.Diff(want, out.Refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if !strings.HasSuffix(r.last["/c/filter"], `,"NodeNames":["4","3","2"]}`) {
		t.Errorf("c was asked about %s", r.last["/c/filter"])
	}
	if !strings.Contains(h.log.String(), `msg="extender skipped: it has failed, and is ignorable" extender=`+r.URL+`/b/ what=filter pod=default/p err="failed filter with extender at URL`) {
		t.Errorf("the log is %s", &h.log)
	}
}

func TestNobodyIsAskedAboutNoNodes(t *testing.T) {
	for _, none := range []string{`{}`, `{"NodeNames":[]}`, `{"Nodes":{"items":[]}}`} {
		r := record(t, map[string]string{"/a/filter": none, "/b/filter": none})
		h := newSet(t, r.extender("a", nil), r.extender("b", nil))
		out, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("1"))
		if err != nil || len(out.Nodes) != 0 || len(out.Refused) != 0 {
			t.Errorf("%s: %+v, %v", none, out, err)
		}
		if _, err := h.Filter(hangs(t), NewPod(testPod("p")), nil); err != nil {
			t.Error(err)
		}
		if want := []string{"/a/filter"}; !slices.Equal(r.wasAsked(), want) {
			t.Errorf("%s: %v were asked, want %v", none, r.wasAsked(), want)
		}
	}
}

// TestNodesInFullAreWhatTheLastExtenderMadeOfThem: what one answers is what the next is told.
func TestNodesInFullAreWhatTheLastExtenderMadeOfThem(t *testing.T) {
	r := record(t, map[string]string{
		"/a/filter": `{"Nodes":{"items":[{"metadata":{"name":"2","labels":{"by":"a"}}},{"metadata":{"name":"unknown"}}]},"NodeNames":["1"]}`,
		"/b/filter": `{"Nodes":{"items":[{"metadata":{"name":"2"}}]}}`,
	})
	full := func(e *configv1.Extender) { e.NodeCacheCapable = false }
	h := newSet(t, r.extender("a", full), r.extender("b", full))
	out, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("1", "2"))
	if err != nil {
		t.Fatal(err)
	}
	var asked extenderv1.ExtenderArgs
	if err := json.Unmarshal([]byte(r.last["/b/filter"]), &asked); err != nil {
		t.Fatal(err)
	}
	if items := asked.Nodes.Items; len(items) != 2 || items[0].Labels["by"] != "a" || items[1].Name != "unknown" {
		t.Errorf("b was asked about %+v", items)
	}
	if len(out.Nodes) != 1 || out.Nodes[0].Object().Labels != nil {
		t.Errorf("%+v is left", out.Nodes)
	}
}

func TestWhoLeavesANodeThatItWasNotAskedAboutHasFailedIfThatIsWanted(t *testing.T) {
	r := record(t, map[string]string{
		"/a/filter": `{"Nodes":{"items":[{"metadata":{"name":"unknown"}}]}}`,
		"/b/filter": `{"Nodes":{"items":[{"metadata":{"name":"2"}}]}}`,
	})
	for _, ignorable := range []bool{false, true} {
		full := func(e *configv1.Extender) { e.NodeCacheCapable, e.Ignorable = false, ignorable }
		s, err := New(Config{Extenders: []configv1.Extender{r.extender("a", full), r.extender("b", full)}, OnlyAsked: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		out, err := s.Filter(hangs(t), NewPod(testPod("p")), testNodes("1", "2"))
		if ignorable && (err != nil || !slices.Equal(namesOf(out.Nodes), []string{"2"})) {
			t.Errorf("it is skipped: %v, %v", namesOf(out.Nodes), err)
		}
		if want := `/a/" has left node "unknown", which it was not asked about`; !ignorable && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestAFailureEndsTheAttempt(t *testing.T) {
	r := record(t, map[string]string{"/a/filter": `{"Error":"broken"}`, "/b/filter": `{}`})
	h := newSet(t, r.extender("a", nil), r.extender("b", nil))
	if out, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("1")); err == nil || err.Error() != "broken" || out.Nodes != nil {
		t.Errorf("%+v, %v", out, err)
	}
	if want := []string{"/a/filter"}; !slices.Equal(r.wasAsked(), want) {
		t.Errorf("%v were asked, want %v", r.wasAsked(), want)
	}
}

func TestASetNeedsNoLogAndNoObserver(t *testing.T) {
	r := record(t, nil)
	s, err := New(Config{Extenders: []configv1.Extender{r.extender("absent", ignorable)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if out, err := s.Filter(hangs(t), NewPod(testPod("p")), testNodes("1")); err != nil || len(out.Nodes) != 1 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestScoresAreWeightedAndAddedUp(t *testing.T) {
	r := record(t, map[string]string{
		"/a/prioritize": `[{"Host":"1","Score":10},{"Host":"2","Score":0},{"Host":"1","Score":-3},{"Host":"unknown","Score":1}]`,
		"/b/prioritize": `[{"Host":"2","Score":7}]`,
		"/d/prioritize": `no JSON`,
		"/e/prioritize": `[{"Host":"3","Score":10}]`,
	})
	weight := func(n int64) func(*configv1.Extender) { return func(e *configv1.Extender) { e.Weight = n } }
	h := newSet(t, r.extender("a", weight(2)), r.extender("b", weight(3)), r.extender("c", nil), r.extender("d", nil), r.extender("e", managing("example.com/other")))
	pod := NewPod(testPod("p", "cpu"))
	scores, err := h.Prioritize(hangs(t), pod, testNodes("1", "2", "3"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"1": 14, "2": 21}, scores); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
	// An extender that only filters gives every node a score of 0.
	h = newSet(t, r.extender("b", nil), r.extender("filter", func(e *configv1.Extender) { e.PrioritizeVerb = "" }))
	if scores, err = h.Prioritize(hangs(t), pod, testNodes("1", "2")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"1": 0, "2": 7}, scores); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
	if Scale != 10 {
		t.Errorf("the scale is %d", Scale)
	}
}

// TestPrioritizersAreAskedAtTheSameTime: each answers when all have been asked.
func TestPrioritizersAreAskedAtTheSameTime(t *testing.T) {
	var all sync.WaitGroup
	const n = 5
	all.Add(n)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		all.Done()
		all.Wait()
		_, _ = io.WriteString(w, `[{"Host":"1","Score":1}]`)
	})
	var extenders []configv1.Extender
	for i := range n {
		extenders = append(extenders, configv1.Extender{URLPrefix: server.URL, PrioritizeVerb: "prioritize", Weight: 1, NodeCacheCapable: i%2 == 0, HTTPTimeout: patient})
	}
	scores, err := newSet(t, extenders...).Prioritize(hangs(t), NewPod(testPod("p")), testNodes("1", "2"))
	if err != nil || scores["1"] != n {
		t.Errorf("%v, %v", scores, err)
	}
}

func TestTheFirstInterestedBinderBinds(t *testing.T) {
	r := record(t, map[string]string{"/a/bind": `{}`, "/refuses/bind": `{"Error":"node is full"}`})
	args := extenderv1.ExtenderBindingArgs{PodName: "p", PodNamespace: "default", PodUID: "u", Node: "1"}
	for _, c := range []struct {
		name      string
		extenders []configv1.Extender
		bound     bool
		err       string
	}{
		{"nobody", nil, false, ""},
		{"one that is not interested", []configv1.Extender{r.extender("a", managing("example.com/other"))}, false, ""},
		{"one that does not bind", []configv1.Extender{r.extender("a", func(e *configv1.Extender) { e.BindVerb = "" })}, false, ""},
		{"one", []configv1.Extender{r.extender("a", managing("example.com/gpu"))}, true, ""},
		{"one that refuses", []configv1.Extender{r.extender("refuses", nil)}, true, "node is full"},
		{"an ignorable one that fails", []configv1.Extender{r.extender("b", ignorable)}, false, ""},
		{"one behind an ignorable one", []configv1.Extender{r.extender("b", ignorable), r.extender("a", nil)}, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			bound, err := newSet(t, c.extenders...).Bind(hangs(t), slices.Values([]string{"cpu", "example.com/gpu"}), args)
			if bound != c.bound || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("%v, %v, want %v, %q", bound, err, c.bound, c.err)
			}
			if _, stated := errors.AsType[Stated](err); stated != (err != nil) {
				t.Errorf("%v is stated: %v", err, stated)
			}
		})
	}
	if got, want := r.last["/a/bind"], `{"PodName":"p","PodNamespace":"default","PodUID":"u","Node":"1"}`; got != want {
		t.Errorf("the binder was asked %s, want %s", got, want)
	}
}

// onNodes has pods a1 and a2 on node a, and b1 on node b.
func onNodes(node string) (pods []*corev1.Pod, known, changed bool) {
	pods, known = map[string][]*corev1.Pod{"a": {testPod("a1"), testPod("a2")}, "b": {testPod("b1")}, "empty": nil}[node]
	return pods, known, false
}

// victimsOn returns all pods of nodes as victims.
func victimsOn(nodes ...string) map[string]*extenderv1.Victims {
	out := make(map[string]*extenderv1.Victims)
	for _, n := range nodes {
		pods, _, _ := onNodes(n)
		out[n] = &extenderv1.Victims{Pods: pods, NumPDBViolations: int64(len(pods))}
	}
	return out
}

// inWords names the victims on each node.
func inWords(victims map[string]*extenderv1.Victims) string {
	var out []string
	for _, node := range slices.Sorted(maps.Keys(victims)) {
		text := node + ":"
		for _, pod := range victims[node].Pods {
			text += " " + pod.Name
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func TestExtendersHaveASayInPreemption(t *testing.T) {
	r := record(t, map[string]string{
		"/fewer/preempt":        `{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"uid-a2"}],"NumPDBViolations":7}}}`,
		"/elsewhere/preempt":    `{"NodeNameToMetaVictims":{"b":{"Pods":[{"UID":"uid-b1"}]}}}`,
		"/none/preempt":         `{}`,
		"/no-victims/preempt":   `{"NodeNameToMetaVictims":{"a":{"Pods":[]},"b":{"Pods":[{"UID":"uid-b1"}]}}}`,
		"/unknown-node/preempt": `{"NodeNameToMetaVictims":{"z":{}}}`,
		"/unknown-pod/preempt":  `{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"uid-b1"}]}}}`,
		"/twice/preempt":        `{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"uid-a2"},{"UID":"uid-a2"}]}}}`,
		"/too-often/preempt":    `{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"uid-a2"},{"UID":"uid-a1"},{"UID":"uid-a2"}]}}}`,
		"/null-node/preempt":    `{"NodeNameToMetaVictims":{"a":null}}`,
		"/null-pod/preempt":     `{"NodeNameToMetaVictims":{"a":{"Pods":[null]}}}`,
	})
	for _, c := range []struct {
		extenders   []string // an ignorable one with a question mark
		want, wrong string
		asked       int
	}{
		{[]string{}, "a: a1 a2, b: b1", "", 0},
		{[]string{"fewer"}, "a: a2", "", 1},
		{[]string{"fewer", "elsewhere"}, "b: b1", "", 2},
		{[]string{"none", "fewer"}, "", "", 1},
		{[]string{"no-victims"}, "", `expected at least one victim pod on node "a"`, 1},
		{[]string{"no-victims?"}, "b: b1", "", 1},
		{[]string{"unknown-node"}, "", `nodeinfo not found for node name "z"`, 1},
		{[]string{"unknown-node?", "fewer"}, "a: a2", "", 2},
		{[]string{"unknown-pod"}, "", `extender: URL/unknown-pod/ claims to preempt pod (UID: &{uid-b1}) on node: a, but the pod is not found on that node`, 1},
		{[]string{"twice"}, "a: a2 a2", "", 1},
		{[]string{"too-often"}, "", `extender "URL/too-often/" names more victims on node "a" than it has pods: have it name each once`, 1},
		{[]string{"null-node"}, "", `extender "URL/null-node/" answers null for the victims on node "a": leave the node out, or name its victims`, 1},
		{[]string{"null-pod"}, "", `extender "URL/null-pod/" answers null for a victim on node "a": leave it out, or give its UID`, 1},
		{[]string{"absent"}, "", `failed preempt with extender at URL URL/absent/preempt, code 404`, 1},
		{[]string{"absent?"}, "a: a1 a2, b: b1", "", 1},
	} {
		t.Run(strings.Join(c.extenders, " "), func(t *testing.T) {
			var extenders []configv1.Extender
			for _, name := range c.extenders {
				name, skipped := strings.CutSuffix(name, "?")
				extenders = append(extenders, r.extender(name, func(e *configv1.Extender) { e.Ignorable = skipped }))
			}
			before := len(r.wasAsked())
			given := victimsOn("a", "b")
			out, err := newSet(t, extenders...).Preempt(hangs(t), NewPod(testPod("p")), given, onNodes)
			if want := strings.ReplaceAll(c.wrong, "extender at URL URL", "extender at URL "+r.URL); (err == nil) != (want == "") ||
				err != nil && err.Error() != strings.Replace(want, "URL/", r.URL+"/", 1) {
				t.Fatalf("the error is %v, want %q", err, want)
			}
			if _, is := errors.AsType[Outdated](err); is {
				t.Errorf("%T %v: by its type, what it was told of has changed", err, err)
			}
			if got := inWords(out); got != c.want {
				t.Errorf("the victims are %q, want %q", got, c.want)
			}
			if n := len(r.wasAsked()) - before; n != c.asked {
				t.Errorf("%d were asked, want %d", n, c.asked)
			}
			if diff := cmp.Diff(victimsOn("a", "b"), given); diff != "" {
				t.Errorf("what was given has changed:\n%s", diff)
			}
		})
	}
	out, err := newSet(t, r.extender("fewer", nil)).Preempt(hangs(t), NewPod(testPod("p")), victimsOn("a"), onNodes)
	if err != nil || out["a"].NumPDBViolations != 7 {
		t.Errorf("%+v, %v: want 7 violations, as was answered", out["a"], err)
	}
}

// An extender that names a victim, or a node, that has gone since it was told of it has not failed. If it were skipped, since it is ignorable, what it says of other nodes would be lost.
func TestAnExtenderThatWasToldOfWhatHasChangedIsNotSkipped(t *testing.T) {
	r := record(t, map[string]string{
		"/node/preempt": `{"NodeNameToMetaVictims":{"gone":{"Pods":[{"UID":"uid-b1"}]}}}`,
		"/pod/preempt":  `{"NodeNameToMetaVictims":{"b":{"Pods":[{"UID":"` + strings.Repeat("u", 2*MaxText) + `"}]}}}`,
		"/next/preempt": `{}`,
	})
	for _, name := range []string{"node", "pod"} {
		for _, ignorable := range []bool{false, true} {
			may := func(e *configv1.Extender) { e.Ignorable = ignorable }
			set := newSet(t, r.extender(name, may), r.extender("next", may))
			for _, changed := range []bool{false, true} {
				before := len(r.wasAsked())
				out, err := set.Preempt(hangs(t), NewPod(testPod("p")), victimsOn("a", "b"), func(node string) ([]*corev1.Pod, bool, bool) {
					pods, known, _ := onNodes(node)
					return pods, known, changed
				})
				_, is := errors.AsType[Outdated](err)
				asked, want := len(r.wasAsked())-before, 1
				if ignorable && !changed {
					want = 2
				}
				if is != changed || (err != nil) != (changed || !ignorable) || len(out) != 0 || asked != want {
					t.Errorf("%s, ignorable: %v, changed: %v: %v, %T %.99v, %d were asked", name, ignorable, changed, out, err, err, asked)
				}
				if err != nil && len(err.Error()) > MaxText+len("…") {
					t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
				}
			}
		}
	}
}

// TestVictimsAreNamedAsAnExtenderKnowsThem: in full, or by their uids.
func TestVictimsAreNamedAsAnExtenderKnowsThem(t *testing.T) {
	r := record(t, map[string]string{"/full/preempt": `{}`, "/meta/preempt": `{}`})
	for name, cached := range map[string]bool{"full": false, "meta": true} {
		h := newSet(t, r.extender(name, func(e *configv1.Extender) { e.NodeCacheCapable = cached }))
		if _, err := h.Preempt(hangs(t), NewPod(testPod("p")), victimsOn("a", "empty"), onNodes); err != nil {
			t.Fatal(err)
		}
	}
	var full, meta extenderv1.ExtenderPreemptionArgs
	if err := errors.Join(json.Unmarshal([]byte(r.last["/full/preempt"]), &full), json.Unmarshal([]byte(r.last["/meta/preempt"]), &meta)); err != nil {
		t.Fatal(err)
	}
	if full.NodeNameToMetaVictims != nil || len(full.NodeNameToVictims["a"].Pods) != 2 {
		t.Errorf("in full: %s", r.last["/full/preempt"])
	}
	const want = `"NodeNameToVictims":null,"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"uid-a1"},{"UID":"uid-a2"}],"NumPDBViolations":2},"empty":{"Pods":[],"NumPDBViolations":0}}}`
	if !strings.HasSuffix(r.last["/meta/preempt"], want) {
		t.Errorf("by uid: %s", r.last["/meta/preempt"])
	}
}

func TestPodsInterestExtendersByTheirResources(t *testing.T) {
	e := func(change func(*configv1.Extender)) configv1.Extender {
		cfg := configv1.Extender{URLPrefix: "http://a", BindVerb: "bind"}
		change(&cfg)
		return cfg
	}
	gpus := newSet(t, e(managing("example.com/gpu", "example.com/disk")))
	all := newSet(t, e(func(e *configv1.Extender) { e.BindVerb = "" }), e(managing("example.com/gpu")))
	for _, c := range []struct {
		set               *harness
		resources         []string
		interested, binds bool
	}{
		{gpus, nil, false, false},
		{gpus, []string{"cpu", "memory"}, false, false},
		{gpus, []string{"cpu", "example.com/disk"}, true, true},
		{all, nil, true, false},
		{all, []string{"example.com/gpu"}, true, true},
		{newSet(t), []string{"cpu"}, false, false},
	} {
		if got := c.set.Interest(slices.Values(c.resources)) != 0; got != c.interested {
			t.Errorf("%v: interested is %v", c.resources, got)
		}
		if got := c.set.Interest(slices.Values(c.resources))&c.set.Can(Bind) != 0; got != c.binds {
			t.Errorf("%v: binds is %v", c.resources, got)
		}
	}
	if gpus.Can(Bind) == 0 || gpus.Can(Filter) != 0 {
		t.Errorf("can bind %b, filter %b", gpus.Can(Bind), gpus.Can(Filter))
	}
}

func TestIgnoredResourcesAreThoseThatSchedulersDoNotLookAt(t *testing.T) {
	r := record(t, nil)
	got := IgnoredResources([]configv1.Extender{r.extender("b", ignorable), r.extender("a", managing("a/1", "a/2-ignored")), r.extender("c", managing("c/1-ignored"))})
	if want := []string{"a/2-ignored", "c/1-ignored"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
