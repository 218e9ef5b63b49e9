package rpc

import (
	"errors"
	"fmt"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

// callSeconds are the buckets of call durations: a call in memory takes tens of microseconds, a deadline some seconds.
func callSeconds() []float64 {
	return []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
}

func serverMetrics(registry *prometheus.Registry) *grpcprom.ServerMetrics {
	return registered(registry, grpcprom.NewServerMetrics(
		grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramBuckets(callSeconds()))))
}

func clientMetrics(registry *prometheus.Registry) *grpcprom.ClientMetrics {
	return registered(registry, grpcprom.NewClientMetrics(
		grpcprom.WithClientHandlingTimeHistogram(grpcprom.WithHistogramBuckets(callSeconds()))))
}

func panicMetrics(registry *prometheus.Registry) *prometheus.CounterVec {
	return registered(registry, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_rpc_panics_total",
		Help: "Total number of RPC handlers that panicked, by role.",
	}, []string{"role"}))
}

// registered registers c, or returns the equal collector that another server or client of the process registered
// before. It panics if the registry holds a different collector under one of its names: a programming error.
func registered[C prometheus.Collector](registry prometheus.Registerer, c C) C {
	err := registry.Register(c)
	if earlier := (prometheus.AlreadyRegisteredError{}); errors.As(err, &earlier) {
		if existing, ok := earlier.ExistingCollector.(C); ok {
			return existing
		}
	}
	if err != nil {
		panic(fmt.Sprintf("register call metrics: %v", err))
	}
	return c
}
