package fanout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// errNoWorkers: nobody is there to ask.
var errNoWorkers = errors.New("no live worker")

// RefusedError says that a request is wrong, or hits a bug: to ask again does not help.
type RefusedError struct{ error }

// Unwrap returns what is wrong.
func (e RefusedError) Unwrap() error { return e.error }

// part is one range's share of a question, to some kind of worker.
type part[Req, Res any] struct {
	cut     cluster.Range
	about   []int // what it is about, by the indexes of the question
	request Req
	call    func(ctx context.Context, conn grpc.ClientConnInterface, request Req) (Res, error)
	span    *rangeSpan // nil: it is not traced
}

// askAll puts all questions at once, the i-th to the i-th of the first workers. A question that is not answered, or not in
// the time that answers usually take, goes to another worker as well; if none answers it, askAll fails. Answers are in the
// order of questions.
func askAll[Req, Res any](ctx context.Context, f *Fanout, first, last []string, parts []part[Req, Res]) ([]Res, error) {
	if len(parts) > 0 && len(first)+len(last) == 0 {
		return nil, errNoWorkers
	}
	answers := make([]Res, len(parts))
	errs := make([]error, len(parts))
	if len(parts) == 1 {
		answers[0], errs[0] = ask(ctx, f, inTurn(first, last, 0), parts[0])
		return answers, errs[0]
	}
	var calls sync.WaitGroup
	for i, q := range parts {
		calls.Go(func() { answers[i], errs[i] = ask(ctx, f, inTurn(first, last, i), q) })
	}
	calls.Wait()
	return answers, errors.Join(errs...)
}

// inTurn returns the workers in the order in which to ask them: the first, beginning with one of them, then the last.
func inTurn(first, last []string, start int) []string {
	start %= len(first)
	return slices.Concat(first[start:], first[:start], last)
}

// reply is what one worker has answered.
type reply[Res any] struct {
	from   int
	answer Res
	err    error
	took   time.Duration
}

// ask puts a question to the first of the workers. The next one is asked, too, when one fails or lets the question wait too
// long; the first answer counts, and the other calls are cancelled.
func ask[Req, Res any](ctx context.Context, f *Fanout, workers []string, q part[Req, Res]) (Res, error) {
	var none Res
	ctx = q.span.start(ctx)
	defer q.span.finish()
	calling, cancel := context.WithCancel(ctx)
	replies := make(chan reply[Res], len(workers))
	asked, open := 0, 0
	next := func() {
		from := asked
		asked++
		open++
		go func() {
			began := time.Now()
			answer, err := askOne(calling, f, workers[from], q)
			replies <- reply[Res]{from, answer, err, time.Since(began)}
		}()
	}
	defer func() {
		cancel()
		for ; open > 0; open-- {
			<-replies
		}
	}()

	var failures []error
	failed := 0 // of these, workers that met a bug
	hedge := time.NewTimer(f.patience.limit())
	defer hedge.Stop()
	for next(); ; {
		var r reply[Res]
		select {
		case <-hedge.C:
			if asked < len(workers) {
				f.cfg.Hedges.Inc()
				next()
				hedge.Reset(f.patience.limit())
			}
			continue
		case r = <-replies:
			open--
		}
		if r.err == nil {
			f.patience.answered(r.took)
			q.span.answered(workers[r.from])
			for slow := range r.from { // they have failed, or have been waited for in vain
				f.suspects.add(workers[slow])
			}
			return r.answer, nil
		}
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		failures = append(failures, fmt.Errorf("%s: %w", workers[r.from], r.err))
		switch status.Code(r.err) {
		case codes.InvalidArgument:
			return none, RefusedError{failures[len(failures)-1]}
		case codes.Internal:
			failed++
		case codes.Unavailable, codes.DeadlineExceeded:
			f.suspects.add(workers[r.from])
		}
		if open > 0 {
			continue
		}
		if asked == len(workers) {
			if failed == len(failures) {
				return none, RefusedError{errors.Join(failures...)}
			}
			return none, errors.Join(failures...)
		}
		next()
		hedge.Reset(f.patience.limit())
	}
}

func askOne[Req, Res any](ctx context.Context, f *Fanout, address string, q part[Req, Res]) (Res, error) {
	var none Res
	conn, err := f.cfg.Clients.Conn(address)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	return q.call(ctx, conn, q.request)
}

// patience is how long to wait for an answer before another worker is asked besides: several times as long as answers have
// lately taken, and not less than a minimum. It is safe for concurrent use.
type patience struct {
	least time.Duration
	most  time.Duration // one slow answer does not end all hedging
	usual atomic.Int64  // nanoseconds; falls slowly from what the slowest answer took
}

func (p *patience) limit() time.Duration {
	return min(max(p.least, 4*time.Duration(p.usual.Load())), max(p.least, p.most))
}

// answered takes in how long an answer took. Of answers at the same time one may be lost.
func (p *patience) answered(took time.Duration) {
	was := p.usual.Load()
	p.usual.CompareAndSwap(was, max(int64(took), was-was/16))
}
