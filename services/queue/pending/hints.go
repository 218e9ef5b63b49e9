package pending

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// plugins is a set of those plugins whose queueing hints Berth follows.
//
// kube-scheduler asks the plugins that have rejected a pod whether an event may make it schedulable, and takes their
// word. Berth knows more: whether the pod fits a node now, or could preempt there. What that does not tell are changes
// that bring the pod closer to fitting somewhere; for these the hints are kube-scheduler's, of pkg/scheduler/framework/
// plugins: PodTopologySpread and InterPodAffinity for what happens to nodes and other pods, NodeResourcesFit for nodes
// that get larger, and all for the pod itself.
type plugins uint8

const (
	spread plugins = 1 << iota
	affinity
	fit
	taints // TaintToleration
	cordon // NodeUnschedulable
	features

	podHints  = spread | affinity // for what happens to other pods
	nodeHints = spread | affinity | fit
)

// rejecting returns the plugins of verdicts.
func rejecting(verdicts []engine.VerdictCount) (ps plugins) {
	for _, v := range verdicts {
		switch v.Plugin {
		case engine.PodTopologySpread:
			ps |= spread
		case engine.InterPodAffinity:
			ps |= affinity
		case engine.NodeResourcesFit:
			ps |= fit
		case engine.TaintToleration:
			ps |= taints
		case engine.NodeUnschedulable:
			ps |= cordon
		case engine.NodeDeclaredFeatures:
			ps |= features
		}
	}
	return ps
}

// demands is what a pod's hints read of it, but its own labels.
type demands struct {
	namespace      string
	constraints    []cluster.SpreadConstraint // the hard ones
	anyLabels      bool                       // whatever their selectors say: they are the services'
	near, repelled []cluster.PodTerm          // required affinity and anti-affinity
	requests       []cluster.Quantity
}

func demandsOf(st *cluster.State, class cluster.ClassID, namespace string) demands {
	c := st.Class(class)
	if c == nil {
		return demands{}
	}
	d := demands{namespace: namespace, near: c.Spec.Affinity, repelled: c.Spec.AntiAffinity, requests: c.Spec.Requests}
	all := c.Spec.Spread
	if profile := st.Profile(c.Spec.SchedulerName); len(all) == 0 && profile != nil {
		all, d.anyLabels = profile.DefaultSpread, true
	}
	for _, s := range all {
		if s.Hard {
			d.constraints = append(d.constraints, s)
		}
	}
	return d
}

// movement is what a delta does to a pod that counts on a node, or did: its labels before and after; nil while it counts
// on none.
type movement struct {
	was, is *cluster.LabelSet
	gone    *cluster.Class // of the pod, if it counts no more and had anti-affinity; else nil
}

// movementOf returns what the last delta did to the pod with that id. False: nothing that concerns other pods.
func movementOf(st *cluster.State, id cluster.PodID) (m movement, ok bool) {
	if b := st.Before(); b.Class != nil && b.Pod.Placed() {
		m.was = setOf(b.Labels)
		if len(b.Class.Spec.AntiAffinity) > 0 {
			m.gone = b.Class
		}
	}
	if row := st.Pod(id); row != nil && row.Placed() {
		m.is, m.gone = setOf(st.Labels(row.Labels)), nil
	}
	return m, (m.was != nil || m.is != nil) && m.was != m.is
}

// setOf returns what selectors see of a placed pod.
func setOf(l *cluster.Labels) *cluster.LabelSet {
	if l == nil {
		return &unseen
	}
	return &l.LabelSet
}

// unseen are the labels of pods that no selector sees.
var unseen cluster.LabelSet

// afterMovement returns which plugins queue a pod because another has come to a node, left one or changed its labels.
func (d *demands) afterMovement(m movement) (ps plugins) {
	switch {
	case m.was == nil:
		if d.counts(m.is) {
			ps |= spread
		}
		if matchesAll(d.near, m.is) {
			ps |= affinity
		}
	case m.is == nil:
		if d.counts(m.was) {
			ps |= spread
		}
		if matchesAll(d.repelled, m.was) {
			ps |= affinity
		}
	default:
		if m.is.Namespace == d.namespace && d.distinguishes(m.was, m.is) {
			ps |= spread
		}
		if !matchesAll(d.near, m.was) && matchesAll(d.near, m.is) || matchesAll(d.repelled, m.was) && !matchesAll(d.repelled, m.is) {
			ps |= affinity
		}
	}
	return ps
}

