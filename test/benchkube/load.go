package main

import (
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// maxClasses is the number of combinations of what pods request.
const maxClasses = 16

// load is the objects of a run: the seeded choice of which pod is of which class. It is the same for every contender, but that cards are counted by a device plugin for one.
type load struct {
	workload
	config       config
	nodeCPU      int64
	classOf      []int // by pod
	devicePlugin bool
}

func newLoad(cfg config, w workload) load {
	random := rand.New(rand.NewPCG(cfg.seed, 0))
	l := load{workload: w, config: cfg, nodeCPU: int64(cfg.nodeCPU), classOf: make([]int, cfg.pods)}
	for i := range l.classOf {
		l.classOf[i] = random.IntN(cfg.classes)
	}
	return l
}

func (l load) node(i int) *corev1.Node {
	node := kubetest.PlainNode(i)
	cpu := *resource.NewQuantity(l.nodeCPU, resource.DecimalSI)
	node.Status.Capacity[corev1.ResourceCPU], node.Status.Allocatable[corev1.ResourceCPU] = cpu, cpu
	if l.shapeNode != nil {
		l.shapeNode(node)
	}
	if l.shapeNodeOf != nil {
		l.shapeNodeOf(l.config, node, i)
	}
	if l.devicePlugin {
		countByDevicePlugin(node, len(l.cards(l.config, node.Name, i)))
	}
	return node
}

func (l load) pod(i int) *corev1.Pod {
	pod := kubetest.PlainPod(i)
	if l.shape != nil {
		l.shape(pod, i)
		return pod
	}
	if l.shapeOf != nil {
		l.shapeOf(l.config, pod, i, l.classOf[i])
		if l.devicePlugin {
			askDevicePlugin(pod)
		}
		return pod
	}
	class := l.classOf[i]
	cpu := []string{"100m", "250m", "500m", "1"}[class%4]
	memory := []string{"500Mi", "1Gi", "2Gi", "4Gi"}[class/4]
	requests := pod.Spec.Containers[0].Resources.Requests
	requests[corev1.ResourceCPU], requests[corev1.ResourceMemory] = resource.MustParse(cpu), resource.MustParse(memory)
	return pod
}
