package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// candidateSet is what a Placer knows about the nodes of one signature: those that were offered, and those that have changed since.
type candidateSet struct {
	subject    Subject
	signature  Signature // of the subject when the first pod was placed
	begun      bool      // there was a first pod
	seed       uint64    // of the order of equal scores
	evaluation *evaluation
	known      cluster.Seq // evaluation was looked up at this seq
	volumes    bool        // its pods have some
	groups     []candidateGroup
	byRaw      map[Raw]int
	last       int // of groups, the one that was looked up last
	caughtUp   int // how much of the Placer's journal has been evaluated
}

// candidateGroup is the nodes with one vector of raw scores: those listed by the candidates, as long as they do not
// change, and those that have changed.
type candidateGroup struct {
	raw       Raw
	listed    []Scored // best first
	next      int      // those before are used up: they have changed
	checked   int      // listed[checked-1] has been filtered here
	spoilt    bool     // it lists a node that has other images than the group
	truncated bool     // there are nodes behind the last listed one
	changed   []changedNode

	// The topology profile of raw, in a topology as of a rebuild.
	found    *topologyProfile
	topology *topology
	rebuilt  uint64

	// Of Placer.choose.
	best      rankedNode
	certain   bool // there is a feasible node
	closed    bool // pods on other nodes exclude all
	rawScores rawScores
}

// changedNode is a node as it was evaluated at a seq. It is out of date once the node has changed again.
type changedNode struct {
	rankedNode
	seq cluster.Seq
}

func newCandidateSet(c *Candidates) candidateSet {
	out := candidateSet{subject: c.Subject, byRaw: make(map[Raw]int, len(c.Groups))}
	for k := range c.Groups {
		g := &c.Groups[k]
		group := out.group(g.Raw)
		group.truncated = group.truncated || g.truncated() || group.listed != nil // twice the same group proves nothing
		if group.listed == nil {
			group.listed = g.Nodes
		}
	}
	return out
}

// group returns the group of a vector of raw scores, until the next call.
func (c *candidateSet) group(raw Raw) *candidateGroup {
	if c.last < len(c.groups) && c.groups[c.last].raw == raw {
		return &c.groups[c.last]
	}
	k, ok := c.byRaw[raw]
	if !ok {
		k = len(c.groups)
		c.byRaw[raw] = k
		c.groups = append(c.groups, candidateGroup{raw: raw})
	}
	c.last = k
	return &c.groups[k]
}

// topologyProfile returns the group's topology profile, nil if other pods do not matter. False: it makes no sense on this state.
func (g *candidateGroup) topologyProfile(j *judgement) (*topologyProfile, bool) {
	if t := j.c.topology; t == nil || g.topology != t || g.rebuilt != t.rebuilt {
		found, ok := j.topologyProfile(&g.raw)
		if !ok || t == nil {
			return nil, ok
		}
		g.found, g.topology, g.rebuilt = found, t, t.rebuilt
	}
	return g.found, true
}

// hidden reports whether the best unchanged node of the group may be one that is not listed.
func (g *candidateGroup) hidden() bool { return g.truncated && g.next >= len(g.listed) }

// ceiling returns the rank, by fixed score, that every node that is not listed is behind. False: nothing is known.
func (g *candidateGroup) ceiling(seed uint64) (rank, bool) {
	if len(g.listed) == 0 {
		return rank{}, false
	}
	return rankOf(seed, &g.listed[len(g.listed)-1]), true
}

// pushChanged and popChanged keep changed a heap whose first is the best.
func (g *candidateGroup) pushChanged(n changedNode) {
	g.changed = append(g.changed, n)
	h := g.changed
	for k := len(h) - 1; k > 0; {
		parent := (k - 1) / 2
		if !h[k].before(h[parent].rank) {
			break
		}
		h[parent], h[k] = h[k], h[parent]
		k = parent
	}
}

func (g *candidateGroup) popChanged() {
	h := g.changed
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	for k := 0; ; {
		best := k
		for child := 2*k + 1; child <= 2*k+2 && child < len(h); child++ {
			if h[child].before(h[best].rank) {
				best = child
			}
		}
		if best == k {
			break
		}
		h[best], h[k] = h[k], h[best]
		k = best
	}
	g.changed = h
}
