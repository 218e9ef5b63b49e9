package binder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/source"
)

// bindBackoff is between tries of a bind whose outcome is unknown.
var bindBackoff = backoff{100 * time.Millisecond, 5 * time.Second}

// A bind that has had no answer for lateAfter, which is many times what a server takes that is well, is late: another worker
// goes on with the next, and its own ends with it. So calls that get no answer, of which each takes until its timeout, do not hold up others. Of
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
		if relieved, err := t.takeTurn(ctx, batch, of); relieved || err != nil {
			return err
		}
	}
}

// takeTurn is what a worker does for a batch whose turn has come. It returns when the batch has an answer, or at once if the batch has to
// wait for a place. True: the call was late and left to itself, and another worker has been there since for the next.
func (t *term) takeTurn(ctx context.Context, batch []*placement, of *turn[whose, *placement]) (relieved bool, err error) {
	first, n := batch[0], len(batch)
	if t.flights.most > 0 && first.place == nil && t.calls(first) && !t.flights.take(first, time.Now()) {
		t.turns.done(of)
		return false, nil // it waits for a place
	}
	place := first.place
	calls, cut := context.WithCancel(ctx)
	defer cut()
	if place != nil {
		place.calls = calls
	}
	err = inTime(func() error {
		err := t.bind(ctx, batch)
		if place != nil {
			t.after(ctx, 0, t.flights.give(place, time.Now()))
		}
		return err
	}, func() {
		if place != nil {
			t.hangs(place)
		}
		if relieved = t.late.take(n); relieved {
			t.turns.done(of)
			t.spawn(func() error { return t.bindLane(ctx) })
		} else if place != nil {
			cut() // it may happen yet, as when its time has run out
		}
	})
	if relieved {
		t.late.give(n)
	} else {
		t.turns.done(of)
	}
	return relieved, err
}

// errCutOff is why nothing is known of a bind that was cut off.
var errCutOff = fmt.Errorf("no answer within %v, and as many others without one as there may be", lateAfter)

// hangs notes that the call of a place is late. If at least half of its namespace's calls are late, the next ones will hardly be better: the
// window becomes no larger than half of what is under way. Else it is halved.
func (b *backlog) hangs(place *place) {
	taken, late := b.flights.late(place)
	switch {
	case taken == 0: // the call has come back meanwhile
	case 2*late >= taken:
		b.windows.shut(place.namespace, taken/2, time.Now())
	default:
		b.fails(place.namespace)
	}
}

// fails notes that a call of a namespace is late, or has failed.
func (b *backlog) fails(namespace string) {
	b.windows.halve(namespace, b.unbound.countOf(namespace), time.Now())
}

// calls reports whether a placement's turn is a call to the source. Else it is put aside, or settled by what the source has told.
func (t *term) calls(p *placement) bool {
	return (!p.shared || t.names.lasts(p.stint)) && t.ledger.told([]*placement{p})[0] == source.BindUnknown
}

// errSlow is why a placement is taken back, or withdrawn, whose turn has not come.
var errSlow = errors.New("binds take long or fail at the moment, in the namespace or in many others, and as many as may be are under way")

// every does something again and again until ctx ends, and returns its error.
func every(ctx context.Context, interval time.Duration, do func(now time.Time) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := do(time.Now()); err != nil {
				return err
			}
		}
	}
}

// noPlaceLane ends the waits for a place that last too long: they would hold room, and a part of Config.MaxUnbound, for binds that
// nobody knows the end of. That is after giveBackAfter, or at once if binds of the namespace have failed lately. What was never sent is taken
// back; what may have been is withdrawn.
func (t *term) noPlaceLane(ctx context.Context) error {
	return every(ctx, noPlaceEvery, func(now time.Time) error {
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
		return nil
	})
}

