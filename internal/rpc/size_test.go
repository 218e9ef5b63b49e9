package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func sizedPayload(bytes int) *testgrpc.Payload { return &testgrpc.Payload{Body: make([]byte, bytes)} }

func TestAMessageThatIsTooLargeIsToldApartFromABusyServer(t *testing.T) {
	const limit = 100 << 10
	svc := &service{
		unary: func(_ context.Context, req *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			if req.GetResponseSize() < 0 {
				return nil, rpc.Exhausted(rpc.ReasonQueueFull, 0, "busy: its answers are larger than max")
			}
			return &testgrpc.SimpleResponse{Payload: sizedPayload(int(req.GetResponseSize()))}, nil
		},
		stream: func(_ *testgrpc.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testgrpc.StreamingOutputCallResponse]) error {
			return stream.Send(&testgrpc.StreamingOutputCallResponse{Payload: sizedPayload(2 * limit)})
		},
	}
	for name, c := range map[string]struct {
		option  []rpc.Option // of the server, whose Largest is that of the client
		request *testgrpc.SimpleRequest
		large   bool
	}{
		"the client's request":             {nil, &testgrpc.SimpleRequest{Payload: sizedPayload(2 * limit)}, true},
		"a request that the server limits": {[]rpc.Option{rpc.WithRequestLimit(limit / 10)}, &testgrpc.SimpleRequest{Payload: sizedPayload(limit / 2)}, true},
		"the answer":                       {nil, &testgrpc.SimpleRequest{ResponseSize: 2 * limit}, true},
		"a busy server":                    {nil, &testgrpc.SimpleRequest{ResponseSize: -1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := startWith(t, rpc.Config{Net: rpc.Memory(), Largest: limit}, &logtest.Buffer{}, svc, c.option...)
			_, err := s.client.UnaryCall(t.Context(), c.request)
			want := codes.ResourceExhausted
			if c.large {
				want = codes.InvalidArgument
			}
			if rpc.TooLarge(err) != c.large || status.Code(err) != want {
				t.Errorf("too large: %v, code %v, of %v", rpc.TooLarge(err), status.Code(err), err)
			}
			if _, asked := rpc.RetryAfter(err); asked == c.large {
				t.Errorf("asked to come back: %v", asked)
			}
		})
	}
	t.Run("an answer that the client limits", func(t *testing.T) {
		s := startWith(t, rpc.Config{Net: rpc.Memory()}, &logtest.Buffer{}, svc)
		_, err := s.client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{ResponseSize: 2 * limit}, grpc.MaxCallRecvMsgSize(limit))
		if !rpc.TooLarge(err) {
			t.Errorf("error: %v", err)
		}
	})
	t.Run("what a stream sends", func(t *testing.T) {
		s := startWith(t, rpc.Config{Net: rpc.Memory(), Largest: limit}, &logtest.Buffer{}, svc)
		stream, err := s.client.StreamingOutputCall(t.Context(), &testgrpc.StreamingOutputCallRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if !rpc.TooLarge(err) {
			t.Errorf("error: %v", err)
		}
	})
}

func TestOneOfSeveralErrorsMayBeAMessageThatIsTooLarge(t *testing.T) {
	large := rpc.Error(codes.InvalidArgument, rpc.ReasonTooLarge, "too large")
	other := status.Error(codes.Unavailable, "away")
	for want, errs := range map[bool][]error{
		true:  {large, fmt.Errorf("ask: %w", large), errors.Join(other, fmt.Errorf("ask: %w", large))},
		false: {nil, other, errors.Join(other, nil), rpc.Invalid(rpc.Violation{Description: "wrong"})},
	} {
		for _, err := range errs {
			if rpc.TooLarge(err) != want {
				t.Errorf("TooLarge is %v of %v", !want, err)
			}
		}
	}
}
