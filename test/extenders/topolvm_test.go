//go:build extenders

package extenders

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// startTopoLVM starts a topolvm-scheduler.
func startTopoLVM(t *testing.T, _ *kubetest.ControlPlane) string {
	t.Helper()
	programs, err := kubetest.Build(t.Context(), kubetest.TopoLVM)
	if err != nil {
		t.Fatal(err)
	}
	address, dir := freeAddress(t), t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "listen: %q\ndefault-divisor: 1\ndivisors: {ssd: 4}\n", address), 0o600); err != nil {
		t.Fatal(err)
	}
	startProcess(t, "topolvm-scheduler", filepath.Join(dir, "log"), programs[kubetest.TopoLVM], "--config", config)
	serves(t, "http://"+address+"/status")
	return "http://" + address
}

// freeAddress returns an address that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return "127.0.0.1:" + ports[0]
}

// serves waits until a URL answers.
func serves(t *testing.T, url string) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, url+" to answer", func(ctx context.Context) error { return kubetest.GetOK(ctx, url) })
}

// topolvmConfig is what TopoLVM's deploy/scheduler-config/scheduler-config.yaml has.
const topolvmConfig = `urlPrefix: "URL"
  filterVerb: "predicate"
  prioritizeVerb: "prioritize"
  nodeCacheCapable: false
  weight: 1
  managedResources:
  - name: "topolvm.io/capacity"
    ignoredByScheduler: true`

const (
	capacity = "capacity.topolvm.io/"
	gib      = int64(1) << 30
)

// lvmNode is a node with so many GiB free of each device class, as topolvm-node says.
func lvmNode(name string, cpus, memory int, free map[string]int64) *corev1.Node {
	return node(name, cpus, memory, func(n *corev1.Node) {
		n.Labels["topology.topolvm.io/node"] = name
		n.Annotations = map[string]string{"example.com/note": "<a> & \"b\" \u2028 \u00fc"} // what JSON escapes in one way or another
		for class, gibs := range free {
			n.Annotations[capacity+class] = strconv.FormatInt(gibs*gib, 10)
		}
	})
}

// lvmPod is a pod that wants so many GiB of device classes, as TopoLVM's webhook leaves it.
func lvmPod(name, cpu, memory string, want map[string]int64, change ...func(*corev1.Pod)) *corev1.Pod {
	return pod(name, cpu, memory, func(p *corev1.Pod) {
		c := &p.Spec.Containers[0].Resources
		c.Requests["topolvm.io/capacity"], c.Limits["topolvm.io/capacity"] = *resource.NewQuantity(1, resource.DecimalSI), *resource.NewQuantity(1, resource.DecimalSI)
		p.Annotations = make(map[string]string)
		for class, gibs := range want {
			p.Annotations[capacity+class] = strconv.FormatInt(gibs*gib, 10)
		}
		for _, change := range change {
			change(p)
		}
	})
}

func topolvmScene() *scene {
	type sizes = map[string]int64
	richer := func(p *corev1.Pod) {
		p.Labels["tier"] = "db"
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "QUOTED", Value: "a \"b\" & <c>\n\t\u2029"}}
		p.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("2.50")
		p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1e9"))}}}}
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "registry.k8s.io/pause:3.10"}}
	}
	tolerant := func(p *corev1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "example.com/old", Operator: corev1.TolerationOpExists})
	}
	return &scene{
		// What plugins score depends on the nodes as they are, and TopoLVM's part can outweigh it and be outweighed.
		nodes: []*corev1.Node{
			lvmNode("node-a", 64, 400, sizes{"ssd": 100, "00default": 5000}),
			old(lvmNode("node-b", 8, 64, sizes{"ssd": 900, "00default": 300})),
			lvmNode("node-c", 16, 200, sizes{"ssd": 60}),
			lvmNode("node-d", 32, 500, sizes{"00default": 2000}),
			lvmNode("node-e", 24, 100, sizes{"ssd": 30, "00default": 0}),
			lvmNode("node-f", 12, 60, nil),
			lvmNode("node-g", 48, 330, sizes{"ssd": 110, "00default": 40}),
		},
		pods: []*corev1.Pod{
			lvmPod("ssd-10", "10m", "30Mi", sizes{"ssd": 10}, tolerant),
			lvmPod("ssd-50", "20m", "40Mi", sizes{"ssd": 50}, richer, prefers("node-a", 1)),
			lvmPod("default-100", "15m", "20Mi", sizes{"00default": 100}, prefers("node-d", 7)),
			pod("plain", "11m", "10Mi", prefers("node-f", 3)),
			lvmPod("both", "12m", "50Mi", sizes{"ssd": 20, "00default": 30}, prefers("node-g", 2)),
			lvmPod("ssd-40", "13m", "35Mi", sizes{"ssd": 40}, richer, tolerant),
			lvmPod("only-on-c", "9m", "40Mi", sizes{"ssd": 5}, on("node-c")),
			lvmPod("ssd-800", "8m", "11Mi", sizes{"ssd": 800}),
			lvmPod("ssd-20", "25m", "20Mi", sizes{"ssd": 20}, prefers("node-c", 4)),
			lvmPod("default-20", "17m", "13Mi", sizes{"00default": 20}, prefers("node-a", 10), prefers("node-d", 5)),
			lvmPod("no-class", "14m", "16Mi", nil, prefers("node-e", 1)),
			lvmPod("bad-size", "16m", "18Mi", nil, tolerant, func(p *corev1.Pod) { p.Annotations[capacity+"ssd"] = "1Gi" }), // TopoLVM takes it for no request
			lvmPod("scaled", "1", "8Gi", sizes{"ssd": 2}, tolerant),                                                         // plugins are 11 for a larger node, and TopoLVM is 3 times 10 for node-b
			lvmPod("heavy", "6", "50Gi", sizes{"ssd": 1}, tolerant, on("node-b")),
			lvmPod("after-heavy", "13m", "12Mi", sizes{"ssd": 40}, tolerant, notOn("node-a")),
			lvmPod("too-large", "20m", "10Mi", sizes{"ssd": 20_000}),
		},
		// What an extender that is sent nodes in full has left, kube-scheduler scores as if no pod were there: for it, "heavy" is not on node-b.
		differs:  map[string]string{"after-heavy": "node-g"},
		extender: startTopoLVM, config: topolvmConfig,
	}
}

