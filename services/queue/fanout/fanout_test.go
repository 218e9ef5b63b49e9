package fanout

import (
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

func TestRangesCoverEveryNodeAndThoseThatAreNotKnownYet(t *testing.T) {
	for _, c := range []struct{ nodes, workers int }{{0, 1}, {1, 1}, {5000, 1}, {5000, 3}, {5000, 100}} {
		parts := ranges(c.nodes, c.workers)
		next := cluster.NodeIndex(0)
		for _, r := range parts {
			if r.First != next || r.First%64 != 0 || r.End <= r.First {
				t.Errorf("%d nodes, %d workers: range [%d, %d) behind %d", c.nodes, c.workers, r.First, r.End, next)
			}
			next = r.End
		}
		if next != cluster.MaxIndex || len(parts) > c.workers {
			t.Errorf("%d nodes, %d workers: %d ranges that end at %d", c.nodes, c.workers, len(parts), next)
		}
	}
}

func TestTheAnswersAboutRangesMakeOneAboutAllNodes(t *testing.T) {
	response := func(seq cluster.Seq, nodes, feasible int32, eligible uint64, pods int) *filterv1.FilterResponse {
		m := &filterv1.FilterResponse{
			Version: wire.ToVersion(cluster.Version{Epoch: 1, Seq: seq}),
			Subjects: []*filterv1.SubjectFeasibility{{
				Eligible: wire.FromBitmap(cluster.Bitmap{eligible}), Nodes: nodes, FeasibleCount: feasible,
				Verdicts: wire.ToVerdicts([]engine.VerdictCount{{Plugin: engine.NodeResourcesFit, Reason: "Insufficient cpu", Count: nodes - feasible}}),
			}},
		}
		for range pods {
			m.PodsOnNodes = append(m.PodsOnNodes, &filterv1.PodOnNodeFeasibility{Known: true, Feasible: true})
		}
		return m
	}
	a := FilterAnswer{Subjects: make([]engine.Feasibility, 1), OnNodes: make([]OnNodeAnswer, 2)}
	for i, r := range []cluster.Range{{First: 0, End: 64}, {First: 64, End: cluster.MaxIndex}} {
		about := []int{1}[:i] // the second question is about a node of the second range, the first about none
		if err := a.add(r, about, response(cluster.Seq(9-i), 10, int32(3+i), 1<<i, i)); err != nil {
			t.Fatal(err)
		}
	}
	s := a.Subjects[0]
	if s.Nodes != 20 || s.FeasibleCount != 7 || !slices.Equal(s.Eligible, cluster.Bitmap{1, 2}) || len(s.Verdicts) != 1 || s.Verdicts[0].Count != 13 {
		t.Errorf("merged: %+v", s)
	}
	if a.OnNodes[0].Known || !a.OnNodes[1].Known || !a.OnNodes[1].Feasible {
		t.Errorf("pods on nodes: %+v", a.OnNodes)
	}
	if a.Oldest.Seq != 8 || a.Newest.Seq != 9 {
		t.Errorf("the parts are of %v to %v", a.Oldest, a.Newest)
	}
	if err := a.add(cluster.Range{End: 64}, nil, &filterv1.FilterResponse{}); err == nil {
		t.Error("an answer about no subject is taken for one about a subject")
	}
}

func TestAWorkerThatFailedIsAskedLastButNotLeftOutForGood(t *testing.T) {
	var s suspects
	s.add("b")
	if first, last := s.split([]string{"a", "b", "c"}); !slices.Equal(first, []string{"a", "c"}) || !slices.Equal(last, []string{"b"}) {
		t.Errorf("first %v, last %v", first, last)
	}
	if first, last := s.split([]string{"b"}); !slices.Equal(first, []string{"b"}) || len(last) != 0 {
		t.Errorf("of one suspect alone: first %v, last %v", first, last)
	}
	if got := inTurn([]string{"a", "c"}, []string{"b"}, 3); !slices.Equal(got, []string{"c", "a", "b"}) {
		t.Errorf("in turn: %v", got)
	}
}
