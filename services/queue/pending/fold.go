package pending

import (
	"cmp"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// ShardOf returns the shard of a pod: that of its class, or of its group if it names one. False: the state does not know the class, or has no settings yet.
func ShardOf(st *cluster.State, row *cluster.PodRow) (int32, bool) {
	c := st.Class(row.Class)
	if c == nil || st.Settings.Shards < 1 {
		return 0, false
	}
	hash := c.Hash
	if key, ok := cluster.GroupOf(&row.Pod); ok {
		hash = key.Hash()
	}
	return int32(hash % uint64(st.Settings.Shards)), true
}

// holds reports whether a pod of the state belongs in the queue.
func (q *Queue) holds(st *cluster.State, row *cluster.PodRow) bool {
	if row.Placed() || row.Deleting {
		return false
	}
	shard, ok := ShardOf(st, row)
	return ok && shard == q.shard && st.Profile(st.Class(row.Class).Spec.SchedulerName) != nil
}

// setTimes takes backoffs and patience from the settings. A change of settings comes with a Reset.
func (q *Queue) setTimes(s *cluster.Settings) {
	q.first, q.last, q.patience = firstBackoff, lastBackoff, longestUnschedulable
	if s.MaxUnschedulableSeconds > 0 {
		q.patience = seconds(s.MaxUnschedulableSeconds)
	}
	if s.InitialBackoffSeconds > 0 {
		q.first = seconds(s.InitialBackoffSeconds)
	}
	if s.MaxBackoffSeconds > 0 {
		q.last = seconds(s.MaxBackoffSeconds)
	}
}

// seconds holds what a duration cannot to a century.
func seconds(n int64) time.Duration { return time.Duration(min(n, maxBackoffSeconds)) * time.Second }

// Reset builds the queue from a state. Attempts that are running are void and their pods active again. Of the pods
// that it held before it remembers how often they failed.
func (q *Queue) Reset(now time.Time, st *cluster.State) {
	before := make(map[string]*entry, len(q.pods))
	for _, e := range q.pods {
		before[e.pod.UID] = e
	}
	left := q.left
	q.clear()
	for uid, e := range before { // it may have left the shard since, and add takes from there if it has not
		left[uid] = e.attempts
	}
	for uid, attempts := range left {
		if id, ok := st.PodByUID(uid); ok && st.Pod(id).Phase != cluster.Bound {
			q.left[uid] = attempts
		}
	}
	q.version, q.looked, q.aside.since, q.happened = st.Version(), st.Version().Seq, st.Version().Seq, st.Version().Seq
	q.settings = st.Settings
	q.setTimes(&st.Settings)

	var ids []cluster.PodID
	for id, row := range st.Pods() {
		was := before[row.UID]
		if q.holds(st, row) || row.Phase == cluster.Assumed && was != nil && q.ofShard(st, row) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b cluster.PodID) int {
		return cmp.Or(cmp.Compare(st.Pod(a).Created, st.Pod(b).Created), cmp.Compare(a, b))
	})
	for _, id := range ids {
		row := st.Pod(id)
		e, event := q.add(now, st, id, row), podAdd
		if was := before[row.UID]; was != nil {
			e.entered, e.failures, e.errors = was.entered, was.failures, was.errors
			e.message, e.verdicts, e.asked = was.message, was.verdicts, was.asked
			e.first, e.flushed = was.first, was.flushed
			if e.entrance != nil && was.entrance != nil {
				e.entrance.first = was.entrance.first
			}
			event = ""
		}
		if row.Placed() {
			q.move(now, e, assumed, "")
		} else {
			q.requeue(now, e, event)
		}
	}
	q.owe(now)
}

func (q *Queue) ofShard(st *cluster.State, row *cluster.PodRow) bool {
	shard, ok := ShardOf(st, row)
	return ok && shard == q.shard
}

