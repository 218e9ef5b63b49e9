package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	berthconfig "github.com/berth-scheduler/berth/internal/config"
)

// gpuConfig is small, of a workload with cards.
func gpuConfig() config {
	cfg := small()
	cfg.classes, cfg.scvCRD = maxClasses, "../../deploy/kustomize/components/yoda/crd.yaml"
	return cfg
}

func TestAnyHundredNodesHaveAllModelsAsOftenAsTheyShould(t *testing.T) {
	for _, first := range []int{0, 1, 4950} {
		got := map[string]int{}
		for i := range 100 {
			got[modelOf(first+i).name]++
		}
		for _, m := range cardModels {
			if got[m.name] != m.nodes {
				t.Errorf("%d of 100 nodes from %d have %s, want %d", got[m.name], first, m.name, m.nodes)
			}
		}
	}
}

func TestPodsAskForCardsInSixteenWays(t *testing.T) {
	w := workloadOf(t, gpuWorkload)
	cfg := config{classes: maxClasses, nodeCPU: 4, seed: 1}.of(w)
	if cfg.nodes != 5000 || cfg.pods != 10000 {
		t.Errorf("%d nodes and %d pods, want 5,000 and 10,000", cfg.nodes, cfg.pods)
	}
	l := newLoad(cfg, w)
	kinds, cards := map[string]bool{}, 0
	for i := range cfg.pods {
		pod := l.pod(i)
		kinds[fmt.Sprint(pod.Labels)] = true
		d, asks := demandOf(pod)
		if !asks || d.number != 1 && d.number != 2 && d.number != 4 {
			t.Fatalf("pod %d asks for %+v, want 1, 2 or 4 cards", i, d)
		}
		cards += d.number
	}
	if len(kinds) != 16 || cards < 15000 || cards >= 40000 {
		t.Errorf("%d kinds of pods ask for %d cards, want 16 and less than 40,000", len(kinds), cards)
	}
	if err := w.checkRoom(cfg); err != nil {
		t.Error(err)
	}
}

// Of 100 nodes, 55 have cards with 20,000 MiB: 440 cards, all of which pods that want others might have. 7 have the clock of 877 MHz exactly, each with CPU for 40 pods.
func TestNoMorePodsAskForCardsThanThereSurelyAre(t *testing.T) {
	w := workloadOf(t, gpuWorkload)
	cfg := config{nodes: 100, classes: maxClasses, nodeCPU: 4, seed: 1, pods: 100}
	for cfg.pods = 100; w.checkRoom(cfg) == nil; cfg.pods++ {
	}
	cards := 0
	for _, class := range newLoad(cfg, w).classOf {
		cards += cardKinds[class].number
	}
	if last := cardKinds[newLoad(cfg, w).classOf[cfg.pods-1]].number; cards <= 440 || cards-last > 440 {
		t.Errorf("the first pod too many has %d cards, and all together %d: want just more than 440", last, cards)
	}
	for _, tt := range []struct{ cpus, pods int }{{1, 70}, {2, 140}} {
		cfg := config{nodes: 100, classes: maxClasses, nodeCPU: tt.cpus, seed: 1, pods: tt.pods}
		if err := w.checkRoom(cfg); err != nil {
			t.Errorf("%d pods on nodes of %d CPUs: %v", tt.pods, tt.cpus, err)
		}
		if cfg.pods++; w.checkRoom(cfg) == nil {
			t.Errorf("%d pods on nodes of %d CPUs are accepted: 7 nodes may have to take all of them", cfg.pods, tt.cpus)
		}
	}
}

