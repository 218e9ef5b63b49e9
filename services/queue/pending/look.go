package pending

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// look is one look at everything that was noted until it began. It may be done in parts, between which the state may change:
// each question is asked of the state as it is then, and what happens meanwhile is noted for the next look.
type look struct {
	since, until cluster.Seq // what it is about
	event        string      // by which pods come back

	related cluster.Seq // as of which pods of other nodes may matter to others than before

	listeners []listening  // whose hints are still to be given
	told      []*entry     // of the first of them, those that are still to be given them; nil: not known yet
	lists     []*claimList // of claims whose users may be concerned
	left      int          // how many claims of the first of them are still to be looked at, if inList
	inList    bool
	claims    []*claim // whose users are
	users     []*entry // of the first of them, those that are still to be brought back; nil: not known yet
	unsure    []*entry // that have changed or were released
	own       []*entry // with a node that matters by itself
	groups    []group

	// The nodes that a group is asked about, for those that are local and those that are not, and the next of them for the first
	// of groups.
	changed, touched []cluster.NodeIndex
	next             int
	relating         *relating // of the first of groups; nil: that is not being found out

	possible    map[engine.Signature]bool // answers so far
	preemptable map[question]bool
	bare        map[bare]bool // of pods with claims, as if they had none
}

// bare is a question about pods without their claims and a node: could those who have some be feasible there, or preempt?
type bare struct {
	class    cluster.ClassID
	priority int32
	preempts bool // some of them do
	node     cluster.NodeIndex
}

// aside is what has been noted for pods with claims. Each may have claims of its own, so that there may be a question for each of them and each
// node, where others share one: they are looked at when there is nobody else to look at.
type aside struct {
	changed  cluster.Bitmap
	any      bool
	doubtful bool
	since    cluster.Seq // the last look at them began then
}

// relating are the pods of a local group of which it is still to be found out whether other nodes matter to them by now.
type relating struct {
	since   cluster.Seq // what it has been found out of is of then, or later
	pods    []*entry
	answers map[cluster.LabelsID]bool // in a group, only labels differ
}

// group is a key of Queue.local or of Queue.crossNode.
type group struct {
	crossNode bool
	subject   engine.Subject
}

func (q *Queue) podsOf(g group) *unschedulablePods {
	if g.crossNode {
		return q.crossNode[g.subject]
	}
	return q.local[g.subject]
}

// Recheck brings back the pods that have been unschedulable for too long, and those that what Apply has noted could help. Apply
// only notes, so that the log does not wait, and many changes cost one look. To be called before Pop, with st the folded
// state.
func (q *Queue) Recheck(now time.Time, st *cluster.State) {
	q.RecheckUntil(now, st, func() bool { return false })
}

// RecheckUntil is Recheck in parts: it asks after each step, such as one question to the judge, whether it is enough for now,
// and if so returns false, to be called again. It takes at least one step each time. Once it has returned true, all that was
// noted before the first part has been looked at.
func (q *Queue) RecheckUntil(now time.Time, st *cluster.State, enough func() bool) (done bool) {
	if q.looking != nil || !q.flushing && q.beginLook(st) {
		if !q.goOn(now, st, q.looking, enough) {
			return false
		}
		q.notes.forget(q.looking.until)
		q.looking = nil
	}
	// Behind the look, as it counts those that nothing else brings back; ahead of that aside, which others may keep from its end.
	if q.flushing = !q.flush(now, enough); q.flushing {
		return false
	}
	if q.lookingAside != nil || q.beginAside(st) {
		if !q.goOn(now, st, q.lookingAside, enough) {
			return false
		}
		q.lookingAside = nil
	}
	return true
}

// Looks reports whether something has been noted by which unschedulable pods may come back, and has not been looked at to its end.
func (q *Queue) Looks() bool {
	return q.looking != nil || !q.notes.none() || q.looksAside()
}

// looksAside is Looks as far as only pods with claims may come back.
func (q *Queue) looksAside() bool { return q.lookingAside != nil || q.aside.any || q.aside.doubtful }

