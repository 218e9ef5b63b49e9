package rpc

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bounds on what one HTTP client can hold.
const (
	opsHeaderTimeout = 5 * time.Second
	opsReadTimeout   = 10 * time.Second
	opsWriteTimeout  = 30 * time.Second
	opsHealthTimeout = 5 * time.Second // of an answer about health
	opsIdleTimeout   = 60 * time.Second
	opsHeaderBytes   = 16 << 10
	opsBodyBytes     = 1 << 10 // of what sets something
	opsScrapes       = 4       // at the same time; more are answered 503
	opsReviews       = 64      // whose callers are being found out
	opsRequests      = 32      // but for health at the same time; more are answered 429
	opsHeld          = 256     // of all, refused ones too, until the ends of their answers have gone

	// profileTimeout replaces opsWriteTimeout where profiles are served: the answer comes when the time it is of is over.
	profileTimeout = 10 * time.Minute
)

// OpsConfig is what ServeOps serves. All of it may be left out.
type OpsConfig struct {
	Log     *slog.Logger // nil discards
	Metrics prometheus.Gatherer
	Checks  func() []Check // of readiness, with names that differ; called per request, concurrently; must not wait
	// Healthz is as Checks, of /healthz; nil: there are none.
	Healthz func() []Check
	// Admit lets a request in, or returns an error of [Error]. Nil lets everyone in. It is not asked about what is open.
	Admit func(*http.Request) error
	// AdmitCaller, if it is not nil, is instead of Admit, and says whether it is known who asks, for strangers may be let in too. Their requests, and those for what is open, count as
	// nobody's where connections and requests are divided.
	AdmitCaller func(*http.Request) (known bool, err error)
	// Open reports whether a request is answered to everyone; nil: those for /healthz, /livez and /readyz are.
	Open func(*http.Request) bool
	// AllowedHost reports whether requests may be for a host, as their headers name it, without its port; nil allows all. It is not asked
	// about those three paths either, if they are open.
	AllowedHost func(host string) bool
	Name        string             // of the program, as its pages for people have it; "" means berth
	Config      map[string]any     // of /configz: what is in effect, by component
	Flags       map[string]string  // of /flagz, by name
	Status      func() [][2]string // of /statusz: names and values; called as Checks is
	Profiling   bool               // serve /debug/pprof/ and, if there is a SetVerbosity, /debug/flags/v
	// SetVerbosity sets how much is logged, as klog's -v does, and returns what to answer. An error says what is wrong with the value.
	SetVerbosity func(value string) (string, error)
	// PluginMetrics returns what a process with plugins measures that Berth runs, by its name: that of the profile whose compiled-in plugins it has, or "service/" and that of the service; known is false if there is none here. Nil: there never is.
	PluginMetrics func(ctx context.Context, process string) (text []byte, known bool, err error)
	// Structured returns what answers requests for a path, /flagz or /statusz, that accept something else than text; paths are all that are served. Nil: they are
	// answered with text too.
	Structured func(path string, paths []string) http.Handler
	// More are further handlers of metrics, by path. ObserveHealth hears of each check of health, by its endpoint (healthz, livez or readyz); nil: nobody does.
	More          map[string]http.Handler
	ObserveHealth func(r *http.Request, endpoint string, check Check)
	// Streams is how many requests one connection of HTTP/2 may have at once; 0 means the server's own choice, and below 0 that HTTP/2 is not served.
	Streams int
}

// HTTP2 returns how servers of HTTP serve HTTP/2: with so many requests at once of a connection, of whose bodies together no more comes
// before somebody reads them than gRPC would take of one request, and with connections that end when a write takes longer. The other timeouts are of
// streams, which nothing ends while the connection cannot be written to. Over TLS this one is of a whole write, since what has gone in part
// cannot be gone on with.
func HTTP2(streams int, write time.Duration) *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: streams, WriteByteTimeout: write,
		MaxReceiveBufferPerConnection: publicWindow, MaxReceiveBufferPerStream: publicWindow,
	}
}

