package coord

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	firstDelay = 50 * time.Millisecond
	maxDelay   = 2 * time.Second
	warnEvery  = 10 * time.Second
)

// retryPace paces the attempts at something that fails while etcd is away: a delay that doubles, and one warning per
// ten seconds.
type retryPace struct {
	log    *slog.Logger
	what   string // what is attempted, for the warning
	delay  time.Duration
	warned time.Time
	since  time.Time
}

// wait warns of err if it is time to, and waits before the next attempt. It reports false when ctx ends.
func (p *retryPace) wait(ctx context.Context, err error) bool {
	now := time.Now()
	if p.delay == 0 {
		p.delay, p.since = firstDelay, now
	}
	if now.Sub(p.warned) >= warnEvery && ctx.Err() == nil {
		p.warned = now
		p.log.Warn("etcd is not answering, still trying", "what", p.what, "for", now.Sub(p.since).Round(time.Second), "err", err)
	}
	timer := time.NewTimer(p.delay/2 + rand.N(p.delay/2))
	defer timer.Stop()
	p.delay = min(2*p.delay, maxDelay)
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// succeeded makes the next failure start from a short delay again.
func (p *retryPace) succeeded() { p.delay = 0 }
