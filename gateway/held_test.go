package gateway_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// Whatever becomes of requests, their handlers have them until the end of the answer has gone. Of these one address has half.
func TestRequestsThatAHandlerHasAreBounded(t *testing.T) {
	// 1. A server whose handler ends when it may.
	l := listen(t)
	address := l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	var running atomic.Int32
	release := make(chan struct{})
	served := make(chan error, 1)
	go func() {
		served <- gateway.ServeHTTP(ctx, l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			running.Add(1)
			<-release
		}), slog.New(slog.DiscardHandler))
	}()
	client := func(from string) *http.Client {
		transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext, DisableKeepAlives: true}
		return &http.Client{Transport: transport}
	}
	// 2. More requests than an address may have.
	const most, asked = 1024, 1100
	var asking sync.WaitGroup
	var refused, answered atomic.Int32
	ask := func(c *http.Client) {
		asking.Go(func() {
			response, err := c.Get("http://" + address + "/")
			if err != nil {
				refused.Add(1)
				return
			}
			_ = response.Body.Close()
			answered.Add(1)
		})
	}
	bad, other := client("127.0.0.1"), client("127.0.0.2")
	for range asked {
		ask(bad)
	}
	until := func(what string, handlers, refusals int32) {
		berthtest.Await(t, berthtest.Patience, what, func(context.Context) error {
			if running.Load() != handlers || refused.Load() != refusals {
				return fmt.Errorf("%d handlers run, %d are refused", running.Load(), refused.Load())
			}
			return nil
		})
	}
	until("all to be refused that there is no room for", most, asked-most)
	ask(other)
	until("another address to be let in", most+1, asked-most)
	close(release)
	asking.Wait()
	if n := answered.Load(); n != most+1 {
		t.Errorf("%d are answered, want %d", n, most+1)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
