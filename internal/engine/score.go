package engine

import (
	"math/bits"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Score returns the best nodes among the eligible ones of a range, at most limit (at least 1) of each group, scoring
// only nodes that have changed since they were last scored. Bit 0 of eligible is r.First, which must be a multiple of
// 64. Indexes without a node are left out. False: the state has no such class.
func (e *Evaluator) Score(st *cluster.State, s Subject, r cluster.Range, eligible cluster.Bitmap, limit int) ([]Group, bool) {
	c := e.class(st, s)
	if c == nil {
		return nil, false
	}
	defer c.mu.Unlock()
	c.sync(st)
	ws, r := align(r, st.Nodes.Len())
	ws.end = min(ws.end, ws.first+len(eligible))
	if t := c.topology; t != nil && c.grouped != t.rebuilt {
		clear(c.scored)
		c.grouped = t.rebuilt
	}
	whole := (st.Nodes.Len() + 63) / 64
	c.scored = grow(c.scored, whole)
	c.groups, c.scores = grow(c.groups, whole*64), grow(c.scores, whole*64)

	seed := st.Settings.Seed
	spans := e.split(ws)
	parts := make([][]Group, len(spans))
	each(spans, func(k int, span words) {
		parts[k] = c.score(st, span, r, eligible[span.first-ws.first:], max(limit, 1))
	})
	if len(parts) == 1 {
		slices.SortFunc(parts[0], compareGroups)
		return parts[0], true
	}
	return MergeGroups(seed, limit, parts...), true
}

// raw returns the to-be-normalised scores of a live node, and its cell.
func (c *class) raw(st *cluster.State, i cluster.NodeIndex) Raw {
	r := c.program.raw(st, i)
	if c.topology != nil {
		r.Cell = c.topology.cellOf(i).text
	}
	return r
}

// score evaluates what is not known of a span and selects. Spans of one class may run at the same time.
func (c *class) score(st *cluster.State, span words, r cluster.Range, feasible cluster.Bitmap, limit int) []Group {
	var best []shortlist // by groupID
	ids := recent{from: &c.raws}
	seed := st.Settings.Seed
	for w := span.first; w < span.end; w++ {
		in := feasible[w-span.first] & st.Nodes.Live[w] & mask(w, r)
		todo := in &^ c.scored[w]
		c.scored[w] |= in
		for ; in != 0; in &= in - 1 {
			bit := bits.TrailingZeros64(in)
			i := cluster.NodeIndex(w*64 + bit)
			if todo&(1<<bit) != 0 {
				c.groups[i] = ids.intern(c.raw(st, i))
				c.scores[i] = c.program.fixed(st, i)
			}
			g := int(c.groups[i])
			if g >= len(best) {
				best = grow(best, g+1)
			}
			best[g].offer(limit, seed, i, c.program.weights.sum(c.scores[i]))
		}
	}
	var out []Group
	for g := range best {
		if best[g].count > 0 {
			out = append(out, best[g].group(c, groupID(g)))
		}
	}
	return out
}

// shortlist keeps the best nodes of a group: a heap whose first is the worst of them.
type shortlist struct {
	count int32
	heap  []rankedNode
}

type rankedNode struct {
	rank
	node cluster.NodeIndex
}

func (s *shortlist) offer(limit int, seed uint64, i cluster.NodeIndex, fixed int64) {
	s.count++
	full := len(s.heap) == limit
	if full && fixed < s.heap[0].total {
		return // without the cost of its tie
	}
	n := rankedNode{rank{fixed, tie(seed, i)}, i}
	switch {
	case !full:
		s.heap = append(s.heap, n)
		for k := len(s.heap) - 1; k > 0; {
			parent := (k - 1) / 2
			if !s.heap[parent].before(s.heap[k].rank) {
				break
			}
			s.heap[parent], s.heap[k] = s.heap[k], s.heap[parent]
			k = parent
		}
	case n.before(s.heap[0].rank):
		s.heap[0] = n
		for k := 0; ; {
			worst := k
			for child := 2*k + 1; child <= 2*k+2 && child < len(s.heap); child++ {
				if s.heap[worst].before(s.heap[child].rank) {
					worst = child
				}
			}
			if worst == k {
				break
			}
			s.heap[worst], s.heap[k] = s.heap[k], s.heap[worst]
			k = worst
		}
	}
}

func (s *shortlist) group(c *class, id groupID) Group {
	slices.SortFunc(s.heap, func(a, b rankedNode) int { return a.rank.compare(b.rank) })
	c.raws.mu.Lock()
	g := Group{Raw: c.raws.raws[id], Count: s.count, Nodes: make([]Scored, len(s.heap))}
	c.raws.mu.Unlock()
	for k, n := range s.heap {
		g.Nodes[k] = Scored{Node: n.node, Fixed: n.total}
		for j, score := range c.scores[n.node] {
			g.Nodes[k].Scores[j] = int32(score)
		}
	}
	return g
}