// counts reports whether a constraint counts a pod with these labels.
func (d *demands) counts(pod *cluster.LabelSet) bool {
	return pod.Namespace == d.namespace &&
		slices.ContainsFunc(d.constraints, func(c cluster.SpreadConstraint) bool { return d.anyLabels || c.Selector.Matches(pod.Labels) })
}

// distinguishes reports whether a constraint counts a pod with the ones but not with the other labels.
func (d *demands) distinguishes(was, is *cluster.LabelSet) bool {
	return slices.ContainsFunc(d.constraints, func(c cluster.SpreadConstraint) bool {
		return d.anyLabels || c.Selector.Matches(was.Labels) != c.Selector.Matches(is.Labels)
	})
}

// matchesAll reports whether there are terms and all match a pod. Namespaces that a term selects by their labels do not
// count: that is kube-scheduler's way.
func matchesAll(terms []cluster.PodTerm, pod *cluster.LabelSet) bool {
	for k := range terms {
		t := &terms[k]
		if !slices.Contains(t.Namespaces, pod.Namespace) && !t.NamespaceSelector.Matches(nil) || !t.Selector.Matches(pod.Labels) {
			return false
		}
	}
	return len(terms) > 0
}

// afterNode returns which plugins queue a pod because a node has come, changed or gone; nil is no node.
func (d *demands) afterNode(was, is *cluster.Node) (ps plugins) {
	before, after := was != nil && d.keys(was), is != nil && d.keys(is)
	if before != after || before && after && (!slices.Equal(was.Taints, is.Taints) || d.moves(was, is)) {
		ps |= spread
	}
	if is == nil {
		return ps
	}
	if d.fit(is) && (was == nil || d.grows(was, is)) {
		ps |= fit
	}
	for _, t := range d.near {
		old, had := topologyOf(was, t.TopologyKey)
		if value, has := topologyOf(is, t.TopologyKey); has && (!had || value != old) {
			ps |= affinity
		}
	}
	for _, t := range d.repelled {
		old, had := topologyOf(was, t.TopologyKey)
		if value, has := topologyOf(is, t.TopologyKey); was == nil || had && (!has || value != old) {
			ps |= affinity
		}
	}
	return ps
}

// fit reports whether a pod would fit a node that no pods are on.
func (d *demands) fit(n *cluster.Node) bool {
	return quantity(n.Allocatable, "pods") > 0 && !slices.ContainsFunc(d.requests, func(q cluster.Quantity) bool {
		return q.Value > quantity(n.Allocatable, q.Name)
	})
}

// grows reports whether a node has more of what a pod requests, or room for more pods.
func (d *demands) grows(was, is *cluster.Node) bool {
	more := func(name string) bool { return quantity(is.Allocatable, name) > quantity(was.Allocatable, name) }
	return more("pods") || slices.ContainsFunc(d.requests, func(q cluster.Quantity) bool { return more(q.Name) })
}

// quantity returns how much of a resource there is.
func quantity(quantities []cluster.Quantity, name string) int64 {
	for _, q := range quantities {
		if q.Name == name {
			return q.Value
		}
	}
	return 0
}

// keys reports whether a node has the topology keys of all constraints.
func (d *demands) keys(n *cluster.Node) bool {
	return !slices.ContainsFunc(d.constraints, func(c cluster.SpreadConstraint) bool {
		_, ok := topologyOf(n, c.TopologyKey)
		return !ok
	})
}

// moves reports whether a node that has all keys has come to another domain of a constraint.
func (d *demands) moves(was, is *cluster.Node) bool {
	return slices.ContainsFunc(d.constraints, func(c cluster.SpreadConstraint) bool {
		old, _ := topologyOf(was, c.TopologyKey)
		value, _ := topologyOf(is, c.TopologyKey)
		return old != value
	})
}

func topologyOf(n *cluster.Node, key string) (string, bool) {
	if n == nil {
		return "", false
	}
	return cluster.ValueOf(n.Labels, key)
}

// ownHints returns which plugins queue a pending pod because the last delta has changed itself, with st the state after it.
func ownHints(st *cluster.State, is *cluster.Pod) (ps plugins) {
	b := st.Before()
	class := st.Class(is.Class)
	if b.Class == nil || class == nil {
		return 0
	}
	was, now := &b.Class.Spec, &class.Spec
	d := demandsOf(st, is.Class, is.Namespace)
	if len(was.Tolerations) != len(now.Tolerations) {
		ps |= taints
		if slices.ContainsFunc(now.Tolerations, toleratesCordon) {
			ps |= cordon
		}
		if slices.ContainsFunc(d.constraints, func(c cluster.SpreadConstraint) bool { return c.HonorTaints }) {
			ps |= spread
		}
	}
	if b.Pod.Labels != is.Labels {
		ps |= affinity
		if d.distinguishes(setOf(b.Labels), setOf(st.Labels(is.Labels))) {
			ps |= spread
		}
	}
	if less(now.Requests, was.Requests) {
		ps |= fit
	}
	if !slices.Equal(was.Features, now.Features) {
		ps |= features
	}
	return ps
}

