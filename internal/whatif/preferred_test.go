package whatif

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

const (
	hallKey  = "example.com/hall"
	blockKey = "example.com/block"
)

// at returns a node of a hall, block and rack, "-" for a label that it lacks, with room for so many pods of 1 CPU.
func at(name, path string, pods int) source.Event {
	n := aNode(name, "z", int64(1000*pods))
	for k, value := range strings.Split(path, "/") {
		if value != "-" {
			n.Labels = append(n.Labels, cluster.Label{Key: []string{hallKey, blockKey, rackKey}[k], Value: value})
		}
	}
	slices.SortFunc(n.Labels, func(a, b cluster.Label) int { return strings.Compare(a.Key, b.Key) })
	return setNode(n)
}

// gangOf returns a gang of so many pods of 1 CPU.
func gangOf(g cluster.PodGroup, pods int) []source.Event {
	g.Name, g.Gang = "g", true
	events := []source.Event{setGroup(g)}
	for k := range pods {
		events = append(events, setPod(ofGroup(aPod(fmt.Sprintf("p%02d", k), 1000), "g")))
	}
	return events
}

// racksOf says in which racks pods of an outcome are, each once, in order.
func racksOf(w *World, out GroupOutcome, keys ...string) string {
	in := make(map[string]bool)
	of := domainOf(w.State(), keys)
	for _, p := range out.Pods {
		if out.Placed && p.Outcome == Placed {
			name, ok := of(w.State().Nodes.ByName(p.Node))
			if !ok {
				name = "-"
			}
			in[name] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(in)), " ")
}

