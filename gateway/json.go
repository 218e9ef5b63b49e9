package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"time"

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
	httpBodyTimeout   = 30 * time.Second
	httpWriteTimeout  = 30 * time.Second // of one write, since a watch has no end
	httpIdleTimeout   = 60 * time.Second
	httpHeaderBytes   = 64 << 10
	httpDeadline      = 30 * time.Second // of a request that is no watch
)

// watchPath is the only path whose answer has no end; see http.yaml.
const watchPath = "/v1/placements:watch"

// Handler serves SchedulingService as JSON, by calling it over conn: with a connection to the gateway's own gRPC
// server, JSON requests meet the same limits, logs and metrics as all others. An error is answered with its code,
// message and details as google.rpc.Status, and a body over [rpc.PublicRequestLimit] with 413.
func Handler(conn grpc.ClientConnInterface) (http.Handler, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.HTTPBodyMarshaler{Marshaler: &runtime.JSONPb{
			MarshalOptions: protojson.MarshalOptions{EmitUnpopulated: true}, // unknown fields of a request are errors
		}}),
		runtime.WithErrorHandler(answerError),
	)
	client := schedulingv1.NewSchedulingServiceClient(conn)
	if err := schedulingv1.RegisterSchedulingServiceHandlerClient(context.Background(), mux, client); err != nil {
		return nil, fmt.Errorf("register JSON handlers: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if r.Body != nil && r.Body != http.NoBody {
			control := http.NewResponseController(w)
			_ = control.SetReadDeadline(time.Now().Add(httpBodyTimeout)) // not all writers can
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, rpc.PublicRequestLimit))
			if err != nil {
				_, outbound := runtime.MarshalerForRequest(mux, r)
				answerError(r.Context(), mux, outbound, w, r, bodyError(err))
				return
			}
			_ = control.SetReadDeadline(time.Time{})
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		if r.URL.Path != watchPath {
			ctx, cancel := context.WithTimeout(r.Context(), httpDeadline)
			defer cancel()
			r = r.WithContext(ctx)
		}
		mux.ServeHTTP(&patientWriter{w}, r)
	}), nil
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

// patientWriter gives every write a deadline of its own, so that a client that reads a watch is served without end and
// one that does not is let go.
type patientWriter struct{ http.ResponseWriter }

func (w *patientWriter) Write(b []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(b)
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
func ServeHTTP(ctx context.Context, l net.Listener, handler http.Handler) error {
	// Requests live in a context that ends with ctx only for watches: the others are to finish.
	watches, endWatches := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatches()
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == watchPath {
				requestCtx, cancel := context.WithCancel(r.Context())
				defer cancel()
				stop := context.AfterFunc(watches, cancel)
				defer stop()
				r = r.WithContext(requestCtx)
			}
			handler.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: httpHeaderTimeout,
		IdleTimeout:       httpIdleTimeout,
		MaxHeaderBytes:    httpHeaderBytes,
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
