package queue

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otel "go.opentelemetry.io/otel/trace"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/trace"
	"github.com/berth-scheduler/berth/services/queue/fanout"
)

// What traces say of attempts that have no result of kube-scheduler's.
const (
	tracedRetry   = "retry"   // nothing is known against the pod: it is active again
	tracedGone    = "gone"    // the pod is not what the attempt was made for any more
	tracedUnknown = "unknown" // another log tells what became of it
)

// tracedAttempt is an attempt whose trace is sampled. The methods of a nil one do nothing. It is safe for concurrent use
// once its cycle has begun.
type tracedAttempt struct {
	*trace.Attempt
	since    time.Time // since when the pod had waited for it
	pod      string    // namespace and name
	number   int32
	about    []attribute.KeyValue
	cycle    otel.Link
	hasEnded atomic.Bool // the driver and the log may both tell of the end
	logger   *slog.Logger
}

// traceAttempts finds the attempts that are traced.
func (c *cycle) traceAttempts(st *cluster.State) {
	for _, a := range c.attempts {
		sampled := c.s.cfg.Trace.Attempt(a.UID, a.Number)
		if sampled == nil {
			continue
		}
		t := &tracedAttempt{Attempt: sampled, since: a.Since, number: a.Number, logger: c.log}
		t.about = []attribute.KeyValue{
			trace.PodUID.String(a.UID), trace.Number.Int(int(a.Number)), trace.Class.Int(int(a.Subject.Class)),
			trace.Shard.Int(int(c.sh.number)), trace.Epoch.Int64(int64(st.Version().Epoch)),
		}
		if row := st.Pod(a.ID); row != nil {
			t.pod = row.Namespace + "/" + row.Name
			t.about = append(t.about, trace.PodNamespace.String(row.Namespace), trace.PodName.String(row.Name))
		}
		a.traced, c.traced = t, true
	}
}

// trace starts the trace of the cycle, with links to those of its attempts and back, if any of them is traced. The
// calls of the cycle are to have the returned context: they are traced if the cycle is.
func (c *cycle) trace(ctx context.Context) context.Context {
	if c.s.cfg.Trace == nil {
		return ctx
	}
	if !c.traced {
		return trace.Untraced(ctx)
	}
	var first *tracedAttempt
	var links []otel.Link
	for _, a := range c.attempts {
		if a.traced == nil {
			continue
		}
		if first == nil {
			first = a.traced
		}
		links = append(links, otel.Link{SpanContext: a.traced.Root()})
	}
	about := []attribute.KeyValue{
		trace.Shard.Int(int(c.sh.number)), trace.Epoch.Int64(int64(c.version.Epoch)), trace.Pods.Int(len(c.attempts)), trace.Signatures.Int(len(c.asked)),
	}
	if c.group != nil {
		about = append(about, trace.Group.String(c.group.String()))
	}
	ctx, c.span = c.s.cfg.Trace.Cycle(ctx, first.Attempt, c.popped, otel.WithLinks(links...), otel.WithAttributes(about...))
	for _, a := range c.attempts {
		if t := a.traced; t != nil {
			t.cycle = otel.Link{SpanContext: c.span.SpanContext()}
			t.Span("queue", t.since, c.popped)
		}
	}
	return ctx
}

// endTraces ends the trace of the cycle, and those of the attempts that have no outcome or none that anybody else tells.
func (c *cycle) endTraces() {
	if !c.traced {
		return
	}
	c.span.End()
	for _, a := range c.attempts {
		switch {
		case a.asked: // whoever is asked tells
		case a.open:
			a.traced.end(tracedRetry, "")
		case !a.placed:
			a.traced.end(tracedGone, "")
		}
	}
}

// end makes the root span of the attempt, and says so in the log, unless that has been done.
func (t *tracedAttempt) end(result, message string, more ...attribute.KeyValue) {
	if t == nil || !t.hasEnded.CompareAndSwap(false, true) {
		return
	}
	failure := ""
	about := append(append(t.about, trace.Result.String(result)), more...)
	if message != "" {
		about = append(about, trace.Message.String(message))
	}
	if result == resultError {
		failure = message
	}
	t.End(t.since, time.Now(), failure, otel.WithLinks(t.cycle), otel.WithAttributes(about...))
	t.logger.Debug("attempt ended", "pod", t.pod, "attempt", t.number, "result", result, t.log())
}

// endPlaced is end for what the log, of which st is the state, tells of a pod that a commit has placed.
func (t *tracedAttempt) endPlaced(st *cluster.State, pod cluster.PodID, result, message string) {
	if t == nil {
		return
	}
	var node []attribute.KeyValue
	if row := st.Pod(pod); row != nil && row.Node != cluster.NoNode {
		node = append(node, trace.Node.String(st.Nodes.Spec[row.Node].Name))
	}
	t.end(result, message, node...)
}

// preempted makes the span of a try to make room that has just ended, if it took any time.
func (t *tracedAttempt) preempted(result string, took time.Duration) {
	if t == nil || took == 0 {
		return
	}
	now := time.Now()
	t.Span("preempt", now.Add(-took), now, otel.WithLinks(t.cycle), otel.WithAttributes(trace.Result.String(result)))
}

func (t *tracedAttempt) log() slog.Attr {
	if t == nil {
		return slog.Attr{}
	}
	return t.Log()
}

// traceCalls makes, for each traced attempt, the spans of the calls that were about it. They link to those of the cycle,
// which have the calls below them.
func (c *cycle) traceCalls(name string, calls []fanout.Call, about func(a *attempt, call *fanout.Call) bool) {
	if len(calls) == 0 {
		return
	}
	for _, a := range c.attempts {
		for k := range calls {
			if call := &calls[k]; a.traced != nil && about(a, call) {
				a.traced.Span(name, call.Began, call.Ended, otel.WithLinks(otel.Link{SpanContext: call.Span}), otel.WithAttributes(call.Attributes...))
			}
		}
	}
}
