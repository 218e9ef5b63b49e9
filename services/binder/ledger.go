package binder

import (
	"fmt"
	"slices"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/source"
)

// ledger is the authoritative state of one epoch, and the only writer of its log. Everything that changes the state
// goes through apply, under the lock.
type ledger struct {
	feed *replica.Feed

	mu         sync.Mutex
	state      *cluster.State
	opened     bool
	classID    map[string]cluster.ClassID // by ClassSpec.Key
	nextClass  cluster.ClassID
	labelsID   map[string]cluster.LabelsID // by LabelSet.Key
	nextLabels cluster.LabelsID
	// said is, of pods that the ledger itself has nominated, the nomination that the source told when it did. The
	// ledger's stands until the source tells another one.
	said map[string]string // by uid
	// preempted is, of pods that have been nominated by a preemption, the last attempt that was.
	preempted map[string]attempt // by uid
	broken    error              // the first delta the state refused: a broken invariant
}

// attempt is an attempt of a pod. Whoever claims a shard anew may count its pods' attempts from the last assumed one.
type attempt struct {
	claim  int64 // the revision of the shard's claim
	number int32
}

func newLedger(epoch cluster.Epoch, settings cluster.Settings, feed *replica.Feed) (*ledger, error) {
	l := &ledger{
		feed:       feed,
		state:      cluster.New(cluster.Version{Epoch: epoch}),
		classID:    make(map[string]cluster.ClassID),
		labelsID:   make(map[string]cluster.LabelsID),
		said:       make(map[string]string),
		preempted:  make(map[string]attempt),
		nextLabels: cluster.NoLabels + 1,
	}
	return l, l.apply(cluster.SettingsSet{Settings: settings})
}

// apply changes the state and appends to the log. The caller holds the lock, or is alone. An error means a broken
// invariant: the term has to end.
func (l *ledger) apply(d cluster.Delta) error {
	if l.broken != nil {
		return l.broken
	}
	err := l.state.Apply(d)
	if err == nil && l.opened {
		err = l.feed.Append(d, l.state.Version(), l.state.Digest())
	}
	if err != nil {
		l.broken = fmt.Errorf("append %T at %v: %w", d, l.state.Version(), err)
	}
	return l.broken
}

// open begins the epoch: from here on the ledger is published.
func (l *ledger) open() cluster.Version {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened = true
	l.feed.Open(l.state.Version(), l.state.Digest())
	return l.state.Version()
}

// Snapshot calls encode while nothing changes.
func (l *ledger) Snapshot(encode func(*cluster.State)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	encode(l.state)
}

func (l *ledger) version() cluster.Version {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Version()
}

func (l *ledger) digest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Digest()
}

// observe folds what the source tells. What changes nothing that scheduling reads appends no delta.
func (l *ledger) observe(e source.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e.Kind {
	case source.NodeSet:
		i := l.state.Nodes.ByName(e.Node.Name)
		if i == cluster.NoNode {
			i = l.state.Nodes.Free()
		} else if known := l.state.Node(i); sameNode(&known, &e.Node) {
			return nil
		}
		return l.apply(cluster.NodeSet{Index: i, Node: e.Node})
	case source.NodeGone:
		if i := l.state.Nodes.ByName(e.Node.Name); i != cluster.NoNode {
			return l.apply(cluster.NodeRemoved{Index: i})
		}
	case source.NamespaceSet:
		if labels, ok := l.state.Namespace(e.Namespace); ok && slices.Equal(labels, e.Labels) {
			return nil
		}
		return l.apply(cluster.NamespaceSet{Name: e.Namespace, Labels: e.Labels})
	case source.NamespaceGone:
		if _, ok := l.state.Namespace(e.Namespace); ok {
			return l.apply(cluster.NamespaceRemoved{Name: e.Namespace})
		}
	case source.SelectorSet:
		seen := &e.Selector
		if known, ok := l.state.Selector(seen.Kind, seen.Namespace, seen.Name); ok && sameSelector(&known, &seen.Selector) {
			return nil
		}
		return l.apply(cluster.SelectorSet{Kind: seen.Kind, Namespace: seen.Namespace, Name: seen.Name, Selector: seen.Selector})
	case source.SelectorGone:
		seen := &e.Selector
		if _, ok := l.state.Selector(seen.Kind, seen.Namespace, seen.Name); ok {
			return l.apply(cluster.SelectorRemoved{Kind: seen.Kind, Namespace: seen.Namespace, Name: seen.Name})
		}
	case source.BudgetSet:
		if known := l.state.Budget(e.Budget.Namespace, e.Budget.Name); known != nil && sameBudget(known, &e.Budget) {
			return nil
		}
		return l.apply(cluster.BudgetSet{Budget: e.Budget})
	case source.BudgetGone:
		if l.state.Budget(e.Budget.Namespace, e.Budget.Name) != nil {
			return l.apply(cluster.BudgetRemoved{Namespace: e.Budget.Namespace, Name: e.Budget.Name})
		}
	case source.PodSet:
		return l.observePod(e.Pod)
	case source.PodGone:
		if id, ok := l.state.PodByUID(e.Pod.UID); ok {
			delete(l.said, e.Pod.UID)
			delete(l.preempted, e.Pod.UID)
			return l.change(id, cluster.PodRemoved{ID: id})
		}
	}
	return nil
}

