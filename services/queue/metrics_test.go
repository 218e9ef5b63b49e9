package queue_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/berth-scheduler/berth/internal/cluster"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
)

// samples returns every metric as `name{label="value"}` with its value, or its count if it is a histogram.
func samples(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName()
			if labels != nil {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			all[name] = value(m)
		}
	}
	return all
}

func value(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	}
	return float64(m.GetHistogram().GetSampleCount())
}

// measured returns a world with a registry, in which one pod is bound, one waits for room, one for its victim, and one
// has a gate.
func measured(t *testing.T) (*world, *prometheus.Registry) {
	checkLeaks(t)
	w := newWorld(t, 2)
	registry := prometheus.NewRegistry()
	w.metrics = registry
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.ledger.node("n2", 100)
	w.ledger.pod("low", 1000, bound("n1"))
	q, _ := w.queueMember("q1")
	w.ledger.pod("fits", 100, nil)
	w.untilPlaced("fits")
	w.ledger.apply(cluster.PodBound{ID: 1})
	w.ledger.pod("stuck", 500, nil)
	w.ledger.pod("gated", 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Gates = []string{"wait"} })
	untilState(t, q, "stuck", queuev1.State_STATE_UNSCHEDULABLE)
	untilState(t, q, "gated", queuev1.State_STATE_GATED)
	w.ledger.pod("high", 600, priority(10))
	until(t, "high is nominated", func() bool { return w.row("high").Nominated != "" })
	until(t, "high is not in flight", func() bool { return pending(t, q)["high"].GetState() != queuev1.State_STATE_IN_FLIGHT })
	return w, registry
}

func TestMetricsMeanWhatTheyMeanInKubeScheduler(t *testing.T) {
	_, registry := measured(t)
	got := samples(t, registry)
	for name, want := range map[string]float64{
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"}`:                                                     1,
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"}`:                                                 2,
		`scheduler_scheduling_attempt_duration_seconds{profile="default-scheduler",result="scheduled"}`:                                         1,
		`scheduler_scheduling_attempt_duration_seconds{profile="default-scheduler",result="unschedulable"}`:                                     2,
		`scheduler_scheduling_algorithm_duration_seconds`:                                                                                       3,
		`scheduler_framework_extension_point_duration_seconds{extension_point="Filter",profile="default-scheduler",status="Success"}`:           3,
		`scheduler_framework_extension_point_duration_seconds{extension_point="Score",profile="default-scheduler",status="Success"}`:            1,
		`scheduler_framework_extension_point_duration_seconds{extension_point="PostFilter",profile="default-scheduler",status="Success"}`:       1,
		`scheduler_framework_extension_point_duration_seconds{extension_point="PostFilter",profile="default-scheduler",status="Unschedulable"}`: 1,
		`scheduler_preemption_attempts_total`:                                                    2,
		`scheduler_pod_scheduling_sli_duration_seconds{attempts="1"}`:                            1,
		`scheduler_pod_scheduling_attempts`:                                                      1,
		`scheduler_pod_scheduled_after_flush_total`:                                              0,
		`scheduler_pending_pods{queue="active"}`:                                                 0,
		`scheduler_pending_pods{queue="backoff"}`:                                                0,
		`scheduler_unschedulable_pods{plugin="SchedulingGates",profile="default-scheduler"}`:     1,
		`scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="default-scheduler"}`:    2,
		`scheduler_queue_incoming_pods_total{event="UnschedulablePodAdd",queue="active"}`:        3,
		`scheduler_queue_incoming_pods_total{event="UnschedulablePodAdd",queue="unschedulable"}`: 1,
		`berth_queue_preemptions_total{result="started"}`:                                        1,
		`berth_queue_preemptions_total{result="no_candidate"}`:                                   1,
		`berth_queue_priority_floor_waits_total`:                                                 0,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	waiting := got[`scheduler_pending_pods{queue="unschedulable"}`] + got[`scheduler_pending_pods{queue="gated"}`]
	if waiting != 3 {
		t.Errorf("%v pods are unschedulable or gated, want 3", waiting)
	}
}

func TestMetricsShowTheDepthOfEveryShard(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	registry := prometheus.NewRegistry()
	w.metrics = registry
	q, _ := w.queueMember("q1")
	w.ledger.pod("p", 100, nil)
	for _, name := range []string{"gated", "gated too"} {
		w.ledger.pod(name, 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Gates = []string{"wait"} })
	}
	until(t, "all are held", func() bool { return len(pending(t, q)) == 3 })
	got := samples(t, registry)
	if n := got[`scheduler_unschedulable_pods{plugin="SchedulingGates",profile="default-scheduler"}`]; n != 2 {
		t.Errorf("%v pods of a class are gated, want 2", n)
	}
	maps.DeleteFunc(got, func(name string, _ float64) bool { return !strings.HasPrefix(name, "berth_queue_pods") })
	want := map[string]float64{
		`berth_queue_pods{shard="0",state="active"}`: 1, `berth_queue_pods{shard="0",state="gated"}`: 2,
		`berth_queue_pods{shard="0",state="backoff"}`: 0, `berth_queue_pods{shard="0",state="unschedulable"}`: 0,
		`berth_queue_pods{shard="0",state="in_flight"}`: 0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("berth_queue_pods (-want +got):\n%s", diff)
	}
}

