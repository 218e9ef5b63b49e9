package oracle

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// Few keys and values, so that what selects and what is selected often meet.
const (
	zoneKey   = v1.LabelTopologyZone
	rackKey   = "rack"
	serialKey = "serial" // each node that has it has a value of its own
)

var (
	podLabels = map[string][]string{"app": {"a", "b", "c"}, "tier": {"x", "y", ""}, "version": {"1", "2"}}
	// topologyKeys are those of constraints; "zone" is a label with odd values, and no node has the last.
	topologyKeys = []string{zoneKey, v1.LabelHostname, rackKey, "zone", serialKey, "never-seen"}
	// topologyValues are the values of the node labels that only topologies use.
	topologyValues  = map[string][]string{zoneKey: {"za", "zb", "zc", ""}, rackKey: {"r0", "r1", "r2", "r3"}}
	namespaceLabels = map[string][]string{"env": {"prod", "dev"}, "team": {"a", ""}}
	// namespaceNames are those of pods and terms. The first is there from the start, and the last never is.
	namespaceNames = []string{"default", "team", "dev", "nowhere"}
)

// keyOf draws a key that is mostly one of the first.
func keyOf(t *rapid.T, what string, keys []string) string {
	if oneIn(t, 3, "another "+what) {
		return rapid.SampledFrom(keys).Draw(t, what)
	}
	return rapid.SampledFrom(keys[:2]).Draw(t, what)
}

// drawLabels draws labels of some keys with their values; each key is missing about once in so many times.
func drawLabels(t *rapid.T, of map[string][]string, missing int) map[string]string {
	var out map[string]string
	for _, key := range sortedKeys(of) {
		if oneIn(t, missing, "no label "+key) {
			continue
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[key] = rapid.SampledFrom(of[key]).Draw(t, key)
	}
	return out
}

// drawSelector draws a label selector: none, one that matches everything, and ones of every operator.
func drawSelector(t *rapid.T, of map[string][]string) *metav1.LabelSelector {
	keys := sortedKeys(of)
	switch rapid.IntRange(0, 11).Draw(t, "selector") {
	case 11:
		return nil
	case 10:
		return &metav1.LabelSelector{}
	case 9:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{drawRequirement(t, of, keys), drawRequirement(t, of, keys)}}
	case 8: // a selector that says only what is not
		r := metav1.LabelSelectorRequirement{Key: rapid.SampledFrom(keys).Draw(t, "key"), Operator: metav1.LabelSelectorOpDoesNotExist}
		if rapid.Bool().Draw(t, "not in") {
			r.Operator, r.Values = metav1.LabelSelectorOpNotIn, []string{rapid.SampledFrom(of[r.Key]).Draw(t, "value")}
		}
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}}
	case 6, 7:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{drawRequirement(t, of, keys)}}
	case 5:
		s := &metav1.LabelSelector{MatchLabels: drawMatch(t, of, keys)}
		s.MatchExpressions = append(s.MatchExpressions, drawRequirement(t, of, keys))
		return s
	}
	return &metav1.LabelSelector{MatchLabels: drawMatch(t, of, keys)}
}

func drawMatch(t *rapid.T, of map[string][]string, keys []string) map[string]string {
	key := keys[0]
	if oneIn(t, 3, "another key") {
		key = rapid.SampledFrom(keys).Draw(t, "key")
	}
	return map[string]string{key: rapid.SampledFrom(of[key]).Draw(t, "value")}
}

func drawRequirement(t *rapid.T, of map[string][]string, keys []string) metav1.LabelSelectorRequirement {
	r := metav1.LabelSelectorRequirement{
		Key: rapid.SampledFrom(keys).Draw(t, "key"),
		Operator: pick(t, "operator", metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists,
			metav1.LabelSelectorOpDoesNotExist),
	}
	if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
		for range rapid.IntRange(1, 2).Draw(t, "values") {
			r.Values = append(r.Values, rapid.SampledFrom(of[r.Key]).Draw(t, "value"))
		}
	}
	return r
}

