package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"pgregory.net/rapid"
)

// soon is the httpTimeout of an extender that a test waits for.
func soon() metav1.Duration { return metav1.Duration{Duration: 50 * time.Millisecond} }

// TestWhateverAServerDoesIsAnError asks servers that do not do what extenders do. PLACE stands for the place that was asked.
func TestWhateverAServerDoesIsAnError(t *testing.T) {
	for _, c := range []struct {
		name   string
		server http.HandlerFunc
		want   string
	}{
		{"another code", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }, "failed filter with extender at URL PLACE, code 202"},
		{"a failure", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) }, "failed filter with extender at URL PLACE, code 500"},
		{"nothing", answers(""), "EOF"},
		{"half a value", answers(`{"NodeNames":["a"`), "unexpected EOF"},
		{"no JSON", answers("<html>"), "invalid character '<' looking for beginning of value"},
		{"another type", answers(`[]`), "json: cannot unmarshal array into Go value of type v1.ExtenderFilterResult"},
		{"a field of another type", answers(`{"NodeNames":7}`), "json: cannot unmarshal number into Go struct field ExtenderFilterResult.NodeNames of type []string"},
		{"an error", answers(`{"NodeNames":["a"],"Error":"out of order"}`), "out of order"},
		{"a node that nobody asked about", answers(`{"NodeNames":["z"]}`), `extender "PREFIX" claims a filtered node "z" which is not found in the input node list`},
		{"a redirect without end", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		},
			`Post "/scheduler/filter": stopped after 10 redirects`},
		{"a redirect to nowhere", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTemporaryRedirect) },
			"failed filter with extender at URL PLACE, code 307"},
		{"the end of the connection", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, `Post "PLACE": EOF`},
		{"the end of the connection within an answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"NodeNames":`)
		}, "unexpected EOF"},
		{"a costly quantity", answers(`{"Nodes":{"items":[{"status":{"capacity":{"cpu":"1e-999999999"}}}]}}`),
			"Nodes.items[0].status.capacity[cpu]: 1e-999999999: the exponent is out of range, or there are too many digits"},
		{"far more nodes than there are", answers(`{"Nodes":{"items":[{}` + strings.Repeat(",{}", leastElements) + `]}}`),
			`extender "PREFIX" was asked about 2 nodes, and answers with far more: have it answer with each once`},
		{"far more names than there are", answers(`{"NodeNames":[""` + strings.Repeat(`,""`, leastElements) + `]}`),
			`extender "PREFIX" was asked about 2 nodes, and answers with far more: have it answer with each once`},
		{"far more reasons than there are nodes", answers(`{"NodeNames":["a"],"FailedNodes":{"0":""` + strings.Repeat(`,"a":""`, leastElements) + `}}`),
			`extender "PREFIX" was asked about 2 nodes, and answers with far more: have it answer with each once`},
		{"an error that does not end", answers(`{"Error":"` + strings.Repeat("e", 1<<20) + `"}`), strings.Repeat("e", MaxText) + "…"},
		{"a node that does not end, and that nobody asked about", answers(`{"NodeNames":["` + strings.Repeat("z", 1<<20) + `"]}`),
			`extender "PREFIX" claims a filtered node "` + strings.Repeat("z", MaxText)},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := serve(t, c.server)
			prefix := server.URL + "/scheduler"
			h := newSet(t, byName(prefix))
			_, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("a", "b"))
			want := Short(strings.NewReplacer("PLACE", prefix+"/filter", "PREFIX", prefix).Replace(c.want))
			if strings.HasPrefix(c.want, "eee") {
				want = c.want
			}
			if err == nil || err.Error() != want {
				t.Fatalf("the error is %q, want %q", err, want)
			}
			// What is wrong with names shows when the call is over, and is no failure of it.
			if call := h.only(t); (call.Err == nil) != strings.Contains(c.name, "that nobody asked about") {
				t.Errorf("the call has the error %v", call.Err)
			}
			if _, stated := errors.AsType[Stated](err); stated != strings.HasPrefix(c.name, "an error") {
				t.Errorf("%q: stated by the extender is %v", err, stated)
			}
		})
	}
}

