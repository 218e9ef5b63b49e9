package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestContract(t *testing.T) { sourcetest.Run(t, startCluster(t)) }

func TestDifferencesAreToldWhenTheAPIServerIsBack(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("stays"))
	c.SetNode(t, sourcetest.Node("goes"))
	c.SetPod(t, sourcetest.Pod("goes"))
	first := c.SetPod(t, sourcetest.Pod("replaced"))
	stays := c.SetPod(t, sourcetest.Pod("stays"))
	app := map[string]string{"app": "x"}
	c.SetSelector(t, cluster.KindReplicaSet, "default", "stays", app)
	c.SetSelector(t, cluster.KindService, "default", "goes", app)
	budget := func(name string) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	}
	c.SetBudget(t, budget("stays"))
	c.SetBudget(t, budget("goes"))
	s := newSource(t, c.config())
	r := sourcetest.Record(t, s).Synced()
	awaitReady(t, s)

	c.plane.StopAPIServer()
	awaitUnready(t, s, c.plane.URL(), "connection refused")
	var told int
	r.View(func(v sourcetest.View) { told = len(v.Events) })
	changes := s.NodeChanges()
	out := s.Bind(within(t), coord.Cond{}, []source.Binding{{UID: stays, Namespace: "default", Name: "stays", Node: "stays"}})
	if out[0].Result != source.BindUnknown {
		t.Errorf("Bind without an API server: %+v, want BindUnknown", out[0])
	}
	if _, _, _, err := s.Lookup(within(t), "default", "stays"); err == nil {
		t.Error("Lookup without an API server: no error")
	}
	if err := c.plane.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	c.DeleteNode(t, "goes")
	c.DeletePod(t, "default", "goes")
	c.DeletePod(t, "default", "replaced")
	second := c.SetPod(t, sourcetest.Pod("replaced"))
	c.SetPod(t, sourcetest.Pod("new"))
	c.DeleteSelector(t, cluster.KindService, "default", "goes")
	c.SetSelector(t, cluster.KindStatefulSet, "default", "new", app)
	c.DeleteBudget(t, "default", "goes")

	r.Await("the difference", func(v sourcetest.View) bool {
		_, node := v.Nodes["goes"]
		_, pod := v.Pods["default/goes"]
		_, service := v.Selectors[sourcetest.SelectorName{Kind: cluster.KindService, Namespace: "default", Name: "goes"}]
		_, set := v.Selectors[sourcetest.SelectorName{Kind: cluster.KindStatefulSet, Namespace: "default", Name: "new"}]
		return !node && !pod && !service && set && v.Budget("default", "goes") == nil && v.Pods["default/replaced"].UID == second && v.Pods["default/new"].UID != ""
	})
	awaitReady(t, s)
	if s.NodeChanges() == changes {
		t.Error("a node has gone, which is not counted")
	}
	r.View(func(v sourcetest.View) {
		for _, e := range v.Events[told:] {
			name := ""
			if e.Object != nil {
				name = e.Object.Key().Name
			}
			if e.Pod.UID == stays || e.Node.Name == "stays" || e.Selector.Name == "stays" || name == "stays" {
				t.Errorf("an object that did not change was told again: kind %d, %s%s%s%s", e.Kind, e.Pod.Name, e.Node.Name, e.Selector.Name, name)
			}
		}
	})
	if first == second {
		t.Error("the pod that took the other's place has the same uid")
	}
}

func TestWatchWaitsForTheAPIServerAndSaysSo(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, kubeconfig, "http://127.0.0.1:1")
	s := newSource(t, Config{Kubeconfig: kubeconfig, SchedulerNames: []string{"berth"}})
	r := sourcetest.Record(t, s)
	awaitUnready(t, s, "http://127.0.0.1:1", "connection refused")
	r.View(func(v sourcetest.View) {
		if len(v.Events) > 0 {
			t.Errorf("told without an API server: %d events", len(v.Events))
		}
	})
}

