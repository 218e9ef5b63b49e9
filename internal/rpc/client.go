package rpc

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/timeout"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
)

// Clients keeps one connection per address, for all roles of a process. Every call on them has metrics, debug logs
// and, if unary and its context has none, a deadline of [DefaultClientDeadline]. A call to an address that cannot be
// reached fails with UNAVAILABLE at once instead of waiting; connecting is tried again in the background, with
// pauses that grow to about 2 seconds. It is safe for concurrent use.
type Clients struct {
	net     Network
	options []grpc.DialOption

	mu     sync.Mutex
	conns  map[string]*kept
	closed bool
}

// kept is a connection.
type kept struct {
	conn  *grpc.ClientConn
	asked time.Time // for it, last
}

// A connection for which nobody has asked for unusedFor is closed when one to a new address is made, unless it is connected or tries
// to be: members that are gone leave nothing behind, however many come after them.
const unusedFor = time.Minute

var errClientsClosed = errors.New("clients are closed")

// NewClients returns clients without connections. Close them.
func NewClients(cfg Config) *Clients {
	cfg = cfg.withDefaults()
	return &Clients{net: cfg.Net, options: dialOptions(cfg), conns: make(map[string]*kept)}
}

func dialOptions(cfg Config) []grpc.DialOption {
	metrics := clientMetrics(cfg.Metrics)
	logger, logOptions := callLogger(cfg.Log), callLogging(clientLevel)
	logged := selector.MatchFunc(onlyAt(cfg.Log, slog.LevelDebug))

	// Outermost first: a deadline, then metrics and log line. No call is made again here: who calls knows what may happen twice.
	options := []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(
			selector.UnaryClientInterceptor(timeout.UnaryClientInterceptor(DefaultClientDeadline), selector.MatchFunc(withoutDeadline)),
			metrics.UnaryClientInterceptor(),
			selector.UnaryClientInterceptor(logging.UnaryClientInterceptor(logger, logOptions...), logged),
			cutUnary,
		),
		grpc.WithChainStreamInterceptor(
			metrics.StreamClientInterceptor(),
			selector.StreamClientInterceptor(logging.StreamClientInterceptor(logger, logOptions...), logged),
			cutStream,
		),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cfg.Largest), grpc.MaxCallSendMsgSize(cfg.Largest)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
	pings := keepalive.ClientParameters{Time: clientPingEvery, Timeout: clientPingWait, PermitWithoutStream: true}
	if cfg.Outside {
		pings = keepalive.ClientParameters{Time: outsidePingEvery, Timeout: outsidePingWait}
	}
	options = append(options, grpc.WithKeepaliveParams(pings))
	if cfg.TLS != nil {
		options = append(options, grpc.WithTransportCredentials(cfg.TLS.Client))
		if cfg.TLS.Servers != nil {
			options = append(options, grpc.WithPerRPCCredentials(serverCheck{cfg.TLS}))
		}
	}
	if cfg.Trace != nil {
		options = append(options, grpc.WithStatsHandler(otelgrpc.NewClientHandler(
			otelgrpc.WithTracerProvider(cfg.Trace), otelgrpc.WithPropagators(propagation.TraceContext{}))))
	}
	return options
}

// Conn returns the connection to address, and creates it on first use without waiting for it to connect.
// It belongs to c: callers do not close it, and ask for it again for a call that they make later. It fails if the address is
// malformed or c is closed.
func (c *Clients) Conn(address string) (*grpc.ClientConn, error) {
	now := time.Now()
	conn, added, err := c.conn(address, now)
	if added {
		_ = c.closeUnless(func(k *kept) bool { // closing fails only for a closed one
			return now.Sub(k.asked) < unusedFor || k.conn.GetState() != connectivity.Idle
		})
	}
	return conn, err
}

func (c *Clients) conn(address string, now time.Time) (conn *grpc.ClientConn, added bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false, errClientsClosed
	}
	if k, ok := c.conns[address]; ok {
		k.asked = now
		return k.conn, false, nil
	}
	conn, err = c.net.Dial(address, c.options...)
	if err != nil {
		return nil, false, err
	}
	c.conns[address] = &kept{conn: conn, asked: now}
	return conn, true, nil
}

// Close closes all connections; Conn fails from then on. Calls in flight fail with UNAVAILABLE and [ReasonCallCut]. It may be called
// again.
func (c *Clients) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	return c.closeUnless(func(*kept) bool { return false })
}

// closeUnless closes outside the lock, since closing waits for the connection's goroutines.
func (c *Clients) closeUnless(keep func(*kept) bool) error {
	var closing []*grpc.ClientConn
	c.mu.Lock()
	for address, k := range c.conns {
		if !keep(k) {
			delete(c.conns, address)
			closing = append(closing, k.conn)
		}
	}
	c.mu.Unlock()
	var errs []error
	for _, conn := range closing {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}
