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
	"github.com/berth-scheduler/berth/services/queue/pending"
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

// traceAttempts returns those of the attempts that are traced, by their index.
func (d *driver) traceAttempts(st *cluster.State, attempts []pending.Attempt) map[int]*tracedAttempt {
	var traced map[int]*tracedAttempt
	for i := range attempts {
		a := &attempts[i]
		sampled := d.s.cfg.Trace.Attempt(a.UID, a.Number)
		if sampled == nil {
			continue
		}
		t := &tracedAttempt{Attempt: sampled, since: a.Since, number: a.Number, logger: d.log}
		t.about = []attribute.KeyValue{
			trace.PodUID.String(a.UID), trace.Number.Int(int(a.Number)), trace.Class.Int(int(a.Subject.Class)),
			trace.Shard.Int(int(d.sh.number)), trace.Epoch.Int64(int64(st.Version().Epoch)),
		}
		if row := st.Pod(a.ID); row != nil {
			t.pod = row.Namespace + "/" + row.Name
			t.about = append(t.about, trace.PodNamespace.String(row.Namespace), trace.PodName.String(row.Name))
		}
		if traced == nil {
			traced = make(map[int]*tracedAttempt)
		}
		traced[i] = t
	}
	return traced
}

// traceCycle starts the trace of the cycle, with links to those of its attempts and back, if any of them is traced. The
// calls of the cycle are to have the returned context: they are traced if the cycle is.
func (d *driver) traceCycle(ctx context.Context, b *batch) context.Context {
	if d.s.cfg.Trace == nil {
		return ctx
	}
	if len(b.traced) == 0 {
		return trace.Untraced(ctx)
	}
	var first *tracedAttempt
	var links []otel.Link
	for i := range b.attempts {
		t := b.traced[i]
		if t == nil {
			continue
		}
		if first == nil {
			first = t
		}
		links = append(links, otel.Link{SpanContext: t.Root()})
	}
	ctx, b.cycle = d.s.cfg.Trace.Cycle(ctx, first.Attempt, b.popped, otel.WithLinks(links...), otel.WithAttributes(
		trace.Shard.Int(int(d.sh.number)), trace.Epoch.Int64(int64(b.version.Epoch)), trace.Pods.Int(len(b.attempts)), trace.Signatures.Int(len(b.asked)),
	))
	for _, t := range b.traced {
		t.cycle = otel.Link{SpanContext: b.cycle.SpanContext()}
		t.Span("queue", t.since, b.popped)
	}
	return ctx
}

// endTraces ends the trace of the cycle, and those of the attempts that have no outcome or none that anybody else tells.
func (b *batch) endTraces(open map[int]bool) {
	if len(b.traced) == 0 {
		return
	}
	b.cycle.End()
	for i, t := range b.traced {
		switch {
		case open[i]:
			t.end(tracedRetry, "")
		case !b.placed[i]:
			t.end(tracedGone, "")
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

// traceCalls makes, for each traced attempt, the spans of the calls that were about it, the i-th attempt. They link to those
// of the cycle, which have the calls below them.
func (b *batch) traceCalls(name string, calls []fanout.Call, about func(i int, c *fanout.Call) bool) {
	for i, t := range b.traced {
		for k := range calls {
			if c := &calls[k]; about(i, c) {
				t.Span(name, c.Began, c.Ended, otel.WithLinks(otel.Link{SpanContext: c.Span}), otel.WithAttributes(c.Attributes...))
			}
		}
	}
}
