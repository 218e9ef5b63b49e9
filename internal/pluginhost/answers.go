package pluginhost

import (
	"context"
	"time"
)

// answers are those to many calls of a service, in whatever order they come: as long as some come in its time, it goes on.
type answers struct {
	timer *time.Timer
	each  time.Duration
	news  chan struct{} // holds a value if one has come
}

// newAnswers returns what awaits answers: the first may take so long, and each further one so long behind the one before.
func newAnswers(first, each time.Duration) *answers {
	return &answers{timer: time.NewTimer(first), each: each, news: make(chan struct{}, 1)}
}

// wake is what a call has to wake.
func (a *answers) wake() { signal(a.news) }

// await waits until a call has been answered for the last time. An error says that none has been in time, or that ctx has ended; another one may be awaited then, with the same time.
func (a *answers) await(ctx context.Context, c *call) error {
	for {
		select {
		case <-c.last: // also one that wakes others
			a.timer.Reset(a.each)
			return nil
		case <-a.news:
			a.timer.Reset(a.each)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.timer.C:
			a.timer.Reset(a.each) // for the next one
			return errLate
		}
	}
}

func (a *answers) end() { a.timer.Stop() }
