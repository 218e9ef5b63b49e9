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

type nodeResourcesBalancedAllocation struct{ resources []scoredResource }

// nodeResourcesBalancedAllocation compiles the plugin; false if it does not score such pods.
func (c *compiler) nodeResourcesBalancedAllocation(spec *cluster.ClassSpec, profile *cluster.Profile) (p nodeResourcesBalancedAllocation, scores bool) {
	for _, name := range profile.BalancedResources {
		for _, q := range spec.Requests {
			scores = scores || q.Name == name && q.Value != 0
		}
		if s, ok := c.scoredResource(cluster.PluginWeight{Name: name, Weight: 1}, spec.Requests); ok {
			p.resources = append(p.resources, s)
		}
	}
	return p, scores
}

func (p *nodeResourcesBalancedAllocation) score(n *cluster.Nodes, i cluster.NodeIndex) int64 {
	return maxScore/2 + (maxScore/2+p.balance(n, i, true)-p.balance(n, i, false))/2
}

func (p *nodeResourcesBalancedAllocation) balance(n *cluster.Nodes, i cluster.NodeIndex, withPod bool) int64 {
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
