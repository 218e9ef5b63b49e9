package system

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

const rackLabel = "example.com/rack"

// gang creates a PodGroup that wants at least so many pods, all in one domain of a label if that is not empty.
func gang(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, name string, minCount int32, topology string) {
	t.Helper()
	gangOf(ctx, t, cp, name, minCount, topology, "")
}

// gangOf is gang of a priority class.
func gangOf(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, name string, minCount int32, topology, priorityClass string) {
	t.Helper()
	group := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: schedulingv1alpha2.PodGroupSpec{
		SchedulingPolicy:  schedulingv1alpha2.PodGroupSchedulingPolicy{Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: minCount}},
		PriorityClassName: priorityClass,
	}}
	if topology != "" {
		group.Spec.SchedulingConstraints = &schedulingv1alpha2.PodGroupSchedulingConstraints{Topology: []schedulingv1alpha2.TopologyConstraint{{Key: topology}}}
	}
	if _, err := cp.Client().SchedulingV1alpha2().PodGroups("default").Create(ctx, group, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// members creates pods of a group, each of which requests so much CPU.
func members(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, group, priorityClass string, from, to int, cpu string) {
	t.Helper()
	for i := from; i < to; i++ {
		pod := kubetest.PlainPod(0)
		pod.Name, pod.Labels = fmt.Sprintf("%s-%d", group, i), map[string]string{"group": group}
		pod.Spec.PriorityClassName = priorityClass
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
		if _, err := cp.Client().CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// nodesOf returns the nodes of the pods of a group that are bound, with how many are on each, and why one is not.
func nodesOf(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, group string) (nodes map[string]int, why string) {
	t.Helper()
	pods, err := cp.Client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "group=" + group})
	if err != nil {
		t.Fatal(err)
	}
	nodes = make(map[string]int)
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.NodeName != "" {
			nodes[p.Spec.NodeName]++
			continue
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				why = c.Message
			}
		}
	}
	return nodes, why
}

// awaitGang waits until so many pods of a group are bound, and returns where.
func awaitGang(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, group string, n int) (nodes map[string]int) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, fmt.Sprintf("%d pods of %s to be bound", n, group), func(context.Context) error {
		var why string
		if nodes, why = nodesOf(ctx, t, cp, group); sum(nodes) != n {
			return fmt.Errorf("they are on %v, and others are not: %s", nodes, why)
		}
		return nil
	})
	return nodes
}

// awaitDecided waits until the PodGroupScheduled condition of a group says what it is to.
func awaitDecided(t *testing.T, cp *kubetest.ControlPlane, group string, status metav1.ConditionStatus, reason, message string) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, "the condition of "+group, func(ctx context.Context) error {
		is, err := cp.Client().SchedulingV1alpha2().PodGroups("default").Get(ctx, group, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(is.Status.Conditions, schedulingv1alpha2.PodGroupScheduled)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
}

// awaitEvents waits until each pod of a group has an event as kube-scheduler writes it, whose note has a text with its name in place of %s.
func awaitEvents(t *testing.T, cp *kubetest.ControlPlane, group string, pods int, kind, reason, action, text string) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, reason+" events of "+group, func(ctx context.Context) error {
		events, err := cp.Client().EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		told := make(map[string]bool)
		var notes []string
		for i := range events.Items {
			e := &events.Items[i]
			if e.Regarding.Kind != "Pod" || !strings.HasPrefix(e.Regarding.Name, group+"-") {
				continue
			}
			notes = append(notes, fmt.Sprintf("%s %s %s of %s: %s", e.Type, e.Reason, e.Action, e.Regarding.Name, e.Note))
			if e.Type == kind && e.Reason == reason && e.Action == action && strings.Contains(e.Note, strings.ReplaceAll(text, "%s", e.Regarding.Name)) {
				told[e.Regarding.Name] = true
			}
		}
		if len(told) != pods {
			return fmt.Errorf("%d of %d pods have one; there are %q", len(told), pods, notes)
		}
		return nil
	})
}

func sum(nodes map[string]int) (n int) {
	for _, k := range nodes {
		n += k
	}
	return n
}

