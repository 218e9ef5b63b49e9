package pending

import (
	"slices"
	"sort"

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
	anything bool           // something has happened while pods wait for that
	doubtful bool           // something has changed since it was known that no pod is feasible to which other nodes matter
	unsure   pods           // unschedulable pods that have changed, or were released, and are to be looked at by themselves
	related  cluster.Seq    // of the last delta by which pods on other nodes may matter to others than before

	// Claims, and those that have something in common, whose users a change concerns; anyClaim: all of some kind.
	claims   table[*claim, *claim]
	sharing  table[*sharing, *sharing]
	anyClaim bool

	// What hints are given for, in order; and of each kind the last that could not be kept.
	happenings []happening
	counts     [kindsOfHappenings]int     // of each kind
	dead       int                        // of happenings those that are nothing any more
	moved      map[engine.Movement]uint64 // the numbers of those that are movements
	first      uint64                     // the number of the first
	lost       [kindsOfHappenings]event
	// The last namespace, and the last service or controller, that has come, gone or changed.
	namespace, selector event
	forgotten           cluster.Seq // what happened until then has been told, and is not here any more
}

// happening is that a node has come, changed or gone; that pods have moved in a way; or that an object has that volumes are made of. If it is none
// of them, that has happened again since, or could not be kept.
type happening struct {
	event
	node   *nodeChange
	moved  *engine.Moved
	volume *engine.VolumeChange
}

// The kinds of happenings.
const (
	ofNode = iota
	ofPod
	ofVolume
	kindsOfHappenings
)

func (h *happening) kind() (kind int, ok bool) {
	switch {
	case h.node != nil:
		return ofNode, true
	case h.moved != nil:
		return ofPod, true
	}
	return ofVolume, h.volume != nil
}

// nodeChange is that a node has come, changed or gone; nil is no node.
type nodeChange struct{ was, is *cluster.Node }

// concerns reports whether there is something that concerns claims.
func (n *notes) concerns() bool { return n.claims.len()+n.sharing.len() > 0 || n.anyClaim }

// none reports whether nothing has been noted.
func (n *notes) none() bool {
	return !n.any && !n.anything && !n.doubtful && n.unsure.len() == 0 && !n.events() && !n.concerns()
}

// events reports whether there is something that hints are given for.
func (n *notes) events() bool {
	return len(n.happenings) > 0 || slices.ContainsFunc(n.last(), func(ev *event) bool { return ev.seq > 0 })
}

// last are the events of which only the last is kept.
func (n *notes) last() []*event {
	return []*event{&n.lost[ofNode], &n.lost[ofPod], &n.lost[ofVolume], &n.namespace, &n.selector}
}

// after returns the place of the first happening after a version.
func (n *notes) after(seq cluster.Seq) int {
	return sort.Search(len(n.happenings), func(k int) bool { return n.happenings[k].seq > seq })
}

// happens notes a happening of a kind, of which it keeps so many one by one.
func (n *notes) happens(h happening, most int) {
	kind, _ := h.kind()
	if h.moved != nil {
		if number, known := n.moved[h.moved.Movement]; known {
			was := &n.happenings[number-n.first]
			h.moved = was.moved // with what it has found out
			n.kill(was)
		}
	}
	if n.counts[kind] == most {
		for k := range n.happenings {
			if of, ok := n.happenings[k].kind(); ok && of == kind {
				n.kill(&n.happenings[k])
			}
		}
		n.lost[kind] = h.event
		n.tidy()
		return
	}
	n.tidy()
	if h.moved != nil {
		if n.moved == nil {
			n.moved = make(map[engine.Movement]uint64)
		}
		n.moved[h.moved.Movement] = n.first + uint64(len(n.happenings))
	}
	n.counts[kind]++
	n.happenings = append(n.happenings, h)
}

// kill makes a happening nothing.
func (n *notes) kill(h *happening) {
	kind, ok := h.kind()
	if !ok {
		n.dead--
	} else {
		n.counts[kind]--
	}
	if h.moved != nil {
		delete(n.moved, h.moved.Movement)
	}
	*h = happening{event: event{seq: h.seq}}
	n.dead++
}

// tidy takes out what is nothing, if that is more than half.
func (n *notes) tidy() {
	if n.dead <= 16 || n.dead <= len(n.happenings)/2 {
		return
	}
	kept := make([]happening, 0, 2*(len(n.happenings)-n.dead))
	for _, h := range n.happenings {
		if _, ok := h.kind(); !ok {
			continue
		}
		if h.moved != nil {
			n.moved[h.moved.Movement] = n.first + uint64(len(kept))
		}
		kept = append(kept, h)
	}
	n.happenings, n.dead = kept, 0
}

// forget drops the events that have been looked at.
func (n *notes) forget(until cluster.Seq) {
	gone := n.after(until)
	for k := range gone {
		n.kill(&n.happenings[k])
	}
	n.dead -= gone
	n.first += uint64(gone)
	if n.happenings = n.happenings[gone:]; len(n.happenings) == 0 {
		n.happenings, n.moved = nil, nil
	}
	for _, ev := range n.last() {
		if ev.seq <= until {
			*ev = event{}
		}
	}
	n.forgotten = until
}

// now is that the delta that was folded last has happened.
func (q *Queue) now() event { return event{q.version.Seq, q.event} }

// noteChanged notes the nodes that the last delta has changed: pods may be feasible there now, or could preempt.
func (q *Queue) noteChanged(st *cluster.State) {
	if q.local.len()+q.crossNode.len()+q.aside.kinds.len()+q.aside.crossNode.len()+q.own.len()+q.nodeless.len() == 0 {
		return // those that come later have been looked at then
	}
	st.Nodes.ChangedSince(st.Version().Seq-1, everyNode, func(n cluster.NodeIndex) {
		q.notes.changed = q.notes.changed.Grow(st.Nodes.Len())
		q.notes.changed.Set(n)
		q.notes.any = true
		q.doubt()
	})
}

// noteAnything notes that something has happened, for pods that wait for that.
func (q *Queue) noteAnything() {
	if q.happened = q.version.Seq; q.anything.len() > 0 {
		q.notes.anything, q.cause = true, q.event
	}
}

// doubt notes that pods to which other nodes matter may be feasible now.
func (q *Queue) doubt() { q.notes.doubtful, q.cause = true, q.event }

// unsure notes that an unschedulable pod is to be looked at by itself.
func (q *Queue) unsure(e *entry) {
	q.notes.unsure.put(e.id, e)
	q.cause = q.event
}

// noteRelations notes that pods of other nodes may matter from here on, to pods to which they did not.
func (q *Queue) noteRelations() {
	q.notes.related = q.version.Seq
	q.doubt()
}

// noteNode notes what the last delta did to a node, if some hint could depend on it.
func (q *Queue) noteNode(st *cluster.State, n cluster.NodeIndex) {
	if q.listeners.len() == 0 {
		return
	}
	c := new(nodeChange)
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
	q.notes.happens(happening{event: q.now(), node: c}, q.most)
}

// notePod notes what the last delta did to a pod, if that concerns others.
func (q *Queue) notePod(st *cluster.State, id cluster.PodID) {
	if q.listeners.len() == 0 {
		return
	}
	if m, ok := engine.MovementOf(st, id); ok {
		q.notes.happens(happening{event: q.now(), moved: &engine.Moved{Movement: m}}, q.most)
	}
}
