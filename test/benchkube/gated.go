package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// gated is pods with a scheduling gate that are there while other things happen, and lose it then. Without gates, the pods
// are created only when the others lose theirs.
type gated struct{ withGates bool }

// gatedFigures is what gated pods gave.
type gatedFigures struct {
	events   int           // node updates, and pods created and deleted, while the pods were gated
	eventCPU time.Duration // that the contender used meanwhile
}

// eventsPerNode is how many events there are while pods are gated: the node is updated, and a pod of another scheduler is
// bound to it and deleted.
const eventsPerNode = 3

const gateName = "benchkube.example.com/later"

// marker returns a plain pod that nothing holds back: when it is bound, the contender has seen what was before it.
func marker(i int) *corev1.Pod {
	pod := kubetest.PlainPod(i)
	pod.Name = fmt.Sprintf("marker-%d", i)
	return pod
}

func (g *gated) prepare(ctx context.Context, s *stage) error {
	if g.withGates {
		err := s.plane.CreatePods(ctx, s.pods, func(i int) *corev1.Pod {
			pod := s.load.pod(i)
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gateName}}
			return pod
		})
		if err != nil {
			return err
		}
	}
	return s.plane.CreatePods(ctx, 1, marker)
}

func (g *gated) play(ctx context.Context, s *stage) error {
	// 1. The contender runs and has nothing to do.
	if err := s.watcher.AwaitBound(ctx, 1); err != nil {
		return err
	}
	if _, err := s.awaitQuiet(ctx); err != nil {
		return err
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	// 2. Things happen.
	if err := stir(ctx, s); err != nil {
		return err
	}
	if err := s.plane.CreatePods(ctx, 1, func(int) *corev1.Pod { return marker(1) }); err != nil {
		return err
	}
	// The pods that stir made are bound too.
	if err := s.watcher.AwaitBound(ctx, 1+s.nodes+1); err != nil {
		return err
	}
	if _, err := s.awaitQuiet(ctx); err != nil {
		return err
	}
	after, err := s.cpu()
	if err != nil {
		return err
	}
	s.r.gated = &gatedFigures{events: eventsPerNode * s.nodes, eventCPU: after - before}
	// 3. The pods are let go.
	if s.watcher, err = kubetest.Watch(ctx, s.plane.Kubeconfig()); err != nil {
		return err
	}
	s.atEnd(s.watcher.Stop)
	s.since = time.Now()
	if err := g.release(ctx, s); err != nil {
		return err
	}
	return s.awaitBound(ctx, s.pods)
}

// stir updates each node, and binds a pod to it and deletes it.
func stir(ctx context.Context, s *stage) error {
	client := s.plane.Client().CoreV1()
	return kubetest.ForEach(ctx, s.nodes, func(ctx context.Context, i int) error {
		node := s.load.node(i).Name
		if _, err := client.Nodes().Patch(ctx, node, types.MergePatchType, []byte(`{"metadata":{"labels":{"stirred":"true"}}}`), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("update node %s: %w", node, err)
		}
		pod := kubetest.PlainPod(i)
		pod.Name, pod.Spec.NodeName, pod.Spec.SchedulerName = fmt.Sprintf("other-%06d", i), node, "other"
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("10m")
		if _, err := client.Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
		if err := client.Pods(metav1.NamespaceDefault).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			return fmt.Errorf("delete pod %s: %w", pod.Name, err)
		}
		return nil
	})
}

// release removes the gates, or creates the pods that never had one.
func (g *gated) release(ctx context.Context, s *stage) error {
	if !g.withGates {
		return s.plane.CreatePods(ctx, s.pods, s.load.pod)
	}
	pods := s.plane.Client().CoreV1().Pods(metav1.NamespaceDefault)
	return kubetest.ForEach(ctx, s.pods, func(ctx context.Context, i int) error {
		name := s.load.pod(i).Name
		if _, err := pods.Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("remove the gate of pod %s: %w", name, err)
		}
		return nil
	})
}

func (g *gated) judge(_ context.Context, s *stage) (expected, error) {
	return expected{bound: s.pods + 2}, nil // and two markers
}
