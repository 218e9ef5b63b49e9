package binder

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
)

// waitsFor is for how long gangs wait in these tests before room is reserved for them.
const waitsFor = time.Minute

func reserves(c *termConfig) { c.ReserveForGroups = waitsFor }

// ends makes a pod one that ends by itself, as cluster.Pod.Ends has it.
func ends(p source.Pod, by int32) source.Pod {
	p.Ends = by
	return p
}

// round is a term whose gangs are tried by a clock of the test's.
type round struct {
	*term
	t    *testing.T
	now  time.Time
	last map[string]int32 // attempts, by uid
}

func newRound(t *testing.T, change ...func(*termConfig)) *round {
	return &round{term: pureTerm(t, newFakeSource(), change...), t: t, now: time.Unix(1_000_000, 0), last: make(map[string]int32)}
}

// gang tries the pods of a group that wait, as PlaceGroup does, and returns the answer: nil, there are none.
func (r *round) gang(name string) *binderv1.PlaceGroupResponse {
	r.t.Helper()
	g := &grouped{key: cluster.GroupKey{Namespace: "default", Name: name}, req: &binderv1.PlaceGroupRequest{Namespace: "default", Name: name}}
	r.ledger.read(func(st *cluster.State) {
		pods := slices.Sorted(slices.Values(st.GroupPods(g.key)))
		for _, id := range pods {
			if row := st.Pod(id); !row.Placed() {
				r.last[row.UID]++
				g.req.Pods = append(g.req.Pods, &binderv1.PodAttempt{Id: int32(id), Uid: row.UID, Attempt: r.last[row.UID]})
			}
		}
	})
	if len(g.req.GetPods()) == 0 {
		return nil
	}
	leave, err := r.groups.take(r.t.Context(), 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer leave()
	if _, err := r.tryAndPlace(r.t.Context(), g); err != nil {
		r.t.Fatal(err)
	}
	if err := r.preemptForGroup(r.t.Context(), g); err != nil {
		r.t.Fatal(err)
	}
	r.noteGroup(g, r.now)
	if !g.resp.GetWaits() && !g.resp.GetPreempts() && !g.found.Placed { // as the queue does
		r.clear(name)
	}
	return g.resp
}

// clear ends the nominations of a group's pods.
func (r *round) clear(name string) {
	r.t.Helper()
	if err := r.ledger.update(func(tx *tx) error {
		for _, id := range tx.state.GroupPods(cluster.GroupKey{Namespace: "default", Name: name}) {
			if row := tx.state.Pod(id); !row.Placed() && row.Nominated != "" {
				if err := r.ledger.fold.Nominate(id, ""); err != nil {
					return err
				}
			}
		}
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
}

// pod tries a single pod, and reports whether it is placed.
func (r *round) pod(uid string) bool {
	r.t.Helper()
	var req *binderv1.CommitRequest
	r.last[uid]++
	r.ledger.read(func(st *cluster.State) { req = requestOf(st, evaluate(st, 100), r.last[uid], uid) })
	resp, err := r.commit(req)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.GetOutcomes()[0].GetResult() == binderv1.Outcome_RESULT_ASSUMED
}

// tick has time pass, and the lane look.
func (r *round) tick(d time.Duration) {
	r.t.Helper()
	r.now = r.now.Add(d)
	r.groups.reserve.rest = time.Time{} // however long the last look has taken
	if err := r.reserveRoom(r.t.Context(), r.now); err != nil {
		r.t.Fatal(err)
	}
}

// reserved returns to which nodes which pods are nominated.
func (r *round) reserved() string {
	var out []string
	r.ledger.read(func(st *cluster.State) {
		for name := range st.NominatedNodes() {
			for _, id := range st.NominatedOn(name) {
				out = append(out, st.Pod(id).Name+" on "+name)
			}
		}
	})
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// wantReserved checks for what room is reserved, and that the gauge says so.
func (r *round) wantReserved(want string) {
	r.t.Helper()
	if got := r.reserved(); got != want {
		r.t.Errorf("reserved is %q, want %q", got, want)
	}
	n := 0.0
	if want != "" {
		n = 1
	}
	if got := testutil.ToFloat64(r.metrics.groupReservations); got != n {
		r.t.Errorf("the gauge says %v, want %v", got, n)
	}
}

// noVictims checks that nobody is evicted.
func (r *round) noVictims() {
	r.t.Helper()
	r.ledger.read(func(st *cluster.State) {
		for _, row := range st.Pods() {
			if row.Victim || row.Preempting {
				r.t.Errorf("%s is a victim (%v), or preempts (%v)", row.Name, row.Victim, row.Preempting)
			}
		}
	})
}

// TestALargeGangIsNotStarvedBySmallPods has two nodes full of small pods that end one after the other, and new ones come in. Whatever room one leaves, another has it before the gang, which wants
// both nodes. Where room is reserved for it, it waits for those that are there, and not for those that come.
func TestALargeGangIsNotStarvedBySmallPods(t *testing.T) {
	const rounds = 100
	run := func(change ...func(*termConfig)) (placed int, r *round) {
		r = newRound(t, change...)
		var running, waiting []string
		small := func() string {
			name := fmt.Sprintf("s%d", len(r.last)+len(waiting)+len(running))
			observe(t, r.term, ends(pod(name, 500), cluster.EndsSometime))
			return name
		}
		observe(t, r.term, node("a", 1000), node("b", 1000))
		for range 4 {
			name := small()
			if !r.pod(name) {
				t.Fatalf("%s is not placed on an empty node", name)
			}
			running = append(running, name)
		}
		observe(t, r.term, gangSet("g", 2), ofGroup(pod("p", 1000), "g"), ofGroup(pod("q", 1000), "g"))
		for k := range rounds {
			// 1. One ends, and one comes.
			if len(running) > 0 {
				observe(t, r.term, gone(running[0]))
				running = running[1:]
			}
			waiting = append(waiting, small())
			// 2. All are tried, the small ones first.
			r.tick(10 * time.Second)
			waiting = slices.DeleteFunc(waiting, func(name string) bool {
				ok := r.pod(name)
				if ok {
					running = append(running, name)
				}
				return ok
			})
			if resp := r.gang("g"); resp == nil || resp.GetPods()[0].GetOutcome().GetResult() == binderv1.Outcome_RESULT_ASSUMED {
				return k, r
			}
		}
		return -1, r
	}
	if placed, r := run(); placed >= 0 || r.reserved() != "" {
		t.Errorf("without a reservation it is placed in round %d, and reserved is %q; the test has no point", placed, r.reserved())
	}
	placed, r := run(reserves)
	if wants := int(waitsFor/(10*time.Second)) + 4; placed < 0 || placed > wants+1 {
		t.Errorf("it is placed in round %d, want by round %d", placed, wants)
	}
	r.noVictims()
	if r.tick(time.Second); true {
		r.wantReserved("")
	}
}

// waitingGang is two nodes full of pods that end, and a third one of a pod that does not, and a gang of two that has waited for long enough.
func waitingGang(t *testing.T, change ...func(*termConfig)) *round {
	t.Helper()
	r := newRound(t, append(change, reserves)...)
	observe(t, r.term, node("a", 1000), node("b", 1000), node("c", 1000),
		on(ends(pod("x", 1000), cluster.EndsSometime), "a"), on(ends(pod("y", 1000), cluster.EndsSometime), "b"), on(pod("z", 1000), "c"),
		gangSet("g", 2), ofGroup(pod("p", 1000), "g"), ofGroup(pod("q", 1000), "g"))
	r.gang("g")
	if r.tick(waitsFor - time.Second); r.reserved() != "" {
		t.Fatalf("reserved is %q, before it has waited for long", r.reserved())
	}
	return r
}

func TestRoomIsReservedForAGangThatHasWaitedForLong(t *testing.T) {
	r := waitingGang(t)
	r.tick(time.Second)
	r.wantReserved("p on b, q on a")
	r.noVictims()
	// 1. The text says so, and the queue is told to leave the nominations.
	resp := r.gang("g")
	if want := "pod group is unschedulable: 0 of at least 2 pods fit, room is reserved for it since 1970-01-12T13:47:40Z on a, b: 2 pods there are to end first, nobody knows when"; resp.GetMessage() != want || !resp.GetWaits() {
		t.Errorf("it is said %q, and that it waits: %v; want %q", resp.GetMessage(), resp.GetWaits(), want)
	}
	// 2. One ends: the room stays the gang's.
	observe(t, r.term, gone("x"), pod("small", 100))
	if r.pod("small") {
		t.Error("a small pod has the room that is reserved")
	}
	// 3. Pods of a higher priority have it.
	observe(t, r.term, prior(pod("important", 100), 5))
	if !r.pod("important") {
		t.Error("a pod of a higher priority has no room")
	}
	observe(t, r.term, gone("important"))
	// 4. The other ends, and the gang is placed.
	observe(t, r.term, gone("y"))
	r.tick(awaitEvery)
	r.wantReserved("p on b, q on a")
	if resp := r.gang("g"); resp.GetPods()[0].GetOutcome().GetResult() != binderv1.Outcome_RESULT_ASSUMED {
		t.Errorf("it is not placed: %v", resp)
	}
	r.tick(time.Second)
	r.wantReserved("")
}

// TestReservedRoomIsKeptUntilTheGangIsPlaced has a gang that fits, and may not be placed yet: others are in between.
func TestReservedRoomIsKeptUntilTheGangIsPlaced(t *testing.T) {
	r := waitingGang(t)
	r.tick(time.Second)
	observe(t, r.term, gone("x"), gone("y"))
	unbound := map[string]int{"default": r.unbound.limit}
	r.unbound.takeOf(unbound)
	if resp := r.gang("g"); resp.GetPods()[0].GetOutcome().GetResult() != binderv1.Outcome_RESULT_BUSY {
		t.Fatalf("it is tried: %v; want that as many pods wait for their binds as may", resp)
	}
	r.tick(time.Second)
	r.wantReserved("p on b, q on a")
	r.unbound.giveAll(unbound)
	if resp := r.gang("g"); resp.GetPods()[0].GetOutcome().GetResult() != binderv1.Outcome_RESULT_ASSUMED {
		t.Errorf("it is not placed: %v", resp)
	}
	r.tick(time.Second)
	r.wantReserved("")
}

// TestReservedRoomIsGivenBack has all that a gang may do but be placed.
func TestReservedRoomIsGivenBack(t *testing.T) {
	deleting := ofGroup(pod("q", 1000), "g")
	deleting.Deleting = true
	for name, happens := range map[string][]any{
		"its pods are deleted":        {gone("p"), gone("q")},
		"one of its pods is":          {gone("q")},
		"one of its pods is to be":    {deleting},
		"its PodGroup is gone":        {source.Event{Kind: source.ObjectGone, Key: cluster.ObjectKey{Kind: cluster.PodGroupKind, Namespace: "default", Name: "g"}}},
		"it wants more pods":          {gangSet("g", 3)},
		"another has its name":        {source.Event{Kind: source.ObjectSet, Object: &cluster.PodGroup{Namespace: "default", Name: "g", UID: "other", Gang: true, MinCount: 2}}},
		"a node of it is gone":        {source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "a"}}},
		"its room is somebody else's": {gone("x"), on(pod("w", 1000), "a")},
	} {
		t.Run(name, func(t *testing.T) {
			r := waitingGang(t)
			r.tick(time.Second)
			r.wantReserved("p on b, q on a")
			observe(t, r.term, happens...)
			r.tick(awaitEvery)
			r.wantReserved("")
		})
	}
}

// TestAGangIsNotKeptOutByItsOwnReservation has one of two sizes of pods, whose larger pod loses its room, and the smaller one has the only other room for that.
func TestAGangIsNotKeptOutByItsOwnReservation(t *testing.T) {
	for name, lost := range map[string]func(node string) any{
		"somebody of a higher priority, who ends, has the room": func(at string) any { return prior(on(ends(pod("w", 2000), cluster.EndsSometime), at), 7) },
		"somebody of a higher priority has the room":            func(at string) any { return prior(on(pod("w", 2000), at), 7) },
		"the node is gone": func(at string) any { return source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: at}} },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRound(t, reserves)
			observe(t, r.term, node("a", 1000), node("b", 2000), node("c", 2000), on(pod("x", 1000), "a"),
				on(ends(pod("y", 2000), cluster.EndsSometime), "b"), on(ends(pod("z", 2000), cluster.EndsSometime), "c"),
				gangSet("g", 2), ofGroup(pod("q", 2000), "g"), ofGroup(pod("p", 1000), "g"))
			r.gang("g")
			r.tick(waitsFor)
			at := "b"
			if r.reserved() == "p on b, q on c" {
				at = "c"
			} else {
				r.wantReserved("p on c, q on b")
			}
			observe(t, r.term, gone("x"), gone("y"), gone("z"), lost(at))
			if resp := r.gang("g"); resp.GetPods()[0].GetOutcome().GetResult() != binderv1.Outcome_RESULT_NO_FIT {
				t.Fatalf("it is placed beside its own nominations; the test has no point: %v", resp)
			}
			r.tick(awaitEvery)
			if resp := r.gang("g"); resp.GetPods()[0].GetOutcome().GetResult() != binderv1.Outcome_RESULT_ASSUMED {
				t.Errorf("it is not placed where it fits: %v; reserved is %q", resp, r.reserved())
			}
		})
	}
}

