package engine

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

const webLabels, plainLabels, podLabels cluster.LabelsID = 1, 2, 3

// zones is a cluster of nodes in zones, with a class of pods labelled app=web.
type zones struct {
	t  *testing.T
	st *cluster.State
	e  *Evaluator
}

func newZones(t *testing.T, nodes, inZones int, spec cluster.ClassSpec) *zones {
	z := &zones{t, cluster.New(cluster.Version{Epoch: 1}), NewEvaluator(EvaluatorConfig{})}
	set := func(labels ...cluster.Label) cluster.LabelSet {
		return cluster.LabelSet{Namespace: "default", Labels: labels}
	}
	spec.Requests, spec.ScoreRequests = requests(100, 100), requests(100, 100)
	settings := cluster.Settings{Shards: 1, Seed: 7, Profiles: []cluster.Profile{DefaultProfile("")}}
	apply(t, z.st, cluster.SettingsSet{Settings: settings},
		cluster.ClassDefined{ID: testClass, Spec: spec}, cluster.ClassDefined{ID: otherClass, Spec: cluster.ClassSpec{Requests: requests(100, 100)}},
		cluster.LabelsDefined{ID: webLabels, Set: set(cluster.Label{Key: "app", Value: "web"})},
		cluster.LabelsDefined{ID: plainLabels, Set: set(cluster.Label{Key: "app", Value: "other"})},
		cluster.LabelsDefined{ID: podLabels, Set: set(cluster.Label{Key: "app", Value: "web"}, cluster.Label{Key: "pod", Value: "7"})})
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		apply(t, z.st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{
			Name: name, Allocatable: requests(1000, 1000, quantity("pods", 110)),
			Labels: []cluster.Label{{Key: hostname, Value: name}, {Key: "topology.kubernetes.io/zone", Value: fmt.Sprintf("zone-%d", i%inZones)}},
		}})
	}
	return z
}

// pod adds a pod that is on a node, or pending.
func (z *zones) pod(class cluster.ClassID, labels cluster.LabelsID, node string) cluster.PodID {
	id := z.st.FreePod()
	apply(z.t, z.st, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint(id), Class: class, Labels: labels, NodeName: node}})
	return id
}

// candidates are what workers find for a subject, and their version.
func (z *zones) candidates(s Subject) (Candidates, cluster.Seq) {
	workers := NewEvaluator(EvaluatorConfig{})
	f, _ := workers.Filter(z.st, s, everything(z.st))
	groups, _ := workers.Score(z.st, s, everything(z.st), f.Eligible, 100)
	return Candidates{s, groups}, z.st.Version().Seq
}

// place places so many web pods as one batch, and returns on which nodes; it stops at the first that is not placed.
func (z *zones) place(n int) ([]cluster.NodeIndex, Placement) {
	var pods []cluster.PodID
	for range n {
		pods = append(pods, z.pod(testClass, webLabels, ""))
	}
	c, seq := z.candidates(Subject{Class: testClass, Labels: webLabels})
	p := NewPlacer(z.e, z.st, seq, []Candidates{c})
	var nodes []cluster.NodeIndex
	for _, id := range pods {
		node, placement := p.Place(0)
		if placement != Placed {
			return nodes, placement
		}
		apply(z.t, z.st, cluster.PodAssumed{ID: id, Node: node, Attempt: 1})
		nodes = append(nodes, node)
	}
	return nodes, Placed
}

func TestABatchFillsZonesEvenly(t *testing.T) {
	z := newZones(t, 9, 3, crossNodeClasses()["spread/hard/zone"])
	nodes, last := z.place(9)
	if last != Placed {
		t.Fatalf("pod %d: %v; all of a batch can be placed", len(nodes), last)
	}
	var count [3]int
	for k, node := range nodes {
		if count[node%3]++; slices.Max(count[:])-slices.Min(count[:]) > 1 {
			t.Errorf("after pod %d the zones have %v", k, count)
		}
	}
}

