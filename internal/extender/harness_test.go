package extender

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hang is when a test says that something hangs.
const hang = 2 * time.Minute

// patient is the httpTimeout of an extender that answers.
var patient = metav1.Duration{Duration: hang}

func hangs(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// harness is a set, what it has logged, and the calls that it has made.
type harness struct {
	*Set
	log logtest.Buffer

	mu    sync.Mutex
	calls []Call
}

func newSet(t *testing.T, extenders ...configv1.Extender) *harness {
	t.Helper()
	h := new(harness)
	var err error
	h.Set, err = New(Config{
		Extenders: extenders,
		Log:       slog.New(slog.NewTextHandler(&h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Observe: func(c Call) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.calls = append(h.calls, c)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// only returns the only call that there was.
func (h *harness) only(t *testing.T) Call {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.calls) != 1 {
		t.Fatalf("%d calls, want 1: %+v", len(h.calls), h.calls)
	}
	return h.calls[0]
}

// serve starts a server on loopback.
func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// answers is a handler that answers everything with a text.
func answers(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, text)
	}
}

// silent is a handler that reads a request and does not answer it before the client goes.
func silent(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// byName is an extender that filters nodes by name.
func byName(url string) configv1.Extender {
	return configv1.Extender{URLPrefix: url, FilterVerb: "filter", NodeCacheCapable: true, HTTPTimeout: patient}
}

func testPod(name string, resources ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	requests := make(corev1.ResourceList)
	for _, r := range resources {
		requests[corev1.ResourceName(r)] = resource.MustParse("1")
	}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: requests}}}
	return pod
}

func testNodes(names ...string) []*Node {
	out := make([]*Node, len(names))
	for i, name := range names {
		out[i] = NewNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return out
}

func namesOf(nodes []*Node) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name())
	}
	return out
}
