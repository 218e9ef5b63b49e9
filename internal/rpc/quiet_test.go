package rpc_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestStrangersDoNotFillTheLog(t *testing.T) {
	r := start(t, rpc.Memory(), &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		return nil, rpc.Error(codes.FailedPrecondition, rpc.ReasonNotReady, "no")
	}}, rpc.WithPublic(&doorman{}))
	for range 12 {
		if _, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Fatal(err)
		}
	}
	text := r.logs.String()
	if n := strings.Count(text, "Unauthenticated"); n > 0 {
		t.Errorf("%d lines of refused calls", n)
	}
	// One at once, and others 10 s later, if this took that long.
	if n := strings.Count(text, "strangers were refused"); n < 1 || n > 3 || !strings.Contains(text, "calls=1") {
		t.Errorf("%d lines say that strangers were refused:\n%s", n, text)
	}
	if n := metric(t, r.cfg.Metrics, "grpc_server_handled_total", map[string]string{"grpc_code": "Unauthenticated"}); n != 12 {
		t.Errorf("%v refused calls are counted, want 12", n)
	}
	_, _ = r.client.UnaryCall(as(t, "ann"), &testgrpc.SimpleRequest{}) // fails, and is told
	if text := r.logs.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "grpc.code=FailedPrecondition") {
		t.Errorf("what fails of those who are known is not told:\n%s", text)
	}
}

func TestStrangersAreTheirOwnLinesForWhoWantsThem(t *testing.T) {
	logs := &logtest.Buffer{}
	r := startWith(t, rpc.Config{Net: rpc.Memory(), Log: slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})), Metrics: prometheus.NewRegistry()},
		logs, &service{}, rpc.WithPublic(&doorman{}))
	if _, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Fatal(err)
	}
	eventually(t, "a line of the call", func() bool { return strings.Contains(logs.String(), "grpc.code=Unauthenticated") })
}
