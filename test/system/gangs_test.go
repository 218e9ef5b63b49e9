package system

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

const rackLabel = "example.com/rack"

// gang creates a PodGroup that wants at least so many pods, all in one domain of a label if that is not empty.
func gang(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, name string, minCount int32, topology string) {
	t.Helper()
	group := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: schedulingv1alpha2.PodGroupSpec{
		SchedulingPolicy: schedulingv1alpha2.PodGroupSchedulingPolicy{Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: minCount}},
	}}
	if topology != "" {
		group.Spec.SchedulingConstraints = &schedulingv1alpha2.PodGroupSchedulingConstraints{Topology: []schedulingv1alpha2.TopologyConstraint{{Key: topology}}}
	}
	if _, err := cp.Client().SchedulingV1alpha2().PodGroups("default").Create(ctx, group, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// members creates pods of a group, each of which requests so much CPU.
func members(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, group string, from, to int, cpu string) {
	t.Helper()
	for i := from; i < to; i++ {
		pod := kubetest.PlainPod(0)
		pod.Name, pod.Labels = fmt.Sprintf("%s-%d", group, i), map[string]string{"group": group}
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
	members(ctx, t, cp, "late", 0, 3, "1")
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
	members(ctx, t, cp, "late", 3, 4, "1")
	await := func(group string, n int) map[string]int {
		t.Helper()
		var nodes map[string]int
		berthtest.Await(t, berthtest.Patience, fmt.Sprintf("%d pods of %s to be bound", n, group), func(ctx context.Context) error {
			var why string
			if nodes, why = nodesOf(ctx, t, cp, group); sum(nodes) != n {
				return fmt.Errorf("they are on %v, and others are not: %s", nodes, why)
			}
			return nil
		})
		return nodes
	}
	await("late", 4)

	// 2. One that wants a rack gets one, and none is placed if no rack has room for all.
	gang(ctx, t, cp, "racked", 3, rackLabel)
	members(ctx, t, cp, "racked", 0, 3, "2")
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
	if in := racks(await("racked", 3)); len(in) != 1 {
		t.Errorf("a gang that wants one rack is in %v", in)
	}
	gang(ctx, t, cp, "wide", 5, rackLabel)
	members(ctx, t, cp, "wide", 0, 5, "3")
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

	// 3. One that does not fit holds nothing, and is placed when there is room.
	gang(ctx, t, cp, "large", 6, "")
	members(ctx, t, cp, "large", 0, 6, "3500m")
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
	gang(ctx, t, cp, "small", 2, "")
	members(ctx, t, cp, "small", 0, 2, "500m")
	await("small", 2)
	if err := cp.CreateNodes(ctx, 14, func(i int) *corev1.Node { return kubetest.PlainNode(100 + i) }); err != nil {
		t.Fatal(err)
	}
	await("large", 6)
	checkCluster(t, cp)
	if twice := watcher.BoundTwice(); len(twice) > 0 {
		t.Errorf("bound twice: %v", twice)
	}
}
