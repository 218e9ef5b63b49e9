package whatif

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// ends makes a pod one that has started, and ends by itself after so many seconds at the latest, cluster.EndsSometime or cluster.NeverEnds.
func ends(p source.Pod, started, after int32) source.Pod {
	p.Started, p.Ends = int64(started)*int64(time.Second), after
	return p
}

func leaving(p source.Pod) source.Pod { p.Deleting = true; return p }

// careless makes a pod one that tolerates all taints, and so cordoned nodes.
func careless(p source.Pod) source.Pod {
	p.Class.Tolerations = []cluster.Toleration{{Operator: "Exists"}}
	return p
}

// seconds is what tests count in.
func seconds(at int64) int64 { return at / int64(time.Second) }

func TestRoomIsReservedWhereAGroupFitsEarliest(t *testing.T) {
	const now = 1000
	rack := []string{rackKey}
	one := cluster.PodGroup{Name: "g", Gang: true, MinCount: 1}
	two := cluster.PodGroup{Name: "g", Gang: true, MinCount: 2}
	racked := cluster.PodGroup{Name: "g", Gang: true, MinCount: 2, Topology: rack}
	for _, test := range []struct {
		name   string
		group  cluster.PodGroup
		pods   []source.Pod // on nodes
		size   int64        // of each pod of the group
		want   string       // where they go, who is awaited, and until when
		domain string
	}{
		{"where the deadline is", one, []source.Pod{
			on(ends(aPod("late", 1000), 900, 500), "n1"), on(ends(aPod("early", 1000), 950, 300), "n2"), on(aPod("never", 1000), "n3"), on(aPod("never-2", 1000), "n4"),
		}, 1000, "n2 awaits early until 1250", ""},
		{"where nobody knows when, if there is no deadline", one, []source.Pod{
			on(aPod("never", 1000), "n1"), on(ends(aPod("young", 1000), 950, cluster.EndsSometime), "n2"), on(ends(aPod("old", 1000), 900, cluster.EndsSometime), "n3"), on(ends(aPod("new", 1000), 0, cluster.EndsSometime), "n4"),
		}, 1000, "n3 awaits old until 0", ""},
		{"where pods leave anyway", one, []source.Pod{
			on(ends(aPod("early", 1000), 950, 300), "n1"), on(leaving(aPod("leaves", 1000)), "n2"), on(aPod("never", 1000), "n3"), on(aPod("never-2", 1000), "n4"),
		}, 1000, "n2 awaits leaves until 1000", ""},
		{"a deadline that is over is now", one, []source.Pod{
			on(ends(aPod("over", 1000), 100, 300), "n1"), on(aPod("a", 1000), "n2"), on(aPod("b", 1000), "n3"), on(aPod("c", 1000), "n4"),
		}, 1000, "n1 awaits over until 1000", ""},
		{"who has not started may take all of its time", one, []source.Pod{
			on(ends(aPod("starts", 1000), 0, 300), "n1"), on(ends(aPod("runs", 1000), 900, 350), "n2"), on(aPod("b", 1000), "n3"), on(aPod("c", 1000), "n4"),
		}, 1000, "n2 awaits runs until 1250", ""},
		{"nobody stays away whose room is not needed", one, []source.Pod{
			on(ends(aPod("a", 300), 900, 200), "n1"), on(ends(aPod("b", 300), 900, 201), "n1"), on(ends(aPod("c", 300), 900, 202), "n1"),
			on(aPod("never", 1000), "n2"), on(aPod("never-2", 1000), "n3"), on(aPod("never-3", 1000), "n4"),
		}, 600, "n1 awaits b a until 1101", ""},
		{"of two nodes, with the last of both", two, []source.Pod{
			on(ends(aPod("a", 1000), 900, 200), "n1"), on(ends(aPod("b", 1000), 900, 300), "n2"), on(ends(aPod("c", 1000), 900, 250), "n3"), on(aPod("never", 1000), "n4"),
		}, 1000, "n1 n3 awaits c a until 1150", ""},
		{"nowhere, if too few end", two, []source.Pod{
			on(ends(aPod("a", 1000), 900, 200), "n1"), on(aPod("b", 1000), "n2"), on(aPod("c", 1000), "n3"), on(aPod("never", 1000), "n4"),
		}, 1000, "nowhere", ""},
		{"nowhere, if it fits", one, []source.Pod{on(ends(aPod("a", 1000), 900, 200), "n1")}, 1000, "it fits", ""},
		{"in the rack that is free first", racked, []source.Pod{
			on(ends(aPod("a", 1000), 900, 200), "n1"), on(ends(aPod("b", 1000), 900, 400), "n2"), on(ends(aPod("c", 1000), 900, 300), "n3"), on(ends(aPod("d", 1000), 900, 301), "n4"),
		}, 1000, "n3 n4 awaits d c until 1201", "s"},
		{"in the rack where fewest are in the way", racked, []source.Pod{
			on(ends(aPod("a", 500), 900, -1), "n1"), on(ends(aPod("a2", 500), 900, -1), "n1"), on(ends(aPod("b", 1000), 900, -1), "n2"), on(ends(aPod("c", 1000), 900, -1), "n3"), on(ends(aPod("d", 1000), 950, -1), "n4"),
		}, 1000, "n3 n4 awaits d c until 0", "s"},
		{"in the first of two racks that are alike", racked, []source.Pod{
			on(ends(aPod("a", 1000), 900, -1), "n1"), on(ends(aPod("b", 1000), 900, -1), "n2"), on(ends(aPod("c", 1000), 900, -1), "n3"), on(ends(aPod("d", 1000), 900, -1), "n4"),
		}, 1000, "n1 n2 awaits b a until 0", "r"},
	} {
		t.Run(test.name, func(t *testing.T) {
			events := []source.Event{setGroup(test.group)}
			for k, rack := range []string{"r", "r", "s", "s"} {
				events = append(events, setNode(inRack(fmt.Sprint("n", k+1), rack, 1000)))
			}
			for _, p := range test.pods {
				events = append(events, setPod(p))
			}
			for k := range test.group.MinCount {
				p := ofGroup(aPod(fmt.Sprint("g", k), test.size), "g")
				p.Nominated = "n4" // which is no reason to go there
				events = append(events, setPod(p))
			}
			try(t, sandbox(t, events...), func(w *World) error {
				st := w.State()
				found, ok, err := ReserveGroup(w, groupKey("g"), ids(st, "g"), now*int64(time.Second))
				got := "nowhere"
				switch {
				case found.Fits:
					got = "it fits"
				case ok:
					nodes := slices.Clone(found.Nodes)
					slices.Sort(nodes)
					got = fmt.Sprintf("%s awaits %s until %d", strings.Join(nodes, " "), names(st, found.Awaits), seconds(found.Start))
				}
				if got != test.want || found.Domain != test.domain {
					t.Errorf("%s, in %q; want %s, in %q", got, found.Domain, test.want, test.domain)
				}
				return err
			})
		})
	}
}

