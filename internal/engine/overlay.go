package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// overlay is how a node would differ from what it is, if pods came to it or went from it: kube-scheduler filters as
// if the pods nominated to a node were there, and, when it looks for room, as if pods of lower priority were not. A nil
// *overlay changes nothing.
type overlay struct {
	pods      int64
	requested []int64                    // by resource
	ports     map[cluster.HostPort]int32 // how many more pods use each; without an IP: at any
	counts    []int64                    // by slot of a topology; nil: as they are
	volumes   *volumeOverlay             // nil: as they are
}

func newOverlay(st *cluster.State) *overlay {
	return &overlay{requested: make([]int64, st.Resources())}
}

// overlay returns one of a live node that changes nothing yet.
func (p *program) overlay(st *cluster.State) *overlay {
	o := newOverlay(st)
	if p.volumes != nil {
		o.volumes = new(volumeOverlay)
	}
	return o
}

// move makes n pods of a class come to a live node, or go from it if n is negative, but for what a topology counts. Moved is what
// volumeProgram.moved says of them.
func (p *program) move(o *overlay, st *cluster.State, i cluster.NodeIndex, class *cluster.Class, moved *movedPod, n int64) {
	o.add(st, &class.Spec, n)
	if moved != nil {
		p.volumes.move(o, st, i, moved, int32(n))
	}
}

// add makes n pods of a class come, or go if n is negative, but for their volumes and what a topology counts.
func (o *overlay) add(st *cluster.State, spec *cluster.ClassSpec, n int64) {
	o.pods += n
	for _, q := range spec.Requests {
		if r, ok := st.Resource(q.Name); ok {
			o.requested[r] += n * q.Value
		}
	}
	for _, port := range spec.HostPorts {
		if o.ports == nil {
			o.ports = make(map[cluster.HostPort]int32)
		}
		o.ports[port] += int32(n)
		o.ports[anyIP(port)] += int32(n)
	}
}

func (o *overlay) count() int64 {
	if o == nil {
		return 0
	}
	return o.pods
}

func (o *overlay) request(r cluster.ResourceID) int64 {
	if o == nil {
		return 0
	}
	return o.requested[r]
}

func (o *overlay) uses(port cluster.HostPort) int32 {
	if o == nil {
		return 0
	}
	return o.ports[port]
}

func (o *overlay) usesOfAnyIP(port cluster.HostPort) int32 { return o.uses(anyIP(port)) }

// anyIP is a port without its IP, which is never empty.
func anyIP(port cluster.HostPort) cluster.HostPort {
	port.IP = ""
	return port
}

// nominatedTo returns the pods nominated to a live node.
func nominatedTo(st *cluster.State, i cluster.NodeIndex) []cluster.PodID {
	if st.Nominations() == 0 {
		return nil
	}
	return st.NominatedOn(st.Nodes.Spec[i].Name)
}

// nominee returns a nominated pod if it counts when pods of a priority are filtered: if it is not self, not of a lower
// priority, not gated, and does not wait for another scheduler. Else nil.
func nominee(st *cluster.State, id cluster.PodID, priority int32, self cluster.PodID) *cluster.PodRow {
	pod := st.Pod(id)
	if id == self || pod.Priority < priority || len(pod.Gates) > 0 ||
		st.Profile(st.Class(pod.Class).Spec.SchedulerName) == nil {
		return nil
	}
	return pod
}

// nomineesOf returns a node with the pods nominated to it that count, nil if there is none.
func (p *program) nomineesOf(st *cluster.State, i cluster.NodeIndex, priority int32, self cluster.PodID) *overlay {
	var out *overlay
	for _, id := range nominatedTo(st, i) {
		if pod := nominee(st, id, priority, self); pod != nil {
			if out == nil {
				out = p.overlay(st)
			}
			m := p.volumes.moved(st, pod.Class, pod.Labels)
			if m != nil {
				p.volumes.count(st, i, m, st.NomineeVolumes(id))
			}
			p.move(out, st, i, st.Class(pod.Class), m, 1)
		}
	}
	return out
}
