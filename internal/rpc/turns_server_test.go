package rpc_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

func TestLargeAnswersAreEncodedInTurns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		turns := rpc.NewTurns(1)
		answer := &testgrpc.SimpleResponse{}
		svc := &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) { return answer, nil }}
		held, err := rpc.TakeTurn(rpc.WithTurns(rpc.WithCaller(t.Context(), "other"), turns))
		if err != nil {
			t.Fatal(err)
		}
		r := startWith(t, rpc.Config{Net: rpc.Memory(), Turns: turns}, nil, svc, rpc.WithPublic(nil), rpc.WithDeadline(time.Second))
		call := func() error {
			_, err := r.client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{})
			return err
		}
		if err := call(); err != nil {
			t.Errorf("a small answer: %v", err)
		}
		answer = &testgrpc.SimpleResponse{Payload: &testgrpc.Payload{Body: make([]byte, 64<<10)}}
		if err := call(); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a large answer, while another has the turn: %v, want DEADLINE_EXCEEDED", err)
		}
		if held := r.server.Unread(); held != 0 {
			t.Errorf("%d bytes of an answer that was not given are counted", held)
		}
		held.End()
		if err := call(); err != nil {
			t.Errorf("once the turn is free: %v", err)
		}
	})
}

func TestHandlersOfPublicServersWorkInTurns(t *testing.T) {
	for _, public := range []bool{true, false} {
		turns := rpc.NewTurns(1)
		held, err := rpc.TakeTurn(rpc.WithTurns(rpc.WithCaller(t.Context(), "other"), turns))
		if err != nil {
			t.Fatal(err)
		}
		waits := make(chan bool, 1)
		svc := &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			ctx, cancel := context.WithCancel(ctx)
			cancel() // so that it gets the turn at once, or not at all
			turn, err := rpc.TakeTurn(ctx)
			turn.End()
			waits <- err != nil
			return &testgrpc.SimpleResponse{}, nil
		}}
		var options []rpc.Option
		if public {
			options = append(options, rpc.WithPublic(nil))
		}
		r := startWith(t, rpc.Config{Net: rpc.Memory(), Turns: turns}, nil, svc, options...)
		if _, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{}); err != nil {
			t.Fatal(err)
		}
		if got := <-waits; got != public {
			t.Errorf("open to people: %v; its work waits for turns: %v", public, got)
		}
		held.End()
	}
}