func awaitReady(t testing.TB, s *Source) {
	t.Helper()
	await(t, func() string {
		if err := s.Ready(); err != nil {
			return "Ready: " + err.Error()
		}
		return ""
	})
}

func awaitUnready(t testing.TB, s *Source, parts ...string) {
	t.Helper()
	await(t, func() string {
		err := s.Ready()
		for _, part := range parts {
			if err == nil || !strings.Contains(err.Error(), part) {
				return fmt.Sprintf("Ready: %v, want %q in it", err, part)
			}
		}
		return ""
	})
}

// await waits until wrong returns "".
func await(t testing.TB, wrong func() string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		text := wrong()
		if text == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(text)
		}
	}
}

func writeKubeconfig(t testing.TB, path, server string) {
	t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: x}}]\n", server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEventsAndConditionsReadAsKubeSchedulersDo(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	uid := c.SetPod(t, sourcetest.Pod("told"))
	cfg := c.config()
	now := atomic.Pointer[time.Time]{}
	start := time.Now()
	now.Store(&start)
	cfg.Now = func() time.Time { return *now.Load() }
	registry := prometheus.NewRegistry()
	cfg.Metrics = registry
	s := newSource(t, cfg)
	r := sourcetest.Record(t, s).Synced()
	r.Pod("default", "told", "")

	report := source.Report{UID: uid, Namespace: "default", Name: "told", Reason: "Unschedulable", Message: strings.Repeat("0/9 nodes; ", 200)}
	fail := func(after time.Duration) {
		t.Helper()
		at := start.Add(after)
		now.Store(&at)
		if err := s.Unschedulable(within(t), report); err != nil {
			t.Fatal(err)
		}
	}
	fail(0)
	fail(time.Minute)
	if got := writes(t, registry); got["event"] != 1 || got["condition"] != 1 {
		t.Errorf("requests after two equal reports: %v, want 1 of each lane", got)
	}
	events := c.events(t, uid)
	if len(events) != 1 {
		t.Fatalf("%d events after two equal reports, want 1", len(events))
	}
	e := events[0]
	if e.Type != "Warning" || e.Reason != "FailedScheduling" || e.Action != "Scheduling" || e.ReportingController != "berth" ||
		e.ReportingInstance != "test-host" || e.Regarding.Kind != "Pod" || e.Regarding.Name != "told" || e.Series != nil {
		t.Errorf("event: %+v", e)
	}
	if want := report.Message[:1020] + " ..."; e.Note != want {
		t.Errorf("note of %d bytes %q, want the first 1020 bytes and an ellipsis", len(e.Note), e.Note)
	}
	pod := c.pod(t, "default", "told")
	condition := scheduled(pod)
	if condition == nil || condition.Status != v1.ConditionFalse || condition.Reason != "Unschedulable" ||
		condition.Message != report.Message || condition.ObservedGeneration != pod.Generation || condition.LastTransitionTime.IsZero() {
		t.Errorf("condition: %+v, pod generation %d", condition, pod.Generation)
	}

	fail(6 * time.Minute)
	if events = c.events(t, uid); len(events) != 1 || events[0].Series == nil || events[0].Series.Count != 3 {
		t.Errorf("after a third report six minutes later: %+v, want one event with a series of 3", events)
	}
	report.Message = "another reason"
	fail(7 * time.Minute)
	if events = c.events(t, uid); len(events) != 2 {
		t.Errorf("%d events after a report of another message, want 2", len(events))
	}

	sampled := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{0xab}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled,
	})
	err := s.Scheduled(trace.ContextWithSpanContext(within(t), sampled), source.Binding{UID: uid, Namespace: "default", Name: "told", Node: "one"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range c.events(t, uid) {
		if e.Reason == "Scheduled" && (e.Type != "Normal" || e.Action != "Binding" || e.Note != "Successfully assigned default/told to one") {
			t.Errorf("event: %+v", e)
		}
		if got := e.Annotations["berth.dev/trace-id"]; (got == "ab000000000000000000000000000000") != (e.Reason == "Scheduled") {
			t.Errorf("%s event of trace %q: only Scheduled was written in one", e.Reason, got)
		}
	}
}

// writes returns the number of requests by lane.
func writes(t *testing.T, registry *prometheus.Registry) map[string]uint64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "lane" {
					out[label.GetValue()] += metric.GetHistogram().GetSampleCount()
				}
			}
		}
	}
	return out
}

