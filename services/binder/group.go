package binder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
	"github.com/berth-scheduler/berth/internal/wire"
)

const (
	// triesAside is how often a group is tried while others go on. Where something has changed each time, what was found last is placed if each of its pods still fits where it was to go.
	triesAside = 3
	// searchFor bounds how long it is looked for places for a group, or for whom it preempts.
	searchFor = 5 * time.Second
	// confirmFor bounds how long it is looked at whether what was found holds still, while the ledger waits.
	confirmFor = time.Second
)

// groups is where pods of PodGroups are tried before they are placed: a copy of the ledger, which follows it. One group is tried at a time.
type groups struct {
	turns   groupTurns      // of who uses the rest
	sandbox *whatif.Sandbox // nil: there is none
	config  engine.EvaluatorConfig
	vain    map[string]lookedInVain // by uid
	long    map[string]time.Time    // by uid, since when each search of them has taken too long, while they hold room
	// disturbed is, by uid, how often in a row something has changed each time that they were tried.
	disturbed map[string]int
	reserve   reservations
	tried     func() // is called when a group has been tried while others go on; nil: nothing is
}

func newGroups(parallelism int, reserveAfter time.Duration) *groups {
	return &groups{config: engine.EvaluatorConfig{Parallelism: parallelism}, reserve: reservations{after: reserveAfter, atMost: reservingFor}}
}

// take waits for the turn of groups, which they have by priority, then in the order in which they come. Each shard asks for one at a time.
func (g *groups) take(ctx context.Context, priority int32) (leave func(), err error) {
	ready := g.turns.enter(priority)
	select {
	case <-ready:
		return g.turns.leave, nil
	case <-ctx.Done():
		g.turns.giveUp(ready)
		return nil, ctx.Err()
	}
}

// groupTurns is who has the turn of groups, and who waits for it. It may be used concurrently.
type groupTurns struct {
	mu      sync.Mutex
	taken   bool
	waiting []groupWaiter // in the order in which they have it
}

type groupWaiter struct {
	priority int32
	ready    chan struct{} // closed when it has the turn
}

// enter returns what is closed when the caller has the turn: then it is to call leave.
func (t *groupTurns) enter(priority int32) (ready chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := groupWaiter{priority, make(chan struct{})}
	at, _ := slices.BinarySearchFunc(t.waiting, w, func(a, b groupWaiter) int { return cmp.Or(cmp.Compare(b.priority, a.priority), -1) }) // behind its equals
	t.waiting = slices.Insert(t.waiting, at, w)
	t.next()
	return w.ready
}

// next gives the turn to the first who waits, if nobody has it. The caller holds the lock.
func (t *groupTurns) next() {
	if !t.taken && len(t.waiting) > 0 {
		t.taken = true
		close(t.waiting[0].ready)
		t.waiting = slices.Delete(t.waiting, 0, 1)
	}
}

// leave gives the turn back.
func (t *groupTurns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
	t.next()
}

// giveUp ends the wait of one who does not want the turn any more, or gives it back if it has come meanwhile.
func (t *groupTurns) giveUp(ready chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.waiting); n > 0 {
		if t.waiting = slices.DeleteFunc(t.waiting, func(w groupWaiter) bool { return w.ready == ready }); len(t.waiting) < n {
			return
		}
	}
	t.taken = false
	t.next()
}

// try has the turn if nobody has it or waits for it.
func (t *groupTurns) try() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken || len(t.waiting) > 0 {
		return false
	}
	t.taken = true
	return true
}

// follow brings the copy up to date. The caller has the turn and holds the ledger's lock, or calls apply later, without it.
func (g *groups) follow(l *ledger) (apply func() error) {
	deltas, whole := l.trail.take()
	version, digest := l.state.Version(), l.state.Digest()
	if !whole || g.sandbox == nil || g.sandbox.Spoiled() != nil || g.sandbox.Swollen() {
		g.sandbox = whatif.New(l.state, g.config)
		return func() error { return nil }
	}
	return func() error { return g.sandbox.Follow(deltas, version, digest) }
}

// drop forgets the copy, which has missed too much, unless it is in use. It does not wait.
func (g *groups) drop() {
	if g.turns.try() {
		g.sandbox = nil
		g.turns.leave()
	}
}

