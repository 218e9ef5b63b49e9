package wire

import (
	"errors"
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
)

// scoresPerNode is the length of engine.Scored.Scores.
const scoresPerNode = len(engine.Scored{}.Scores)

// maxCell bounds engine.Raw.Cell, in bytes.
const maxCell = 1 << 16

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
			TaintToleration: g.Raw.TaintToleration,
			NodeAffinity:    g.Raw.NodeAffinity,
			Count:           g.Count,
			Cell:            []byte(g.Raw.Cell),
		}
		if len(g.Nodes) == 0 {
			return m
		}
		m.Nodes = make([]int32, len(g.Nodes))
		m.Fixed = make([]int64, len(g.Nodes))
		m.Raw = make([]int32, 0, len(g.Nodes)*scoresPerNode)
		for i, n := range g.Nodes {
			m.Nodes[i] = int32(n.Node)
			m.Fixed[i] = n.Fixed
			m.Raw = append(m.Raw, n.Scores[:]...)
		}
		return m
	})
}

// Groups returns what ToGroups was given. It fails if the lists of a group do not have lengths that belong together,
// if there are more nodes than the group counts, if a node index is out of bounds, or if a cell is too long.
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
				TaintToleration: m.GetTaintToleration(), NodeAffinity: m.GetNodeAffinity(), Cell: string(m.GetCell()),
			},
			Count: m.GetCount(),
			Nodes: nodes,
		}
	}
	return groups, nil
}

func scored(m *scorev1.Group) ([]engine.Scored, error) {
	n := len(m.GetNodes())
	switch {
	case len(m.GetCell()) > maxCell:
		return nil, fmt.Errorf("cell: %d bytes, want at most %d", len(m.GetCell()), maxCell)
	case len(m.GetFixed()) != n:
		return nil, fmt.Errorf("fixed: %d scores of %d nodes", len(m.GetFixed()), n)
	case len(m.GetRaw()) != n*scoresPerNode:
		return nil, fmt.Errorf("raw: %d scores of %d nodes, want %d per node", len(m.GetRaw()), n, scoresPerNode)
	case int(m.GetCount()) < n:
		return nil, fmt.Errorf("count: %d of %d nodes", m.GetCount(), n)
	case n == 0:
		return nil, nil
	}
	nodes := make([]engine.Scored, n)
	for i, index32 := range m.GetNodes() {
		if err := index("nodes", index32); err != nil {
			return nil, err
		}
		nodes[i] = engine.Scored{Node: cluster.NodeIndex(index32), Fixed: m.GetFixed()[i]}
		copy(nodes[i].Scores[:], m.GetRaw()[i*scoresPerNode:])
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