func TestAReportThatIsLateIsNotWrittenToThePodThatTookItsPlace(t *testing.T) {
	c := startCluster(t)
	uid := c.SetPod(t, sourcetest.Pod("p"))
	s := newSource(t, c.config())
	r := sourcetest.Record(t, s).Synced()
	r.Pod("default", "p", "")
	r.Stop() // what follows is not seen
	c.DeletePod(t, "default", "p")
	c.SetPod(t, sourcetest.Pod("p"))
	err := s.Unschedulable(within(t), source.Report{UID: uid, Namespace: "default", Name: "p", Reason: "Unschedulable", Message: "late"})
	if err != nil {
		t.Error(err)
	}
	if got := scheduled(c.pod(t, "default", "p")); got != nil {
		t.Errorf("condition of the second pod: %+v", got)
	}
}

func scheduled(pod *v1.Pod) *v1.PodCondition { return conditionOf(pod, v1.PodScheduled) }

func TestAPodOfAnotherSchedulerIsToldOnceItIsOnANode(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	pod := sourcetest.Pod("theirs")
	pod.Spec.SchedulerName = "somebody-else"
	uid := c.SetPod(t, pod)
	s := newSource(t, c.config())
	r := sourcetest.Record(t, s).Synced()
	r.View(func(v sourcetest.View) {
		if _, ok := v.Pods["default/theirs"]; ok {
			t.Error("a pod that waits for another scheduler was told")
		}
	})
	if err := s.Unschedulable(within(t), source.Report{UID: uid, Namespace: "default", Name: "theirs", Reason: "Unschedulable", Message: "x"}); err != nil {
		t.Fatal(err)
	}
	if got := scheduled(c.pod(t, "default", "theirs")); got != nil {
		t.Errorf("a condition was written to another scheduler's pod: %+v", got)
	}
	err := c.client.CoreV1().Pods("default").Bind(within(t), &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Target: v1.ObjectReference{Kind: "Node", Name: "one"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.Pod("default", "theirs", "one")
	c.DeletePod(t, "default", "theirs")
	r.PodGone("default", "theirs")
}

func TestAPodBeingDeletedOrGatedIsNotBound(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	deleting := sourcetest.Pod("deleting")
	deleting.Finalizers = []string{"example.com/stays"}
	b := source.Binding{UID: c.SetPod(t, deleting), Namespace: "default", Name: "deleting", Node: "one"}
	c.DeletePod(t, "default", "deleting")
	s := newSource(t, c.config())
	if out := s.Bind(within(t), coord.Cond{}, []source.Binding{b}); out[0].Result != source.BindGone {
		t.Errorf("Bind of a pod that is being deleted: %+v, want BindGone", out[0])
	}
	gated := sourcetest.Pod("gated")
	gated.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/hold"}}
	b = source.Binding{UID: c.SetPod(t, gated), Namespace: "default", Name: "gated", Node: "one"}
	if out := s.Bind(within(t), coord.Cond{}, []source.Binding{b}); out[0].Result != source.BindUnknown {
		t.Errorf("Bind of a gated pod: %+v, want BindUnknown", out[0])
	}
	b.Name = "Not A Name"
	if out := s.Bind(within(t), coord.Cond{}, []source.Binding{b}); out[0].Result == source.BindDone {
		t.Errorf("Bind of a pod that cannot be: %+v", out[0])
	}
}

func TestOutcomesFollowTheAPIServersAnswer(t *testing.T) {
	for _, test := range []struct {
		code int
		want source.Result
	}{
		{http.StatusBadRequest, source.BindRefused},
		{http.StatusUnauthorized, source.BindUnknown},
		{http.StatusForbidden, source.BindRefused},
		{http.StatusNotFound, source.BindUnknown}, // a webhook may have said so, and the pod cannot be read
		{http.StatusRequestTimeout, source.BindUnknown},
		{http.StatusUnprocessableEntity, source.BindRefused},
		{http.StatusTooManyRequests, source.BindUnknown},
		{http.StatusInternalServerError, source.BindUnknown},
		{http.StatusServiceUnavailable, source.BindUnknown},
		{http.StatusGatewayTimeout, source.BindUnknown},
		{http.StatusConflict, source.BindUnknown}, // the pod cannot be read either
		{0, source.BindUnknown},                   // no answer in time
	} {
		t.Run(fmt.Sprint(test.code), func(t *testing.T) {
			release := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if test.code == 0 {
					<-release
					return
				}
				w.Header().Set("Content-Type", "application/json")
				code := test.code
				if r.Method == http.MethodGet {
					code = http.StatusInternalServerError
				}
				w.WriteHeader(code)
				fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"message":"no"}`, code)
			}))
			defer server.Close()
			defer close(release)
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			writeKubeconfig(t, kubeconfig, server.URL)
			s := newSource(t, Config{Kubeconfig: kubeconfig, SchedulerNames: []string{"berth"}, RequestTimeout: 200 * time.Millisecond})
			b := source.Binding{UID: "u", Namespace: "default", Name: "p", Node: "n", Version: "1"}
			if out := s.Bind(within(t), coord.Cond{}, []source.Binding{b}); out[0].Result != test.want || out[0].Err == nil {
				t.Errorf("Bind answered with %d: %+v, want result %d", test.code, out[0], test.want)
			}
		})
	}
}

// What is read then may be what another binder has made of the pod.
func TestNoBindOfAPodWhoseVersionIsReadIsSentWhenTheTermHasEnded(t *testing.T) {
	for _, ended := range []bool{false, true} {
		var posts atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				posts.Add(1)
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"default","name":"p","uid":"u","resourceVersion":"7"}}`)
		}))
		t.Cleanup(server.Close)
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		writeKubeconfig(t, kubeconfig, server.URL)
		s := newSource(t, Config{Kubeconfig: kubeconfig, SchedulerNames: []string{"berth"}})
		ctx := source.WithEnd(within(t), func() bool { return ended })
		out := s.Bind(ctx, coord.Cond{}, []source.Binding{{UID: "u", Namespace: "default", Name: "p", Node: "n"}})[0]
		if n := posts.Load(); (out.Result == source.BindDone) == ended || out.Result == source.BindUnknown != ended || n > 0 == ended {
			t.Errorf("ended: %v; Bind: %+v, sent %d times", ended, out, n)
		}
	}
}