// ServeOps answers HTTP on l, which it closes, until ctx ends; then it lets requests in flight finish, for at most
// [DefaultDrain], and returns nil. An error means that the listener broke. Paths and answers are those of kube-scheduler:
//
//	/livez, /healthz   200 "ok" as long as the process answers
//	/readyz            200 "ok", or 500 and a line per check; ?verbose lists them in any case, ?exclude=NAME leaves one out
//	/readyz/NAME       one check alone, with the reason; the same below /livez and /healthz
//	/metrics           what is gathered
//	/metrics/plugins/PROFILE   what compiled-in plugins of a profile measure, as their process says it, if there are some here
//	/metrics/plugins/service/NAME   what a plugin service measures that Berth runs, in the same way
//	/configz           the configuration in effect, as JSON
//	/flagz, /statusz   for people
//	/debug/pprof/      Go's profiles, if cfg says so
//	/debug/flags/v     with PUT, sets how much is logged, if cfg says so
func ServeOps(ctx context.Context, l net.Listener, cfg OpsConfig) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	server := &http.Server{
		Handler:           HoldRequests(cfg.Log, opsHeld, opsHandler(cfg)),
		ReadHeaderTimeout: opsHeaderTimeout,
		ReadTimeout:       opsReadTimeout,
		WriteTimeout:      opsWriteTimeout,
		IdleTimeout:       opsIdleTimeout,
		MaxHeaderBytes:    opsHeaderBytes,
		HTTP2:             HTTP2(cmp.Or(max(cfg.Streams, 0), opsRequests), opsWriteTimeout),
		ConnContext:       WithConn,
		ErrorLog:          slog.NewLogLogger(LibraryLog(cfg.Log), slog.LevelError),
	}
	if cfg.Streams < 0 {
		server.TLSNextProto = make(map[string]func(*http.Server, *tls.Conn, http.Handler))
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

// openPaths are answered to everyone, as by kube-scheduler's --authorization-always-allow-paths, if nothing else is said.
var openPaths = []string{"/healthz", "/livez", "/readyz"}

func opsHandler(cfg OpsConfig) http.Handler {
	mux := http.NewServeMux()
	var paths []string
	handle := func(path string, h http.Handler) {
		paths = append(paths, path)
		mux.Handle("GET "+path, h)
	}
	for _, path := range openPaths {
		h := &healthEndpoint{name: path[1:], withhold: cfg.Admit != nil || cfg.AdmitCaller != nil, observe: cfg.ObserveHealth}
		switch path {
		case "/readyz":
			h.checks = cfg.Checks
		case "/healthz":
			h.checks = cfg.Healthz
		}
		handle(path, http.HandlerFunc(h.all))
		mux.HandleFunc("GET "+path+"/{name}", h.one)
	}
	metrics := cfg.Metrics
	if metrics == nil {
		metrics = prometheus.NewRegistry()
	}
	handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: opsScrapes}))
	if cfg.PluginMetrics != nil {
		mux.HandleFunc("GET "+pluginMetricsPath+"{process...}", pluginMetrics(cfg.PluginMetrics))
	}
	for path, h := range cfg.More {
		paths = append(paths, path)
		mux.Handle(path, h)
	}
	handle("/configz", configz(cfg.Config))
	name := cmp.Or(cfg.Name, "berth")
	if cfg.Profiling {
		handle("/debug/pprof/", http.HandlerFunc(pprof.Index))
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol) // go tool pprof posts the addresses
		if cfg.SetVerbosity != nil {
			mux.HandleFunc("/debug/flags/v", verbosity(cfg.SetVerbosity))
		}
	}
	paths = append(paths, "/flagz", "/statusz")
	slices.Sort(paths)
	page := func(path string, text http.Handler) {
		if cfg.Structured != nil {
			text = orStructured(text, cfg.Structured(path, paths))
		}
		mux.Handle("GET "+path, text)
	}
	page("/flagz", flagz(name, cfg.Flags))
	page("/statusz", statusz(name, cfg.Status, paths))
	return guardOps(cfg, mux)
}

// pluginMetricsPath is behind which the metrics of plugins are, by process: foreign text, and so a scrape of its own, which can spoil no other.
const pluginMetricsPath = "/metrics/plugins/"

func pluginMetrics(of func(ctx context.Context, process string) ([]byte, bool, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch text, known, err := of(r.Context(), r.PathValue("process")); {
		case !known:
			answerText(w, http.StatusNotFound, "no compiled-in plugins of a profile of that name run here, nor does a service/NAME that Berth runs")
		case err != nil:
			answerText(w, http.StatusBadGateway, "the plugins do not say what they measure, or say too much")
		default:
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = w.Write(text)
		}
	}
}

// verbosity answers as kube-scheduler does.
func verbosity(set func(string) (string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			answerText(w, http.StatusNotAcceptable, "unsupported http method")
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, opsBodyBytes))
		if err != nil {
			answerText(w, http.StatusBadRequest, "error reading request body: "+err.Error())
			return
		}
		answer, err := set(string(body))
		if err != nil {
			answerText(w, http.StatusBadRequest, err.Error())
			return
		}
		answerText(w, http.StatusOK, answer)
	}
}

