package rpc

import (
	"context"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
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
	// A stream counts once, and once more for each heldHeaders of its headers beyond heldHeadersFree: besides them gRPC keeps what it repeats of
	// them, if it has answered by itself, in up to four bytes for one. They are counted as they come: a byte may stand for what HPACK remembers,
	// and what they are then, of which nothing is seen here, is publicHeaderBytes at most.
	heldHeadersFree = 8 << 10
	heldHeaders     = 2 << 10
	// heldFrames is how many bytes of frames that are of no stream's, or open windows, may come from a client before gRPC has dealt with them,
	// which it does not while it waits for the client to read.
	heldFrames = 64 << 10
	// heldFramesGone of these are dealt with, and one reset, when a write has gone that is not the last one.
	heldFramesGone = 1 << 10
	// dealtWithin is how long gRPC takes at most to deal with what a client sends, if it does not wait for the client to read.
	dealtWithin = time.Second

	// writeBuffer is how many bytes gRPC collects before it writes. It writes less only when it has dealt with all that it was told.
	writeBuffer = 32 << 10
)

// held bounds the streams that gRPC holds and no handler has. A call's handler ends, and gives back all that bounds it, when its answer is
// made. gRPC keeps its stream, with its headers and whatever the client has sent behind its request, until the client's flow control
// lets the last byte of the answer go. So each connection is counted from frames: a stream is there from the client's HEADERS to the
// end of the server's answer, or a reset. One that the client resets is there until gRPC has dealt with the reset, which it does not while
// it waits for the client to read.
//
// Where there is no room for one more, the connection that has most of them gives way, so that nobody is cut for what others hold.
type held struct {
	log *quiet

	mu    sync.Mutex
	share *Share               // by address
	conns map[*holder]struct{} // those that have some of it
}

// holder is a connection, with what it has of a bound.
type holder struct {
	address string // or who else it is of
	remote  net.Addr
	end     func()      // has whoever serves it close it; see held.end
	closed  atomic.Bool // or cut; set under held.mu
	taken   int         // of held.share, under held.mu
}

// cutting is a connection that is cut, of which nothing is counted any more, and that is to be ended.
type cutting struct {
	of    *holder
	why   string
	calls int // that it had
}

func newHeld(log *slog.Logger, limit int) *held {
	return &held{log: &quiet{log: log}, share: NewShare(limit, 0), conns: make(map[*holder]struct{})}
}

// set says how much a connection has, and returns which give way, for end.
func (h *held) set(c *holder, n int) (cuts []cutting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.setLocked(c, n)
}

// add is set for who says how much more it has, or less, and returns too how much it has then.
func (h *held) add(c *holder, n int) (cuts []cutting, has int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	cuts = h.setLocked(c, max(c.taken+n, 0))
	return cuts, c.taken
}

func (h *held) setLocked(c *holder, n int) (cuts []cutting) {
	for !c.closed.Load() && n > c.taken && !h.share.Take(c.address, n-c.taken) {
		cuts = h.cut(cuts, h.givesWay(c, n), "too many")
	}
	if c.closed.Load() {
		return cuts
	}
	if n < c.taken {
		h.share.Give(c.address, c.taken-n)
	}
	if c.taken = n; n > 0 {
		h.conns[c] = struct{}{}
	} else {
		delete(h.conns, c)
	}
	return cuts
}

// givesWay returns the connection that is cut so that another may have n: the one that has most, of addresses that have more than
// this one's will have, else of its own. The caller holds mu.
func (h *held) givesWay(c *holder, n int) *holder {
	of := h.share.heldBy(c.address) - c.taken + n
	var most, own *holder
	for other := range h.conns {
		switch {
		case other == c:
		case other.address == c.address:
			if other.taken > n && (own == nil || other.taken > own.taken) {
				own = other
			}
		case h.share.heldBy(other.address) > of && (most == nil || other.taken > most.taken):
			most = other
		}
	}
	switch {
	case most != nil:
		return most
	case own != nil:
		return own
	}
	return c
}

// cut adds a connection to those that are to be ended. The caller holds mu.
func (h *held) cut(cuts []cutting, c *holder, why string) []cutting {
	if c.closed.Load() {
		return cuts
	}
	cuts = append(cuts, cutting{c, why, c.taken})
	h.forget(c)
	return cuts
}

