package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// contest is what a Placer knows about the nodes of one class.
type contest struct {
	subject  Subject
	kind     Kind   // of the subject when the first pod was placed
	begun    bool   // there was a first pod
	seed     uint64 // of the order of equal scores
	class    *class
	known    cluster.Seq // class was looked up at this seq
	groups   []contestGroup
	byRaw    map[Raw]int
	last     int // of groups, the one that was looked up last
	caughtUp int // how much of the Placer's journal has been evaluated
}

// contestGroup is the nodes with one vector of raw scores: those listed by the candidates, as long as they do not
// change, and those that have changed.
type contestGroup struct {
	raw       Raw
	listed    []Scored // best first
	next      int      // those before are used up: they have changed
	checked   int      // listed[checked-1] has been filtered here
	spoilt    bool     // it lists a node that has other images than the group
	truncated bool     // there are nodes behind the last listed one
	changed   []changedNode

	// The cell of raw, in a topology as of a rebuild.
	found    *cell
	topology *topology
	rebuilt  uint64

	// Of Placer.choose.
	best    rankedNode
	certain bool // there is a feasible node
	closed  bool // pods on other nodes exclude all
	worth   worth
}

// changedNode is a node as it was evaluated at a seq. It is out of date once the node has changed again.
type changedNode struct {
	rankedNode
	seq cluster.Seq
}

func newContest(c *Candidates) contest {
	out := contest{subject: c.Subject, byRaw: make(map[Raw]int, len(c.Groups))}
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
func (c *contest) group(raw Raw) *contestGroup {
	if c.last < len(c.groups) && c.groups[c.last].raw == raw {
		return &c.groups[c.last]
	}
	k, ok := c.byRaw[raw]
	if !ok {
		k = len(c.groups)
		c.byRaw[raw] = k
		c.groups = append(c.groups, contestGroup{raw: raw})
	}
	c.last = k
	return &c.groups[k]
}

// cell returns the group's cell, nil if other pods do not matter. False: it makes no sense on this state.
func (g *contestGroup) cell(j *judgement) (*cell, bool) {
	if t := j.c.topology; t == nil || g.topology != t || g.rebuilt != t.rebuilt {
		found, ok := j.cell(&g.raw)
		if !ok || t == nil {
			return nil, ok
		}
		g.found, g.topology, g.rebuilt = found, t, t.rebuilt
	}
	return g.found, true
}

// hidden reports whether the best unchanged node of the group may be one that is not listed.
func (g *contestGroup) hidden() bool { return g.truncated && g.next >= len(g.listed) }

// bound returns the rank, by fixed score, that every node that is not listed is behind. False: nothing is known.
func (g *contestGroup) bound(seed uint64) (rank, bool) {
	if len(g.listed) == 0 {
		return rank{}, false
	}
	return rankOf(seed, &g.listed[len(g.listed)-1]), true
}

// pushChanged and popChanged keep changed a heap whose first is the best.
func (g *contestGroup) pushChanged(n changedNode) {
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

func (g *contestGroup) popChanged() {
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