// Apply folds one delta; st is the state after it. The log waits meanwhile, for all who read the state: what a delta means for
// pods that are unschedulable is only noted, for Recheck to find out.
func (q *Queue) Apply(now time.Time, st *cluster.State, d cluster.Delta) {
	q.version, q.event = st.Version(), eventOf(st, d)
	switch d := d.(type) {
	case cluster.SettingsSet:
		if !q.yield(now, st) {
			q.Reset(now, st) // the shards, or the profiles, may be others
		}
	case cluster.PodSet:
		q.set(now, st, d.ID)
		q.notePod(st, d.ID)
		q.noteUsers(st, d.ID)
		q.notePromises(st, d.ID)
		q.noteChanged(st)
	case cluster.PodAssumed:
		if e := q.pods[d.ID]; e != nil {
			e.attempts = max(e.attempts, d.Attempt)
			q.move(now, e, assumed, "")
		}
		q.notePod(st, d.ID)
		if st.Before().Pod.Nominated != "" {
			q.noteChanged(st) // a node is rid of a nomination
		}
		q.doubt() // others may want it near
	case cluster.PodBound:
		q.bound(now, d.ID)
		q.notePromises(st, d.ID)
	case cluster.PodForgotten:
		q.forget(now, st, d)
		q.notePod(st, d.ID)
		q.noteUsers(st, d.ID)
		q.notePromises(st, d.ID)
		q.noteChanged(st)
		q.wakeNominees(now, st, st.Before().Pod.NodeName)
	case cluster.PodRemoved:
		q.drop(d.ID)
		delete(q.left, st.Before().Pod.UID)
		q.notePod(st, d.ID)
		q.noteUsers(st, d.ID)
		q.notePromises(st, d.ID)
		q.noteChanged(st)
		q.wakeNominees(now, st, st.Before().Pod.NodeName)
	case cluster.PodNominated:
		q.nominate(now, st, d.ID, d.Node == "" && st.Before().Pod.Nominated != "")
		q.noteChanged(st)
	case cluster.PodActivated:
		switch {
		case d.ID == cluster.NoPod:
			q.noteAnything()
			q.askAllAgain()
		case d.AfterBackoff:
			q.woken(now, d.ID)
		default:
			q.activated(now, d.ID)
		}
	case cluster.PreemptionStarted:
		q.nominate(now, st, d.ID, false)
		q.noteChanged(st)
	case cluster.PreemptionEnded:
		q.release(now, st, d)
	case cluster.NodeSet:
		q.noteNode(st, d.Index)
		q.noteChanged(st)
	case cluster.NodeRemoved:
		q.noteNode(st, d.Index)
		q.wakeNominees(now, st, st.Before().Node.Name)
		q.noteAnyUsers(st)
		q.doubt() // the nodes that are left are as they were
	case cluster.ObjectSet:
		q.noteVolume(st, d.Object.Key(), d.Object)
		q.noteChanged(st) // where it is attached
	case cluster.ObjectRemoved:
		q.noteVolume(st, d.ObjectKey, nil)
		q.noteChanged(st)
	case cluster.NamespaceSet, cluster.NamespaceRemoved:
		q.notes.namespace = q.now()
		q.noteRelations()
	case cluster.SelectorSet, cluster.SelectorRemoved:
		q.notes.selector = q.now()
		q.noteRelations()
	}
	q.noteGroup(now, st, d)
	if st.TermsModified == q.version.Seq {
		q.noteRelations()
	}
	if happens(st, d) {
		q.noteAnything()
	}
	q.resolve(now)
}

