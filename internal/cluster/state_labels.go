package cluster

import (
	"cmp"
	"iter"
	"maps"
	"slices"
)

// Labels is a label set in the ledger. Readers must not change it.
type Labels struct {
	LabelSet
	ID   LabelsID
	Key  string // LabelSet.Key()
	Pods int    // how many pods have it

	hash uint64
}

// selectorKey names a service or controller.
type selectorKey struct{ kind, namespace, name string }

// Labels returns a label set, or nil.
func (s *State) Labels(id LabelsID) *Labels { return s.labels[id] }

// The labels of a node that the API server copies to a pod when it is bound there: those of its admission plugin PodTopologyLabels.
const (
	zoneLabel   = "topology.kubernetes.io/zone"
	regionLabel = "topology.kubernetes.io/region"
)

// AlikeOn reports whether pods with two label sets are alike on a node: these differ in nothing but the zone and the region of the node, which pods get there.
func (s *State) AlikeOn(i NodeIndex, a, b LabelsID) bool {
	if a == b {
		return true
	}
	one, known := s.labelSet(a)
	other, too := s.labelSet(b)
	if !known || !too || one.Controller != other.Controller || !slices.Equal(one.Claims, other.Claims) {
		return false
	}
	x, y := one.Labels, other.Labels
	for len(x)+len(y) > 0 {
		switch {
		case len(x) > 0 && len(y) > 0 && x[0] == y[0]:
			x, y = x[1:], y[1:]
		case len(x) > 0 && s.isOwn(i, x[0]):
			x = x[1:]
		case len(y) > 0 && s.isOwn(i, y[0]):
			y = y[1:]
		default:
			return false
		}
	}
	return true
}

// labelSet returns a label set, which is empty for NoLabels. False: there is none.
func (s *State) labelSet(id LabelsID) (set LabelSet, ok bool) {
	if id == NoLabels {
		return LabelSet{}, true
	}
	if l := s.labels[id]; l != nil {
		return l.LabelSet, true
	}
	return LabelSet{}, false
}

// isOwn reports whether a label is the zone or the region of a node.
func (s *State) isOwn(i NodeIndex, l Label) bool {
	return (l.Key == zoneLabel || l.Key == regionLabel) && slices.ContainsFunc(s.Nodes.Labels[i], func(is NodeLabel) bool {
		return s.Symbols.Text(is.Key) == l.Key && s.Symbols.Text(is.Value) == l.Value
	})
}

// LabelSetCount returns how many label sets there are.
func (s *State) LabelSetCount() int { return len(s.labels) }

// LabelSets returns all label sets, by id.
func (s *State) LabelSets() []*Labels {
	return slices.SortedFunc(maps.Values(s.labels), func(a, b *Labels) int { return cmp.Compare(a.ID, b.ID) })
}

// Services yields the selectors of a namespace's services, in no order.
func (s *State) Services(namespace string) iter.Seq2[string, LabelSelector] {
	return maps.All(s.services[namespace])
}

// Selector returns the selector of a controller.
func (s *State) Selector(kind, namespace, name string) (LabelSelector, bool) {
	if kind == KindService {
		selector, ok := s.services[namespace][name]
		return selector, ok
	}
	selector, ok := s.controllers[selectorKey{kind, namespace, name}]
	return selector, ok
}

// SelectorsModified returns the seq of the last delta that changed a service or a controller of a namespace, or of a later one:
// once so many namespaces have been changed, all count as changed.
func (s *State) SelectorsModified(namespace string) Seq {
	return max(s.restored, s.selectorsModified[namespace])
}

// maxSelectorsModified is for how many namespaces it is known when their selectors changed.
const maxSelectorsModified = 1 << 13

func (s *State) touchSelectors(namespace string) {
	if len(s.selectorsModified) >= maxSelectorsModified {
		clear(s.selectorsModified)
		s.restored = s.version.Seq
	}
	s.selectorsModified[namespace] = s.version.Seq
}

// Namespaces yields the labels of all namespaces, in no order.
func (s *State) Namespaces() iter.Seq2[string, []Label] { return maps.All(s.namespaces) }

// NamespaceDigest returns a hash of all namespaces and their labels.
func (s *State) NamespaceDigest() uint64 { return s.namespaceDigest }

// TermClasses returns the classes whose pods have pod affinity or anti-affinity terms, required or preferred, by id.
// The caller must not change the slice.
func (s *State) TermClasses() []ClassID { return s.termClasses }

// NominatedOn returns the pending pods that are nominated to a node, by id. The caller must not change the slice.
func (s *State) NominatedOn(node string) []PodID { return s.nominated[node] }

