package pending

import (
	"cmp"
	"slices"
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
	WhenAnything             // anything has happened by which kube-scheduler would look at a pod that it knows nothing of: extenders have refused it
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
	// Possible reports whether any node can but that one, which may be cluster.NoNode.
	Possible(st *cluster.State, s engine.Subject, but cluster.NodeIndex) bool
	// CrossNode reports whether what is on one node can decide whether another can. Unless it does, labels play no part, but for claims.
	// It changes only when the terms of classes, a namespace or a selector do.
	CrossNode(st *cluster.State, s engine.Subject) bool
	// Signature tells subjects apart that are judged differently in this state.
	Signature(st *cluster.State, s engine.Subject) engine.Signature
}

// unschedulablePods are unschedulable pods of one subject that come back when they are feasible or may preempt, and may go
// anywhere. Those with a node that matters by itself are in Queue.own; a pod that is nominated is in both.
type unschedulablePods struct {
	subject    engine.Subject
	free       pods
	preemptors pods        // of these, those that preempt if they can
	related    cluster.Seq // as of which it is known of all of them whether they are crossNode
	asOf       cluster.Seq // the least of theirs, and of those that were there before
}

// node returns the name of the node that matters by itself for the pod, "" if there is none.
func (e *entry) node() string { return cmp.Or(e.pod.RequiredNode, e.pod.Nominated) }

// preempts reports whether an unschedulable pod would preempt if it could. One that is nominated has done so already: it waits for
// its victims, unless it is about to be nominated no more.
func (e *entry) preempts() bool { return (e.pod.Nominated == "" || e.resigns) && !e.pod.NeverPreempts }

