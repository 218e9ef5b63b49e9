package engine

import (
	"cmp"
	"math/bits"
	"slices"

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
	// Aside says that the node is set aside for that before any filter runs: nobody has looked what else it lacks.
	Aside bool

	// Of requests: what the pod requests, what the node has left but for what is held for pods nominated to it, and
	// its allocatable. Free is negative on a node that is over its allocatable. "pods" is the number of pods.
	Resource                  string
	Requested, Free, Capacity int64

	// Of taints.
	Taint *cluster.Taint

	// Of node affinity: the condition that the node does not meet, nil if no node could meet the terms. Term is its place in
	// ClassSpec.Required, or in the profile's AddedRequired by the reason, and Index its place in the term's Fields, if Field,
	// or Expressions. Term is -1 for a label of the node selector, with Index its place there, and for the pod's required node. Of
	// several required terms it is the one of which the node lacks least.
	Wanted      *cluster.Requirement
	Term, Index int
	Field       bool

	Of *ClaimLack // of volumes; nil: there is nothing to say of claims

	Port    *cluster.HostPort // the host port that is taken
	Feature string            // that is not declared
	Name    string            // of the node that the pod asks for

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

	Help Help // what could help

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
	Refused         bool        // the pod is refused, or cannot be judged, whatever the nodes are: they have not been looked at
	Rejections      []Rejection // in kube-scheduler's order of plugins
}

// Survey judges all nodes for a pod, also for one that is placed, as if it came in addition. It calls visit for each node
// that is not feasible, by index, with all that the node lacks; the lacks hold until visit returns. Between parts of some nodes, the more claims the
// pod has the fewer, it calls between, if that is not nil, and ends with its error. Neither must call the Evaluator. False: the state has no such pod.
func (e *Evaluator) Survey(st *cluster.State, pod cluster.PodID, between func() error, visit func(cluster.NodeIndex, []Lack)) (out Survey, ok bool, err error) {
	ok = e.withSurveyor(st, pod, func(s *surveyor) { out, err = s.survey(between, visit) })
	return out, ok, err
}

func (s *surveyor) survey(between func() error, visit func(cluster.NodeIndex, []Lack)) (Survey, error) {
	st, c := s.st, s.c
	c.sync(st)
	c.reserve(st)
	if c.topology.filters() {
		c.topology.judgeAll()
	}
	out := Survey{Refused: s.program.unsupported != ""}
	var t tally
	var first [maxCodes][2]int32 // nodes by code; 1 for unresolvable
	var lacks []Lack
	part := NodesAtOnce(len(s.claims()))
	for w, live := range st.Nodes.Live {
		for ; live != 0; live &= live - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(live))
			if between != nil && out.Nodes%int32(part) == 0 {
				if err := between(); err != nil {
					return Survey{}, err
				}
			}
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
	for _, v := range MergeVerdicts(t.verdicts(st, s.program)) {
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
		plugin := s.program.pluginOf(Verdict(code))
		for k := range out.Rejections {
			if out.Rejections[k].Plugin == plugin {
				out.Rejections[k].Nodes += nodes[0] + nodes[1]
				out.Rejections[k].Unresolvable += nodes[1]
			}
		}
	}
	return out, nil
}

// NodesAtOnce is for how many nodes what they say of a pod may be found out in one piece of work: each claim of the pod may be compared with each volume
// that there is.
func NodesAtOnce(claims int) int { return max(64/max(claims, 1), 1) }

// Judge finds out what the nodes of a range say of pods by themselves, so that Filter need not, nor Survey.
func (e *Evaluator) Judge(st *cluster.State, s Subject, r cluster.Range) {
	e.withFilters(st, s, func(c *evaluation) {
		c.sync(st)
		c.reserve(st)
		r = r.Clip(st.Nodes.Len())
		for i := r.First; i < r.End; i++ {
			if st.Nodes.Live.Has(i) {
				c.eligible(st, i)
			}
		}
	})
}

// Shortfall returns all that keeps a pod off a node, by plugin in the profile's order; nothing if it fits. False: the state
// has no such pod or node.
func (e *Evaluator) Shortfall(st *cluster.State, pod cluster.PodID, i cluster.NodeIndex) (out []Lack, ok bool) {
	if !st.Nodes.Live.Has(i) {
		return nil, false
	}
	ok = e.withSurveyor(st, pod, func(s *surveyor) {
		out = s.lacks(i, nil)
		for k := range out {
			s.detail(i, &out[k])
		}
	})
	slices.SortStableFunc(out, func(a, b Lack) int { return cmp.Compare(rankOfPlugin(a.Plugin), rankOfPlugin(b.Plugin)) })
	return out, ok
}

// surveyor finds out what nodes lack for one pod.
type surveyor struct {
	st *cluster.State
	c  *evaluation
	// program is what judges the nodes: for a pod that requires one, it does not matter where else a plugin fails.
	program *program
	spec    *cluster.ClassSpec
	id      cluster.PodID
	pod     *cluster.PodRow

	requiredNode *cluster.Requirement
	nominated    cluster.NodeIndex // where the pod does not stand in its own way
	before       []surveyFunc      // by program.before and program.filters; nil: what the filter says is all
	filters      []surveyFunc
	profileLacks [][]Lack // by topologyProfileID, once they have been found

	own        []ownClaim // see claims
	claimsRead bool
	refusing   *ClaimLack // see refused
	refusedSet bool
}

