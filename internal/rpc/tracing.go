package rpc

import (
	"context"
	"fmt"
	"net/url"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// The variables that switch exporting on; the first one wins.
const (
	tracesEndpointVariable = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	endpointVariable       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	serviceNameVariable    = "OTEL_SERVICE_NAME"
)

// NewTracerProvider returns the provider for [Config.Trace] and a function that sends what is left and stops it.
// It exports by OTLP over gRPC to the http or https URL in OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
// OTEL_EXPORTER_OTLP_ENDPOINT, as read by getenv. When both are empty the provider is nil and the function does nothing.
// Spans carry the name service unless OTEL_SERVICE_NAME says otherwise. The exporter itself reads the further
// variables of the OpenTelemetry specification (headers, certificates, sampler) from the process's environment.
// A collector that cannot be reached loses spans and nothing else.
func NewTracerProvider(ctx context.Context, service string, getenv func(string) string) (trace.TracerProvider, func(context.Context) error, error) {
	variable := tracesEndpointVariable
	endpoint := getenv(variable)
	if endpoint == "" {
		variable = endpointVariable
		endpoint = getenv(variable)
	}
	if endpoint == "" {
		return nil, func(context.Context) error { return nil }, nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, nil, fmt.Errorf("read %s: %q is not an http or https URL", variable, endpoint)
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint))
	if err != nil {
		return nil, nil, fmt.Errorf("create exporter of traces to %s: %w", endpoint, err)
	}
	if name := getenv(serviceNameVariable); name != "" {
		service = name
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", service))),
	)
	return provider, provider.Shutdown, nil
}