func TestABatchStaysInTheZoneOfItsFirstPod(t *testing.T) {
	z := newZones(t, 9, 3, crossNodeClasses()["affinity/zone"])
	nodes, last := z.place(9)
	if last != Placed {
		t.Fatalf("pod %d: %v; all of a batch can be placed", len(nodes), last)
	}
	for k, node := range nodes {
		if node%3 != nodes[0]%3 {
			t.Errorf("pod %d is in zone %d, the first is in %d", k, node%3, nodes[0]%3)
		}
	}
}

func TestABatchOfPodsThatExcludeEachOtherFillsEachNodeOnce(t *testing.T) {
	z := newZones(t, 5, 1, crossNodeClasses()["antiAffinity/hostname"])
	nodes, last := z.place(6)
	if len(nodes) != 5 || last != NoFit {
		t.Fatalf("%d pods placed on 5 nodes, then %v", len(nodes), last)
	}
	slices.Sort(nodes)
	if len(slices.Compact(nodes)) != 5 {
		t.Errorf("two pods are on one node: %v", nodes)
	}
}

func TestAntiAffinityOfPlacedPodsKeepsOthersAway(t *testing.T) {
	z := newZones(t, 1, 1, crossNodeClasses()["antiAffinity/hostname"])
	z.pod(testClass, webLabels, "node-0")
	for labels, want := range map[cluster.LabelsID]string{
		webLabels:   InterPodAffinity + ": " + ReasonExistingAntiAffinity,
		plainLabels: "", cluster.NoLabels: "",
	} {
		s := Subject{Class: otherClass, Labels: labels}
		v, _ := z.e.Node(z.st, s, cluster.NoPod, 0)
		got := ""
		for _, c := range z.e.Explain(z.st, s, v, 0) {
			got += c.Plugin + ": " + c.Reason
		}
		if got != want {
			t.Errorf("pod with label set %d: %q, want %q", labels, got, want)
		}
	}
}

func TestLabelsThatNobodySelectsSplitNoSignature(t *testing.T) {
	z := newZones(t, 1, 1, crossNodeClasses()["antiAffinity/hostname"])
	signature := func(labels cluster.LabelsID) Signature { return z.e.Signature(z.st, Subject{otherClass, labels, 0}) }
	if signature(webLabels) != signature(podLabels) {
		t.Error("a label that no selector names splits a signature")
	}
	if signature(webLabels) == signature(plainLabels) {
		t.Error("pods that a term matches are of one signature with pods that it does not match")
	}
	low, high := z.e.Signature(z.st, Subject{otherClass, webLabels, 0}), z.e.Signature(z.st, Subject{otherClass, webLabels, 5})
	if low != high {
		t.Error("priority splits a signature without a nominated pod")
	}
}

func TestCandidatesFoundAmongOtherPodsAreRetried(t *testing.T) {
	spec := crossNodeClasses()["affinity/zone"]
	spec.Affinity[0].NamespaceSelector = cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "team", Operator: "Exists"}}}
	z := newZones(t, 3, 3, spec)
	s := Subject{Class: testClass, Labels: webLabels}
	good, seq := z.candidates(s)
	for what, spoil := range map[string]func(text string) string{
		"another prefix": func(text string) string { return "x" + text[1:] },
		"too short":      func(text string) string { return text[:len(text)-1] },
		"too long":       func(text string) string { return text + "\x00" },
		"nothing":        func(string) string { return "" },
	} {
		bad := Candidates{Subject: s, Groups: slices.Clone(good.Groups)}
		bad.Groups[0].Raw.TopologyProfile = spoil(bad.Groups[0].Raw.TopologyProfile)
		if _, got := NewPlacer(z.e, z.st, seq, []Candidates{bad}).Place(0); got != Retry {
			t.Errorf("%s: %v, want retry", what, got)
		}
	}
	if _, got := NewPlacer(z.e, z.st, seq, []Candidates{good}).Place(0); got != Placed {
		t.Errorf("as they were: %v, want placed", got)
	}
	apply(t, z.st, cluster.NamespaceSet{Name: "dev", Labels: []cluster.Label{{Key: "team", Value: "a"}}})
	if _, got := NewPlacer(z.e, z.st, seq, []Candidates{good}).Place(0); got != Retry {
		t.Errorf("after a namespace joined those that the term selects: %v, want retry", got)
	}
}

