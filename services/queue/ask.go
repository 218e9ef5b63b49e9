package queue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

const (
	// asksAtOnce is how many pods of the same turn a member has asked about at a time. With one more, that is next, the binder would sometimes hear of that one first:
	// pods would go out of queue order. So, too, the binder has room for others, however many shards wait for an extender.
	asksAtOnce = 1
	// mostAskPods bounds how many pods an Ask is about, whatever the binder says.
	mostAskPods = 256
	// mostAskMillis bounds how long an Ask may take, whatever the binder says.
	mostAskMillis = 3_600_000
	// changedMessage is told of a pod whose best node has changed each time while extenders were asked.
	changedMessage = "again and again, nodes had changed while extenders or plugin services were asked about the pod"
)

// asker asks the binder, which asks extenders, about pods of a shard, in queue order as far as they are of the same turn: a few that are next at a time, if the binder takes several. Nobody waits for them:
// they are in flight, and their shard goes on. It has goroutines as long as there is something to ask, which end with the driver.
type asker struct {
	d  *driver
	mu sync.Mutex
	// lines are the pods to be asked about, by turn: those that have come first of a turn are those of the highest priority, and of these that have waited longest.
	lines map[uint64]*line
	// refusals are of pods whose next attempt goes on where extenders have refused all nodes, by uid, and said where plugins of others have found no way; vain is how often in a row an answer has been
	// of no use.
	refusals map[string]refusal
	said     map[string]said
	vain     map[string]int
	running  sync.WaitGroup
}

// line is the pods of a turn: no more than twice as many as the shard has of it, and leastPurged.
type line struct {
	waiting []*question
	asking  int // goroutines
	purged  int // of waiting, how many were left when those were taken out last that are not to be asked about any more
}

// leastPurged is how many pods wait before it is looked which of them are not to be asked about any more.
const leastPurged = 1000

// question is a pod that is to be asked about.
type question struct {
	pending.Attempt
	attemptBegun
	at      pending.InLine
	version cluster.Version // of the binder's answer that says so
	turn    uint64
	atMost  time.Duration // for one Ask
	pods    int           // that one Ask may be about at most

	nowhere    *nowhere            // nil: it is asked about where it goes
	preempt    *preemptQuestion    // it fits nowhere, and it is asked about who goes for it
	postFilter *postFilterQuestion // it fits nowhere, and plugins of others look for a way
}

// refusal is what extenders have said of an attempt.
type refusal struct {
	attempt  pending.Attempt
	version  cluster.Version // of what they were asked about
	verdicts []engine.VerdictCount
	again    bool // something has happened since by which the pod was to be tried again
}

func newAsker(d *driver) *asker {
	return &asker{d: d, lines: make(map[uint64]*line), refusals: make(map[string]refusal), said: make(map[string]said), vain: make(map[string]int)}
}

// add has pods asked about that are in flight, until ctx ends.
func (k *asker) add(ctx context.Context, questions []*question) {
	k.insert(ctx, questions)
	for _, q := range questions {
		k.purge(q.turn)
	}
}

func (k *asker) insert(ctx context.Context, questions []*question) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, q := range questions {
		l := k.lines[q.turn]
		if l == nil {
			l = new(line)
			k.lines[q.turn] = l
		}
		at, _ := slices.BinarySearchFunc(l.waiting, q, func(a, b *question) int { return cmp.Or(a.at.Compare(b.at), -1) })
		l.waiting = slices.Insert(l.waiting, at, q)
		if l.asking < asksAtOnce {
			l.asking++
			k.running.Go(func() { k.run(ctx, q.turn) })
		}
	}
}

// purge takes out those of a turn that are not in flight any more, if many have come since that was done: they may be gone, and their extender hang.
func (k *asker) purge(turn uint64) {
	k.mu.Lock()
	var all []*question
	if l := k.lines[turn]; l != nil && len(l.waiting) > 2*l.purged+leastPurged {
		all = slices.Clone(l.waiting)
	}
	k.mu.Unlock()
	if len(all) == 0 {
		return
	}
	void := make(map[*question]bool)
	k.d.sh.peek(func(queue *pending.Queue) {
		for _, q := range all {
			if !queue.Runs(q.Attempt) {
				void[q] = true
			}
		}
	})
	k.mu.Lock()
	if l := k.lines[turn]; l != nil {
		l.waiting = slices.DeleteFunc(l.waiting, func(q *question) bool { return void[q] })
		l.purged = len(l.waiting)
	}
	k.mu.Unlock()
	for q := range void {
		k.over(q, tracedGone)
	}
}

// run asks about the pods of a turn until there are none.
func (k *asker) run(ctx context.Context, turn uint64) {
	slots := k.d.s.asks.of(turn)
	for {
		select {
		case <-ctx.Done():
			k.leave(turn)
			return
		case slots <- struct{}{}:
		}
		some := k.next(turn)
		if len(some) > 0 {
			k.ask(ctx, some)
		}
		<-slots
		if len(some) == 0 {
			return
		}
	}
}

