package queue

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// Values of the label result of scheduler_schedule_attempts_total.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// Values of the labels of scheduler_framework_extension_point_duration_seconds.
const (
	pointFilter     = "Filter"
	pointScore      = "Score"
	pointPostFilter = "PostFilter"
	pointPreEnqueue = "PreEnqueue"

	statusSuccess       = "Success"
	statusUnschedulable = "Unschedulable"
	statusError         = "Error"
)

// Values of the label result of berth_queue_preemptions_total.
const (
	preemptionStarted     = "started"
	preemptionNoCandidate = "no_candidate"
	preemptionNotEligible = "not_eligible"
	preemptionRetry       = "retry"
	preemptionGone        = "gone"
	preemptionError       = "error"
)

// metrics are what a queue member knows. Those that begin with scheduler_ have kube-scheduler's names, labels, buckets
// and meaning; its shards are summed in them:
//
//	scheduler_schedule_attempts_total                      result, profile
//	scheduler_scheduling_attempt_duration_seconds          result, profile
//	scheduler_scheduling_algorithm_duration_seconds
//	scheduler_podgroup_schedule_attempts_total             result, profile
//	scheduler_podgroup_scheduling_attempt_duration_seconds result, profile
//	scheduler_podgroup_scheduling_algorithm_duration_seconds
//	scheduler_framework_extension_point_duration_seconds   extension_point, status, profile
//	scheduler_preemption_attempts_total
//	scheduler_pod_scheduling_sli_duration_seconds          attempts
//	scheduler_pod_scheduling_attempts
//	scheduler_pod_scheduled_after_flush_total
//	scheduler_queue_incoming_pods_total                    queue, event
//	scheduler_pending_pods                                 queue
//	scheduler_unschedulable_pods                           plugin, profile
//	berth_queue_pods                                       shard, state
//	berth_queue_head_wait_seconds                          shard
//	berth_queue_batch_size
//	berth_queue_stage_seconds                              stage
//	berth_queue_retries_total                              reason
//	berth_queue_hedges_total
//	berth_queue_preemptions_total                          result
//	berth_queue_priority_floor_waits_total
//	berth_queue_priority_floor_wait_seconds
//	berth_queue_band_waits_total, berth_queue_band_wait_seconds: the same by their old names, for one release
//	berth_queue_reports_dropped_total
//
// The pods of a batch share the time of a stage, so each of them counts with all of it, as what it waited for. Of
// kube-scheduler's extension points the member runs Filter, Score and PostFilter, and has PreEnqueue run; the binder runs the others.
type metrics struct {
	log                *slog.Logger // of what is counted, in detail
	attempts           *prometheus.CounterVec
	attemptSeconds     *prometheus.HistogramVec
	algorithm          prometheus.Histogram
	groupAttempts      *prometheus.CounterVec
	groupSeconds       *prometheus.HistogramVec
	groupAlgorithm     prometheus.Histogram
	points             *prometheus.HistogramVec
	preemptionAttempts prometheus.Counter
	sli                *prometheus.HistogramVec
	podAttempts        prometheus.Histogram
	afterFlush         prometheus.Counter
	incoming           *prometheus.CounterVec

	batch prometheus.Histogram
	stage *prometheus.HistogramVec
	// retries counts by reason. Reasons binder_… are of questions that the binder was asked again; preempt_resource_exhausted is of pods that
	// back off because of it; each other is of one attempt that came to no end, so that the next one is made at once.
	retries        *prometheus.CounterVec
	hedges         prometheus.Counter
	preemptions    *prometheus.CounterVec
	floorWaits     prometheus.Counter
	floorWait      prometheus.Histogram
	bandWaits      prometheus.Counter   // as floorWaits
	bandWait       prometheus.Histogram // as floorWait
	reportsDropped prometheus.Counter
}

