package roles

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// serveHosted serves what a process measures, and returns the socket.
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

// What a process measures is passed on as it is, whatever that is; who floods or errs is refused.
func TestWhatAProcessWithPluginsMeasuresIsPassedOn(t *testing.T) {
	says := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	for name, tt := range map[string]struct {
		serve      http.HandlerFunc
		want, fail string
	}{
		"metrics":       {says("cards_seen{card=\"0\"} 3\n"), "cards_seen{card=\"0\"} 3\n", ""},
		"none at all":   {says("{} 1\n"), "{} 1\n", ""},
		"as much as is": {says(strings.Repeat("#", hostedMost)), strings.Repeat("#", hostedMost), ""},
		"a flood":       {says(strings.Repeat("#", hostedMost+1)), "", "more than 4194304 bytes"},
		"an error":      {http.NotFound, "", "status 404"},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, "", "status 302"},
	} {
		var e env
		e.hosted.Store("p", newHosted(serveHosted(t, tt.serve)))
		got, known, err := e.pluginMetrics(t.Context(), "p")
		if !known || tt.fail == "" && (err != nil || string(got) != tt.want) || tt.fail != "" && (err == nil || !strings.Contains(err.Error(), tt.fail)) {
			t.Errorf("%s: known %v, %d bytes, error %v", name, known, len(got), err)
		}
	}
	var e env
	if _, known, err := e.pluginMetrics(t.Context(), "p"); known || err != nil {
		t.Errorf("without a process: known %v, error %v", known, err)
	}
	e.hosted.Store("away", newHosted(filepath.Join(t.TempDir(), "nobody")))
	if _, known, err := e.pluginMetrics(t.Context(), "away"); !known || err == nil {
		t.Errorf("of a process that is away: known %v, error %v", known, err)
	}
}
