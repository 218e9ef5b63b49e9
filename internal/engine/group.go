package engine

import (
	"cmp"
	"slices"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Group is the set of feasible nodes with one vector of raw scores. Which of two nodes of a group is better does not
// depend on the other nodes of the cluster; between groups it does, by normalisation.
type Group struct {
	Raw   Raw
	Count int32    // of all nodes in the group
	Nodes []Scored // the best of them, best first; if there are fewer than Count, the others are worse than the last
}

func (g *Group) truncated() bool { return int(g.Count) > len(g.Nodes) }

// Scored is a node with its score but for the part that must be normalised.
type Scored struct {
	Node   cluster.NodeIndex
	Fixed  int64              // the weighted sum of the scores that are not normalised
	Scores [fixedScores]int32 // NodeResourcesFit, NodeResourcesBalancedAllocation, ImageLocality: 0 to 100, or NotScored
}

// rank is a node's place in the order of preference: higher totals first, then the seeded order of nodes, which is
// the same for every class, range and worker.
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

// compareGroups orders groups as answers list them: fewest untolerated taints first, then most preferred.
func compareGroups(a, b Group) int {
	return cmp.Or(
		cmp.Compare(a.Raw.TaintToleration, b.Raw.TaintToleration),
		cmp.Compare(b.Raw.NodeAffinity, a.Raw.NodeAffinity),
	)
}

// MergeGroups merges the groups of several disjoint ranges of a class, at most limit nodes of each. Seed is the
// state's Settings.Seed. The nodes of a group that is truncated in a part are cut after that part's last one: where
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
	out := Group{Raw: raw}
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

// Normalize returns the normalised scores, 0 to 100 and without weights, of each group, over all groups that have
// nodes: TaintToleration in reverse.
func Normalize(groups []Group) []Raw {
	var m Raw
	for k := range groups {
		if groups[k].Count > 0 {
			m = m.max(groups[k].Raw)
		}
	}
	out := make([]Raw, len(groups))
	for k := range groups {
		out[k] = groups[k].Raw.normalize(m)
	}
	return out
}

func (r Raw) max(s Raw) Raw {
	return Raw{max(r.TaintToleration, s.TaintToleration), max(r.NodeAffinity, s.NodeAffinity)}
}

// normalize scales to 100 the raw scores of a node, given the largest over all feasible nodes.
func (r Raw) normalize(largest Raw) Raw {
	out := Raw{TaintToleration: maxScore, NodeAffinity: r.NodeAffinity}
	if m := largest.TaintToleration; m != 0 {
		out.TaintToleration = maxScore - maxScore*r.TaintToleration/m
	}
	if m := largest.NodeAffinity; m != 0 {
		out.NodeAffinity = maxScore * r.NodeAffinity / m
	}
	return out
}

// Totals returns the total score of every node of the groups, in their order, for the pods of a profile; nil stands
// for the default profile. The groups must be all groups of the class, over all ranges.
func Totals(profile *cluster.Profile, groups []Group) [][]int64 {
	if profile == nil {
		d := cluster.DefaultProfile("")
		profile = &d
	}
	w := weightsOf(profile)
	normalized := Normalize(groups)
	out := make([][]int64, len(groups))
	for k := range groups {
		out[k] = make([]int64, len(groups[k].Nodes))
		for j := range groups[k].Nodes {
			out[k][j] = w.normalized(normalized[k]) + groups[k].Nodes[j].Fixed
		}
	}
	return out
}

// normalized returns the weighted sum of normalised scores.
func (w *weights) normalized(r Raw) int64 {
	return w.taintToleration*r.TaintToleration + w.nodeAffinity*r.NodeAffinity
}

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
