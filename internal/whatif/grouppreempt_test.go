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

// victimsFor returns who has to go for the group g, and where it goes then; or why nobody can.
func victimsFor(t testing.TB, s *Sandbox) (names, nodes, why string) {
	t.Helper()
	before := s.state.Digest()
	try(t, s, func(w *World) error {
		at := w.State().Digest()
		out, said, ok, err := PreemptGroup(w, groupKey("g"), ids(w.State(), "g"))
		if err != nil {
			return err
		}
		if w.State().Digest() != at {
			t.Error("the world is not as it was")
		}
		why = said
		if !ok {
			return nil
		}
		var all []string
		for _, id := range out.Found.Victims {
			all = append(all, w.State().Pod(id).Name)
		}
		names, nodes = strings.Join(all, " "), strings.Join(out.Nodes, " ")
		return nil
	})
	if s.state.Digest() != before {
		t.Error("the sandbox is not as it was")
	}
	return names, nodes, why
}

func TestAGroupPreemptsAsFewAndUnimportantAsItMust(t *testing.T) {
	gang := func(minCount int32, topology ...string) source.Event {
		return setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: minCount, Topology: topology})
	}
	wants := func(n int) (events []source.Event) { // n pods of 1 CPU, of priority 10
		for k := range n {
			events = append(events, setPod(prior(ofGroup(aPod(fmt.Sprint("p", k), 1000), "g"), 10)))
		}
		return events
	}
	low := func(name, node string, priority int32) source.Event {
		return setPod(on(prior(aPod(name, 1000), priority), node))
	}
	whole := setGroup(cluster.PodGroup{Name: "w", Gang: true, MinCount: 2, Whole: true})
	ofWhole := func(name, node string, priority int32) source.Event {
		return setPod(on(prior(ofGroup(aPod(name, 1000), "w"), priority), node))
	}
	n := func(name string, cpu int64) source.Event { return setNode(inRack(name, name[:1], cpu)) }
	for _, test := range []struct {
		name                string
		events              []source.Event
		victims, nodes, why string
	}{
		{"the least important of those in the way", append(wants(2), gang(2), n("a1", 2000), n("b1", 2000),
			low("v1", "a1", 3), low("v2", "a1", 1), low("v3", "b1", 2), low("v4", "b1", 9)), "v3 v2", "a1 b1", ""},
		{"no more than it wants", append(wants(3), gang(1), n("a1", 2000), low("v1", "a1", 1), low("v2", "a1", 2)), "v1", "a1  ", ""},
		{"nobody as important as the gang", append(wants(2), gang(2), n("a1", 2000), low("v1", "a1", 10), low("v2", "a1", 1)), "", "", "Preemption is not helpful for scheduling"},
		{"nobody is there", append(wants(2), gang(2), n("a1", 1000)), "", "", "No preemption victims found for incoming preemptor"},
		{"a gang that goes whole", append(wants(1), gang(1), whole, n("a1", 1000), n("b1", 1000), ofWhole("w1", "a1", 1), ofWhole("w2", "b1", 1)), "w1 w2", "a1", ""},
		{"a pod rather than a gang", append(wants(1), gang(1), whole, n("a1", 1000), n("b1", 1000), n("c1", 1000), ofWhole("w1", "a1", 1), ofWhole("w2", "b1", 1), low("v1", "c1", 1)), "v1", "c1", ""},
		{"a gang of which one is important stays", append(wants(1), gang(1), setGroup(cluster.PodGroup{Name: "w", Gang: true, MinCount: 2, Whole: true, HasPriority: true, Priority: 10}),
			n("a1", 1000), n("b1", 1000), ofWhole("w1", "a1", 1), ofWhole("w2", "b1", 1)), "", "", "No preemption victims found for incoming preemptor"},
		{"those in one rack", append(wants(2), gang(2, rackKey), n("a1", 1000), n("a2", 1000), n("b1", 2000),
			low("v1", "a1", 1), low("v2", "a2", 5), low("v3", "b1", 2), low("v4", "b1", 3)), "v4 v3", "b1 b1", ""},
		{"with those of a gang that are in another rack", append(wants(2), gang(2, rackKey), whole, n("a1", 1000), n("a2", 1000), n("b1", 1000),
			ofWhole("w1", "a1", 1), low("v2", "a2", 5), ofWhole("w2", "b1", 1)), "v2 w1 w2", "a1 a2", ""},
		{"not where a budget protects them", append(wants(1), gang(1, rackKey), n("a1", 1000), n("b1", 1000), low("v2", "b1", 5), setPod(on(prior(labelled(aPod("v3", 1000), "guarded"), 0), "a1")),
			source.Event{Kind: source.ObjectSet, Object: &cluster.Budget{Namespace: "default", Name: "b", Selector: selects("guarded")}}), "v2", "b1", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			victims, nodes, why := victimsFor(t, sandbox(t, test.events...))
			if victims != test.victims || nodes != test.nodes || why != test.why {
				t.Errorf("%q go for places on %q, %q; want %q, %q, %q", victims, nodes, why, test.victims, test.nodes, test.why)
			}
		})
	}
}

