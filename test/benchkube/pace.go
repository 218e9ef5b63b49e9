package main

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// pace is a load of one kind of operation at a rate that does not depend on how long an operation takes, as long as there are
// workers for it: with none free, operations begin late, and those that do not begin before the end are left out.
type pace struct {
	perSecond int
	workers   int // operations at once, at most
	// do makes operation i, and says whether there was anything to do.
	do func(ctx context.Context, i int) (done bool, err error)

	next, made atomic.Int64
}

// run begins operation i at begin + i/perSecond, until end. It returns when all have ended, or one with an error.
func (p *pace) run(ctx context.Context, begin, end time.Time) error {
	g, ctx := errgroup.WithContext(ctx)
	for range p.workers {
		g.Go(func() error {
			for {
				i := int(p.next.Add(1) - 1)
				due := begin.Add(time.Duration(i) * time.Second / time.Duration(p.perSecond))
				if !due.Before(end) {
					return nil
				}
				if err := sleepUntil(ctx, due); err != nil {
					return err
				}
				if !time.Now().Before(end) {
					return nil
				}
				done, err := p.do(ctx, i)
				if err != nil {
					return err
				}
				if done {
					p.made.Add(1)
				}
			}
		})
	}
	return g.Wait()
}

func sleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
