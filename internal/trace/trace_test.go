package trace_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	otel "go.opentelemetry.io/otel/trace"

	"github.com/berth-scheduler/berth/internal/trace"
)

const pods = 2000

func uid(i int) string { return fmt.Sprintf("0d6d9a3e-7a54-4a6b-9c1f-%012d", i) }

// samplers are all that the specification names, with how many of 1,000 attempts each takes.
var samplers = map[string]struct {
	sampler sdktrace.Sampler
	share   int
}{
	"always_on":                {sdktrace.AlwaysSample(), 1000},
	"always_off":               {sdktrace.NeverSample(), 0},
	"traceidratio":             {sdktrace.TraceIDRatioBased(0.3), 300},
	"parentbased_always_on":    {sdktrace.ParentBased(sdktrace.AlwaysSample()), 1000},
	"parentbased_always_off":   {sdktrace.ParentBased(sdktrace.NeverSample()), 0},
	"parentbased_traceidratio": {sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.01)), 10},
}

func TestTheSamplerDecidesWhichAttemptsAreTraced(t *testing.T) {
	for name, s := range samplers {
		p := trace.NewProvider(s.sampler)
		sampled := 0
		for i := range pods {
			if p.Attempt(uid(i), 1) != nil {
				sampled++
			}
		}
		// Five standard deviations of a fair choice are 5 √(n·p·(1-p)), which is at most 103.
		want, slack := pods*s.share/1000, 0
		if 0 < s.share && s.share < 1000 {
			slack = min(103, 5*want)
		}
		if sampled < want-slack || sampled > want+slack || sampled == 0 && want > 0 {
			t.Errorf("%s: %d of %d attempts are traced, want %d ± %d", name, sampled, pods, want, slack)
		}
	}
}

func TestTwoProcessesAgreeOnTheTraceOfAnAttempt(t *testing.T) {
	a := trace.NewProvider(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.3)))
	b := trace.NewProvider(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.3)))
	seen := make(map[otel.TraceID]bool)
	for i := range pods {
		for number := range int32(3) {
			x, y := a.Attempt(uid(i), number+1), b.Attempt(uid(i), number+1)
			if (x == nil) != (y == nil) {
				t.Fatalf("attempt %d of %s is traced by one of two", number+1, uid(i))
			}
			if x == nil {
				continue
			}
			if !x.Root().Equal(y.Root()) || !x.Root().IsValid() || !x.Root().IsSampled() {
				t.Fatalf("attempt %d of %s: %v and %v", number+1, uid(i), x.Root(), y.Root())
			}
			if seen[x.Root().TraceID()] {
				t.Fatalf("attempt %d of %s has the trace of another", number+1, uid(i))
			}
			seen[x.Root().TraceID()] = true
		}
	}
}

