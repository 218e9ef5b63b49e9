package engine

import (
	"fmt"
	"math/bits"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// fleet is a cluster of n nodes of some variety, and a class that looks at all of it.
func fleet(t fataler, n int) *cluster.State {
	st := cluster.New(cluster.Version{Epoch: 1})
	apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 42}}, cluster.ClassDefined{ID: testClass, Spec: fleetClass()})
	for i := range n {
		node := cluster.Node{
			Name: fmt.Sprintf("node-%d", i),
			Labels: []cluster.Label{
				{Key: "generation", Value: []string{"7", "eight"}[i%2]}, {Key: "zone", Value: fmt.Sprintf("z%d", i%10)},
			},
			Allocatable: requests(32000, 128<<30, quantity("pods", 110)),
			Images:      []cluster.Image{{Names: []string{"app:1"}, Size: 500 * mib}},
		}
		switch i % 7 {
		case 1:
			node.Taints = []cluster.Taint{{Key: "dedicated", Value: "x", Effect: "NoSchedule"}}
		case 2:
			node.Taints = []cluster.Taint{{Key: "spot", Effect: "PreferNoSchedule"}}
		case 3:
			node.Allocatable[0].Value = 1000
		}
		apply(t, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: node})
	}
	return st
}

func fleetClass() cluster.ClassSpec {
	return cluster.ClassSpec{
		Requests: requests(2000, 4<<30), ScoreRequests: requests(2000, 4<<30), NonZeroCPU: 2000, NonZeroMemory: 4 << 30,
		HasRequired: true,
		Required: []cluster.NodeSelectorTerm{
			expressions("generation", "Gt", "6"), expressions("zone", "NotIn", "z0", "z1"),
		},
		Preferred: []cluster.PreferredTerm{{Weight: 10, Term: expressions("zone", "In", "z3", "z4")}},
		HostPorts: []cluster.HostPort{{IP: "0.0.0.0", Protocol: "TCP", Port: 80}},
		Images:    []string{"app:1"}, ImageContainers: 1,
	}
}

func everything(st *cluster.State) cluster.Range {
	return cluster.Range{First: 0, End: cluster.NodeIndex(st.Nodes.Len())}
}

// unknown returns the nodes that the evaluator would filter, and those it would score, if it were asked now.
func unknown(e *Evaluator, st *cluster.State, id cluster.ClassID) (filter, score []int) {
	return unknownTo(e, st, of(id))
}

func unknownTo(e *Evaluator, st *cluster.State, s Subject) (filter, score []int) {
	e.with(st, s, func(c *evaluation) { filter, score = c.unknown(st) })
	return filter, score
}

func (c *evaluation) unknown(st *cluster.State) (filter, score []int) {
	c.sync(st)
	for w := range st.Nodes.Live {
		for k, done := range []cluster.Bitmap{c.known, c.scored} {
			todo := st.Nodes.Live[w]
			if w < len(done) {
				todo &^= done[w]
			}
			for ; todo != 0; todo &= todo - 1 {
				if i := w*64 + bits.TrailingZeros64(todo); k == 0 {
					filter = append(filter, i)
				} else {
					score = append(score, i)
				}
			}
		}
	}
	return filter, score
}

func TestOnlyChangedNodesAreEvaluatedAgain(t *testing.T) {
	st := fleet(t, 300)
	e := NewEvaluator(EvaluatorConfig{})
	scoreAll := func() {
		e.Filter(st, of(testClass), everything(st))
		e.Score(st, of(testClass), everything(st), st.Nodes.Live, 1)
	}
	check := func(when string, wantFilter, wantScore []int) {
		t.Helper()
		filter, score := unknown(e, st, testClass)
		if diff := cmp.Diff(wantFilter, filter); diff != "" {
			t.Errorf("%s: nodes to filter (-want +got):\n%s", when, diff)
		}
		if diff := cmp.Diff(wantScore, score); diff != "" {
			t.Errorf("%s: nodes to score (-want +got):\n%s", when, diff)
		}
	}
	scoreAll()
	check("after all was evaluated", nil, nil)
	e.evaluations[Signature{class: testClass}].verdicts[3] = PluginOf(NodePorts).code // not what filtering again would find
	if f, _ := e.Filter(st, of(testClass), everything(st)); !strings.Contains(texts(f.Verdicts), ReasonNodePorts) {
		t.Errorf("Filter evaluated a node that has not changed: %q", texts(f.Verdicts))
	}

	apply(t, st,
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "a", Class: testClass, NodeName: "node-70"}},
		cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "b", Class: testClass, NodeName: "node-299"}})
	check("after pods were bound", []int{70, 299}, []int{70, 299})
	e.Filter(st, of(testClass), cluster.Range{First: 64, End: 128})
	check("after one range was filtered", []int{299}, []int{70, 299})
	scoreAll()

	relabelled := st.Node(5)
	relabelled.Labels = nil
	apply(t, st, cluster.NodeSet{Index: 5, Node: relabelled})
	check("after a node was relabelled", []int{5}, []int{5})
	scoreAll()

	other := st.Node(6)
	other.Images = append(other.Images, cluster.Image{Names: []string{"other:1"}, Size: 1})
	apply(t, st, cluster.NodeSet{Index: 6, Node: other})
	check("after an image that the class does not want has appeared", []int{6}, []int{6})
	scoreAll()

	other.Images = other.Images[1:]
	apply(t, st, cluster.NodeSet{Index: 6, Node: other})
	check("after one of the class's images has gone", []int{6}, []int{6})
	scoreAll()

	apply(t, st, cluster.NodeSet{Index: 300, Node: cluster.Node{Name: "joins"}})
	check("after a node has joined", []int{300}, []int{300})
	scoreAll()
	apply(t, st, cluster.NodeRemoved{Index: 300})
	check("after it has left", nil, nil)
}

