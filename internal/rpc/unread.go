package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
)

// The bounds on unary answers that clients have not read, in bytes.
const (
	unreadLimit = 64 << 20        // of a server
	unreadShare = unreadLimit / 4 // of one connection; a larger answer takes all of it
	unreadFrom  = 16 << 10        // a smaller answer is one frame of HTTP/2, and not counted
	// unreadFor is how long a connection may read none of its answers before it is cut, once the server's bound is reached.
	unreadFor = 30 * time.Second
)

// unread bounds the answers that clients have not read. gRPC takes an answer from its handler at once, and keeps it until the
// client's flow control lets the last byte go: after the call has left its [Gate], and behind its deadline. An answer that there is
// no room for is refused with RESOURCE_EXHAUSTED (QUEUE_FULL). It does not wait, since that would keep others out of the gate.
//
// Streams are not counted: their Send waits for flow control itself.
type unread struct {
	log     *quiet
	buffers mem.BufferPool
	largest int // message that is sent
	// forwarding means that all who call come by one connection, whose only client is this process, which reads: a connection then has no bound.
	forwarding bool

	mu    sync.Mutex
	bytes int
	share *Share                   // of bytes, by caller: a caller has many connections
	conns map[*connection]struct{} // those that hold some of it
}

// tiers are the sizes of the buffers that are used again. gRPC's own pool has nothing between 32 KiB and 1 MiB.
var tiers = []int{32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20}

// capacityFor returns how many bytes the buffer of so many has: larger ones than the last tier are made to measure, and not kept.
func capacityFor(size int) int {
	if at, _ := slices.BinarySearch(tiers, size); at < len(tiers) {
		return tiers[at]
	}
	return size
}

func newUnread(log *slog.Logger, largest int, forwarding bool) *unread {
	return &unread{
		log: &quiet{log: log}, largest: largest, forwarding: forwarding,
		buffers: mem.NewTieredBufferPool(slices.Clone(tiers)...),
		conns:   make(map[*connection]struct{}),
		share:   NewShare(unreadLimit, 0),
	}
}

// deaf is a connection that is to be ended.
type deaf struct {
	conn  *connection
	bytes int // of answers that it does not read
}

// deaf returns the connections that hold room and have read nothing for unreadFor. The caller holds mu, and has end end them later.
func (u *unread) deaf(now time.Time) (all []deaf) {
	for c := range u.conns {
		since := c.since
		if c.streams != nil && c.streams.reads().After(since) { // an answer gives nothing back before all of it has gone
			since = c.streams.reads()
		}
		if now.Sub(since) > unreadFor {
			all = append(all, deaf{c, c.bytes})
			c.since = now
		}
	}
	return all
}

// end ends connections. The caller holds no lock, as with [held.end].
func (u *unread) end(all []deaf) {
	for _, c := range all {
		if n := u.log.count(time.Now()); n > 0 {
			u.log.log.Warn("cut a client that does not read its answers", "client", c.conn.Conn.RemoteAddr().String(), "bytes", c.bytes, "cuts", n)
		}
		_ = c.conn.SetDeadline(time.Now()) // its reads and writes fail, and gRPC closes it
	}
}

