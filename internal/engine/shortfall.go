package engine

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Lack is one thing that keeps a pod off a node. A verdict names the first plugin that rejects the node; the lacks are all
// there is, of all plugins of the profile: a pod that lacked none of it would fit. What is set besides the first three
// fields depends on the plugin.
//
// A cordoned node lacks one thing, though it has a taint too that says so.
type Lack struct {
	Plugin, Reason string // Reason is kube-scheduler's text
	Unresolvable   bool   // removing pods from the node would not help
	// Relative is how large the lack is: (Requested-Free)/Requested of a resource, (skew-MaxSkew)/skew of a spread
	// constraint, and 1 where something is there or is not.
	Relative float64

	// Of NodeResourcesFit: what the pod requests, what the node has left but for what is held for pods nominated to it, and
	// its allocatable. Free is negative on a node that is over its allocatable. "pods" is the number of pods.
	Resource                  string
	Requested, Free, Capacity int64

	// Of TaintToleration.
	Taint *cluster.Taint

	// Of NodeAffinity: the condition that the node does not meet, nil if no node could meet the terms. Term is its place in
	// ClassSpec.Required, or in the profile's AddedRequired by the reason, and Index its place in the term's Fields, if Field,
	// or Expressions. Term is -1 for a label of the node selector, with Index its place there, and for the pod's required node. Of
	// several required terms it is the one of which the node lacks least.
	Wanted      *cluster.Requirement
	Term, Index int
	Field       bool

	Port    *cluster.HostPort // of NodePorts: the one that is taken
	Feature string            // of NodeDeclaredFeatures
	Name    string            // of NodeName

	// Of PodTopologySpread and InterPodAffinity. NoKey says that the node has no label TopologyKey. Count is how many pods
	// count in the node's domain: those that the constraint selects; those that the pod's anti-affinity terms match; or those
	// whose anti-affinity terms match the pod, in both cases once per term. It includes pods nominated to the node.
	TopologyKey string
	NoKey       bool
	Count       int64
	// Of PodTopologySpread: the skew is Count, plus one if the constraint selects the pod itself, without Least.
	Spread *cluster.SpreadConstraint
	Self   bool
	Least  int64

	// What only Shortfall fills in: the node's value of the label that Wanted or TopologyKey names, if it has one; the pod that
	// is in the way, NoPod if there is none or none is found; and the terms that matter: the pod's required affinity terms of
	// the key, or the anti-affinity term that is in the way, of the pod or of Blocker.
	Value    string
	HasValue bool
	Blocker  cluster.PodID
	Terms    []cluster.PodTerm

	slot int // of a topology
}

// Rejection is the nodes that one plugin is the first to reject, in the profile's order.
type Rejection struct {
	Plugin              string
	Nodes, Unresolvable int32
	// Reasons are those of these nodes. A node with several insufficient resources counts for each of them, and for each
	// alone as resolvable or not as the node is.
	Reasons []VerdictCount
}

// Survey is what a pod meets with on all nodes. The nodes of all rejections and the feasible ones add up to Nodes.
type Survey struct {
	Nodes, Feasible int32
	Rejections      []Rejection // in kube-scheduler's order of plugins
}

// Survey judges all nodes for a pod, also for one that is placed, as if it came in addition. It calls visit for each node
// that is not feasible, by index, with all that the node lacks; the lacks hold until visit returns. Visit must not call the
// Evaluator. False: the state has no such pod.
func (e *Evaluator) Survey(st *cluster.State, pod cluster.PodID, visit func(cluster.NodeIndex, []Lack)) (Survey, bool) {
	s, ok := e.surveyor(st, pod)
	if !ok {
		return Survey{}, false
	}
	c := s.c
	defer c.unlock()
	c.sync(st)
	c.reserve(st)
	if c.topology.filters() {
		c.topology.judgeAll()
	}
	var out Survey
	var t tally
	var first [codeFit + 1][2]int32 // nodes by code; 1 for unresolvable
	var lacks []Lack
	for w, live := range st.Nodes.Live {
		for ; live != 0; live &= live - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(live))
			out.Nodes++
			v := s.verdict(i)
			if v.Feasible() {
				out.Feasible++
				continue
			}
			t.add(v, i)
			first[v.code()][v>>8&1]++
			lacks = s.lacks(i, lacks[:0])
			visit(i, lacks)
		}
	}
	for _, v := range MergeVerdicts(t.verdicts(st, c.program)) {
		k := len(out.Rejections) - 1
		if k < 0 || out.Rejections[k].Plugin != v.Plugin {
			k++
			out.Rejections = append(out.Rejections, Rejection{Plugin: v.Plugin})
		}
		out.Rejections[k].Reasons = append(out.Rejections[k].Reasons, v)
	}
	for code, nodes := range first {
		if nodes[0]+nodes[1] == 0 {
			continue
		}
		plugin, _ := c.program.reason(code)
		for k := range out.Rejections {
			if out.Rejections[k].Plugin == plugin {
				out.Rejections[k].Nodes += nodes[0] + nodes[1]
				out.Rejections[k].Unresolvable += nodes[1]
			}
		}
	}
	return out, true
}

