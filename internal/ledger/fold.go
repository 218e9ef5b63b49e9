package ledger

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

	classes idsOf[cluster.ClassID]  // by ClassSpec.Key
	labels  idsOf[cluster.LabelsID] // by LabelSet.Key
	recalls bool

	// said is, of pods that were nominated by Nominate or KeepNomination, the nomination that the source told when they
	// were. Theirs stands until the source tells another one.
	said map[string]string // by uid
}

// idsOf are the ids of things by key.
type idsOf[ID ~int32] struct {
	ids  map[string]ID
	next ID
}

func (t *idsOf[ID]) add(key string, id ID) {
	t.ids[key] = id
	t.next = max(t.next, id+1)
}

// Option changes what a Fold does.
type Option func(*Fold)

// Recalling gives a class or a label set that was dropped, and comes again, the id that it had. So whoever keeps things by id,
// as an engine.Evaluator does, need not forget them.
func Recalling(f *Fold) { f.recalls = true }

// firstApart is the first id that a Fold gives Apart. Ids of a ledger begin at 0 and grow by one: they do not come so far.
const firstApart = 1 << 30

// Apart gives classes and label sets ids that the ledger gives to none, so that the state can follow the ledger's log, and no
// id means two things to who keeps things by id.
func Apart(f *Fold) { f.classes.next, f.labels.next = firstApart, firstApart }

// New returns a Fold over a state. Apply applies a delta to it, and does with it what else is to be done; its errors are
// returned by whatever has led to the delta.
func New(st *cluster.State, apply func(cluster.Delta) error, options ...Option) *Fold {
	f := &Fold{
		state: st, apply: apply, said: make(map[string]string),
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
	clear(f.classes.ids)
	clear(f.labels.ids)
	for _, c := range f.state.Classes() {
		f.classes.add(c.Key, c.ID)
	}
	for _, l := range f.state.LabelSets() {
		f.labels.add(l.Key, l.ID)
	}
}

// Known returns how many classes and label sets have an id: more than the state has, if the Fold is Recalling.
func (f *Fold) Known() (classes, labels int) { return len(f.classes.ids), len(f.labels.ids) }

// Nominations returns of how many pods the nomination is not, or need not be, what the source has told.
func (f *Fold) Nominations() int { return len(f.said) }

// NextClass returns an id that no class has had.
func (f *Fold) NextClass() cluster.ClassID { return f.classes.next }

// Observe folds what a source tells. What changes nothing that scheduling reads makes no delta.
func (f *Fold) Observe(e source.Event) error {
	switch e.Kind {
	case source.NodeSet:
		i := f.state.Nodes.ByName(e.Node.Name)
		if i == cluster.NoNode {
			i = f.state.Nodes.Free()
		} else if known := f.state.Node(i); sameNode(&known, &e.Node) {
			return nil
		}
		return f.apply(cluster.NodeSet{Index: i, Node: e.Node})
	case source.NodeGone:
		if i := f.state.Nodes.ByName(e.Node.Name); i != cluster.NoNode {
			return f.apply(cluster.NodeRemoved{Index: i})
		}
	case source.NamespaceSet:
		if labels, ok := f.state.Namespace(e.Namespace); ok && slices.Equal(labels, e.Labels) {
			return nil
		}
		return f.apply(cluster.NamespaceSet{Name: e.Namespace, Labels: e.Labels})
	case source.NamespaceGone:
		if _, ok := f.state.Namespace(e.Namespace); ok {
			return f.apply(cluster.NamespaceRemoved{Name: e.Namespace})
		}
	case source.SelectorSet:
		seen := &e.Selector
		if known, ok := f.state.Selector(seen.Kind, seen.Namespace, seen.Name); ok && sameSelector(&known, &seen.Selector) {
			return nil
		}
		return f.apply(cluster.SelectorSet{Kind: seen.Kind, Namespace: seen.Namespace, Name: seen.Name, Selector: seen.Selector})
	case source.SelectorGone:
		seen := &e.Selector
		if _, ok := f.state.Selector(seen.Kind, seen.Namespace, seen.Name); ok {
			return f.apply(cluster.SelectorRemoved{Kind: seen.Kind, Namespace: seen.Namespace, Name: seen.Name})
		}
	case source.BudgetSet:
		if known := f.state.Budget(e.Budget.Namespace, e.Budget.Name); known != nil && sameBudget(known, &e.Budget) {
			return nil
		}
		return f.apply(cluster.BudgetSet{Budget: e.Budget})
	case source.BudgetGone:
		if f.state.Budget(e.Budget.Namespace, e.Budget.Name) != nil {
			return f.apply(cluster.BudgetRemoved{Namespace: e.Budget.Namespace, Name: e.Budget.Name})
		}
	case source.PodSet:
		return f.observePod(e.Pod)
	case source.PodMoved:
		if id, ok := f.state.PodByUID(e.Pod.UID); ok {
			pod := f.state.Pod(id).Pod
			pod.NodeName, pod.Nominated = e.Pod.NodeName, e.Pod.Nominated
			return f.update(id, pod)
		}
	case source.PodGone:
		if id, ok := f.state.PodByUID(e.Pod.UID); ok {
			delete(f.said, e.Pod.UID)
			return f.change(id, cluster.PodRemoved{ID: id})
		}
	}
	return nil
}

func (f *Fold) observePod(seen source.Pod) error {
	if p := f.state.Profile(seen.Class.SchedulerName); p != nil && !source.Pins(p) {
		seen = source.Unpin(seen)
	}
	pod := seen.Pod
	if err := f.define(&pod, &seen); err != nil {
		return err
	}
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
		// It can be bound no more: its room is free at once.
		return f.apply(cluster.PodForgotten{ID: id, Reason: "the pod is being deleted"})
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

// define gives the pod the class and the label set of what was seen of it, with the deltas for what is new.
func (f *Fold) define(pod *cluster.Pod, seen *source.Pod) error {
	key := seen.Class.Key()
	class, ok := f.classes.ids[key]
	if !ok {
		class = f.classes.next
	}
	if f.state.Class(class) == nil {
		if err := f.apply(cluster.ClassDefined{ID: class, Spec: seen.Class}); err != nil {
			return err
		}
		f.classes.add(key, class)
	}
	key = seen.Labels.Key()
	labels, ok := f.labels.ids[key]
	if !ok {
		labels = f.labels.next
	}
	if f.state.Labels(labels) == nil {
		if err := f.apply(cluster.LabelsDefined{ID: labels, Set: seen.Labels}); err != nil {
			return err
		}
		f.labels.add(key, labels)
	}
	pod.Class, pod.Labels = class, labels
	return nil
}

// change applies a delta that may take a pod out of its class and its label set, and forgets each of which it was the
// last one.
func (f *Fold) change(id cluster.PodID, d cluster.Delta) error {
	row := f.state.Pod(id)
	class, labels := f.state.Class(row.Class), f.state.Labels(row.Labels)
	if err := f.apply(d); err != nil || f.recalls {
		return err
	}
	if f.state.Class(class.ID) == nil {
		delete(f.classes.ids, class.Key)
	}
	if labels != nil && f.state.Labels(labels.ID) == nil {
		delete(f.labels.ids, labels.Key)
	}
	return nil
}
