package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// callLogger adapts log to the logging interceptors.
func callLogger(log *slog.Logger) logging.Logger {
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, message string, fields ...any) {
		log.Log(ctx, slog.Level(level), message, fields...)
	})
}

// callLogging returns the options of both sides: one line per finished call.
func callLogging(level logging.CodeToLevel) []logging.Option {
	return []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithLevels(level),
		logging.WithDisableLoggingFields(logging.SystemTag[0]),
		logging.WithDurationField(func(d time.Duration) logging.Fields { return logging.Fields{"took", d} }),
		logging.WithErrorFields(func(err error) logging.Fields {
			if reason := ReasonOf(err); reason != "" {
				return logging.Fields{"reason", string(reason)}
			}
			return nil
		}),
	}
}

// serverLevel is how loud the end of a call is. Answers that are part of the ordinary conversation are quiet:
// success, the end of a stream by cancellation, nothing found, "run it again at a newer version", "load a snapshot".
// So are refusals of an overloaded server, which metrics count: a line for each would add to its load.
func serverLevel(code codes.Code) logging.Level {
	switch code {
	case codes.OK, codes.Canceled, codes.NotFound, codes.AlreadyExists, codes.Aborted, codes.OutOfRange,
		codes.ResourceExhausted:
		return logging.LevelDebug
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return logging.LevelError
	default:
		return logging.LevelWarn
	}
}

// quietEvery is how often a line says how many calls were refused that have none of their own.
const quietEvery = 10 * time.Second

// maxPanicBytes are told of a panic that a library has logged, with its stack.
const maxPanicBytes = 16 << 10

// quiet is a log of calls at a server that is open to people. That a stranger is refused is no news, and strangers decide how often it
// happens: such calls are told at debug level, and in a line from time to time, with how many there were since the one before.
type quiet struct {
	log *slog.Logger

	mu    sync.Mutex
	told  time.Time
	calls int // that were not told
}

// logger is what callLogger is at other servers.
func (q *quiet) logger() logging.Logger {
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, message string, fields ...any) {
		if level > logging.LevelDebug && ofStranger(fields) {
			level = logging.LevelDebug
			if calls := q.count(time.Now()); calls > 0 {
				q.log.Warn("strangers were refused", "calls", calls)
			}
		}
		q.log.Log(ctx, slog.Level(level), message, fields...)
	})
}

// count counts a call, and returns how many are to be told now: 0 means none.
func (q *quiet) count(now time.Time) (calls int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls++
	if !q.told.IsZero() && now.Sub(q.told) < quietEvery {
		return 0
	}
	calls, q.told, q.calls = q.calls, now, 0
	return calls
}

// ofStranger reports whether the fields of a call say that nobody is known to have made it, as of all for health, or that its request did
// not come.
func ofStranger(fields []any) bool {
	for k := 0; k+1 < len(fields); k += 2 {
		switch fields[k] {
		case "grpc.code":
			if fields[k+1] == codes.Unauthenticated.String() {
				return true
			}
		case logging.ServiceFieldKey:
			if fields[k+1] == grpc_health_v1.Health_ServiceDesc.ServiceName {
				return true
			}
		case "reason":
			if fields[k+1] == string(ReasonSlowRequest) {
				return true
			}
		}
	}
	return false
}

// libraryLog takes the lines of a library's own log, of which strangers cause what they like. One is told from time to time, with how many
// there were since the one before, and each at debug level. What a panic has left is told in any case.
type libraryLog struct{ quiet }

// LibraryLog returns what a library logs to that has a log of its own, by way of [slog.NewLogLogger]: see the ErrorLog of http.Server, and
// grpclog.
func LibraryLog(log *slog.Logger) slog.Handler { return &libraryLog{quiet{log: log}} }

