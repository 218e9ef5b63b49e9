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
	broken     error // the first delta the state refused: a broken invariant
}

func newLedger(epoch cluster.Epoch, settings cluster.Settings, feed *replica.Feed) (*ledger, error) {
	l := &ledger{
		feed:       feed,
		state:      cluster.New(cluster.Version{Epoch: epoch}),
		classID:    make(map[string]cluster.ClassID),
		labelsID:   make(map[string]cluster.LabelsID),
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
		} else if sameNode(&l.state.Nodes.Spec[i], &e.Node) {
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
	case source.PodSet:
		return l.observePod(e.Pod)
	case source.PodGone:
		if id, ok := l.state.PodByUID(e.Pod.UID); ok {
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
	return l.change(id, cluster.PodSet{ID: id, Pod: pod})
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

// forget makes an assumed pod pending again. False: it is not assumed there any more.
func (l *ledger) forget(b source.Binding, reason string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.assumed(b)
	if !ok {
		return false, nil
	}
	return true, l.apply(cluster.PodForgotten{ID: id, Reason: reason})
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

// adopt assumes a pod again that an earlier epoch has recorded an intent for. False: it is placed, gone, or its node
// is not known, and there is nothing to bind.
func (l *ledger) adopt(b source.Binding) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.state.PodByUID(b.UID)
	if !ok || l.state.Pod(id).Phase != cluster.Pending {
		return false, nil
	}
	node := l.state.Nodes.ByName(b.Node)
	if node == cluster.NoNode {
		return false, nil
	}
	return true, l.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: max(l.state.Pod(id).Attempt, 1)})
}