// Shortfall returns all that keeps a pod off a node, by plugin in the profile's order; nothing if it fits. False: the state
// has no such pod or node.
func (e *Evaluator) Shortfall(st *cluster.State, pod cluster.PodID, i cluster.NodeIndex) ([]Lack, bool) {
	if !st.Nodes.Live.Has(i) {
		return nil, false
	}
	s, ok := e.surveyor(st, pod)
	if !ok {
		return nil, false
	}
	defer s.c.unlock()
	out := s.lacks(i, nil)
	for k := range out {
		s.detail(i, &out[k])
	}
	slices.SortStableFunc(out, func(a, b Lack) int { return cmp.Compare(pluginRank(a.Plugin), pluginRank(b.Plugin)) })
	return out, true
}

// surveyor finds out what nodes lack for one pod.
type surveyor struct {
	st   *cluster.State
	c    *evaluation
	spec *cluster.ClassSpec
	id   cluster.PodID
	pod  *cluster.PodRow

	requiredNode *cluster.Requirement
	nominated    cluster.NodeIndex // where the pod does not stand in its own way
	cordons      bool              // NodeUnschedulable filters, and does so before TaintToleration
	names        cluster.Requirement
	selector     []cluster.Requirement
	required     []sourceTerm
	enforced     []sourceTerm
	ports        []*cluster.HostPort // those that are wanted, each once
	profileLacks [][]Lack            // by topologyProfileID, once they have been found
}

// sourceTerm is a node selector term that can match, compiled, and what it was compiled from.
type sourceTerm struct {
	affinityTerm
	source *cluster.NodeSelectorTerm
	index  int
}

// surveyor returns one for a pod, its evaluation locked; false if the state has no such pod.
func (e *Evaluator) surveyor(st *cluster.State, pod cluster.PodID) (*surveyor, bool) {
	row := st.Pod(pod)
	if row == nil {
		return nil, false
	}
	c := e.filterEvaluation(st, SubjectOf(&row.Pod))
	if c == nil {
		return nil, false
	}
	p := c.program
	s := &surveyor{st: st, c: c, spec: &st.Class(row.Class).Spec, id: pod, pod: row, nominated: cluster.NoNode}
	if !row.Placed() {
		s.nominated = st.Nodes.ByName(row.Nominated)
	}
	if row.RequiredNode != "" {
		s.requiredNode = &cluster.Requirement{Key: nameField, Operator: "In", Values: []string{row.RequiredNode}}
	}
	s.cordons = slices.Contains(p.filters, filterNodeUnschedulable) && p.at[filterNodeUnschedulable] < p.at[filterTaintToleration] && !p.unschedulable.tolerated
	s.names = cluster.Requirement{Key: nameField, Operator: "In", Values: p.affinity.names}
	for _, l := range s.spec.NodeSelector {
		s.selector = append(s.selector, cluster.Requirement{Key: l.Key, Operator: "In", Values: []string{l.Value}})
	}
	s.required = sourceTerms(st, s.spec.Required)
	if p.profile != nil {
		s.enforced = sourceTerms(st, p.profile.AddedRequired)
	}
	for k := range p.ports.wanted {
		w := &p.ports.wanted[k]
		if !slices.ContainsFunc(s.ports, func(port *cluster.HostPort) bool { return *port == *w }) {
			s.ports = append(s.ports, w)
		}
	}
	return s, true
}

