package engine

import (
	"math/bits"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// rankings are the nodes that a class was last asked to score, by group and in order of preference. They are kept from
// one call to the next: only nodes that have changed, have become eligible or have ceased to be move.
type rankings struct {
	seed   uint64         // of the order of equal scores
	in     cluster.Bitmap // the nodes that are ranked
	groups []ranking      // by groupID
	fresh  []freshNode    // room for those that come, empty between calls
}

// ranking is the nodes of one group. If they are many, only the best are listed.
type ranking struct {
	count   int          // of all nodes of the group
	best    []rankedNode // best first; a part of room
	room    []rankedNode
	bounded bool // there may be nodes that are not listed; they are all behind bound
	bound   rank
	stale   int  // how many of best are not ranked any more
	short   bool // best is to be made anew
}

// freshNode is a node that is to be ranked.
type freshNode struct {
	group groupID
	rankedNode
}

// rank brings the rankings to the nodes that are asked for, those of eligible within words and range, and lists at least
// limit of each group. The evaluation is synced and has room for scores.
func (c *evaluation) rank(e *Evaluator, st *cluster.State, ws words, r cluster.Range, eligible cluster.Bitmap, limit int) {
	k := &c.rankings
	asked := func(w int) uint64 {
		if w < ws.first || w >= ws.end {
			return 0
		}
		return eligible[w-ws.first] & st.Nodes.Live[w] & mask(w, r)
	}
	// 1. Those that have changed or are not asked for any more leave.
	come := 0
	for w, in := range k.in {
		now := asked(w)
		c.unrank(w, in&^(now&c.scored[w]))
		come += bits.OnesCount64(now &^ k.in[w])
	}
	for g := range k.groups {
		k.groups[g].settle(k.in)
	}
	// 2. Those that have changed or are new come: a few are put in their place, many are ranked with all others.
	least := e.reserve*limit + st.Nodes.Len()/128
	if come > least {
		each(e.split(ws, come), func(_ int, span words) {
			c.scoreSpan(st, span, asked)
			for w := span.first; w < span.end; w++ {
				k.in[w] |= asked(w)
			}
		})
		k.groups = grow(k.groups, c.raws.len())
		for g := range k.groups {
			k.groups[g].short = true
		}
	} else if come > 0 {
		c.rankMissing(st, ws, asked)
	}
	// 3. Groups of which too few are left are listed anew.
	again := false
	for g := range k.groups {
		k.groups[g].short = k.groups[g].short || len(k.groups[g].best) < min(limit, k.groups[g].count)
		again = again || k.groups[g].short
	}
	if again {
		c.list(e, ws, least)
	}
}

// unrank takes ranked nodes of a word out of the rankings, whose lists are to be settled before any come. It goes by the scores that they were ranked with.
func (c *evaluation) unrank(w int, gone uint64) {
	c.rankings.in[w] &^= gone
	for ; gone != 0; gone &= gone - 1 {
		i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(gone))
		g := &c.rankings.groups[c.groups[i]]
		g.count--
		if was := c.rankedNode(i); !g.bounded || !g.bound.before(was.rank) {
			g.stale++
		}
	}
}

// scoreSpan scores the nodes of a span that are asked for and not known. Spans of one evaluation may run at the same time.
func (c *evaluation) scoreSpan(st *cluster.State, span words, asked func(w int) uint64) {
	ids := recent{from: &c.raws}
	for w := span.first; w < span.end; w++ {
		now := asked(w)
		for todo := now &^ c.scored[w]; todo != 0; todo &= todo - 1 {
			c.scoreNode(st, cluster.NodeIndex(w*64+bits.TrailingZeros64(todo)), &ids)
		}
		c.scored[w] |= now
	}
}

func (c *evaluation) scoreNode(st *cluster.State, i cluster.NodeIndex, ids *recent) {
	c.groups[i] = ids.intern(c.raw(st, i))
	c.scores[i] = c.program.fixed(st, i)
}

// rankedNode returns a node with its rank by the scores that it was last given.
func (c *evaluation) rankedNode(i cluster.NodeIndex) rankedNode {
	return rankedNode{rank{c.program.weights.sum(c.scores[i]), tie(c.rankings.seed, i)}, i}
}

// rankMissing ranks the nodes that are asked for and not ranked.
func (c *evaluation) rankMissing(st *cluster.State, ws words, asked func(w int) uint64) {
	k := &c.rankings
	k.fresh = k.fresh[:0]
	ids := recent{from: &c.raws}
	for w := ws.first; w < ws.end; w++ {
		now := asked(w)
		for todo := now &^ k.in[w]; todo != 0; todo &= todo - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(todo))
			if !c.scored.Has(i) {
				c.scoreNode(st, i, &ids)
			}
			k.fresh = append(k.fresh, freshNode{c.groups[i], c.rankedNode(i)})
		}
		c.scored[w] |= now
		k.in[w] |= now
	}
	k.groups = grow(k.groups, c.raws.len())
	slices.SortFunc(k.fresh, func(a, b freshNode) int {
		if a.group != b.group {
			return int(a.group) - int(b.group)
		}
		return a.compare(b.rank)
	})
	for fresh := k.fresh; len(fresh) > 0; {
		n := 1
		for n < len(fresh) && fresh[n].group == fresh[0].group {
			n++
		}
		k.groups[fresh[0].group].insert(fresh[:n])
		fresh = fresh[n:]
	}
}

