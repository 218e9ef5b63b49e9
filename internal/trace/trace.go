package trace

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the instrumentation scope of all spans of this package.
const scope = "github.com/berth-scheduler/berth"

// LogKey is the key under which log lines about a pod name the trace of its attempt.
const LogKey = "trace_id"

// Provider makes spans, and decides which attempts have some. A nil Provider traces nothing. It is safe for concurrent use.
type Provider struct {
	sdk     *sdktrace.TracerProvider
	tracer  trace.Tracer
	sampler sdktrace.Sampler
}

// NewProvider returns a provider whose sampler decides about every trace. The sampler must decide about roots by nothing but
// the last eight bytes of the trace's id, as those of the OpenTelemetry specification do. Options say where spans go.
func NewProvider(sampler sdktrace.Sampler, options ...sdktrace.TracerProviderOption) *Provider {
	sdk := sdktrace.NewTracerProvider(append(options, sdktrace.WithSampler(sampler), sdktrace.WithIDGenerator(ids{}))...)
	return &Provider{sdk: sdk, tracer: sdk.Tracer(scope), sampler: sampler}
}

// TracerProvider returns what makes the spans of calls, nil if p is nil.
func (p *Provider) TracerProvider() trace.TracerProvider {
	if p == nil {
		return nil
	}
	return p.sdk
}

// Shutdown sends what is left, and ends p.
func (p *Provider) Shutdown(ctx context.Context) error { return p.sdk.Shutdown(ctx) }

// Attempt returns the trace of a pod's attempt, nil if it is not sampled. It is the same wherever it is asked for.
func (p *Provider) Attempt(uid string, number int32) *Attempt {
	if p == nil {
		return nil
	}
	var buffer [64]byte // a uid has 36 bytes
	sum := sha256.Sum256(binary.BigEndian.AppendUint32(append(buffer[:0], uid...), uint32(number)))
	id := trace.TraceID(sum[:16])
	if p.sampler.ShouldSample(sdktrace.SamplingParameters{
		ParentContext: context.Background(), TraceID: id, Name: attemptName,
	}).Decision != sdktrace.RecordAndSample {
		return nil
	}
	a := &Attempt{p: p, cycle: id}
	a.root = trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: trace.SpanID(sum[16:24]), TraceFlags: trace.FlagsSampled, Remote: true,
	})
	copy(a.cycle[:8], sum[24:])
	return a
}

// Cycle starts the trace of a cycle. First is one of its attempts: the ids of both end alike, so that a sampler that takes
// the one takes the other. The spans of calls with the returned context are below the returned span, which the caller ends.
func (p *Provider) Cycle(
	ctx context.Context, first *Attempt, start time.Time, options ...trace.SpanStartOption,
) (context.Context, trace.Span) {
	options = append(options, trace.WithNewRoot(), trace.WithTimestamp(start))
	_, span := p.tracer.Start(withRoot(ctx, first.cycle, first.root.SpanID()), "cycle", options...)
	return trace.ContextWithSpan(ctx, span), span
}

// Start starts a span below that of ctx. The caller ends it.
func (p *Provider) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	return p.tracer.Start(ctx, name, options...)
}

// Untraced returns a context whose calls have no spans, for a cycle of which no attempt is sampled.
func Untraced(ctx context.Context) context.Context { return trace.ContextWithSpan(ctx, unsampled) }

// unsampled is a parent that is not sampled; by its id, no sampler takes it that leaves out anything.
var unsampled = func() trace.Span {
	var config trace.SpanContextConfig
	for i := range config.TraceID {
		config.TraceID[i] = 0xff
	}
	config.SpanID = trace.SpanID(config.TraceID[:8])
	return trace.SpanFromContext(trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(config)))
}()

const attemptName = "attempt"

// Attempt is the trace of a sampled attempt. It is safe for concurrent use.
type Attempt struct {
	p     *Provider
	root  trace.SpanContext
	cycle trace.TraceID // of the cycle, if this is the first sampled attempt of it
}

// Root returns the context of the attempt's root span.
func (a *Attempt) Root() trace.SpanContext { return a.root }

// Span makes a span of something that was done for the attempt.
func (a *Attempt) Span(name string, start, end time.Time, options ...trace.SpanStartOption) {
	ctx := trace.ContextWithSpanContext(context.Background(), a.root)
	_, span := a.p.tracer.Start(ctx, name, append(options, trace.WithTimestamp(start))...)
	span.End(trace.WithTimestamp(end))
}

// End makes the root span. Failure is the error that the attempt ended with, "" for none.
func (a *Attempt) End(start, end time.Time, failure string, options ...trace.SpanStartOption) {
	ctx := withRoot(context.Background(), a.root.TraceID(), a.root.SpanID())
	_, span := a.p.tracer.Start(ctx, attemptName, append(options, trace.WithTimestamp(start))...)
	if failure != "" {
		span.SetStatus(codes.Error, failure)
	}
	span.End(trace.WithTimestamp(end))
}

// Context returns ctx with the attempt as its span; of a nil attempt, ctx itself.
func (a *Attempt) Context(ctx context.Context) context.Context {
	if a == nil {
		return ctx
	}
	return trace.ContextWithSpanContext(ctx, a.root)
}

// Log returns the trace's id for a log line about the pod; of a nil attempt, nothing.
func (a *Attempt) Log() slog.Attr {
	if a == nil {
		return slog.Attr{}
	}
	return slog.String(LogKey, a.root.TraceID().String())
}

// ids generates ids at random, but takes those of a root from its context if they are there.
type ids struct{}

type rootKey struct{}

// rootIDs are the ids that a root span is to have.
type rootIDs struct {
	trace trace.TraceID
	span  trace.SpanID
}

func withRoot(ctx context.Context, trace trace.TraceID, span trace.SpanID) context.Context {
	return context.WithValue(ctx, rootKey{}, rootIDs{trace, span})
}

func (g ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if root, ok := ctx.Value(rootKey{}).(rootIDs); ok {
		return root.trace, root.span
	}
	var id trace.TraceID
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], atLeastOne())
	return id, g.NewSpanID(ctx, id)
}

func (ids) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	binary.NativeEndian.PutUint64(id[:], atLeastOne())
	return id
}

// atLeastOne returns a random number that is not 0, which is no id.
func atLeastOne() uint64 { return max(rand.Uint64(), 1) }
