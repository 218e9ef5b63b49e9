package pending

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Pods of a PodGroup are tried together: who is popped takes along all others of the group that wait, wherever they do, and nobody else is in the batch. Until the group is there, and as many
// pods of it as it wants at least that have no scheduling gates, they are Gated: nothing could come of an attempt. All pods of a group are of one shard.

// group is the pods of the queue that name a PodGroup.
type group struct {
	key     cluster.GroupKey
	pods    map[cluster.PodID]*entry // also those that are assumed
	lacking string                   // why they may not be tried; "": they may
}

// groupEntry has a new pod counted in its group.
func (q *Queue) groupEntry(st *cluster.State, e *entry) {
	key, ok := cluster.GroupOf(&e.pod)
	if !ok {
		return
	}
	g := q.groups[key]
	if g == nil {
		g = &group{key: key, pods: make(map[cluster.PodID]*entry), lacking: lacks(st, key)}
		q.groups[key] = g
	}
	g.pods[e.id], e.group = e, g
}

// ungroup undoes groupEntry.
func (q *Queue) ungroup(e *entry) {
	if g := e.group; g != nil {
		e.group = nil
		if delete(g.pods, e.id); len(g.pods) == 0 {
			delete(q.groups, g.key)
		}
	}
}

// lacks returns why no pod of a group may be tried, as kube-scheduler's GangScheduling words it, or Coscheduling; "" if they may be. It says no number that changes with each pod that comes.
func lacks(st *cluster.State, key cluster.GroupKey) string {
	is := st.PodGroup(key)
	switch {
	case is == nil && st.Unserved(key.Resource()) != nil:
		return fmt.Sprintf("%s cannot be read: %s", key.Resource(), st.Unserved(key.Resource()).Why)
	case is == nil && key.Coscheduling():
		return "PodGroup not found: " + key.Name
	case is == nil:
		return fmt.Sprintf("waiting for pods's pod group %q to appear in scheduling queue", key.Name)
	case is.Untold != "":
		return is.Untold
	case is.Gang && int(is.MinCount) > LargestGroup && st.GroupPlaced(key) == 0:
		return fmt.Sprintf("a gang of more than %d pods cannot be placed", LargestGroup)
	case is.Gang && len(st.GroupPods(key))-st.GroupGated(key) < int(is.MinCount) && key.Coscheduling():
		return fmt.Sprintf("cannot find enough sibling pods, minMember of group: %d", is.MinCount)
	case is.Gang && len(st.GroupPods(key))-st.GroupGated(key) < int(is.MinCount): // kube-scheduler counts those with gates too, and finds out by trying that they cannot be
		return "waiting for minCount pods from a gang to appear in scheduling queue"
	case st.GroupPreempting(key):
		return "waiting for the preemption for this pod group to be finished"
	}
	return ""
}

// regroup finds out anew whether the pods of a group may be tried.
func (q *Queue) regroup(now time.Time, st *cluster.State, key cluster.GroupKey) {
	g := q.groups[key]
	if g == nil {
		return
	}
	why := lacks(st, key)
	if why == g.lacking {
		return
	}
	all := g.inOrder()
	for _, e := range all { // how they are counted depends on it
		q.unlink(e)
	}
	g.lacking = why
	for _, e := range all {
		q.link(e)
	}
	for _, e := range all {
		switch gated := e.gated(); {
		case e.place == assumed:
		case gated && e.place != Gated:
			q.move(now, e, Gated, q.event)
		case !gated && e.place == Gated:
			q.requeue(now, e, q.event)
		}
	}
}

// regroupAll is regroup of all groups.
func (q *Queue) regroupAll(now time.Time, st *cluster.State) {
	keys := make([]cluster.GroupKey, 0, len(q.groups))
	for key := range q.groups {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, compareGroups)
	for _, key := range keys {
		q.regroup(now, st, key)
	}
}

