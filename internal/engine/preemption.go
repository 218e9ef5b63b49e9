package engine

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// DefaultPreemption finds room for a pod that fits nowhere, where pods of lower priority are in its way.
const DefaultPreemption = "DefaultPreemption"

var defaultPreemption = Descriptor{
	Name: DefaultPreemption, Points: []string{"preEnqueue", "postFilter"},
	Needs: map[string][]string{"postFilter": {"preEnqueue"}}, // where the preemptor is held back while others are evicted
	postFilter: func(preemption string) string {
		if preemption == "" {
			return ""
		}
		return "preemption: " + preemption
	},
}

// Preempts reports whether pods of a profile may preempt others; of none, they may not.
func Preempts(profile *cluster.Profile) bool {
	return profile != nil && slices.Contains(profile.PostFilters, DefaultPreemption)
}

// CandidateNodes is how many nodes are to be found at least on which pods of a profile would fit if others were gone, as the arguments of DefaultPreemption say:
// a percentage of the nodes, or an absolute number, whichever is more, and at least one.
type CandidateNodes struct{ Percentage, Absolute int32 }

// Of returns how many that are of so many nodes. kube-scheduler finds none where that is none, and counts only those that preemption may help on, and so may be content with fewer.
func (n CandidateNodes) Of(nodes int) int {
	return min(max(int(int64(nodes)*int64(n.Percentage)/100), int(n.Absolute), 1), nodes)
}

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

// DryRun returns the best candidates of a range for a pending pod, at most limit, at least 1. It tries only nodes that
// have changed since they were last tried for a pod of the signature and the priority; see dryRuns. Nobody may change the
// victims' slices. r.First must be a multiple of 64; if not, the range begins at the multiple below. False: the state has
// no such pending pod.
func (e *Evaluator) DryRun(st *cluster.State, pod cluster.PodID, r cluster.Range, limit int) (out DryRun, ok bool) {
	row := st.Pod(pod)
	if row == nil || row.Placed() {
		return DryRun{}, false
	}
	p := newPreemptor(st, pod, row.Priority)
	ok = e.withFilters(st, SubjectOf(&row.Pod), func(c *evaluation) { out = c.dryRunRange(e, st, &p, r, max(limit, 1)) })
	return out, ok
}

func (c *evaluation) dryRunRange(e *Evaluator, st *cluster.State, p *preemptor, r cluster.Range, limit int) DryRun {
	c.settle()
	d := c.dryRunsOf(st, p.priority)
	ws, r := align(r, st.Nodes.Len())
	spans := e.split(ws, (ws.end-ws.first)*64)
	parts := make([]dryRunPart, len(spans))
	each(spans, func(k int, span words) { parts[k] = c.dryRunSpan(st, d, p, span, r, limit) })
	var out DryRun
	var best []*Preemption
	verdicts := make([][]VerdictCount, len(parts))
	for k := range parts {
		out.Nodes += parts[k].nodes
		out.Count += parts[k].candidates
		best = append(best, parts[k].best...)
		verdicts[k] = parts[k].verdicts
	}
	slices.SortFunc(best, func(a, b *Preemption) int { return a.Compare(b, st.Settings.Seed) })
	for _, candidate := range best[:min(len(best), limit)] {
		out.Candidates = append(out.Candidates, *candidate)
	}
	out.Verdicts = MergeVerdicts(verdicts...)
	return out
}

// DryRunNode returns what would have to go from one node for a pending pod, as the state is now. False: the node is no
// candidate, or there is no such node or pending pod.
func (e *Evaluator) DryRunNode(st *cluster.State, pod cluster.PodID, node cluster.NodeIndex) (out Preemption, ok bool) {
	row := st.Pod(pod)
	if row == nil || row.Placed() || !st.Nodes.Live.Has(node) {
		return Preemption{}, false
	}
	if p := newPreemptor(st, pod, row.Priority); !p.allows(node) {
		return Preemption{}, false
	}
	e.withFilters(st, SubjectOf(&row.Pod), func(c *evaluation) {
		if found, _ := c.dryRun(st, node, row.Priority, pod); found != nil {
			out, ok = *found, true
		}
	})
	return out, ok
}

// Preemptable reports whether DryRunNode would find a candidate on a node for a pod that is pending with that subject,
// and whose profile and policy let it preempt. It remembers like DryRun.
func (e *Evaluator) Preemptable(st *cluster.State, s Subject, self cluster.PodID, node cluster.NodeIndex) (ok bool) {
	row := st.Pod(self)
	if row == nil || row.NeverPreempts || !st.Nodes.Live.Has(node) || st.Unserved(cluster.BudgetResource) != nil {
		return false
	}
	e.withFilters(st, s, func(c *evaluation) {
		if !Preempts(c.program.profile) {
			return
		}
		p := newPreemptor(st, self, s.Priority)
		found, _ := c.try(st, c.dryRunsOf(st, s.Priority), &p, node)
		ok = found != nil
	})
	return ok
}