func TestAGroupThatPrefersATopologyGoesToTheFewestOfItsDomains(t *testing.T) {
	hierarchy := []string{hallKey, blockKey, rackKey}
	// Each rack of hall 1 takes 4 pods, one of block c 5; hall 2 has one block with one rack of 6 pods; n9 is in none.
	nodes := []source.Event{
		at("n1", "1/a/r1", 4), at("n2", "1/a/r2", 4), at("n3", "1/b/r1", 4), at("n4", "1/b/r2", 4), at("n5", "1/c/r1", 5), at("n6", "1/c/r2", 4), at("n7", "2/d/r1", 3), at("n8", "2/d/r1", 3), at("n9", "-/-/-", 2),
	}
	on1 := func(name, node string) source.Event { return setPod(on(ofGroup(aPod(name, 1000), "g"), node)) }
	for _, test := range []struct {
		name   string
		group  cluster.PodGroup
		pods   int
		more   []source.Event
		racks  string
		why    string
		domain string
	}{
		{"one rack, the one that is full then", cluster.PodGroup{MinCount: 5, Preferred: hierarchy}, 5, nil, "1/c/r1", "", ""},
		{"one rack, though others are fuller together", cluster.PodGroup{MinCount: 6, Preferred: hierarchy}, 6, nil, "2/d/r1", "", ""},
		{"two racks of a block, the one that is full then", cluster.PodGroup{MinCount: 8, Preferred: hierarchy}, 8, nil, "1/a/r1 1/a/r2", "", ""},
		{"two racks of the only block", cluster.PodGroup{MinCount: 9, Preferred: hierarchy}, 9, nil, "1/c/r1 1/c/r2", "", ""},
		{"two blocks of a hall, and of these no more racks than it takes", cluster.PodGroup{MinCount: 12, Preferred: hierarchy}, 12, nil, "1/a/r1 1/a/r2 1/c/r1", "", ""},
		{"two halls, and of these the racks that take most", cluster.PodGroup{MinCount: 27, Preferred: hierarchy}, 27, nil, "1/a/r1 1/a/r2 1/b/r1 1/b/r2 1/c/r1 2/d/r1", "", ""},
		{"all there is, what has no labels last", cluster.PodGroup{MinCount: 33, Preferred: hierarchy}, 33, nil, "- 1/a/r1 1/a/r2 1/b/r1 1/b/r2 1/c/r1 1/c/r2 2/d/r1", "", ""},
		{"as many as can be placed count, not as many as it wants", cluster.PodGroup{MinCount: 4, Preferred: hierarchy}, 8, nil, "1/a/r1 1/a/r2", "", ""},
		{"one rack is not asked for: any block will do", cluster.PodGroup{MinCount: 8, Preferred: []string{hallKey, blockKey}}, 8, nil, "1/a/r1 1/a/r2", "", ""},
		{"within the hall that it requires", cluster.PodGroup{MinCount: 5, Topology: []string{hallKey}, Preferred: []string{blockKey, rackKey}}, 9, nil, "1/c/r1 1/c/r2", "", "1"},
		{"it may require what takes fewer than are anywhere", cluster.PodGroup{MinCount: 5, Topology: []string{rackKey}, Preferred: []string{blockKey}}, 5, nil, "1/c/r1", "", "r1"},
		{"where pods of it are", cluster.PodGroup{MinCount: 2, Preferred: hierarchy}, 2, []source.Event{on1("x", "n3")}, "1/b/r1", "", ""},
		{"in the block where pods of it are", cluster.PodGroup{MinCount: 2, Preferred: hierarchy}, 4, []source.Event{on1("x", "n3")}, "1/b/r1 1/b/r2", "", ""},
		{"in the hall where pods of it are, in their racks first", cluster.PodGroup{MinCount: 2, Preferred: hierarchy}, 4, []source.Event{on1("x", "n3"), on1("y", "n1")}, "1/a/r1 1/b/r1", "", ""},
		{"wherever, when a pod of it is on a node without labels", cluster.PodGroup{MinCount: 2, Preferred: hierarchy}, 6, []source.Event{on1("x", "n9")}, "2/d/r1", "", ""},
		{"no node has the labels", cluster.PodGroup{MinCount: 3, Preferred: []string{"example.com/none"}}, 3, nil, "1/a/r1 1/b/r1 1/c/r1", "", ""},
		{"it does not fit", cluster.PodGroup{MinCount: 35, Preferred: hierarchy}, 35, nil, "", "pod group is unschedulable: 33 of at least 35 pods fit", ""},
		{"it does not fit where it has to be", cluster.PodGroup{MinCount: 26, Topology: []string{hallKey}, Preferred: hierarchy}, 26, nil, "", "0/2 placements are available, the best: pod group is unschedulable: 25 of at least 26 pods fit in 1", "1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := sandbox(t, slices.Concat(nodes, gangOf(test.group, test.pods), test.more)...)
			together(t, s, func(w *World, out GroupOutcome) {
				racks := racksOf(w, out, hierarchy...)
				if test.name == "no node has the labels" { // it is placed as any gang
					if len(strings.Fields(racks)) == 0 {
						t.Error("it is not placed")
					}
					return
				}
				if racks != test.racks || out.Message != test.why || out.Domain != test.domain {
					t.Errorf("in %s (domain %q, %q), want %s (%q, %q)", racks, out.Domain, out.Message, test.racks, test.domain, test.why)
				}
				placed := 0
				for _, p := range out.Pods {
					if w.State().Pod(p.Pod).Phase == cluster.Assumed {
						placed++
					}
				}
				if test.why == "" && placed != test.pods || test.why != "" && placed > 0 {
					t.Errorf("%d pods are placed", placed)
				}
			})
		})
	}
}

// TestHowManyDomainsTakeAGroupIsFoundOutWhereRequestsDoNotTell has racks of cordoned nodes, which would take most.
func TestHowManyDomainsTakeAGroupIsFoundOutWhereRequestsDoNotTell(t *testing.T) {
	var events []source.Event
	for k := range 8 {
		events = append(events, at(fmt.Sprint("n", k), fmt.Sprint("1/a/r", k), 1+min(k, 1)))
		cordoned := at(fmt.Sprint("c", k), fmt.Sprint("1/a/c", k), 6)
		cordoned.Node.Unschedulable = true
		events = append(events, cordoned)
	}
	events = append(events, at("m0", "1/b/r0", 3), at("m1", "1/b/r1", 3))
	for pods, want := range map[int]string{3: "1/b/r0", 6: "1/b/r0 1/b/r1", 7: "1/a/r1 1/a/r2 1/a/r3 1/a/r4", 9: "1/a/r1 1/a/r2 1/a/r3 1/a/r4 1/a/r5", 15: "1/a/r0 1/a/r1 1/a/r2 1/a/r3 1/a/r4 1/a/r5 1/a/r6 1/a/r7"} {
		s := sandbox(t, slices.Concat(events, gangOf(cluster.PodGroup{MinCount: 3, Preferred: []string{blockKey, rackKey}}, pods))...)
		together(t, s, func(w *World, out GroupOutcome) {
			if got := racksOf(w, out, hallKey, blockKey, rackKey); got != want {
				t.Errorf("%d pods are in %s, want %s", pods, got, want)
			}
		})
	}
}

