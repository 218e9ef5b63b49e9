package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Server is a gRPC server with health and reflection. Build it with [NewServer], register services, Serve once.
//
// A handler may return an error from [Error] or [Invalid], which reaches the client as it is, or a plain error:
// context.Canceled and context.DeadlineExceeded get their codes, anything else becomes INTERNAL without detail,
// and the detail is logged. A unary handler always has a deadline, and of each method at most 16 calls run and 128 wait;
// more are refused with RESOURCE_EXHAUSTED (QUEUE_FULL), and so is an answer while clients have not read 64 MiB of others, or its
// own 16 MiB. The context of a stream ends when the server starts to drain; its handler should then return ctx.Err().
type Server struct {
	grpc      *grpc.Server
	health    *Health
	unread    *unread
	held      *held
	public    *public    // nil: an inner one
	inner     *inner     // nil: a public one
	strangers *strangers // of an inner one with TLS
	log       *slog.Logger
	name      string
	drainFor  time.Duration

	draining   context.Context // ends when streams should
	endStreams context.CancelFunc
}

// Option changes a server from what the inner roles need.
type Option func(*options)

type options struct {
	requestLimit     int
	streamLimits     map[string]int // by method
	atOnce           map[string]int // likewise
	deadline         time.Duration
	drainFor         time.Duration
	connAge, ageLeft time.Duration
	callers          map[string]Callers
	public           bool
	guard            Guard
	forwarding       bool
	reviewEvery      time.Duration
}

// WithRequestLimit sets the largest request, in bytes; by default it is [MessageLimit].
// A larger one is answered INVALID_ARGUMENT (TOO_LARGE) by a server that is open to people, and by others RESOURCE_EXHAUSTED, which is
// gRPC's own, without reason or RetryInfo: it never gets smaller.
func WithRequestLimit(bytes int) Option { return func(o *options) { o.requestLimit = bytes } }

// WithStreamRequestLimit sets the largest request, in bytes, of a method of several, at a server that is for other roles; by default it is 64 KiB.
func WithStreamRequestLimit(method string, bytes int) Option {
	return func(o *options) {
		if o.streamLimits == nil {
			o.streamLimits = make(map[string]int)
		}
		o.streamLimits[method] = bytes
	}
}

// WithAtOnce sets how many calls of a unary method run at a time; by default it is 16. For calls that wait for each other in an order of their own: what waits for its turn here knows none.
func WithAtOnce(method string, calls int) Option {
	return func(o *options) {
		if o.atOnce == nil {
			o.atOnce = make(map[string]int)
		}
		o.atOnce[method] = calls
	}
}

// WithDeadline sets the deadline of a unary call whose client set none, and the latest one if the server is open to people; by default it is [DefaultServerDeadline].
func WithDeadline(d time.Duration) Option { return func(o *options) { o.deadline = d } }

// WithDrain sets how long a stopping server waits for calls in flight; by default it is [DefaultDrain].
func WithDrain(d time.Duration) Option { return func(o *options) { o.drainFor = d } }

// WithConnectionAge asks clients to connect anew after about age, and cuts streams that are still open grace later.
// It is for servers behind DNS, where a client that never reconnects never sees new replicas. By default
// connections live as long as both sides want.
func WithConnectionAge(age, grace time.Duration) Option {
	return func(o *options) { o.connAge, o.ageLeft = age, grace }
}

