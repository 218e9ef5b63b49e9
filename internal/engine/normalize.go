package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// rawScores are what the nodes of a group score before normalisation, and what ImageLocality, which has none, adds to their totals.
type rawScores struct {
	taints, affinity, spread, interPod int64
	images                             int64 // weighted
	ignored                            bool  // PodTopologySpread ignores the nodes
}

// scoreBounds are the least and largest raw scores of all feasible nodes, as far as normalisation needs them. The zero value is of
// no node.
type scoreBounds struct {
	some, someSpread            bool
	mostTaints, mostAffinity    int64
	leastSpread, mostSpread     int64
	leastInterPod, mostInterPod int64
}

// with returns the score bounds if nodes of those raw scores are among the feasible.
func (x scoreBounds) with(w rawScores) scoreBounds {
	if !x.some {
		x.leastInterPod, x.mostInterPod = w.interPod, w.interPod
	}
	x.some = true
	x.mostTaints, x.mostAffinity = max(x.mostTaints, w.taints), max(x.mostAffinity, w.affinity)
	x.leastInterPod, x.mostInterPod = min(x.leastInterPod, w.interPod), max(x.mostInterPod, w.interPod)
	if w.ignored {
		return x
	}
	if !x.someSpread {
		x.leastSpread = w.spread
	}
	x.someSpread = true
	x.leastSpread, x.mostSpread = min(x.leastSpread, w.spread), max(x.mostSpread, w.spread)
	return x
}

// normalize scales to 100. Spread says whether PodTopologySpread scores at all.
func (x *scoreBounds) normalize(w rawScores, spread bool) Normalized {
	out := Normalized{TaintToleration: maxScore, NodeAffinity: w.affinity}
	if m := x.mostTaints; m != 0 {
		out.TaintToleration = maxScore - maxScore*w.taints/m
	}
	if m := x.mostAffinity; m != 0 {
		out.NodeAffinity = maxScore * w.affinity / m
	}
	if spread && !w.ignored {
		out.PodTopologySpread = normalizeSpread(w.spread, x.leastSpread, x.mostSpread)
	}
	out.InterPodAffinity = normalizeInterPod(w.interPod, x.leastInterPod, x.mostInterPod)
	return out
}

// normalized returns the weighted sum of normalised scores.
func (w *weights) normalized(n Normalized) int64 {
	return w.taintToleration*n.TaintToleration + w.nodeAffinity*n.NodeAffinity + w.spread*n.PodTopologySpread +
		w.interPod*n.InterPodAffinity
}

// image returns the weighted score of ImageLocality, or 0 if it does not score.
func (w *weights) image(score int64) int64 { return w.fixed[scoreImage] * max(score, 0) }

// judgement is how one pod of a class sees groups on the state as it is.
type judgement struct {
	c       *evaluation
	weights []float64 // of soft spread constraints
}

// judgement prepares the scoring of groups. The evaluation is synced.
func (c *evaluation) judgement(st *cluster.State) judgement {
	j := judgement{c: c}
	if c.topology == nil {
		return j
	}
	if len(c.topology.spread.soft) > 0 {
		c.count(st)
		j.weights = c.topology.spread.weights(c.topology, c.feasibleTopologyProfiles)
	}
	c.topology.judgeAll()
	return j
}

// spread reports whether PodTopologySpread scores the class.
func (j *judgement) spread() bool { return len(j.weights) > 0 }

// topologyProfile returns a group's topology profile, nil if other pods do not matter. False: it makes no sense on this state.
func (j *judgement) topologyProfile(raw *Raw) (*topologyProfile, bool) {
	if j.c.topology == nil {
		return nil, raw.TopologyProfile == ""
	}
	return j.c.topology.find(raw.TopologyProfile)
}

// rawScores resolves the counts of a group's topology profile.
func (j *judgement) rawScores(raw *Raw, tp *topologyProfile) rawScores {
	w := rawScores{
		taints: raw.TaintToleration, affinity: raw.NodeAffinity,
		images: j.c.program.weights.image(j.c.imageScore(raw.Images)),
	}
	if tp == nil {
		return w
	}
	t := j.c.topology
	w.interPod = t.interPod.raw(t, tp)
	if !j.spread() {
		return w
	}
	if w.ignored = t.spread.ignores(t, tp); !w.ignored {
		w.spread = t.spread.raw(t, tp, j.weights)
	}
	return w
}

// total returns what the nodes of a group score besides their fixed scores, among feasible nodes of those score bounds.
func (j *judgement) total(x *scoreBounds, w rawScores) int64 {
	return j.c.program.weights.normalized(x.normalize(w, j.spread())) + w.images
}

// GroupScores is what a group scores among all others.
type GroupScores struct {
	Feasible bool // by what pods on other nodes decide; if not, the rest is zero
	// PodTopologySpread and InterPodAffinity are the scores before normalisation. That of nodes which PodTopologySpread
	// ignores is 0.
	PodTopologySpread, InterPodAffinity int64
	Normalized                          Normalized
	Totals                              []int64 // of the group's nodes, in their order
}

// Totals returns the scores of all groups of a subject on the state: the groups must be all there are, over all ranges,
// and of this version. False: they are not of this subject and state.
func (e *Evaluator) Totals(st *cluster.State, s Subject, groups []Group) ([]GroupScores, bool) {
	c := e.evaluation(st, s)
	if c == nil {
		return nil, false
	}
	defer c.unlock()
	j := c.judgement(st)
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
		out[k].PodTopologySpread, out[k].InterPodAffinity = raws[k].spread, raws[k].interPod
		out[k].Normalized = x.normalize(raws[k], j.spread())
		sum := c.program.weights.normalized(out[k].Normalized) + raws[k].images
		for n := range groups[k].Nodes {
			out[k].Totals = append(out[k].Totals, sum+groups[k].Nodes[n].Fixed)
		}
	}
	return out, true
}
