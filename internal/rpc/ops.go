package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
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
)

// ServeOps answers HTTP on l, which it closes, until ctx ends; then it lets requests in flight finish, for at most
// [DefaultDrain], and returns nil. An error means that the listener broke.
//
//	/metrics          what is gathered; nothing if metrics is nil
//	/livez, /healthz  200 "ok" as long as the process answers
//	/readyz           200 "ok", or 503 and one line per failing check; ?verbose lists every check
//
// checks is called per request, concurrently, and must not wait; nil means none.
func ServeOps(ctx context.Context, l net.Listener, metrics prometheus.Gatherer, checks func() []Check) error {
	server := &http.Server{
		Handler:           opsHandler(metrics, checks),
		ReadHeaderTimeout: opsHeaderTimeout,
		ReadTimeout:       opsReadTimeout,
		WriteTimeout:      opsWriteTimeout,
		IdleTimeout:       opsIdleTimeout,
		MaxHeaderBytes:    opsHeaderBytes,
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

func opsHandler(metrics prometheus.Gatherer, checks func() []Check) http.Handler {
	if metrics == nil {
		metrics = prometheus.NewRegistry()
	}
	alive := func(w http.ResponseWriter, _ *http.Request) { answerText(w, http.StatusOK, "ok") }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		var all []Check
		if checks != nil {
			all = checks()
		}
		code, text := readiness(all, r.URL.Query().Has("verbose"))
		answerText(w, code, text)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: opsScrapes}))
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
