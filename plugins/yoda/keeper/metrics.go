package keeper

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// measured are the metrics of a [Cards]. They are made of it when somebody asks.
type measured struct {
	cards  *Cards
	synced <-chan struct{}

	sync, kinds, nodes, awaited, conflicts, reservations, unsettled, waiting, grants, wakes *prometheus.Desc
}

// Collector returns what measures cards, and whether all has been told that there was at the beginning.
func Collector(cards *Cards, synced <-chan struct{}) prometheus.Collector {
	of := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("yoda_"+name, help, labels, nil)
	}
	return &measured{
		cards: cards, synced: synced,
		sync:         of("synced", "1: the cluster has been read. 0: no card is given yet."),
		kinds:        of("cards", "Cards, by model and state: free, shared, whole (one pod has it), disputed, unhealthy, stale (the collector is silent), withheld (the node gives none).", "model", "state"),
		nodes:        of("nodes", "Nodes, by state: good, no_cards, awaited, stale, no_collector, dra, device_plugin.", "state"),
		awaited:      of("awaited_pods", "Pods on nodes of which it is not known which cards they have. Their nodes give none."),
		conflicts:    of("conflicts", "Cards of which pods have more than there is."),
		reservations: of("reservations", "Reservations of pods that are being placed."),
		unsettled:    of("unsettled", "Reservations that have ended, of whose pods it is not known yet whether they are bound."),
		waiting:      of("waiting_pods", "Pods without a node that ask for cards."),
		grants:       of("grants_total", "Cards asked for by pods that were given a node, by result: given, again (the same ones as before), refused, stood (as recorded).", "result"),
		wakes:        of("wakes_total", "Pods that were said to be worth trying again."),
	}
}

// Describe implements prometheus.Collector.
func (m *measured) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, out) }

// Collect implements prometheus.Collector.
func (m *measured) Collect(out chan<- prometheus.Metric) {
	s := m.cards.Stats(time.Now())
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	counter := func(d *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	synced := 0
	select {
	case <-m.synced:
		synced = 1
	default:
	}
	gauge(m.sync, synced)
	for kind, n := range s.Cards {
		gauge(m.kinds, n, kind.Model, kind.State)
	}
	for state, n := range s.Nodes {
		gauge(m.nodes, n, state)
	}
	gauge(m.awaited, s.Awaited)
	gauge(m.conflicts, s.Conflicts)
	gauge(m.reservations, s.Reservations)
	gauge(m.unsettled, s.Unsettled)
	gauge(m.waiting, s.Waiting)
	counter(m.grants, s.Counts.Given, "given")
	counter(m.grants, s.Counts.Again, "again")
	counter(m.grants, s.Counts.Refused, "refused")
	counter(m.grants, s.Counts.Stood, "stood")
	counter(m.wakes, s.Counts.Wakes)
}
