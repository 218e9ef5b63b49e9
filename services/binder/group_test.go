package binder

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/whatif"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/test/bubble"
)

// ofGroup makes a pod one of a PodGroup.
func ofGroup(p source.Pod, group string) source.Pod {
	p.Group = group
	return p
}

func gangSet(name string, minCount int32) source.Event {
	return source.Event{Kind: source.ObjectSet, Object: &cluster.PodGroup{Namespace: "default", Name: name, Gang: true, MinCount: minCount}}
}

// together places pods of the group g as PlaceGroup does, and returns what becomes of each, and what is said of the group.
func together(t testing.TB, term *term, attempt int32, uids ...string) (outcomes, message string, placed []*placement) {
	t.Helper()
	req := &binderv1.PlaceGroupRequest{Namespace: "default", Name: "g"}
	for _, uid := range uids {
		id := cluster.NoPod
		term.ledger.read(func(st *cluster.State) {
			if known, ok := st.PodByUID(uid); ok {
				id = known
			}
		})
		req.Pods = append(req.Pods, &binderv1.PodAttempt{Id: int32(id), Uid: uid, Attempt: attempt})
	}
	g := &grouped{key: cluster.GroupKey{Namespace: "default", Name: "g"}, req: req}
	leave, err := term.groups.take(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	if placed, err = term.tryAndPlace(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if err := term.preemptForGroup(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range g.resp.GetPods() {
		out = append(out, resultText(p.GetOutcome().GetResult()))
		if p.GetError() != "" {
			message = p.GetError()
		}
	}
	if g.resp.GetMessage() != "" {
		message = g.resp.GetMessage()
	}
	return strings.Join(out, " "), message, placed
}

// phases returns where pods are.
func phases(term *term, uids ...string) string {
	var out []string
	term.ledger.read(func(st *cluster.State) {
		for _, uid := range uids {
			out = append(out, phaseOf(st, uid))
		}
	})
	return strings.Join(out, ", ")
}

func TestAGangIsPlacedInOneTransactionOrNotAtAll(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), node("b", 1000), gangSet("g", 3))
	for _, uid := range []string{"p", "q", "r"} {
		observe(t, term, ofGroup(pod(uid, 1000), "g"))
	}
	// 1. Two of three would fit.
	before := term.feed.Head()
	outcomes, message, placed := together(t, term, 1, "p", "q", "r")
	if want := "no fit no fit no fit"; outcomes != want || len(placed) > 0 {
		t.Errorf("a gang that does not fit: %s, want %s", outcomes, want)
	}
	if want := "pod group is unschedulable: 2 of at least 3 pods fit, No preemption victims found for incoming preemptor"; message != want {
		t.Errorf("it is said %q, want %q", message, want)
	}
	if head := term.feed.Head(); head != before || len(term.recorder.waiting) > 0 {
		t.Errorf("the log has gone from %v to %v, and %d wait to be recorded", before, head, len(term.recorder.waiting))
	}
	// 2. With one more node all are placed, in one transaction.
	observe(t, term, node("c", 1000))
	before = term.feed.Head()
	outcomes, message, placed = together(t, term, 1, "p", "q", "r")
	if want := "assumed assumed assumed"; outcomes != want || message != "" || len(placed) != 3 {
		t.Errorf("a gang that fits: %s, %q, %d placed; want %s", outcomes, message, len(placed), want)
	}
	if head := term.feed.Head(); head.Seq != before.Seq+3 || !slices.Equal(term.recorder.waiting, placed) {
		t.Errorf("the log has gone from %v to %v, and %v are to be recorded, want %v", before, head, term.recorder.waiting, placed)
	}
	// 3. Asked again, it is as it was.
	before = term.feed.Head()
	if outcomes, _, placed = together(t, term, 1, "p", "q", "r"); outcomes != "already placed already placed already placed" || len(placed) > 0 || term.feed.Head() != before {
		t.Errorf("asked again: %s, and the log has gone from %v to %v", outcomes, before, term.feed.Head())
	}
}

// TestWhatIsFoundForAGangHoldsWhenItIsPlaced has the cluster change each time that a gang has been tried: it is placed by what there is in the end.
func TestWhatIsFoundForAGangHoldsWhenItIsPlaced(t *testing.T) {
	for changes := range triesAside + 1 {
		t.Run(fmt.Sprint(changes), func(t *testing.T) {
			term := pureTerm(t, newFakeSource())
			observe(t, term, node("a", 2000), gangSet("g", 2), ofGroup(pod("p", 1000), "g"), ofGroup(pod("q", 1000), "g"), on(pod("x", 0), "elsewhere"))
			tried := 0
			term.groups.tried = func() {
				if tried++; tried > changes {
					return
				}
				// What is nothing to anybody is not waited for; what takes the room is.
				observe(t, term, pod(fmt.Sprint("new-", tried), 100), node(fmt.Sprint("b-", tried), 2000), on(pod(fmt.Sprint("y-", tried), 500), "a"))
			}
			outcomes, message, _ := together(t, term, 1, "p", "q")
			if outcomes != "assumed assumed" || message != "" {
				t.Fatalf("%s, %q", outcomes, message)
			}
			if want := min(changes+1, triesAside); tried != want {
				t.Errorf("tried %d times beside others, want %d", tried, want)
			}
			term.ledger.read(func(st *cluster.State) {
				for i := range cluster.NodeIndex(st.Nodes.Len()) {
					if has, wants := st.Nodes.Allocatable[cluster.CPU][i], st.Nodes.Requested[cluster.CPU][i]; wants > has {
						t.Errorf("%s has %d, and %d are requested", st.Nodes.Spec[i].Name, has, wants)
					}
				}
			})
		})
	}
}

// TestAPreferenceIsFollowedAsItIsWhenTheGangIsPlaced has the group prefer racks when it has been tried, or the cluster change each time: then its pods go where they fit still.
func TestAPreferenceIsFollowedAsItIsWhenTheGangIsPlaced(t *testing.T) {
	const rack = "example.com/rack"
	preferring := source.Event{Kind: source.ObjectSet, Object: &cluster.PodGroup{Namespace: "default", Name: "g", Gang: true, MinCount: 2, Preferred: []string{rack}}}
	in := func(name, value string) cluster.Node {
		n := node(name, 1000)
		n.Labels = []cluster.Label{{Key: rack, Value: value}}
		return n
	}
	for _, test := range []struct {
		name  string
		group source.Event
		hook  func(tried int) []any
		tried int
		want  string
	}{
		{"it has come to prefer racks", gangSet("g", 2), func(tried int) []any {
			if tried == 1 {
				return []any{preferring}
			}
			return nil
		}, 2, "assumed assumed"},
		{"it has come to prefer racks when it was tried last", gangSet("g", 2), func(tried int) []any {
			if tried == triesAside {
				return []any{preferring}
			}
			return []any{on(pod(fmt.Sprint("y-", tried), 100), "r1-a")}
		}, triesAside, "retry retry"},
		{"something changes each time", preferring, func(tried int) []any {
			return []any{on(pod(fmt.Sprint("y-", tried), 100), "r1-a")}
		}, triesAside, "assumed assumed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			term := pureTerm(t, newFakeSource())
			for k := range 6 { // each rack of one node, but for the last
				observe(t, term, in(fmt.Sprintf("r%d-a", k), fmt.Sprint("r", k)))
			}
			observe(t, term, in("r5-b", "r5"), on(pod("x", 100), "elsewhere"), test.group, ofGroup(pod("p", 1000), "g"), ofGroup(pod("q", 1000), "g"))
			tried := 0
			term.groups.tried = func() {
				tried++
				observe(t, term, test.hook(tried)...)
			}
			if outcomes, message, _ := together(t, term, 1, "p", "q"); outcomes != test.want || tried != test.tried {
				t.Fatalf("%s, %q, after %d tries; want %s after %d", outcomes, message, tried, test.want, test.tried)
			} else if test.want != "assumed assumed" {
				return
			}
			term.ledger.read(func(st *cluster.State) {
				for _, uid := range []string{"p", "q"} {
					id, _ := st.PodByUID(uid)
					if on := st.Pod(id).NodeName; !strings.HasPrefix(on, "r5-") {
						t.Errorf("%s is on %s", uid, on)
					}
				}
			})
		})
	}
}