// set follows the content of a pod.
func (q *Queue) set(now time.Time, st *cluster.State, id cluster.PodID) {
	row := st.Pod(id)
	e := q.pods[id]
	if !q.holds(st, row) {
		switch {
		case row.Phase == cluster.Bound:
			q.bound(now, id)
		case e != nil && !row.Placed() && !q.ofShard(st, row):
			q.left[row.UID] = e.attempts // the binder knows attempts by their numbers, should it come back
			q.drop(id)
		case e == nil || e.place != assumed || row.Phase != cluster.Assumed:
			q.drop(id)
		}
		return
	}
	if e == nil {
		q.requeue(now, q.add(now, st, id, row), podAdd)
		return
	}
	was := e.pod
	q.follow(st, e, row)
	if engine.SubjectOf(&was) != engine.SubjectOf(&row.Pod) {
		q.resort(e)
	}
	if e.shut() && !e.entrance.told && len(e.pod.Gates) == 0 {
		q.askAgain(e, false)
	}
	gated := e.gated()
	switch {
	case gated && e.place != Gated:
		q.move(now, e, Gated, q.event)
		return
	case !gated && e.place == Gated:
		q.requeue(now, e, q.event)
		return
	}
	e.changed = e.changed || engine.SubjectOf(&was) != engine.SubjectOf(&row.Pod) || was.RequiredNode != row.RequiredNode
	e.again = e.again || was.Priority < row.Priority || was.Nominated != "" && row.Nominated == ""
	e.hinted |= engine.OwnHints(st, &row.Pod)
	switch {
	case e.place != Unschedulable || e.held:
	case e.due():
		q.requeue(now, e, q.event)
	case e.changed:
		q.unsure(e)
	}
}

// yield holds back the pods of names that are left to another scheduler from now on, and brings back those of names that
// are not any more. An attempt of a pod that is held back is void. False: it is not these names, or not they alone, that are
// others than before.
func (q *Queue) yield(now time.Time, st *cluster.State) bool {
	if reflect.DeepEqual(q.settings, st.Settings) || !reflect.DeepEqual(q.settings.Yielding(nil, ""), st.Settings.Yielding(nil, "")) {
		return false
	}
	q.settings = st.Settings
	var changed []*entry
	for _, e := range q.pods {
		if e.yielded != st.Yields(e.pod.Class) {
			changed = append(changed, e)
		}
	}
	slices.SortFunc(changed, func(a, b *entry) int { return cmp.Compare(a.arrival, b.arrival) })
	for _, e := range changed {
		e.yielded = !e.yielded
		switch {
		case e.place == assumed:
		case e.gated():
			q.move(now, e, Gated, "")
		default:
			q.requeue(now, e, "")
		}
	}
	return true
}

// follow takes over what the state says of a pod.
func (q *Queue) follow(st *cluster.State, e *entry, row *cluster.PodRow) {
	q.unlink(e)
	// Until it has been tried again, other nodes may matter to what it is now.
	e.crossNode = e.crossNode || e.place == Unschedulable && engine.SubjectOf(&e.pod) != engine.SubjectOf(&row.Pod)
	if (e.pod.Class != row.Class || e.pod.Namespace != row.Namespace) && q.notes.events() {
		e.hinted |= allHints // what it has not heard of yet may have been for what it was
	}
	if e.pod.Labels != row.Labels {
		claims := q.use(st, row.Labels)
		q.disuse(e.claims)
		e.claims = claims
	}
	regrouped := e.pod.Namespace != row.Namespace || e.pod.Group != row.Group
	e.pod, e.held, e.yielded = row.Pod, row.Preempting, st.Yields(row.Class)
	if regrouped {
		q.ungroup(e)
		q.groupEntry(st, e)
	}
	q.link(e)
}

// nominate follows what the log says of a pod's nomination, and holds it back if others are being evicted for it. That it
// is nominated is no reason to try it again, but that it is so no more is.
func (q *Queue) nominate(now time.Time, st *cluster.State, id cluster.PodID, cleared bool) {
	e := q.pods[id]
	if e == nil {
		return
	}
	cleared, e.resigns = cleared && !e.resigns, false
	q.follow(st, e, st.Pod(id))
	e.again = e.again || cleared
	switch {
	case e.held && (e.place == Active || e.place == Backoff):
		q.move(now, e, Unschedulable, q.event)
	case cleared && !e.held && e.place == Unschedulable:
		q.requeue(now, e, q.event)
	}
}

