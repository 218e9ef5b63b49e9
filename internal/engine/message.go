package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NoNodes is kube-scheduler's message when there is no node at all.
const NoNodes = "no nodes available to schedule pods"

// FitMessage returns kube-scheduler's text for a pod that fits none of so many nodes, as it stands in the PodScheduled
// condition and in the FailedScheduling event: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were
// unschedulable."
func FitMessage(nodes int, verdicts []VerdictCount) string {
	if nodes <= 0 {
		return NoNodes
	}
	counts := make(map[string]int)
	for _, v := range verdicts {
		if v.alone() {
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

// Besides returns what to say besides of a pod with these verdicts; "" if there is nothing.
func Besides(st *cluster.State, verdicts []VerdictCount) string {
	for k := range plugins {
		if p := &plugins[k]; p.besides != nil {
			if says := p.besides(st, verdicts); says != "" {
				return says
			}
		}
	}
	return ""
}

// alone reports whether a plugin has refused all nodes at once, by its reason.
func (v *VerdictCount) alone() bool {
	p := PluginOf(v.Plugin)
	if p == nil {
		return false
	}
	k := slices.IndexFunc(p.reasons, func(r Reason) bool { return r.Text == v.Reason })
	return k >= 0 && p.reasons[k].alone || k < 0 && p.refuses
}
