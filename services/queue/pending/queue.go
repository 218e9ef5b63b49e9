package pending

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Place is where a pod is in the queue.
type Place uint8

// The places. A pod is in exactly one.
const (
	Gated         Place = iota // it has scheduling gates, plugins of others have not let it in, its group is not complete, or another scheduler has its name
	Active                     // it waits for its turn
	Backoff                    // it waits for its backoff to end, or for an idle moment
	Unschedulable              // no node fits, or others are being evicted for it; it waits for a change that could help
	InFlight                   // an attempt is running, or its outcome is on its way through the log

	Places = iota // how many there are

	// assumed is not a place in the queue: the pod is placed, and remembered for what it counts if its bind fails.
	assumed Place = Places
)

func (p Place) String() string {
	switch p {
	case Gated:
		return "gated"
	case Active:
		return "active"
	case Backoff:
		return "backoff"
	case Unschedulable:
		return "unschedulable"
	case InFlight:
		return "in_flight"
	}
	return "assumed"
}

// Backoff of a pod that failed, unless the settings say otherwise: doubles from the first to the last, as in
// kube-scheduler.
const (
	firstBackoff = time.Second
	lastBackoff  = 10 * time.Second

	maxBackoffSeconds = 100 * 365 * 24 * 3600
)

// Attempt is one try to place one pod, handed out by Pop. It is void once the pod is no longer in flight with it; the
// methods of Queue that take a void attempt do nothing.
type Attempt struct {
	ID           cluster.PodID
	UID          string
	Subject      engine.Subject
	RequiredNode string    // the only node it may go to; "": any
	Nominated    string    // the node it is nominated to; "": none
	Number       int32     // from 1; grows with every attempt of the pod
	Since        time.Time // since when the pod had waited for it
	Detaching    time.Time // since when attempts have found nothing but Diagnosis.Detaching; zero: the last has not
	Again        bool      // something has happened since the last attempt began by which the pod was to be tried again, whatever that one would say
}

// Node returns the name of the node that matters by itself for the pod, "" if there is none.
func (a *Attempt) Node() string { return cmp.Or(a.RequiredNode, a.Nominated) }

// Diagnosis is why an attempt placed nothing, and how the pod may come back.
type Diagnosis struct {
	Verdicts []engine.VerdictCount
	Message  string          // as kube-scheduler words it
	Version  cluster.Version // the oldest version that any node was evaluated at
	Wake     Wake
	// CrossNode says that pods on other nodes may be the only reason against some node.
	CrossNode bool
	// Keepers are the plugins that keep the pod from preempting because of what is on other nodes: engine.KeepersOf.
	Keepers engine.Rejectors
	// Resigns says that the nomination that the attempt began with, if any, is about to end because the attempt found no use for it.
	Resigns bool
	// Detaching says that the pod may not preempt as it waits for volumes to be detached from the node that it is nominated to.
	Detaching bool
	// Asked says that extenders have had their say in whom the pod preempts, or plugins of others instead, and that it preempts nobody. Whatever happens on a node where it could preempt brings it back, and they may
	// say the same again: so its backoff is not cut short.
	Asked bool
}

// Entry is what the queue knows of a pod.
type Entry struct {
	ID           cluster.PodID
	Pod          cluster.Pod
	Place        Place
	Since        time.Time // since when it is there
	Attempts     int32
	Message      string // why the last attempt placed nothing
	Verdicts     []engine.VerdictCount
	BackoffUntil time.Time // zero unless in backoff
}

// entry is a pod in the queue.
type entry struct {
	id      cluster.PodID
	pod     cluster.Pod
	arrival int64 // orders pods that entered at the same time
	place   Place
	since   time.Time
	entered time.Time // creation, or the last failed attempt

	attempts int32
	failures int // attempts that found no node, in all
	errors   int // attempts that ended in an error, since one that did not; if any, the backoff is never cut short
	expiry   time.Time

	said
	sleeps bool // it is in Queue.sleeping

	group     *group    // nil: it names none
	claims    []*claim  // that it uses
	detaching time.Time // Attempt.Detaching of the next attempt

	news // since the last attempt began

	entrance *entrance // nil: its profile has no plugins of others at PreEnqueue, nor one that sorts
	sorted   sorted    // by a plugin of others; zero: it has not been

	held      bool      // others are being evicted for it: it stays where it is
	yielded   bool      // another scheduler has its name at the moment
	awaited   bool      // while it is in flight: the log says what has become of it
	first     time.Time // when it first was active; zero: never
	activated time.Time // when a plugin has last made it active; zero: never
	flushed   bool      // nothing but the flush has brought it back since its last attempt
	rank      rank      // in the order it is in
}

