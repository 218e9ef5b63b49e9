package secureport

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/metrics/prometheus/slis"

	"github.com/berth-scheduler/berth/internal/member"
)

// Component is what kube-scheduler calls itself.
const Component = "kube-scheduler"

// Release is the release of Kubernetes whose kube-scheduler this is in the place of.
const Release = member.Kubernetes

// flags implements flagz.Reader.
type flags map[string]string

// GetFlagz implements flagz.Reader.
func (f flags) GetFlagz() map[string]string { return f }

// handlers collects what is installed.
type handlers map[string]http.Handler

// Handle adds one.
func (h handlers) Handle(path string, handler http.Handler) { h[path] = handler }

// Structured returns what answers requests for a path, /flagz or /statusz, in JSON, YAML and whatever else kube-scheduler's pages are served in.
func Structured(flagValues map[string]string) func(path string, paths []string) http.Handler {
	return func(path string, paths []string) http.Handler {
		all := make(handlers)
		flagz.Install(all, Component, flags(flagValues))
		statusz.Install(all, Component, statusz.NewRegistry(compatibility.NewEffectiveVersionFromString(Release, "", ""), statusz.WithListedPaths(paths)))
		return all[path]
	}
}

// SLIs returns what answers /metrics/slis, and what is to hear of each check of health.
func SLIs() (path string, handler http.Handler, observe func(ctx context.Context, endpoint, check string, healthy bool)) {
	all := make(handlers)
	slis.SLIMetricsWithReset{}.Install(all)
	path = "/metrics/slis"
	return path, all[path], func(ctx context.Context, endpoint, check string, healthy bool) {
		status := slis.Success
		if !healthy {
			status = slis.Error
		}
		_ = slis.ObserveHealthcheck(ctx, check, endpoint, status) // of another status it would not know
	}
}
