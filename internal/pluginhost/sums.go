package pluginhost

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// sums are what the scores of each node of a column come to, normalised as kube-scheduler's DefaultNormalizeScore does and weighed. They are kept as long as the highest score of each plugin is the same, for one pod changes few scores, and the highest seldom.
type sums struct {
	by      []int64 // by node
	most    []int32 // by plugin: the highest score of those nodes that were left then; 0 where it does not normalise
	weights []int64
	changed []cluster.NodeIndex // nodes that have been scored anew since
	tops    []top               // by plugin
	marks   cluster.Bitmap      // of nodes that are on top
}

// forget has them summed up anew.
func (s *sums) forget() {
	s.by, s.changed = s.by[:0], s.changed[:0]
	clear(s.tops)
}

// scored notes that a node has been scored anew, or is refused now.
func (c *column) scored(i cluster.NodeIndex) {
	s := &c.sums
	for k := range s.tops {
		switch t := &s.tops[k]; {
		case !t.known:
		case c.answers[i].verdict == 0 && c.scores[k][i] >= t.score:
			t.node, t.score = i, c.scores[k][i]
		case t.node == i:
			t.known = false
		}
	}
	switch {
	case len(s.by) == 0:
	case len(s.changed) == len(s.by): // as soon summed up anew
		s.forget()
	default:
		s.changed = append(s.changed, i)
	}
}

// addScores adds to totals what nodes score, normalised over them. by and weights are of the plugins whose scores the column has.
func (c *column) addScores(by []pluginv1.Normalization, weights []int64, nodes []cluster.NodeIndex, totals []int64) {
	sums := c.sumUp(by, weights, nodes)
	for n, i := range nodes {
		totals[n] += sums[i]
	}
}

// addTotals is addScores of nodes that have totals.
func (c *column) addTotals(by []pluginv1.Normalization, weights []int64, nodes []cluster.NodeIndex, totals []engine.NodeTotal) {
	sums := c.sumUp(by, weights, nodes)
	for n, i := range nodes {
		totals[n].Total += sums[i]
	}
}

// sumUp returns by node what scores come to, normalised over some nodes.
func (c *column) sumUp(by []pluginv1.Normalization, weights []int64, nodes []cluster.NodeIndex) []int64 {
	s, all := &c.sums, len(c.answers)
	same := len(s.by) == all && slices.Equal(s.weights, weights) // every node that there is has been summed up
	if len(s.most) < len(c.scores) {
		s.most, s.tops = make([]int32, len(c.scores)), make([]top, len(c.scores))
	}
	c.findTops(by, nodes)
	for k, scores := range c.scores {
		most := int32(0)
		if by[k] != pluginv1.Normalization_NORMALIZATION_UNSPECIFIED {
			if t := s.tops[k]; t.among {
				most = t.score
			} else {
				most = highest(scores, nodes)
			}
		}
		if s.most[k] != most {
			s.most[k], same = most, false
		}
	}
	if same {
		for _, i := range s.changed {
			s.by[i] = 0
			for k, scores := range c.scores {
				s.by[i] += weights[k] * normalized(by[k], scores[i], s.most[k])
			}
		}
	} else {
		s.weights = append(s.weights[:0], weights...)
		s.by = slices.Grow(s.by[:0], all)[:all]
		clear(s.by)
		for k, scores := range c.scores {
			addAll(scores, by[k], s.most[k], weights[k], s.by)
		}
	}
	s.changed = s.changed[:0]
	return s.by
}

// top is a node of which no other one that has been answered, and is not refused, has a higher score.
type top struct {
	node         cluster.NodeIndex
	score        int32
	known, among bool // it is known, and is one of the nodes that are asked about: then no other one of these has a higher score, either
}

// findTops finds of each plugin that normalises which node is on top, and whether it is one of some nodes.
func (c *column) findTops(by []pluginv1.Normalization, nodes []cluster.NodeIndex) {
	s := &c.sums
	s.marks = s.marks.Grow(len(c.answers))
	clear(s.marks)
	for k := range c.scores {
		if by[k] == pluginv1.Normalization_NORMALIZATION_UNSPECIFIED || c.depends.cluster { // where all is forgotten for each pod, nobody is on top for long
			continue
		}
		t := &s.tops[k]
		if t.among = false; !t.known {
			*t = c.topOf(k)
		}
		if t.known {
			s.marks.Set(t.node)
		}
	}
	for _, i := range nodes {
		if !s.marks.Has(i) {
			continue
		}
		for k := range s.tops {
			if t := &s.tops[k]; t.known && t.node == i {
				t.among = true
			}
		}
	}
}

// topOf looks for a node with the highest score of a plugin.
func (c *column) topOf(k int) (t top) {
	for i, score := range c.scores[k] {
		if a := &c.answers[i]; a.seq != 0 && a.verdict == 0 && (!t.known || score > t.score) {
			t.node, t.score, t.known = cluster.NodeIndex(i), score, true
		}
	}
	return t
}

// highest returns the highest score of some nodes.
func highest(scores []int32, nodes []cluster.NodeIndex) (most int32) {
	for _, i := range nodes {
		most = max(most, scores[i])
	}
	return most
}

// normalized returns what a score comes to, if the highest is most.
func normalized(by pluginv1.Normalization, score, most int32) int64 {
	if by == pluginv1.Normalization_NORMALIZATION_UNSPECIFIED {
		return int64(score)
	}
	out := int64(score)
	if most > 0 {
		out = maxScore * out / int64(most)
	}
	if by == pluginv1.Normalization_NORMALIZATION_REVERSED {
		out = maxScore - out
	}
	return out
}

// addAll adds what the scores of all nodes come to, weighed, to their sums.
func addAll(scores []int32, by pluginv1.Normalization, most int32, weight int64, sums []int64) {
	if by == pluginv1.Normalization_NORMALIZATION_UNSPECIFIED {
		for i := range sums {
			sums[i] += weight * int64(scores[i])
		}
		return
	}
	// Many nodes score the same, and to divide takes longer than all else. What a score comes to is kept, by some bits of it.
	const bits = 6
	var known [1 << bits]struct {
		score int32
		comes int64 // to that, weighed; of score 0 what is set below
	}
	for k := range known {
		known[k].comes = weight * normalized(by, 0, most)
	}
	for i := range sums {
		score := scores[i]
		is := &known[uint32(score)*2654435769>>(32-bits)] // Knuth's multiplicative hash
		if is.score != score {
			is.score, is.comes = score, weight*normalized(by, score, most)
		}
		sums[i] += is.comes
	}
}
