package engine

import (
	"math/bits"
	"sort"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Capacity is how many more pods of a subject the nodes of a state have room for.
type Capacity struct {
	Pods     int64          // no more than the limit
	Nodes    int32          // that there are
	Verdicts []VerdictCount // why no node takes one more; unless the limit was reached
}

// Capacity counts how many more pods of a subject fit, one after the other, up to a limit: on each node by itself, by the filters
// that run on it, as if so many had come already. False: the state has no such class, or pods on other nodes decide too, as they may
// where pods share claims; then they have to be placed.
func (e *Evaluator) Capacity(st *cluster.State, s Subject, limit int64) (out Capacity, ok bool) {
	e.with(st, s, func(c *evaluation) {
		if ok = !c.topology.filters() && (c.relation.labels == nil || len(c.relation.labels.Claims) == 0); ok {
			out = c.capacity(e, st, limit)
		}
	})
	return out, ok
}

func (c *evaluation) capacity(e *Evaluator, st *cluster.State, limit int64) Capacity {
	class := st.Class(c.signature.class)
	spans := e.split(words{0, len(st.Nodes.Live)}, st.Nodes.Count())
	parts := make([]Capacity, len(spans))
	each(spans, func(k int, span words) {
		var t tally
		for w := span.first; w < span.end; w++ {
			for live := st.Nodes.Live[w]; live != 0; live &= live - 1 {
				i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(live))
				n, v := c.copies(st, class, i, limit)
				parts[k].Nodes++
				parts[k].Pods = min(parts[k].Pods+n, limit)
				if !v.Feasible() {
					t.add(v, i)
				}
			}
		}
		parts[k].Verdicts = t.verdicts(st, c.program)
	})
	var out Capacity
	verdicts := make([][]VerdictCount, len(parts))
	for k := range parts {
		out.Nodes += parts[k].Nodes
		out.Pods = min(out.Pods+parts[k].Pods, limit)
		verdicts[k] = parts[k].Verdicts
	}
	if out.Pods < limit {
		out.Verdicts = MergeVerdicts(verdicts...)
	}
	return out
}

// copies returns how many pods of the class a live node takes, up to a limit, and the verdict on one more, which is feasible if
// the limit was reached.
func (c *evaluation) copies(st *cluster.State, class *cluster.Class, i cluster.NodeIndex, limit int64) (int64, Verdict) {
	// The first one has to fit without those that are nominated too, who may make room by using the same volume. Those behind it have it.
	if v := c.program.filter(st, i, c.signature.priority, cluster.NoPod); !v.Feasible() {
		return 0, v
	}
	with := c.program.nomineesOf(st, i, c.signature.priority, cluster.NoPod)
	if with == nil {
		with = c.program.overlay(st)
	}
	came, copies := int64(0), c.program.volumes.moved(st, class.ID, cluster.NoLabels)
	verdict := func(n int64) Verdict { // with n there already, and whoever is nominated: without, there is more room
		c.program.move(with, st, i, class, copies, n-came)
		came = n
		return c.program.pass(st, i, with)
	}
	// The first number that is too large lies between two powers of 2.
	least, most := int64(0), int64(1)
	for most < limit && verdict(most).Feasible() {
		least, most = most, 2*most
	}
	most = min(most, limit)
	n := least + 1 + int64(sort.Search(int(most-least-1), func(k int) bool { return !verdict(least + 1 + int64(k)).Feasible() }))
	if n >= limit {
		return limit, codeFeasible
	}
	return n, verdict(n)
}