// TestARoomThatIsGoneIsReservedElsewhere has a node cordoned, and another one that others are to leave.
func TestARoomThatIsGoneIsReservedElsewhere(t *testing.T) {
	r := waitingGang(t)
	r.tick(time.Second)
	cordoned := node("a", 1000)
	cordoned.Unschedulable = true
	observe(t, r.term, cordoned, node("d", 1000), on(ends(pod("w", 1000), 300), "d"))
	r.tick(awaitEvery)
	nodes := r.reserved()
	if !strings.Contains(nodes, "on b") || !strings.Contains(nodes, "on d") || strings.Contains(nodes, "on a") {
		t.Errorf("reserved is %q, want it on b and d", nodes)
	}
	if resp := r.gang("g"); !strings.Contains(resp.GetMessage(), "since 1970-01-12T13:47:40Z") {
		t.Errorf("it is said %q, want since when it has had room first", resp.GetMessage())
	}
}

// TestOneGangAtATimeHasRoomReserved has three, the last of a higher priority.
func TestOneGangAtATimeHasRoomReserved(t *testing.T) {
	r := waitingGang(t)
	observe(t, r.term, gangSet("h", 1), ofGroup(pod("r", 1000), "h"))
	r.gang("h")
	r.tick(time.Second)
	r.wantReserved("p on b, q on a")
	// 1. The second has its turn when the first is placed, though there is room that could be reserved for it.
	observe(t, r.term, node("d", 1000), on(ends(pod("w", 1000), cluster.EndsSometime), "d"))
	r.tick(2 * waitsFor)
	r.wantReserved("p on b, q on a")
	observe(t, r.term, gone("x"), gone("y"))
	if resp := r.gang("h"); resp.GetPods()[0].GetOutcome().GetResult() != binderv1.Outcome_RESULT_NO_FIT {
		t.Errorf("the second is placed where room is reserved for the first: %v", resp)
	}
	r.gang("g")
	r.tick(awaitEvery)
	r.wantReserved("r on d")
	// 2. One of a higher priority that has waited for as long takes it from it.
	observe(t, r.term, gangSet("i", 1), prior(ofGroup(pod("s", 1000), "i"), 7))
	observe(t, r.term, prior(pod("z", 1000), 7), prior(ends(pod("w", 1000), cluster.EndsSometime), 7)) // nobody is to preempt
	important := func(name, at string, by int32) source.Pod { return prior(on(ends(pod(name, 1000), by), at), 7) }
	observe(t, r.term, important("z", "c", cluster.NeverEnds), important("w", "d", cluster.EndsSometime), gone("p"), gone("q"), important("u", "a", cluster.NeverEnds), important("v", "b", cluster.NeverEnds))
	r.gang("i")
	r.tick(time.Second)
	r.wantReserved("r on d")
	r.tick(waitsFor)
	r.tick(time.Second)
	r.wantReserved("s on d")
	// 3. The other has it back when that is gone.
	observe(t, r.term, gone("s"))
	r.tick(awaitEvery)
	r.tick(awaitEvery)
	r.wantReserved("r on d")
}

