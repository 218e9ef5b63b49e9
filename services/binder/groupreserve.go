package binder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// A gang that has waited for long, and neither fits nor preempts, has room reserved for it: its pods are nominated to nodes where they fit when pods have ended that end by themselves. A nomination holds the room against pods of the
// same and of lower priority, which go on beside it. One gang at a time has a reservation, the first by priority and then by how long it has waited: two could wait for each other, and what is reserved stands idle.
const (
	// reserveEvery is how often it is looked whether room is to be reserved, or given back.
	reserveEvery = time.Second
	// awaitEvery is how often it is looked whether a gang still would fit where room is reserved for it, and who has to end before.
	awaitEvery = 10 * time.Second
	// reservingFor bounds how long it is looked for room: nobody is placed with its group meanwhile. restsFor is how many times as long it is not looked for any then.
	reservingFor = time.Second
	restsFor     = 3
	// adoptFor is for how long nominations of a gang that this binder has not made are taken for a reservation of one before.
	adoptFor = 5 * time.Minute
	// mostReserving bounds how many gangs are known to wait. Others are when these have come to something.
	mostReserving = 1 << 12
)

// reservations is the gangs that wait, and for which of them room is reserved. It may be used concurrently.
type reservations struct {
	after time.Duration // for how long a gang waits before; 0: nothing is ever reserved

	mu    sync.Mutex
	waits map[cluster.GroupKey]*groupWaiting
	held  *reservation // nil: there is none
	began time.Time    // when anything was noted first
	rest  time.Time    // until when nothing is looked for: others have the turn of groups, too
	// atMost is how long it is looked for room, see reservingFor.
	atMost time.Duration
	round  time.Time // since when each that waits is looked at once
	// The lane's place in line for the turn of groups, which it keeps from one look to the next; nil: it has none. Only the lane uses these.
	ready  chan struct{}
	inLine int32 // by which priority
}

// groupWaiting is a gang that has been found not to fit.
type groupWaiting struct {
	uid   string
	since time.Time // when it first was, in this term
	// aside says that at its last attempt others were on their way out for it.
	aside  bool
	looked time.Time // when no room was found last that could be reserved, or it lacked pods, or that could not be reported
	why    string    // there was none; "": not known
	lowest int32     // priority of its pods, when they were so many
	of     int
}

// reservation is room that is reserved for a gang.
type reservation struct {
	key   cluster.GroupKey
	uid   string // of the group
	since time.Time
	nodes map[string]string // that its pods are nominated to, by the uids of these
	asOf  time.Time         // when it was looked last who has to end before; zero: not yet
	known time.Time         // when that was found out last
	// untried says that the last look took too long, or could not be reported: it is not looked again before its time.
	untried bool
	says    string // about that
}

// noteGroup notes what has come of an attempt to place a group, and says of the gang for which room is reserved that its pods stay nominated. The caller has the turn.
func (t *term) noteGroup(g *grouped, now time.Time) {
	r := &t.groups.reserve
	if r.after == 0 || !g.gang {
		return
	}
	preempted := g.nominated() && t.hasPreempted(g)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() {
		r.began = now
	}
	w := r.waits[g.key]
	switch {
	case g.failed(): // its pods are not nominated any more
		delete(r.waits, g.key)
		return
	case g.found.Placed: // or found only, if others were in between: review sees what has become of it
		return
	case g.group != nil && g.before >= int(g.group.MinCount):
		delete(r.waits, g.key)
		return
	case g.resp.GetPreempts():
		if w != nil {
			w.aside = true
		}
		return
	case len(g.open) == 0: // nothing is known
		return
	}
	if w == nil || w.uid != g.uid {
		if w == nil && len(r.waits) >= mostReserving {
			return
		}
		if r.waits == nil {
			r.waits = make(map[cluster.GroupKey]*groupWaiting)
		}
		w = &groupWaiting{uid: g.uid, since: now}
		r.waits[g.key] = w
		if r.held == nil && !g.found.Waits && g.nominated() && now.Sub(r.began) < adoptFor && !preempted { // a binder before has reserved room for it
			r.held = &reservation{key: g.key, uid: g.uid, since: now, known: now, nodes: make(map[string]string)}
			for _, p := range g.were {
				if p.Nominated != "" {
					r.held.nodes[p.UID] = p.Nominated
				}
			}
		}
	}
	w.lowest, w.of = math.MaxInt32, len(g.were)+g.before
	for i := range g.were {
		w.lowest = min(w.lowest, g.were[i].Priority)
	}
	if w.aside = g.found.Waits; r.held != nil && r.held.key == g.key {
		g.resp.Waits = true
		g.resp.Message = joined(g.resp.GetMessage(), r.held.says)
	} else {
		g.resp.Message = joined(g.resp.GetMessage(), w.why)
	}
}

