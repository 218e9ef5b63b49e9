package source

import (
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	policyv1 "k8s.io/api/policy/v1"
)

// ReduceBudget reads of a PodDisruptionBudget what preemption reads. One whose selector is missing or cannot be parsed
// protects no pod.
func ReduceBudget(budget *policyv1.PodDisruptionBudget) *cluster.Budget {
	selector, err := reduceLabelSelector(budget.Spec.Selector)
	if err != nil {
		selector = cluster.LabelSelector{Nothing: true}
	}
	return &cluster.Budget{
		Namespace: budget.Namespace,
		Name:      budget.Name,
		Selector:  selector,
		Allowed:   budget.Status.DisruptionsAllowed,
		Disrupted: slices.Sorted(maps.Keys(budget.Status.DisruptedPods)),
	}
}
