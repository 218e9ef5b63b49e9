package main

import (
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// maxClasses is the number of combinations of what pods request.
const maxClasses = 16

// workload is the seeded choice of nodes and pods: the same for every contender.
type workload struct {
	nodeCPU int64
	classOf []int // by pod
}

func newWorkload(cfg config) workload {
	random := rand.New(rand.NewPCG(cfg.seed, 0))
	w := workload{nodeCPU: int64(cfg.nodeCPU), classOf: make([]int, cfg.pods)}
	for i := range w.classOf {
		w.classOf[i] = random.IntN(cfg.classes)
	}
	return w
}

func (w workload) node(i int) *corev1.Node {
	node := kubetest.PlainNode(i)
	cpu := *resource.NewQuantity(w.nodeCPU, resource.DecimalSI)
	node.Status.Capacity[corev1.ResourceCPU], node.Status.Allocatable[corev1.ResourceCPU] = cpu, cpu
	return node
}

func (w workload) pod(i int) *corev1.Pod {
	class := w.classOf[i]
	cpu := []string{"100m", "250m", "500m", "1"}[class%4]
	memory := []string{"500Mi", "1Gi", "2Gi", "4Gi"}[class/4]
	pod := kubetest.PlainPod(i)
	requests := pod.Spec.Containers[0].Resources.Requests
	requests[corev1.ResourceCPU], requests[corev1.ResourceMemory] = resource.MustParse(cpu), resource.MustParse(memory)
	return pod
}