// said is what the last attempt said, and what follows from that: one is forgotten with the other.
type said struct {
	message string // of an error, too

	// If it was unschedulable:
	verdicts  []engine.VerdictCount
	rejected  engine.Rejectors // of the verdicts, and what keeps it from preempting
	wake      Wake
	evaluated cluster.Version // the oldest that any node was evaluated at; zero: it was not unschedulable
	asked     bool            // Diagnosis.Asked
	// crossNode says, while it is unschedulable, that what is on one node may decide whether another is feasible.
	crossNode bool
	related   cluster.Seq // as of which crossNode is known
	// asOf is until when the verdicts have been compared with what has happened: as the attempt ended. A look at no more than that is not at the pod.
	asOf cluster.Seq
}

// news is what has happened since a pod's attempt began that may bring the pod back. An attempt begins without any.
type news struct {
	changed bool             // it is judged by other things
	again   bool             // it is to be tried again, whatever that attempt says
	resigns bool             // its nomination is about to end by its own attempt's word, which is no news
	pressed bool             // a plugin has activated it more often than it lets: its backoff is not cut short
	hinted  engine.Rejectors // that would queue it
	heard   cluster.Seq      // hinted knows of what happened until then; what happened before the pod came to its place is no news
}

// Queue is one shard's pods. It is not safe for concurrent use.
//
// The log comes in through Reset and Apply, the outcomes of attempts through Retry, Await, Fail and Reject.
type Queue struct {
	shard    int32
	judge    Judge
	observer Observer // nil: nobody listens

	settings    cluster.Settings
	first, last time.Duration // backoffs, of the settings
	patience    time.Duration // how long a pod may be unschedulable, of the settings

	version  cluster.Version // of the state that was folded last
	event    string          // what kube-scheduler calls the delta that was folded last
	cause    string          // and the last that somebody may wake by
	arrivals int64
	pods     map[cluster.PodID]*entry
	groups   map[cluster.GroupKey]*group // of which the queue has pods
	counts   [Places + 1]int

	rejections rejections

	entering  map[string]*orderedPods // that plugins of others are to be asked about, by profile
	closed    orderedPods             // that these keep out, by when they are asked about again
	recalled  orderedPods             // likewise, of earlier rounds: all are asked about again
	round     int64                   // begins anew when all are to be asked about again
	recall    bool                    // that is to be as soon as none is recalled any more
	questions int64                   // about pods that come in
	orders    int32                   // by which a plugin of others sorts, the newest, from 1; 0: nobody has
	sortOrder uint64                  // what the binder calls it
	owed      int                     // pods of which something is to be said before anybody is tried
	owedUntil time.Time               // then others are; zero: now
	oweAgain  time.Time               // not before is anybody owed anything again

	active   orderedPods
	running  orderedPods // in flight, not awaited; by priority
	backoff  orderedPods // after an attempt that found no node
	whole    orderedPods // for all of it: after an error, or where extenders have been asked whom they preempt
	aging    orderedPods // unschedulable, by when they were tried last
	nodeless pods        // unschedulable until there is a node
	anything pods        // unschedulable until something happens
	happened cluster.Seq // when something has last, for these
	sleeping priorities  // of unschedulable pods that a node may bring back
	// Those with claims are in aside, and there likewise:
	// local are unschedulable because of what each node is itself, whatever their labels: only a change of a node makes that node
	// feasible. crossNode are all others. Judge.CrossNode alone does not tell them apart: pods that were in the way on
	// other nodes may be gone, but what they hid is not known.
	local, crossNode table[engine.Subject, *unschedulablePods]
	own              named                        // unschedulable pods with a node that matters by itself, by its name
	ownCrossNode     pods                         // of these, those that are crossNode
	listeners        table[listening, *listeners] // in flight or unschedulable, by what hints tell them apart by
	nominees         named                        // by the node that they are nominated to
	left             map[string]int32             // by uid, how often pods have been tried that are of another shard by now
	awaited          []awaited                    // by version

	volumes      volumes // who is concerned by a change of claims, and of what they are bound to
	notes        notes   // what the fold has noted since the last look began
	looking      *look   // that is under way, or nil
	aside        aside   // pods with claims, and what looks have left for them; lookingAside is the look at them that is under way, or nil
	lookingAside *look
	flushing     bool        // it has been done, and the flush that comes after it has not
	looked       cluster.Seq // the last look began at
	looks        uint64      // how many have begun
	most         int         // events that notes keep of a kind

	// helpful are the answers that helped had in the state that it was asked in last.
	helpful   map[question]bool
	helpfulAt cluster.Version
}

