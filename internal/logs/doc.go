// Package logs writes log lines as Kubernetes' own components do: as klog's text, and as the JSON of k8s.io/component-base, for whom
// there are parsers. A line of slog at level Info-N is one of klog's at verbosity N.
package logs
