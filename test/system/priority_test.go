package system

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	kubeschedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// A full cluster: four pods of one CPU on each node. Who needs the room of 200 of them, and prefers the least important that
// no budget protects, takes these 200 and no other: all but those of low-3 and the protected ones. There are no more nodes
// than kube-scheduler looks at for each preemption.
const (
	fullNodes   = 100
	podsPerNode = 4
	preemptors  = 200
)

// lowClass returns the priority class of a low pod, by its number on its node, and whether a budget protects it. One in five
// nodes has nothing but protected pods, of the lowest class; of the others, one half has one of them beside low-1 and low-3,
// and one half has one of each class.
func lowClass(node, number int) (class string, protected bool) {
	switch {
	case node%5 == 0:
		return "low-0", true
	case node%2 == 0:
		return []string{"low-0", "low-1", "low-1", "low-3"}[number], number == 0
	}
	return fmt.Sprintf("low-%d", number), false
}

func inDefault(pod string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: pod}
}

func lowName(node, number int) string { return fmt.Sprintf("low-%03d-%d", node, number) }

func highName(i int) string { return fmt.Sprintf("high-%03d", i) }

// createPriorityClasses makes the classes of the low pods and of the high ones.
func createPriorityClasses(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane) {
	t.Helper()
	never := corev1.PreemptNever
	classes := []kubeschedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 10000},
		{ObjectMeta: metav1.ObjectMeta{Name: "patient"}, Value: 20000, PreemptionPolicy: &never},
	}
	for i := range podsPerNode {
		classes = append(classes, kubeschedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("low-%d", i)}, Value: int32(100 * (i + 1))})
	}
	for i := range classes {
		if _, err := cp.Client().SchedulingV1().PriorityClasses().Create(ctx, &classes[i], metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// oneCPU returns a pod that requests a CPU.
func oneCPU(name, priorityClass string) *corev1.Pod {
	pod := kubetest.PlainPod(0)
	pod.Name, pod.Labels, pod.Spec.PriorityClassName = name, map[string]string{"app": priorityClass}, priorityClass
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
	return pod
}

// fillCluster creates the nodes, the budget and the low pods, and returns the names of those that have to go.
func fillCluster(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane) map[string]bool {
	t.Helper()
	if err := cp.CreateNodes(ctx, fullNodes, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	createPriorityClasses(ctx, t, cp)
	// No controller says how many disruptions a budget allows, so this one allows none.
	_, err := cp.Client().PolicyV1().PodDisruptionBudgets("default").Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "budget"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"protected": "true"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	victims := map[string]bool{}
	err = cp.CreatePods(ctx, fullNodes*podsPerNode, func(i int) *corev1.Pod {
		node, number := i/podsPerNode, i%podsPerNode
		class, protected := lowClass(node, number)
		pod := oneCPU(lowName(node, number), class)
		pod.Spec.NodeName = kubetest.PlainNode(node).Name
		if protected {
			pod.Labels["protected"] = "true"
		}
		return pod
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range fullNodes * podsPerNode {
		if class, protected := lowClass(i/podsPerNode, i%podsPerNode); class != "low-3" && !protected {
			victims[lowName(i/podsPerNode, i%podsPerNode)] = true
		}
	}
	return victims
}

func TestPriorityInversionIsResolvedWithTheFewestAndLeastImportantVictims(t *testing.T) {
	t.Run("berth", func(t *testing.T) {
		testPriorityInversion(t, false, func(cp *kubetest.ControlPlane) {
			// A binder that lost its lease would lose events, too, which the next one does not send.
			berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), FilterWorkers: 2, ScoreWorkers: 2, LeaseTTL: berthtest.Patience})
		})
	})
	// What is expected is what kube-scheduler does. If pods stop before all preemptors have been tried, it can miss that the last victim is
	// gone, and one preemptor may have room made on two nodes, of which another needs no nomination for one.
	t.Run("kube-scheduler", func(t *testing.T) {
		testPriorityInversion(t, true, func(cp *kubetest.ControlPlane) { startKubeScheduler(t, cp) })
	})
}

// startKubeScheduler runs kube-scheduler until the test ends.
func startKubeScheduler(t *testing.T, cp *kubetest.ControlPlane) {
	t.Helper()
	bin, err := kubetest.Build(t.Context(), kubetest.KubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	p, err := kubetest.StartProcess(kubetest.KubeScheduler, filepath.Join(t.TempDir(), "log"), bin[kubetest.KubeScheduler],
		"--kubeconfig", cp.Kubeconfig(), "--leader-elect=false", "--secure-port", "0", "--kube-api-qps", "5000", "--kube-api-burst", "5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
}

// testPriorityInversion runs a scheduler, with kubelets that stop pods at once, or only when all preemptors are nominated.
func testPriorityInversion(t *testing.T, patiently bool, start func(*kubetest.ControlPlane)) {
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	wantVictims := fillCluster(ctx, t, cp)
	if len(wantVictims) != preemptors {
		t.Fatalf("%d pods are to go for %d", len(wantVictims), preemptors)
	}
	var nominated chan struct{}
	if patiently {
		nominated = make(chan struct{})
	}
	kubelet, err := kubetest.PlayKubelets(ctx, cp.Kubeconfig(), 0, nominated)
	if err != nil {
		t.Fatal(err)
	}
	defer kubelet.Stop()
	watcher, err := kubetest.Watch(ctx, cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()

	// 1. A pod of the lowest priority, and one that must not preempt, find no room and take none.
	start(cp)
	const full = "0/100 nodes are available: 100 Insufficient cpu."
	helpless := map[string]string{
		"lowest":  full + " no new claims to deallocate, preemption: 0/100 nodes are available: 100 No preemption victims found for incoming pod.",
		"patient": full + " no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never.",
	}
	if err := cp.CreatePods(ctx, 2, func(i int) *corev1.Pod {
		return []*corev1.Pod{oneCPU("lowest", "low-0"), oneCPU("patient", "patient")}[i]
	}); err != nil {
		t.Fatal(err)
	}
	berthtest.Await(t, berthtest.Patience, "the conditions of pods that can not preempt", func(ctx context.Context) error {
		for name, want := range helpless {
			if got, err := unschedulableMessage(ctx, cp, name); err != nil || got != want {
				return fmt.Errorf("%s: %q, %v, want %q", name, got, err, want)
			}
		}
		return nil
	})
	if gone := kubelet.Evicted(); len(gone) > 0 {
		t.Errorf("%d pods had to go for pods that can not preempt", len(gone))
	}
	if err := cp.Client().CoreV1().Pods("default").Delete(ctx, "patient", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err) // it would be the first in line for what the others make free
	}

	// 2. The high ones get the room of the least important.
	if err := cp.CreatePods(ctx, preemptors, func(i int) *corev1.Pod { return oneCPU(highName(i), "high") }); err != nil {
		t.Fatal(err)
	}
	if patiently {
		berthtest.Await(t, berthtest.Patience, "all preemptors to be nominated", func(context.Context) error {
			if n := len(watcher.Nominated()); n < preemptors {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
		close(nominated)
	}
	if err := watcher.AwaitBound(ctx, preemptors); err != nil {
		t.Error(err)
	}
	if err := kubelet.Stop(); err != nil {
		t.Error(err)
	}
	checkCluster(t, cp)
	victims := map[string]*corev1.Pod{}
	for _, pod := range kubelet.Evicted() {
		victims[pod.Name] = pod
	}
	got := map[string]bool{}
	for name := range victims {
		got[name] = true
	}
	if diff := cmp.Diff(wantVictims, got); diff != "" {
		t.Errorf("pods that had to go (-want +got):\n%s", diff)
	}
	high := func(pod *corev1.Pod) bool { return pod.Labels["app"] == "high" }
	report, err := kubetest.CheckPreemption(ctx, cp.Kubeconfig(), kubelet.Evicted(), high)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range report.Problems() {
		t.Error(problem)
	}

	// 3. Everyone was told.
	for name, pod := range victims {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Message != "default-scheduler: preempting to accommodate a higher priority pod" {
				t.Errorf("%s: DisruptionTarget says %q", name, c.Message)
			}
		}
	}
	checkNominations(ctx, t, cp, watcher.Nominated(), victims)
	checkPreemptionEvents(ctx, t, cp, victims, full)
}

// unschedulableMessage returns what a pod's PodScheduled condition says; nothing if the pod was not tried.
func unschedulableMessage(ctx context.Context, cp *kubetest.ControlPlane, name string) (string, error) {
	pod, err := cp.Client().CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c.Message, nil
		}
	}
	return "", nil
}

// checkNominations checks that each preemptor was nominated to the node that it is on now, and that nothing is nominated any
// more.
func checkNominations(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, nominated map[types.NamespacedName]string, victims map[string]*corev1.Pod) {
	t.Helper()
	room := map[string]int{} // by node
	for _, victim := range victims {
		room[victim.Spec.NodeName]++
	}
	pods, err := cp.Client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=high"})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if got := nominated[inDefault(pod.Name)]; pod.Spec.NodeName == "" || got != pod.Spec.NodeName {
			t.Errorf("%s: nominated to %q, bound to %q", pod.Name, got, pod.Spec.NodeName)
		}
		if pod.Status.NominatedNodeName != "" {
			t.Errorf("%s: still nominated to %s", pod.Name, pod.Status.NominatedNodeName)
		}
		if room[pod.Spec.NodeName]--; room[pod.Spec.NodeName] < 0 {
			t.Errorf("%s: on %s, where nobody left room for it", pod.Name, pod.Spec.NodeName)
		}
	}
	if lowest, err := cp.Client().CoreV1().Pods("default").Get(ctx, "lowest", metav1.GetOptions{}); err != nil || lowest.Spec.NodeName != "" || nominated[inDefault("lowest")] != "" {
		t.Errorf("the pod that can not preempt: %v, nominated to %q", err, nominated[inDefault("lowest")])
	}
}

// checkPreemptionEvents waits until each victim has its Preempted event and each preemptor the event that it does not fit, and
// checks what they say. A preemptor that is tried again while its victims stop says that it waits for them.
func checkPreemptionEvents(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, victims map[string]*corev1.Pod, message string) {
	t.Helper()
	pods, err := cp.Client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=high"})
	if err != nil {
		t.Fatal(err)
	}
	byUID := map[types.UID]string{}
	for _, pod := range pods.Items {
		byUID[pod.UID] = pod.Name
	}
	var events []eventsv1.Event
	berthtest.Await(t, berthtest.Patience, "the events of victims and preemptors", func(ctx context.Context) error {
		list, err := cp.Client().EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		events = list.Items
		preempted, failed := map[string]bool{}, map[string]bool{}
		for _, e := range events {
			switch e.Reason {
			case "Preempted":
				preempted[e.Regarding.Name] = true
			case "FailedScheduling":
				if _, ok := byUID[e.Regarding.UID]; ok {
					failed[e.Regarding.Name] = true
				}
			}
		}
		if len(preempted) < len(victims) || len(failed) < len(byUID) {
			return fmt.Errorf("Preempted of %d victims of %d, FailedScheduling of %d preemptors of %d", len(preempted), len(victims), len(failed), len(byUID))
		}
		return nil
	})
	waits := message + " no new claims to deallocate, preemption: not eligible due to a terminating pod on the nominated node."
	for _, e := range events {
		switch e.Reason {
		case "Preempted":
			victim := victims[e.Regarding.Name]
			if victim == nil || e.Regarding.UID != victim.UID || e.Type != corev1.EventTypeNormal || e.Action != "Preempting" {
				t.Errorf("%s event of %s about %s %s", e.Type, e.Action, e.Regarding.Name, e.Regarding.UID)
				continue
			}
			var preemptor types.UID
			var node string
			if _, err := fmt.Sscanf(e.Note, "Preempted by pod %s on node %s", &preemptor, &node); err != nil || byUID[preemptor] == "" || node != victim.Spec.NodeName {
				t.Errorf("%s: event says %q, want a preemptor and node %s", victim.Name, e.Note, victim.Spec.NodeName)
			}
			if e.Related != nil && e.Related.UID != preemptor { // kube-scheduler 1.36 sets none
				t.Errorf("%s: event says %q, related to %s", victim.Name, e.Note, e.Related.UID)
			}
		case "FailedScheduling":
			if _, ok := byUID[e.Regarding.UID]; ok && (e.Note != message && e.Note != waits || e.Type != corev1.EventTypeWarning || e.Action != "Scheduling") {
				t.Errorf("%s: %s event of %s says %q, want %q", e.Regarding.Name, e.Type, e.Action, e.Note, message)
			}
		}
	}
}
