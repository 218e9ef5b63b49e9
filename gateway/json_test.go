package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// web serves the gateway's JSON on a socket and returns its URL and a client.
func (b *berth) web() (url string, client *http.Client, stop func()) {
	b.t.Helper()
	return b.serveWeb(gateway.HTTPConfig{})
}

// webWith is web for others than everyone.
func (b *berth) webWith(cfg gateway.HTTPConfig) (url string, client *http.Client) {
	b.t.Helper()
	url, client, _ = b.serveWeb(cfg)
	return url, client
}

func (b *berth) serveWeb(cfg gateway.HTTPConfig) (url string, client *http.Client, stop func()) {
	b.t.Helper()
	handler, err := gateway.Handler(b.conn, cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	l := listen(b.t)
	ctx, cancel := context.WithCancel(b.ctx)
	served := make(chan error, 1)
	go func() { served <- gateway.ServeHTTP(ctx, l, handler, slog.New(slog.DiscardHandler)) }()
	transport := &http.Transport{}
	done := false
	stop = func() {
		if done {
			return
		}
		done = true
		cancel()
		if err := <-served; err != nil {
			b.t.Errorf("serve JSON: %v", err)
		}
		transport.CloseIdleConnections()
	}
	b.t.Cleanup(stop)
	return "http://" + l.Addr().String(), &http.Client{Transport: transport, Timeout: patience}, stop
}

// answer is what every error looks like in JSON.
type answer struct {
	Code    codes.Code
	Message string
	Details []struct {
		Type            string `json:"@type"`
		Reason          string
		FieldViolations []struct{ Field, Description string }
	}
	Error *answer
}

func do(t *testing.T, client *http.Client, method, url, body string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, text
}

func TestJSONAnswersLikeGRPC(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, append(crowd(3), assumed(1, 0))...)), withObjects(&objects{there: map[string]bool{"Pod default/web": true}}))
	worker, _ := counted(coord.RoleFilterWorker, "f-0")
	b.crew(worker)
	url, client, _ := b.web()
	for _, test := range []struct {
		method, path, body string
		want               string
	}{
		{"GET", "/v1/status", "", `"leader":"binder-0"`},
		{"GET", "/v1/pods?page_size=2", "", `"nextPageToken":"`},
		{"GET", "/v1/pods?node=node-00", "", `"state":"POD_STATE_ASSUMED"`},
		{"GET", "/v1/namespaces/default/pods/pod-0002", "", `"uid":"uid-2"`},
		{"GET", "/v1/nodes", "", `"podCount":1`},
		{"GET", "/v1/nodes/node-00", "", `"pods":["default/pod-0001"]`},
		{"POST", "/v1/apply", `{"manifests":"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}"}`, `"result":"created"`},
		{"POST", "/v1/delete", `{"kind":"Pod","name":"web"}`, `{}`},
		{"POST", "/v1/members/f-0:drain", `{"role":"filter-worker","force":true}`, `"build":"v1.2.3"`},
	} {
		code, text := do(t, client, test.method, url+test.path, test.body)
		var compact strings.Builder
		if err := json.NewEncoder(&compact).Encode(json.RawMessage(text)); err != nil {
			t.Errorf("%s %s: %q is no JSON: %v", test.method, test.path, text, err)
			continue
		}
		if code != http.StatusOK || !strings.Contains(compact.String(), test.want) {
			t.Errorf("%s %s: %d %s, want 200 with %s", test.method, test.path, code, compact.String(), test.want)
		}
	}
}

