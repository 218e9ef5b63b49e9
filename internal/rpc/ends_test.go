package rpc

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// wary is a connection that looks, when it is ended, whether any of some locks is held.
type wary struct {
	net.Conn
	t     *testing.T
	locks []*sync.Mutex
	ended int
}

func (w *wary) end() error {
	w.ended++
	for k, lock := range w.locks {
		if !lock.TryLock() {
			w.t.Errorf("lock %d is held while a connection is ended", k)
			continue
		}
		lock.Unlock()
	}
	return nil
}

func (w *wary) RemoteAddr() net.Addr        { return remote("192.0.2.1:1") }
func (w *wary) Close() error                { return w.end() }
func (w *wary) SetDeadline(time.Time) error { return w.end() }

func (w *wary) wantOnce() {
	w.t.Helper()
	if w.ended != 1 {
		w.t.Errorf("it is ended %d times, want once", w.ended)
	}
}

// To end a connection takes the locks of what it consists of, and takes its time.
func TestNoLockIsHeldWhileAConnectionIsEnded(t *testing.T) {
	t.Run("for its streams", func(t *testing.T) {
		h := quietHeld(2)
		conn := &wary{t: t}
		c := newCounted(conn, h)
		conn.locks = []*sync.Mutex{&h.mu, &h.log.mu, &c.mu}
		for stream := range uint32(3) {
			c.change(func() { c.came(frameHeaders, 4, 2*stream+1, 0) })
		}
		c.look()
		conn.wantOnce()
		if n, _ := h.share.Used(); n != 0 {
			t.Errorf("%d streams are held of a connection that has ended", n)
		}
	})
	t.Run("for what it sends", func(t *testing.T) {
		h := quietHeld(2)
		conn := &wary{t: t}
		c := newCounted(conn, h)
		conn.locks = []*sync.Mutex{&h.mu, &h.log.mu, &c.mu}
		for range 2 {
			c.change(func() { c.came(frameData, 0, 1, 0) })
		}
		conn.wantOnce()
	})
	for name, caller := range map[string]string{"for requests of strangers": "", "for requests of a caller": "ann"} {
		t.Run(name, func(t *testing.T) {
			h := HoldRequests(slog.New(slog.DiscardHandler), 2, http.NotFoundHandler()).(*heldRequests)
			conn := &wary{t: t}
			conn.locks = []*sync.Mutex{&h.mu, &h.strangers.mu, &h.known.mu}
			one := &heldRequest{of: h, conn: conn, by: heldBy{h.strangers, conn, "192.0.2.1"}}
			conn.locks = append(conn.locks, &one.mu)
			if caller != "" {
				h.known.end(mustTake(t, h, heldBy{h.known, conn, caller}))
				h.strangers.end(mustTake(t, h, one.by))
				one.vouch(caller)
				one.vouch(caller)
			} else {
				h.strangers.end(mustTake(t, h, one.by))
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				r.RemoteAddr = "192.0.2.1:1"
				func() {
					defer func() {
						if recover() != http.ErrAbortHandler {
							t.Error("the request goes on")
						}
					}()
					h.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(r.Context(), connKey{}, net.Conn(conn))))
				}()
			}
			conn.wantOnce()
			if n, _ := h.known.share.Used(); n != 0 {
				t.Errorf("%d requests of callers are held of a connection that has ended", n)
			}
		})
	}
	t.Run("for answers", func(t *testing.T) {
		u := newUnread(slog.New(slog.DiscardHandler), MessageLimit, true)
		conn := &wary{t: t}
		streams := &wary{t: t}
		c := &connection{Conn: conn, unread: u, streams: newCounted(streams, quietHeld(2))}
		conn.locks = []*sync.Mutex{&u.mu, &c.streams.mu}
		if c.take("", unreadLimit) == nil {
			t.Fatal("there is no room")
		}
		c.since = c.since.Add(-2 * unreadFor)
		for range 2 {
			if c.take("", 1) != nil {
				t.Error("there is room")
			}
		}
		conn.wantOnce()
	})
}

func mustTake(t *testing.T, h *heldRequests, by heldBy) []cutting {
	t.Helper()
	cuts, may := h.take(by)
	if !may {
		t.Fatal("there is no room")
	}
	return cuts
}