func TestWhatComesBehindAnAnswerIsNotRead(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"NodeNames":["b"]}`)
		w.(http.Flusher).Flush()
		<-r.Context().Done() // and nothing ends the answer
	})
	h := newSet(t, byName(server.URL))
	out, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("a", "b"))
	if err != nil || len(out.Nodes) != 1 {
		t.Errorf("%v, %v", namesOf(out.Nodes), err)
	}
}

func TestACallEndsWithItsTimeout(t *testing.T) {
	began := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"NodeNames":`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	for name, server := range map[string]http.HandlerFunc{"before the answer": silent, "within it": began} {
		t.Run(name, func(t *testing.T) {
			cfg := byName(serve(t, server).URL)
			cfg.HTTPTimeout = soon()
			h := newSet(t, cfg)
			// On a slow machine, it may even come before the server has begun, or there is a connection: net/http says what of it, and this in any case.
			_, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("a"))
			if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() || !strings.Contains(err.Error(), " (Client.Timeout ") {
				t.Errorf("the error is %q, want that of a timeout", err)
			}
			if took := h.only(t).Took; took < cfg.HTTPTimeout.Duration {
				t.Errorf("the call took %v", took)
			}
		})
	}
}

func TestACallHasFiveSecondsUnlessTheConfigurationSaysOtherwise(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: 5 * time.Second, time.Hour: time.Hour} {
		h := newSet(t, configv1.Extender{URLPrefix: "http://nowhere", HTTPTimeout: metav1.Duration{Duration: given}})
		if got := h.extenders[0].client.Timeout; got != want {
			t.Errorf("httpTimeout %v: %v, want %v", given, got, want)
		}
	}
}

// TestTheEndOfAContextIsNoFailureOfAnExtender: an ignorable extender is not skipped for it, and scores that are missing are not taken for none.
func TestTheEndOfAContextIsNoFailureOfAnExtender(t *testing.T) {
	asked := make(chan struct{}, 1)
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
	})
	h := newSet(t, configv1.Extender{
		URLPrefix: server.URL, FilterVerb: "filter", PrioritizeVerb: "prioritize", BindVerb: "bind", PreemptVerb: "preempt", Weight: 1, NodeCacheCapable: true, Ignorable: true, HTTPTimeout: patient,
	})
	pod, nodes := NewPod(testPod("p")), testNodes("a", "b")
	for verb, ask := range map[Verb]func(context.Context) error{
		Filter:     func(ctx context.Context) error { _, err := h.Filter(ctx, pod, nodes); return err },
		Prioritize: func(ctx context.Context) error { _, err := h.Prioritize(ctx, pod, nodes); return err },
		Bind: func(ctx context.Context) error {
			_, err := h.Bind(ctx, ResourceNames(pod.object), extenderv1.ExtenderBindingArgs{})
			return err
		},
		Preempt: func(ctx context.Context) error {
			_, err := h.Preempt(ctx, pod, map[string]*extenderv1.Victims{"a": {}}, nil)
			return err
		},
	} {
		ctx, cancel := context.WithCancel(hangs(t))
		defer cancel()
		go func() {
			defer cancel()
			select {
			case <-asked:
			case <-ctx.Done():
			}
		}()
		if err := ask(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), string(verb)) {
			t.Errorf("%s: %v, want that the context was canceled", verb, err)
		}
	}
	if strings.Contains(h.log.String(), "skipped") {
		t.Errorf("an extender was skipped: %s", &h.log)
	}
}

func TestAnAnswerIsReadToABound(t *testing.T) {
	const most = 1 << 20
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"Error":"`)
		for text := strings.Repeat("a", most/10); ; {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		}
	})
	h := newSet(t, byName(server.URL))
	for verb, want := range map[Verb]int{Filter: 64 << 20, Prioritize: 8 << 20, Bind: 1 << 20, Preempt: 64 << 20} {
		if got := h.extenders[0].mostAnswered(verb); got != want {
			t.Errorf("%s: %d bytes are read, want %d", verb, got, want)
		}
	}
	h.extenders[0].mostAnswered = func(Verb) int { return most }
	_, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("a"))
	if want := `extender "` + server.URL + `" answers filter with more than 1 MiB: have it answer with less`; err == nil || err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
	if call := h.only(t); call.ResponseBytes != most {
		t.Errorf("%d bytes were read, want %d", call.ResponseBytes, most)
	}
}