// end ends connections that were cut. The caller holds no lock: to end one may take what locks its layers have, and is nothing that others
// should wait for.
func (h *held) end(cuts []cutting) {
	for _, c := range cuts {
		if n := h.log.count(time.Now()); n > 0 {
			h.log.log.Warn("cut a client whose answers do not come to their end", "client", c.of.remote.String(), "why", c.why, "calls", c.calls, "cuts", n)
		}
		c.of.end()
	}
}

// forget ends the counting of a connection. The caller holds mu.
func (h *held) forget(c *holder) {
	h.share.Give(c.address, c.taken)
	c.taken = 0
	delete(h.conns, c)
	c.closed.Store(true)
}

// counted is a connection of which the streams are counted.
type counted struct {
	net.Conn
	holder
	held    *held
	in, out frames // what comes is read by one goroutine, what goes is written by one at a time

	// goneAt is when heldStreamsMove bytes of answers had gone last, whatever came to its end meanwhile; nil: never.
	goneAt atomic.Pointer[time.Time]

	mu      sync.Mutex
	cuts    []cutting      // to be ended when the lock is let go
	last    uint32         // stream that the client has opened
	open    map[uint32]int // streams, and as how many each counts
	counts  int            // all of them
	headers int            // bytes of those of last
	running int            // handlers
	coming  int            // what streams count that the client has reset, by what gRPC has not looked at: it comes back for more when it has
	reset   int            // what those count that the client has reset, by what gRPC has looked at, and may have to deal with
	fed     int            // bytes of heldFrames
	writing bool           // gRPC waits for the client to read, if it is for long
	holds   int            // what streams count that no handler has
	since   time.Time      // when a stream last came to its end, or enough of answers went, or a stream was the first that no handler had
	sent    int            // bytes of answers, since then
	gone    int            // bytes of answers, since goneAt
	watch   *time.Timer    // of look; nil: none runs
	settle  *time.Timer    // of settled; nil: none runs
}

func newCounted(conn net.Conn, h *held) *counted {
	return &counted{
		Conn: conn, held: h, in: frames{skip: len(clientPreface)}, open: make(map[uint32]int),
		holder: holder{address: AddressOf(conn.RemoteAddr()), remote: conn.RemoteAddr(), end: func() {
			_ = conn.SetDeadline(time.Now()) // wakes who waits, and gRPC closes it; it sets others when a handshake ends
		}},
	}
}

// clientPreface is what a client sends before its first frame (RFC 9113, 3.4).
const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Frames of HTTP/2 (RFC 9113, 6).
const (
	frameData      = 0
	frameHeaders   = 1
	frameReset     = 3
	frameSettings  = 4
	framePing      = 6
	frameWindow    = 8
	frameMore      = 9 // of headers
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
	if !c.looked() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.Conn.Read(b)
	c.change(func() { c.in.pass(b[:n], c.came) })
	return n, err
}

// came notes a frame of the client's. The caller holds the lock.
func (c *counted) came(kind, _ byte, stream uint32, length int) {
	switch {
	case kind == frameHeaders && stream <= c.last, (kind == frameData || kind == frameReset || kind == frameWindow) && stream > c.last:
		// gRPC ends the connection for a stream that is opened twice, but not for one whose headers it did not understand; and may
		// answer to what is of no stream by a reset, which would be taken for the end of the one that is opened then.
		c.cut("frames of no stream")
	case kind == frameHeaders:
		c.last, c.headers = stream, length
		c.weigh(stream, 1+max(c.headers-heldHeadersFree, 0)/heldHeaders)
	case kind == frameMore && c.open[stream] > 0 && stream == c.last:
		c.headers += length
		c.weigh(stream, 1+max(c.headers-heldHeadersFree, 0)/heldHeaders)
	case kind == frameReset:
		if n := c.open[stream]; n > 0 {
			c.weigh(stream, 0)
			c.coming += n
			if !c.writing {
				c.moved()
			}
		}
	case kind == frameSettings || kind == framePing || kind == frameWindow:
		if c.fed += frameHeadBytes + length; c.fed > heldFrames {
			c.cut("it sends and does not read")
		}
	}
}

// change changes something under the lock, counts, and ends those that have to give way then.
func (c *counted) change(something func()) {
	c.mu.Lock()
	something()
	c.count()
	cuts := c.cuts
	c.cuts = nil
	c.mu.Unlock()
	c.held.end(cuts)
}

