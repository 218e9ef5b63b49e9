package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/berth-scheduler/berth/test/bubble"
)

// bare is a listener whose connections have no TLS yet.
type bare struct{ *pipes }

func (b bare) Accept() (net.Conn, error) {
	select {
	case conn := <-b.accepted:
		return conn, nil
	case <-b.closed.Done():
		return nil, net.ErrClosed
	}
}

// servingPaced serves HTTP as roles do, in a bubble.
func servingPaced(t *testing.T, handler http.HandlerFunc) (l *pipes, stop func()) {
	l = newPipes(t)
	serving := &tls.Config{Certificates: []tls.Certificate{l.identity}, NextProtos: []string{"h2"}, SessionTicketsDisabled: true}
	server := &http.Server{Handler: handler, HTTP2: &http.HTTP2Config{WriteByteTimeout: opsWriteTimeout}}
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(tls.NewListener(Bound(bare{l}, Bounds{Name: "http", Paced: true}), serving))
	}()
	return l, func() {
		l.hangUp()
		_ = server.Close()
		<-served
		synctest.Wait()
	}
}

// pings returns so many.
func pings(t *testing.T, n int) []byte {
	var all bytes.Buffer
	framer := http2.NewFramer(&all, nil)
	for range n {
		if err := framer.WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	return all.Bytes()
}

func TestAClientThatReadsNothingIsNotReadFrom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, stop := servingPaced(t, func(http.ResponseWriter, *http.Request) {})
		defer stop()
		a := l.connect(t, "192.0.2.1")
		const all, piece = 9000, 900
		var taken atomic.Int64
		ended := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < all && err == nil; i += piece {
				if _, err = a.conn.Write(pings(t, piece)); err == nil {
					taken.Add(piece)
				}
			}
			ended <- err
		}()
		synctest.Wait()
		if n := taken.Load(); n > 1700 {
			t.Errorf("%d pings are taken of a client that reads no answer, want some 900", n)
		}
		// It reads a bit now and then, and has no more for it than it reads.
		for range 20 {
			if _, err := io.ReadFull(a.conn.NetConn(), make([]byte, 512)); err != nil {
				t.Fatal(err)
			}
			elapse(time.Second)
		}
		if n := taken.Load(); n > 1700 {
			t.Errorf("%d pings are taken of a client that reads 10 KiB of their answers, want some 600 more", n)
		}
		elapse(2 * opsWriteTimeout)
		select {
		case err := <-ended:
			if err == nil {
				t.Error("all pings are taken")
			}
		default:
			t.Error("it is not closed")
		}
	})
}

func TestAClientThatReadsWhileItSendsSendsAll(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, stop := servingPaced(t, func(http.ResponseWriter, *http.Request) {})
		defer stop()
		a := l.connect(t, "192.0.2.1")
		ctx, end := context.WithCancel(t.Context())
		read := make(chan int64, 1)
		go func() {
			var n int64
			for buffer := make([]byte, 100); ctx.Err() == nil; { // of each write a part
				k, err := a.conn.Read(buffer)
				if n += int64(k); err != nil {
					break
				}
			}
			read <- n
		}()
		sent := 0
		for range 50 {
			b := pings(t, 1000)
			a.send(b)
			sent += len(b)
		}
		elapse(time.Second)
		end()
		_ = a.conn.NetConn().Close()
		if n := <-read; n < int64(sent) {
			t.Errorf("%d bytes are answered of %d", n, sent)
		}
	})
}
