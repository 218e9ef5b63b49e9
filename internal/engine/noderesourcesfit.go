package engine

import (
	"math"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NodeResourcesFit keeps pods off nodes that do not have what they request: for each resource of which the pod
// requests more than 0, request > allocatable - requested fails, and so does one pod too many. All that is
// insufficient is reported. It fails unresolvably if some insufficient request is more than the node's allocatable.
// Extended resources that the profile ignores, by name or by what stands before the slash, are not checked; they are
// scored all the same.
//
// Its score looks at the resources of the profile. With used = what the node's pods request plus what the pod requests,
// where cpu and memory count 100m and 200 MiB for each container that names none:
//
//	LeastAllocated            (allocatable-used)·100/allocatable, 0 if used > allocatable
//	MostAllocated             min(used, allocatable)·100/allocatable
//	RequestedToCapacityRatio  the profile's shape at used·100/allocatable, at 100 if used > allocatable
//
// The node's score is their weighted mean, by integer division; RequestedToCapacityRatio leaves out resources that
// score 0 and rounds. Resources of which the node has nothing, and extended ones that the pod does not request, are
// left out. It is not normalised.
const NodeResourcesFit = "NodeResourcesFit"

// NodeResourcesFit's reasons: ReasonTooManyPods, or ReasonInsufficient and the resource's name.
const (
	ReasonTooManyPods  = "Too many pods"
	ReasonInsufficient = "Insufficient "
)

// maxUtilization is the largest argument of a RequestedToCapacityRatio shape, in percent.
const maxUtilization = 100

type fitStrategy uint8

const (
	leastAllocated fitStrategy = iota
	mostAllocated
	requestedToCapacityRatio
)

type nodeResourcesFit struct {
	requests []fitRequest
	names    []string // reasons, by their bit in a Verdict: first ReasonTooManyPods, then the resources requested
	// absent is the verdict of what no node has any of, and missing which resources that are, as requests.
	absent  Verdict
	missing []fitRequest

	strategy  fitStrategy
	resources []scoredResource
	shape     []cluster.ShapePoint // its scores 0 to 100
}

type fitRequest struct {
	resource cluster.ResourceID // of no meaning in nodeResourcesFit.missing
	name     int                // in nodeResourcesFit.names
	value    int64
}

// insufficient is the verdict that names it.
func (r *fitRequest) insufficient() Verdict { return codeFit | 1<<(firstResourceBit+r.name) }

// scoredResource is a resource that a plugin scores with.
type scoredResource struct {
	id      cluster.ResourceID
	weight  int64
	request int64 // of the pod
	nonZero bool  // the node's sum is NonZeroCPU or NonZeroMemory
}

// ignored reports whether the profile ignores the resource: extended ones only can be.
func ignored(profile *cluster.Profile, name string) bool {
	if len(profile.IgnoredResources)+len(profile.IgnoredResourceGroups) == 0 || !cluster.IsExtended(name) {
		return false
	}
	group, _, _ := strings.Cut(name, "/")
	return slices.Contains(profile.IgnoredResources, name) || slices.Contains(profile.IgnoredResourceGroups, group)
}

func isBasic(name string) bool {
	return name == "cpu" || name == "memory" || name == "ephemeral-storage"
}

func (c *compiler) nodeResourcesFit(spec *cluster.ClassSpec, profile *cluster.Profile) nodeResourcesFit {
	p := nodeResourcesFit{names: []string{ReasonTooManyPods}}
	for _, q := range spec.Requests {
		if q.Value <= 0 || !isBasic(q.Name) && !cluster.IsScalar(q.Name) || ignored(profile, q.Name) {
			continue
		}
		id, ok := c.resource(q.Name)
		r := fitRequest{id, len(p.names), q.Value}
		p.names = append(p.names, ReasonInsufficient+q.Name)
		if ok {
			p.requests = append(p.requests, r)
		} else {
			p.missing = append(p.missing, r)
			p.absent |= r.insufficient() | unresolvable
		}
	}

	switch profile.FitStrategy {
	case cluster.MostAllocated:
		p.strategy = mostAllocated
	case cluster.RequestedToCapacityRatio:
		p.strategy = requestedToCapacityRatio
	}
	for _, point := range profile.Shape {
		p.shape = append(p.shape, cluster.ShapePoint{Utilization: point.Utilization, Score: point.Score * 10})
	}
	for _, r := range profile.FitResources {
		if s, ok := c.scoredResource(r, spec.ScoreRequests); ok {
			s.nonZero = s.id == cluster.CPU || s.id == cluster.Memory
			p.resources = append(p.resources, s)
		}
	}
	return p
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

func (p *nodeResourcesFit) filter(n *cluster.Nodes, i cluster.NodeIndex, h *overlay) Verdict {
	v := p.absent
	if int64(n.PodCount[i])+h.count()+1 > n.AllowedPods[i] {
		v |= codeFit | 1<<firstResourceBit
	}
	for k := range p.requests {
		r := &p.requests[k]
		allocatable := n.Allocatable[r.resource][i]
		if r.value > allocatable-n.Requested[r.resource][i]-h.request(r.resource) {
			v |= r.insufficient()
			if r.value > allocatable {
				v |= unresolvable
			}
		}
	}
	return v
}

func (p *nodeResourcesFit) score(n *cluster.Nodes, i cluster.NodeIndex) int64 {
	var sum, weights int64
	for k := range p.resources {
		r := &p.resources[k]
		capacity := n.Allocatable[r.id][i]
		if capacity == 0 {
			continue
		}
		used := r.used(n, i) + r.request
		var s int64
		switch p.strategy {
		case leastAllocated:
			if used <= capacity {
				s = (capacity - used) * maxScore / capacity
			}
		case mostAllocated:
			s = min(used, capacity) * maxScore / capacity
		case requestedToCapacityRatio:
			utilization := int64(maxUtilization)
			if used <= capacity {
				utilization = used * maxUtilization / capacity
			}
			if s = shapeAt(p.shape, utilization); s <= 0 {
				continue
			}
		}
		sum += s * r.weight
		weights += r.weight
	}
	switch {
	case weights == 0:
		return 0
	case p.strategy == requestedToCapacityRatio:
		return int64(math.Round(float64(sum) / float64(weights)))
	}
	return sum / weights
}

// shapeAt is the broken line through the points, flat outside.
func shapeAt(shape []cluster.ShapePoint, utilization int64) int64 {
	for k := range shape {
		to := &shape[k]
		if utilization > int64(to.Utilization) {
			continue
		}
		if k == 0 {
			return int64(to.Score)
		}
		from := &shape[k-1]
		return int64(from.Score) + int64(to.Score-from.Score)*(utilization-int64(from.Utilization))/
			int64(to.Utilization-from.Utilization)
	}
	if len(shape) == 0 {
		return 0
	}
	return int64(shape[len(shape)-1].Score)
}
