package logs

import (
	"context"
	"log/slog"
	"runtime"
)

// How much is logged, as klog's verbosity: what kube-scheduler logs at one of these, Berth does too. At 0 is what operators have to know, of which strangers and pods cause no
// more than a bounded rate.
const (
	Failures = 1 // what failed for one pod and is tried again
	Outcomes = 2 // what becomes of each pod: bound, unschedulable, preempted
	Attempts = 3 // each attempt, and what is there and is gone in the cluster
	Debug    = 4 // what changes in the cluster, and all that is at slog.LevelDebug
	Moves    = 5 // each step of a pod in the queue
)

// V returns what logs lines of a verbosity, whose Info logs at that and no other method is for; nil if they are not logged: then they are not to be made, so that they cost nothing.
// Of [Modules], those count that the file of the caller is of.
func V(log *slog.Logger, verbosity int) *slog.Logger {
	level := slog.LevelInfo - slog.Level(verbosity)
	h := log.Handler()
	if !h.Enabled(context.Background(), level) {
		return nil
	}
	if by := modular(h); by != nil && level < by.level.Level() {
		var pcs [1]uintptr
		runtime.Callers(2, pcs[:])
		if !by.modules.enabled(pcs[0], verbosity) {
			return nil
		}
	}
	return slog.New(at{h, level})
}

// modular returns the handler of this package that another one logs to; nil: it is not known.
func modular(h slog.Handler) *handler {
	for {
		switch is := h.(type) {
		case *handler:
			return is
		case bounded:
			h = is.Handler
		case at:
			h = is.Handler
		default:
			return nil
		}
	}
}

// enabledAt reports whether a handler logs lines of a level that are made at pc.
func enabledAt(ctx context.Context, h slog.Handler, pc uintptr, level slog.Level) bool {
	if by := modular(h); by != nil {
		return by.enabledAt(pc, level)
	}
	return h.Enabled(ctx, level)
}

// at has all that is logged be of one level.
type at struct {
	slog.Handler
	level slog.Level
}

// Enabled implements slog.Handler: that has been asked.
func (at) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (a at) Handle(ctx context.Context, r slog.Record) error {
	r.Level = a.level
	return a.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (a at) WithAttrs(attrs []slog.Attr) slog.Handler { return at{a.Handler.WithAttrs(attrs), a.level} }

// WithGroup implements slog.Handler.
func (a at) WithGroup(name string) slog.Handler { return at{a.Handler.WithGroup(name), a.level} }
