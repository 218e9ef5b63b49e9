package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// noNodes is kube-scheduler's message when there is no node at all.
const noNodes = "no nodes available to schedule pods"

// FitMessage returns kube-scheduler's text for a pod that fits none of so many nodes, as it stands in the PodScheduled
// condition and in the FailedScheduling event: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were
// unschedulable."
func FitMessage(nodes int, verdicts []VerdictCount) string {
	if nodes <= 0 {
		return noNodes
	}
	counts := make(map[string]int)
	for _, v := range verdicts {
		if v.Reason == ReasonNodeAffinityConflict {
			// A PreFilter plugin has refused all nodes at once: its reason is not counted.
			return fmt.Sprintf("0/%d nodes are available: %s.", nodes, v.Reason)
		}
		counts[v.Reason] += int(v.Count)
	}
	if len(counts) == 0 {
		return fmt.Sprintf("0/%d nodes are available:", nodes)
	}
	reasons := make([]string, 0, len(counts))
	for reason, n := range counts {
		reasons = append(reasons, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(reasons)
	return fmt.Sprintf("0/%d nodes are available: %s.", nodes, strings.Join(reasons, ", "))
}

// DevicesMessage returns what to say besides of a pod with these verdicts, if it lacks an extended resource that no node has at all: a
// DeviceClass may stand for it, and then kube-scheduler would allocate devices, which Berth does not judge. "" if that is not so.
func DevicesMessage(st *cluster.State, verdicts []VerdictCount) string {
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
