package rpc

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"
	"k8s.io/apimachinery/pkg/util/cache"
)

// The bounds of a listener, unless others are given.
const (
	DefaultConnections        = 1024
	DefaultConnectionsOfOne   = 256
	connectionsPerSecondOfOne = 100 // of one address, and as many at once as it may have
	rememberedAddresses       = 8192
	forgetAddress             = time.Minute
)

// Bounds say how many connections a listener has at a time.
type Bounds struct {
	Name    string                // of the listener, in metrics
	All     int                   // 0 means DefaultConnections
	Each    int                   // of one remote address, see AddressOf; 0 means DefaultConnectionsOfOne, less no such bound; never more than are free
	Keep    bool                  // nobody gives way: nobody vouches for anybody here, so that the oldest may be the best
	Paced   bool                  // no more is read of a connection than some KiB while it does not read, see paced; for HTTP
	Metrics prometheus.Registerer // nil keeps none
}

// Bound bounds the connections of a listener. One that is too many is closed at once, and the others do not notice: but where all
// there may be are there, the oldest of those that nobody has vouched for ([Vouch]) is closed in its stead.
func Bound(l net.Listener, b Bounds) net.Listener {
	if b.All <= 0 {
		b.All = DefaultConnections
	}
	switch {
	case b.Each == 0:
		b.Each = DefaultConnectionsOfOne
	case b.Each < 0:
		b.Each = b.All
	}
	if b.Metrics == nil {
		b.Metrics = prometheus.NewRegistry()
	}
	refused := registered(b.Metrics, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_connections_refused_total",
		Help: "Total number of connections that were closed because there were too many, by listener, and by what was too much: all, those of one address, or how often it connects; or that gave way to another.",
	}, []string{"listener", "bound"}))
	open := registered(b.Metrics, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_connections", Help: "Number of open connections, by listener.",
	}, []string{"listener"}))
	return &boundListener{
		Listener: l, each: b.Each, all: b.All, keep: b.Keep, paced: b.Paced, share: NewShare(b.All, b.Each), vouched: NewShare(b.All/2, 0), strangers: list.New(), rates: cache.NewLRUExpireCache(rememberedAddresses),
		open:      open.WithLabelValues(b.Name),
		tooMany:   refused.WithLabelValues(b.Name, "all"),
		tooManyOf: refused.WithLabelValues(b.Name, "address"),
		tooOften:  refused.WithLabelValues(b.Name, "rate"),
		gaveWay:   refused.WithLabelValues(b.Name, "gave-way"),
	}
}

type boundListener struct {
	net.Listener
	all, each                             int
	keep, paced                           bool
	share                                 *Share                // by address
	vouched                               *Share                // by caller: half of all, so that no callers, whatever they may, have all for good
	rates                                 *cache.LRUExpireCache // *rate.Limiter by address
	open                                  prometheus.Gauge
	tooMany, tooManyOf, tooOften, gaveWay prometheus.Counter

	mu        sync.Mutex
	strangers *list.List // *boundConn, those that nobody has vouched for, oldest first
}

// Accept implements net.Listener.
func (l *boundListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := AddressOf(conn.RemoteAddr())
		if !l.mayConnect(address) {
			l.tooOften.Inc()
			_ = conn.Close() // nobody waits for it
			continue
		}
		if !l.share.Take(address, 1) {
			if used, _ := l.share.Used(); used < l.all {
				l.tooManyOf.Inc()
				_ = conn.Close()
				continue
			}
			if !l.makeRoom(address) {
				l.tooMany.Inc()
				_ = conn.Close()
				continue
			}
		}
		l.open.Inc()
		if l.paced {
			conn = &paced{Conn: conn}
		}
		bound := &boundConn{Conn: conn, listener: l, address: address}
		l.mu.Lock()
		bound.at = l.strangers.PushBack(bound)
		l.mu.Unlock()
		return bound, nil
	}
}

