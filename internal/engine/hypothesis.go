package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// hypothesis is how a node would differ from what it is, if pods came to it or went from it: kube-scheduler filters as
// if the pods nominated to a node were there, and, when it looks for room, as if pods of lower priority were not. A nil
// *hypothesis changes nothing.
type hypothesis struct {
	pods      int64
	requested []int64                    // by resource
	ports     map[cluster.HostPort]int32 // how many more pods use each
	counts    []int64                    // by slot of a topology; nil: as they are
}

func newHypothesis(st *cluster.State) *hypothesis {
	return &hypothesis{requested: make([]int64, st.Resources())}
}

// add makes a pod come to the node, n = 1, or go from it, n = -1, but for what a topology counts.
func (h *hypothesis) add(st *cluster.State, pod *cluster.PodRow, n int64) {
	spec := &st.Class(pod.Class).Spec
	h.pods += n
	for _, q := range spec.Requests {
		if r, ok := st.Resource(q.Name); ok {
			h.requested[r] += n * q.Value
		}
	}
	for _, port := range spec.HostPorts {
		if h.ports == nil {
			h.ports = make(map[cluster.HostPort]int32)
		}
		h.ports[port] += int32(n)
	}
}

func (h *hypothesis) count() int64 {
	if h == nil {
		return 0
	}
	return h.pods
}

func (h *hypothesis) request(r cluster.ResourceID) int64 {
	if h == nil {
		return 0
	}
	return h.requested[r]
}

func (h *hypothesis) uses(port *cluster.HostPort) int32 {
	if h == nil {
		return 0
	}
	return h.ports[*port]
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
func nomineesOf(st *cluster.State, i cluster.NodeIndex, priority int32, self cluster.PodID) *hypothesis {
	var out *hypothesis
	for _, id := range nominatedTo(st, i) {
		if pod := nominee(st, id, priority, self); pod != nil {
			if out == nil {
				out = newHypothesis(st)
			}
			out.add(st, pod, 1)
		}
	}
	return out
}
