package pending

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Pods of a profile that has plugins of others at PreEnqueue are tried only when these have let them in: they are asked each time that a pod comes to wait for its turn, from wherever, but not as its backoff ends, as in
// kube-scheduler. Until then, and as long as one of them keeps the pod out, it is Gated. The queue does not ask: Entering hands out whom to ask about, and Admit, Keep and Unanswered take in what has been said.

// entrance is how a pod stands with these plugins.
type entrance struct {
	profile string
	gates   bool // plugins of others are at PreEnqueue
	sorts   bool // one sorts
	door    door
	number  int64     // of the question that is under way, or was last; 0: there has been none
	round   int64     // Queue.round when it was asked about last
	again   bool      // something has happened since that began by which it is to be asked again
	told    bool      // the service says when it is to be asked again
	tries   int       // how often it has been kept out since it came, or nobody has said
	due     time.Time // when it is asked again in any case
	event   string    // by which it has come
	direct  bool      // it is active as soon as it is in, whatever is left of its backoff
	in      bool      // it was in: it is asked only where it belongs
	moves   bool      // it has changed since that is asked, and so may where it belongs
	moved   int       // how often it had, so that what was said was thrown away
	owed    bool      // nobody is tried until something is said of it: it has waited since before the newest order
	first   time.Time // when it was first let in, or the last time that it was asked about before that
	counted bool      // an observer has heard that it came
	plugin  string    // that keeps it out, "" if nobody has said
	reason  string    // why it is out
}

// door says whether a pod is in.
type door uint8

const (
	doorOpen    door = iota // it is, or has not come
	doorUnasked             // it is to be asked about
	doorAsked               // it is asked about
	doorClosed              // it is out, until something happens or the time has come
)

const (
	// askAgainLast is the longest pause until a pod is asked about again of which nobody says when: it doubles up to that from the first backoff. unansweredLast is that where nobody has answered.
	askAgainLast   = time.Minute
	unansweredLast = 10 * time.Second
	// mostMoves is how often what is said of where a pod belongs is thrown away since it has changed meanwhile: one that changes all the time is tried all the same.
	mostMoves = 3
	// recalledAtOnce is how many pods are gone through at a time that are to be asked about again.
	recalledAtOnce = 1024
)

// Entering is a question about a pod that has come to wait for its turn. It is void when the pod has gone.
type Entering struct {
	ID      cluster.PodID
	UID     string
	Profile string // its scheduler name
	// OnlySorts: it is in already, or its profile has nobody at PreEnqueue, and only asked is where it belongs in the queue.
	OnlySorts bool
	// Since is since when it waits: it was made then, or its last attempt ended; First is when it was first let in, or is, if it is now, a different time for each pod; and Arrival in which order pods came of the same time.
	Since, First time.Time
	Arrival      int64
	// Attempts are how many there have been, Unschedulable how many of them found no node, and Errors how many of the last have failed.
	Attempts              int32
	Unschedulable, Errors int
	number                int64
}

// entranceOf returns what a pod that is new has to do with plugins at PreEnqueue, and with one that sorts, nil if its profile has none.
func entranceOf(st *cluster.State, class cluster.ClassID) *entrance {
	profile := st.Profile(st.Class(class).Spec.SchedulerName)
	if profile == nil || len(profile.PreEnqueues) == 0 && profile.QueueSort == "" {
		return nil
	}
	return &entrance{profile: profile.SchedulerName, gates: len(profile.PreEnqueues) > 0, sorts: profile.QueueSort != ""}
}

// anew returns how a pod stands of which nothing has been asked yet.
func (is *entrance) anew() entrance {
	return entrance{profile: is.profile, gates: is.gates, sorts: is.sorts, number: is.number, first: is.first}
}

// shut reports whether a pod is not in.
func (e *entry) shut() bool { return e.entrance != nil && e.entrance.door != doorOpen }

// doors calls fn, which changes how a pod stands.
func (q *Queue) doors(e *entry, fn func(*entrance)) {
	q.unlink(e)
	fn(e.entrance)
	q.link(e)
}

// enter has a pod asked about that comes to wait for its turn because of an event.
func (q *Queue) enter(now time.Time, e *entry, event string, direct bool) {
	q.doors(e, func(is *entrance) {
		owed := is.owed
		*is = is.anew()
		is.door, is.event, is.direct, is.owed = doorUnasked, event, direct, owed
	})
	if e.place != Gated {
		q.move(now, e, Gated, "") // nobody has kept it out yet
	}
}

// askAgain has a pod asked about again that is out, or is asked about.
func (q *Queue) askAgain(e *entry, direct bool) {
	if !e.shut() {
		return
	}
	q.doors(e, func(is *entrance) {
		is.direct = is.direct || direct
		switch is.door {
		case doorClosed:
			is.door = doorUnasked
		case doorAsked:
			is.again = true
		}
	})
}

// askAllAgain has all asked about again that are out, or are asked about. The log waits meanwhile, and there may be many: they are gone through by Entering, in parts.
func (q *Queue) askAllAgain() {
	if q.recalled.Len() > 0 {
		q.recall = true
		return
	}
	q.round++
	q.closed, q.recalled, q.recall = orderedPods{rankOf: byDue}, q.closed, false
}

// recallSome has some asked about again of those that are out.
func (q *Queue) recallSome(now time.Time) {
	for range recalledAtOnce {
		e := q.recalled.head()
		if e == nil {
			if e = q.closed.head(); e == nil || now.Before(e.entrance.due) {
				break
			}
		}
		q.askAgain(e, false)
	}
	if q.recall && q.recalled.Len() == 0 {
		q.askAllAgain()
	}
}