// An extender may answer with all that it was sent.
func TestAnAnswerMayHaveAllThatWasSent(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var args extenderv1.ExtenderArgs
		_ = json.NewDecoder(r.Body).Decode(&args)
		_ = json.NewEncoder(w).Encode(extenderv1.ExtenderFilterResult{Nodes: args.Nodes})
	})
	cfg := byName(server.URL)
	cfg.NodeCacheCapable = false
	h := newSet(t, cfg)
	h.extenders[0].mostAnswered = func(Verb) int { return 1000 }
	large := testNodes("a", "b")[0].Object().DeepCopy()
	large.Annotations = map[string]string{"large": strings.Repeat("x", 10_000)}
	if out, err := h.Filter(hangs(t), NewPod(testPod("p")), []*Node{NewNode(large)}); err != nil || len(out.Nodes) != 1 {
		t.Errorf("%v, %v", namesOf(out.Nodes), err)
	}
	sent := []byte(strings.Repeat("[]", mostValues))
	for values, want := range map[int]bool{valuesPerNode: false, valuesPerNode + 1: true} {
		if got := tooMany(values, nil, 1); got != want {
			t.Errorf("%d values of a node: %v", values, got)
		}
	}
	for values, want := range map[int]bool{mostValues: false, 2 * mostValues: false, 2*mostValues + 1: true} {
		if got := tooMany(values, sent, mostValues); got != want {
			t.Errorf("%d values of what has %d: %v", values, mostValues, got)
		}
	}
	if !tooMany(mostValues+1, nil, mostValues) {
		t.Error("there is no bound where little was sent")
	}
}

func TestAnAnswerOfJustTheBoundIsRead(t *testing.T) {
	const most, head, tail = 1 << 20, `{"NodeNames":["a"],"x":"`, `"}`
	server := serve(t, answers(head+strings.Repeat("a", most-len(head)-len(tail))+tail))
	h := newSet(t, byName(server.URL))
	h.extenders[0].mostAnswered = func(Verb) int { return most }
	out, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("a", "b"))
	if err != nil || len(out.Nodes) != 1 {
		t.Errorf("%v, %v", namesOf(out.Nodes), err)
	}
}

func TestARedirectTakesTheBodyAlong(t *testing.T) {
	var second atomic.Value
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/filter" {
			http.Redirect(w, r, "/elsewhere", http.StatusPermanentRedirect)
			return
		}
		body, _ := io.ReadAll(r.Body)
		second.Store(r.Method + " " + string(body))
		_, _ = io.WriteString(w, `{"NodeNames":["a"]}`)
	})
	h := newSet(t, byName(server.URL))
	if _, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("a")); err != nil {
		t.Fatal(err)
	}
	if got, _ := second.Load().(string); !strings.HasPrefix(got, `POST {"Pod":{"metadata":{"name":"p"`) || !strings.HasSuffix(got, `"NodeNames":["a"]}`) {
		t.Errorf("the second server got %s", got)
	}
}

func TestAServerThatIsNotThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	h := newSet(t, byName("http://"+address+"/"))
	_, err = h.Filter(hangs(t), NewPod(testPod("p")), testNodes("a"))
	if want := `Post "http://` + address + `/filter": dial tcp ` + address + `: connect: connection refused`; err == nil || err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
}

// TestConnectionsHaveABound has more binds at once than there may be connections. No answer comes before all connections are there.
func TestConnectionsHaveABound(t *testing.T) {
	var open, most atomic.Int64
	full := make(chan struct{})
	fill := sync.OnceFunc(func() { close(full) })
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n := open.Add(1); n == maxConnections {
			fill()
		}
		select {
		case <-full:
		case <-r.Context().Done():
		}
		for n := open.Load(); n > most.Load(); n = open.Load() {
			most.Store(n)
		}
		defer open.Add(-1)
		_, _ = io.WriteString(w, `{}`)
	})
	cfg := configv1.Extender{URLPrefix: server.URL, BindVerb: "bind", HTTPTimeout: patient}
	h := newSet(t, cfg)
	bindAll(t, h, 3*maxConnections)
	if n := most.Load(); n != maxConnections {
		t.Errorf("%d requests at once, want %d", n, maxConnections)
	}
}

