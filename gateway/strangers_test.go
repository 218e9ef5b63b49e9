package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// tenants is a reviewer for whom a token is its owner's name. Only "admin" may list pods of all namespaces; all else all may.
type tenants struct{}

func (tenants) Authenticate(_ context.Context, token string) (access.Caller, error) {
	if token == "nobody" {
		return access.Caller{}, access.ErrUnknownToken
	}
	return access.Caller{User: token}, nil
}

func (tenants) Allowed(_ context.Context, c access.Caller, p access.Permission) (bool, string, error) {
	return c.User == "admin" || p != access.Permission{Verb: "list", Resource: "pods"}, "", nil
}

func withGuard(t *testing.T) (option, *access.Guard) {
	t.Helper()
	guard, err := access.NewGuard(access.GuardConfig{Reviewer: tenants{}, Rate: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	return func(_ *gateway.Config, b *berth) { b.guard = guard }, guard
}

func (b *berth) as(user string) context.Context {
	return metadata.AppendToOutgoingContext(b.ctx, "authorization", "Bearer "+user)
}

func TestPodsOfANodeAreNamedOnlyToWhoMayListThem(t *testing.T) {
	known, _ := withGuard(t)
	b := start(t, known, withState(stateOf(t, 7, append(crowd(3), assumed(1, 0))...)))
	for user, names := range map[string]int{"admin": 1, "tenant": 0} {
		got, err := b.client.GetNode(b.as(user), &schedulingv1.GetNodeRequest{Name: "node-00"})
		if err != nil || len(got.GetNode().GetPods()) != names || got.GetNode().GetPodCount() != 1 {
			t.Errorf("%s: %v, %v; want the count, and %d names", user, got, err, names)
		}
	}
}

func TestAnswersNameOtherPodsOnlyToWhoMayListThem(t *testing.T) {
	known, _ := withGuard(t)
	urgent := cluster.PodSet{ID: 50, Pod: cluster.Pod{UID: "urgent", Namespace: "default", Name: "urgent", Class: 1, Priority: 100}}
	full := node(0)
	full.Node.Allocatable = []cluster.Quantity{{Name: "cpu", Value: 500}, {Name: "memory", Value: 16 << 30}, {Name: "pods", Value: 110}}
	deltas := append([]cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 2, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")}}},
	}, oneClass[1:]...)
	b := start(t, known, withState(stateOf(t, 7, append(deltas, full, pod(1), assumed(1, 0), urgent)...)))
	for _, user := range []string{"admin", "tenant"} {
		why, err := b.client.ExplainPod(b.as(user), &schedulingv1.ExplainPodRequest{Name: "urgent"})
		if err != nil {
			t.Fatal(err)
		}
		victims := 0
		for _, s := range why.GetSuggestions() {
			victims += len(s.GetVictims())
		}
		text, err := json.Marshal(why)
		if err != nil || victims != 1 || strings.Contains(string(text), "pod-0001") != (user == "admin") {
			t.Errorf("%s is told %s", user, text)
		}
		whatIf, err := b.client.WhatIf(b.as(user), &schedulingv1.WhatIfRequest{Manifests: `{apiVersion: v1, kind: Pod, metadata: {name: new},
			spec: {schedulerName: berth, priority: 100, containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}}]}}`})
		if err != nil {
			t.Fatal(err)
		}
		text, err = json.Marshal(whatIf)
		if err != nil || len(whatIf.GetOutcomes()[0].GetVictims()) != 1 || strings.Contains(string(text), "pod-0001") != (user == "admin") {
			t.Errorf("%s is told %s", user, text)
		}
	}
}

func TestOneCallerDoesNotHaveAllWatches(t *testing.T) {
	for name, c := range map[string]struct{ all, asked, want int }{
		"half of few": {10, 10, 5}, "of many as many as it needs": {1000, 55, 50},
	} {
		t.Run(name, func(t *testing.T) {
			known, _ := withGuard(t)
			b := start(t, known, withState(stateOf(t, 7, crowd(1)...)), with(func(cfg *gateway.Config) {
				cfg.MaxWatchers, cfg.Heartbeat = c.all, 10*time.Millisecond
			}))
			watch := func(user string) error {
				stream, err := b.client.WatchPlacements(b.as(user), &schedulingv1.WatchPlacementsRequest{})
				if err == nil {
					_, err = stream.Recv()
				}
				return err
			}
			had := 0
			for range c.asked {
				if err := watch("hog"); err == nil {
					had++
				} else if rpc.ReasonOf(err) != gateway.ReasonTooManyWatchers {
					t.Fatal(err)
				}
			}
			if had != c.want {
				t.Errorf("one caller has %d of %d watches, want %d", had, c.all, c.want)
			}
			if err := watch("other"); err != nil {
				t.Errorf("another caller: %v", err)
			}
		})
	}
}

// strict serves JSON as a gateway does whose callers are known.
func (b *berth) strict(guard *access.Guard) (url string, client *http.Client) {
	b.t.Helper()
	return b.webWith(gateway.HTTPConfig{
		AllowedHost: gateway.AllowedHost(func() []string { return []string{"gateway.example"} }), Known: guard.Know, Expect: guard.Expect,
	})
}

func TestABodyIsReadOnlyOfWhoIsKnown(t *testing.T) {
	known, guard := withGuard(t)
	b := start(t, known, withState(stateOf(t, 7, crowd(1)...)))
	url, _ := b.strict(guard)
	for token, want := range map[string]string{"": "401", "nobody": "401", strings.Repeat("x", 17<<10): "401"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		// Four megabytes are announced, and never sent.
		_, _ = fmt.Fprintf(conn, "POST /v1/apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: 4000000\r\n\r\n{", token)
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(line, want) {
			t.Errorf("with the token %.10q: %q, %v; want %s at once", token, line, err, want)
		}
	}
}

func TestOtherPagesCannotAskThroughABrowser(t *testing.T) {
	known, guard := withGuard(t)
	b := start(t, known, withState(stateOf(t, 7, crowd(1)...)))
	url, client := b.strict(guard)
	for _, c := range []struct {
		name, method, path, host string
		headers                  []string // names and values
		body                     string
		want                     int
	}{
		{"the page itself", "POST", "/v1/whatif", "gateway.example", []string{"Content-Type", "application/json", "Sec-Fetch-Site", "same-origin"}, `{"pending":true,"summaryOnly":true}`, 200},
		{"curl", "POST", "/v1/whatif", "", []string{"Content-Type", "application/json; charset=utf-8"}, `{"pending":true,"summaryOnly":true}`, 200},
		{"a page of another origin", "POST", "/v1/whatif", "", []string{"Content-Type", "application/json", "Sec-Fetch-Site", "cross-site"}, `{}`, 403},
		{"an old browser's page of another origin", "POST", "/v1/whatif", "", []string{"Content-Type", "application/json", "Origin", "https://evil.example"}, `{}`, 403},
		{"a page of another origin that reads", "GET", "/v1/status", "", []string{"Sec-Fetch-Site", "cross-site"}, "", 403},
		{"an old browser's page of another origin that reads", "GET", "/v1/status", "", []string{"Origin", "https://evil.example"}, "", 403},
		{"a person who types the address", "GET", "/v1/status", "", []string{"Sec-Fetch-Site", "none"}, "", 200},
		{"a form", "POST", "/v1/apply", "", []string{"Content-Type", "text/plain"}, `{}`, 415},
		{"a body of no kind", "POST", "/v1/apply", "", nil, `{}`, 415},
		{"a page whose name resolves to this machine", "GET", "/v1/status", "evil.example", nil, "", 403},
		{"the same with a port", "GET", "/v1/status", "evil.example:7080", nil, "", 403},
		{"a name that only begins well", "GET", "/v1/status", "gateway.example.evil.example", nil, "", 403},
		{"a name that is allowed", "GET", "/v1/status", "Gateway.Example:7080", nil, "", 200},
		{"an address", "GET", "/v1/status", "[::1]:7080", nil, "", 200},
	} {
		request, err := http.NewRequestWithContext(b.ctx, c.method, url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if c.host != "" {
			request.Host = c.host
		}
		request.Header.Set("Authorization", "Bearer admin")
		for i := 0; i < len(c.headers); i += 2 {
			request.Header.Set(c.headers[i], c.headers[i+1])
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, response.StatusCode, text, c.want)
		}
	}
}

func TestHeadersOfRequestsDoNotBecomeThoseOfCalls(t *testing.T) {
	known, guard := withGuard(t)
	b := start(t, known, withState(stateOf(t, 7, crowd(1)...)))
	url, client := b.strict(guard)
	request, err := http.NewRequestWithContext(b.ctx, http.MethodGet, url+"/v1/nodes/node-00", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer tenant")
	request.Header.Set("Grpc-Metadata-Authorization", "Bearer admin")
	request.Header.Set("Grpc-Metadata-Berth-Forwarded-For", "10.0.0.1")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
		t.Errorf("%d %s", response.StatusCode, text)
	}
	if _, err := b.client.GetStatus(b.ctx, &schedulingv1.GetStatusRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
}

// nothing is a reviewer whose callers, but "admin", may do nothing.
type nothing struct{ tenants }

func (nothing) Allowed(_ context.Context, c access.Caller, _ access.Permission) (bool, string, error) {
	return c.User == "admin", "", nil
}

func TestARequestOfManyChangesIsNotDecoded(t *testing.T) {
	guard, err := access.NewGuard(access.GuardConfig{Reviewer: nothing{}, Rate: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, func(_ *gateway.Config, b *berth) { b.guard = guard }, withState(stateOf(t, 7, crowd(1)...)))
	wire := []byte(strings.Repeat("\x0a\x00", 2<<20-16)) // two million changes
	for user, want := range map[string]codes.Code{"tenant": codes.PermissionDenied, "admin": codes.InvalidArgument} {
		for _, method := range []string{schedulingv1.SchedulingService_WhatIf_FullMethodName, schedulingv1.SchedulingService_GetCapacity_FullMethodName} {
			request := wire
			if method == schedulingv1.SchedulingService_GetCapacity_FullMethodName {
				request = []byte(strings.Repeat("\x22\x00", 2<<20-16))
			}
			err := b.conn.Invoke(b.as(user), method, request, nil, grpc.ForceCodecV2(noise{}))
			if status.Code(err) != want {
				t.Errorf("%s of %s: %v, want %v", method, user, err, want)
			}
			if found := rpc.Violations(err); want == codes.InvalidArgument && (len(found) != 1 || found[0].Field != "changes") {
				t.Errorf("%s of %s: the violations %v, want one of changes", method, user, found)
			}
		}
	}
}

func TestABodyIsCountedOnceWhetherItParsesOrNot(t *testing.T) {
	guard, err := access.NewGuard(access.GuardConfig{Reviewer: tenants{}, Rate: 0.001, Burst: 3})
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, func(_ *gateway.Config, b *berth) { b.guard, b.behind = guard, true }, withState(stateOf(t, 7, crowd(1)...)))
	handler, err := gateway.Handler(b.conn, gateway.HTTPConfig{Known: guard.Know, Expect: guard.Expect})
	if err != nil {
		t.Fatal(err)
	}
	for user, bodies := range map[string][]string{"good": {`{"pending":true,"summaryOnly":true}`, `{"pending":true,"summaryOnly":true}`, `{"pending":true,"summaryOnly":true}`}, "bad": {"x", "{", `{"x":1}`}} {
		for k, body := range append(bodies, "{}") {
			r := httptest.NewRequest(http.MethodPost, "/v1/whatif", strings.NewReader(body)).WithContext(b.ctx)
			r.Header.Set("Authorization", "Bearer "+user)
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			want := map[bool]int{true: http.StatusOK, false: http.StatusBadRequest}[user == "good"]
			if k == 3 {
				want = http.StatusTooManyRequests
			}
			if w.Code != want {
				t.Errorf("%s, body %d: %d %s, want %d", user, k, w.Code, w.Body, want)
			}
		}
	}
}

// fickle is a reviewer who knows everybody, until nobody any more, or lets them do everything, until nothing.
type fickle struct{ unknown, refused atomic.Bool }

func (f *fickle) Authenticate(context.Context, string) (access.Caller, error) {
	if f.unknown.Load() {
		return access.Caller{}, access.ErrUnknownToken
	}
	return access.Caller{User: "ann"}, nil
}

func (f *fickle) Allowed(context.Context, access.Caller, access.Permission) (bool, string, error) {
	return !f.refused.Load(), "", nil
}

func TestAWatchByJSONEndsWhenItsCallerMayNotHaveItAnyMore(t *testing.T) {
	for reason, take := range map[rpc.Reason]func(*fickle){
		access.ReasonUnknownToken: func(f *fickle) { f.unknown.Store(true) }, access.ReasonNotAllowed: func(f *fickle) { f.refused.Store(true) },
	} {
		f := &fickle{}
		guard, err := access.NewGuard(access.GuardConfig{Reviewer: f, Rate: 0.001, Burst: 1}) // reviews count for no rate
		if err != nil {
			t.Fatal(err)
		}
		b := start(t, func(_ *gateway.Config, b *berth) { b.guard, b.behind = guard, true }, withState(stateOf(t, 7, crowd(1)...)))
		url, client := b.webWith(gateway.HTTPConfig{Known: guard.Know, Expect: guard.Expect})
		request, err := http.NewRequestWithContext(b.ctx, http.MethodGet, url+"/v1/placements:watch?from.epoch=7", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer x")
		b.ledger.apply(t, assumed(0, 0))
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(response.Body)
		if !lines.Scan() || !strings.Contains(lines.Text(), "default/pod-0000") {
			t.Fatalf("the watch begins with %q, %v", lines.Text(), lines.Err())
		}
		take(f)
		last := ""
		for lines.Scan() { // to its end
			last = lines.Text()
		}
		if response.Body.Close(); !strings.Contains(last, string(reason)) {
			t.Errorf("the watch ended with %q, want %s", last, reason)
		}
	}
}