// awaited is an attempt whose outcome the log tells, at the latest at version.
type awaited struct {
	attempt Attempt
	version cluster.Version
	silence Silence
}

// Silence is what it means that the log says nothing of an attempt.
type Silence bool

const (
	Unresolved Silence = false // what nobody knew: the observer is told
	Told       Silence = true  // what was meant, and has been counted
)

// NewQueue returns the queue of a shard, empty until Reset.
func NewQueue(shard int32, judge Judge) *Queue {
	q := &Queue{shard: shard, judge: judge, first: firstBackoff, last: lastBackoff, patience: longestUnschedulable, most: mostEvents}
	q.clear()
	return q
}

func (q *Queue) clear() {
	q.pods, q.groups = make(map[cluster.PodID]*entry), make(map[cluster.GroupKey]*group)
	q.counts = [Places + 1]int{}
	q.rejections = make(rejections)
	q.entering, q.closed = make(map[string]*orderedPods), orderedPods{rankOf: byDue}
	q.recalled, q.recall = orderedPods{rankOf: byDue}, false
	q.orders, q.sortOrder, q.owed, q.owedUntil = 0, 0, 0, time.Time{}
	q.active = orderedPods{rankOf: inLine}
	q.running = orderedPods{rankOf: inLine}
	q.backoff = orderedPods{rankOf: byExpiry}
	q.whole = orderedPods{rankOf: byExpiry}
	q.local, q.crossNode = table[engine.Subject, *unschedulablePods]{}, table[engine.Subject, *unschedulablePods]{}
	q.aging = orderedPods{rankOf: byAge}
	q.nodeless, q.anything = pods{}, pods{}
	q.sleeping = priorities{}
	q.own, q.ownCrossNode = named{}, pods{}
	q.listeners = table[listening, *listeners]{}
	q.nominees = named{}
	q.left = make(map[string]int32)
	q.volumes = newVolumes()
	q.notes, q.looking, q.flushing, q.looked = notes{}, nil, false, 0
	q.aside, q.lookingAside = aside{}, nil
	q.helpful, q.helpfulAt = nil, cluster.Version{}
	q.awaited = nil
}

// Version returns the version of the state that was folded last.
func (q *Queue) Version() cluster.Version { return q.version }

// Count returns the number of pods in a place.
func (q *Queue) Count(p Place) int { return q.counts[p] }

// AnyPriority is the floor of PopAbove that is below no pod.
const AnyPriority = math.MinInt32

// Pop returns up to limit pods that are ready at now, in queue order, and puts them in flight. When no pod is active,
// pods leave their backoff early, but not a backoff after an error, or where extenders have been asked whom they preempt. It never blocks and returns nil when none is ready.
// Pods of a PodGroup are returned all at once, whatever the limit, and alone.
func (q *Queue) Pop(now time.Time, limit int) []Attempt {
	batch, _ := q.PopAbove(now, limit, AnyPriority)
	return batch
}

// PopAbove is Pop of pods whose priority is floor or higher. Outranked says that only the floor keeps the next pod.
func (q *Queue) PopAbove(now time.Time, limit int, floor int32) (batch []Attempt, outranked bool) {
	q.endBackoffs(now)
	for len(batch) < limit && !q.holdsUp(now) {
		e := q.head()
		if e == nil || q.unsorted(e) {
			break
		}
		if e.pod.Priority < floor {
			return batch, true
		}
		if e.group != nil {
			if len(batch) == 0 {
				batch = q.popGroup(now, e.group)
			}
			break
		}
		batch = append(batch, q.pop(now, e))
	}
	return batch, false
}

// pop puts a pod in flight.
func (q *Queue) pop(now time.Time, e *entry) Attempt {
	if e.place == Backoff || e.place == Unschedulable {
		q.move(now, e, Active, popFromBackoff)
	}
	since, again := e.since, e.again
	q.move(now, e, InFlight, "")
	e.attempts++
	return Attempt{
		ID: e.id, UID: e.pod.UID, Subject: engine.SubjectOf(&e.pod), RequiredNode: e.pod.RequiredNode, Nominated: e.pod.Nominated,
		Number: e.attempts, Since: since, Detaching: e.detaching, Again: again,
	}
}