// wakeNominees brings back the pods that are nominated to a node which a pod has left, or is to stay on, if nobody is on the way out of it any
// more: what they waited for has happened, or will not, and they may not fit all the same. Others have taken the room, or it was never enough.
func (q *Queue) wakeNominees(now time.Time, st *cluster.State, node string) {
	all := q.nominees.get(node)
	if all == nil {
		return
	}
	for _, r := range slices.Clone(all.rows) { // to come back is to leave the table, and be put there again
		e := r.value
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

// waitsInVain reports whether a pod waits for pods to leave the node that it is nominated to, or for volumes to be detached from it, where it can
// never run by now: then it may preempt elsewhere.
func (q *Queue) waitsInVain(st *cluster.State, e *entry) bool {
	if e.pod.Nominated == "" || victimsGone(st, e) && e.detaching.IsZero() {
		return false
	}
	_, ok := q.judge.Preempts(st, e.id)
	return ok
}

// fits reports whether a pod is feasible on any node.
func (q *Queue) fits(st *cluster.State, e *entry) bool {
	s, n := engine.SubjectOf(&e.pod), st.Nodes.ByName(e.node())
	if n != cluster.NoNode && q.judge.Feasible(st, s, e.id, n) {
		return true
	}
	return e.pod.RequiredNode == "" && q.judge.Possible(st, s, n)
}

// helped reports whether a pod fits a node that has changed since it was evaluated, or could preempt there. The state
// remembers for each node when it changed last, so this needs no list of changes and cannot overflow.
func (q *Queue) helped(st *cluster.State, e *entry) bool {
	switch e.wake {
	case WhenChanged:
		return false
	case WhenAnyNode:
		return st.Nodes.Count() > 0
	case WhenAnything:
		return e.evaluated.Epoch != st.Version().Epoch || q.happened > e.evaluated.Seq
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
	own := st.Nodes.ByName(e.node()) // to others it is there already, and of that node it has been asked itself
	this := question{q.judge.Signature(st, s), e.pod.Priority, e.preempts(), since, own}
	found, known := q.helpful[this]
	if !known {
		found = anyChanged(st, since, func(n cluster.NodeIndex) bool {
			return n != own && (q.judge.Feasible(st, s, cluster.NoPod, n) || e.preempts() && q.judge.Preemptable(st, s, e.id, n))
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

// question is one to the judge: can a signature run on a node that has changed since, or preempt there, but on that one?
type question struct {
	signature engine.Signature
	priority  int32
	preempts  bool
	since     cluster.Seq
	but       cluster.NodeIndex
}

var everyNode = cluster.Range{End: cluster.MaxIndex}

// link and unlink keep the counts and the indexes of the place that a pod is in, and of what is against it.
func (q *Queue) link(e *entry) {
	q.counts[e.place]++
	if e.entrance != nil && e.entrance.owed {
		q.owed++
	}
	q.rejections.add(e, 1)
	if h := q.order(e); h != nil {
		h.add(e)
	}
	if key, ok := e.listens(); ok {
		q.listen(key, e)
	}
	if e.pod.Nominated != "" {
		q.nominees.put(e.pod.Nominated, e)
	}
	if e.place != Unschedulable || e.held || e.wake == WhenChanged {
		return
	}
	if e.wake == WhenAnything { // by which it seldom is feasible: nobody of a lower priority waits for it
		q.anything.put(e.id, e)
		return
	}
	e.sleeps = true
	q.sleeping.add(e.pod.Priority)
	if len(e.claims) > 0 {
		q.aside.sleeping.add(e.pod.Priority)
	}
	if e.wake == WhenAnyNode {
		q.nodeless.put(e.id, e)
		return
	}
	for _, c := range e.claims {
		c.waiting.put(e.id, e)
	}
	if name := e.node(); name != "" {
		q.own.put(name, e)
		if e.crossNode {
			q.ownCrossNode.put(e.id, e)
		}
	}
	if e.pod.RequiredNode != "" {
		return
	}
	all, s, k := q.siblings(e, true)
	g := all.get(s)
	if g == nil {
		g = &unschedulablePods{subject: s, asOf: e.asOf}
		all.put(s, g)
	}
	g.asOf = min(g.asOf, e.asOf)
	g.free.put(e.id, e)
	if e.preempts() {
		g.preemptors.put(e.id, e)
	}
	g.related = min(g.related, e.related)
	if k != nil {
		if e.preempts() {
			k.preemptors.put(e.id, e)
		}
		k.related, k.asOf = min(k.related, e.related), min(k.asOf, e.asOf)
	}
}

func (q *Queue) unlink(e *entry) {
	q.counts[e.place]--
	if e.entrance != nil && e.entrance.owed {
		q.owed--
	}
	q.rejections.add(e, -1)
	if h := q.order(e); h != nil {
		h.remove(e)
	}
	if key, ok := e.listens(); ok {
		q.unlisten(key, e)
	}
	q.nominees.take(e.pod.Nominated, e)
	if e.sleeps {
		e.sleeps = false
		q.sleeping.remove(e.pod.Priority)
		if len(e.claims) > 0 {
			q.aside.sleeping.remove(e.pod.Priority)
		}
	}
	if e.place != Unschedulable {
		return
	}
	q.nodeless.remove(e.id)
	q.anything.remove(e.id)
	for _, c := range e.claims {
		c.waiting.remove(e.id)
	}
	q.own.take(e.node(), e)
	q.ownCrossNode.remove(e.id)
	all, s, k := q.siblings(e, false)
	if all == nil {
		return
	}
	g := all.get(s)
	if g == nil {
		return
	}
	g.free.remove(e.id)
	g.preemptors.remove(e.id)
	if k != nil {
		k.preemptors.remove(e.id)
	}
	if g.free.len() == 0 {
		all.remove(s)
		if k != nil && k.groups.len() == 0 {
			q.aside.kinds.remove(k.subject)
		}
	}
}

// siblings returns where pods like this one are kept while they are unschedulable, under which subject, and of which kind: nil for none. Grow
// says to make that kind; otherwise there may be no place.
func (q *Queue) siblings(e *entry, grow bool) (*table[engine.Subject, *unschedulablePods], engine.Subject, *kind) {
	s := engine.SubjectOf(&e.pod)
	switch claims := len(e.claims) > 0; {
	case e.crossNode && claims:
		return &q.aside.crossNode, s, nil
	case e.crossNode:
		return &q.crossNode, s, nil
	case !claims:
		s.Labels = cluster.NoLabels
		return &q.local, s, nil
	}
	bare := s
	bare.Labels = cluster.NoLabels
	k := q.aside.kinds.get(bare)
	if k == nil {
		if !grow {
			return nil, s, nil
		}
		k = &kind{subject: bare, asOf: e.asOf}
		q.aside.kinds.put(bare, k)
	}
	return &k.groups, s, k
}