// hasPreempted reports whether others have gone for a pod of a group, in this term: so it may be nominated for that.
func (t *term) hasPreempted(g *grouped) (has bool) {
	t.ledger.read(func(*cluster.State) {
		has = slices.ContainsFunc(g.were, func(p cluster.Pod) bool { _, ok := t.ledger.preempted[p.UID]; return ok })
	})
	return has
}

// failed reports whether an attempt came to an error.
func (g *grouped) failed() bool {
	for i := range g.outcomes {
		if g.outcomes[i].Outcome.GetResult() == binderv1.Outcome_RESULT_FAILED {
			return true
		}
	}
	return false
}

// reserveLane reserves room, and gives it back. An error ends the term.
func (t *term) reserveLane(ctx context.Context) error {
	if t.groups.reserve.after == 0 {
		return nil
	}
	defer t.metrics.groupReservations.Set(0)
	defer t.groups.leaveLine()
	return every(ctx, reserveEvery, func(now time.Time) error { return t.reserveRoom(ctx, now) })
}

// reserveRoom gives back what is reserved in vain, and reserves room for the gang whose turn it is. An error means a broken ledger.
func (t *term) reserveRoom(ctx context.Context, now time.Time) error {
	defer t.countReservations()
	// 1. What is reserved in vain?
	var next cluster.GroupKey
	look, priority := false, int32(0)
	err := t.ledger.update(func(tx *tx) error {
		r := &t.groups.reserve
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.began.IsZero() {
			r.began = now
		}
		back := t.review(tx.state)
		if !now.Before(r.rest) {
			next, priority, look = t.nextToReserve(tx.state, now)
		}
		return t.endNominations(back)
	})
	if err != nil || !look {
		t.groups.leaveLine()
		return err
	}
	// 2. Where would it go, and who has to end before?
	entered := time.Now()
	if !t.groups.awaitTurn(ctx, priority) {
		return nil
	}
	defer t.groups.turns.leave()
	began := time.Now()
	err = t.reserveFor(ctx, next, now)
	r := &t.groups.reserve
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rest = now.Add(began.Sub(entered) + restsFor*time.Since(began))
	return err
}

// awaitTurn waits for the turn of groups, for no longer than until it is time to look what is reserved in vain. False: it has not come yet, or ctx has ended; the place in line is kept for the next call. Only the lane calls it.
func (g *groups) awaitTurn(ctx context.Context, priority int32) bool {
	r := &g.reserve
	if r.inLine != priority {
		g.leaveLine()
	}
	if r.ready == nil {
		r.ready, r.inLine = g.turns.enter(priority), priority
	}
	ctx, cancel := context.WithTimeout(ctx, reserveEvery)
	defer cancel()
	select {
	case <-r.ready:
		r.ready = nil
		return true
	case <-ctx.Done():
		return false
	}
}

// leaveLine gives the lane's place in line up, if it has one. Only the lane calls it.
func (g *groups) leaveLine() {
	if r := &g.reserve; r.ready != nil {
		g.turns.giveUp(r.ready)
		r.ready = nil
	}
}

func (t *term) countReservations() {
	r := &t.groups.reserve
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0.0
	if r.held != nil {
		n = 1
	}
	t.metrics.groupReservations.Set(n)
}

