package logs

import (
	"context"
	"log/slog"
	"runtime"
	"time"
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

// Verbose logs lines of one verbosity.
type Verbose struct {
	log   *slog.Logger
	level slog.Level
}

// V returns what logs lines of a verbosity, nil if they are not logged: then they are not to be made, so that they cost nothing.
func V(log *slog.Logger, verbosity int) *Verbose {
	level := slog.LevelInfo - slog.Level(verbosity)
	if !log.Enabled(context.Background(), level) {
		return nil
	}
	return &Verbose{log, level}
}

// Info logs a line, as of its caller.
func (v *Verbose) Info(message string, args ...any) {
	var pcs [1]uintptr
	runtime.Callers(2, pcs[:]) // besides itself and runtime.Callers
	r := slog.NewRecord(time.Now(), v.level, message, pcs[0])
	r.Add(args...)
	_ = v.log.Handler().Handle(context.Background(), r) // who cannot log has nobody to tell
}
