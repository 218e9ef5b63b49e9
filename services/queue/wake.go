package queue

import (
	"cmp"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Wake says what can bring a parked pod back.
type Wake uint8

// What can bring a parked pod back. A change of what it is judged by itself always can.
const (
	WhenFeasible Wake = iota // something has changed by which the pod is feasible on some node
	WhenAnyNode              // the cluster has a node
	WhenChanged              // nothing else
)

// Judge says where pods can run, in a state.
type Judge interface {
	// Feasible reports whether a node can run pods of a subject. Self is the pod it is about, whose own nomination does
	// not count against it, or cluster.NoPod.
	Feasible(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) bool
	// Possible reports whether any node can.
	Possible(st *cluster.State, s engine.Subject) bool
	// CrossNode reports whether what is on one node can decide whether another can. Unless it does, labels play no part.
	// It changes only when the terms of classes, a namespace or a selector do.
	CrossNode(st *cluster.State, s engine.Subject) bool
	// Kind tells subjects apart that are judged differently in this state.
	Kind(st *cluster.State, s engine.Subject) engine.Kind
}

// parkedPods are unschedulable pods that come back when they are feasible, of one subject.
type parkedPods struct {
	free map[cluster.PodID]*entry // those that may go anywhere
	// own are those with a node that matters by itself, by its name. A pod that is nominated is in both.
	own map[string]map[cluster.PodID]*entry
}

// node returns the name of the node that matters by itself for the pod, "" if there is none.
func (e *entry) node() string { return cmp.Or(e.pod.Pin, e.pod.Nominated) }

// Recheck brings back the pods that are feasible by what has changed on other nodes than the one they fit on. Apply
// only notes that there was a change, so that many changes cost one look. To be called before Pop, with st the folded
// state.
func (q *Queue) Recheck(now time.Time, st *cluster.State) {
	if !q.doubtful {
		return
	}
	q.doubtful = false
	possible := q.perKind(st, q.judge.Possible)
	for s, pods := range q.crossNode {
		if len(pods.free) > 0 && possible(s) {
			q.requeueAll(now, pods.free)
		}
		for name := range pods.own {
			if n := st.Nodes.ByName(name); n != cluster.NoNode {
				q.requeueOwn(now, st, pods, n)
			}
		}
	}
}

// perKind returns a function that asks about each kind once. It is good for one state.
func (q *Queue) perKind(st *cluster.State, ask func(*cluster.State, engine.Subject) bool) func(engine.Subject) bool {
	known := make(map[engine.Kind]bool)
	return func(s engine.Subject) bool {
		kind := q.judge.Kind(st, s)
		answer, ok := known[kind]
		if !ok {
			answer = ask(st, s)
			known[kind] = answer
		}
		return answer
	}
}

// wake brings back the pods that the last delta could help: those that are feasible on a node it changed.
func (q *Queue) wake(now time.Time, st *cluster.State) {
	if st.Nodes.Count() > 0 {
		q.requeueAll(now, q.nodeless)
	}
	if len(q.local)+len(q.crossNode) == 0 {
		return
	}
	st.Nodes.ChangedSince(st.Version().Seq-1, everyNode, func(n cluster.NodeIndex) {
		q.doubtful = true
		if !st.Nodes.Live.Has(n) {
			return
		}
		for s, pods := range q.local {
			if len(pods.free) > 0 && q.judge.Feasible(st, s, cluster.NoPod, n) {
				q.requeueAll(now, pods.free)
			}
			q.requeueOwn(now, st, pods, n)
		}
	})
}

// depend finds the parked pods that are now judged by more than one node: by what the last delta told of terms,
// namespaces and selectors, pods of other nodes can be in their way from here on.
func (q *Queue) depend(st *cluster.State) {
	q.doubtful = true
	var found []*entry
	crossNode := q.perKind(st, q.judge.CrossNode)
	for _, pods := range q.local {
		for _, e := range pods.free {
			if crossNode(engine.SubjectOf(&e.pod)) {
				found = append(found, e)
			}
		}
		for _, own := range pods.own {
			for _, e := range own {
				if e.pod.Pin != "" && crossNode(engine.SubjectOf(&e.pod)) {
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

func (q *Queue) requeueAll(now time.Time, pods map[cluster.PodID]*entry) {
	for _, e := range pods {
		q.requeue(now, e)
	}
}

// requeueOwn brings back the pods for which a node matters by itself, if it is feasible.
func (q *Queue) requeueOwn(now time.Time, st *cluster.State, pods *parkedPods, n cluster.NodeIndex) {
	for id, e := range pods.own[st.Nodes.Spec[n].Name] {
		if q.judge.Feasible(st, engine.SubjectOf(&e.pod), id, n) {
			q.requeue(now, e)
		}
	}
}

// helped reports whether a node that has changed since the pod was evaluated can run it. The state remembers for each
// node when it changed last, so this needs no list of changes and cannot overflow.
func (q *Queue) helped(st *cluster.State, e *entry, p Parking) bool {
	switch e.wake {
	case WhenChanged:
		return false
	case WhenAnyNode:
		return st.Nodes.Count() > 0
	}
	since := p.Version.Seq
	if p.Version.Epoch != st.Version().Epoch {
		since = -1 // of another log: everything may have changed
	}
	s := engine.SubjectOf(&e.pod)
	if n := st.Nodes.ByName(e.node()); n != cluster.NoNode && st.Nodes.Modified[n] > since && q.judge.Feasible(st, s, e.id, n) {
		return true
	}
	if e.pod.Pin != "" {
		return false
	}
	found := false
	st.Nodes.ChangedSince(since, everyNode, func(n cluster.NodeIndex) {
		found = found || st.Nodes.Live.Has(n) && q.judge.Feasible(st, s, cluster.NoPod, n)
	})
	return found
}

var everyNode = cluster.Range{End: cluster.MaxIndex}

// link and unlink keep the count and the index of the place that a pod is in.
func (q *Queue) link(e *entry) {
	q.counts[e.place]++
	if h := q.heap(e); h != nil {
		h.add(e)
	}
	if e.place != Unschedulable || e.wake == WhenChanged {
		return
	}
	if e.wake == WhenAnyNode {
		q.nodeless[e.id] = e
		return
	}
	parked, s := q.parked(e)
	pods := parked[s]
	if pods == nil {
		pods = &parkedPods{free: make(map[cluster.PodID]*entry), own: make(map[string]map[cluster.PodID]*entry)}
		parked[s] = pods
	}
	if e.pod.Pin == "" {
		pods.free[e.id] = e
	}
	if name := e.node(); name != "" {
		if pods.own[name] == nil {
			pods.own[name] = make(map[cluster.PodID]*entry)
		}
		pods.own[name][e.id] = e
	}
}

func (q *Queue) unlink(e *entry) {
	q.counts[e.place]--
	if h := q.heap(e); h != nil {
		h.remove(e)
	}
	if e.place != Unschedulable {
		return
	}
	delete(q.nodeless, e.id)
	parked, s := q.parked(e)
	pods := parked[s]
	if pods == nil {
		return
	}
	delete(pods.free, e.id)
	name := e.node()
	delete(pods.own[name], e.id)
	if len(pods.own[name]) == 0 {
		delete(pods.own, name)
	}
	if len(pods.free)+len(pods.own) == 0 {
		delete(parked, s)
	}
}

// parked returns where pods like this one are parked, and under which subject.
func (q *Queue) parked(e *entry) (map[engine.Subject]*parkedPods, engine.Subject) {
	s := engine.SubjectOf(&e.pod)
	if e.crossNode {
		return q.crossNode, s
	}
	s.Labels = cluster.NoLabels
	return q.local, s
}
