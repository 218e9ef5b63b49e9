package engine

import (
	"fmt"
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

var interPodAffinity = Descriptor{
	Name: InterPodAffinity, Points: []string{"preFilter", "filter", "preScore", "score"},
	Needs:      map[string][]string{"filter": {"preFilter"}, "score": {"preScore"}},
	Judges:     []Aspect{PodTerms},
	Predicates: []string{"MatchInterPodAffinity"}, Priorities: []string{"InterPodAffinityPriority"},
	reasons: []Reason{{Text: ReasonAffinity}, {Text: ReasonAntiAffinity}, {Text: ReasonExistingAntiAffinity}},
	scale:   rangeScale,
	relate: func(r *relating) relation {
		return newTermRelation(r)
	},
	hints: hints{
		pod: func(_ *cluster.State, d *Demands, m *Moved) bool {
			near, repelled := d.spec.Affinity, d.spec.AntiAffinity
			switch {
			case m.was == nil:
				return matchesAll(near, m.is)
			case m.is == nil:
				return matchesAll(repelled, m.was)
			}
			return !matchesAll(near, m.was) && matchesAll(near, m.is) || matchesAll(repelled, m.was) && !matchesAll(repelled, m.is)
		},
		of: func(_ *cluster.State, gone *cluster.ClassSpec, labels *cluster.LabelSet) bool {
			return matchesAll(gone.AntiAffinity, labels)
		},
		on: func(d *Demands, was, is *cluster.Node) bool {
			differs := func(key string) (had, has, differs bool) {
				old, had := topologyOf(was, key)
				value, has := topologyOf(is, key)
				return had, has, value != old
			}
			near := func(t cluster.PodTerm) bool {
				had, has, differs := differs(t.TopologyKey)
				return has && (!had || differs)
			}
			repelled := func(t cluster.PodTerm) bool {
				had, has, differs := differs(t.TopologyKey)
				return was == nil || had && (!has || differs)
			}
			return is != nil && (slices.ContainsFunc(d.spec.Affinity, near) || slices.ContainsFunc(d.spec.AntiAffinity, repelled))
		},
		own: func(_ *Demands, c *ownChange) bool { return c.relabeled },
	},
	keeps: hints{
		pod: func(st *cluster.State, d *Demands, m *Moved) bool {
			differs := func(t cluster.PodTerm) bool {
				return (m.was != nil && matchesNow(st, &t, m.was)) != (m.is != nil && matchesNow(st, &t, m.is))
			}
			return slices.ContainsFunc(d.spec.Affinity, differs) || slices.ContainsFunc(d.spec.AntiAffinity, differs)
		},
		of: func(st *cluster.State, gone *cluster.ClassSpec, labels *cluster.LabelSet) bool {
			return matchesAny(st, gone.AntiAffinity, labels)
		},
		on:         keptByNodes,
		namespaces: func(*Demands) bool { return true }, // terms of others may select by them
	},
	short: inWords("is excluded by affinity or anti-affinity between pods", "are excluded by affinity or anti-affinity between pods"),
	text: func(l *Lack, by Blocker) string {
		switch {
		case l.NoKey:
			return l.missing("affinity")
		case l.Reason == ReasonAffinity:
			return fmt.Sprintf("affinity: no pod that matches %s is in %s=%s", termsText(l.Terms), l.TopologyKey, l.Value)
		case l.Reason == ReasonAntiAffinity:
			return fmt.Sprintf("anti-affinity of the pod: %s in %s=%s%s", termsText(l.Terms), l.TopologyKey, l.Value, by.behind(": "))
		case l.Reason == ReasonExistingAntiAffinity:
			return fmt.Sprintf("anti-affinity of a placed pod against %s in %s=%s%s", termsText(l.Terms), l.TopologyKey, l.Value, by.behind(": "))
		}
		return l.Reason
	},
	detail: func(s *surveyor, i cluster.NodeIndex, l *Lack) {
		switch l.Reason {
		case ReasonAffinity:
			for _, t := range s.spec.Affinity {
				if t.TopologyKey == l.TopologyKey {
					l.Terms = append(l.Terms, t)
				}
			}
		case ReasonAntiAffinity:
			s.block(i, l, s.repelled)
		case ReasonExistingAntiAffinity:
			s.block(i, l, s.repels)
		}
	},
}

// The places of the reasons.
const (
	termsAffinity Verdict = iota
	termsAntiAffinity
	termsExisting
)

// termRelation is the terms of a class, and which of those of other pods matter to its pods. What these are is looked up whenever it is
// asked: others may have very many.
type termRelation struct {
	spec            *cluster.ClassSpec
	filters, scores bool
	scoresOthers    bool  // other pods' terms score, too
	hardWeight      int64 // what their required affinity scores
}

// carrier is a term of other pods that matches the pods.
type carrier struct {
	class  cluster.ClassID // whose pods carry it
	index  int             // among the terms of the class
	key    string          // its topology key
	blocks bool            // it is required anti-affinity
	weight int64           // what it scores; 0 if it blocks
}

func (of *termRelation) matches(st *cluster.State, r *relations, key *signatureKey) {
	if of.filters && len(of.spec.Affinity) > 0 {
		key.bool(newPodMatchers(of.spec.Affinity).all(st, &r.labels.LabelSet))
	}
}

// podMatcher is a term of an incoming pod: which placed pods it matches.
type podMatcher struct {
	*cluster.PodTerm
	slot     int  // where it counts, once that is known; not that of required affinity, whose terms count together
	any      bool // it is for any namespace
	resolved bool // which namespaces it is for depends on the labels that they have now
}

type podMatchers []podMatcher

func newPodMatcher(t *cluster.PodTerm) podMatcher {
	m := podMatcher{PodTerm: t, any: t.NamespaceSelector.Matches(nil)}
	m.resolved = !m.any && !t.NamespaceSelector.Nothing
	return m
}

func newPodMatchers(terms []cluster.PodTerm) podMatchers {
	out := make(podMatchers, len(terms))
	for k := range terms {
		out[k] = newPodMatcher(&terms[k])
	}
	return out
}

// matches looks at the labels of the pod's namespace alone, and not for all namespaces that the term is for: with many of both that
// would take long whenever a namespace changes.
func (m *podMatcher) matches(st *cluster.State, pod *cluster.LabelSet) bool {
	if _, named := slices.BinarySearch(m.Namespaces, pod.Namespace); !m.any && !named && !m.selects(st, pod.Namespace) {
		return false
	}
	return m.Selector.Matches(pod.Labels)
}

// selects reports whether the term is for a namespace by its labels.
func (m *podMatcher) selects(st *cluster.State, namespace string) bool {
	labels, _ := st.Namespace(namespace)
	return m.resolved && m.NamespaceSelector.Matches(labels)
}

// namespaces returns all that a resolved term is for, in alphabetical order.
func (m *podMatcher) namespaces(st *cluster.State) []string {
	out := slices.Clone(m.Namespaces)
	for name, labels := range st.Namespaces() {
		if m.NamespaceSelector.Matches(labels) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// all reports whether every term matches the pod.
func (ms podMatchers) all(st *cluster.State, pod *cluster.LabelSet) bool {
	for k := range ms {
		if !ms[k].matches(st, pod) {
			return false
		}
	}
	return len(ms) > 0
}

// interPod judges topology profiles. Its slots count, per topology key: pods that match all required affinity terms; pods
// that match a required anti-affinity term, once per term; pods' required anti-affinity terms that match; and weights.
type interPod struct {
	code        Verdict
	terms       podMatchers // required affinity
	anti        podMatchers // required anti-affinity
	preferred   []weightedMatcher
	resolved    []*podMatcher // those whose namespaces depend on their labels
	matchesSelf bool          // the pod matches all of terms

	affinity, antiAffinity, existing, scored []int // slots
}

type weightedMatcher struct {
	podMatcher
	weight int64
}

func (of *termRelation) judge(t *topology, st *cluster.State, r *relations, plugin *Plugin) crossNode {
	p, spec, before := &interPod{code: plugin.code}, of.spec, len(t.slots)
	if of.filters {
		p.terms, p.anti = newPodMatchers(spec.Affinity), newPodMatchers(spec.AntiAffinity)
		p.matchesSelf = r.labels != nil && p.terms.all(st, &r.labels.LabelSet)
		for _, m := range p.terms {
			t.slotOf(&p.affinity, m.TopologyKey)
		}
		for k := range p.anti {
			p.anti[k].slot = t.slotOf(&p.antiAffinity, p.anti[k].TopologyKey)
		}
	}
	if of.scores {
		for k := range spec.PreferredAffinity {
			w := &spec.PreferredAffinity[k]
			p.preferred = append(p.preferred, weightedMatcher{newPodMatcher(&w.Term), int64(w.Weight)})
		}
		for k := range spec.PreferredAntiAffinity {
			w := &spec.PreferredAntiAffinity[k]
			p.preferred = append(p.preferred, weightedMatcher{newPodMatcher(&w.Term), -int64(w.Weight)})
		}
		for k := range p.preferred {
			p.preferred[k].slot = t.slotOf(&p.scored, p.preferred[k].TopologyKey)
		}
	}
	resolve := func(m *podMatcher) {
		if m.resolved {
			p.resolved = append(p.resolved, m)
		}
	}
	for _, ms := range []podMatchers{p.terms, p.anti} {
		for k := range ms {
			resolve(&ms[k])
		}
	}
	for k := range p.preferred {
		resolve(&p.preferred[k].podMatcher)
	}
	t.own += len(t.slots) - before
	of.carriers(st, r, func(c carrier) {
		slot, by := 0, c.weight
		switch {
		case !st.Nodes.HasKey(st.Symbols.Lookup(c.key)):
			return
		case c.blocks:
			slot, by = t.slotOf(&p.existing, c.key), 1
		default:
			slot = t.slotOf(&p.scored, c.key)
		}
		t.carried[c.class] = sum(t.carried[c.class], increment{slot, by, false})
	})
	return p
}

func (of *termRelation) leftOut(st *cluster.State, r *relations, key func(string)) {
	of.carriers(st, r, func(c carrier) {
		if !st.Nodes.HasKey(st.Symbols.Lookup(c.key)) {
			key(c.key)
		}
	})
}

func (p *interPod) filters() bool { return len(p.affinity)+len(p.antiAffinity)+len(p.existing) > 0 }
func (p *interPod) weighs() bool  { return false }

func (p *interPod) weigh(*topology, []int64) {}

// counts is of no slot: nodes count that have its key.
func (p *interPod) counts(*topology, *cluster.State, *program, cluster.NodeIndex, []int32) uint64 {
	return 0
}

func (p *interPod) resolves() bool { return len(p.resolved) > 0 }

// resolvedTerms is of how many terms of a pod the namespaces are told apart; with more all namespaces are.
const resolvedTerms = 4

// fingerprint writes the namespaces that terms select by their labels.
func (p *interPod) fingerprint(st *cluster.State, key *signatureKey) {
	if len(p.resolved) > resolvedTerms {
		key.int(int(st.NamespaceDigest()))
		return
	}
	for _, m := range p.resolved {
		names := m.namespaces(st)
		for _, name := range names {
			key.text(name)
		}
		key.int(len(names))
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
func (p *interPod) increments(st *cluster.State, pod *cluster.LabelSet, _ bool, out []increment) []increment {
	if p.terms.all(st, pod) {
		for _, s := range p.affinity {
			out = append(out, increment{s, 1, false})
		}
	}
	for k := range p.anti {
		if p.anti[k].matches(st, pod) {
			out = sum(out, increment{p.anti[k].slot, 1, false})
		}
	}
	for k := range p.preferred {
		if p.preferred[k].matches(st, pod) {
			out = sum(out, increment{p.preferred[k].slot, p.preferred[k].weight, false})
		}
	}
	return out
}

// filter judges a node of a topology profile as if extra were counted besides, by slot.
func (p *interPod) filter(t *topology, c *topologyProfile, extra []int64) Verdict {
	if extra != nil && p.skips(t) {
		return codeFeasible
	}
	near, anywhere := true, 0
	for _, s := range p.affinity {
		if c.lacks(t.slots[s].key) {
			return p.code + termsAffinity | unresolvable
		}
		has := t.countWith(s, c, extra) > 0
		near = near && has
		anywhere += t.slots[s].positive
		if !has && t.count(s, c) > 0 {
			anywhere-- // the last of its domain goes
		}
	}
	if !near && (anywhere > 0 || !p.matchesSelf) {
		return p.code + termsAffinity | unresolvable
	}
	for _, s := range p.antiAffinity {
		if !c.lacks(t.slots[s].key) && t.countWith(s, c, extra) > 0 {
			return p.code + termsAntiAffinity
		}
	}
	for _, s := range p.existing {
		if !c.lacks(t.slots[s].key) && t.countWith(s, c, extra) > 0 {
			return p.code + termsExisting
		}
	}
	return codeFeasible
}

// skips reports whether kube-scheduler does not run the filter at all, whatever pods are thought to come or go: the pod has
// no required terms, and no required anti-affinity of a placed pod matches it.
func (p *interPod) skips(t *topology) bool {
	for _, s := range p.existing {
		if t.slots[s].positive > 0 {
			return false
		}
	}
	return len(p.terms)+len(p.anti) == 0
}

// score scores a topology profile.
func (p *interPod) score(t *topology, c *topologyProfile) (sum int64, ok bool) {
	for _, s := range p.scored {
		if !c.lacks(t.slots[s].key) {
			sum += t.count(s, c)
		}
	}
	return sum, true
}

// lacks is filter, but tells of all topology keys whose terms a topology profile breaks.
func (p *interPod) lacks(t *topology, c *topologyProfile, extra []int64, out []Lack) []Lack {
	if extra != nil && p.skips(t) {
		return out
	}
	add := func(s int, reason string, unresolvable bool, count int64) {
		key := t.slots[s].key
		l := Lack{
			Plugin: InterPodAffinity, Reason: reason, Unresolvable: unresolvable, Relative: 1,
			TopologyKey: t.keys[key].name, NoKey: c.lacks(key), Count: count, slot: s,
		}
		if reason != ReasonAffinity {
			l.Help = helpOfDomain(l.TopologyKey)
		}
		out = append(out, l)
	}
	first := !p.affinityUnmet(t, c, extra) // a pod that matches its own terms begins
	for _, s := range p.affinity {
		if c.lacks(t.slots[s].key) || !first && t.countWith(s, c, extra) <= 0 {
			add(s, ReasonAffinity, true, 0)
		}
	}
	for _, s := range p.antiAffinity {
		if n := t.countWith(s, c, extra); !c.lacks(t.slots[s].key) && n > 0 {
			add(s, ReasonAntiAffinity, false, n)
		}
	}
	for _, s := range p.existing {
		if n := t.countWith(s, c, extra); !c.lacks(t.slots[s].key) && n > 0 {
			add(s, ReasonExistingAntiAffinity, false, n)
		}
	}
	return out
}

// affinityUnmet reports whether a domain without a matching pod is refused: whether there is one elsewhere, or the pod does
// not match its own terms.
func (p *interPod) affinityUnmet(t *topology, c *topologyProfile, extra []int64) bool {
	anywhere := 0
	for _, s := range p.affinity {
		anywhere += t.slots[s].positive
		if !c.lacks(t.slots[s].key) && t.count(s, c) > 0 && t.countWith(s, c, extra) <= 0 {
			anywhere--
		}
	}
	return anywhere > 0 || !p.matchesSelf
}

// repelled returns the first required anti-affinity term of the pod for a topology key that matches another pod.
func (s *surveyor) repelled(key string, other *cluster.PodRow) *cluster.PodTerm {
	labels := s.st.Labels(other.Labels)
	for _, j := range s.c.topology.plugins {
		p, is := j.crossNode.(*interPod)
		for k := 0; is && labels != nil && k < len(p.anti); k++ {
			if m := &p.anti[k]; m.TopologyKey == key && m.matches(s.st, &labels.LabelSet) {
				return &s.spec.AntiAffinity[k]
			}
		}
	}
	return nil
}

// repels returns the first required anti-affinity term of another pod for a topology key that matches the pod.
func (s *surveyor) repels(key string, other *cluster.PodRow) *cluster.PodTerm {
	labels := s.st.Labels(s.pod.Labels)
	if labels == nil {
		return nil
	}
	namespace, _ := s.st.Namespace(labels.Namespace)
	terms := s.st.Class(other.Class).Spec.AntiAffinity
	for k := range terms {
		t := &terms[k]
		named := slices.Contains(t.Namespaces, labels.Namespace) || t.NamespaceSelector.Matches(namespace)
		if t.TopologyKey == key && named && t.Selector.Matches(labels.Labels) {
			return t
		}
	}
	return nil
}

func newTermRelation(r *relating) *termRelation {
	of := &termRelation{spec: r.spec, filters: r.filters, scores: r.scores, hardWeight: int64(r.profile.HardPodAffinityWeight)}
	of.scoresOthers = r.scores &&
		(!r.profile.IgnorePreferredTerms || len(r.spec.PreferredAffinity)+len(r.spec.PreferredAntiAffinity) > 0)
	of.carriers(r.st, r.relations, func(c carrier) {
		r.key.int(int(c.class))
		r.key.int(c.index)
	})
	return of
}

// carriers calls visit for the terms of all classes that match the subject's pods.
func (of *termRelation) carriers(st *cluster.State, r *relations, visit func(carrier)) {
	if r.labels == nil || !of.filters && !of.scoresOthers {
		return
	}
	namespace, _ := st.Namespace(r.namespace)
	add := func(class cluster.ClassID, index int, t *cluster.PodTerm, c carrier) {
		named := slices.Contains(t.Namespaces, r.namespace) || t.NamespaceSelector.Matches(namespace)
		if named && t.Selector.Matches(r.labels.Labels) {
			c.class, c.index, c.key = class, index, t.TopologyKey
			visit(c)
		}
	}
	for _, id := range st.TermClasses() {
		other := &st.Class(id).Spec
		index := 0
		for k := range other.AntiAffinity {
			if of.filters {
				add(id, index, &other.AntiAffinity[k], carrier{blocks: true})
			}
			index++
		}
		if !of.scoresOthers {
			continue
		}
		for k := range other.Affinity {
			if of.hardWeight > 0 {
				add(id, index, &other.Affinity[k], carrier{weight: of.hardWeight})
			}
			index++
		}
		for k := range other.PreferredAffinity {
			add(id, index, &other.PreferredAffinity[k].Term, carrier{weight: int64(other.PreferredAffinity[k].Weight)})
			index++
		}
		for k := range other.PreferredAntiAffinity {
			add(id, index, &other.PreferredAntiAffinity[k].Term, carrier{weight: -int64(other.PreferredAntiAffinity[k].Weight)})
			index++
		}
	}
}