func TestADevicePluginCountsTheSameCards(t *testing.T) {
	l := newLoad(config{pods: 50, classes: maxClasses, nodeCPU: 4, seed: 1}, workloadOf(t, gpuWorkload))
	if _, has := l.node(0).Status.Allocatable[devicePluginCards]; has {
		t.Error("a node has nvidia.com/gpu, and no device plugin: Yoda gives none of its cards")
	}
	l.devicePlugin = true
	if n := l.node(0).Status.Allocatable[devicePluginCards]; n.Value() != cardsOfNode {
		t.Errorf("a device plugin counts %v cards, want %d", n.String(), cardsOfNode)
	}
	for i := range 50 {
		pod := l.pod(i)
		r := pod.Spec.Containers[0].Resources
		requested, limit := r.Requests[devicePluginCards], r.Limits[devicePluginCards]
		if requested.String() != pod.Labels[numberLabel] || limit.Cmp(requested) != 0 {
			t.Errorf("pod %d asks for %s of at most %s cards, and by its label for %s", i, requested.String(), limit.String(), pod.Labels[numberLabel])
		}
	}
}

// node-a has two cards of 10,000 MiB and 1,000 MHz, and one that is unhealthy; node-b has one of 20,000 MiB and 2,000 MHz.
func twoNodes() []v1alpha1.Scv {
	m := cardModel{memory: 10000, clock: 1000}
	a, b := scvOf("node-a", m.cards("a", 3)), scvOf("node-b", cardModel{memory: 20000, clock: 2000}.cards("b", 1))
	a.Status.Cards[2].Health = v1alpha1.Unhealthy
	return []v1alpha1.Scv{*a, *b}
}

// gpuPod returns a pod with labels in the order number, memory, clock, which has cards.
func gpuPod(name, node, cards string, asks ...string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}, Spec: corev1.PodSpec{NodeName: node}}
	for i, value := range asks {
		if value != "" {
			pod.Labels[[]string{numberLabel, memoryLabel, clockLabel}[i]] = value
		}
	}
	if cards != "" {
		pod.Annotations[cardsAnnotation], pod.Annotations[cardsMemoryAnnotation] = cards, "0"
	}
	return pod
}

// shared returns a pod that asks for part of one card, and has it.
func shared(name, node, card, memory string) corev1.Pod {
	pod := gpuPod(name, node, card, "1", memory)
	pod.Annotations[requestAnnotation] = `{"share":true,"memory":"` + memory + `Mi"}`
	pod.Annotations[cardsMemoryAnnotation] = memory
	return pod
}

