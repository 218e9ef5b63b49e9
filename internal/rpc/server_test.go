package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/rpc"
)

type output = grpc.ServerStreamingServer[testgrpc.StreamingOutputCallResponse]

func TestPanicInAHandlerIsInternalAndTheServerGoesOn(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		r := start(t, network, &service{
			unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				panic("secret-unary")
			},
			stream: func(*testgrpc.StreamingOutputCallRequest, output) error { panic("secret-stream") },
		})
		ctx := within(t, patience)
		_, unaryErr := r.client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		stream, err := r.client.StreamingOutputCall(ctx, &testgrpc.StreamingOutputCallRequest{})
		if err != nil {
			t.Fatal(err)
		}
		_, streamErr := stream.Recv()
		for _, err := range []error{unaryErr, streamErr} {
			if status.Code(err) != codes.Internal || rpc.ReasonOf(err) != rpc.ReasonInternal || strings.Contains(err.Error(), "secret") {
				t.Errorf("a panic was answered with %v (%s), want INTERNAL without detail", err, rpc.ReasonOf(err))
			}
		}
		if _, err := r.client.EmptyCall(ctx, &testgrpc.Empty{}); err != nil {
			t.Errorf("a call after the panics: %v", err)
		}
		if err := r.stop(t); err != nil { // also flushes the log
			t.Error(err)
		}
		for _, want := range []string{"panic=secret-unary", "panic=secret-stream", "server_test.go", "level=ERROR"} {
			if !strings.Contains(r.logs.String(), want) {
				t.Errorf("log lacks %q:\n%s", want, r.logs)
			}
		}
		if n := metric(t, r.cfg.Metrics, "berth_rpc_panics_total", map[string]string{"role": "tester"}); n != 2 {
			t.Errorf("%v panics counted, want 2", n)
		}
		if n := metric(t, r.cfg.Metrics, "grpc_server_handled_total", map[string]string{"grpc_code": "Internal"}); n != 2 {
			t.Errorf("%v INTERNAL answers counted, want 2", n)
		}
	})
}

func TestPlainErrorIsHiddenFromTheClientAndKeptInTheLog(t *testing.T) {
	r := start(t, rpc.Memory(), fails(fmt.Errorf("open /etc/secret: %w", io.ErrUnexpectedEOF)))
	_, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{})
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") {
		t.Errorf("client got %v, want INTERNAL without detail", err)
	}
	if err := r.stop(t); err != nil {
		t.Error(err)
	}
	if log := r.logs.String(); !strings.Contains(log, `cause="open /etc/secret: unexpected EOF"`) || strings.Count(log, "level=ERROR") != 1 {
		t.Errorf("want the cause in one error line, got:\n%s", log)
	}
}

func TestContextErrorsKeepTheirCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{fmt.Errorf("read etcd: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{fmt.Errorf("ask a worker: %w", status.Error(codes.Unavailable, "gone")), codes.Unavailable},
		{fmt.Errorf("ask a worker: %w", context.Canceled), codes.Canceled},
	} {
		r := start(t, rpc.Memory(), fails(c.err))
		// Without Clients, which tell CANCELLED by somebody else from CANCELLED by the caller.
		conn, err := r.cfg.Net.Dial(r.address)
		if err != nil {
			t.Fatal(err)
		}
		_, err = testgrpc.NewTestServiceClient(conn).UnaryCall(within(t, patience), &testgrpc.SimpleRequest{})
		if status.Code(err) != c.want {
			t.Errorf("%v was answered with %v, want %v", c.err, err, c.want)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOnlyFailuresAreLogged(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string // level, or "" for silence at info
	}{
		{nil, ""},
		{rpc.Error(codes.Aborted, rpc.ReasonStale, "candidate gone"), ""},
		{rpc.Error(codes.NotFound, rpc.ReasonNotFound, "no pod"), ""},
		{context.Canceled, ""},
		{rpc.Error(codes.Unavailable, rpc.ReasonReplicaBehind, "at 7"), "level=WARN"},
		{rpc.Error(codes.Internal, rpc.ReasonInternal, "broken"), "level=ERROR"},
	} {
		r := start(t, rpc.Memory(), fails(c.err))
		stream, err := r.client.StreamingOutputCall(within(t, patience), &testgrpc.StreamingOutputCallRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err == nil {
			t.Error("the stream did not end")
		}
		if err := r.stop(t); err != nil {
			t.Error(err)
		}
		log := r.logs.String()
		if logged := strings.Contains(log, "finished call"); logged != (c.want != "") || !strings.Contains(log, c.want) {
			t.Errorf("%v: want %q, got:\n%s", c.err, c.want, log)
		}
		if reason := rpc.ReasonOf(c.err); c.want != "" && !strings.Contains(log, "reason="+string(reason)) {
			t.Errorf("log lacks reason %s:\n%s", reason, log)
		}
	}
}

func TestLossOfAStreamsClientIsNoFailureOfTheServer(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		left := make(chan error, 1)
		r := start(t, network, &service{stream: func(_ *testgrpc.StreamingOutputCallRequest, stream output) error {
			for {
				if err := stream.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
					left <- err
					return err
				}
			}
		}})
		stream, err := r.client.StreamingOutputCall(within(t, patience), &testgrpc.StreamingOutputCallRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		if err := r.clients.Close(); err != nil {
			t.Fatal(err)
		}
		sendErr := receive(t, left, "the handler to notice")
		if err := r.stop(t); err != nil {
			t.Error(err)
		}
		if strings.Contains(r.logs.String(), "finished call") {
			t.Errorf("sending failed with %v, which was logged:\n%s", sendErr, r.logs)
		}
	})
}

func TestAtDebugBothSidesLogEveryCall(t *testing.T) {
	logs := &logtest.Buffer{}
	r := startWith(t, rpc.Config{
		Net: rpc.Memory(),
		Log: slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, logs, &service{})
	if _, err := r.client.EmptyCall(within(t, patience), &testgrpc.Empty{}); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(t); err != nil {
		t.Error(err)
	}
	for _, side := range []string{"client", "server"} {
		found := false
		for line := range strings.Lines(logs.String()) {
			found = found || strings.Contains(line, "level=DEBUG") && strings.Contains(line, "grpc.component="+side) &&
				strings.Contains(line, "grpc.method=EmptyCall") && strings.Contains(line, "grpc.code=OK") && strings.Contains(line, "took=")
		}
		if !found {
			t.Errorf("no line of the %s in:\n%s", side, logs)
		}
	}
}

func TestGarbageDoesNotStopTheServer(t *testing.T) {
	r := start(t, rpc.TCP(), &service{})
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for name, garbage := range map[string]string{
		"zeros":               strings.Repeat("\x00", 1<<16),
		"http/1.1":            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"tls":                 "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"half a preface":      preface[:11],
		"garbage frames":      preface + strings.Repeat("\xff\x7f\x00", 1<<15),
		"settings, then junk": preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + strings.Repeat("\x00\x00\x08\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff", 100),
	} {
		conn, err := net.Dial("tcp", r.address)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, _ = io.WriteString(conn, garbage) // the server may hang up first
		if err := conn.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := r.client.EmptyCall(within(t, patience), &testgrpc.Empty{}); err != nil {
			t.Errorf("a call after %s: %v", name, err)
		}
	}
	if err := r.stop(t); err != nil {
		t.Error(err)
	}
}

func TestRequestOverTheLimitIsInvalid(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		r := start(t, network, &service{}, rpc.WithRequestLimit(1000))
		for size, want := range map[int]codes.Code{900: codes.OK, 1000: codes.InvalidArgument, 1 << 20: codes.InvalidArgument} {
			_, err := r.client.UnaryCall(within(t, patience), payload(size))
			if status.Code(err) != want {
				t.Errorf("request of %d bytes: %v, want %v", size, err, want)
			}
		}
	})
}

