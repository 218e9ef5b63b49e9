package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// postBind posts a binding of a pod through the proxy, and returns the status of the answer, 0 if there is none.
func postBind(t *testing.T, p *apiProxy, limit time.Duration) int {
	t.Helper()
	return postBindOf(t, p, limit, "default", "u")
}

func postBindOf(t *testing.T, p *apiProxy, limit time.Duration, namespace, uid string) int {
	t.Helper()
	body, err := json.Marshal(corev1.Binding{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", UID: types.UID(uid)}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+p.address+"/api/v1/namespaces/"+namespace+"/pods/p/binding", bytes.NewReader(body))
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

// fated returns a uid whose binds have a fate.
func fated(t *testing.T, want fate) string {
	t.Helper()
	for i := range 1000 {
		if uid := fmt.Sprintf("pod-%d", i); fateOf(1, uid) == want {
			return uid
		}
	}
	t.Fatalf("no pod of 1,000 has fate %d", want)
	return ""
}

func TestTheBindsOfEachPodHaveAFateOfTheirOwn(t *testing.T) {
	for _, tt := range []struct {
		fate    fate
		status  int // the client gets
		reached int64
	}{
		{fateGood, http.StatusCreated, 1}, {fateRefused, http.StatusForbidden, 0}, {fateLost, 0, 0}, {fateSilent, 0, 1},
	} {
		p, reached, calls := front(t, http.StatusCreated)
		p.set(APIFault{Fates: true})
		limit := soon
		if tt.status == 0 {
			limit = 500 * time.Millisecond // what must not come
		}
		if got := postBindOf(t, p, limit, "default", fated(t, tt.fate)); got != tt.status {
			t.Errorf("fate %d: status %d, want %d", tt.fate, got, tt.status)
		}
		if got := calls(); reached.Load() != tt.reached || int64(len(got)) != tt.reached {
			t.Errorf("fate %d: %d requests reached the server, recorded %v; want %d", tt.fate, reached.Load(), got, tt.reached)
		}
	}
}

func TestAWebhookFailsTheBindsOfItsNamespaceOnly(t *testing.T) {
	p, reached, _ := front(t, http.StatusCreated)
	p.set(APIFault{Status: http.StatusInternalServerError, Hooked: "tenant", Part: 1})
	if got := postBindOf(t, p, soon, "tenant", "a"); got != http.StatusInternalServerError || reached.Load() != 0 {
		t.Errorf("a pod of the namespace: status %d, %d requests reached the server; want 500 and none", got, reached.Load())
	}
	if got := postBindOf(t, p, soon, "default", "b"); got != http.StatusCreated {
		t.Errorf("another pod: status %d, want 201", got)
	}
}

func TestWatchesExpireButListsDoNot(t *testing.T) {
	p, _, _ := front(t, http.StatusOK)
	client := &http.Client{Transport: p.transport}
	get := func(query string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.address+"/api/v1/pods?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	p.set(APIFault{Expire: true})
	for query, want := range map[string]int{
		"watch=true&resourceVersion=7": http.StatusGone, "watch=true&sendInitialEvents=true": http.StatusOK, "limit=500": http.StatusOK,
	} {
		if got := get(query); got != want {
			t.Errorf("%s: status %d, want %d", query, got, want)
		}
	}
	p.set(APIFault{})
	if got := get("watch=true&resourceVersion=7"); got != http.StatusOK {
		t.Errorf("a watch after the fault: status %d, want 200", got)
	}
}

// patchOf patches an object through the proxy, and returns the status of the answer, 0 if there is none.
func patchOf(t *testing.T, p *apiProxy, limit time.Duration, path, body string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPatch, "https://"+p.address+"/api/v1/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: p.transport}).Do(r)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

const (
	volumePath = "persistentvolumes/v"
	claimPath  = "namespaces/default/persistentvolumeclaims/c"
	bindsClaim = `{"metadata":{"uid":"u"},"spec":{"claimRef":{"namespace":"default","name":"c","uid":"cu"}}}`
	selects    = `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"n"}}}`
	voids      = `{"metadata":{"annotations":{"scheduling.berth.dev/voided":"now"}}}`
)

func TestATrapMeetsWhatIsWrittenForClaimsAndNothingElse(t *testing.T) {
	p, reached, _ := front(t, http.StatusOK)
	var mu sync.Mutex
	var met []step
	p.lay(&trap{want: func(step) bool { return true }, meet: func(_ context.Context, s step) verdict {
		mu.Lock()
		defer mu.Unlock()
		met = append(met, s)
		return passes
	}})
	for _, r := range [][2]string{{volumePath, bindsClaim}, {claimPath, selects}, {volumePath, voids}, {claimPath, voids}, {"namespaces/default/pods/p/status", selects}} {
		if got := patchOf(t, p, soon, r[0], r[1]); got != http.StatusOK {
			t.Errorf("%s: status %d, want 200", r[0], got)
		}
	}
	postBindOf(t, p, soon, "default", "u")
	want := []step{
		{volume: true, name: "v", claimNamespace: "default", claim: "c"}, {namespace: "default", name: "c"}, {bind: true, namespace: "default", name: "p"},
	}
	if diff := cmp.Diff(want, met, cmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("met (-want +got):\n%s", diff)
	}
	if reached.Load() != 6 {
		t.Errorf("%d requests reached the server, want all 6", reached.Load())
	}
}

func TestWhatATrapHasMetIsLostOrDoneInSilence(t *testing.T) {
	for _, tt := range []struct {
		verdict verdict
		reached int64
	}{{lost, 0}, {silent, 1}} {
		p, reached, _ := front(t, http.StatusOK)
		var done atomic.Int64
		p.lay(&trap{
			want: func(s step) bool { return s.volume }, meet: func(context.Context, step) verdict { return tt.verdict },
			done: func(step) { done.Add(1) },
		})
		if got := patchOf(t, p, 500*time.Millisecond, volumePath, bindsClaim); got != 0 { // what must not come
			t.Errorf("verdict %d: status %d came back, want no answer", tt.verdict, got)
		}
		if reached.Load() != tt.reached || done.Load() != tt.reached {
			t.Errorf("verdict %d: %d requests reached the server, %d were done, want %d", tt.verdict, reached.Load(), done.Load(), tt.reached)
		}
		if got := patchOf(t, p, soon, claimPath, selects); got != http.StatusOK {
			t.Errorf("another request: status %d, want 200", got)
		}
		p.lay(nil)
		if got := patchOf(t, p, soon, volumePath, bindsClaim); got != http.StatusOK {
			t.Errorf("without a trap: status %d, want 200", got)
		}
	}
}

func TestWhatIsWrittenForClaimsIsAmissAndNothingElse(t *testing.T) {
	p, _, _ := front(t, http.StatusOK)
	p.set(APIFault{Writes: true})
	if got := postBind(t, p, soon); got != http.StatusOK {
		t.Errorf("a bind: status %d, want 200", got)
	}
	counts := map[int]int{}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPatch, "/", nil)
	for range 600 {
		f := p.strikes(r, nil, &step{volume: true})
		if counts[f.Status]++; f.Status == 0 && (f.Lost || f.Late) {
			counts[-1]++
		}
	}
	for _, status := range []int{http.StatusConflict, http.StatusForbidden, http.StatusInternalServerError} {
		if counts[status] < 50 {
			t.Errorf("%d of 600 were answered %d, want about 100", counts[status], status)
		}
	}
	if counts[-1] < 100 || counts[0]-counts[-1] < 50 {
		t.Errorf("%d of 600 were not answered and %d were good, want about 200 and 100", counts[-1], counts[0]-counts[-1])
	}
}
