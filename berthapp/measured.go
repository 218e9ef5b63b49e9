package berthapp

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// measuredPercent is of how many attempts in a hundred it is measured how long each call of a plugin takes, as in kube-scheduler: its pluginMetricsSamplePercent.
const measuredPercent = 10

// measures has it measured how long plugins take in an attempt, or not.
func measures(state *framework.CycleState) {
	state.SetRecordPluginMetrics(rand.IntN(100) < measuredPercent)
}

// filterPlugin and scorePlugin are plugins whose calls are counted, as kube-scheduler's framework counts them.
type (
	filterPlugin struct {
		fwk.FilterPlugin
		calls basemetrics.CounterMetric
		took  func(status *fwk.Status, since time.Time)
	}
	scorePlugin struct {
		fwk.ScorePlugin
		calls basemetrics.CounterMetric
		took  func(status *fwk.Status, since time.Time)
	}
)

func (m *maker) filterPlugin(plugin fwk.FilterPlugin, schedulerName string) *filterPlugin {
	return &filterPlugin{plugin, metrics.PluginEvaluationTotal.WithLabelValues(plugin.Name(), metrics.Filter, schedulerName), m.took(metrics.Filter, plugin.Name())}
}

func (m *maker) scorePlugin(plugin fwk.ScorePlugin, schedulerName string) *scorePlugin {
	return &scorePlugin{plugin, metrics.PluginEvaluationTotal.WithLabelValues(plugin.Name(), metrics.Score, schedulerName), m.took(metrics.Score, plugin.Name())}
}

// took returns what measures how long a plugin has taken at a point.
func (m *maker) took(point, plugin string) func(status *fwk.Status, since time.Time) {
	return func(status *fwk.Status, since time.Time) {
		m.measures.ObservePluginDurationAsync(point, plugin, status.Code().String(), metrics.SinceInSeconds(since))
	}
}

func (p *filterPlugin) Filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	p.calls.Inc()
	if !state.ShouldRecordPluginMetrics() {
		return p.FilterPlugin.Filter(ctx, state, pod, node)
	}
	began := time.Now()
	status := p.FilterPlugin.Filter(ctx, state, pod, node)
	p.took(status, began)
	return status
}

func (p *scorePlugin) Score(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	p.calls.Inc()
	if !state.ShouldRecordPluginMetrics() {
		return p.ScorePlugin.Score(ctx, state, pod, node)
	}
	began := time.Now()
	score, status := p.ScorePlugin.Score(ctx, state, pod, node)
	p.took(status, began)
	return score, status
}

// metricsTimeout is how long a request for what is measured may take to come.
const metricsTimeout = 5 * time.Second

// serveMetrics serves what the process measures, plugins' own metrics among it, until end is called.
func serveMetrics(socket string) (end func(), err error) {
	l, err := listen(socket)
	if err != nil {
		return nil, err
	}
	handler, one := legacyregistry.Handler(), make(chan struct{}, 1)
	server, served := &http.Server{ReadTimeout: metricsTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case one <- struct{}{}: // what plugins measure may hang
			defer func() { <-one }()
			handler.ServeHTTP(w, r)
		default:
			http.Error(w, "another one asks", http.StatusServiceUnavailable)
		}
	})}, make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // until it is closed
	}()
	return func() { _ = server.Close(); <-served }, nil
}