func (l *ledger) observePod(seen source.Pod) error {
	if p := l.state.Profile(seen.Class.SchedulerName); p != nil && !source.Pins(p) {
		seen = source.Unpin(seen)
	}
	pod := seen.Pod
	id, known := l.state.PodByUID(pod.UID)
	if !known {
		id = l.state.FreePod()
		if err := l.define(&pod, &seen); err != nil {
			return err
		}
		return l.apply(cluster.PodSet{ID: id, Pod: pod})
	}
	row := l.state.Pod(id)
	if row.Phase == cluster.Bound && pod.NodeName == "" {
		pod.NodeName = row.NodeName // told before our bind was seen; a bound pod never becomes unbound
	}
	if said, ours := l.said[pod.UID]; ours && pod.Nominated == said && pod.NodeName == "" {
		pod.Nominated = row.Nominated
	} else if ours {
		delete(l.said, pod.UID)
	}
	if err := l.define(&pod, &seen); err != nil {
		return err
	}
	pod.Attempt = row.Attempt
	same := row.Pod
	same.NodeName = pod.NodeName
	if samePod(&same, &pod) {
		switch {
		case row.Phase == cluster.Assumed && pod.NodeName == row.NodeName:
			return l.apply(cluster.PodBound{ID: id})
		case row.Phase == cluster.Assumed && pod.NodeName == "", row.NodeName == pod.NodeName:
			return nil
		}
	}
	if err := l.change(id, cluster.PodSet{ID: id, Pod: pod}); err != nil {
		return err
	}
	if row.Phase == cluster.Assumed && pod.Deleting {
		// It can be bound no more: its room is free at once.
		return l.apply(cluster.PodForgotten{ID: id, Reason: "the pod is being deleted"})
	}
	return nil
}

// nominate makes a pending pod nominated to a node, "" for none, whatever the source has told.
func (l *ledger) nominate(id cluster.PodID, node string) error {
	row := l.state.Pod(id)
	if row.Nominated == node {
		return nil
	}
	l.keepNomination(row)
	return l.apply(cluster.PodNominated{ID: id, Node: node})
}

// keepNomination remembers what the source has told before the ledger nominates the pod itself.
func (l *ledger) keepNomination(row *cluster.PodRow) {
	if _, ours := l.said[row.UID]; !ours {
		l.said[row.UID] = row.Nominated
	}
}

// nominatedTo returns those of the pending pods nominated to a node that are meant.
func (l *ledger) nominatedTo(node string, meant func(*cluster.PodRow) bool) []cluster.PodID {
	var out []cluster.PodID
	for _, id := range l.state.NominatedOn(node) {
		if meant(l.state.Pod(id)) {
			out = append(out, id)
		}
	}
	return out
}

