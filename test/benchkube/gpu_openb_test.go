package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// A made-up trace: 12 cards on nodes that have any, and pods that ask for 4.25 cards in all.
const (
	madeNodes = `sn,cpu_milli,memory_mib,gpu,model
n0,32000,262144,0,
n1,96000,393216,8,G2
n2,64000,262144,2,T4
n3,64000,131072,2,T4
`
	madePods = `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos
p0,12000,16384,1,1000,,LS
p1,6000,12288,1,250,,LS
p2,1000,1024,0,0,,LS
p3,8000,1024,3,1000,,LS
`
)

// madeTrace writes a trace and returns its directory.
func madeTrace(t *testing.T, nodes, pods string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{openbNodes: nodes, openbPods: pods} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func readMade(t *testing.T) *openb {
	t.Helper()
	trace, err := readOpenb(madeTrace(t, madeNodes, madePods))
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func TestTheTraceIsReadForItsCards(t *testing.T) {
	want := &openb{
		nodes: []openbNode{{96000, 393216, 8, "G2"}, {64000, 262144, 2, "T4"}, {64000, 131072, 2, "T4"}},
		pods:  []openbPod{{12000, 16384, 1, 1000}, {6000, 12288, 1, 250}, {8000, 1024, 3, 1000}},
	}
	if diff := cmp.Diff(want, readMade(t), cmp.AllowUnexported(openb{}, openbNode{}, openbPod{})); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
}

func TestATraceThatIsNotUnderstoodIsRefused(t *testing.T) {
	for name, tt := range map[string]struct{ nodes, pods, want string }{
		"no number":        {strings.Replace(madeNodes, "96000", "many", 1), madePods, "line 3, cpu_milli: want a number"},
		"a negative one":   {strings.Replace(madeNodes, "96000", "-1", 1), madePods, "line 3, cpu_milli: want a number"},
		"a column less":    {strings.Replace(madeNodes, "model", "kind", 1), madePods, "model: no such column"},
		"models":           {madeNodes, strings.Replace(madePods, ",,LS", ",T4,LS", 1), "line 2, gpu_spec: pods that want models are not read"},
		"parts of several": {madeNodes, strings.Replace(madePods, "3,1000", "3,500", 1), "line 5, gpu_milli: parts of several cards are not read"},
		"nothing":          {"", madePods, "no columns"},
	} {
		if _, err := readOpenb(madeTrace(t, tt.nodes, tt.pods)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestPodsOfTheTraceAreOfferedUntilTheyAskForMoreThanThereIs(t *testing.T) {
	// A round asks for 4.25 cards. 120 % of 12 are 14.4, which are reached in the fourth, and of 8 are 9.6, which the second pod of the third reaches.
	for nodes, want := range map[int]struct{ nodes, pods int }{0: {3, 12}, 3: {3, 12}, 9: {3, 12}, 1: {1, 8}} {
		got := readMade(t).cut(nodes)
		if len(got.nodes) != want.nodes || len(got.pods) != want.pods {
			t.Errorf("of %d nodes: %d, with %d pods, want %d with %d", nodes, len(got.nodes), len(got.pods), want.nodes, want.pods)
		}
		for i, p := range got.pods {
			if p != readMade(t).pods[i%3] {
				t.Errorf("pod %d is %+v: the trace is not offered in its order", i, p)
			}
		}
	}
	if got := readMade(t).cut(2).nodes; !slices.Equal(got, []openbNode{{96000, 393216, 8, "G2"}, {64000, 262144, 2, "T4"}}) {
		t.Errorf("two of three nodes: %+v", got)
	}
}

func TestPodsAndNodesAreThoseOfTheTrace(t *testing.T) {
	w := workloadOf(t, openbWorkload)
	l := newLoad(config{trace: readMade(t), pods: 3, classes: 1, nodeCPU: 4}, w)
	node := l.node(1).Status.Allocatable
	if node.Cpu().String() != "64" || node.Memory().String() != "256Gi" || node.Pods().String() != "110" {
		t.Errorf("node 1 has %v", node)
	}
	cards := l.cards(l.config, "n", 1)
	if len(cards) != 2 || cards[0].Model != "T4" || cards[0].TotalMemoryMiB != openbMemory || cards[0].ClockMHz != 5001 {
		t.Errorf("cards of node 1: %+v", cards)
	}
	whole, part, three := l.pod(0), l.pod(1), l.pod(2)
	if requests := part.Spec.Containers[0].Resources.Requests; requests.Cpu().String() != "6" || requests.Memory().String() != "12Gi" {
		t.Errorf("a pod requests %v, want 6 CPUs and 12 GiB", requests)
	}
	for name, tt := range map[string]struct {
		pod                 *corev1.Pod
		labels, annotations map[string]string
	}{
		"a card":      {whole, map[string]string{"scv/number": "1"}, nil},
		"a quarter":   {part, map[string]string{"scv/number": "1", "scv/memory": "8000"}, map[string]string{"yoda.berth.dev/request": `{"share":true,"memory":"8000Mi"}`}},
		"three cards": {three, map[string]string{"scv/number": "3"}, nil},
	} {
		if diff := cmp.Diff(tt.labels, tt.pod.Labels); diff != "" {
			t.Errorf("%s: labels (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tt.annotations, tt.pod.Annotations); diff != "" {
			t.Errorf("%s: annotations (-want +got):\n%s", name, diff)
		}
	}
	if d, _ := demandOf(part); d.of(cards[0]) != 250 {
		t.Errorf("a quarter of a card counts as %d thousandths", d.of(cards[0]))
	}
}

func TestWithoutATraceItsWorkloadIsSkipped(t *testing.T) {
	args := []string{"--workload", gpuWorkload + "," + openbWorkload, "--contenders", "null"}
	for _, dir := range []string{"", t.TempDir()} {
		cfg, err := parse(append(args, "--openb", dir))
		if err == nil || !strings.Contains(err.Error(), "null binds blindly") {
			t.Errorf("%v, want that the other workload is looked at", err)
		}
		if len(cfg.workloads) != 1 || cfg.workloads[0].name != gpuWorkload {
			t.Errorf("with --openb %q there are %d workloads, want the other one alone", dir, len(cfg.workloads))
		}
	}
	cfg, err := parse([]string{"--workload", openbWorkload, "--contenders", kubeScheduler, "--openb", madeTrace(t, madeNodes, madePods), "--nodes", "2", "--pods", "100"})
	if err != nil {
		t.Fatal(err)
	}
	if of := cfg.of(cfg.workloads[0]); of.nodes != 2 || of.pods != 9 {
		t.Errorf("%d nodes and %d pods, want 2, and the 9 that ask for 120 %% of 10 cards", of.nodes, of.pods)
	}
}

// The null binder finds room for all of them, wherever that is.
func TestTheTraceIsOfferedWhileTheContenderRuns(t *testing.T) {
	cfg := gpuConfig()
	cfg.trace, cfg.settle = readMade(t).cut(0), 300*time.Millisecond
	cfg.nodes, cfg.pods, cfg.classes = 3, 12, 1
	r := runWith(t, cfg, workloadOf(t, openbWorkload), contender{name: "careless", blind: true, commands: nullCommands})
	if len(r.problems) > 0 || r.late != "" || r.bound != 12 || r.gpu == nil {
		t.Fatalf("%+v, want 12 bound pods and no problems", r)
	}
	if r.gpu.placed != 12 || r.gpu.all != 12*wholeCard || r.gpu.backed > r.gpu.all || r.gpu.beyond == 0 {
		t.Errorf("%+v, want more cards asked for than 12", r.gpu)
	}
	if r.writes.other < 12 {
		t.Errorf("%v other writes, want the pods among them", r.writes.other)
	}
}

// A device plugin has 12 cards for pods that ask it for 20: the run ends when those have room that can, and all the others are pending.
func TestARunOfTheTraceEndsWhenNoMorePodsAreBound(t *testing.T) {
	built, err := kubetest.Build(t.Context(), kubetest.KubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	c, err := contenderNamed(kubeDevicePlugin)
	if err != nil {
		t.Fatal(err)
	}
	cfg := gpuConfig()
	cfg.trace, cfg.settle = readMade(t).cut(0), 3*time.Second
	cfg.nodes, cfg.pods, cfg.classes, cfg.kubeQPS = 3, 12, 1, 5000
	t.Setenv("TMPDIR", t.TempDir())
	r, err := runOnce(t.Context(), cfg, workloadOf(t, openbWorkload), c, built[kubetest.KubeScheduler], 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.problems) > 0 || r.late != "" || r.gpu == nil {
		t.Fatalf("%+v, want no problems", r)
	}
	if g := r.gpu; r.bound < 6 || r.bound >= 12 || g.placed != float64(r.bound) || g.served != g.placed || g.taken > 12 || g.over != 0 || g.backed >= milli(g.taken)*wholeCard {
		t.Errorf("%d pods bound, %+v, want some of 12, each with whole cards, which some of them asked for part of", r.bound, g)
	}
}
