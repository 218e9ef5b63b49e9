package roles

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// gathered returns the samples as text, without comments.
func gathered(t *testing.T, m *memberMetrics) string {
	t.Helper()
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func TestMetricsThatKubeSchedulerHasAreSummedAndOthersNameTheMember(t *testing.T) {
	m := newMemberMetrics()
	m.common.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "process_things"}, func() float64 { return 1 }))
	for member, n := range map[string]float64{"queue-0": 2, "queue-1": 5} {
		attempts := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scheduler_schedule_attempts_total"}, []string{"result", "profile"})
		attempts.WithLabelValues("scheduled", "default-scheduler").Add(n)
		attempts.WithLabelValues("error", member).Inc()
		pending := prometheus.NewGauge(prometheus.GaugeOpts{Name: "scheduler_pending_pods"})
		pending.Set(n)
		took := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_took_seconds", Buckets: []float64{3}})
		took.Observe(n)
		own := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_retries_total"}, []string{"reason"})
		own.WithLabelValues("busy").Add(n)
		m.of(member).MustRegister(attempts, pending, took, own)
	}
	const want = `berth_retries_total{member="queue-0",reason="busy"} 2
berth_retries_total{member="queue-1",reason="busy"} 5
process_things 1
scheduler_pending_pods 7
scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 7
scheduler_schedule_attempts_total{profile="queue-0",result="error"} 1
scheduler_schedule_attempts_total{profile="queue-1",result="error"} 1
scheduler_took_seconds_bucket{le="3"} 1
scheduler_took_seconds_bucket{le="+Inf"} 2
scheduler_took_seconds_sum 7
scheduler_took_seconds_count 2
`
	for range 2 { // gathering changes nothing
		if got := gathered(t, m); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

func TestMembersThatDisagreeOnAMetricAreNamed(t *testing.T) {
	m := newMemberMetrics()
	m.of("a").MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "scheduler_things"}))
	m.of("b").MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "scheduler_things"}))
	if _, err := m.Gather(); err == nil || !strings.Contains(err.Error(), "scheduler_things") {
		t.Errorf("a gauge and a counter of one name: %v", err)
	}
}