func TestJSONErrorsCarryCodeReasonAndViolations(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(1)...)))
	url, client, _ := b.web()
	for _, test := range []struct {
		method, path, body string
		status             int
		code               codes.Code
		reason             rpc.Reason
		field              string
	}{
		{"GET", "/v1/pods?page_size=-1", "", 400, codes.InvalidArgument, rpc.ReasonInvalid, "page_size"},
		{"GET", "/v1/pods?page_token=x", "", 400, codes.InvalidArgument, rpc.ReasonInvalid, "page_token"},
		{"GET", "/v1/pods?page_size=many", "", 400, codes.InvalidArgument, rpc.ReasonInvalid, ""},
		{"GET", "/v1/nodes/nope", "", 404, codes.NotFound, rpc.ReasonNotFound, ""},
		{"POST", "/v1/members/nope:drain", "{}", 404, codes.NotFound, rpc.ReasonNotFound, ""},
		{"GET", "/v1/placements:watch?from.epoch=3", "", 400, codes.OutOfRange, rpc.ReasonLogCompacted, ""},
		{"POST", "/v1/apply", "{", 400, codes.InvalidArgument, rpc.ReasonInvalid, ""},
		{"POST", "/v1/apply", `{"manifest":"x"}`, 400, codes.InvalidArgument, rpc.ReasonInvalid, ""},
		{"POST", "/v1/apply", `{"manifests":"x"}`, 400, codes.FailedPrecondition, gateway.ReasonNotLocal, ""},
		{"POST", "/v1/apply", `{"manifests":"` + strings.Repeat("x", rpc.PublicRequestLimit) + `"}`, 413, codes.InvalidArgument, gateway.ReasonTooLarge, ""},
		{"GET", "/v1/nothing", "", 404, codes.NotFound, "", ""},
		{"DELETE", "/v1/pods", "", 501, codes.Unimplemented, "", ""},
	} {
		status, text := do(t, client, test.method, url+test.path, test.body)
		var got answer
		if err := json.Unmarshal(text, &got); err != nil {
			t.Errorf("%s %s: %q is no JSON: %v", test.method, test.path, text, err)
			continue
		}
		if got.Error != nil { // of a stream
			got = *got.Error
		}
		reason, field := rpc.Reason(""), ""
		for _, d := range got.Details {
			reason = max(reason, rpc.Reason(d.Reason))
			for _, v := range d.FieldViolations {
				field = v.Field
			}
		}
		if status != test.status || got.Code != test.code || reason != test.reason || field != test.field || got.Message == "" {
			t.Errorf("%s %s: %d %s, want %d, code %d, reason %q, field %q", test.method, test.path, status, text,
				test.status, test.code, test.reason, test.field)
		}
	}
}

func TestJSONWatchStreamsAndEndsWithTheServer(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(3)...)))
	url, client, stop := b.web()
	client.Timeout = 0
	b.ledger.apply(t, assumed(0, 0))
	req, err := http.NewRequestWithContext(b.ctx, http.MethodGet, url+"/v1/placements:watch?from.epoch=7", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	next := func() string {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the stream ended: %v", lines.Err())
		}
		return lines.Text()
	}
	if got := next(); !strings.Contains(got, `"result"`) || !strings.Contains(got, "default/pod-0000") {
		t.Errorf("first line %s", got)
	}
	b.ledger.apply(t, assumed(1, 0))
	if got := next(); !strings.Contains(got, "default/pod-0001") {
		t.Errorf("second line %s", got)
	}
	stop()
	for lines.Scan() { // an error in a line may still come, and then the end
		if strings.Contains(lines.Text(), `"result"`) {
			t.Errorf("after the stop: %s", lines.Text())
		}
	}
}

// TestHeadersThatGRPCCannotCarryAreNoFailure: HTTP takes bytes in headers that gRPC does not.
func TestHeadersThatGRPCCannotCarryAreNoFailure(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(1)...)))
	url, client, _ := b.web()
	for _, name := range []string{"Authorization", "X-Forwarded-For", "X-Forwarded-Host", "Grpc-Metadata-X", "Accept-Language"} {
		request, err := http.NewRequestWithContext(t.Context(), "GET", url+"/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(name, "Bearer \xcc")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != http.StatusOK {
			t.Errorf("%s: %d, want 200", name, response.StatusCode)
		}
	}
}