func labelled(p source.Pod, app string) source.Pod {
	p.Labels.Labels = []cluster.Label{{Key: "app", Value: app}}
	return p
}

func selects(app string) cluster.LabelSelector {
	return cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{app}}}}
}

func TestAGroupThatMayNotPreemptSaysWhy(t *testing.T) {
	p := prior(ofGroup(aPod("p", 1000), "g"), 10)
	p.NeverPreempts = true
	_, _, why := victimsFor(t, sandbox(t, setNode(aNode("n1", "z", 1000)), setPod(on(aPod("v", 1000), "n1")), setPod(p), setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 1})))
	if want := "not eligible due to preemptionPolicy=Never."; why != want {
		t.Errorf("it says %q, want %q", why, want)
	}
}

// TestThePreemptionOfAGangIsThatOfASlowModel spares pods one by one, on a cluster that is made anew each time.
func TestThePreemptionOfAGangIsThatOfASlowModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		intn := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		var nodes []cluster.Node
		for k := range 1 + intn(3) {
			nodes = append(nodes, inRack(fmt.Sprint("n", k), "r", int64(500*(1+intn(6)))))
		}
		var placed, pods []source.Pod
		for k := range intn(7) {
			p := on(prior(aPod(fmt.Sprint("v", k), int64(500*(1+intn(3)))), int32(intn(4))), nodes[intn(len(nodes))].Name)
			p.Started = int64(1 + k)
			placed = append(placed, p)
		}
		alike, size := rapid.Bool().Draw(t, "alike"), 1+intn(3)
		for k := range 1 + intn(4) {
			if !alike {
				size = 1 + intn(3)
			}
			p := prior(ofGroup(aPod(fmt.Sprint("p", k), int64(500*size)), "g"), 3)
			p.Created = int64(1 + k)
			pods = append(pods, p)
		}
		group := cluster.PodGroup{Name: "g", Gang: true, MinCount: int32(1 + intn(len(pods)))}
		build := func(stays []source.Pod) *Sandbox {
			events := []source.Event{setGroup(group)}
			for _, n := range nodes {
				events = append(events, setNode(n))
			}
			for _, p := range slices.Concat(stays, pods) {
				events = append(events, setPod(p))
			}
			return sandbox(t, events...)
		}
		fits := func(stays []source.Pod) (n int) {
			s := build(stays)
			if err := s.Try(t.Context(), func(w *World) error {
				out, err := PlaceGroup(w, groupKey("g"), ids(w.State(), "g"))
				n = out.Fit
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return n
		}
		if fits(placed) >= int(group.MinCount) {
			t.Skip("it fits") // another case is drawn
		}
		var stays, lower []source.Pod
		for _, p := range placed {
			if p.Priority < 3 {
				lower = append(lower, p)
			} else {
				stays = append(stays, p)
			}
		}
		slices.SortStableFunc(lower, func(a, b source.Pod) int {
			return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Started, b.Started))
		})
		var want []string
		if fits(stays) >= int(group.MinCount) {
			for _, p := range lower {
				if with := append(slices.Clone(stays), p); fits(with) >= int(group.MinCount) {
					stays = with
				} else {
					want = append(want, p.Name)
				}
			}
		}
		var got []string
		s := build(placed)
		if err := s.Try(t.Context(), func(w *World) error {
			out, _, ok, err := PreemptGroup(w, groupKey("g"), ids(w.State(), "g"))
			if ok {
				for _, id := range out.Found.Victims {
					got = append(got, w.State().Pod(id).Name)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if alike && !slices.Equal(got, want) {
			t.Errorf("%v go, want %v", got, want)
		}
		// Where pods differ, more of the group may fit where less room is: the first that finds none leaves it to two others. Then who may stay together need not be who may stay one by one.
		left := slices.DeleteFunc(slices.Clone(placed), func(p source.Pod) bool { return slices.Contains(got, p.Name) })
		if len(got) > 0 != (len(want) > 0) || len(got) > 0 && fits(left) < int(group.MinCount) {
			t.Errorf("%v go, where the model has %v go", got, want)
		}
	})
}

func gonePod(name string) source.Event {
	return source.Event{Kind: source.PodGone, Pod: source.Pod{Pod: cluster.Pod{UID: name}}}
}

// evicted returns the preemption of pods, as it was found when all of them were there: who is not there any more has some id.
func evicted(st *cluster.State, names ...string) (found GroupPreemption) {
	for _, name := range names {
		id, ok := st.PodByUID(name)
		if !ok {
			id, _ = st.PodByUID("other")
		}
		found.Found.Victims, found.UIDs = append(found.Found.Victims, id), append(found.UIDs, name)
	}
	return found
}

// TestNobodyGoesForAGroupThatFitsByNow asks whether victims that were found are still to go, when the cluster is another.
func TestNobodyGoesForAGroupThatFitsByNow(t *testing.T) {
	events := []source.Event{
		setNode(aNode("n1", "z", 2000)), setPod(on(prior(aPod("low-1", 1000), 1), "n1")), setPod(on(prior(aPod("low-2", 1000), 1), "n1")),
		setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2}), setPod(prior(ofGroup(aPod("p1", 1000), "g"), 10)), setPod(prior(ofGroup(aPod("p2", 1000), "g"), 10)),
	}
	for _, tt := range []struct {
		what string
		more []source.Event
		want int // go
	}{
		{"nothing has changed", nil, 2},
		{"there is room for one", []source.Event{setNode(aNode("n2", "z", 1000))}, 1},
		{"there is room for both", []source.Event{setNode(aNode("n2", "z", 2000))}, 0},
		{"a victim is more important", []source.Event{setPod(on(prior(aPod("low-2", 1000), 10), "n1"))}, 0},
		{"one is gone", []source.Event{gonePod("low-2")}, 1},
		{"another one has the id of one that is gone", []source.Event{gonePod("low-2"), setNode(aNode("n2", "z", 1000)), setPod(on(prior(aPod("other", 1000), 1), "n2"))}, 1},
		{"they are gone, and others there", []source.Event{gonePod("low-1"), gonePod("low-2"), setPod(on(prior(aPod("other", 2000), 1), "n1"))}, 0},
	} {
		s := sandbox(t, append(slices.Clone(events), tt.more...)...)
		try(t, s, func(w *World) error {
			found := evicted(w.State(), "low-1", "low-2")
			left, ok, err := ConfirmGroupPreemption(w, groupKey("g"), ids(w.State(), "g"), &found)
			if ok != (tt.want > 0) || len(left.UIDs) != tt.want && ok {
				t.Errorf("%s: %v are to go: %v, want %d", tt.what, left.UIDs, ok, tt.want)
			}
			return err
		})
	}
}

