package ingest

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// Fold turns what a source tells into deltas of a state. Every change of the state's pods must go through it, so that it
// knows which classes and label sets there are. It is not safe for concurrent use.
type Fold struct {
	state *cluster.State
	apply func(cluster.Delta) error
	// tellable says why a delta cannot be told to replicas, and unsupported hears of objects that are told otherwise for that.
	tellable    func(cluster.Delta) error
	unsupported func(source.Unsupported)
	resources   struct{ node, all int } // how many a node, and all nodes together, may have; 0: any number

	classes  idsOf[cluster.ClassID]  // by ClassSpec.Key
	labels   idsOf[cluster.LabelsID] // by LabelSet.Key
	keepsIDs bool

	// said is, of pods that were nominated by Nominate or KeepNomination, the nomination that the source told when they
	// were. Theirs stands until the source tells another one.
	said map[string]string // by uid
}

// idsOf are the ids of things by key.
type idsOf[ID ~int32] struct {
	ids   map[string]ID
	next  ID
	bytes int // of the keys
}

func (t *idsOf[ID]) add(key string, id ID) {
	if _, known := t.ids[key]; !known {
		t.bytes += len(key)
	}
	t.ids[key] = id
	t.next = max(t.next, id+1)
}

func (t *idsOf[ID]) remove(key string) {
	if _, known := t.ids[key]; known {
		t.bytes -= len(key)
		delete(t.ids, key)
	}
}

func (t *idsOf[ID]) clear() {
	clear(t.ids)
	t.bytes = 0
}

// Option changes what a Fold does.
type Option func(*Fold)

// KeepIDs gives a class or a label set that was dropped, and comes again, the id that it had. So whoever keeps things by id,
// as an engine.Evaluator does, need not forget them.
func KeepIDs(f *Fold) { f.keepsIDs = true }

// firstSeparate is the first id that a Fold gives with the option SeparateIDs. Ids of a ledger begin at 0 and grow by one:
// they do not come so far.
const firstSeparate = 1 << 30

// SeparateIDs gives classes and label sets ids that the ledger gives to none, so that the state can follow the ledger's log, and
// no id means two things to who keeps things by id.
func SeparateIDs(f *Fold) { f.classes.next, f.labels.next = firstSeparate, firstSeparate }

// New returns a Fold over a state. Apply applies a delta to it, and does with it what else is to be done; its errors are
// returned by whatever has led to the delta.
func New(st *cluster.State, apply func(cluster.Delta) error, options ...Option) *Fold {
	f := &Fold{
		state: st, apply: apply, said: make(map[string]string),
		tellable: func(cluster.Delta) error { return nil }, unsupported: func(source.Unsupported) {},
		classes: idsOf[cluster.ClassID]{ids: make(map[string]cluster.ClassID)},
		labels:  idsOf[cluster.LabelsID]{ids: make(map[string]cluster.LabelsID), next: cluster.NoLabels + 1},
	}
	for _, option := range options {
		option(f)
	}
	f.Relearn()
	return f
}

// Relearn forgets which ids were given to what the state does not have any more.
func (f *Fold) Relearn() {
	f.classes.clear()
	f.labels.clear()
	for _, c := range f.state.Classes() {
		f.classes.add(c.Key, c.ID)
	}
	for _, l := range f.state.LabelSets() {
		f.labels.add(l.Key, l.ID)
	}
}

// Known returns how many classes and label sets have an id: more than the state has, if the Fold has the option KeepIDs.
func (f *Fold) Known() (classes, labels int) { return len(f.classes.ids), len(f.labels.ids) }

// KnownBytes returns how long the keys are by which these are known.
func (f *Fold) KnownBytes() int { return f.classes.bytes + f.labels.bytes }

// Nominations returns of how many pods the nomination is not, or need not be, what the source has told.
func (f *Fold) Nominations() int { return len(f.said) }

// NextClass returns an id that no class has had.
func (f *Fold) NextClass() cluster.ClassID { return f.classes.next }