// newMetrics registers the metrics of a queue member; nil keeps none.
func newMetrics(registry prometheus.Registerer, s *Service) (*metrics, error) {
	exponential := prometheus.ExponentialBuckets
	m := &metrics{
		log: s.log,
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total",
			Help: "Attempts to schedule pods, by result. An unschedulable pod fits nowhere; an error is a problem of the scheduler.",
		}, []string{"result", "profile"}),
		attemptSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "scheduler_scheduling_attempt_duration_seconds", Help: "Duration of attempts, from the pop to the bind or the failure.",
			Buckets: exponential(.001, 2, 15),
		}, []string{"result", "profile"}),
		algorithm: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "scheduler_scheduling_algorithm_duration_seconds", Help: "Duration of attempts without the bind.",
			Buckets: exponential(.001, 2, 15),
		}),
		groupAttempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_podgroup_schedule_attempts_total",
			Help: "Attempts to schedule PodGroups, by result. An unschedulable one is not placed, or nothing more of it; an error is a problem of the scheduler.",
		}, []string{"result", "profile"}),
		groupSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "scheduler_podgroup_scheduling_attempt_duration_seconds", Help: "Duration of attempts to schedule PodGroups, from the pop to the binder's answer.",
			Buckets: exponential(.001, 2, 15),
		}, []string{"result", "profile"}),
		groupAlgorithm: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "scheduler_podgroup_scheduling_algorithm_duration_seconds", Help: "How long the binder took to answer for the pods of a PodGroup.",
			Buckets: exponential(.001, 2, 15),
		}),
		points: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "scheduler_framework_extension_point_duration_seconds", Help: "Duration of an extension point for a pod.",
			Buckets: exponential(.0001, 2, 12),
		}, []string{"extension_point", "status", "profile"}),
		preemptionAttempts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_preemption_attempts_total", Help: "Attempts to preempt, also of pods that may not.",
		}),
		sli: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "scheduler_pod_scheduling_sli_duration_seconds",
			Help: "Time from when a pod first was active until it was bound, by the number of its attempts.", Buckets: exponential(.01, 2, 20),
		}, []string{"attempts"}),
		podAttempts: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "scheduler_pod_scheduling_attempts", Help: "Attempts of pods that were bound.", Buckets: exponential(1, 2, 5),
		}),
		afterFlush: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_pod_scheduled_after_flush_total",
			Help: "Pods that were bound after nothing but the flush of unschedulable pods had brought them back.",
		}),
		incoming: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_queue_incoming_pods_total", Help: "Pods that came to a queue, by queue and event.",
		}, []string{"queue", "event"}),

		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_queue_batch_size", Help: "Pods per cycle.", Buckets: exponential(1, 2, 11),
		}),
		stage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_queue_stage_seconds", Help: "Duration of the stages of a cycle.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"stage"}),
		hedges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_queue_hedges_total", Help: "Questions that were put to a second worker because the first took too long.",
		}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_queue_retries_total", Help: "Attempts that had to be made, or sent, again, by reason.",
		}, []string{"reason"}),
		preemptions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_queue_preemptions_total", Help: "Attempts to preempt, by what came of them.",
		}, []string{"result"}),
		floorWaits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_queue_priority_floor_waits_total", Help: "Times a shard had to wait because others worked at higher priorities.",
		}),
		floorWait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_queue_priority_floor_wait_seconds", Help: "How long a shard waited because others worked at higher priorities.",
			Buckets: exponential(.001, 2, 15),
		}),
		bandWaits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_queue_band_waits_total", Help: "Deprecated: use berth_queue_priority_floor_waits_total.",
		}),
		bandWait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_queue_band_wait_seconds", Help: "Deprecated: use berth_queue_priority_floor_wait_seconds.",
			Buckets: exponential(.001, 2, 15),
		}),
		reportsDropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_queue_reports_dropped_total", Help: "Outcomes that were not handed to the binder.",
		}),
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.attempts, m.attemptSeconds, m.algorithm, m.groupAttempts, m.groupSeconds, m.groupAlgorithm, m.points, m.preemptionAttempts, m.sli, m.podAttempts, m.afterFlush, m.incoming,
		m.batch, m.stage, m.retries, m.hedges, m.preemptions, m.floorWaits, m.floorWait, m.bandWaits, m.bandWait, m.reportsDropped, newPodCollector(s),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// outranked counts that a shard begins to wait for others that work at higher priorities.
func (m *metrics) outranked() {
	m.floorWaits.Inc()
	m.bandWaits.Inc()
}

// released counts the end of such a wait.
func (m *metrics) released(took time.Duration) {
	m.floorWait.Observe(took.Seconds())
	m.bandWait.Observe(took.Seconds())
}

// attempt counts an attempt that has ended.
func (m *metrics) attempt(result, profile string, took time.Duration) {
	m.attempts.WithLabelValues(result, profile).Inc()
	m.attemptSeconds.WithLabelValues(result, profile).Observe(took.Seconds())
}