// count returns an answer as its client is to get it: a large one encoded, and counted until gRPC frees the buffer. It belongs in
// front of the gate's end, which then bounds the answers that are being encoded too.
func (u *unread) count(ctx context.Context, answer any) (any, error) {
	message, ok := answer.(proto.Message)
	if !ok {
		return answer, nil
	}
	size := proto.Size(message)
	if size < unreadFrom {
		return answer, nil
	}
	if size > u.largest { // gRPC says so too, once it is encoded
		return nil, Error(codes.InvalidArgument, ReasonTooLarge, "the answer is larger than max (%d vs. %d bytes)", size, u.largest)
	}
	capacity := capacityFor(size)
	p, _ := peer.FromContext(ctx) // whose address is that of a connection, see unreadCredentials
	room := p.Addr.(clientAddr).conn.take(CallerOf(ctx), min(capacity, unreadShare))
	if room == nil {
		return nil, Exhausted(ReasonQueueFull, methodBusyFor, "an answer of %d bytes: too many others are not read yet", size)
	}
	buffer := u.get(capacity, size)
	turn, err := TakeTurn(ctx)
	if err != nil {
		room.Put(buffer)
		return nil, err
	}
	defer turn.End()
	if _, err := (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend((*buffer)[:0], message); err != nil {
		room.Put(buffer)
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	// Compressed, it would be in buffers that are not counted. This only fails when the call is over.
	_ = grpc.SetSendCompressor(ctx, encoding.Identity)
	return mem.BufferSlice{mem.NewBuffer(buffer, room)}, nil
}

// get returns a buffer of so many bytes, and of the capacity that is for these.
func (u *unread) get(capacity, size int) *[]byte {
	if capacity > tiers[len(tiers)-1] {
		buffer := make([]byte, size)
		return &buffer
	}
	return u.buffers.Get(size)
}

// put gives a buffer back that get has returned.
func (u *unread) put(buffer *[]byte) {
	if cap(*buffer) <= tiers[len(tiers)-1] {
		u.buffers.Put(buffer)
	}
}

// answerCodec is a codec that sends what is encoded already as it is.
type answerCodec struct{ encoding.CodecV2 }

func (c answerCodec) Marshal(v any) (mem.BufferSlice, error) {
	if encoded, ok := v.(mem.BufferSlice); ok {
		return encoded, nil
	}
	return c.CodecV2.Marshal(v)
}

// Encode returns a message that any number of streams of a [Server] can send, by SendMsg, so that it is encoded once for all of them.
func Encode(message proto.Message) (any, error) {
	encoded, err := proto.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	return mem.BufferSlice{mem.SliceBuffer(encoded)}, nil
}

// unreadCredentials makes every connection of a server a [connection].
type unreadCredentials struct {
	credentials.TransportCredentials
	unread  *unread
	role    func(credentials.AuthInfo) string // of a certificate; nil without TLS
	vouches func(role string) bool            // whose connection is for a listener to keep; nil: nobody's
	held    *held
	counts  func(role string) bool // of whose connections the streams are counted
}

func (c unreadCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	of := &connection{Conn: conn, raw: raw, unread: c.unread}
	if c.role != nil {
		of.role = c.role(info)
	}
	if c.counts(of.role) {
		of.streams = newCounted(conn, c.held)
		of.Conn = of.streams
	}
	if bound := unbound(raw); bound != nil && c.vouches != nil && c.vouches(of.role) {
		bound.stay()
	}
	return of, info, nil
}

// connection counts the unread answers of one client.
type connection struct {
	net.Conn
	raw     net.Conn // below the encryption, if there is any
	unread  *unread
	role    string       // that the other side's certificate names, if any
	streams *counted     // Conn, where they are; else nil
	open    atomic.Int32 // calls and streams, where they are counted: see strangers

	// Under unread.mu:
	bytes  int            // of unread.bytes
	of     map[string]int // of these, by caller
	since  time.Time      // when it gave some back last, or took some and had none
	closed bool
}

// clientAddr is how a call finds its connection.
type clientAddr struct {
	net.Addr
	conn *connection
}

func (c *connection) RemoteAddr() net.Addr { return clientAddr{c.Conn.RemoteAddr(), c} }

// Close gives all room back: gRPC does not free the buffers of a connection that is closed, but drops them.
func (c *connection) Close() error {
	c.unread.mu.Lock()
	c.closed = true
	for caller, bytes := range c.of {
		c.giveLocked(caller, bytes)
	}
	c.unread.mu.Unlock()
	return c.Conn.Close()
}

// take returns room for so many bytes, and nil when there is none.
func (c *connection) take(caller string, bytes int) *room {
	room, deaf := c.tryTake(caller, bytes)
	c.unread.end(deaf)
	return room
}

// tryTake returns too whom take ends, because there is no room.
func (c *connection) tryTake(caller string, bytes int) (*room, []deaf) {
	c.unread.mu.Lock()
	defer c.unread.mu.Unlock()
	if c.closed || !c.unread.forwarding && c.bytes+bytes > unreadShare {
		return nil, nil
	}
	now := time.Now()
	if !c.unread.share.Take(caller, bytes) {
		return nil, c.unread.deaf(now)
	}
	if c.bytes == 0 {
		c.since = now
		c.unread.conns[c] = struct{}{}
	}
	if c.of == nil {
		c.of = make(map[string]int)
	}
	c.of[caller] += bytes
	c.bytes += bytes
	c.unread.bytes += bytes
	r := &room{conn: c, caller: caller, bytes: bytes}
	// gRPC also drops, without freeing it, what is written to a stream that the client has just reset.
	r.dropped = runtime.AddCleanup(r, func(bytes int) { c.give(caller, bytes) }, bytes)
	return r, nil
}

// give gives room back, unless Close has.
func (c *connection) give(caller string, bytes int) {
	c.unread.mu.Lock()
	defer c.unread.mu.Unlock()
	if !c.closed {
		c.since = time.Now()
		c.giveLocked(caller, bytes)
	}
}

func (c *connection) giveLocked(caller string, bytes int) {
	c.unread.share.Give(caller, bytes)
	if c.of[caller] -= bytes; c.of[caller] == 0 {
		delete(c.of, caller)
	}
	c.bytes -= bytes
	c.unread.bytes -= bytes
	if c.bytes == 0 {
		delete(c.unread.conns, c)
	}
}

// room is what one answer takes. It is the pool that gRPC gives the answer's buffer back to, once it is sent or its stream reset.
type room struct {
	mem.NopBufferPool
	conn    *connection
	caller  string
	bytes   int
	dropped runtime.Cleanup
}

func (r *room) Put(buffer *[]byte) {
	r.conn.unread.put(buffer)
	r.dropped.Stop()
	r.conn.give(r.caller, r.bytes)
	runtime.KeepAlive(r) // Stop must come before r is garbage
}
