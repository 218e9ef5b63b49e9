package rpc

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/berth-scheduler/berth/internal/trace"
)

const (
	// The variables that switch exporting on; the first one wins.
	tracesEndpointVariable = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	endpointVariable       = "OTEL_EXPORTER_OTLP_ENDPOINT"

	serviceNameVariable = "OTEL_SERVICE_NAME"
	samplerVariable     = "OTEL_TRACES_SAMPLER"
	samplerArgVariable  = "OTEL_TRACES_SAMPLER_ARG"
)

// NewTracerProvider returns a provider of spans and a function that sends what is left and stops it.
// It exports by OTLP over gRPC to the http or https URL in OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
// OTEL_EXPORTER_OTLP_ENDPOINT, as read by getenv. When both are empty the provider is nil and the function does nothing.
// Spans carry the name service unless OTEL_SERVICE_NAME says otherwise, and OTEL_TRACES_SAMPLER with OTEL_TRACES_SAMPLER_ARG
// say which traces are sampled. The exporter itself reads the further variables of the OpenTelemetry specification
// (headers, certificates, batches) from the process's environment.
// A collector that cannot be reached loses spans and nothing else.
func NewTracerProvider(ctx context.Context, service string, getenv func(string) string) (*trace.Provider, func(context.Context) error, error) {
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
	sampler, err := newSampler(getenv)
	if err != nil {
		return nil, nil, err
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint))
	if err != nil {
		return nil, nil, fmt.Errorf("create exporter of traces to %s: %w", endpoint, err)
	}
	if name := getenv(serviceNameVariable); name != "" {
		service = name
	}
	provider := trace.NewProvider(sampler,
		sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", service))),
	)
	return provider, provider.Shutdown, nil
}

// newSampler returns the sampler that the environment names, as the OpenTelemetry specification says: by default one that
// takes every trace but those whose caller does not. The SDK reads the same variables, but tells nobody what it has found.
func newSampler(getenv func(string) string) (sdktrace.Sampler, error) {
	name := cmp.Or(strings.ToLower(strings.TrimSpace(getenv(samplerVariable))), "parentbased_always_on")
	kind, parentBased := strings.CutPrefix(name, "parentbased_")
	var sampler sdktrace.Sampler
	switch kind {
	case "always_on":
		sampler = sdktrace.AlwaysSample()
	case "always_off":
		sampler = sdktrace.NeverSample()
	case "traceidratio":
		arg := cmp.Or(strings.TrimSpace(getenv(samplerArgVariable)), "1")
		ratio, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(0 <= ratio && ratio <= 1) {
			return nil, fmt.Errorf("read %s: %q is not a number from 0 to 1", samplerArgVariable, arg)
		}
		sampler = sdktrace.TraceIDRatioBased(ratio)
	default:
		return nil, fmt.Errorf("read %s: %q: want always_on, always_off, traceidratio, or one of them behind parentbased_",
			samplerVariable, name)
	}
	if parentBased {
		sampler = sdktrace.ParentBased(sampler)
	}
	return sampler, nil
}
