package kubetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Rule is a kind of required constraint of a pod.
type Rule string

// The rules that Check knows, besides those about what nodes have room for.
const (
	RuleNodeAffinity    Rule = "node affinity"
	RulePodAffinity     Rule = "pod affinity"
	RulePodAntiAffinity Rule = "pod anti-affinity"
	RuleTopologySpread  Rule = "topology spread"
)

// Violation is a pod that is where one of its required constraints forbids it to be.
type Violation struct {
	Rule Rule
	Placement
	Why string
}

// judge finds required constraints that are broken. It judges the final state as the outcome of placing one pod after the
// other on nodes that stay as they are. What it finds was broken then: it finds nothing wrong in a state that some order of
// placements explains, as far as that is decided by pods with the same constraints.
type judge struct {
	nodes      map[string]*corev1.Node
	namespaces map[string]labels.Set // by name, their labels
	pods       []*corev1.Pod         // those that are on one of the nodes and have not ended, by name
	found      []Violation
}

// violations judges pods that are on nodes, in the order of their names.
func violations(nodes map[string]*corev1.Node, pods []*corev1.Pod, namespaces []corev1.Namespace) []Violation {
	j := &judge{nodes: nodes, namespaces: map[string]labels.Set{}, pods: pods}
	for i := range namespaces {
		j.namespaces[namespaces[i].Name] = namespaces[i].Labels
	}
	j.nodeAffinity()
	j.podAntiAffinity()
	j.podAffinity()
	j.topologySpread()
	return j.found
}

func (j *judge) report(rule Rule, pod *corev1.Pod, format string, args ...any) {
	j.found = append(j.found, Violation{rule, Placement{nameOf(pod), pod.Spec.NodeName}, fmt.Sprintf(format, args...)})
}

// place returns the value of a label of the node that the pod is on.
func (j *judge) place(pod *corev1.Pod, key string) (value string, ok bool) {
	value, ok = j.nodes[pod.Spec.NodeName].Labels[key]
	return value, ok
}

// nodeAffinity checks spec.nodeSelector and the required node affinity.
func (j *judge) nodeAffinity() {
	for _, pod := range j.pods {
		if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(j.nodes[pod.Spec.NodeName]); err != nil || !ok {
			j.report(RuleNodeAffinity, pod, "its required node affinity or node selector does not match the node")
		}
	}
}

// podTerm is a required term of pod affinity or anti-affinity.
type podTerm struct {
	key        string
	namespaces []string
	others     labels.Selector // of further namespaces
	selector   labels.Selector
}

// podTerms parses terms of a pod of the namespace. One without namespaces is about its own.
func podTerms(namespace string, terms []corev1.PodAffinityTerm) []podTerm {
	var out []podTerm
	for _, t := range terms {
		p := podTerm{t.TopologyKey, t.Namespaces, selectorOf(t.NamespaceSelector), selectorOf(t.LabelSelector)}
		if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
			p.namespaces = []string{namespace}
		}
		out = append(out, p)
	}
	return out
}

