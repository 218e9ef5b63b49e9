package engine

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// maxPriorities bounds for how many priorities a class remembers dry runs.
const maxPriorities = 16

// dryRuns is what dry runs have found for pods of a class and a priority that are not nominated to the node. An entry
// holds as long as its node has not changed, nor what the topology counts if the class is filtered by that, nor, if it is
// a candidate, a PodDisruptionBudget.
type dryRuns struct {
	nodes   []dryRun
	changes uint64      // of the topology
	sees    bool        // Settings.PreemptionSeesVolumes
	since   cluster.Seq // entries of before are out of date
}

// dryRun is what one dry run has found: a candidate, or why the node is none.
type dryRun struct {
	until   cluster.Seq // one more than the seq of the state that it was made on; 0: there was none
	verdict Verdict
	found   *Preemption
}

// dryRunsOf returns what is known for a priority. The evaluation has just been synced.
func (c *evaluation) dryRunsOf(st *cluster.State, priority int32) *dryRuns {
	d := c.dryRuns[priority]
	if d == nil {
		if c.dryRuns == nil || len(c.dryRuns) >= maxPriorities {
			c.dryRuns = make(map[int32]*dryRuns)
		}
		d = new(dryRuns)
		c.dryRuns[priority] = d
	}
	d.nodes = grow(d.nodes, st.Nodes.Len())
	if sees := st.Settings.PreemptionSeesVolumes; d.sees != sees {
		d.sees, d.since = sees, st.Version().Seq
	}
	if c.topology.filters() && d.changes != c.topology.changes {
		d.changes, d.since = c.topology.changes, st.Version().Seq
	}
	return d
}

// settle makes reads of the topology write nothing, so that several goroutines can judge nodes.
func (c *evaluation) settle() {
	if c.topology.filters() {
		for _, s := range c.topology.slots {
			if s.domains != nil {
				s.domains.least()
			}
		}
	}
}

// preemptor is a pod for which room is looked for.
type preemptor struct {
	id        cluster.PodID
	priority  int32
	requires  bool
	required  cluster.NodeIndex // the only node it may go to, if it requires one
	nominated cluster.NodeIndex
}

func newPreemptor(st *cluster.State, id cluster.PodID, priority int32) preemptor {
	row := st.Pod(id)
	return preemptor{
		id: id, priority: priority, requires: row.RequiredNode != "", required: st.Nodes.ByName(row.RequiredNode),
		nominated: st.Nodes.ByName(row.Nominated),
	}
}

// allows reports whether the pod's required node does.
func (p *preemptor) allows(i cluster.NodeIndex) bool { return !p.requires || p.required == i }

type dryRunPart struct {
	nodes, candidates int32
	best              []*Preemption // best first
	verdicts          []VerdictCount
}

// dryRunSpan tries the nodes of a span. Spans of one evaluation may run at the same time, once it has settled.
func (c *evaluation) dryRunSpan(st *cluster.State, d *dryRuns, p *preemptor, span words, r cluster.Range, limit int) dryRunPart {
	var part dryRunPart
	var t tally
	compare := func(a, b *Preemption) int { return a.Compare(b, st.Settings.Seed) }
	for w := span.first; w < span.end; w++ {
		for all := st.Nodes.Live[w] & mask(w, r); all != 0; all &= all - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(all))
			part.nodes++
			found, verdict := c.try(st, d, p, i)
			if found == nil {
				t.add(verdict, i)
				continue
			}
			part.candidates++
			at, _ := slices.BinarySearchFunc(part.best, found, compare)
			if at < limit {
				part.best = slices.Insert(part.best[:min(len(part.best), limit-1)], at, found)
			}
		}
	}
	part.verdicts = t.verdicts(st, c.program)
	return part
}