func TestALabelThatNoNodeHadCountsOnceANodeHasIt(t *testing.T) {
	profile := cluster.Profile{Filters: []string{NodeAffinity}} // so that new nodes matter for nothing else
	class := cluster.ClassSpec{NodeSelector: []cluster.Label{{Key: "late", Value: "yes"}}}
	st := scene{nodes: []cluster.Node{{Name: "a"}}, profile: &profile, class: class}.state(t)
	e := NewEvaluator(EvaluatorConfig{})
	if f, _ := e.Filter(st, of(testClass), everything(st)); f.FeasibleCount != 0 {
		t.Errorf("%d feasible nodes, want 0", f.FeasibleCount)
	}
	late := cluster.Node{Name: "b", Labels: class.NodeSelector, Allocatable: []cluster.Quantity{quantity("pods", 1)}}
	apply(t, st, cluster.NodeSet{Index: 1, Node: late})
	if f, _ := e.Filter(st, of(testClass), everything(st)); !f.Eligible.Has(1) || f.FeasibleCount != 1 {
		t.Errorf("feasible: %b, want node 1", f.Eligible)
	}
}

func TestScoresFollowNewResourcesAndSettings(t *testing.T) {
	profile := cluster.Profile{
		Weights:      []cluster.PluginWeight{{Name: NodeResourcesFit, Weight: 1}},
		FitResources: []cluster.PluginWeight{{Name: "example.com/late", Weight: 1}},
	}
	class := cluster.ClassSpec{ScoreRequests: []cluster.Quantity{quantity("example.com/late", 1)}}
	st := scene{nodes: []cluster.Node{{Name: "a"}}, profile: &profile, class: class}.state(t)
	e := NewEvaluator(EvaluatorConfig{})
	check := func(when string, want int32) {
		t.Helper()
		groups, _ := e.Score(st, of(testClass), everything(st), st.Nodes.Live, 1)
		if len(groups) != 1 || groups[0].Nodes[0].Scores[PluginOf(NodeResourcesFit).place] != want {
			t.Errorf("%s: %+v, want %d", when, groups, want)
		}
	}
	check("before any node has the resource", 0)
	apply(t, st, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "a", Allocatable: []cluster.Quantity{quantity("example.com/late", 4)}}})
	check("with 1 of 4", 75)
	profile.SchedulerName, profile.FitStrategy = "test", cluster.MostAllocated
	apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}})
	check("by the other strategy", 25)
}

// A replica is told whole settings whenever names are left to another scheduler or taken back.
func TestNamesThatAreYieldedMakeNothingVoid(t *testing.T) {
	profiles := func() []cluster.Profile { return []cluster.Profile{DefaultProfile("default")} }
	st := fleet(t, 70)
	apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: profiles()}})
	class := cluster.ClassID(100)
	apply(t, st, cluster.ClassDefined{ID: class, Spec: cluster.ClassSpec{SchedulerName: "default"}})
	e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
	f, _ := e.Filter(st, of(class), everything(st))
	e.Score(st, of(class), everything(st), f.Eligible, 1)
	c := e.evaluations[Signature{class: class}]
	was := c.program
	apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: profiles(), Yielded: []string{"default"}, YieldedTo: "another"}})
	e.Filter(st, of(class), everything(st))
	if c.program != was || !c.scored.Has(0) {
		t.Error("what was known is void")
	}
	changed := profiles()
	changed[0].FitStrategy = cluster.MostAllocated
	apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: changed}})
	e.Filter(st, of(class), everything(st))
	if c.program == was || c.scored.Has(0) {
		t.Error("another profile has left what was known as it was")
	}
}

