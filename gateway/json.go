package gateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// Bounds on what one HTTP client can hold.
const (
	httpHeaderTimeout = 5 * time.Second
	httpBodyTimeout   = 10 * time.Second
	httpWriteTimeout  = 30 * time.Second // of one write, since a watch has no end, and of so many bytes of it, since an answer may be large
	httpWriteBytes    = 64 << 10
	httpIdleTimeout   = 60 * time.Second
	httpHeaderBytes   = 32 << 10
	httpDeadline      = 30 * time.Second // of a request that is no watch
	httpReadTimeout   = 40 * time.Second // of a request, whatever the handler says
	httpStreams       = 100              // of a connection, with HTTP/2
	httpHeld          = 2048             // requests until the ends of their answers have gone, whatever becomes of them; of strangers, and of callers
	httpRefuseTimeout = 2 * time.Second  // of the writes of a refusal
	httpAtOnce        = 128              // requests that are answered, but for watches
	httpWatches       = 1000             // watches
	httpBodies        = 64 << 20         // bytes of their bodies, and of what becomes of them
	// httpCopies is how often a body is in memory, before its call is answered: as it came, decoded, encoded for the call, and as the
	// server behind has it.
	httpCopies = 4
	// httpUnread is how many bytes of answers clients have not read, of httpUnreadFrom bytes and more each: a write lasts until its client
	// has read, behind the call that is answered. One that is larger than half of it counts for half.
	httpUnread     = 64 << 20
	httpUnreadFrom = 16 << 10
	// httpCompressFrom is from how many bytes on a map is compressed.
	httpCompressFrom = 4 << 10
	// httpElements is how many objects and lists a body may have. The largest request that makes sense has some 2,000.
	httpElements = 10_000
)

// watchPath is the only path whose answer has no end; see http.yaml.
const watchPath = "/v1/placements:watch"

// mapPath is the route of GetMap: some 100 bytes for each tile, of which there are thousands, and the page asks every two
// seconds. Compressed it is a twentieth.
const mapPath = "/v1/map"

// HTTPConfig says whom a Handler answers.
type HTTPConfig struct {
	// AllowedHost reports whether requests may be for a host, as their headers name it, without its port. A web page whose name
	// resolves to this machine is of the same origin as the gateway, as far as a browser knows; it is told by its name.
	// nil allows all.
	AllowedHost func(host string) bool
	// Known returns who has sent a header authorization, or why not, before a body is read. Nil: callers need not be known.
	Known func(ctx context.Context, authorization []string) (caller string, err error)
	// Expect returns why a request is not to be answered of who has sent a header authorization, before its body is read. The method is that of
	// which a body would be the request; "" if there is none. It counts the call. Nil: all who are known are answered.
	Expect func(ctx context.Context, authorization []string, method string) error
	// Turns are those in which JSON is decoded and encoded. Nil: nobody waits for one.
	Turns *rpc.Turns
}

// AllowedHost returns whether a host is one of these, localhost, or an address: no web page of somebody else's has such a name.
func AllowedHost(names func() []string) func(host string) bool {
	return func(host string) bool {
		host = strings.ToLower(strings.TrimSuffix(host, "."))
		return host != "" && (host == "localhost" || strings.HasSuffix(host, ".localhost") || net.ParseIP(strings.Trim(host, "[]")) != nil ||
			slices.ContainsFunc(names(), func(name string) bool { return strings.EqualFold(name, host) }))
	}
}

// forwardingConn says at each call for which address it is made.
type forwardingConn struct{ grpc.ClientConnInterface }

func (c forwardingConn) Invoke(ctx context.Context, method string, request, response any, options ...grpc.CallOption) error {
	// What comes before is decoding, and what comes behind encoding. The call has turns of its own.
	return rpc.Aside(ctx, func() error {
		return c.ClientConnInterface.Invoke(rpc.Forward(ctx, rpc.CallerOf(ctx)), method, request, response, options...)
	})
}

func (c forwardingConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.ClientConnInterface.NewStream(rpc.Forward(ctx, rpc.CallerOf(ctx)), desc, method, options...)
}

