package binder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// The delays between tries of a bind whose outcome is unknown.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// A bind that has had no answer for lateAfter, which is many times what a server takes that is well, is late: its worker
// goes on with the next. So calls that get no answer, of which each takes until its timeout, do not hold up others. Of
// late binds there are at most maxLate; beyond that, workers wait.
const (
	lateAfter = time.Second
	maxLate   = 256
)

// bindLane writes recorded placements to the source until each has an outcome. Any number may run. An error ends the
// term.
func (t *term) bindLane(ctx context.Context) error {
	for {
		batch := t.nextBinds(ctx)
		if len(batch) == 0 {
			return nil
		}
		answered := make(chan struct{})
		t.spawn(func() error {
			defer close(answered)
			return t.bind(ctx, batch)
		})
		select {
		case <-answered:
			continue
		case <-time.After(lateAfter):
		}
		if !t.late.take(len(batch)) {
			<-answered
			continue
		}
		t.spawn(func() error {
			<-answered
			t.late.give(len(batch))
			return nil
		})
	}
}

// nextBinds waits for a bind, and returns it with those that wait behind it, as far as one call takes them. It returns
// none when ctx ends.
func (t *term) nextBinds(ctx context.Context) (batch []intent) {
	select {
	case <-ctx.Done():
		return nil
	case first := <-t.binds:
		batch = append(batch, first)
	}
	for len(batch) < t.source.MaxBatch() {
		select {
		case next := <-t.binds:
			batch = append(batch, next)
		default:
			return batch
		}
	}
	return batch
}

// bind writes a batch once. What remains unknown comes back to the lane after a while, so that a pod whose bind never
// gets an answer does not hold up others.
func (t *term) bind(ctx context.Context, batch []intent) error {
	// 1. The source may have told what became of some: the binder before bound them, or their last try was late.
	open := make([]intent, 0, len(batch))
	for i, told := range t.ledger.told(batch) {
		if told == source.BindUnknown {
			open = append(open, batch[i])
		} else if err := t.settle(batch[i], source.Outcome{Result: told, Err: errTold}); err != nil {
			return err
		}
	}
	if len(open) == 0 {
		return nil
	}
	// 2. Write the others, unless the lease may have expired: then they are the next binder's, by their intents.
	if t.ended() {
		return nil
	}
	bindings := make([]source.Binding, len(open))
	for i := range open {
		bindings[i] = open[i].Binding
	}
	began := time.Now()
	outcomes := t.source.Bind(ctx, t.fence, bindings)
	ended := time.Now()
	t.metrics.bindSeconds.Observe(ended.Sub(began).Seconds())
	if ctx.Err() != nil {
		return nil // whether it was written or not, the intent is recorded
	}
	// 3. Take the outcomes in.
	unknown := open[:0]
	for i, o := range outcomes {
		traceBind(&open[i], o, began, ended)
		if o.Result != source.BindUnknown {
			if err := t.settle(open[i], o); err != nil {
				return err
			}
			continue
		}
		if open[i].tries == 0 {
			t.log.Warn("bind outcome unknown, trying again", "pod", open[i].Namespace+"/"+open[i].Name, "node", open[i].Node, "err", o.Err, open[i].attempt.Log())
		}
		t.metrics.binds.WithLabelValues(resultName(o.Result)).Inc()
		unknown = append(unknown, open[i])
	}
	t.again(ctx, unknown)
	return nil
}

// errTold stands in for the answer of a bind that was not sent.
var errTold = errors.New("told by the watch")

// again brings intents back to the lane, after a delay that grows with their tries.
func (t *term) again(ctx context.Context, batch []intent) {
	if len(batch) == 0 {
		return
	}
	delay := lastRetry
	for i := range batch {
		delay = min(delay, firstRetry<<min(batch[i].tries, 10))
		batch[i].tries++
	}
	t.spawn(func() error {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		for _, b := range batch {
			select {
			case <-ctx.Done():
				return nil
			case t.binds <- b:
			}
		}
		return nil
	})
}

// settle tells the ledger, the recorder and the event lane the outcome of one bind. An error ends the term.
func (t *term) settle(b intent, o source.Outcome) error {
	if errors.Is(o.Err, coord.ErrFenced) {
		t.metrics.fenced.Inc()
		return fmt.Errorf("bind %s/%s to %s: %w", b.Namespace, b.Name, b.Node, o.Err) // the intent is the next binder's
	}
	var err error
	switch o.Result {
	case source.BindDone:
		err = t.ledger.bound(b.Binding)
		t.events.add(func(ctx context.Context) error { return t.source.Scheduled(b.attempt.Context(ctx), b.Binding) })
	case source.BindElsewhere:
		// Where it is, and that it is not here, comes from the source's watch: until then it counts here.
		t.log.Warn("pod bound elsewhere", "pod", b.Namespace+"/"+b.Name, "node", b.Node, "err", o.Err, b.attempt.Log())
	case source.BindGone:
		err = t.forget(b, "the pod is gone")
	default:
		reason := fmt.Sprintf("binding to %s was refused: %v", b.Node, o.Err)
		err = t.forget(b, reason)
		refused := source.Report{
			UID: b.UID, Namespace: b.Namespace, Name: b.Name, Reason: reasonError, Message: reason, Nominate: true,
		}
		if !t.reports.add(refused) {
			t.metrics.laneDropped.WithLabelValues(laneReports).Inc()
		}
	}
	t.metrics.binds.WithLabelValues(resultName(o.Result)).Inc()
	t.unbound.give(1)
	t.recorder.decided(b.batch)
	return err
}

func (t *term) forget(b intent, reason string) error {
	was, err := t.ledger.forget(b.Binding, reason)
	if was {
		t.log.Warn("placement taken back", "pod", b.Namespace+"/"+b.Name, "node", b.Node, "reason", reason, b.attempt.Log())
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
