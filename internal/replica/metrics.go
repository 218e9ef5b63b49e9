package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// feedMetrics count what a Feed does.
type feedMetrics struct {
	followers prometheus.Gauge
	snapshots prometheus.Counter
	cutOff    prometheus.Counter
}

func newFeedMetrics(r prometheus.Registerer) feedMetrics {
	return feedMetrics{
		followers: registered(r, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_log_followers", Help: "Number of streams that follow the log.",
		})),
		snapshots: registered(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_log_snapshots_sent_total", Help: "Total number of snapshots of the ledger sent to followers.",
		})),
		cutOff: registered(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_log_followers_cut_off_total", Help: "Total number of followers cut off because they read too slowly.",
		})),
	}
}

// replicaMetrics count what a Replica does.
type replicaMetrics struct {
	snapshots prometheus.Counter
	deltas    prometheus.Counter
	resyncs   *prometheus.CounterVec
}

func newReplicaMetrics(r prometheus.Registerer, of *Replica) replicaMetrics {
	registered(r, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_replica_lag_deltas", Help: "How many deltas of the binder's log the replica has not applied, as last heard.",
	}, func() float64 { return float64(of.lag()) }))
	registered(r, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_replica_age_seconds", Help: "Time since the binder last spoke of the replica's state; -1 before the first snapshot.",
	}, func() float64 {
		if heard := of.Heard(); !heard.IsZero() {
			return time.Since(heard).Seconds()
		}
		return -1
	}))
	return replicaMetrics{
		snapshots: registered(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_replica_snapshots_total", Help: "Total number of snapshots loaded.",
		})),
		deltas: registered(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_replica_deltas_total", Help: "Total number of deltas applied, without those of snapshots.",
		})),
		resyncs: registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_replica_resyncs_total",
			Help: "Total number of times the replica dropped its state because it could not trust it, by reason.",
		}, []string{"reason"})),
	}
}

// registered registers c, or returns the equal collector that another replica of the process registered before, which
// then counts for both (gauges go on showing that other one).
// It panics if the registry holds a different collector under its name: a programming error.
func registered[C prometheus.Collector](r prometheus.Registerer, c C) C {
	if r == nil {
		return c
	}
	err := r.Register(c)
	if earlier := (prometheus.AlreadyRegisteredError{}); errors.As(err, &earlier) {
		if existing, ok := earlier.ExistingCollector.(C); ok {
			return existing
		}
	}
	if err != nil {
		panic(fmt.Sprintf("register metrics of the log: %v", err))
	}
	return c
}