// Incoming implements Observer.
func (m *metrics) Incoming(pod *cluster.Pod, to pending.Place, event string) {
	queue := incomingQueue(to)
	if queue == "" {
		return
	}
	m.incoming.WithLabelValues(queue, event).Inc()
	if log := logs.V(m.log, logs.Moves); log != nil {
		log.Info("Pod moved to an internal scheduling queue", "pod", pod.Namespace+"/"+pod.Name, "event", event, "queue", queue)
	}
}

// incomingQueue returns which queue pods come to, for kube-scheduler: it keeps those with gates among the unschedulable.
func incomingQueue(to pending.Place) string {
	switch to {
	case pending.Active, pending.Backoff:
		return to.String()
	case pending.Unschedulable, pending.Gated:
		return pending.Unschedulable.String()
	}
	return ""
}

// Scheduled implements Observer.
func (m *metrics) Scheduled(attempts int32, took time.Duration, flushed bool) {
	label := "15+"
	if attempts < 15 {
		label = strconv.Itoa(int(attempts))
	}
	m.sli.WithLabelValues(label).Observe(took.Seconds())
	m.podAttempts.Observe(float64(attempts))
	if flushed {
		m.afterFlush.Inc()
	}
}

// Unresolved implements Observer.
func (m *metrics) Unresolved() { m.retries.WithLabelValues("unresolved").Inc() }

// podCollector counts the pods of the owned shards when it is asked.
type podCollector struct {
	s                                   *Service
	pods, head, pending, unschedulables *prometheus.Desc
}

func newPodCollector(s *Service) *podCollector {
	return &podCollector{
		s:    s,
		pods: prometheus.NewDesc("berth_queue_pods", "Pods of the owned shards, by state.", []string{"shard", "state"}, nil),
		head: prometheus.NewDesc("berth_queue_head_wait_seconds",
			"How long the pod that is the next one of a shard waits for an attempt: since it was created, or its last attempt failed. 0 if none is active.",
			[]string{"shard"}, nil),
		pending: prometheus.NewDesc("scheduler_pending_pods",
			"Pods that wait, by queue: active, backoff, unschedulable, or gated, which no attempt has been made for.", []string{"queue"}, nil),
		unschedulables: prometheus.NewDesc("scheduler_unschedulable_pods",
			"Pods whose last attempt failed, by plugin. One counts for every plugin that was against some node.",
			[]string{"plugin", "profile"}, nil),
	}
}

func (c *podCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.pods
	out <- c.head
	out <- c.pending
	out <- c.unschedulables
}

func (c *podCollector) Collect(out chan<- prometheus.Metric) {
	var sum [pending.Places]int
	for shard, counts := range c.s.depths() {
		for p, n := range counts {
			out <- prometheus.MustNewConstMetric(c.pods, prometheus.GaugeValue, float64(n), strconv.Itoa(int(shard)), pending.Place(p).String())
			sum[p] += n
		}
	}
	for shard, waits := range c.s.headWaits(time.Now()) {
		out <- prometheus.MustNewConstMetric(c.head, prometheus.GaugeValue, waits.Seconds(), strconv.Itoa(int(shard)))
	}
	for _, p := range []pending.Place{pending.Active, pending.Backoff, pending.Unschedulable, pending.Gated} {
		out <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, float64(sum[p]), p.String())
	}
	for key, n := range c.s.rejected() {
		out <- prometheus.MustNewConstMetric(c.unschedulables, prometheus.GaugeValue, float64(n), key.plugin, key.profile)
	}
}

// headWaits returns how long the first active pod of each owned shard has waited.
func (s *Service) headWaits(now time.Time) map[int32]time.Duration {
	waits := make(map[int32]time.Duration)
	for _, sh := range s.owned() {
		sh.mu.Lock()
		waits[sh.number] = sh.queue.HeadWait(now)
		sh.mu.Unlock()
	}
	return waits
}

// rejecter is a plugin that is against pods of a profile.
type rejecter struct{ plugin, profile string }

// rejected returns how many pods of the owned shards each plugin is against, by their last attempts. None if there is no
// state at the moment.
func (s *Service) rejected() map[rejecter]int {
	counts := make(map[rejecter]int)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error {
		for _, sh := range s.owned() {
			sh.mu.Lock()
			for what, pods := range sh.queue.Rejected() {
				if c := st.Class(what.Class); c != nil {
					counts[rejecter{what.Plugin, c.Spec.SchedulerName}] += pods
				}
			}
			sh.mu.Unlock()
		}
		return nil
	})
	return counts
}
