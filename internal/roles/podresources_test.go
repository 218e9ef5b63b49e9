package roles

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/source/kube"
)

// aPod lists one pod.
func aPod(context.Context) (*kube.PodResources, error) {
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("100m")}}}}}}
	pod.Namespace, pod.Name = "default", "web"
	all := new(kube.PodResources)
	all.Add(pod)
	return all, nil
}

const ofAPod = `kube_pod_resource_request{namespace="default",node="",pod="web",priority="",resource="cpu",scheduler="",unit="cores"} 0.1`

func scrape(h http.Handler, method string, headers ...string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(method, podResourcesPath, nil), httptest.NewRecorder()
	for _, name := range headers {
		r.Header.Set("Accept-Encoding", name)
	}
	h.ServeHTTP(w, r)
	return w
}

func TestPodsAreToldByWhoPlacesThem(t *testing.T) {
	active := true
	h := newPodResources(t.Context(), aPod, func() bool { return active }, slog.New(slog.DiscardHandler))
	if w := scrape(h, "GET"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), ofAPod) || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("%d %v: %s", w.Code, w.Header(), w.Body)
	}
	w := scrape(h, "GET", "gzip")
	zipped, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(zipped); err != nil || w.Header().Get("Content-Encoding") != "gzip" || !strings.Contains(string(text), ofAPod) {
		t.Errorf("%v: %s, %v", w.Header(), text, err)
	}
	if w := scrape(h, "POST"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
	active = false
	if w := scrape(h, "GET"); w.Code != http.StatusOK || w.Body.Len() > 0 {
		t.Errorf("who stands by says: %d %s", w.Code, w.Body)
	}
}

func TestOneListOfAllPodsIsMadeAtATime(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	h := newPodResources(t.Context(), func(ctx context.Context) (*kube.PodResources, error) {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("it may take for ever")
		}
		close(begun)
		<-goOn
		return aPod(ctx)
	}, func() bool { return true }, slog.New(slog.DiscardHandler))
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- scrape(h, "GET") }()
	<-begun
	if w := scrape(h, "GET"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("a second one: %d %v", w.Code, w.Header())
	}
	close(goOn)
	if w := <-first; w.Code != http.StatusOK || !strings.Contains(w.Body.String(), ofAPod) {
		t.Errorf("the first: %d %s", w.Code, w.Body)
	}
}

func TestAListOfPodsThatFailsIsNoHalfAnswerAndLoggedOnce(t *testing.T) {
	logs, fails := &logtest.Buffer{}, true
	h := newPodResources(t.Context(), func(ctx context.Context) (*kube.PodResources, error) {
		if fails {
			return nil, errors.New("it is away")
		}
		return aPod(ctx)
	}, func() bool { return true }, slog.New(slog.NewTextHandler(logs, nil)))
	for _, fails = range []bool{true, true, false, true} {
		w := scrape(h, "GET", "gzip")
		if ok := w.Code == http.StatusOK; ok == fails || fails && (w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "away") || w.Header().Get("Content-Encoding") != "") {
			t.Errorf("fails %t: %d %v %s", fails, w.Code, w.Header(), w.Body)
		}
	}
	if n := strings.Count(logs.String(), "it is away"); n != 2 {
		t.Errorf("%d lines:\n%s", n, logs)
	}
}

// manyPods lists more than sockets keep of an answer that is not read.
func manyPods(ctx context.Context) (*kube.PodResources, error) {
	all, err := aPod(ctx)
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("100m")}}}}}}
	pod.Namespace, pod.Name = "default", strings.Repeat("n", 250)
	for range 100_000 {
		all.Add(pod)
	}
	return all, err
}

func TestWhoDoesNotReadTheAnswerGivesItsTurnUp(t *testing.T) {
	h := newPodResources(t.Context(), manyPods, func() bool { return true }, slog.New(slog.DiscardHandler))
	h.timeout, h.patience = time.Hour, 100*time.Millisecond
	server := httptest.NewServer(h)
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", podResourcesPath); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1000)); err != nil { // it is being answered
		t.Fatal(err)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		w := scrape(h, "GET", "gzip")
		if w.Code == http.StatusOK {
			return
		}
		if w.Code != http.StatusServiceUnavailable || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") || time.Now().After(deadline) {
			t.Fatalf("%d %v: %s", w.Code, w.Header(), w.Body)
		}
	}
}

func TestNoListOfPodsOutlivesItsMember(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	logs, begun := &logtest.Buffer{}, make(chan struct{})
	h := newPodResources(ctx, func(ctx context.Context) (*kube.PodResources, error) {
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	}, func() bool { return true }, slog.New(slog.NewTextHandler(logs, nil)))
	h.timeout = time.Hour
	answered := make(chan *httptest.ResponseRecorder)
	go func() { answered <- scrape(h, "GET") }()
	<-begun
	end()
	select {
	case w := <-answered:
		if w.Code != http.StatusServiceUnavailable || logs.String() != "" {
			t.Errorf("%d, logged: %s", w.Code, logs)
		}
	case <-time.After(2 * time.Minute):
		t.Error("it goes on")
	}
	h.list = manyPods
	if w := scrape(h, "GET"); strings.Contains(w.Body.String(), "kube_pod_resource") {
		t.Errorf("it is written on: %d", w.Body.Len())
	}
}

// TestAScrapeThatIsGivenUpHidesNoFailure: one who does not wait says nothing of the API server.
func TestAScrapeThatIsGivenUpHidesNoFailure(t *testing.T) {
	logs := &logtest.Buffer{}
	h := newPodResources(t.Context(), func(ctx context.Context) (*kube.PodResources, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, errors.New("it is away")
	}, func() bool { return true }, slog.New(slog.NewTextHandler(logs, nil)))
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{impatient, t.Context(), impatient, t.Context()} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", podResourcesPath, nil))
	}
	for text, want := range map[string]int{"has not waited for it": 1, "it is away": 1} {
		if n := strings.Count(logs.String(), text); n != want {
			t.Errorf("%q is said %d times, want %d:\n%s", text, n, want, logs)
		}
	}
}
