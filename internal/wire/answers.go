package wire

import (
	"errors"
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
)

// scoresPerNode is how many of engine.Scored.Scores are told at most, leastScores at least: the others only if a plugin scores there, which
// none does by default. Members that are older know of no others.
var scoresPerNode = engine.ScorePlaces()

const leastScores = 3

// scoresOf returns how many scores of nodes are told.
func scoresOf(nodes []engine.Scored) int {
	for k := range nodes {
		for place := leastScores; place < scoresPerNode; place++ {
			if nodes[k].Scores[place] != engine.NotScored {
				return scoresPerNode
			}
		}
	}
	return leastScores
}

// maxRaw bounds engine.Raw.TopologyProfile and engine.Raw.Images, in bytes.
const maxRaw = 1 << 16

var errNegativeCount = errors.New("negative count")

// ToSubject returns the subject as a message.
func ToSubject(s engine.Subject) *filterv1.Subject {
	return &filterv1.Subject{Class: int32(s.Class), Labels: int32(s.Labels), Priority: s.Priority}
}

// Subject returns what ToSubject was given. It takes every number, since nothing is known of a class or a label set
// that does not exist; no message is the zero subject.
func Subject(m *filterv1.Subject) engine.Subject {
	return engine.Subject{
		Class: cluster.ClassID(m.GetClass()), Labels: cluster.LabelsID(m.GetLabels()), Priority: m.GetPriority(),
	}
}

// ToGroups returns the groups as messages, in order.
func ToGroups(groups []engine.Group) []*scorev1.Group {
	return each(groups, func(g engine.Group) *scorev1.Group {
		m := &scorev1.Group{
			TaintToleration: g.Raw.Scores[0], // the fields are by place
			NodeAffinity:    g.Raw.Scores[1],
			Count:           g.Count,
			TopologyProfile: []byte(g.Raw.TopologyProfile),
			Images:          []byte(g.Raw.Images),
			ImageLocality:   g.OfImages,
		}
		if len(g.Nodes) == 0 {
			return m
		}
		m.Nodes = make([]int32, len(g.Nodes))
		m.Fixed = make([]int64, len(g.Nodes))
		scores := scoresOf(g.Nodes)
		m.Raw = make([]int32, 0, len(g.Nodes)*scores)
		for i, n := range g.Nodes {
			m.Nodes[i] = int32(n.Node)
			m.Fixed[i] = n.Fixed + g.OfImages
			m.Raw = append(m.Raw, n.Scores[:scores]...)
		}
		return m
	})
}

// Groups returns what ToGroups was given. It fails if the lists of a group do not have lengths that belong together,
// if there are more nodes than the group counts, if a node index is out of bounds, or if a topology profile or a set of images is too long.
func Groups(ms []*scorev1.Group) ([]engine.Group, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	groups := make([]engine.Group, len(ms))
	for i, m := range ms {
		nodes, err := scored(m)
		if err != nil {
			return nil, fmt.Errorf("decode group %d: %w", i, err)
		}
		groups[i] = engine.Group{
			Raw: engine.Raw{
				Scores: [...]int64{m.GetTaintToleration(), m.GetNodeAffinity()}, TopologyProfile: string(m.GetTopologyProfile()),
				Images: string(m.GetImages()),
			},
			Count:    m.GetCount(),
			Nodes:    nodes,
			OfImages: m.GetImageLocality(),
		}
	}
	return groups, nil
}

func scored(m *scorev1.Group) ([]engine.Scored, error) {
	n := len(m.GetNodes())
	switch {
	case len(m.GetTopologyProfile()) > maxRaw:
		return nil, fmt.Errorf("topology_profile: %d bytes, want at most %d", len(m.GetTopologyProfile()), maxRaw)
	case len(m.GetImages()) > maxRaw:
		return nil, fmt.Errorf("images: %d bytes, want at most %d", len(m.GetImages()), maxRaw)
	case len(m.GetFixed()) != n:
		return nil, fmt.Errorf("fixed: %d scores of %d nodes", len(m.GetFixed()), n)
	case len(m.GetRaw()) != n*leastScores && len(m.GetRaw()) != n*scoresPerNode:
		return nil, fmt.Errorf("raw: %d scores of %d nodes, want %d per node, or %d", len(m.GetRaw()), n, leastScores, scoresPerNode)
	case int(m.GetCount()) < n:
		return nil, fmt.Errorf("count: %d of %d nodes", m.GetCount(), n)
	case n == 0:
		return nil, nil
	}
	nodes, scores := make([]engine.Scored, n), len(m.GetRaw())/n
	for i, index32 := range m.GetNodes() {
		if err := index("nodes", index32); err != nil {
			return nil, err
		}
		nodes[i] = engine.Scored{Node: cluster.NodeIndex(index32), Fixed: m.GetFixed()[i] - m.GetImageLocality()}
		copy(nodes[i].Scores[:scores], m.GetRaw()[i*scores:])
		for place := scores; place < scoresPerNode; place++ {
			nodes[i].Scores[place] = engine.NotScored
		}
	}
	return nodes, nil
}

