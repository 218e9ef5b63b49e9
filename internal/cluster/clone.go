package cluster

import (
	"maps"
	"slices"
)

// Clone returns an independent copy of the state: same version, same digest, same indexes and ids, and no delta to the one is
// seen in the other. What never changes once it is there (class specs, label sets, the shapes and labels of nodes, objects,
// texts) is shared. Nobody may change the state meanwhile. The copy has no Before until its first delta.
func (s *State) Clone() *State {
	c := new(State)
	*c = *s
	c.Nodes = s.Nodes.clone()
	c.Symbols = Symbols{ids: maps.Clone(s.Symbols.ids), strings: slices.Clone(s.Symbols.strings)}
	c.Nodes.symbols = &c.Symbols
	c.before, c.scratch = Before{}, nil

	c.resources, c.resourceHash = slices.Clone(s.resources), slices.Clone(s.resourceHash)
	c.resourceID, c.resourceUses = maps.Clone(s.resourceID), slices.Clone(s.resourceUses)
	c.lacked = cloneMaps(s.lacked)
	c.images, c.pinned = maps.Clone(s.images), maps.Clone(s.pinned)
	c.namespaces = maps.Clone(s.namespaces)
	c.classes, c.labels = cloneValues(s.classes), cloneValues(s.labels)
	c.services = cloneMaps(s.services)
	c.controllers = maps.Clone(s.controllers)
	c.nominated = cloneSlices(s.nominated)
	c.objects = s.objects.clone()
	c.volumes = s.volumes.clone()
	c.groups = cloneGroups(s.groups)
	c.selectorsModified = maps.Clone(s.selectorsModified)

	c.pods = slices.Clone(s.pods)
	c.podByUID = maps.Clone(s.podByUID)
	c.orphans = cloneSlices(s.orphans)
	c.journal.entries = slices.Clone(s.journal.entries)
	return c
}

// clone returns a copy that belongs to no state yet.
func (n *Nodes) clone() Nodes {
	c := *n
	c.Live, c.Unschedulable, c.Unsupported = slices.Clone(n.Live), slices.Clone(n.Unschedulable), slices.Clone(n.Unsupported)
	c.Spec = slices.Clone(n.Spec)
	c.Labels = slices.Clone(n.Labels)
	c.Ports = slices.Clone(n.Ports)
	for i, used := range c.Ports {
		if used != nil {
			c.Ports[i] = slices.Clone(used)
		}
	}
	c.AllowedPods, c.PodCount = slices.Clone(n.AllowedPods), slices.Clone(n.PodCount)
	c.NonZeroCPU, c.NonZeroMemory = slices.Clone(n.NonZeroCPU), slices.Clone(n.NonZeroMemory)
	c.Allocatable, c.Requested = make([][]int64, len(n.Allocatable)), make([][]int64, len(n.Requested))
	for r := range n.Allocatable {
		c.Allocatable[r], c.Requested[r] = slices.Clone(n.Allocatable[r]), slices.Clone(n.Requested[r])
	}
	c.Modified, c.SpecModified, c.PodsModified = slices.Clone(n.Modified), slices.Clone(n.SpecModified), slices.Clone(n.PodsModified)
	c.modifiedWord, c.modifiedBlock = slices.Clone(n.modifiedWord), slices.Clone(n.modifiedBlock)
	c.firstPod, c.portHash = slices.Clone(n.firstPod), slices.Clone(n.portHash)
	c.byName, c.keyUses = slices.Clone(n.byName), slices.Clone(n.keyUses)
	c.hash = slices.Clone(n.hash)
	return c
}

// cloneValues copies a map with what its values point to.
func cloneValues[K comparable, V any](m map[K]*V) map[K]*V {
	out := make(map[K]*V, len(m))
	room := make([]V, len(m))
	k := 0
	for key, value := range m {
		room[k] = *value
		out[key] = &room[k]
		k++
	}
	return out
}

// cloneMaps copies a map of maps.
func cloneMaps[K, L comparable, V any](m map[K]map[L]V) map[K]map[L]V {
	out := make(map[K]map[L]V, len(m))
	for key, inner := range m {
		out[key] = maps.Clone(inner)
	}
	return out
}

// cloneSlices copies a map of slices.
func cloneSlices[K comparable, V any](m map[K][]V) map[K][]V {
	out := make(map[K][]V, len(m))
	for key, list := range m {
		out[key] = slices.Clone(list)
	}
	return out
}
