package system

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	otel "go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/trace"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// traced are spans by trace.
type traced map[otel.TraceID][]tracetest.SpanStub

func byTrace(spans tracetest.SpanStubs) traced {
	all := make(traced)
	for _, s := range spans {
		all[s.SpanContext.TraceID()] = append(all[s.SpanContext.TraceID()], s)
	}
	return all
}

func (all traced) span(at otel.SpanContext) *tracetest.SpanStub {
	for i, s := range all[at.TraceID()] {
		if s.SpanContext.SpanID() == at.SpanID() {
			return &all[at.TraceID()][i]
		}
	}
	return nil
}

func value(s *tracetest.SpanStub, key attribute.Key) string {
	for _, kv := range s.Attributes {
		if kv.Key == key {
			return kv.Value.String()
		}
	}
	return ""
}

// names returns the names of spans, sorted.
func names(spans []tracetest.SpanStub) string {
	all := make([]string, len(spans))
	for i, s := range spans {
		all[i] = s.Name
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestAnAttemptIsOneTraceOfAllItHasGoneThrough(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := trace.NewProvider(sdktrace.ParentBased(sdktrace.AlwaysSample()), sdktrace.WithSyncer(exporter))
	b := berthtest.Start(t, berthtest.Options{Nodes: 1100, FilterWorkers: 2, ScoreWorkers: 2, BatchSize: 16, Trace: provider})
	const placed = 40
	b.Apply(plainPods(0, placed)...)
	b.Apply(berthtest.Pod("large", "64", "1Gi", ""))
	b.AwaitDecided(placed + 1)
	pods := b.Pods()
	b.Stop()

	all := byTrace(exporter.GetSpans())
	results := make(map[string]string) // by pod, of the last attempt
	for id, spans := range all {
		at := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == "attempt" })
		if at < 0 {
			continue
		}
		root := &spans[at]
		pod := value(root, trace.PodNamespace) + "/" + value(root, trace.PodName)
		result := value(root, trace.Result)
		want := map[string]string{
			"scheduled":     "attempt bind commit filter filter queue score score",
			"unschedulable": "attempt filter filter preempt queue",
		}[result]
		if result == "retry" { // the batch was ended before its turn
			continue
		}
		if got := names(spans); got != want {
			t.Errorf("%s: %s, the spans are %s, want %s", pod, result, got, want)
		}
		if results[pod] != "" {
			t.Errorf("%s: two attempts have ended with a result: %s and %s", pod, results[pod], result)
		}
		results[pod] = result
		if result == "scheduled" && value(root, trace.Node) != pods[pod].GetNode() {
			t.Errorf("%s: the trace says node %q, the API %q", pod, value(root, trace.Node), pods[pod].GetNode())
		}
		if message := value(root, trace.Message); result == "unschedulable" && !strings.Contains(message, "Insufficient cpu") {
			t.Errorf("%s: unschedulable because of %q, want Insufficient cpu", pod, message)
		}
		checkTimes(t, pod, root, spans)
		checkLinks(t, pod, all, root, spans)
		if root.SpanContext.TraceID() != id || root.Parent.IsValid() {
			t.Errorf("%s: its attempt is no root", pod)
		}
	}
	if len(results) != placed+1 || results["default/large"] != "unschedulable" {
		t.Errorf("%d pods are traced, and large is %q, want %d and unschedulable", len(results), results["default/large"], placed+1)
	}
	if example := exampleOf(all, "default/p00000"); t.Failed() || testing.Verbose() {
		t.Log("\n" + example)
	}
}