// release follows the end of the evictions for a pod. If they have failed it is tried again at once; else it waits like
// others from here on, unless what it waits for has happened already.
func (q *Queue) release(now time.Time, st *cluster.State, d cluster.PreemptionEnded) {
	q.noteChanged(st) // the spared ones may give way to others
	if e := q.pods[d.ID]; e != nil {
		q.follow(st, e, st.Pod(d.ID))
		switch {
		case e.group != nil && e.place != assumed && lacks(st, e.group.key) != "": // its group has gone meanwhile
			q.move(now, e, Gated, q.event)
		case d.Failed:
			q.Activate(now, d.ID)
		case e.place == Unschedulable:
			q.unsure(e)
		}
		q.doubt() // of what happened on other nodes meanwhile
	}
	var woken string
	for _, id := range d.Spared { // who is nominated there waits for them in vain; most are of one node
		if row := st.Pod(id); row != nil && row.NodeName != woken {
			woken = row.NodeName
			q.wakeNominees(now, st, woken)
		}
	}
}

// forget brings back a pod whose bind failed.
func (q *Queue) forget(now time.Time, st *cluster.State, d cluster.PodForgotten) {
	row := st.Pod(d.ID)
	if !q.holds(st, row) {
		q.drop(d.ID)
		return
	}
	e := q.pods[d.ID]
	if e == nil {
		e = q.add(now, st, d.ID, row)
	}
	q.follow(st, e, row)
	q.failed(now, e, d.Reason)
}

// add makes an entry, not yet in a place that counts: the caller moves it.
func (q *Queue) add(now time.Time, st *cluster.State, id cluster.PodID, row *cluster.PodRow) *entry {
	q.arrivals++
	e := &entry{
		id: id, pod: row.Pod, arrival: q.arrivals, place: assumed, since: now, entered: now, attempts: max(row.Attempt, q.left[row.UID]),
		held: row.Preempting, yielded: st.Yields(row.Class), claims: q.use(st, row.Labels), entrance: entranceOf(st, row.Class),
	}
	delete(q.left, row.UID)
	if row.Created != 0 {
		e.entered = time.Unix(0, row.Created)
	}
	q.pods[id] = e
	q.groupEntry(st, e)
	q.link(e)
	return e
}

// bound forgets a pod that is on its node, and tells of it if it was placed by this queue's attempt.
func (q *Queue) bound(now time.Time, id cluster.PodID) {
	if e := q.pods[id]; e != nil && e.place == assumed && q.observer != nil && !e.first.IsZero() {
		q.observer.Scheduled(e.attempts, now.Sub(e.first), e.flushed)
	}
	q.drop(id)
}

// drop forgets a pod.
func (q *Queue) drop(id cluster.PodID) {
	if e := q.pods[id]; e != nil {
		q.unlink(e)
		q.disuse(e.claims)
		q.ungroup(e)
		delete(q.pods, id)
		q.notes.unsure.remove(id)
	}
}

// IDs returns the pods that the queue remembers, in no order.
func (q *Queue) IDs() []cluster.PodID { return slices.Collect(maps.Keys(q.pods)) }

// Entries yields those of some pods that the queue holds.
func (q *Queue) Entries(of []cluster.PodID) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, id := range of {
			if e, ok := q.Entry(id); ok && !yield(e) {
				return
			}
		}
	}
}

// Entry returns what the queue knows of a pod. False: it does not hold it.
func (q *Queue) Entry(id cluster.PodID) (Entry, bool) {
	e := q.pods[id]
	if e == nil || e.place == assumed {
		return Entry{}, false
	}
	return e.view(), true
}

func (e *entry) view() Entry {
	v := Entry{ID: e.id, Pod: e.pod, Place: e.place, Since: e.since, Attempts: e.attempts, Message: e.message, Verdicts: e.verdicts}
	switch is := e.entrance; {
	case e.place == Backoff:
		v.BackoffUntil = e.ready()
	case e.place == Gated && is != nil && is.plugin != "":
		v.Message, v.Verdicts = "gated by plugin "+is.plugin+": "+is.reason, nil
	case e.place == Gated && is != nil && is.reason != "":
		v.Message, v.Verdicts = "gated: "+is.reason, nil
	case e.place == Gated && e.group != nil && e.group.lacking != "":
		v.Message, v.Verdicts = e.group.lacking, nil
	}
	return v
}
