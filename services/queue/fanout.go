package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// leastRange is the smallest range worth a call of its own, in nodes.
const leastRange = 512

// errNoWorkers: nobody is there to ask.
var errNoWorkers = errors.New("no live worker")

// refusedError says that a request is wrong, or hits a bug: to ask again does not help.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// question is one range's request to some kind of worker.
type question[Req, Res any] struct {
	request Req
	call    func(ctx context.Context, conn grpc.ClientConnInterface, request Req) (Res, error)
}

// ranges cuts the indexes below n for the workers. The last range has no upper bound, so that nodes that a worker
// knows already are not missed.
func ranges(n, workers int) []cluster.Range {
	parts := cluster.Ranges(max(n, 1), workers, leastRange)
	parts[len(parts)-1].End = cluster.MaxIndex
	return parts
}

// askAll puts all questions at once, the i-th to the i-th of the first workers. A question that is not answered goes
// to the other workers, one after the other; if none answers it, askAll fails. Answers are in the order of questions.
func askAll[Req, Res any](ctx context.Context, s *Service, first, last []string, questions []question[Req, Res]) ([]Res, error) {
	if len(questions) > 0 && len(first)+len(last) == 0 {
		return nil, errNoWorkers
	}
	answers := make([]Res, len(questions))
	errs := make([]error, len(questions))
	if len(questions) == 1 {
		answers[0], errs[0] = ask(ctx, s, first, last, 0, questions[0])
		return answers, errs[0]
	}
	var calls sync.WaitGroup
	for i, q := range questions {
		calls.Go(func() { answers[i], errs[i] = ask(ctx, s, first, last, i, q) })
	}
	calls.Wait()
	return answers, errors.Join(errs...)
}

// ask puts one question to one worker after the other.
func ask[Req, Res any](ctx context.Context, s *Service, first, last []string, start int, q question[Req, Res]) (Res, error) {
	var none Res
	var failures []error
	for i := range len(first) + len(last) {
		var address string
		if i < len(first) {
			address = first[(start+i)%len(first)]
		} else {
			address = last[i-len(first)]
		}
		answer, err := askOne(ctx, s, address, q)
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		failures = append(failures, fmt.Errorf("%s: %w", address, err))
		switch status.Code(err) {
		case codes.InvalidArgument:
			return none, refusedError{failures[i]}
		case codes.Unavailable, codes.DeadlineExceeded:
			s.directory.suspect(address)
		}
	}
	return none, errors.Join(failures...)
}

func askOne[Req, Res any](ctx context.Context, s *Service, address string, q question[Req, Res]) (Res, error) {
	var none Res
	conn, err := s.cfg.Clients.Conn(address)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.WorkerTimeout)
	defer cancel()
	return q.call(ctx, conn, q.request)
}