// grouped is a group that is to be placed.
type grouped struct {
	key      cluster.GroupKey
	req      *binderv1.PlaceGroupRequest
	resp     *binderv1.PlaceGroupResponse
	outcomes []binderv1.GroupedPod
	open     []int // of the pods, those that are to be placed
	gang     bool  // they are all placed or none

	// What was tried: in which stint, at which version, the group's uid, "" if there was none, and the open pods, with what they were then.
	stint   int64
	version cluster.Version
	uid     string
	group   *cluster.PodGroup
	before  int // how many pods of it had nodes
	pods    []cluster.PodID
	were    []cluster.Pod
	found   whatif.GroupOutcome
	tries   int  // how often that was done
	back    bool // it is to come back, for something has changed each time
	victims int  // pods that are to be evicted for it
}

// placeGroup places pods of a PodGroup, all that are to be or none, in one transaction. They are tried on a copy of the ledger; what is found there holds if nothing has changed by then that it depends on.
func (t *term) placeGroup(ctx context.Context, req *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
	if err := t.validateGroup(req); err != nil {
		return nil, err
	}
	if err := t.admit("place group", req.GetShard(), req.GetShardRevision(), req.GetVersion(), len(req.GetPods())); err != nil {
		return nil, err
	}
	ctx, done := t.within(ctx)
	defer done()
	g := &grouped{key: cluster.GroupKey{Namespace: req.GetNamespace(), Name: req.GetName()}, req: req}
	leave, err := t.groups.take(ctx, t.priorityOf(g))
	if err != nil {
		return nil, err
	}
	defer leave()
	began := time.Now()
	placed, err := t.tryAndPlace(ctx, g)
	if err == nil {
		err = t.preemptForGroup(ctx, g)
	}
	if err == nil {
		t.noteGroup(g, time.Now())
		if !g.back {
			delete(t.groups.disturbed, g.uid)
		}
	}
	ended := time.Now()
	t.metrics.groupSeconds.Observe(ended.Sub(began).Seconds())
	t.traceGroup(ctx, g, err, began, ended)
	t.reportGroup(g, len(placed), err)
	switch {
	case t.ended():
		return nil, errNotActive("the term has ended")
	case errors.Is(err, errUntried):
		return nil, err
	case err != nil:
		t.fail(err)
		return nil, rpc.Error(codes.Internal, "BROKEN_LEDGER", "place group: the ledger is broken")
	}
	return g.resp, nil
}

// priorityOf returns the highest priority of a group's pods, by which it stands in the queue.
func (t *term) priorityOf(g *grouped) int32 {
	highest := int32(math.MinInt32)
	t.ledger.read(func(st *cluster.State) {
		for _, p := range g.req.GetPods() {
			if row := st.Pod(cluster.PodID(p.GetId())); row != nil && row.UID == p.GetUid() {
				highest = max(highest, row.Priority)
			}
		}
	})
	return highest
}

// errUntried is wrapped by errors that say nothing of the ledger.
var errUntried = errors.New("the group was not tried")

func (t *term) validateGroup(req *binderv1.PlaceGroupRequest) error {
	var bad violations
	t.checkShard(&bad, req.GetShard())
	t.checkVersion(&bad, req.GetVersion())
	if req.GetNamespace() == "" || req.GetName() == "" {
		bad.note("name", "%q in namespace %q; want the name of a PodGroup", req.GetName(), req.GetNamespace())
	}
	if n := len(req.GetPods()); n == 0 || n > maxPods {
		bad.note("pods", "%d pods; want 1 to %d", n, maxPods)
	}
	for i, p := range req.GetPods() {
		if p.GetAttempt() < 1 {
			bad.note(fmt.Sprintf("pods[%d].attempt", i), "%d; attempts count from 1", p.GetAttempt())
		}
	}
	if len(bad) > 0 {
		return rpc.Invalid(bad...)
	}
	return nil
}

// roomForGroup reserves room for the pods of a group among those that wait for their bind, or none. However many they are of a namespace, they find some when none of the namespace waits.
func (t *term) roomForGroup(wanted map[string]int) bool {
	now := time.Now()
	for namespace, n := range wanted {
		if namespace != "" && t.unbound.countOf(namespace) > 0 && t.roomOf(namespace, now) < n {
			return false
		}
	}
	return t.unbound.takeOf(wanted)
}

