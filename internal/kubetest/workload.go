package kubetest

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// requestsAtOnce is how many objects are written at once. More do not make a small machine's API server faster.
const requestsAtOnce = 32

// Zones is how many zones PlainNode spreads nodes over, in turn.
const Zones = 10

// ZoneName returns the value of the label topology.kubernetes.io/zone in zone i.
func ZoneName(i int) string { return fmt.Sprintf("zone-%d", i) }

// CreateNodes creates the nodes shape(0) … shape(n-1), many at once and in no order. Their status, and with it the
// allocatable, is kept.
func (c *ControlPlane) CreateNodes(ctx context.Context, n int, shape func(i int) *corev1.Node) error {
	return ForEach(ctx, n, func(ctx context.Context, i int) error {
		node := shape(i)
		if _, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create node %s: %w", node.Name, err)
		}
		return nil
	})
}

// CreatePods creates the pods template(0) … template(n-1), many at once and in no order. A pod without a namespace goes
// to default.
func (c *ControlPlane) CreatePods(ctx context.Context, n int, template func(i int) *corev1.Pod) error {
	return ForEach(ctx, n, func(ctx context.Context, i int) error {
		pod := template(i)
		namespace := pod.Namespace
		if namespace == "" {
			namespace = metav1.NamespaceDefault
		}
		if _, err := c.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s/%s: %w", namespace, pod.Name, err)
		}
		return nil
	})
}

// ForEach calls do with 0 … n-1, many at once, about in this order, until one returns an error.
func ForEach(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(requestsAtOnce)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}

// PlainNode returns the node number i: ready, in one of ten zones, with 4 CPUs, 32 GiB and room for 110 pods.
func PlainNode(i int) *corev1.Node {
	name := fmt.Sprintf("node-%05d", i)
	resources := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname:     name,
			corev1.LabelTopologyZone: ZoneName(i % Zones),
		}},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}
}

// PlainPod returns the pod number i, of one container that requests 100m of CPU and 500 MiB, for the scheduler
// default-scheduler.
func PlainPod(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%06d", i), Labels: map[string]string{"app": "plain"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:  "main",
			Image: "registry.k8s.io/pause:3.10",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("500Mi"),
			}},
		}}},
	}
}