// settle drops those from the list that are not ranked any more. They are mostly among the first, since those are where
// pods go.
func (g *ranking) settle(in cluster.Bitmap) {
	end := 0
	for ; g.stale > 0 && end < len(g.best); end++ {
		if !in.Has(g.best[end].node) {
			g.stale--
		}
	}
	first := end
	for k := end - 1; k >= 0; k-- {
		if in.Has(g.best[k].node) {
			first--
			g.best[first] = g.best[k]
		}
	}
	g.best, g.stale = g.best[first:], 0
}

// insert adds nodes of the group, best first, and lists those that are not behind the bound.
func (g *ranking) insert(fresh []freshNode) {
	g.count += len(fresh)
	for g.bounded && len(fresh) > 0 && g.bound.before(fresh[len(fresh)-1].rank) {
		fresh = fresh[:len(fresh)-1]
	}
	// From the worst to the best, so that each listed node moves once.
	old := len(g.best)
	g.widen(len(fresh))
	for to := len(g.best) - 1; len(fresh) > 0; to-- {
		last := fresh[len(fresh)-1].rankedNode
		if old > 0 && last.before(g.best[old-1].rank) {
			old--
			g.best[to] = g.best[old]
		} else {
			fresh = fresh[:len(fresh)-1]
			g.best[to] = last
		}
	}
}

// widen makes the list longer by n, whose places are not filled.
func (g *ranking) widen(n int) {
	length := len(g.best) + n
	if cap(g.best) < length {
		if cap(g.room) < length {
			g.room = make([]rankedNode, 0, length+length/4)
		}
		g.best = append(g.room[:0], g.best...)
	}
	g.best = g.best[:length]
}

// list makes the lists of all groups that are short anew, of at most least nodes each.
func (c *evaluation) list(e *Evaluator, ws words, least int) {
	k := &c.rankings
	spans := e.split(ws, (ws.end-ws.first)*64)
	parts := make([][]shortlist, len(spans))
	each(spans, func(p int, span words) {
		best := make([]shortlist, len(k.groups))
		for w := span.first; w < span.end; w++ {
			for in := k.in[w]; in != 0; in &= in - 1 {
				i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(in))
				if g := c.groups[i]; k.groups[g].short {
					best[g].offer(least, k.seed, i, c.program.weights.sum(c.scores[i]))
				}
			}
		}
		parts[p] = best
	})
	for g := range k.groups {
		if k.groups[g].short {
			k.groups[g].collect(parts, g, least)
		}
	}
}

// collect makes a list of what several spans have found.
func (g *ranking) collect(parts [][]shortlist, group, least int) {
	*g = ranking{room: g.room}
	for p := range parts {
		g.count += parts[p][group].count
		g.widen(len(parts[p][group].nodes))
		copy(g.best[len(g.best)-len(parts[p][group].nodes):], parts[p][group].nodes)
	}
	slices.SortFunc(g.best, func(a, b rankedNode) int { return a.compare(b.rank) })
	g.best = g.best[:min(len(g.best), least)]
	if g.bounded = len(g.best) < g.count; g.bounded {
		g.bound = g.best[len(g.best)-1].rank
	}
}

// top returns the best nodes of each group, at most limit.
func (c *evaluation) top(limit int) []Group {
	k := &c.rankings
	groups, nodes := 0, 0
	for g := range k.groups {
		if k.groups[g].count > 0 {
			groups++
			nodes += min(limit, len(k.groups[g].best))
		}
	}
	out, listed := make([]Group, 0, groups), make([]Scored, 0, nodes)
	for id := range k.groups {
		g := &k.groups[id]
		if g.count == 0 {
			continue
		}
		first := len(listed)
		image := c.imageScore(c.raws.raws[id].Images)
		for _, n := range g.best[:min(limit, len(g.best))] {
			listed = append(listed, scoredNode(n.node, n.total, c.scores[n.node], image))
		}
		out = append(out, Group{
			Raw: c.raws.raws[id], Count: int32(g.count), Nodes: listed[first:len(listed):len(listed)], OfImages: c.program.weights.image(image),
		})
	}
	slices.SortFunc(out, compareGroups)
	return out
}

// shortlist keeps the best of the nodes that are offered: once it is full, a heap whose first is the worst of them.
type shortlist struct {
	count int
	nodes []rankedNode
}

type rankedNode struct {
	rank
	node cluster.NodeIndex
}

func (s *shortlist) offer(limit int, seed uint64, i cluster.NodeIndex, fixed int64) {
	s.count++
	full := len(s.nodes) == limit
	if full && fixed < s.nodes[0].total {
		return // without the cost of its tie
	}
	n := rankedNode{rank{fixed, tie(seed, i)}, i}
	if full {
		if n.before(s.nodes[0].rank) {
			s.nodes[0] = n
			s.sink(0)
		}
		return
	}
	if s.nodes = append(s.nodes, n); len(s.nodes) == limit {
		for k := limit/2 - 1; k >= 0; k-- {
			s.sink(k)
		}
	}
}

// sink moves a node down to its place in the heap.
func (s *shortlist) sink(k int) {
	for {
		worst := k
		for child := 2*k + 1; child <= 2*k+2 && child < len(s.nodes); child++ {
			if s.nodes[worst].before(s.nodes[child].rank) {
				worst = child
			}
		}
		if worst == k {
			return
		}
		s.nodes[worst], s.nodes[k] = s.nodes[k], s.nodes[worst]
		k = worst
	}
}