// The API server adds a binding's annotations to the pod's in the write that gives the pod its node.
func TestABindWritesWhatWasChosenForThePod(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	pod := sourcetest.Pod("p")
	pod.Annotations = map[string]string{"own": "stays", "example.com/cards": "a guess"}
	uid := c.SetPod(t, pod)
	s := newSource(t, c.config())
	b := source.Binding{UID: uid, Namespace: "default", Name: "p", Node: "one", Annotations: map[string]string{"example.com/cards": "GPU-1,GPU-2"}}
	if out := s.Bind(within(t), coord.Cond{}, []source.Binding{b}); out[0].Result != source.BindDone {
		t.Fatalf("Bind: %+v", out[0])
	}
	got, err := s.Pod(within(t), "default", "p")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"own": "stays", "example.com/cards": "GPU-1,GPU-2"}, got.Annotations); diff != "" || got.Spec.NodeName != "one" {
		t.Errorf("on %q, annotations (-want +got):\n%s", got.Spec.NodeName, diff)
	}
}

// The API server takes a binding's annotations however many bytes the pod has then, and nothing else that is written to the pod: its node could tell nothing of it any more.
func TestABindWithMoreAnnotationsThanAPodMayHaveIsNotSent(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	const most = 256 << 10
	chosen := map[string]string{"example.com/cards": "GPU-1"}
	s := newSource(t, c.config())
	r := sourcetest.Record(t, s).Synced()
	for name, over := range map[string]int{"fits": 0, "does-not": 1} {
		for _, known := range []bool{true, false} {
			pod := sourcetest.Pod(fmt.Sprintf("%s-%v", name, known))
			pod.Annotations = map[string]string{"own": strings.Repeat("x", most-len("own")-len("example.com/cards")-len("GPU-1")+over)}
			uid := c.SetPod(t, pod)
			b := []source.Binding{{UID: uid, Namespace: "default", Name: pod.Name, Node: "one", Annotations: chosen}}
			if known {
				r.Pod("default", pod.Name, "")
				if s.Prepare(b); b[0].Version == "" {
					t.Errorf("%s is not known", pod.Name)
				}
			}
			out := s.Bind(within(t), coord.Cond{}, b)[0]
			if want := map[int]source.Result{0: source.BindDone, 1: source.BindRefused}[over]; out.Result != want || over > 0 && !strings.Contains(out.Err.Error(), "there are 262145 bytes of them: at most 262144 are possible") {
				t.Errorf("%s, told before: %v: %+v, want %v", name, known, out, want)
			}
		}
	}
}