func sourceTerms(st *cluster.State, terms []cluster.NodeSelectorTerm) []sourceTerm {
	c := compiler{st: st}
	var out []sourceTerm
	for k := range terms {
		if t, err := c.affinityTerm(&terms[k]); err == nil && !isEmptyTerm(&terms[k]) {
			out = append(out, sourceTerm{t, &terms[k], k})
		}
	}
	return out
}

// elsewhere reports whether the pod requires another node.
func (s *surveyor) elsewhere(i cluster.NodeIndex) bool {
	return s.requiredNode != nil && s.st.Nodes.Spec[i].Name != s.pod.RequiredNode
}

// verdict judges a live node. The evaluation is synced and has reserved room, and its topology profiles are judged.
func (s *surveyor) verdict(i cluster.NodeIndex) Verdict {
	c := s.c
	switch {
	case s.elsewhere(i) && c.program.unsupported == "":
		return codeNodeAffinityOutside | unresolvable
	case s.nominated == i:
		return c.verdict(s.st, i, s.id)
	}
	c.eligible(s.st, i)
	if !c.topology.filters() {
		return c.verdicts[i]
	}
	return c.program.combine(c.verdicts[i], c.topology.profileOf(i))
}

// self is the pod if it may be nominated to the node, else NoPod.
func (s *surveyor) self(i cluster.NodeIndex) cluster.PodID {
	if s.nominated == i {
		return s.id
	}
	return cluster.NoPod
}

// lacks adds all that a live node lacks.
func (s *surveyor) lacks(i cluster.NodeIndex, out []Lack) []Lack {
	p, n := s.c.program, &s.st.Nodes
	if p.unsupported != "" {
		return append(out, Lack{Plugin: p.unsupportedPlugin, Reason: p.unsupported, Unresolvable: true, Relative: 1})
	}
	// 1. What is set aside before any filter runs.
	if n.Unsupported.Has(i) {
		return append(out, Lack{Plugin: NodeUnsupported, Reason: ReasonNodeUnsupported, Unresolvable: true, Relative: 1})
	}
	narrowed := p.affinity.narrow(n, i)
	if narrowed != codeFeasible {
		_, reason := p.reason(int(narrowed.code()))
		out = append(out, Lack{Plugin: NodeAffinity, Reason: reason, Unresolvable: true, Relative: 1, Wanted: &s.names, Term: -1, Field: true})
	}
	if s.elsewhere(i) {
		out = append(out, Lack{Plugin: NodeAffinity, Reason: ReasonNodeAffinityOutside, Unresolvable: true, Relative: 1, Wanted: s.requiredNode, Term: -1, Field: true})
	}
	// 2. What the node's own filters say.
	nominees := nomineesOf(s.st, i, s.c.signature.priority, s.self(i))
	for _, plugin := range p.filters {
		switch plugin {
		case filterNodeUnschedulable:
			if p.unschedulable.filter(n, i) != codeFeasible {
				out = append(out, Lack{Plugin: NodeUnschedulable, Reason: ReasonUnschedulable, Unresolvable: true, Relative: 1})
			}
		case filterNodeName:
			if p.name.filter(n, i) != codeFeasible {
				out = append(out, Lack{Plugin: NodeName, Reason: ReasonNodeName, Unresolvable: true, Relative: 1, Name: p.name.name})
			}
		case filterTaintToleration:
			out = s.taints(i, out)
		case filterNodeAffinity:
			out = s.affinity(i, narrowed != codeFeasible, out)
		case filterNodePorts:
			for _, w := range s.ports {
				one := nodePorts{wanted: []cluster.HostPort{*w}}
				if one.filter(n, i, nominees) != codeFeasible {
					out = append(out, Lack{Plugin: NodePorts, Reason: ReasonNodePorts, Relative: 1, Port: w})
				}
			}
		case filterNodeResourcesFit:
			out = s.resources(i, nominees, out)
		case filterNodeDeclaredFeatures:
			for _, want := range p.features.required {
				if _, declared := slices.BinarySearch(n.Spec[i].Features, want); !declared {
					out = append(out, Lack{Plugin: NodeDeclaredFeatures, Reason: ReasonFeatures, Unresolvable: true, Relative: 1, Feature: want})
				}
			}
		}
	}
	// 3. What pods on other nodes decide.
	if s.c.topology.filters() {
		out = append(out, s.topologyProfileLacks(i)...)
	}
	return out
}

