package pluginhost

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// sums are what the scores of each node of a column come to, normalised as kube-scheduler's DefaultNormalizeScore does and weighed. They are kept as long as the highest score of each plugin is the same, for one pod changes few scores, and the highest seldom.
type sums struct {
	by      []int64 // by node
	most    []int32 // by plugin: the highest score of those nodes that were left then; 0 where it does not normalise
	weights []int64
	changed []cluster.NodeIndex // nodes that have been scored anew since
}

// forget has them summed up anew.
func (s *sums) forget() { s.by, s.changed = s.by[:0], s.changed[:0] }

// scored notes that a node has been scored anew.
func (s *sums) scored(i cluster.NodeIndex) {
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
	s, all := &c.sums, len(c.answers)
	same := len(s.by) == all && slices.Equal(s.weights, weights) // every node that there is has been summed up
	if len(s.most) < len(c.scores) {
		s.most = make([]int32, len(c.scores))
	}
	for k, scores := range c.scores {
		most := int32(0)
		if by[k] != pluginv1.Normalization_NORMALIZATION_UNSPECIFIED {
			most = highest(scores, nodes)
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
	for n, i := range nodes {
		totals[n] += s.by[i]
	}
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
