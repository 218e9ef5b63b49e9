package source

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reduceLabelSelector returns the selector in a form in which selectors of equal conditions are equal. No selector at all
// matches nothing. The error is kube-scheduler's, and the same every time.
func reduceLabelSelector(selector *metav1.LabelSelector) (cluster.LabelSelector, error) {
	if selector == nil {
		return cluster.LabelSelector{Nothing: true}, nil
	}
	expressions := make([]metav1.LabelSelectorRequirement, 0, len(selector.MatchLabels)+len(selector.MatchExpressions))
	for _, key := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		expressions = append(expressions, metav1.LabelSelectorRequirement{
			Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{selector.MatchLabels[key]},
		})
	}
	expressions = append(expressions, selector.MatchExpressions...)
	if _, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: expressions}); err != nil {
		return cluster.LabelSelector{}, err
	}
	var requirements []cluster.Requirement
	for _, e := range expressions {
		requirements = append(requirements, cluster.Requirement{Key: e.Key, Operator: string(e.Operator), Values: slices.Clone(e.Values)})
	}
	return cluster.LabelSelector{Requirements: ordered(requirements)}, nil
}

// equalTo returns the selector of all that has these labels.
func equalTo(labels map[string]string) cluster.LabelSelector {
	return cluster.LabelSelector{Requirements: equalities(labels)}
}

// equalities returns the requirements that each of the labels is there, by key.
func equalities(labels map[string]string) []cluster.Requirement {
	var out []cluster.Requirement
	for _, l := range sortedLabels(labels) {
		out = append(out, cluster.Requirement{Key: l.Key, Operator: string(metav1.LabelSelectorOpIn), Values: []string{l.Value}})
	}
	return out
}

// ordered sorts requirements, and the values of each, and drops what says the same again.
func ordered(requirements []cluster.Requirement) []cluster.Requirement {
	for i := range requirements {
		values := requirements[i].Values
		slices.Sort(values)
		if requirements[i].Values = slices.Compact(values); len(values) == 0 {
			requirements[i].Values = nil
		}
	}
	compare := func(a, b cluster.Requirement) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
	}
	slices.SortFunc(requirements, compare)
	return slices.CompactFunc(requirements, func(a, b cluster.Requirement) bool { return compare(a, b) == 0 })
}