func (s *surveyor) taints(i cluster.NodeIndex, out []Lack) []Lack {
	n := &s.st.Nodes
	cordoned := s.cordons && n.Unschedulable.Has(i)
	for k, t := range n.Taints(i) {
		if t.Effect != cluster.NoSchedule && t.Effect != cluster.NoExecute || s.c.program.taints.tolerates(t) {
			continue
		}
		taint := &n.Spec[i].NodeShape.Taints[k]
		if cordoned && taint.Key == unschedulableTaint && t.Effect == cluster.NoSchedule {
			continue
		}
		out = append(out, Lack{Plugin: TaintToleration, Reason: ReasonUntoleratedTaint, Unresolvable: true, Relative: 1, Taint: taint})
	}
	return out
}

// affinity adds what the pod's node selector and affinity terms and the profile's want. Named says that it has been told
// already that the node has another name.
func (s *surveyor) affinity(i cluster.NodeIndex, named bool, out []Lack) []Lack {
	p := &s.c.program.affinity
	if p.hasEnforced {
		out = s.terms(i, s.enforced, ReasonNodeAffinityEnforced, false, out)
	}
	for k, want := range p.selector {
		if got, ok := labelOf(s.st.Nodes.Labels[i], want.Key); !ok || got != want.Value {
			out = append(out, Lack{
				Plugin: NodeAffinity, Reason: ReasonNodeAffinity, Unresolvable: true, Relative: 1, Wanted: &s.selector[k], Term: -1, Index: k,
			})
		}
	}
	if p.hasRequired {
		out = s.terms(i, s.required, ReasonNodeAffinity, named, out)
	}
	return out
}

// terms adds what a node lacks of the term of which it lacks least, the first of several.
func (s *surveyor) terms(i cluster.NodeIndex, terms []sourceTerm, reason string, named bool, out []Lack) []Lack {
	if len(terms) == 0 {
		return append(out, Lack{Plugin: NodeAffinity, Reason: reason, Unresolvable: true, Relative: 1})
	}
	var nearest *sourceTerm
	least := 0
	for k := range terms {
		if n := terms[k].unmet(s.st, i, named, nil); nearest == nil || n < least {
			nearest, least = &terms[k], n
		}
	}
	if least > 0 {
		nearest.unmet(s.st, i, named, func(index int, field bool, wanted *cluster.Requirement) {
			out = append(out, Lack{
				Plugin: NodeAffinity, Reason: reason, Unresolvable: true, Relative: 1,
				Wanted: wanted, Term: nearest.index, Index: index, Field: field,
			})
		})
	}
	return out
}

// unmet counts the conditions that a node does not meet, but those on its name if that has been told, and calls visit for
// each, if there is one.
func (t *sourceTerm) unmet(st *cluster.State, i cluster.NodeIndex, named bool, visit func(index int, field bool, wanted *cluster.Requirement)) int {
	count := 0
	for k := range t.labels {
		if t.labels[k].matches(st, i) {
			continue
		}
		if count++; visit != nil {
			visit(k, false, &t.source.Expressions[k])
		}
	}
	for k := range t.fields {
		one := affinityTerm{fields: t.fields[k : k+1]}
		if named && t.fields[k].isName || one.matches(st, i) {
			continue
		}
		if count++; visit != nil {
			visit(k, true, &t.source.Fields[k])
		}
	}
	return count
}

