package doctor

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// etcd finds how fast the API server's etcd is, and how full, by the API server's metrics.
func (x *examined) etcd(ctx context.Context) ([]Finding, error) {
	response, text, err := x.get(ctx, "/metrics", "")
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return []Finding{{Level: Note, What: fmt.Sprintf("how fast and how full the API server's etcd is could not be seen: /metrics is answered with %s", response.Status),
			Fix: "run this with the kubeconfig of an administrator too"}}, nil
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	var out []Finding
	if f := families["etcd_request_duration_seconds"]; f != nil {
		n, p99 := quantile(f, 0.99, "create", "update")
		what := fmt.Sprintf("the API server's etcd takes up to %v s for 99 of 100 writes (%d since the API server began)", p99, n)
		switch {
		case n == 0:
		case p99 > slowWrite:
			out = append(out, Finding{Level: Note, What: what, Fix: "give etcd a faster disk, or one of its own: each bind is a write"})
		default:
			out = append(out, Finding{Level: OK, What: what})
		}
	}
	if f := families["apiserver_storage_size_bytes"]; f != nil {
		var size float64
		for _, m := range f.Metric {
			size = max(size, m.GetGauge().GetValue())
		}
		found := Finding{Level: OK, What: fmt.Sprintf("it holds %.0f MiB", size/(1<<20))}
		switch {
		case size > largeEtcd:
			found.Level, found.Fix = Fail, "make room: compact and defragment it. When it is full, nothing is bound"
		case size > defaultSize*3/4:
			found.Level, found.Fix = Note, "see how much it takes: 2 GiB, if its --quota-backend-bytes says nothing else. When it is full, nothing is bound"
		}
		out = append(out, found)
	}
	if len(out) == 0 {
		return []Finding{{Level: Note, What: "the API server's metrics say nothing of its etcd"}}, nil
	}
	return out, nil
}

// quantile returns how many of some operations a histogram has, and the bound of the bucket in which the q-th of them is.
func quantile(f *dto.MetricFamily, q float64, operations ...string) (n uint64, bound float64) {
	counts := make(map[float64]uint64)
	for _, m := range f.Metric {
		for _, l := range m.Label {
			if l.GetName() != "operation" {
				continue
			}
			for _, operation := range operations {
				if l.GetValue() != operation {
					continue
				}
				n += m.GetHistogram().GetSampleCount()
				for _, b := range m.GetHistogram().Bucket {
					counts[b.GetUpperBound()] += b.GetCumulativeCount()
				}
			}
		}
	}
	for b, count := range counts {
		if float64(count) >= q*float64(n) && (bound == 0 || b < bound) {
			bound = b
		}
	}
	return n, bound
}