// goOn does the next steps of a look.
func (q *Queue) goOn(now time.Time, st *cluster.State, l *look, enough func() bool) (done bool) {
	return q.lookAtNodeless(now, st, l, enough) && q.giveHints(now, st, l, enough) && q.lookAtClaims(now, l, enough) &&
		q.lookAtPods(now, st, l, enough) && q.lookAtGroups(now, st, l, enough)
}

// beginLook takes the notes over. False: there are none.
func (q *Queue) beginLook(st *cluster.State) bool {
	n := &q.notes
	l := &look{
		since: q.looked, until: st.Version().Seq, related: n.related, event: cmp.Or(q.cause, q.event),
		possible: make(map[engine.Signature]bool), preemptable: make(map[question]bool),
	}
	q.looked = l.until
	if n.none() {
		return false
	}
	q.looking = l
	if n.events() {
		l.listeners = slices.Collect(maps.Keys(q.listeners))
	}
	l.claims = slices.Collect(maps.Keys(n.claims))
	for s := range n.sharing {
		l.lists = append(l.lists, &s.claims)
	}
	if n.anyClaim {
		l.lists, n.anyClaim = append(l.lists, &q.volumes.all), false
	}
	clear(n.sharing)
	clear(n.claims)
	l.unsure = slices.Collect(maps.Values(n.unsure))
	clear(n.unsure)
	if n.nominees {
		for id := range st.VolumeNominees() {
			if i := st.Nodes.ByName(st.Pod(id).Nominated); i != cluster.NoNode {
				n.changed = n.changed.Grow(st.Nodes.Len())
				n.changed.Set(i)
			}
		}
		n.nominees = false
	}
	q.aside.changed = q.aside.changed.Grow(len(n.changed) * 64)
	for w, word := range n.changed {
		q.aside.changed[w] |= word
		for ; word != 0; word &= word - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(word))
			l.changed = append(l.changed, i)
			l.own = slices.AppendSeq(l.own, maps.Values(q.own[st.Nodes.Spec[i].Name]))
		}
	}
	clear(n.changed)
	n.any = false
	related := n.related > l.since
	q.aside.any = q.aside.any || len(l.changed) > 0 || related
	if len(l.changed) > 0 || related {
		l.groups = groupsOf(l.groups, q.local, false, false)
	}
	if n.doubtful {
		n.doubtful, q.aside.doubtful = false, true
		st.Nodes.ChangedSince(l.since, everyNode, func(i cluster.NodeIndex) { l.touched = append(l.touched, i) })
		l.groups = groupsOf(l.groups, q.crossNode, true, false)
		l.own = slices.AppendSeq(l.own, maps.Values(q.ownCrossNode))
	}
	if related {
		l.own = nil
		for _, own := range q.own {
			l.own = slices.AppendSeq(l.own, maps.Values(own))
		}
	}
	return true
}

// groupsOf appends the groups that have claims, or those that have none.
func groupsOf(to []group, all map[engine.Subject]*unschedulablePods, crossNode, claims bool) []group {
	for s, waiting := range all {
		if waiting.claims == claims {
			to = append(to, group{crossNode, s})
		}
	}
	return to
}

// beginAside takes over what is noted for pods with claims. False: nothing.
func (q *Queue) beginAside(st *cluster.State) bool {
	a := &q.aside
	if !a.any && !a.doubtful {
		return false
	}
	l := &look{
		since: a.since, until: st.Version().Seq, related: q.notes.related, event: cmp.Or(q.cause, q.event),
		possible: make(map[engine.Signature]bool), preemptable: make(map[question]bool), bare: make(map[bare]bool),
	}
	a.since = l.until
	if a.any {
		l.groups = groupsOf(l.groups, q.local, false, true)
	}
	if a.doubtful {
		l.groups = groupsOf(l.groups, q.crossNode, true, true)
	}
	if len(l.groups) > 0 {
		for w, word := range a.changed {
			for ; word != 0; word &= word - 1 {
				l.changed = append(l.changed, cluster.NodeIndex(w*64+bits.TrailingZeros64(word)))
			}
		}
		st.Nodes.ChangedSince(l.since, everyNode, func(i cluster.NodeIndex) { l.touched = append(l.touched, i) })
		q.lookingAside = l
	}
	clear(a.changed)
	a.any, a.doubtful = false, false
	return q.lookingAside != nil
}

