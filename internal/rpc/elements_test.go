package rpc_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestARequestOfTooManyElementsIsNotDecoded(t *testing.T) {
	guard := &doorman{}
	var heard atomic.Int64
	r := start(t, rpc.TCP(), &service{
		stream: func(req *testgrpc.StreamingOutputCallRequest, _ grpc.ServerStreamingServer[testgrpc.StreamingOutputCallResponse]) error {
			heard.Store(int64(len(req.GetResponseParameters())))
			return nil
		},
	}, rpc.WithPublic(guard))
	for n, want := range map[int]codes.Code{10_000: codes.OK, 10_001: codes.InvalidArgument, 20_000: codes.InvalidArgument} {
		heard.Store(-1)
		req := &testgrpc.StreamingOutputCallRequest{ResponseParameters: make([]*testgrpc.ResponseParameters, n)}
		for k := range req.GetResponseParameters() {
			req.ResponseParameters[k] = &testgrpc.ResponseParameters{}
		}
		stream, err := r.client.StreamingOutputCall(as(t, "ann"), req)
		if err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if status.Code(err) != want {
			t.Fatalf("%d elements: %v, want %v", n, err, want)
		}
		found := rpc.Violations(err)
		if want != codes.OK && (len(found) != 1 || found[0].Field != "response_parameters" || heard.Load() != -1) {
			t.Errorf("%d elements: the violations %v, and the handler saw %d; want response_parameters, and nothing", n, found, heard.Load())
		}
		if want == codes.OK && heard.Load() != int64(n) {
			t.Errorf("the handler saw %d elements, want %d", heard.Load(), n)
		}
	}
}

// countingGuard is a doorman who remembers which calls came to him as counted.
type countingGuard struct {
	doorman
	counted []bool
}

func (c *countingGuard) Admit(ctx context.Context, method string) (context.Context, error) {
	if !strings.HasPrefix(method, "/grpc.health.") {
		c.counted = append(c.counted, rpc.Counted(ctx))
	}
	return c.doorman.Admit(ctx, method)
}

func TestOnlyTheProcessItselfSaysThatACallIsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		opts []rpc.Option
		want []bool // of what the process says is counted, what it says is not, and what a client says is
	}{
		"forwarding": {[]rpc.Option{rpc.WithForwarding()}, []bool{true, false, false}},
		"public":     {nil, []bool{false, false, false}},
	} {
		guard := &countingGuard{}
		r := start(t, rpc.Memory(), &service{}, append(c.opts, rpc.WithPublic(guard))...)
		for _, ctx := range []context.Context{
			rpc.Forward(rpc.WithCounted(as(t, "ann")), "10.0.0.1"),
			rpc.Forward(as(t, "ann"), "10.0.0.1"),
			rpc.Forward(metadata.AppendToOutgoingContext(as(t, "ann"), "berth-counted", "true"), "10.0.0.1"),
		} {
			if _, err := r.client.UnaryCall(ctx, &testgrpc.SimpleRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		for k, want := range c.want {
			if guard.counted[k] != want {
				t.Errorf("%s: %v, want %v", name, guard.counted, c.want)
			}
		}
	}
}