// TestAGangForWhichNoRoomCanBeReservedSaysSo, and does not keep the next one from it.
func TestAGangForWhichNoRoomCanBeReservedSaysSo(t *testing.T) {
	r := newRound(t, reserves)
	observe(t, r.term, node("a", 1000), on(ends(pod("x", 1000), cluster.EndsSometime), "a"),
		gangSet("g", 2), ofGroup(pod("p", 1000), "g"), ofGroup(pod("q", 1000), "g"), gangSet("h", 1), ofGroup(pod("r", 1000), "h"))
	r.gang("g")
	r.now = r.now.Add(time.Second)
	r.gang("h")
	r.tick(waitsFor)
	r.wantReserved("")
	if resp := r.gang("g"); !strings.Contains(resp.GetMessage(), "no room is reserved for it: it would not fit either if all pods had ended that end by themselves") || resp.GetWaits() {
		t.Errorf("it is said %q, and that it waits: %v", resp.GetMessage(), resp.GetWaits())
	}
	r.tick(time.Second)
	r.wantReserved("r on a")
}

// TestGangsForWhichThereIsNoRoomKeepNobodyFromTheirTurn has many of a high priority for which no room can be reserved, and one of a low priority for which it can be.
func TestGangsForWhichThereIsNoRoomKeepNobodyFromTheirTurn(t *testing.T) {
	r := newRound(t, reserves)
	observe(t, r.term, node("a", 1000), prior(on(ends(pod("x", 1000), cluster.EndsSometime), "a"), 9), gangSet("g", 1), ofGroup(pod("p", 1000), "g"))
	r.gang("g")
	const many = 15
	for k := range many {
		name := fmt.Sprint("h", k)
		observe(t, r.term, gangSet(name, 1), prior(ofGroup(pod("large-"+name, 2000), name), 7))
		r.gang(name)
	}
	r.now = r.now.Add(waitsFor)
	for range many + 1 {
		r.tick(time.Second)
	}
	r.wantReserved("p on a")
	// It is looked at, too, while they have their turns.
	for range 2*int(awaitEvery/time.Second) + 1 {
		r.tick(time.Second)
	}
	if looked := r.now.Sub(r.groups.reserve.held.asOf); looked > 2*awaitEvery {
		t.Errorf("it was looked %v ago whether the room is still its own", looked)
	}
}