func TestABindDoesNotWaitForEvents(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	uid := c.SetPod(t, sourcetest.Pod("quick"))
	cfg := c.config()
	cfg.QPS, cfg.Burst = 0.001, 1
	s := newSource(t, cfg)
	b := source.Binding{UID: uid, Namespace: "default", Name: "quick", Node: "one"}
	if err := s.Scheduled(within(t), b); err != nil { // takes the only event there may be in a quarter of an hour
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := s.Scheduled(ctx, b); err == nil {
		t.Error("an event over the limit was written")
	}
	if out := s.Bind(within(t), coord.Cond{}, []source.Binding{b}); out[0].Result != source.BindDone {
		t.Errorf("Bind while events have to wait: %+v", out[0])
	}
}

// Kubeconfigs of clouds name a program in place of a token.
func TestTheUserOfAProgramIsFollowedAndWritten(t *testing.T) {
	c := startCluster(t)
	config, err := clientcmd.LoadFromFile(c.plane.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, called := filepath.Join(dir, "login"), filepath.Join(dir, "called")
	for name, user := range config.AuthInfos {
		if user.Token == "" {
			t.Fatalf("user %s of the test's cluster has no token", name)
		}
		script := fmt.Sprintf("#!/bin/sh\necho called >>%s\necho '{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\", \"status\": {\"token\": \"%s\"}}'\n", called, user.Token)
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
			APIVersion: "client.authentication.k8s.io/v1", Command: program, InteractiveMode: clientcmdapi.IfAvailableExecInteractiveMode,
		}}
	}
	cfg := c.config()
	cfg.Kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, cfg.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	c.SetNode(t, sourcetest.Node("n"))
	uid := c.SetPod(t, sourcetest.Pod("p"))
	s := newSource(t, cfg)
	r := sourcetest.Record(t, s).Synced()
	r.Pod("default", "p", "")
	for _, o := range s.Bind(within(t), coord.Cond{}, []source.Binding{{UID: uid, Namespace: "default", Name: "p", Node: "n"}}) {
		if o.Result != source.BindDone {
			t.Errorf("bind: %v %v", o.Result, o.Err)
		}
	}
	r.Pod("default", "p", "n")
	if _, err := os.Stat(called); err != nil {
		t.Errorf("the program was not called: %v", err)
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	good := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, good, "http://127.0.0.1:1")
	for want, cfg := range map[string]Config{
		"scheduler names":     {Kubeconfig: good},
		"scheduler name 1":    {Kubeconfig: good, SchedulerNames: []string{"a", ""}},
		"requests per second": {Kubeconfig: good, SchedulerNames: []string{"a"}, QPS: -1},
		"burst":               {Kubeconfig: good, SchedulerNames: []string{"a"}, Burst: -1},
		"request timeout":     {Kubeconfig: good, SchedulerNames: []string{"a"}, RequestTimeout: -1},
		"/nowhere/kubeconfig": {Kubeconfig: "/nowhere/kubeconfig", SchedulerNames: []string{"a"}},
		"service account":     {SchedulerNames: []string{"a"}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): %v, want an error about %s", cfg, err, want)
		}
	}
	if _, err := New(Config{Kubeconfig: good, SchedulerNames: []string{"a"}}); err != nil {
		t.Errorf("New of a good configuration: %v", err)
	}
}

