package kubetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func cpu(request string) change {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(request)
	}
}

func priority(p int32) change {
	return func(pod *corev1.Pod) { pod.Spec.Priority = &p }
}

// marked gives a pod the condition that tells it that it has to go for another.
func marked(pod *corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler}}
}

// isGreen is the preemptor of these tests.
func isGreen(pod *corev1.Pod) bool { return pod.Labels["color"] == "green" }

// preemptions judges nodes 0 and 1, of 4 CPUs, with pods and what had to go.
func preemptions(pods, victims []corev1.Pod, budgets ...policyv1.PodDisruptionBudget) PreemptionReport {
	var gone []*corev1.Pod
	for i := range victims {
		gone = append(gone, &victims[i])
	}
	return checkPreemption(objects{nodes: []corev1.Node{*PlainNode(0), *PlainNode(1)}, pods: pods}, budgets, gone, isGreen)
}

func TestVictimsThatHadToGoAreNoProblem(t *testing.T) {
	r := preemptions(
		[]corev1.Pod{placed(0, "node-00000", all(cpu("2"), priority(10))), placed(1, "node-00000", all(cpu("2"), color("green"), priority(100)))},
		[]corev1.Pod{placed(2, "node-00000", all(cpu("1"), priority(10), marked)), placed(3, "node-00000", all(cpu("1"), priority(5), marked))})
	if diff := cmp.Diff(PreemptionReport{Victims: 2, Priorities: map[int32]int{5: 1, 10: 1}}, r); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestVictimThatStillFitsIsNeedless(t *testing.T) {
	preemptor := placed(1, "node-00000", all(cpu("2"), color("green"), priority(100)))
	r := preemptions(
		[]corev1.Pod{placed(0, "node-00000", all(cpu("1"), priority(10))), preemptor},
		[]corev1.Pod{placed(2, "node-00000", all(cpu("1"), marked)), placed(3, "node-00000", all(cpu("1500m"), marked))})
	if diff := cmp.Diff([]Placement{{named(2), "node-00000"}}, r.Needless); diff != "" {
		t.Errorf("needless (-want +got):\n%s", diff)
	}
	ended := placed(4, "node-00000", func(pod *corev1.Pod) {
		cpu("2")(pod)
		pod.Status.Phase = corev1.PodSucceeded
	})
	if r = preemptions([]corev1.Pod{preemptor, ended}, []corev1.Pod{placed(2, "node-00000", all(cpu("1"), marked))}); len(r.Needless) != 1 {
		t.Errorf("a victim with the room of a pod that has ended: %+v, want one that still fits", r)
	}
}

func TestVictimNeedsAPreemptorOfHigherPriorityOnItsNode(t *testing.T) {
	preemptor := placed(1, "node-00000", all(cpu("4"), color("green"), priority(100)))
	full := placed(4, "node-00001", all(cpu("4"), priority(1000)))
	r := preemptions([]corev1.Pod{preemptor, full}, []corev1.Pod{
		placed(2, "node-00000", all(cpu("1"), priority(99), marked)),
		placed(3, "node-00000", all(cpu("1"), priority(100), marked)),
		placed(5, "node-00001", all(cpu("1"), marked)), // full is no preemptor
		placed(6, "gone", all(cpu("1"), marked)),
	})
	want := []Placement{{named(3), "node-00000"}, {named(5), "node-00001"}, {named(6), "gone"}}
	if diff := cmp.Diff(want, r.Unjustified); diff != "" {
		t.Errorf("unjustified (-want +got):\n%s", diff)
	}
}

func TestVictimsOfABudgetThatAllowsNothingAreProtected(t *testing.T) {
	budget := func(name, namespace string, selector *metav1.LabelSelector, allowed int32) policyv1.PodDisruptionBudget {
		return policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
		}
	}
	preemptor := placed(1, "node-00000", all(cpu("4"), color("green"), priority(100)))
	victims := []corev1.Pod{placed(2, "node-00000", all(color("blue"), marked)), placed(3, "node-00000", all(color("red"), marked))}
	for name, tt := range map[string]struct {
		budget policyv1.PodDisruptionBudget
		want   []Protected
	}{
		"one of them":       {budget("b", "default", colored("blue"), 0), []Protected{{Placement{named(2), "node-00000"}, "b"}}},
		"another namespace": {budget("b", "other", colored("blue"), 0), nil},
		"one may go":        {budget("b", "default", colored("blue"), 1), nil},
		"no selector":       {budget("b", "default", nil, 0), nil},
		"empty selector":    {budget("b", "default", &metav1.LabelSelector{}, 0), nil},
	} {
		r := preemptions([]corev1.Pod{preemptor}, victims, tt.budget)
		if diff := cmp.Diff(tt.want, r.Protected); diff != "" {
			t.Errorf("%s: protected (-want +got):\n%s", name, diff)
		}
	}
}

func TestVictimThatWasNotToldWhyIsUnmarked(t *testing.T) {
	eviction := func(pod *corev1.Pod) {
		marked(pod)
		pod.Status.Conditions[0].Reason = "EvictionByEvictionAPI"
	}
	r := preemptions(
		[]corev1.Pod{placed(1, "node-00000", all(cpu("4"), color("green"), priority(100)))},
		[]corev1.Pod{placed(2, "node-00000", marked), placed(3, "node-00000", nil), placed(4, "node-00000", eviction)})
	if diff := cmp.Diff([]Placement{{named(3), "node-00000"}, {named(4), "node-00000"}}, r.Unmarked); diff != "" {
		t.Errorf("unmarked (-want +got):\n%s", diff)
	}
	want := []string{
		"pod default/pod-000003: evicted from node-00000 without the condition DisruptionTarget",
		"pod default/pod-000004: evicted from node-00000 without the condition DisruptionTarget",
	}
	if diff := cmp.Diff(want, r.Problems()); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}
