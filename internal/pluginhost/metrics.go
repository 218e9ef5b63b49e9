package pluginhost

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	seconds *prometheus.HistogramVec
	judged  *prometheus.CounterVec
	lost    *prometheus.CounterVec
}

type serviceMetrics struct {
	seconds prometheus.ObserverVec
	judged  prometheus.Counter
	lost    prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_plugin_service_call_seconds", Help: "Time of one call to a plugin service, by its name, by what it was (begin, judge, begin_placing, or a step of a placement), and whether it has answered (ok, failed).",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}, []string{"service", "call", "result"}),
		judged: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_plugin_service_judged_nodes_total", Help: "Nodes that a plugin service was asked about, by its name, each once for each question. Of the others, its answers were known.",
		}, []string{"service"}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_plugin_service_lost_activations_total", Help: "Times that a plugin service wanted a pod tried, by its name, and it was not for that, since there were too many.",
		}, []string{"service"}),
	}
	if r == nil {
		return m, nil
	}
	if err := errors.Join(r.Register(m.seconds), r.Register(m.judged), r.Register(m.lost)); err != nil {
		return nil, fmt.Errorf("register metrics of plugin services: %w", err)
	}
	return m, nil
}

func (m *metrics) of(service string) *serviceMetrics {
	return &serviceMetrics{seconds: m.seconds.MustCurryWith(prometheus.Labels{"service": service}), judged: m.judged.WithLabelValues(service), lost: m.lost.WithLabelValues(service)}
}

// observe measures a call.
func (m *serviceMetrics) observe(call string, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.seconds.With(prometheus.Labels{"call": call, "result": result}).Observe(took.Seconds())
}
