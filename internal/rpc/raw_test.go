package rpc_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc/test/bufconn"

	"github.com/berth-scheduler/berth/internal/rpc"
)

// rawConn is a client of HTTP/2 that frames what it sends as it likes.
type rawConn struct {
	net.Conn
	mu      sync.Mutex
	more    *sync.Cond
	windows map[uint32]int // by stream; 0 is the connection's
	ended   bool
	headers int             // frames of headers that have come
	ends    map[uint32]bool // streams of which the end has come, or a reset
	answers map[uint32]int  // bytes of headers, by stream
}

// rawNetwork is a network in memory of one listener, that raw connections are made to.
type rawNetwork struct {
	rpc.Network
	listener *bufconn.Listener
}

func newRawNetwork() rawNetwork { return rawNetwork{rpc.Memory(), bufconn.Listen(256 << 10)} }

func (n rawNetwork) Listen(string) (net.Listener, error) { return n.listener, nil }

func dialRaw(t *testing.T, n rawNetwork) *rawConn {
	t.Helper()
	conn, err := n.listener.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return newRawConn(t, conn)
}

// newRawConn begins a connection, with so many frames at once.
func newRawConn(t *testing.T, conn net.Conn, frames ...[]byte) *rawConn {
	t.Helper()
	c := &rawConn{Conn: conn, windows: map[uint32]int{0: 65535}, ends: make(map[uint32]bool), answers: make(map[uint32]int)}
	c.more = sync.NewCond(&c.mu)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.read()
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	c.write(t, append(preface(), bytes.Join(frames, nil)...))
	return c
}

func preface() []byte {
	return append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, 0, 0, nil)...)
}

// read reads what makes windows larger, and drops the rest.
func (c *rawConn) read() {
	r := bufio.NewReader(c.Conn)
	for {
		var head [9]byte
		_, err := io.ReadFull(r, head[:])
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if err == nil {
			_, err = io.ReadFull(r, payload)
		}
		c.mu.Lock()
		if err != nil {
			c.ended = true
			c.more.Broadcast()
			c.mu.Unlock()
			return
		}
		if head[3] == 1 {
			c.headers++
		}
		stream := binary.BigEndian.Uint32(head[5:])
		if head[3] == 1 || head[3] == 9 {
			c.answers[stream] += len(payload)
		}
		if head[3] == 1 && head[4]&1 != 0 || head[3] == 3 {
			c.ends[stream] = true
		}
		if head[3] == 8 {
			c.windows[stream] += int(binary.BigEndian.Uint32(payload))
			c.more.Broadcast()
		}
		c.mu.Unlock()
	}
}

func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	return append(binary.BigEndian.AppendUint32([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags}, stream), payload...)
}

func (c *rawConn) write(t *testing.T, b []byte) {
	t.Helper()
	if _, err := c.Conn.Write(b); err != nil {
		t.Fatal(err)
	}
}

// call begins a call of a method on a stream.
func (c *rawConn) call(t *testing.T, stream uint32, method string, more ...[2]string) {
	t.Helper()
	c.mu.Lock()
	c.windows[stream] = 65535
	c.mu.Unlock()
	c.write(t, frame(1, 4, stream, headers(method, more...)))
}

// headers are those of a call of a method.
func headers(method string, more ...[2]string) (block []byte) {
	for _, field := range append([][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"}}, more...) {
		block = append(block, 0)
		for _, text := range field {
			n := len(text)
			if block = append(block, byte(min(n, 127))); n >= 127 {
				block = binary.AppendUvarint(block, uint64(n-127))
			}
			block = append(block, text...)
		}
	}
	return block
}

// answered returns how many calls have an answer, or its beginning.
func (c *rawConn) answered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.headers
}

// answerOf returns how many bytes of headers have come of a stream.
func (c *rawConn) answerOf(stream uint32) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers[stream]
}

// endOf reports whether the server has ended a stream.
func (c *rawConn) endOf(stream uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ends[stream]
}

// hasEnded reports whether the server has closed the connection.
func (c *rawConn) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// drip sends data in frames of one byte, as fast as the windows let it.
func (c *rawConn) drip(t *testing.T, stream uint32, data []byte) {
	t.Helper()
	for len(data) > 0 {
		c.mu.Lock()
		for min(c.windows[0], c.windows[stream]) == 0 && !c.ended {
			c.more.Wait()
		}
		n := min(c.windows[0], c.windows[stream], len(data))
		c.windows[0] -= n
		c.windows[stream] -= n
		ended := c.ended
		c.mu.Unlock()
		if ended {
			t.Fatal("the server has closed the connection")
		}
		var frames []byte
		for _, b := range data[:n] {
			frames = append(frames, frame(0, 0, stream, []byte{b})...)
		}
		c.write(t, frames)
		data = data[n:]
	}
}
