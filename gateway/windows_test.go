package gateway_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

// What a connection may send before anybody reads it is in memory, though no bound counts it.
func TestNoMoreOfBodiesThatNobodyReadsIsTakenThanOfARequestByGRPC(t *testing.T) {
	const most = 64 << 10
	identity := identityOf(t)
	for name, serve := range map[string]func(context.Context, net.Listener) error{
		"people": func(ctx context.Context, l net.Listener) error {
			return gateway.ServeHTTP(ctx, l, http.NotFoundHandler(), slog.New(slog.DiscardHandler))
		},
		"operators": func(ctx context.Context, l net.Listener) error { return rpc.ServeOps(ctx, l, rpc.OpsConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() {
				served <- serve(ctx, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{identity}, NextProtos: []string{"h2"}}))
			}()
			conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			if err != nil {
				t.Fatal(err)
			}
			framer := http2.NewFramer(conn, conn)
			_, err = conn.Write([]byte(http2.ClientPreface))
			if err == nil {
				err = framer.WriteSettings()
			}
			if err == nil {
				err = framer.WritePing(false, [8]byte{})
			}
			if err != nil {
				t.Fatal(err)
			}
			const begin = 1<<16 - 1 // of each window, unless it is said otherwise
			stream, whole := uint32(begin), uint32(begin)
			for answered := false; !answered; {
				frame, err := framer.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				switch frame := frame.(type) {
				case *http2.SettingsFrame:
					if v, ok := frame.Value(http2.SettingInitialWindowSize); ok {
						stream = v
					}
				case *http2.WindowUpdateFrame:
					whole += frame.Increment
				case *http2.PingFrame:
					answered = true
				}
			}
			if stream > most || whole > most {
				t.Errorf("%d bytes of a request and %d of all of a connection are taken before anybody reads them, want %d at most", stream, whole, most)
			}
			_ = conn.Close()
			cancel()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNoRefusalIsWhatIsDoneFastest(t *testing.T) {
	api, err := gateway.Handler(nil, gateway.HTTPConfig{AllowedHost: func(host string) bool { return host == "berth.example" }})
	if err != nil {
		t.Fatal(err)
	}
	for name, request := range map[string]*http.Request{
		"of another host":        httptest.NewRequest(http.MethodGet, "http://other.example/v1/nodes", nil),
		"that is not UTF-8":      httptest.NewRequest(http.MethodGet, "http://berth.example/v1/nodes?x=%ff", nil),
		"of a page of another's": httptest.NewRequest(http.MethodGet, "http://berth.example/v1/nodes", nil),
	} {
		if name == "of a page of another's" {
			request.Header.Set("Sec-Fetch-Site", "cross-site")
		}
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				began, answer := time.Now(), httptest.NewRecorder()
				api.ServeHTTP(answer, request)
				if took := time.Since(began); answer.Code == http.StatusOK || took < 100*time.Millisecond {
					t.Errorf("a request %s is answered %d after %v", name, answer.Code, took)
				}
			})
		})
	}
}