func (s *surveyor) resources(i cluster.NodeIndex, nominees *overlay, out []Lack) []Lack {
	n, p := &s.st.Nodes, &s.c.program.fit
	add := func(resource, reason string, requested, free, capacity int64) {
		out = append(out, Lack{
			Plugin: NodeResourcesFit, Reason: reason, Unresolvable: resource != "pods" && requested > capacity,
			Relative: (float64(requested) - float64(free)) / float64(requested),
			Resource: resource, Requested: requested, Free: free, Capacity: capacity,
		})
	}
	if free := n.AllowedPods[i] - int64(n.PodCount[i]) - nominees.count(); free < 1 {
		add("pods", ReasonTooManyPods, 1, free, n.AllowedPods[i])
	}
	for k := range p.requests {
		r := &p.requests[k]
		capacity := n.Allocatable[r.resource][i]
		if free := capacity - n.Requested[r.resource][i] - nominees.request(r.resource); r.value > free {
			add(s.st.ResourceName(r.resource), p.names[r.name], r.value, free, capacity)
		}
	}
	for k := range p.missing {
		r := &p.missing[k]
		add(strings.TrimPrefix(p.names[r.name], ReasonInsufficient), p.names[r.name], r.value, 0, 0)
	}
	return out
}

// topologyProfileLacks returns what the nodes of a live node's topology profile lack.
func (s *surveyor) topologyProfileLacks(i cluster.NodeIndex) []Lack {
	t := s.c.topology
	if s.nominated == i {
		return t.lacks(t.profileFor(s.st, i, s.id))
	}
	id := t.placed[i]
	s.profileLacks = grow(s.profileLacks, len(t.profiles))
	if s.profileLacks[id] == nil {
		s.profileLacks[id] = append(make([]Lack, 0, 1), t.lacks(t.profiles[id])...)
	}
	return s.profileLacks[id]
}

// lacks returns what pods on other nodes deny the nodes of a topology profile, with the pods nominated to them or without: the larger
// lack of two of the same kind.
func (t *topology) lacks(c *topologyProfile) []Lack {
	lacksWith := func(extra []int64) []Lack {
		return t.interPod.lacks(t, c, extra, t.spread.lacks(t, c, extra, nil))
	}
	out := lacksWith(nil)
	if c.extra == nil {
		return out
	}
	for _, l := range lacksWith(c.extra) {
		k := slices.IndexFunc(out, func(o Lack) bool { return o.Reason == l.Reason && o.slot == l.slot })
		switch {
		case k < 0:
			out = append(out, l)
		case l.Relative > out[k].Relative || l.Count > out[k].Count:
			out[k] = l
		}
	}
	return out
}

// lacks is filter, but tells of all constraints that a topology profile breaks.
func (p *podTopologySpread) lacks(t *topology, tp *topologyProfile, extra []int64, out []Lack) []Lack {
	for k := range p.hard {
		c := &p.hard[k]
		l := Lack{Plugin: PodTopologySpread, Reason: ReasonSpread, Relative: 1, TopologyKey: c.TopologyKey, Spread: c.SpreadConstraint, slot: c.slot}
		if tp.lacks(t.slots[c.slot].key) {
			l.Reason, l.Unresolvable, l.NoKey = ReasonSpreadMissing, true, true
			out = append(out, l)
			continue
		}
		l.Self = c.self > 0
		l.Count, l.Least = p.levels(t, c, tp, extra)
		if skew := l.Count + c.self - l.Least; skew > int64(c.MaxSkew) {
			l.Relative = float64(skew-int64(c.MaxSkew)) / float64(skew)
			out = append(out, l)
		}
	}
	return out
}

