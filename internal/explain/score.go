package explain

import (
	"cmp"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// Candidate is a feasible node with its scores.
type Candidate struct {
	Node   string
	Total  int64 // the sum of Weighted
	Scores []PluginScore

	tie uint64 // orders equal totals, as a commit does
}

// PluginScore is what one plugin gives a node. Plugins that do not score the pod are left out.
type PluginScore struct {
	Plugin     string
	Raw        int64 // before normalisation; where the plugin does not normalise, the same as Normalized
	Normalized int64 // 0 to 100
	Weight     int64 // of the profile
}

// Weighted returns what the score adds to the total.
func (s PluginScore) Weighted() int64 { return s.Normalized * s.Weight }

// Here is where a placed pod is, scored as if it were not placed.
type Here struct {
	Candidate
	// Feasible says that the node could take the pod now; if not, Miss says why, and of Candidate only the name is set.
	Feasible bool
	Miss     Miss
	// Best says that a commit would choose this node now. If not, the cluster has changed since, or the node was not chosen by
	// scores: the pod requires it or was nominated to it, or somebody else has placed it.
	Best bool
}

// score scores the feasible nodes for a pending pod; at is where it was placed, and said what plugins of others say.
func (x *Explanation) score(w *whatif.World, pod cluster.PodID, at cluster.NodeIndex, said *opinion) error {
	st, e := w.State(), w.Evaluator()
	subject := engine.SubjectOf(&st.Pod(pod).Pod)
	if at != cluster.NoNode {
		x.Here = &Here{Candidate: Candidate{Node: st.Nodes.Spec[at].Name}}
		x.Here.Miss = missOf(w, pod, at)
		if lack, is := said.lack(at); is {
			x.Here.Miss.add(lack)
		}
		x.Here.Feasible = x.Here.Miss.Things == 0
	}
	if x.Feasible == 0 || x.Pod.RequiredNode != "" {
		return w.Context().Err()
	}
	// 1. The best of each group, and the node of the pod itself, as a group of its own.
	f, _ := e.Filter(st, subject, everything(st))
	refused := e.RefusedAsNominated(st, pod)
	if refused != cluster.NoNode {
		f.Eligible.Clear(refused)
	}
	listed := maxCandidates
	if said.said != nil { // who is best is not known without them
		for i := range said.refused {
			f.Eligible.Clear(i)
		}
		listed = len(said.left)
	}
	groups, _ := e.Score(st, subject, everything(st), f.Eligible, listed)
	own := len(groups)
	if x.Here != nil && x.Here.Feasible {
		if of, ok := e.GroupOf(st, subject, at); ok {
			groups = append(groups, of)
		}
	}
	scores, ok := e.Totals(st, subject, groups, refused)
	if !ok {
		return w.Context().Err()
	}
	// 2. The best of all groups.
	columns := columnsOf(st, subject, groups, scores)
	seed, theirs := engine.TieSeed(st, subject.Class), said.scores()
	for g := range groups {
		if !scores[g].Feasible {
			continue
		}
		for n := range groups[g].Nodes {
			node := groups[g].Nodes[n].Node
			c := Candidate{
				Node: st.Nodes.Spec[node].Name, Total: scores[g].Totals[n],
				Scores: columns.of(&groups[g], n, &scores[g]), tie: cluster.Mix(uint64(node) ^ seed),
			}
			c.add(theirs[node])
			if g == own {
				x.Here.Candidate = c
				continue
			}
			x.Candidates = append(x.Candidates, c)
		}
	}
	slices.SortFunc(x.Candidates, func(a, b Candidate) int { return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.tie, b.tie)) })
	x.Candidates = x.Candidates[:min(len(x.Candidates), maxCandidates)]
	if x.Here != nil {
		x.Here.Best = x.Here.Feasible && len(x.Candidates) > 0 && x.Candidates[0].Node == x.Here.Node
	}
	return w.Context().Err()
}

// columns are the plugins that score a subject, with their weights.
type columns []cluster.PluginWeight

// columnsOf returns the profile's, without those that score no node: they have nothing to go by.
func columnsOf(st *cluster.State, s engine.Subject, groups []engine.Group, scores []engine.GroupScores) columns {
	profile := st.Profile(st.Class(s.Class).Spec.SchedulerName)
	if profile == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(columns(profile.Weights)), func(c cluster.PluginWeight) bool {
		for g := range groups {
			for n := range groups[g].Nodes {
				if !scores[g].Feasible {
					continue
				}
				if raw, normalized := engine.ScoreOf(c.Name, &groups[g], n, &scores[g]); normalized != engine.NotScored && (raw != 0 || normalized != 0) {
					return false
				}
			}
		}
		return true
	})
}

func (c columns) of(g *engine.Group, n int, scores *engine.GroupScores) []PluginScore {
	out := make([]PluginScore, 0, len(c))
	for _, column := range c {
		raw, normalized := engine.ScoreOf(column.Name, g, n, scores)
		out = append(out, PluginScore{Plugin: column.Name, Raw: raw, Normalized: normalized, Weight: column.Weight})
	}
	return out
}
