package whatif

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

const rackKey = "example.com/rack"

// inRack returns a node with a rack.
func inRack(name, rack string, cpu int64) cluster.Node {
	n := aNode(name, "z", cpu)
	n.Labels = append([]cluster.Label{{Key: rackKey, Value: rack}}, n.Labels...)
	return n
}

func ofGroup(p source.Pod, group string) source.Pod {
	p.Group = group
	return p
}

func setGroup(g cluster.PodGroup) source.Event {
	g.Namespace = "default"
	return source.Event{Kind: source.ObjectSet, Object: &g}
}

// ids returns the pods of a group that wait, in the order in which they came.
func ids(st *cluster.State, group string) []cluster.PodID {
	var out []cluster.PodID
	for _, id := range st.GroupPods(groupKey(group)) {
		if !st.Pod(id).Placed() {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func groupKey(name string) cluster.GroupKey {
	return cluster.GroupKey{Namespace: "default", Name: name}
}

// together places the group g of a sandbox, and calls then while it is.
func together(t testing.TB, s *Sandbox, then func(w *World, out GroupOutcome)) (out GroupOutcome) {
	t.Helper()
	try(t, s, func(w *World) (err error) {
		if out, err = PlaceGroup(w, groupKey("g"), ids(w.State(), "g")); err == nil && then != nil {
			then(w, out)
		}
		return err
	})
	return out
}

// where returns on which nodes the pods of an outcome are, in order.
func where(out GroupOutcome) string {
	var nodes []string
	for _, p := range out.Pods {
		if p.Outcome == Placed {
			nodes = append(nodes, p.Node)
		} else {
			nodes = append(nodes, "-")
		}
	}
	return strings.Join(nodes, " ")
}

func TestAGroupIsPlacedByItsPolicy(t *testing.T) {
	// n1 takes two of the pods, n2 one.
	nodes := []source.Event{setNode(aNode("n1", "z", 2000)), setNode(aNode("n2", "z", 1000))}
	pods := func(n int) (events []source.Event) {
		for k := range n {
			events = append(events, setPod(ofGroup(aPod(fmt.Sprint("p", k), 1000), "g")))
		}
		return events
	}
	for _, test := range []struct {
		name   string
		group  cluster.PodGroup
		pods   []source.Event
		fit    int
		placed bool
		why    string
	}{
		{"a gang that fits", cluster.PodGroup{Name: "g", Gang: true, MinCount: 3}, pods(3), 3, true, ""},
		{"a gang that fits but for pods beyond what it wants", cluster.PodGroup{Name: "g", Gang: true, MinCount: 2}, pods(5), 3, true, ""},
		{"a gang that does not fit", cluster.PodGroup{Name: "g", Gang: true, MinCount: 4}, pods(4), 3, false, "pod group is unschedulable: 3 of at least 4 pods fit"},
		{"a gang of which enough pods are placed", cluster.PodGroup{Name: "g", Gang: true, MinCount: 2}, append(pods(1), setPod(on(ofGroup(aPod("a", 1000), "g"), "n1"))), 2, true, ""},
		{"no gang", cluster.PodGroup{Name: "g"}, pods(5), 3, true, ""},
		{"no gang, and nothing fits", cluster.PodGroup{Name: "g"}, []source.Event{setPod(ofGroup(aPod("p", 9000), "g"))}, 0, false, "pod group is unschedulable: none of its pods fits"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := sandbox(t, append(append(slices.Clone(nodes), setGroup(test.group)), test.pods...)...)
			waiting := len(ids(s.state, "g"))
			out := together(t, s, func(w *World, out GroupOutcome) {
				want := 0
				if out.Placed {
					want = min(waiting, test.fit)
				}
				placed := 0
				for _, p := range out.Pods {
					if row := w.State().Pod(p.Pod); row.Phase == cluster.Assumed {
						if placed++; row.NodeName != p.Node {
							t.Errorf("%s is on %s, not %s", p.Name, row.NodeName, p.Node)
						}
					} else if out.Placed && p.Message == "" {
						t.Errorf("nothing says why %s is not placed", p.Name)
					}
				}
				if test.placed && placed < min(want, waiting) || !test.placed && placed > 0 {
					t.Errorf("%d pods are placed, want %d", placed, want)
				}
			})
			if out.Placed != test.placed || out.Fit != test.fit || out.Message != test.why {
				t.Errorf("placed %v, %d fit, %q; want %v, %d, %q", out.Placed, out.Fit, out.Message, test.placed, test.fit, test.why)
			}
		})
	}
}

// TestAGroupGoesToTheDomainWhereMostOfItFitsAndLeastIsLeft has racks of different sizes, and what makes each the best.
func TestAGroupGoesToTheDomainWhereMostOfItFitsAndLeastIsLeft(t *testing.T) {
	gang := setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2, Topology: []string{rackKey}})
	pods := []source.Event{gang}
	for k := range 3 {
		pods = append(pods, setPod(ofGroup(aPod(fmt.Sprint("p", k), 1000), "g")))
	}
	for _, test := range []struct {
		name   string
		events []source.Event
		want   string
		domain string
		why    string
	}{
		{"the only one with room for all", []source.Event{
			setNode(inRack("a1", "a", 1000)), setNode(inRack("b1", "b", 2000)), setNode(inRack("b2", "b", 1000)), setNode(inRack("c1", "c", 2000)),
		}, "b1 b1 b2", "b", ""},
		{"the one that is full then", []source.Event{setNode(inRack("a1", "a", 8000)), setNode(inRack("b1", "b", 3000)), setNode(inRack("c1", "c", 4000))}, "b1 b1 b1", "b", ""},
		{"one that has less left for the same score", []source.Event{setNode(inRack("a1", "a", 1_000_000)), setNode(inRack("b1", "b", 999_999))}, "b1 b1 b1", "b", ""},
		{"the first by name of equal ones", []source.Event{setNode(inRack("b1", "b", 4000)), setNode(inRack("a1", "a", 4000))}, "a1 a1 a1", "a", ""},
		{"where pods of it are", []source.Event{
			setNode(inRack("a1", "a", 4000)), setNode(inRack("b1", "b", 9000)), setPod(on(ofGroup(aPod("x", 100), "g"), "b1")),
		}, "b1 b1 b1", "b", ""},
		{"none: it is in two", []source.Event{
			setNode(inRack("a1", "a", 4000)), setNode(inRack("b1", "b", 9000)), setPod(on(ofGroup(aPod("x", 100), "g"), "b1")), setPod(on(ofGroup(aPod("y", 100), "g"), "a1")),
		}, "- - -", "", "cannot determine domain for already scheduled pods: more than 1 domain found for pod group: a, b"},
		{"none: no node has the label", []source.Event{setNode(aNode("n1", "z", 4000))}, "- - -", "", "no feasible placements found"},
		{"none: none has room", []source.Event{setNode(inRack("a1", "a", 1000)), setNode(inRack("b1", "b", 500))}, "- - -", "a", "0/2 placements are available, the best: pod group is unschedulable: 1 of at least 2 pods fit in a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := together(t, sandbox(t, append(slices.Clone(test.events), pods...)...), nil)
			if !out.Placed {
				for k := range out.Pods {
					out.Pods[k].Outcome = Unplaced
				}
			}
			if got := where(out); got != test.want || out.Domain != test.domain || out.Message != test.why {
				t.Errorf("placed on %s in %q, %q; want %s in %q, %q", got, out.Domain, out.Message, test.want, test.domain, test.why)
			}
		})
	}
}

