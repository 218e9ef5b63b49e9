package rpc_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/rpc"
)

// ops serves what cfg says, and returns the URL and a function that ends it.
func ops(t *testing.T, cfg rpc.OpsConfig) (url string, stop func() error) {
	t.Helper()
	l, err := rpc.TCP().Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- rpc.ServeOps(ctx, l, cfg) }()
	t.Cleanup(cancel)
	return "http://" + l.Addr().String(), func() error {
		cancel()
		return receive(t, served, "ServeOps to return")
	}
}

func request(t *testing.T, method, url string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestReadinessListsFailingChecks(t *testing.T) {
	good, bad := rpc.Check{Name: "etcd"}, rpc.Check{Name: "log", Err: errors.New("behind by 7")}
	for _, c := range []struct {
		path   string
		checks []rpc.Check
		code   int
		body   string
	}{
		{"/livez", []rpc.Check{bad}, 200, "ok\n"},
		{"/healthz", []rpc.Check{bad}, 200, "ok\n"},
		{"/readyz", nil, 200, "ok\n"},
		{"/readyz", []rpc.Check{good}, 200, "ok\n"},
		{"/readyz?verbose", []rpc.Check{good}, 200, "[+]etcd\nok\n"},
		{"/readyz", []rpc.Check{good, bad}, 503, "[-]log: behind by 7\nnot ready\n"},
		{"/readyz?verbose", []rpc.Check{good, bad}, 503, "[+]etcd\n[-]log: behind by 7\nnot ready\n"},
		{"/nothing", nil, 404, "404 page not found\n"},
	} {
		url, stop := ops(t, rpc.OpsConfig{Checks: func() []rpc.Check { return c.checks }})
		if code, body := request(t, http.MethodGet, url+c.path); code != c.code || body != c.body {
			t.Errorf("%s with %v: %d %q, want %d %q", c.path, c.checks, code, body, c.code, c.body)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestMetricsAreServedAndNothingCanBePosted(t *testing.T) {
	r := start(t, rpc.Memory(), &service{})
	url, stop := ops(t, rpc.OpsConfig{Metrics: r.cfg.Metrics})
	if code, body := request(t, http.MethodGet, url+"/metrics"); code != 200 || !strings.Contains(body, `berth_rpc_panics_total{role="tester"} 0`) {
		t.Errorf("/metrics: %d\n%s", code, body)
	}
	if code, _ := request(t, http.MethodPost, url+"/metrics"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d, want 405", code)
	}
	if code, body := request(t, http.MethodGet, url+"/readyz"); code != 200 {
		t.Errorf("/readyz without checks: %d %s", code, body)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestProfilesAreServedOnlyIfAskedFor(t *testing.T) {
	for _, c := range []struct {
		profiling bool
		code      int
	}{{false, 404}, {true, 200}} {
		url, stop := ops(t, rpc.OpsConfig{Profiling: c.profiling})
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1"} {
			if code, body := request(t, http.MethodGet, url+path); code != c.code {
				t.Errorf("profiling %v: %s: %d %.200s, want %d", c.profiling, path, code, body, c.code)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestBrokenOpsListenerEndsWithAnError(t *testing.T) {
	l, err := rpc.TCP().Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := rpc.ServeOps(t.Context(), l, rpc.OpsConfig{}); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("got %v, want an error that names the address", err)
	}
}
