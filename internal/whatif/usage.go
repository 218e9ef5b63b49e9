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
func UsageOf(st *cluster.State) Usage {
	n := &st.Nodes
	out := Usage{Nodes: n.Count()}
	zones := make(map[cluster.Symbol]*ZoneUse)
	key := st.Symbols.Lookup(zoneLabel)
	for i := range cluster.NodeIndex(n.Len()) {
		if !n.Live.Has(i) {
			continue
		}
		out.Pods += int(n.PodCount[i])
		zone := cluster.NoSymbol
		if at := slices.IndexFunc(n.Labels[i], func(l cluster.NodeLabel) bool { return l.Key == key }); at >= 0 {
			zone = n.Labels[i][at].Value
		}
		use := zones[zone]
		if use == nil {
			use = new(ZoneUse)
			if zone != cluster.NoSymbol {
				use.Zone = st.Symbols.Text(zone)
			}
			zones[zone] = use
		}
		use.Nodes++
		use.Pods += int(n.PodCount[i])
	}
	for _, use := range zones {
		out.Zones = append(out.Zones, *use)
	}
	slices.SortFunc(out.Zones, func(a, b ZoneUse) int { return cmp.Compare(a.Zone, b.Zone) })

	for r := range cluster.ResourceID(st.Resources()) {
		requested := n.Requested[r]
		out.addResource(st.ResourceName(r), n.Allocatable[r], func(i int) int64 { return requested[i] })
	}
	out.addResource("pods", n.AllowedPods, func(i int) int64 { return int64(n.PodCount[i]) })
	slices.SortFunc(out.Resources, func(a, b ResourceUse) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// addResource adds a resource if some node has any of it. What an index without a node has is 0.
func (u *Usage) addResource(name string, allocatable []int64, requested func(int) int64) {
	use := ResourceUse{Name: name}
	var nodes, sum int64
	for i, has := range allocatable {
		if has <= 0 {
			continue
		}
		takes := requested(i)
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
