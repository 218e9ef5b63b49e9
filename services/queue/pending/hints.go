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
	pods
	demands *engine.Demands // nil until a hint is to be given

	// What has happened by which a plugin queues the pods, as of upTo.
	upTo   cluster.Seq
	latest latest                      // whatever a pod's labels are; nil: nothing
	gone   map[*cluster.Class]event    // pods that had something against others, the last of each class
	freed  map[cluster.LabelsID]latest // of these, those that had something against pods with these labels; nil: none
}

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

// hintsFor brings what is known about those that listen as one up to date, unless it is as of a version that is no older than least.
func (q *Queue) hintsFor(st *cluster.State, l listening, ls *listeners, least cluster.Seq) {
	if ls.upTo >= least {
		return
	}
	if ls.demands == nil {
		d := engine.DemandsOf(st, l.class, l.namespace, l.claims)
		ls.demands = &d
	}
	n := &q.notes
	ls.upTo, ls.latest, ls.gone, ls.freed = q.version.Seq, nil, nil, nil
	ls.latest.hear(l.plugins&nodeHints, n.anyNode)
	ls.latest.hear(l.plugins&podHints, n.anyPod)
	ls.latest.hear(l.plugins&volumeHints, n.anyVolume)
	for k := range n.nodes {
		ls.latest.hear(ls.demands.AfterNode(n.nodes[k].was, n.nodes[k].is, l.plugins), n.nodes[k].event)
	}
	if l.plugins&volumeHints != 0 {
		for k := range n.volumes {
			ls.latest.hear(ls.demands.AfterVolume(n.volumes[k].VolumeChange, l.plugins), n.volumes[k].event)
		}
	}
	ls.latest.hear(ls.demands.AfterNamespace(l.plugins), n.namespace)
	ls.latest.hear(ls.demands.AfterSelector(l.plugins), n.selector)
	if l.plugins&podHints == 0 {
		return
	}
	for m, ev := range n.pods {
		ls.latest.hear(ls.demands.AfterMovement(st, m, l.plugins), ev)
		gone := m.Gone()
		if l.plugins&goneHints == 0 || gone == nil {
			continue
		}
		if ls.gone == nil {
			ls.gone, ls.freed = make(map[*cluster.Class]event), make(map[cluster.LabelsID]latest)
		}
		ls.gone[gone] = later(ls.gone[gone], ev)
	}
}

// hint tells a pod of what has happened, as of the version that hintsFor has brought its listeners to. What would queue it is
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

// hearNow lets a pod remember the hints of all that has happened since its attempt began.
func (q *Queue) hearNow(st *cluster.State, e *entry) {
	l, ok := e.listens()
	if !ok {
		return
	}
	ls := q.listeners[l]
	q.hintsFor(st, l, ls, q.version.Seq)
	ls.hint(st, e)
}