// Handler serves SchedulingService as JSON, by calling it over conn: with a connection to a gRPC server of the gateway's,
// JSON requests meet the same limits, logs and metrics as all others. An error is answered with its code,
// message and details as google.rpc.Status, and a body over [rpc.PublicRequestLimit] with 413.
func Handler(conn grpc.ClientConnInterface, cfg HTTPConfig) (http.Handler, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.HTTPBodyMarshaler{Marshaler: &runtime.JSONPb{
			MarshalOptions: protojson.MarshalOptions{EmitUnpopulated: true}, // unknown fields of a request are errors
		}}),
		runtime.WithErrorHandler(answerError),
		// No header of a request becomes one of the call, but for authorization.
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
	)
	client := schedulingv1.NewSchedulingServiceClient(forwardingConn{conn})
	if err := schedulingv1.RegisterSchedulingServiceHandlerClient(context.Background(), mux, client); err != nil {
		return nil, fmt.Errorf("register JSON handlers: %w", err)
	}
	return &handler{
		cfg: cfg, mux: mux, running: rpc.NewShare(httpAtOnce, 0), watching: rpc.NewShare(httpWatches, watchesOfOne),
		bodies: rpc.NewShare(httpBodies, 0), unread: rpc.NewShare(httpUnread, 0),
	}, nil
}

// handler is what stands before the JSON API.
type handler struct {
	cfg       HTTPConfig
	mux       *runtime.ServeMux
	crossSite http.CrossOriginProtection
	running   *rpc.Share // requests, but for watches
	watching  *rpc.Share // watches: all of them go by one connection, where those of one caller could be all that it has room for
	bodies    *rpc.Share // bytes
	unread    *rpc.Share // bytes of answers that are being written

	compressors sync.Pool // *gzip.Writer: each takes more than a MiB, and is used within a turn
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	address := rpc.AddressOfRequest(r)
	r = r.WithContext(rpc.WithCaller(r.Context(), address))
	refuse := func(err error) {
		rpc.PauseAlways()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(httpRefuseTimeout)) // not all writers can
		_, outbound := runtime.MarshalerForRequest(h.mux, r)
		answerError(r.Context(), h.mux, outbound, w, r, err)
	}
	// 1. Is it a page of somebody else's that asks, through a visitor's browser?
	if err := h.cfg.checkHost(r); err != nil {
		refuse(err)
		return
	}
	dropUncarried(r)
	// Reading is not for other pages either, though they do not see the answer: it costs, and an error can be told from none.
	asWrite := *r
	asWrite.Method = http.MethodPost
	if err := h.crossSite.Check(&asWrite); err != nil {
		refuse(rpc.Error(codes.PermissionDenied, ReasonCrossOrigin, "%v", err))
		return
	}
	if !isText(r.URL) {
		refuse(rpc.Error(codes.InvalidArgument, rpc.ReasonInvalid, "the path or the query is not UTF-8"))
		return
	}
	// 2. Who is it? Nothing more is read of a stranger.
	caller := address
	if h.cfg.Known != nil {
		known, err := h.cfg.Known(r.Context(), r.Header.Values("Authorization"))
		if err != nil {
			refuse(err)
			return
		}
		caller = known
	}
	rpc.Vouch(r.Context(), caller)
	// 3. Has it its share already?
	if r.URL.Path == watchPath {
		if !h.watching.Take(caller, 1) {
			refuse(rpc.Exhausted(rpc.ReasonQueueFull, time.Second, "%d watches are answered at a time, and of one caller %d and as many as leave room for as many again", httpWatches, watchesOfOne))
			return
		}
		defer h.watching.Give(caller, 1)
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // it has no end
	} else {
		if !h.running.Take(caller, 1) {
			refuse(rpc.Exhausted(rpc.ReasonQueueFull, time.Second, "%d requests are answered at a time, and of one caller as many as leave room for as many again", httpAtOnce))
			return
		}
		defer h.running.Give(caller, 1)
		ctx, cancel := context.WithTimeout(r.Context(), httpDeadline)
		defer cancel()
		r = r.WithContext(ctx)
	}
	// 4. May it ask once more? That counts whether a call comes of it or not.
	if h.cfg.Expect != nil {
		if err := h.cfg.Expect(r.Context(), r.Header.Values("Authorization"), methodOf(r.URL.Path)); err != nil {
			refuse(err)
			return
		}
		r = r.WithContext(rpc.WithCounted(r.Context()))
	}
	// 5. Its body. With HTTP/2, one that is empty is there too.
	if r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 {
		held, err := h.readBody(w, r, caller)
		defer func() { h.bodies.Give(caller, held) }()
		if err != nil {
			refuse(err)
			return
		}
	}
	patient := &patientWriter{ResponseWriter: w, unread: h.unread, caller: caller, refuse: refuse}
	// No client that is known refuses gzip by a weight of 0.
	if r.Method == http.MethodGet && r.URL.Path == mapPath && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		patient.compress = h.compress
	}
	// 6. The call, in a turn but for what waits. Messages of a watch are small, and it waits for each.
	if r.URL.Path != watchPath {
		turn, err := rpc.TakeTurn(rpc.WithTurns(rpc.WithCaller(r.Context(), caller), h.cfg.Turns))
		if err != nil {
			refuse(err)
			return
		}
		defer turn.End()
		patient.turn, r = turn, r.WithContext(turn.During(r.Context()))
	}
	h.mux.ServeHTTP(patient, r)
}

