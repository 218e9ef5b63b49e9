package main

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

func TestScriptsFindNothingWrongWithKubeScheduler(t *testing.T) {
	built, err := kubetest.Build(t.Context(), kubetest.KubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	c, err := contenderNamed(kubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	cfg := small()
	cfg.nodes, cfg.pods, cfg.kubeQPS = 10, 8, 5000
	results := map[string]result{}
	for _, name := range []string{"storm", "gated", "preemption"} {
		t.Setenv("TMPDIR", t.TempDir())
		r, err := runOnce(t.Context(), cfg, workloadOf(t, name), c, built[kubetest.KubeScheduler], 1)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(r.problems) > 0 || r.bound != 8 || r.binding <= 0 || r.total < r.binding || len(r.usage) != 1 {
			t.Errorf("%s: %+v, want 8 bound pods and no problems", name, r)
		}
		results[name] = r
	}
	if f := results["storm"].storm; f == nil || f.hopeless != 8 || f.Both != 8 || f.idle < 0 {
		t.Errorf("storm: %+v, want 8 pods that fit nowhere, and all told of", f)
	}
	if f := results["gated"].gated; f == nil || f.events != 30 || f.eventCPU < 0 {
		t.Errorf("gated: %+v, want 30 events", f)
	}
	// Four preemptors of one CPU and four of two; where two pods share a CPU, both go.
	if f := results["preemption"].preemption; f == nil || f.Victims < 12 || f.Victims > 24 || len(f.Protected) > 0 {
		t.Errorf("preemption: %+v, want victims with 12 CPUs, none protected", f)
	}
}

// Pods of deployments and of a DaemonSet in turn are as good in one run as in two.
func TestKubeSchedulerBindsWhatControllersMakeBesideBoundPods(t *testing.T) {
	built, err := kubetest.Build(t.Context(), kubetest.KubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	c, err := contenderNamed(kubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	cfg := small()
	cfg.nodes, cfg.pods, cfg.boundPods, cfg.kubeQPS = 8, 8, 20, 5000
	w := workloadOf(t, "restart")
	w.deployments = 3
	w.shape = func(pod *corev1.Pod, i int) {
		if i%2 == 0 {
			ofDaemonSet(pod, i)
		} else {
			ofDeployments(3)(pod, i)
		}
	}
	t.Setenv("TMPDIR", t.TempDir())
	r, err := runOnce(t.Context(), cfg, w, c, built[kubetest.KubeScheduler], 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.problems) > 0 || r.late != "" || r.bound != 8 || r.restart == nil || r.restart.bound != 20 {
		t.Errorf("%+v, want 8 bound pods beside 20, and no problems", r)
	}
	if r.total <= r.binding || r.eventLag < 0 || r.writes.events != 8 {
		t.Errorf("%v from the start, %v of binding, %v until the last of %v events", r.total, r.binding, r.eventLag, r.writes.events)
	}
}

// observedChurn looks at the nodes when a churn is over.
type observedChurn struct {
	*churn
	nodes map[string]corev1.Node
}

func (c *observedChurn) judge(ctx context.Context, s *stage) (expected, error) {
	nodes, err := s.plane.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return expected{}, err
	}
	for _, node := range nodes.Items {
		c.nodes[node.Name] = node
	}
	return c.churn.judge(ctx, s)
}

func TestChurnIsMeasuredWithKubeScheduler(t *testing.T) {
	built, err := kubetest.Build(t.Context(), kubetest.KubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	c, err := contenderNamed(kubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	cfg := small()
	cfg.nodes, cfg.pods, cfg.kubeQPS = 11, 6, 5000
	w := workloadOf(t, "churn")
	observed := &observedChurn{&churn{podsPerSecond: 10, nodesPerSecond: 20, life: time.Second}, map[string]corev1.Node{}}
	w.newScript = func() script { return observed }
	t.Setenv("TMPDIR", t.TempDir())
	r, err := runOnce(t.Context(), cfg, w, c, built[kubetest.KubeScheduler], 1)
	if err != nil {
		t.Fatal(err)
	}
	f := r.churn
	if len(r.problems) > 0 || r.late != "" || f == nil || r.pods < 1 || r.bound != 1+r.pods {
		t.Fatalf("%+v, want every pod bound, and no problems", r)
	}
	if len(f.latency) > r.pods || slices.ContainsFunc(f.latency, func(ms float64) bool { return ms < 0 || math.IsInf(ms, 1) }) {
		t.Errorf("latencies %v of %d pods, want only those of bound pods", f.latency, r.pods)
	}
	still, annotated, smaller := observed.nodes["node-00001"], observed.nodes["node-00000"], observed.nodes["node-00010"]
	if still.Status.Conditions[0].LastHeartbeatTime.IsZero() || len(still.Annotations) > 0 || len(still.ManagedFields) > 0 {
		t.Errorf("a node that only reports that it is alive: %+v", still)
	}
	before := *kubetest.PlainNode(10).Status.Allocatable.Memory()
	if len(annotated.Annotations) == 0 || smaller.Status.Allocatable.Memory().Cmp(before) >= 0 {
		t.Errorf("nodes that change with their reports: annotations %v, memory %v", annotated.Annotations, smaller.Status.Allocatable.Memory())
	}
}

// A contender that is too slow is reported with what it reached: it is a result.
func TestLateContenderIsNoProblem(t *testing.T) {
	cfg := small()
	cfg.timeout = time.Second
	r := run(t, cfg, contender{name: "sleeper", commands: func(environment) ([]command, error) {
		return []command{{"sleeper", []string{"sleep", "3600"}}}, nil
	}})
	if len(r.problems) > 0 || r.bound != 0 || !strings.Contains(r.late, "not done within 1s: wait for 40 bound pods, 0 so far") {
		t.Errorf("late = %q, problems = %q, want the time and how far it came", r.late, r.problems)
	}
}

// A contender that binds blindly takes every pod for one that fits.
func TestStormFailsAContenderThatBindsWhatFitsNowhere(t *testing.T) {
	w := workloadOf(t, "storm")
	w.newScript = func() script { return &storm{tellMax: time.Second} } // nothing is ever told
	r := runWith(t, small(), w, contender{name: "careless", commands: nullCommands})
	text := strings.Join(r.problems, "\n")
	for _, want := range []string{
		"0 of 40 pods that fit nowhere have their condition", "0 of 40 pods that fit nowhere have their event",
		"80 of 40 pods are bound, 0 pending", "node node-00000: ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("problems do not say %q:\n%s", want, text)
		}
	}
}

func TestFailuresThatAreMissingOrLateAreProblems(t *testing.T) {
	last := time.Unix(1000, 0)
	good := func() stormFigures {
		return stormFigures{hopeless: 5, lastBound: last, Failures: kubetest.Failures{
			Conditions: 5, Events: 5, Both: 5, LastCondition: last.Add(-time.Second), LastEvent: last.Add(30 * time.Second),
		}}
	}
	for name, tt := range map[string]struct {
		change func(*stormFigures)
		want   []string
	}{
		"nothing":           {func(*stormFigures) {}, nil},
		"missing condition": {func(f *stormFigures) { f.Conditions = 4 }, []string{"4 of 5 pods that fit nowhere have their condition"}},
		"missing event":     {func(f *stormFigures) { f.Events = 0 }, []string{"0 of 5 pods that fit nowhere have their event"}},
		"late condition": {func(f *stormFigures) { f.LastCondition = last.Add(31 * time.Second) },
			[]string{"the last condition came 31s after the last binding, more than 30s"}},
		"late event": {func(f *stormFigures) { f.LastEvent = last.Add(42 * time.Second) },
			[]string{"the last event came 42s after the last binding, more than 30s"}},
	} {
		f := good()
		tt.change(&f)
		if diff := cmp.Diff(tt.want, f.problems()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestHopelessPodsFitNoNode(t *testing.T) {
	cfg := config{nodes: 1, pods: 200, classes: maxClasses, nodeCPU: 4, seed: 1}
	l := newLoad(cfg, workloadOf(t, "storm"))
	requests := map[string]bool{}
	for i := range cfg.pods {
		pod := l.hopeless(i)
		cpu := pod.Spec.Containers[0].Resources.Requests.Cpu()
		requests[cpu.String()] = true
		if cpu.Cmp(resource.MustParse("4")) <= 0 || !strings.HasPrefix(pod.Name, hopelessPrefix) {
			t.Errorf("pod %s requests %s CPUs, which a node has", pod.Name, cpu)
		}
	}
	if len(requests) != maxClasses {
		t.Errorf("%d different requests, want %d", len(requests), maxClasses)
	}
}

func TestFillersLeaveNoCPUAndSomeUnprotected(t *testing.T) {
	l := newLoad(config{classes: 1, nodeCPU: 4}, workloadOf(t, "preemption"))
	priorities := map[string]bool{}
	for i := range 20 {
		var all, open resource.Quantity
		for _, pod := range l.fillers(i) {
			cpu := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]
			all.Add(cpu)
			if pod.Labels[protectedLabel] == "" {
				open.Add(cpu)
			}
			if pod.Spec.NodeName != l.node(i).Name || isPreemptor(pod) {
				t.Errorf("pod %s is no filler of node %d", pod.Name, i)
			}
			priorities[pod.Spec.PriorityClassName] = true
		}
		want := "3"
		if i%protectedEvery == 0 {
			want = "0"
		}
		if all.Cmp(resource.MustParse("4")) != 0 || open.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("node %d: %s CPUs, %s of them not protected, want 4 and %s", i, all.String(), open.String(), want)
		}
	}
	if len(priorities) != lowPriorities {
		t.Errorf("priorities %v, want %d", priorities, lowPriorities)
	}
	for _, tt := range []struct{ nodes, cpus, want int }{{5000, 4, 4000}, {10, 4, 8}, {11, 4, 8}, {10, 5, 16}, {10, 2, 0}, {1, 64, 0}} {
		if got := preemptionRoom(tt.nodes, tt.cpus); got != tt.want {
			t.Errorf("room of %d nodes of %d CPUs: %d, want %d", tt.nodes, tt.cpus, got, tt.want)
		}
	}
}