// tryAndPlace tries a group until what it has found holds, and places it. That it does not fit is said as of when it was tried.
func (t *term) tryAndPlace(ctx context.Context, g *grouped) (placed []*placement, err error) {
	for try := range triesAside {
		g.tries = try + 1
		var apply func() error
		t.ledger.read(func(st *cluster.State) {
			apply = t.groups.follow(t.ledger)
			stint, _ := t.names.now()
			g.read(t, st, stint)
		})
		g.resp.Version = wire.ToVersion(g.version)
		err := apply()
		if err == nil {
			err = t.try(ctx, g)
		}
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", errUntried, rpc.Error(codes.Unavailable, "NOT_TRIED", "%v", context.Cause(ctx)))
		case errors.Is(err, errLongSearch) && g.nominated() && t.groups.keeps(g.uid, time.Now()): // others have gone for it, and the room is still held
			g.end(binderv1.Outcome_RESULT_BUSY, err.Error())
			return nil, nil
		case errors.Is(err, whatif.ErrSpoiled) && try < triesAside-1: // that says nothing of the group: the next try makes a new copy
			t.log.Error("the copy that PodGroups are tried on is made anew", "podGroup", g.key.String(), "err", err)
			continue
		case err != nil: // it is not tried again at once: so it would be for ever
			g.end(binderv1.Outcome_RESULT_FAILED, fmt.Sprintf("the PodGroup %v could not be tried: %v", g.key, err))
			return nil, nil
		}
		if len(g.pods) > 0 {
			delete(t.groups.long, g.uid)
		}
		if !g.found.Placed {
			g.leave()
			return nil, nil
		}
		if t.groups.tried != nil {
			t.groups.tried()
		}
		holds := false
		placed, err = t.commitGroup(g, func(st *cluster.State, stint int64) bool {
			holds = stint == g.stint && g.same(st) && (!t.ledger.trail.disturbed || try == triesAside-1 && t.confirmGroup(ctx, g))
			return holds
		})
		if err != nil || holds {
			return placed, err
		}
		t.conflict(conflictRetry)
	}
	t.comeBack(g)
	return nil, nil
}

// mostDisturbed is how often in a row a group comes back in a moment because something had changed each time that it was tried. Then it backs off, and says so.
const mostDisturbed = 5

// comeBack has a group tried again for which something has changed each time that it was tried.
func (t *term) comeBack(g *grouped) {
	if t.groups.disturbed == nil || len(t.groups.disturbed) >= mostHopeless {
		t.groups.disturbed = make(map[string]int)
	}
	g.back = true
	if t.groups.disturbed[g.uid]++; t.groups.disturbed[g.uid] < mostDisturbed {
		g.end(binderv1.Outcome_RESULT_RETRY, whyDisturbed) // those behind it do not wait for that
		return
	}
	delete(t.groups.disturbed, g.uid)
	g.end(binderv1.Outcome_RESULT_BUSY, "again and again, "+whyDisturbed)
}

// whyDisturbed says of a group that it is tried again.
const whyDisturbed = "something has changed meanwhile where it was to go"

// keepFor is how long a group keeps its nominations of which each search takes too long: they hold room.
const keepFor = time.Minute

// keeps reports whether a group whose search has taken too long is to keep its nominations. Of one that has not been searched for as long again, it is not known any more.
func (g *groups) keeps(uid string, now time.Time) bool {
	since, ok := g.long[uid]
	if !ok || now.Sub(since) >= 2*keepFor {
		if g.long == nil || len(g.long) >= mostHopeless {
			g.long = make(map[string]time.Time)
		}
		g.long[uid], since = now, now
	}
	if now.Sub(since) < keepFor {
		return true
	}
	delete(g.long, uid)
	return false
}

// confirmGroup reports whether each pod of a group still fits where it was to go. The caller has the turn and holds the ledger's lock, so no more than that is asked.
func (t *term) confirmGroup(ctx context.Context, g *grouped) (fits bool) {
	if t.groups.follow(t.ledger)() != nil {
		return false
	}
	err := t.onCopy(ctx, g, confirmFor, func(w *whatif.World) (err error) {
		fits, err = whatif.ConfirmGroup(w, g.key, &g.found)
		return err
	})
	return err == nil && fits
}

// same reports whether the pods that were tried are what they were, to all that placing them depends on.
func (g *grouped) same(st *cluster.State) bool {
	if is := st.PodGroup(g.key); is != g.group && !(is != nil && g.group != nil && is.UID == g.group.UID && is.Gang == g.group.Gang && is.MinCount == g.group.MinCount && is.Untold == g.group.Untold && slices.Equal(is.Topology, g.group.Topology) && slices.Equal(is.Preferred, g.group.Preferred)) {
		return false
	}
	if now := st.GroupPlaced(g.key); now < g.before || now > g.before && g.group != nil && len(g.group.Topology) > 0 { // which may be in another domain
		return false
	}
	for n, id := range g.pods {
		was, row := &g.were[n], st.Pod(id)
		if row == nil || row.Placed() || row.Deleting || len(row.Gates) > 0 || row.UID != was.UID || row.Class != was.Class || row.Labels != was.Labels || row.Priority != was.Priority ||
			row.RequiredNode != was.RequiredNode || row.Nominated != was.Nominated || row.Namespace != was.Namespace || row.Group != was.Group || row.Attempt != was.Attempt {
			return false
		}
	}
	return true
}

