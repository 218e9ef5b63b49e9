package engine

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// InterPodAffinity keeps pods near pods that their required affinity terms match, and away from pods that their
// required anti-affinity terms match, or whose required anti-affinity terms match them. Near means: on a node with the
// same value of the term's topology key.
//
// A node must have the topology keys of all required affinity terms, and in each of those domains there must be a pod
// that matches all of the terms; if no pod in the cluster does, a pod that matches them itself may begin. That fails
// unresolvably, anti-affinity does not.
//
// Its raw score is the sum of the weights of preferred terms, negative for anti-affinity: of the pod's own terms for
// each pod in the node's domain that they match, and of those pods' terms that match the pod, where their required
// affinity weighs HardPodAffinityWeight. It is normalised over the feasible nodes: 100·(raw-min)/(max-min), and 0
// everywhere if all are equal.
//
// As in kube-scheduler, a term's namespace selector finds the namespaces as they are now where the incoming pod carries
// it; but one that matches a namespace without labels matches every namespace then.
const InterPodAffinity = "InterPodAffinity"

// InterPodAffinity's reasons.
const (
	ReasonAffinity             = "node(s) didn't match pod affinity rules"
	ReasonAntiAffinity         = "node(s) didn't match pod anti-affinity rules"
	ReasonExistingAntiAffinity = "node(s) didn't satisfy existing pods anti-affinity rules"
)

// podMatcher is a term of an incoming pod: which placed pods it matches.
type podMatcher struct {
	key        string
	namespaces []string // sorted
	any        bool     // of any namespace
	resolved   bool     // namespaces are those of now
	selector   *cluster.LabelSelector
}

type podMatchers []podMatcher

func newPodMatcher(st *cluster.State, t *cluster.PodTerm) podMatcher {
	m := podMatcher{key: t.TopologyKey, namespaces: t.Namespaces, any: t.NamespaceSelector.Matches(nil), selector: &t.Selector}
	if m.any || t.NamespaceSelector.Nothing {
		return m
	}
	m.namespaces, m.resolved = slices.Clone(m.namespaces), true
	for name, labels := range st.Namespaces() {
		if t.NamespaceSelector.Matches(labels) {
			m.namespaces = append(m.namespaces, name)
		}
	}
	slices.Sort(m.namespaces)
	return m
}

func newPodMatchers(st *cluster.State, terms []cluster.PodTerm) podMatchers {
	out := make(podMatchers, len(terms))
	for k := range terms {
		out[k] = newPodMatcher(st, &terms[k])
	}
	return out
}

func (m *podMatcher) matches(pod *cluster.LabelSet) bool {
	if !m.any {
		if _, found := slices.BinarySearch(m.namespaces, pod.Namespace); !found {
			return false
		}
	}
	return m.selector.Matches(pod.Labels)
}

// all reports whether every term matches the pod.
func (ms podMatchers) all(pod *cluster.LabelSet) bool {
	for k := range ms {
		if !ms[k].matches(pod) {
			return false
		}
	}
	return len(ms) > 0
}

// interPodAffinity judges topology profiles. Its slots count, per topology key: pods that match all required affinity terms; pods
// that match a required anti-affinity term, once per term; pods' required anti-affinity terms that match; and weights.
type interPodAffinity struct {
	terms       podMatchers // required affinity
	anti        podMatchers // required anti-affinity
	preferred   []weightedMatcher
	matchesSelf bool // the pod matches all of terms
	resolves    bool // the namespaces of some term depend on their labels

	affinity, antiAffinity, existing, score []int // slots
}

type weightedMatcher struct {
	podMatcher
	weight int64
}

