package collector

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/cards"
)

// metrics are described in the documentation of the program.
type metrics struct {
	cards    *prometheus.GaugeVec
	readings *prometheus.CounterVec
	seconds  prometheus.Histogram
	writes   *prometheus.CounterVec
	xids     *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, sinceWrite func() float64) (*metrics, error) {
	m := &metrics{
		cards: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "berth_scv_cards", Help: "Cards of the node, by health."}, []string{"health"}),
		readings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_scv_readings_total", Help: "Readings of the cards, by result: ok, absent (there is no driver), failed, or late (after the driver's timeout, if at all).",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_scv_reading_seconds", Help: "How long readings took that have ended.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_scv_writes_total", Help: "Writes of the resource, by result: ok or failed."}, []string{"result"}),
		xids: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_scv_xids_total", Help: "Errors that the driver has told of, by their number (XID), and whether they make a card unhealthy.",
		}, []string{"xid", "critical"}),
	}
	since := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "berth_scv_seconds_since_write", Help: "Seconds since the resource was last written, or since the beginning."}, sinceWrite)
	for _, c := range []prometheus.Collector{m.cards, m.readings, m.seconds, m.writes, m.xids, since} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	for _, result := range []string{"ok", "absent", "failed", "late"} {
		m.readings.WithLabelValues(result)
	}
	for _, result := range []string{"ok", "failed"} {
		m.writes.WithLabelValues(result)
	}
	return m, nil
}

func (m *metrics) read(result string, took time.Duration) {
	m.readings.WithLabelValues(result).Inc()
	m.seconds.Observe(took.Seconds())
}

func (m *metrics) saw(x cards.XID) {
	m.xids.WithLabelValues(strconv.FormatUint(x.Code, 10), strconv.FormatBool(cards.Critical(x.Code))).Inc()
}

func (m *metrics) told(s *scv.Status) {
	m.cards.WithLabelValues(string(scv.Healthy)).Set(float64(s.HealthyNumber))
	m.cards.WithLabelValues(string(scv.Unhealthy)).Set(float64(s.CardNumber - s.HealthyNumber))
}
