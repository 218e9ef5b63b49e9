package binder

import "github.com/berth-scheduler/berth/internal/cluster"

// mostTrail bounds how many deltas a trail keeps: a copy that has missed more is made anew.
const mostTrail = 1 << 16

// trail is what has been applied to a ledger since a copy of it was brought up to date. It is under the ledger's lock.
type trail struct {
	on        bool // there is a copy
	deltas    []cluster.Delta
	lost      bool   // there were too many
	disturbed bool   // since then something has changed that placements depend on
	drop      func() // hears that too much has been missed
}

// add notes a delta that has been applied.
func (t *trail) add(st *cluster.State, d cluster.Delta) {
	switch {
	case !t.on || t.lost:
	case len(t.deltas) == mostTrail:
		t.deltas, t.lost, t.disturbed = nil, true, true
		t.drop()
	default:
		t.deltas = append(t.deltas, d)
		t.disturbed = t.disturbed || disturbs(st, d)
	}
}

// take returns what has been applied since it was last called. False: that is not known, or there was no copy; from now on there is.
func (t *trail) take() (deltas []cluster.Delta, whole bool) {
	deltas, whole = t.deltas, t.on && !t.lost
	*t = trail{on: true, drop: t.drop}
	return deltas, whole
}

// disturbs reports whether pods may go elsewhere, or not go where they did, since the delta that a state has applied last.
func disturbs(st *cluster.State, d cluster.Delta) bool {
	switch d := d.(type) {
	case cluster.ClassDefined, cluster.LabelsDefined, cluster.NodeTouched, cluster.PodActivated, cluster.PodBound:
		return false
	case cluster.PodSet: // one that waits, and is nominated nowhere, is nothing to others
		was, is := &st.Before().Pod, st.Pod(d.ID)
		return was.Placed() || is.Placed() || was.Nominated != "" || is.Nominated != ""
	case cluster.PodRemoved:
		was := &st.Before().Pod
		return was.Placed() || was.Nominated != ""
	}
	return true
}
