package fanout

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	otel "go.opentelemetry.io/otel/trace"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/trace"
)

// Call is what was asked about one range, for traces.
type Call struct {
	Began, Ended time.Time
	Span         otel.SpanContext // which has the calls below it
	Attributes   []attribute.KeyValue
	About        []int // by the indexes of the question
}

// rangeSpan is the span of what is asked about one range, in the trace of a cycle. The methods of a nil one do nothing.
// One goroutine uses it at a time.
type rangeSpan struct {
	provider     *trace.Provider
	name         string
	cut          cluster.Range
	span         otel.Span // nil until it was started
	began, ended time.Time
	worker       string // who answered; "": nobody
}

// span returns a span that is to be started, nil if the question is not traced.
func (f *Fanout) span(traced bool, name string, cut cluster.Range) *rangeSpan {
	if !traced {
		return nil
	}
	return &rangeSpan{provider: f.cfg.Trace, name: name, cut: cut}
}

func (r *rangeSpan) start(ctx context.Context) context.Context {
	if r == nil {
		return ctx
	}
	r.began = time.Now()
	ctx, r.span = r.provider.Start(ctx, r.name, otel.WithTimestamp(r.began), otel.WithAttributes(r.attributes()...))
	return ctx
}

func (r *rangeSpan) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{trace.RangeFirst.Int(int(r.cut.First)), trace.RangeEnd.Int(int(r.cut.End))}
}

func (r *rangeSpan) answered(worker string) {
	if r != nil {
		r.worker = worker
	}
}

func (r *rangeSpan) finish() {
	if r == nil {
		return
	}
	r.ended = time.Now()
	if r.worker == "" {
		r.span.SetStatus(codes.Error, "no worker answered")
	} else {
		r.span.SetAttributes(trace.Worker.String(r.worker))
	}
	r.span.End(otel.WithTimestamp(r.ended))
}

// callsOf returns what was asked about the parts of a question, nil unless it is traced.
func callsOf[Req, Res any](parts []part[Req, Res]) (calls []Call) {
	for _, p := range parts {
		r := p.span
		if r == nil || r.span == nil { // nobody was there to ask
			continue
		}
		about := r.attributes()
		if r.worker != "" {
			about = append(about, trace.Worker.String(r.worker))
		}
		calls = append(calls, Call{Began: r.began, Ended: r.ended, Span: r.span.SpanContext(), Attributes: about, About: p.about})
	}
	return calls
}