// TestTheCopyFollowsThoughAGangHasNoPodsLeft has the pods of a gang placed, or gone, while it is waited for the turn to look for its room.
func TestTheCopyFollowsThoughAGangHasNoPodsLeft(t *testing.T) {
	r := waitingGang(t)
	was := r.groups.sandbox
	observe(t, r.term, node("d", 1000))
	if err := r.reserveFor(t.Context(), cluster.GroupKey{Namespace: "default", Name: "gone"}, r.now); err != nil {
		t.Fatal(err)
	}
	r.gang("g")
	if was == nil || r.groups.sandbox != was || was.Spoiled() != nil {
		t.Error("the next group finds a copy that has missed something")
	}
}

// TestAGroupDoesNotFailForASpoiledCopy has a copy that has missed something: the group is tried on a new one.
func TestAGroupDoesNotFailForASpoiledCopy(t *testing.T) {
	r := newRound(t)
	observe(t, r.term, node("a", 1000), on(pod("x", 1000), "a"), gangSet("g", 1), ofGroup(pod("p", 1000), "g"))
	r.gang("g")
	was := r.groups.sandbox
	observe(t, r.term, gone("x"))
	r.ledger.trail.take()
	if resp := r.gang("g"); resp.GetPods()[0].GetOutcome().GetResult() != binderv1.Outcome_RESULT_ASSUMED {
		t.Errorf("it is not placed: %v", resp)
	}
	if was == nil || r.groups.sandbox == was {
		t.Error("the copy is not made anew; the test has no point")
	}
}