// TestAGroupIsPlacedHoweverEarlyThePreferenceIsGivenUp has the search end after each number of looks at nodes.
func TestAGroupIsPlacedHoweverEarlyThePreferenceIsGivenUp(t *testing.T) {
	var events []source.Event
	for k := range 24 {
		events = append(events, at(fmt.Sprintf("n%02d", k), fmt.Sprintf("%d/%d/%d", k/12, k/6, k/2), 1+k%3))
	}
	s := sandbox(t, append(events, gangOf(cluster.PodGroup{MinCount: 14, Preferred: []string{hallKey, blockKey, rackKey}}, 14)...)...)
	last, seen := "", make(map[string]bool)
	for looks := 0; looks < 12_000; looks += 100 {
		try(t, s, func(w *World) error {
			tried := trial{w: w, key: groupKey("g"), group: w.State().PodGroup(groupKey("g")), pods: ids(w.State(), "g"), wants: 14}
			out, ok, err := tried.nearby(looks)
			switch {
			case ok && (!out.Placed || out.Fit != 14):
				t.Errorf("with %d looks %d pods are placed", looks, out.Fit)
			case !ok && (looks > 10_000 || last != ""):
				t.Errorf("with %d looks there is no preference, with fewer there was", looks)
			case ok:
				last = racksOf(w, out, hallKey, blockKey, rackKey)
				seen[last] = true
			}
			return err
		})
	}
	if want := 3; len(strings.Fields(last)) != want || len(seen) < 2 {
		t.Errorf("in the end they are in %s; there were %d ways, want racks %d, and more ways than one", last, len(seen), want)
	}
}

// TestAGroupThatHasPreemptedGoesWhereOthersHaveGoneForIt though another rack would be nearer.
func TestAGroupThatHasPreemptedGoesWhereOthersHaveGoneForIt(t *testing.T) {
	events := []source.Event{at("n1", "1/a/r1", 1), at("n2", "1/b/r1", 1), at("n3", "1/c/r1", 4), setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2, Preferred: []string{blockKey}})}
	for k, node := range []string{"n1", "n2"} {
		p := ofGroup(aPod(fmt.Sprint("p", k), 1000), "g")
		p.Nominated = node
		events = append(events, setPod(p))
	}
	if got := where(together(t, sandbox(t, events...), nil)); got != "n1 n2" {
		t.Errorf("they are on %s, not on their nodes", got)
	}
}

