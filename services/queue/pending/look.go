package pending

import (
	"cmp"
	"math/bits"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// look is one look at everything that was noted until it began. It may be done in parts, between which the state may change:
// each question is asked of the state as it is then, and what happens meanwhile is noted for the next look. What it goes through are
// the tables that the queue keeps, as they are by then, and nothing is collected of them: a part takes as long as its steps.
type look struct {
	number       uint64      // from 1
	since, until cluster.Seq // what it is about
	event        string      // by which pods come back

	related cluster.Seq // as of which pods of other nodes may matter to others than before

	stages  stages // that are still to be done
	changed []cluster.NodeIndex
	touched []cluster.NodeIndex // those where pods to which other nodes matter may preempt by now
	helping []cluster.NodeIndex // of changed, those that could help the pods of a kind if they had no claims

	possible    map[engine.Signature]bool // answers so far
	preemptable map[question]bool
}

// aside is the unschedulable pods with claims that a node may bring back, and what has been noted for them. Each may have claims of its own, so
// that there may be a question for each of them and each node, where others share one: they are looked at when there is nobody else to look at.
type aside struct {
	kinds     table[engine.Subject, *kind]              // as Queue.local, by their subjects but for labels
	crossNode table[engine.Subject, *unschedulablePods] // as Queue.crossNode
	sleeping  priorities

	changed  cluster.Bitmap
	any      bool // there are such nodes, or pods of other nodes may matter to others than before
	doubtful bool
	since    cluster.Seq // the last look at them began then

	waits time.Time // since when nothing but they is to be looked at, and they are
	late  bool      // that is for long
}

// asideHolds is for how long others wait for a look at pods with claims, which may come one after the other without an end.
const asideHolds = 50 * time.Millisecond

// kind is pods that differ only in their claims.
type kind struct {
	subject    engine.Subject // without labels
	groups     table[engine.Subject, *unschedulablePods]
	preemptors pods        // of all groups
	related    cluster.Seq // as unschedulablePods.related
	asOf       cluster.Seq // as unschedulablePods.asOf
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
	done = q.recheck(now, st, enough)
	switch a := &q.aside; {
	case !q.looksAside():
		a.waits, a.late = time.Time{}, false
	case q.looking == nil && a.waits.IsZero():
		a.waits = now
	case !a.waits.IsZero():
		a.late = now.Sub(a.waits) >= asideHolds
	}
	return done
}

// goOn does the next steps of a look.
func (q *Queue) goOn(now time.Time, st *cluster.State, l *look, enough func() bool) (done bool) {
	return l.stages.run(now, st, enough)
}

func (q *Queue) recheck(now time.Time, st *cluster.State, enough func() bool) (done bool) {
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

// beginLook takes the notes over. False: there are none.
func (q *Queue) beginLook(st *cluster.State) bool {
	n, a, since := &q.notes, &q.aside, q.looked
	if q.looked = st.Version().Seq; n.none() {
		return false
	}
	l := q.newLook(st, since)
	q.looking = l
	l.stages.add(q.lookAtNodeless(l))
	if n.anything {
		n.anything = false
		l.stages.add(each(&q.anything, func(now time.Time, _ *cluster.State, e *entry) {
			if !l.knows(e.asOf) {
				q.requeue(now, e, l.event)
			}
		}))
	}
	if n.events() {
		l.stages.add(q.giveHints(l))
	}
	q.beginWithClaims(l)
	q.beginWithPods(l)
	a.changed = a.changed.Grow(len(n.changed) * 64)
	for w, word := range n.changed {
		a.changed[w] |= word
	}
	l.changed = nodesOf(n.changed)
	related := n.related > l.since
	if n.doubtful = n.doubtful || related || len(l.changed) > 0; n.doubtful {
		l.touched = touchedSince(st, l.since)
	}
	if related || len(l.changed) > 0 {
		a.any = true
		q.beginWithOwn(l, related)
		l.stages.add(through(&q.local, func(g *unschedulablePods) stage { return q.lookAtLocal(l, g, l.changed) }))
	}
	if n.doubtful {
		a.doubtful = true
		l.stages.add(each(&q.ownCrossNode, q.lookAtOwn(l)))
		l.stages.add(through(&q.crossNode, func(g *unschedulablePods) stage { return q.lookAtCrossNode(l, g) }))
	}
	clear(n.changed)
	n.any, n.doubtful = false, false
	return true
}

func (q *Queue) newLook(st *cluster.State, since cluster.Seq) *look {
	q.looks++
	return &look{
		number: q.looks, since: since, until: st.Version().Seq, related: q.notes.related, event: cmp.Or(q.cause, q.event),
		possible: make(map[engine.Signature]bool), preemptable: make(map[question]bool),
	}
}

func nodesOf(set cluster.Bitmap) (nodes []cluster.NodeIndex) {
	for w, word := range set {
		for ; word != 0; word &= word - 1 {
			nodes = append(nodes, cluster.NodeIndex(w*64+bits.TrailingZeros64(word)))
		}
	}
	return nodes
}

func touchedSince(st *cluster.State, since cluster.Seq) (nodes []cluster.NodeIndex) {
	st.Nodes.ChangedSince(since, everyNode, func(i cluster.NodeIndex) { nodes = append(nodes, i) })
	return nodes
}

// beginAside takes over what is noted for pods with claims. False: nothing.
func (q *Queue) beginAside(st *cluster.State) bool {
	a := &q.aside
	if !a.any && !a.doubtful {
		return false
	}
	since := a.since
	a.since = q.looked // what is later has been noted, but is handed on to the next look aside only
	if a.kinds.len()+a.crossNode.len() > 0 {
		l := q.newLook(st, since)
		l.changed, l.touched = nodesOf(a.changed), touchedSince(st, l.since)
		if a.any {
			l.stages.add(through(&a.kinds, func(k *kind) stage { return q.lookAtKind(l, k) }))
		}
		l.stages.add(through(&a.crossNode, func(g *unschedulablePods) stage { return q.lookAtCrossNode(l, g) }))
		q.lookingAside = l
	}
	clear(a.changed)
	a.any, a.doubtful = false, false
	return q.lookingAside != nil
}

// lookAtNodeless brings back the pods that have waited for a node, if there is one.
func (q *Queue) lookAtNodeless(l *look) stage {
	return func(now time.Time, st *cluster.State, enough func() bool) bool {
		return st.Nodes.Count() == 0 || q.requeueAll(now, &q.nodeless, l.event, enough)
	}
}

func (q *Queue) requeueAll(now time.Time, ps *pods, event string, enough func() bool) bool {
	for e := ps.last(); e != nil; e = ps.last() {
		q.requeue(now, e, event)
		if enough() {
			return false
		}
	}
	return true
}

// giveHints gives the hints of the events.
func (q *Queue) giveHints(l *look) stage {
	return through(&q.listeners, func(ls *listeners) stage {
		return func(now time.Time, st *cluster.State, enough func() bool) bool {
			if !q.hear(st, ls, l.until, enough) {
				return false
			}
			if ls.toldBy != l.number {
				ls.toldBy = l.number
				ls.pods.begin()
			}
			if ls.silent() {
				return true
			}
			for e, ok := ls.pods.next(); ok; e, ok = ls.pods.next() {
				if e.heard < l.until {
					if ev := ls.hint(st, e); ev.seq > 0 && e.place == Unschedulable && !e.held {
						q.requeue(now, e, ev.name)
					}
				}
				if enough() {
					return false
				}
			}
			return true
		}
	})
}

// beginWithPods adds the pods that have changed or were released.
func (q *Queue) beginWithPods(l *look) {
	unsure := q.notes.unsure
	q.notes.unsure = pods{}
	l.stages.add(each(&unsure, func(now time.Time, st *cluster.State, e *entry) {
		if q.waits(e) && q.missed(st, e) {
			q.requeue(now, e, l.event)
		}
	}))
}

// beginWithOwn adds the pods with a node that matters by itself, and has changed; or all, if pods of other nodes may matter to others than before.
func (q *Queue) beginWithOwn(l *look, related bool) {
	if q.own.len() == 0 {
		return
	}
	lookAt := q.lookAtOwn(l)
	if related {
		l.stages.add(through(&q.own.table, func(ps *pods) stage { return each(ps, lookAt) }))
		return
	}
	next := 0
	var of stage
	l.stages.add(func(now time.Time, st *cluster.State, enough func() bool) bool {
		for ; next < len(l.changed) || of != nil; of = nil {
			if of == nil {
				if ps := q.own.get(st.Nodes.Spec[l.changed[next]].Name); ps != nil {
					of = each(ps, lookAt)
				}
				next++
			}
			if of != nil && !of(now, st, enough) {
				return false
			}
			if enough() {
				of = nil
				return false
			}
		}
		return true
	})
}

// waits reports whether a pod is still in the queue, unschedulable, and not held back.
func (q *Queue) waits(e *entry) bool { return q.pods[e.id] == e && e.place == Unschedulable && !e.held }

// knows reports whether pods that have been compared with what has happened until then know of all that the look is about. Such come amid it, and
// without an end if their attempts end as fast as it asks about them.
func (l *look) knows(asOf cluster.Seq) bool { return asOf >= l.until }

// lookAtOwn brings a pod back if the node that matters by itself for it is feasible, or has changed and it could preempt there.
func (q *Queue) lookAtOwn(l *look) func(now time.Time, st *cluster.State, e *entry) {
	return func(now time.Time, st *cluster.State, e *entry) {
		if l.knows(e.asOf) {
			return
		}
		if q.relates(e) && q.judge.CrossNode(st, engine.SubjectOf(&e.pod)) {
			q.cross(e)
		}
		e.related = st.Version().Seq
		n := st.Nodes.ByName(e.node())
		if n != cluster.NoNode && q.helps(st, e, n, st.Nodes.Modified[n] > l.since) {
			q.requeue(now, e, l.event)
		}
	}
}

// relates reports whether it is not known any more that what is on other nodes does not matter to a pod.
func (q *Queue) relates(e *entry) bool { return !e.crossNode && e.related < q.notes.related }

// cross has a pod looked at for what is on other nodes. A look that finds such a pod goes through those that are known to be such afterwards.
func (q *Queue) cross(e *entry) {
	q.unlink(e)
	e.crossNode = true
	q.link(e)
}

// findCrossNode finds the pods of a local group to which other nodes matter by now.
func (q *Queue) findCrossNode(l *look, g *unschedulablePods) stage {
	var walk stage
	return func(now time.Time, st *cluster.State, enough func() bool) bool {
		for ; walk != nil || g.related < l.related; walk = nil {
			if walk == nil {
				since, answers := st.Version().Seq, make(map[cluster.LabelsID]bool) // in a group, only labels differ
				g.related = since                                                   // or less, if one comes meanwhile that has not been asked about for longer
				walk = each(&g.free, func(_ time.Time, st *cluster.State, e *entry) {
					if e.related >= l.related {
						return
					}
					answer, known := answers[e.pod.Labels]
					if !known {
						answer = q.judge.CrossNode(st, engine.SubjectOf(&e.pod))
						answers[e.pod.Labels] = answer
					}
					if e.related = since; answer {
						q.cross(e)
					}
				})
			}
			if !walk(now, st, enough) {
				return false
			}
		}
		return true
	}
}

// lookAtLocal brings back the pods of a group that one of some nodes could help.
func (q *Queue) lookAtLocal(l *look, g *unschedulablePods, nodes []cluster.NodeIndex) stage {
	next, fits, relations, wake := 0, false, q.findCrossNode(l, g), q.wakeThatFit(l, &g.free)
	return func(now time.Time, st *cluster.State, enough func() bool) bool {
		if l.knows(g.asOf) {
			return true
		}
		if g.related < l.related {
			wake = q.wakeThatFit(l, &g.free) // a table is walked once at a time
		}
		if !relations(now, st, enough) {
			return false
		}
		for ; !fits && next < len(nodes) && g.free.len() > 0; next++ {
			n := nodes[next]
			if st.Nodes.Live.Has(n) {
				if fits = q.judge.Feasible(st, g.subject, cluster.NoPod, n); fits {
					break
				}
				if self := g.preemptors.last(); self != nil && q.judge.Preemptable(st, g.subject, self.id, n) &&
					!q.requeueAll(now, &g.preemptors, l.event, enough) {
					return false
				}
			}
			if enough() {
				next++
				return false
			}
		}
		return !fits || wake(now, st, enough)
	}
}

// wakeThatFit brings back pods, for whose signature a node has been found that fits. One that is nominated to a node is asked about itself: where that is
// the node which was found, it is there already to others, which may suit it.
func (q *Queue) wakeThatFit(l *look, ps *pods) stage {
	return each(ps, func(now time.Time, st *cluster.State, e *entry) {
		if e.pod.Nominated == "" || q.fits(st, e) || e.resigns && q.helped(st, e) {
			q.requeue(now, e, l.event)
		}
	})
}

// lookAtKind brings back the pods of a kind that a node which has changed could help. A node that could not help them if they had no claims
// cannot help them: that is one question for all of them.
func (q *Queue) lookAtKind(l *look, k *kind) stage {
	l.helping = l.helping[:0]
	next := 0
	var groups stage
	return func(now time.Time, st *cluster.State, enough func() bool) bool {
		if l.knows(k.asOf) {
			return true
		}
		for ; next < len(l.changed); next++ {
			if n := l.changed[next]; st.Nodes.Live.Has(n) && q.helpsBare(st, k, n) {
				l.helping = append(l.helping, n)
			}
			if enough() {
				next++
				return false
			}
		}
		if groups == nil {
			if len(l.helping) == 0 && k.related >= l.related {
				return true
			}
			k.related = st.Version().Seq
			groups = through(&k.groups, func(g *unschedulablePods) stage { return q.lookAtLocal(l, g, l.helping) })
		}
		return groups(now, st, enough)
	}
}

func (q *Queue) helpsBare(st *cluster.State, k *kind, n cluster.NodeIndex) bool {
	if q.judge.Feasible(st, k.subject, cluster.NoPod, n) {
		return true
	}
	self := k.preemptors.last()
	return self != nil && q.judge.Preemptable(st, k.subject, self.id, n)
}

// lookAtCrossNode brings back the pods of a group that fit somewhere, or could preempt on a node that has changed.
func (q *Queue) lookAtCrossNode(l *look, g *unschedulablePods) stage {
	next, wake := 0, q.wakeThatFit(l, &g.free)
	return func(now time.Time, st *cluster.State, enough func() bool) bool {
		if l.knows(g.asOf) {
			return true
		}
		signature := q.judge.Signature(st, g.subject)
		possible, known := l.possible[signature]
		if !known {
			possible = q.judge.Possible(st, g.subject, cluster.NoNode)
			l.possible[signature] = possible
		}
		if possible {
			return wake(now, st, enough)
		}
		if !known && enough() {
			return false
		}
		this := question{signature: signature, priority: g.subject.Priority}
		can, known := l.preemptable[this]
		for ; !known && next < len(l.touched); next++ {
			self := g.preemptors.last()
			if self == nil {
				return true
			}
			if n := l.touched[next]; st.Nodes.Live.Has(n) && q.judge.Preemptable(st, g.subject, self.id, n) {
				can = true
				break
			}
			if enough() {
				next++
				return false
			}
		}
		l.preemptable[this] = can
		return !can || q.requeueAll(now, &g.preemptors, l.event, enough)
	}
}