// TestReservedRoomIsReviewedWhileOthersHaveTheTurn has the lane wait for the turn of groups: it keeps its place in line, and gives back what is reserved in vain.
func TestReservedRoomIsReviewedWhileOthersHaveTheTurn(t *testing.T) {
	r := waitingGang(t)
	r.tick(time.Second)
	r.wantReserved("p on b, q on a")
	turns, held := &r.groups.turns, r.groups.reserve.held
	// 1. The turn comes in the end.
	turns.enter(0)
	r.tick(awaitEvery)
	after := turns.enter(0)
	r.tick(time.Second)
	r.leavesItTo(after, "the lane has lost its place in line")
	if r.tick(time.Second); !held.asOf.Equal(r.now) {
		t.Errorf("it was looked at %v who has to end before, want %v", held.asOf, r.now)
	}
	<-after
	// 2. The PodGroup goes while others have it.
	r.tick(awaitEvery)
	observe(t, r.term, source.Event{Kind: source.ObjectGone, Key: cluster.ObjectKey{Kind: cluster.PodGroupKind, Namespace: "default", Name: "g"}})
	r.tick(time.Second)
	r.wantReserved("")
	if turns.leave(); !turns.try() {
		t.Error("the lane stands in line, and has nothing to look for")
	}
}

// TestAReservationThatWaitsForItsTurnIsTakenOver has groups of a low priority keep the turn, so that the lane does not get it for the gang that has room.
func TestAReservationThatWaitsForItsTurnIsTakenOver(t *testing.T) {
	r := newRound(t, reserves)
	observe(t, r.term, node("a", 1000), prior(on(ends(pod("x", 1000), cluster.EndsSometime), "a"), 7), gangSet("g", 1), ofGroup(pod("p", 1000), "g"))
	r.gang("g")
	r.tick(waitsFor)
	r.wantReserved("p on a")
	observe(t, r.term, gangSet("i", 1), prior(ofGroup(pod("s", 1000), "i"), 7))
	r.gang("i")
	turns := &r.groups.turns
	turns.enter(3)
	r.tick(waitsFor)
	others := turns.enter(3)
	r.tick(time.Second)
	r.leavesItTo(others, "the lane stands behind less important groups, though a more important gang waits for room")
	r.tick(time.Second)
	r.wantReserved("s on a")
}