// nominated reports whether a pod of the group was nominated to a node.
func (g *grouped) nominated() bool {
	return slices.ContainsFunc(g.were, func(p cluster.Pod) bool { return p.Nominated != "" })
}

// leave says of all pods of a group that is not placed why they are not.
func (g *grouped) leave() {
	if len(g.open) == 0 {
		return
	}
	g.resp.Fit, g.resp.Message, g.resp.Waits = int32(g.found.Fit), g.found.Message, g.found.Waits
	for n, i := range g.open {
		g.leaveOne(n, i)
	}
}

// leaveOne says why a pod is not placed.
func (g *grouped) leaveOne(n, i int) {
	out, found := &g.outcomes[i], &g.found.Pods[n]
	if found.Missed {
		out.Outcome.Result, out.Error = binderv1.Outcome_RESULT_RETRY, whyDisturbed
		return
	}
	if g.found.Placed { // the others are: those that are left are looked at by themselves, and may have others evicted then
		out.Outcome.Result = binderv1.Outcome_RESULT_RETRY
		return
	}
	out.Outcome.Result = binderv1.Outcome_RESULT_NO_FIT
	if found.Outcome != whatif.Placed {
		out.Nodes, out.Verdicts = int32(found.Nodes), wire.ToVerdicts(found.Verdicts)
	}
}

// read finds out which pods are to be placed. The caller holds the ledger's lock.
func (g *grouped) read(t *term, st *cluster.State, stint int64) {
	n := len(g.req.GetPods())
	g.outcomes, g.resp = make([]binderv1.GroupedPod, n), &binderv1.PlaceGroupResponse{Pods: make([]*binderv1.GroupedPod, n)}
	g.open, g.pods, g.were, g.stint, g.version, g.found = nil, nil, nil, stint, st.Version(), whatif.GroupOutcome{}
	group := st.PodGroup(g.key)
	g.gang, g.uid, g.group, g.before = group != nil && group.Gang, "", group, st.GroupPlaced(g.key)
	if group != nil {
		g.uid = group.UID
	}
	preempting := st.GroupPreempting(g.key)
	if preempting {
		g.resp.Preempts, g.resp.Message = true, groupWaits
	}
	scheduler, why, busy := "", "", false
	manyAside := t.names.countAside() >= t.unbound.limit // see placeIn
	for i, p := range g.req.GetPods() {
		out := &binderv1.Outcome{}
		g.resp.Pods[i] = &g.outcomes[i]
		g.outcomes[i].Outcome = out
		id := cluster.PodID(p.GetId())
		row := st.Pod(id)
		switch {
		case row == nil || row.UID != p.GetUid():
			out.Result = binderv1.Outcome_RESULT_GONE
			continue
		case row.Placed():
			out.Result, out.Node = binderv1.Outcome_RESULT_PLACED, int32(row.Node)
			continue
		case row.Deleting || len(row.Gates) > 0 || group == nil || group.Untold != "" || row.Namespace != g.key.Namespace || row.Group != g.key.Name:
			out.Result = binderv1.Outcome_RESULT_GONE // the log says so
			continue
		case stint == 0 && t.names.shares(st, row.Class), st.Yields(row.Class), t.ledger.profile(row) == nil:
			out.Result = binderv1.Outcome_RESULT_GONE // likewise
			continue
		case preempting: // an earlier attempt, or this one, has others evicted for it
			out.Result = binderv1.Outcome_RESULT_NO_FIT
			continue
		case row.Attempt >= p.GetAttempt():
			out.Result = binderv1.Outcome_RESULT_RETRY
			continue
		}
		name := st.Class(row.Class).Spec.SchedulerName
		switch {
		case t.asks(st, row) != 0:
			why = whatif.GroupOthersAsked
		case scheduler != "" && scheduler != name:
			why = fmt.Sprintf("all pods in a single pod group should have the same .spec.schedulerName set, got: %q and %q", scheduler, name)
		}
		scheduler = name
		busy = busy || manyAside && t.names.shares(st, row.Class)
		g.open, g.pods, g.were = append(g.open, i), append(g.pods, id), append(g.were, row.Pod)
	}
	switch {
	case why != "":
		g.end(binderv1.Outcome_RESULT_FAILED, why)
	case busy:
		g.end(binderv1.Outcome_RESULT_BUSY, "")
	}
}

