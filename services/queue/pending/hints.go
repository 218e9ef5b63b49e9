package pending

import (
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// What hints there are: those for what happens to nodes or to pods on them, of these those for the latter, of these those for
// pods that had something against others and are gone; and those for what volumes are made of.
var (
	nodeHints   = engine.HintedByNodes()
	podHints    = engine.HintedByPods()
	goneHints   = engine.HintedByGone()
	volumeHints = engine.HintedByVolumes()
)

// allHints are the plugins that have hints for what happens, hinting each of them.
var (
	allHints = nodeHints | volumeHints
	hinting  = allHints.Each()
)

// listening is what hints tell pods apart by, but their labels.
type listening struct {
	class     cluster.ClassID
	namespace string
	claims    bool             // they use some
	plugins   engine.Rejectors // that may queue them
}

// listens returns what a pod listens as: a pod in flight for all hints, as its attempt may yet be rejected, an unschedulable one
// for those of the plugins that have rejected it. False: for none.
func (e *entry) listens() (listening, bool) {
	l := listening{class: e.pod.Class, namespace: e.pod.Namespace, claims: len(e.claims) > 0}
	switch e.place {
	case InFlight:
		l.plugins = allHints
	case Unschedulable:
		l.plugins = e.rejected & allHints
	}
	return l, l.plugins != 0
}

// listeners are the pods that listen as one.
type listeners struct {
	listening
	pods    pods
	demands *engine.Demands // nil until a hint is to be given
	toldBy  uint64          // the number of the last look that has told the pods

	// What has happened by which a plugin queues the pods, after since and up to upTo.
	since, upTo cluster.Seq
	latest      latest                      // whatever a pod's labels are; nil: nothing
	gone        map[*cluster.Class]event    // pods that had something against others, the last of each class
	freed       map[cluster.LabelsID]latest // of these, those that had something against pods with these labels
}

// listen adds a pod to those that listen as it does. What these know begins no later than what it has not heard.
func (q *Queue) listen(key listening, e *entry) {
	ls := q.listeners.get(key)
	isNew := ls == nil
	if isNew {
		ls = &listeners{listening: key, since: e.heard, upTo: e.heard}
	}
	if e.heard < ls.since {
		ls.forget()
		ls.since, ls.upTo = e.heard, e.heard
	}
	ls.pods.put(e.id, e)
	if isNew || q.looking != nil && e.heard < q.looking.until { // it is yet to be told
		q.listeners.put(key, ls)
	}
}

func (q *Queue) unlisten(key listening, e *entry) {
	if ls := q.listeners.get(key); ls != nil {
		if ls.pods.remove(e.id); ls.pods.len() == 0 {
			q.listeners.remove(key)
		}
	}
}

// forget drops what is known, of which the pods have heard.
func (ls *listeners) forget() { ls.latest, ls.gone, ls.freed = nil, nil, nil }

// latest are the last events by which each of hinting queues pods.
type latest []event

// event is that something has happened.
type event struct {
	seq  cluster.Seq
	name string // as kube-scheduler names it
}

// after reports whether an event has happened later than something else.
func (ev event) after(seq cluster.Seq) bool { return ev.seq > seq }

func later(a, b event) event {
	if b.after(a.seq) {
		return b
	}
	return a
}

// hear takes in that plugins queue pods because of an event.
func (l *latest) hear(ps engine.Rejectors, ev event) {
	if ps == 0 || ev.seq == 0 {
		return
	}
	if *l == nil {
		*l = make(latest, len(hinting))
	}
	for k, p := range hinting {
		if ps&p != 0 {
			(*l)[k] = later((*l)[k], ev)
		}
	}
}

// hear brings what is known about those that listen as one up to the last delta, in parts, unless it is as of a version that is no older than least.
func (q *Queue) hear(st *cluster.State, ls *listeners, least cluster.Seq, enough func() bool) (done bool) {
	if ls.upTo >= least {
		return true
	}
	if ls.demands == nil {
		d := engine.DemandsOf(st, ls.class, ls.namespace, ls.claims)
		ls.demands = &d
	}
	n := &q.notes
	if ls.upTo < n.forgotten {
		ls.forget()
		ls.since, ls.upTo = n.forgotten, n.forgotten
	}
	// Of these there are few, and they come first: of what happens before a part has ended, none is passed over.
	ls.latest.hear(ls.plugins&nodeHints, n.lost[ofNode])
	ls.latest.hear(ls.plugins&podHints, n.lost[ofPod])
	ls.latest.hear(ls.plugins&volumeHints, n.lost[ofVolume])
	ls.latest.hear(ls.demands.AfterNamespace(ls.plugins), n.namespace)
	ls.latest.hear(ls.demands.AfterSelector(ls.plugins), n.selector)
	for k := n.after(ls.upTo); k < len(n.happenings); k++ {
		h := &n.happenings[k]
		ls.hearOf(st, h)
		if ls.upTo = h.seq; enough() {
			return false
		}
	}
	ls.upTo = q.version.Seq
	return true
}

func (ls *listeners) hearOf(st *cluster.State, h *happening) {
	switch {
	case h.moved != nil && ls.plugins&podHints != 0:
		ls.latest.hear(ls.demands.AfterMovement(st, h.moved, ls.plugins), h.event)
		if gone := h.moved.Gone(); gone != nil && ls.plugins&goneHints != 0 {
			if ls.gone == nil {
				ls.gone = make(map[*cluster.Class]event)
			}
			ls.gone[gone] = later(ls.gone[gone], h.event)
			ls.freed = nil
		}
	case h.node != nil:
		ls.latest.hear(ls.demands.AfterNode(h.node.was, h.node.is, ls.plugins), h.event)
	case h.volume != nil && ls.plugins&volumeHints != 0:
		ls.latest.hear(ls.demands.AfterVolume(*h.volume, ls.plugins), h.event)
	}
}

// hint tells a pod of what has happened, as of the version that hear has brought its listeners to. What would queue it is
// remembered, and the last event by which it is queued returned: one of a plugin that has rejected it.
func (ls *listeners) hint(st *cluster.State, e *entry) (queues event) {
	told := func(l latest) {
		for k, ev := range l {
			if ev.after(e.heard) {
				if e.hinted |= hinting[k]; e.rejected&hinting[k] != 0 {
					queues = later(queues, ev)
				}
			}
		}
	}
	told(ls.latest)
	if len(ls.gone) > 0 {
		freed, known := ls.freed[e.pod.Labels]
		if !known {
			for class, ev := range ls.gone {
				freed.hear(engine.AfterGone(st, class, e.pod.Labels, goneHints), ev)
			}
			if ls.freed == nil {
				ls.freed = make(map[cluster.LabelsID]latest)
			}
			ls.freed[e.pod.Labels] = freed
		}
		told(freed)
	}
	e.heard = ls.upTo
	return queues
}

// silent reports whether nothing has happened by which any of the pods would be queued.
func (ls *listeners) silent() bool {
	return ls.latest == nil && len(ls.gone) == 0
}

// mostHeardAtOnce bounds what a pod hears of when its attempt ends. It hears of what is more in the next look.
const mostHeardAtOnce = 16

// hearNow lets a pod remember the hints of all that has happened since its attempt began, if that is not much.
func (q *Queue) hearNow(st *cluster.State, e *entry) {
	l, ok := e.listens()
	if !ok {
		return
	}
	ls := q.listeners.get(l)
	if n := &q.notes; len(n.happenings)-n.after(ls.upTo) <= mostHeardAtOnce {
		q.hear(st, ls, q.version.Seq, func() bool { return false })
		ls.hint(st, e)
	}
}