// clearings returns the reports that end the nominations of pods, and say nothing else.
func (l *ledger) clearings(ids []cluster.PodID) []source.Report {
	out := make([]source.Report, len(ids))
	for i, id := range ids {
		out[i] = reportOf(l.state.Pod(id), "", "")
		out[i].Nominate = true
	}
	return out
}

// define gives the pod the class and the label set of what was seen of it, appending to the log what is new.
func (l *ledger) define(pod *cluster.Pod, seen *source.Pod) error {
	key := seen.Class.Key()
	class, ok := l.classID[key]
	if !ok {
		class = l.nextClass
		if err := l.apply(cluster.ClassDefined{ID: class, Spec: seen.Class}); err != nil {
			return err
		}
		l.nextClass++
		l.classID[key] = class
	}
	key = seen.Labels.Key()
	labels, ok := l.labelsID[key]
	if !ok {
		labels = l.nextLabels
		if err := l.apply(cluster.LabelsDefined{ID: labels, Set: seen.Labels}); err != nil {
			return err
		}
		l.nextLabels++
		l.labelsID[key] = labels
	}
	pod.Class, pod.Labels = class, labels
	return nil
}

// change applies a delta that may take a pod out of its class and its label set, and forgets each of which it was the
// last one.
func (l *ledger) change(id cluster.PodID, d cluster.Delta) error {
	row := l.state.Pod(id)
	class, labels := l.state.Class(row.Class), l.state.Labels(row.Labels)
	if err := l.apply(d); err != nil {
		return err
	}
	if l.state.Class(class.ID) == nil {
		delete(l.classID, class.Key)
	}
	if l.state.Labels(labels.ID) == nil {
		delete(l.labelsID, labels.Key)
	}
	return nil
}

// assumed returns the pod with that uid if it is assumed on that node.
func (l *ledger) assumed(b source.Binding) (cluster.PodID, bool) {
	id, ok := l.state.PodByUID(b.UID)
	if !ok {
		return 0, false
	}
	row := l.state.Pod(id)
	return id, row.Phase == cluster.Assumed && row.NodeName == b.Node
}

// bound settles an assumed pod whose bind succeeded. The source may have told it already.
func (l *ledger) bound(b source.Binding) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, ok := l.assumed(b); ok {
		return l.apply(cluster.PodBound{ID: id})
	}
	return nil
}

// forget makes an assumed pod pending again, nominated to no node. False: it is not assumed there any more.
func (l *ledger) forget(b source.Binding, reason string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.assumed(b)
	if !ok {
		return false, nil
	}
	if err := l.apply(cluster.PodForgotten{ID: id, Reason: reason}); err != nil {
		return true, err
	}
	return true, l.nominate(id, "")
}

// told returns, in order, what the source has told about recorded placements: BindUnknown for those that are still
// only assumed.
func (l *ledger) told(batch []intent) []source.Result {
	results := make([]source.Result, len(batch))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range batch {
		id, ok := l.state.PodByUID(batch[i].UID)
		if !ok {
			results[i] = source.BindGone
			continue
		}
		switch row := l.state.Pod(id); {
		case !row.Placed(): // it is being deleted
			results[i] = source.BindGone
		case row.NodeName != batch[i].Node:
			results[i] = source.BindElsewhere
		case row.Phase == cluster.Bound:
			results[i] = source.BindDone
		}
	}
	return results
}

// unplaced reports whether there is such a pod and it is not placed.
func (l *ledger) unplaced(uid string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.state.PodByUID(uid)
	return ok && !l.state.Pod(id).Placed()
}

// adopt assumes a pod again that an earlier epoch has recorded an intent for. False: it is placed, being deleted or gone,
// or its node is not known, and there is nothing to bind.
func (l *ledger) adopt(b source.Binding) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.state.PodByUID(b.UID)
	if !ok || l.state.Pod(id).Placed() || l.state.Pod(id).Deleting {
		return false, nil
	}
	node := l.state.Nodes.ByName(b.Node)
	if node == cluster.NoNode {
		return false, nil
	}
	return true, l.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: max(l.state.Pod(id).Attempt, 1)})
}
