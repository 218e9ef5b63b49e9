package engine

import (
	"cmp"
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

// FullnessOf returns how full some nodes would be if pods of some classes, each as often as it is there, came to them besides the pods that they have.
// Source: NodeResourcesFit's ScorePlacement, and mostResourceScorer, of kube-scheduler 1.36.
func FullnessOf(st *cluster.State, profile *cluster.Profile, nodes cluster.Bitmap, pods []*cluster.Class) Fullness {
	var sum, weights int64
	var exact float64
	for _, r := range profile.FitResources {
		var comes int64
		for _, c := range pods {
			comes += amountOf(c.Spec.ScoreRequests, r.Name)
		}
		id, ok := st.Resource(r.Name)
		if !ok || !isBasic(r.Name) && (comes == 0 || !cluster.IsScalar(r.Name)) {
			continue // as kube-scheduler leaves out those that none of them requests
		}
		s := scoredResource{id: id, nonZero: id == cluster.CPU || id == cluster.Memory}
		var capacity, used uint64
		for w := range nodes {
			for in := nodes[w]; in != 0; in &= in - 1 {
				i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(in))
				if has := st.Nodes.Allocatable[id][i]; has > 0 {
					capacity += uint64(has)
					used += uint64(s.used(&st.Nodes, i))
				}
			}
		}
		if capacity == 0 {
			continue
		}
		used = min(used+uint64(comes), capacity)
		high, low := bits.Mul64(used, maxScore)
		score, _ := bits.Div64(high, low, capacity)
		sum += int64(score) * r.Weight
		exact += float64(used) / float64(capacity) * float64(r.Weight)
		weights += r.Weight
	}
	if weights == 0 {
		return Fullness{}
	}
	return Fullness{Score: sum / weights, exact: exact}
}

// FullnessGrows reports whether nodes never are less full by FullnessOf when more pods come to them. Of resources that count only if some pod requests them they may be.
func FullnessGrows(profile *cluster.Profile) bool {
	return !slices.ContainsFunc(profile.FitResources, func(r cluster.PluginWeight) bool { return !isBasic(r.Name) })
}