func TestNominatedPodsHoldTheirRoomAgainstLowerPriorities(t *testing.T) {
	z := newZones(t, 1, 1, cluster.ClassSpec{})
	nominee := z.st.FreePod()
	apply(t, z.st, cluster.ClassDefined{ID: 5, Spec: cluster.ClassSpec{Requests: requests(950, 0)}},
		cluster.PodSet{ID: nominee, Pod: cluster.Pod{UID: "n", Class: 5, Priority: 10, Nominated: "node-0"}})
	for _, tt := range []struct {
		priority int32
		self     cluster.PodID
		want     bool
	}{
		{9, cluster.NoPod, false}, {10, cluster.NoPod, false}, {11, cluster.NoPod, true}, {10, nominee, true},
	} {
		v, _ := z.e.Node(z.st, Subject{Class: testClass, Priority: tt.priority}, tt.self, 0)
		if v.Feasible() != tt.want {
			t.Errorf("priority %d, self %d: feasible is %v, want %v", tt.priority, tt.self, v.Feasible(), tt.want)
		}
	}
	apply(t, z.st, cluster.PodSet{ID: nominee, Pod: cluster.Pod{UID: "n", Class: 5, Priority: 10, Nominated: "node-0", Gates: []string{"g"}}})
	if v, _ := z.e.Node(z.st, Subject{Class: testClass}, cluster.NoPod, 0); !v.Feasible() {
		t.Error("a gated pod holds room")
	}
}

func TestNominatedPodsAntiAffinityCountsOnlyBesideAPlacedOne(t *testing.T) {
	z := newZones(t, 2, 1, crossNodeClasses()["antiAffinity/hostname"])
	apply(t, z.st, cluster.PodSet{ID: z.st.FreePod(), Pod: cluster.Pod{UID: "n", Class: testClass, Labels: webLabels, Nominated: "node-0"}})
	s := Subject{Class: otherClass, Labels: webLabels}
	if v, _ := z.e.Node(z.st, s, cluster.NoPod, 0); !v.Feasible() {
		t.Error("kube-scheduler skips the filter of such a pod")
	}
	z.pod(testClass, webLabels, "node-1")
	if v, _ := z.e.Node(z.st, s, cluster.NoPod, 0); v.Feasible() {
		t.Error("with a placed pod whose term matches, that of the nominated one counts too")
	}
}

func TestLeastCountIsThatOfAllDomains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := slot{sums: []int64{0}, domains: new(domains)}
		nodes, counts := map[int32]int32{}, map[int32]int64{}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			d := int32(rapid.IntRange(0, 4).Draw(t, "domain"))
			by := int64(rapid.IntRange(int(-counts[d]), 3).Draw(t, "by"))
			n := int32(rapid.IntRange(int(-min(nodes[d], 1)), 1).Draw(t, "nodes"))
			nodes[d], counts[d] = nodes[d]+n, counts[d]+by
			s.add(d, by, n)
		}
		least := func(change int32, to int64) int64 {
			var all []int64
			for d, n := range nodes {
				switch {
				case n == 0:
				case d == change:
					all = append(all, to)
				default:
					all = append(all, counts[d])
				}
			}
			if len(all) == 0 {
				return 0
			}
			return slices.Min(all)
		}
		if got, want := s.domains.least(), least(-1, 0); got != want {
			t.Fatalf("least of %v on %v nodes: %d, want %d", counts, nodes, got, want)
		}
		for d, n := range nodes {
			for by := int64(-4); by <= 3; by++ {
				to := counts[d] + by
				if n > 0 && s.domains.leastIf(counts[d], to) != least(d, to) {
					t.Fatalf("least of %v on %v nodes, had %d %+d: %d, want %d", counts, nodes, d, by, s.domains.leastIf(counts[d], to), least(d, to))
				}
			}
		}
	})
}
