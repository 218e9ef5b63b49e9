package binder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// bindBackoff is between tries of a bind whose outcome is unknown.
var bindBackoff = backoff{100 * time.Millisecond, 5 * time.Second}

// A bind that has failed for giveBackAfter, and so many times, or for twice as long, and hangingTries times, is withdrawn, and the pod goes
// back to its shard with what was the matter: an admission webhook, say, that fails for ever for one namespace holds up no other. While a namespace is in
// trouble, and for troubleLasts, binds of its pods are withdrawn as soon as they fail, so that they hold room and their share
// of Config.MaxUnbound for no longer than that takes.
const (
	giveBackAfter = 5 * time.Second
	giveBackTries = 4
	hangingTries  = 2
	// changedTries is how many tries may find that the pod has changed meanwhile before that counts as a failure, too.
	changedTries = 10
	troubleLasts = time.Minute
	// maxTroubles bounds the namespaces that are remembered.
	maxTroubles = 10_000
)

// A bind that has had no answer for lateAfter, which is many times what a server takes that is well, is late: its worker
// goes on with the next. So calls that get no answer, of which each takes until its timeout, do not hold up others. Of
// late binds there are at most maxLate; beyond that, one that has a place is cut off, as if its time had run out, and for others workers wait.
const (
	lateAfter = time.Second
	maxLate   = 256
)

// noPlaceEvery is how often it is looked who has waited for a place for too long.
const noPlaceEvery = time.Second

// bindLane writes recorded placements to the source until each has an outcome. Any number may run. An error ends the
// term.
func (t *term) bindLane(ctx context.Context) error {
	for {
		batch, of := t.nextBinds(ctx)
		if len(batch) == 0 {
			return nil
		}
		t.takeTurn(ctx, batch)
		t.turns.done(of)
	}
}

// takeTurn is a worker's work for a batch whose turn has come: until it has an answer, is late, or is found to have to wait for a place.
func (t *term) takeTurn(ctx context.Context, batch []*placement) {
	first := batch[0]
	if t.flights.most > 0 && first.place == nil && t.calls(first) && !t.flights.take(first, time.Now()) {
		return // it waits for a place
	}
	place := first.place
	calls, cut := context.WithCancel(ctx)
	if place != nil {
		place.calls = calls
	}
	answered := make(chan struct{})
	t.spawn(func() error {
		defer close(answered)
		defer cut()
		err := t.bind(ctx, batch)
		if place != nil {
			t.after(ctx, 0, t.flights.give(place, time.Now()))
		}
		return err
	})
	select {
	case <-answered:
		return
	case <-time.After(lateAfter):
	}
	if place != nil {
		t.hangs(place)
	}
	if !t.late.take(len(batch)) {
		if place != nil {
			cut() // it may happen yet, as when its time has run out
		}
		<-answered
		return
	}
	t.spawn(func() error {
		<-answered
		t.late.give(len(batch))
		return nil
	})
}

// errCutOff is why nothing is known of a bind that was cut off.
var errCutOff = fmt.Errorf("no answer within %v, and as many others without one as there may be", lateAfter)

// hangs notes that the call of a place is late. If at least half of those of its namespace are, its window is no larger than half of what is under
// way: then the next ones will hardly be better. Else the window is halved.
func (t *term) hangs(place *place) {
	taken, late := t.flights.late(place)
	if 2*late >= taken {
		t.windows.shut(place.namespace, taken/2, time.Now())
		return
	}
	t.fails(place.namespace)
}

// fails notes that a call of a namespace is late, or has failed.
func (t *term) fails(namespace string) {
	t.windows.halve(namespace, t.unbound.countOf(namespace), time.Now())
}

// calls reports whether a placement's turn is a call to the source. Else it is put aside, or settled by what the source has told.
func (t *term) calls(p *placement) bool {
	return (!p.shared || t.names.lasts(p.stint)) && t.ledger.told([]*placement{p})[0] == source.BindUnknown
}

