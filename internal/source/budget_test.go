package source

import (
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestABudgetIsReducedToWhatPreemptionReads(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status: policyv1.PodDisruptionBudgetStatus{
			DisruptionsAllowed: 2, CurrentHealthy: 5, DisruptedPods: map[string]metav1.Time{"web-2": {}, "web-10": {}},
		},
	}
	want := &cluster.Budget{
		Namespace: "shop", Name: "web", Allowed: 2, Disrupted: []string{"web-10", "web-2"},
		Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}},
	}
	if diff := cmp.Diff(want, ReduceBudget(budget)); diff != "" {
		t.Errorf("reduced (-want +got):\n%s", diff)
	}
	unreadable := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
	for name, test := range map[string]struct {
		selector *metav1.LabelSelector
		want     cluster.LabelSelector
	}{
		"no selector":       {nil, cluster.LabelSelector{Nothing: true}},
		"one of everything": {&metav1.LabelSelector{}, cluster.LabelSelector{}},
		"an unreadable one": {unreadable, cluster.LabelSelector{Nothing: true}},
	} {
		budget.Spec.Selector = test.selector
		if diff := cmp.Diff(test.want, ReduceBudget(budget).Selector); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAPodIsReducedToWhatPreemptionReads(t *testing.T) {
	start := metav1.NewTime(time.Unix(1700000000, 0))
	evicted := v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler}
	with := func(change func(*v1.PodCondition)) *v1.Pod {
		condition := evicted
		change(&condition)
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &start},
			Status:     v1.PodStatus{StartTime: &start, Conditions: []v1.PodCondition{condition}},
		}
	}
	staying := with(func(*v1.PodCondition) {})
	staying.DeletionTimestamp = nil
	for name, test := range map[string]struct {
		pod  *v1.Pod
		want bool
	}{
		"preempted":                 {with(func(*v1.PodCondition) {}), true},
		"not deleted yet":           {staying, false},
		"disrupted by another":      {with(func(c *v1.PodCondition) { c.Reason = v1.PodReasonTerminationByKubelet }), false},
		"not disrupted":             {with(func(c *v1.PodCondition) { c.Status = v1.ConditionFalse }), false},
		"another type of condition": {with(func(c *v1.PodCondition) { c.Type = v1.PodReady }), false},
	} {
		got := ReducePod(test.pod)
		if got.Preempted != test.want || got.Started != start.UnixNano() || got.NeverPreempts {
			t.Errorf("%s: preempted %v, started %d, never preempts %v", name, got.Preempted, got.Started, got.NeverPreempts)
		}
	}
	for policy, want := range map[v1.PreemptionPolicy]bool{v1.PreemptNever: true, v1.PreemptLowerPriority: false} {
		if got := ReducePod(&v1.Pod{Spec: v1.PodSpec{PreemptionPolicy: &policy}}); got.NeverPreempts != want || got.Started != 0 {
			t.Errorf("policy %s: never preempts %v, started %d", policy, got.NeverPreempts, got.Started)
		}
	}
}
