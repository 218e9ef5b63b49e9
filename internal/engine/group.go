package engine

import (
	"cmp"
	"slices"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Group is the set of feasible nodes with one vector of raw scores. Which of two nodes of a group is better does not
// depend on the other nodes of the cluster; between groups it does.
type Group struct {
	Raw   Raw
	Count int32    // of all nodes in the group
	Nodes []Scored // the best of them, best first; if there are fewer than Count, the others are worse than the last
	// OfImages is what images add to the total of each node, weighted, on the state that the nodes were scored on. It is the
	// same for all, and counted again where groups are compared.
	OfImages int64
}

func (g *Group) truncated() bool { return int(g.Count) > len(g.Nodes) }

// Scored is a node with the part of its score that the node alone decides.
type Scored struct {
	Node   cluster.NodeIndex
	Fixed  int64              // the weighted sum of the scores, but for that of images
	Scores [fixedScores]int32 // by place: 0 to 100, or NotScored
}

// rank is a node's place in the order of preference: higher totals first, then the class's own order of nodes, by TieSeed, which is
// the same for every range and worker.
type rank struct {
	total int64
	tie   uint64
}

func tie(seed uint64, i cluster.NodeIndex) uint64 { return cluster.Mix(uint64(i) ^ seed) }

// compare is negative if a is preferred to b.
func (a rank) compare(b rank) int {
	if a.total != b.total {
		return cmp.Compare(b.total, a.total)
	}
	return cmp.Compare(a.tie, b.tie)
}

func (a rank) before(b rank) bool { return a.total > b.total || a.total == b.total && a.tie < b.tie }

func rankOf(seed uint64, s *Scored) rank { return rank{s.Fixed, tie(seed, s.Node)} }

// compareGroups orders groups as answers list them: by score, place by place, the best first.
func compareGroups(a, b Group) int {
	for k := range a.Raw.Scores {
		c := cmp.Compare(b.Raw.Scores[k], a.Raw.Scores[k])
		if scales[k] == reversedMostScale {
			c = -c
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Or(
		cmp.Compare(a.Raw.TopologyProfile, b.Raw.TopologyProfile),
		cmp.Compare(a.Raw.Images, b.Raw.Images),
	)
}

// TieSeed returns what orders nodes that are equally good for a class. Every class has an order of its own: pods of different
// classes, be they of one batch or of shards that place at the same time, seldom want the same of many equal nodes.
func TieSeed(st *cluster.State, class cluster.ClassID) uint64 {
	if c := st.Class(class); c != nil {
		return st.Settings.Seed ^ c.Hash
	}
	return st.Settings.Seed
}

// MergeGroups merges the groups of several disjoint ranges of a class, at most limit nodes of each. Seed is the
// class's TieSeed. The nodes of a group that is truncated in a part are cut after that part's last one: where
// the others belong is not known.
func MergeGroups(seed uint64, limit int, parts ...[]Group) []Group {
	byRaw := make(map[Raw][]*Group)
	for _, part := range parts {
		for k := range part {
			byRaw[part[k].Raw] = append(byRaw[part[k].Raw], &part[k])
		}
	}
	merged := make([]Group, 0, len(byRaw))
	for raw, groups := range byRaw {
		merged = append(merged, mergeGroup(seed, limit, raw, groups))
	}
	slices.SortFunc(merged, compareGroups)
	return merged
}

func mergeGroup(seed uint64, limit int, raw Raw, groups []*Group) Group {
	out := Group{Raw: raw, OfImages: groups[0].OfImages}
	if len(groups) == 1 && sorted(seed, groups[0].Nodes) {
		out.Count, out.Nodes = groups[0].Count, groups[0].Nodes[:min(len(groups[0].Nodes), max(limit, 1))]
		return out
	}
	type ranked struct {
		rank
		Scored
	}
	var all []ranked
	var bound *rank // the first of the last nodes of truncated parts
	empty := false
	for _, g := range groups {
		out.Count += g.Count
		for k := range g.Nodes {
			all = append(all, ranked{rankOf(seed, &g.Nodes[k]), g.Nodes[k]})
		}
		if !g.truncated() {
			continue
		}
		if len(g.Nodes) == 0 {
			empty = true
		} else if last := all[len(all)-1].rank; bound == nil || last.before(*bound) {
			bound = &last
		}
	}
	if empty {
		return out
	}
	slices.SortFunc(all, func(a, b ranked) int { return a.rank.compare(b.rank) })
	for _, r := range all[:min(len(all), max(limit, 1))] {
		if bound != nil && bound.before(r.rank) {
			break
		}
		out.Nodes = append(out.Nodes, r.Scored)
	}
	return out
}

func sorted(seed uint64, nodes []Scored) bool {
	for k := 1; k < len(nodes); k++ {
		if a, b := &nodes[k-1], &nodes[k]; a.Fixed <= b.Fixed && rankOf(seed, b).before(rankOf(seed, a)) {
			return false
		}
	}
	return true
}

// WithoutImages returns the groups for somebody who does not tell them apart by images: what images add is in the fixed scores,
// as it was when the nodes were scored. Seed is the class's TieSeed.
func WithoutImages(seed uint64, groups []Group) []Group {
	parts, most := make([][]Group, 0, len(groups)), 0
	for _, g := range groups {
		nodes := slices.Clone(g.Nodes)
		for k := range nodes {
			nodes[k].Fixed += g.OfImages
		}
		most += len(nodes)
		g.Raw.Images, g.OfImages, g.Nodes = "", 0, nodes
		parts = append(parts, []Group{g})
	}
	return MergeGroups(seed, most, parts...)
}

// Normalized are the scores of a node between 0 and 100, without weights, of the plugins that normalise over all
// feasible nodes, by place.
type Normalized [normalizedScores]int64

// groupID numbers the distinct raw score vectors of a class.
type groupID uint32

// interner numbers raw score vectors. It is safe for concurrent use.
type interner struct {
	mu   sync.Mutex
	ids  map[Raw]groupID
	raws []Raw
}

func (n *interner) intern(r Raw) groupID {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id, ok := n.ids[r]; ok {
		return id
	}
	if n.ids == nil {
		n.ids = make(map[Raw]groupID)
	}
	id := groupID(len(n.raws))
	n.raws = append(n.raws, r)
	n.ids[r] = id
	return id
}

// len returns how many there are. Nobody interns meanwhile.
func (n *interner) len() int { return len(n.raws) }

// recent remembers the vectors that one goroutine met last, so that it seldom asks the interner.
type recent struct {
	from *interner
	raws [8]Raw
	ids  [8]groupID
	used int
	next int
}

func (m *recent) intern(r Raw) groupID {
	for k := range m.used {
		if m.raws[k] == r {
			return m.ids[k]
		}
	}
	id := m.from.intern(r)
	m.raws[m.next], m.ids[m.next] = r, id
	m.next = (m.next + 1) % len(m.raws)
	m.used = min(m.used+1, len(m.raws))
	return id
}