// flights are the calls under way, by namespace. The namespaces share the places: none has more than are free, so a webhook that does
// not answer in one of them leaves others half of the places, or with two such a quarter, and so on. However many are slow, their binds have
// half of the places together, and their withdrawals, which are what ends binds that get no answer, a quarter; and those of which nothing is
// known have a quarter, for as long as their calls are not late. Who finds no place waits until one is given back.
// It is safe for concurrent use.
type flights struct {
	most  int                           // places; 0: any number
	trust func(string, time.Time) trust // how far a namespace is trusted

	mu      sync.Mutex
	taken   int
	slow    map[bool]int      // of these, for binds, and for withdrawals, of namespaces that were slow then, or that are late
	unknown int               // of these, of namespaces of which nothing was known
	of      map[whose]*flight // those with none under way of which none waits are not there
}

// whose says what turns and places are for.
type whose struct {
	namespace string
	withdraws bool
}

// whose says whose turns of a placement are, as it is.
func (p *placement) whose() whose { return whose{p.Namespace, p.state == stateWithdrawing} }

// flight is what is under way of a namespace. While others of it wait, it has as many places as it may have.
type flight struct {
	whose
	taken   int
	late    int          // of those that are taken
	waiting []*placement // the lane's, in the order in which they came
}

// place is what a placement has for one turn.
type place struct {
	*flight
	trust       trust           // as which it is counted
	calls       context.Context // of its turn's calls
	late, given bool
}

// places returns how many calls may be under way with so many workers. Of those that get no answer for 10 s, half of four for each worker
// take a fifth of the workers' time, as each has one for lateAfter. All of them may be late.
func places(workers int) int { return min(4*workers, maxLate) }

// take takes a place for a placement's turn. False: its namespace has its share, and the placement waits.
func (f *flights) take(p *placement, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := p.whose()
	n := f.of[of]
	if n == nil {
		if f.of == nil {
			f.of = make(map[whose]*flight)
		}
		n = &flight{whose: of}
		f.of[of] = n
	}
	trust := f.trust(p.Namespace, now)
	if !f.admits(n, trust) {
		p.waits = now
		n.waiting = append(n.waiting, p)
		return false
	}
	f.takeFor(n, p, trust)
	return true
}

// admits reports whether a namespace may have one place more. One that is trusted, and has none, always may. The caller holds the lock.
func (f *flights) admits(n *flight, trust trust) bool {
	quarter := max(1, f.most/4)
	switch {
	case trust == slow && n.withdraws:
		if f.slow[true] >= quarter {
			return false
		}
	case trust == slow:
		if f.slow[false] >= 2*quarter {
			return false
		}
	case trust == unknown:
		if f.unknown >= quarter || f.unknown+f.slow[false]+f.slow[true] >= f.most {
			return false
		}
	}
	return n.taken == 0 || n.taken < f.most-f.taken
}

func (f *flights) takeFor(n *flight, p *placement, trust trust) {
	n.taken++
	f.taken++
	p.place = &place{flight: n, trust: trust}
	f.count(p.place, 1)
}

// count counts a place among those that are trusted as far. The caller holds the lock.
func (f *flights) count(p *place, by int) {
	switch p.trust {
	case slow:
		if f.slow == nil {
			f.slow = make(map[bool]int)
		}
		f.slow[p.withdraws] += by
	case unknown:
		f.unknown += by
	}
}

// late notes that the call of a place is late, and returns how many of its namespace are under way, and how many of these are late.
func (f *flights) late(p *place) (taken, late int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !p.given && !p.late {
		p.late = true
		p.flight.late++
		f.count(p, -1)
		p.trust = slow
		f.count(p, 1)
	}
	return p.taken, p.flight.late
}

// give gives a place back. It returns who has places from then on that waited for one: of the namespaces that may have one
// it goes to the one with the fewest, and of these to the longest wait.
func (f *flights) give(place *place, now time.Time) (next []*placement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken--
	place.taken--
	if place.given = true; place.late {
		place.flight.late--
	}
	f.count(place, -1)
	for {
		var of *flight
		var trust trust
		for _, n := range f.of {
			if len(n.waiting) == 0 || of != nil && !n.before(of) {
				continue
			}
			if t := f.trust(n.namespace, now); f.admits(n, t) {
				of, trust = n, t
			}
		}
		if of == nil {
			f.drop(place.flight)
			return next
		}
		p := pop(&of.waiting)
		f.takeFor(of, p, trust)
		next = append(next, p)
	}
}

