package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// Score returns the best nodes among the eligible ones of a range, at most limit (at least 1) of each group, scoring
// only nodes that have changed since they were last scored. Bit 0 of eligible is r.First, which must be a multiple of
// 64. Indexes without a node are left out. False: the state has no such class.
func (e *Evaluator) Score(st *cluster.State, s Subject, r cluster.Range, eligible cluster.Bitmap, limit int) (out []Group, ok bool) {
	ok = e.with(st, s, func(c *evaluation) { out = c.ranked(e, st, r, eligible, max(limit, 1)) })
	return out, ok
}

func (c *evaluation) ranked(e *Evaluator, st *cluster.State, r cluster.Range, eligible cluster.Bitmap, limit int) []Group {
	c.scorable(st)
	ws, r := align(r, st.Nodes.Len())
	ws.end = min(ws.end, ws.first+len(eligible))
	c.rank(e, st, ws, r, eligible, limit)
	return c.top(limit)
}

// scorable forgets the scores that do not hold any more, and makes room for those of all nodes.
func (c *evaluation) scorable(st *cluster.State) {
	c.sync(st)
	if t := c.topology; t != nil && c.grouped != t.rebuilt {
		c.forgetScores() // the groups are of other topology profiles
		c.grouped = t.rebuilt
	}
	if c.raws.len() > 4*st.Nodes.Len()+1024 {
		c.forgetScores() // most are of nodes as they were: each may have had many sets of the class's images
	}
	whole := (st.Nodes.Len() + 63) / 64
	c.scored = grow(c.scored, whole)
	c.groups, c.scores = grow(c.groups, whole*64), grow(c.scores, whole*64)
	c.rankings.in = grow(c.rankings.in, whole)
	if seed := TieSeed(st, c.signature.class); c.rankings.seed != seed {
		c.forgetScores()
		c.rankings.seed = seed
	}
}

// forgetScores forgets all scores and groups.
func (c *evaluation) forgetScores() {
	clear(c.scored)
	clear(c.rankings.in)
	c.rankings.groups, c.raws = nil, interner{}
}

// imageScore returns what nodes score with a set of the class's images, or NotScored.
func (c *evaluation) imageScore(set string) int64 {
	if !c.program.scoresImages {
		return NotScored
	}
	return c.images.score(set)
}

// scoredNode puts together what Score tells of a node.
func scoredNode(i cluster.NodeIndex, fixed int64, own nodeScores, image int64) Scored {
	s := Scored{Node: i, Fixed: fixed}
	for k, score := range own {
		s.Scores[k] = int32(score)
	}
	s.Scores[imagePlace] = int32(image)
	return s
}

// raw returns the scores of a live node that other nodes have a say in, its images and its topology profile.
func (c *evaluation) raw(st *cluster.State, i cluster.NodeIndex) Raw {
	r := c.program.raw(st, i)
	if c.topology != nil {
		r.TopologyProfile = c.topology.profileOf(i).text
	} else {
		r.TopologyProfile = c.relation.onlyProfile
	}
	return r
}
