package rpc_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/trace"
)

func environment(pairs ...string) func(string) string {
	return func(key string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == key {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestWithoutAnEndpointNothingIsTraced(t *testing.T) {
	provider, shutdown, err := rpc.NewTracerProvider(t.Context(), "binder", environment("OTEL_SERVICE_NAME", "x"))
	if provider != nil || err != nil {
		t.Errorf("got %v, %v, want nil, nil", provider, err)
	}
	if err := shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEndpointThatIsNoURLIsAnErrorThatNamesTheVariable(t *testing.T) {
	for _, endpoint := range []string{"collector:4317", "ftp://collector", "http://", "http://a b", "\x7f"} {
		for _, variable := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
			provider, _, err := rpc.NewTracerProvider(t.Context(), "binder", environment(variable, endpoint))
			if provider != nil || err == nil || !strings.Contains(err.Error(), variable) {
				t.Errorf("%s=%q: %v, %v", variable, endpoint, provider, err)
			}
		}
	}
}

func TestTheEnvironmentSaysWhichTracesAreSampled(t *testing.T) {
	for _, c := range []struct {
		sampler, arg string
		share        int // of 1,000 attempts
		bad          string
	}{
		{"", "", 1000, ""},
		{"", "0.5", 1000, ""},
		{"always_on", "", 1000, ""},
		{"always_off", "", 0, ""},
		{"parentbased_always_on", "", 1000, ""},
		{"parentbased_always_off", "", 0, ""},
		{"traceidratio", "0.5", 500, ""},
		{"traceidratio", "", 1000, ""},
		{" ParentBased_TraceIDRatio ", " 0.5 ", 500, ""},
		{"parentbased_traceidratio", "0", 0, ""},
		{"jaeger_remote", "", 0, "OTEL_TRACES_SAMPLER"},
		{"parentbased_", "", 0, "OTEL_TRACES_SAMPLER"},
		{"traceidratio", "1.5", 0, "OTEL_TRACES_SAMPLER_ARG"},
		{"parentbased_traceidratio", "-1", 0, "OTEL_TRACES_SAMPLER_ARG"},
		{"parentbased_traceidratio", "NaN", 0, "OTEL_TRACES_SAMPLER_ARG"},
		{"parentbased_traceidratio", "1%", 0, "OTEL_TRACES_SAMPLER_ARG"},
	} {
		provider, shutdown, err := rpc.NewTracerProvider(t.Context(), "binder", environment(
			"OTEL_EXPORTER_OTLP_ENDPOINT", "http://192.0.2.1:1", "OTEL_TRACES_SAMPLER", c.sampler, "OTEL_TRACES_SAMPLER_ARG", c.arg))
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), "read "+c.bad+":") {
				t.Errorf("%q, %q: %v, want an error that names %s", c.sampler, c.arg, err, c.bad)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q, %q: %v", c.sampler, c.arg, err)
			continue
		}
		sampled := 0
		for i := range 1000 {
			if provider.Attempt("pod", int32(i)) != nil {
				sampled++
			}
		}
		if slack := 80 * min(c.share, 1000-c.share, 1); sampled < c.share-slack || sampled > c.share+slack {
			t.Errorf("%q, %q: %d of 1000 attempts are traced, want %d", c.sampler, c.arg, sampled, c.share)
		}
		// What a caller has not sampled is not sampled here either, unless nobody asks for the parent.
		_, below := provider.Start(trace.Untraced(t.Context()), "call")
		if want := c.sampler == "always_on" || c.sampler == "traceidratio" && c.share == 1000; below.IsRecording() != want {
			t.Errorf("%q, %q: below a parent that is not sampled, a span is: %t, want %t", c.sampler, c.arg, below.IsRecording(), want)
		}
		if err := shutdown(within(t, patience)); err != nil { // the span has not ended: there is nothing to send
			t.Error(err)
		}
	}
}

// traceCollector keeps the spans that it is sent: name and kind, trace.
type traceCollector struct {
	collector.UnimplementedTraceServiceServer
	mu       sync.Mutex
	traces   map[string][]string // span names and kinds by trace
	services map[string]bool
}

func (c *traceCollector) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range req.GetResourceSpans() {
		for _, attribute := range resource.GetResource().GetAttributes() {
			if attribute.GetKey() == "service.name" {
				c.services[attribute.GetValue().GetStringValue()] = true
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.traces[string(span.GetTraceId())] = append(c.traces[string(span.GetTraceId())], span.GetName()+" "+span.GetKind().String())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestOneCallIsOneTraceOverClientAndServer(t *testing.T) {
	l, err := rpc.TCP().Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sink := &traceCollector{traces: map[string][]string{}, services: map[string]bool{}}
	sinkServer := grpc.NewServer()
	collector.RegisterTraceServiceServer(sinkServer, sink)
	served := make(chan error, 1)
	go func() { served <- sinkServer.Serve(l) }()

	provider, shutdown, err := rpc.NewTracerProvider(t.Context(), "binder", environment(
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://"+l.Addr().String(), "OTEL_EXPORTER_OTLP_ENDPOINT", "http://192.0.2.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	r := startWith(t, rpc.Config{Net: rpc.Memory(), Trace: provider.TracerProvider()}, nil, &service{})
	if _, err := r.client.EmptyCall(within(t, patience), &testgrpc.Empty{}); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(t); err != nil {
		t.Error(err)
	}
	if err := shutdown(within(t, patience)); err != nil {
		t.Error(err)
	}
	sinkServer.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}

	if len(sink.traces) != 1 || !sink.services["binder"] {
		t.Fatalf("got traces %v of services %v, want one trace of binder", sink.traces, sink.services)
	}
	for _, spans := range sink.traces {
		all := strings.Join(spans, ", ")
		if len(spans) != 2 || !strings.Contains(all, "SPAN_KIND_CLIENT") || !strings.Contains(all, "SPAN_KIND_SERVER") {
			t.Errorf("the trace has %s, want a client and a server span", all)
		}
	}
}
