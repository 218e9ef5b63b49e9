package rules

import (
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// What strangers can have the gateway keep ends at a limit, and so does what a role that is not its own any more can reach.
func TestManifestsConfineTheRoles(t *testing.T) {
	var outgoing []labels.Selector
	for _, o := range objects(t) {
		if policy, ok := o.(*networkingv1.NetworkPolicy); ok && slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
			selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
			if err != nil {
				t.Fatal(err)
			}
			outgoing = append(outgoing, selector)
			for _, rule := range policy.Spec.Egress {
				if len(rule.To) == 0 && len(rule.Ports) == 0 {
					t.Errorf("policy %s lets anything out", policy.Name)
				}
			}
		}
	}
	limited := false
	for _, w := range workloads(t) {
		if !slices.ContainsFunc(outgoing, func(s labels.Selector) bool { return s.Matches(labels.Set(w.template.Labels)) }) {
			t.Errorf("%s: no policy says what it may reach", w.name)
		}
		for _, c := range w.template.Spec.Containers {
			if w.name == "gateway" && !c.Resources.Limits.Memory().IsZero() {
				limited = true
			}
		}
	}
	if !limited {
		t.Error("the gateway has no limit of memory")
	}
}