// next takes the first pods of a turn that one question may be about, none if there are none: then the caller is one goroutine less.
func (k *asker) next(turn uint64) []*question {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lines[turn]
	if len(l.waiting) == 0 {
		if l.asking--; l.asking == 0 {
			delete(k.lines, turn)
		}
		return nil
	}
	first, n := l.waiting[0], 1
	for first.nowhere == nil && n < min(first.pods, len(l.waiting)) && l.waiting[n].nowhere == nil && l.waiting[n].version.Epoch == first.version.Epoch {
		n++
	}
	some := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	return some
}

// leave ends the attempts that nobody asks about any more.
func (k *asker) leave(turn uint64) {
	for some := k.next(turn); len(some) > 0; some = k.next(turn) {
		for _, q := range some {
			k.over(q, tracedUnknown)
		}
	}
}

// over ends what is measured of an attempt that has not been placed.
func (k *asker) over(q *question, traced string) {
	k.d.s.binding.end(q.ID, q.popped)
	q.traced.end(traced, "")
}

// ask asks about pods, and gives them their outcomes. Those that the binder has not come to wait again.
func (k *asker) ask(ctx context.Context, some []*question) {
	some = k.inFlight(some)
	if len(some) == 0 {
		return
	}
	first := some[0]
	switch {
	case first.preempt != nil:
		k.preempt(ctx, first)
		return
	case first.postFilter != nil:
		k.postFilter(ctx, first)
		return
	}
	request := &binderv1.AskRequest{
		Shard: k.d.sh.number, ShardRevision: k.d.sh.revision, Version: wire.ToVersion(first.version), Id: int32(first.ID), Uid: first.UID, Attempt: first.Number,
	}
	for _, q := range some[1:] {
		request.More = append(request.More, &binderv1.PodAttempt{Id: int32(q.ID), Uid: q.UID, Attempt: q.Number})
	}
	began := time.Now()
	response, err := askBinderWithin(ctx, k.d, first.atMost, len(some), always, func(ctx context.Context, binder binderv1.BinderServiceClient) (*binderv1.AskResponse, error) {
		response, err := binder.Ask(ctx, request)
		if err != nil && len(some) > 1 { // it may be for the others, or take long: they wait in line for whoever comes meanwhile
			k.insert(ctx, some[1:])
			some, request.More = some[:1], nil
			if c := status.Code(err); c == codes.Internal || c == codes.InvalidArgument {
				return binder.Ask(ctx, request)
			}
		}
		return response, err
	})
	k.d.s.metrics.stage.WithLabelValues("ask").Observe(time.Since(began).Seconds())
	switch {
	case ctx.Err() != nil:
		k.over(first, tracedUnknown)
	case errors.Is(err, errShardLost): // then all that the shard's other pods wait for is in vain
		k.over(first, tracedUnknown)
		k.d.end(err)
	case status.Code(err) == codes.Aborted:
		k.retry(first, "ask_aborted")
	case err != nil:
		k.d.log.Error("binder refuses to ask extenders", "uid", first.UID, "err", err, first.traced.log())
		k.fail(first, "ask extenders: "+status.Convert(err).Message(), true)
	default:
		n := min(1+len(response.GetMore()), len(some))
		k.insert(ctx, some[n:])
		k.settle(first, response)
		for i, q := range some[1:n] {
			k.settle(q, response.GetMore()[i])
		}
	}
}

// inFlight returns those of some questions whose pods are to be asked about still.
func (k *asker) inFlight(some []*question) (still []*question) {
	runs := make([]bool, len(some))
	k.d.sh.peek(func(queue *pending.Queue) {
		for i, q := range some {
			runs[i] = queue.Runs(q.Attempt)
		}
	})
	for i, q := range some {
		if runs[i] {
			still = append(still, q)
		} else {
			k.over(q, tracedGone)
		}
	}
	return still
}

func always(error) bool { return true }

// answer is what the binder says of a pod.
type answer interface {
	GetVersion() *logv1.Version
	GetOutcome() *binderv1.Outcome
	GetRefusals() []*filterv1.VerdictCount
	GetError() string
}

// settle gives a pod its outcome.
func (k *asker) settle(q *question, response answer) {
	version := wire.Version(response.GetVersion())
	result := response.GetOutcome().GetResult()
	switch result {
	case binderv1.Outcome_RESULT_RETRY, binderv1.Outcome_RESULT_NO_FIT:
	case binderv1.Outcome_RESULT_REFUSED: // its preemption, which is next, may come to nothing each time
	default:
		k.forget(q.UID)
	}
	switch result {
	case binderv1.Outcome_RESULT_ASSUMED, binderv1.Outcome_RESULT_PLACED:
		k.d.s.metrics.algorithm.Observe(time.Since(q.popped).Seconds())
		k.d.sh.with(func(queue *pending.Queue, now time.Time) {
			if !queue.Remembers(q.Attempt) { // its bind has been told
				k.d.s.binding.end(q.ID, q.popped)
			}
			queue.Await(now, q.Attempt, version, pending.Unresolved)
		})
	case binderv1.Outcome_RESULT_GONE:
		k.over(q, tracedGone)
		k.d.sh.with(func(queue *pending.Queue, now time.Time) { queue.Await(now, q.Attempt, version, pending.Unresolved) })
	case binderv1.Outcome_RESULT_BUSY:
		k.fail(q, busyMessage, false)
	case binderv1.Outcome_RESULT_FAILED:
		k.fail(q, response.GetError(), true)
	case binderv1.Outcome_RESULT_REFUSED:
		verdicts, err := wire.Verdicts(response.GetRefusals())
		if err != nil {
			k.fail(q, "ask extenders: "+err.Error(), true)
			return
		}
		k.mu.Lock()
		k.sweep()
		k.refusals[q.UID] = refusal{q.Attempt, version, verdicts, false}
		k.mu.Unlock()
		k.retry(q, "extender")
	default:
		if k.tooOften(q) {
			k.fail(q, changedMessage, true)
			return
		}
		k.retry(q, "ask")
	}
}

