package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// restart is a scheduler that starts on a cluster with many bound pods, and has few to bind.
type restart struct{ bindAll }

// restartFigures is what a restart gave.
type restartFigures struct {
	bound int // pods that were bound before
}

func (r restart) prepare(ctx context.Context, s *stage) error {
	err := s.plane.CreatePods(ctx, s.boundPods, func(i int) *corev1.Pod {
		pod := kubetest.PlainPod(i)
		pod.Name = fmt.Sprintf("bound-%06d", i)
		pod.Spec.NodeName = s.load.node(i % s.nodes).Name
		return pod
	})
	if err != nil {
		return err
	}
	s.r.restart = &restartFigures{bound: s.boundPods}
	return r.bindAll.prepare(ctx, s)
}

func (r restart) judge(_ context.Context, s *stage) (expected, error) {
	return expected{bound: s.boundPods + s.pods}, nil
}