func TestMetricsAreNamedAsPrometheusWants(t *testing.T) {
	_, registry := measured(t)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	var names []string
	for _, f := range families {
		for _, l := range f.GetMetric()[0].GetLabel() {
			if l.GetName() == "shard" && strings.HasPrefix(f.GetName(), "scheduler_") {
				t.Errorf("%s has the label shard, which kube-scheduler does not know", f.GetName())
			}
		}
		names = append(names, f.GetName())
	}
	want := []string{
		"berth_queue_band_wait_seconds", "berth_queue_band_waits_total", "berth_queue_batch_size", "berth_queue_head_wait_seconds",
		"berth_queue_hedges_total", "berth_queue_pods",
		"berth_queue_preemptions_total", "berth_queue_priority_floor_wait_seconds", "berth_queue_priority_floor_waits_total", "berth_queue_reports_dropped_total", "berth_queue_stage_seconds",
		"scheduler_framework_extension_point_duration_seconds", "scheduler_pending_pods",
		"scheduler_pod_scheduled_after_flush_total", "scheduler_pod_scheduling_attempts",
		"scheduler_pod_scheduling_sli_duration_seconds", "scheduler_podgroup_scheduling_algorithm_duration_seconds",
		"scheduler_preemption_attempts_total",
		"scheduler_queue_incoming_pods_total", "scheduler_schedule_attempts_total",
		"scheduler_scheduling_algorithm_duration_seconds", "scheduler_scheduling_attempt_duration_seconds",
		"scheduler_unschedulable_pods",
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "berth_queue_retries_total" }) // there may be none
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// Nothing is kept of such an attempt: what the log tells of the pod later, in a month perhaps, is not its end.
func TestAttemptOfAPodWhoseBindWasToldBeforeItsCommitIsNotMeasuredLater(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	registry := prometheus.NewRegistry()
	w.metrics = registry
	w.ledger.node("n1", 1000)
	w.filterWorker("f1", func(call int64) {
		if call == 1 { // somebody else binds it, after it was popped
			p := w.row("p").Pod
			p.NodeName = "n1"
			w.ledger.apply(cluster.PodSet{ID: 0, Pod: p})
		}
	})
	w.scoreWorker("s1")
	w.ledger.pod("p", 100, nil)
	w.queueMember("q1")
	until(t, "its commit", func() bool { return len(w.binder.sent()) == 1 })
	w.ledger.pod("next", 100, nil) // of the same shard, whose cycles come one after the other
	w.untilPlaced("next")
	p := w.row("p").Pod
	p.NeverPreempts = true
	w.ledger.apply(cluster.PodSet{ID: 0, Pod: p})
	for name, n := range samples(t, registry) {
		if strings.HasPrefix(name, "scheduler_schedule_attempts_total") && strings.Contains(name, `"scheduled"`) && n != 0 {
			t.Errorf("%s is %v, though nothing that was placed is bound", name, n)
		}
	}
}
