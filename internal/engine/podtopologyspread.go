package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// PodTopologySpread spreads the pods that a constraint's selector matches, of the pod's namespace and not terminating,
// over the domains of a topology key. Domains are the values of the key on nodes that have the keys of all constraints
// of the same signature and that the constraint's inclusion policies let in.
//
// A hard constraint fails on a node without the key, unresolvably, and where the domain's count, plus one if the selector
// matches the pod itself, exceeds the least count of all domains by more than maxSkew; the least count is taken to be 0
// if there are fewer domains than minDomains.
//
// Soft constraints score: raw is the rounded sum over them of count·ln(size+2) + maxSkew-1, where size is the number of
// domains among the feasible nodes; for kubernetes.io/hostname, the number of those nodes, and count is the node's
// own. It is normalised over the feasible nodes: 100·(max+min-raw)/max, and 100 everywhere if max is 0. Nodes that
// lack a key score 0 and do not count, unless the constraints are kube-scheduler's default ones.
//
// As in kube-scheduler, an empty selector counts no pod, but matches the pod itself.
const PodTopologySpread = "PodTopologySpread"

// PodTopologySpread's reasons.
const (
	ReasonSpread        = "node(s) didn't match pod topology spread constraints"
	ReasonSpreadMissing = "node(s) didn't match pod topology spread constraints (missing required label)"
)

var podTopologySpread = Descriptor{
	Name: PodTopologySpread, Points: []string{"preFilter", "filter", "preScore", "score"},
	Needs:      map[string][]string{"filter": {"preFilter"}, "score": {"preScore"}},
	Judges:     []Aspect{Spreading},
	Predicates: []string{"EvenPodsSpread"}, Priorities: []string{"EvenPodsSpreadPriority"},
	reasons: []Reason{{Text: ReasonSpread}, {Text: ReasonSpreadMissing}},
	scale:   reversedRangeScale,
	relate: func(r *relating) relation {
		in, requireAll := r.constraints()
		return &spreadRelation{in, requireAll}
	},
	hints: hints{
		pod: spreadMoves,
		on: func(d *Demands, was, is *cluster.Node) bool {
			before, after := was != nil && d.keys(was), is != nil && d.keys(is)
			return before != after || before && after && (!slices.Equal(was.Taints, is.Taints) || d.moves(was, is))
		},
		own: func(d *Demands, c *ownChange) bool {
			honored := slices.ContainsFunc(d.constraints, func(s cluster.SpreadConstraint) bool { return s.HonorTaints })
			return c.tolerations() && honored || c.relabeled && d.distinguishes(c.labelsWas, c.labelsIs)
		},
	},
	keeps: hints{
		pod: func(st *cluster.State, d *Demands, m *Moved) bool {
			return spreadMoves(st, d, m) || m.ends && d.counts(m.is)
		},
		on:        keptByNodes,
		selectors: func(d *Demands) bool { return d.anyLabels && len(d.constraints) > 0 },
	},
	short: inWords("would break its topology spread", "would break its topology spread"),
	text: func(l *Lack, _ Blocker) string {
		switch {
		case l.NoKey:
			return l.missing("topology spread")
		case l.Spread == nil:
			return l.Reason
		}
		with := ""
		if l.Self {
			with = " and would have one more"
		}
		return fmt.Sprintf("topology spread over %s: %q has %d matching %s%s, the least of all domains is %d, and maxSkew is %d",
			l.TopologyKey, l.Value, l.Count, plural(int(l.Count), "pod", "pods"), with, l.Least, l.Spread.MaxSkew)
	},
}

// spreadMoves is the hint for what other pods do.
func spreadMoves(_ *cluster.State, d *Demands, m *Moved) bool {
	switch {
	case m.was == nil:
		return d.counts(m.is)
	case m.is == nil:
		return d.counts(m.was)
	}
	return m.was != m.is && m.is.Namespace == d.namespace && d.distinguishes(m.was, m.is)
}

// spreadRelation is the constraints in force: the class's own, or the profile's with the pod's default selector.
type spreadRelation struct {
	in         []cluster.SpreadConstraint
	requireAll bool // nodes that lack a topology key of a soft constraint do not score
}

func (s *spreadRelation) leftOut(*cluster.State, *relations, func(string)) {}

func (s *spreadRelation) matches(_ *cluster.State, r *relations, key *signatureKey) {
	for k := range s.in {
		key.bool(s.in[k].Selector.Matches(r.labels.Labels))
	}
}

// spread judges topology profiles. Each constraint has a slot of its own.
type spread struct {
	code       Verdict
	namespace  string
	hard, soft []spreadConstraint
	// requireAll says that nodes without the key of a soft constraint neither count nor score.
	requireAll bool

	weighing weighing
}

type spreadConstraint struct {
	*cluster.SpreadConstraint
	slot int
	self int64 // 1 if the pod matches its own selector
}

