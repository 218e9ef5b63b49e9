package binder

import (
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// mostUnprovided bounds on how many nodes a pod is remembered not to have got its volumes. Then all are tried again.
const mostUnprovided = 100

// A search for another node judges all nodes while the ledger waits, and a provisioner may say no to thousands of pods: of a while, searches take a
// twentieth, and no more than elsewhereAtOnce at once.
const (
	elsewherePart   = 20
	elsewhereAtOnce = time.Second
)

// allowance is how much time searches may still take.
type allowance struct {
	spent time.Duration // of elsewhereAtOnce, at a time
	at    time.Time
}

// any reports whether there is any.
func (a *allowance) any(now time.Time) bool {
	a.spent, a.at = max(0, a.spent-now.Sub(a.at)/elsewherePart), now
	return a.spent < elsewhereAtOnce
}

func (a *allowance) spend(took time.Duration) { a.spent += took }

// elsewhere returns the node that is best for a pod that has just been given back, but for those for which no volumes could be provisioned for it; "": there
// is none, or the pod can go nowhere else. A provisioner says no more than that it cannot, and nothing that filters or scores read need say so too: the
// pod would be placed on the same node again, for ever. Of a pod that never preempts nobody would end the nomination if it then fits nowhere. The caller holds the ledger's lock.
func (t *term) elsewhere(id cluster.PodID) (node string) {
	st := t.ledger.state
	row, now := st.Pod(id), time.Now()
	not := t.ledger.unprovided[row.UID]
	if set := st.Labels(row.Labels); set == nil || slices.ContainsFunc(set.Claims, func(by cluster.PodClaim) bool {
		claim := st.PersistentVolumeClaim(row.Namespace, by.Name)
		return claim != nil && claim.Volume == "" && claim.HasSelectedNode && claim.SelectedNode != ""
	}) {
		return "" // of several claims, another one still binds it to a node
	}
	if len(not) == 0 || row.RequiredNode != "" || row.NeverPreempts || st.Yields(row.Class) || !engine.Preempts(t.ledger.profile(row)) || row.Deleting || len(row.Gates) > 0 {
		return ""
	}
	if !t.ledger.elsewhere.any(now) {
		return "" // it may be tried where it was, and have its turn when that fails
	}
	defer func() { t.ledger.elsewhere.spend(time.Since(now)) }()
	t.judge(row, func() {
		subject, all := engine.SubjectOf(&row.Pod), cluster.Range{First: 0, End: cluster.NodeIndex(st.Nodes.Len())}
		found, ok := t.evaluator.Filter(st, subject, all)
		if !ok {
			return
		}
		open := slices.Clone(found.Eligible)
		for _, name := range not {
			if i := st.Nodes.ByName(name); i != cluster.NoNode {
				open.Clear(i)
			}
		}
		groups, _ := t.evaluator.Score(st, subject, all, open, 1)
		placer := engine.NewPlacer(t.evaluator, st, st.Version().Seq, []engine.Candidates{{Subject: subject, Groups: groups}})
		if i, placement := placer.Choose(id, 0); placement == engine.Placed {
			node = st.Nodes.Spec[i].Name
		}
	})
	if node == "" { // what has failed may succeed by now
		delete(t.ledger.unprovided, row.UID)
	}
	return node
}

// noteUnprovided notes that no volumes could be provisioned for a pod on a node. The caller holds the ledger's lock.
func (l *ledger) noteUnprovided(uid, node string) {
	not := l.unprovided[uid]
	if len(not) >= mostUnprovided {
		not = nil
	}
	if !slices.Contains(not, node) {
		l.unprovided[uid] = append(not, node)
	}
}