// TestAPreferenceCostsNoGroupItsPlace compares with the same group without a preference, whatever its pods are, and with another number of workers: all that are placed without it are with it, at the same places each time.
func TestAPreferenceCostsNoGroupItsPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		intn := draws(t)
		var events []source.Event
		label := func(n int) string { return [...]string{"-", "a", "b", "c"}[intn(n)] }
		for k := range 1 + intn(10) {
			events = append(events, at(fmt.Sprint("n", k), "h/"+label(3)+"/"+label(4), 1+intn(4)))
		}
		for k := range 1 + intn(8) {
			p := randomPod(intn, fmt.Sprint("p", k))
			p.NodeName, p.Nominated, p.Created = "", "", int64(1+k)
			events = append(events, setPod(ofGroup(p, "g")))
		}
		group := cluster.PodGroup{Name: "g", Gang: intn(2) > 0, MinCount: int32(1 + intn(4))}
		if intn(3) == 0 {
			group.Topology = []string{blockKey}
		}
		ask := func(parallelism int, preferred ...string) (out GroupOutcome) {
			group.Preferred = preferred
			s := sandbox(t, append(slices.Clone(events), setGroup(group))...)
			s.evaluator = engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: parallelism})
			before := s.state.Digest()
			if err := s.Try(t.Context(), func(w *World) (err error) {
				if waiting := ids(w.State(), "g"); len(waiting) > 0 {
					out, err = PlaceGroup(w, groupKey("g"), waiting)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if s.state.Digest() != before {
				t.Error("the sandbox is not as it was")
			}
			return out
		}
		without, with := ask(1), ask(1, hallKey, blockKey, rackKey)
		if with.Placed != without.Placed || with.Fit < without.Fit {
			t.Errorf("with a preference %d pods fit (placed %v), without %d (%v)", with.Fit, with.Placed, without.Fit, without.Placed)
		}
		if again := ask(4, hallKey, blockKey, rackKey); where(again) != where(with) {
			t.Errorf("with four workers they are on %s, with one on %s", where(again), where(with))
		}
	})
}

// fewestOf returns, by trying all subsets, how many of some parts take so many pods together, besides those that are free of charge; one more than there are if they do not.
func fewestOf(free int, parts []int, pods int) int {
	best := len(parts) + 1
	for set := range 1 << len(parts) {
		sum := free
		for k, takes := range parts {
			if set>>k&1 > 0 {
				sum += takes
			}
		}
		if sum >= pods {
			best = min(best, bits.OnesCount(uint(set)))
		}
	}
	return best
}

