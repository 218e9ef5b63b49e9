package engine

import (
	"fmt"
	"slices"
	"strings"
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