// toleratesCordon reports whether pods with a toleration go to nodes that are cordoned.
func toleratesCordon(t cluster.Toleration) bool {
	return (t.Key == "" || t.Key == "node.kubernetes.io/unschedulable") && (t.Effect == "" || t.Effect == "NoSchedule") &&
		(t.Operator == "Exists" || (t.Operator == "" || t.Operator == "Equal") && t.Value == "")
}

// less reports whether some request is less than it was.
func less(is, was []cluster.Quantity) bool {
	return slices.ContainsFunc(was, func(w cluster.Quantity) bool {
		return !slices.ContainsFunc(is, func(q cluster.Quantity) bool { return q.Name == w.Name && q.Value >= w.Value })
	})
}

// listening is what hints tell pods apart by, but their labels.
type listening struct {
	class     cluster.ClassID
	namespace string
	plugins   plugins // that may queue them
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
	demands *demands // nil until a hint is to be given

	// What has happened by which a plugin queues the pods, as of upTo.
	upTo   cluster.Seq
	latest [len(hinting)]event        // the last, of each of hinting
	gone   map[*cluster.Class]event   // pods with anti-affinity, the last of each class
	freed  map[cluster.LabelsID]event // of these, the last whose terms match pods with these labels
}

// hinting are the plugins of nodeHints and podHints.
var hinting = [...]plugins{spread, affinity, fit}

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

func (ls *listeners) hear(ps plugins, ev event) {
	for k, p := range hinting {
		if ps&p != 0 {
			ls.latest[k] = later(ls.latest[k], ev)
		}
	}
}

// hintsFor brings what is known about those that listen as one up to date, unless it is as of a version that is no older than least.
func (q *Queue) hintsFor(st *cluster.State, l listening, ls *listeners, least cluster.Seq) {
	if ls.upTo >= least {
		return
	}
	if ls.demands == nil {
		d := demandsOf(st, l.class, l.namespace)
		ls.demands = &d
	}
	n := &q.notes
	ls.upTo, ls.latest, ls.gone, ls.freed = q.version.Seq, [len(hinting)]event{}, nil, nil
	ls.hear(l.plugins&nodeHints, n.anyNode)
	ls.hear(l.plugins&podHints, n.anyPod)
	for k := range n.nodes {
		ls.hear(ls.demands.afterNode(n.nodes[k].was, n.nodes[k].is)&l.plugins, n.nodes[k].event)
	}
	if l.plugins&podHints == 0 {
		return
	}
	for m, ev := range n.pods {
		ls.hear(ls.demands.afterMovement(m)&l.plugins, ev)
		if l.plugins&affinity == 0 || m.gone == nil {
			continue
		}
		if ls.gone == nil {
			ls.gone, ls.freed = make(map[*cluster.Class]event), make(map[cluster.LabelsID]event)
		}
		ls.gone[m.gone] = later(ls.gone[m.gone], ev)
	}
}

// hint tells a pod of what has happened, as of the version that hintsFor has brought its listeners to. What would queue it is
// remembered, and the last event by which it is queued returned: one of a plugin that has rejected it.
func (ls *listeners) hint(st *cluster.State, e *entry) (queues event) {
	told := func(ps plugins, ev event) {
		if ev.after(e.heard) {
			if e.hinted |= ps; e.rejected&ps != 0 {
				queues = later(queues, ev)
			}
		}
	}
	for k, p := range hinting {
		told(p, ls.latest[k])
	}
	if len(ls.gone) > 0 {
		ev, known := ls.freed[e.pod.Labels]
		if !known {
			for c, gone := range ls.gone {
				if matchesAll(c.Spec.AntiAffinity, setOf(st.Labels(e.pod.Labels))) {
					ev = later(ev, gone)
				}
			}
			ls.freed[e.pod.Labels] = ev
		}
		told(affinity, ev)
	}
	e.heard = ls.upTo
	return queues
}

// silent reports whether nothing has happened by which any of the pods would be queued.
func (ls *listeners) silent() bool {
	return ls.latest == [len(hinting)]event{} && len(ls.gone) == 0
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