// drawPodTerm draws a pod affinity term. matchLabelKeys and mismatchLabelKeys are for the API server, which writes
// them into the selector: that they stand there unmerged must change nothing.
func drawPodTerm(t *rapid.T) v1.PodAffinityTerm {
	term := v1.PodAffinityTerm{TopologyKey: keyOf(t, "topology key", topologyKeys), LabelSelector: drawSelector(t, podLabels)}
	if oneIn(t, 4, "namespaces") {
		for range rapid.IntRange(1, 2).Draw(t, "namespaces") {
			term.Namespaces = append(term.Namespaces, rapid.SampledFrom(namespaceNames).Draw(t, "namespace"))
		}
	}
	if oneIn(t, 3, "namespace selector") {
		term.NamespaceSelector = drawSelector(t, namespaceLabels)
	}
	if oneIn(t, 12, "match label keys") {
		term.MatchLabelKeys, term.MismatchLabelKeys = []string{"app"}, []string{"tier"}
	}
	return term
}

func drawPodTerms(t *rapid.T) []v1.PodAffinityTerm {
	terms := []v1.PodAffinityTerm{drawPodTerm(t)}
	if oneIn(t, 4, "another term") {
		terms = append(terms, drawPodTerm(t))
	}
	return terms
}

func drawWeightedTerms(t *rapid.T) []v1.WeightedPodAffinityTerm {
	var out []v1.WeightedPodAffinityTerm
	for range rapid.IntRange(1, 2).Draw(t, "preferred terms") {
		out = append(out, v1.WeightedPodAffinityTerm{Weight: pick[int32](t, "weight", 1, 30, 100, 7), PodAffinityTerm: drawPodTerm(t)})
	}
	return out
}

// drawPodAffinity draws inter-pod affinity and anti-affinity, often none.
func drawPodAffinity(t *rapid.T, a *v1.Affinity) {
	if oneIn(t, 4, "pod affinity") {
		a.PodAffinity = &v1.PodAffinity{}
		if oneIn(t, 3, "required") {
			a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = drawPodTerms(t)
		}
		if oneIn(t, 2, "preferred") {
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = drawWeightedTerms(t)
		}
	}
	if oneIn(t, 4, "pod anti-affinity") {
		a.PodAntiAffinity = &v1.PodAntiAffinity{}
		if oneIn(t, 2, "required") {
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = drawPodTerms(t)
		}
		if oneIn(t, 2, "preferred") {
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = drawWeightedTerms(t)
		}
	}
}

// drawSpread draws up to three constraints, no two of the same key and action: the API server refuses those.
func drawSpread(t *rapid.T) []v1.TopologySpreadConstraint {
	var out []v1.TopologySpreadConstraint
	for range pick(t, "constraints", 1, 2, 1, 3) {
		c := v1.TopologySpreadConstraint{
			TopologyKey: keyOf(t, "topology key", topologyKeys), MaxSkew: rapid.Int32Range(1, 3).Draw(t, "max skew"),
			WhenUnsatisfiable: pick(t, "if not", v1.ScheduleAnyway, v1.DoNotSchedule), LabelSelector: drawSelector(t, podLabels),
		}
		if c.WhenUnsatisfiable == v1.DoNotSchedule && oneIn(t, 4, "domains") {
			c.MinDomains = ptr.To(rapid.Int32Range(1, 5).Draw(t, "domains"))
		}
		drawPolicies(t, &c)
		if oneIn(t, 4, "match label keys") && c.LabelSelector != nil {
			c.MatchLabelKeys = []string{pick(t, "key", "version", "tier", "never-seen")}
		}
		if !slices.ContainsFunc(out, func(o v1.TopologySpreadConstraint) bool {
			return o.TopologyKey == c.TopologyKey && o.WhenUnsatisfiable == c.WhenUnsatisfiable
		}) {
			out = append(out, c)
		}
	}
	return out
}

// drawPolicies draws which nodes count.
func drawPolicies(t *rapid.T, c *v1.TopologySpreadConstraint) {
	if oneIn(t, 4, "affinity policy") {
		c.NodeAffinityPolicy = ptr.To(pick(t, "affinity policy", v1.NodeInclusionPolicyIgnore, v1.NodeInclusionPolicyHonor))
	}
	if oneIn(t, 4, "taints policy") {
		c.NodeTaintsPolicy = ptr.To(pick(t, "taints policy", v1.NodeInclusionPolicyHonor, v1.NodeInclusionPolicyIgnore))
	}
}

// drawDefaultConstraints draws constraints for pods that have none. They have no selectors.
func drawDefaultConstraints(t *rapid.T) []v1.TopologySpreadConstraint {
	if oneIn(t, 6, "none") {
		return nil
	}
	out := drawSpread(t)
	for i := range out {
		out[i].LabelSelector = nil
	}
	return out
}