func TestAMirrorTellsTheDifference(t *testing.T) {
	var got []string
	m := newMirror(&teller{left: 1, sink: func(e source.Event) {
		got = append(got, fmt.Sprintf("%d %s %s", e.Kind, e.Pod.Name, e.Pod.UID))
	}}, podKind(map[string]bool{"berth": true}, nil, nil, nil), func() {})
	version := 0
	pod := func(name, uid string) *v1.Pod {
		version++
		p := sourcetest.Pod(name)
		p.UID, p.ResourceVersion = types.UID(uid), fmt.Sprint(version)
		return p
	}
	step := func(err error, want ...string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("told %q, want %q", got, want)
		}
		got = nil
	}
	a, b := pod("a", "1"), pod("b", "2")
	step(m.Replace([]any{a, b}, ""), "3 a 1", "3 b 2", fmt.Sprintf("%d  ", source.Synced))
	step(m.Replace([]any{a, b}, ""))
	step(m.Update(pod("a", "3")), "4 a 1", "3 a 3") // another pod, and nobody saw the first one go
	theirs := pod("c", "4")
	theirs.Spec.SchedulerName = "other"
	step(m.Add(theirs))
	step(m.Delete(theirs))
	ended := pod("b", "2")
	ended.Status.Phase = v1.PodFailed
	step(m.Update(ended), "4 b 2")
	step(m.Delete(ended))
	step(m.Replace([]any{pod("a", "5")}, ""), "4 a 3", "3 a 5")
	step(m.Replace(nil, ""), "4 a 5")
}

func TestSeriesForgetsThePodReportedLongestAgo(t *testing.T) {
	s := newSeries()
	s.limit = 3
	now := time.Unix(0, 0)
	for _, uid := range []string{"a", "b", "c"} {
		s.wrote(uid, "m", "event-"+uid, now)
	}
	s.repeat("a", "m", now)
	s.wrote("d", "m", "event-d", now)
	if event, _, _ := s.repeat("b", "m", now); event != "" {
		t.Errorf("b is remembered by %q", event)
	}
	if event, count, due := s.repeat("a", "m", now.Add(seriesEvery)); event != "event-a" || count != 3 || !due {
		t.Errorf("a: %q, %d times, due %v", event, count, due)
	}
	if event, _, _ := s.repeat("a", "another", now); event != "" {
		t.Errorf("another message is taken for the same: %q", event)
	}
	s.forget("a")
	if event, _, _ := s.repeat("a", "m", now); event != "" {
		t.Errorf("a is remembered after forget: %q", event)
	}
	for i := range 1000 {
		s.wrote(fmt.Sprint(rand.IntN(500)), "m", fmt.Sprint(i), now)
		if s.oldest.Len() > s.limit || len(s.byUID) != s.oldest.Len() {
			t.Fatalf("%d in order, %d by uid, at most %d", s.oldest.Len(), len(s.byUID), s.limit)
		}
	}
}
