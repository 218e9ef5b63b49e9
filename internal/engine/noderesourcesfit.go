package engine

import (
	"fmt"
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

var nodeResourcesFit = Descriptor{
	Name: NodeResourcesFit, Points: []string{"preFilter", "filter", "preScore", "score", "placementScore"},
	Needs:      map[string][]string{"filter": {"preFilter"}},
	Judges:     []Aspect{Requests},
	Predicates: []string{"GeneralPredicates", "PodFitsResources"},
	Priorities: []string{"LeastRequestedPriority", "MostRequestedPriority", "RequestedToCapacityRatioPriority"},
	reasons:    []Reason{{}}, // named by bits
	scale:      ownScale,
	compile: func(c *compiler) compiled {
		p := c.fit()
		out := compiled{filter: p.filter(), score: p.score(), details: p.names, survey: func(s *surveyor) surveyFunc {
			return func(i cluster.NodeIndex, nominees *overlay, out []Lack) []Lack {
				return p.lacks(s.st, i, nominees, out)
			}
		}}
		if len(p.names) > maxDetails {
			out.broken = "pod requests too many different resources"
		}
		return out
	},
	hints: hints{
		own: func(_ *Demands, c *ownChange) bool { return LessRequested(c.is.Requests, c.was.Requests) },
		on: func(d *Demands, was, is *cluster.Node) bool {
			return is != nil && d.fits(is) && (was == nil || d.grows(was, is))
		},
	},
	short: func(r *Rejection) string {
		var what []string
		for _, reason := range r.Reasons {
			name := strings.TrimPrefix(reason.Reason, ReasonInsufficient)
			if reason.Reason == ReasonTooManyPods {
				name = "room for one more pod"
			}
			if !slices.Contains(what, name) {
				what = append(what, name)
			}
		}
		return plural(int(r.Nodes), "lacks ", "lack ") + strings.Join(what, " or ")
	},
	text: func(l *Lack, _ Blocker) string {
		amount := func(value int64) string { return AmountText(l.Resource, value) }
		switch l.Resource {
		case "":
			return l.Reason
		case "pods":
			return fmt.Sprintf("pods: %d of %d are taken", l.Capacity-l.Free, l.Capacity)
		}
		return fmt.Sprintf("%s: requests %s, %s free of %s", l.Resource, amount(l.Requested), amount(l.Free), amount(l.Capacity))
	},
	besides: devicesMessage,
}

type fitStrategy uint8

const (
	leastAllocated fitStrategy = iota
	mostAllocated
	requestedToCapacityRatio
)

// fit is the plugin of a class.
type fit struct {
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
	resource cluster.ResourceID // of no meaning in fit.missing
	name     int                // in fit.names
	value    int64
}

// insufficient is the verdict that names it.
func (r *fitRequest) insufficient() Verdict { return codeDetailed | 1<<(firstDetail+r.name) }

// ignored reports whether the profile ignores the resource: extended ones only can be.
func ignored(profile *cluster.Profile, name string) bool {
	if len(profile.IgnoredResources)+len(profile.IgnoredResourceGroups) == 0 || !cluster.IsExtended(name) {
		return false
	}
	group, _, _ := strings.Cut(name, "/")
	return slices.Contains(profile.IgnoredResources, name) || slices.Contains(profile.IgnoredResourceGroups, group)
}

func (c *compiler) fit() *fit {
	spec, profile := c.spec, c.profile
	p := &fit{names: []string{ReasonTooManyPods}}
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
	p.shape = tenfold(profile.Shape)
	for _, r := range profile.FitResources {
		if s, ok := c.scoredResource(r, spec.ScoreRequests); ok {
			s.nonZero = s.id == cluster.CPU || s.id == cluster.Memory
			p.resources = append(p.resources, s)
		}
	}
	return p
}

func (p *fit) filter() filterFunc {
	return func(st *cluster.State, i cluster.NodeIndex, h *overlay) Verdict {
		n := &st.Nodes
		v := p.absent
		if int64(n.PodCount[i])+h.count()+1 > n.AllowedPods[i] {
			v |= codeDetailed | 1<<firstDetail
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
}

func (p *fit) score() scoreFunc {
	return func(st *cluster.State, i cluster.NodeIndex) int64 {
		n := &st.Nodes
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
}

func (p *fit) lacks(st *cluster.State, i cluster.NodeIndex, nominees *overlay, out []Lack) []Lack {
	n := &st.Nodes
	add := func(resource, reason string, requested, free, capacity int64) {
		l := Lack{
			Plugin: NodeResourcesFit, Reason: reason, Unresolvable: resource != "pods" && requested > capacity,
			Relative: (float64(requested) - float64(free)) / float64(requested),
			Resource: resource, Requested: requested, Free: free, Capacity: capacity,
		}
		if resource != "pods" && free > 0 {
			l.Help |= HelpRequests
		}
		if requested <= capacity {
			l.Help |= HelpNewNode
		}
		out = append(out, l)
	}
	if free := n.AllowedPods[i] - int64(n.PodCount[i]) - nominees.count(); free < 1 {
		add("pods", ReasonTooManyPods, 1, free, n.AllowedPods[i])
	}
	for k := range p.requests {
		r := &p.requests[k]
		capacity := n.Allocatable[r.resource][i]
		if free := capacity - n.Requested[r.resource][i] - nominees.request(r.resource); r.value > free {
			add(st.ResourceName(r.resource), p.names[r.name], r.value, free, capacity)
		}
	}
	for k := range p.missing {
		r := &p.missing[k]
		add(strings.TrimPrefix(p.names[r.name], ReasonInsufficient), p.names[r.name], r.value, 0, 0)
	}
	return out
}

// fits reports whether a pod would fit a node that no pods are on.
func (d *Demands) fits(n *cluster.Node) bool {
	return amountOf(n.Allocatable, "pods") > 0 && !slices.ContainsFunc(d.spec.Requests, func(q cluster.Quantity) bool {
		return q.Value > amountOf(n.Allocatable, q.Name)
	})
}

// grows reports whether a node has more of what a pod requests, or room for more pods.
func (d *Demands) grows(was, is *cluster.Node) bool {
	more := func(name string) bool { return amountOf(is.Allocatable, name) > amountOf(was.Allocatable, name) }
	return more("pods") || slices.ContainsFunc(d.spec.Requests, func(q cluster.Quantity) bool { return more(q.Name) })
}

// devicesMessage says so if a pod with these verdicts lacks an extended resource that no node has at all: a
// DeviceClass may stand for it, and then kube-scheduler would allocate devices, which Berth does not judge.
func devicesMessage(st *cluster.State, verdicts []VerdictCount) string {
	var names []string
	for _, v := range verdicts {
		name, lacks := strings.CutPrefix(v.Reason, ReasonInsufficient)
		if lacks && v.Plugin == NodeResourcesFit && cluster.IsExtended(name) && !slices.Contains(names, name) && !offered(st, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("No node has %s; Berth does not judge device classes that offer it yet.", strings.Join(names, ", "))
}

// offered reports whether some node has a resource, be it all requested.
func offered(st *cluster.State, name string) bool {
	id, ok := st.Resource(name)
	return ok && slices.ContainsFunc(st.Nodes.Allocatable[id][:st.Nodes.Len()], func(amount int64) bool { return amount > 0 })
}

// boundsFit reports whether a profile keeps pods from nodes that have not what they request.
func boundsFit(profile *cluster.Profile) bool {
	return slices.Contains(profile.Filters, NodeResourcesFit)
}