func TestCardsThatAreWronglyGivenAreProblems(t *testing.T) {
	less := shared("p", "node-a", "GPU-a-0", "5000")
	less.Annotations[cardsMemoryAnnotation] = "4000"
	part := gpuPod("p", "node-a", "GPU-a-0", "1")
	part.Annotations[cardsMemoryAnnotation] = "4000"
	for name, tt := range map[string]struct {
		pods   []corev1.Pod
		want   []string
		served float64
	}{
		"each its own":         {[]corev1.Pod{gpuPod("p", "node-a", "GPU-a-0,GPU-a-1", "2", "10000", "1000"), gpuPod("q", "node-b", "GPU-b-0", "1")}, nil, 2},
		"two share one":        {[]corev1.Pod{shared("p", "node-a", "GPU-a-0", "6000"), shared("q", "node-a", "GPU-a-0", "4000")}, nil, 2},
		"no node yet":          {[]corev1.Pod{gpuPod("p", "", "", "1")}, nil, 0},
		"no cards are asked":   {[]corev1.Pod{gpuPod("p", "node-a", "")}, nil, 0},
		"none":                 {[]corev1.Pod{gpuPod("p", "node-a", "", "1")}, []string{"pod p: on node node-a without cards"}, 0},
		"twice":                {[]corev1.Pod{gpuPod("p", "node-a", "GPU-a-0", "1"), gpuPod("q", "node-a", "GPU-a-1,GPU-a-0", "2")}, []string{"card GPU-a-0 of node node-a: given to p, q, which is more than there is of it"}, 1},
		"whole and shared":     {[]corev1.Pod{gpuPod("p", "node-a", "GPU-a-0", "1"), shared("q", "node-a", "GPU-a-0", "1")}, []string{"card GPU-a-0 of node node-a: given to p, q, which is more than there is of it"}, 1},
		"shared beyond":        {[]corev1.Pod{shared("p", "node-a", "GPU-a-0", "6000"), shared("q", "node-a", "GPU-a-0", "4001")}, []string{"card GPU-a-0 of node node-a: given to p, q, which is more than there is of it"}, 1},
		"too few":              {[]corev1.Pod{gpuPod("p", "node-a", "GPU-a-0", "2")}, []string{"pod p: has the cards GPU-a-0, and asks for 2 different ones"}, 0},
		"too many":             {[]corev1.Pod{gpuPod("p", "node-a", "GPU-a-0,GPU-a-1", "1")}, []string{"pod p: has the cards GPU-a-0,GPU-a-1, and asks for 1 different ones"}, 0},
		"one of them twice":    {[]corev1.Pod{gpuPod("p", "node-a", "GPU-a-0,GPU-a-0", "2")}, []string{"pod p: has the cards GPU-a-0,GPU-a-0, and asks for 2 different ones"}, 0},
		"one and again":        {[]corev1.Pod{gpuPod("p", "node-a", "GPU-a-0,GPU-a-0", "1")}, []string{"pod p: has the cards GPU-a-0,GPU-a-0, and asks for 1 different ones"}, 0},
		"of another node":      {[]corev1.Pod{gpuPod("p", "node-a", "GPU-b-0", "1")}, []string{"pod p: has the card GPU-b-0, which is none of node node-a"}, 0},
		"of an unknown node":   {[]corev1.Pod{gpuPod("p", "node-c", "GPU-c-0", "1")}, []string{"pod p: has the card GPU-c-0, which is none of node node-c"}, 0},
		"unhealthy":            {[]corev1.Pod{gpuPod("p", "node-a", "GPU-a-2", "1")}, []string{"pod p: the card GPU-a-2 is Unhealthy and has 10000 MiB and 1000 MHz, and 0 and 0 are asked for"}, 0},
		"too little memory":    {[]corev1.Pod{gpuPod("p", "node-a", "GPU-a-0", "1", "10001")}, []string{"pod p: the card GPU-a-0 is Healthy and has 10000 MiB and 1000 MHz, and 10001 and 0 are asked for"}, 0},
		"too low a clock":      {[]corev1.Pod{gpuPod("p", "node-a", "GPU-a-0", "1", "", "1001")}, []string{"pod p: the card GPU-a-0 is Healthy and has 10000 MiB and 1000 MHz, and 0 and 1001 are asked for"}, 0},
		"less of it":           {[]corev1.Pod{less}, []string{"pod p: has 4000 MiB of each card, and asks for 5000"}, 0},
		"part of a whole card": {[]corev1.Pod{part}, []string{"pod p: has 4000 MiB of each card, and asks for 0"}, 0},
	} {
		figures, got := judgeCards(tt.pods, twoNodes(), yodaGives)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", name, diff)
		}
		if figures.served != tt.served {
			t.Errorf("%s: %v pods are served, want %v", name, figures.served, tt.served)
		}
	}
}

