package engine

import (
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// candidateSet is what a Placer knows about the nodes of one signature: those that were offered, and those that have changed since.
type candidateSet struct {
	candidates *Candidates
	subject    Subject
	signature  Signature // of the first pod, when it was placed
	begun      bool      // there was a first pod
	seed       uint64    // of the order of equal scores
	// found is the signature that the subject had when the candidates were found, as far as that can be told, and foundWritten and foundProfile
	// are what its relations were of then: written and onlyProfile.
	found        Signature
	foundWritten uint64
	foundProfile string
	written      uint64 // of the relations by which the topology profiles of the groups are named; 0: still of those of then
	// others are the same candidates for pods of other signatures that were of this one when the candidates were found.
	others  map[Signature]*candidateSet
	refused cluster.NodeIndex // the node that has refused the pod for which these are; NoNode: they are for any

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
	out := candidateSet{candidates: c, subject: c.Subject, refused: cluster.NoNode}
	out.read(func(string) string { return "" })
	return out
}

// read makes the groups what the candidates say, their topology profiles what rename says, "" for what they are.
func (c *candidateSet) read(rename func(string) string) {
	all := c.candidates.Groups
	c.groups, c.byRaw, c.last = nil, make(map[Raw]int, len(all)), 0
	for k := range all {
		g := &all[k]
		raw := g.Raw
		if to := rename(raw.TopologyProfile); to != "" {
			raw.TopologyProfile = to
		}
		group := c.group(raw)
		group.truncated = group.truncated || g.truncated() || group.listed != nil // twice the same group proves nothing
		if group.listed == nil {
			group.listed = g.Nodes
		}
	}
}

// begin makes the set one of the signature that its evaluation has. Its candidates may have been found when volumes of the pods were not in use
// yet that are now. On nodes that have not changed since they are not: there they count as new either way, and what was found holds. The
// evaluation is locked and up to date.
func (c *candidateSet) begin(st *cluster.State) {
	is, t := c.evaluation.relation, c.evaluation.topology
	if c.written == is.written || c.written == 0 && c.foundWritten == is.written {
		return
	}
	from, to := c.foundProfile, is.onlyProfile
	if t != nil {
		from, to = t.fingerprint(st, is, c.foundWritten), t.prefix
	}
	c.written = is.written
	c.read(func(text string) string {
		if rest, ok := strings.CutPrefix(text, from); ok && (t != nil || rest == "") {
			return to + rest
		}
		return ""
	})
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
