package queue

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	batch          prometheus.Histogram
	stage          *prometheus.HistogramVec
	retries        *prometheus.CounterVec
	reportsDropped prometheus.Counter
}

// newMetrics registers the metrics of a queue member; nil keeps none.
func newMetrics(registry prometheus.Registerer, depths func() map[int32][places]int) (*metrics, error) {
	m := &metrics{
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_queue_batch_size", Help: "Pods per cycle.", Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}),
		stage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_queue_stage_seconds", Help: "Duration of the stages of a cycle.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"stage"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_queue_retries_total", Help: "Attempts that had to be made, or sent, again, by reason.",
		}, []string{"reason"}),
		reportsDropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_queue_reports_dropped_total", Help: "Outcomes that were not handed to the binder.",
		}),
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.batch, m.stage, m.retries, m.reportsDropped, newDepthCollector(depths)} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// depthCollector reads the depths of the owned shards when it is asked.
type depthCollector struct {
	pods   *prometheus.Desc
	depths func() map[int32][places]int
}

func newDepthCollector(depths func() map[int32][places]int) *depthCollector {
	return &depthCollector{
		pods:   prometheus.NewDesc("berth_queue_pods", "Pods of the owned shards, by state.", []string{"shard", "state"}, nil),
		depths: depths,
	}
}

func (c *depthCollector) Describe(out chan<- *prometheus.Desc) { out <- c.pods }

func (c *depthCollector) Collect(out chan<- prometheus.Metric) {
	for shard, counts := range c.depths() {
		for p, n := range counts {
			out <- prometheus.MustNewConstMetric(c.pods, prometheus.GaugeValue, float64(n), strconv.Itoa(int(shard)), Place(p).String())
		}
	}
}