// try returns what is found for a pod on one live node: a candidate, or why it is none.
func (c *evaluation) try(st *cluster.State, d *dryRuns, p *preemptor, i cluster.NodeIndex) (*Preemption, Verdict) {
	switch {
	case !p.allows(i):
		return nil, codeNotHelpful | unresolvable
	case p.nominated == i, p.requires && c.failing.own != nil: // what is remembered is of pods to which it matters where a plugin fails
		return c.dryRun(st, i, p.priority, p.id)
	}
	known := &d.nodes[i]
	changed := max(st.Nodes.Modified[i], d.since)
	if known.found != nil {
		changed = max(changed, st.ObjectsModified(cluster.BudgetKind))
	}
	if known.until <= changed {
		known.found, known.verdict = c.dryRun(st, i, p.priority, cluster.NoPod)
		known.until = st.Version().Seq + 1
	}
	return known.found, known.verdict
}

// dryRun looks for the pods that would have to go from a live node so that a pod of a priority fits. Self is the pod, if
// it may be nominated to the node, else cluster.NoPod. It returns a candidate, or why the node is none. Where preemption that sees volumes would wait
// for some to be detached, which may be never, whom kube-scheduler finds goes nevertheless.
func (c *evaluation) dryRun(st *cluster.State, i cluster.NodeIndex, priority int32, self cluster.PodID) (*Preemption, Verdict) {
	found, v := c.dryRunIf(st, i, priority, self, st.Settings.PreemptionSeesVolumes)
	if volumes := c.program.volumes; found == nil && volumes != nil && volumes.limits != nil && v == volumes.limits.detaching() {
		if attached, _ := c.dryRunIf(st, i, priority, self, false); attached != nil {
			return attached, codeFeasible
		}
	}
	return found, v
}

// dryRunIf is dryRun as it is if preemption sees volumes, or does not.
func (c *evaluation) dryRunIf(st *cluster.State, i cluster.NodeIndex, priority int32, self cluster.PodID, sees bool) (*Preemption, Verdict) {
	// 1. It must be pods that are in the way, not volumes that are on their way out.
	row := st.Pod(self)
	program := c.programIf(row != nil && row.RequiredNode == st.Nodes.Spec[i].Name) // a nominated pod evicts nobody where its attempt fails
	if program.preFilter(st, i) != codeFeasible {
		return nil, codeNotHelpful | unresolvable
	}
	room := c.room(st, program, i, self, sees)
	if v := room.verdict(); v.Feasible() || v.Unresolvable() {
		return nil, codeNotHelpful | unresolvable
	}
	unused := room.detaches && program.volumes.limits.unused(st, i)
	if unused && room.fitsDetached() {
		return nil, program.volumes.limits.detaching()
	}
	// 2. All pods of lower priority go. Does the pod fit then?
	var lower []victim
	for id, pod := range st.PodsOn(i) {
		if pod.Priority < priority {
			lower = append(lower, victim{id: id, PodRow: pod, moved: program.volumes.moved(st, pod.Class, pod.Labels), goes: true})
			room.move(&lower[len(lower)-1], -1)
		}
	}
	if len(lower) == 0 {
		return nil, codeNoVictims | unresolvable
	}
	if v := room.verdict(); !v.Feasible() {
		return nil, v
	}
	// 3. Those that need not go come back: first those that budgets protect, of both kinds the most important first.
	slices.SortFunc(lower, compareImportance)
	c.budgets.protect(st, lower)
	reprieve := func(protected bool) (stay int) {
		for k := range lower {
			v := &lower[k]
			if v.protected != protected || !v.goes {
				continue
			}
			room.move(v, 1)
			if v.goes = !room.verdict().Feasible(); v.goes {
				room.move(v, -1)
			} else {
				stay++
			}
		}
		return stay
	}
	victims := len(lower)
	for again := true; again; {
		stay := reprieve(true) + reprieve(false)
		victims -= stay
		again = room.detaches && stay > 0 // who comes back with a volume that the pod wants, too, may make room for others
	}
	// 4. Nobody goes who would not have to once volumes are detached that nobody uses any more.
	for k := range lower {
		if v := &lower[k]; unused && v.goes {
			room.move(v, 1)
			if room.fitsDetached() {
				return nil, program.volumes.limits.detaching()
			}
			room.move(v, -1)
		}
	}
	found := &Preemption{Node: i, Victims: make([]cluster.PodID, 0, victims)}
	for k := range lower {
		if lower[k].goes {
			found.add(&lower[k])
		}
	}
	return found, codeFeasible
}