// Outranked reports whether there is a pod for Pop, but PopAbove would keep it for its priority.
func (q *Queue) Outranked(now time.Time, floor int32) bool {
	q.endBackoffs(now)
	e := q.head()
	return e != nil && !q.unsorted(e) && !q.holdsUp(now) && e.pod.Priority < floor
}

// HeadWait returns how long the first active pod has waited since it entered the queue or its last attempt failed; 0 if none
// is active.
func (q *Queue) HeadWait(now time.Time) time.Duration {
	if e := q.active.head(); e != nil {
		return max(0, now.Sub(e.entered))
	}
	return 0
}

// head returns the pod that Pop would take first, once it has ended the backoffs; nil if there is none.
func (q *Queue) head() *entry {
	if e := q.active.head(); e != nil {
		return e
	}
	return q.backoff.head()
}

// Next returns when Pop, after Recheck, will return a pod if nothing else happens: a time that has passed if it would now.
// False: not by time alone.
func (q *Queue) Next() (at time.Time, ok bool) {
	if e := q.head(); e != nil && !q.unsorted(e) {
		if q.owed > 0 {
			at = q.owedUntil
		}
		return at, true
	}
	if e := q.whole.head(); e != nil {
		at, ok = e.ready(), true
	}
	if e := q.aging.head(); e != nil && (!ok || q.tooLong(e).Before(at)) {
		at, ok = q.tooLong(e), true
	}
	return at, ok
}

// Retry puts an attempt's pod back where it was popped from in the order of active pods: nothing is known against it.
func (q *Queue) Retry(now time.Time, a Attempt) {
	if e := q.inFlight(a); e != nil {
		q.move(now, e, Active, "")
	}
}

// PutBack puts an attempt's pod back as if it had not been popped: nobody has tried it.
func (q *Queue) PutBack(now time.Time, a Attempt) {
	if e := q.inFlight(a); e != nil {
		e.attempts--
		q.move(now, e, Active, "")
	}
}

// Postpone has an attempt's pod back off for a second at most: nothing is known against it, but others go first, for it would be as it was.
func (q *Queue) Postpone(now time.Time, a Attempt) {
	if e := q.inFlight(a); e != nil {
		q.unlink(e)
		e.asked, e.expiry = true, now.Truncate(time.Second)
		q.link(e)
		to := Backoff
		if e.gated() {
			to = Gated
		}
		q.move(now, e, to, "")
	}
}

// Await leaves an attempt's pod in flight until the log up to version has been folded, which says what became of it.
// If it says nothing, the pod is active again.
func (q *Queue) Await(now time.Time, a Attempt, version cluster.Version, silence Silence) {
	at, _ := slices.BinarySearchFunc(q.awaited, version, func(w awaited, v cluster.Version) int {
		return cmp.Or(w.version.Compare(v), -1) // behind its equals
	})
	q.awaited = slices.Insert(q.awaited, at, awaited{a, version, silence})
	if e := q.inFlight(a); e != nil {
		q.unlink(e)
		e.awaited = true
		q.link(e)
	}
	q.resolve(now)
}

// InLine is where a pod stands in queue order, towards others of the queue.
type InLine struct{ rank rank }

// Compare orders as the queue does: negative if a pod comes before another one.
func (l InLine) Compare(other InLine) int {
	return cmp.Or(cmp.Compare(l.rank.order, other.rank.order), l.rank.compare(&other.rank)) // who has been tried by an older order of a plugin has been before
}

// Outranks reports whether a pod comes before another one whenever they have come.
func (l InLine) Outranks(other InLine) bool {
	l.rank.entered, l.rank.arrival, other.rank.entered, other.rank.arrival = 0, 0, 0, 0
	return l.Compare(other) < 0
}

// Leave leaves an attempt's pod in flight, until it has an outcome, and has no other shard wait for it: it may take long. False: the attempt is void.
func (q *Queue) Leave(a Attempt) (at InLine, ok bool) {
	e := q.inFlight(a)
	if e == nil {
		return InLine{}, false
	}
	q.unlink(e)
	e.awaited = true
	q.link(e)
	return InLine{inLine(e)}, true
}

