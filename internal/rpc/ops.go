package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Check is one condition of readiness; a nil Err means that it holds.
type Check struct {
	Name string
	Err  error
}

// Bounds on what one HTTP client can hold.
const (
	opsHeaderTimeout = 5 * time.Second
	opsReadTimeout   = 10 * time.Second
	opsWriteTimeout  = 30 * time.Second
	opsIdleTimeout   = 60 * time.Second
	opsHeaderBytes   = 16 << 10
	opsScrapes       = 4 // at the same time; more are answered 503

	// profileTimeout replaces opsWriteTimeout where profiles are served: the answer comes when the time it is of is over.
	profileTimeout = 10 * time.Minute
)

// OpsConfig is what ServeOps serves. All of it may be left out.
type OpsConfig struct {
	Metrics   prometheus.Gatherer
	Checks    func() []Check // called per request, concurrently; must not wait
	Profiling bool           // serve /debug/pprof/, to whoever can reach the listener
}

// ServeOps answers HTTP on l, which it closes, until ctx ends; then it lets requests in flight finish, for at most
// [DefaultDrain], and returns nil. An error means that the listener broke.
//
//	/metrics          what is gathered
//	/livez, /healthz  200 "ok" as long as the process answers
//	/readyz           200 "ok", or 503 and one line per failing check; ?verbose lists every check
//	/debug/pprof/     Go's profiles, if cfg says so
func ServeOps(ctx context.Context, l net.Listener, cfg OpsConfig) error {
	server := &http.Server{
		Handler:           opsHandler(cfg),
		ReadHeaderTimeout: opsHeaderTimeout,
		ReadTimeout:       opsReadTimeout,
		WriteTimeout:      opsWriteTimeout,
		IdleTimeout:       opsIdleTimeout,
		MaxHeaderBytes:    opsHeaderBytes,
	}
	if cfg.Profiling {
		server.WriteTimeout = profileTimeout
	}
	address := l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()

	select {
	case err := <-served:
		_ = server.Close() // the error of Serve is the one to tell
		return fmt.Errorf("serve operations on %s: %w", address, err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultDrain)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		_ = server.Close() // cuts what did not finish
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve operations on %s: %w", address, err)
	}
	return nil
}

func opsHandler(cfg OpsConfig) http.Handler {
	metrics := cfg.Metrics
	if metrics == nil {
		metrics = prometheus.NewRegistry()
	}
	alive := func(w http.ResponseWriter, _ *http.Request) { answerText(w, http.StatusOK, "ok") }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		var all []Check
		if cfg.Checks != nil {
			all = cfg.Checks()
		}
		code, text := readiness(all, r.URL.Query().Has("verbose"))
		answerText(w, code, text)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: opsScrapes}))
	if cfg.Profiling {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// readiness renders checks as kube-apiserver does: [+] holds, [-] fails.
func readiness(checks []Check, verbose bool) (code int, text string) {
	var lines []string
	code, result := http.StatusOK, "ok"
	for _, check := range checks {
		switch {
		case check.Err != nil:
			code, result = http.StatusServiceUnavailable, "not ready"
			lines = append(lines, fmt.Sprintf("[-]%s: %v", check.Name, check.Err))
		case verbose:
			lines = append(lines, "[+]"+check.Name)
		}
	}
	return code, strings.Join(append(lines, result), "\n")
}

func answerText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // a client that is gone does not need it
}
