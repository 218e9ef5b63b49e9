package rpc_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait for something that should come at once.
const patience = 5 * time.Minute

// service is a test service made of functions; a nil one answers with an empty message.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	unary  func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error)
	stream func(*testgrpc.StreamingOutputCallRequest, grpc.ServerStreamingServer[testgrpc.StreamingOutputCallResponse]) error
}

func (s *service) EmptyCall(context.Context, *testgrpc.Empty) (*testgrpc.Empty, error) {
	return &testgrpc.Empty{}, nil
}

func (s *service) UnaryCall(ctx context.Context, req *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	if s.unary == nil {
		return &testgrpc.SimpleResponse{Payload: req.GetPayload()}, nil
	}
	return s.unary(ctx, req)
}

func (s *service) StreamingOutputCall(req *testgrpc.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testgrpc.StreamingOutputCallResponse]) error {
	if s.stream == nil {
		return nil
	}
	return s.stream(req, stream)
}

// FullDuplexCall hears what its client says, and says nothing.
func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// fails returns a service whose calls return err.
func fails(err error) *service {
	return &service{
		unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) { return nil, err },
		stream: func(*testgrpc.StreamingOutputCallRequest, grpc.ServerStreamingServer[testgrpc.StreamingOutputCallResponse]) error {
			return err
		},
	}
}

// running is a server that serves, and a client of it.
type running struct {
	cfg     rpc.Config
	server  *rpc.Server
	address string
	conn    *grpc.ClientConn
	client  testgrpc.TestServiceClient
	clients *rpc.Clients
	logs    *logtest.Buffer

	cancel context.CancelFunc
	done   chan struct{} // closed when Serve has returned
	err    error         // what it returned
}

// start serves svc on network until the test ends.
func start(t *testing.T, network rpc.Network, svc *service, opts ...rpc.Option) *running {
	t.Helper()
	logs := &logtest.Buffer{}
	return startWith(t, rpc.Config{
		Net:     network,
		Log:     slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelInfo})),
		Metrics: prometheus.NewRegistry(),
	}, logs, svc, opts...)
}

func startWith(t testing.TB, cfg rpc.Config, logs *logtest.Buffer, svc *service, opts ...rpc.Option) *running {
	t.Helper()
	l, err := cfg.Net.Listen(anyAddress(cfg.Net))
	if err != nil {
		t.Fatal(err)
	}
	r := &running{cfg: cfg, server: rpc.NewServer(cfg, "tester", opts...), address: cfg.Net.Advertise(l, ""), logs: logs, done: make(chan struct{})}
	testgrpc.RegisterTestServiceServer(r.server.Registrar(), svc)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.err = r.server.Serve(ctx, l)
	}()
	r.clients = rpc.NewClients(cfg)
	r.conn, err = r.clients.Conn(r.address)
	if err != nil {
		t.Fatal(err)
	}
	r.client = testgrpc.NewTestServiceClient(r.conn)
	t.Cleanup(func() {
		if err := r.clients.Close(); err != nil {
			t.Errorf("close clients: %v", err)
		}
		r.stop(t)
	})
	return r
}

// stop ends the server and returns what Serve returned.
func (r *running) stop(t testing.TB) error {
	t.Helper()
	r.cancel()
	receive(t, r.done, "Serve to return")
	return r.err
}

// onEach runs test over all networks.
func onEach(t *testing.T, test func(t *testing.T, network rpc.Network)) {
	t.Run("tcp", func(t *testing.T) { test(t, rpc.TCP()) })
	t.Run("memory", func(t *testing.T) { test(t, rpc.Memory()) })
	t.Run("peers", func(t *testing.T) { test(t, newAcross(t)) })
}

func anyAddress(network rpc.Network) string {
	if network == rpc.TCP() {
		return "127.0.0.1:0"
	}
	return ""
}

// receive waits for a value of c, or its end.
func receive[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// eventually polls until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		<-tick.C
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// metric returns the sum of a counter, or of the counts of a histogram, over the series that have all labels.
func metric(t *testing.T, registry *prometheus.Registry, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	series:
		for _, m := range family.GetMetric() {
			has := make(map[string]string)
			for _, pair := range m.GetLabel() {
				has[pair.GetName()] = pair.GetValue()
			}
			for name, value := range labels {
				if has[name] != value {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}
