package binder

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
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
