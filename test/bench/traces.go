package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// traceCollector takes traces and counts their spans.
type traceCollector struct {
	collector.UnimplementedTraceServiceServer
	address string
	server  *grpc.Server
	serving sync.WaitGroup
	spans   atomic.Int64
}

// startCollector returns a collector that serves until stop.
func startCollector() (*traceCollector, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for traces: %w", err)
	}
	c := &traceCollector{address: l.Addr().String(), server: grpc.NewServer()}
	collector.RegisterTraceServiceServer(c.server, c)
	c.serving.Go(func() {
		if err := c.server.Serve(l); err != nil {
			progress("traces: %v", err)
		}
	})
	return c, nil
}

// environment makes Berth send it a share of the traces.
func (c *traceCollector) environment(share float64) []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + c.address,
		"OTEL_TRACES_SAMPLER=parentbased_traceidratio", fmt.Sprintf("OTEL_TRACES_SAMPLER_ARG=%g", share),
	}
}

// Export implements the TraceService of OpenTelemetry.
func (c *traceCollector) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, resource := range req.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans.Add(int64(len(scope.GetSpans())))
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// stop ends the collector and returns how many spans it got.
func (c *traceCollector) stop() int64 {
	c.server.Stop()
	c.serving.Wait()
	return c.spans.Load()
}
