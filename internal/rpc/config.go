package rpc

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// Config is what the servers and the clients of one process share.
type Config struct {
	Net     Network              // how servers listen and clients dial; nil means TCP
	Log     *slog.Logger         // nil discards
	Metrics *prometheus.Registry // where call metrics are registered, once however many servers share it; nil keeps none
	Trace   trace.TracerProvider // nil means no tracing
	TLS     *TLS                 // nil means plaintext, and that everybody may do everything
	Turns   *Turns               // in which servers that are open to people work; nil means that they do not wait for any
	Outside bool                 // clients call servers that are none of Berth's, and ping them so seldom that none takes it for an attack
	Largest int                  // message that is sent and received, in bytes; 0 means [MessageLimit]
}

// withDefaults returns c with every nil but Trace and TLS replaced.
func (c Config) withDefaults() Config {
	if c.Net == nil {
		c.Net = TCP()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	if c.Largest == 0 {
		c.Largest = MessageLimit
	}
	return c
}

const (
	// MessageLimit is the largest message, in bytes, that Berth's roles send and receive among themselves.
	// A log snapshot is cut into chunks well below it.
	MessageLimit = 64 << 20

	// PublicRequestLimit is the largest request, in bytes, that a server open to people should accept.
	PublicRequestLimit = 4 << 20

	// DefaultServerDeadline bounds a unary call whose client set no deadline.
	DefaultServerDeadline = 30 * time.Second

	// DefaultClientDeadline bounds a unary call whose context has no deadline, retries included.
	DefaultClientDeadline = 5 * time.Second

	// DefaultDrain is how long a stopping server waits for calls in flight.
	DefaultDrain = 5 * time.Second
)

// Keepalive, in one place because both sides must agree: a server answers a client that pings more often than
// it allows with GOAWAY "too_many_pings".
const (
	clientPingEvery  = 10 * time.Second // the least that grpc-go lets a client use
	clientPingWait   = 5 * time.Second  // without an answer for this long the connection is dead
	outsidePingEvery = 6 * time.Minute  // gRPC's servers let clients ping every 5 min, if a stream is open, unless they are told otherwise
	outsidePingWait  = 20 * time.Second // also for what is sent: with pings, gRPC has the kernel give a connection up that does not take it for so long
	serverPingFloor  = 5 * time.Second  // the server's MinTime; must not exceed clientPingEvery
	serverPingEvery  = 30 * time.Second
	serverPingWait   = 10 * time.Second
)

const (
	maxStreamsPerConnection = 1000
	forwardedStreams        = 4096 // of the one connection of a process to itself: more than what it may forward, so that none waits for another
	maxHeaderBytes          = 64 << 10
	handshakeTimeout        = 10 * time.Second
)