// mayConnect reports whether an address connects seldom enough. Handshakes cost more than what they lead to.
func (l *boundListener) mayConnect(address string) bool {
	if address == "" {
		return true
	}
	var limiter *rate.Limiter
	if known, ok := l.rates.Get(address); ok {
		limiter = known.(*rate.Limiter)
	} else {
		limiter = rate.NewLimiter(connectionsPerSecondOfOne, max(l.each, connectionsPerSecondOfOne))
		l.rates.Add(address, limiter, forgetAddress)
	}
	return limiter.Allow()
}

// makeRoom closes a connection that nobody has vouched for, hands its place to an address, and reports whether there was one. It is the
// oldest of those of addresses that have more than this one, else of its own: who would be refused anyway drives nobody out.
func (l *boundListener) makeRoom(address string) bool {
	for !l.keep {
		oldest := l.givesWay(address)
		if oldest == nil {
			return false
		}
		if oldest.end(func() { l.share.move(oldest.address, address) }) {
			l.gaveWay.Inc()
			_ = oldest.Conn.Close() // whoever serves it finds out
			return true
		}
		if l.share.Take(address, 1) { // it was closed meanwhile
			return true
		}
	}
	return false
}

func (l *boundListener) givesWay(address string) *boundConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	var own *boundConn
	has := l.share.heldBy(address)
	for e := l.strangers.Front(); e != nil; e = e.Next() {
		c := e.Value.(*boundConn)
		if c.address == address {
			if own == nil {
				own = c
			}
		} else if has < l.each && l.share.heldBy(c.address) > has {
			return c
		}
	}
	return own
}

// boundConn is a connection that is counted until it is closed.
type boundConn struct {
	net.Conn
	listener *boundListener
	address  string
	at       *list.Element // in listener.strangers, until somebody has vouched for it
	stays    atomic.Bool   // somebody has, or it is closed
	once     sync.Once

	// Under listener.mu:
	closed bool
	of     *string // whose share of listener.vouched it has, if any
}

// Close implements net.Conn.
func (c *boundConn) Close() error {
	c.end(func() { c.listener.share.Give(c.address, 1) })
	return c.Conn.Close()
}

// end gives the connection's place away, unless that has been done.
func (c *boundConn) end(give func()) (ended bool) {
	c.stay()
	c.once.Do(func() {
		ended = true
		give()
		c.listener.open.Dec()
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		c.closed = true
		if c.of != nil {
			c.listener.vouched.Give(*c.of, 1)
		}
	})
	return ended
}

// stay takes the connection off the list of those that give way.
func (c *boundConn) stay() {
	if c.stays.Swap(true) {
		return
	}
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.strangers.Remove(c.at)
}

// vouch lets the connection stay, if its caller's share has room for one more.
func (c *boundConn) vouch(caller string) {
	if c.stays.Load() {
		return
	}
	c.listener.mu.Lock()
	may := !c.closed && c.of == nil && c.listener.vouched.Take(caller, 1)
	if may {
		c.of = &caller
	}
	c.listener.mu.Unlock()
	if may {
		c.stay()
	}
}

// unbound returns the connection of a bounded listener below conn, nil if there is none.
func unbound(conn net.Conn) *boundConn {
	for {
		switch c := conn.(type) {
		case *boundConn:
			return c
		case *tls.Conn:
			conn = c.NetConn()
		case *connection:
			conn = c.raw
		default:
			return nil
		}
	}
}

type connKey struct{}

// WithConn is what http.Server.ConnContext should be, so that [Vouch] finds the connection of a request.
func WithConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// Vouch says that the call of a context was let in, for somebody: its connection does not give way to others any more, if the caller
// has not its share already of those that do not. Who may connect may not be allowed anything else, so that half of all connections can be
// such; they are divided as by a [Share]. A request of HTTP counts among those of its caller from then on ([HoldRequests]).
func Vouch(ctx context.Context, caller string) {
	if request, ok := ctx.Value(requestKey{}).(*heldRequest); ok {
		request.vouch(caller)
	}
	var bound *boundConn
	if conn, ok := ctx.Value(connKey{}).(net.Conn); ok {
		bound = unbound(conn)
	} else if p, ok := peer.FromContext(ctx); ok {
		if address, ok := p.Addr.(clientAddr); ok {
			bound = unbound(address.conn)
		}
	}
	if bound != nil {
		bound.vouch(caller)
	}
}