// drop forgets a namespace if nothing of it is under way or waits. The caller holds the lock.
func (f *flights) drop(n *flight) {
	if n.taken == 0 && len(n.waiting) == 0 {
		delete(f.of, n.whose)
	}
}

// before reports whether a namespace gets a place before another. In both somebody waits.
func (n *flight) before(other *flight) bool {
	if n.taken != other.taken {
		return n.taken < other.taken
	}
	return n.waiting[0].waits.Before(other.waiting[0].waits)
}

// waiting returns how many wait for a place.
func (f *flights) waiting() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, of := range f.of {
		n += len(of.waiting)
	}
	return n
}

// overdue takes the binds of namespaces that are not trusted that have waited for longer than theirs may, and returns them. Of others
// nobody waits for too long: there are only many of them.
func (f *flights) overdue(now time.Time, patience func(namespace string) time.Duration) (gone []*placement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.of {
		if n.withdraws || len(n.waiting) == 0 || f.trust(n.namespace, now) == trusted {
			continue
		}
		atMost := patience(n.namespace)
		for len(n.waiting) > 0 && now.Sub(n.waiting[0].waits) >= atMost {
			gone = append(gone, pop(&n.waiting))
		}
		f.drop(n)
	}
	return gone
}

// errSlow is why a placement is taken back, or withdrawn, whose turn has not come.
var errSlow = errors.New("binds take long or fail at the moment, in the namespace or in many others, and as many as may be are under way")

// noPlaceLane ends the waits for a place that last too long: they would hold room, and a part of Config.MaxUnbound, for binds that
// nobody knows the end of. That is after giveBackAfter, or at once if binds of the namespace have failed lately. What was never sent is taken
// back; what may have been is withdrawn.
func (t *term) noPlaceLane(ctx context.Context) error {
	tick := time.NewTicker(noPlaceEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		t.windows.sweep(now)
		overdue := t.flights.overdue(now, func(namespace string) time.Duration {
			if t.troubles.has(namespace, now) {
				return 0
			}
			return giveBackAfter
		})
		var sent []*placement
		for _, p := range overdue {
			if p.tries == 0 {
				if err := t.settle(p, source.Outcome{Result: source.BindRefused, Err: errSlow}); err != nil {
					return err
				}
			} else if t.move(p, stateWithdrawing) {
				t.noteStuck(p)
				p.misfit = errSlow
				sent = append(sent, p)
			}
		}
		t.after(ctx, 0, sent)
	}
}