func TestWhatIsNotSampledAllocatesNothing(t *testing.T) {
	for name, p := range map[string]*trace.Provider{
		"no provider":              nil,
		"parentbased_traceidratio": trace.NewProvider(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(1e-12))),
		"always_off":               trace.NewProvider(sdktrace.NeverSample()),
	} {
		ctx, pod := t.Context(), uid(7)
		allocs := testing.AllocsPerRun(1000, func() {
			a := p.Attempt(pod, 3)
			if a != nil {
				t.Fatal("it is sampled")
			}
			if a.Context(ctx) != ctx || !a.Log().Equal(slog.Attr{}) {
				t.Fatal("an attempt without a trace leaves one behind")
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations for an attempt that is not sampled, want none", name, allocs)
		}
	}
}

// All samplers that take an attempt take its spans, the cycle of which it is the first, and what is below that.
func TestASampledAttemptHasAllItsSpans(t *testing.T) {
	for name, s := range samplers {
		exporter := tracetest.NewInMemoryExporter()
		p := trace.NewProvider(s.sampler, sdktrace.WithSyncer(exporter))
		start := time.Unix(1000, 0)
		sampled := 0
		for i := range pods / 10 {
			a := p.Attempt(uid(i), 1)
			if a == nil {
				continue
			}
			sampled++
			exporter.Reset()
			ctx, cycle := p.Cycle(t.Context(), a, start)
			_, below := p.Start(ctx, "filter")
			below.End()
			cycle.End()
			a.Span("queue", start, start.Add(time.Second))
			a.End(start, start.Add(2*time.Second), "")

			spans := exporter.GetSpans()
			if len(spans) != 4 {
				t.Fatalf("%s: %d spans, want 4", name, len(spans))
			}
			byName := make(map[string]tracetest.SpanStub)
			for _, span := range spans {
				byName[span.Name] = span
			}
			root := byName["attempt"]
			if !root.SpanContext.Equal(a.Root().WithRemote(false)) || root.Parent.IsValid() || root.EndTime.Sub(root.StartTime) != 2*time.Second {
				t.Fatalf("%s: root %+v, want the ids of %v and 2 s", name, root, a.Root())
			}
			if parent := byName["queue"].Parent; !parent.Equal(a.Root()) {
				t.Fatalf("%s: queue is below %v, want %v", name, parent, a.Root())
			}
			if byName["cycle"].Parent.IsValid() || byName["cycle"].SpanContext.TraceID() == a.Root().TraceID() {
				t.Fatalf("%s: the cycle has no trace of its own: %+v", name, byName["cycle"])
			}
			if parent := byName["filter"].Parent; !parent.Equal(byName["cycle"].SpanContext) {
				t.Fatalf("%s: filter is below %v, want %v", name, parent, byName["cycle"].SpanContext)
			}
		}
		if sampled == 0 && s.share > 100 {
			t.Errorf("%s: nothing is sampled", name)
		}
	}
}

func TestNothingIsTracedBelowAnUntracedContext(t *testing.T) {
	for name, s := range samplers {
		if s.share == 1000 {
			continue // then there is no cycle without a sampled attempt
		}
		exporter := tracetest.NewInMemoryExporter()
		p := trace.NewProvider(s.sampler, sdktrace.WithSyncer(exporter))
		for range 100 {
			_, span := p.Start(trace.Untraced(t.Context()), "call")
			span.End()
		}
		if spans := exporter.GetSpans(); len(spans) > 0 {
			t.Errorf("%s: %d spans, want none", name, len(spans))
		}
	}
}

func TestALogLineNamesTheTrace(t *testing.T) {
	a := trace.NewProvider(sdktrace.AlwaysSample()).Attempt("u", 1)
	for attempt, want := range map[*trace.Attempt]string{
		a: `"pod":"p","trace_id":"` + a.Root().TraceID().String() + `"}`, nil: `"pod":"p"}`,
	} {
		var line bytes.Buffer
		slog.New(slog.NewJSONHandler(&line, nil)).Warn("bound elsewhere", "pod", "p", attempt.Log())
		if !strings.HasSuffix(strings.TrimSpace(line.String()), want) {
			t.Errorf("got %s, want …%s", &line, want)
		}
	}
}

func BenchmarkAttemptNotSampled(b *testing.B) {
	p := trace.NewProvider(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(1e-12)))
	b.ReportAllocs()
	for b.Loop() {
		p.Attempt("0d6d9a3e-7a54-4a6b-9c1f-000000000007", 3)
	}
}

// dropped is an exporter that forgets what it is given.
type dropped struct{}

func (dropped) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (dropped) Shutdown(context.Context) error                             { return nil }

// BenchmarkAttemptSampled makes the spans of an attempt that was bound at once: the root and six below it.
func BenchmarkAttemptSampled(b *testing.B) {
	p := trace.NewProvider(sdktrace.ParentBased(sdktrace.AlwaysSample()), sdktrace.WithBatcher(dropped{}))
	defer p.Shutdown(context.Background())
	start := time.Unix(1000, 0)
	about := []attribute.KeyValue{trace.Result.String("done"), trace.Node.String("node-0001"), trace.Try.Int(1)}
	b.ReportAllocs()
	for b.Loop() {
		a := p.Attempt("0d6d9a3e-7a54-4a6b-9c1f-000000000007", 3)
		for _, name := range []string{"queue", "filter", "score", "commit", "record", "bind"} {
			a.Span(name, start, start, otel.WithAttributes(about...))
		}
		a.End(start, start, "", otel.WithAttributes(about...))
	}
}
