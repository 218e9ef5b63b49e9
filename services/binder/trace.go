package binder

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	otel "go.opentelemetry.io/otel/trace"

	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/trace"
)

// traceCommit makes the span of a commit for those of its attempts that are traced. Placed are the pods of the request that were
// assumed, in order.
func (t *term) traceCommit(req *binderv1.CommitRequest, resp *binderv1.CommitResponse, placed []*placement, began, ended time.Time) {
	if t.trace == nil {
		return
	}
	next := 0
	for i, p := range req.GetPods() {
		result := resp.GetOutcomes()[i].GetResult()
		attempt := t.trace.Attempt(p.GetUid(), p.GetAttempt())
		if attempt != nil {
			attributes := []attribute.KeyValue{
				trace.Result.String(commitResult(result)), trace.Epoch.Int64(t.epoch), trace.Pods.Int(len(req.GetPods())),
			}
			if result == binderv1.Outcome_RESULT_ASSUMED {
				attributes = append(attributes, trace.Node.String(placed[next].Node))
			}
			attempt.Span("commit", began, ended, otel.WithAttributes(attributes...))
		}
		if result == binderv1.Outcome_RESULT_ASSUMED {
			next++
		}
	}
}

// mostLinks is how many spans the span of a group links to: as many as OpenTelemetry keeps of a span by default.
const mostLinks = 128

// traceGroup makes the span of an attempt to place a PodGroup, below that of the call, if the attempt of any of its pods is traced; and in the trace of each of these the span of what came of the pod there.
// They link to each other, the former to mostLinks of the latter at most.
func (t *term) traceGroup(ctx context.Context, g *grouped, err error, began, ended time.Time) {
	if t.trace == nil {
		return
	}
	var attempts []*trace.Attempt // of each pod; nil: no pod's is traced
	var links []otel.Link
	for i, p := range g.req.GetPods() {
		if attempt := t.trace.Attempt(p.GetUid(), p.GetAttempt()); attempt != nil {
			if attempts == nil {
				attempts = make([]*trace.Attempt, len(g.req.GetPods()))
			}
			if attempts[i] = attempt; len(links) < mostLinks {
				links = append(links, otel.Link{SpanContext: attempt.Root()})
			}
		}
	}
	if attempts == nil {
		return
	}
	result, message := g.traced(err)
	about := []attribute.KeyValue{
		trace.Group.String(g.key.String()), trace.Result.String(result), trace.Epoch.Int64(t.epoch), trace.Pods.Int(len(attempts)),
		trace.Fit.Int(g.found.Fit), trace.Wants.Int(g.found.Wants), trace.Tries.Int(g.tries), trace.Victims.Int(g.victims),
	}
	if g.found.Domain != "" {
		about = append(about, trace.Domain.String(g.found.Domain))
	}
	if message != "" {
		about = append(about, trace.Message.String(message))
	}
	_, span := t.trace.Start(ctx, "group", otel.WithTimestamp(began), otel.WithLinks(links...), otel.WithAttributes(about...))
	if result == "failed" {
		span.SetStatus(codes.Error, message)
	}
	span.End(otel.WithTimestamp(ended))
	link := otel.WithLinks(otel.Link{SpanContext: span.SpanContext()})
	next := 0 // of g.open, which is in order
	for i, attempt := range attempts {
		n := -1
		if next < len(g.open) && g.open[next] == i {
			n, next = next, next+1
		}
		if attempt == nil {
			continue
		}
		of := []attribute.KeyValue{trace.Group.String(g.key.String()), trace.Result.String(result)}
		if err == nil && i < len(g.outcomes) {
			of[1] = trace.Result.String(commitResult(g.outcomes[i].Outcome.GetResult()))
		}
		if node := g.nodeOf(i, n); node != "" {
			of = append(of, trace.Node.String(node))
		}
		attempt.Span("group", began, ended, link, otel.WithAttributes(of...))
	}
}

// nodeOf returns where the i-th pod of the request, the n-th of the open ones, has been placed, "" if it has not been. Less than 0: it is not open.
func (g *grouped) nodeOf(i, n int) string {
	if n < 0 || g.outcomes[i].Outcome.GetResult() != binderv1.Outcome_RESULT_ASSUMED {
		return ""
	}
	return g.found.Pods[n].Node
}

// traced returns what has come of a group as its span says it: the best that has come of any of its pods.
func (g *grouped) traced(err error) (result, message string) {
	switch {
	case errors.Is(err, errUntried):
		return "untried", err.Error()
	case err != nil:
		return "failed", err.Error()
	}
	is := make(map[binderv1.Outcome_Result]bool)
	message = g.resp.GetMessage()
	for i := range g.outcomes {
		is[g.outcomes[i].Outcome.GetResult()] = true
		message = cmp.Or(message, g.outcomes[i].Error)
	}
	if g.resp.GetPreempts() {
		return "preempts", message
	}
	for _, r := range []binderv1.Outcome_Result{
		binderv1.Outcome_RESULT_FAILED, binderv1.Outcome_RESULT_ASSUMED, binderv1.Outcome_RESULT_BUSY, binderv1.Outcome_RESULT_RETRY, binderv1.Outcome_RESULT_NO_FIT, binderv1.Outcome_RESULT_PLACED,
	} {
		if is[r] {
			return commitResult(r), message
		}
	}
	return commitResult(binderv1.Outcome_RESULT_GONE), message
}

func commitResult(r binderv1.Outcome_Result) string {
	switch r {
	case binderv1.Outcome_RESULT_ASSUMED:
		return "assumed"
	case binderv1.Outcome_RESULT_PLACED:
		return "placed"
	case binderv1.Outcome_RESULT_NO_FIT:
		return "no_fit"
	case binderv1.Outcome_RESULT_GONE:
		return "gone"
	case binderv1.Outcome_RESULT_BUSY:
		return "busy"
	case binderv1.Outcome_RESULT_ASK:
		return "ask"
	case binderv1.Outcome_RESULT_REFUSED:
		return "refused"
	case binderv1.Outcome_RESULT_FAILED:
		return "failed"
	}
	return "retry"
}

// traceRecord makes the span of the transaction that recorded placements.
func traceRecord(batch *coord.Batch, placed []*placement, began, ended time.Time) {
	for _, p := range placed {
		if a := p.attempt; a != nil {
			a.Span("record", began, ended, otel.WithAttributes(trace.Batch.Int64(batch.ID), trace.Pods.Int(len(placed))))
		}
	}
}

// traceBind makes the span of one call that was to bind a pod.
func traceBind(p *placement, o source.Outcome, began, ended time.Time) {
	if p.attempt == nil {
		return
	}
	attributes := []attribute.KeyValue{
		trace.Result.String(resultName(o.Result)), trace.Node.String(p.Node), trace.Try.Int(p.tries + 1),
	}
	if o.Err != nil {
		attributes = append(attributes, trace.Message.String(o.Err.Error()))
	}
	p.attempt.Span("bind", began, ended, otel.WithAttributes(attributes...))
}