func (t *topology) compileInterPodAffinity(st *cluster.State, spec *cluster.ClassSpec, r *relations) {
	p := &t.interPod
	if r.filters.interPod {
		p.terms, p.anti = newPodMatchers(st, spec.Affinity), newPodMatchers(st, spec.AntiAffinity)
		p.matchesSelf = r.labels != nil && p.terms.all(&r.labels.LabelSet)
		for _, m := range p.terms {
			t.slotOf(&p.affinity, m.key)
		}
		for _, m := range p.anti {
			t.slotOf(&p.antiAffinity, m.key)
		}
	}
	if r.scores.interPod {
		for k := range spec.PreferredAffinity {
			w := &spec.PreferredAffinity[k]
			p.preferred = append(p.preferred, weightedMatcher{newPodMatcher(st, &w.Term), int64(w.Weight)})
		}
		for k := range spec.PreferredAntiAffinity {
			w := &spec.PreferredAntiAffinity[k]
			p.preferred = append(p.preferred, weightedMatcher{newPodMatcher(st, &w.Term), -int64(w.Weight)})
		}
		for _, m := range p.preferred {
			t.slotOf(&p.score, m.key)
		}
	}
	for _, ms := range []podMatchers{p.terms, p.anti} {
		for k := range ms {
			p.resolves = p.resolves || ms[k].resolved
		}
	}
	for k := range p.preferred {
		p.resolves = p.resolves || p.preferred[k].resolved
	}
	for _, c := range r.carriers {
		slot, by := 0, c.weight
		if c.blocks {
			slot, by = t.slotOf(&p.existing, c.key), 1
		} else {
			slot = t.slotOf(&p.score, c.key)
		}
		t.carried[c.class] = append(t.carried[c.class], increment{slot, by, false})
	}
}

// slotOf returns the slot for a topology key among those of one purpose, adding it if there is none.
func (t *topology) slotOf(purpose *[]int, key string) int {
	k := t.key(key)
	for _, s := range *purpose {
		if t.slots[s].key == k {
			return s
		}
	}
	s := t.addSlot(slot{key: k})
	*purpose = append(*purpose, s)
	return s
}

// increments adds what a placed pod with these labels counts.
func (p *interPodAffinity) increments(t *topology, pod *cluster.LabelSet, out []increment) []increment {
	if p.terms.all(pod) {
		for _, s := range p.affinity {
			out = append(out, increment{s, 1, false})
		}
	}
	for k := range p.anti {
		if p.anti[k].matches(pod) {
			out = append(out, increment{t.slotOf(&p.antiAffinity, p.anti[k].key), 1, false})
		}
	}
	for k := range p.preferred {
		if p.preferred[k].matches(pod) {
			out = append(out, increment{t.slotOf(&p.score, p.preferred[k].key), p.preferred[k].weight, false})
		}
	}
	return out
}

// filter judges a node of a topology profile as if extra were counted besides, by slot.
func (p *interPodAffinity) filter(t *topology, c *topologyProfile, extra []int64) Verdict {
	if extra != nil && p.skips(t) {
		return codeFeasible
	}
	near, anywhere := true, 0
	for _, s := range p.affinity {
		if c.lacks(t.slots[s].key) {
			return codeAffinity | unresolvable
		}
		has := t.countWith(s, c, extra) > 0
		near = near && has
		anywhere += t.slots[s].positive
		if !has && t.count(s, c) > 0 {
			anywhere-- // the last of its domain goes
		}
	}
	if !near && (anywhere > 0 || !p.matchesSelf) {
		return codeAffinity | unresolvable
	}
	for _, s := range p.antiAffinity {
		if !c.lacks(t.slots[s].key) && t.countWith(s, c, extra) > 0 {
			return codeAntiAffinity
		}
	}
	for _, s := range p.existing {
		if !c.lacks(t.slots[s].key) && t.countWith(s, c, extra) > 0 {
			return codeExistingAntiAffinity
		}
	}
	return codeFeasible
}

// skips reports whether kube-scheduler does not run the filter at all, whatever pods are thought to come or go: the pod has
// no required terms, and no required anti-affinity of a placed pod matches it.
func (p *interPodAffinity) skips(t *topology) bool {
	for _, s := range p.existing {
		if t.slots[s].positive > 0 {
			return false
		}
	}
	return len(p.terms)+len(p.anti) == 0
}

// raw scores a topology profile.
func (p *interPodAffinity) raw(t *topology, c *topologyProfile) int64 {
	sum := int64(0)
	for _, s := range p.score {
		if !c.lacks(t.slots[s].key) {
			sum += t.count(s, c)
		}
	}
	return sum
}

// normalizeInterPod scales a raw score, given the least and the largest of all feasible nodes.
func normalizeInterPod(raw, least, largest int64) int64 {
	if largest <= least {
		return 0
	}
	return int64(float64(maxScore) * (float64(raw-least) / float64(largest-least)))
}