func (of *spreadRelation) judge(t *topology, _ *cluster.State, r *relations, plugin *Plugin) crossNode {
	p := &spread{code: plugin.code, namespace: r.namespace, requireAll: of.requireAll}
	for k := range of.in {
		c := spreadConstraint{SpreadConstraint: &of.in[k]}
		if c.Selector.Matches(r.labels.Labels) {
			c.self = 1
		}
		s := slot{key: t.key(c.TopologyKey), chosen: true}
		if c.Hard {
			s.domains = new(domains)
		} else {
			s.local = c.TopologyKey == hostname
			s.emptyCounts = !p.requireAll
		}
		c.slot = t.addSlot(s)
		t.own++
		if c.Hard {
			p.hard = append(p.hard, c)
		} else {
			p.soft = append(p.soft, c)
		}
	}
	return p
}

func (p *spread) filters() bool                             { return len(p.hard) > 0 }
func (p *spread) resolves() bool                            { return false }
func (p *spread) fingerprint(*cluster.State, *signatureKey) {}
func (p *spread) weighs() bool                              { return len(p.soft) > 0 }

// increments adds what a placed pod with these labels counts; with moved, what one changes that is thought to come or go.
func (p *spread) increments(_ *cluster.State, pod *cluster.LabelSet, moved bool, out []increment) []increment {
	if pod.Namespace != p.namespace {
		return out
	}
	for _, c := range p.hard {
		if (moved || !c.Selector.Empty()) && c.Selector.Matches(pod.Labels) {
			out = append(out, increment{c.slot, 1, !moved})
		}
	}
	if moved {
		return out
	}
	for _, c := range p.soft {
		if !c.Selector.Empty() && c.Selector.Matches(pod.Labels) {
			out = append(out, increment{c.slot, 1, true})
		}
	}
	return out
}

// counts reports for which slots a node counts, as a mask, given its domain of each topology key.
func (p *spread) counts(t *topology, st *cluster.State, program *program, i cluster.NodeIndex, domain []int32) uint64 {
	mask := uint64(0)
	add := func(constraints []spreadConstraint, requireAll bool) {
		for _, c := range constraints {
			if requireAll && domain[t.slots[c.slot].key] == noDomain {
				return
			}
		}
		for _, c := range constraints {
			if c.HonorAffinity && !program.selection.admits(st, i) || c.HonorTaints && !program.tolerations.admit(&st.Nodes, i) {
				continue
			}
			mask |= t.slots[c.slot].bit
		}
	}
	add(p.hard, true)
	add(p.soft, p.requireAll)
	return mask
}

// filter judges a node of a topology profile as if extra were counted besides, by slot.
func (p *spread) filter(t *topology, tp *topologyProfile, extra []int64) Verdict {
	for k := range p.hard {
		c := &p.hard[k]
		s := &t.slots[c.slot]
		if tp.lacks(s.key) {
			return p.code + 1 | unresolvable
		}
		if count, least := p.levels(t, c, tp, extra); count+c.self-least > int64(c.MaxSkew) {
			return p.code
		}
	}
	return codeFeasible
}

// levels returns the count of a topology profile's domain and the least count of all domains, as if extra were counted besides.
func (p *spread) levels(t *topology, c *spreadConstraint, tp *topologyProfile, extra []int64) (count, least int64) {
	d := t.slots[c.slot].domains
	was, count := t.count(c.slot, tp), t.countWith(c.slot, tp, extra)
	least = d.least()
	if count != was {
		least = d.leastIf(was, count)
	}
	if d.count < int64(c.MinDomains) {
		least = 0
	}
	return count, least
}

// ignores reports whether the nodes of a topology profile do not score.
func (p *spread) ignores(t *topology, tp *topologyProfile) bool {
	if p.requireAll {
		for k := range p.soft {
			if tp.lacks(t.slots[p.soft[k].slot].key) {
				return true
			}
		}
	}
	return false
}

// score scores a topology profile, if it is not ignored, with the weights that the soft constraints have been given last.
func (p *spread) score(t *topology, tp *topologyProfile) (int64, bool) {
	if len(p.soft) == 0 || p.ignores(t, tp) {
		return 0, false
	}
	score, weights := float64(0), p.weighing.weights
	for k := range p.soft {
		c := &p.soft[k]
		if !tp.lacks(t.slots[c.slot].key) {
			score += float64(t.count(c.slot, tp))*weights[k] + float64(c.MaxSkew-1)
		}
	}
	return int64(math.Round(score)), true
}

// weighing is room for what weights counts.
type weighing struct {
	round   uint64
	sizes   []int64
	seen    [][]uint64 // by constraint and domain: the round that it was last seen in
	weights []float64
}

// weigh weighs each soft constraint, given how many eligible nodes each topology profile has.
func (p *spread) weigh(t *topology, eligible []int64) {
	w := &p.weighing
	w.round++
	w.sizes, w.seen, w.weights = grow(w.sizes, len(p.soft)), grow(w.seen, len(p.soft)), grow(w.weights, len(p.soft))
	clear(w.sizes)
	nodes := int64(0)
	t.feasible(eligible, func(tp *topologyProfile, n int64) {
		if p.ignores(t, tp) {
			return
		}
		nodes += n
		for k := range p.soft {
			s := &t.slots[p.soft[k].slot]
			switch d := tp.domain(s.key); {
			case s.local:
			case d == ownDomain:
				w.sizes[k] += n // as many domains, of one node each
			default:
				w.seen[k] = grow(w.seen[k], int(d)+1)
				if w.seen[k][d] != w.round {
					w.seen[k][d] = w.round
					w.sizes[k]++
				}
			}
		}
	})
	for k := range p.soft {
		size := w.sizes[k]
		if t.slots[p.soft[k].slot].local {
			size = nodes
		}
		w.weights[k] = math.Log(float64(size + 2))
	}
}