// TestADomainIsByAllLabels has racks of two halls with the same names.
func TestADomainIsByAllLabels(t *testing.T) {
	node := func(name, hall string, cpu int64) cluster.Node {
		n := inRack(name, "r", cpu)
		n.Labels = append([]cluster.Label{{Key: "example.com/hall", Value: hall}}, n.Labels...)
		return n
	}
	out := together(t, sandbox(t, setNode(node("a", "one", 1000)), setNode(node("b", "two", 1000)),
		setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2, Topology: []string{"example.com/hall", rackKey}}),
		setPod(ofGroup(aPod("p", 1000), "g")), setPod(ofGroup(aPod("q", 1000), "g"))), nil)
	if want := "0/2 placements are available, the best: pod group is unschedulable: 1 of at least 2 pods fit in one/r"; out.Placed || out.Message != want {
		t.Errorf("placed %v, %q; want %q", out.Placed, out.Message, want)
	}
}

// TestWhatIsSaidOfAGangHoldsForEveryWayToPlaceIt compares with a model that places pods by itself: one after the other, on a cluster that has one domain only.
func TestWhatIsSaidOfAGangHoldsForEveryWayToPlaceIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		intn := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		var nodes []cluster.Node
		racks := make(map[string]bool)
		for k := range 1 + intn(8) {
			rack := string(rune('a' + intn(3)))
			racks[rack] = true
			nodes = append(nodes, inRack(fmt.Sprint("n", k), rack, int64(500*(1+intn(4)))))
		}
		var pods []source.Pod
		for k := range 1 + intn(6) {
			p := aPod(fmt.Sprint("p", k), int64(500*(1+intn(3))))
			p.Created = int64(1 + k)
			pods = append(pods, ofGroup(p, "g"))
		}
		group := cluster.PodGroup{Name: "g", Gang: true, MinCount: int32(1 + intn(len(pods)))}
		if intn(3) > 0 {
			group.Topology = []string{rackKey}
		}
		build := func(rack string) *Sandbox {
			events := []source.Event{setGroup(group)}
			for _, n := range nodes {
				if rack == "" || n.Labels[0].Value == rack {
					events = append(events, setNode(n))
				}
			}
			for _, p := range pods {
				events = append(events, setPod(p))
			}
			return sandbox(t, events...)
		}
		fits := func(rack string) (n int) {
			s := build(rack)
			if err := s.Try(t.Context(), func(w *World) error {
				out, err := Place(w, ids(w.State(), "g"), PlaceOptions{apart: true})
				for _, p := range out {
					if p.Outcome == Placed {
						n++
					}
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return n
		}
		want := 0
		if group.Topology == nil {
			want = fits("")
		}
		for rack := range racks {
			if group.Topology != nil {
				want = max(want, fits(rack))
			}
		}
		s := build("")
		before := s.state.Digest()
		var out GroupOutcome
		if err := s.Try(t.Context(), func(w *World) (err error) {
			if out, err = PlaceGroup(w, groupKey("g"), ids(w.State(), "g")); err != nil {
				return err
			}
			st := w.State()
			in := make(map[string]bool)
			for _, p := range out.Pods {
				if out.Placed && p.Outcome == Placed {
					in[st.Node(st.Pod(p.Pod).Node).Labels[0].Value] = true
				} else if st.Pod(p.Pod).Placed() {
					t.Errorf("%s is placed, which nothing says", p.Name)
				}
			}
			if group.Topology != nil && len(in) > 1 {
				t.Errorf("the gang is in %v", in)
			}
			for i := range cluster.NodeIndex(st.Nodes.Len()) {
				if st.Nodes.Requested[cluster.CPU][i] > st.Nodes.Allocatable[cluster.CPU][i] {
					t.Errorf("node %d is overfull", i)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if s.state.Digest() != before {
			t.Error("the sandbox is not as it was")
		}
		fuller := group.Topology != nil && out.Placed && out.Fit >= int(group.MinCount) && out.Fit <= want // a domain of fewer pods may be fuller
		if out.Fit != want && !fuller || out.Placed != (want >= int(group.MinCount)) {
			t.Errorf("%d fit, placed %v; want %d of at least %d: %s", out.Fit, out.Placed, want, group.MinCount, out.Message)
		}
	})
}

// BenchmarkPlaceGroup places gangs of 8 on 5,000 nodes, anywhere, and with every rack of 100 nodes tried.
func BenchmarkPlaceGroup(b *testing.B) {
	for _, racks := range []int{0, 50} {
		b.Run(fmt.Sprintf("racks=%d", racks), func(b *testing.B) {
			const nodes = 5000
			var events []source.Event
			for k := range nodes {
				events = append(events, setNode(inRack(fmt.Sprint("node-", k), fmt.Sprint("rack-", k/100), 32_000)))
			}
			g := cluster.PodGroup{Name: "g", Gang: true, MinCount: 8}
			if racks > 0 {
				g.Topology = []string{rackKey}
			}
			events = append(events, setGroup(g))
			for k := range 8 {
				events = append(events, setPod(ofGroup(aPod(fmt.Sprint("p", k), 1000), "g")))
			}
			s := sandbox(b, events...)
			for b.Loop() {
				together(b, s, nil)
			}
		})
	}
}

// TestPlaceKeepsGangsTogether asks about pods of gangs and others at once.
func TestPlaceKeepsGangsTogether(t *testing.T) {
	s := sandbox(t, setNode(aNode("n1", "z", 3000)), setNode(aNode("n2", "z", 1000)),
		setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 3}), setGroup(cluster.PodGroup{Name: "h", Gang: true, MinCount: 2}),
		setPod(on(aPod("low", 1000), "n2")))
	pods := []source.Pod{
		prior(ofGroup(aPod("g1", 1000), "g"), 5), prior(ofGroup(aPod("h1", 1000), "h"), 4), prior(aPod("single", 1000), 3),
		prior(ofGroup(aPod("g2", 1000), "g"), 2), prior(ofGroup(aPod("g3", 1000), "g"), 2), prior(ofGroup(aPod("lost", 10), "nowhere"), 1), ofGroup(aPod("h2", 1000), "h"),
	}
	try(t, s, func(w *World) error {
		var ids []cluster.PodID
		for _, p := range pods {
			id, err := w.AddPod(p)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		out, err := Place(w, ids, PlaceOptions{Preempt: true})
		if err != nil {
			return err
		}
		// The gang g is first, by its first pod, and takes n1. The gang h then would need more than there is. The single pod takes the room of the low one.
		for k, want := range []string{"placed n1", "unplaced ", "preempts n2", "placed n1", "placed n1", "unplaced ", "unplaced "} {
			if got := out[k].Outcome.String() + " " + out[k].Node; got != want {
				t.Errorf("%s is %s (%s), want %s", out[k].Name, got, out[k].Message, want)
			}
		}
		if want := "its PodGroup nowhere does not exist"; out[5].Message != want {
			t.Errorf("it is said %q, want %q", out[5].Message, want)
		}
		return nil
	})
	// A gang that preempts, on an empty cluster but for those in its way.
	s = sandbox(t, setNode(aNode("n1", "z", 2000)), setPod(on(aPod("v1", 1000), "n1")), setPod(on(aPod("v2", 1000), "n1")), setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2}))
	try(t, s, func(w *World) error {
		var ids []cluster.PodID
		for _, name := range []string{"a", "b"} {
			id, err := w.AddPod(prior(ofGroup(aPod(name, 1000), "g"), 9))
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		out, err := Place(w, ids, PlaceOptions{Preempt: true})
		if err == nil && (out[0].Outcome != Preempts || len(out[0].Victims) != 2 || out[1].Outcome != Placed) {
			t.Errorf("%+v, want that they are placed where two pods had to go", out)
		}
		return err
	})
}

// TestPodsBeyondThoseThatAGangWantsPreemptToo as they do when they are tried again.
func TestPodsBeyondThoseThatAGangWantsPreemptToo(t *testing.T) {
	s := sandbox(t, setNode(aNode("n1", "z", 1000)), setNode(aNode("n2", "z", 1000)), setPod(on(aPod("v", 1000), "n2")), setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 1}))
	try(t, s, func(w *World) error {
		var ids []cluster.PodID
		for _, name := range []string{"a", "b", "c"} {
			id, err := w.AddPod(prior(ofGroup(aPod(name, 1000), "g"), 9))
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		out, err := Place(w, ids, PlaceOptions{Preempt: true})
		if err == nil && (out[0].Outcome != Placed || out[1].Outcome != Preempts || len(out[1].Victims) != 1 || out[2].Outcome != Unplaced || out[2].Message == "") {
			t.Errorf("%+v, want one placed, one where another pod had to go, and one not", out)
		}
		return err
	})
}

// placeAll places pods in a sandbox as Place does, and returns what becomes of each.
func placeAll(t *testing.T, s *Sandbox, pods ...source.Pod) (out []PodOutcome) {
	t.Helper()
	try(t, s, func(w *World) error {
		var ids []cluster.PodID
		for _, p := range pods {
			id, err := w.AddPod(p)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		placed, err := Place(w, ids, PlaceOptions{Preempt: true})
		out = placed
		return err
	})
	return out
}

// TestAPodOfAGangThatHadToGoIsNotLookedFor: it was placed with its gang, before its own turn, and another pod was more important.
func TestAPodOfAGangThatHadToGoIsNotLookedFor(t *testing.T) {
	only := func(p source.Pod, node string) source.Pod {
		p.RequiredNode = node
		return p
	}
	s := sandbox(t, setNode(aNode("n1", "z", 1000)), setNode(aNode("n2", "z", 1000)), setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2}), setGroup(cluster.PodGroup{Name: "h", Gang: true, MinCount: 1}))
	out := placeAll(t, s,
		prior(only(ofGroup(aPod("m0", 1000), "g"), "n1"), 100), prior(aPod("x", 1000), 50), prior(ofGroup(aPod("y", 1000), "h"), 20), prior(only(ofGroup(aPod("m1", 1000), "g"), "n2"), 10))
	if out[0].Outcome != Placed || out[1].Outcome != Preempts || out[2].Outcome != Unplaced || out[3].Outcome == Placed {
		t.Errorf("%+v, want that x has m1 go", out)
	}
}