// selectorOf parses a selector. None, and one that the API server would not have let in, matches nothing.
func selectorOf(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

func (j *judge) matches(t podTerm, pod *corev1.Pod) bool {
	if !slices.Contains(t.namespaces, pod.Namespace) && !t.others.Matches(j.namespaces[pod.Namespace]) {
		return false
	}
	return t.selector.Matches(labels.Set(pod.Labels))
}

// grouped returns the pods that have the same constraints together: those of which identity returns the same. Those of which
// it returns nil are left out.
func (j *judge) grouped(identity func(*corev1.Pod) any) [][]*corev1.Pod {
	var groups [][]*corev1.Pod
	byIdentity := map[string]int{}
	for _, pod := range j.pods {
		id := identity(pod)
		if id == nil {
			continue
		}
		text, err := json.Marshal(id)
		if err != nil { // objects that came as JSON or protobuf have one
			text = []byte(nameOf(pod).String())
		}
		k, ok := byIdentity[string(text)]
		if !ok {
			k = len(groups)
			byIdentity[string(text)] = k
			groups = append(groups, nil)
		}
		groups[k] = append(groups[k], pod)
	}
	return groups
}

// podAntiAffinity checks each pod's terms against all other pods, whichever was placed first: neither may be where the
// other does not want it.
func (j *judge) podAntiAffinity() {
	required := func(pod *corev1.Pod) []corev1.PodAffinityTerm {
		if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
			return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		}
		return nil
	}
	for _, group := range j.grouped(termsOf(required)) {
		for _, t := range podTerms(group[0].Namespace, required(group[0])) {
			matching := map[string][]*corev1.Pod{} // by place, two of them: one is not the pod itself
			for _, pod := range j.pods {
				if value, ok := j.place(pod, t.key); ok && len(matching[value]) < 2 && j.matches(t, pod) {
					matching[value] = append(matching[value], pod)
				}
			}
			for _, pod := range group {
				value, ok := j.place(pod, t.key)
				if !ok {
					continue // such a node is near no other
				}
				for _, other := range matching[value] {
					if other != pod {
						j.report(RulePodAntiAffinity, pod, "%s is in %s=%s too, on node %s", nameOf(other), t.key, value, other.Spec.NodeName)
						break
					}
				}
			}
		}
	}
}

// termsOf identifies pods by namespace and terms; nil if there are none.
func termsOf(terms func(*corev1.Pod) []corev1.PodAffinityTerm) func(*corev1.Pod) any {
	return func(pod *corev1.Pod) any {
		if len(terms(pod)) == 0 {
			return nil
		}
		return []any{pod.Namespace, terms(pod)}
	}
}

// domain is what is known of one value of a topology key.
type domain struct {
	members []*corev1.Pod // of the group, that its terms match themselves
	guests  []*corev1.Pod // of the group, that its terms do not match
	seeds   int           // pods outside the group that its terms match
}

// podAffinity checks that each pod has what all its terms match near it. Of pods that their own terms match, the first may
// have been placed without, but then all others had to go where it is, unless a pod without these terms is near them.
func (j *judge) podAffinity() {
	required := func(pod *corev1.Pod) []corev1.PodAffinityTerm {
		if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
			return a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		}
		return nil
	}
	for _, group := range j.grouped(termsOf(required)) {
		terms := podTerms(group[0].Namespace, required(group[0]))
		inGroup, matching := map[*corev1.Pod]bool{}, map[*corev1.Pod]bool{}
		for _, pod := range group {
			inGroup[pod] = true
		}
		for _, pod := range j.pods {
			matching[pod] = !slices.ContainsFunc(terms, func(t podTerm) bool { return !j.matches(t, pod) })
		}
		for _, t := range terms {
			domains := map[string]*domain{}
			for _, pod := range j.pods {
				value, ok := j.place(pod, t.key)
				switch {
				case !ok && inGroup[pod]:
					j.report(RulePodAffinity, pod, "its node has no label %s", t.key)
					continue
				case !ok || !inGroup[pod] && !matching[pod]:
					continue
				case domains[value] == nil:
					domains[value] = &domain{}
				}
				switch d := domains[value]; {
				case !inGroup[pod]:
					d.seeds++
				case matching[pod]:
					d.members = append(d.members, pod)
				default:
					d.guests = append(d.guests, pod)
				}
			}
			j.lonely(t, domains)
		}
	}
}

// lonely reports the pods of a group that are where nothing brought them.
func (j *judge) lonely(t podTerm, domains map[string]*domain) {
	values := slices.Sorted(maps.Keys(domains))
	home, most := "", 0 // where the first of them may have been placed
	for _, value := range values {
		if d := domains[value]; d.seeds == 0 && len(d.members) > most {
			home, most = value, len(d.members)
		}
	}
	for _, value := range values {
		d := domains[value]
		if d.seeds > 0 {
			continue
		}
		if value != home {
			for _, pod := range d.members {
				j.report(RulePodAffinity, pod, "it is in %s=%s, but the pods it has to be with are in %s=%s", t.key, value, t.key, home)
			}
		}
		if len(d.members) == 0 {
			for _, pod := range d.guests {
				j.report(RulePodAffinity, pod, "no pod that it has to be with is in %s=%s", t.key, value)
			}
		}
	}
}