func compareGroups(a, b cluster.GroupKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// noteGroup follows what a delta means for groups.
func (q *Queue) noteGroup(now time.Time, st *cluster.State, d cluster.Delta) {
	switch d := d.(type) {
	case cluster.PodSet:
		before := &st.Before().Pod
		was, named := cluster.GroupOf(&before.Pod)
		is, names := cluster.GroupOf(&st.Pod(d.ID).Pod)
		if named && was != is {
			q.regroup(now, st, was)
		}
		if names {
			q.regroup(now, st, is)
		}
	case cluster.PreemptionStarted:
		q.noteGroupOf(now, st, d.ID)
	case cluster.PreemptionEnded:
		q.noteGroupOf(now, st, d.ID)
	case cluster.PodRemoved:
		if was, named := cluster.GroupOf(&st.Before().Pod.Pod); named {
			q.regroup(now, st, was)
			if st.Before().Pod.Placed() {
				q.unbindGroup(now, st, was)
			}
		}
	case cluster.PodForgotten: // one that stays brings its group back itself
		if row := st.Pod(d.ID); row != nil && row.Deleting {
			if key, named := cluster.GroupOf(&row.Pod); named {
				q.unbindGroup(now, st, key)
			}
		}
	case cluster.ObjectSet:
		q.noteGroupObject(now, st, d.Object.Key())
	case cluster.ObjectRemoved:
		q.noteGroupObject(now, st, d.ObjectKey)
	}
}

// unbindGroup notes that a pod of a group is on no node any more that was: if it has a topology the others may be in another domain now, where nothing has happened.
func (q *Queue) unbindGroup(now time.Time, st *cluster.State, key cluster.GroupKey) {
	if is := st.PodGroup(key); is != nil && len(is.Topology) > 0 {
		q.retryGroup(now, key)
	}
}

func (q *Queue) noteGroupOf(now time.Time, st *cluster.State, id cluster.PodID) {
	if row := st.Pod(id); row != nil {
		if key, names := cluster.GroupOf(&row.Pod); names {
			q.regroup(now, st, key)
		}
	}
}

func (q *Queue) noteGroupObject(now time.Time, st *cluster.State, key cluster.ObjectKey) {
	switch {
	case key.Kind == cluster.PodGroupKind:
		at := cluster.GroupKey{Namespace: key.Namespace, Name: key.Name}
		q.regroup(now, st, at)
		q.retryGroup(now, at)
	case key.Kind == cluster.UnservedKind && (key.Name == cluster.PodGroupResource || key.Name == cluster.CoschedulingResource):
		q.regroupAll(now, st)
	}
}

// retryGroup has the pods of a group tried again that have been found to fit nowhere: the group says something else than it did.
func (q *Queue) retryGroup(now time.Time, key cluster.GroupKey) {
	g := q.groups[key]
	if g == nil {
		return
	}
	for _, e := range g.inOrder() {
		e.again = true
		if e.place == Unschedulable && !e.held {
			q.requeue(now, e, q.event)
		}
	}
}

// inOrder returns the pods of a group in the order in which they came.
func (g *group) inOrder() []*entry {
	out := make([]*entry, 0, len(g.pods))
	for _, e := range g.pods {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b *entry) int { return cmp.Compare(a.arrival, b.arrival) })
	return out
}

// NextIsGroup reports whether Pop would return the pods of a group.
func (q *Queue) NextIsGroup(now time.Time) bool {
	q.endBackoffs(now)
	e := q.head()
	return e != nil && e.group != nil
}

// LargestGroup is how many pods of a group are in flight at most.
const LargestGroup = 10_000

// popGroup puts all pods of a group in flight that wait, in queue order. Of a larger group those come first that have not been found to fit nowhere: the others could keep them from being tried, and the group from coming to rest.
func (q *Queue) popGroup(now time.Time, g *group) (batch []Attempt) {
	var all []*entry
	for _, e := range g.pods {
		if e.place == Active || e.place == Backoff || e.place == Unschedulable && !e.held {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int {
		x, y := inLine(a), inLine(b)
		return x.compare(&y)
	})
	if len(all) > LargestGroup {
		slices.SortStableFunc(all, func(a, b *entry) int { return cmp.Compare(tried(a), tried(b)) })
		all = all[:LargestGroup]
	}
	for _, e := range all {
		batch = append(batch, q.pop(now, e))
	}
	return batch
}

// tried puts pods that are Active before others.
func tried(e *entry) int {
	if e.place == Active {
		return 0
	}
	return 1
}

// Group returns the PodGroup that an attempt's pod names. False: it names none, or the attempt is void.
func (q *Queue) Group(a Attempt) (cluster.GroupKey, bool) {
	if e := q.inFlight(a); e != nil && e.group != nil {
		return e.group.key, true
	}
	return cluster.GroupKey{}, false
}

// ofGroups is the plugin that counts for pods that wait for their group.
var ofGroups = engine.JudgeOf(engine.Groups)