// Runs reports whether an attempt is in flight still.
func (q *Queue) Runs(a Attempt) bool { return q.inFlight(a) != nil }

// resolve ends the waits that the folded version answers.
func (q *Queue) resolve(now time.Time) {
	for len(q.awaited) > 0 && !q.version.Less(q.awaited[0].version) {
		of := q.awaited[0]
		q.awaited = q.awaited[1:]
		if q.observer != nil && of.silence == Unresolved && q.inFlight(of.attempt) != nil {
			q.observer.Unresolved()
		}
		q.Retry(now, of.attempt)
	}
}

// Fail puts an attempt's pod in backoff after an error. message is for people.
func (q *Queue) Fail(now time.Time, a Attempt, message string) {
	if e := q.inFlight(a); e != nil {
		q.failed(now, e, message)
	}
}

func (q *Queue) failed(now time.Time, e *entry, message string) {
	q.unlink(e)
	e.errors++
	e.entered = now
	e.said = said{message: message}
	q.link(e)
	e.flushed = false
	q.requeue(now, e, attemptFailure)
}

// Reject makes an attempt's pod unschedulable, with st the folded state. If a node that has changed since the
// evaluated version can run the pod, or could if others were evicted, or the pod itself has changed, or something has
// happened by which a plugin that has rejected it queues it, it goes on to its backoff instead, so that no wake-up is lost. So it does if
// the attempt ends the pod's nomination, but that has come only since: the attempt ends none but the one that it began with.
func (q *Queue) Reject(now time.Time, st *cluster.State, a Attempt, d Diagnosis) {
	e := q.inFlight(a)
	if e == nil {
		return
	}
	q.hearNow(st, e)
	e.failures++
	e.errors = 0
	e.entered, e.flushed = now, false
	q.unlink(e)
	e.verdicts, e.rejected, e.message = d.Verdicts, engine.RejectorsOf(d.Verdicts)|d.Keepers, d.Message
	e.wake, e.evaluated, e.asked = d.Wake, d.Version, d.Asked
	switch {
	case !d.Detaching:
		e.detaching = time.Time{}
	case e.detaching.IsZero():
		e.detaching = now
	}
	if d.Resigns && e.pod.Nominated != "" {
		e.resigns = e.pod.Nominated == a.Nominated
		e.again = e.again || !e.resigns // it has come meanwhile: the next attempt judges it, and ends it if it is of no use
	}
	// A node that only pods on other nodes exclude may be feasible without having changed.
	e.crossNode = d.CrossNode || q.judge.CrossNode(st, engine.SubjectOf(&e.pod))
	e.related, e.asOf = st.Version().Seq, st.Version().Seq
	doubtful := e.crossNode && d.Version.Less(st.Version())
	if doubtful { // of other nodes than those that have changed, what has happened since says nothing
		if e.asOf = 0; d.Version.Epoch == st.Version().Epoch {
			e.asOf = d.Version.Seq
		}
	}
	q.link(e)
	if !e.held && q.missed(st, e) {
		q.requeue(now, e, attemptFailure)
		return
	}
	// The verdicts do not say all of that: a plugin may have failed on another node, and they are of nodes that it is not nominated to.
	q.notes.doubtful = q.notes.doubtful || doubtful
	q.move(now, e, Unschedulable, attemptFailure)
}

// missed reports whether something has happened since a pod's attempt that would have brought it back. If that attempt did
// not make it unschedulable, everything would have.
func (q *Queue) missed(st *cluster.State, e *entry) bool {
	return e.evaluated.IsZero() || q.changedOrHinted(st, e) || q.helped(st, e)
}

// changedOrHinted reports whether a pod is to be tried again because of what it is itself, or of a hint.
func (q *Queue) changedOrHinted(st *cluster.State, e *entry) bool {
	return e.due() || e.changed && q.fits(st, e)
}

// due is what can be said of changedOrHinted without a look at any node.
func (e *entry) due() bool {
	return e.again || e.hinted&e.rejected != 0 || e.changed && (e.wake == WhenChanged || e.wake == WhenAnything)
}

// inFlight returns the entry of an attempt, or nil if it is void.
func (q *Queue) inFlight(a Attempt) *entry {
	e := q.pods[a.ID]
	if e == nil || e.place != InFlight || e.pod.UID != a.UID || e.attempts != a.Number {
		return nil
	}
	return e
}