// bindAll has many pods bound at once.
func bindAll(t *testing.T, h *harness, n int) {
	t.Helper()
	ctx, resources := hangs(t), ResourceNames(testPod("p"))
	all, ctx := errgroup.WithContext(ctx)
	for range n {
		all.Go(func() error {
			bound, err := h.Bind(ctx, resources, extenderv1.ExtenderBindingArgs{PodName: "p", Node: "a"})
			if err == nil && !bound {
				return errors.New("nobody has bound the pod")
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestObserversAreToldOfEachCall(t *testing.T) {
	const answer = `{"NodeNames":["a"]}`
	var got atomic.Int64
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		got.Store(n)
		_, _ = io.WriteString(w, answer)
	})
	h := newSet(t, byName(server.URL))
	if _, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("a")); err != nil {
		t.Fatal(err)
	}
	call := h.only(t)
	if call.Took <= 0 {
		t.Errorf("it took %v", call.Took)
	}
	call.Took = 0
	if want := (Call{Extender: server.URL, Verb: Filter, RequestBytes: int(got.Load()), ResponseBytes: len(answer)}); call != want {
		t.Errorf("the call is %+v, want %+v", call, want)
	}
}

// TestTheEndOfAnAnswerIsWhereTheDecoderFindsIt compares what is read of a body, byte by byte, with what a decoder makes of it.
func TestTheEndOfAnAnswerIsWhereTheDecoderFindsIt(t *testing.T) {
	piece := rapid.SampledFrom([]string{"{", "}", "[", "]", ",", ":", `"a"`, `"`, `\`, `"\""`, `"\\"`, `"{["`, `"a":[{}]`, "1", "null", " ", "\n", "x"})
	element := rapid.SampledFrom([]string{`"\""`, `"\\"`, `"[{"`, `"]}"`, `{"\"]":[1,{}]}`, `[[],{}]`, "null", "7"})
	ended, broken := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		body := "\t[" + strings.Join(rapid.SliceOfN(element, 0, 4).Draw(t, "elements"), " , ") + "]" + rapid.SampledFrom([]string{"", "]", "\n{}", "x", `"`}).Draw(t, "behind")
		if rapid.Bool().Draw(t, "cut") {
			body = body[:rapid.IntRange(0, len(body)).Draw(t, "at")]
		}
		if rapid.Bool().Draw(t, "any") {
			body = rapid.SampledFrom([]string{"", "{", "[", " [{", `{"a":`}).Draw(t, "begins") + strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(t, "body"), "")
		}
		var want json.RawMessage
		wrong := json.NewDecoder(strings.NewReader(body)).Decode(&want)
		var v value
		whole := v.read(iotest.OneByteReader(strings.NewReader(body)))
		switch scalar := len(want) > 0 && want[0] != '{' && want[0] != '['; {
		case wrong == nil && whole == scalar:
			t.Fatalf("%q: whole is %v, and the decoder finds %s", body, whole, want)
		case wrong == nil && whole && strings.TrimSpace(string(v.text)) != string(want):
			t.Fatalf("%q: read %q, and the decoder %q", body, v.text, want)
		case wrong != nil && whole && json.Valid(v.text):
			t.Fatalf("%q: %q is read, and the decoder says %v", body, v.text, wrong)
		case whole:
			ended++
		default:
			broken++
		}
	})
	if ended == 0 || broken == 0 {
		t.Errorf("%d were whole, %d not", ended, broken)
	}
}

func TestValuesAreCountedAtTheirLevel(t *testing.T) {
	for text, want := range map[string][levels]int{
		`{"a":[]}`: {0, 1, 1, 0}, `{"a":[1,[2,3],"4,5"],"b":{"c":"{,","d":[6,7]}}`: {0, 2, 5, 4}, `[1,2]`: {0, 2, 0, 0}, `[[]]`: {0, 1, 1, 0}, `[[1,2],3]`: {0, 2, 2, 0},
		`[[[[1,2]]]]`: {0, 1, 1, 1},
	} {
		var v value
		if v.read(strings.NewReader(text)); v.counts != want {
			t.Errorf("%s: %v, want %v", text, v.counts, want)
		}
	}
}

// A thousand scores are taken, whatever was asked, and four times as many as that; of nodes that were not asked about none counts.
func TestScoresHaveABound(t *testing.T) {
	for _, c := range []struct {
		asked, answered int
		want            bool
	}{{2, leastElements, true}, {2, leastElements + 1, false}, {300, 4 * 300, true}, {300, 4*300 + 1, false}} {
		server := serve(t, answers(`[{"Host":"n0","Score":7}`+strings.Repeat(`,{"Host":"z","Score":1}`, c.answered-1)+`]`))
		cfg := configv1.Extender{URLPrefix: server.URL, PrioritizeVerb: "prioritize", Weight: 2, NodeCacheCapable: true, HTTPTimeout: patient}
		h := newSet(t, cfg)
		names := make([]string, c.asked)
		for i := range names {
			names[i] = fmt.Sprint("n", i)
		}
		scores, err := h.Prioritize(hangs(t), NewPod(testPod("p")), testNodes(names...))
		want := map[string]int64{}
		if c.want {
			want["n0"] = 14
		}
		if err != nil || !maps.Equal(scores, want) || (h.only(t).Err == nil) != c.want {
			t.Errorf("asked about %d nodes, answered with %d scores: %v, %v, want %v; the call: %v", c.asked, c.answered, scores, err, want, h.only(t).Err)
		}
	}
}

// User and password go to the server, and nowhere else: not to logs, events or metrics.
func TestWhoBerthIsToAnExtenderIsNotTold(t *testing.T) {
	var user atomic.Value
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		user.Store(name + " " + password)
		if r.URL.Path == "/filter" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		panic(http.ErrAbortHandler)
	})
	at := strings.Replace(server.URL, "//", "//someone:secret@", 1)
	h := newSet(t, configv1.Extender{URLPrefix: at, FilterVerb: "filter", BindVerb: "bind", PrioritizeVerb: "prioritize", Weight: 1, NodeCacheCapable: true, HTTPTimeout: patient})
	_, filtered := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("a"))
	_, bound := h.Bind(hangs(t), ResourceNames(testPod("p")), extenderv1.ExtenderBindingArgs{PodName: "p", Node: "a"})
	_, scored := h.Prioritize(hangs(t), NewPod(testPod("p")), testNodes("a", "b"))
	if filtered == nil || bound == nil || scored != nil {
		t.Fatalf("filter: %v, bind: %v, prioritize: %v", filtered, bound, scored)
	}
	if got, _ := user.Load().(string); got != "someone secret" {
		t.Errorf("the server is told %q", got)
	}
	_, _, misplaced := Check(&configv1.Extender{URLPrefix: "http://someone:secret@ho st"})
	_, shown, _ := Check(&configv1.Extender{URLPrefix: "ftp://someone:secret@host"})
	for _, prefix := range []string{"http://someone:sec/ret@host", "http://someone:12/34@host/y", "http://some@one:34@host", "http://someone:secret@ho st"} {
		if name, value, err := Check(&configv1.Extender{URLPrefix: prefix}); name != "urlPrefix" || err == nil || strings.Contains(value+err.Error(), "sec") || strings.Contains(value+err.Error(), "34") {
			t.Errorf("%s: %s %q: %v", prefix, name, value, err)
		}
	}
	field, verb, unescaped := Check(&configv1.Extender{URLPrefix: at, PrioritizeVerb: "filter", BindVerb: "bind%"})
	if field != "bindVerb" || verb != "bind%" || unescaped == nil {
		t.Errorf("of a verb that makes no URL: %s %q: %v", field, verb, unescaped)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if said := fmt.Sprint(filtered, bound, &h.log, h.calls, misplaced, shown, unescaped); strings.Contains(said, "someone") || strings.Contains(said, "secret") || !strings.Contains(said, "/bind") {
		t.Errorf("told: %s", said)
	}
}