// TestTheAttemptOfAGangIsInTheTracesOfItsPods has a gang that is placed: each pod's trace leads to the span of the gang, which is below the call in the trace of their cycle.
func TestTheAttemptOfAGangIsInTheTracesOfItsPods(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := trace.NewProvider(sdktrace.ParentBased(sdktrace.AlwaysSample()), sdktrace.WithSyncer(exporter))
	b := berthtest.Start(t, berthtest.Options{Nodes: 4, Trace: provider})
	const group = `{apiVersion: scheduling.k8s.io/v1alpha2, kind: PodGroup, metadata: {name: train}, spec: {schedulingPolicy: {gang: {minCount: 3}}, schedulingConstraints: {topology: [{key: kubernetes.io/hostname}]}}}`
	of := func(k int) string {
		return berthtest.Pod(fmt.Sprint("train-", k), "2", "1Gi", "schedulingGroup: {podGroupName: train}, ")
	}
	b.Apply(group, of(0), of(1), of(2))
	b.AwaitDecided(3)
	b.Stop()

	all := byTrace(exporter.GetSpans())
	pods := 0
	for _, spans := range all {
		at := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == "attempt" && value(&s, trace.Result) == "scheduled" })
		if at < 0 {
			continue
		}
		root := &spans[at]
		pod := value(root, trace.PodName)
		pods++
		if got, want := names(spans), "attempt bind group queue record"; got != want {
			t.Errorf("%s: the spans are %s, want %s", pod, got, want)
			continue
		}
		checkTimes(t, pod, root, spans)
		own := &spans[slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == "group" })]
		cycle := all.span(root.Links[0].SpanContext)
		of := all.span(own.Links[0].SpanContext)
		switch {
		case cycle == nil || value(cycle, trace.Group) != "default/train" || len(cycle.Links) != 3:
			t.Errorf("%s: its link leads to %+v, want the cycle of its gang", pod, cycle)
		case of == nil || of.SpanContext.TraceID() != cycle.SpanContext.TraceID() || len(of.Links) != 3:
			t.Errorf("%s: its group leads to %+v, want the span of the gang, in the trace of the cycle", pod, of)
		case value(of, trace.Result) != "assumed" || value(of, trace.Fit) != "3" || value(of, trace.Wants) != "3" || value(of, trace.Tries) != "1" || value(of, trace.Victims) != "0" ||
			value(of, trace.Domain) != value(root, trace.Node) || value(own, trace.Node) != value(root, trace.Node):
			t.Errorf("%s: the gang's span says %v, the pod's %v, and the pod is on %s", pod, of.Attributes, own.Attributes, value(root, trace.Node))
		default:
			if call := all.span(of.Parent); call == nil || call.SpanKind != otel.SpanKindServer || !strings.HasSuffix(call.Name, "/PlaceGroup") {
				t.Errorf("%s: the gang's span is below %+v, want the call", pod, call)
			}
		}
	}
	if pods != 3 {
		t.Errorf("%d pods are traced, want 3", pods)
	}
	if example := exampleOf(all, "default/train-0"); t.Failed() || testing.Verbose() {
		t.Log("\n" + example)
	}
}

// checkTimes checks that what was done for an attempt was done one after the other, within it. Only the end of the bind may
// come after it: the source's watch may tell of it before the call is answered.
func checkTimes(t *testing.T, pod string, root *tracetest.SpanStub, spans []tracetest.SpanStub) {
	t.Helper()
	stages := []string{"queue", "filter", "score", "commit", "group", "record", "bind"}
	for _, s := range spans {
		if s.StartTime.Before(root.StartTime) || s.Name != "bind" && s.EndTime.After(root.EndTime) || s.EndTime.Before(s.StartTime) {
			t.Errorf("%s: %s from %v to %v is not within %v to %v", pod, s.Name, s.StartTime, s.EndTime, root.StartTime, root.EndTime)
		}
		if s.Name != "attempt" && s.Parent.SpanID() != root.SpanContext.SpanID() {
			t.Errorf("%s: %s is not below the attempt", pod, s.Name)
		}
		for _, later := range spans {
			before, behind := slices.Index(stages, s.Name), slices.Index(stages, later.Name)
			if before >= 0 && before < behind && later.StartTime.Before(s.EndTime) {
				t.Errorf("%s: %s begins before %s has ended", pod, later.Name, s.Name)
			}
		}
	}
}

// checkLinks checks that an attempt leads to its cycle and back, and its ranges to those of the cycle, which have the calls
// of the workers below them.
func checkLinks(t *testing.T, pod string, all traced, root *tracetest.SpanStub, spans []tracetest.SpanStub) {
	t.Helper()
	if len(root.Links) != 1 {
		t.Errorf("%s: %d links, want one", pod, len(root.Links))
		return
	}
	cycle := all.span(root.Links[0].SpanContext)
	if cycle == nil || cycle.Name != "cycle" || cycle.Parent.IsValid() {
		t.Errorf("%s: its link does not lead to a cycle", pod)
		return
	}
	if !slices.ContainsFunc(cycle.Links, func(l sdktrace.Link) bool { return l.SpanContext.SpanID() == root.SpanContext.SpanID() }) {
		t.Errorf("%s: its cycle does not link to it", pod)
	}
	for _, s := range spans {
		if s.Name != "filter" && s.Name != "score" {
			continue
		}
		if len(s.Links) != 1 {
			t.Errorf("%s: %s has %d links, want one", pod, s.Name, len(s.Links))
			continue
		}
		asked := all.span(s.Links[0].SpanContext)
		if asked == nil || asked.Name != s.Name || asked.Parent.SpanID() != cycle.SpanContext.SpanID() ||
			value(asked, trace.RangeFirst) != value(&s, trace.RangeFirst) || value(asked, trace.Worker) != value(&s, trace.Worker) || value(&s, trace.Worker) == "" {
			t.Errorf("%s: its %s links to %+v, which is not that range of its cycle", pod, s.Name, asked)
			continue
		}
		called := 0
		for _, call := range all[cycle.SpanContext.TraceID()] {
			if call.Parent.SpanID() == asked.SpanContext.SpanID() && call.SpanKind == otel.SpanKindClient {
				called++
			}
		}
		if called == 0 {
			t.Errorf("%s: no call is below the range of its cycle", pod)
		}
	}
}

