package engine

import (
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// batch places pods of testClass in a scene, and applies what is placed.
type batch struct {
	t    *testing.T
	st   *cluster.State
	p    *Placer
	pods cluster.PodID
}

// Place places the next pod of the subject of candidates. If it returns Placed, the caller applies PodAssumed before it calls again.
func (p *Placer) Place(index int) (cluster.NodeIndex, Placement) {
	if index < 0 || index >= len(p.sets) {
		return p.placeAs(index, Subject{}, cluster.NoNode)
	}
	return p.placeAs(index, p.sets[index].subject, cluster.NoNode)
}

func newBatch(t *testing.T, s scene, limit int) *batch {
	st := s.state(t)
	e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
	f, _ := e.Filter(st, of(testClass), everything(st))
	groups, _ := e.Score(st, of(testClass), everything(st), f.Eligible, limit)
	return &batch{t, st, NewPlacer(e, st, st.Version().Seq, []Candidates{{of(testClass), groups}}), 1000}
}

func (b *batch) place() (cluster.NodeIndex, Placement) {
	b.t.Helper()
	node, placement := b.p.Place(0)
	if placement == Placed {
		b.assume(node)
	}
	return node, placement
}

func (b *batch) assume(node cluster.NodeIndex) {
	b.pods++
	apply(b.t, b.st, cluster.PodSet{ID: b.pods, Pod: cluster.Pod{UID: string(rune(b.pods)), Class: testClass}},
		cluster.PodAssumed{ID: b.pods, Node: node, Attempt: 1})
}

func identicalNodes(names ...string) []cluster.Node {
	var out []cluster.Node
	for _, name := range names {
		out = append(out, cluster.Node{Name: name, Allocatable: requests(4000, 4000)})
	}
	return out
}

var smallPod = cluster.ClassSpec{Requests: requests(1000, 1000), ScoreRequests: requests(1000, 1000), NonZeroCPU: 1000, NonZeroMemory: 1000}

func TestPodsSpreadOverEqualNodesAndThenDoNotFit(t *testing.T) {
	b := newBatch(t, scene{nodes: identicalNodes("a", "b"), class: smallPod}, 10)
	count := map[cluster.NodeIndex]int{}
	for k := range 8 {
		node, placement := b.place()
		if placement != Placed {
			t.Fatalf("pod %d: %v, want placed", k, placement)
		}
		if count[node]++; k%2 == 1 && count[0] != count[1] {
			t.Errorf("after %d pods %v are on the nodes, want as many on each", k+1, count)
		}
	}
	if node, placement := b.place(); placement != NoFit {
		t.Errorf("pod 8: %v on %d, want no fit", placement, node)
	}
}

func TestAUsedUpListIsRetriedUnlessAKnownNodeIsAsGoodAsTheRest(t *testing.T) {
	b := newBatch(t, scene{nodes: identicalNodes("a", "b", "c"), class: smallPod}, 1)
	if _, placement := b.place(); placement != Placed {
		t.Fatalf("first pod: %v, want placed", placement)
	}
	if node, placement := b.place(); placement != Retry {
		t.Errorf("with the list used up and empty nodes unlisted: %v on %d, want retry", placement, node)
	}

	packing := DefaultProfile("test")
	packing.FitStrategy = cluster.MostAllocated
	b = newBatch(t, scene{nodes: identicalNodes("a", "b", "c"), class: smallPod, profile: &packing}, 1)
	first, _ := b.place()
	for k := 1; k < 4; k++ {
		if node, placement := b.place(); placement != Placed || node != first {
			t.Errorf("packing pod %d: %v on %d, want placed on %d, which is fuller than any unlisted node", k, placement, node, first)
		}
	}
	if node, placement := b.place(); placement != Retry {
		t.Errorf("with the only known node full: %v on %d, want retry", placement, node)
	}
}

func TestAnUnknownGroupThatCouldChangeNormalisationIsRetried(t *testing.T) {
	taints := func(n int) (out []cluster.Taint) {
		for k := range n {
			out = append(out, cluster.Taint{Key: string(rune('a' + k)), Effect: "PreferNoSchedule"})
		}
		return out
	}
	// The roomy node scores 90 for its room, the clean one 50, and 100 for having no taint. The roomy one's taint costs
	// it all 100 if no feasible node has more, and 20 if one has five: then it is the best.
	nodes := identicalNodes("clean", "roomy", "dirty-1", "dirty-2")
	nodes[0].Allocatable = requests(2000, 2000)
	nodes[1].Allocatable, nodes[1].Taints = requests(10000, 10000), taints(1)
	nodes[2].Taints, nodes[3].Taints = taints(5), taints(5)
	profile := DefaultProfile("test")
	profile.Weights = []cluster.PluginWeight{{Name: TaintToleration, Weight: 1}, {Name: NodeResourcesFit, Weight: 1}}
	dirty := scene{nodes: nodes, class: smallPod, profile: &profile}
	clean := scene{nodes: nodes[:2], class: smallPod, profile: &profile}

	if node, placement := newBatch(t, clean, 1).place(); placement != Placed || node != 0 {
		t.Errorf("without dirty nodes: %v on %d, want placed on 0", placement, node)
	}
	if node, placement := newBatch(t, dirty, 1).place(); placement != Placed || node != 1 {
		t.Errorf("with dirty nodes: %v on %d, want placed on 1", placement, node)
	}
	b := newBatch(t, dirty, 1)
	for _, g := range b.p.sets[0].groups {
		if g.raw.Scores[0] == 5 {
			listed := g.listed[0].Node
			cordoned := b.st.Node(listed)
			cordoned.Unschedulable = true
			apply(t, b.st, cluster.NodeSet{Index: listed, Node: cordoned})
		}
	}
	if node, placement := b.place(); placement != Retry {
		t.Errorf("with the only listed dirty node cordoned: %v on %d, want retry", placement, node)
	}
}

func TestImagesCountAsTheyAreWhenAPodIsPlaced(t *testing.T) {
	wants := smallPod
	wants.Images, wants.ImageContainers = []string{"app:1", "side:1"}, 2
	nodes := identicalNodes("app", "side", "other-1", "other-2")
	app, side := cluster.Image{Names: []string{"app:1"}, Size: 1600 * mib}, cluster.Image{Names: []string{"side:1"}, Size: 1200 * mib}
	nodes[0].Images, nodes[1].Images = []cluster.Image{app}, []cluster.Image{side}
	s := scene{nodes: nodes, class: wants}
	if node, placement := newBatch(t, s, 1).place(); placement != Placed || node != 0 {
		t.Errorf("with the larger image on the first node: %v on %d, want placed on 0", placement, node)
	}
	// The candidates are found, and then two other nodes get the smaller image, which is on more nodes now. They have no room for
	// the pod: nothing but a count has changed of those that do.
	b := newBatch(t, s, 1)
	for k, name := range []string{"full-1", "full-2"} {
		apply(t, b.st, cluster.NodeSet{Index: cluster.NodeIndex(4 + k), Node: cluster.Node{Name: name, Images: []cluster.Image{side}}})
	}
	if node, placement := b.place(); placement != Placed || node != 1 {
		t.Errorf("after more nodes have got the smaller image: %v on %d, want placed on 1", placement, node)
	}
	// And between two pods of a batch.
	first, second := newBatch(t, s, 10), cluster.NodeIndex(1)
	first.place()
	for k := range 4 {
		apply(t, first.st, cluster.NodeSet{Index: cluster.NodeIndex(4 + k), Node: cluster.Node{Name: fmt.Sprint("full-", k), Images: []cluster.Image{side}}})
	}
	if node, placement := first.place(); placement != Placed || node != second {
		t.Errorf("the second pod of a batch: %v on %d, want placed on %d", placement, node, second)
	}
}

func TestNodesWithoutImagesThatJoinOrLeaveChangeWhatImagesCount(t *testing.T) {
	wants := smallPod
	wants.Images, wants.ImageContainers = []string{"app:1"}, 1
	nodes := identicalNodes("a", "b")
	nodes[0].Images = []cluster.Image{{Names: []string{"app:1"}, Size: 900 * mib}}
	st := scene{nodes: nodes, class: wants}.state(t)
	e := NewEvaluator(EvaluatorConfig{})
	check := func(what string, want int64) {
		t.Helper()
		f, _ := e.Filter(st, of(testClass), everything(st))
		groups, _ := e.Score(st, of(testClass), everything(st), f.Eligible, 10)
		for _, g := range groups {
			if g.Raw.Images == "\x01" && g.OfImages != want {
				t.Errorf("%s: %d for the node with the image, want %d", what, g.OfImages, want)
			}
		}
	}
	check("one of two nodes has it", 43) // 450 MiB
	apply(t, st, cluster.NodeSet{Index: 2, Node: cluster.Node{Name: "joins"}})
	check("one of three", 28) // 300 MiB
	apply(t, st, cluster.NodeRemoved{Index: 2})
	check("one of two again", 43)
}

func TestCandidatesThatSomebodyScoredWithoutLookingAtTheirImagesAreRetried(t *testing.T) {
	wants := smallPod
	wants.Images, wants.ImageContainers = []string{"app:1"}, 1
	nodes := identicalNodes("a", "b")
	nodes[0].Images = []cluster.Image{{Names: []string{"app:1"}, Size: 500 * mib}}
	st := scene{nodes: nodes, class: wants}.state(t)
	e := NewEvaluator(EvaluatorConfig{})
	for name, groups := range map[string][]Group{
		"one group of both":             {{Count: 2, Nodes: []Scored{scored(100, 0), scored(90, 1)}}},
		"images that the node lacks":    {{Raw: Raw{Images: "\x01"}, Count: 1, Nodes: []Scored{scored(90, 1)}}},
		"images that the class has not": {{Raw: Raw{Images: "\x80\x01"}, Count: 1, Nodes: []Scored{scored(90, 0)}}},
	} {
		p := NewPlacer(e, st, st.Version().Seq, []Candidates{{of(testClass), groups}})
		for range 2 {
			if node, placement := p.Place(0); placement != Retry || node != cluster.NoNode {
				t.Errorf("%s: %v on %d, want retry", name, placement, node)
			}
		}
	}
}

func TestCandidatesThatAreNotFeasibleAreNeverChosen(t *testing.T) {
	nodes := identicalNodes("a", "b", "c")
	nodes[0].Unschedulable = true
	st := scene{nodes: nodes, class: smallPod}.state(t)
	apply(t, st, cluster.NodeRemoved{Index: 1})
	e := NewEvaluator(EvaluatorConfig{})
	lies := []Scored{scored(900, 0), scored(800, 1), scored(700, -1), scored(600, 3), scored(500, 1<<30), scored(100, 2)}
	p := NewPlacer(e, st, st.Version().Seq, []Candidates{
		{of(testClass), []Group{{Count: 6, Nodes: lies}, {Count: 6, Nodes: lies}, {Count: -1}}}, {of(99), nil},
	})
	if node, placement := p.Place(0); placement == Placed && node != 2 {
		t.Errorf("Place: %v on %d, want node 2 or retry", placement, node)
	}
	for _, k := range []int{-1, 1, 2} {
		if node, placement := p.Place(k); placement != Retry || node != cluster.NoNode {
			t.Errorf("Place(%d) of no class: %v on %d, want retry", k, placement, node)
		}
	}
	for node, want := range map[cluster.NodeIndex]Placement{0: NoFit, 1: NoFit, -1: NoFit, 1 << 30: NoFit, 2: Placed} {
		if got := p.PlaceOn(of(testClass), cluster.NoPod, node); got != want {
			t.Errorf("PlaceOn(%d): %v, want %v", node, got, want)
		}
	}
	if got := p.PlaceOn(of(99), cluster.NoPod, 2); got != Retry {
		t.Errorf("PlaceOn of no class: %v, want retry", got)
	}
}

func TestWhatOthersPlaceMeanwhileCounts(t *testing.T) {
	b := newBatch(t, scene{nodes: identicalNodes("a", "b"), class: smallPod}, 10)
	first, _ := b.place()
	// Two more pods of somebody else on the other node make the first the emptier one.
	b.assume(1 - first)
	b.assume(1 - first)
	if node, placement := b.place(); placement != Placed || node != first {
		t.Errorf("%v on %d, want placed on %d", placement, node, first)
	}
}

func TestATermThatComesInTheMiddleOfABatchIsHeeded(t *testing.T) {
	y := newYard(t, 2, 2, cluster.ClassSpec{})
	p := NewPlacer(y.binder, y.st, y.st.Version().Seq, []Candidates{{y.subject, y.candidates(10)}})
	node, placement := p.Place(0)
	if placement != Placed {
		t.Fatalf("first pod: %v, want placed", placement)
	}
	apply(t, y.st, cluster.PodAssumed{ID: y.free[0], Node: node, Attempt: 1})
	// From now on somebody on the other node keeps such pods away.
	web := cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}}
	term := cluster.PodTerm{TopologyKey: hostname, Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}, Selector: web}
	apply(t, y.st, cluster.ClassDefined{ID: otherClass, Spec: cluster.ClassSpec{AntiAffinity: []cluster.PodTerm{term}}},
		cluster.PodSet{ID: 100, Pod: cluster.Pod{UID: "recluse", Class: otherClass, NodeName: y.st.Nodes.Spec[1-node].Name}})
	if node, placement := p.Place(0); placement != Retry {
		t.Errorf("%v on %d, want retry: the candidates are of pods that nobody keeps away", placement, node)
	}
}

func TestANodeThatJoinsADomainInTheMiddleOfABatchIsHeeded(t *testing.T) {
	spec := crossNodeClasses()["affinity/zone"]
	spec.Affinity, spec.AntiAffinity = nil, spec.Affinity
	y := newYard(t, 2, 2, spec)
	p := NewPlacer(y.binder, y.st, y.st.Version().Seq, []Candidates{{y.subject, y.candidates(10)}})
	node, placement := p.Place(0)
	if placement != Placed {
		t.Fatalf("first pod: %v, want placed", placement)
	}
	apply(t, y.st, cluster.PodAssumed{ID: y.free[0], Node: node, Attempt: 1})
	joins := y.st.Node(1 - node)
	joins.Name = "joins"
	apply(t, y.st, cluster.NodeSet{Index: 2, Node: joins}, cluster.PodSet{ID: 100, Pod: cluster.Pod{
		UID: "there", Class: testClass, Labels: y.subject.Labels, NodeName: joins.Name,
	}})
	if node, placement := p.Place(0); placement == Placed {
		t.Errorf("placed on %d, though each zone has such a pod", node)
	}
}
