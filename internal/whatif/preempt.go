package whatif

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// postFilter does what kube-scheduler's PostFilter does for a pod that fits nowhere. It reports whether room has been made.
func (p *placing) postFilter(out *PodOutcome) (bool, error) {
	st, e := p.w.State(), p.w.Evaluator()
	row := st.Pod(out.Pod)
	spec := &st.Class(row.Class).Spec
	profile := st.Profile(spec.SchedulerName)
	// 1. Does it preempt at all?
	switch {
	case !p.options.Preempt:
		return false, nil
	case out.Nodes == 0:
		return false, p.resign(out.Pod)
	case spec.Unsupported != "":
		return false, nil
	case len(profile.PostFilters) == 0:
		return false, p.resign(out.Pod)
	}
	known := p.failed[engine.SubjectOf(&row.Pod)]
	if known != nil && (known.version != st.Version() || row.RequiredNode != "" || row.Nominated != "") {
		known = nil
	}
	why, may := e.Preempts(st, out.Pod)
	if !may {
		out.addMessage(known, engine.PostFilterMessage(profile, why, nil))
		return false, nil
	}
	// 2. Where?
	if known != nil && known.hopeless != "" {
		out.addMessage(known, engine.PostFilterMessage(profile, known.hopeless, nil))
		return false, nil
	}
	found, err := p.w.DryRun(out.Pod)
	if err != nil {
		return false, err
	}
	if len(found.Candidates) == 0 {
		hopeless := engine.PreemptionMessage(int(found.Nodes), found.Verdicts)
		if known != nil {
			known.hopeless = hopeless
		}
		out.addMessage(known, engine.PostFilterMessage(profile, hopeless, nil))
		return false, p.resign(out.Pod)
	}
	return true, p.evict(out, row, &found.Candidates[0])
}

// evict makes room for a pod: it is nominated, others of lower priority lose their nomination to that node, and the victims go.
func (p *placing) evict(out *PodOutcome, row *cluster.PodRow, best *engine.Preemption) error {
	st := p.w.State()
	node := st.Nodes.Spec[best.Node].Name
	for _, other := range slices.Clone(st.NominatedOn(node)) {
		if st.Pod(other).Priority < row.Priority {
			if err := p.w.Apply(cluster.PodNominated{ID: other}); err != nil {
				return err
			}
		}
	}
	victims := victimsOf(st, best.Victims)
	if row.Preempting { // its earlier victims are not waited for
		if err := p.w.Apply(cluster.PreemptionEnded{ID: out.Pod}); err != nil {
			return err
		}
	}
	if err := p.w.Apply(cluster.PreemptionStarted{ID: out.Pod, Node: best.Node, Victims: best.Victims}); err != nil {
		return err
	}
	if err := p.w.Apply(cluster.PreemptionEnded{ID: out.Pod}); err != nil {
		return err
	}
	for _, v := range victims {
		if k, ours := p.at[v.Pod]; ours {
			p.outcomes[k].Outcome, p.outcomes[k].Node = Evicted, ""
		}
	}
	if err := p.w.Preempt(best); err != nil {
		return err
	}
	out.Victims = append(out.Victims, victims...)
	p.freed++
	return nil
}

// resign ends the nomination of a pod that has no use for it.
func (p *placing) resign(id cluster.PodID) error {
	if p.w.State().Pod(id).Nominated == "" {
		return nil
	}
	p.freed++
	return p.w.Apply(cluster.PodNominated{ID: id})
}

// addMessage says what else there is to say of a pod that fits nowhere, for a reason that others may share; nil: none is known to.
func (out *PodOutcome) addMessage(f *failure, what string) {
	switch {
	case what == "":
	case f == nil:
		out.Message += " " + what
	default:
		if f.more[what] == "" {
			if f.more == nil {
				f.more = make(map[string]string)
			}
			f.more[what] = f.message + " " + what
		}
		out.Message = f.more[what]
	}
}

// victimsOf describes pods that are to go together, and which budgets do not allow that.
func victimsOf(st *cluster.State, ids []cluster.PodID) []Victim {
	out := make([]Victim, len(ids))
	var account engine.Disruptions
	for k, id := range ids {
		row := st.Pod(id)
		out[k] = Victim{
			Pod: id, UID: row.UID, Namespace: row.Namespace, Name: row.Name, Node: row.NodeName, Priority: row.Priority,
			Protected: protectors(st, row, &account),
		}
	}
	return out
}

// protectors charges the budgets that protect a pod for its going, and returns the names of those that do not allow it, in order.
func protectors(st *cluster.State, row *cluster.PodRow, account *engine.Disruptions) []string {
	var names []string
	for _, budget := range account.Charge(st, row, nil) {
		names = append(names, budget.Name)
	}
	slices.Sort(names)
	return names
}