// TestPodsOfAGangAreBoundTogetherOrNotAtAll has gangs on a real API server: one that fits, one that does not until there is room, one that waits for its pods, and those that want one rack.
func TestPodsOfAGangAreBoundTogetherOrNotAtAll(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cp := kubetest.StartT(t, kubetest.Options{APIServerFlags: kubetest.PodGroups})
	watcher, err := kubetest.Watch(ctx, cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	if err := cp.CreateNodes(ctx, 8, func(i int) *corev1.Node { // of 4 CPUs each
		node := kubetest.PlainNode(i)
		node.Labels[rackLabel] = string(rune('a' + i/4))
		return node
	}); err != nil {
		t.Fatal(err)
	}
	berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), Shards: 2})

	// 1. Until all of its pods are there, none is placed, and then all are.
	gang(ctx, t, cp, "late", 4, "")
	members(ctx, t, cp, "late", "", 0, 3, "1")
	single := kubetest.PlainPod(0)
	single.Name = "single"
	if _, err := cp.Client().CoreV1().Pods("default").Create(ctx, single, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	berthtest.Await(t, berthtest.Patience, "a pod behind them to be bound", func(ctx context.Context) error {
		p, err := cp.Client().CoreV1().Pods("default").Get(ctx, "single", metav1.GetOptions{})
		if err == nil && p.Spec.NodeName == "" {
			err = fmt.Errorf("it has no node")
		}
		return err
	})
	if nodes, _ := nodesOf(ctx, t, cp, "late"); sum(nodes) > 0 {
		t.Errorf("3 pods of a gang of 4 are on %v", nodes)
	}
	members(ctx, t, cp, "late", "", 3, 4, "1")
	awaitGang(ctx, t, cp, "late", 4)
	awaitDecided(t, cp, "late", metav1.ConditionTrue, "Scheduled", "")

	// 2. One that wants a rack gets one, and none is placed if no rack has room for all.
	gang(ctx, t, cp, "racked", 3, rackLabel)
	members(ctx, t, cp, "racked", "", 0, 3, "2")
	racks := func(nodes map[string]int) map[string]bool {
		in := make(map[string]bool)
		for name := range nodes {
			node, err := cp.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			in[node.Labels[rackLabel]] = true
		}
		return in
	}
	if in := racks(awaitGang(ctx, t, cp, "racked", 3)); len(in) != 1 {
		t.Errorf("a gang that wants one rack is in %v", in)
	}
	awaitEvents(t, cp, "racked", 3, "Normal", "Scheduled", "Binding", "Successfully assigned default/%s to ")
	gang(ctx, t, cp, "wide", 5, rackLabel)
	members(ctx, t, cp, "wide", "", 0, 5, "3")
	berthtest.Await(t, berthtest.Patience, "why a gang waits", func(ctx context.Context) error {
		nodes, why := nodesOf(ctx, t, cp, "wide")
		if sum(nodes) > 0 {
			t.Fatalf("some pods of a gang that fits no rack are on %v", nodes)
		}
		if !strings.Contains(why, "pod group is unschedulable") {
			return fmt.Errorf("it says %q", why)
		}
		return nil
	})

	awaitDecided(t, cp, "wide", metav1.ConditionFalse, "Unschedulable", "pod group is unschedulable")
	awaitEvents(t, cp, "wide", 5, "Warning", "FailedScheduling", "Scheduling", "pod group is unschedulable: ")

	// 3. One that does not fit holds nothing, and is placed when there is room.
	gang(ctx, t, cp, "large", 6, "")
	members(ctx, t, cp, "large", "", 0, 6, "3500m")
	berthtest.Await(t, berthtest.Patience, "why the large gang waits", func(ctx context.Context) error {
		nodes, why := nodesOf(ctx, t, cp, "large")
		if sum(nodes) > 0 {
			t.Fatalf("some pods of a gang that does not fit are on %v", nodes)
		}
		if !strings.Contains(why, "of at least 6 pods fit") {
			return fmt.Errorf("it says %q", why)
		}
		return nil
	})
	awaitDecided(t, cp, "large", metav1.ConditionFalse, "Unschedulable", "of at least 6 pods fit")
	gang(ctx, t, cp, "small", 2, "")
	members(ctx, t, cp, "small", "", 0, 2, "500m")
	awaitGang(ctx, t, cp, "small", 2)
	if err := cp.CreateNodes(ctx, 14, func(i int) *corev1.Node { return kubetest.PlainNode(100 + i) }); err != nil {
		t.Fatal(err)
	}
	awaitGang(ctx, t, cp, "large", 6)
	awaitDecided(t, cp, "large", metav1.ConditionTrue, "Scheduled", "")
	checkCluster(t, cp)
	if twice := watcher.BoundTwice(); len(twice) > 0 {
		t.Errorf("bound twice: %v", twice)
	}
}

