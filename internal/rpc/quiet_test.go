package rpc_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
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

// garbled is a message as it is sent, whatever is to be sent.
type garbled []byte

func (g garbled) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(g)}, nil
}
func (g garbled) Unmarshal(mem.BufferSlice, any) error { return nil }
func (g garbled) Name() string                         { return "proto" }

// Health is open to strangers.
func TestStrangersDoNotFillTheLogByHealth(t *testing.T) {
	r := start(t, rpc.TCP(), &service{}, rpc.WithPublic(&doorman{}))
	for _, method := range []string{grpc_health_v1.Health_Check_FullMethodName, grpc_health_v1.Health_Watch_FullMethodName} {
		for what, c := range map[string]struct {
			codec grpc.CallOption
			sends bool
			ends  bool
			want  codes.Code
		}{
			"nothing":                  {ends: true, want: codes.InvalidArgument},
			"garbage":                  {codec: grpc.ForceCodecV2(garbled("\xff\xff")), sends: true, ends: true, want: codes.InvalidArgument},
			"what is compressed wrong": {codec: grpc.UseCompressor(wrongly{}.Name()), sends: true, ends: true, want: codes.InvalidArgument},
			"what does not come":       {want: codes.DeadlineExceeded},
		} {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			var opts []grpc.CallOption
			if c.codec != nil {
				opts = append(opts, c.codec)
			}
			stream, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, opts...)
			if err == nil && c.sends {
				err = stream.SendMsg(&grpc_health_v1.HealthCheckRequest{Service: "x"})
			}
			if err == nil && c.ends {
				err = stream.CloseSend()
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.RecvMsg(&grpc_health_v1.HealthCheckResponse{}); status.Code(err) != c.want {
				t.Errorf("%s to %s: %v, want %v", what, method, err, c.want)
			}
			if took := time.Since(began); took < 100*time.Millisecond {
				t.Errorf("%s to %s is refused after %v", what, method, took)
			}
			cancel()
		}
	}
	if err := r.stop(t); err != nil {
		t.Error(err)
	}
	if text := r.logs.String(); strings.Contains(text, "finished call") {
		t.Errorf("refused calls for health are told one by one:\n%s", text)
	}
}

// wrongly is a compressor whose data nobody can read.
type wrongly struct{}

func (wrongly) Name() string { return "test-wrongly" }

func (wrongly) Compress(w io.Writer) (io.WriteCloser, error) { return nopCloser{w}, nil }

func (wrongly) Decompress(io.Reader) (io.Reader, error) { return nil, errors.New("garbage") }

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func init() { encoding.RegisterCompressor(wrongly{}) }

func TestStrangersAreTheirOwnLinesForWhoWantsThem(t *testing.T) {
	logs := &logtest.Buffer{}
	r := startWith(t, rpc.Config{Net: rpc.Memory(), Log: slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})), Metrics: prometheus.NewRegistry()},
		logs, &service{}, rpc.WithPublic(&doorman{}))
	if _, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Fatal(err)
	}
	eventually(t, "a line of the call", func() bool { return strings.Contains(logs.String(), "grpc.code=Unauthenticated") })
}