func TestEvaluatorForgetsAnotherStateOrEpoch(t *testing.T) {
	a, b := fleet(t, 10), fleet(t, 70)
	e := NewEvaluator(EvaluatorConfig{})
	for _, st := range []*cluster.State{a, b, a} {
		f, ok := e.Filter(st, of(testClass), everything(st))
		if want := int32(st.Nodes.Count()); !ok || f.Nodes != want {
			t.Errorf("Filter: %d nodes, %v, want %d", f.Nodes, ok, want)
		}
	}
	a.Restore(cluster.Version{Epoch: 2, Seq: 1})
	if filter, _ := unknown(e, a, testClass); len(filter) != 10 {
		t.Errorf("in another epoch %d nodes are unknown, want 10", len(filter))
	}
}

func TestEvaluatorKeepsTheClassesUsedLast(t *testing.T) {
	st := fleet(t, 10)
	for id := cluster.ClassID(2); id <= 4; id++ {
		apply(t, st, cluster.ClassDefined{ID: id})
	}
	e := NewEvaluator(EvaluatorConfig{MaxEvaluations: 2})
	for _, id := range []cluster.ClassID{1, 2, 3, 2, 4} {
		e.Filter(st, of(id), everything(st))
	}
	if e.evaluations[Signature{class: 2}] == nil || e.evaluations[Signature{class: 4}] == nil || len(e.evaluations) != 2 {
		t.Errorf("kept %v, want those of classes 2 and 4", e.evaluations)
	}
}

func TestUnknownClassesAndNodes(t *testing.T) {
	st := fleet(t, 10)
	e := NewEvaluator(EvaluatorConfig{})
	if _, ok := e.Filter(st, of(99), everything(st)); ok {
		t.Error("Filter knows class 99")
	}
	if _, ok := e.Score(st, of(99), everything(st), st.Nodes.Live, 1); ok {
		t.Error("Score knows class 99")
	}
	for _, i := range []cluster.NodeIndex{-1, 10, 1 << 20} {
		if _, ok := e.Node(st, of(testClass), cluster.NoPod, i); ok {
			t.Errorf("Node knows node %d", i)
		}
	}
	e.Filter(st, of(testClass), everything(st))
	apply(t, st,
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "a", Class: testClass}}, cluster.PodRemoved{ID: 0})
	if _, ok := e.Filter(st, of(testClass), everything(st)); ok {
		t.Error("Filter knows a class whose last pod is gone")
	}
	if len(e.evaluations) != 0 {
		t.Errorf("%d evaluations are kept, want 0", len(e.evaluations))
	}
}

func TestOddRangesAndBitmapsAreAnswered(t *testing.T) {
	st := fleet(t, 100)
	e := NewEvaluator(EvaluatorConfig{})
	for _, tt := range []struct {
		r     cluster.Range
		nodes int32
	}{
		{cluster.Range{First: -64, End: 64}, 64}, {cluster.Range{First: 64, End: 1 << 30}, 36}, {cluster.Range{First: 70, End: 80}, 16},
		{cluster.Range{First: 128, End: 192}, 0}, {cluster.Range{First: 64, End: 0}, 0}, {cluster.Range{First: 0, End: -5}, 0}, {cluster.Range{First: 0, End: 1}, 1},
	} {
		f, ok := e.Filter(st, of(testClass), tt.r)
		if !ok || f.Nodes != tt.nodes {
			t.Errorf("Filter(%v): %d nodes, %v, want %d", tt.r, f.Nodes, ok, tt.nodes)
		}
		full := cluster.Bitmap{^uint64(0), ^uint64(0), ^uint64(0)}
		for _, feasible := range []cluster.Bitmap{nil, full[:1], full} {
			groups, ok := e.Score(st, of(testClass), tt.r, feasible, 0)
			count := int32(0)
			for _, g := range groups {
				count += g.Count
				if len(g.Nodes) != 1 {
					t.Errorf("Score(%v, limit 0): %d nodes listed, want 1", tt.r, len(g.Nodes))
				}
			}
			if want := min(tt.nodes, int32(64*len(feasible))); !ok || count != want {
				t.Errorf("Score(%v, %d words): %d nodes, %v, want %d", tt.r, len(feasible), count, ok, want)
			}
		}
	}
}

func TestReadersOfOneStateMayEvaluateAtTheSameTime(t *testing.T) {
	st := fleet(t, 2000)
	want, _ := NewEvaluator(EvaluatorConfig{Parallelism: 1}).Filter(st, of(testClass), everything(st))
	e := NewEvaluator(EvaluatorConfig{Parallelism: 4, MaxEvaluations: 1})
	e.spanNodes = 64
	apply(t, st, cluster.ClassDefined{ID: otherClass, Spec: fleetClass()})
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			id := testClass + cluster.ClassID(k%2)
			f, _ := e.Filter(st, of(id), everything(st))
			if diff := cmp.Diff(want, f); diff != "" {
				t.Errorf("Filter (-want +got):\n%s", diff)
			}
			e.Score(st, of(id), everything(st), f.Eligible, 10)
			e.Node(st, of(id), cluster.NoPod, 3)
		})
	}
	wg.Wait()
}