// endNominations ends nominations. The caller holds the ledger's lock. An error means a broken ledger.
func (t *term) endNominations(pods []cluster.PodID) error {
	for _, report := range t.ledger.clearings(pods) {
		if !t.reports.add(report) { // the next report about the pod says it
			t.metrics.laneDropped.WithLabelValues(laneReports).Inc()
		}
	}
	for _, id := range pods {
		if err := t.ledger.fold.Nominate(id, ""); err != nil {
			return err
		}
	}
	return nil
}

// review forgets gangs that wait no more, gives the reservation up that is held in vain, and returns the pods whose nominations are to end: those of that, and those of groups of which nothing can be placed, whoever has nominated
// them. The caller holds the ledger's lock, and that of reservations.
func (t *term) review(st *cluster.State) (back []cluster.PodID) {
	r := &t.groups.reserve
	for key, w := range r.waits {
		if is := st.PodGroup(key); is == nil || is.UID != w.uid || !is.Gang || st.GroupPlaced(key) >= int(is.MinCount) || len(st.GroupPods(key)) == 0 {
			delete(r.waits, key)
		}
	}
	if h := r.held; h != nil {
		switch _, complete := t.openPods(st, h.key); {
		case st.GroupPreempting(h.key): // it has become a preemption's
			r.held = nil
		case r.waits[h.key] == nil, r.waits[h.key].uid != h.uid, !complete:
			back, r.held = h.nominated(st), nil
			t.log.Info("the room that was reserved for a PodGroup is given back", "podGroup", h.key.String())
		}
	}
	for name := range st.NominatedNodes() {
		for _, id := range st.NominatedOn(name) {
			row := st.Pod(id)
			key, named := cluster.GroupOf(&row.Pod)
			if !named || st.GroupPreempting(key) || st.Yields(row.Class) || t.ledger.profile(row) == nil {
				continue
			}
			switch is := st.PodGroup(key); {
			case is == nil && st.Unserved(key.Resource()) != nil: // nothing is known of it
			case is == nil, is.Untold != "", is.Gang && len(st.GroupPods(key))-st.GroupGated(key) < int(is.MinCount):
				back = append(back, id)
			}
		}
	}
	slices.Sort(back)
	return slices.Compact(back)
}

// nominated returns the pods of a reservation that are nominated by it.
func (h *reservation) nominated(st *cluster.State) (pods []cluster.PodID) {
	for _, id := range st.GroupPods(h.key) {
		if row := st.Pod(id); !row.Placed() && row.Nominated != "" && row.Nominated == h.nodes[row.UID] {
			pods = append(pods, id)
		}
	}
	return pods
}

// openPods returns the pods of a gang that may be placed, by id. Not complete: they are not as many as it wants, with those that have nodes, or may not be placed together. The caller holds the ledger's lock.
func (t *term) openPods(st *cluster.State, key cluster.GroupKey) (pods []cluster.PodID, complete bool) {
	scheduler, apart := "", false
	for _, id := range st.GroupPods(key) {
		row := st.Pod(id)
		if !row.Placed() && !row.Deleting && len(row.Gates) == 0 && !st.Yields(row.Class) && t.ledger.profile(row) != nil {
			name := st.Class(row.Class).Spec.SchedulerName
			apart = apart || len(pods) > 0 && name != scheduler || t.asks(st, row) != 0
			pods, scheduler = append(pods, id), name
		}
	}
	slices.Sort(pods)
	is := st.PodGroup(key)
	return pods, !apart && is != nil && is.Untold == "" && is.Gang && len(pods) > 0 && st.GroupPlaced(key)+len(pods) >= int(is.MinCount)
}