// Observe folds what a source tells. What changes nothing that scheduling reads makes no delta. What cannot be told to replicas
// is told otherwise: see Telling.
func (f *Fold) Observe(e source.Event) error {
	switch e.Kind {
	case source.NodeSet:
		return f.observeNode(e.Node, e.Touched)
	case source.NodeGone:
		if i := f.state.Nodes.ByName(sound(e.Node.Name)); i != cluster.NoNode {
			return f.apply(cluster.NodeRemoved{Index: i})
		}
	case source.NamespaceSet:
		return f.observeNamespace(cluster.NamespaceSet{Name: e.Namespace, Labels: e.Labels})
	case source.NamespaceGone:
		name := sound(e.Namespace)
		if _, ok := f.state.Namespace(name); ok {
			return f.apply(cluster.NamespaceRemoved{Name: name})
		}
	case source.SelectorSet:
		return f.observeSelector(cluster.SelectorSet(e.Selector))
	case source.SelectorGone:
		gone := cluster.SelectorRemoved{Kind: e.Selector.Kind, Namespace: sound(e.Selector.Namespace), Name: sound(e.Selector.Name)}
		if _, ok := f.state.Selector(gone.Kind, gone.Namespace, gone.Name); ok {
			return f.apply(gone)
		}
	case source.ObjectSet:
		return f.observeObject(cluster.ObjectSet{Object: e.Object})
	case source.ObjectGone:
		key := cluster.ObjectKey{Kind: e.Key.Kind, Namespace: sound(e.Key.Namespace), Name: sound(e.Key.Name)}
		if _, ok := f.state.Object(key); ok {
			return f.apply(cluster.ObjectRemoved{ObjectKey: key})
		}
	case source.PodSet:
		return f.observePod(e.Pod)
	case source.PodMoved:
		if id, ok := f.state.PodByUID(sound(e.Pod.UID)); ok {
			pod := f.state.Pod(id).Pod
			pod.NodeName, pod.Nominated = sound(e.Pod.NodeName), sound(e.Pod.Nominated)
			return f.update(id, pod)
		}
	case source.PodGone:
		uid := sound(e.Pod.UID)
		if id, ok := f.state.PodByUID(uid); ok {
			delete(f.said, uid)
			return f.change(id, cluster.PodRemoved{ID: id})
		}
	}
	return nil
}

func (f *Fold) observeNode(seen cluster.Node, touched bool) error {
	d := cluster.NodeSet{Index: f.indexOf(seen.Name), Node: seen}
	if f.hasNode(&d) {
		return f.touch(d.Index, touched)
	}
	few, surplus := fewEnough(f.state, seen.Allocatable, f.resources.node, f.resources.all)
	if surplus != nil {
		if seen.Allocatable = few; f.hasNode(&cluster.NodeSet{Index: d.Index, Node: seen}) {
			return f.touch(d.Index, touched)
		}
		d.Node = seen
	}
	if why := f.untoldNode(&d.Node); why != nil {
		var err error
		if d.Node, err = f.tellableNode(seen, why); err != nil {
			return err
		}
		d.Index = f.indexOf(d.Node.Name)
		if f.hasNode(&d) {
			return f.touch(d.Index, touched)
		}
	}
	if err := f.apply(d); err != nil {
		return err
	}
	why := d.Node.Unsupported
	if why == "" && surplus != nil {
		why = Reason(surplus.Error() + ": those beyond are left out")
	}
	if why != "" {
		f.unsupported(source.Unsupported{Kind: "Node", Name: d.Node.Name, Why: why})
	}
	return nil
}

// touch tells of a node that is as it was, if it has been touched.
func (f *Fold) touch(i cluster.NodeIndex, touched bool) error {
	if !touched {
		return nil
	}
	return f.apply(cluster.NodeTouched{Index: i})
}

// indexOf returns the index of the node of that name, or else one that is free.
func (f *Fold) indexOf(name string) cluster.NodeIndex {
	if i := f.state.Nodes.ByName(name); i != cluster.NoNode {
		return i
	}
	return f.state.Nodes.Free()
}

// hasNode reports whether a node is in the state as it is.
func (f *Fold) hasNode(d *cluster.NodeSet) bool {
	if !f.state.Nodes.Live.Has(d.Index) {
		return false
	}
	known := f.state.Node(d.Index)
	return sameNode(&known, &d.Node)
}

func (f *Fold) observeNamespace(d cluster.NamespaceSet) error {
	d, why, err := tell(f, d, func(d *cluster.NamespaceSet, _ string) { d.Labels = nil })
	if err != nil {
		return err
	}
	if labels, ok := f.state.Namespace(d.Name); ok && slices.Equal(labels, d.Labels) {
		return nil
	}
	return f.applyObject(d, source.Unsupported{Kind: "Namespace", Name: d.Name, Why: why})
}

func (f *Fold) observeSelector(d cluster.SelectorSet) error {
	d, why, err := tell(f, d, func(d *cluster.SelectorSet, _ string) { d.Selector = cluster.LabelSelector{Nothing: true} })
	if err != nil {
		return err
	}
	if known, ok := f.state.Selector(d.Kind, d.Namespace, d.Name); ok && sameSelector(&known, &d.Selector) {
		return nil
	}
	return f.applyObject(d, source.Unsupported{Kind: d.Kind, Namespace: d.Namespace, Name: d.Name, Why: why})
}

func (f *Fold) observeObject(d cluster.ObjectSet) error {
	d, why, err := tell(f, d, func(d *cluster.ObjectSet, why string) { d.Object = d.Object.Unsupported(why) })
	if err != nil {
		return err
	}
	key := d.Object.Key()
	if known, ok := f.state.Object(key); ok && known.Same(d) {
		return nil
	}
	return f.applyObject(d, source.Unsupported{Kind: key.Kind.String(), Namespace: key.Namespace, Name: key.Name, Why: why})
}

// applyObject applies the delta of an object, and says of what it was in the way of if it is not told as it is.
func (f *Fold) applyObject(d cluster.Delta, object source.Unsupported) error {
	if err := f.apply(d); err != nil {
		return err
	}
	if object.Why != "" {
		f.unsupported(object)
	}
	return nil
}