// weigh says as how many a stream counts: 0 means that it is not there any more. The caller holds the lock.
func (c *counted) weigh(stream uint32, n int) {
	c.counts += n - c.open[stream]
	if c.open[stream] = n; n == 0 {
		delete(c.open, stream)
	}
}

// looked notes that gRPC has looked at all that has been read, since it wants more, and reports whether it may have more.
func (c *counted) looked() bool {
	c.change(func() { c.reset, c.coming = c.reset+c.coming, 0 })
	return !c.closed.Load()
}

// drained notes that gRPC has dealt with all it has looked at. The caller holds the lock.
func (c *counted) drained() { c.reset, c.fed = 0, 0 }

// settled notes the same where nothing is written: it would be by now.
func (c *counted) settled() {
	c.change(func() {
		c.settle = nil
		if !c.writing {
			c.drained()
		}
	})
}

func (c *counted) Write(b []byte) (int, error) {
	last := len(b) < writeBuffer
	c.change(func() {
		if c.writing = true; last {
			c.drained()
		}
	})
	if c.closed.Load() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.Conn.Write(b)
	c.change(func() {
		if c.writing = false; !last { // who always has more to write gets to the rest bit by bit
			c.reset, c.fed = max(c.reset-1, 0), max(c.fed-heldFramesGone, 0)
		}
		c.out.pass(b[:n], c.went)
	})
	return n, err
}

// went notes a frame of the server's. The caller holds the lock.
func (c *counted) went(kind, flags byte, stream uint32, length int) {
	switch {
	case kind == frameHeaders && flags&flagEndStream != 0 || kind == frameReset:
		if c.open[stream] > 0 {
			c.weigh(stream, 0)
			c.moved()
		}
	case kind == frameData:
		if c.sent += length; c.sent >= heldStreamsMove {
			c.moved()
		}
		if c.gone += length; c.gone >= heldStreamsMove {
			c.gone = 0
			c.goneAt.Store(new(time.Now()))
		}
	}
}

// moved notes that the client reads. The caller holds the lock.
func (c *counted) moved() { c.since, c.sent = time.Now(), 0 }

// reads returns when the client had last let so much of answers go, of whatever size, that it can be said to read them.
func (c *counted) reads() time.Time {
	if at := c.goneAt.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// runs notes that a handler begins, or with less than none that one has ended.
func (c *counted) runs(by int) {
	c.change(func() { c.running += by })
}

// count takes or gives what the streams that no handler has are of the bound. The caller holds the lock.
func (c *counted) count() {
	if (c.reset > 0 || c.fed > heldFrames/2) && c.settle == nil && !c.closed.Load() {
		c.settle = time.AfterFunc(dealtWithin, c.settled)
	}
	n := c.coming + c.reset
	if streams := len(c.open); streams > c.running { // of which those that have a handler are not known: they are like the others
		n += (c.counts*(streams-c.running) + streams - 1) / streams
	}
	if n == c.holds || c.closed.Load() {
		return
	}
	if c.holds == 0 {
		c.moved()
	}
	c.holds = n
	c.cuts = append(c.cuts, c.held.set(&c.holder, n)...)
	if n > 0 && c.watch == nil && !c.closed.Load() {
		c.watch = time.AfterFunc(heldStreamsFor, c.look)
	}
}

// look cuts a connection of which nothing has moved for too long.
func (c *counted) look() {
	c.change(func() {
		c.watch = nil
		switch left := heldStreamsFor - time.Since(c.since); {
		case c.closed.Load() || c.holds == 0:
		case left <= 0:
			c.cut("too long")
		default:
			c.watch = time.AfterFunc(left, c.look)
		}
	})
}

// cut is for who holds the lock by way of change.
func (c *counted) cut(why string) {
	c.held.mu.Lock()
	defer c.held.mu.Unlock()
	c.cuts = c.held.cut(c.cuts, &c.holder, why)
}

func (c *counted) Close() error {
	c.mu.Lock()
	for _, timer := range []*time.Timer{c.watch, c.settle} {
		if timer != nil {
			timer.Stop()
		}
	}
	c.held.mu.Lock()
	if !c.closed.Load() {
		c.held.forget(&c.holder)
	}
	c.held.mu.Unlock()
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