// Remembers reports whether an attempt's pod is in the queue, or is placed and not bound as far as the folded log tells.
func (q *Queue) Remembers(a Attempt) bool {
	e := q.pods[a.ID]
	return e != nil && e.pod.UID == a.UID
}

// ClaimsChanged reports whether something has changed since a version of what the claims of an attempt's pod are made of, or whether the attempt is
// void.
func (q *Queue) ClaimsChanged(a Attempt, since cluster.Version) bool {
	e := q.pods[a.ID]
	return e == nil || e.pod.UID != a.UID || q.concerned(e, since.Seq)
}

// requeue has a pod wait for its turn because of an event, once plugins of others have let it in.
func (q *Queue) requeue(now time.Time, e *entry, event string) {
	if e.entrance != nil && !e.held && !e.yielded {
		q.enter(now, e, event, false)
		return
	}
	q.wait(now, e, event)
}

// wait makes a pod active because of an event, or puts it in backoff if that has not passed.
func (q *Queue) wait(now time.Time, e *entry, event string) {
	e.expiry = e.entered.Add(q.pause(e)).Truncate(time.Second)
	switch {
	case e.gated():
		q.move(now, e, Gated, event)
	case q.pause(e) > 0 && e.backingOff(now):
		q.move(now, e, Backoff, event)
	default:
		q.move(now, e, Active, event)
	}
}

// gated reports whether the pod may not be tried: it has gates, plugins of others have not let it in, its group is not complete, or another scheduler has its name.
func (e *entry) gated() bool {
	return len(e.pod.Gates) > 0 || e.yielded || e.shut() && !e.held || e.group != nil && e.group.lacking != "" && !e.held
}

// pause is how long the pod backs off.
func (q *Queue) pause(e *entry) time.Duration {
	count := e.failures
	if e.errors > 0 {
		count = e.errors
	}
	if count == 0 {
		return 0
	}
	return pauses(q.first, q.last, count) // 1 s, 2 s, 4 s, 8 s, and 10 s from then on
}

// backingOff follows kube-scheduler, which counts whole seconds: a backoff ends in the second after its expiry.
func (e *entry) backingOff(now time.Time) bool { return !e.expiry.Before(now.Truncate(time.Second)) }

// ready is when the backoff ends.
func (e *entry) ready() time.Time { return e.expiry.Add(time.Second) }

func (q *Queue) endBackoffs(now time.Time) {
	for _, h := range []*orderedPods{&q.backoff, &q.whole} {
		for e := h.head(); e != nil && !e.backingOff(now); e = h.head() {
			q.move(now, e, Active, backoffComplete)
		}
	}
}

// move takes a pod from where it is to a place, because of an event; "": of none that an observer hears of.
func (q *Queue) move(now time.Time, e *entry, to Place, event string) {
	q.unlink(e)
	hears := e.place == InFlight && to == Unschedulable // it may have heard of less than has happened
	if e.held && (to == Active || to == Backoff) {
		to = Unschedulable
	}
	e.place, e.since, e.awaited = to, now, false
	if to != Gated && e.shut() { // others are being evicted for it: it is asked about when that is over
		*e.entrance = e.entrance.anew()
	}
	if e.entrance != nil && to != Active && !(to == Gated && e.shut()) { // it is not to be tried
		e.entrance.owed = false
	}
	q.notes.unsure.remove(e.id)
	if to == InFlight {
		e.news, e.evaluated = news{}, cluster.Version{}
	}
	if !hears {
		e.heard = q.version.Seq
	}
	if to == Active && e.first.IsZero() {
		e.first = now
	}
	q.link(e)
	if event != "" && q.observer != nil {
		q.observer.Incoming(&e.pod, to, event)
	}
}

func (q *Queue) order(e *entry) *orderedPods {
	switch {
	case e.place == Active:
		return &q.active
	case e.place == InFlight && !e.awaited:
		return &q.running
	case e.place == Backoff && (e.errors > 0 || e.asked || e.pressed):
		return &q.whole
	case e.place == Backoff:
		return &q.backoff
	case e.place == Unschedulable && !e.held:
		return &q.aging
	case e.place == Gated && e.entrance != nil && e.entrance.door == doorUnasked:
		return q.enteringOf(e.entrance.profile)
	case e.place == Gated && e.entrance != nil && e.entrance.door == doorClosed && e.entrance.round == q.round:
		return &q.closed
	case e.place == Gated && e.entrance != nil && e.entrance.door == doorClosed:
		return &q.recalled
	}
	return nil
}