// victim is a pod that may have to go.
type victim struct {
	id cluster.PodID
	*cluster.PodRow
	moved     *movedPod
	protected bool // by a PodDisruptionBudget
	goes      bool
}

// started returns when the pod has started; one that has not is the latest of all.
func (v *victim) started() int64 {
	if v.Started == 0 {
		return math.MaxInt64
	}
	return v.Started
}

// compareImportance orders by kube-scheduler's importance, the most important first: by priority, then by start. What is
// equal then is ordered by id, so that everybody finds the same.
func compareImportance(a, b victim) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.started(), b.started()), cmp.Compare(a.id, b.id))
}

// protect finds out which pods PodDisruptionBudgets protect, if they were to go in this order.
func (b *budgets) protect(st *cluster.State, pods []victim) {
	account := Disruptions{budgets: b}
	var refused []*cluster.Budget
	for k := range pods {
		refused = account.Charge(st, pods[k].PodRow, refused[:0])
		pods[k].protected = len(refused) > 0
	}
}

// add appends a victim that is not more important than those before.
func (p *Preemption) add(v *victim) {
	if len(p.Victims) == 0 {
		p.HighestPriority, p.EarliestStart = v.Priority, v.started()
	}
	p.Victims = append(p.Victims, v.id)
	p.PrioritySum += int64(v.Priority) + 1<<31
	if v.protected {
		p.Violations++
	}
}

// room is a live node from which pods are thought to go.
type room struct {
	st         *cluster.State
	evaluation *evaluation
	program    *program
	node       cluster.NodeIndex
	// passes are what kube-scheduler filters: first, if there are any, with the pods nominated to the node, then without.
	passes []*overlay
	// detaches: volumes count as detached that only pods use which have gone.
	detaches bool
}

func (c *evaluation) room(st *cluster.State, p *program, i cluster.NodeIndex, self cluster.PodID, sees bool) room {
	r := room{st: st, evaluation: c, program: p, node: i}
	if nominees := p.nomineesOf(st, i, c.signature.priority, self); nominees != nil {
		if c.topology.filters() {
			nominees.counts = c.topology.nominees(st, i, self)
		}
		r.passes = append(r.passes, nominees)
	}
	r.passes = append(r.passes, p.overlay(st))
	if r.detaches = sees && p.volumes != nil && p.volumes.limits != nil; r.detaches {
		for _, h := range r.passes {
			h.volumes.detaches = true
		}
	}
	return r
}

// fitsDetached reports whether the pod fits if the volumes are detached, too, that no pod of the node uses as it is.
func (r *room) fitsDetached() bool {
	for _, h := range r.passes {
		h.volumes.detached = true
	}
	fits := r.verdict().Feasible()
	for _, h := range r.passes {
		h.volumes.detached = false
	}
	return fits
}

// move makes a pod go, n = -1, or come back, n = 1.
func (r *room) move(v *victim, n int64) {
	for _, h := range r.passes {
		r.program.move(h, r.st, r.node, r.st.Class(v.Class), v.moved, n)
		if t := r.evaluation.topology; t.filters() {
			h.counts = t.shift(r.st, r.node, v.PodRow, n, h.counts)
		}
	}
}

// verdict returns that of the first filter which fails in the first pass that does.
func (r *room) verdict() Verdict {
	for _, h := range r.passes {
		v := r.program.pass(r.st, r.node, h)
		if t := r.evaluation.topology; t.filters() {
			v = r.program.earlier(v, t.pass(t.profileOf(r.node), h.counts))
		}
		if !v.Feasible() {
			return v
		}
	}
	return codeFeasible
}