// nextToReserve returns for which gang it is to be looked for room, and by what priority: the first that has waited for long, unless another has a reservation that is not of a lower priority; or the one that has it, if it is time to
// look at that again. Gangs are looked at in rounds, in each of which all have their turn once: so those for which there is no room keep nobody behind them from theirs. The caller holds the ledger's lock, and that of reservations.
func (t *term) nextToReserve(st *cluster.State, now time.Time) (next cluster.GroupKey, priority int32, look bool) {
	r := &t.groups.reserve
	h, held, overdue := r.held, int32(0), time.Time{}
	if h != nil {
		held, overdue = t.groupPriority(st, h.key), h.asOf.Add(2*awaitEvery)
		if !now.Before(overdue) && r.ready == nil { // others of a higher priority have been looked at meanwhile; while the lane stands in line, they come first, each once
			return h.key, held, true
		}
	}
	// 1. In which order, by what is known of them? There may be many, and the ledger waits, so only those whose turn it is are asked for their pods.
	type turn struct {
		key      cluster.GroupKey
		w        *groupWaiting
		priority int32
		again    int // 1: it has had its turn in this round
	}
	var turns []turn
	for key, w := range r.waits {
		is := st.PodGroup(key)
		if is == nil || w.aside || now.Sub(w.since) < r.after || now.Sub(w.looked) < awaitEvery || h != nil && h.key == key || st.GroupPreempting(key) {
			continue
		}
		c := turn{key: key, w: w, priority: w.lowest}
		if len(st.GroupPods(key)) != w.of {
			c.priority = math.MaxInt32
		}
		if is.HasPriority {
			c.priority = min(c.priority, is.Priority)
		}
		if h != nil && (c.priority <= held || !now.Before(overdue) && !w.looked.Before(overdue)) {
			continue
		}
		if !w.looked.Before(r.round) {
			c.again = 1
		}
		turns = append(turns, c)
	}
	slices.SortFunc(turns, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.again, b.again), cmp.Compare(b.priority, a.priority), a.w.since.Compare(b.w.since), cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name))
	})
	// 2. Is that so?
	for _, c := range turns {
		pods, complete := t.openPods(st, c.key)
		if !complete {
			c.w.looked = now
			continue
		}
		p := whatif.GroupPriority(st, st.PodGroup(c.key), pods)
		if p < c.priority { // it has its turn by that
			c.w.lowest, c.w.of = p, len(st.GroupPods(c.key))
			continue
		}
		if c.again == 1 {
			r.round = now
		}
		return c.key, p, true
	}
	if h != nil && (now.Sub(h.asOf) >= awaitEvery || !h.untried && !h.whole(st)) {
		return h.key, held, true
	}
	return cluster.GroupKey{}, 0, false
}

// groupPriority is that by which a gang that waits holds room. The caller holds the ledger's lock.
func (t *term) groupPriority(st *cluster.State, key cluster.GroupKey) int32 {
	pods, _ := t.openPods(st, key)
	return whatif.GroupPriority(st, st.PodGroup(key), pods)
}

// whole reports whether all pods of a reservation that wait are nominated by it, to nodes that are there. Whether these take pods, cordoned ones say, is looked at in its time.
func (h *reservation) whole(st *cluster.State) bool {
	for _, id := range st.GroupPods(h.key) {
		row := st.Pod(id)
		name := h.nodes[row.UID]
		if row.Placed() || name == "" {
			continue
		}
		if row.Nominated != name || st.Nodes.ByName(name) == cluster.NoNode {
			return false
		}
	}
	return true
}