func TestInnerMessagesMayExceedFourMebibytes(t *testing.T) {
	r := start(t, rpc.Memory(), &service{})
	resp, err := r.client.UnaryCall(within(t, patience), payload(5<<20))
	if err != nil || len(resp.GetPayload().GetBody()) != 5<<20 {
		t.Errorf("echo of 5 MiB: %d bytes, %v", len(resp.GetPayload().GetBody()), err)
	}
}

func payload(size int) *testgrpc.SimpleRequest {
	return &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: make([]byte, size)}}
}

func TestUnaryHandlerAlwaysHasADeadline(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		left := make(chan time.Duration, 1)
		r := start(t, network, &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			deadline, ok := ctx.Deadline()
			if !ok {
				return nil, errors.New("no deadline")
			}
			left <- time.Until(deadline)
			return &testgrpc.SimpleResponse{}, nil
		}})
		bare, err := r.cfg.Net.Dial(r.address)
		if err != nil {
			t.Fatal(err)
		}
		defer bare.Close()
		for _, c := range []struct {
			what  string
			conn  *grpc.ClientConn
			ctx   context.Context
			above time.Duration
			upTo  time.Duration
		}{
			{"a foreign client without a deadline", bare, context.Background(), rpc.DefaultServerDeadline / 2, rpc.DefaultServerDeadline},
			{"a foreign client with one", bare, within(t, time.Hour), 30 * time.Minute, time.Hour},
			{"our client without a deadline", r.conn, context.Background(), rpc.DefaultClientDeadline / 2, rpc.DefaultClientDeadline},
			{"our client with a longer one", r.conn, within(t, time.Hour), 30 * time.Minute, time.Hour},
		} {
			if _, err := testgrpc.NewTestServiceClient(c.conn).UnaryCall(c.ctx, &testgrpc.SimpleRequest{}); err != nil {
				t.Errorf("%s: %v", c.what, err)
			} else if d := <-left; d <= c.above || d > c.upTo {
				t.Errorf("%s: the handler had %v, want more than %v, at most %v", c.what, d, c.above, c.upTo)
			}
		}
	})
}

func TestServerDeadlineEndsTheCall(t *testing.T) {
	r := start(t, rpc.Memory(), &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}, rpc.WithDeadline(20*time.Millisecond))
	conn, err := r.cfg.Net.Dial(r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = testgrpc.NewTestServiceClient(conn).UnaryCall(context.Background(), &testgrpc.SimpleRequest{})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v, want DEADLINE_EXCEEDED", err)
	}
}

func TestStrangersDoNotChooseHowLongACallMayTake(t *testing.T) {
	r := start(t, rpc.Memory(), &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}, rpc.WithPublic(nil), rpc.WithDeadline(20*time.Millisecond))
	if _, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v, want DEADLINE_EXCEEDED", err)
	}
}

func TestServersAndClientsOfAProcessShareARegistry(t *testing.T) {
	first := start(t, rpc.Memory(), &service{})
	second := startWith(t, first.cfg, first.logs, &service{})
	for _, r := range []*running{first, second} {
		if _, err := r.client.EmptyCall(within(t, patience), &testgrpc.Empty{}); err != nil {
			t.Fatal(err)
		}
		if err := r.stop(t); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{
		"grpc_server_handled_total", "grpc_server_handling_seconds", "grpc_client_handled_total", "grpc_client_handling_seconds",
	} {
		if n := metric(t, first.cfg.Metrics, name, map[string]string{"grpc_method": "EmptyCall"}); n != 2 {
			t.Errorf("%s counted %v calls, want 2", name, n)
		}
	}
}
