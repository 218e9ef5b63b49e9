package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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
		r, err := runOnce(t.Context(), cfg, workloadOf(t, name), c, built[kubetest.KubeScheduler])
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

func TestScriptsHaveTablesWithRatiosToTheirBaselines(t *testing.T) {
	bound := func(workload, contender string, perSecond int) result {
		return result{workload: workload, contender: contender, pods: perSecond, bound: perSecond, binding: time.Second, total: 2 * time.Second}
	}
	last := time.Unix(1000, 0)
	storm := bound("storm", "a", 400)
	storm.storm = &stormFigures{hopeless: 7, lastBound: last, idle: 0.0123,
		Failures: kubetest.Failures{LastCondition: last.Add(1500 * time.Millisecond), LastEvent: last.Add(-2 * time.Second)}}
	alone := bound("storm", "b", 100)
	alone.storm = &stormFigures{lastBound: last, Failures: kubetest.Failures{LastCondition: last, LastEvent: last}}
	before, gated := bound("gated-baseline", "a", 10), bound("gated", "a", 10)
	before.gated, gated.gated = &gatedFigures{events: 100, eventCPU: 2 * time.Second}, &gatedFigures{events: 100, eventCPU: 3 * time.Second}
	preemption := bound("preemption", "a", 10)
	preemption.preemption = &preemptionFigures{kubetest.PreemptionReport{Victims: 5, Priorities: map[int32]int{200: 2, 100: 3}, Protected: make([]kubetest.Protected, 1)}}
	var out strings.Builder
	if err := printScripts(&out, []result{bound("storm-baseline", "a", 1000), bound("storm-baseline", "a", 500), bound("plain", "a", 7), storm, alone, before, gated, preemption}); err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		rows[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, want := range []string{
		"a 400 0.80 7 1.5 -2.0 0.012", "b 100 - 0 0.0 0.0 0.000", // the baseline is the run before
		"gated-baseline a 100 2.00 20000 - 2.0", "gated a 100 3.00 30000 1.50 2.0",
		"a 10 2.0 5 1 3×100 2×200",
	} {
		if !rows[want] {
			t.Errorf("no row %q in\n%s", want, out.String())
		}
	}
}
