package roles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

const (
	// hostedWithin is how long a process with compiled-in plugins may take to say what it measures, and hostedMost is how much it may say, in bytes.
	hostedWithin = 2 * time.Second
	hostedMost   = 8 << 20
)

// hosted is what a process with the compiled-in plugins of a profile measures: what kube-scheduler does of plugins, under the same names, and what plugins measure themselves.
type hosted struct {
	profile string
	client  *http.Client
}

// newHosted returns what a process measures that serves it on a socket.
func newHosted(profile, socket string) *hosted {
	return &hosted{profile, &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true, // the process may be another one the next time
	}}}
}

// gather returns that, each with the profile as a label.
func (h *hosted) gather(ctx context.Context) (out []*dto.MetricFamily, err error) {
	ctx, cancel := context.WithTimeout(ctx, hostedWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://plugins/metrics", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	response, err := h.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %s", response.Status)
	}
	body := &io.LimitedReader{R: response.Body, N: hostedMost}
	for decoder := expfmt.NewDecoder(body, expfmt.NewFormat(expfmt.TypeTextPlain)); ; {
		f := new(dto.MetricFamily)
		switch err := decoder.Decode(f); {
		case errors.Is(err, io.EOF) && body.N <= 0:
			return nil, fmt.Errorf("more than %d bytes", hostedMost)
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		}
		if !ofPlugins(f.GetName()) {
			continue
		}
		for _, m := range f.Metric {
			setLabel(m, "profile", h.profile)
		}
		out = append(out, f)
	}
}

// ofPlugins reports whether a metric of a process with plugins is about these: of kube-scheduler's, Berth serves the others itself, and the rest is of libraries.
func ofPlugins(name string) bool {
	switch name {
	case "scheduler_plugin_execution_duration_seconds", "scheduler_plugin_evaluation_total", "scheduler_queueing_hint_execution_duration_seconds":
		return true
	}
	return !slices.ContainsFunc([]string{
		"scheduler_", "berth_", "go_", "process_", "promhttp_", "grpc_", "rest_client_", "workqueue_", "leader_election_", "kubernetes_", "apiserver_", "authentication_", "authorization_",
		"aggregator_", "cardinality_", "registered_metric", "disabled_metric", "hidden_metric", "etcd_", "field_validation_", "version_",
	}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// setLabel gives a metric a label, unless it has one of the name.
func setLabel(m *dto.Metric, name, value string) {
	at, has := slices.BinarySearchFunc(m.Label, name, func(l *dto.LabelPair, name string) int { return cmp.Compare(l.GetName(), name) })
	if !has {
		m.Label = slices.Insert(m.Label, at, &dto.LabelPair{Name: &name, Value: &value})
	}
}

// gatherHosted adds what processes with plugins measure, all of which are asked at once. One that does not answer, or whose metrics have another type than those of the name that there are, adds nothing.
func gatherHosted(ctx context.Context, all []*hosted, families map[string]*dto.MetricFamily) {
	said := make([][]*dto.MetricFamily, len(all))
	var asked sync.WaitGroup
	for k, h := range all {
		asked.Go(func() { said[k], _ = h.gather(ctx) }) // of a process that is away there is nothing to say
	}
	asked.Wait()
	for _, f := range slices.Concat(said...) {
		whole := families[f.GetName()]
		switch {
		case whole == nil:
			families[f.GetName()] = f
		case whole.GetType() == f.GetType():
			whole.Metric = append(whole.Metric, f.Metric...)
		}
	}
}
