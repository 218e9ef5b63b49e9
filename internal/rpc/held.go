package rpc

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
)

const (
	// heldStreams is how many streams gRPC may hold that no handler has, of all clients.
	heldStreams = 2048
	// heldStreamsFor is how long a connection may have such streams without one coming to its end, or so many bytes of answers going: a large
	// answer takes its time where the network is slow.
	heldStreamsFor  = 30 * time.Second
	heldStreamsMove = 64 << 10
)

// held bounds the streams that gRPC holds and no handler has. A call's handler ends, and gives back all that bounds it, when its answer is
// made. gRPC keeps its stream, with its headers and whatever the client has sent behind its request, until the client's flow control
// lets the last byte of the answer go. So each connection is counted from frames: a stream is there from the client's HEADERS to the
// end of the server's answer, or a reset.
type held struct {
	log   *slog.Logger
	share *Share // of streams, by address
}

// counted is a connection of which the streams are counted.
type counted struct {
	net.Conn
	held    *held
	address string
	in, out frames // what comes is read by one goroutine, what goes is written by one at a time

	mu      sync.Mutex
	last    uint32              // stream that the client has opened
	open    map[uint32]struct{} // streams
	running int                 // handlers
	taken   int                 // of held.share
	since   time.Time           // when a stream last came to its end, or enough of answers went, or a stream was the first that no handler had
	sent    int                 // bytes of answers, since then
	watch   *time.Timer         // of look; nil: none runs
	closed  bool
}

func newCounted(conn net.Conn, h *held) *counted {
	return &counted{Conn: conn, held: h, address: AddressOf(conn.RemoteAddr()), in: frames{skip: len(clientPreface)}, open: make(map[uint32]struct{})}
}

// clientPreface is what a client sends before its first frame (RFC 9113, 3.4).
const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Frames of HTTP/2 (RFC 9113, 6).
const (
	frameData      = 0
	frameHeaders   = 1
	frameReset     = 3
	flagEndStream  = 1
	frameHeadBytes = 9
)

// frames reads frames as they pass, in whatever pieces.
type frames struct {
	skip int // bytes up to the next frame
	head [frameHeadBytes]byte
	have int // bytes of head
}

func (f *frames) pass(b []byte, visit func(kind, flags byte, stream uint32, length int)) {
	for len(b) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(b))
			f.skip, b = f.skip-n, b[n:]
			continue
		}
		n := copy(f.head[f.have:], b)
		f.have, b = f.have+n, b[n:]
		if f.have == frameHeadBytes {
			h := f.head
			f.have, f.skip = 0, int(h[0])<<16|int(h[1])<<8|int(h[2])
			visit(h[3], h[4], (uint32(h[5])<<24|uint32(h[6])<<16|uint32(h[7])<<8|uint32(h[8]))&^(1<<31), f.skip)
		}
	}
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in.pass(b[:n], func(kind, _ byte, stream uint32, _ int) {
		switch {
		case kind == frameHeaders && stream > c.last:
			c.last = stream
			c.open[stream] = struct{}{}
		case kind == frameReset:
			c.end(stream)
		}
	})
	c.count()
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.pass(b[:n], func(kind, flags byte, stream uint32, length int) {
		switch {
		case kind == frameHeaders && flags&flagEndStream != 0 || kind == frameReset:
			c.end(stream)
		case kind == frameData:
			if c.sent += length; c.sent >= heldStreamsMove {
				c.moved()
			}
		}
	})
	c.count()
	return n, err
}

// end notes that a stream has come to its end. The caller holds the lock.
func (c *counted) end(stream uint32) {
	if _, there := c.open[stream]; there {
		delete(c.open, stream)
		c.moved()
	}
}

// moved notes that the client reads. The caller holds the lock.
func (c *counted) moved() { c.since, c.sent = time.Now(), 0 }

// runs notes that a handler begins, or with less than none that one has ended.
func (c *counted) runs(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running += by
	c.count()
}

// count takes or gives what the streams that no handler has are of the bound. A connection that has no room for them is cut. The caller
// holds the lock.
func (c *counted) count() {
	now := max(len(c.open)-c.running, 0)
	switch more := now - c.taken; {
	case c.closed:
		return
	case more > 0 && !c.held.share.Take(c.address, more):
		c.cut("too many")
		return
	case more < 0:
		c.held.share.Give(c.address, -more)
	}
	if c.taken == 0 && now > 0 {
		c.moved()
	}
	c.taken = now
	if now > 0 && c.watch == nil {
		c.watch = time.AfterFunc(heldStreamsFor, c.look)
	}
}

// look cuts a connection of which nothing has moved for too long.
func (c *counted) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch = nil
	switch left := heldStreamsFor - time.Since(c.since); {
	case c.closed || c.taken == 0:
	case left <= 0:
		c.cut("too long")
	default:
		c.watch = time.AfterFunc(left, c.look)
	}
}

// cut has reads and writes fail, so that gRPC closes the connection. The caller holds the lock.
func (c *counted) cut(why string) {
	c.held.log.Warn("cut a client whose answers do not come to their end", "caller", c.Conn.RemoteAddr().String(), "why", why, "calls", len(c.open))
	c.giveAll()
	_ = c.Conn.SetDeadline(time.Now())
}

// giveAll ends the counting. The caller holds the lock.
func (c *counted) giveAll() {
	c.held.share.Give(c.address, c.taken)
	c.taken, c.closed = 0, true
	if c.watch != nil {
		c.watch.Stop()
		c.watch = nil
	}
}

func (c *counted) Close() error {
	c.mu.Lock()
	if !c.closed {
		c.giveAll()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// countHandlers says of each call for how long it has a handler.
func countHandlers(next grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		if p, ok := peer.FromContext(stream.Context()); ok {
			if address, ok := p.Addr.(clientAddr); ok && address.conn.streams != nil {
				address.conn.streams.runs(1)
				ended := sync.OnceFunc(func() { address.conn.streams.runs(-1) })
				defer ended()
				// A call that its client has reset has no stream any more, though its handler may not have noticed.
				defer context.AfterFunc(stream.Context(), ended)()
			}
		}
		return next(srv, stream)
	}
}
