package engine

import (
	"math/bits"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NodeTotal is a feasible node and what it scores among others.
type NodeTotal struct {
	Node  cluster.NodeIndex
	Total int64 // the weighted sum of all scores, normalised over those others
	// Tie decides between equal totals: the lowest is in front in the class's own order of nodes, and is the one that a [Placer] takes.
	Tie uint64
}

// TotalsAmong returns the nodes among some that can run pods of a subject, and what each scores if these are all there are: so
// kube-scheduler scores the nodes that its extenders have left. They are in no order. They are appended to into. Bit 0 of among is index 0; nil are all nodes. Alike are nodes whose scores are the same before they are normalised, and do not depend on where
// other pods are: then none of them scores otherwise if some others of them are taken away. It costs time with the number of nodes. Not ok:
// the state has no such class.
func (e *Evaluator) TotalsAmong(st *cluster.State, s Subject, among cluster.Bitmap, into []NodeTotal) (out []NodeTotal, alike, ok bool) {
	all := cluster.Range{First: 0, End: cluster.NodeIndex(st.Nodes.Len())}
	found, ok := e.Filter(st, s, all)
	if !ok {
		return nil, false, false
	}
	eligible := found.Eligible
	if among != nil {
		for w := range eligible {
			if w >= len(among) {
				eligible[w] = 0
			} else {
				eligible[w] &= among[w]
			}
		}
	}
	known := e.with(st, s, func(c *evaluation) {
		c.scoreUnranked(e, st, eligible)
		out, alike, ok = c.totalsOf(st, eligible, c.judgementAmong(st, among), into)
	})
	return out, alike, known && ok
}

// scoreUnranked scores those of some nodes that are not scored. Whoever ranks comes upon them as upon nodes that are new.
func (c *evaluation) scoreUnranked(e *Evaluator, st *cluster.State, nodes cluster.Bitmap) {
	c.scorable(st)
	k, fresh := &c.rankings, 0
	for w, in := range k.in {
		if w < len(nodes) {
			c.unrank(w, in&nodes[w]&^c.scored[w])
		}
	}
	for w := range nodes {
		fresh += bits.OnesCount64(nodes[w] &^ c.scored[w])
	}
	if fresh > 0 {
		each(e.split(words{0, len(nodes)}, fresh), func(_ int, span words) { c.scoreSpan(st, span, func(w int) uint64 { return nodes[w] }) })
	}
}

// totalsOf appends what scored nodes score if these are all there are, to into.
func (c *evaluation) totalsOf(st *cluster.State, nodes cluster.Bitmap, j judgement, into []NodeTotal) (out []NodeTotal, alike, ok bool) {
	// 1. What does each group add to what its nodes score by themselves? So much a node has that scores nothing by itself.
	counts := make([]int32, c.raws.len())
	for w := range nodes {
		for in := nodes[w]; in != 0; in &= in - 1 {
			counts[c.groups[w*64+bits.TrailingZeros64(in)]]++
		}
	}
	var groups []Group
	var ids []groupID
	for id, count := range counts {
		if count > 0 {
			groups, ids = append(groups, Group{Raw: c.raws.raws[id], Count: count, Nodes: make([]Scored, 1)}), append(ids, groupID(id))
		}
	}
	scores, ok := totals(j, groups)
	if !ok {
		return nil, false, false
	}
	adds, feasible, room := make([]int64, len(counts)), 0, 0
	for k, id := range ids {
		if scores[k].Feasible {
			adds[id] = scores[k].Totals[0]
			feasible++
			room += int(counts[id])
		} else {
			counts[id] = 0
		}
	}
	// 2. The nodes.
	out = slices.Grow(into, room)
	for w := range nodes {
		for in := nodes[w]; in != 0; in &= in - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(in))
			if id := c.groups[i]; counts[id] > 0 {
				out = append(out, NodeTotal{i, adds[id] + c.program.weights.sum(c.scores[i]), tie(c.rankings.seed, i)})
			}
		}
	}
	return out, c.topology == nil && feasible == 1, true
}
