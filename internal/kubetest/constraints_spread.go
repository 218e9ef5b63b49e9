package kubetest

import (
	"maps"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// topologySpread checks that no more pods of a constraint are together than the emptiest domain and its maxSkew allow. When
// they were placed, that domain had at most the pods it has now. A constraint that matches everything is not checked:
// kube-scheduler counts nothing for it.
func (j *judge) topologySpread() {
	groups := j.grouped(func(pod *corev1.Pod) any {
		constraints := hardSpread(pod)
		if len(constraints) == 0 {
			return nil
		}
		var selectors []string // matchLabelKeys make them the pod's own
		for _, c := range constraints {
			selectors = append(selectors, spreadSelector(pod, c).String())
		}
		var affinity *corev1.NodeAffinity
		if pod.Spec.Affinity != nil {
			affinity = pod.Spec.Affinity.NodeAffinity
		}
		return []any{pod.Namespace, constraints, selectors, pod.Spec.NodeSelector, affinity, pod.Spec.Tolerations}
	})
	for _, group := range groups {
		for _, c := range hardSpread(group[0]) {
			j.spread(group, c)
		}
	}
}

// spread checks one constraint of the pods that have it.
func (j *judge) spread(group []*corev1.Pod, c corev1.TopologySpreadConstraint) {
	like := group[0]
	// 1. The domains: those of the nodes that count.
	counts := map[string]int{}
	eligible := map[string]bool{} // by node
	for name, node := range j.nodes {
		if countsFor(like, c, node) {
			eligible[name] = true
			counts[node.Labels[c.TopologyKey]] = 0
		}
	}
	// 2. How many pods each has.
	selector := spreadSelector(like, c)
	counted := func(pod *corev1.Pod) bool {
		return eligible[pod.Spec.NodeName] && pod.Namespace == like.Namespace && pod.DeletionTimestamp == nil &&
			!selector.Empty() && selector.Matches(labels.Set(pod.Labels))
	}
	for _, pod := range j.pods {
		if counted(pod) {
			value, _ := j.place(pod, c.TopologyKey)
			counts[value]++
		}
	}
	least, emptiest := 0, ""
	for i, value := range slices.Sorted(maps.Keys(counts)) {
		if i == 0 || counts[value] < least {
			least, emptiest = counts[value], value
		}
	}
	if c.MinDomains != nil && len(counts) < int(*c.MinDomains) {
		least, emptiest = 0, "no domain"
	}
	// 3. The pods that were placed by the constraint, against that.
	placed := map[string][]*corev1.Pod{}
	for _, pod := range group {
		if value, ok := j.place(pod, c.TopologyKey); !ok {
			j.report(RuleTopologySpread, pod, "its node has no label %s", c.TopologyKey)
		} else if counted(pod) {
			placed[value] = append(placed[value], pod)
		}
	}
	for _, value := range slices.Sorted(maps.Keys(placed)) {
		if n := len(placed[value]); n-least > int(c.MaxSkew) {
			j.report(RuleTopologySpread, placed[value][n-1], "%d such pods are in %s=%s and %d in %s, more than %d apart",
				n, c.TopologyKey, value, least, emptiest, c.MaxSkew)
		}
	}
}

// hardSpread returns the pod's constraints that forbid a placement.
func hardSpread(pod *corev1.Pod) []corev1.TopologySpreadConstraint {
	return slices.DeleteFunc(slices.Clone(pod.Spec.TopologySpreadConstraints), func(c corev1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable != corev1.DoNotSchedule
	})
}

// spreadSelector returns what a constraint of the pod counts.
func spreadSelector(pod *corev1.Pod, c corev1.TopologySpreadConstraint) labels.Selector {
	selector := selectorOf(c.LabelSelector)
	same := labels.Set{}
	for _, key := range c.MatchLabelKeys {
		if value, ok := pod.Labels[key]; ok {
			same[key] = value
		}
	}
	if requirements, ok := labels.SelectorFromSet(same).Requirements(); ok {
		selector = selector.Add(requirements...)
	}
	return selector
}

// countsFor reports whether a node belongs to the domains of a pod's constraint.
func countsFor(pod *corev1.Pod, c corev1.TopologySpreadConstraint, node *corev1.Node) bool {
	for _, other := range hardSpread(pod) {
		if _, ok := node.Labels[other.TopologyKey]; !ok {
			return false
		}
	}
	if c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor {
		if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
			return false
		}
	}
	if c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor {
		repels := func(t *corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
		}
		if _, untolerated := schedulinghelpers.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations, repels, false); untolerated {
			return false
		}
	}
	return true
}