// old says of a node that others are preferred.
func old(n *corev1.Node) *corev1.Node {
	n.Spec.Taints = []corev1.Taint{{Key: "example.com/old", Effect: corev1.TaintEffectPreferNoSchedule}}
	return n
}

func on(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
}

func affinity(p *corev1.Pod) *corev1.NodeAffinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	}
	return p.Spec.Affinity.NodeAffinity
}

func hostname(operator corev1.NodeSelectorOperator, node string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: operator, Values: []string{node}}}}
}

func prefers(node string, weight int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		a := affinity(p)
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{Weight: weight, Preference: hostname(corev1.NodeSelectorOpIn, node)})
	}
}

func notOn(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		affinity(p).RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{hostname(corev1.NodeSelectorOpNotIn, node)}}
	}
}

// TopoLVM filters and scores, and is sent nodes in full.
func TestTopoLVMIsAskedTheSameAndItsPodsGoToTheSameNodes(t *testing.T) {
	s := topolvmScene()
	stored := s.stored(t)
	outcomes := make(map[string]*outcome)
	for _, who := range []string{theirs, ours} {
		t.Run(who, func(t *testing.T) {
			r := s.start(t, who, stored)
			outcomes[who] = r.outcome(t)
			// A volume is gone: topolvm-node says that there is more room, and nothing else changes.
			if _, err := r.cp.Client().CoreV1().Nodes().Patch(t.Context(), "node-c", "application/merge-patch+json",
				fmt.Appendf(nil, `{"metadata":{"annotations":{"%sssd":"%d"}}}`, capacity, 30_000*gib), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			berthtest.Await(t, berthtest.Patience, "the pod that was refused to be placed", func(ctx context.Context) error {
				pods, err := r.pods(ctx)
				if err != nil {
					return err
				}
				if last := pods["too-large"]; last.Spec.NodeName != "node-c" {
					return fmt.Errorf("it is on %q, and told %s", last.Spec.NodeName, whyNot(last))
				}
				return nil
			})
			for pod, by := range r.binders(t) {
				if len(by) != 1 || by[0] != who {
					t.Errorf("with %s, %s is bound by %q", who, pod, by)
				}
			}
		})
	}
	if !t.Failed() {
		compare(t, s, len(s.pods)-1, outcomes[theirs], outcomes[ours])
	}
}

var largeRequest = regexp.MustCompile(`level=WARN msg="requests to an extender are large.* bytes=(\d+)`)

// TopoLVM takes 10 MiB of a request and no more: it refuses what is larger, with 400 and no word of why. Berth warns of less.
func TestBerthWarnsBeforeTopoLVMRefusesARequestForItsSize(t *testing.T) {
	const each, fit, all = 200 << 10, 45, 56 // 8.8 and 10.9 MiB
	s := &scene{extender: startTopoLVM, config: topolvmConfig}
	for i := range all {
		n := lvmNode(fmt.Sprintf("node-%02d", i), 8, 64, map[string]int64{"ssd": int64(10 + i)})
		n.Annotations["example.com/long"] = strings.Repeat("x", each)
		if i < fit {
			n.Labels["example.com/part"] = "fits"
		}
		s.nodes = append(s.nodes, n)
	}
	s.pods = []*corev1.Pod{
		lvmPod("small", "10m", "20Mi", map[string]int64{"ssd": 1}, on("node-07")),
		lvmPod("large", "10m", "20Mi", map[string]int64{"ssd": 1}, prefers("node-03", 1), func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"example.com/part": "fits"}
		}),
		lvmPod("too-large", "10m", "20Mi", map[string]int64{"ssd": 1}, prefers("node-04", 1)),
	}
	stored := s.stored(t)
	outcomes := make(map[string]*outcome)
	for _, who := range []string{theirs, ours} {
		t.Run(who, func(t *testing.T) {
			r := s.start(t, who, stored)
			outcomes[who] = r.outcome(t)
			if got, want := outcomes[who].why("too-large"), "SchedulerError: failed predicate with extender at URL URL/predicate, code 400"; got != want {
				t.Errorf("the pod that is asked about in vain is told %q, want %q", got, want)
			}
			if who != ours {
				return
			}
			log, err := os.ReadFile(r.log)
			if err != nil {
				t.Fatal(err)
			}
			warned := largeRequest.FindAllStringSubmatch(string(log), -1)
			if len(warned) != 1 {
				t.Fatalf("warned %d times, want once", len(warned))
			}
			t.Log(warned[0][0])
			if bytes, err := strconv.Atoi(warned[0][1]); err != nil || bytes > 10<<20 {
				t.Errorf("warned of %s bytes, which is too late", warned[0][1])
			}
		})
	}
	if !t.Failed() {
		compare(t, s, len(s.pods), outcomes[theirs], outcomes[ours])
	}
}
