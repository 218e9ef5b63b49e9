package engine

import (
	"math"
	"math/bits"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// AtMost returns a bound on how many pods of some classes of a profile fit on some nodes together, by what they request: no more do, whatever else filters say. It looks no further than to enough.
func AtMost(st *cluster.State, profile *cluster.Profile, nodes cluster.Bitmap, classes []*cluster.Class, enough int) int {
	switch {
	case len(classes) == 0:
		return 0
	case !slices.Contains(profile.Filters, NodeResourcesFit):
		return enough // nothing bounds it
	}
	// Each of them takes at least the least that any of them requests of a resource.
	type least struct {
		id    cluster.ResourceID
		value int64
	}
	var requests []least
	for _, q := range classes[0].Spec.Requests {
		id, known := st.Resource(q.Name)
		if q.Value <= 0 || !known || ignored(profile, q.Name) {
			continue // those who request what no node has fit nowhere, which filters say
		}
		value := q.Value
		for _, c := range classes[1:] {
			value = min(value, amountOf(c.Spec.Requests, q.Name))
		}
		if value > 0 {
			requests = append(requests, least{id, value})
		}
	}
	n, sum := &st.Nodes, 0
	for w := range nodes {
		for in := nodes[w] & n.Live[w]; in != 0; in &= in - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(in))
			room := max(n.AllowedPods[i]-int64(n.PodCount[i]), 0)
			for _, r := range requests {
				free := n.Allocatable[r.id][i] - n.Requested[r.id][i]
				room = min(room, max(free/r.value, 0))
			}
			if sum += int(min(room, math.MaxInt32)); sum >= enough {
				return sum
			}
		}
	}
	return sum
}
