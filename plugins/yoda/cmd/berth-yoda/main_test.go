package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/plugins/yoda"
	"github.com/berth-scheduler/berth/plugins/yoda/fleet"
)

// asProgram is set where this program is to be berth-yoda.
const asProgram = "TEST_AS_BERTH_YODA"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// hang is when a test takes for certain that something will not happen any more.
const hang = 5 * time.Minute

// whole is a Berth with Yoda, on an API server.
type whole struct {
	t          *testing.T
	dir        string
	kubeconfig string
	kube       kubernetes.Interface
	fleet      *fleet.Fleet
	berth      *kubetest.Process
}

func start(t *testing.T) *whole {
	t.Helper()
	control := kubetest.StartT(t, kubetest.Options{})
	w := &whole{t: t, dir: t.TempDir(), kubeconfig: control.Kubeconfig(), kube: control.Client()}
	cfg, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if w.fleet, err = fleet.New(t.Context(), cfg, filepath.Join("..", "..", "..", "..", "deploy", "kustomize", "components", "yoda", "crd.yaml"), 3600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "config.yaml"), []byte(fleet.Profile), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// run starts Berth anew.
func (w *whole) run() {
	w.t.Helper()
	w.t.Setenv(asProgram, "1")
	program, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	w.berth, err = kubetest.StartProcess("berth-yoda", filepath.Join(w.dir, "berth.log"), program, "all", "--kubeconfig", w.kubeconfig, "--config", filepath.Join(w.dir, "config.yaml"), "--data-dir", filepath.Join(w.dir, "data"),
		"--listen", "127.0.0.1:0", "--http-listen", "", "--lease-ttl", "2s")
	if err != nil {
		w.t.Fatal(err)
	}
	berth := w.berth
	w.t.Cleanup(func() {
		berth.Kill()
		if w.t.Failed() {
			w.t.Logf("end of Berth's log:\n%s", berth.LogTail(16<<10))
		}
	})
}

// node makes a node with cards.
func (w *whole) node(name string, model fleet.Model, cards int, change func(*corev1.Node)) {
	w.t.Helper()
	if err := w.fleet.Add(w.t.Context(), name, model, cards, change); err != nil {
		w.t.Fatal(err)
	}
}

// pods makes pods that ask for cards by labels, and an annotation if it is not "".
func (w *whole) pods(prefix string, n int, labels map[string]string, annotation string) {
	w.t.Helper()
	for i := range n {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", prefix, i), Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "train", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}},
		}
		if annotation != "" {
			p.Annotations = map[string]string{yoda.AnnotationRequest: annotation}
		}
		if _, err := w.kube.CoreV1().Pods("default").Create(w.t.Context(), p, metav1.CreateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *whole) delete(name string) {
	w.t.Helper()
	zero := int64(0)
	if err := w.kube.CoreV1().Pods("default").Delete(w.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		w.t.Fatal(err)
	}
}

// list returns all pods, and fails the test if a card has two pods that have more of it than there is, or a pod has cards of another node.
func (w *whole) list() map[string]*corev1.Pod {
	w.t.Helper()
	pods, err := w.kube.CoreV1().Pods("default").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	all, had := make(map[string]*corev1.Pod), make(map[string]int64)
	for i := range pods.Items {
		p := &pods.Items[i]
		all[p.Name] = p
		g, has, err := yoda.GrantOf(p.Annotations)
		if err != nil || has != (p.Spec.NodeName != "") {
			w.t.Errorf("pod %s on node %q has annotations %v: %v", p.Name, p.Spec.NodeName, p.Annotations, err)
		}
		for _, id := range g.Cards {
			total := int64(0)
			for _, c := range w.fleet.Cards(p.Spec.NodeName) {
				if c.ID == id {
					total = c.TotalMemoryMiB
				}
			}
			if total == 0 {
				w.t.Errorf("pod %s on node %s has card %s, which is not there", p.Name, p.Spec.NodeName, id)
			}
			memory := g.MemoryMiB
			if memory == 0 {
				memory = total
			}
			if had[id] += memory; had[id] > total {
				w.t.Errorf("card %s has %d MiB, of which pods have %d", id, total, had[id])
			}
		}
	}
	return all
}

// await waits until something is so of all pods.
func (w *whole) await(what string, is func(map[string]*corev1.Pod) bool) map[string]*corev1.Pod {
	w.t.Helper()
	var pods map[string]*corev1.Pod
	err := wait.PollUntilContextTimeout(w.t.Context(), 20*time.Millisecond, hang, true, func(context.Context) (bool, error) {
		pods = w.list()
		return is(pods) || w.t.Failed(), nil
	})
	if err != nil {
		w.t.Fatalf("not so after %v: %s", hang, what)
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
	return pods
}

// placed returns how many pods of a prefix have a node.
func placed(pods map[string]*corev1.Pod, prefix string) (n int) {
	for name, p := range pods {
		if strings.HasPrefix(name, prefix+"-") && p.Spec.NodeName != "" {
			n++
		}
	}
	return n
}

func (w *whole) awaitPlaced(prefix string, n int) map[string]*corev1.Pod {
	w.t.Helper()
	return w.await(fmt.Sprintf("%d pods %s-… are placed", n, prefix), func(pods map[string]*corev1.Pod) bool { return placed(pods, prefix) == n })
}

// awaitTold waits until a pod is told why it is nowhere.
func (w *whole) awaitTold(pod, want string) {
	w.t.Helper()
	w.await(fmt.Sprintf("pod %s is told %q", pod, want), func(pods map[string]*corev1.Pod) bool {
		for _, c := range pods[pod].Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, want) {
				return true
			}
		}
		return false
	})
}

func label(key, value string) map[string]string { return map[string]string{key: value} }

// One card of four is sick, and of two nodes others give out the cards: that leaves three. Whoever waits gets what comes free, also if Berth has been killed in between.
func TestEachCardIsGivenToOnePod(t *testing.T) {
	w := start(t)
	w.node("good", fleet.Models[0], 4, nil)
	w.node("plugin", fleet.Models[0], 4, func(n *corev1.Node) { n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("4") })
	w.node("bare", fleet.Models[0], 0, nil)
	sick := func(health v1alpha1.Health) {
		t.Helper()
		if err := w.fleet.Change(t.Context(), "good", func(cards []v1alpha1.Card) {
			cards[1].Health, cards[1].Reason = health, ""
			if health == v1alpha1.Unhealthy {
				cards[1].Reason = "XID 79: it has fallen off the bus"
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	sick(v1alpha1.Unhealthy)
	w.run()
	w.pods("a", 4, label(yoda.LabelNumber, "1"), "")
	pods := w.awaitPlaced("a", 3)
	w.awaitTold(nameOf(pods, "a", false), "1 "+yoda.ReasonTaken)
	w.awaitTold(nameOf(pods, "a", false), "1 "+yoda.ReasonDevicePlugin)
	w.awaitTold(nameOf(pods, "a", false), "1 "+yoda.ReasonNoCards)

	t.Log("a card gets well")
	sick(v1alpha1.Healthy)
	pods = w.awaitPlaced("a", 4)

	t.Log("a pod goes while Berth is down")
	w.berth.Kill()
	w.pods("b", 3, label(yoda.LabelNumber, "1"), "")
	w.delete(nameOf(pods, "a", true))
	w.run()
	pods = w.awaitPlaced("b", 1)
	w.awaitTold(nameOf(pods, "b", false), "1 "+yoda.ReasonTaken)

	t.Log("pods go while Berth is up")
	for name, p := range pods {
		if p.Spec.NodeName != "" {
			w.delete(name)
		}
	}
	w.awaitPlaced("b", 2)
}

// nameOf returns the name of a pod of a prefix that has a node, or has none.
func nameOf(pods map[string]*corev1.Pod, prefix string, placed bool) string {
	for name, p := range pods {
		if strings.HasPrefix(name, prefix+"-") && (p.Spec.NodeName != "") == placed {
			return name
		}
	}
	return ""
}

func TestPodsGoWhereTheCardsAreGood(t *testing.T) {
	w := start(t)
	w.node("t4", fleet.Models[0], 2, nil)
	w.node("v100", fleet.Models[3], 2, nil)
	w.node("a10", fleet.Models[4], 2, nil)
	w.run()
	w.pods("big", 1, label(yoda.LabelMemory, "30000"), "")
	w.pods("high", 1, label(yoda.LabelLevel, "High"), "")
	w.pods("slip", 1, label(yoda.LabelMemory, "30Gi"), "")
	w.pods("share", 3, label(yoda.LabelNumber, "1"), `{"model":"Tesla T4","memory":"7Gi","share":true}`)
	w.awaitTold("slip-0", `label "scv/memory" is "30Gi": want MiB, a whole number from 0 to 2147483647, in digits only`)
	for prefix, node := range map[string]string{"big": "v100", "high": "a10", "share": "t4"} {
		n := 1
		if prefix == "share" {
			n = 3
		}
		for name, p := range w.awaitPlaced(prefix, n) {
			if strings.HasPrefix(name, prefix) && p.Spec.NodeName != node {
				t.Errorf("pod %s is on node %s, want %s", name, p.Spec.NodeName, node)
			}
		}
	}
	// Two of them share a card, so that the other one has room for the third, and 8 GiB besides.
	cards := make(map[string]int)
	for name, p := range w.list() {
		if strings.HasPrefix(name, "share") {
			cards[p.Annotations[yoda.AnnotationCards]]++
			if p.Annotations[yoda.AnnotationCardsMemory] != "7168" {
				t.Errorf("pod %s has %q MiB, want 7168", name, p.Annotations[yoda.AnnotationCardsMemory])
			}
		}
	}
	if len(cards) != 2 {
		t.Errorf("three pods that share have cards %v, want two", cards)
	}
}