// nextBinds waits for a bind, and returns it with those that wait behind it, as far as one call takes them. Where each needs a place, it is
// one alone, and whose turn that is; the caller says when the turn is done. It returns none when ctx ends.
func (t *term) nextBinds(ctx context.Context) (batch []*placement, of *turn[whose, *placement]) {
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
func (t *term) nextTurn(ctx context.Context) ([]*placement, *turn[whose, *placement]) {
	for ctx.Err() == nil {
		for range len(t.binds) {
			select {
			case p := <-t.binds:
				t.turns.add(p.whose(), p)
			default: // another worker has it
			}
		}
		if p, of := t.turns.next(); p != nil {
			return []*placement{p}, of
		}
		select {
		case <-ctx.Done():
		case p := <-t.binds:
			t.turns.add(p.whose(), p)
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
	open, err := t.untold(batch)
	if err != nil || len(open) == 0 {
		return err
	}
	open, misfits := t.divide(open)
	bindings := make([]source.Binding, 0, len(open))
	for _, p := range open {
		bindings = append(bindings, p.binding())
	}
	t.source.Prepare(bindings)
	if t.ended() { // the lease may have expired: they are the next binder's, by their intents
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
	tried := t.send(calls, open, bindings)
	if ctx.Err() != nil { // whether it was written or not, the intent is recorded
		for i, o := range tried.outcomes {
			if open[i].sent && o.Result != source.BindUnknown && !(o.Result == source.BindRefused && t.doubtful(open[i], o)) {
				t.names.count(-1)
			}
		}
		return nil
	}
	unknown := open[:0]
	var failed retried
	for i, o := range tried.outcomes {
		again, err := t.takeIn(ctx, calls, open[i], o, tried, &failed)
		if err != nil {
			return err
		}
		if again {
			unknown = append(unknown, open[i])
		}
	}
	failed.tell(t.log)
	t.again(ctx, unknown)
	return nil
}

// untold settles what the source has told of already (the binder before bound it, or its last try was late), puts aside what is for
// another scheduler by now, and returns the rest.
func (t *term) untold(batch []*placement) ([]*placement, error) {
	open := make([]*placement, 0, len(batch))
	for i, told := range t.ledger.told(batch) {
		p := batch[i]
		switch {
		case told != source.BindUnknown:
			if err := t.settle(p, source.Outcome{Result: told, Err: errTold}); err != nil {
				return nil, err
			}
		case p.shared && !t.names.lasts(p.stint):
			if t.move(p, stateAside) {
				t.names.putAside(p)
			}
		default:
			open = append(open, p)
		}
	}
	return open, nil
}

// divide returns which placements are to be written now, and which to be withdrawn.
func (t *term) divide(open []*placement) (bind, misfits []*placement) {
	bind = open[:0]
	for _, p := range open {
		switch {
		case p.state == stateWithdrawing:
			misfits = append(misfits, p)
		case t.move(p, stateBinding):
			bind = append(bind, p)
		}
	}
	return bind, misfits
}

// tried is one call that binds.
type tried struct {
	began, ended time.Time
	outcomes     []source.Outcome
}

// send writes placements, with what has been prepared.
func (t *term) send(calls context.Context, open []*placement, bindings []source.Binding) tried {
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
	out := tried{began: time.Now()}
	call, done := t.callFor(source.WithEnd(calls, t.ended), stint)
	out.outcomes = t.write(call, open, bindings)
	done()
	out.ended = time.Now()
	t.metrics.bindSeconds.Observe(out.ended.Sub(out.began).Seconds())
	return out
}

// takeIn takes in what became of a placement that was written: it is settled or withdrawn, or not known yet, and is to be tried again.
func (t *term) takeIn(ctx, calls context.Context, p *placement, o source.Outcome, call tried, failed *retried) (again bool, err error) {
	if o.Result == source.BindUnknown && calls.Err() != nil {
		o.Err = errCutOff
	}
	traceBind(p, o, call.began, call.ended)
	if p.shared && !t.names.lasts(p.stint) && (o.Result == source.BindUnknown || o.Result == source.BindRefused && t.doubtful(p, o)) {
		// The pod is another scheduler's by now: nothing is written to it before it is this one's again.
		t.metrics.binds.WithLabelValues(resultName(source.BindUnknown)).Inc()
		return true, nil
	}
	switch {
	case o.Result == source.BindUnknown && t.givesBack(p, call.began, o.Err), o.Result == source.BindRefused && t.doubtful(p, o):
		if o.Result == source.BindUnknown {
			t.fails(p.with())
		}
		if !t.move(p, stateWithdrawing) {
			return false, nil
		}
		return false, t.withdraw(ctx, calls, p, o.Err)
	case o.Result != source.BindUnknown:
		if o.Result == source.BindDone {
			t.troubles.over(p.with())
			if took := call.ended.Sub(call.began); took < lateAfter {
				t.windows.done(p.with(), took, call.ended)
			}
		}
		return false, t.settle(p, o)
	}
	changed := errors.Is(o.Err, source.ErrChanged)
	if !changed || p.failed > 0 { // that somebody has written to the pod is no trouble, unless it happens again and again
		failed.add(p, o.Err)
	}
	if !changed {
		t.fails(p.with())
	}
	t.metrics.binds.WithLabelValues(resultName(o.Result)).Inc()
	return true, nil
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
