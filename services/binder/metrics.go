package binder

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Why pods of a commit or a preemption did not get what was asked for: the values of conflicts' label.
const (
	conflictNoFit      = "no_fit"      // no node fits any more
	conflictExhausted  = "exhausted"   // the best node cannot be proven from the candidates
	conflictRetry      = "retry"       // behind such a pod, or the attempt is over
	conflictGone       = "gone"        // the pod is gone, deleted, gated or changed
	conflictBusy       = "busy"        // binds in the pod's namespace take long, and enough of its pods wait for theirs; or evictions in its victims'; or many placements are put aside
	conflictYielded    = "yielded"     // another scheduler has the pod's scheduler name
	conflictPanic      = "panic"       // the engine panics when it judges the pod
	conflictVictims    = "victims"     // other pods would have to go than the preemption says
	conflictOtherEpoch = "other_epoch" // found in another epoch
	conflictShardLost  = "shard_lost"  // the shard has been claimed since
)

// The lanes: the values of their metrics' label.
const (
	laneBinds       = "binds"
	laneLateBinds   = "late_binds" // those for which the others do not wait any more
	laneEvents      = "events"
	laneReports     = "reports"
	laneSteps       = "steps" // all for which plugin services have something to do before their binds
	lanePreemptions = "preemptions"
	laneVolumes     = "volumes"   // placements whose claims are to be written
	lanePreparing   = "preparing" // all of which claims are to be bound
)

// stageBind is the value of volumeErrors' label: claims that were to be bound before their pod were not.
const stageBind = "bind"

// metrics are what only the active binder knows.
type metrics struct {
	terms, placed, fenced       prometheus.Counter
	conflicts, binds, evictions *prometheus.CounterVec
	asked                       *prometheus.CounterVec
	laneDropped, laneFailed     *prometheus.CounterVec
	intentsDropped              *prometheus.CounterVec
	volumeErrors                *prometheus.CounterVec
	transitionsRefused          prometheus.Counter
	recordSeconds, bindSeconds  prometheus.Histogram
	groupSeconds                prometheus.Histogram
	preemptionVictims           prometheus.Histogram
	permitWait                  *prometheus.HistogramVec
	evictingSeconds             *prometheus.HistogramVec
	evictingRuns                *prometheus.CounterVec
	groupReservations           prometheus.Gauge
}

// evicted counts a preemption whose victims have been asked to go, or some of them not.
func (m *metrics) evicted(took time.Duration, spared int) {
	result := "success"
	if spared > 0 {
		result = "error"
	}
	m.evictingSeconds.WithLabelValues(result).Observe(took.Seconds())
	m.evictingRuns.WithLabelValues(result).Inc()
}

