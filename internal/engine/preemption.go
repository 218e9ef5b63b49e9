package engine

import (
	"cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// DefaultPreemption finds room for a pod that fits nowhere, where pods of lower priority are in its way.
const DefaultPreemption = "DefaultPreemption"

// DynamicResources would find room by giving back devices. Berth knows no pod with devices; it says so as
// kube-scheduler does.
const DynamicResources = "DynamicResources"

// The reasons why a node is no candidate for preemption, besides those of filters.
const (
	ReasonNoVictims  = "No preemption victims found for incoming pod"
	ReasonNotHelpful = "Preemption is not helpful for scheduling"
)

// Preemption is a node on which a pod would fit if some pods of lower priority were gone.
type Preemption struct {
	Node    cluster.NodeIndex
	Victims []cluster.PodID // the most important first
	// Violations is how many victims a PodDisruptionBudget protects.
	Violations int32
	// HighestPriority is that of the most important victim, PrioritySum the sum over all of their priority + 2^31.
	HighestPriority int32
	PrioritySum     int64
	// EarliestStart is the earliest start among the victims of the highest priority, in Unix nanoseconds; the largest
	// number if none of them has started.
	EarliestStart int64
}

// Compare orders candidates by kube-scheduler's criteria, the best first: fewest protected victims, lowest highest
// priority, smallest sum of priorities, fewest victims, latest start. kube-scheduler leaves what is still equal to
// chance; here a hash of seed and node decides, the same everywhere.
func (p *Preemption) Compare(q *Preemption, seed uint64) int {
	return cmp.Or(
		cmp.Compare(p.Violations, q.Violations),
		cmp.Compare(p.HighestPriority, q.HighestPriority),
		cmp.Compare(p.PrioritySum, q.PrioritySum),
		cmp.Compare(len(p.Victims), len(q.Victims)),
		cmp.Compare(q.EarliestStart, p.EarliestStart),
		cmp.Compare(tie(seed, q.Node), tie(seed, p.Node)),
		cmp.Compare(p.Node, q.Node),
	)
}

// DryRun is what preemption could do for a pod on the nodes of a range.
type DryRun struct {
	Nodes      int32          // how many the range has
	Count      int32          // how many of them are candidates
	Candidates []Preemption   // the best of them, best first
	Verdicts   []VerdictCount // why the others are none; of no plugin for ReasonNoVictims and ReasonNotHelpful
}

// DryRun returns the best candidates of a range for a pending pod, at most limit. False: the state has no such pod.
func (e *Evaluator) DryRun(st *cluster.State, pod cluster.PodID, r cluster.Range, limit int) (DryRun, bool) {
	return DryRun{}, false
}

// DryRunNode returns what would have to go from one node for a pending pod. False: the node is no candidate.
func (e *Evaluator) DryRunNode(st *cluster.State, pod cluster.PodID, node cluster.NodeIndex) (Preemption, bool) {
	return Preemption{}, false
}

// Preempts reports whether a pending pod may preempt now. If not, why says so as kube-scheduler does; it is empty if its
// profile does not preempt at all.
func (e *Evaluator) Preempts(st *cluster.State, pod cluster.PodID) (why string, ok bool) {
	return "", false
}

// PostFilterMessage returns what PostFilter's plugins say of a pod that fits nowhere: "no new claims to deallocate,
// preemption: " and what preemption says. It is what FailedScheduling's text ends with.
func PostFilterMessage(profile *cluster.Profile, preemption string) string {
	return ""
}