// NewServer returns a server that is not serving yet. The name is the role, for logs and metrics.
func NewServer(cfg Config, name string, opts ...Option) *Server {
	cfg = cfg.withDefaults()
	o := options{requestLimit: cfg.Largest, deadline: DefaultServerDeadline, drainFor: DefaultDrain, reviewEvery: reviewEvery}
	for _, opt := range opts {
		opt(&o)
	}
	s := &Server{health: newHealth(), log: cfg.Log.With("role", name), name: name, drainFor: o.drainFor}
	s.unread = newUnread(s.log, cfg.Largest, o.forwarding)
	s.draining, s.endStreams = context.WithCancel(context.Background())

	metrics := serverMetrics(cfg.Metrics)
	logger, logOptions := callLogger(s.log), callLogging(serverLevel)
	if o.public {
		logger = (&quiet{log: s.log}).logger()
	}
	recoverHandler := recovery.WithRecoveryHandlerContext(recovered(panicMetrics(cfg.Metrics).WithLabelValues(name)))

	// Outermost first. Metrics count what the client was told; logs have what it was not; recovery is close to the
	// handler, so that a panic is counted and logged like any other failure.
	unary := []grpc.UnaryServerInterceptor{
		metrics.UnaryServerInterceptor(),
		logging.UnaryServerInterceptor(logger, logOptions...),
		answerUnary,
		recovery.UnaryServerInterceptor(recoverHandler),
		boundUnary(o.deadline, o.public),
	}
	stream := []grpc.StreamServerInterceptor{
		metrics.StreamServerInterceptor(),
		endStreams(s.draining),
		logging.StreamServerInterceptor(logger, logOptions...),
		answerStream,
		recovery.StreamServerInterceptor(recoverHandler),
	}
	transport := insecure.NewCredentials()
	var members members
	s.held = newHeld(s.log, heldStreams)
	identities := unreadCredentials{
		unread: s.unread, held: s.held,
		// Of everybody who is not one of Berth's processes, where these are known, and not of the gateway's own calls.
		counts: func(role string) bool { return !o.forwarding && (o.public || cfg.TLS != nil) && !members.has(role) },
	}
	var serverOptions []grpc.ServerOption
	if cfg.TLS != nil {
		members = newMembers(cfg.TLS, o.callers)
		identities.role = func(info credentials.AuthInfo) string { return roleOf(info, cfg.TLS.Role) }
		if !o.public {
			identities.vouches = members.has
			s.strangers = &strangers{members, NewShare(strangersOpen, 0)}
			serverOptions = append(serverOptions, grpc.InTapHandle(s.strangers.tap))
		}
		transport = credentials.NewTLS(cfg.TLS.Server)
		// Behind the interceptors above: refused calls are counted and logged like all that fail.
		allowed := &access{role: cfg.TLS.Role, callers: o.callers, pauses: o.public}
		unary, stream = append(unary, allowed.unary), append(stream, allowed.stream)
	}
	identities.TransportCredentials = transport
	// Behind access and guard, so that who may not call takes nobody's place.
	gates := &gates{unread: s.unread, atOnce: o.atOnce}
	serverOptions = append(serverOptions,
		grpc.MaxRecvMsgSize(o.requestLimit),
		grpc.MaxSendMsgSize(cfg.Largest),
		grpc.WriteBufferSize(writeBuffer),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: serverPingFloor, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true), // so that Serve owns every handler's goroutine
		grpc.Creds(identities),
		grpc.UnknownServiceHandler(refuseUnknown(o.public)),
		grpc.ForceServerCodecV2(answerCodec{encoding.GetCodecV2(protocodec.Name)}),
	)
	pings := keepalive.ServerParameters{
		Time:                  serverPingEvery,
		Timeout:               serverPingWait,
		MaxConnectionAge:      o.connAge, // 0 means forever
		MaxConnectionAgeGrace: o.ageLeft,
	}
	var tracing []otelgrpc.Option
	if o.public {
		s.public = newPublic(&o, members, cfg.Turns, chainUnary(unary), gates.unary)
		stream = append([]grpc.StreamServerInterceptor{boundRequests(o.requestLimit, true, nil)}, append(stream, s.public.stream)...)
		if o.forwarding {
			serverOptions = append(serverOptions, grpc.MaxConcurrentStreams(forwardedStreams), grpc.MaxHeaderListSize(maxHeaderBytes))
		} else {
			serverOptions = append(serverOptions, grpc.MaxConcurrentStreams(publicStreams), grpc.MaxHeaderListSize(publicHeaderBytes),
				grpc.StaticStreamWindowSize(publicWindow))
			pings.MaxConnectionIdle = publicIdle
		}
		// Whether a trace is sampled is not for strangers to say.
		tracing = append(tracing, otelgrpc.WithPublicEndpoint())
	} else {
		s.inner = &inner{outer: chainUnary(unary), gates: gates.unary, members: members}
		stream = append([]grpc.StreamServerInterceptor{boundRequests(streamRequestBytes, false, o.streamLimits)}, stream...)
		serverOptions = append(serverOptions, grpc.MaxConcurrentStreams(maxStreamsPerConnection), grpc.MaxHeaderListSize(maxHeaderBytes),
			grpc.StaticStreamWindowSize(innerWindow), grpc.StaticConnWindowSize(innerConnWindow))
	}
	serverOptions = append(serverOptions, grpc.KeepaliveParams(pings), grpc.StreamInterceptor(only(stream)))
	if cfg.Trace != nil {
		serverOptions = append(serverOptions, grpc.StatsHandler(otelgrpc.NewServerHandler(append(tracing,
			otelgrpc.WithTracerProvider(cfg.Trace), otelgrpc.WithPropagators(propagation.TraceContext{}))...)))
	}
	s.grpc = grpc.NewServer(serverOptions...)
	grpc_health_v1.RegisterHealthServer(s.Registrar(), s.health.server)
	reflection.Register(s.grpc)
	return s
}