// TestEqualPodsAreInTheFewestDomainsThereAre compares with a model that tries every set of racks, and of blocks.
func TestEqualPodsAreInTheFewestDomainsThereAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		intn := draws(t)
		type where struct{ block, rack string }
		room, members := make(map[where]int), make(map[where]int)
		at2 := make(map[string]where)
		var events []source.Event
		free, waiting := 0, 1+intn(12)
		for k := range 1 + intn(9) {
			block, rack, takes := [...]string{"a", "b", "c", "-"}[intn(4)], [...]string{"r", "s", "u", "-"}[intn(4)], intn(4)
			if block == "-" {
				rack = "-"
			}
			name, in := fmt.Sprint("n", k), where{block, rack}
			at2[name] = in
			events = append(events, at(name, "h/"+block+"/"+rack, takes))
			if intn(6) == 0 { // by what pods request alone, it would take some
				events[len(events)-1].Node.Unschedulable = true
				takes = 0
			}
			if takes > 0 && intn(6) == 0 {
				events = append(events, setPod(on(ofGroup(aPod(fmt.Sprint("m", k), 1000), "g"), name)))
				members[in]++
				takes--
			}
			room[in] += takes
			free += takes
		}
		group := cluster.PodGroup{MinCount: int32(1 + intn(6)), Preferred: []string{blockKey, rackKey}}
		s := sandbox(t, append(events, gangOf(group, waiting)...)...)
		var out GroupOutcome
		if err := s.Try(t.Context(), func(w *World) (err error) {
			out, err = PlaceGroup(w, groupKey("g"), ids(w.State(), "g"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		pods, had := min(waiting, free), 0
		for _, n := range members {
			had += n
		}
		if wants := int(group.MinCount); out.Placed != (pods > 0 && had+pods >= wants) || out.Placed && out.Fit != had+pods {
			t.Fatalf("placed %v, %d fit; %d can be, beside %d, of %d", out.Placed, out.Fit, pods, had, wants)
		}
		if !out.Placed {
			return
		}
		// 1. Which racks and blocks are used, besides those where pods are already?
		blocks, racks := make(map[string]bool), make(map[where]bool)
		for _, p := range out.Pods {
			if p.Outcome == Placed {
				blocks[at2[p.Node].block], racks[at2[p.Node]] = true, true
			}
		}
		newOf := func() (n int) { // what lacks the label counts as one
			lacking := 0
			for r := range racks {
				switch {
				case r.rack == "-":
					lacking = 1
				case members[r] == 0:
					n++
				}
			}
			return n + lacking
		}
		all := func(in func(where) bool) bool { // the pods that are on nodes are
			for r := range members {
				if !in(r) {
					return false
				}
			}
			return true
		}
		// fewest is over the racks of some blocks.
		fewest := func(of func(block string) bool) int {
			sum, others := 0, []int(nil)
			for r, takes := range room {
				switch {
				case !of(r.block) || r.rack == "-":
				case members[r] > 0:
					sum += takes
				default:
					others = append(others, takes)
				}
			}
			return fewestOf(sum, others, pods)
		}
		// 2. Could it be one rack?
		for r, takes := range room {
			if r.rack != "-" && takes >= pods && all(func(m where) bool { return m == r }) {
				if len(racks) != 1 || racks[where{rack: "-"}] {
					t.Fatalf("%v take them, but %s would", racks, r)
				}
				return
			}
		}
		// 3. Or one block, and how many racks of which?
		ofBlock := make(map[string]int)
		for r, takes := range room {
			ofBlock[r.block] += takes
		}
		least := -1
		for b, takes := range ofBlock {
			if b != "-" && takes >= pods && all(func(m where) bool { return m.block == b }) {
				if k := fewest(func(of string) bool { return of == b }); least < 0 || k < least {
					least = k
				}
			}
		}
		if least >= 0 {
			if len(blocks) != 1 || newOf() > least {
				t.Fatalf("%v take them, where %d racks of a block would", racks, least)
			}
			return
		}
		// 4. How many blocks, and how many racks of these?
		sum, others, here := 0, []int(nil), make(map[string]bool)
		for m := range members {
			if m.block != "-" {
				here[m.block] = true
			}
		}
		for b, takes := range ofBlock {
			switch {
			case here[b]:
				sum += takes
			case b != "-":
				others = append(others, takes)
			}
		}
		used := 0
		for b := range blocks {
			if !here[b] {
				used++
			}
		}
		k := fewestOf(sum, others, pods)
		if used > k {
			t.Fatalf("%v take them, where %d blocks more than %v would", blocks, k, here)
		}
		if racksOf := fewest(func(b string) bool { return blocks[b] || here[b] }); !blocks["-"] && newOf() > racksOf {
			t.Fatalf("%v take them, where %d racks would", racks, racksOf)
		}
	})
}

// BenchmarkPlacePreferred places gangs on nodes in blocks of 20 racks of 5 nodes, which they prefer: where each rack takes the gang, where no rack does but each block, and where it takes several blocks.
func BenchmarkPlacePreferred(b *testing.B) {
	for _, bench := range []struct {
		name  string
		nodes int
		pods  int
		cpu   int64 // of nodes of 8 CPUs
	}{{"one rack", 5000, 64, 500}, {"one block", 5000, 64, 8000}, {"two blocks", 5000, 128, 8000}, {"two blocks", 100_000, 128, 8000}, {"twelve blocks", 100_000, 1200, 8000}} {
		b.Run(fmt.Sprintf("%s/nodes=%d/pods=%d", strings.ReplaceAll(bench.name, " ", "-"), bench.nodes, bench.pods), func(b *testing.B) {
			events := []source.Event{setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: int32(bench.pods), Preferred: []string{blockKey, rackKey}})}
			for k := range bench.nodes {
				n := inRack(fmt.Sprint("node-", k), fmt.Sprint("rack-", k/5%20), 8000)
				n.Labels = append([]cluster.Label{{Key: blockKey, Value: fmt.Sprint("block-", k/100)}}, n.Labels...)
				n.Allocatable[2].Value = 110
				events = append(events, setNode(n))
			}
			for k := range bench.pods {
				events = append(events, setPod(ofGroup(aPod(fmt.Sprint("p", k), bench.cpu), "g")))
			}
			s := sandbox(b, events...)
			for b.Loop() {
				if out := together(b, s, nil); !out.Placed {
					b.Fatal(out.Message)
				}
			}
		})
	}
}
