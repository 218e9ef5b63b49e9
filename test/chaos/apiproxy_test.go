package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// front starts a proxy in front of a server that counts requests and answers with a status, and returns the path of the
// history.
func front(t *testing.T, status int) (p *apiProxy, reached *atomic.Int64, calls func() []Call) {
	t.Helper()
	reached = &atomic.Int64{}
	upstream := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached.Add(1)
		w.WriteHeader(status)
	}))
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	pair := upstream.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"apiserver.crt": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, "apiserver.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	history := filepath.Join(dir, historyFile)
	record, err := NewRecorder(history)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = startAPIProxy(upstream.URL, dir, 1, record); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	return p, reached, func() []Call {
		p.stop()
		if err := record.Close(); err != nil {
			t.Fatal(err)
		}
		entries, err := ReadHistory(history)
		if err != nil {
			t.Fatal(err)
		}
		var out []Call
		for _, e := range entries {
			out = append(out, *e.Call)
		}
		return out
	}
}

// postBind posts a binding through the proxy, and returns the status of the answer, 0 if there is none.
func postBind(t *testing.T, p *apiProxy, limit time.Duration) int {
	t.Helper()
	body, err := json.Marshal(corev1.Binding{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+p.address+"/api/v1/namespaces/default/pods/p/binding", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: p.transport}
	resp, err := client.Do(r)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestBindsAreRecordedWithWhatTheServerSaid(t *testing.T) {
	for status, want := range map[int]Outcome{http.StatusCreated: Done, http.StatusConflict: Refused, http.StatusInternalServerError: Unknown} {
		p, _, calls := front(t, status)
		if got := postBind(t, p, soon); got != status {
			t.Errorf("status %d, want the server's %d", got, status)
		}
		got := calls()
		if len(got) != 1 || got[0].Outcome != want || got[0].UID != "u" || got[0].Name != "default/p" || got[0].Node != "n" || got[0].Began > got[0].Returned {
			t.Errorf("status %d: recorded %+v, want one bind of u to n that is %s", status, got, want)
		}
	}
}

func TestAnAnswerThatIsMadeUpNeverReachesTheServer(t *testing.T) {
	p, reached, calls := front(t, http.StatusCreated)
	p.set(APIFault{Status: http.StatusTooManyRequests, Part: 1})
	if got := postBind(t, p, soon); got != http.StatusTooManyRequests {
		t.Errorf("status %d, want 429", got)
	}
	if n, got := reached.Load(), calls(); n != 0 || len(got) != 0 {
		t.Errorf("%d requests reached the server, recorded %v; want none", n, got)
	}
}

func TestAnAnswerThatIsLateIsOfARequestThatWasDone(t *testing.T) {
	p, reached, calls := front(t, http.StatusCreated)
	p.set(APIFault{Late: true, Part: 1})
	if got := postBind(t, p, 500*time.Millisecond); got != 0 {
		t.Errorf("status %d came back, want no answer", got)
	}
	if got := calls(); reached.Load() != 1 || len(got) != 1 || got[0].Outcome != Done {
		t.Errorf("%d requests reached the server, recorded %v; want one bind that was done", reached.Load(), got)
	}
}