// leavesItTo gives the turn up, and fails if others have it then: the lane is to be before them.
func (r *round) leavesItTo(others <-chan struct{}, why string) {
	r.t.Helper()
	r.groups.turns.leave()
	select {
	case <-others:
		r.t.Fatal(why)
	default:
	}
}

// TestAReservationIsLookedAtThoughMoreImportantGangsKeepWaiting: each of these, for which no room can be reserved, comes before it once.
func TestAReservationIsLookedAtThoughMoreImportantGangsKeepWaiting(t *testing.T) {
	r := newRound(t, reserves)
	observe(t, r.term, node("a", 1000), prior(on(ends(pod("x", 1000), cluster.EndsSometime), "a"), 7), gangSet("g", 1), ofGroup(pod("p", 1000), "g"))
	r.gang("g")
	r.tick(waitsFor)
	r.wantReserved("p on a")
	observe(t, r.term, gangSet("i", 1), prior(ofGroup(pod("s", 2000), "i"), 7))
	r.gang("i")
	r.now = r.now.Add(2 * waitsFor)
	reserve := &r.groups.reserve
	next := func() (name string) {
		r.ledger.read(func(st *cluster.State) {
			key, _, _ := r.nextToReserve(st, r.now)
			name = key.Name
		})
		return name
	}
	if first := next(); first != "g" {
		t.Errorf("%s is looked at, want g, which is overdue", first)
	}
	reserve.ready = make(chan struct{}) // it stands in line
	defer func() { reserve.ready = nil }()
	for k, want := range []string{"i", "g", "g"} {
		if got := next(); got != want {
			t.Errorf("%d: the lane stands in line for %s, want %s", k, got, want)
		}
		reserve.waits[cluster.GroupKey{Namespace: "default", Name: "i"}].looked = r.now
		r.now = r.now.Add(awaitEvery)
	}
}

// TestOnlyTheGangWhoseTurnItIsIsAskedForItsPods: the ledger waits meanwhile. What was known of one may have changed since.
func TestOnlyTheGangWhoseTurnItIsIsAskedForItsPods(t *testing.T) {
	r := newRound(t, reserves)
	observe(t, r.term, node("a", 100))
	const many = 100
	for k := range many {
		name := fmt.Sprint("h", k)
		observe(t, r.term, gangSet(name, 2), prior(ofGroup(pod("p-"+name, 1000), name), int32(k)), prior(ofGroup(pod("q-"+name, 1000), name), int32(k)))
		r.gang(name)
	}
	r.now = r.now.Add(waitsFor)
	next := func() (name string, priority int32) {
		r.ledger.read(func(st *cluster.State) {
			key, p, look := r.nextToReserve(st, r.now)
			if !look {
				t.Fatal("no gang is to be looked at")
			}
			name, priority = key.Name, p
		})
		return name, priority
	}
	if name, priority := next(); name != "h99" || priority != 99 {
		t.Errorf("it is the turn of %s, by %d; want that of the highest priority", name, priority)
	}
	if n := testing.AllocsPerRun(5, func() { next() }); n > many/2 { // each asked has some
		t.Errorf("of %d gangs, with %v allocations", many, n)
	}
	// The first lacks a pod, and the next has one of a low priority, of which nobody has told.
	observe(t, r.term, gone("p-h99"), prior(ofGroup(pod("o-h98", 1000), "h98"), 5))
	if name, priority := next(); name != "h97" || priority != 97 {
		t.Errorf("it is the turn of %s, by %d; want h97", name, priority)
	}
	if w := r.groups.reserve.waits[cluster.GroupKey{Namespace: "default", Name: "h98"}]; w.lowest != 5 {
		t.Errorf("h98 has its turn by %d, want 5", w.lowest)
	}
}