// ToVerdicts returns the counts as messages, in order.
func ToVerdicts(counts []engine.VerdictCount) []*filterv1.VerdictCount {
	return each(counts, func(c engine.VerdictCount) *filterv1.VerdictCount {
		return &filterv1.VerdictCount{
			Plugin: c.Plugin, Reason: c.Reason, Unresolvable: c.Unresolvable, Count: c.Count, Examples: c.Examples,
		}
	})
}

// Verdicts returns what ToVerdicts was given. It fails if a count is negative.
func Verdicts(ms []*filterv1.VerdictCount) ([]engine.VerdictCount, error) {
	for i, m := range ms {
		if m.GetCount() < 0 {
			return nil, fmt.Errorf("decode verdict %d: %w", i, errNegativeCount)
		}
	}
	return each(ms, func(m *filterv1.VerdictCount) engine.VerdictCount {
		return engine.VerdictCount{
			Plugin: m.GetPlugin(), Reason: m.GetReason(), Unresolvable: m.GetUnresolvable(),
			Count: m.GetCount(), Examples: m.GetExamples(),
		}
	}), nil
}

// ToDryRun returns the result as a message, without the version it is of.
func ToDryRun(d engine.DryRun) *filterv1.DryRunPreemptionResponse {
	return &filterv1.DryRunPreemptionResponse{
		Nodes: d.Nodes, CandidateCount: d.Count, Verdicts: ToVerdicts(d.Verdicts),
		Candidates: each(d.Candidates, func(p engine.Preemption) *filterv1.PreemptionCandidate {
			return &filterv1.PreemptionCandidate{
				Node: int32(p.Node), Victims: FromPodIDs(p.Victims), Violations: p.Violations,
				HighestPriority: p.HighestPriority, PrioritySum: p.PrioritySum, EarliestStart: p.EarliestStart,
			}
		}),
	}
}

// DryRun returns what ToDryRun was given. It fails if a count is negative, if there are more candidates than are counted,
// if an index or a pod's id is out of bounds, or if a candidate has no victims or fewer than are protected.
func DryRun(m *filterv1.DryRunPreemptionResponse) (engine.DryRun, error) {
	verdicts, err := Verdicts(m.GetVerdicts())
	switch {
	case err != nil:
		return engine.DryRun{}, err
	case m.GetNodes() < 0:
		return engine.DryRun{}, fmt.Errorf("nodes: %w", errNegativeCount)
	case int(m.GetCandidateCount()) < len(m.GetCandidates()):
		return engine.DryRun{}, fmt.Errorf("candidate_count: %d of %d candidates", m.GetCandidateCount(), len(m.GetCandidates()))
	}
	for i, c := range m.GetCandidates() {
		n := len(c.GetVictims())
		err := errors.Join(index("node", c.GetNode()), indexes("victims", c.GetVictims()))
		switch {
		case err != nil:
		case n == 0:
			err = errors.New("victims: none")
		case c.GetViolations() < 0 || int(c.GetViolations()) > n:
			err = fmt.Errorf("violations: %d of %d victims", c.GetViolations(), n)
		}
		if err != nil {
			return engine.DryRun{}, fmt.Errorf("decode candidate %d: %w", i, err)
		}
	}
	return engine.DryRun{
		Nodes: m.GetNodes(), Count: m.GetCandidateCount(), Verdicts: verdicts,
		Candidates: each(m.GetCandidates(), func(c *filterv1.PreemptionCandidate) engine.Preemption {
			return engine.Preemption{
				Node: cluster.NodeIndex(c.GetNode()), Victims: PodIDs(c.GetVictims()), Violations: c.GetViolations(),
				HighestPriority: c.GetHighestPriority(), PrioritySum: c.GetPrioritySum(), EarliestStart: c.GetEarliestStart(),
			}
		}),
	}, nil
}