// lacks is filter, but tells of all topology keys whose terms a topology profile breaks.
func (p *interPodAffinity) lacks(t *topology, c *topologyProfile, extra []int64, out []Lack) []Lack {
	if extra != nil && p.skips(t) {
		return out
	}
	add := func(s int, reason string, unresolvable bool, count int64) {
		key := t.slots[s].key
		out = append(out, Lack{
			Plugin: InterPodAffinity, Reason: reason, Unresolvable: unresolvable, Relative: 1,
			TopologyKey: t.keys[key].name, NoKey: c.lacks(key), Count: count, slot: s,
		})
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
func (p *interPodAffinity) affinityUnmet(t *topology, c *topologyProfile, extra []int64) bool {
	anywhere := 0
	for _, s := range p.affinity {
		anywhere += t.slots[s].positive
		if !c.lacks(t.slots[s].key) && t.count(s, c) > 0 && t.countWith(s, c, extra) <= 0 {
			anywhere--
		}
	}
	return anywhere > 0 || !p.matchesSelf
}

// detail fills in what takes a look at the node's labels and at other pods.
func (s *surveyor) detail(i cluster.NodeIndex, l *Lack) {
	key := l.TopologyKey
	if l.Wanted != nil && !l.Field {
		key = l.Wanted.Key
	}
	if symbol := s.st.Symbols.Lookup(key); key != "" && symbol != cluster.NoSymbol {
		var value cluster.Symbol
		if value, l.HasValue = labelOf(s.st.Nodes.Labels[i], symbol); l.HasValue {
			l.Value = s.st.Symbols.Text(value)
		}
	}
	l.Blocker = cluster.NoPod
	switch {
	case l.Reason == ReasonNodePorts:
		l.Blocker = s.find(i, func(pod *cluster.PodRow) bool {
			return slices.ContainsFunc(s.st.Class(pod.Class).Spec.HostPorts, func(used cluster.HostPort) bool { return conflict(l.Port, &used) })
		})
	case l.Reason == ReasonAffinity:
		for _, t := range s.spec.Affinity {
			if t.TopologyKey == l.TopologyKey {
				l.Terms = append(l.Terms, t)
			}
		}
	case l.Reason == ReasonAntiAffinity:
		s.block(i, l, s.repelled)
	case l.Reason == ReasonExistingAntiAffinity:
		s.block(i, l, s.repels)
	}
}

// repelled returns the first required anti-affinity term of the pod for a topology key that matches another pod.
func (s *surveyor) repelled(key string, other *cluster.PodRow) *cluster.PodTerm {
	labels := s.st.Labels(other.Labels)
	for k := range s.c.topology.interPod.anti {
		if m := &s.c.topology.interPod.anti[k]; m.key == key && labels != nil && m.matches(&labels.LabelSet) {
			return &s.spec.AntiAffinity[k]
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

// block finds a pod in the node's domain of l for which there is a term that stands in the way: on the node itself, or on the
// first node by index.
func (s *surveyor) block(i cluster.NodeIndex, l *Lack, term func(key string, other *cluster.PodRow) *cluster.PodTerm) {
	t := s.c.topology
	key := t.slots[l.slot].key
	domain := t.row(i).domain[key]
	is := func(other *cluster.PodRow) bool { return term(l.TopologyKey, other) != nil }
	l.Blocker = s.find(i, is)
	for j := cluster.NodeIndex(0); l.Blocker == cluster.NoPod && int(j) < t.rows.len(); j++ {
		if r := t.row(j); r.live && r.domain[key] == domain && r.adds[l.slot] > 0 {
			l.Blocker = s.find(j, is)
		}
	}
	if l.Blocker != cluster.NoPod {
		l.Terms = []cluster.PodTerm{*term(l.TopologyKey, s.st.Pod(l.Blocker))}
	}
}

// find returns the first pod, by id, of those on a node and those nominated to it that count.
func (s *surveyor) find(i cluster.NodeIndex, is func(*cluster.PodRow) bool) cluster.PodID {
	found := cluster.NoPod
	for id, pod := range s.st.PodsOn(i) {
		if is(pod) && (found == cluster.NoPod || id < found) {
			found = id
		}
	}
	if found != cluster.NoPod {
		return found
	}
	for _, id := range nominatedTo(s.st, i) {
		if pod := nominee(s.st, id, s.c.signature.priority, s.self(i)); pod != nil && is(pod) {
			return id
		}
	}
	return cluster.NoPod
}

// GroupOf returns the group of one live node with that node alone, as Score would list it if it is eligible, for Totals to score
// besides the groups of all nodes. False: the state has no such class or node.
func (e *Evaluator) GroupOf(st *cluster.State, s Subject, i cluster.NodeIndex) (Group, bool) {
	c := e.evaluation(st, s)
	if c == nil {
		return Group{}, false
	}
	defer c.unlock()
	if !st.Nodes.Live.Has(i) {
		return Group{}, false
	}
	scores := c.program.fixed(st, i)
	raw := c.raw(st, i)
	image := c.imageScore(raw.Images)
	one := scoredNode(i, c.program.weights.sum(scores), scores, image)
	return Group{Raw: raw, Count: 1, Nodes: []Scored{one}, ImageLocality: c.program.weights.image(image)}, true
}
