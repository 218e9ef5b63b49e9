package engine

import (
	"github.com/berth-scheduler/berth/internal/cluster"
)

// Candidates are what the score-workers found for a class, merged over all ranges by MergeGroups.
type Candidates struct {
	Subject Subject
	Groups  []Group
}

// Placement is what became of a pod.
type Placement int

// The placements.
const (
	Retry  Placement = iota // what is left of the candidates does not prove which node is best
	Placed                  // on the feasible node of the largest total score
	NoFit                   // no node is feasible
)

func (p Placement) String() string {
	switch p {
	case Placed:
		return "placed"
	case NoFit:
		return "no fit"
	}
	return "retry"
}

// Placer places the pods of one batch, in order, on the live state. A pod goes to the node that kube-scheduler's
// filters and scores prefer of all nodes as they are at that moment, or the Placer says that it cannot prove which one
// that is.
//
// What the candidates say of a node holds until the node changes. Nodes that have changed since, whoever changed them, are filtered and
// scored again here, once per class and change. The scores of candidates are what each node alone decides. What pods and images on other
// nodes decide is the same for all nodes of a group, and is counted here, as it is at the moment. Why the choice is exact is said at choose.
//
// A Placer is for one goroutine, which may change the state between calls, by any delta.
type Placer struct {
	e         *Evaluator
	st        *cluster.State
	evaluated cluster.Seq
	sets      []candidateSet

	seen    cluster.Seq // the journal is complete up to this seq
	quiet   cluster.Seq // since then nothing has changed but by this Placer's placements
	journal []change
	placed  cluster.NodeIndex // chosen by the last call, if it placed

	nominations bool // there were some when last seen
	again       int  // see mostAgain
}

// change says that a node changed at a seq.
type change struct {
	node cluster.NodeIndex
	seq  cluster.Seq
}

// NewPlacer returns a Placer for one batch. Evaluated is the seq of the oldest answer that went into the candidates,
// of the state's epoch; the candidates are what Choose's index counts. Candidates are checked, not trusted: one that is not
// feasible is never chosen.
func NewPlacer(e *Evaluator, st *cluster.State, evaluated cluster.Seq, candidates []Candidates) *Placer {
	p := &Placer{
		e: e, st: st, evaluated: evaluated, seen: evaluated, quiet: st.Version().Seq, placed: cluster.NoNode, nominations: st.Nominations() > 0,
	}
	p.sets = make([]candidateSet, len(candidates))
	for k := range candidates {
		p.sets[k] = newCandidateSet(&candidates[k])
	}
	return p
}

// placeAs chooses the best node of all for the next pod of a subject, by the index of candidates, which need not be meant for it; but for one that has
// refused the pod, or cluster.NoNode.
func (p *Placer) placeAs(index int, s Subject, refused cluster.NodeIndex) (cluster.NodeIndex, Placement) {
	p.observe()
	p.placed = cluster.NoNode
	if index < 0 || index >= len(p.sets) {
		return cluster.NoNode, Retry
	}
	placement := Retry
	if c, fitsNowhere := p.setFor(&p.sets[index], s); fitsNowhere {
		placement = NoFit
	} else if c != nil {
		p.with(c, s, func() { p.placed, placement = p.place(c, refused) })
	}
	return p.placed, placement
}

