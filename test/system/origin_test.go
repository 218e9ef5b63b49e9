package system

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// A gateway on loopback asks nobody who he is, but whoever browses on its machine brings pages of others along: they are told by where
// they are from, and by the name by which they ask.
func TestPagesOfOthersAreRefusedByAGatewayWithItsDefaults(t *testing.T) {
	ports, err := kubetest.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	at, dir := "127.0.0.1:"+ports[1], t.TempDir()
	proc, err := kubetest.StartProcess("all", filepath.Join(dir, "log"), berthtest.Binary(t), "all", "--data-dir", filepath.Join(dir, "data"),
		"--listen", "127.0.0.1:"+ports[0], "--http-listen", at) // the defaults but for the ports
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		proc.Stop()
		if t.Failed() {
			t.Logf("berth all:\n%s", proc.LogTail(4<<10))
		}
	})
	ask := func(ctx context.Context, method, path, host, body string, headers ...string) (code int, text string, err error) {
		request, err := http.NewRequestWithContext(ctx, method, "http://"+at+path, strings.NewReader(body))
		if err != nil {
			return 0, "", err
		}
		request.Host = host // "" is the address
		if body != "" {
			request.Header.Set("Content-Type", "application/json")
		}
		for i := 0; i < len(headers); i += 2 {
			request.Header.Set(headers[i], headers[i+1])
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, "", err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		return response.StatusCode, string(answer), err
	}
	berthtest.Await(t, berthtest.Patience, "the gateway to answer", func(ctx context.Context) error {
		for path, want := range map[string]string{"/v1/status": "binder-0", "/v1/pods": "pods"} { // the latter when it has a state
			code, text, err := ask(ctx, http.MethodGet, path, "", "")
			if err == nil && (code != http.StatusOK || !strings.Contains(text, want)) {
				err = fmt.Errorf("%s: %d %s", path, code, text)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})

	named := func(pod string) string { return fmt.Sprintf(`{"manifests":%q}`, berthtest.Pod(pod, "1", "1Gi", "")) }
	const crossOrigin, hostNotAllowed = "CROSS_ORIGIN", "HOST_NOT_ALLOWED"
	var want []string // pods
	for i, c := range []struct {
		who, host string
		headers   []string
		refused   string // the reason; "": it is answered
	}{
		{"curl by the address", "", nil, ""},
		{"curl by localhost", "localhost:" + ports[1], nil, ""},
		{"the page", "", []string{"Origin", "http://" + at, "Sec-Fetch-Site", "same-origin"}, ""},
		{"the page, in an old browser", "localhost:" + ports[1], []string{"Origin", "http://localhost:" + ports[1]}, ""},
		{"whoever types the address", "", []string{"Sec-Fetch-Site", "none"}, ""},
		{"a page of another site", "", []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}, crossOrigin},
		{"a page of another site, in an old browser", "", []string{"Origin", "https://evil.example"}, crossOrigin},
		{"a page of another port of this machine", "", []string{"Origin", "http://127.0.0.1:" + ports[0], "Sec-Fetch-Site", "same-site"}, crossOrigin},
		{"the same, in an old browser", "", []string{"Origin", "http://127.0.0.1:" + ports[0]}, crossOrigin},
		{"a page of no origin", "", []string{"Origin", "null"}, crossOrigin},
		{"a page whose name has come to mean this machine", "evil.example:" + ports[1], []string{"Origin", "http://evil.example:" + ports[1], "Sec-Fetch-Site", "same-origin"}, hostNotAllowed},
		{"the same, in an old browser", "evil.example", nil, hostNotAllowed},
		{"a name that begins as an address", "127.0.0.1.evil.example", nil, hostNotAllowed},
		{"a name that ends as this machine's", "evillocalhost", nil, hostNotAllowed},
	} {
		pod := fmt.Sprintf("p%d", i)
		for _, r := range []struct{ method, path, body string }{
			{http.MethodGet, "/v1/status", ""}, {http.MethodPost, "/v1/whatif", `{"pending":true,"summaryOnly":true}`}, {http.MethodPost, "/v1/apply", named(pod)},
		} {
			code, text, err := ask(t.Context(), r.method, r.path, c.host, r.body, c.headers...)
			switch {
			case err != nil:
				t.Fatal(err)
			case c.refused == "" && code != http.StatusOK:
				t.Errorf("%s: %s %s: %d %s, want an answer", c.who, r.method, r.path, code, text)
			case c.refused != "" && (code != http.StatusForbidden || !strings.Contains(text, c.refused) || strings.Contains(text, "binder-0")):
				t.Errorf("%s: %s %s: %d %s, want 403 with %s", c.who, r.method, r.path, code, text, c.refused)
			}
		}
		if c.refused == "" {
			want = append(want, pod)
		}
	}

	// What was refused was not done either: pods come in the order in which they were applied.
	if code, text, err := ask(t.Context(), http.MethodPost, "/v1/apply", "", named("z")); err != nil || code != http.StatusOK {
		t.Fatalf("apply the last: %d %s, %v", code, text, err)
	}
	want = append(want, "z")
	berthtest.Await(t, berthtest.Patience, "the last pod", func(ctx context.Context) error {
		code, text, err := ask(ctx, http.MethodGet, "/v1/namespaces/default/pods/z", "", "")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, text)
		}
		return err
	})
	code, text, err := ask(t.Context(), http.MethodGet, "/v1/pods", "", "")
	if err != nil || code != http.StatusOK {
		t.Fatalf("list: %d %s, %v", code, text, err)
	}
	var list struct{ Pods []struct{ Name string } }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, p := range list.Pods {
		have = append(have, p.Name)
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("there are the pods %q, want those of honest callers, %q", have, want)
	}
}