// TestAGroupIsNotPlacedInADomainThatIsAnother has a node change its rack when a place on it was found.
func TestAGroupIsNotPlacedInADomainThatIsAnother(t *testing.T) {
	s := sandbox(t, setNode(inRack("n1", "a", 1000)), setNode(inRack("n2", "a", 1000)),
		setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2, Topology: []string{rackKey}}), setPod(ofGroup(aPod("p1", 1000), "g")), setPod(ofGroup(aPod("p2", 1000), "g")))
	found := together(t, s, nil)
	if !found.Placed {
		t.Fatal("it is not placed")
	}
	for rack, want := range map[string]bool{"a": true, "b": false} {
		other := sandbox(t, setNode(inRack("n1", "a", 1000)), setNode(inRack("n2", rack, 1000)),
			setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2, Topology: []string{rackKey}}), setPod(ofGroup(aPod("p1", 1000), "g")), setPod(ofGroup(aPod("p2", 1000), "g")))
		try(t, other, func(w *World) error {
			fits, err := ConfirmGroup(w, groupKey("g"), &found)
			if fits != want {
				t.Errorf("n2 is in rack %s: it fits: %v, want %v", rack, fits, want)
			}
			return err
		})
	}
}

// TestNobodyGoesForAGroupThatFitsInAnotherDomain has room come to be in another rack than that where others were to go.
func TestNobodyGoesForAGroupThatFitsInAnotherDomain(t *testing.T) {
	events := []source.Event{
		setNode(inRack("n1", "a", 1000)), setPod(on(prior(aPod("low", 1000), 1), "n1")),
		setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 1, Topology: []string{rackKey}}), setPod(prior(ofGroup(aPod("p1", 1000), "g"), 10)),
	}
	for _, tt := range []struct {
		what string
		more []source.Event
		want bool
	}{
		{"there is no other rack", nil, true},
		{"the other one is too small", []source.Event{setNode(inRack("n2", "b", 500))}, true},
		{"the other one is empty", []source.Event{setNode(inRack("n2", "b", 1000))}, false},
		{"there is room beside one who could go", []source.Event{setNode(inRack("n2", "b", 2000)), setPod(on(prior(aPod("other", 1000), 1), "n2"))}, false},
	} {
		s := sandbox(t, append(slices.Clone(events), tt.more...)...)
		if names, _, _ := victimsFor(t, s); (names != "") != tt.want {
			t.Errorf("%s: %q go, want somebody: %v", tt.what, names, tt.want)
		}
		try(t, s, func(w *World) error {
			victims := evicted(w.State(), "low")
			victims.Domain = "a"
			found, _, _, err := PreemptGroup(w, groupKey("g"), ids(w.State(), "g"))
			if err != nil {
				return err
			}
			if found.Fits == tt.want {
				t.Errorf("%s: it fits: %v", tt.what, found.Fits)
			}
			_, ok, err := ConfirmGroupPreemption(w, groupKey("g"), ids(w.State(), "g"), &victims)
			if err == nil && ok != tt.want {
				t.Errorf("%s: they are to go: %v", tt.what, ok)
			}
			return err
		})
	}
}
