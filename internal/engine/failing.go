package engine

import (
	"math/bits"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// failing is on which nodes a plugin fails to judge pods of a signature: their own volumes cannot be told. There kube-scheduler's attempt ends
// with an error, so that no other node is feasible either as long as there is such a node, which no plugin before refuses. Only the one that a
// pod requires or is nominated to it asks alone.
type failing struct {
	own    *program // as it is compiled; nil: it does not fail
	known  cluster.Bitmap
	failed cluster.Bitmap // as far as the node alone decides
	synced cluster.Seq

	by Verdict // what is said of such a node, the first of several; codeFeasible if there is none
}

// refuses reports whether there is such a node.
func (f *failing) refuses() bool { return f.by != codeFeasible }

// fails reports whether a verdict says that the plugin fails.
func (v Verdict) fails() bool {
	r := v.tabled()
	return r != nil && r.fails
}

// mayFail reports whether some node's verdict could say that a plugin fails.
func (p *program) mayFail() bool {
	for code := range p.texts {
		if code.fails() {
			return true
		}
	}
	return false
}

// fail makes the program one that refuses all nodes as long as there is a node on which a plugin fails.
func (c *evaluation) fail(st *cluster.State) {
	f := &c.failing
	if seq := st.Version().Seq; seq != f.synced {
		forget := func(i cluster.NodeIndex) {
			if int(i>>6) < len(f.known) {
				f.known.Clear(i)
				f.failed.Clear(i)
			}
		}
		st.ChangedSince(f.synced, forget)
		f.synced = seq
	}
	f.known, f.failed = grow(f.known, len(st.Nodes.Live)), grow(f.failed, len(st.Nodes.Live))
	if c.topology.filters() {
		c.topology.judgeAll()
	}
	by := codeFeasible
	for w, live := range st.Nodes.Live {
		for todo := live &^ f.known[w]; todo != 0; todo &= todo - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(todo))
			f.failed.Put(i, f.own.filter(st, i, c.signature.priority, cluster.NoPod).fails())
		}
		f.known[w] |= live
		for failed := live & f.failed[w]; by == codeFeasible && failed != 0; failed &= failed - 1 {
			by = c.failsOn(st, cluster.NodeIndex(w*64+bits.TrailingZeros64(failed)))
		}
	}
	was := f.by
	if f.by = by; by == was {
		return
	}
	if c.program = f.own; f.refuses() {
		p := *f.own
		p.unsupportedPlugin, p.unsupported = p.reason(int(by.code()))
		c.program = &p
	}
	if f.refuses() != (was != codeFeasible) {
		c.forgetNodes()
	}
}

// failsOn returns the verdict that a plugin fails on a live node, codeFeasible if none does, or not for each pod of the signature: to one that is
// nominated there and shares its volumes with itself, another plugin may refuse the node before. All that it is told of other nodes is what its signature
// is told; so pods like it, for which a plugin does fail there, are refused by this node alone.
func (c *evaluation) failsOn(st *cluster.State, i cluster.NodeIndex) Verdict {
	judge := func(self cluster.PodID) Verdict {
		v := c.failing.own.filter(st, i, c.signature.priority, self)
		if c.topology.filters() {
			v = c.failing.own.combine(v, c.topology.profileFor(st, i, self)) // a plugin that comes first may refuse the node
		}
		return v
	}
	v := judge(cluster.NoPod)
	if !v.fails() {
		return codeFeasible
	}
	if id := c.nomineeOf(st, i); id != cluster.NoPod && !judge(id).fails() {
		return codeFeasible
	}
	return v
}

// nomineeOf returns a pod of the signature that is nominated to a live node and does not require it, cluster.NoPod if there is none. Of several it is any:
// each is judged beside others that are like it.
func (c *evaluation) nomineeOf(st *cluster.State, i cluster.NodeIndex) cluster.PodID {
	for _, id := range nominatedTo(st, i) {
		row := nominee(st, id, c.signature.priority, cluster.NoPod)
		if row == nil || row.Class != c.signature.class || row.Priority != c.signature.priority || row.RequiredNode != "" {
			continue
		}
		spec := &st.Class(row.Class).Spec
		if relate(st, SubjectOf(&row.Pod), spec, st.Profile(spec.SchedulerName), asOfNow).signature.matches == c.signature.matches {
			return id
		}
	}
	return cluster.NoPod
}

// programFor returns what judges a live node for a pod: where the pod requires it or is nominated to it, it does not matter where else a plugin fails.
func (c *evaluation) programFor(st *cluster.State, i cluster.NodeIndex, self cluster.PodID) *program {
	row := st.Pod(self)
	return c.programIf(row != nil && (row.Nominated == st.Nodes.Spec[i].Name || row.RequiredNode == st.Nodes.Spec[i].Name))
}

// programIf returns what judges nodes where it does not matter if a plugin fails on others, or where it does.
func (c *evaluation) programIf(alone bool) *program {
	if alone && c.failing.own != nil && !c.overflow {
		return c.failing.own
	}
	return c.program
}
