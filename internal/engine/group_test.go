package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func scored(fixed int64, node cluster.NodeIndex) Scored { return Scored{Node: node, Fixed: fixed} }

func TestMergedGroupsListOnlyWhatIsKnownToBeBest(t *testing.T) {
	tainted := Raw{Scores: [2]int64{1}}
	parts := [][]Group{
		{{Count: 5, Nodes: []Scored{scored(90, 1), scored(70, 2)}}, {Raw: tainted, Count: 1, Nodes: []Scored{scored(10, 3)}}},
		{{Count: 3, Nodes: []Scored{scored(80, 65), scored(60, 66), scored(50, 67)}}},
	}
	// The first range has 3 nodes more, somewhere below 70: node 66 may not be next.
	want := []Group{
		{Count: 8, Nodes: []Scored{scored(90, 1), scored(80, 65), scored(70, 2)}},
		{Raw: tainted, Count: 1, Nodes: []Scored{scored(10, 3)}},
	}
	if diff := cmp.Diff(want, MergeGroups(0, 100, parts...)); diff != "" {
		t.Errorf("MergeGroups (-want +got):\n%s", diff)
	}
	want[0].Nodes = want[0].Nodes[:1]
	if diff := cmp.Diff(want, MergeGroups(0, 1, parts...)); diff != "" {
		t.Errorf("MergeGroups with limit 1 (-want +got):\n%s", diff)
	}
	parts = append(parts, []Group{{Count: 2}})
	if got := MergeGroups(0, 100, parts...)[0]; got.Count != 10 || len(got.Nodes) != 0 {
		t.Errorf("with a part of which nothing is listed: %+v, want 10 nodes, none listed", got)
	}
}

func TestEqualScoresAreOrderedByTheSeed(t *testing.T) {
	parts := func() [][]Group {
		var out [][]Group
		for i := range cluster.NodeIndex(8) {
			out = append(out, []Group{{Count: 1, Nodes: []Scored{scored(50, i)}}})
		}
		return out
	}
	order := func(seed uint64) (nodes []cluster.NodeIndex) {
		for _, s := range MergeGroups(seed, 8, parts()...)[0].Nodes {
			nodes = append(nodes, s.Node)
		}
		return nodes
	}
	for _, seed := range []uint64{0, 1, 99} {
		nodes := order(seed)
		for k := 1; k < len(nodes); k++ {
			if cluster.Mix(uint64(nodes[k-1])^seed) >= cluster.Mix(uint64(nodes[k])^seed) {
				t.Errorf("seed %d: node %d before %d", seed, nodes[k-1], nodes[k])
			}
		}
	}
	if cmp.Equal(order(1), order(99)) {
		t.Errorf("two seeds give the same order %v", order(1))
	}
}

func TestMergedVerdictsAddUpAndKeepTheFirstExamples(t *testing.T) {
	cpu := VerdictCount{Plugin: NodeResourcesFit, Reason: "Insufficient cpu", Count: 2, Examples: []string{"a", "b"}}
	never := cpu
	never.Unresolvable, never.Examples = true, []string{"x", "y"}
	later := cpu
	later.Count, later.Examples = 7, []string{"c", "d", "e"}
	odd := VerdictCount{Plugin: "Odd", Reason: "odd", Count: 1}
	taint := VerdictCount{Plugin: TaintToleration, Reason: ReasonUntoleratedTaint, Unresolvable: true, Count: 1}

	first := []VerdictCount{odd, never, cpu}
	got := MergeVerdicts(first, nil, []VerdictCount{later, taint})
	sum := cpu
	sum.Count, sum.Examples = 9, []string{"a", "b", "c"}
	if diff := cmp.Diff([]VerdictCount{taint, sum, never, odd}, got); diff != "" {
		t.Errorf("MergeVerdicts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]VerdictCount{odd, never, cpu}, first); diff != "" {
		t.Errorf("MergeVerdicts changed its argument (-want +got):\n%s", diff)
	}
}

func TestFitMessageIsKubeSchedulers(t *testing.T) {
	fit := func(reason string, count int32, unresolvable bool) VerdictCount {
		return VerdictCount{Plugin: NodeResourcesFit, Reason: reason, Count: count, Unresolvable: unresolvable}
	}
	for _, tt := range []struct {
		nodes    int
		verdicts []VerdictCount
		want     string
	}{
		{0, nil, "no nodes available to schedule pods"},
		{3, nil, "0/3 nodes are available:"},
		{3, []VerdictCount{fit("Insufficient cpu", 2, false), {Reason: ReasonUntoleratedTaint, Count: 1}}, "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu."},
		{12, []VerdictCount{fit("Insufficient cpu", 2, false), fit("Insufficient cpu", 8, true), fit("Too many pods", 2, false)}, "0/12 nodes are available: 10 Insufficient cpu, 2 Too many pods."},
		{5, []VerdictCount{{Plugin: NodeAffinity, Reason: ReasonNodeAffinityConflict, Count: 5}}, "0/5 nodes are available: pod affinity terms conflict."},
	} {
		if got := FitMessage(tt.nodes, tt.verdicts); got != tt.want {
			t.Errorf("FitMessage(%d, %v) = %q, want %q", tt.nodes, tt.verdicts, got, tt.want)
		}
	}
}

func TestAResourceThatNoNodeHasMayBeOfADeviceClass(t *testing.T) {
	nodes := identicalNodes("a", "b")
	nodes[1].Allocatable = append(nodes[1].Allocatable, cluster.Quantity{Name: "example.com/gpu", Value: 1})
	st := scene{nodes: nodes, class: cluster.ClassSpec{Requests: []cluster.Quantity{{Name: "example.com/fpga", Value: 1}}}}.state(t)
	lacks := func(names ...string) (out []VerdictCount) {
		for _, name := range names {
			out = append(out, VerdictCount{Plugin: NodeResourcesFit, Reason: ReasonInsufficient + name, Count: 2})
		}
		return out
	}
	const more = "; Berth does not judge device classes that offer it yet."
	for _, tt := range []struct {
		verdicts []VerdictCount
		want     string
	}{
		{nil, ""},
		{lacks("cpu", "hugepages-2Mi", "example.com/gpu"), ""},
		{lacks("example.com/fpga"), "No node has example.com/fpga" + more},
		{lacks("example.com/unseen", "cpu", "example.com/fpga", "example.com/unseen"), "No node has example.com/fpga, example.com/unseen" + more},
		{[]VerdictCount{{Plugin: "VolumeBinding", Reason: "Insufficient example.com/fpga"}}, ""},
	} {
		if got := Besides(st, tt.verdicts); got != tt.want {
			t.Errorf("Besides(%v) = %q, want %q", tt.verdicts, got, tt.want)
		}
	}
	apply(t, st, cluster.NodeRemoved{Index: 1})
	if got, want := Besides(st, lacks("example.com/gpu")), "No node has example.com/gpu"+more; got != want {
		t.Errorf("after the only node with it has gone: %q, want %q", got, want)
	}
}