// nextBinds waits for a bind, and returns it with those that wait behind it, as far as one call takes them. Where each needs a place, it is
// one alone, and whose turn that is; the caller says when the turn is done. It returns none when ctx ends.
func (t *term) nextBinds(ctx context.Context) (batch []*placement, of *turn) {
	if t.flights.most > 0 {
		return t.nextTurn(ctx)
	}
	select {
	case <-ctx.Done():
		return nil, nil
	case first := <-t.binds:
		batch = append(batch, first)
	}
	for len(batch) < t.source.MaxBatch() {
		select {
		case next := <-t.binds:
			batch = append(batch, next)
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// nextTurn is nextBinds where each needs a place.
func (t *term) nextTurn(ctx context.Context) ([]*placement, *turn) {
	for ctx.Err() == nil {
		for range len(t.binds) {
			select {
			case p := <-t.binds:
				t.turns.add(p)
			default: // another worker has it
			}
		}
		if p, of := t.turns.next(); p != nil {
			return []*placement{p}, of
		}
		select {
		case <-ctx.Done():
		case p := <-t.binds:
			t.turns.add(p)
		case <-t.turns.more:
		}
	}
	return nil, nil
}

// bind writes a batch once. What remains unknown comes back to the lane after a while, so that a pod whose bind never
// gets an answer does not hold up others.
func (t *term) bind(ctx context.Context, batch []*placement) error {
	calls := ctx
	if place := batch[0].place; place != nil { // it is for this turn
		calls, batch[0].place = place.calls, nil
	}
	// 1. The source may have told what became of some: the binder before bound them, or their last try was late.
	open := make([]*placement, 0, len(batch))
	for i, told := range t.ledger.told(batch) {
		p := batch[i]
		switch {
		case told != source.BindUnknown:
			if err := t.settle(p, source.Outcome{Result: told, Err: errTold}); err != nil {
				return err
			}
		case p.shared && !t.names.lasts(p.stint):
			if t.move(p, stateAside) {
				t.names.putAside(p)
			}
		default:
			open = append(open, p)
		}
	}
	if len(open) == 0 {
		return nil
	}
	// 2. Write the others, unless the lease may have expired: then they are the next binder's, by their intents.
	bindings := make([]source.Binding, 0, len(open))
	var misfits []*placement
	open = slices.DeleteFunc(open, func(p *placement) bool {
		if p.state == stateWithdrawing {
			misfits = append(misfits, p)
			return true
		}
		if !t.move(p, stateBinding) {
			return true
		}
		bindings = append(bindings, p.binding())
		return false
	})
	t.source.Prepare(bindings)
	if t.ended() {
		return nil
	}
	for _, p := range misfits {
		if err := t.withdraw(ctx, calls, p, p.misfit); err != nil {
			return err
		}
	}
	if len(open) == 0 {
		return nil
	}
	stint := int64(0)
	for _, p := range open {
		if !p.shared {
			continue
		}
		stint = max(stint, p.stint)
		if !p.sent {
			p.sent = true
			t.names.count(1)
		}
	}
	began := time.Now()
	call, done := t.callFor(calls, stint)
	outcomes := t.source.Bind(call, t.fence, bindings)
	done()
	ended := time.Now()
	t.metrics.bindSeconds.Observe(ended.Sub(began).Seconds())
	if ctx.Err() != nil { // whether it was written or not, the intent is recorded
		for i, o := range outcomes {
			p := open[i]
			if p.sent && o.Result != source.BindUnknown && !(o.Result == source.BindRefused && t.doubtful(p, o)) {
				t.names.count(-1)
			}
		}
		return nil
	}
	// 3. Take the outcomes in.
	unknown := open[:0]
	var failed retried
	for i, o := range outcomes {
		p := open[i]
		if o.Result == source.BindUnknown && calls.Err() != nil {
			o.Err = errCutOff
		}
		traceBind(p, o, began, ended)
		if p.shared && !t.names.lasts(p.stint) && (o.Result == source.BindUnknown || o.Result == source.BindRefused && t.doubtful(p, o)) {
			// The pod is another scheduler's by now: nothing is written to it before it is this one's again.
			o.Result = source.BindUnknown
			t.metrics.binds.WithLabelValues(resultName(o.Result)).Inc()
			unknown = append(unknown, p)
			continue
		}
		switch {
		case o.Result == source.BindUnknown && t.givesBack(p, began, o.Err), o.Result == source.BindRefused && t.doubtful(p, o):
			if o.Result == source.BindUnknown {
				t.fails(p.Namespace)
			}
			if !t.move(p, stateWithdrawing) {
				continue
			}
			if err := t.withdraw(ctx, calls, p, o.Err); err != nil {
				return err
			}
			continue
		case o.Result != source.BindUnknown:
			if o.Result == source.BindDone {
				t.troubles.over(p.Namespace)
				if ended.Sub(began) < lateAfter {
					t.windows.done(p.Namespace, ended)
				}
			}
			if err := t.settle(p, o); err != nil {
				return err
			}
			continue
		}
		failed.add(p, o.Err)
		if !errors.Is(o.Err, source.ErrChanged) {
			t.fails(p.Namespace)
		}
		t.metrics.binds.WithLabelValues(resultName(o.Result)).Inc()
		unknown = append(unknown, p)
	}
	failed.tell(t.log)
	t.again(ctx, unknown)
	return nil
}

// retried are the binds of a batch that failed and are to be logged. A line tells of all: what keeps the source from answering
// keeps it from answering every one.
type retried struct {
	pods  int
	first *placement
	err   error // of the first
}

func (r *retried) add(p *placement, err error) {
	if !p.says() {
		return
	}
	if r.pods++; r.pods == 1 {
		r.first, r.err = p, err
	}
}

func (r *retried) tell(log *slog.Logger) {
	if p := r.first; p != nil {
		log.Warn("bind outcome unknown, trying again", "pods", r.pods, "pod", p.Namespace+"/"+p.Name, "node", p.Node, "err", r.err, p.attempt.Log())
	}
}

// givesBack reports whether a bind that began at a time and failed is to be withdrawn.
func (t *term) givesBack(p *placement, began time.Time, err error) bool {
	if t.source.Fenced() {
		return false // only etcd can be in the way, and if it stays there the term ends
	}
	if errors.Is(err, source.ErrChanged) && p.changed < changedTries {
		p.changed++
		return false
	}
	if p.failing.IsZero() {
		p.failing = began
	}
	p.failed++
	long := time.Since(p.failing)
	return t.troubles.has(p.Namespace, began) || p.failed >= giveBackTries && long >= giveBackAfter || p.failed >= hangingTries && long >= 2*giveBackAfter
}

// doubtful reports whether an earlier try of a bind that was refused may still happen.
func (t *term) doubtful(p *placement, o source.Outcome) bool {
	return p.tries > 0 && !t.source.Fenced() && !errors.Is(o.Err, coord.ErrFenced)
}

// withdraw makes an end of a placement that is withdrawing, if it can, by calls that end with a context of theirs.
func (t *term) withdraw(ctx, calls context.Context, p *placement, why error) error {
	stint := int64(0)
	if p.shared {
		stint = p.stint
	}
	report := refusal(p, why)
	report.Nominate = t.ledger.ours(p.UID) // else the nomination is another scheduler's
	call, done := t.callFor(calls, stint)
	o := t.source.Withdraw(call, t.fence, p.binding(), report)
	done()
	switch {
	case ctx.Err() != nil:
		return nil
	case o.Result == source.BindUnknown:
		if p.says() {
			t.log.Warn("bind not withdrawn, trying again", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "err", errors.Join(why, o.Err), p.attempt.Log())
		}
		t.fails(p.Namespace)
		t.metrics.binds.WithLabelValues(resultName(o.Result)).Inc()
		t.again(ctx, []*placement{p})
		return nil
	case o.Result == source.BindRefused:
		if p.misfit == nil {
			t.troubles.note(p.Namespace, time.Now())
		}
		o.Err = why
	}
	return t.settle(p, o)
}

// maxReason bounds what is told of a refusal, in bytes: the text may be anybody's.
const maxReason = 1 << 10

// refusal returns what is told of a bind that was refused.
func refusal(p *placement, why error) source.Report {
	text := fmt.Sprintf("binding to %s was refused: %v", p.Node, why)
	if len(text) > maxReason {
		text = text[:maxReason] + "…"
	}
	return source.Report{
		UID: p.UID, Namespace: p.Namespace, Name: p.Name, Reason: reasonError, Message: strings.ToValidUTF8(text, "?"), Nominate: true,
	}
}

// troubles are the namespaces of which binds were withdrawn, each since that was last so. It is safe for concurrent use.
type troubles struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// note says that a namespace was in trouble at a time.
func (t *troubles) note(namespace string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.since) >= maxTroubles {
		maps.DeleteFunc(t.since, func(_ string, since time.Time) bool { return now.Sub(since) >= troubleLasts })
	}
	if t.since == nil || len(t.since) >= maxTroubles {
		t.since = make(map[string]time.Time)
	}
	t.since[namespace] = now
}

// over says that a namespace is not in trouble any more.
func (t *troubles) over(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.since, namespace)
}

// has reports whether a namespace has been in trouble lately.
func (t *troubles) has(namespace string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, noted := t.since[namespace]
	return noted && now.Sub(since) < troubleLasts
}

// errTold stands in for the answer of a bind that was not sent.
var errTold = errors.New("told by the watch")

// again brings placements whose outcome is not known back to the lane, after a delay that grows with their tries.
func (t *term) again(ctx context.Context, batch []*placement) {
	batch = slices.DeleteFunc(batch, func(p *placement) bool { return p.misfit == nil && !t.move(p, stateRecorded) })
	delay := bindBackoff.last
	for _, p := range batch {
		if p.tries++; p.tries > p.changed { // else it is about to be bound
			t.noteStuck(p)
		}
		delay = min(delay, bindBackoff.after(max(p.tries-p.changed, 1)))
	}
	t.after(ctx, delay, batch)
}

// after brings placements back to the lane after a delay.
func (t *term) after(ctx context.Context, delay time.Duration, batch []*placement) {
	if len(batch) == 0 {
		return
	}
	t.spawn(func() error {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		for _, p := range batch {
			select {
			case <-ctx.Done():
				return nil
			case t.binds <- p:
			}
		}
		return nil
	})
}

// settle tells the ledger, the recorder and the event lane the outcome of a placement. An error ends the term.
func (t *term) settle(p *placement, o source.Outcome) error {
	if errors.Is(o.Err, coord.ErrFenced) {
		t.metrics.fenced.Inc()
		return fmt.Errorf("bind %s/%s to %s: %w", p.Namespace, p.Name, p.Node, o.Err) // the intent is the next binder's
	}
	switch o.Result {
	case source.BindDone:
		err := t.ledger.bound(p.binding())
		binding, attempt := p.binding(), p.attempt
		if t.decided(p, stateBound, o.Result) {
			t.events.add(func(ctx context.Context) error { return t.source.Scheduled(attempt.Context(ctx), binding) })
		}
		return err
	case source.BindElsewhere:
		// Where it is, and that it is not here, comes from the source's watch: until then it counts here.
		t.log.Warn("pod bound elsewhere", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "err", o.Err, p.attempt.Log())
		t.decided(p, stateReleased, o.Result)
		return nil
	case source.BindGone:
		if errors.Is(o.Err, errTold) { // then its room has been given back, and no other binder finds the pod waiting
			t.decided(p, stateReleased, o.Result)
			return nil
		}
		return t.takeBack(p, o.Result, "the pod is gone", nil)
	default:
		refused := refusal(p, o.Err)
		return t.takeBack(p, o.Result, refused.Message, &refused)
	}
}

// decided ends a placement that has an outcome which the source shows. False: it was not there to be ended.
func (t *term) decided(p *placement, end placementState, result source.Result) bool {
	if !t.move(p, end) {
		return false
	}
	t.metrics.binds.WithLabelValues(resultName(result)).Inc()
	t.recorder.decided(p)
	return true
}

// takeBack gives the room of a placement back that does not come about, and then reports why. Before that its intent leaves the
// record: another binder that found it there would take it for one that may have happened, and take the room again, which
// another pod may have by then.
func (t *term) takeBack(p *placement, result source.Result, reason string, report *source.Report) error {
	if !t.move(p, stateReleasing) {
		return nil
	}
	return t.recorder.takeBack(p, func() error {
		var err error
		if !p.absent { // it was not assumed: if the pod is, that is by a later commit
			err = t.forget(p, reason)
		}
		if report != nil && !t.reports.add(*report) {
			t.metrics.laneDropped.WithLabelValues(laneReports).Inc()
		}
		t.metrics.binds.WithLabelValues(resultName(result)).Inc()
		t.move(p, stateReleased)
		return err
	})
}

func (t *term) forget(p *placement, reason string) error {
	was, err := t.ledger.forget(p.binding(), reason)
	if was {
		t.log.Warn("placement taken back", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "reason", reason, p.attempt.Log())
	}
	return err
}

func resultName(r source.Result) string {
	switch r {
	case source.BindDone:
		return "done"
	case source.BindElsewhere:
		return "elsewhere"
	case source.BindGone:
		return "gone"
	case source.BindRefused:
		return "refused"
	}
	return "unknown"
}