func TestExplainIgnoresVerdictsOfAnotherClass(t *testing.T) {
	st := fleet(t, 1)
	e := NewEvaluator(EvaluatorConfig{})
	for _, v := range []Verdict{0, unresolvable, codeDetailed | 1<<62, maxCodes, ^Verdict(0)} {
		if got := e.Explain(st, of(testClass), v, 0); got != nil {
			t.Errorf("Explain(%x) = %v, want nothing", uint64(v), got)
		}
	}
}

func TestAPodThatRequestsMoreResourcesThanAVerdictHoldsIsNotPlaced(t *testing.T) {
	var many []cluster.Quantity
	for k := range maxDetails {
		many = append(many, quantity(fmt.Sprintf("example.com/r%02d", k), 1))
	}
	for n, want := range map[int]string{maxDetails - 1: "Insufficient", maxDetails: "too many"} {
		st := scene{nodes: []cluster.Node{{Name: "a"}}, class: cluster.ClassSpec{Requests: many[:n]}}.state(t)
		f, _ := NewEvaluator(EvaluatorConfig{}).Filter(st, of(testClass), everything(st))
		if got := texts(f.Verdicts); !strings.Contains(got, want) || f.FeasibleCount != 0 {
			t.Errorf("%d resources: %q, want one with %q", n, got, want)
		}
	}
}

func TestEvaluationDoesNotAllocatePerNode(t *testing.T) {
	allocations := func(n int) (filter, score float64) {
		st := fleet(t, n)
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		r := everything(st)
		forget := func() {
			if c := e.evaluations[Signature{class: testClass}]; c != nil {
				clear(c.known)
				clear(c.scored)
			}
		}
		filter = testing.AllocsPerRun(10, func() {
			forget()
			e.Filter(st, of(testClass), r)
		})
		score = testing.AllocsPerRun(10, func() {
			forget()
			e.Score(st, of(testClass), r, st.Nodes.Live, 16)
		})
		return filter, score
	}
	smallFilter, smallScore := allocations(1024)
	largeFilter, largeScore := allocations(16384)
	if largeFilter > smallFilter || largeScore > smallScore+20 { // lists grow by doubling
		t.Errorf("16 times the nodes: Filter allocates %v times, not %v; Score %v, not about %v", largeFilter, smallFilter, largeScore, smallScore)
	}
	if smallFilter > 100 || smallScore > 100 {
		t.Errorf("Filter allocates %v times, Score %v, want at most 100", smallFilter, smallScore)
	}
}

// Of a panic in the middle of an evaluation nothing stays, least of all a lock.
func TestAPanicLeavesNothingBehind(t *testing.T) {
	b := scene{nodes: identicalNodes("a", "b"), class: smallPod}
	st := b.state(t)
	e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
	want, _ := e.Filter(st, of(testClass), everything(st))
	calls := map[string]func() bool{
		"Filter":   func() bool { _, ok := e.Filter(st, of(testClass), everything(st)); return ok },
		"Score":    func() bool { _, ok := e.Score(st, of(testClass), everything(st), want.Eligible, 10); return ok },
		"Possible": func() bool { return e.Possible(st, of(testClass), cluster.NoNode) },
	}
	for name, call := range calls {
		for what, broken := range map[string]func(c *evaluation){
			"its counts": func(c *evaluation) {
				c.topology = &topology{filtering: true, slots: make([]slot, 1), synced: -1}
			},
		} {
			broken(e.evaluations[Signature{class: testClass}])
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s, %s: no panic", name, what)
					}
				}()
				call()
			}()
			if !call() {
				t.Errorf("%s, behind a panic over %s: no answer", name, what)
			}
			if got, ok := e.Filter(st, of(testClass), everything(st)); !ok || got.FeasibleCount != want.FeasibleCount {
				t.Errorf("%s, behind a panic over %s: %d nodes are feasible, want %d", name, what, got.FeasibleCount, want.FeasibleCount)
			}
		}
	}
}

func TestAPanicInOneSpanIsTheCallers(t *testing.T) {
	for bad := range 3 {
		done := make([]bool, 3)
		func() {
			defer func() {
				if p := recover(); p != "broken" {
					t.Errorf("the panic is %v", p)
				}
			}()
			each(make([]words, 3), func(k int, _ words) {
				if k == bad {
					panic("broken")
				}
				done[k] = true
			})
		}()
		for k := range done {
			if done[k] == (k == bad) {
				t.Errorf("span %d of a call in which %d panics: done %v", k, bad, done[k])
			}
		}
	}
}