// setFor returns the candidates as pods of a subject see them, nil if they are not meant for these; or that its volumes are such that they
// fit nowhere.
//
// They are meant for pods whose signature the subject of the candidates had when these were found: as far as volumes go, for one that it would
// have now if no volume had come into use since. So a pod that a claim is shared with may be placed before, and pods with other claims be of
// one signature nevertheless.
func (p *Placer) setFor(c *candidateSet, s Subject) (set *candidateSet, refused bool) {
	if c.begun && !c.volumes && s == c.subject {
		return c, false
	}
	signature, r := p.e.relationsOf(p.st, s)
	switch {
	case r == nil:
		return nil, false
	case r.volumes.refuses():
		return nil, true
	case c.begun && signature == c.signature:
		return c, false
	case c.others[signature] != nil:
		return c.others[signature], false
	}
	found, then := p.e.relationsAsOf(p.st, s, p.evaluated)
	if !c.begun {
		if c.found = found; s != c.subject {
			if len(c.candidates.Groups) == 0 && c.subject.Labels != cluster.NoLabels && p.st.Labels(c.subject.Labels) == nil {
				return nil, false // its pods are gone, and with them what their volumes came to, which groups would say
			}
			c.found, _ = p.e.relationsAsOf(p.st, c.subject, p.evaluated)
		}
	}
	if found != c.found {
		return nil, false
	}
	if set = c; c.begun {
		if !p.looksAgain(c) {
			return nil, false
		}
		other := newCandidateSet(c.candidates)
		if set = &other; c.others == nil {
			c.others = make(map[Signature]*candidateSet)
		}
		c.others[signature] = set
	}
	set.begun, set.signature, set.seed = true, signature, TieSeed(p.st, s.Class)
	set.foundWritten, set.foundProfile = then.written, then.onlyProfile
	return set, false
}

// mostAgain bounds how many nodes and groups are looked at again because candidates are for pods of several signatures, or for one that a node has
// refused; but for the first time, or nobody might ever.
const mostAgain = 1 << 15

// looksAgain reports whether all that is known of candidates may be looked at again.
func (p *Placer) looksAgain(c *candidateSet) bool {
	first := p.again == 0
	p.again += len(p.journal) + len(c.candidates.Groups)
	return first || p.again <= mostAgain
}

// with calls f while the evaluation of a subject of the candidate set's signature is locked and up to date, unless the state has no such
// class. It is looked up again if there was anything but placements, which alone change neither what the class is nor how it relates to
// others; or if the pods have volumes, which others may have come to use by that.
func (p *Placer) with(c *candidateSet, s Subject, f func()) {
	if of := c.evaluation; of != nil && c.known >= p.quiet && !c.volumes {
		of.locked(func() {
			of.syncCounts(p.st)
			f()
		})
		return
	}
	c.evaluation, c.known = nil, p.st.Version().Seq
	p.e.with(p.st, s, func(of *evaluation) {
		c.evaluation, c.volumes = of, of.relation.volumes != nil
		f()
	})
}

// place is placeAs for a candidate set whose evaluation is locked and up to date.
func (p *Placer) place(c *candidateSet, refused cluster.NodeIndex) (cluster.NodeIndex, Placement) {
	switch {
	case c.signature != c.evaluation.signature:
		return cluster.NoNode, Retry
	case c.evaluation.failing.refuses():
		return cluster.NoNode, NoFit
	case len(c.candidates.Groups) == 0 && p.unproven(c):
		return cluster.NoNode, Retry
	}
	if refused != cluster.NoNode && c.evaluation.program.filter(p.st, refused, c.evaluation.signature.priority, cluster.NoPod).Feasible() {
		if c = p.without(c, refused); c == nil {
			return cluster.NoNode, Retry
		}
	}
	c.begin(p.st)
	p.catchUp(c)
	return p.choose(c)
}

// without returns the candidates as one pod sees them that a node has refused, nil if that is too much to look at again.
func (p *Placer) without(c *candidateSet, refused cluster.NodeIndex) *candidateSet {
	if !p.looksAgain(c) {
		return nil
	}
	out := newCandidateSet(c.candidates)
	out.begun, out.signature, out.seed, out.refused = true, c.signature, c.seed, refused
	out.foundWritten, out.foundProfile = c.foundWritten, c.foundProfile
	out.evaluation = c.evaluation
	return &out
}