// TestVictimsAreThoseOfThePodThatIsPlaced and not of the first of its gang, which is not.
func TestVictimsAreThoseOfThePodThatIsPlaced(t *testing.T) {
	s := sandbox(t, setNode(aNode("n1", "z", 1000)), setPod(on(aPod("v", 1000), "n1")), setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 1}))
	out := placeAll(t, s, prior(ofGroup(aPod("big", 2000), "g"), 9), prior(ofGroup(aPod("small", 1000), "g"), 9))
	if out[0].Outcome != Unplaced || out[1].Outcome != Preempts || len(out[1].Victims) != 1 {
		t.Errorf("%+v, want that the small one has another go", out)
	}
}

// TestPodsBeyondThoseThatAGangWantsPreemptSoOftenInAQuestion and no more: each time it is looked who could go.
func TestPodsBeyondThoseThatAGangWantsPreemptSoOftenInAQuestion(t *testing.T) {
	events := []source.Event{setNode(aNode("free", "z", 1000)), setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 1})}
	var pods []source.Pod
	for k := range 2 * mostBeyond {
		node := fmt.Sprint("n", k)
		events = append(events, setNode(aNode(node, "z", 1000)), setPod(on(aPod(fmt.Sprint("v", k), 1000), node)))
		pods = append(pods, prior(ofGroup(aPod(fmt.Sprint("p", k), 1000), "g"), 9))
	}
	placed := 0
	for _, o := range placeAll(t, sandbox(t, events...), pods...) {
		if o.Outcome == Placed || o.Outcome == Preempts {
			placed++
		}
	}
	if placed != 1+mostBeyond {
		t.Errorf("%d of %d pods are placed, want %d", placed, len(pods), 1+mostBeyond)
	}
}

