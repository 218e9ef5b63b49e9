package pending

import (
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// mostEvents is how many changes of nodes are noted one by one, and how many ways in which pods have moved. Beyond that, all
// that is kept is that anything may have happened, by which every plugin queues every pod that it has rejected.
const mostEvents = 4096

// notes are what the fold tells the look that comes after it. They take constant time per delta, and never more room than
// there are nodes, unschedulable pods, claims of pods and mostEvents.
type notes struct {
	changed  cluster.Bitmap // nodes that may help an unschedulable pod
	any      bool           // there are such nodes
	doubtful bool           // something has changed since it was known that none of Queue.crossNode is feasible
	unsure   pods           // unschedulable pods that have changed, or were released, and are to be looked at by themselves
	related  cluster.Seq    // of the last delta by which pods on other nodes may matter to others than before

	// Claims, and those that have something in common, whose users a change concerns; anyClaim: all of some kind.
	claims   map[*claim]struct{}
	sharing  map[*sharing]struct{}
	anyClaim bool
	// What nominated pods use may be other volumes than before, by which no node has changed.
	nominees bool

	// Of what hints are given for:
	nodes           []nodeChange
	pods            map[engine.Movement]event // the last that moved so
	volumes         []volumeChange
	anyNode, anyPod event // the last of those that could not be kept
	anyVolume       event
	// The last namespace, and the last service or controller, that has come, gone or changed.
	namespace, selector event
}

// nodeChange is that a node has come, changed or gone; nil is no node.
type nodeChange struct {
	event
	was, is *cluster.Node
}

// volumeChange is that an object has come, changed or gone that volumes are made of.
type volumeChange struct {
	event
	engine.VolumeChange
}

func newNotes() notes {
	return notes{unsure: make(pods), claims: make(map[*claim]struct{}), sharing: make(map[*sharing]struct{})}
}

// concerns reports whether there is something that concerns claims.
func (n *notes) concerns() bool { return len(n.claims)+len(n.sharing) > 0 || n.anyClaim || n.nominees }

// none reports whether nothing has been noted.
func (n *notes) none() bool {
	return !n.any && !n.doubtful && len(n.unsure) == 0 && !n.events() && !n.concerns()
}

// events reports whether there is something that hints are given for.
func (n *notes) events() bool {
	return len(n.nodes)+len(n.pods)+len(n.volumes) > 0 || slices.ContainsFunc(n.last(), func(ev *event) bool { return ev.seq > 0 })
}

// last are the events of which only the last is kept.
func (n *notes) last() []*event {
	return []*event{&n.anyNode, &n.anyPod, &n.anyVolume, &n.namespace, &n.selector}
}

// forget drops the events that have been looked at.
func (n *notes) forget(until cluster.Seq) {
	n.nodes = slices.DeleteFunc(n.nodes, func(c nodeChange) bool { return c.seq <= until })
	n.volumes = slices.DeleteFunc(n.volumes, func(c volumeChange) bool { return c.seq <= until })
	maps.DeleteFunc(n.pods, func(_ engine.Movement, ev event) bool { return ev.seq <= until })
	for _, ev := range n.last() {
		if ev.seq <= until {
			*ev = event{}
		}
	}
}

// now is that the delta that was folded last has happened.
func (q *Queue) now() event { return event{q.version.Seq, q.event} }

// noteChanged notes the nodes that the last delta has changed: pods may be feasible there now, or could preempt.
func (q *Queue) noteChanged(st *cluster.State) {
	if len(q.local)+len(q.crossNode)+len(q.own)+len(q.nodeless) == 0 {
		return // those that come later have been looked at then
	}
	st.Nodes.ChangedSince(st.Version().Seq-1, everyNode, func(n cluster.NodeIndex) {
		q.notes.changed = q.notes.changed.Grow(st.Nodes.Len())
		q.notes.changed.Set(n)
		q.notes.any = true
		q.doubt()
	})
}

// doubt notes that pods to which other nodes matter may be feasible now.
func (q *Queue) doubt() { q.notes.doubtful, q.cause = true, q.event }

// unsure notes that an unschedulable pod is to be looked at by itself.
func (q *Queue) unsure(e *entry) { q.notes.unsure[e.id], q.cause = e, q.event }

// noteRelations notes that pods of other nodes may matter from here on, to pods to which they did not.
func (q *Queue) noteRelations() {
	q.notes.related = q.version.Seq
	q.doubt()
}

// noteNode notes what the last delta did to a node, if some hint could depend on it.
func (q *Queue) noteNode(st *cluster.State, n cluster.NodeIndex) {
	if len(q.listeners) == 0 {
		return
	}
	c := nodeChange{event: q.now()}
	if was := st.Before().Node; was.Name != "" {
		c.was = &was
	}
	if st.Nodes.Live.Has(n) {
		is := st.Node(n)
		c.is = &is
	}
	if was, is := c.was, c.is; was != nil && is != nil && slices.Equal(was.Labels, is.Labels) && slices.Equal(was.Taints, is.Taints) &&
		slices.Equal(was.Allocatable, is.Allocatable) {
		return
	}
	if len(q.notes.nodes) == q.most {
		q.notes.nodes, q.notes.anyNode = nil, c.event
		return
	}
	q.notes.nodes = append(q.notes.nodes, c)
}

// notePod notes what the last delta did to a pod, if that concerns others.
func (q *Queue) notePod(st *cluster.State, id cluster.PodID) {
	if len(q.listeners) == 0 {
		return
	}
	m, ok := engine.MovementOf(st, id)
	if !ok {
		return
	}
	if _, known := q.notes.pods[m]; !known && len(q.notes.pods) == q.most {
		q.notes.pods, q.notes.anyPod = nil, q.now()
		return
	}
	if q.notes.pods == nil {
		q.notes.pods = make(map[engine.Movement]event)
	}
	q.notes.pods[m] = q.now()
}
