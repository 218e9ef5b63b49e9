package rpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"

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

func TestHealthAnswersAsThatOfKubeScheduler(t *testing.T) {
	good, bad := rpc.Check{Name: "queue"}, rpc.Check{Name: "binder", Err: errors.New("stands by")}
	for _, c := range []struct {
		path   string
		checks []rpc.Check
		code   int
		body   string
	}{
		{"/livez", []rpc.Check{bad}, 200, "ok"},
		{"/healthz", []rpc.Check{bad}, 200, "ok"},
		{"/livez?verbose", []rpc.Check{bad}, 200, "[+]ping ok\nlivez check passed\n"},
		{"/livez/ping", nil, 200, "ok"},
		{"/livez/binder", []rpc.Check{bad}, 404, "404 page not found\n"},
		{"/readyz", nil, 200, "ok"},
		{"/readyz", []rpc.Check{good}, 200, "ok"},
		{"/readyz?verbose", []rpc.Check{good}, 200, "[+]ping ok\n[+]queue ok\nreadyz check passed\n"},
		{"/readyz", []rpc.Check{good, bad}, 500, "[+]ping ok\n[+]queue ok\n[-]binder failed: stands by\nreadyz check failed\n"},
		{"/readyz?exclude=binder", []rpc.Check{good, bad}, 200, "ok"},
		{"/readyz?exclude=queue", []rpc.Check{good, bad}, 500, "[+]ping ok\n[+]queue excluded: ok\n[-]binder failed: stands by\nreadyz check failed\n"},
		{"/readyz?verbose&exclude=binder&exclude=nobody", []rpc.Check{bad}, 200,
			"[+]ping ok\n[+]binder excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"nobody\"\nreadyz check passed\n"},
		{"/readyz/queue", []rpc.Check{good, bad}, 200, "ok"},
		{"/readyz/binder", []rpc.Check{good, bad}, 500, "internal server error: stands by\n"},
		{"/readyz/nobody", []rpc.Check{good, bad}, 404, "404 page not found\n"},
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

// opsPaths are all that is served with profiling.
var opsPaths = []string{
	"/configz", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/pprof/symbol",
	"/debug/pprof/trace?seconds=1", "/debug/flags/v", "/flagz", "/healthz/ping",
	"/livez/ping", "/metrics", "/nothing", "/readyz/queue", "/statusz",
}

func TestOnlyHealthAsAWholeIsForStrangersAndItSaysNoReasons(t *testing.T) {
	for _, c := range []struct {
		refusal error
		code    int
		body    string
	}{
		{rpc.Error(codes.Unauthenticated, "NO_TOKEN", "no token"), 401, "no token\n"},
		{rpc.Error(codes.PermissionDenied, "NOT_ALLOWED", "ann may not"), 403, "ann may not\n"},
		{rpc.Exhausted("TOO_MANY_CALLS", time.Second, "too often"), 429, "too often\n"},
		{rpc.WithRetry(rpc.Error(codes.Unavailable, "NO_REVIEW", "not now"), time.Second), 503, "not now\n"},
		{errors.New("secret"), 500, "internal error\n"},
	} {
		url, stop := ops(t, rpc.OpsConfig{
			Admit:     func(*http.Request) error { return c.refusal },
			Checks:    func() []rpc.Check { return []rpc.Check{{Name: "queue", Err: errors.New("a reason")}} },
			Profiling: true,
		})
		for _, path := range append([]string{"/livez/", "//livez", "/livez/../metrics"}, opsPaths...) {
			if code, body := request(t, http.MethodGet, url+path); code != c.code || body != c.body {
				t.Errorf("%s with %v: %d %q, want %d %q", path, c.refusal, code, body, c.code, c.body)
			}
		}
		for path, want := range map[string]string{
			"/livez": "ok", "/healthz": "ok", "/readyz": "[+]ping ok\n[-]queue failed: reason withheld\nreadyz check failed\n",
		} {
			if _, body := request(t, http.MethodGet, url+path); body != want {
				t.Errorf("%s: %q, want %q", path, body, want)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestWhoIsAdmittedIsToldEverything(t *testing.T) {
	var asked atomic.Int64
	url, stop := ops(t, rpc.OpsConfig{
		Admit:     func(*http.Request) error { asked.Add(1); return nil },
		Checks:    func() []rpc.Check { return []rpc.Check{{Name: "queue", Err: errors.New("a reason")}} },
		Config:    map[string]any{"componentconfig": json.RawMessage(`{"parallelism":16}`), "berth.dev": map[string]any{"shards": 4}},
		Flags:     map[string]string{"shards": "4", "id": "b"},
		Status:    func() [][2]string { return [][2]string{{"Up", "1s"}, {"Member binder", "epoch 7"}} },
		Profiling: true,
	})
	const warning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"
	want := map[string]string{
		"/readyz/queue": "internal server error: a reason\n",
		"/configz":      `{"berth.dev":{"shards":4},"componentconfig":{"parallelism":16}}`,
		"/flagz":        "\nberth flagz\n" + warning + "id=b\nshards=4\n",
		"/statusz": "\nberth statusz\n" + warning + "\nUp: 1s\nMember binder: epoch 7\n" +
			"Paths: /configz /debug/pprof/ /flagz /healthz /livez /metrics /readyz /statusz\n",
	}
	for path, body := range want {
		if _, got := request(t, http.MethodGet, url+path); got != body {
			t.Errorf("%s: %q, want %q", path, got, body)
		}
	}
	if n := asked.Load(); n != int64(len(want)) {
		t.Errorf("asked %d times whether to let in, want %d", n, len(want))
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestRequestsBeyondTheBoundAreRefusedAndHealthIsNot(t *testing.T) {
	const bound = 32
	entered, release := make(chan struct{}), make(chan struct{})
	url, stop := ops(t, rpc.OpsConfig{Admit: func(*http.Request) error { entered <- struct{}{}; <-release; return nil }})
	var held sync.WaitGroup
	for range bound {
		held.Go(func() {
			response, err := http.Get(url + "/statusz")
			if err != nil {
				t.Error(err)
				return
			}
			response.Body.Close()
		})
		<-entered
	}
	if code, body := request(t, http.MethodGet, url+"/statusz"); code != 429 {
		t.Errorf("one more: %d %s, want 429", code, body)
	}
	if code, body := request(t, http.MethodGet, url+"/livez"); code != 200 {
		t.Errorf("/livez: %d %s, want 200", code, body)
	}
	close(release)
	held.Wait()
	http.DefaultClient.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Error(err)
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
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/pprof/symbol"} {
			if code, body := request(t, http.MethodGet, url+path); code != c.code {
				t.Errorf("profiling %v: %s: %d %.200s, want %d", c.profiling, path, code, body, c.code)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestSymbolsAreLookedUpForWhoeverReadsAProfile(t *testing.T) {
	url, stop := ops(t, rpc.OpsConfig{Profiling: true})
	here := fmt.Sprintf("%#x", reflect.ValueOf(rpc.ServeOps).Pointer())
	if code, body := request(t, http.MethodGet, url+"/debug/pprof/symbol?"+here); code != 200 || !strings.Contains(body, "rpc.ServeOps") {
		t.Errorf("GET: %d %s, want the name of a function", code, body)
	}
	response, err := http.Post(url+"/debug/pprof/symbol", "", strings.NewReader(here)) // as go tool pprof does
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(body), "rpc.ServeOps") {
		t.Errorf("POST: %s, %v, want the name of a function", body, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestVerbosityIsSetByPutAsOfKubeScheduler(t *testing.T) {
	set := ""
	cfg := rpc.OpsConfig{Profiling: true, SetVerbosity: func(value string) (string, error) {
		if value == "x" {
			return "", errors.New("x is no number")
		}
		set = value
		return "set to " + value, nil
	}}
	put := func(url, method, value string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, url+"/debug/flags/v", strings.NewReader(value))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	for _, c := range []struct {
		change      func(*rpc.OpsConfig)
		method      string
		value, body string
		code        int
	}{
		{nil, http.MethodPut, "4", "set to 4", 200},
		{nil, http.MethodPut, "x", "x is no number", 400},
		{nil, http.MethodPut, strings.Repeat("1", 2000), "error reading request body: http: request body too large", 400},
		{nil, http.MethodGet, "", "unsupported http method", 406},
		{func(c *rpc.OpsConfig) { c.Profiling = false }, http.MethodPut, "5", "", 404},
		{func(c *rpc.OpsConfig) { c.SetVerbosity = nil }, http.MethodPut, "5", "", 404},
		{func(c *rpc.OpsConfig) {
			c.Admit = func(*http.Request) error { return rpc.Error(codes.PermissionDenied, "NOT_ALLOWED", "no") }
		}, http.MethodPut, "5", "no\n", 403},
	} {
		cfg := cfg
		if c.change != nil {
			c.change(&cfg)
		}
		url, stop := ops(t, cfg)
		code, body := put(url, c.method, c.value)
		if code != c.code || c.code != 404 && body != c.body {
			t.Errorf("%s %.10q: %d %q, want %d %q", c.method, c.value, code, body, c.code, c.body)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
	if set != "4" {
		t.Errorf("set to %q, want 4", set)
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

func TestTokensUnderReviewHoldUpNobodyElse(t *testing.T) {
	var reviewing atomic.Int64
	slow := make(chan struct{})
	url, _ := ops(t, rpc.OpsConfig{Admit: func(r *http.Request) error {
		if r.Header.Get("Authorization") != "" {
			reviewing.Add(1)
			<-slow
		}
		return nil
	}})
	var asking sync.WaitGroup
	defer asking.Wait()
	defer close(slow)
	ask := func(from, token string) (int, error) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
		if err != nil {
			return 0, err
		}
		if token != "" {
			r.Header.Set("Authorization", token)
		}
		answer, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		return answer.StatusCode, answer.Body.Close()
	}
	var refused atomic.Int64
	const asked = 50
	for range asked {
		asking.Go(func() {
			if code, err := ask("127.0.0.2", "Bearer guess"); err == nil && code == http.StatusTooManyRequests {
				refused.Add(1)
			}
		})
	}
	eventually(t, "the share of one address to be taken", func() bool { return reviewing.Load()+refused.Load() == asked })
	if n := reviewing.Load(); n != 32 {
		t.Errorf("%d tokens of one address are under review, want 32", n)
	}
	if code, err := ask("127.0.0.3", ""); err != nil || code != http.StatusOK {
		t.Errorf("beside them: %d, %v", code, err)
	}
}

func TestPagesOfOthersReadNothingOfOperators(t *testing.T) {
	url, stop := ops(t, rpc.OpsConfig{AllowedHost: func(host string) bool { return host == "binder.example" || host == "127.0.0.1" }})
	for _, c := range []struct {
		path, host, site string
		code             int
	}{
		{"/statusz", "", "", 200}, {"/statusz", "binder.example:9090", "", 200}, {"/statusz", "", "none", 200}, {"/statusz", "", "same-origin", 200},
		{"/statusz", "evil.example", "", 403}, {"/metrics", "evil.example:9090", "", 403}, {"/metrics", "", "cross-site", 403},
		{"/configz", "", "same-site", 403}, {"/readyz", "evil.example", "cross-site", 200}, {"/livez", "evil.example", "", 200},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != c.code {
			t.Errorf("%s of %q, %q: %d, want %d", c.path, c.host, c.site, response.StatusCode, c.code)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// slowGatherer is a registry that takes its time.
type slowGatherer struct{ entered, release chan struct{} }

func (g slowGatherer) Gather() ([]*dto.MetricFamily, error) {
	g.entered <- struct{}{}
	<-g.release
	return nil, nil
}

func TestOneAddressDoesNotHaveAllScrapes(t *testing.T) {
	slow := slowGatherer{make(chan struct{}), make(chan struct{})}
	url, stop := ops(t, rpc.OpsConfig{Metrics: slow})
	scrape := func(from string) int {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}}
		response, err := client.Get(url + "/metrics")
		if err != nil {
			t.Error(err)
			return 0
		}
		response.Body.Close()
		return response.StatusCode
	}
	var scraping sync.WaitGroup
	begin := func(from string) {
		scraping.Go(func() {
			if code := scrape(from); code != http.StatusOK {
				t.Errorf("%s: %d", from, code)
			}
		})
		<-slow.entered
	}
	begin("127.0.0.2")
	begin("127.0.0.2")
	if code := scrape("127.0.0.2"); code != http.StatusTooManyRequests {
		t.Errorf("a third one: %d, want 429", code)
	}
	begin("127.0.0.3")
	close(slow.release)
	scraping.Wait()
	if err := stop(); err != nil {
		t.Error(err)
	}
}