// exampleOf writes the trace of a pod and that of its cycle, as docs/tracing.md shows them: when each span began and how long
// it took, in milliseconds.
func exampleOf(all traced, pod string) string {
	var out strings.Builder
	var tree func(spans []tracetest.SpanStub, parent otel.SpanID, indent string, start time.Time)
	tree = func(spans []tracetest.SpanStub, parent otel.SpanID, indent string, start time.Time) {
		slices.SortFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
		for _, s := range spans {
			if s.Parent.SpanID() != parent {
				continue
			}
			var about []string
			for _, key := range []attribute.Key{trace.PodName, trace.Group, trace.Pods, trace.Fit, trace.Wants, trace.Domain, trace.Tries, trace.RangeFirst, trace.Worker, trace.Result, trace.Node} {
				if v := value(&s, key); v != "" {
					about = append(about, string(key)+"="+v)
				}
			}
			label := indent + s.Name
			if s.SpanKind != otel.SpanKindInternal {
				label += " (" + s.SpanKind.String() + ")"
			}
			fmt.Fprintf(&out, "%-54s %+7.2f %7.2f  %s\n", label, ms(s.StartTime.Sub(start)), ms(s.EndTime.Sub(s.StartTime)), strings.Join(about, " "))
			tree(slices.Clone(spans), s.SpanContext.SpanID(), indent+"  ", start)
		}
	}
	for _, spans := range all {
		for i := range spans {
			root := &spans[i]
			if root.Name != "attempt" || value(root, trace.PodNamespace)+"/"+value(root, trace.PodName) != pod || len(root.Links) == 0 {
				continue
			}
			tree(slices.Clone(spans), otel.SpanID{}, "", root.StartTime)
			out.WriteByte('\n')
			tree(slices.Clone(all[root.Links[0].SpanContext.TraceID()]), otel.SpanID{}, "", root.StartTime)
			return out.String()
		}
	}
	return "no trace of " + pod
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// spanCollector is an OpenTelemetry collector that keeps the spans it is sent, by trace and service.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans map[string]map[string][]*tracev1.Span
}

func (c *spanCollector) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range req.GetResourceSpans() {
		service := ""
		for _, kv := range resource.GetResource().GetAttributes() {
			if kv.GetKey() == "service.name" {
				service = kv.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				id := hex.EncodeToString(span.GetTraceId())
				if c.spans[id] == nil {
					c.spans[id] = make(map[string][]*tracev1.Span)
				}
				c.spans[id][service] = append(c.spans[id][service], span)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// has returns whether a service has sent a span of a trace.
func (c *spanCollector) has(id, service, name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.spans[id][service], func(s *tracev1.Span) bool { return s.GetName() == name })
}

// startCollector runs a collector until the test ends, and returns the URL it listens at.
func startCollector(t *testing.T) (*spanCollector, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &spanCollector{spans: make(map[string]map[string][]*tracev1.Span)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve the collector: %v", err)
		}
	})
	return c, "http://" + l.Addr().String()
}

func TestProcessesSendTheSpansOfOneTrace(t *testing.T) {
	spans, address := startCollector(t)
	const ratio = 0.3
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", fmt.Sprint(ratio))
	p := berthtest.StartProcesses(t, berthtest.Crew{Binders: 1, Queues: 1, FilterWorkers: 1, ScoreWorkers: 1})
	p.Apply(berthtest.Nodes(4)...)
	const pods = 60
	p.Apply(plainPods(0, pods)...)
	p.AwaitDecided(pods)

	sampler := trace.NewProvider(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio)))
	sampled := 0
	for name, pod := range p.Pods() {
		attempt := sampler.Attempt(pod.GetUid(), 1)
		if attempt == nil {
			continue
		}
		sampled++
		id := attempt.Root().TraceID().String()
		for _, want := range [][2]string{
			{"berth-queue", "attempt"}, {"berth-queue", "queue"}, {"berth-queue", "filter"}, {"berth-queue", "score"},
			{"berth-binder", "commit"}, {"berth-binder", "bind"},
		} {
			berthtest.Await(t, berthtest.Patience, fmt.Sprintf("%s to send %s of %s, trace %s", want[0], want[1], name, id), func(context.Context) error {
				if !spans.has(id, want[0], want[1]) {
					return fmt.Errorf("not sent")
				}
				return nil
			})
		}
	}
	if sampled == 0 || sampled == pods {
		t.Errorf("%d of %d first attempts are traced, want some and not all", sampled, pods)
	}
	spans.mu.Lock()
	defer spans.mu.Unlock()
	for id, services := range spans.spans {
		for _, span := range services["berth-queue"] {
			if span.GetName() == "attempt" && hex.EncodeToString(span.GetTraceId()) == id && len(services["berth-binder"]) == 0 {
				t.Errorf("trace %s has nothing of the binder", id)
			}
		}
	}
}
