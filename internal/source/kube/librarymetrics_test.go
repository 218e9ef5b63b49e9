package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// series returns those of a metric of a host, as code/method.
func seriesOf(t *testing.T, name, host string) map[string]float64 {
	t.Helper()
	families, err := ClientMetrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "rest_client_") {
			t.Errorf("%s is gathered too", f.GetName())
		}
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			labels := make(map[string]string)
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["host"] == host {
				all[labels["code"]+"/"+labels["method"]+labels["verb"]] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return all
}

// An admission webhook may have the API server answer with any status from 400 on, and be anybody's.
func TestRequestsAreMeasuredAsInKubeSchedulerAndNobodyMakesSeries(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure"}`)
	}))
	defer server.Close()
	client, err := newClient(&rest.Config{Host: server.URL}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	const first, last = 400, 999
	for code := first; code <= last; code++ {
		_, _ = client.CoreV1().Pods("n").Get(t.Context(), strconv.Itoa(code), metav1.GetOptions{})
	}
	host := strings.TrimPrefix(server.URL, "http://")
	results := seriesOf(t, "rest_client_requests_total", host)
	total := 0.0
	for _, n := range results {
		total += n
	}
	if total < last-first+1 || results["404/GET"] != 1 || results["4xx/GET"] == 0 || results["5xx/GET"] == 0 || results["other/GET"] != 400 || len(results) > 50 {
		t.Errorf("%v of %d series: %v", total, len(results), results)
	}
	if took := seriesOf(t, "rest_client_request_duration_seconds", host); len(took) != 1 || took["/GET"] != total {
		t.Errorf("latencies: %v, want %v", took, total)
	}
}
