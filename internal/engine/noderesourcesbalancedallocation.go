package engine

import (
	"math"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NodeResourcesBalancedAllocation prefers nodes whose resources the pod makes more evenly used.
//
// With f = min(1, used/allocatable) of each resource of the profile, b = int64((1-std(f))·100), where std is |f0-f1|/2
// for two resources, the standard deviation for more and 0 for one. The score is 50 + (50 + b with the pod - b without
// it)/2, by integer division. Requests are real: a container that names none counts 0. It does not score a pod that
// requests nothing of the resources, and is not normalised.
const NodeResourcesBalancedAllocation = "NodeResourcesBalancedAllocation"

var nodeResourcesBalancedAllocation = Descriptor{
	Name: NodeResourcesBalancedAllocation, Points: []string{"preScore", "score"}, Needs: map[string][]string{"score": {"preScore"}},
	Priorities: []string{"BalancedResourceAllocation"},
	scale:      ownScale,
	compile: func(c *compiler) compiled {
		p, scores := new(balance), false
		for _, name := range c.profile.BalancedResources {
			for _, q := range c.spec.Requests {
				scores = scores || q.Name == name && q.Value != 0
			}
			if s, ok := c.scoredResource(cluster.PluginWeight{Name: name, Weight: 1}, c.spec.Requests); ok {
				p.resources = append(p.resources, s)
			}
		}
		if !scores {
			return compiled{}
		}
		return compiled{score: p.score()}
	},
}

// balance is the plugin of a class.
type balance struct{ resources []scoredResource }

func (p *balance) score() scoreFunc {
	return func(st *cluster.State, i cluster.NodeIndex) int64 {
		n := &st.Nodes
		return maxScore/2 + (maxScore/2+p.of(n, i, true)-p.of(n, i, false))/2
	}
}

func (p *balance) of(n *cluster.Nodes, i cluster.NodeIndex, withPod bool) int64 {
	var first, second, total float64
	count := 0
	for k := range p.resources {
		f, ok := p.resources[k].fraction(n, i, withPod)
		if !ok {
			continue
		}
		switch count {
		case 0:
			first = f
		case 1:
			second = f
		}
		total += f
		count++
	}
	std := 0.0
	switch {
	case count == 2:
		std = math.Abs((first - second) / 2)
	case count > 2:
		mean, sum := total/float64(count), 0.0
		for k := range p.resources {
			if f, ok := p.resources[k].fraction(n, i, withPod); ok {
				// The conversion keeps processors that could from fusing the two operations: all must agree.
				sum += float64((f - mean) * (f - mean))
			}
		}
		std = math.Sqrt(sum / float64(count))
	}
	return int64((1 - std) * float64(maxScore))
}

// fraction returns which part of the node's allocatable is used; false if there is nothing allocatable.
func (s *scoredResource) fraction(n *cluster.Nodes, i cluster.NodeIndex, withPod bool) (float64, bool) {
	capacity := n.Allocatable[s.id][i]
	if capacity == 0 {
		return 0, false
	}
	used := s.used(n, i)
	if withPod {
		used += s.request
	}
	return min(float64(used)/float64(capacity), 1), true
}