// ReasonOtherPage is the reason of requests to operators' endpoints that a browser makes for somebody else's page: PERMISSION_DENIED.
const ReasonOtherPage Reason = "OTHER_PAGE"

// checkPage refuses what a page of somebody else's may have asked a browser for, which may show a certificate of its own accord, and
// reaches what listens on loopback: what is for a host of another name, and what comes from another site, also by GET.
func checkPage(r *http.Request, allowed func(host string) bool) error {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if allowed != nil && !allowed(host) {
		return Error(codes.PermissionDenied, ReasonOtherPage, "this process is not known as %q here", host)
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return Error(codes.PermissionDenied, ReasonOtherPage, "the request comes from another site")
	}
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		return Error(codes.PermissionDenied, ReasonOtherPage, "%v", err)
	}
	return nil
}

// guardOps lets through health, and whom cfg lets in.
func guardOps(cfg OpsConfig, next http.Handler) http.Handler {
	under := make(chan struct{}, opsRequests)
	reviews, scrapes, ofPlugins, more := NewShare(opsReviews, 0), NewShare(opsScrapes, 0), NewShare(opsScrapes, 0), NewShare(opsScrapes, 0)
	admit := cfg.AdmitCaller
	if admit == nil && cfg.Admit != nil {
		admit = func(r *http.Request) (bool, error) { return true, cfg.Admit(r) }
	}
	open := cfg.Open
	if open == nil {
		open = func(r *http.Request) bool { return slices.Contains(openPaths, r.URL.Path) }
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open := open(r)
		if open && slices.Contains(openPaths, r.URL.Path) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(opsHealthTimeout)) // not all writers can
			next.ServeHTTP(w, r)
			return
		}
		if err := checkPage(r, cfg.AllowedHost); err != nil {
			refuse(w, err)
			return
		}
		known := cfg.AdmitCaller == nil
		if admit != nil && !open {
			var err error
			if known, err = review(r, admit, reviews); err != nil {
				if code := status.Code(err); r.ProtoMajor == 2 && !known && (code == codes.Unauthenticated || code == codes.PermissionDenied) {
					w.Header().Set("Connection", "close") // who is not known does not ask again and again on one connection
				}
				refuse(w, err)
				return
			}
		}
		select {
		case under <- struct{}{}:
			defer func() { <-under }()
		default:
			refuse(w, Exhausted(ReasonQueueFull, time.Second, "%d requests are being answered", opsRequests))
			return
		}
		address := AddressOfRequest(r)
		scrapes, are := scrapes, r.URL.Path == "/metrics"
		if cfg.More[r.URL.Path] != nil { // some are long
			scrapes, are = more, true
		}
		if strings.HasPrefix(r.URL.Path, pluginMetricsPath) {
			scrapes, are = ofPlugins, true
		}
		if are {
			if !scrapes.Take(address, 1) {
				refuse(w, Exhausted(ReasonQueueFull, time.Second, "%d scrapes are answered at a time, and of one address as many as leave room for as many again", opsScrapes))
				return
			}
			defer scrapes.Give(address, 1)
		}
		if known {
			Vouch(r.Context(), address)
		}
		next.ServeHTTP(w, r)
	})
}

// review asks whether a request is admitted. A certificate, which the listener has verified, is looked at and no more; of the others, who
// may have to be asked about elsewhere, addresses have shares.
func review(r *http.Request, admit func(*http.Request) (bool, error), reviews *Share) (known bool, err error) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		address := AddressOfRequest(r)
		if !reviews.Take(address, 1) {
			return false, Exhausted(ReasonQueueFull, time.Second, "%d requests are being admitted, and of one address as many as leave room for as many again", opsReviews)
		}
		defer reviews.Give(address, 1)
	}
	return admit(r)
}

// refuse answers with an error of [Error].
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Cache-Control", "no-cache, private")
	s, code := status.Convert(err), http.StatusInternalServerError
	text := s.Message()
	switch s.Code() {
	case codes.Unauthenticated:
		w.Header().Set("WWW-Authenticate", "Bearer")
		code = http.StatusUnauthorized
	case codes.PermissionDenied:
		code = http.StatusForbidden
	case codes.ResourceExhausted:
		code = http.StatusTooManyRequests
	case codes.Unavailable:
		code = http.StatusServiceUnavailable
	default: // what it says is for the log of the process, not for strangers
		text = "internal error"
	}
	if wait, ok := RetryAfter(err); ok {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	answerText(w, code, text+"\n")
}

func answerText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text)) // a client that is gone does not need it
}