// lookAtNodeless brings back the pods that have waited for a node, if there is one.
func (q *Queue) lookAtNodeless(now time.Time, st *cluster.State, l *look, enough func() bool) bool {
	return st.Nodes.Count() == 0 || q.requeueAll(now, q.nodeless, l.event, enough)
}

func (q *Queue) requeueAll(now time.Time, ps pods, event string, enough func() bool) bool {
	for _, e := range ps {
		q.requeue(now, e, event)
		if enough() {
			return false
		}
	}
	return true
}

// giveHints gives the hints of the events.
func (q *Queue) giveHints(now time.Time, st *cluster.State, l *look, enough func() bool) bool {
	for ; len(l.listeners) > 0; l.listeners, l.told = l.listeners[1:], nil {
		key := l.listeners[0]
		ls := q.listeners[key]
		if ls == nil {
			continue
		}
		q.hintsFor(st, key, ls, l.until)
		if l.told == nil && !ls.silent() {
			l.told = slices.AppendSeq(make([]*entry, 0, len(ls.pods)), maps.Values(ls.pods))
		}
		for len(l.told) > 0 {
			e := l.told[0]
			l.told = l.told[1:]
			if ls.pods[e.id] == e && e.heard < l.until {
				if ev := ls.hint(st, e); ev.seq > 0 && e.place == Unschedulable && !e.held {
					q.requeue(now, e, ev.name)
				}
			}
			if enough() {
				return false
			}
		}
		if enough() {
			l.listeners, l.told = l.listeners[1:], nil
			return false
		}
	}
	return true
}

// lookAtPods looks at pods by themselves: those that have changed or were released, and those with a node of their own.
func (q *Queue) lookAtPods(now time.Time, st *cluster.State, l *look, enough func() bool) bool {
	for len(l.unsure) > 0 {
		e := l.unsure[0]
		l.unsure = l.unsure[1:]
		if q.waits(e) && q.missed(st, e) {
			q.requeue(now, e, l.event)
		}
		if enough() {
			return false
		}
	}
	for len(l.own) > 0 {
		e := l.own[0]
		l.own = l.own[1:]
		if q.waits(e) && e.wake == WhenFeasible {
			q.lookAtOwn(now, st, l, e)
		}
		if enough() {
			return false
		}
	}
	return true
}

// waits reports whether a pod is still in the queue, unschedulable, and not held back.
func (q *Queue) waits(e *entry) bool { return q.pods[e.id] == e && e.place == Unschedulable && !e.held }

// lookAtOwn brings a pod back if the node that matters by itself for it is feasible, or has changed and it could preempt there.
func (q *Queue) lookAtOwn(now time.Time, st *cluster.State, l *look, e *entry) {
	if q.relates(e) && q.judge.CrossNode(st, engine.SubjectOf(&e.pod)) {
		q.cross(l, e)
	}
	e.related = st.Version().Seq
	n := st.Nodes.ByName(e.node())
	if n != cluster.NoNode && q.helps(st, e, n, st.Nodes.Modified[n] > l.since) {
		q.requeue(now, e, l.event)
	}
}

// relates reports whether it is not known any more that what is on other nodes does not matter to a pod.
func (q *Queue) relates(e *entry) bool { return !e.crossNode && e.related < q.notes.related }

// cross has a pod looked at for what is on other nodes, from this look on.
func (q *Queue) cross(l *look, e *entry) {
	q.unlink(e)
	e.crossNode = true
	q.link(e)
	l.groups = append(l.groups, group{true, engine.SubjectOf(&e.pod)})
}

