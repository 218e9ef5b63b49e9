package engine

import (
	"iter"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// nominees are what the pods nominated to a node would take there. A nil *nominees is none.
type nominees struct {
	pods      int64
	requested map[cluster.ResourceID]int64
	ports     []cluster.HostPort
}

// nomineesOf returns the pods nominated to a live node, but for self and those of a lower priority, nil if there is
// none: kube-scheduler filters as if they were there, and then without them.
func nomineesOf(st *cluster.State, i cluster.NodeIndex, priority int32, self cluster.PodID) *nominees {
	var out *nominees
	for pod := range nominatedTo(st, i, priority, self) {
		if out == nil {
			out = &nominees{requested: make(map[cluster.ResourceID]int64)}
		}
		spec := &st.Class(pod.Class).Spec
		out.pods++
		out.ports = append(out.ports, spec.HostPorts...)
		for _, q := range spec.Requests {
			if r, ok := st.Resource(q.Name); ok {
				out.requested[r] += q.Value
			}
		}
	}
	return out
}

// nominatedTo yields those pods. Gated ones do not count, and those that wait for another scheduler.
func nominatedTo(st *cluster.State, i cluster.NodeIndex, priority int32, self cluster.PodID) iter.Seq[*cluster.PodRow] {
	return func(yield func(*cluster.PodRow) bool) {
		if st.Nominations() == 0 {
			return
		}
		for _, id := range st.NominatedOn(st.Nodes.Spec[i].Name) {
			pod := st.Pod(id)
			if id == self || pod.Priority < priority || len(pod.Gates) > 0 ||
				st.Profile(st.Class(pod.Class).Spec.SchedulerName) == nil {
				continue
			}
			if !yield(pod) {
				return
			}
		}
	}
}

func (n *nominees) count() int64 {
	if n == nil {
		return 0
	}
	return n.pods
}

func (n *nominees) request(r cluster.ResourceID) int64 {
	if n == nil {
		return 0
	}
	return n.requested[r]
}
