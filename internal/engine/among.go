package engine

import (
	"cmp"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NodeTotal is a feasible node and what it scores among others.
type NodeTotal struct {
	Node  cluster.NodeIndex
	Total int64 // the weighted sum of all scores, normalised over those others
}

// TotalsAmong returns the nodes among some that can run pods of a subject, and what each scores if these are all there are: so
// kube-scheduler scores the nodes that its extenders have left. Equal ones are in the class's own order of nodes: the first of those with the
// highest total is the one that a [Placer] takes. Bit 0 of among is index 0; nil are all nodes. It costs time with the number of nodes. False:
// the state has no such class.
func (e *Evaluator) TotalsAmong(st *cluster.State, s Subject, among cluster.Bitmap) (out []NodeTotal, ok bool) {
	all := cluster.Range{First: 0, End: cluster.NodeIndex(st.Nodes.Len())}
	found, ok := e.Filter(st, s, all)
	if !ok {
		return nil, false
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
		return nil, false
	}
	var scores []GroupScores
	e.with(st, s, func(c *evaluation) { scores, ok = totals(c.judgementAmong(st, among), groups) })
	if !ok {
		return nil, false
	}
	for k := range groups {
		if scores[k].Feasible {
			for n, total := range scores[k].Totals {
				out = append(out, NodeTotal{groups[k].Nodes[n].Node, total})
			}
		}
	}
	seed := TieSeed(st, s.Class)
	slices.SortFunc(out, func(a, b NodeTotal) int { return cmp.Compare(tie(seed, a.Node), tie(seed, b.Node)) })
	return out, true
}