// No annotation is believed where nobody gives cards.
func TestPodsAreCountedBesideTheCardsOfTheirNodes(t *testing.T) {
	pods := []corev1.Pod{
		gpuPod("a", "node-a", "GPU-a-0", "1"), gpuPod("b", "node-a", "GPU-a-0", "2"), shared("c", "node-a", "GPU-a-0", "5000"), // 3.5 of 3 cards
		gpuPod("d", "node-b", "GPU-b-0", "1", "20000"),
		gpuPod("e", "node-a", "", "1", "", "2000"), gpuPod("f", "node-b", "", "2"), // unfit
		gpuPod("g", "", "", "4"),
	}
	got, problems := judgeCards(pods, twoNodes(), nobodyGives)
	// On node-a, one card, half of one and two are asked for by those that fit, and one by the other; on node-b, one and two.
	want := gpuFigures{placed: 6, unfit: 2, served: 3, all: 4000, backed: 4000, over: 2, beyond: 1500 + 2000}
	if !math.IsNaN(got.taken) || !math.IsNaN(got.twice) {
		t.Errorf("%v cards taken and %v twice, and nobody knows", got.taken, got.twice)
	}
	got.taken, got.twice = 0, 0
	if got != want || len(problems) > 0 {
		t.Errorf("figures %+v and problems %q, want %+v and none", got, problems, want)
	}
}

// A pod that has only some of what it asks for has nothing.
func TestPodsAreBackedInFullOrNotAtAll(t *testing.T) {
	for _, tt := range []struct {
		parts     []milli
		has, want milli
	}{
		{nil, 3000, 0}, {nil, 0, 0}, {[]milli{4000}, 3000, 0}, {[]milli{2000, 2000}, 3000, 2000}, {[]milli{500, 1000, 2000}, 3000, 3000},
		{[]milli{1000}, 3000, 1000}, {[]milli{810, 470, 320}, 1000, 810}, {[]milli{650, 470, 320}, 1000, 970},
	} {
		if got := mostWithin(tt.parts, tt.has); got != tt.want {
			t.Errorf("of %v, %d are within %d, want %d", tt.parts, got, tt.has, tt.want)
		}
	}
}

func TestWholeCardsAreTakenForParts(t *testing.T) {
	got, problems := judgeCards([]corev1.Pod{shared("a", "node-a", "", "5000"), gpuPod("b", "node-a", "", "2")}, twoNodes(), devicePluginGives)
	want := gpuFigures{placed: 2, served: 2, all: 4000, backed: 2500, taken: 3}
	if got != want || len(problems) > 0 {
		t.Errorf("figures %+v and problems %q, want %+v and none", got, problems, want)
	}
	if got.allocated() != 0.625 || got.inUse() != 0.75 {
		t.Errorf("%v allocated and %v in use, want 2.5 and 3 of 4", got.allocated(), got.inUse())
	}
}

func TestCardsThatAreGivenCountOnce(t *testing.T) {
	pods := []corev1.Pod{
		gpuPod("a", "node-a", "GPU-a-0", "1"), gpuPod("b", "node-a", "GPU-a-0", "1"), shared("c", "node-a", "GPU-a-1", "2500"), gpuPod("d", "node-b", "GPU-b-0", "1"),
	}
	got, _ := judgeCards(pods, twoNodes(), yodaGives)
	if want := (gpuFigures{placed: 4, served: 3, all: 4000, backed: 2250, taken: 3, twice: 1}); got != want {
		t.Errorf("figures %+v, want %+v", got, want)
	}
}

// The null binder gives no cards. The API server has accepted what collectors tell, and all that is counted is read from it.
func TestACardlessPodFailsWhoeverShouldGiveCards(t *testing.T) {
	cfg := gpuConfig()
	r := runWith(t, cfg, workloadOf(t, gpuWorkload), contender{name: "careless", cards: yodaGives, commands: nullCommands})
	without := slices.DeleteFunc(slices.Clone(r.problems), func(p string) bool { return !strings.Contains(p, "without cards") })
	if len(without) != cfg.pods || len(r.problems) != cfg.pods || r.gpu == nil || r.gpu.served != 0 {
		t.Errorf("problems %q, figures %+v, want one for each pod", r.problems, r.gpu)
	}
	r = runWith(t, cfg, workloadOf(t, gpuWorkload), contender{name: "indifferent", commands: nullCommands})
	if len(r.problems) > 0 || r.gpu == nil || r.gpu.placed != float64(cfg.pods) || r.gpu.all != 5*cardsOfNode*wholeCard || r.gpu.beyond == 0 {
		t.Errorf("problems %q, figures %+v, want none, and more cards asked for than there are", r.problems, r.gpu)
	}
}