// reserveFor reserves room for a gang, or finds out what is awaited where it is reserved. The caller has the turn. An error means a broken ledger.
func (t *term) reserveFor(ctx context.Context, key cluster.GroupKey, now time.Time) error {
	r := &t.groups.reserve
	// 1. On the copy.
	var apply func() error
	var pods []cluster.PodID
	var uids []string
	keeps := false
	t.ledger.read(func(st *cluster.State) {
		apply = t.groups.follow(t.ledger)
		pods, _ = t.openPods(st, key)
		uids = uidsOf(st, pods)
		r.mu.Lock()
		defer r.mu.Unlock()
		keeps = r.held != nil && r.held.key == key && r.held.whole(st)
	})
	if apply() != nil || len(pods) == 0 { // the copy follows in any case
		return nil
	}
	var found whatif.GroupReservation
	ok, refused := false, false // it would not fit any more where it is reserved
	untried := t.onCopy(ctx, &grouped{key: key}, r.atMost, func(w *whatif.World) (err error) {
		if keeps {
			if found, keeps, err = whatif.AwaitGroup(w, key, pods, now.UnixNano()); keeps || found.Fits || err != nil {
				return err
			}
			refused = true
		}
		found, ok, err = whatif.ReserveGroup(w, key, pods, now.UnixNano())
		return err
	})
	if ctx.Err() != nil {
		return nil
	}
	// 2. Is it still about these pods?
	return t.ledger.update(func(tx *tx) error {
		st := tx.state
		r.mu.Lock()
		defer r.mu.Unlock()
		w, h := r.waits[key], r.held
		still, complete := t.openPods(st, key)
		if w == nil || !complete || st.GroupPreempting(key) || !slices.Equal(uidsOf(st, still), uids) || !slices.Equal(still, pods) {
			return nil
		}
		has := h != nil && h.key == key
		switch {
		case has && untried != nil && !refused && now.Sub(h.known) < keepFor: // what is not known holds as it did, for a while
			h.asOf, h.untried = now, true
			return nil
		case has && untried == nil && keeps:
			h.asOf, h.known, h.untried = now, now, false
			h.says = h.text(&found)
			return nil
		case ok:
			return t.nominateFor(st, key, pods, &found, now)
		}
		w.looked = now
		if w.why = ""; untried != nil {
			why := untried.Error()
			if errors.Is(untried, errLongSearch) {
				why = fmt.Sprintf("to look for it takes longer than %v", r.atMost)
			}
			w.why = "no room is reserved for it: " + why
		} else if !found.Fits {
			w.why = "no room is reserved for it: it would not fit either if all pods had ended that end by themselves"
		}
		if has {
			r.held = nil
			t.log.Info("the room that was reserved for a PodGroup is given back", "podGroup", key.String())
			return t.endNominations(h.nominated(st))
		}
		return nil
	})
}

func uidsOf(st *cluster.State, pods []cluster.PodID) (uids []string) {
	for _, id := range pods {
		uids = append(uids, st.Pod(id).UID)
	}
	return uids
}

// nominationsOf returns the nodes that pods are nominated to, by their uids.
func nominationsOf(st *cluster.State, pods []cluster.PodID) map[string]string {
	nodes := make(map[string]string)
	for _, id := range pods {
		if row := st.Pod(id); row.Nominated != "" {
			nodes[row.UID] = row.Nominated
		}
	}
	return nodes
}

// nominateFor nominates the pods of a gang to the nodes that have been found for it, in place of what is reserved already. The caller holds the ledger's lock, and that of reservations. An error means a broken ledger.
func (t *term) nominateFor(st *cluster.State, key cluster.GroupKey, pods []cluster.PodID, found *whatif.GroupReservation, now time.Time) error {
	r := &t.groups.reserve
	var reports []source.Report
	for n, id := range pods {
		if row := st.Pod(id); row.Nominated != found.Nodes[n] {
			report := reportOf(row, "", "")
			report.Nominate, report.Nominated = true, found.Nodes[n]
			reports = append(reports, report)
		}
	}
	if !t.reports.add(reports...) { // it is looked again, in its turn
		t.conflict(conflictBusy)
		if r.waits[key].looked = now; r.held != nil && r.held.key == key {
			r.held.asOf, r.held.untried = now, true
		}
		return nil
	}
	h := &reservation{key: key, uid: st.PodGroup(key).UID, since: now, asOf: now, known: now}
	if is := r.held; is != nil && is.key == key {
		h.since = is.since
	} else if is != nil {
		if err := t.endNominations(is.nominated(st)); err != nil {
			return err
		}
	}
	for n, id := range pods {
		if err := t.ledger.fold.Nominate(id, found.Nodes[n]); err != nil {
			return err
		}
	}
	h.nodes = nominationsOf(st, pods)
	h.says = h.text(found)
	r.held, r.waits[key].why = h, ""
	t.log.Info("room is reserved for a PodGroup", "podGroup", key.String(), "pods", len(h.nodes))
	return nil
}

// text says where room is reserved, and what is awaited.
func (h *reservation) text(found *whatif.GroupReservation) string {
	var nodes []string
	for _, node := range h.nodes {
		nodes = append(nodes, node)
	}
	return fmt.Sprintf("room is reserved for it since %s on %s", h.since.UTC().Format(time.RFC3339), found.Says(nodes))
}
