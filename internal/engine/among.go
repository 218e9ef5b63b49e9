package engine

import (
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
	groups, ok := e.Score(st, s, all, eligible, st.Nodes.Len())
	if !ok {
		return nil, false, false
	}
	var scores []GroupScores
	e.with(st, s, func(c *evaluation) {
		alike = c.topology == nil
		scores, ok = totals(c.judgementAmong(st, among), groups)
	})
	if !ok {
		return nil, false, false
	}
	some := false
	seed := TieSeed(st, s.Class)
	out = into
	for k := range groups {
		if scores[k].Feasible {
			alike, some = alike && !some, true
			out = slices.Grow(out, len(scores[k].Totals))
			for n, total := range scores[k].Totals {
				node := groups[k].Nodes[n].Node
				out = append(out, NodeTotal{node, total, tie(seed, node)})
			}
		}
	}
	return out, alike, true
}