// Enabled implements slog.Handler: it is found out by the line.
func (l *libraryLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (l *libraryLog) Handle(_ context.Context, line slog.Record) error {
	text := strings.TrimSpace(line.Message)
	if strings.HasPrefix(text, "http: panic serving ") || strings.HasPrefix(text, "http2: panic serving ") {
		l.log.Error("a library has logged", "line", clean(text, maxPanicBytes))
		return nil
	}
	text = clean(text, maxTextBytes)
	l.log.Debug("a library has logged", "line", text)
	if lines := l.count(time.Now()); lines > 0 {
		l.log.Warn("a library has logged, lately", "line", text, "lines", lines)
	}
	return nil
}

// WithAttrs implements slog.Handler: a library's lines have none.
func (l *libraryLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler.
func (l *libraryLog) WithGroup(string) slog.Handler { return l }

func clientLevel(codes.Code) logging.Level { return logging.LevelDebug }

// onlyAt matches calls while log writes at level, so that a silent log costs nothing per call.
func onlyAt(log *slog.Logger, level slog.Level) func(context.Context, interceptors.CallMeta) bool {
	return func(ctx context.Context, _ interceptors.CallMeta) bool { return log.Enabled(ctx, level) }
}

func withoutDeadline(ctx context.Context, _ interceptors.CallMeta) bool {
	_, ok := ctx.Deadline()
	return !ok
}

// recovered returns the handler of panics. The panic and its stack go to the line that is logged for the call.
func recovered(panics prometheus.Counter) func(context.Context, any) error {
	return func(ctx context.Context, p any) error {
		panics.Inc()
		logging.AddFields(ctx, logging.Fields{"panic", p, "stack", string(debug.Stack())})
		return errInternal()
	}
}

// answer converts a handler's error for the client, and keeps what the client is not told for the log.
func answer(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	told, hidden := statusOf(err)
	if hidden {
		logging.AddFields(ctx, logging.Fields{"cause", err.Error()})
	}
	return told
}

func answerUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	return resp, answer(ctx, err)
}

func answerStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return answer(stream.Context(), handler(srv, stream))
}

// boundUnary gives a unary call without a deadline one; and always, if the caller is not to choose a later one.
func boundUnary(deadline time.Duration, always bool) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if _, ok := ctx.Deadline(); ok && !always {
			return handler(ctx, req)
		}
		ctx, cancel := context.WithTimeout(ctx, deadline)
		defer cancel()
		return handler(ctx, req)
	}
}

// errDraining is the cause of the end of a stream's context when its server stops.
var errDraining = errors.New("the server is draining")

// endStreams ends the context of every stream when draining ends: a stream that follows something has no end of its
// own, and would hold up each stop until it is cut. Its client is told UNAVAILABLE, which means "go on elsewhere".
func endStreams(draining context.Context) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, cancel := context.WithCancelCause(stream.Context())
		defer cancel(nil)
		stop := context.AfterFunc(draining, func() { cancel(errDraining) })
		defer stop()
		err := handler(srv, &serverStream{ServerStream: stream, ctx: ctx})
		if err != nil && errors.Is(context.Cause(ctx), errDraining) && status.Code(err) == codes.Canceled {
			return Error(codes.Unavailable, ReasonDraining, "%v", errDraining)
		}
		return err
	}
}

// serverStream has a context that also ends when the server drains, and says CANCELLED when the client is gone.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }
func (s *serverStream) SendMsg(m any) error      { return clientGone(s.ServerStream.SendMsg(m)) }
func (s *serverStream) RecvMsg(m any) error      { return clientGone(s.ServerStream.RecvMsg(m)) }

// clientGone makes the loss of the connection an ordinary end of the stream. gRPC reports it as UNAVAILABLE or
// CANCELLED, depending on what it notices first, and a handler that returns the first would seem to have failed.
func clientGone(err error) error {
	if status.Code(err) == codes.Unavailable {
		return status.Error(codes.Canceled, "the client is gone")
	}
	return err
}

// whoEnded tells a call that the caller cancelled from one that was cut: because this process closed the connection,
// or because the server gave up. gRPC says CANCELLED for both, and only the first means that nobody wants the answer.
func whoEnded(ctx context.Context, err error) error {
	if status.Code(err) == codes.Canceled && ctx.Err() == nil {
		return Error(codes.Unavailable, ReasonCallCut, "%s", status.Convert(err).Message())
	}
	return err
}

func cutUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return sized(whoEnded(ctx, invoke(ctx, method, req, reply, cc, opts...)))
}

func cutStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, whoEnded(ctx, err)
	}
	return &cutClientStream{ClientStream: stream, ctx: ctx}, nil
}

// cutClientStream holds the caller's context, since the stream's own also ends with the connection.
type cutClientStream struct {
	grpc.ClientStream
	ctx context.Context
}

func (s *cutClientStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		if errors.Is(err, io.EOF) {
			return err
		}
		return sized(whoEnded(s.ctx, err))
	}
	return nil
}
