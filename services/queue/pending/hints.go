package pending

import (
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// What hints there are: those for what happens to nodes or to pods on them, and of these those for the latter.
var (
	nodeHints = engine.HintedByNodes()
	podHints  = engine.HintedByPods()
)

// listening is what hints tell pods apart by, but their labels.
type listening struct {
	class     cluster.ClassID
	namespace string
	plugins   engine.Rejectors // that may queue them
}

// listens returns what a pod listens as: a pod in flight for all hints, as its attempt may yet be rejected, an unschedulable one
// for those of the plugins that have rejected it. False: for none.
func (e *entry) listens() (listening, bool) {
	l := listening{class: e.pod.Class, namespace: e.pod.Namespace}
	switch e.place {
	case InFlight:
		l.plugins = nodeHints
	case Unschedulable:
		l.plugins = e.rejected & nodeHints
	}
	return l, l.plugins != 0
}

// listeners are the pods that listen as one.
type listeners struct {
	pods
	demands *engine.Demands // nil until a hint is to be given
}

func (ls *listeners) demandsOf(st *cluster.State, l listening) *engine.Demands {
	if ls.demands == nil {
		d := engine.DemandsOf(st, l.class, l.namespace)
		ls.demands = &d
	}
	return ls.demands
}

// hint tells a pod that plugins would queue it. It is queued if they have rejected it; if that is not known yet, or it is
// held back, they are remembered.
func (q *Queue) hint(now time.Time, e *entry, ps engine.Rejectors) {
	e.hinted |= ps
	if e.place == Unschedulable && !e.held && e.hinted&e.rejected != 0 {
		q.requeue(now, e, q.event)
	}
}

// hintNode gives the hints about the node that the last delta has changed.
func (q *Queue) hintNode(now time.Time, st *cluster.State, n cluster.NodeIndex) {
	var was, is *cluster.Node
	if b := st.Before(); b.Node.Name != "" {
		was = &b.Node
	}
	if st.Nodes.Live.Has(n) {
		node := st.Node(n)
		is = &node
	}
	for l, ls := range q.listeners {
		if ps := ls.demandsOf(st, l).AfterNode(was, is, l.plugins); ps != 0 {
			q.hintAll(now, ls.pods, ps)
		}
	}
}

// hintPod gives the hints about the pod that the last delta has changed.
func (q *Queue) hintPod(now time.Time, st *cluster.State, id cluster.PodID) {
	m, ok := engine.MovementOf(st, id)
	if !ok {
		return
	}
	for l, ls := range q.listeners {
		if l.plugins&podHints == 0 {
			continue
		}
		if ps := ls.demandsOf(st, l).AfterMovement(m, l.plugins); ps != 0 {
			q.hintAll(now, ls.pods, ps)
		}
		if !m.Repels() {
			continue
		}
		released := make(map[cluster.LabelsID]engine.Rejectors)
		for _, e := range ls.pods {
			ps, known := released[e.pod.Labels]
			if !known {
				ps = m.Releases(st, e.pod.Labels, l.plugins)
				released[e.pod.Labels] = ps
			}
			if ps != 0 {
				q.hint(now, e, ps)
			}
		}
	}
}

func (q *Queue) hintAll(now time.Time, all pods, ps engine.Rejectors) {
	for _, e := range all {
		q.hint(now, e, ps)
	}
}
