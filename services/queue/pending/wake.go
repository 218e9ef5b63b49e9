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
	// Preempts reports whether a pending pod may preempt now, or why not.
	Preempts(st *cluster.State, pod cluster.PodID) (why string, ok bool)
	// Possible reports whether any node can.
	Possible(st *cluster.State, s engine.Subject) bool
	// CrossNode reports whether what is on one node can decide whether another can. Unless it does, labels play no part, but for claims.
	// It changes only when the terms of classes, a namespace or a selector do.
	CrossNode(st *cluster.State, s engine.Subject) bool
	// Signature tells subjects apart that are judged differently in this state.
	Signature(st *cluster.State, s engine.Subject) engine.Signature
}

// unschedulablePods are unschedulable pods of one subject that come back when they are feasible or may preempt, and may go
// anywhere. Those with a node that matters by itself are in Queue.own; a pod that is nominated is in both.
type unschedulablePods struct {
	free       pods
	preemptors pods        // of these, those that preempt if they can
	related    cluster.Seq // as of which it is known of all of them whether they are crossNode
	claims     bool        // they have some, and so are of one label set
}

type pods map[cluster.PodID]*entry

// node returns the name of the node that matters by itself for the pod, "" if there is none.
func (e *entry) node() string { return cmp.Or(e.pod.RequiredNode, e.pod.Nominated) }

// preempts reports whether an unschedulable pod would preempt if it could. One that is nominated has done so already: it waits for
// its victims, unless it is about to be nominated no more.
func (e *entry) preempts() bool { return (e.pod.Nominated == "" || e.resigns) && !e.pod.NeverPreempts }

// any returns one of the pods, or nil if there is none.
func (ps pods) any() *entry {
	for _, e := range ps {
		return e
	}
	return nil
}

// wakeNominees brings back the pods that are nominated to a node which a pod has left, or is to stay on, if nobody is on the way out of it any
// more: what they waited for has happened, or will not, and they may not fit all the same. Others have taken the room, or it was never enough.
func (q *Queue) wakeNominees(now time.Time, st *cluster.State, node string) {
	for _, e := range q.nominees[node] {
		if !victimsGone(st, e) {
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

// helps reports whether a pod fits the node that matters by itself for it, or it has changed and the pod could preempt there, or need not
// wait there any more.
func (q *Queue) helps(st *cluster.State, e *entry, n cluster.NodeIndex, changed bool) bool {
	s := engine.SubjectOf(&e.pod)
	return q.judge.Feasible(st, s, e.id, n) ||
		changed && (e.preempts() && q.judge.Preemptable(st, s, e.id, n) || q.waitsInVain(st, e))
}

// waitsInVain reports whether a pod waits for pods to leave the node that it is nominated to, where it can never run by now: then it may
// preempt elsewhere.
func (q *Queue) waitsInVain(st *cluster.State, e *entry) bool {
	if e.pod.Nominated == "" || victimsGone(st, e) {
		return false
	}
	_, ok := q.judge.Preempts(st, e.id)
	return ok
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
	if q.concerned(e, since) {
		return true
	}
	if n := st.Nodes.ByName(e.node()); n != cluster.NoNode && st.Nodes.Modified[n] > since && q.helps(st, e, n, true) {
		return true
	}
	if e.pod.RequiredNode != "" {
		return false
	}
	// One question for all pods of a signature that are unschedulable in this state.
	if q.helpfulAt != st.Version() {
		q.helpfulAt, q.helpful = st.Version(), make(map[question]bool)
	}
	s := engine.SubjectOf(&e.pod)
	this := question{q.judge.Signature(st, s), e.pod.Priority, e.preempts(), since}
	found, known := q.helpful[this]
	if !known {
		found = anyChanged(st, since, func(n cluster.NodeIndex) bool {
			return q.judge.Feasible(st, s, cluster.NoPod, n) || e.preempts() && q.judge.Preemptable(st, s, e.id, n)
		})
		q.helpful[this] = found
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

// question is one to the judge: can a signature run on a node that has changed since, or preempt there?
type question struct {
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
		put(q.nominees, e.pod.Nominated, e)
	}
	if e.place != Unschedulable || e.held || e.wake == WhenChanged {
		return
	}
	e.sleeps = true
	q.sleeping.add(e.pod.Priority)
	if e.wake == WhenAnyNode {
		q.nodeless[e.id] = e
		return
	}
	for _, c := range e.claims {
		c.waiting[e.id] = e
	}
	if name := e.node(); name != "" {
		put(q.own, name, e)
		if e.crossNode {
			q.ownCrossNode[e.id] = e
		}
	}
	if e.pod.RequiredNode != "" {
		return
	}
	group, s := q.siblings(e)
	waiting := group[s]
	if waiting == nil {
		waiting = &unschedulablePods{free: make(pods), preemptors: make(pods), claims: len(e.claims) > 0}
		group[s] = waiting
	}
	waiting.free[e.id] = e
	if e.preempts() {
		waiting.preemptors[e.id] = e
	}
	waiting.related = min(waiting.related, e.related)
}

// put adds a pod to those that are kept by name, and take removes it.
func put(all map[string]pods, name string, e *entry) {
	if all[name] == nil {
		all[name] = make(pods)
	}
	all[name][e.id] = e
}

func take(all map[string]pods, name string, e *entry) {
	if delete(all[name], e.id); len(all[name]) == 0 {
		delete(all, name)
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
	take(q.nominees, e.pod.Nominated, e)
	if e.sleeps {
		e.sleeps = false
		q.sleeping.remove(e.pod.Priority)
	}
	if e.place != Unschedulable {
		return
	}
	delete(q.nodeless, e.id)
	for _, c := range e.claims {
		delete(c.waiting, e.id)
	}
	take(q.own, e.node(), e)
	delete(q.ownCrossNode, e.id)
	group, s := q.siblings(e)
	waiting := group[s]
	if waiting == nil {
		return
	}
	delete(waiting.free, e.id)
	delete(waiting.preemptors, e.id)
	if len(waiting.free) == 0 {
		delete(group, s)
	}
}

// siblings returns where pods like this one are kept while they are unschedulable, and under which subject.
func (q *Queue) siblings(e *entry) (map[engine.Subject]*unschedulablePods, engine.Subject) {
	s := engine.SubjectOf(&e.pod)
	if e.crossNode {
		return q.crossNode, s
	}
	if len(e.claims) == 0 {
		s.Labels = cluster.NoLabels
	}
	return q.local, s
}
