package kube

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/tools/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // what client-go measures of its requests
)

// ClientMetrics are what client-go measures of requests to API servers, for all of a process, as in kube-scheduler.
var ClientMetrics = LibraryMetrics{"rest_client_*"}

// LibraryMetrics gathers what Kubernetes' libraries measure, for all of a process, of some metrics: by their names, of which those that end with a star are the beginnings.
type LibraryMetrics []string

// Gather implements prometheus.Gatherer.
func (m LibraryMetrics) Gather() ([]*dto.MetricFamily, error) {
	all, err := legacyregistry.DefaultGatherer.Gather()
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return !m.has(f.GetName()) }), err
}

func (m LibraryMetrics) has(name string) bool {
	return slices.ContainsFunc(m, func(one string) bool {
		begins, is := strings.CutSuffix(one, "*")
		return name == one || is && strings.HasPrefix(name, begins)
	})
}

var _ prometheus.Gatherer = LibraryMetrics(nil)

// The statuses of answers are anybody's who has a webhook. client-go knows one set of metrics for all of a process, which is there when package restclient is; nobody has asked
// for anything yet.
var _ = boundStatuses()

func boundStatuses() bool {
	metrics.RequestResult, metrics.RequestRetry = boundedResult{metrics.RequestResult}, boundedRetry{metrics.RequestRetry}
	return true
}

type boundedResult struct{ metrics.ResultMetric }

// Increment implements metrics.ResultMetric.
func (b boundedResult) Increment(ctx context.Context, code, method, host string) {
	b.ResultMetric.Increment(ctx, boundedStatus(code), method, host)
}

type boundedRetry struct{ metrics.RetryMetric }

// IncrementRetry implements metrics.RetryMetric.
func (b boundedRetry) IncrementRetry(ctx context.Context, code, method, host string) {
	b.RetryMetric.IncrementRetry(ctx, boundedStatus(code), method, host)
}

// boundedStatus returns what a metric calls a status: what is no number, as "<error>", is its own name.
func boundedStatus(code string) string {
	n, err := strconv.Atoi(code)
	if err != nil {
		return code
	}
	return nameOfStatus(n)
}

// nameOfStatus returns what a metric calls a status of HTTP. A webhook that denies may say any from 400 on, and be anybody's: of those
// that HTTP does not know, 4xx are one, 5xx are one, and so are the others.
func nameOfStatus(code int) string {
	switch {
	case code == 0 || http.StatusText(code) != "":
		return strconv.Itoa(code)
	case code >= 400 && code < 500:
		return "4xx"
	case code >= 500 && code < 600:
		return "5xx"
	}
	return "other"
}
