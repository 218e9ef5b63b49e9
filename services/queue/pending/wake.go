package pending

import (
	"cmp"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Wake says what can bring an unschedulable pod back, besides the flush.
type Wake uint8

// What can bring an unschedulable pod back. A change of the pod itself can, too.
const (
	WhenFeasible Wake = iota // something has changed by which it is feasible, could preempt, or has come closer to it
	WhenAnyNode              // the cluster has a node
	WhenChanged              // nothing else
)

// Judge says where pods can run, in a state.
type Judge interface {
	// Feasible reports whether a node can run pods of a subject. Self is the pod it is about, whose own nomination does
	// not count against it, or cluster.NoPod.
	Feasible(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) bool
	// Preemptable reports whether a node could if pods of lower priority were gone. Self is a pending pod that stands for
	// those it is about: it may go to the same nodes, and preempts or does not as they do.
	Preemptable(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) bool
	// Possible reports whether any node can.
	Possible(st *cluster.State, s engine.Subject) bool
	// CrossNode reports whether what is on one node can decide whether another can. Unless it does, labels play no part.
	// It changes only when the terms of classes, a namespace or a selector do.
	CrossNode(st *cluster.State, s engine.Subject) bool
	// Signature tells subjects apart that are judged differently in this state.
	Signature(st *cluster.State, s engine.Subject) engine.Signature
}

// unschedulablePods are unschedulable pods that come back when they are feasible or may preempt, of one subject.
type unschedulablePods struct {
	free       pods // those that may go anywhere
	preemptors pods // of these, those that preempt if they can
	// own are those with a node that matters by itself, by its name. A pod that is nominated is in both.
	own map[string]pods
}

type pods map[cluster.PodID]*entry

// node returns the name of the node that matters by itself for the pod, "" if there is none.
func (e *entry) node() string { return cmp.Or(e.pod.RequiredNode, e.pod.Nominated) }

// preempts reports whether an unschedulable pod would preempt if it could. One that is nominated has done so already: it waits for
// its victims.
func (e *entry) preempts() bool { return e.pod.Nominated == "" && !e.pod.NeverPreempts }

// any returns one of the pods, or nil if there is none.
func (ps pods) any() *entry {
	for _, e := range ps {
		return e
	}
	return nil
}

// Recheck brings back the pods that have been unschedulable for too long, and those that are feasible by what has changed
// on other nodes than the one they fit on. Apply only notes that there was a change, so that many changes cost one look.
// To be called before Pop, with st the folded state.
func (q *Queue) Recheck(now time.Time, st *cluster.State) {
	q.flush(now)
	since := q.checked
	q.checked = st.Version().Seq
	if !q.doubtful {
		return
	}
	q.doubtful = false
	possible := q.perSignature(st, q.judge.Possible)
	preemptable := make(map[look]bool)
	for s, waiting := range q.crossNode {
		if len(waiting.free) > 0 && possible(s) {
			q.requeueAll(now, waiting.free)
		} else if self := waiting.preemptors.any(); self != nil {
			this := look{signature: q.judge.Signature(st, s), priority: s.Priority}
			can, known := preemptable[this]
			if !known {
				can = anyChanged(st, since, func(n cluster.NodeIndex) bool { return q.judge.Preemptable(st, s, self.id, n) })
				preemptable[this] = can
			}
			if can {
				q.requeueAll(now, waiting.preemptors)
			}
		}
		for name := range waiting.own {
			if n := st.Nodes.ByName(name); n != cluster.NoNode {
				q.requeueOwn(now, st, waiting, n, st.Nodes.Modified[n] > since)
			}
		}
	}
}

// perSignature returns a function that asks about each signature once. It is good for one state.
func (q *Queue) perSignature(st *cluster.State, ask func(*cluster.State, engine.Subject) bool) func(engine.Subject) bool {
	known := make(map[engine.Signature]bool)
	return func(s engine.Subject) bool {
		signature := q.judge.Signature(st, s)
		answer, ok := known[signature]
		if !ok {
			answer = ask(st, s)
			known[signature] = answer
		}
		return answer
	}
}

// wake brings back the pods that the last delta could help: those that are feasible on a node it changed, or could preempt
// there.
func (q *Queue) wake(now time.Time, st *cluster.State) {
	if st.Nodes.Count() > 0 {
		q.requeueAll(now, q.nodeless)
	}
	if len(q.local)+len(q.crossNode) == 0 {
		return
	}
	st.Nodes.ChangedSince(st.Version().Seq-1, everyNode, func(n cluster.NodeIndex) {
		q.doubtful = true
		if st.Nodes.Live.Has(n) {
			q.wakeOn(now, st, n)
		}
	})
}

// wakeOn brings back the pods that a change of one node could help.
func (q *Queue) wakeOn(now time.Time, st *cluster.State, n cluster.NodeIndex) {
	for s, waiting := range q.local {
		if len(waiting.free) > 0 && q.judge.Feasible(st, s, cluster.NoPod, n) {
			q.requeueAll(now, waiting.free)
		} else if self := waiting.preemptors.any(); self != nil && q.judge.Preemptable(st, s, self.id, n) {
			q.requeueAll(now, waiting.preemptors)
		}
		q.requeueOwn(now, st, waiting, n, true)
	}
}

// findCrossNode finds the unschedulable pods that are now judged by more than one node: by what the last delta told of terms,
// namespaces and selectors, pods of other nodes can be in their way from here on.
func (q *Queue) findCrossNode(st *cluster.State) {
	q.doubtful = true
	var found []*entry
	crossNode := q.perSignature(st, q.judge.CrossNode)
	for _, waiting := range q.local {
		for _, e := range waiting.free {
			if crossNode(engine.SubjectOf(&e.pod)) {
				found = append(found, e)
			}
		}
		for _, own := range waiting.own {
			for _, e := range own {
				if e.pod.RequiredNode != "" && crossNode(engine.SubjectOf(&e.pod)) {
					found = append(found, e)
				}
			}
		}
	}
	for _, e := range found {
		q.unlink(e)
		e.crossNode = true
		q.link(e)
	}
}

func (q *Queue) requeueAll(now time.Time, ps pods) {
	for _, e := range ps {
		q.requeue(now, e, q.event)
	}
}

// requeueOwn brings back the pods for which a node matters by itself, if it is feasible, or if it has changed and they
// could preempt there.
func (q *Queue) requeueOwn(now time.Time, st *cluster.State, waiting *unschedulablePods, n cluster.NodeIndex, changed bool) {
	for _, e := range waiting.own[st.Nodes.Spec[n].Name] {
		if q.helps(st, e, n, changed) {
			q.requeue(now, e, q.event)
		}
	}
}

// wakeNominees brings back the pods that are nominated to a node which a pod has left, if nobody is on the way out of it any more:
// what they waited for has happened, and they may not fit all the same. Others have taken the room, or it was never enough.
func (q *Queue) wakeNominees(now time.Time, st *cluster.State, node string) {
	for _, e := range q.nominees {
		if e.pod.Nominated != node || !victimsGone(st, e) {
			continue
		}
		e.again = true // if its attempt is running, or it is held back
		if e.place == Unschedulable && !e.held {
			q.requeue(now, e, q.event)
		}
	}
}

// victimsGone reports whether no pod of lower priority is on the way out of the node that a pod is nominated to.
func victimsGone(st *cluster.State, e *entry) bool {
	for _, other := range st.PodsOn(st.Nodes.ByName(e.pod.Nominated)) {
		if other.Priority < e.pod.Priority && (other.Victim || other.Deleting && other.Preempted) {
			return false
		}
	}
	return true
}

// helps reports whether a pod fits a node, or it has changed and the pod could preempt there.
func (q *Queue) helps(st *cluster.State, e *entry, n cluster.NodeIndex, changed bool) bool {
	s := engine.SubjectOf(&e.pod)
	return q.judge.Feasible(st, s, e.id, n) || changed && e.preempts() && q.judge.Preemptable(st, s, e.id, n)
}

// fits reports whether a pod is feasible on any node.
func (q *Queue) fits(st *cluster.State, e *entry) bool {
	s := engine.SubjectOf(&e.pod)
	if n := st.Nodes.ByName(e.node()); n != cluster.NoNode && q.judge.Feasible(st, s, e.id, n) {
		return true
	}
	return e.pod.RequiredNode == "" && q.judge.Possible(st, s)
}

// helped reports whether a pod fits a node that has changed since it was evaluated, or could preempt there. The state
// remembers for each node when it changed last, so this needs no list of changes and cannot overflow.
func (q *Queue) helped(st *cluster.State, e *entry) bool {
	switch e.wake {
	case WhenChanged:
		return false
	case WhenAnyNode:
		return st.Nodes.Count() > 0
	}
	since := e.evaluated.Seq
	if e.evaluated.Epoch != st.Version().Epoch {
		since = -1 // of another log: everything may have changed
	}
	if n := st.Nodes.ByName(e.node()); n != cluster.NoNode && st.Nodes.Modified[n] > since && q.helps(st, e, n, true) {
		return true
	}
	if e.pod.RequiredNode != "" {
		return false
	}
	// One look for all pods of a signature that are unschedulable in this state.
	if q.looked != st.Version() {
		q.looked, q.looks = st.Version(), make(map[look]bool)
	}
	s := engine.SubjectOf(&e.pod)
	this := look{q.judge.Signature(st, s), e.pod.Priority, e.preempts(), since}
	found, known := q.looks[this]
	if !known {
		found = anyChanged(st, since, func(n cluster.NodeIndex) bool {
			return q.judge.Feasible(st, s, cluster.NoPod, n) || e.preempts() && q.judge.Preemptable(st, s, e.id, n)
		})
		q.looks[this] = found
	}
	return found
}

// anyChanged reports whether something holds for a node that has changed since.
func anyChanged(st *cluster.State, since cluster.Seq, holds func(cluster.NodeIndex) bool) (found bool) {
	st.Nodes.ChangedSince(since, everyNode, func(n cluster.NodeIndex) {
		found = found || st.Nodes.Live.Has(n) && holds(n)
	})
	return found
}

// look is a question to the judge: can a signature run on a node that has changed since, or preempt there?
type look struct {
	signature engine.Signature
	priority  int32
	preempts  bool
	since     cluster.Seq
}

var everyNode = cluster.Range{End: cluster.MaxIndex}

// link and unlink keep the counts and the indexes of the place that a pod is in, and of what is against it.
func (q *Queue) link(e *entry) {
	q.counts[e.place]++
	q.rejections.add(e, 1)
	if h := q.order(e); h != nil {
		h.add(e)
	}
	if key, ok := e.listens(); ok {
		if q.listeners[key] == nil {
			q.listeners[key] = &listeners{pods: make(pods)}
		}
		q.listeners[key].pods[e.id] = e
	}
	if e.pod.Nominated != "" {
		q.nominees[e.id] = e
	}
	if e.place != Unschedulable || e.held || e.wake == WhenChanged {
		return
	}
	if e.wake == WhenAnyNode {
		q.nodeless[e.id] = e
		return
	}
	group, s := q.siblings(e)
	waiting := group[s]
	if waiting == nil {
		waiting = &unschedulablePods{free: make(pods), preemptors: make(pods), own: make(map[string]pods)}
		group[s] = waiting
	}
	if e.pod.RequiredNode == "" {
		waiting.free[e.id] = e
		if e.preempts() {
			waiting.preemptors[e.id] = e
		}
	}
	if name := e.node(); name != "" {
		if waiting.own[name] == nil {
			waiting.own[name] = make(pods)
		}
		waiting.own[name][e.id] = e
	}
}

func (q *Queue) unlink(e *entry) {
	q.counts[e.place]--
	q.rejections.add(e, -1)
	if h := q.order(e); h != nil {
		h.remove(e)
	}
	if key, ok := e.listens(); ok {
		if ls := q.listeners[key]; ls != nil {
			if delete(ls.pods, e.id); len(ls.pods) == 0 {
				delete(q.listeners, key)
			}
		}
	}
	delete(q.nominees, e.id)
	if e.place != Unschedulable {
		return
	}
	delete(q.nodeless, e.id)
	group, s := q.siblings(e)
	waiting := group[s]
	if waiting == nil {
		return
	}
	delete(waiting.free, e.id)
	delete(waiting.preemptors, e.id)
	name := e.node()
	delete(waiting.own[name], e.id)
	if len(waiting.own[name]) == 0 {
		delete(waiting.own, name)
	}
	if len(waiting.free)+len(waiting.own) == 0 {
		delete(group, s)
	}
}

// siblings returns where pods like this one are kept while they are unschedulable, and under which subject.
func (q *Queue) siblings(e *entry) (map[engine.Subject]*unschedulablePods, engine.Subject) {
	s := engine.SubjectOf(&e.pod)
	if e.crossNode {
		return q.crossNode, s
	}
	s.Labels = cluster.NoLabels
	return q.local, s
}
