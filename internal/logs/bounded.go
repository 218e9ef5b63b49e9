package logs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Of the lines that one place of the program logs by a bounded logger, placeLines come as they are, and after them one every placeEvery.
const (
	placeLines = 100
	placeEvery = 10 * time.Second
)

// Bounded returns a logger for lines that pods cause, of which there may be as many as there are pods. Where no more than verbosity 0 is logged of a file, each place of the program logs no more by it than a bounded
// rate; the next line of the place says how many were left out. With more verbosity nothing is left out. It may be used concurrently if log may. Nil of nil.
func Bounded(log *slog.Logger) *slog.Logger {
	if log == nil {
		return nil
	}
	return slog.New(bounded{log.Handler(), &places{of: make(map[uintptr]*place)}})
}

type bounded struct {
	slog.Handler
	places *places
}

// places are of a logger and of those that are made of it.
type places struct {
	mu sync.Mutex
	of map[uintptr]*place // by where it is: as many as the program has lines that log
}

type place struct {
	free    int       // lines that may be logged
	at      time.Time // when free was counted
	omitted int       // since the last line
}

// Handle implements slog.Handler.
func (b bounded) Handle(ctx context.Context, r slog.Record) error {
	if r.PC == 0 || r.Level < slog.LevelInfo || enabledAt(ctx, b.Handler, r.PC, slog.LevelInfo-Failures) {
		return b.Handler.Handle(ctx, r)
	}
	omitted, may := b.places.take(r.PC, r.Time)
	if !may {
		return nil
	}
	if omitted > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("omitted", omitted))
	}
	return b.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (b bounded) WithAttrs(attrs []slog.Attr) slog.Handler {
	return bounded{b.Handler.WithAttrs(attrs), b.places}
}

// WithGroup implements slog.Handler.
func (b bounded) WithGroup(name string) slog.Handler {
	return bounded{b.Handler.WithGroup(name), b.places}
}

// take counts a line, and reports whether it may be logged, and how many were left out before it.
func (p *places) take(pc uintptr, now time.Time) (omitted int, may bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	is := p.of[pc]
	if is == nil {
		is = &place{free: placeLines, at: now}
		p.of[pc] = is
	}
	if more := int(now.Sub(is.at) / placeEvery); more > 0 {
		is.free, is.at = min(placeLines, is.free+more), is.at.Add(time.Duration(more)*placeEvery)
	}
	if is.free == 0 {
		is.omitted++
		return 0, false
	}
	is.free--
	omitted, is.omitted = is.omitted, 0
	return omitted, true
}
