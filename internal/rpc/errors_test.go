package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestErrorsSurviveTheWire(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		type facts struct {
			Code       codes.Code
			Reason     rpc.Reason
			Message    string
			Retry      time.Duration
			HasRetry   bool
			Violations []rpc.Violation
		}
		cpu := rpc.Violation{Field: "spec.cpu", Description: "must not be negative"}
		name := rpc.Violation{Field: "metadata.name", Description: "is missing"}
		full := rpc.Error(codes.ResourceExhausted, rpc.ReasonQueueFull, "%d pods wait", 7)
		for _, c := range []struct {
			what string
			err  error
			want facts
		}{
			{"reason", rpc.Error(codes.FailedPrecondition, rpc.ReasonEpochLost, "epoch %d ended", 3),
				facts{Code: codes.FailedPrecondition, Reason: "EPOCH_LOST", Message: "epoch 3 ended"}},
			{"retry", rpc.WithRetry(full, 250*time.Millisecond),
				facts{Code: codes.ResourceExhausted, Reason: "QUEUE_FULL", Message: "7 pods wait", Retry: 250 * time.Millisecond, HasRetry: true}},
			{"later retry wins", rpc.WithRetry(rpc.WithRetry(full, time.Hour), time.Second),
				facts{Code: codes.ResourceExhausted, Reason: "QUEUE_FULL", Message: "7 pods wait", Retry: time.Second, HasRetry: true}},
			{"negative retry", rpc.WithRetry(full, -time.Second),
				facts{Code: codes.ResourceExhausted, Reason: "QUEUE_FULL", Message: "7 pods wait", HasRetry: true}},
			{"wrapped", fmt.Errorf("commit: %w", full),
				facts{Code: codes.ResourceExhausted, Reason: "QUEUE_FULL", Message: "commit: rpc error: code = ResourceExhausted desc = 7 pods wait"}},
			{"violations", rpc.Invalid(cpu, name),
				facts{Code: codes.InvalidArgument, Reason: "INVALID", Message: "spec.cpu: must not be negative; metadata.name: is missing", Violations: []rpc.Violation{cpu, name}}},
			{"OK is no error code", rpc.Error(codes.OK, "ODD", "odd"),
				facts{Code: codes.Internal, Reason: "ODD", Message: "odd"}},
			{"invalid UTF-8", rpc.Error(codes.NotFound, rpc.ReasonNotFound, "no pod %s", "a\xffb"),
				facts{Code: codes.NotFound, Reason: "NOT_FOUND", Message: "no pod a?b"}},
		} {
			r := start(t, network, fails(c.err))
			_, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{})
			got := facts{Code: status.Code(err), Reason: rpc.ReasonOf(err), Message: status.Convert(err).Message(), Violations: rpc.Violations(err)}
			got.Retry, got.HasRetry = rpc.RetryAfter(err)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.what, diff)
			}
		}
	})
}

func TestHostileViolationsStillReachTheClient(t *testing.T) {
	var violations []rpc.Violation
	long := strings.Repeat("世", 1000)
	for i := range 10_000 {
		violations = append(violations, rpc.Violation{Field: fmt.Sprintf("f%d\xff", i) + long, Description: long})
	}
	r := start(t, rpc.TCP(), fails(rpc.Invalid(violations...)))
	_, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{})
	message, got := status.Convert(err).Message(), rpc.Violations(err)
	if status.Code(err) != codes.InvalidArgument || len(got) != 32 || !strings.HasPrefix(got[31].Field, "f31?世") {
		t.Fatalf("got %v with %d violations, want INVALID_ARGUMENT with the first 32", status.Code(err), len(got))
	}
	if len(message) > 4096 || !utf8.ValidString(message) || !strings.HasSuffix(message, "; and 9968 more") {
		t.Errorf("message of %d bytes ends with %q", len(message), message[max(0, len(message)-40):])
	}
}

func TestErrorsWithoutFactsYieldNone(t *testing.T) {
	plain := errors.New("plain")
	foreign, err := status.New(codes.Unavailable, "no").WithDetails(&errdetails.ErrorInfo{Domain: "example.com", Reason: "QUEUE_FULL"})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{nil, plain, context.Canceled, status.Error(codes.Unavailable, "bare"), foreign.Err()} {
		_, retry := rpc.RetryAfter(err)
		if rpc.ReasonOf(err) != "" || retry || rpc.Violations(err) != nil {
			t.Errorf("%v: reason %q, retry %v, violations %v", err, rpc.ReasonOf(err), retry, rpc.Violations(err))
		}
	}
	if err := rpc.WithRetry(plain, time.Second); err != plain {
		t.Errorf("WithRetry made %v of a plain error", err)
	}
	if err := rpc.WithRetry(nil, time.Second); err != nil {
		t.Errorf("WithRetry made %v of nil", err)
	}
	if err := rpc.Invalid(); err != nil {
		t.Errorf("no violations made %v", err)
	}
}