// Unasked reports whether there is somebody to be asked about.
func (q *Queue) Unasked() bool {
	if q.recalled.Len() > 0 || q.anyUnsorted() {
		return true
	}
	for _, of := range q.entering {
		if of.Len() > 0 {
			return true
		}
	}
	return false
}

// NextEntering returns when pods are to be asked about again though nothing has happened. False: none is.
func (q *Queue) NextEntering() (at time.Time, ok bool) {
	if q.recalled.Len() > 0 || q.anyUnsorted() {
		return time.Unix(0, 0), true // long ago
	}
	if e := q.closed.head(); e != nil {
		return e.entrance.due, true
	}
	return time.Time{}, false
}

// Entering returns up to so many pods to ask about, those that have never been in queue order, and before others: of a profile that is not busy. Nil: there are none.
func (q *Queue) Entering(now time.Time, most int, busy map[string]bool) (out []Entering) {
	q.recallSome(now)
	q.sortSome(now)
	for _, profile := range slices.Sorted(maps.Keys(q.entering)) {
		for of := q.entering[profile]; !busy[profile] && len(out) < most && of.Len() > 0; {
			e := of.head()
			q.questions++
			if e.first.IsZero() || e.entrance.first.IsZero() {
				e.entrance.first = now.Add(time.Duration(len(out))) // so that who is asked about first is first
			}
			q.doors(e, func(is *entrance) {
				is.door, is.number, is.round, is.again, is.moves = doorAsked, q.questions, q.round, false, false
			})
			out = append(out, Entering{
				ID: e.id, UID: e.pod.UID, Profile: profile, OnlySorts: e.entrance.in || !e.entrance.gates, Since: e.entered, First: e.entrance.first, Arrival: e.arrival,
				Attempts: e.attempts, Unschedulable: e.failures, Errors: e.errors, number: q.questions,
			})
		}
		if len(out) > 0 {
			break
		}
	}
	return out
}

// isAsked returns the entry that a question is about, nil if it is void.
func (q *Queue) isAsked(x Entering) *entry {
	e := q.pods[x.ID]
	if e == nil || e.place != Gated || e.pod.UID != x.UID || e.entrance == nil || e.entrance.door != doorAsked || e.entrance.number != x.number {
		return nil
	}
	return e
}

// Admit lets a pod in. Where a plugin of others sorts, at is where it belongs: if that is of an order that is not the newest any more, the pod is asked about again.
func (q *Queue) Admit(now time.Time, x Entering, at SortKey) {
	e := q.isAsked(x)
	if e == nil {
		return
	}
	if is := e.entrance; is.sorts && (!q.sort(now, e, at) || is.moves && is.moved < mostMoves) {
		q.doors(e, func(is *entrance) {
			if is.door, is.in = doorUnasked, true; is.moves {
				is.moved++
			}
		})
		return
	}
	event, direct := e.entrance.event, e.entrance.direct
	q.doors(e, func(is *entrance) { *is = is.anew() })
	if direct && !e.gated() {
		q.move(now, e, Active, event)
		return
	}
	q.wait(now, e, event)
}

// Keep keeps a pod out, as a plugin says, for a reason. It is asked about again when something happens by which it may be in, and told says that the plugin's service says so; else it is when the pod has changed, and after a while.
func (q *Queue) Keep(now time.Time, x Entering, plugin, reason string, told bool) {
	e := q.isAsked(x)
	if e == nil {
		return
	}
	q.doors(e, func(is *entrance) {
		is.door, is.plugin, is.reason, is.told, is.tries, is.owed = doorClosed, plugin, reason, told, is.tries+1, false
		switch again := is.again || is.round != q.round || q.recall; {
		case again:
			is.door = doorUnasked
		default:
			is.direct = false
		}
		is.due = now.Add(q.patience)        // whatever is told may be lost
		if !told && len(e.pod.Gates) == 0 { // else it is out anyway
			is.due = now.Add(pauses(q.first, askAgainLast, is.tries))
		}
	})
	q.count(e)
}

// Unanswered keeps a pod out of which nobody could say whether it may be tried, and why. It is asked about again after a while.
func (q *Queue) Unanswered(now time.Time, x Entering, why string) {
	e := q.isAsked(x)
	if e == nil {
		return
	}
	q.doors(e, func(is *entrance) {
		is.door, is.plugin, is.reason, is.told, is.tries = doorClosed, "", cmp.Or(why, "nobody says whether the pod may be tried"), false, is.tries+1
		is.round, is.direct, is.owed = q.round, is.direct && is.again, false
		is.due = now.Add(pauses(firstBackoff, unansweredLast, is.tries))
	})
	q.count(e)
}

// count has an observer hear that a pod came, and is out.
func (q *Queue) count(e *entry) {
	if is := e.entrance; !is.counted && is.event != "" && q.observer != nil {
		is.counted = true
		q.observer.Incoming(&e.pod, Gated, is.event)
	}
}

// pauses returns the pause behind so many tries, from 1: it doubles from the first to the last.
func pauses(first, last time.Duration, tries int) time.Duration {
	if first > last>>(tries-1) {
		return last
	}
	return first << (tries - 1)
}

// byDue is the order in which pods that are out are asked about again.
func byDue(e *entry) rank {
	r := inLine(e)
	r.due = nanos(e.entrance.due)
	return r
}

// byQuestion is the order in which pods are asked about: those first that have never been, in queue order, and then who has not been asked about for longest. However often some are woken, the others have their turn.
func byQuestion(e *entry) rank {
	r := inLine(e)
	r.due = e.entrance.number
	return r
}

// enteringOf returns those of a profile that are to be asked about.
func (q *Queue) enteringOf(profile string) *orderedPods {
	of := q.entering[profile]
	if of == nil {
		of = &orderedPods{rankOf: byQuestion}
		q.entering[profile] = of
	}
	return of
}