func TestYodaIsConfiguredAsBerthTakesIt(t *testing.T) {
	services, err := berthconfig.DecodePluginServices([]byte(yodaServices("unix:///run/yoda.sock")))
	if err != nil {
		t.Fatal(err)
	}
	points := map[string][]string{}
	for _, p := range services[0].Plugins {
		points[p.Name] = p.Points
	}
	decoded, err := berthconfig.Decode([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" + yodaProfile()))
	if err != nil {
		t.Fatal(err)
	}
	completed, err := berthconfig.Complete(decoded, berthconfig.Options{Plugins: points})
	if err != nil {
		t.Fatal(err)
	}
	weights := map[string]int64{}
	for _, w := range completed.Profiles[0].Weights {
		if strings.HasPrefix(w.Name, "Yoda") {
			weights[w.Name] = w.Weight
		}
	}
	want := map[string]int64{
		"YodaBandwidth": 1, "YodaClock": 1, "YodaCore": 1, "YodaPower": 1, "YodaFreeMemory": 2, "YodaTotalMemory": 1, "YodaAllocate": 3, "YodaActual": 2,
	}
	if diff := cmp.Diff(want, weights); diff != "" {
		t.Errorf("weights (-want +got):\n%s", diff)
	}
	if p := completed.Profiles[0]; p.QueueSort != "Yoda" || !slices.Contains(p.Filters, "Yoda") {
		t.Errorf("the queue is sorted by %q, and filters are %v, want Yoda", p.QueueSort, p.Filters)
	}
}

func TestTheServiceIsStartedBesideTheBerthThatAsksIt(t *testing.T) {
	e := environment{config: config{berth: "B", yoda: "Y"}, dir: t.TempDir(), kubeconfig: "K"}
	commands, err := berthYodaServiceCommands(e)
	if err != nil {
		t.Fatal(err)
	}
	socket := "unix://" + e.dir + "/yoda.sock"
	if diff := cmp.Diff([]string{"Y", "plugin", "serve", "yoda", "--listen", socket, "--kubeconfig", "K"}, commands[0].argv); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
	file := e.dir + "/services.yaml"
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "address: "+socket+"\n") {
		t.Errorf("services: %s, %v", text, err)
	}
	if argv := commands[1].argv; argv[0] != "B" || !slices.Contains(argv, file) {
		t.Errorf("Berth is %q, want one that is told of %s", argv, file)
	}
	if commands, err = berthYodaCommands(e); err != nil || len(commands) != 1 || commands[0].argv[0] != "Y" || commands[0].argv[1] != "all" {
		t.Errorf("compiled in: %v, %v, want one process of the other binary", commands, err)
	}
}

func TestRatiosToTheOriginalAreOfTheSameRepetition(t *testing.T) {
	run := func(contender string, run int, rate, cpu float64) result {
		r := made(gpuWorkload, contender, run, rate)
		r.usage[0].CPU = time.Duration(cpu * float64(time.Second))
		r.gpu = &gpuFigures{}
		return r
	}
	s := summarize([]result{run(kubeYoda, 1, 20, 40), run(berthYoda, 1, 200, 2), run(kubeYoda, 2, 10, 40), run(berthYoda, 2, 200, 1)})
	cell := func(name string, g group) string {
		at := slices.IndexFunc(gpuTable.columns, func(c column) bool { return c.name == name })
		return gpuTable.columns[at].cell(s, g)
	}
	if got := []string{cell("to original", s[1]), cell("CPU to original", s[1]), cell("to original", s[0])}; !slices.Equal(got, []string{"15.00 (10.00-20.00)", "0.04 (0.03-0.05)", "-"}) {
		t.Errorf("ratios %q", got)
	}
}