// Registrar is where services are registered. It must not be used once Serve was called.
func (s *Server) Registrar() grpc.ServiceRegistrar {
	if s.public != nil {
		return registrar{s.grpc, s.public.unary}
	}
	return registrar{s.grpc, s.inner.unary}
}

// Health is what the server says of itself.
func (s *Server) Health() *Health { return s.health }

// readers are the goroutines that read requests.
func (s *Server) readers() *sync.WaitGroup {
	if s.public != nil {
		return &s.public.readers
	}
	return &s.inner.readers
}

// Serve answers calls on l, which it closes, until ctx ends. Then health says not serving, streams are ended, new
// calls are refused, calls in flight get time to finish (see [WithDrain]), what is left is cut, and Serve returns nil.
// An error means that the listener broke, or that a handler outlived both its context and another such time.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer s.endStreams()
	defer s.readers().Wait() // they end with the calls they read for
	for service := range s.grpc.GetServiceInfo() {
		s.health.follow(service)
	}
	address := l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(l) }()
	s.log.Info("serving", "address", address)

	select {
	case err := <-served:
		s.health.drain("stopped")
		s.endStreams()
		return errors.Join(fmt.Errorf("serve %s on %s: %w", s.name, address, err), s.stop())
	case <-ctx.Done():
	}
	s.health.drain("draining")
	s.endStreams()
	if err := s.stop(); err != nil {
		return err // gRPC's Serve waits for the same handler
	}
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve %s on %s: %w", s.name, address, err)
	}
	s.log.Info("stopped serving", "address", address)
	return nil
}

// stop ends the server: gently for drainFor, then by force, for at most as long again.
func (s *Server) stop() error {
	gentle := make(chan struct{})
	go func() {
		defer close(gentle)
		s.grpc.GracefulStop()
	}()
	if ended(gentle, s.drainFor) {
		return nil
	}
	s.log.Warn("calls in flight are cut", "after", s.drainFor)
	forced := make(chan struct{})
	go func() {
		defer close(forced)
		s.grpc.Stop()
	}()
	if ended(forced, s.drainFor) {
		<-gentle
		return nil
	}
	return fmt.Errorf("stop %s: a handler did not return within %v of its context's end", s.name, s.drainFor)
}

// ended waits for done, at most for limit, and returns whether it came.
func ended(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
