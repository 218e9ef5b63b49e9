package rpc

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/berth-scheduler/berth/test/bubble"
)

// pipes is a listener, with TLS, whose connections come from whatever address.
type pipes struct {
	accepted chan net.Conn
	closed   context.Context
	close    context.CancelFunc
	identity tls.Certificate
	clients  []net.Conn
}

func newPipes(t *testing.T) *pipes {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	p := &pipes{accepted: make(chan net.Conn), identity: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}}
	p.closed, p.close = context.WithCancel(t.Context())
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{p.identity}, NextProtos: []string{"h2"}, SessionTicketsDisabled: true}), nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

// hangUp closes the clients' sides, to which servers would say goodbye in vain.
func (p *pipes) hangUp() {
	for _, client := range p.clients {
		_ = client.Close()
	}
	synctest.Wait()
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return remote("192.0.2.200:1") }

// from is a connection that comes from an address.
type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr { return remote(f.address + ":1") }

// asker is a client of HTTP/2 that asks, and reads nothing by itself.
type asker struct {
	t      *testing.T
	conn   *tls.Conn
	stream uint32
}

func (p *pipes) connect(t *testing.T, address string, settings ...http2.Setting) *asker {
	t.Helper()
	server, client := net.Pipe()
	p.clients = append(p.clients, client)
	p.accepted <- from{server, address}
	a := &asker{t: t, conn: tls.Client(client, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}), stream: 1}
	var begin bytes.Buffer
	begin.WriteString(http2.ClientPreface)
	if err := http2.NewFramer(&begin, nil).WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	a.send(begin.Bytes())
	return a
}

func (a *asker) send(b []byte) {
	a.t.Helper()
	if _, err := a.conn.Write(b); err != nil {
		a.t.Fatal(err)
	}
	synctest.Wait()
}

// ask asks so often for a path.
func (a *asker) ask(times int, path string) {
	a.t.Helper()
	for range times {
		var block, frames bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		encoder.SetMaxDynamicTableSize(0)
		for _, field := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":path", path}, {":authority", "localhost"}} {
			if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
				a.t.Fatal(err)
			}
		}
		request := http2.HeadersFrameParam{StreamID: a.stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}
		if err := http2.NewFramer(&frames, nil).WriteHeaders(request); err != nil {
			a.t.Fatal(err)
		}
		a.stream += 2
		a.send(frames.Bytes())
	}
}

// read has the client read until nothing more comes.
func (a *asker) read(what func() error) error {
	read := make(chan error, 1)
	go func() { read <- what() }()
	synctest.Wait()
	_ = a.conn.SetReadDeadline(time.Now())
	defer func() { _ = a.conn.SetReadDeadline(time.Time{}) }()
	return <-read
}

// hasEnded reports whether the server has closed the connection, once all is read that came before.
func (a *asker) hasEnded() bool {
	err := a.read(func() error {
		_, err := io.Copy(io.Discard, a.conn)
		return err
	})
	timeout, ok := errors.AsType[net.Error](err)
	return !ok || !timeout.Timeout()
}

// holding is a server of which the requests are counted.
func holding(t *testing.T, limit int, handler http.HandlerFunc) (l *pipes, h *heldRequests, stop func()) {
	l = newPipes(t)
	h = HoldRequests(slog.New(slog.DiscardHandler), limit, handler).(*heldRequests)
	server := &http.Server{Handler: h, ConnContext: WithConn, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 100}, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return l, h, func() {
		l.hangUp()
		_ = server.Close()
		<-served
		synctest.Wait()
	}
}

// want says how many requests of strangers and of callers are held.
func (h *heldRequests) want(t *testing.T, strangers, known int) {
	t.Helper()
	s, _ := h.strangers.share.Used()
	k, _ := h.known.share.Used()
	if s != strangers || k != known {
		t.Errorf("%d requests of strangers are held, %d of callers; want %d and %d", s, k, strangers, known)
	}
}

func TestRequestsAreHeldUntilTheEndsOfTheirAnswersHaveGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ended := make(chan bool, 20)
		l, h, stop := holding(t, 100, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok")
			ended <- true
		})
		defer stop()
		c := l.connect(t, "192.0.2.1")
		c.ask(10, "/")
		h.want(t, 10, 0)
		if len(ended) != 10 {
			t.Errorf("%d handlers have ended", len(ended))
		}
		if c.hasEnded() { // it reads
			t.Error("its connection is closed")
		}
		h.want(t, 0, 0)
		c.ask(10, "/")
		if n, _ := h.strangers.share.Used(); n == 0 {
			t.Error("none is held of others")
		}
		_ = c.conn.NetConn().Close()
		synctest.Wait()
		h.want(t, 0, 0)
	})
}

// admitting is the handler of requests that last as long as their clients want. Those for a path have a caller of that name.
func admitting(_ http.ResponseWriter, r *http.Request) {
	if caller := r.URL.Path[1:]; caller != "" {
		Vouch(r.Context(), caller)
		Vouch(r.Context(), caller) // who asks again is who it is
	}
	<-r.Context().Done()
}

func TestTheConnectionOfMostRequestsGivesWay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, h, stop := holding(t, 16, admitting)
		defer stop()
		hold := func(address string, requests int) *asker {
			a := l.connect(t, address)
			a.ask(requests, "/")
			return a
		}
		small, large := hold("192.0.2.1", 3), hold("192.0.2.1", 5)
		other, last := hold("192.0.2.2", 4), hold("192.0.2.3", 2)
		hold("192.0.2.4", 1)
		hold("192.0.2.5", 1)
		h.want(t, 16, 0)
		honest := hold("192.0.2.6", 1)
		h.want(t, 12, 0)
		if !large.hasEnded() {
			t.Error("the connection that has most goes on")
		}
		for k, a := range []*asker{small, other, last, honest} {
			if a.hasEnded() {
				t.Errorf("another one, %d, is closed", k)
			}
		}
	})
}

// Whom strangers could drive out otherwise, since many may come by one connection or address.
func TestRequestsOfCallersAreNotAmongThoseOfStrangers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, h, stop := holding(t, 16, admitting)
		defer stop()
		known := l.connect(t, "192.0.2.1")
		known.ask(4, "/ann")
		known.ask(3, "/bob")
		h.want(t, 0, 7)
		for k := range 8 {
			a := l.connect(t, "192.0.2."+string(rune('2'+k)))
			a.ask(6, "/")
		}
		if n, _ := h.strangers.share.Used(); n > 16 || n == 0 {
			t.Errorf("%d requests of strangers are held", n)
		}
		if known.hasEnded() {
			t.Error("callers' connection is closed for strangers")
		}
		_ = known.conn.NetConn().Close()
		synctest.Wait()
		if n, _ := h.known.share.Used(); n != 0 {
			t.Errorf("%d requests of callers are held that have ended", n)
		}
	})
}
