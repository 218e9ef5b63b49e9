package manifest

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mergeLabelKeys adds to the selectors of pod affinity terms and spread constraints what their matchLabelKeys and
// mismatchLabelKeys say of the pod's own labels, as the API server does when it creates a pod. A pod with a uid comes from an
// API server, which has done it.
func mergeLabelKeys(pod *v1.Pod) {
	if pod.UID != "" {
		return
	}
	term := func(t *v1.PodAffinityTerm) {
		mergeKeys(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn, pod.Labels)
		mergeKeys(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn, pod.Labels)
	}
	terms := func(required []v1.PodAffinityTerm, preferred []v1.WeightedPodAffinityTerm) {
		for i := range required {
			term(&required[i])
		}
		for i := range preferred {
			term(&preferred[i].PodAffinityTerm)
		}
	}
	if affinity := pod.Spec.Affinity; affinity != nil {
		if a := affinity.PodAffinity; a != nil {
			terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a := affinity.PodAntiAffinity; a != nil {
			terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		mergeKeys(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn, pod.Labels)
	}
}

// mergeKeys adds a requirement for each key that is among the labels. No selector matches nothing, whatever is added.
func mergeKeys(selector *metav1.LabelSelector, keys []string, operator metav1.LabelSelectorOperator, labels map[string]string) {
	if selector == nil {
		return
	}
	for _, key := range keys {
		if value, ok := labels[key]; ok {
			selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: key, Operator: operator, Values: []string{value},
			})
		}
	}
}
