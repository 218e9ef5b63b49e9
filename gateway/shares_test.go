package gateway_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
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
	const asked = 100
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
	if n := conn.streams.Load(); n != 50 {
		t.Errorf("one caller has %d watches, want 50 of 1,000", n)
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
	bubble.Test(t, func(t *testing.T) {
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

// strict is what stands before bodies, and what it was asked about.
type strict struct {
	err   error
	asked []string
}

func (s *strict) expect(_ context.Context, _ []string, method string) error {
	s.asked = append(s.asked, method)
	return s.err
}

// reading is a body that counts who reads it.
type reading struct {
	io.Reader
	read int
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.read += n
	return n, err
}

func TestNothingIsReadOfABodyThatIsNotExpected(t *testing.T) {
	s := &strict{err: rpc.Error(codes.PermissionDenied, access.ReasonNotAllowed, "no")}
	handler, err := gateway.Handler(&silent{}, gateway.HTTPConfig{Known: named, Expect: s.expect})
	if err != nil {
		t.Fatal(err)
	}
	body := &reading{Reader: strings.NewReader(`{"pending":true}`)}
	r := httptest.NewRequest(http.MethodPost, "/v1/whatif", body)
	r.Header.Set("Authorization", "ann")
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusForbidden || body.read > 0 || len(s.asked) != 1 {
		t.Errorf("%d, and %d bytes were read; want 403, and none", w.Code, body.read)
	}
}

// A call that is made is counted where it is answered, unless it has been; one that is not made would be nowhere.
func TestEveryRequestCountsForItsCallersRate(t *testing.T) {
	for _, path := range []string{"/v1/nodes", "/v1/nowhere", "/v1/nodes?page_size=many", "/v1/placements:watch?from.epoch=some"} {
		s := &strict{err: rpc.Error(codes.ResourceExhausted, access.ReasonTooManyCalls, "no more")}
		handler, err := gateway.Handler(&silent{}, gateway.HTTPConfig{Known: named, Expect: s.expect})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "ann")
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code != http.StatusTooManyRequests || len(s.asked) != 1 {
			t.Errorf("%s: %d, counted %d times; want 429, and once", path, w.Code, len(s.asked))
		}
	}
}

// The bodies that http.yaml names.
func TestABodyIsExpectedForTheMethodItIsOf(t *testing.T) {
	rules, err := os.ReadFile("../proto/berth/scheduling/v1/http.yaml")
	if err != nil {
		t.Fatal(err)
	}
	posts := regexp.MustCompile(`selector: (\S+)\.(\w+)\n\s+post: (\S+)`).FindAllSubmatch(rules, -1)
	if len(posts) < 6 {
		t.Fatalf("%d methods are posted to, want at least 6", len(posts))
	}
	for _, post := range posts {
		s := &strict{}
		handler, err := gateway.Handler(&silent{}, gateway.HTTPConfig{Known: named, Expect: s.expect})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, strings.ReplaceAll(string(post[3]), "{id}", "f-0"), strings.NewReader("{}"))
		r.Header.Set("Authorization", "ann")
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if want := "/" + string(post[1]) + "/" + string(post[2]); w.Code != http.StatusOK || len(s.asked) != 1 || s.asked[0] != want {
			t.Errorf("%s: %d, expected for %q, want %s", post[3], w.Code, s.asked, want)
		}
	}
}

func TestABodyHasSoManyElementsAtMost(t *testing.T) {
	handler, err := gateway.Handler(&silent{}, gateway.HTTPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		body string
		want int
	}{
		"as many as make sense": {`{"changes":[` + strings.Repeat(`{"addNodes":{"like":"a"}},`, 999) + `{"drain":"a"}]}`, http.StatusOK},
		"too many":              {`{"changes":[` + strings.Repeat(`{},`, 10_000) + `{}]}`, http.StatusBadRequest},
		"too many, in depth":    {strings.Repeat(`[`, 10_001), http.StatusBadRequest},
		"in a text":             {`{"manifests":"\"\\` + strings.Repeat(`{[`, 10_000) + `"}`, http.StatusOK},
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/whatif", strings.NewReader(c.body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if many := strings.Contains(w.Body.String(), "objects and lists"); w.Code != c.want || many != (c.want != http.StatusOK) {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, c.want)
		}
	}
}

// waiting is a connection whose calls are answered when they may be.
type waiting struct {
	silent
	calls  chan struct{} // one for each call
	answer chan struct{}
}

func (w *waiting) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	w.calls <- struct{}{}
	<-w.answer
	return nil
}

// A body is in memory as it came, decoded, encoded, and where it is answered.
func TestABodyTakesAShareOfWhatBecomesOfIt(t *testing.T) {
	conn := &waiting{calls: make(chan struct{}), answer: make(chan struct{})}
	handler, err := gateway.Handler(conn, gateway.HTTPConfig{Known: named})
	if err != nil {
		t.Fatal(err)
	}
	post := func() int {
		r := httptest.NewRequest(http.MethodPost, "/v1/whatif", strings.NewReader(`{"manifests":"`+strings.Repeat("a", 4<<20-20)+`"}`))
		r.Header.Set("Authorization", "ann")
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	var posting sync.WaitGroup
	for range 2 { // 16 MiB each, of the 32 MiB that one caller may have
		posting.Go(func() {
			if code := post(); code != http.StatusOK {
				t.Errorf("%d", code)
			}
		})
		<-conn.calls
	}
	if code := post(); code != http.StatusTooManyRequests {
		t.Errorf("a third body: %d, want 429", code)
	}
	close(conn.answer)
	posting.Wait()
}