// StandsAttached reports whether a dry run for a pending pod finds the same victims on a node if volumes count as attached for as long as
// VolumeAttachments say so: whom kube-scheduler would evict there, too.
func (e *Evaluator) StandsAttached(st *cluster.State, pod cluster.PodID, found *Preemption) (stands bool) {
	row := st.Pod(pod)
	if row == nil || row.Placed() || !st.Nodes.Live.Has(found.Node) {
		return false
	}
	e.withFilters(st, SubjectOf(&row.Pod), func(c *evaluation) {
		attached, _ := c.dryRunIf(st, found.Node, row.Priority, pod, false)
		stands = attached != nil && slices.Equal(attached.Victims, found.Victims)
	})
	return stands
}

// Preempts reports whether a pending pod may preempt now. If not, why says so as kube-scheduler does; it is empty if its
// profile does not preempt at all.
func (e *Evaluator) Preempts(st *cluster.State, pod cluster.PodID) (why string, ok bool) {
	row := st.Pod(pod)
	if row == nil || row.Placed() {
		return "", false
	}
	profile := st.Profile(st.Class(row.Class).Spec.SchedulerName)
	switch {
	case !Preempts(profile):
		return "", false
	case row.NeverPreempts:
		return notEligibleNever, false
	}
	if u := st.Unserved(cluster.BudgetResource); u != nil { // whom they protect is not known
		return "not eligible: " + notServed(u), false
	}
	nominated := st.Nodes.ByName(row.Nominated)
	if nominated == cluster.NoNode {
		return "", true
	}
	p := newPreemptor(st, pod, row.Priority)
	if v, known := e.Node(st, SubjectOf(&row.Pod), pod, nominated); !p.allows(nominated) || known && v.Unresolvable() {
		return "", true // it has to look elsewhere
	}
	for _, other := range st.PodsOn(nominated) {
		if other.Priority < row.Priority && (other.Victim || other.Deleting && other.Preempted) {
			return notEligibleTerminating, false
		}
	}
	if st.Settings.PreemptionSeesVolumes && e.awaitsDetachment(st, &row.Pod, pod, nominated) {
		return notEligibleDetaching, false
	}
	return "", true
}

// awaitsDetachment reports whether a pod fits the live node that it is nominated to as soon as the volumes are detached that no pod there uses. They
// may be those of the pods that have gone for it.
func (e *Evaluator) awaitsDetachment(st *cluster.State, pod *cluster.Pod, self cluster.PodID, node cluster.NodeIndex) (awaits bool) {
	e.withFilters(st, SubjectOf(pod), func(c *evaluation) {
		program := c.programIf(pod.RequiredNode == st.Nodes.Spec[node].Name)
		if program.volumes == nil || !program.volumes.limits.unused(st, node) || program.preFilter(st, node) != codeFeasible {
			return
		}
		room := c.room(st, program, node, self, true)
		awaits = !room.verdict().Feasible() && room.fitsDetached()
	})
	return awaits
}

// Why a pod may not preempt.
const (
	notEligibleNever       = "not eligible due to preemptionPolicy=Never."
	notEligibleTerminating = "not eligible due to a terminating pod on the nominated node."
	// notEligibleDetaching is Berth's own.
	notEligibleDetaching = "not eligible due to volumes that are still attached to the nominated node."
)

// AwaitsRoom reports whether it is what Preempts says of a pod that waits for pods, or volumes, to leave the node that it is nominated to.
func AwaitsRoom(why string) bool { return why == notEligibleTerminating || why == notEligibleDetaching }

// AwaitsDetachment reports whether it is what Preempts says of a pod that waits for volumes to be detached from the node that it is nominated to.
func AwaitsDetachment(why string) bool { return why == notEligibleDetaching }

// PreemptionMessage returns what preemption says of a pod for which no node is a candidate, given the verdicts of dry
// runs on all nodes: "0/3 nodes are available: 3 No preemption victims found for incoming pod."
func PreemptionMessage(nodes int, verdicts []VerdictCount) string { return FitMessage(nodes, verdicts) }

// PreemptionError returns what PostFilter says of a pod whose preemption ends with an error: no other plugin is heard then.
func PreemptionError(why string) string { return defaultPreemption.postFilter(why) }

// PostFilterMessage returns what PostFilter's plugins say of a pod that fits nowhere: "no new claims to deallocate,
// preemption: " and what preemption says, with what plugins of others have said in its place. It is what FailedScheduling's text ends with.
func PostFilterMessage(profile *cluster.Profile, preemption string, others map[string]string) string {
	var says []string
	for _, name := range profile.PostFilters {
		text := others[name]
		if p := PluginOf(name); p != nil && p.postFilter != nil {
			text = p.postFilter(preemption)
		}
		if text != "" {
			says = append(says, text)
		}
	}
	return strings.Join(says, ", ")
}

// ForeignPostFilters returns the plugins of others that a profile has at PostFilter, in order: those before preemption, and those behind it. Without preemption, all are before.
func ForeignPostFilters(profile *cluster.Profile) (before, behind []string) {
	to := &before
	for _, name := range profile.PostFilters {
		switch {
		case name == DefaultPreemption:
			to = &behind
		case PluginOf(name) == nil:
			*to = append(*to, name)
		}
	}
	return before, behind
}