// TestAGroupIsConfirmedAsFarAsItFits has nodes taken on which places were found.
func TestAGroupIsConfirmedAsFarAsItFits(t *testing.T) {
	rack := func(name, rack string, cpu int64) cluster.Node {
		n := aNode(name, "z", cpu)
		n.Labels = append(n.Labels, cluster.Label{Key: "example.com/rack", Value: rack})
		return n
	}
	filled := func(node string) source.Event { return setPod(on(aPod("y-"+node, 900), node)) }
	for _, tt := range []struct {
		what  string
		group cluster.PodGroup
		more  []source.Event
		want  string // where they are; "-": nowhere, and it was not found out why
	}{
		{"nothing is taken", cluster.PodGroup{Gang: true, MinCount: 2}, nil, "a1 a2"},
		{"a place is, and there is another", cluster.PodGroup{Gang: true, MinCount: 2}, []source.Event{filled("a1"), setNode(rack("b1", "b", 9000))}, "b1 a2"},
		{"a place is, and there is a near one", cluster.PodGroup{Gang: true, MinCount: 2, Preferred: []string{"example.com/rack"}}, []source.Event{filled("a1"), setNode(rack("b1", "b", 9000)), setNode(rack("a3", "a", 1000))}, "a3 a2"},
		{"a place is, and there is none near", cluster.PodGroup{Gang: true, MinCount: 2, Preferred: []string{"example.com/rack"}}, []source.Event{filled("a1"), setNode(rack("b1", "b", 9000))}, "b1 a2"},
		{"a place is, and there is no other in the rack", cluster.PodGroup{Gang: true, MinCount: 2, Topology: []string{"example.com/rack"}}, []source.Event{filled("a1"), setNode(rack("b1", "b", 9000))}, ""},
		{"a place is, and there is no other", cluster.PodGroup{Gang: true, MinCount: 2}, []source.Event{filled("a1")}, ""},
		{"one is enough", cluster.PodGroup{Gang: true, MinCount: 1}, []source.Event{filled("a1")}, "- a2"},
		{"it is no gang", cluster.PodGroup{}, []source.Event{filled("a1")}, "- a2"},
		{"it is no gang, and none is left", cluster.PodGroup{}, []source.Event{filled("a1"), filled("a2")}, ""},
	} {
		tt.group.Name = "g"
		events := []source.Event{
			setNode(rack("a1", "a", 1000)), setNode(rack("a2", "a", 1000)), setGroup(tt.group),
			setPod(ofGroup(aPod("p", 1000), "g")), setPod(ofGroup(aPod("q", 1000), "g")),
		}
		var found GroupOutcome
		try(t, sandbox(t, events...), func(w *World) (err error) {
			found, err = PlaceGroup(w, groupKey("g"), ids(w.State(), "g"))
			return err
		})
		try(t, sandbox(t, append(events, tt.more...)...), func(w *World) error {
			fits, err := ConfirmGroup(w, groupKey("g"), &found)
			var at []string
			for _, p := range found.Pods {
				if p.Missed != (p.Outcome == Unplaced) {
					t.Errorf("%s: %+v", tt.what, p)
				}
				at = append(at, cmp.Or(p.Node, "-"))
			}
			slices.Sort(at)
			want := strings.Fields(tt.want)
			slices.Sort(want)
			if fits != (tt.want != "") || fits && !slices.Equal(at, want) {
				t.Errorf("%s: %v, %v; want %q", tt.what, fits, at, tt.want)
			}
			if missed := strings.Count(tt.want, "-"); fits && found.Fit != 2-missed {
				t.Errorf("%s: %d fit", tt.what, found.Fit)
			}
			return err
		})
	}
}
