package rpc_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestStopFinishesACallInFlightAndRefusesNewOnes(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		entered, leave := make(chan struct{}), make(chan struct{})
		r := start(t, network, &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			close(entered)
			<-leave
			return &testgrpc.SimpleResponse{Username: "finished"}, nil
		}}, rpc.WithDrain(patience))
		type result struct {
			resp *testgrpc.SimpleResponse
			err  error
		}
		answered := make(chan result, 1)
		ctx := within(t, patience)
		go func() {
			resp, err := r.client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
			answered <- result{resp, err}
		}()
		receive(t, entered, "the call to arrive")
		r.cancel()
		eventually(t, "new calls to be refused", func() bool {
			_, err := r.client.EmptyCall(ctx, &testgrpc.Empty{})
			return status.Code(err) == codes.Unavailable
		})
		select {
		case <-r.done:
			t.Error("Serve returned while a call was in flight")
		default:
		}
		if why := r.server.Health().Why(""); why != "draining" {
			t.Errorf("health says %q, want draining", why)
		}
		close(leave)
		if got := receive(t, answered, "the answer"); got.err != nil || got.resp.GetUsername() != "finished" {
			t.Errorf("call in flight got %v, %v", got.resp, got.err)
		}
		if err := r.stop(t); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

func TestStopEndsStreamsAtOnceWithUnavailable(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		for name, ended := range map[string]func(context.Context) error{
			"err":   func(ctx context.Context) error { return ctx.Err() },
			"cause": context.Cause,
		} {
			r := start(t, network, &service{stream: func(_ *testgrpc.StreamingOutputCallRequest, stream output) error {
				if err := stream.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
					return err
				}
				<-stream.Context().Done()
				return ended(stream.Context())
			}}, rpc.WithDrain(time.Hour)) // the test would time out if streams were only cut
			stream, err := r.client.StreamingOutputCall(within(t, patience), &testgrpc.StreamingOutputCallRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			if err := r.stop(t); err != nil {
				t.Errorf("%s: Serve: %v", name, err)
			}
			if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || rpc.ReasonOf(err) != rpc.ReasonDraining {
				t.Errorf("%s: the stream ended with %v (%s), want UNAVAILABLE (DRAINING)", name, err, rpc.ReasonOf(err))
			}
		}
	})
}

func TestClientThatNeverReadsDoesNotHoldUpStop(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		sent := make(chan struct{}, 1)
		r := start(t, network, &service{stream: func(_ *testgrpc.StreamingOutputCallRequest, stream output) error {
			for {
				if err := stream.Send(&testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: make([]byte, 1<<20)}}); err != nil {
					return err
				}
				select {
				case sent <- struct{}{}:
				default:
				}
			}
		}}, rpc.WithDrain(50*time.Millisecond))
		if _, err := r.client.StreamingOutputCall(within(t, patience), &testgrpc.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		receive(t, sent, "the first message to be sent")
		if err := r.stop(t); err != nil {
			t.Errorf("Serve: %v", err)
		}
		if !strings.Contains(r.logs.String(), "calls in flight are cut") {
			t.Errorf("the cut is not logged:\n%s", r.logs)
		}
	})
}

func TestHandlerThatIgnoresItsContextIsReported(t *testing.T) {
	entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	r := start(t, rpc.Memory(), &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		defer close(left)
		close(entered)
		<-leave
		return &testgrpc.SimpleResponse{}, nil
	}}, rpc.WithDrain(20*time.Millisecond))
	answered := make(chan error, 1)
	ctx := within(t, patience)
	go func() {
		_, err := r.client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		answered <- err
	}()
	receive(t, entered, "the call to arrive")
	if err := r.stop(t); err == nil || !strings.Contains(err.Error(), "handler did not return") {
		t.Errorf("Serve returned %v, want the handler reported", err)
	}
	if err := receive(t, answered, "the call to end"); status.Code(err) != codes.Unavailable {
		t.Errorf("the call got %v, want UNAVAILABLE", err)
	}
	close(leave)
	receive(t, left, "the handler to return")
}

func TestBrokenListenerEndsServeWithAnError(t *testing.T) {
	network := rpc.Memory()
	l, err := network.Listen("role")
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer(rpc.Config{Net: network}, "tester")
	served := make(chan error, 1)
	go func() { served <- server.Serve(t.Context(), l) }()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, served, "Serve to return"); err == nil || !strings.Contains(err.Error(), "serve tester on role") {
		t.Errorf("Serve returned %v", err)
	}
}

func TestServeUnderAnEndedContextReturns(t *testing.T) {
	network := rpc.Memory()
	for range 50 { // the end races with the start
		l, err := network.Listen("role")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := rpc.NewServer(rpc.Config{Net: network}, "tester").Serve(ctx, l); err != nil {
			t.Fatalf("Serve: %v", err)
		}
	}
}