// TestAReservationThatCannotBeReportedHasItsTurnAgain has as many reports wait as may: the search is not done again each second, and others have their turns.
func TestAReservationThatCannotBeReportedHasItsTurnAgain(t *testing.T) {
	r := waitingGang(t)
	observe(t, r.term, gangSet("h", 1), ofGroup(pod("r", 1000), "h"))
	r.gang("h")
	limit := r.reports.room.limit
	r.reports.room.limit = 1
	r.reports.add(source.Report{UID: "other"})
	r.tick(waitsFor)
	was := r.now
	r.tick(time.Second)
	r.wantReserved("")
	looked := func(name string) time.Time {
		return r.groups.reserve.waits[cluster.GroupKey{Namespace: "default", Name: name}].looked
	}
	if !looked("g").Equal(was) || !looked("h").Equal(r.now) {
		t.Errorf("g had its turn at %v, and h at %v; want %v, and %v", looked("g"), looked("h"), was, r.now)
	}
	r.reports.room.limit = limit
	r.tick(awaitEvery)
	r.wantReserved("p on b, q on a")
}

// TestWhatIsNotKnownOfAReservationIsKeptForAWhile has searches that take too long.
func TestWhatIsNotKnownOfAReservationIsKeptForAWhile(t *testing.T) {
	r := waitingGang(t)
	r.tick(time.Second)
	r.groups.reserve.atMost = 1 // ns
	for range int(keepFor/awaitEvery) - 1 {
		r.tick(awaitEvery)
		r.wantReserved("p on b, q on a")
	}
	was := r.groups.reserve.held.asOf
	observe(t, r.term, source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "a"}})
	if r.tick(time.Second); !r.groups.reserve.held.asOf.Equal(was) {
		t.Error("it is searched again, each second")
	}
	r.tick(awaitEvery)
	r.wantReserved("")
}

// TestNothingIsReservedForAGangThatCannotBeTried has pods of two schedulers.
func TestNothingIsReservedForAGangThatCannotBeTried(t *testing.T) {
	r := waitingGang(t, func(c *termConfig) {
		c.Settings.Profiles = append(slices.Clone(c.Settings.Profiles), engine.DefaultProfile("another"))
	})
	r.tick(time.Second)
	r.wantReserved("p on b, q on a")
	other := ofGroup(pod("o", 100), "g")
	other.Class.SchedulerName = "another"
	observe(t, r.term, other)
	r.gang("g")
	for range 3 {
		r.tick(awaitEvery)
		r.wantReserved("")
	}
}

// TestGroupsWithoutPodsAreNotRemembered has one that waited.
func TestGroupsWithoutPodsAreNotRemembered(t *testing.T) {
	r := waitingGang(t)
	observe(t, r.term, gone("p"), gone("q"))
	r.tick(time.Second)
	if n := len(r.groups.reserve.waits); n != 0 {
		t.Errorf("%d gangs are known to wait, want none: it has no pods", n)
	}
}