// unproven reports whether nodes that have not changed may fit though there are no candidates: the volumes of the pods may have come to something
// else since, or another node been to blame. Where there are candidates, it is these that say so.
func (p *Placer) unproven(c *candidateSet) bool {
	return c.volumes && (p.st.VolumesModified() > p.evaluated || c.evaluation.failing.own != nil && p.st.Version().Seq > p.evaluated)
}

// PlaceOn checks one node, which a pod requires or is nominated to. Self is the pod, or cluster.NoPod.
func (p *Placer) PlaceOn(s Subject, self cluster.PodID, node cluster.NodeIndex) Placement {
	_, placement := p.placeOn(s, self, node)
	return placement
}

// placeOn is PlaceOn, with what is said of the node.
func (p *Placer) placeOn(s Subject, self cluster.PodID, node cluster.NodeIndex) (Verdict, Placement) {
	p.observe()
	p.placed = cluster.NoNode
	verdict, known := p.e.Node(p.st, s, self, node)
	switch {
	case p.st.Class(s.Class) == nil:
		return verdict, Retry
	case !known || !verdict.Feasible():
		return verdict, NoFit
	}
	p.placed = node
	return verdict, Placed
}

// observe writes down which nodes have changed since it was last called.
func (p *Placer) observe() {
	n, seq := &p.st.Nodes, p.st.Version().Seq
	switch {
	case seq == p.seen:
		return
	case p.placed != cluster.NoNode && seq == p.seen+1 && n.Modified[p.placed] == seq && !p.nominations && p.st.VolumeUsesModified() != seq:
		// The one delta since then has placed the pod; a million nodes need not be looked through for that. One that was
		// nominated to another node would have changed that too, and one that was promised a volume all nodes from which that can be reached.
		p.journal = append(p.journal, change{p.placed, seq})
	default:
		n.ChangedSince(p.seen, cluster.Range{First: 0, End: cluster.NodeIndex(n.Len())}, func(i cluster.NodeIndex) {
			p.journal = append(p.journal, change{i, n.Modified[i]})
		})
		p.quiet = seq
	}
	p.seen, p.nominations = seq, p.st.Nominations() > 0
}

// catchUp evaluates the nodes that have changed since the class was last placed, each as it is now.
func (p *Placer) catchUp(c *candidateSet) {
	st := p.st
	for ; c.caughtUp < len(p.journal); c.caughtUp++ {
		ch := p.journal[c.caughtUp]
		if st.Nodes.Modified[ch.node] != ch.seq || !st.Nodes.Live.Has(ch.node) {
			continue // it comes again further on, or is gone
		}
		if ch.node == c.refused {
			continue
		}
		if !c.evaluation.program.filter(st, ch.node, c.evaluation.signature.priority, cluster.NoPod).Feasible() {
			continue
		}
		total := c.evaluation.program.weights.sum(c.evaluation.program.fixed(st, ch.node))
		c.group(c.evaluation.raw(st, ch.node)).pushChanged(changedNode{
			rankedNode{rank{total, tie(c.seed, ch.node)}, ch.node}, ch.seq,
		})
	}
}

