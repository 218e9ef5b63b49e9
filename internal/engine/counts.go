package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// profileCounts is how many eligible nodes each topology profile of a class has.
type profileCounts struct {
	synced    cluster.Seq
	rebuilt   uint64              // the topology's profiles are as of that rebuild
	profileOf []topologyProfileID // by node: where it is counted; noTopologyProfile if it is not eligible
	nodes     []int64             // by topology profile
	counted   bool
}

// count brings the counts to the state's version. The evaluation has a topology, which is synced.
func (c *evaluation) count(st *cluster.State) {
	c.sync(st)
	c.reserve(st)
	s, t := &c.counts, c.topology
	since := s.synced
	if !s.counted || s.rebuilt != t.rebuilt {
		*s = profileCounts{counted: true, rebuilt: t.rebuilt}
		since = -1
	}
	for len(s.profileOf) < st.Nodes.Len() {
		s.profileOf = append(s.profileOf, noTopologyProfile)
	}
	s.nodes = grow(s.nodes, len(t.profiles))
	st.ChangedSince(since, func(i cluster.NodeIndex) {
		if was := s.profileOf[i]; was != noTopologyProfile {
			s.nodes[was]--
		}
		s.profileOf[i] = noTopologyProfile
		if st.Nodes.Live.Has(i) && c.eligible(st, i) {
			s.profileOf[i] = t.placed[i]
			s.nodes[s.profileOf[i]]++
		}
	})
	s.synced = st.Version().Seq
}

// without calls f with how many eligible nodes each topology profile has but that one, which may be cluster.NoNode.
func (s *profileCounts) without(node cluster.NodeIndex, f func(eligible []int64)) {
	if node == cluster.NoNode || s.profileOf[node] == noTopologyProfile {
		f(s.nodes)
		return
	}
	s.nodes[s.profileOf[node]]--
	f(s.nodes)
	s.nodes[s.profileOf[node]]++
}

// among returns how many eligible nodes among some each topology profile has.
func (s *profileCounts) among(some cluster.Bitmap) (eligible []int64) {
	eligible = make([]int64, len(s.nodes))
	for i, profile := range s.profileOf {
		if profile != noTopologyProfile && some.Has(cluster.NodeIndex(i)) {
			eligible[profile]++
		}
	}
	return eligible
}

// feasible calls visit for every topology profile that has feasible nodes, and how many, given how many eligible ones each has.
func (t *topology) feasible(eligible []int64, visit func(*topologyProfile, int64)) {
	t.judgeAll()
	for id, n := range eligible {
		if tp := t.profiles[id]; n > 0 && tp.verdict.Feasible() {
			visit(tp, n)
		}
	}
}
