package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

// conn answers every unary call with what answer says of the n-th, and notes when it came.
type conn struct {
	grpc.ClientConnInterface
	answer func(n int) error
	came   []time.Time
}

func (c *conn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	c.came = append(c.came, time.Now())
	return c.answer(len(c.came))
}

func TestAClientThatRetriesRefusalsComesBackWhenItIsAskedTo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := &conn{answer: func(n int) error {
			if n < 3 {
				return rpc.Exhausted(rpc.ReasonQueueFull, time.Second, "full")
			}
			return nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := rpc.RetryRefused(c).Invoke(ctx, "m", nil, nil); err != nil || len(c.came) != 3 {
			t.Fatalf("%d calls, the last: %v; want 3, and success", len(c.came), err)
		}
		for i := range 2 {
			if waited := c.came[i+1].Sub(c.came[i]); waited < time.Second || waited > 1500*time.Millisecond {
				t.Errorf("waited %v, want 1 s and up to half as much again", waited)
			}
		}
	})
}

func TestAClientThatRetriesRefusalsDoesNotWaitBeyondItsDeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		full := &conn{answer: func(int) error { return rpc.Exhausted(rpc.ReasonQueueFull, time.Second, "full") }}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		err := rpc.RetryRefused(full).Invoke(ctx, "m", nil, nil)
		if status.Code(err) != codes.ResourceExhausted || rpc.ReasonOf(err) != rpc.ReasonQueueFull {
			t.Errorf("the answer is %v, want the refusal", err)
		}
		if ctx.Err() != nil || len(full.came) < 2 {
			t.Errorf("%d calls in %v, want some, and an answer before the deadline", len(full.came), time.Since(start))
		}

		// Without a deadline there is one.
		if err := rpc.RetryRefused(full).Invoke(t.Context(), "m", nil, nil); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the answer is %v, want the refusal", err)
		}

		// Who is cancelled does not wait.
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		start = time.Now()
		if err := rpc.RetryRefused(full).Invoke(ctx, "m", nil, nil); status.Code(err) != codes.Canceled || time.Since(start) != 100*time.Millisecond {
			t.Errorf("%v after %v, want CANCELLED when it was", err, time.Since(start))
		}
	})
}

func TestAClientThatRetriesRefusalsTakesOtherErrorsAsTheyAre(t *testing.T) {
	for _, want := range []error{
		rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "loading"),
		rpc.WithRetry(rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "loading"), time.Second),
		status.Error(codes.ResourceExhausted, "larger than max"), // gRPC's own: it never gets smaller
	} {
		c := &conn{answer: func(int) error { return want }}
		if err := rpc.RetryRefused(c).Invoke(t.Context(), "m", nil, nil); err != want || len(c.came) != 1 {
			t.Errorf("%d calls, the last: %v; want 1: %v", len(c.came), err, want)
		}
	}
}

func TestOfSeveralRefusalsTheLongestCounts(t *testing.T) {
	short := rpc.Exhausted(rpc.ReasonQueueFull, 10*time.Millisecond, "full")
	long := rpc.Exhausted(rpc.ReasonQueueFull, time.Minute, "full")
	down := rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "loading")
	for _, errs := range [][]error{{down, short, long}, {long, down}, {short, fmt.Errorf("ask: %w", errors.Join(down, long))}} {
		if after, ok := rpc.RetryAfter(errors.Join(errs...)); !ok || after != time.Minute {
			t.Errorf("%v: %v, %v; want a minute", errs, after, ok)
		}
	}
	if after, ok := rpc.RetryAfter(errors.Join(down, down)); ok {
		t.Errorf("nobody asked to wait, and %v are said", after)
	}
	if pause := rpc.RetryPause(down, time.Second); pause < time.Second || pause > 1500*time.Millisecond {
		t.Errorf("the pause is %v, want 1 s and up to half as much again", pause)
	}
}

func TestAServerBoundsTheCallsOfEachMethod(t *testing.T) {
	release := make(chan struct{})
	var running atomic.Int32
	r := start(t, rpc.Memory(), &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		running.Add(1)
		<-release
		return &testgrpc.SimpleResponse{}, nil
	}})
	const calls = 400
	answers := make(chan error, calls)
	for range calls {
		go func() {
			_, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{})
			answers <- err
		}()
	}
	// Those beyond the bound are refused while nobody is answered.
	refused := 0
	for range calls - 16 - 128 {
		err := receive(t, answers, "a refusal")
		if after, ok := rpc.RetryAfter(err); status.Code(err) != codes.ResourceExhausted || rpc.ReasonOf(err) != rpc.ReasonQueueFull || !ok || after <= 0 {
			t.Fatalf("answer %v with %v, want RESOURCE_EXHAUSTED, QUEUE_FULL and a time", err, after)
		}
		refused++
	}
	if n := running.Load(); n != 16 {
		t.Errorf("%d calls run, want 16", n)
	}
	// Other methods go on.
	if _, err := r.client.EmptyCall(within(t, patience), &testgrpc.Empty{}); err != nil {
		t.Errorf("another method: %v", err)
	}
	close(release)
	for range calls - refused {
		if err := receive(t, answers, "an answer"); err != nil {
			t.Errorf("one that waited: %v", err)
		}
	}
}