func TestWhatDoesNotMatterToAGangDoesNotHaveItTriedAgain(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 2000), gangSet("g", 1), ofGroup(pod("p", 1000), "g"))
	tried := 0
	term.groups.tried = func() {
		tried++
		observe(t, term, pod("another", 100), gone("another"))
	}
	if outcomes, _, _ := together(t, term, 1, "p"); outcomes != "assumed" || tried != 1 {
		t.Errorf("%s behind %d tries, want one", outcomes, tried)
	}
}

func TestPodsOfAGroupThatMayNotBePlacedSayWhy(t *testing.T) {
	term := pureTerm(t, newFakeSource(), func(c *termConfig) {
		c.Settings.Profiles = append(slices.Clone(c.Settings.Profiles), engine.DefaultProfile("another"))
	})
	other := ofGroup(pod("q", 100), "g")
	other.Class.SchedulerName = "another"
	observe(t, term, node("a", 2000), gangSet("g", 1), ofGroup(pod("p", 1000), "g"), other, pod("alone", 100))
	for _, test := range []struct{ name, uids, want, why string }{
		{"one is of no group", "alone", "gone", ""},
		{"one does not exist", "none", "gone", ""},
		{"two schedulers", "p q", "result 9 result 9", `all pods in a single pod group should have the same .spec.schedulerName set, got: "` + scheduler + `" and "another"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, why, _ := together(t, term, 1, strings.Fields(test.uids)...); got != test.want || why != test.why {
				t.Errorf("%s, %q; want %s, %q", got, why, test.want, test.why)
			}
		})
	}
	observe(t, term, source.Event{Kind: source.ObjectGone, Key: cluster.ObjectKey{Kind: cluster.PodGroupKind, Namespace: "default", Name: "g"}})
	if got, _, _ := together(t, term, 1, "p"); got != "gone" {
		t.Errorf("of a group that is gone: %s", got)
	}
}

// TestAGangPreemptsWithOneOfItsPods has victims on two nodes, and asks again before they have gone.
func TestAGangPreemptsWithOneOfItsPods(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), node("b", 1000), on(pod("v", 1000), "a"), on(pod("w", 1000), "b"), gangSet("g", 2),
		prior(ofGroup(pod("p", 1000), "g"), 10), prior(ofGroup(pod("q", 1000), "g"), 10))
	outcomes, message, _ := together(t, term, 1, "p", "q")
	if outcomes != "no fit no fit" || message != groupWaits {
		t.Errorf("%s, %q; want no fit, and that it waits", outcomes, message)
	}
	check := func() {
		t.Helper()
		term.ledger.read(func(st *cluster.State) {
			preempting, nominated := 0, make(map[string]bool)
			for _, uid := range []string{"p", "q"} {
				id, _ := st.PodByUID(uid)
				row := st.Pod(id)
				nominated[row.Nominated] = true
				if row.Preempting {
					preempting++
				}
			}
			if preempting != 1 || !nominated["a"] || !nominated["b"] {
				t.Errorf("%d of the gang preempt, and it is nominated to %v; want one, and both nodes", preempting, nominated)
			}
			for _, uid := range []string{"v", "w"} {
				if id, _ := st.PodByUID(uid); !st.Pod(id).Victim {
					t.Errorf("%s is no victim", uid)
				}
			}
		})
	}
	check()
	before := term.feed.Head()
	if outcomes, message, _ = together(t, term, 1, "p", "q"); outcomes != "no fit no fit" || message != groupWaits || term.feed.Head() != before {
		t.Errorf("asked again: %s, %q, and the log has gone from %v to %v", outcomes, message, before, term.feed.Head())
	}
	check()
	if n := term.preempting.count(); n != 1 {
		t.Errorf("%d preemptions are under way, want one", n)
	}
}

// TestNobodyGoesForAGangThatHasNoUseForIt has room for one of two if others go.
func TestNobodyGoesForAGangThatHasNoUseForIt(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), on(pod("v", 1000), "a"), gangSet("g", 2),
		prior(ofGroup(pod("p", 1000), "g"), 10), prior(ofGroup(pod("q", 1000), "g"), 10))
	before := term.feed.Head()
	_, message, _ := together(t, term, 1, "p", "q")
	if want := "pod group is unschedulable: 0 of at least 2 pods fit, Preemption is not helpful for scheduling"; message != want || term.feed.Head() != before {
		t.Errorf("%q, and the log has gone from %v to %v; want %q", message, before, term.feed.Head(), want)
	}
}

// TestAGroupThatIsLargerThanWhatMayWaitIsPlacedWhenNothingWaits: else it never would be.
func TestAGroupThatIsLargerThanWhatMayWaitIsPlacedWhenNothingWaits(t *testing.T) {
	term := pureTerm(t, newFakeSource(), unboundAtMost(2), inPlaces(1))
	if !term.roomForGroup(map[string]int{"default": 5}) {
		t.Fatal("there is no room though nothing waits")
	}
	if term.roomForGroup(map[string]int{"default": 1}) {
		t.Error("there is room behind it")
	}
	term.unbound.giveAll(map[string]int{"default": 5})
	if !term.roomForGroup(map[string]int{"default": 1}) {
		t.Error("there is none when it is bound")
	}
}

// TestACopyThatHasMissedTooMuchIsMadeAnew has more happen than is kept for it.
func TestACopyThatHasMissedTooMuchIsMadeAnew(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 3000), gangSet("g", 1), ofGroup(pod("p", 1000), "g"), ofGroup(pod("q", 1000), "g"))
	if outcomes, _, _ := together(t, term, 1, "p"); outcomes != "assumed" {
		t.Fatal(outcomes)
	}
	if term.groups.sandbox == nil {
		t.Fatal("there is no copy")
	}
	if err := term.ledger.update(func(tx *tx) error {
		for range mostTrail + 2 {
			if err := tx.apply(cluster.NodeTouched{}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if term.groups.sandbox != nil || len(term.ledger.trail.deltas) > 0 {
		t.Error("the copy is kept, or what it has missed")
	}
	if outcomes, _, _ := together(t, term, 1, "q"); outcomes != "assumed" {
		t.Error(outcomes)
	}
}

// TestAPodOfAGangThatChangesWhileItIsTriedIsNotPlacedAsItWas: its id may even be another pod's by then.
func TestAPodOfAGangThatChangesWhileItIsTriedIsNotPlacedAsItWas(t *testing.T) {
	for name, test := range map[string]struct {
		change []any
		want   string
	}{
		"it is gone":               {[]any{gone("q")}, "no fit gone"},
		"another one has its id":   {[]any{gone("q"), pod("large", 9000)}, "no fit gone"},
		"it is being deleted":      {[]any{func() source.Pod { p := ofGroup(pod("q", 1000), "g"); p.Deleting = true; return p }()}, "no fit gone"},
		"it has got larger":        {[]any{ofGroup(pod("q", 9000), "g")}, "no fit no fit"},
		"it is of no group":        {[]any{pod("q", 1000)}, "no fit gone"},
		"it is of the group still": {[]any{func() source.Pod { p := ofGroup(pod("q", 1000), "g"); p.Started = 7; return p }()}, "assumed assumed"},
	} {
		t.Run(name, func(t *testing.T) {
			term := pureTerm(t, newFakeSource())
			observe(t, term, node("a", 2000), gangSet("g", 2), ofGroup(pod("p", 1000), "g"), ofGroup(pod("q", 1000), "g"))
			done := false
			term.groups.tried = func() {
				if !done {
					done = true
					observe(t, term, test.change...)
				}
			}
			if got, why, _ := together(t, term, 1, "p", "q"); got != test.want {
				t.Errorf("%s (%s), want %s", got, why, test.want)
			}
			if got := phases(term, "large"); strings.Contains(got, "assumed") {
				t.Errorf("a pod that was not tried is %s", got)
			}
		})
	}
}

// TestAGangThatWaitsForItsVictimsKeepsItsNominations has one that has not left yet.
func TestAGangThatWaitsForItsVictimsKeepsItsNominations(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	nominated := func(name, node string) source.Pod {
		p := prior(ofGroup(pod(name, 1000), "g"), 10)
		p.Nominated = node
		return p
	}
	leaves := on(pod("v", 1000), "a")
	leaves.Deleting, leaves.Preempted = true, true
	observe(t, term, node("a", 1000), node("b", 1000), leaves, on(pod("w", 1000), "c"), gangSet("g", 2), nominated("p", "a"), nominated("q", "b"))
	req := &binderv1.PlaceGroupRequest{Namespace: "default", Name: "g"}
	term.ledger.read(func(st *cluster.State) {
		for _, uid := range []string{"p", "q"} {
			id, _ := st.PodByUID(uid)
			req.Pods = append(req.Pods, &binderv1.PodAttempt{Id: int32(id), Uid: uid, Attempt: 1})
		}
	})
	g := &grouped{key: cluster.GroupKey{Namespace: "default", Name: "g"}, req: req}
	if _, err := term.tryAndPlace(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if err := term.preemptForGroup(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if !g.resp.GetWaits() || g.resp.GetPreempts() {
		t.Errorf("it waits: %v, preempts: %v; want that it waits", g.resp.GetWaits(), g.resp.GetPreempts())
	}
}

// TestAGangThatDoesNotFitTakesNothingOfWhatMayWait: others would be kept from it.
func TestAGangThatDoesNotFitTakesNothingOfWhatMayWait(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), gangSet("g", 2), ofGroup(pod("p", 1000), "g"), ofGroup(pod("q", 1000), "g"))
	together(t, term, 1, "p", "q")
	if n := term.unbound.count(); n != 0 {
		t.Errorf("%d are taken", n)
	}
	observe(t, term, node("b", 1000))
	together(t, term, 1, "p", "q")
	if n := term.unbound.count(); n != 2 {
		t.Errorf("%d are taken of two that are placed", n)
	}
}

// TestAPodThatComesLateToAGangPreempts: enough of the others have nodes.
func TestPodsBeyondWhatAGangWantsPreemptWhenItIsPlaced(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), node("b", 1000), on(pod("v", 1000), "b"), gangSet("g", 1))
	for _, uid := range []string{"p", "q"} {
		observe(t, term, prior(ofGroup(pod(uid, 1000), "g"), 10))
	}
	if outcomes, _, placed := together(t, term, 1, "p", "q"); outcomes != "assumed retry" || len(placed) != 1 {
		t.Errorf("a gang of which one more fits: %s, %d placed; want assumed retry, for nobody may know yet who could go for the second", outcomes, len(placed))
	}
	if outcomes, message, _ := together(t, term, 2, "q"); outcomes != "no fit" || message != groupWaits {
		t.Errorf("the one that is left: %s, %q; want %q", outcomes, message, groupWaits)
	}
}

func TestAPodThatComesLateToAGangPreempts(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), node("b", 1000), on(ofGroup(pod("p", 1000), "g"), "a"), on(pod("v", 1000), "b"), gangSet("g", 1), prior(ofGroup(pod("q", 1000), "g"), 10))
	if got, message, _ := together(t, term, 1, "q"); got != "no fit" || message != groupWaits {
		t.Errorf("%s, %q; want that it waits", got, message)
	}
}

// TestGroupsHaveTheTurnByPriorityAndThenInTheOrderInWhichTheyCome, and who gives up keeps nobody from it, nor who has it given as it gives up.
func TestGroupsHaveTheTurnByPriorityAndThenInTheOrderInWhichTheyCome(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newGroups(1, 0)
		leave, err := g.take(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		impatient, giveUp := context.WithCancel(t.Context())
		var order []int // under the turn
		var all sync.WaitGroup
		for i, priority := range []int32{5, 9, 5, 5, 7} {
			ctx := t.Context()
			if i == 1 || i == 2 {
				ctx = impatient
			}
			all.Go(func() {
				leave, err := g.take(ctx, priority)
				if err != nil {
					return
				}
				order = append(order, i)
				leave()
			})
			synctest.Wait()
		}
		giveUp()
		synctest.Wait()
		if g.turns.try() {
			t.Error("two have the turn")
		}
		leave()
		all.Wait()
		if want := []int{4, 0, 3}; !slices.Equal(order, want) {
			t.Errorf("they have it as %v, want %v", order, want)
		}
		// The turn has come, and is not wanted any more.
		given := g.turns.enter(0)
		g.turns.giveUp(given)
		if !g.turns.try() {
			t.Error("nobody has the turn, and it cannot be taken")
		}
	})
}

// TestWhoIsFoundForAGangGoesIfThatIsSoStill has the cluster change each time that somebody has been found who could go for a gang: nobody goes if it fits without.
func TestWhoIsFoundForAGangGoesIfThatIsSoStill(t *testing.T) {
	for changes := range triesAside + 1 {
		for _, fits := range []bool{false, true} {
			t.Run(fmt.Sprint(changes, fits), func(t *testing.T) {
				term := pureTerm(t, newFakeSource())
				observe(t, term, node("a", 1000), node("b", 1000), on(pod("v", 1000), "a"), on(pod("w", 1000), "b"), gangSet("g", 2), prior(ofGroup(pod("p", 1000), "g"), 10), prior(ofGroup(pod("q", 1000), "g"), 10))
				tried := 0
				term.groups.tried = func() {
					if tried++; tried > changes {
						return
					}
					observe(t, term, node(fmt.Sprint("small-", tried), 100)) // of no use
					if fits && tried == changes {
						observe(t, term, node("c", 2000))
					}
				}
				outcomes, message, _ := together(t, term, 1, "p", "q")
				want, why := "no fit no fit", groupWaits
				switch {
				case fits && changes == triesAside: // it is found so the next time
					why = "pod group is unschedulable: 0 of at least 2 pods fit, preemption: " + whyDisturbed
				case fits && changes > 0:
					want, why = "retry retry", message
				}
				if outcomes != want || message != why {
					t.Errorf("%s, %q; want %s, %q", outcomes, message, want, why)
				}
				if want := min(changes+1, triesAside); tried != want && (!fits || tried != changes) {
					t.Errorf("tried %d times beside others, want %d", tried, want)
				}
			})
		}
	}
}

// TestAPodOfAGangWhosePlaceIsTakenEachTimeGoesElsewhere has the node that was found for one filled each time that the gang has been tried: it is placed all the same, and comes to rest.
func TestAPodOfAGangWhosePlaceIsTakenEachTimeGoesElsewhere(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	events := []any{gangSet("g", 2), ofGroup(pod("p", 1000), "g"), ofGroup(pod("q", 1000), "g")}
	for i := range triesAside + 2 {
		events = append(events, node(fmt.Sprint("n", i), 1000))
	}
	observe(t, term, events...)
	g := func() *whatif.GroupOutcome { // as it is found now
		found := new(whatif.GroupOutcome)
		term.ledger.read(func(st *cluster.State) {
			_ = whatif.New(st, term.groups.config).Try(t.Context(), func(w *whatif.World) (err error) {
				p, _ := st.PodByUID("p")
				q, _ := st.PodByUID("q")
				*found, err = whatif.PlaceGroup(w, cluster.GroupKey{Namespace: "default", Name: "g"}, []cluster.PodID{p, q})
				return err
			})
		})
		return found
	}
	tried := 0
	term.groups.tried = func() {
		tried++
		observe(t, term, on(pod(fmt.Sprint("y-", tried), 500), g().Pods[0].Node))
	}
	if outcomes, message, _ := together(t, term, 1, "p", "q"); outcomes != "assumed assumed" || tried != triesAside {
		t.Errorf("%s, %q after %d tries", outcomes, message, tried)
	}
}

// TestAGangThatIsDisturbedAgainAndAgainSaysSo in the end: it comes back in a moment, as often as nothing is said.
func TestAGangThatIsDisturbedAgainAndAgainSaysSo(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	for n := range 2 * mostDisturbed {
		g := &grouped{key: cluster.GroupKey{Name: "g"}, open: []int{0}, outcomes: []binderv1.GroupedPod{{Outcome: new(binderv1.Outcome)}}}
		term.comeBack(g)
		want, why := binderv1.Outcome_RESULT_RETRY, whyDisturbed
		if n%mostDisturbed == mostDisturbed-1 {
			want, why = binderv1.Outcome_RESULT_BUSY, "again and again, "+whyDisturbed
		}
		if is := &g.outcomes[0]; is.Outcome.Result != want || is.Error != why {
			t.Errorf("%d: %v, %q", n, is.Outcome.Result, is.Error)
		}
	}
}

// TestAGangThatIsNotDisturbedAtTimesIsNotDisturbedAgainAndAgain though it has not been placed meanwhile: it fits nowhere, and it is not looked again who could go.
func TestAGangThatIsNotDisturbedAtTimesIsNotDisturbedAgainAndAgain(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000))
	gangOf(t, term, "g", 1, pod("p", 1000))
	tried, disturbs := 0, false
	term.groups.tried = func() {
		if tried++; disturbs {
			observe(t, term, source.Event{Kind: source.ObjectSet, Object: &cluster.PodGroup{Namespace: "default", Name: "g", UID: "uid of g", Gang: true, MinCount: 1, Preferred: []string{fmt.Sprint(tried)}}})
		}
	}
	try := func(want binderv1.Outcome_Result) {
		t.Helper()
		disturbs = want != binderv1.Outcome_RESULT_NO_FIT
		if !disturbs {
			observe(t, term, on(pod("x", 1000), "a"))
			defer observe(t, term, gone("x"))
		}
		if is := tryGang(t, term, "g", 1).GetPods()[0]; is.GetOutcome().GetResult() != want {
			t.Errorf("%v, %q; want %v", is.GetOutcome().GetResult(), is.GetError(), want)
		}
	}
	try(binderv1.Outcome_RESULT_NO_FIT)
	for range 3 {
		for range mostDisturbed - 1 {
			try(binderv1.Outcome_RESULT_RETRY)
		}
		try(binderv1.Outcome_RESULT_NO_FIT)
	}
	for range mostDisturbed - 1 {
		try(binderv1.Outcome_RESULT_RETRY)
	}
	try(binderv1.Outcome_RESULT_BUSY)
}

// TestAGroupWhoseSearchTakesTooLongKeepsItsNominationsForAWhile and no longer: they hold room.
func TestAGroupWhoseSearchTakesTooLongKeepsItsNominationsForAWhile(t *testing.T) {
	var g groups
	key, now := "g", time.Unix(1000, 0)
	for _, tt := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {keepFor - 1, true}, {1, false}, {0, true}} {
		now = now.Add(tt.after)
		if got := g.keeps(key, now); got != tt.want {
			t.Errorf("after %v more: %v, want %v", tt.after, got, tt.want)
		}
	}
}

// TestAGangOfWhichItIsNotLookedAgainWhoCouldGoIsSpokenOfAsOfThen: what has happened since may help, and wakes it.
func TestAGangOfWhichItIsNotLookedAgainWhoCouldGoIsSpokenOfAsOfThen(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), node("b", 100), on(prior(pod("v", 1000), 10), "a"), gangSet("g", 1), prior(ofGroup(pod("p", 1000), "g"), 10))
	try := func() (*grouped, cluster.Version) {
		t.Helper()
		req := &binderv1.PlaceGroupRequest{Namespace: "default", Name: "g"}
		now := cluster.Version{}
		term.ledger.read(func(st *cluster.State) {
			id, _ := st.PodByUID("p")
			req.Pods, now = []*binderv1.PodAttempt{{Id: int32(id), Uid: "p", Attempt: 1}}, st.Version()
		})
		g := &grouped{key: cluster.GroupKey{Namespace: "default", Name: "g"}, req: req}
		if _, err := term.tryAndPlace(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		if err := term.preemptForGroup(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		return g, now
	}
	first, then := try()
	if got := wire.Version(first.resp.GetVersion()); got != then || first.resp.GetPreempts() {
		t.Fatalf("as of %v, preempts: %v; want %v", got, first.resp.GetPreempts(), then)
	}
	observe(t, term, on(prior(pod("v", 1000), 1), "a"), on(pod("w", 10), "b"))
	second, now := try()
	if got := wire.Version(second.resp.GetVersion()); got != then || now == then || second.resp.GetPreempts() {
		t.Errorf("as of %v, preempts: %v; want %v, and it is %v", got, second.resp.GetPreempts(), then, now)
	}
}

// TestItIsLookedAgainWhoCouldGoForAGangThatIsAnother than when it was looked last: for a gang of which two are placed now one place is enough.
func TestItIsLookedAgainWhoCouldGoForAGangThatIsAnother(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 2000), node("b", 1000), on(prior(pod("x", 2000), 20), "a"), on(pod("v", 1000), "b"), gangSet("g", 2))
	for _, uid := range []string{"p", "q", "r"} {
		observe(t, term, prior(ofGroup(pod(uid, 1000), "g"), 10))
	}
	if outcomes, message, _ := together(t, term, 1, "p", "q", "r"); outcomes != "no fit no fit no fit" || message == groupWaits {
		t.Fatalf("%s, %q", outcomes, message)
	}
	observe(t, term, gone("x"))
	if outcomes, _, _ := together(t, term, 2, "p", "q", "r"); outcomes != "assumed assumed retry" {
		t.Fatalf("%s", outcomes)
	}
	if outcomes, message, _ := together(t, term, 3, "r"); outcomes != "no fit" || message != groupWaits {
		t.Errorf("%s, %q; want that it waits", outcomes, message)
	}
}

// TestItIsLookedAgainWhoCouldGoForAGangOfWhichTheLogTellsSomething as what has happened since it was looked last wakes nobody then.
func TestItIsLookedAgainWhoCouldGoForAGangOfWhichTheLogTellsSomething(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), on(prior(pod("v", 1000), 10), "a"), gangSet("g", 1), prior(ofGroup(pod("p", 1000), "g"), 10), prior(ofGroup(pod("q", 1000), "g"), 10))
	if outcomes, message, _ := together(t, term, 1, "p", "q"); outcomes != "no fit no fit" || message == groupWaits {
		t.Fatalf("%s, %q", outcomes, message)
	}
	observe(t, term, on(prior(pod("v", 1000), 1), "a"), gone("q"))
	if outcomes, message, _ := together(t, term, 1, "p", "q"); outcomes != "no fit gone" || message != groupWaits {
		t.Errorf("%s, %q; want that it waits", outcomes, message)
	}
}