func (f *Fold) observePod(seen source.Pod) error {
	if p := f.state.Profile(seen.Class.SchedulerName); p != nil && !source.KeepsRequiredNode(p) {
		seen = source.RestoreRequiredNode(seen)
	}
	ids := f.identify(&seen)
	if why := f.tellablePod(&seen, &ids); why != nil {
		var err error
		if seen, ids, err = f.substitute(seen, why); err != nil {
			return err
		}
	}
	if err := f.define(&seen, &ids); err != nil {
		return err
	}
	pod := seen.Pod
	pod.Class, pod.Labels = ids.class, ids.labels
	if id, known := f.state.PodByUID(pod.UID); known {
		return f.update(id, pod)
	}
	return f.apply(cluster.PodSet{ID: f.state.FreePod(), Pod: pod})
}

// update makes a pod of the state what the source has told of it.
func (f *Fold) update(id cluster.PodID, pod cluster.Pod) error {
	row := f.state.Pod(id)
	if row.Phase == cluster.Bound && pod.NodeName == "" {
		pod.NodeName = row.NodeName // told before our bind was seen; a bound pod never becomes unbound
	}
	if said, ours := f.said[pod.UID]; ours && pod.Nominated == said && pod.NodeName == "" {
		pod.Nominated = row.Nominated
	} else if ours {
		delete(f.said, pod.UID)
	}
	pod.Attempt = row.Attempt
	same := row.Pod
	same.NodeName = pod.NodeName
	if samePod(&same, &pod) {
		switch {
		case row.Phase == cluster.Assumed && pod.NodeName == row.NodeName:
			return f.apply(cluster.PodBound{ID: id})
		case row.Phase == cluster.Assumed && pod.NodeName == "", row.NodeName == pod.NodeName:
			return nil
		}
	}
	if err := f.change(id, cluster.PodSet{ID: id, Pod: pod}); err != nil {
		return err
	}
	if row.Phase == cluster.Assumed && pod.Deleting {
		// It can be bound no more: its room is free at once, and is not kept for it either.
		if err := f.apply(cluster.PodForgotten{ID: id, Reason: "the pod is being deleted"}); err != nil {
			return err
		}
		return f.Nominate(id, "")
	}
	return nil
}

// Nominate makes a pending pod nominated to a node, "" for none, whatever the source has told.
func (f *Fold) Nominate(id cluster.PodID, node string) error {
	row := f.state.Pod(id)
	if row.Nominated == node {
		return nil
	}
	f.KeepNomination(row)
	return f.apply(cluster.PodNominated{ID: id, Node: node})
}

// KeepNomination remembers what the source has told, before a delta nominates the pod otherwise.
func (f *Fold) KeepNomination(row *cluster.PodRow) {
	if _, ours := f.said[row.UID]; !ours {
		f.said[row.UID] = row.Nominated
	}
}

// Untold reports whether the source has told another nomination of a pending pod, or none, where the pod has this one: what was written to the
// source may be on its way, or lost.
func (f *Fold) Untold(row *cluster.PodRow) bool {
	said, ours := f.said[row.UID]
	return ours && said != row.Nominated
}

// identity is the class and the label set of a pod that was seen.
type identity struct {
	class            cluster.ClassID
	labels           cluster.LabelsID
	classKey, setKey string
	newClass, newSet bool // the state does not have it
}

func (f *Fold) identify(seen *source.Pod) identity {
	ids := identity{classKey: seen.Class.Key(), setKey: seen.Labels.Key()}
	var known bool
	if ids.class, known = f.classes.ids[ids.classKey]; !known {
		ids.class = f.classes.next
	}
	if ids.labels, known = f.labels.ids[ids.setKey]; !known {
		ids.labels = f.labels.next
	}
	ids.newClass, ids.newSet = f.state.Class(ids.class) == nil, f.state.Labels(ids.labels) == nil
	return ids
}

// define makes the deltas for what is new of a pod's class and label set.
func (f *Fold) define(seen *source.Pod, ids *identity) error {
	if ids.newClass {
		if err := f.apply(cluster.ClassDefined{ID: ids.class, Spec: seen.Class}); err != nil {
			return err
		}
		f.classes.add(ids.classKey, ids.class)
	}
	if ids.newSet {
		if err := f.apply(cluster.LabelsDefined{ID: ids.labels, Set: seen.Labels}); err != nil {
			return err
		}
		f.labels.add(ids.setKey, ids.labels)
	}
	return nil
}

// change applies a delta that may take a pod out of its class and its label set, and forgets each of which it was the
// last one.
func (f *Fold) change(id cluster.PodID, d cluster.Delta) error {
	row := f.state.Pod(id)
	class, labels := f.state.Class(row.Class), f.state.Labels(row.Labels)
	if err := f.apply(d); err != nil || f.keepsIDs {
		return err
	}
	if f.state.Class(class.ID) == nil {
		f.classes.remove(class.Key)
	}
	if labels != nil && f.state.Labels(labels.ID) == nil {
		f.labels.remove(labels.Key)
	}
	return nil
}