// findCrossNode finds the pods of a local group to which other nodes matter by now.
func (q *Queue) findCrossNode(st *cluster.State, l *look, waiting *unschedulablePods, enough func() bool) bool {
	for l.relating != nil || waiting.related < l.related {
		if l.relating == nil {
			l.relating = &relating{st.Version().Seq, slices.Collect(maps.Values(waiting.free)), make(map[cluster.LabelsID]bool)}
			waiting.related = l.relating.since // or less, if one comes meanwhile that has not been asked about for longer
		}
		r := l.relating
		for len(r.pods) > 0 {
			e := r.pods[0]
			r.pods = r.pods[1:]
			if waiting.free[e.id] == e && e.related < l.related {
				answer, known := r.answers[e.pod.Labels]
				if !known {
					answer = q.judge.CrossNode(st, engine.SubjectOf(&e.pod))
					r.answers[e.pod.Labels] = answer
				}
				if e.related = r.since; answer {
					q.cross(l, e)
				}
			}
			if enough() {
				return false
			}
		}
		l.relating = nil
	}
	return true
}

// lookAtGroups looks at the pods that may go anywhere.
func (q *Queue) lookAtGroups(now time.Time, st *cluster.State, l *look, enough func() bool) bool {
	for ; len(l.groups) > 0; l.groups, l.next, l.relating = l.groups[1:], 0, nil {
		look := q.lookAtLocal
		if l.groups[0].crossNode {
			look = q.lookAtCrossNode
		}
		if waiting := q.podsOf(l.groups[0]); waiting != nil && !look(now, st, l, waiting, enough) {
			return false
		}
	}
	return true
}

// lookAtLocal brings back the pods of a group that a node which has changed could help.
func (q *Queue) lookAtLocal(now time.Time, st *cluster.State, l *look, waiting *unschedulablePods, enough func() bool) bool {
	if !q.findCrossNode(st, l, waiting, enough) {
		return false
	}
	s := l.groups[0].subject
	for ; l.next < len(l.changed) && len(waiting.free) > 0; l.next++ {
		n := l.changed[l.next]
		if st.Nodes.Live.Has(n) && (!waiting.claims || q.helpsBare(st, l, waiting, s, n)) {
			if q.judge.Feasible(st, s, cluster.NoPod, n) {
				return q.requeueAll(now, waiting.free, l.event, enough)
			}
			if self := waiting.preemptors.any(); self != nil && q.judge.Preemptable(st, s, self.id, n) &&
				!q.requeueAll(now, waiting.preemptors, l.event, enough) {
				return false
			}
		}
		if enough() {
			l.next++
			return false
		}
	}
	return true
}

// helpsBare reports whether a node could help the pods of a group if they had no claims: else it cannot help them. That is one question for
// all that differ only in their claims.
func (q *Queue) helpsBare(st *cluster.State, l *look, waiting *unschedulablePods, s engine.Subject, n cluster.NodeIndex) bool {
	s.Labels = cluster.NoLabels
	self := waiting.preemptors.any()
	this := bare{s.Class, s.Priority, self != nil, n}
	helps, known := l.bare[this]
	if !known {
		helps = q.judge.Feasible(st, s, cluster.NoPod, n) || self != nil && q.judge.Preemptable(st, s, self.id, n)
		if l.bare != nil {
			l.bare[this] = helps
		}
	}
	return helps
}

// lookAtCrossNode brings back the pods of a group that fit somewhere, or could preempt on a node that has changed.
func (q *Queue) lookAtCrossNode(now time.Time, st *cluster.State, l *look, waiting *unschedulablePods, enough func() bool) bool {
	s := l.groups[0].subject
	signature := q.judge.Signature(st, s)
	possible, known := l.possible[signature]
	if !known {
		possible = q.judge.Possible(st, s)
		l.possible[signature] = possible
	}
	if possible {
		return q.requeueAll(now, waiting.free, l.event, enough)
	}
	if !known && enough() {
		return false
	}
	this := question{signature: signature, priority: s.Priority}
	can, known := l.preemptable[this]
	for ; !known && l.next < len(l.touched); l.next++ {
		self := waiting.preemptors.any()
		if self == nil {
			return true
		}
		n := l.touched[l.next]
		if st.Nodes.Live.Has(n) && q.judge.Preemptable(st, s, self.id, n) {
			can = true
			break
		}
		if enough() {
			l.next++
			return false
		}
	}
	l.preemptable[this] = can
	return !can || q.requeueAll(now, waiting.preemptors, l.event, enough)
}
