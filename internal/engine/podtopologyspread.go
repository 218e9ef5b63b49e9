package engine

import (
	"math"

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

const hostname = "kubernetes.io/hostname"

// podTopologySpread judges topology profiles. Each constraint has a slot of its own.
type podTopologySpread struct {
	namespace  string
	hard, soft []spreadConstraint
	// requireAll says that nodes without the key of a soft constraint neither count nor score.
	requireAll bool
	// countsNodes says that a soft constraint's weight depends on the number of feasible nodes.
	countsNodes bool

	weighing weighing
}

type spreadConstraint struct {
	*cluster.SpreadConstraint
	slot int
	self int64 // 1 if the pod matches its own selector
}

func (t *topology) compilePodTopologySpread(r *relations) {
	p := &t.spread
	p.namespace, p.requireAll = r.namespace, r.requireAll
	for k := range r.spread {
		c := spreadConstraint{SpreadConstraint: &r.spread[k]}
		if c.Selector.Matches(r.labels.Labels) {
			c.self = 1
		}
		s := slot{key: t.key(c.TopologyKey), spread: c.SpreadConstraint}
		if c.Hard {
			s.domains = new(domains)
		} else {
			s.local = c.TopologyKey == hostname
			s.emptyCounts = !p.requireAll
			p.countsNodes = p.countsNodes || s.local
		}
		c.slot = t.addSlot(s)
		if c.Hard {
			p.hard = append(p.hard, c)
		} else {
			p.soft = append(p.soft, c)
		}
	}
}

// increments adds what a placed pod with these labels counts; with moved, what one changes that is thought to come or go.
func (p *podTopologySpread) increments(pod *cluster.LabelSet, moved bool, out []increment) []increment {
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

// counts reports for which slots a node counts, as a mask, given which topology keys it lacks.
func (p *podTopologySpread) counts(st *cluster.State, program *program, i cluster.NodeIndex, lacks func(slot int) bool) uint64 {
	mask := uint64(0)
	add := func(constraints []spreadConstraint, requireAll bool) {
		for _, c := range constraints {
			if requireAll && lacks(c.slot) {
				return
			}
		}
		for _, c := range constraints {
			if c.HonorAffinity && !program.affinity.selects(st, i) || c.HonorTaints && program.taints.filter(&st.Nodes, i) != codeFeasible {
				continue
			}
			mask |= 1 << c.slot
		}
	}
	add(p.hard, true)
	add(p.soft, p.requireAll)
	return mask
}

// filter judges a node of a topology profile as if extra were counted besides, by slot.
func (p *podTopologySpread) filter(t *topology, tp *topologyProfile, extra []int64) Verdict {
	for k := range p.hard {
		c := &p.hard[k]
		s := &t.slots[c.slot]
		if tp.lacks(s.key) {
			return codeSpreadMissing | unresolvable
		}
		if count, least := p.levels(t, c, tp, extra); count+c.self-least > int64(c.MaxSkew) {
			return codeSpread
		}
	}
	return codeFeasible
}

// levels returns the count of a topology profile's domain and the least count of all domains, as if extra were counted besides.
func (p *podTopologySpread) levels(t *topology, c *spreadConstraint, tp *topologyProfile, extra []int64) (count, least int64) {
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
func (p *podTopologySpread) ignores(t *topology, tp *topologyProfile) bool {
	if p.requireAll {
		for k := range p.soft {
			if tp.lacks(t.slots[p.soft[k].slot].key) {
				return true
			}
		}
	}
	return false
}

// raw scores a topology profile that is not ignored, given the weight of each soft constraint.
func (p *podTopologySpread) raw(t *topology, tp *topologyProfile, weights []float64) int64 {
	score := float64(0)
	for k := range p.soft {
		c := &p.soft[k]
		if !tp.lacks(t.slots[c.slot].key) {
			score += float64(t.count(c.slot, tp))*weights[k] + float64(c.MaxSkew-1)
		}
	}
	return int64(math.Round(score))
}

// weighing is room for what weights counts.
type weighing struct {
	round   uint64
	sizes   []int64
	seen    [][]uint64 // by constraint and domain: the round that it was last seen in
	weights []float64
}

// weights returns the weight of each soft constraint, given the topology profiles that have feasible nodes and how many. They hold
// until it is called again.
func (p *podTopologySpread) weights(t *topology, feasible func(visit func(*topologyProfile, int64))) []float64 {
	w := &p.weighing
	w.round++
	w.sizes, w.seen, w.weights = grow(w.sizes, len(p.soft)), grow(w.seen, len(p.soft)), grow(w.weights, len(p.soft))
	clear(w.sizes)
	nodes := int64(0)
	feasible(func(tp *topologyProfile, n int64) {
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
	return w.weights
}

// normalizeSpread scales a raw score, given the least and the largest of all feasible nodes that are not ignored.
func normalizeSpread(raw, least, largest int64) int64 {
	if largest == 0 {
		return maxScore
	}
	return maxScore * (largest + least - raw) / largest
}

// domains are the counts of the domains of a hard constraint, by count.
type domains struct {
	nodes  []int32 // by domain: nodes that count
	count  int64   // of domains with such nodes
	levels []int32 // how many domains have each count
	lowest int64   // no domain has less
}

func (d *domains) enter(count int64) {
	d.levels = grow(d.levels, int(count)+1)
	d.levels[count]++
	if d.count++; d.count == 1 {
		d.lowest = count
	}
	d.lowest = min(d.lowest, count)
}

func (d *domains) leave(count int64) {
	d.levels[count]--
	d.count--
}

// least returns the least count of all domains, 0 if there is none. Asked again, it writes nothing.
func (d *domains) least() int64 {
	if d.count == 0 {
		return 0
	}
	for d.levels[d.lowest] == 0 {
		d.lowest++
	}
	return d.lowest
}

// leastIf returns what the least count would be if that of one domain were another. It may be negative.
func (d *domains) leastIf(from, to int64) int64 {
	least := d.least()
	switch {
	case to <= least:
		return to
	case from != least || d.levels[least] > 1:
		return least
	}
	for k := least + 1; k < min(to, int64(len(d.levels))); k++ {
		if d.levels[k] > 0 {
			return k
		}
	}
	return to
}
