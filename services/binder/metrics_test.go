package binder

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
)

// counts returns what the binder has counted by a label's value, and under "" what has no label.
func counts(t *testing.T, r *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name {
				continue
			}
			label := ""
			for _, l := range m.GetLabel() {
				label += l.GetValue()
			}
			out[label] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	return out
}

func none() map[string]int { return nil }

// counted gives a term metrics that can be read.
func counted(t *testing.T, term *term) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewRegistry()
	depths := func() map[string]int { return map[string]int{laneReports: term.reports.depth()} }
	var err error
	if term.metrics, err = newMetrics(r, depths, none); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPodsThatDoNotGetTheirPlaceAreCountedByReason(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	r := counted(t, term)
	observe(t, term, node("a", 1000), node("b", 500), pod("fits", 100), pod("huge", 5000), pod("gone", 100))
	st := term.ledger.state
	req := requestOf(st, evaluate(st, 10), 1, "fits", "huge", "gone")
	observe(t, term, gone("gone"))
	commitPods(t, term, req)
	if _, _, err := term.ledger.forget(source.Binding{UID: "fits", Node: "a"}, "", noNode); err != nil {
		t.Fatal(err)
	}
	commitPods(t, term, req) // the attempt of fits is over
	for i := range 2 {
		refused := clone(req)
		if i == 0 {
			refused.Version.Epoch++
		} else {
			refused.ShardRevision = 0
		}
		if _, err := term.commit(refused); err == nil {
			t.Error("it was not refused")
		}
	}
	want := map[string]float64{"gone": 2, "no_fit": 2, "retry": 1, "other_epoch": 3, "shard_lost": 3}
	if diff := cmp.Diff(want, counts(t, r, "berth_binder_conflicts_total")); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
}

func TestPreemptionsAreCounted(t *testing.T) {
	src := newFakeSource()
	term, req := full(t, src, 3)
	r := counted(t, term)
	other := preemptOf(term.ledger.state, "high", "a", "v0")
	if resp, err := term.preempt(other); err != nil || resp.GetResult() != binderv1.PreemptResponse_RESULT_RETRY {
		t.Fatalf("preempt: %v, %v", resp, err)
	}
	p := begin(t, term, req)
	var mu sync.Mutex
	tries := 0
	src.refuse = func(e source.Eviction) error {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries == 1 {
			return errFake
		}
		return nil
	}
	if err := term.carryOut(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]map[string]float64{
		"scheduler_preemption_victims":                    {"": 3},
		"scheduler_preemption_goroutines_execution_total": {"success": 1},
		"berth_binder_evictions_total":                    {"done": 3, "failed": 1},
		"berth_binder_conflicts_total":                    {"victims": 1},
		"berth_binder_lane_depth":                         {"reports": 1},
	} {
		if diff := cmp.Diff(want, counts(t, r, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestMetricsThatClashAreAnError(t *testing.T) {
	r := prometheus.NewRegistry()
	if _, err := newMetrics(r, none, none); err != nil {
		t.Fatal(err)
	}
	if _, err := newMetrics(r, none, none); err == nil {
		t.Error("registered twice")
	}
}

func TestLanesAndLedgerAreMeasuredAtAllTimes(t *testing.T) {
	etcd, src, r := startEtcd(t), newFakeSource(), prometheus.NewRegistry()
	src.setNode(node("a", 1000))
	src.setPod(on(pod("bound", 100), "a"))
	src.setPod(pod("assumed", 100))
	src.setPod(pod("waits", 100))
	src.answers(func(source.Binding) source.Outcome { return source.Outcome{Result: source.BindUnknown, Err: errFake} })
	b := start(t, etcd, src, func(c *Config) { c.Metrics = r })
	b.active()
	b.commit(b.request(1, "assumed"))
	want := map[string]float64{"nodes": 1, "pods": 2, "assumed_pods": 1}
	if diff := cmp.Diff(want, counts(t, r, "scheduler_cache_size")); diff != "" {
		t.Errorf("while active (-want +got):\n%s", diff)
	}
	b.stop()
	want = map[string]float64{"nodes": 0, "pods": 0, "assumed_pods": 0}
	if diff := cmp.Diff(want, counts(t, r, "scheduler_cache_size")); diff != "" {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
	want = map[string]float64{"binds": 0, "late_binds": 0, "events": 0, "reports": 0, "preemptions": 0, "volumes": 0, "preparing": 0, "steps": 0}
	if diff := cmp.Diff(want, counts(t, r, "berth_binder_lane_depth")); diff != "" {
		t.Errorf("lanes (-want +got):\n%s", diff)
	}
}
