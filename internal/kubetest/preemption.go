package kubetest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
)

// PreemptionReport is what the API server says about the pods that had to go for others. Lists are in the order in which the
// victims went.
type PreemptionReport struct {
	Victims    int
	Priorities map[int32]int // victims by priority

	Protected   []Protected // victims that a budget protects
	Needless    []Placement // victims that would still fit on their node, beside what is there now
	Unjustified []Placement // victims on whose node is no preemptor of a higher priority
	Unmarked    []Placement // victims that were not told why: without the condition DisruptionTarget of a preemption
}

// Protected is a victim that a PodDisruptionBudget protects.
type Protected struct {
	Placement
	Budget string
}

// Problems returns a sentence for each thing in the report that kube-scheduler does only if it cannot do better, or never.
func (r PreemptionReport) Problems() []string {
	var problems []string
	for _, p := range r.Protected {
		problems = append(problems, fmt.Sprintf("pod %s: evicted from %s, but budget %s protects it", p.Pod, p.Node, p.Budget))
	}
	for _, p := range r.Needless {
		problems = append(problems, fmt.Sprintf("pod %s: evicted from %s, where it still fits", p.Pod, p.Node))
	}
	for _, p := range r.Unjustified {
		problems = append(problems, fmt.Sprintf("pod %s: evicted from %s, where no preemptor of a higher priority is", p.Pod, p.Node))
	}
	for _, p := range r.Unmarked {
		problems = append(problems, fmt.Sprintf("pod %s: evicted from %s without the condition DisruptionTarget", p.Pod, p.Node))
	}
	return problems
}

// CheckPreemption reads the nodes, pods and budgets of the cluster and judges whether the victims, as they were when they were
// told to go, had to. It makes sense when nothing is being bound or evicted, if no victim would have gone anyway, if each
// preemptor is still where it was bound, and if budgets that allow no disruption never did: others are not judged, since
// nobody counts down what they allow.
func CheckPreemption(ctx context.Context, kubeconfig string, victims []*corev1.Pod, preemptor func(*corev1.Pod) bool) (PreemptionReport, error) {
	client, err := NewClient(kubeconfig)
	if err != nil {
		return PreemptionReport{}, fmt.Errorf("check preemption: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return PreemptionReport{}, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return PreemptionReport{}, fmt.Errorf("list pods: %w", err)
	}
	budgets, err := client.PolicyV1().PodDisruptionBudgets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return PreemptionReport{}, fmt.Errorf("list budgets: %w", err)
	}
	return checkPreemption(objects{nodes: nodes.Items, pods: pods.Items}, budgets.Items, victims, preemptor), nil
}

// checkPreemption judges the victims by the objects that are left.
func checkPreemption(o objects, budgets []policyv1.PodDisruptionBudget, victims []*corev1.Pod, preemptor func(*corev1.Pod) bool) PreemptionReport {
	loads, highest := map[string]*load{}, map[string]int32{} // highest: the preemptors' priority, by node
	for i := range o.nodes {
		loads[o.nodes[i].Name] = &load{allocatable: o.nodes[i].Status.Allocatable, requested: corev1.ResourceList{}}
	}
	for i := range o.pods {
		pod := &o.pods[i]
		if loads[pod.Spec.NodeName] == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		loads[pod.Spec.NodeName].add(pod)
		if !preemptor(pod) {
			continue
		}
		priority := schedulinghelpers.PodPriority(pod)
		if most, ok := highest[pod.Spec.NodeName]; !ok || priority > most {
			highest[pod.Spec.NodeName] = priority
		}
	}
	r := PreemptionReport{Victims: len(victims), Priorities: map[int32]int{}}
	for _, victim := range victims {
		at, priority := Placement{nameOf(victim), victim.Spec.NodeName}, schedulinghelpers.PodPriority(victim)
		r.Priorities[priority]++
		for i := range budgets {
			if protects(&budgets[i], victim) {
				r.Protected = append(r.Protected, Protected{at, budgets[i].Name})
				break
			}
		}
		if most, ok := highest[at.Node]; !ok || most <= priority {
			r.Unjustified = append(r.Unjustified, at)
		} else if loads[at.Node].fits(victim) {
			r.Needless = append(r.Needless, at)
		}
		if !slices.ContainsFunc(victim.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		}) {
			r.Unmarked = append(r.Unmarked, at)
		}
	}
	return r
}

// fits reports whether a node with this load has room for one more pod.
func (l *load) fits(pod *corev1.Pod) bool {
	with := &load{allocatable: l.allocatable, requested: maps.Clone(l.requested)}
	with.add(pod)
	return len(with.overcommits("")) == 0
}

// protects reports whether the budget allows no disruption of the pod. One without a selector, or with one that selects
// everything, protects nothing in the eyes of a scheduler.
func protects(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	selector := selectorOf(b.Spec.Selector)
	_, counted := b.Status.DisruptedPods[pod.Name]
	return b.Namespace == pod.Namespace && b.Status.DisruptionsAllowed <= 0 && !counted && !selector.Empty() && selector.Matches(labels.Set(pod.Labels))
}