// What takes two bytes in an answer takes a hundred once it is decoded.
func TestAnAnswerIsNotDecodedThatHasFarMoreThanItsNodes(t *testing.T) {
	for more, want := range map[int]bool{valuesPerNode - 1000: true, valuesPerNode: false} {
		text := `{"Nodes":{"items":[{"metadata":{"name":"a"},"status":{"conditions":[{}` + strings.Repeat(",{}", more/2) + `]}}]}}`
		cfg := byName(serve(t, answers(text)).URL)
		cfg.NodeCacheCapable = false
		_, err := newSet(t, cfg).Filter(hangs(t), NewPod(testPod("p")), testNodes("a"))
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "far more than they have") {
			t.Errorf("about %d values: %v", more, err)
		}
	}
}

// Binds that hang take no connections from what else an extender is asked.
func TestBindsThatHangLeaveConnectionsToOthers(t *testing.T) {
	var binding sync.WaitGroup
	binding.Add(maxConnections)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bind" {
			binding.Done()
			silent(w, r)
			return
		}
		answers(`{"NodeNames":["a"]}`)(w, r)
	})
	cfg := byName(server.URL)
	cfg.BindVerb = "bind"
	h := newSet(t, cfg)
	ctx, cancel := context.WithCancel(hangs(t))
	var all sync.WaitGroup
	for range maxConnections {
		all.Go(func() {
			_, _ = h.Bind(ctx, ResourceNames(testPod("p")), extenderv1.ExtenderBindingArgs{PodName: "p", Node: "a"})
		})
	}
	binding.Wait()
	out, err := h.Filter(hangs(t), NewPod(testPod("p")), testNodes("a"))
	if err != nil || len(out.Nodes) != 1 {
		t.Errorf("%v, %v", namesOf(out.Nodes), err)
	}
	cancel()
	all.Wait()
}

// changing fails in another way each time.
type changing int

func (c *changing) Read([]byte) (int, error) {
	*c++
	return 0, fmt.Errorf("failure %d", *c)
}

func TestTheFirstFailureOfABodyIsTheOneThatIsTold(t *testing.T) {
	e := newSet(t, byName("http://nowhere")).extenders[0]
	err := e.read(&bounded{body: new(changing), most: 10}, Filter, nil, 1, new(extenderv1.ExtenderFilterResult))
	if err == nil || err.Error() != "failure 1" {
		t.Errorf("%v, want failure 1", err)
	}
}