// isText reports whether what a URL says can be in a message of the API. One that is wrongly escaped is for others to refuse.
func isText(u *url.URL) bool {
	query, err := url.QueryUnescape(u.RawQuery)
	return utf8.ValidString(u.Path) && (err != nil || utf8.ValidString(query))
}

func (c *HTTPConfig) checkHost(r *http.Request) error {
	if c.AllowedHost == nil {
		return nil
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if c.AllowedHost(host) {
		return nil
	}
	return rpc.Error(codes.PermissionDenied, ReasonHostNotAllowed, "the gateway is not known as %q here: name it by --allowed-hosts", host)
}

// readBody reads a body into memory, so that none is under way while a call is, and returns how many bytes of h.bodies it has taken.
func (h *handler) readBody(w http.ResponseWriter, r *http.Request, caller string) (held int, err error) {
	// Browsers send a form, or a text, to anybody; JSON only to who has said that it may come.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return 0, &runtime.HTTPStatusError{
			HTTPStatus: http.StatusUnsupportedMediaType,
			Err:        rpc.Error(codes.InvalidArgument, rpc.ReasonInvalid, "a body must have the Content-Type application/json, not %q", r.Header.Get("Content-Type")),
		}
	}
	size := rpc.PublicRequestLimit
	if r.ContentLength > rpc.PublicRequestLimit {
		return 0, bodyError(&http.MaxBytesError{Limit: rpc.PublicRequestLimit})
	}
	if r.ContentLength >= 0 {
		size = int(r.ContentLength)
	}
	held = httpCopies * size
	if !h.bodies.Take(caller, held) {
		return 0, rpc.Exhausted(rpc.ReasonQueueFull, time.Second, "a body of up to %d bytes: too many others are not answered yet", size)
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(httpBodyTimeout)) // not all writers can
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, rpc.PublicRequestLimit))
	if err != nil {
		return held, bodyError(err)
	}
	_ = control.SetReadDeadline(time.Time{})
	if n := elements(body); n > httpElements {
		return held, rpc.Error(codes.InvalidArgument, rpc.ReasonInvalid, "the body has %d objects and lists, at most %d are possible", n, httpElements)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return held, nil
}

// elements counts the objects and lists of a JSON text: each takes a byte or two here, and a hundred once it is decoded.
func elements(text []byte) (n int) {
	inString := false
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			inString = !inString
		case '\\':
			if inString {
				i++
			}
		case '{', '[':
			if !inString {
				n++
			}
		}
	}
	return n
}

// methodOf returns the method of SchedulingService whose request is the body of what is posted to a path, "" if there is none; see http.yaml.
func methodOf(path string) string {
	switch path {
	case "/v1/apply":
		return schedulingv1.SchedulingService_Apply_FullMethodName
	case "/v1/delete":
		return schedulingv1.SchedulingService_Delete_FullMethodName
	case "/v1/whatif":
		return schedulingv1.SchedulingService_WhatIf_FullMethodName
	case "/v1/capacity":
		return schedulingv1.SchedulingService_GetCapacity_FullMethodName
	case "/v1/compare":
		return schedulingv1.SchedulingService_Compare_FullMethodName
	}
	if strings.HasPrefix(path, "/v1/members/") && strings.HasSuffix(path, ":drain") {
		return schedulingv1.SchedulingService_DrainMember_FullMethodName
	}
	return ""
}

// dropUncarried takes the headers off a request that the mux hands on as they are and that gRPC could not carry: the call would
// fail before it is made, as if the gateway had. A token with such a character is none. r is the handler's own.
func dropUncarried(r *http.Request) {
	uncarried := func(value string) bool {
		return strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' })
	}
	for _, name := range []string{"Authorization", "X-Forwarded-For", "X-Forwarded-Host"} {
		if slices.ContainsFunc(r.Header.Values(name), uncarried) {
			r.Header.Del(name)
		}
	}
	if uncarried(r.Host) {
		r.Host = ""
	}
}

func bodyError(err error) error {
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return &runtime.HTTPStatusError{
			HTTPStatus: http.StatusRequestEntityTooLarge,
			Err: rpc.Error(codes.InvalidArgument, ReasonTooLarge,
				"the request is larger than %d bytes: send its documents in several requests", rpc.PublicRequestLimit),
		}
	}
	return rpc.Error(codes.InvalidArgument, rpc.ReasonInvalid, "the body could not be read: %v", err)
}

