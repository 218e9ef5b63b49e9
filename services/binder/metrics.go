package binder

import "github.com/prometheus/client_golang/prometheus"

// metrics are what only the active binder knows.
type metrics struct {
	terms, placed, noFit, exhausted prometheus.Counter
	eventsDropped, eventsFailed     prometheus.Counter
	binds                           *prometheus.CounterVec
	recordSeconds, bindSeconds      prometheus.Histogram
}

// newMetrics registers the metrics; a nil registerer keeps them unregistered.
func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "berth", Subsystem: "binder", Name: name, Help: help})
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "berth", Subsystem: "binder", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		})
	}
	m := &metrics{
		terms:         counter("terms_total", "Times this binder was elected."),
		placed:        counter("placed_total", "Pods placed by commits."),
		noFit:         counter("no_fit_total", "Pods that no node fitted at commit."),
		exhausted:     counter("exhausted_total", "Commits cut short because the best node could not be proven from the candidates."),
		eventsDropped: counter("events_dropped_total", "Events of placements dropped because the event lane was full."),
		eventsFailed:  counter("events_failed_total", "Events and conditions that could not be written."),
		binds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "berth", Subsystem: "binder", Name: "binds_total", Help: "Binds by outcome.",
		}, []string{"result"}),
		recordSeconds: histogram("record_seconds", "Time to write a version with its intents to etcd."),
		bindSeconds:   histogram("bind_seconds", "Time of one Bind call to the source."),
	}
	if r != nil {
		r.MustRegister(m.terms, m.placed, m.noFit, m.exhausted, m.eventsDropped, m.eventsFailed, m.binds, m.recordSeconds, m.bindSeconds)
	}
	return m
}
