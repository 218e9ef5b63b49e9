package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// census is how many eligible nodes each cell of a class has.
type census struct {
	synced  cluster.Seq
	rebuilt uint64   // the topology's cells are as of that rebuild
	cellOf  []cellID // by node: where it is counted; noCell if it is not eligible
	nodes   []int64  // by cell
	counted bool
}

// count brings the census to the state's version. The class has a topology, which is synced.
func (c *class) count(st *cluster.State) {
	c.sync(st)
	c.reserve(st)
	s, t := &c.census, c.topology
	since := s.synced
	if !s.counted || s.rebuilt != t.rebuilt {
		*s = census{counted: true, rebuilt: t.rebuilt}
		since = -1
	}
	for len(s.cellOf) < st.Nodes.Len() {
		s.cellOf = append(s.cellOf, noCell)
	}
	s.nodes = grow(s.nodes, len(t.cells))
	st.ChangedSince(since, func(i cluster.NodeIndex) {
		if was := s.cellOf[i]; was != noCell {
			s.nodes[was]--
		}
		s.cellOf[i] = noCell
		if st.Nodes.Live.Has(i) && c.eligible(st, i) {
			s.cellOf[i] = t.placed[i]
			s.nodes[s.cellOf[i]]++
		}
	})
	s.synced = st.Version().Seq
}

// feasibleCells calls visit for every cell that has feasible nodes, and how many. The class has been counted.
func (c *class) feasibleCells(visit func(*cell, int64)) {
	c.topology.judgeAll()
	for id, n := range c.census.nodes {
		if cl := c.topology.cells[id]; n > 0 && cl.verdict.Feasible() {
			visit(cl, n)
		}
	}
}
