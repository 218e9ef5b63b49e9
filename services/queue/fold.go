package queue

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// ShardOf returns the shard of a class, and false if the state does not know the class or has no settings yet.
func ShardOf(st *cluster.State, class cluster.ClassID) (int32, bool) {
	c := st.Class(class)
	if c == nil || st.Settings.Shards < 1 {
		return 0, false
	}
	return int32(c.Hash % uint64(st.Settings.Shards)), true
}

// holds reports whether a pod of the state belongs in the queue.
func (q *Queue) holds(st *cluster.State, row *cluster.PodRow) bool {
	if row.Placed() || row.Deleting {
		return false
	}
	shard, ok := ShardOf(st, row.Class)
	return ok && shard == q.shard && st.Profile(st.Class(row.Class).Spec.SchedulerName) != nil
}

// setBackoffs takes the backoffs from the settings. A change of settings comes with a Reset.
func (q *Queue) setBackoffs(s *cluster.Settings) {
	q.first, q.last = firstBackoff, lastBackoff
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
	q.clear()
	q.version = st.Version()
	q.setBackoffs(&st.Settings)

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
		e := q.add(now, id, &row.Pod)
		if was := before[row.UID]; was != nil {
			e.entered, e.failures, e.errors = was.entered, was.failures, was.errors
			e.message, e.verdicts = was.message, was.verdicts
			e.attempts = max(e.attempts, was.attempts)
		}
		if row.Placed() {
			q.move(now, e, assumed)
		} else {
			q.requeue(now, e)
		}
	}
}

func (q *Queue) ofShard(st *cluster.State, row *cluster.PodRow) bool {
	shard, ok := ShardOf(st, row.Class)
	return ok && shard == q.shard
}

// Apply folds one delta; st is the state after it.
func (q *Queue) Apply(now time.Time, st *cluster.State, d cluster.Delta) {
	q.version = st.Version()
	switch d := d.(type) {
	case cluster.SettingsSet:
		q.Reset(now, st) // the shards, or the profiles, may be others
	case cluster.PodSet:
		q.set(now, st, d.ID)
		q.wake(now, st)
	case cluster.PodAssumed:
		if e := q.pods[d.ID]; e != nil {
			e.attempts = max(e.attempts, d.Attempt)
			q.move(now, e, assumed)
		}
		if st.Pod(d.ID).Nominated != "" {
			q.wake(now, st) // a node is rid of a nomination
		}
		q.doubtful = true // others may want it near
	case cluster.PodBound:
		q.drop(d.ID)
	case cluster.PodForgotten:
		q.forget(now, st, d)
		q.wake(now, st)
	case cluster.PodRemoved:
		q.drop(d.ID)
		q.wake(now, st)
	case cluster.NodeSet:
		q.wake(now, st)
	case cluster.NodeRemoved:
		q.doubtful = true // the nodes that are left are as they were
	case cluster.NamespaceSet, cluster.NamespaceRemoved, cluster.SelectorSet, cluster.SelectorRemoved:
		q.depend(st)
	}
	if st.TermsModified == q.version.Seq {
		q.depend(st)
	}
	q.resolve(now)
}

// set follows the content of a pod.
func (q *Queue) set(now time.Time, st *cluster.State, id cluster.PodID) {
	row := st.Pod(id)
	e := q.pods[id]
	if !q.holds(st, row) {
		if e == nil || e.place != assumed || row.Phase != cluster.Assumed {
			q.drop(id)
		}
		return
	}
	if e == nil {
		q.requeue(now, q.add(now, id, &row.Pod))
		return
	}
	other := engine.SubjectOf(&e.pod) != engine.SubjectOf(&row.Pod) || e.pod.Pin != row.Pin || e.pod.Nominated != row.Nominated
	if other {
		q.unlink(e)
		e.pod, e.changed = row.Pod, true
		q.link(e)
	} else {
		e.pod = row.Pod
	}
	gated := len(row.Gates) > 0
	switch {
	case gated && e.place != Gated:
		q.move(now, e, Gated)
	case !gated && e.place == Gated, other && e.place == Unschedulable:
		q.requeue(now, e)
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
		e = q.add(now, d.ID, &row.Pod)
	}
	q.unlink(e)
	e.pod = row.Pod
	q.link(e)
	q.failed(now, e, d.Reason)
}

// add makes an entry, not yet in a place that counts: the caller moves it.
func (q *Queue) add(now time.Time, id cluster.PodID, pod *cluster.Pod) *entry {
	q.arrivals++
	e := &entry{id: id, pod: *pod, arrival: q.arrivals, place: assumed, since: now, entered: now, attempts: pod.Attempt}
	if pod.Created != 0 {
		e.entered = time.Unix(0, pod.Created)
	}
	q.pods[id] = e
	q.link(e)
	return e
}

// drop forgets a pod.
func (q *Queue) drop(id cluster.PodID) {
	if e := q.pods[id]; e != nil {
		q.unlink(e)
		delete(q.pods, id)
	}
}

// Entries yields every pod of the queue, in no order.
func (q *Queue) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, e := range q.pods {
			if e.place != assumed && !yield(e.view()) {
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
	if e.place == Backoff {
		v.BackoffUntil = e.ready()
	}
	return v
}

// Positions returns for every active pod how many are ahead of it.
func (q *Queue) Positions() map[cluster.PodID]int {
	ordered := slices.SortedFunc(slices.Values(q.active.entries), func(a, b *entry) int {
		if before(a, b) {
			return -1
		}
		return 1
	})
	positions := make(map[cluster.PodID]int, len(ordered))
	for i, e := range ordered {
		positions[e.id] = i
	}
	return positions
}
