package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// rawScores are what the nodes of a group score before normalisation, by place, and what their images, which need none, add to their
// totals.
type rawScores struct {
	scores  [normalizedScores]int64
	ignored uint8 // a bit for each place where the nodes do not count
	images  int64 // weighted
}

// scoreBounds are the least and largest raw scores of all feasible nodes, as far as normalisation needs them. The zero value is of
// no node.
type scoreBounds struct {
	some   bool
	bounds [normalizedScores]scoreBound
}

type scoreBound struct {
	some        bool
	least, most int64 // least only if the scale ranges
}

// with returns the score bounds if nodes of those raw scores are among the feasible.
func (x scoreBounds) with(w rawScores) scoreBounds {
	x.some = true
	for k, score := range w.scores {
		b := &x.bounds[k]
		switch {
		case w.ignored&(1<<k) != 0:
		case !scales[k].ranges():
			b.most = max(b.most, score)
		case !b.some:
			*b = scoreBound{true, score, score}
		default:
			b.least, b.most = min(b.least, score), max(b.most, score)
		}
	}
	return x
}

// normalize scales to 100.
func (x *scoreBounds) normalize(w rawScores) (out Normalized) {
	for k, score := range w.scores {
		if b := &x.bounds[k]; w.ignored&(1<<k) == 0 {
			out[k] = b.normalize(scales[k], score)
		}
	}
	return out
}

func (b *scoreBound) normalize(scale Scale, score int64) int64 {
	switch scale {
	case mostScale:
		if b.most != 0 {
			return maxScore * score / b.most
		}
		return score
	case reversedMostScale:
		if b.most != 0 {
			return maxScore - maxScore*score/b.most
		}
		return maxScore
	case rangeScale:
		if b.most <= b.least {
			return 0
		}
		return int64(float64(maxScore) * (float64(score-b.least) / float64(b.most-b.least)))
	}
	if b.most == 0 { // reversedRangeScale
		return maxScore
	}
	return maxScore * (b.most + b.least - score) / b.most
}

// normalized returns the weighted sum of normalised scores.
func (w *weights) normalized(n Normalized) (sum int64) {
	for k, score := range n {
		sum += w.normal[k] * score
	}
	return sum
}

// image returns what images add to a total, 0 if they are not scored.
func (w *weights) image(score int64) int64 { return w.fixed[imagePlace] * max(score, 0) }

// judgement is how one pod of a class sees groups on the state as it is.
type judgement struct{ c *evaluation }

// judgement prepares the scoring of groups, for a pod that has been refused by a node, if it is not cluster.NoNode. The evaluation is synced.
func (c *evaluation) judgement(st *cluster.State, refused cluster.NodeIndex) judgement {
	if c.topology == nil {
		return judgement{c}
	}
	for _, p := range c.topology.plugins {
		if p.weighs() {
			c.count(st)
			c.counts.without(refused, func(eligible []int64) { p.weigh(c.topology, eligible) })
		}
	}
	c.topology.judgeAll()
	return judgement{c}
}

// judgementAmong prepares the same for some nodes, as if no others were feasible; nil are all.
func (c *evaluation) judgementAmong(st *cluster.State, among cluster.Bitmap) judgement {
	if c.topology == nil || among == nil {
		return c.judgement(st, cluster.NoNode)
	}
	for _, p := range c.topology.plugins {
		if p.weighs() {
			c.count(st)
			p.weigh(c.topology, c.counts.among(among))
		}
	}
	c.topology.judgeAll()
	return judgement{c}
}

// topologyProfile returns a group's topology profile, nil if other pods do not matter. False: it makes no sense on this state.
func (j *judgement) topologyProfile(raw *Raw) (*topologyProfile, bool) {
	if j.c.topology == nil {
		return nil, raw.TopologyProfile == j.c.relation.onlyProfile
	}
	return j.c.topology.find(raw.TopologyProfile)
}

// rawScores resolves the counts of a group's topology profile.
func (j *judgement) rawScores(raw *Raw, tp *topologyProfile) rawScores {
	w := rawScores{ignored: profileScores, images: j.c.program.weights.image(j.c.imageScore(raw.Images))}
	copy(w.scores[:], raw.Scores[:])
	if tp == nil {
		return w
	}
	for _, p := range j.c.topology.plugins {
		if score, ok := p.score(j.c.topology, tp); ok {
			w.scores[p.plugin.place] = score
			w.ignored &^= 1 << p.plugin.place
		}
	}
	return w
}

// profileScores has a bit for each place in Normalized that is not in Raw.Scores: topology profiles are scored there, if at all.
const profileScores = 1<<normalizedScores - 1<<nodeScales

// total returns what the nodes of a group score besides their fixed scores, among feasible nodes of those score bounds.
func (j *judgement) total(x *scoreBounds, w rawScores) int64 {
	return j.c.program.weights.normalized(x.normalize(w)) + w.images
}

// GroupScores is what a group scores among all others.
type GroupScores struct {
	Feasible   bool                    // by what pods on other nodes decide; if not, the rest is zero
	Raw        [normalizedScores]int64 // before normalisation; 0 of nodes that are ignored
	Normalized Normalized
	Totals     []int64 // of the group's nodes, in their order
}

// Totals returns the scores of all groups of a subject on the state: the groups must be all there are, over all ranges,
// and of this version, but for a node that has refused the pod, if it is not cluster.NoNode; see RefusedAsNominated. False: they are not of this subject and
// state.
func (e *Evaluator) Totals(st *cluster.State, s Subject, groups []Group, refused cluster.NodeIndex) (out []GroupScores, ok bool) {
	e.with(st, s, func(c *evaluation) { out, ok = c.totals(st, groups, refused) })
	return out, ok
}

func (c *evaluation) totals(st *cluster.State, groups []Group, refused cluster.NodeIndex) ([]GroupScores, bool) {
	return totals(c.judgement(st, refused), groups)
}

func totals(j judgement, groups []Group) ([]GroupScores, bool) {
	out := make([]GroupScores, len(groups))
	raws := make([]rawScores, len(groups))
	var x scoreBounds
	for k := range groups {
		tp, ok := j.topologyProfile(&groups[k].Raw)
		if !ok {
			return nil, false
		}
		if out[k].Feasible = groups[k].Count > 0 && (tp == nil || tp.verdict.Feasible()); out[k].Feasible {
			raws[k] = j.rawScores(&groups[k].Raw, tp)
			x = x.with(raws[k])
		}
	}
	for k := range groups {
		if !out[k].Feasible {
			continue
		}
		out[k].Raw, out[k].Normalized = raws[k].scores, x.normalize(raws[k])
		sum := j.c.program.weights.normalized(out[k].Normalized) + raws[k].images
		for n := range groups[k].Nodes {
			out[k].Totals = append(out[k].Totals, sum+groups[k].Nodes[n].Fixed)
		}
	}
	return out, true
}

// ScoreOf returns what a plugin gives the n-th node of a group, before normalisation and between 0 and 100: the same where there is none.
func ScoreOf(plugin string, g *Group, n int, scores *GroupScores) (raw, normalized int64) {
	p := PluginOf(plugin)
	switch {
	case p == nil || p.scale == notScored:
		return 0, 0 // one that Berth does not have
	case p.scale.normalized():
		return scores.Raw[p.place], scores.Normalized[p.place]
	}
	return int64(g.Nodes[n].Scores[p.place]), int64(g.Nodes[n].Scores[p.place])
}
