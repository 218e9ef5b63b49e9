package engine

import (
	"math/bits"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// hints say whether a change may make a pod schedulable that the plugin has rejected.
//
// kube-scheduler asks the plugins that have rejected a pod, and takes their word. Berth knows more: whether the pod fits a node now, or
// could preempt there. What that does not tell are changes that bring the pod closer to fitting somewhere; for these the hints are
// kube-scheduler's, of pkg/scheduler/framework/plugins.
//
// The hints for a pod that the plugin keeps from preempting, Descriptor.keeps, are Berth's own. Whatever is on other nodes and no victim
// takes away may go without a change of the node where the pod would preempt, so they overlook nothing that could help.
type hints struct {
	pod func(*cluster.State, *Demands, *Moved) bool  // another pod has come to a node, has left one, ends or has changed its labels
	own func(*Demands, *ownChange) bool              // the pod itself has changed
	on  func(d *Demands, was, is *cluster.Node) bool // a node has come, has changed or has gone; nil is no node
	// of: another pod that had something against pods with those labels counts no more.
	of func(st *cluster.State, gone *cluster.ClassSpec, labels *cluster.LabelSet) bool
	// namespaces: one has come, has gone or has changed its labels; selectors: so has a service or a controller.
	namespaces, selectors func(*Demands) bool
	// volumes: an object has come, has changed or has gone that volumes are made of, and that concerns no pod in particular; see
	// VolumeChange.Helps for those that do.
	volumes func(*Demands, VolumeChange) bool
}

// Rejectors is a set of plugins, by their rows, that have rejected a pod; and from keepers on of those that keep one from preempting.
type Rejectors uint64

const keepers = 32

var _ [keepers - len(plugins)]struct{} // a bit for each

// RejectorsOf returns the plugins of verdicts.
func RejectorsOf(verdicts []VerdictCount) (set Rejectors) {
	for _, v := range verdicts {
		if row := rankOfPlugin(v.Plugin); row < len(plugins) {
			set |= 1 << row
		}
	}
	return set
}

// HintedByVolumes returns the plugins that have hints for objects which volumes are made of.
func HintedByVolumes() Rejectors { return hinted(func(h *hints) bool { return h.volumes != nil }) }

// KeepersOf returns the plugins that keep a pod from preempting because of what is on other nodes, by the verdicts of dry runs.
func KeepersOf(verdicts []VerdictCount) Rejectors {
	return RejectorsOf(verdicts) << keepers & HintedByNodes()
}

// HintedByNodes returns the plugins that have hints for what happens to nodes or to pods on them, HintedByPods those that have some for
// the latter, HintedByGone those of them that have some for pods that had something against others and count no more.
func HintedByNodes() Rejectors {
	return hinted(func(h *hints) bool { return h.on != nil }) | HintedByPods()
}

// HintedByPods is told of with HintedByNodes.
func HintedByPods() Rejectors {
	return hinted(func(h *hints) bool { return h.pod != nil }) | HintedByGone()
}

// HintedByGone is told of with HintedByNodes.
func HintedByGone() Rejectors { return hinted(func(h *hints) bool { return h.of != nil }) }

func hinted(has func(*hints) bool) (set Rejectors) {
	for row := range plugins {
		if has(&plugins[row].hints) {
			set |= 1 << row
		}
		if has(&plugins[row].keeps) {
			set |= 1 << (row + keepers)
		}
	}
	return set
}

// Each returns the plugins of a set, one by one.
func (of Rejectors) Each() (out []Rejectors) {
	for rest := of; rest != 0; rest &= rest - 1 {
		out = append(out, rest&-rest)
	}
	return out
}

// each returns the plugins of a set whose hints say so.
func (of Rejectors) each(say func(*hints) bool) (set Rejectors) {
	for rest := of; rest != 0; rest &= rest - 1 {
		row := bits.TrailingZeros64(uint64(rest))
		h := &plugins[row%keepers].hints
		if row >= keepers {
			h = &plugins[row-keepers].keeps
		}
		if say(h) {
			set |= 1 << row
		}
	}
	return set
}

// Demands is what a pod's hints read of it, but its own labels.
type Demands struct {
	namespace   string
	spec        *cluster.ClassSpec
	constraints []cluster.SpreadConstraint // the hard ones
	anyLabels   bool                       // whatever their selectors say: they are the services'
	claims      bool                       // it uses claims
	disks       diskNames
	// Of the profile: whether NodeVolumeLimits reads CSIDrivers, and whether it takes those that there are for CSI drivers.
	scaling, drivers bool
}

// DemandsOf returns those of pods of a class in a namespace, which use claims or do not.
func DemandsOf(st *cluster.State, class cluster.ClassID, namespace string, claims bool) Demands {
	c := st.Class(class)
	if c == nil {
		return Demands{spec: &cluster.ClassSpec{}}
	}
	d := Demands{namespace: namespace, spec: &c.Spec, claims: claims}
	all := c.Spec.Spread
	if profile := st.Profile(c.Spec.SchedulerName); profile != nil {
		d.scaling, d.drivers = profile.VolumeLimitScaling, profile.RequireCSIDrivers
		if len(all) == 0 {
			all, d.anyLabels = profile.DefaultSpread, true
		}
	}
	for _, s := range all {
		if s.Hard {
			d.constraints = append(d.constraints, s)
		}
	}
	return d
}

// Movement is what a delta does to a pod that counts on a node, or did: its labels before and after; nil while it counts
// on none. Two that are equal give the same hints.
type Movement struct {
	was, is *cluster.LabelSet
	gone    *cluster.Class // of the pod, if it counts no more and had anti-affinity; else nil
	disks   *cluster.Class // of the pod, if it counts no more and had disks; else nil
	ends    bool           // it is being deleted from here on, and counts for some no more
}

// Moved is a Movement with what hints find out of it, once for all that are asked. It is not safe for concurrent use.
type Moved struct {
	Movement
	lost diskNames // the names of disks
}

// MovementOf returns what the last delta did to the pod with that id. False: nothing that concerns other pods.
func MovementOf(st *cluster.State, id cluster.PodID) (m Movement, ok bool) {
	if b := st.Before(); b.Class != nil && b.Pod.Placed() {
		m.was = setOf(b.Labels)
		if len(b.Class.Spec.AntiAffinity) > 0 {
			m.gone = b.Class
		}
		if len(b.Class.Spec.Disks) > 0 {
			m.disks = b.Class
		}
	}
	if row := st.Pod(id); row != nil && row.Placed() {
		m.is, m.gone, m.disks = setOf(st.Labels(row.Labels)), nil, nil
	}
	m.ends = m.was != nil && m.is != nil && !st.Before().Pod.Deleting && st.Pod(id).Deleting
	return m, (m.was != nil || m.is != nil) && (m.was != m.is || m.ends)
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

// AfterMovement returns which of some plugins queue a pod because another has come to a node, left one, ends or has changed its labels.
func (d *Demands) AfterMovement(st *cluster.State, m *Moved, of Rejectors) Rejectors {
	return of.each(func(h *hints) bool { return h.pod != nil && h.pod(st, d, m) })
}

// AfterNamespace returns which of some plugins queue a pod because a namespace has come, has gone or has changed its labels, AfterSelector
// because a service or a controller has.
func (d *Demands) AfterNamespace(of Rejectors) Rejectors {
	return of.each(func(h *hints) bool { return h.namespaces != nil && h.namespaces(d) })
}

// AfterSelector is told of with AfterNamespace.
func (d *Demands) AfterSelector(of Rejectors) Rejectors {
	return of.each(func(h *hints) bool { return h.selectors != nil && h.selectors(d) })
}

// Gone returns the class of the pod if it counts no more and had something against others, else nil.
func (m Movement) Gone() *cluster.Class { return m.gone }

// AfterGone returns which of some plugins queue a pod with those labels because one of a class that had something against others
// counts no more.
func AfterGone(st *cluster.State, gone *cluster.Class, labels cluster.LabelsID, of Rejectors) Rejectors {
	set := setOf(st.Labels(labels))
	return of.each(func(h *hints) bool { return h.of != nil && h.of(st, &gone.Spec, set) })
}

// AfterNode returns which of some plugins queue a pod because a node has come, changed or gone; nil is no node.
func (d *Demands) AfterNode(was, is *cluster.Node, of Rejectors) Rejectors {
	return of.each(func(h *hints) bool { return h.on != nil && h.on(d, was, is) })
}

// AfterVolume returns which of some plugins queue a pod because an object has come, changed or gone that volumes are made of.
func (d *Demands) AfterVolume(c VolumeChange, of Rejectors) Rejectors {
	return of.each(func(h *hints) bool { return h.volumes != nil && h.volumes(d, c) })
}

// ownChange is what has changed of a pending pod.
type ownChange struct {
	was, is             *cluster.ClassSpec
	labelsWas, labelsIs *cluster.LabelSet
	relabeled           bool
}

// OwnHints returns which plugins queue a pending pod because the last delta has changed itself, with st the state after it.
func OwnHints(st *cluster.State, is *cluster.Pod) Rejectors {
	b := st.Before()
	class := st.Class(is.Class)
	if b.Class == nil || class == nil {
		return 0
	}
	d := DemandsOf(st, is.Class, is.Namespace, false)
	c := &ownChange{
		was: &b.Class.Spec, is: &class.Spec, relabeled: b.Pod.Labels != is.Labels,
		labelsWas: setOf(b.Labels), labelsIs: setOf(st.Labels(is.Labels)),
	}
	return hinted(func(h *hints) bool { return h.own != nil && h.own(&d, c) })
}

// tolerations reports whether the pod has more tolerations or fewer. They only ever come.
func (c *ownChange) tolerations() bool { return len(c.was.Tolerations) != len(c.is.Tolerations) }

// LessRequested reports whether some request is less than it was.
func LessRequested(is, was []cluster.Quantity) bool {
	return slices.ContainsFunc(was, func(w cluster.Quantity) bool {
		return !slices.ContainsFunc(is, func(q cluster.Quantity) bool { return q.Name == w.Name && q.Value >= w.Value })
	})
}

// amountOf returns how much of a resource there is.
func amountOf(quantities []cluster.Quantity, name string) int64 {
	for _, q := range quantities {
		if q.Name == name {
			return q.Value
		}
	}
	return 0
}

// topologyOf returns a node's value of a topology key.
func topologyOf(n *cluster.Node, key string) (string, bool) {
	if n == nil {
		return "", false
	}
	return cluster.ValueOf(n.Labels, key)
}

// keptByNodes is the hint of plugins that keep pods from preempting: pods count on other nodes by their labels and taints.
func keptByNodes(_ *Demands, was, is *cluster.Node) bool {
	return was == nil || is == nil || !slices.Equal(was.Labels, is.Labels) || !slices.Equal(was.Taints, is.Taints)
}

// matchesAny reports whether some term matches a pod, with the namespaces that terms select as they are now.
func matchesAny(st *cluster.State, terms []cluster.PodTerm, pod *cluster.LabelSet) bool {
	return slices.ContainsFunc(terms, func(t cluster.PodTerm) bool { return matchesNow(st, &t, pod) })
}

func matchesNow(st *cluster.State, t *cluster.PodTerm, pod *cluster.LabelSet) bool {
	namespace, _ := st.Namespace(pod.Namespace)
	named := slices.Contains(t.Namespaces, pod.Namespace) || t.NamespaceSelector.Matches(namespace) || t.NamespaceSelector.Matches(nil)
	return named && t.Selector.Matches(pod.Labels)
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
