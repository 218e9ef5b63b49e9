package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// scoredResource is a resource that a plugin scores with.
type scoredResource struct {
	id      cluster.ResourceID
	weight  int64
	request int64 // of the pod
	nonZero bool  // the node's sum is NonZeroCPU or NonZeroMemory
}

func isBasic(name string) bool {
	return name == "cpu" || name == "memory" || name == "ephemeral-storage"
}

// scoredResource finds the column and the pod's request of a resource. False: no node can have a score for it.
func (c *compiler) scoredResource(r cluster.PluginWeight, requests []cluster.Quantity) (scoredResource, bool) {
	s := scoredResource{weight: r.Weight}
	for _, q := range requests {
		if q.Name == r.Name {
			s.request = q.Value
		}
	}
	if !isBasic(r.Name) && (s.request == 0 || !cluster.IsScalar(r.Name)) {
		return s, false
	}
	id, ok := c.resource(r.Name)
	s.id = id
	return s, ok
}

// used returns what the node's pods request of the resource.
func (s *scoredResource) used(n *cluster.Nodes, i cluster.NodeIndex) int64 {
	switch {
	case !s.nonZero:
		return n.Requested[s.id][i]
	case s.id == cluster.CPU:
		return n.NonZeroCPU[i]
	}
	return n.NonZeroMemory[i]
}