// surveyFunc adds all that a live node lacks, as far as one plugin judges it, with the pods that count as nominated to it.
type surveyFunc func(i cluster.NodeIndex, nominees *overlay, out []Lack) []Lack

// withSurveyor calls f with one for a pod, its evaluation locked. False: the state has no such pod, and f was not called.
func (e *Evaluator) withSurveyor(st *cluster.State, pod cluster.PodID, f func(*surveyor)) bool {
	row := st.Pod(pod)
	if row == nil {
		return false
	}
	return e.withFilters(st, SubjectOf(&row.Pod), func(c *evaluation) { f(newSurveyor(st, c, pod, row)) })
}

func newSurveyor(st *cluster.State, c *evaluation, pod cluster.PodID, row *cluster.PodRow) *surveyor {
	p := c.programIf(row.RequiredNode != "")
	s := &surveyor{st: st, c: c, program: p, spec: &st.Class(row.Class).Spec, id: pod, pod: row, nominated: cluster.NoNode}
	if !row.Placed() {
		s.nominated = st.Nodes.ByName(row.Nominated)
	}
	if row.RequiredNode != "" {
		s.requiredNode = &cluster.Requirement{Key: nameField, Operator: "In", Values: []string{row.RequiredNode}}
	}
	surveys := func(steps []step) (out []surveyFunc) {
		for _, step := range steps {
			var survey surveyFunc
			if step.survey != nil {
				survey = step.survey(s)
			}
			out = append(out, survey)
		}
		return out
	}
	s.before, s.filters = surveys(p.before), surveys(p.filters)
	return s
}

// elsewhere reports whether the pod requires another node.
func (s *surveyor) elsewhere(i cluster.NodeIndex) bool {
	return s.requiredNode != nil && s.st.Nodes.Spec[i].Name != s.pod.RequiredNode
}

// verdict judges a live node. The evaluation is synced and has reserved room, and its topology profiles are judged.
func (s *surveyor) verdict(i cluster.NodeIndex) Verdict {
	c := s.c
	switch {
	case s.elsewhere(i) && s.program.unsupported == "":
		_, code := requiredElsewhere()
		return code | unresolvable
	case s.nominated == i, s.requiredNode != nil:
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
	p := s.program
	if p.unsupported != "" {
		lack := Lack{Plugin: p.unsupportedPlugin, Reason: p.unsupported, Unresolvable: true, Relative: 1}
		if s.spec.Unsupported == "" {
			lack.Of = s.refused()
		}
		return append(out, lack)
	}
	// 1. What is set aside before any filter runs.
	for k := range p.before {
		v := firstOf(p.before[k:k+1], s.st, i, nil)
		switch {
		case v == codeFeasible:
		case s.before[k] == nil:
			l := p.lack(p.before[k].plugin, v)
			l.Aside = true
			return append(out, l)
		default:
			out = s.before[k](i, nil, out)
		}
	}
	if s.elsewhere(i) {
		name, code := requiredElsewhere()
		out = append(out, Lack{Plugin: name, Reason: reasonOf(code), Unresolvable: true, Relative: 1, Wanted: s.requiredNode, Term: -1, Field: true})
	}
	// 2. What the node's own filters say.
	nominees := p.nomineesOf(s.st, i, s.c.signature.priority, s.self(i))
	for k := range p.filters {
		if s.filters[k] != nil {
			out = s.filters[k](i, nominees, out)
		} else if v := p.alone(k, s.st, i, nominees); v != codeFeasible {
			out = append(out, p.lack(p.filters[k].plugin, v))
		}
	}
	// 3. What pods on other nodes decide.
	if s.c.topology.filters() {
		out = append(out, s.topologyProfileLacks(i)...)
	}
	return out
}

// lack returns what there is to say of a node by a plugin's verdict alone.
func (p *program) lack(of *Plugin, v Verdict) Lack {
	_, reason := p.reason(int(v.code()))
	return Lack{Plugin: of.Name, Reason: reason, Unresolvable: v.Unresolvable(), Relative: 1, Help: of.help}
}

// helpOfDomain is what could help a node to which its domain is closed by pods that are there.
func helpOfDomain(key string) Help {
	if key == hostname {
		return HelpNewNode
	}
	return HelpNewNodeNominees // what pods nominated to a node deny is not denied to others of its domain
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
		var out []Lack
		for _, p := range t.plugins {
			out = p.lacks(t, c, extra, out)
		}
		return out
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
	if p := PluginOf(l.Plugin); p != nil && p.detail != nil {
		p.detail(s, i, l)
	}
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
func (e *Evaluator) GroupOf(st *cluster.State, s Subject, i cluster.NodeIndex) (out Group, ok bool) {
	e.with(st, s, func(c *evaluation) {
		if ok = st.Nodes.Live.Has(i); ok {
			out = c.groupOf(st, i)
		}
	})
	return out, ok
}

func (c *evaluation) groupOf(st *cluster.State, i cluster.NodeIndex) Group {
	scores := c.program.fixed(st, i)
	raw := c.raw(st, i)
	image := c.imageScore(raw.Images)
	one := scoredNode(i, c.program.weights.sum(scores), scores, image)
	return Group{Raw: raw, Count: 1, Nodes: []Scored{one}, OfImages: c.program.weights.image(image)}
}