// TestABinderTakesOverWhatIsReserved has the pods of a gang nominated by a binder before.
func TestABinderTakesOverWhatIsReserved(t *testing.T) {
	nominated := func(name, node string) source.Pod {
		p := ofGroup(pod(name, 1000), "g")
		p.Nominated = node
		return p
	}
	things := []any{node("a", 1000), node("b", 1000), on(ends(pod("x", 1000), cluster.EndsSometime), "a"), on(ends(pod("y", 1000), cluster.EndsSometime), "b"), nominated("p", "a"), nominated("q", "b")}
	t.Run("it waits still", func(t *testing.T) {
		r := newRound(t, reserves)
		observe(t, r.term, append(things, gangSet("g", 2))...)
		if resp := r.gang("g"); !resp.GetWaits() {
			t.Error("its nominations are to end")
		}
		r.tick(time.Second)
		r.wantReserved("p on a, q on b")
	})
	t.Run("nothing is reserved any more", func(t *testing.T) {
		r := newRound(t)
		observe(t, r.term, append(things, gangSet("g", 2))...)
		if resp := r.gang("g"); resp.GetWaits() {
			t.Error("its nominations are to stay, though nothing is to be reserved")
		}
	})
	t.Run("its PodGroup is gone", func(t *testing.T) {
		r := newRound(t, reserves)
		observe(t, r.term, things...)
		r.tick(time.Second)
		r.wantReserved("")
	})
	t.Run("the term has lasted for long", func(t *testing.T) {
		r := newRound(t, reserves)
		r.tick(time.Second)
		r.now = r.now.Add(adoptFor)
		observe(t, r.term, append(things, gangSet("g", 2))...)
		if resp := r.gang("g"); resp.GetWaits() {
			t.Error("nominations that somebody else has made are taken for a reservation")
		}
	})
	t.Run("others have gone for it", func(t *testing.T) {
		r := newRound(t, reserves)
		r.ledger.preempted["p"] = lastPreemption{}
		observe(t, r.term, append(things, gangSet("g", 2))...)
		if resp := r.gang("g"); resp.GetWaits() {
			t.Error("nominations of a preemption are taken for a reservation")
		}
	})
	t.Run("its PodGroup cannot be read", func(t *testing.T) {
		r := newRound(t, reserves)
		observe(t, r.term, append(things, source.Event{Kind: source.ObjectSet, Object: &cluster.Unserved{Name: cluster.PodGroupResource, Why: "no"}})...)
		r.tick(time.Second)
		if got := r.reserved(); got != "p on a, q on b" {
			t.Errorf("nominated is %q, and nothing is known of its PodGroup", got)
		}
	})
	t.Run("too few of its pods have no gates", func(t *testing.T) {
		r := newRound(t, reserves)
		gated := ofGroup(pod("s", 1000), "g")
		gated.Gates = []string{"example.com/gate"}
		observe(t, r.term, append(things, gangSet("g", 3), gated)...)
		r.tick(time.Second)
		r.wantReserved("")
	})
	t.Run("it lacks a pod", func(t *testing.T) {
		r := newRound(t, reserves)
		observe(t, r.term, append(things, gangSet("g", 3))...)
		r.tick(time.Second)
		r.wantReserved("")
	})
}

// TestAGangThatPreemptsNeedsNoRoomReserved has one that finds victims.
func TestAGangThatPreemptsNeedsNoRoomReserved(t *testing.T) {
	r := waitingGang(t)
	r.tick(time.Second)
	r.wantReserved("p on b, q on a")
	observe(t, r.term, node("d", 1000), on(prior(pod("v", 1000), -1), "d"), node("e", 1000), on(prior(pod("w", 1000), -1), "e"))
	r.now = r.now.Add(lookAgain)
	clear(r.groups.vain)
	if resp := r.gang("g"); !resp.GetPreempts() {
		t.Fatalf("it does not preempt: %v", resp)
	}
	r.tick(awaitEvery)
	if got := r.reserved(); !strings.Contains(got, "on d") || !strings.Contains(got, "on e") {
		t.Errorf("nominated is %q, want d and e, where others go", got)
	}
	if got := testutil.ToFloat64(r.metrics.groupReservations); got != 0 {
		t.Errorf("the gauge says %v, want 0", got)
	}
}

// TestTheLogSaysWhetherPodsEndOnlyWhereRoomIsReserved: members of the release before have another digest then.
func TestTheLogSaysWhetherPodsEndOnlyWhereRoomIsReserved(t *testing.T) {
	for name, test := range map[string]struct {
		change []func(*termConfig)
		want   int32
	}{"off": {nil, cluster.NeverEnds}, "on": {[]func(*termConfig){reserves}, 60}} {
		r := newRound(t, test.change...)
		observe(t, r.term, ends(pod("p", 100), 60))
		r.ledger.read(func(st *cluster.State) {
			id, _ := st.PodByUID("p")
			if got := st.Pod(id).Ends; got != test.want {
				t.Errorf("%s: the ledger has %d, want %d", name, got, test.want)
			}
		})
	}
}