// TestAGangPreemptsAsAWhole has gangs of a high priority on a full cluster: one that no room can be made for, for which nobody goes, and one for which as few go as must; of a gang that wants to be disrupted whole all go.
func TestAGangPreemptsAsAWhole(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cp := kubetest.StartT(t, kubetest.Options{APIServerFlags: kubetest.PodGroups})
	if err := cp.CreateNodes(ctx, 6, func(i int) *corev1.Node { // of 4 CPUs each
		node := kubetest.PlainNode(i)
		node.Labels[rackLabel] = string(rune('a' + i/3))
		return node
	}); err != nil {
		t.Fatal(err)
	}
	createPriorityClasses(ctx, t, cp)
	kubelet, err := kubetest.PlayKubelets(ctx, cp.Kubeconfig(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer kubelet.Stop()
	berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), Shards: 2, LeaseTTL: berthtest.Patience})

	// 1. A gang that is disrupted whole fills the first rack, and pods the second.
	group := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "whole"}, Spec: schedulingv1alpha2.PodGroupSpec{
		SchedulingPolicy:      schedulingv1alpha2.PodGroupSchedulingPolicy{Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: 3}},
		SchedulingConstraints: &schedulingv1alpha2.PodGroupSchedulingConstraints{Topology: []schedulingv1alpha2.TopologyConstraint{{Key: rackLabel}}},
		DisruptionMode:        new(schedulingv1alpha2.DisruptionModePodGroup), PriorityClassName: "low-0",
	}}
	if _, err := cp.Client().SchedulingV1alpha2().PodGroups("default").Create(ctx, group, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	members(ctx, t, cp, "whole", "low-0", 0, 3, "3")
	awaitGang(ctx, t, cp, "whole", 3)
	for i := range 3 {
		low := oneCPU(fmt.Sprintf("low-%d", i), "low-1")
		low.Labels["group"] = "singles"
		low.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
		if _, err := cp.Client().CoreV1().Pods("default").Create(ctx, low, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitGang(ctx, t, cp, "singles", 3)

	// 2. Nobody goes for a gang that would fit no rack even so.
	gangOf(ctx, t, cp, "huge", 4, rackLabel, "high")
	members(ctx, t, cp, "huge", "high", 0, 4, "3")
	berthtest.Await(t, berthtest.Patience, "why the huge gang waits", func(ctx context.Context) error {
		if _, why := nodesOf(ctx, t, cp, "huge"); !strings.Contains(why, "Preemption is not helpful") {
			return fmt.Errorf("it says %q", why)
		}
		return nil
	})
	for group, want := range map[string]int{"whole": 3, "singles": 3} {
		if nodes, _ := nodesOf(ctx, t, cp, group); sum(nodes) != want {
			t.Errorf("%s has %v, for a gang that has no use for that", group, nodes)
		}
	}

	// 3. Two singles go rather than the whole gang: it is less important, but one of its pods would take all.
	gangOf(ctx, t, cp, "urgent", 2, rackLabel, "high")
	members(ctx, t, cp, "urgent", "high", 0, 2, "3")
	awaitGang(ctx, t, cp, "urgent", 2)
	whole, _ := nodesOf(ctx, t, cp, "whole")
	singles, _ := nodesOf(ctx, t, cp, "singles")
	if n := sum(whole); n != 0 && n != 3 {
		t.Errorf("%d pods of a gang that is disrupted whole are left", n)
	}
	if sum(whole)+sum(singles) != 3 && sum(whole)+sum(singles) != 4 {
		t.Errorf("left are %v of the whole gang and singles on %v", whole, singles)
	}
	checkCluster(t, cp)
}
