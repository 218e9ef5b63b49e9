package engine

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Fullness is how full some nodes are together.
type Fullness struct {
	// Score is what kube-scheduler's NodeResourcesFit gives a placement of a PodGroup, 0 to 100: of what the nodes have of each resource that it scores, how much is requested then, by MostAllocated
	// whatever strategy the profile has for nodes.
	Score int64
	exact float64
}

// Compare tells fullnesses of equal Score apart too.
func (f Fullness) Compare(other Fullness) int {
	return cmp.Or(cmp.Compare(f.Score, other.Score), cmp.Compare(f.exact, other.exact))
}

// Comers is pods of some classes, each as often as it is there, that are to come to nodes together: what they request, summed up once for many sets of nodes. It holds as long as no resource comes that no node had.
type Comers struct {
	none   bool             // there are none
	scored []scoredResource // of each, the request is that of all of them
	fit    bool             // how many fit is bounded by what they request
	least  []leastRequest
}

// leastRequest is what each of them requests of a resource at least, more than 0.
type leastRequest struct {
	id    cluster.ResourceID
	value int64
}

// ComersOf sums up pods of some classes of a profile.
func ComersOf(st *cluster.State, profile *cluster.Profile, pods []*cluster.Class) *Comers {
	c := &Comers{none: len(pods) == 0, fit: boundsFit(profile)}
	times := make(map[*cluster.Class]int64)
	for _, class := range pods {
		times[class]++
	}
	for _, r := range profile.FitResources {
		var comes int64
		for class, n := range times {
			comes += n * amountOf(class.Spec.ScoreRequests, r.Name)
		}
		id, ok := st.Resource(r.Name)
		if !ok || !isBasic(r.Name) && (comes == 0 || !cluster.IsScalar(r.Name)) {
			continue // as kube-scheduler leaves out those that none of them requests
		}
		c.scored = append(c.scored, scoredResource{id: id, weight: r.Weight, request: comes, nonZero: id == cluster.CPU || id == cluster.Memory})
	}
	if c.none || !c.fit {
		return c
	}
	for _, q := range pods[0].Spec.Requests {
		id, known := st.Resource(q.Name)
		if q.Value <= 0 || !known || ignored(profile, q.Name) {
			continue // those who request what no node has fit nowhere, which filters say
		}
		value := q.Value
		for class := range times {
			value = min(value, amountOf(class.Spec.Requests, q.Name))
		}
		if value > 0 {
			c.least = append(c.least, leastRequest{id, value})
		}
	}
	return c
}

// Fullness returns how full some nodes would be if the pods came to them besides those that they have.
// Source: NodeResourcesFit's ScorePlacement, and mostResourceScorer, of kube-scheduler 1.36.
func (c *Comers) Fullness(st *cluster.State, nodes []cluster.NodeIndex) Fullness {
	var sum, weights int64
	var exact float64
	for _, r := range c.scored {
		var capacity, used uint64
		for _, i := range nodes {
			if has := st.Nodes.Allocatable[r.id][i]; has > 0 {
				capacity += uint64(has)
				used += uint64(r.used(&st.Nodes, i))
			}
		}
		if capacity == 0 {
			continue
		}
		used = min(used+uint64(r.request), capacity)
		high, low := bits.Mul64(used, maxScore)
		score, _ := bits.Div64(high, low, capacity)
		sum += int64(score) * r.weight
		exact += float64(used) / float64(capacity) * float64(r.weight)
		weights += r.weight
	}
	if weights == 0 {
		return Fullness{}
	}
	return Fullness{Score: sum / weights, exact: exact}
}

// AtMost returns a bound on how many of the pods fit on some nodes together, by what they request: no more do, whatever else filters say. It looks no further than to enough.
func (c *Comers) AtMost(st *cluster.State, nodes []cluster.NodeIndex, enough int) int {
	switch {
	case c.none:
		return 0
	case !c.fit:
		return enough // nothing bounds it
	}
	n, sum := &st.Nodes, 0
	for _, i := range nodes {
		if !n.Live.Has(i) {
			continue
		}
		room := max(n.AllowedPods[i]-int64(n.PodCount[i]), 0)
		for _, r := range c.least { // each of them takes at least that
			free := n.Allocatable[r.id][i] - n.Requested[r.id][i]
			room = min(room, max(free/r.value, 0))
		}
		if sum += int(min(room, math.MaxInt32)); sum >= enough {
			return sum
		}
	}
	return sum
}

// FullnessGrows reports whether nodes never are less full by FullnessOf when more pods come to them. Of resources that count only if some pod requests them they may be.
func FullnessGrows(profile *cluster.Profile) bool {
	return !slices.ContainsFunc(profile.FitResources, func(r cluster.PluginWeight) bool { return !isBasic(r.Name) })
}
