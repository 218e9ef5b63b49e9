package cluster

import (
	"iter"
	"maps"
	"slices"
)

// Snapshot yields deltas that build an equal state from an empty one. After applying them all, Restore the version.
func (s *State) Snapshot() iter.Seq[Delta] {
	return func(yield func(Delta) bool) {
		if s.Settings.Shards > 0 && !yield(SettingsSet{s.Settings}) {
			return
		}
		for _, sym := range slices.Sorted(maps.Keys(s.images)) {
			if !yield(ImageSized{Name: s.Symbols.Text(sym), Size: s.images[sym].Size}) {
				return
			}
		}
		for _, c := range s.Classes() {
			if !yield(ClassDefined{ID: c.ID, Spec: c.Spec}) {
				return
			}
		}
		for _, l := range s.LabelSets() {
			if !yield(LabelsDefined{ID: l.ID, Set: l.LabelSet}) {
				return
			}
		}
		for d := range s.selectorsSet() {
			if !yield(d) {
				return
			}
		}
		for d := range s.Objects() {
			if !yield(d) {
				return
			}
		}
		for _, name := range slices.Sorted(maps.Keys(s.namespaces)) {
			if !yield(NamespaceSet{Name: name, Labels: s.namespaces[name]}) {
				return
			}
		}
		for i := range s.Nodes.Spec {
			if !s.Nodes.Live.Has(NodeIndex(i)) {
				continue
			}
			if !yield(NodeSet{Index: NodeIndex(i), Node: s.Node(NodeIndex(i))}) {
				return
			}
		}
		for id, row := range s.Pods() {
			if !yield(PodSet{ID: id, Pod: row.Pod, Assumed: row.Phase == Assumed, Preempting: row.Preempting, Victim: row.Victim, Volumes: s.Chosen(id)}) {
				return
			}
		}
	}
}

// Restore ends the loading of a snapshot: the state is now of version v, and every node counts as changed at v.
func (s *State) Restore(v Version) {
	s.version = v
	for i := range s.Nodes.Modified {
		s.Nodes.touch(NodeIndex(i), v.Seq)
	}
	s.journal.restart(v.Seq)
	s.ImagesModified, s.KeysModified, s.NamespacesModified, s.TermsModified = v.Seq, v.Seq, v.Seq, v.Seq
	s.objects.restore(v.Seq)
	s.volumes.restore(v.Seq)
	s.restoreSupply()
	for i := range s.Nodes.SpecModified {
		s.Nodes.SpecModified[i] = v.Seq
	}
	s.restored = v.Seq
	clear(s.selectorsModified)
	clear(s.pinned)
}
