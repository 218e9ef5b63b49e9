package roles

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// serveHosted serves a text as what a process measures, and returns the socket.
func serveHosted(t *testing.T, serve http.HandlerFunc) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "m")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, served := &http.Server{Handler: serve}, make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() { _ = server.Close(); <-served })
	return socket
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
}

// measuredBy returns what is served of some metrics, a line each.
func measuredBy(t *testing.T, m *memberMetrics, names ...string) (lines []string) {
	t.Helper()
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, metric := range f.Metric {
			if slices.Contains(names, f.GetName()) {
				lines = append(lines, fmt.Sprintf("%s{%s} %v", f.GetName(), strings.TrimSuffix(labelsKey(metric), ","), metric.GetCounter().GetValue()+metric.GetGauge().GetValue()))
			}
		}
	}
	return lines
}

// What plugins of two profiles measure is served with their profile; what Berth measures is what it was, whatever they say.
func TestWhatProcessesWithPluginsMeasureIsServed(t *testing.T) {
	m := newMemberMetrics()
	m.common.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "berth_up", Help: "h"}, func() float64 { return 1 }))
	m.common.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "taken", Help: "h"}, func() float64 { return 2 }))
	m.host(newHosted("a", serveHosted(t, says(`# TYPE scheduler_plugin_evaluation_total counter
scheduler_plugin_evaluation_total{extension_point="Filter",plugin="P",profile="a"} 5
# TYPE cards_seen counter
cards_seen{card="0"} 3
# TYPE berth_up gauge
berth_up 7
# TYPE go_goroutines gauge
go_goroutines 9
# TYPE scheduler_pending_pods gauge
scheduler_pending_pods 9
# TYPE taken counter
taken 9
`))))
	m.host(newHosted("b", serveHosted(t, says("# TYPE cards_seen counter\ncards_seen{card=\"0\"} 4\n"))))
	m.host(newHosted("away", filepath.Join(t.TempDir(), "nobody")))
	m.host(newHosted("errs", serveHosted(t, http.NotFound)))
	m.host(newHosted("raves", serveHosted(t, says("cards_seen{ 3"))))
	m.host(newHosted("floods", serveHosted(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# TYPE flood counter\nflood 1\n")
		for range hostedMost / 10 {
			fmt.Fprint(w, "# a comment\n")
		}
	})))
	want := []string{
		`berth_up{} 1`, `cards_seen{"card"="0","profile"="a"} 3`, `cards_seen{"card"="0","profile"="b"} 4`,
		`scheduler_plugin_evaluation_total{"extension_point"="Filter","plugin"="P","profile"="a"} 5`, `taken{} 2`,
	}
	got := measuredBy(t, m, "berth_up", "cards_seen", "scheduler_plugin_evaluation_total", "taken", "go_goroutines", "scheduler_pending_pods", "flood")
	if !slices.Equal(got, want) {
		t.Errorf("served are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Who hangs keeps what others say from nobody.
func TestAProcessWithPluginsThatHangsIsLeftOut(t *testing.T) {
	m := newMemberMetrics()
	m.common.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "berth_up", Help: "h"}, func() float64 { return 1 }))
	m.host(newHosted("hangs", serveHosted(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })))
	if got := measuredBy(t, m, "berth_up"); !slices.Equal(got, []string{`berth_up{} 1`}) {
		t.Errorf("served are %v", got)
	}
}
