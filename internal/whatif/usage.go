package whatif

import (
	"cmp"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Usage is how full a cluster is.
type Usage struct {
	Nodes, Pods int           // nodes there are, and pods placed on them
	Resources   []ResourceUse // that some node has, "pods" included; by name
	Zones       []ZoneUse     // by name, "" for the nodes without one
}

// ResourceUse is how much of a resource is taken, in the units of cluster.Quantity.
type ResourceUse struct {
	Name                   string
	Allocatable, Requested int64 // of all nodes
	// MeanPermille and MaxPermille are the mean and the largest of the shares that are taken of the nodes that have some, in
	// thousandths.
	MeanPermille, MaxPermille int64
}

// ZoneUse is the nodes of a zone, and the pods placed on them.
type ZoneUse struct {
	Zone        string
	Nodes, Pods int
}

// Spread is how many pods more the zone with the most has than the one with the fewest.
func (u *Usage) Spread() int {
	if len(u.Zones) == 0 {
		return 0
	}
	byPods := func(a, b ZoneUse) int { return cmp.Compare(a.Pods, b.Pods) }
	return slices.MaxFunc(u.Zones, byPods).Pods - slices.MinFunc(u.Zones, byPods).Pods
}

// UsageOf adds up what the nodes of a state have and what their pods take.
func UsageOf(st *cluster.State) Usage { return new(zoning).usage(st) }

// Usage adds up what the nodes have and what their pods take.
func (w *World) Usage() Usage { return w.s.zoning.usage(w.State()) }

// zoning remembers which zones nodes are in, of one state: to look at the labels of all nodes takes longer than all else.
type zoning struct {
	zones []cluster.Symbol // in the order in which they were met
	index map[cluster.Symbol]int
	nodes []zoned // by node

	numbered uint64 // Renumbered of the state when the symbols were met
}

// zoned is the zone of a node, as an index, as of a seq of its labels plus one; 0: not known.
type zoned struct {
	asOf cluster.Seq
	zone int
}

// of returns the index of a node's zone.
func (z *zoning) of(st *cluster.State, key cluster.Symbol, i cluster.NodeIndex) int {
	known := &z.nodes[i]
	if asOf := st.Nodes.SpecModified[i] + 1; known.asOf != asOf {
		*known = zoned{asOf, z.indexOf(zoneOf(st, key, i))}
	}
	return known.zone
}

func (z *zoning) indexOf(zone cluster.Symbol) int {
	at, ok := z.index[zone]
	if !ok {
		if z.index == nil {
			z.index = make(map[cluster.Symbol]int)
		}
		at = len(z.zones)
		z.index[zone], z.zones = at, append(z.zones, zone)
	}
	return at
}

func zoneOf(st *cluster.State, key cluster.Symbol, i cluster.NodeIndex) cluster.Symbol {
	for _, l := range st.Nodes.Labels[i] {
		if l.Key == key {
			return l.Value
		}
	}
	return cluster.NoSymbol
}

func (z *zoning) usage(st *cluster.State) Usage {
	n := &st.Nodes
	out := Usage{Nodes: n.Count()}
	if z.numbered != st.Renumbered() {
		*z = zoning{numbered: st.Renumbered()}
	}
	key := st.Symbols.Lookup(zoneLabel)
	if missing := n.Len() - len(z.nodes); missing > 0 {
		z.nodes = append(z.nodes, make([]zoned, missing)...)
	}
	uses := make([]ZoneUse, len(z.zones)) // by zone
	for i := range cluster.NodeIndex(n.Len()) {
		if !n.Live.Has(i) {
			continue
		}
		zone := z.of(st, key, i)
		if zone == len(uses) {
			uses = append(uses, ZoneUse{})
		}
		uses[zone].Nodes++
		uses[zone].Pods += int(n.PodCount[i])
		out.Pods += int(n.PodCount[i])
	}
	for at, use := range uses {
		if use.Nodes == 0 {
			continue
		}
		if zone := z.zones[at]; zone != cluster.NoSymbol {
			use.Zone = st.Symbols.Text(zone)
		}
		out.Zones = append(out.Zones, use)
	}
	slices.SortFunc(out.Zones, func(a, b ZoneUse) int { return cmp.Compare(a.Zone, b.Zone) })

	for r := range cluster.ResourceID(st.Resources()) {
		addResource(&out, st.ResourceName(r), n.Allocatable[r], n.Requested[r])
	}
	addResource(&out, "pods", n.AllowedPods, n.PodCount)
	slices.SortFunc(out.Resources, func(a, b ResourceUse) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// addResource adds a resource if some node has any of it. What an index without a node has is 0.
func addResource[T int32 | int64](u *Usage, name string, allocatable []int64, requested []T) {
	use := ResourceUse{Name: name}
	var nodes, sum int64
	requested = requested[:len(allocatable)]
	for i, has := range allocatable {
		if has <= 0 {
			continue
		}
		takes := int64(requested[i])
		share := int64(float64(takes) / float64(has) * 1000)
		nodes, sum = nodes+1, sum+share
		use.Allocatable, use.Requested = use.Allocatable+has, use.Requested+takes
		use.MaxPermille = max(use.MaxPermille, share)
	}
	if nodes > 0 {
		use.MeanPermille = sum / nodes
		u.Resources = append(u.Resources, use)
	}
}
