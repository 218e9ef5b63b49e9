package gateway_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// silent is a connection whose calls are answered by nothing, and whose streams say nothing until they end.
type silent struct{ streams atomic.Int64 }

func (s *silent) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return nil }

func (s *silent) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	s.streams.Add(1)
	<-ctx.Done()
	return nil, ctx.Err()
}

func named(_ context.Context, authorization []string) (string, error) { return authorization[0], nil }

func TestOneCallerDoesNotHaveAllJSONWatches(t *testing.T) {
	conn := &silent{}
	handler, err := gateway.Handler(conn, gateway.HTTPConfig{Known: named})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var refused atomic.Int64
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	const asked = 600
	watch := func(caller string) {
		watching.Go(func() {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/placements:watch", nil)
			r.Header.Set("Authorization", caller)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code == http.StatusTooManyRequests {
				refused.Add(1)
			}
		})
	}
	for range asked {
		watch("hog")
	}
	for tick := time.Tick(5 * time.Millisecond); conn.streams.Load()+refused.Load() < asked; {
		<-tick
	}
	if n := conn.streams.Load(); n != 500 {
		t.Errorf("one caller has %d watches, want half of 1,000", n)
	}
}

// With HTTP/2, a request without a body has one that is empty.
func TestAnEmptyBodyIsNone(t *testing.T) {
	handler, err := gateway.Handler(&silent{}, gateway.HTTPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/status", nil)
	r.Body = io.NopCloser(strings.NewReader(""))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestARefusalTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler, err := gateway.Handler(&silent{}, gateway.HTTPConfig{Known: func(context.Context, []string) (string, error) {
			return "", rpc.Error(codes.Unauthenticated, access.ReasonUnknownToken, "who?")
		}})
		if err != nil {
			t.Fatal(err)
		}
		began, w := time.Now(), httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/status", nil))
		if took := time.Since(began); w.Code != http.StatusUnauthorized || took < 100*time.Millisecond {
			t.Errorf("%d after %v, want 401 after 100ms", w.Code, took)
		}
	})
}

// A gateway that listens at all addresses has none to be named by.
func TestAHostThatIsNoNameIsNotAllowed(t *testing.T) {
	handler, err := gateway.Handler(&silent{}, gateway.HTTPConfig{AllowedHost: gateway.AllowedHost(func() []string { return []string{""} })})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"", ":7080", "\xcc", "localhost\xcc"} {
		r := httptest.NewRequest(http.MethodGet, "/v1/status", nil)
		r.Host = host
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusForbidden {
			t.Errorf("%q: %d, want 403", host, w.Code)
		}
	}
}