// newMetrics registers the metrics; a nil registerer keeps them unregistered. depths tells at any time how many wait in
// each lane, sizes how large the ledger is, by what it holds.
func newMetrics(r prometheus.Registerer, depths, sizes func() map[string]int) (*metrics, error) {
	var all []prometheus.Collector
	keep := func(c prometheus.Collector) { all = append(all, c) }
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "berth", Subsystem: "binder", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(opts(name, help))
		keep(c)
		return c
	}
	counters := func(label, name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(opts(name, help), []string{label})
		keep(c)
		return c
	}
	histogram := func(namespace, subsystem, name string, buckets []float64, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets,
		})
		keep(h)
		return h
	}
	times := prometheus.ExponentialBuckets(0.0005, 2, 15)
	m := &metrics{
		terms:     counter("terms_total", "Times this binder was elected."),
		placed:    counter("placed_total", "Pods placed by commits."),
		fenced:    counter("fenced_writes_total", "Writes refused because another binder has been elected."),
		conflicts: counters("reason", "conflicts_total", "Pods that did not get the place a commit or preemption asked for, by reason."),
		binds:     counters("result", "binds_total", "Binds by outcome."),
		asked:     counters("result", "asked_total", "Pods about which extenders or plugin services were asked, by result: where they go, and, preempt_…, whom they preempt, post_filter_…, what is to be done as they fit nowhere, pre_enqueue_…, whether they may be tried, and queue_sort_…, only where they belong in the queue."),
		evictions: counters("result", "evictions_total", "Tries of evictions, done or failed, victims that were only about to be bound and so are not deleted, and victims spared after all."),
		intentsDropped: counters("reason", "intents_dropped_total",
			"Recorded intents of earlier terms that are not carried out: a filter says no (misfit), or no binder can have meant them (foreign)."),
		transitionsRefused: counter("placement_transitions_refused_total",
			"Steps of placements that no placement in its state can take: errors of the program. Nothing was done; see the log."),
		laneDropped:   counters("lane", "lane_dropped_total", "What a lane did not take because it was full, by lane."),
		laneFailed:    counters("lane", "lane_failed_total", "Writes of a lane that failed and are not repeated, by lane."),
		recordSeconds: histogram("berth", "binder", "record_seconds", times, "Time to write a version with its intents to etcd."),
		groupSeconds:  histogram("berth", "binder", "group_seconds", times, "Time to find places for the pods of a PodGroup, and to place them."),
		bindSeconds:   histogram("berth", "binder", "bind_seconds", times, "Time of one Bind call to the source."),
		// kube-scheduler's name and text.
		preemptionVictims: histogram("", "scheduler", "preemption_victims", prometheus.ExponentialBuckets(1, 2, 7),
			"Number of selected preemption victims"),
	}
	m.groupReservations = prometheus.NewGauge(prometheus.GaugeOpts(opts("group_reservations", "PodGroups for which the active binder has room reserved that others are to leave first: none, or one.")))
	keep(m.groupReservations)
	// What is kube-scheduler's goroutine for a preemption is a worker's turn here.
	m.evictingSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "scheduler_preemption_goroutines_duration_seconds", Help: "Time from when evictions for a preemption began until all were accepted (success), or some not (error).",
		Buckets: prometheus.ExponentialBuckets(0.01, 2, 20),
	}, []string{"result"})
	m.evictingRuns = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "scheduler_preemption_goroutines_execution_total", Help: "Preemptions of which that is measured.",
	}, []string{"result"})
	keep(m.evictingSeconds)
	keep(m.evictingRuns)
	// Likewise. Its stages "predicate" and "assume" cannot end with an error here: what cannot be told of volumes is a verdict, and what is chosen is
	// part of the placement.
	m.volumeErrors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "scheduler_volume_scheduling_stage_error_total", Help: "Attempts that ended because claims were not bound before their pod (bind). kube-scheduler's other operations, predicate and assume, cannot fail here.",
	}, []string{"operation"})
	keep(m.volumeErrors)
	// Likewise.
	m.permitWait = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "scheduler_permit_wait_duration_seconds", Help: "Duration of waiting on permit.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
	}, []string{"result"})
	keep(m.permitWait)
	keep(&gauges{depths, prometheus.NewDesc(
		"berth_binder_lane_depth", "How many wait in a lane of the active binder.", []string{"lane"}, nil)})
	// kube-scheduler's, too.
	keep(&gauges{sizes, prometheus.NewDesc(
		"scheduler_cache_size", "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.", []string{"type"}, nil)})
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// registerNames registers what is only known of a binder with a lease.
func registerNames(r prometheus.Registerer, lease string, yielded, leads func() int) error {
	return errors.Join(
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_binder_yielded_names", Help: "Scheduler names whose pods the active binder leaves to another scheduler, which holds the lease.",
		}, func() float64 { return float64(yielded()) })),
		// client-go's name and text.
		r.Register(&gauges{func() map[string]int { return map[string]int{lease: leads()} }, prometheus.NewDesc(
			"leader_election_master_status", "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. "+
				"'name' is the string used to identify the lease. Please make sure to group by name.", []string{"name"}, nil)}),
	)
}

// gauges are read when they are asked for.
type gauges struct {
	read func() map[string]int // by the label's value
	desc *prometheus.Desc
}

func (g *gauges) Describe(out chan<- *prometheus.Desc) { out <- g.desc }

func (g *gauges) Collect(out chan<- prometheus.Metric) {
	for label, n := range g.read() {
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(n), label)
	}
}