// choose finds the best node over all groups of the class, and proves that it is.
//
// The proof. The candidates list all groups that had an eligible node when they were evaluated. So every live node that is feasible now is
// one of these:
//
//   - It has changed since. Then catchUp has evaluated it as it is now, and it is in changed of its group.
//   - It has not changed, and is listed. Then its group and its fixed score hold: only the node itself decides them.
//   - It has not changed, and is not listed. Then its group is truncated, and it ranks behind the last node listed there, which is the
//     group's ceiling.
//
// A group all of whose nodes are excluded by pods on other nodes is closed, and left out of what follows.
//
// Two nodes of one group compare by rank, since all that other nodes decide is the same for both. So the best node of a group is the best of
// its changed and its listed nodes, as long as there is a listed one that has not changed: the nodes that are not listed are behind that.
// A group without one left that is truncated is hidden: it may have a better node, no better than its ceiling.
//
// Nodes of two groups compare by totals. These depend on the score bounds, the least and largest raw scores of all groups with a feasible
// node. They are taken over the groups that certainly have one. Of a hidden group that may have none, it does not matter whether it has one
// if its raw scores are within the bounds; else the answer is Retry. With the bounds known, totals are exact, and a hidden group's ceiling
// has a total that none of its nodes that are not listed exceeds. If none of these ceilings comes before the best node, no node does; if one
// does, the answer is Retry.
func (p *Placer) choose(c *candidateSet) (cluster.NodeIndex, Placement) {
	// 1. The best node that is known, group by group, and the score bounds that normalisation needs: over the groups that
	// certainly have a feasible node.
	j := c.evaluation.judgement(p.st, c.refused)
	var x scoreBounds
	unknown := false
	for k := range c.groups {
		g := &c.groups[k]
		tp, ok := g.topologyProfile(&j)
		if !ok {
			return cluster.NoNode, Retry // it has been found among other pods than there are now
		}
		if g.closed = tp != nil && !tp.verdict.Feasible(); g.closed {
			continue
		}
		if g.best, g.certain = p.best(c, g); g.spoilt {
			return cluster.NoNode, Retry // whoever scored it does not group by images, or groups otherwise
		}
		g.rawScores = j.rawScores(&g.raw, tp)
		if g.certain {
			x = x.with(g.rawScores)
		}
		unknown = unknown || g.hidden()
	}
	switch {
	case !x.some && unknown:
		return cluster.NoNode, Retry
	case !x.some:
		return cluster.NoNode, NoFit
	}
	// 2. The best of all groups, by total.
	best := rankedNode{node: cluster.NoNode}
	for k := range c.groups {
		g := &c.groups[k]
		if g.closed || !g.certain {
			continue
		}
		candidate := g.best
		candidate.total += j.total(&x, g.rawScores)
		if best.node == cluster.NoNode || candidate.before(best.rank) {
			best = candidate
		}
	}
	// 3. Nodes of which only a ceiling is known must change neither the score bounds nor the choice.
	for k := range c.groups {
		g := &c.groups[k]
		if g.closed || !g.hidden() {
			continue
		}
		if !g.certain && x.with(g.rawScores) != x {
			return cluster.NoNode, Retry
		}
		ceiling, ok := g.ceiling(c.seed)
		if !ok {
			return cluster.NoNode, Retry
		}
		ceiling.total += j.total(&x, g.rawScores)
		if ceiling.before(best.rank) {
			return cluster.NoNode, Retry
		}
	}
	return best.node, Placed
}

// best returns the best known node of a group, ranked by its fixed score.
func (p *Placer) best(c *candidateSet, g *candidateGroup) (rankedNode, bool) {
	best, found := rankedNode{}, false
	for ; g.next < len(g.listed); g.next++ {
		s := &g.listed[g.next]
		if s.Node < 0 || int(s.Node) >= p.st.Nodes.Len() || p.st.Nodes.Modified[s.Node] > p.evaluated || s.Node == c.refused {
			continue
		}
		if g.checked != g.next+1 { // once per listed node: it does not change while it is unmodified
			if !p.st.Nodes.Live.Has(s.Node) || !c.evaluation.program.filter(p.st, s.Node, c.evaluation.signature.priority, cluster.NoPod).Feasible() {
				continue
			}
			if g.spoilt = c.evaluation.program.images.on(&p.st.Nodes, s.Node) != g.raw.Images; g.spoilt {
				break
			}
			g.checked = g.next + 1
		}
		best, found = rankedNode{rankOf(c.seed, s), s.Node}, true
		break
	}
	for len(g.changed) > 0 {
		top := &g.changed[0]
		if p.st.Nodes.Modified[top.node] != top.seq {
			g.popChanged()
			continue
		}
		if !found || top.before(best.rank) {
			best, found = top.rankedNode, true
		}
		break
	}
	return best, found
}
