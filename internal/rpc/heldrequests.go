package rpc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
)

// heldRequests bounds the requests of a server of HTTP, refused ones too, until the ends of their answers have gone: those of who is not
// known by address, and besides them those of callers ([Vouch]). Where there is no room for one more, the connection that has most of them
// gives way, as it does of a [held].
type heldRequests struct {
	next             http.Handler
	strangers, known *held

	mu    sync.Mutex
	conns map[heldBy]*holder // those that have some
}

// heldBy is a connection's part of a bound that one caller has: who stands before the server may bring several by one.
type heldBy struct {
	held   *held
	conn   net.Conn
	caller string
}

// HoldRequests returns a handler that bounds how many requests a server has, of all, of which its ConnContext must be [WithConn].
func HoldRequests(log *slog.Logger, limit int, next http.Handler) http.Handler {
	return &heldRequests{next: next, strangers: newHeld(log, limit), known: newHeld(log, limit), conns: make(map[heldBy]*holder)}
}

// heldRequest is one of them.
type heldRequest struct {
	of   *heldRequests
	conn net.Conn

	mu   sync.Mutex
	by   heldBy
	gone bool // the end of the answer is
}

type requestKey struct{}

// ServeHTTP implements http.Handler.
func (h *heldRequests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	one := &heldRequest{of: h}
	one.conn, _ = r.Context().Value(connKey{}).(net.Conn)
	one.by = heldBy{h.strangers, one.conn, AddressOfRequest(r)}
	cuts, may := h.take(one.by)
	if one.by.held.end(cuts); !may {
		panic(http.ErrAbortHandler) // without an answer, which would be held too
	}
	defer func() {
		// With HTTP/2, answers wait for their clients behind the handler and the end of its context. Otherwise the connection does, whose number is
		// bounded.
		stream, ok := w.(interface{ CloseNotify() <-chan bool })
		if r.ProtoMajor < 2 || !ok {
			one.give()
			return
		}
		closed := stream.CloseNotify() // is told too when the connection is closed, which ends all: at the latest when the server ends
		go func() {
			<-closed
			one.give()
		}()
	}()
	h.next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, one)))
}

// take takes room for a request, reports whether its connection may go on, and returns which are to be ended for it.
func (h *heldRequests) take(by heldBy) (cuts []cutting, may bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.conns[by]
	if c == nil {
		c = &holder{address: by.caller, remote: by.conn.RemoteAddr(), end: func() { closeBelow(by.conn) }}
		h.conns[by] = c
	}
	cuts = h.change(by, c, 1)
	return cuts, !c.closed.Load()
}

// give gives it back. What was cut has nothing any more.
func (h *heldRequests) give(by heldBy) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.conns[by]; c != nil {
		h.change(by, c, -1) // for which nobody gives way
	}
}

// change is for who holds mu.
func (h *heldRequests) change(by heldBy, c *holder, n int) (cuts []cutting) {
	cuts, left := by.held.add(c, n)
	if left == 0 {
		delete(h.conns, by)
	}
	return cuts
}

// vouch moves the request to those of its caller.
func (r *heldRequest) vouch(caller string) { r.of.known.end(r.move(caller)) }

// move does so, and returns which are to be ended for it.
func (r *heldRequest) move(caller string) (cuts []cutting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || r.by.held == r.of.known {
		return nil
	}
	before := r.by
	r.by = heldBy{r.of.known, r.conn, caller}
	cuts, _ = r.of.take(r.by) // else the connection is among them
	r.of.give(before)
	return cuts
}

func (r *heldRequest) give() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
	r.of.give(r.by)
}

// closeBelow closes a connection at once: TLS would say goodbye first, to who may not read.
func closeBelow(conn net.Conn) {
	if c, ok := conn.(*tls.Conn); ok {
		conn = c.NetConn()
	}
	_ = conn.Close() // whoever serves it finds out
}
