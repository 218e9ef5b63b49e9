package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// preemption is pods of high priority on a cluster that is full of pods of lower ones.
type preemption struct {
	kubelet *kubetest.Kubelet
	low     int // pods that were there before
}

// preemptionFigures is what preemption gave.
type preemptionFigures struct{ kubetest.PreemptionReport }

const (
	highPriority      = "high"
	lowPriorities     = 3 // low-0, low-1 and low-2
	protectedEvery    = 5 // one of so many nodes has only protected pods; on the others, the first CPU is theirs
	protectedLabel    = "protected"
	preemptorMaxCPU   = 2 // preemptors request 1 CPU and this many in turn
	priorityStep      = 100
	highPriorityValue = 1000 * priorityStep
)

// stopTime is how long a kubelet takes to stop a pod. With none at all, kube-scheduler 1.36 can miss that its last victim is
// gone, and then leaves the preemptor waiting beside its room.
const stopTime = time.Second

func lowPriority(i int) string { return fmt.Sprintf("low-%d", i%lowPriorities) }

// fillers returns pods that are bound to node i and leave no CPU free. On every other node, every other CPU is shared by two.
// Priorities are mixed on each node. What is requested makes a node full again, whichever pods of it give way to preemptors.
func (l load) fillers(i int) []*corev1.Pod {
	var pods []*corev1.Pod
	for unit := range int(l.nodeCPU) {
		requests := []string{"1"}
		if i%2 == 1 && unit%2 == 1 {
			requests = []string{"500m", "500m"}
		}
		for half, request := range requests {
			pod := kubetest.PlainPod(i)
			pod.Name = fmt.Sprintf("low-%05d-%02d-%d", i, unit, half)
			pod.Spec.NodeName = l.node(i).Name
			pod.Spec.PriorityClassName = lowPriority(i/2 + unit)
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(request), corev1.ResourceMemory: resource.MustParse("64Mi"),
			}
			if unit == 0 || i%protectedEvery == 0 {
				pod.Labels[protectedLabel] = "true"
			}
			pods = append(pods, pod)
		}
	}
	return pods
}

// preemptor returns the pod number i of those that need others' room.
func (l load) preemptor(i int) *corev1.Pod {
	pod := kubetest.PlainPod(i)
	pod.Name = fmt.Sprintf("high-%06d", i)
	pod.Labels = map[string]string{"app": highPriority}
	pod.Spec.PriorityClassName = highPriority
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *resource.NewQuantity(1+int64(i%preemptorMaxCPU), resource.DecimalSI)
	return pod
}

func isPreemptor(pod *corev1.Pod) bool { return pod.Labels["app"] == highPriority }

// preemptionRoom is how many preemptors surely find room without a pod that is protected: as many as the largest, whatever
// has gone to the nodes before.
func preemptionRoom(nodes, nodeCPU int) int {
	open := nodes - (nodes+protectedEvery-1)/protectedEvery
	return open * max(0, (nodeCPU-1)/preemptorMaxCPU)
}

func (p *preemption) prepare(ctx context.Context, s *stage) error {
	client := s.plane.Client()
	classes := []*schedulingv1.PriorityClass{{ObjectMeta: metav1.ObjectMeta{Name: highPriority}, Value: highPriorityValue}}
	for i := range lowPriorities {
		classes = append(classes, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: lowPriority(i)}, Value: int32(priorityStep * (1 + i))})
	}
	for _, class := range classes {
		if _, err := client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create priority class %s: %w", class.Name, err)
		}
	}
	// No controller says how many disruptions it allows, so it allows none.
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: protectedLabel},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{protectedLabel: "true"}}},
	}
	if _, err := client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceDefault).Create(ctx, budget, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create budget: %w", err)
	}
	var low []*corev1.Pod
	for i := range s.nodes {
		low = append(low, s.load.fillers(i)...)
	}
	p.low = len(low)
	if err := s.plane.CreatePods(ctx, len(low), func(i int) *corev1.Pod { return low[i] }); err != nil {
		return err
	}
	var err error
	if p.kubelet, err = kubetest.PlayKubelets(ctx, s.plane.Kubeconfig(), stopTime, nil); err != nil {
		return err
	}
	s.atEnd(func() { _ = p.kubelet.Stop() }) // judge asks for its error
	return s.plane.CreatePods(ctx, s.pods, s.load.preemptor)
}

func (p *preemption) play(ctx context.Context, s *stage) error { return s.awaitBound(ctx, s.pods) }

func (p *preemption) judge(ctx context.Context, s *stage) (expected, error) {
	if err := p.kubelet.Stop(); err != nil {
		return expected{}, err
	}
	victims := p.kubelet.Evicted()
	report, err := kubetest.CheckPreemption(ctx, s.plane.Kubeconfig(), victims, isPreemptor)
	if err != nil {
		return expected{}, err
	}
	s.r.preemption = &preemptionFigures{report}
	return expected{bound: p.low - len(victims) + s.pods, problems: report.Problems()}, nil
}