// NominatedNodes yields the names of the nodes that pending pods are nominated to, in no order. A name need not be that
// of a node.
func (s *State) NominatedNodes() iter.Seq[string] { return maps.Keys(s.nominated) }

// Nominations returns the number of names that NominatedNodes yields.
func (s *State) Nominations() int { return len(s.nominated) }

func (s *State) defineLabels(d LabelsDefined) {
	l := &Labels{LabelSet: d.Set, ID: d.ID, Key: d.Set.Key()}
	l.hash = hashText(kindLabels, l.Key)
	s.labels[d.ID] = l
	s.demandLabels(l, 1)
	s.digest += l.digest()
}

// retainLabels and releaseLabels count the pods of a label set; the last one takes it along.
func (s *State) retainLabels(id LabelsID) {
	if l := s.labels[id]; l != nil {
		l.Pods++
	}
}
func (s *State) releaseLabels(id LabelsID) {
	l := s.labels[id]
	if l == nil {
		return // NoLabels
	}
	if l.Pods--; l.Pods == 0 {
		s.demandLabels(l, -1)
		delete(s.labels, id)
		s.digest -= l.digest()
	}
}

func (s *State) setSelector(d SelectorSet) {
	key := selectorKey{d.Kind, d.Namespace, d.Name}
	s.removeSelector(key)
	if d.Kind == KindService {
		if s.services[d.Namespace] == nil {
			s.services[d.Namespace] = make(map[string]LabelSelector)
		}
		s.services[d.Namespace][d.Name] = d.Selector
	} else {
		s.controllers[key] = d.Selector
	}
	s.digest += hashSelector(key, d.Selector)
	s.touchSelectors(d.Namespace)
}

func (s *State) removeSelector(key selectorKey) {
	old, ok := s.Selector(key.kind, key.namespace, key.name)
	if !ok {
		return
	}
	s.digest -= hashSelector(key, old)
	s.touchSelectors(key.namespace)
	if key.kind != KindService {
		delete(s.controllers, key)
		return
	}
	delete(s.services[key.namespace], key.name)
	if len(s.services[key.namespace]) == 0 {
		delete(s.services, key.namespace)
	}
}

// selectorsSet yields the deltas that set all services and controllers, in order.
func (s *State) selectorsSet() iter.Seq[SelectorSet] {
	return func(yield func(SelectorSet) bool) {
		for _, namespace := range slices.Sorted(maps.Keys(s.services)) {
			for _, name := range slices.Sorted(maps.Keys(s.services[namespace])) {
				if !yield(SelectorSet{KindService, namespace, name, s.services[namespace][name]}) {
					return
				}
			}
		}
		keys := slices.SortedFunc(maps.Keys(s.controllers), func(a, b selectorKey) int {
			return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
		})
		for _, k := range keys {
			if !yield(SelectorSet{k.kind, k.namespace, k.name, s.controllers[k]}) {
				return
			}
		}
	}
}

// hasTerms reports whether pods of the class have pod affinity or anti-affinity terms.
func (c *ClassSpec) hasTerms() bool {
	return len(c.Affinity)+len(c.AntiAffinity)+len(c.PreferredAffinity)+len(c.PreferredAntiAffinity) > 0
}

// nominate and unnominate keep the index of nominations: pods that are pending and nominated.
func (s *State) nominate(id PodID) {
	p := &s.pods[id]
	if p.Nominated == "" || p.Placed() {
		return
	}
	list := s.nominated[p.Nominated]
	k, _ := slices.BinarySearch(list, id)
	s.nominated[p.Nominated] = slices.Insert(list, k, id)
	if p.volumes {
		s.nominateVolumes(id)
	}
	s.touchNamed(p.Nominated)
}

func (s *State) unnominate(id PodID) {
	p := &s.pods[id]
	if p.Nominated == "" || p.Placed() {
		return
	}
	list := s.nominated[p.Nominated]
	if k, ok := slices.BinarySearch(list, id); ok {
		list = slices.Delete(list, k, k+1)
	}
	if len(list) == 0 {
		delete(s.nominated, p.Nominated)
	} else {
		s.nominated[p.Nominated] = list
	}
	if p.volumes {
		s.unnominateVolumes(id)
	}
	s.touchNamed(p.Nominated)
}

// touchNamed makes the node count as changed, if there is one of that name.
func (s *State) touchNamed(node string) {
	if i := s.Nodes.ByName(node); i != NoNode {
		s.touch(i)
	}
}
