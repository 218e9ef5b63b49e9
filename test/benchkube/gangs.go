package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

const (
	gangPods  = 8000 // in all
	gangSize  = 8
	rackSize  = 100 // nodes
	rackLabel = "benchkube.example.com/rack"
)

// gangs is PodGroups of eight pods each, that want to be placed together, or in one rack too.
type gangs struct{ racks bool }

func gangName(i int) string { return fmt.Sprintf("gang-%05d", i/gangSize) }

// ofGang makes a pod one of the gang that eight in a row are of.
func ofGang(pod *corev1.Pod, i int) {
	pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new(gangName(i))}
}

// inRack gives a node a rack.
func inRack(_ config, node *corev1.Node, i int) {
	node.Labels[rackLabel] = fmt.Sprintf("rack-%04d", i/rackSize)
}

func (g gangs) prepare(ctx context.Context, s *stage) error {
	groups := s.plane.Client().SchedulingV1alpha2().PodGroups(metav1.NamespaceDefault)
	err := kubetest.ForEach(ctx, (s.pods+gangSize-1)/gangSize, func(ctx context.Context, k int) error {
		i := k * gangSize
		group := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: gangName(i)}, Spec: schedulingv1alpha2.PodGroupSpec{
			SchedulingPolicy: schedulingv1alpha2.PodGroupSchedulingPolicy{Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: int32(min(gangSize, s.pods-i))}},
		}}
		if g.racks {
			group.Spec.SchedulingConstraints = &schedulingv1alpha2.PodGroupSchedulingConstraints{Topology: []schedulingv1alpha2.TopologyConstraint{{Key: rackLabel}}}
		}
		if _, err := groups.Create(ctx, group, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create PodGroup %s: %w", group.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.plane.CreatePods(ctx, s.pods, s.load.pod)
}

func (gangs) play(ctx context.Context, s *stage) error { return s.awaitBound(ctx, s.pods) }

// judge says which gangs are in several racks, if they are to be in one.
func (g gangs) judge(ctx context.Context, s *stage) (expected, error) {
	want := expected{bound: s.pods}
	if !g.racks || s.contender.blind {
		return want, nil
	}
	racks := make(map[string]string)
	for i := range s.nodes {
		node := s.load.node(i)
		racks[node.Name] = node.Labels[rackLabel]
	}
	pods, err := s.plane.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return want, fmt.Errorf("list pods: %w", err)
	}
	in := make(map[string]string)
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.SchedulingGroup == nil || p.Spec.NodeName == "" {
			continue
		}
		gang, rack := *p.Spec.SchedulingGroup.PodGroupName, racks[p.Spec.NodeName]
		if was, known := in[gang]; known && was != rack {
			want.problems = append(want.problems, fmt.Sprintf("%s is in %s and in %s", gang, was, rack))
		}
		in[gang] = rack
	}
	return want, nil
}