// counts reports whether there are answers of no use.
func (k *asker) counts() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.vain) > 0
}

// forget begins anew to count answers of no use about pods that have come to something else.
func (k *asker) forget(uids ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, uid := range uids {
		delete(k.vain, uid)
	}
}

// tooOften counts an answer that was of no use, and reports whether there have been so many in a row that the pod has to back off.
func (k *asker) tooOften(q *question) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sweep()
	if k.vain[q.UID]++; k.vain[q.UID] < mostMisfits {
		return false
	}
	delete(k.vain, q.UID)
	return true
}

// sweep forgets what is remembered of pods once it is much: they are asked about again. The caller holds the lock.
func (k *asker) sweep() {
	const most = 10_000
	if len(k.vain) >= most {
		clear(k.vain)
	}
	if len(k.refusals) >= most {
		clear(k.refusals)
	}
	if len(k.said) >= most {
		clear(k.said)
	}
}

// retry makes a pod active again.
func (k *asker) retry(q *question, reason string) {
	k.over(q, tracedRetry)
	k.d.s.metrics.retries.WithLabelValues(reason).Inc()
	k.d.sh.with(func(queue *pending.Queue, now time.Time) { queue.Retry(now, q.Attempt) })
}

// fail puts a pod in backoff. Clear says that its nomination ends.
func (k *asker) fail(q *question, message string, clear bool) {
	k.forget(q.UID)
	k.d.s.binding.end(q.ID, q.popped)
	k.d.sh.with(func(queue *pending.Queue, now time.Time) { queue.Fail(now, q.Attempt, message) })
	k.d.reports.add(q.Attempt, reasonError, message, clear)
	q.traced.end(resultError, message)
	k.d.s.metrics.algorithm.Observe(time.Since(q.popped).Seconds())
	k.d.s.metrics.attempt(resultError, q.profile, time.Since(q.popped))
}

// takeRefusal returns what extenders have said of the attempt of a pod just before that one, in that epoch, nil if they have not been asked in it, or the pod is not what it
// was.
func (k *asker) takeRefusal(a *pending.Attempt, epoch cluster.Epoch) *refusal {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := k.refusals[a.UID]
	if !ok {
		return nil
	}
	delete(k.refusals, a.UID)
	if !goesOn(&r.attempt, a) || r.version.Epoch != epoch { // what happened meanwhile may have helped
		return nil
	}
	return &r
}

// goesOn reports whether an attempt is the next one of a pod that is what it was.
func goesOn(was, is *pending.Attempt) bool {
	return was.Number+1 == is.Number && was.ID == is.ID && was.Subject == is.Subject && was.RequiredNode == is.RequiredNode && was.Nominated == is.Nominated
}

// victims corrects the verdicts of dry runs: of nodes that only extenders have refused, kube-scheduler says that there is nobody to evict, and dry runs that there is
// no need to.
func (r *refusal) victims(verdicts []engine.VerdictCount) []engine.VerdictCount {
	var nodes int32
	for _, v := range r.verdicts {
		if !v.Unresolvable {
			nodes += v.Count
		}
	}
	out := slices.Clone(verdicts)
	for k := range out {
		if v := &out[k]; v.Reason == engine.ReasonNotHelpful && nodes > 0 {
			moved := min(nodes, v.Count)
			v.Count -= moved
			out = append(out, engine.VerdictCount{Reason: engine.ReasonNoVictims, Unresolvable: true, Count: moved})
			break
		}
	}
	return engine.MergeVerdicts(slices.DeleteFunc(out, func(v engine.VerdictCount) bool { return v.Count == 0 }))
}

// askSlots are of a member: how many pods of each turn are asked about.
type askSlots struct {
	mu    sync.Mutex
	turns map[uint64]chan struct{}
}

// of returns what holds a value for each pod of a turn that is asked about.
func (s *askSlots) of(turn uint64) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turns == nil {
		s.turns = make(map[uint64]chan struct{})
	}
	slots := s.turns[turn]
	if slots == nil {
		slots = make(chan struct{}, asksAtOnce)
		s.turns[turn] = slots
	}
	return slots
}
