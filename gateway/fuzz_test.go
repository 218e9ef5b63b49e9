package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/coord"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// FuzzJSON: whatever request comes over HTTP, it is answered with JSON, never as a failure of the gateway, which answers the next.
func FuzzJSON(f *testing.F) {
	for _, request := range []string{
		"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/pods?page_size=2&pending_only=true HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n",
		"GET /v1/namespaces/default/pods/pod-0001:explain?candidates=2 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/nodes/node-00 HTTP/1.1\r\nHost: x\r\nGrpc-Timeout: 1S\r\nGrpc-Metadata-X: y\r\n\r\n",
		"GET /v1/map?pod=default%2Fpod-0001 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/placements:watch?from.epoch=7 HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/apply HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 22\r\n\r\n{\"manifests\":\"kind: \"}",
		"POST /v1/whatif HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{\"pending\":true}",
		"POST /v1/compare HTTP/1.1\r\nHost: x\r\nContent-Length: 19\r\n\r\n{\"everything\":true}",
		"POST /v1/members/f-0:drain HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nX-Http-Method-Override: GET\r\n\r\n{}",
		"PUT /v1/../v1/%2e%2e/ HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		f.Add([]byte(request))
	}
	b := start(f, withState(stateOf(f, 7, append(crowd(3), assumed(1, 0))...)), withObjects(&objects{there: map[string]bool{"Pod default/web": true}}))
	worker, _ := counted(coord.RoleFilterWorker, "f-0")
	b.crew(worker)
	handler, err := gateway.Handler(b.conn, gateway.HTTPConfig{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		ctx := t.Context()
		watch := strings.Contains(request.URL.Path, "watch") // it has no end
		if watch {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, request.WithContext(ctx))
		body := w.Body.Bytes()
		if w.Code == http.StatusInternalServerError || w.Code < 200 {
			t.Fatalf("%s %s: %d %s", request.Method, request.URL, w.Code, body)
		}
		var message struct{ Code codes.Code }
		if len(body) > 0 && !watch {
			if err := json.Unmarshal(body, &message); err != nil {
				t.Fatalf("%s %s: %d %q is no JSON: %v", request.Method, request.URL, w.Code, body, err)
			}
		}
		if w.Code >= 400 && message.Code == codes.OK && !watch {
			t.Errorf("%s %s: %d %s: want a code", request.Method, request.URL, w.Code, body)
		}
		if _, err := b.client.GetStatus(t.Context(), &schedulingv1.GetStatusRequest{}); err != nil {
			t.Fatalf("after %q: %v", raw, err)
		}
	})
}