func names(st *cluster.State, ids []cluster.PodID) string {
	var out []string
	for _, id := range ids {
		out = append(out, st.Pod(id).Name)
	}
	return strings.Join(out, " ")
}

// TestRoomIsReservedAsASlowModelHasIt has a model that waits for one end after the other, on a cluster that is made anew each time.
func TestRoomIsReservedAsASlowModelHasIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		intn := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		const now = 100
		var nodes []cluster.Node
		for k := range 1 + intn(4) {
			nodes = append(nodes, inRack(fmt.Sprint("n", k), fmt.Sprint("r", intn(2)), int64(500*(1+intn(6)))))
		}
		var placed, pods []source.Pod
		for k := range intn(9) {
			p := on(ends(aPod(fmt.Sprint("v", k), int64(500*(1+intn(3)))), int32(1+intn(90)), []int32{cluster.NeverEnds, cluster.EndsSometime, 50, 150}[intn(4)]), nodes[intn(len(nodes))].Name)
			p.Deleting = intn(8) == 0
			placed = append(placed, p)
		}
		size := int64(500 * (1 + intn(3)))
		for k := range 1 + intn(4) {
			pods = append(pods, ofGroup(aPod(fmt.Sprint("p", k), size), "g"))
		}
		group := cluster.PodGroup{Name: "g", Gang: true, MinCount: int32(1 + intn(len(pods)))}
		if intn(2) == 0 {
			group.Topology = []string{rackKey}
		}
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
		fits := func(stays []source.Pod) (fits bool) {
			s := build(stays)
			if err := s.Try(t.Context(), func(w *World) error {
				out, err := PlaceGroup(w, groupKey("g"), ids(w.State(), "g"))
				fits = out.Placed
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return fits
		}
		without := func(gone func(source.Pod) bool) []source.Pod { return slices.DeleteFunc(slices.Clone(placed), gone) }
		// 1. The model: the first moment at which it fits.
		end := func(p source.Pod) int64 {
			switch {
			case p.Deleting:
				return now
			case p.Ends == cluster.EndsSometime:
				return math.MaxInt64
			case p.Ends == cluster.NeverEnds:
				return -1
			}
			return max(now, seconds(p.Started)+int64(p.Ends))
		}
		want := "nowhere"
		if fits(placed) {
			want = "at once"
		} else {
			var moments []int64
			for _, p := range placed {
				if at := end(p); at >= 0 {
					moments = append(moments, at)
				}
			}
			slices.Sort(moments)
			for _, at := range slices.Compact(moments) {
				if fits(without(func(p source.Pod) bool { return end(p) >= 0 && end(p) <= at })) {
					want = fmt.Sprint("at ", cmp.Or(at%math.MaxInt64, 0))
					break
				}
			}
		}
		// 2. What is found.
		var found GroupReservation
		var ok bool
		var awaits []string
		s := build(placed)
		if err := s.Try(t.Context(), func(w *World) (err error) {
			found, ok, err = ReserveGroup(w, groupKey("g"), ids(w.State(), "g"), now*int64(time.Second))
			for _, id := range found.Awaits {
				awaits = append(awaits, w.State().Pod(id).Name)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		got := "nowhere"
		switch {
		case found.Fits:
			got = "at once"
		case ok:
			got = fmt.Sprint("at ", seconds(found.Start))
		}
		if got != want {
			t.Fatalf("it fits %s, want %s", got, want)
		}
		if !ok {
			return
		}
		// 3. It fits when these have ended, and needs each of them to.
		if !fits(without(func(p source.Pod) bool { return slices.Contains(awaits, p.Name) })) {
			t.Fatalf("it does not fit when %v have ended", awaits)
		}
		if len(group.Topology) > 0 {
			return // another domain may do without them
		}
		for _, stays := range awaits {
			if fits(without(func(p source.Pod) bool { return p.Name != stays && slices.Contains(awaits, p.Name) })) {
				t.Fatalf("%s is awaited, of %v, and need not be", stays, awaits)
			}
		}
	})
}

// TestWhatIsAwaitedIsSaidOfTheNodesThatAreReserved has a gang that is nominated.
func TestWhatIsAwaitedIsSaidOfTheNodesThatAreReserved(t *testing.T) {
	const now = 1000
	rack := []string{rackKey}
	nominated := func(name, node string) source.Pod {
		p := ofGroup(aPod(name, 1000), "g")
		p.Nominated = node
		return p
	}
	a, b := on(ends(aPod("a", 1000), 900, 200), "n1"), on(ends(aPod("b", 1000), 900, -1), "n2")
	for _, test := range []struct {
		name     string
		topology []string
		events   []source.Event
		want     string
	}{
		{"two are awaited", nil, []source.Event{setPod(a), setPod(b)}, "b a until 0"},
		{"one is", nil, []source.Event{setPod(a)}, "a until 1100"},
		{"nobody is", nil, nil, " until 0"},
		{"beside somebody who stays", nil, []source.Event{setPod(a), setPod(on(aPod("s", 500), "n2"))}, "not there"},
		{"of a higher priority", nil, []source.Event{setPod(a), setPod(prior(on(aPod("s", 500), "n2"), 7))}, "not there"},
		{"another gang, which has all of its pods", nil, []source.Event{setGroup(cluster.PodGroup{Name: "h", Gang: true, MinCount: 2}), setPod(ofGroup(a, "h")), setPod(ofGroup(b, "h"))}, "b a until 0"},
		{"another gang, which loses them one after the other", nil, []source.Event{setGroup(cluster.PodGroup{Name: "h", Gang: true, MinCount: 2}), setPod(ofGroup(a, "h"))}, "a until 1100"},
		{"another gang, which waits for a pod of it", nil, []source.Event{setGroup(cluster.PodGroup{Name: "h", Gang: true, MinCount: 2}), setPod(ofGroup(a, "h")), setPod(ofGroup(aPod("h1", 1000), "h"))}, "not there"},
		{"another gang, which is deleted", nil, []source.Event{setGroup(cluster.PodGroup{Name: "h", Gang: true, MinCount: 2}), setPod(leaving(ofGroup(a, "h"))), setPod(ofGroup(aPod("h1", 1000), "h"))}, "a until 1000"},
		{"a node is cordoned, which the pods do not mind", nil, []source.Event{setPod(a), setNode(func() cluster.Node { n := inRack("n2", "r", 1000); n.Unschedulable = true; return n }()), setPod(careless(nominated("g0", "n1"))), setPod(careless(nominated("g1", "n2")))}, "a until 1100"},
		{"a node is cordoned", nil, []source.Event{setPod(a), setNode(func() cluster.Node { n := inRack("n2", "r", 1000); n.Unschedulable = true; return n }())}, "not there"},
		{"a node is gone", nil, []source.Event{setPod(a), {Kind: source.NodeGone, Node: cluster.Node{Name: "n2"}}}, "not there"},
		{"in one rack", rack, []source.Event{setPod(a), setPod(b)}, "b a until 0"},
		{"in two racks", rack, []source.Event{setPod(a), setNode(inRack("n2", "s", 1000))}, "not there"},
	} {
		t.Run(test.name, func(t *testing.T) {
			events := []source.Event{
				setNode(inRack("n1", "r", 1000)), setNode(inRack("n2", "r", 1000)), setNode(inRack("n3", "r", 1000)), setPod(on(aPod("c", 1000), "n3")),
				setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2, Topology: test.topology}), setPod(nominated("g0", "n1")), setPod(nominated("g1", "n2")),
			}
			try(t, sandbox(t, append(events, test.events...)...), func(w *World) error {
				st := w.State()
				found, ok, err := AwaitGroup(w, groupKey("g"), ids(st, "g"), now*int64(time.Second))
				got := "not there"
				if ok {
					got = fmt.Sprintf("%s until %d", names(st, found.Awaits), seconds(found.Start))
				}
				if got != test.want {
					t.Errorf("%s, want %s", got, test.want)
				}
				return err
			})
		})
	}
}