// lacks is filter, but tells of all constraints that a topology profile breaks.
func (p *spread) lacks(t *topology, tp *topologyProfile, extra []int64, out []Lack) []Lack {
	for k := range p.hard {
		c := &p.hard[k]
		l := Lack{Plugin: PodTopologySpread, Reason: ReasonSpread, Relative: 1, TopologyKey: c.TopologyKey, Spread: c.SpreadConstraint, slot: c.slot, Help: helpOfDomain(c.TopologyKey)}
		if tp.lacks(t.slots[c.slot].key) {
			l.Reason, l.Unresolvable, l.NoKey, l.Help = ReasonSpreadMissing, true, true, 0
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

// constraints returns the spread constraints in force, as filtering and scoring pick them.
func (r *relating) constraints() ([]cluster.SpreadConstraint, bool) {
	if !r.filters && !r.scores || r.labels == nil {
		return nil, true
	}
	own := len(r.spec.Spread) > 0
	all := r.spec.Spread
	if !own {
		all = r.profile.DefaultSpread
	}
	in := slices.DeleteFunc(slices.Clone(all), func(c cluster.SpreadConstraint) bool {
		return c.Hard && !r.filters || !c.Hard && !r.scores
	})
	if len(in) == 0 {
		return nil, true
	}
	if !own {
		selector := defaultSelector(r.st, &r.labels.LabelSet)
		if selector.Empty() {
			return nil, true
		}
		for k := range in {
			in[k].Selector = selector
		}
		for _, q := range selector.Requirements {
			r.key.text(q.Key)
			r.key.text(q.Operator)
			r.key.int(len(q.Values))
			for _, v := range q.Values {
				r.key.text(v)
			}
		}
		r.key.bool(selector.Nothing)
	}
	r.key.text(r.namespace)
	return in, own || !r.profile.SystemSpread
}

// defaultSelector returns what the default constraints of a pod select: what all services that select the pod, and its
// controller, select together.
func defaultSelector(st *cluster.State, pod *cluster.LabelSet) cluster.LabelSelector {
	// 1. The services agree on the labels that they share, since they select the same pod.
	var out cluster.LabelSelector
	for _, selector := range st.Services(pod.Namespace) {
		if selector.Matches(pod.Labels) {
			out.Requirements = append(out.Requirements, selector.Requirements...)
		}
	}
	// 2. A ReplicationController's labels take the place of theirs; the selectors of others come in addition.
	if c := pod.Controller; c.Kind != "" {
		if selector, ok := st.Selector(c.Kind, pod.Namespace, c.Name); ok && !selector.Nothing {
			if c.Kind == cluster.KindReplicationController {
				out.Requirements = slices.DeleteFunc(out.Requirements, func(q cluster.Requirement) bool {
					return slices.ContainsFunc(selector.Requirements, func(r cluster.Requirement) bool { return r.Key == q.Key })
				})
			}
			out.Requirements = append(out.Requirements, selector.Requirements...)
		}
	}
	slices.SortFunc(out.Requirements, compareRequirements)
	out.Requirements = slices.CompactFunc(out.Requirements, func(a, b cluster.Requirement) bool { return compareRequirements(a, b) == 0 })
	return out
}

func compareRequirements(a, b cluster.Requirement) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
}

// counts reports whether a constraint counts a pod with these labels.
func (d *Demands) counts(pod *cluster.LabelSet) bool {
	return pod.Namespace == d.namespace &&
		slices.ContainsFunc(d.constraints, func(c cluster.SpreadConstraint) bool { return d.anyLabels || c.Selector.Matches(pod.Labels) })
}

// distinguishes reports whether a constraint counts a pod with the ones but not with the other labels.
func (d *Demands) distinguishes(was, is *cluster.LabelSet) bool {
	return slices.ContainsFunc(d.constraints, func(c cluster.SpreadConstraint) bool {
		return d.anyLabels || c.Selector.Matches(was.Labels) != c.Selector.Matches(is.Labels)
	})
}

// keys reports whether a node has the topology keys of all constraints.
func (d *Demands) keys(n *cluster.Node) bool {
	return !slices.ContainsFunc(d.constraints, func(c cluster.SpreadConstraint) bool {
		_, ok := topologyOf(n, c.TopologyKey)
		return !ok
	})
}

// moves reports whether a node that has all keys has come to another domain of a constraint.
func (d *Demands) moves(was, is *cluster.Node) bool {
	return slices.ContainsFunc(d.constraints, func(c cluster.SpreadConstraint) bool {
		old, _ := topologyOf(was, c.TopologyKey)
		value, _ := topologyOf(is, c.TopologyKey)
		return old != value
	})
}