// end gives all pods that are to be placed the same outcome.
func (g *grouped) end(result binderv1.Outcome_Result, why string) {
	for _, i := range g.open {
		g.outcomes[i].Outcome.Result, g.outcomes[i].Error = result, why
	}
	g.open, g.pods = nil, nil
}

// try finds out where the pods would go, on the copy. The caller has the turn.
func (t *term) try(ctx context.Context, g *grouped) error {
	if len(g.pods) == 0 {
		return nil
	}
	return t.onCopy(ctx, g, searchFor, func(w *whatif.World) (err error) {
		g.found, err = whatif.PlaceGroup(w, g.key, g.pods)
		return err
	})
}

// onCopy tries something on the copy, which is left as it was, for so long at most. The caller has the turn.
func (t *term) onCopy(ctx context.Context, g *grouped, atMost time.Duration, ask func(*whatif.World) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			t.conflict(conflictPanic)
			t.log.Error("a PodGroup cannot be judged", "podGroup", g.key.String(), "err", fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
			err = errors.New("it cannot be judged")
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, atMost, errLongSearch)
	defer cancel()
	if err = t.groups.sandbox.Try(ctx, ask); err != nil && context.Cause(ctx) == errLongSearch {
		err = errLongSearch
	}
	return err
}

var errLongSearch = fmt.Errorf("it takes longer than %v", searchFor)

// commitGroup places what has been found, if holds says so under the ledger's lock. An error that is not errUntried means a broken ledger, and nothing is placed.
func (t *term) commitGroup(g *grouped, holds func(st *cluster.State, stint int64) bool) (placed []*placement, err error) {
	err = t.ledger.update(func(tx *tx) (err error) {
		stint, err := t.stint(tx)
		if err != nil || !holds(tx.state, stint) {
			return err
		}
		placed, err = t.placeAll(tx, g, stint)
		if err == nil && len(placed) > 0 {
			add := t.recorder.add
			if g.gang {
				add = t.recorder.addUnit
			}
			tx.tell(func() { add(placed) })
		}
		g.resp.Version = wire.ToVersion(tx.state.Version())
		return err
	})
	if err != nil {
		return nil, err
	}
	t.metrics.placed.Add(float64(len(placed)))
	return placed, nil
}

// placeAll gives each pod of a group that is placed its outcome, and assumes those that have found a node.
func (t *term) placeAll(tx *tx, g *grouped, stint int64) (placed []*placement, err error) {
	st := tx.state
	g.resp.Fit, g.resp.Message = int32(g.found.Fit), g.found.Message
	type step struct {
		prep     *preparation
		progress *progress
	}
	steps := make([]step, len(g.open))
	// 1. Nobody is placed unless there is room for all that can be.
	wanted := make(map[string]int)
	for n := range g.open {
		if g.found.Pods[n].Outcome == whatif.Placed {
			row := st.Pod(g.pods[n])
			wanted[t.shareOf(bindsWith(row.Namespace, t.binders(row.UID)))]++
		}
	}
	ok := t.roomForGroup(wanted)
	taken := ok
	for n := range g.open {
		found := &g.found.Pods[n]
		if !ok || found.Outcome != whatif.Placed {
			continue
		}
		s := &steps[n]
		s.prep, s.progress, ok = t.takeSteps(st.Pod(g.pods[n]), st.Nodes.ByName(found.Node), found.Volumes)
	}
	if !ok {
		for _, s := range steps {
			t.giveSteps(s.prep, s.progress)
		}
		if taken {
			t.unbound.giveAll(wanted)
		}
		g.end(binderv1.Outcome_RESULT_BUSY, "")
		t.conflict(conflictBusy)
		return nil, nil
	}
	// 2. Place them.
	for n, i := range g.open {
		out, found := &g.outcomes[i], &g.found.Pods[n]
		if found.Outcome != whatif.Placed {
			g.leaveOne(n, i)
			t.conflict(conflictNoFit)
			continue
		}
		node := st.Nodes.ByName(found.Node)
		now, err := t.assume(tx, g.pods[n], node, g.req.GetPods()[i].GetAttempt(), found.Volumes, steps[n].prep, steps[n].progress, stint)
		if err != nil {
			return nil, err
		}
		out.Outcome.Result, out.Outcome.Node = binderv1.Outcome_RESULT_ASSUMED, int32(node)
		placed = append(placed, now)
	}
	return placed, nil
}

// giveSteps undoes takeSteps.
func (t *term) giveSteps(prep *preparation, steps *progress) {
	t.unfollow(steps)
	if prep != nil {
		t.preparing.bound.giveOf(prep.share, 1)
	}
}
