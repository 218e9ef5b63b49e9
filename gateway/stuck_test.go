package gateway_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/test/bubble"
)

// handed is a listener that is handed its connections.
type handed struct {
	conns  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed.Done():
		return nil, net.ErrClosed
	}
}

func (h *handed) Close() error   { h.close(); return nil }
func (h *handed) Addr() net.Addr { return &net.TCPAddr{} }

func TestHandshakesThatFailDoNotFillTheLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		logs := &logtest.Buffer{}
		l := &handed{conns: make(chan net.Conn)}
		l.closed, l.close = context.WithCancel(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() {
			served <- gateway.ServeHTTP(ctx, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{{}}}), http.NotFoundHandler(), slog.New(slog.NewTextHandler(logs, nil)))
		}()
		for range 20 {
			server, client := net.Pipe()
			l.conns <- server
			_ = client.Close()
			synctest.Wait()
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if text := logs.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "TLS handshake error") {
			t.Errorf("want a line:\n%s", text)
		}
	})
}

// identityOf returns a gateway's key pair.
func identityOf(t *testing.T) tls.Certificate {
	t.Helper()
	authority, err := certs.NewAuthority(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Issue("gateway", nil, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// With HTTP/2, no timeout of a stream ends it while its connection cannot be written to.
func TestAConnectionThatCannotBeWrittenToIsClosed(t *testing.T) {
	identity := identityOf(t)
	var request bytes.Buffer
	request.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&request, nil)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":path", "/"}, {":authority", "localhost"}} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	for name, drip := range map[string]bool{"since its client reads nothing": false, "since its client reads a byte in 29 seconds": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				l := &handed{conns: make(chan net.Conn)}
				l.closed, l.close = context.WithCancel(t.Context())
				ctx, cancel := context.WithCancel(t.Context())
				served, ended := make(chan error, 1), make(chan bool, 1)
				go func() {
					serving := &tls.Config{Certificates: []tls.Certificate{identity}, NextProtos: []string{"h2"}, SessionTicketsDisabled: true}
					served <- gateway.ServeHTTP(ctx, tls.NewListener(l, serving), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						<-r.Context().Done()
						ended <- true
					}), slog.New(slog.DiscardHandler))
				}()
				server, raw := net.Pipe()
				l.conns <- server
				client := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
				if _, err := client.Write(request.Bytes()); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				dripped := make(chan bool)
				go func() {
					defer close(dripped)
					for drip {
						time.Sleep(29 * time.Second)
						if _, err := raw.Read(make([]byte, 1)); err != nil {
							return
						}
					}
				}()
				select {
				case <-ended:
					if took := time.Since(began); took > time.Minute {
						t.Errorf("it is closed after %v", took)
					}
				case <-time.After(time.Hour):
					t.Error("it is not closed within an hour")
				}
				_ = raw.Close()
				<-dripped
				cancel()
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
