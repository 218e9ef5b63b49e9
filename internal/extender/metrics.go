package extender

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// largeRequest is from how many bytes on a request is told of as large: servers have bounds of their own, and refuse what is larger. Real ones have 10 MiB.
const largeRequest = 8 << 20

// NewObserver returns an Observer that measures calls and registers what it measures, nil for nowhere. The first request to an extender that is large is
// logged, and each that is twice as large as the one that was logged last.
func NewObserver(r prometheus.Registerer, log *slog.Logger) (Observer, error) {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "berth_extender_call_seconds", Help: "Time of one call to an extender, by its urlPrefix, by what it was asked (filter, prioritize, bind, preempt), and whether it has answered (ok, failed).",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
	}, []string{"extender", "verb", "result"})
	size := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "berth_extender_request_bytes", Help: "Size of the body of a request to an extender, by its urlPrefix. Servers have bounds of their own.",
		Buckets: prometheus.ExponentialBuckets(1<<10, 4, 9),
	}, []string{"extender"})
	var mu sync.Mutex
	told := make(map[string]int) // how large the request was that was logged last, by extender
	observe := func(c Call) {
		result := "ok"
		if c.Err != nil {
			result = "failed"
		}
		seconds.WithLabelValues(c.Extender, string(c.Verb), result).Observe(c.Took.Seconds())
		size.WithLabelValues(c.Extender).Observe(float64(c.RequestBytes))
		mu.Lock()
		defer mu.Unlock()
		if c.RequestBytes >= max(largeRequest, 2*told[c.Extender]) {
			told[c.Extender] = c.RequestBytes
			log.Warn("requests to an extender are large: its server may refuse what is larger than it takes; nodeCacheCapable makes them small",
				"extender", c.Extender, "what", c.Verb, "bytes", c.RequestBytes)
		}
	}
	if r == nil {
		return observe, nil
	}
	return observe, errors.Join(r.Register(seconds), r.Register(size))
}