// answerError gives the errors of the JSON layer itself, such as a body that does not parse, a reason like all others, and
// every answer that says when to come back the header Retry-After, in whole seconds.
func answerError(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	if rpc.ReasonOf(err) == "" && status.Code(err) == codes.InvalidArgument {
		err = rpc.Error(codes.InvalidArgument, rpc.ReasonInvalid, "%s", status.Convert(err).Message())
	}
	if after, asked := rpc.RetryAfter(err); asked {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

// compress returns a text compressed. The compressor is not kept for as long as a client takes to read that.
func (h *handler) compress(text []byte) []byte {
	compressor, _ := h.compressors.Get().(*gzip.Writer)
	if compressor == nil {
		compressor, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level exists
	}
	var compressed bytes.Buffer
	compressor.Reset(&compressed)
	_, _ = compressor.Write(text) // a buffer takes everything
	_ = compressor.Close()
	compressor.Reset(io.Discard)
	h.compressors.Put(compressor)
	return bytes.Clone(compressed.Bytes()) // without the room that it has grown
}

// patientWriter gives every write a deadline of its own, so that a client that reads a watch is served without end and
// one that does not is let go. An answer that there is no room for, since clients do not read others, it refuses.
type patientWriter struct {
	http.ResponseWriter
	unread   *rpc.Share
	caller   string
	refuse   func(error)         // answers with an error, where nothing has been written
	turn     *rpc.Turn           // ends before anything is written, which waits for the client; nil: there is none
	compress func([]byte) []byte // is for a large answer, which is one write, unless it is an error; nil: none is compressed
	begun    bool
}

func (w *patientWriter) WriteHeader(code int) {
	w.begun = true
	w.ResponseWriter.WriteHeader(code)
}

func (w *patientWriter) Write(b []byte) (int, error) {
	said := len(b)
	held := said
	compressed := w.compress != nil && !w.begun && said >= httpCompressFrom
	if compressed {
		b = w.compress(b)
		held += len(b) // whoever calls may keep what it was
	}
	if w.turn != nil {
		w.turn.End()
	}
	if held >= httpUnreadFrom {
		n := min(held, httpUnread/2)
		if !w.unread.Take(w.caller, n) {
			err := rpc.Exhausted(rpc.ReasonQueueFull, time.Second, "an answer of %d bytes: too many others are not read yet", said)
			if w.begun {
				return 0, err
			}
			w.refuse(err)
			return said, nil // it has been answered
		}
		defer w.unread.Give(w.caller, n)
	}
	if compressed {
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.begun = true
	for { // one of none is a write too
		w.extend()
		n, err := w.ResponseWriter.Write(b[:min(httpWriteBytes, len(b))])
		if err != nil {
			return 0, err
		}
		if b = b[n:]; len(b) == 0 {
			return said, nil
		}
	}
}

// FlushError is what http.ResponseController looks for.
func (w *patientWriter) FlushError() error {
	w.extend()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *patientWriter) extend() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(httpWriteTimeout)) // not all writers can
}

// ServeHTTP serves handler on l, which it closes, until ctx ends; then watches are ended, other requests get
// [rpc.DefaultDrain] to finish, and it returns nil. An error means that the listener broke.
func ServeHTTP(ctx context.Context, l net.Listener, handler http.Handler, logger *slog.Logger) error {
	// Requests live in a context that ends with ctx only for watches: the others are to finish.
	watches, endWatches := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatches()
	server := &http.Server{
		Handler: rpc.HoldRequests(logger, httpHeld, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == watchPath {
				requestCtx, cancel := context.WithCancel(r.Context())
				defer cancel()
				stop := context.AfterFunc(watches, cancel)
				defer stop()
				r = r.WithContext(requestCtx)
			}
			handler.ServeHTTP(w, r)
		})),
		ReadHeaderTimeout: httpHeaderTimeout,
		ReadTimeout:       httpReadTimeout,
		WriteTimeout:      httpWriteTimeout, // which a patientWriter extends
		IdleTimeout:       httpIdleTimeout,
		MaxHeaderBytes:    httpHeaderBytes,
		HTTP2:             rpc.HTTP2(httpStreams, httpWriteTimeout),
		ConnContext:       rpc.WithConn,
		ErrorLog:          slog.NewLogLogger(rpc.LibraryLog(logger), slog.LevelError),
	}
	address := l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		_ = server.Close() // the error of Serve is the one to tell
		return fmt.Errorf("serve JSON on %s: %w", address, err)
	case <-ctx.Done():
	}
	endWatches()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), rpc.DefaultDrain)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		_ = server.Close() // cuts what did not finish
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve JSON on %s: %w", address, err)
	}
	return nil
}
