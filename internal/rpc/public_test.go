package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// doorman is a guard that knows callers by the header "who", and nobody else.
type doorman struct {
	mu       sync.Mutex
	requests []any // that Permit was asked about
}

func (d *doorman) Admit(ctx context.Context, method string) (context.Context, error) {
	if strings.HasPrefix(method, "/grpc.health.") {
		return ctx, nil
	}
	who := metadata.ValueFromIncomingContext(ctx, "who")
	if len(who) == 0 {
		return nil, rpc.Error(codes.Unauthenticated, "NO_TOKEN", "who are you?")
	}
	return rpc.WithCaller(ctx, who[0]), nil
}

func (d *doorman) Permit(_ context.Context, _ string, request any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests = append(d.requests, request)
	return nil
}

// as returns a context of calls of somebody.
func as(t *testing.T, who string) context.Context {
	return metadata.AppendToOutgoingContext(within(t, patience), "who", who)
}

// half opens a call of a method and sends a part of its message: the length that it says it has, and nothing of it.
func half(t *testing.T, conn *grpc.ClientConn, ctx context.Context, method string) grpc.ClientStream {
	t.Helper()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

const unaryCall = "/grpc.testing.TestService/UnaryCall"

func TestNothingIsReadOfWhoIsNotKnown(t *testing.T) {
	guard := &doorman{}
	r := start(t, rpc.TCP(), &service{}, rpc.WithPublic(guard), rpc.WithRequestLimit(1<<20))
	// The message never comes: only who need not read it can answer.
	stranger := half(t, r.conn, within(t, patience), unaryCall)
	if err := stranger.RecvMsg(&testgrpc.SimpleResponse{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a call whose message has not come: %v, want UNAUTHENTICATED at once", err)
	}
	if _, err := r.client.UnaryCall(as(t, "ann"), payload(1000)); err != nil {
		t.Errorf("a known caller: %v", err)
	}
	if _, err := r.client.UnaryCall(as(t, "ann"), payload(2<<20)); !rpc.TooLarge(err) {
		t.Errorf("a request over the limit: %v, want %s", err, rpc.ReasonTooLarge)
	}
	stream, err := r.client.StreamingOutputCall(within(t, patience), &testgrpc.StreamingOutputCallRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stream of who is not known: %v", err)
	}
	if len(guard.requests) != 1 || guard.requests[0].(*testgrpc.SimpleRequest) == nil {
		t.Errorf("the guard has seen the requests %v, want that of ann", guard.requests)
	}
	// They are in metrics as what they are.
	if n := metric(t, r.cfg.Metrics, "grpc_server_handled_total", map[string]string{
		"grpc_type": "unary", "grpc_method": "UnaryCall", "grpc_code": "Unauthenticated"}); n != 1 {
		t.Errorf("%v refused unary calls are counted, want 1", n)
	}
}

func TestAPublicServerAnswersAsAnInnerOne(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		refusal := rpc.Error(codes.Aborted, rpc.ReasonStale, "again")
		r := start(t, network, &service{unary: func(ctx context.Context, request *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			if _, ok := ctx.Deadline(); !ok {
				return nil, errors.New("no deadline")
			}
			switch request.GetResponseSize() {
			case 1:
				return nil, refusal
			case 2:
				panic("boom")
			}
			return &testgrpc.SimpleResponse{Payload: request.GetPayload()}, nil
		}}, rpc.WithPublic(nil))
		answer, err := r.client.UnaryCall(within(t, patience), payload(3<<20))
		if err != nil || len(answer.GetPayload().GetBody()) != 3<<20 {
			t.Errorf("%d bytes, %v", len(answer.GetPayload().GetBody()), err)
		}
		if _, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{ResponseSize: 1}); rpc.ReasonOf(err) != rpc.ReasonStale {
			t.Errorf("an error of the handler: %v", err)
		}
		if _, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{ResponseSize: 2}); status.Code(err) != codes.Internal {
			t.Errorf("a panic: %v", err)
		}
		if _, err := grpc_health_v1.NewHealthClient(r.conn).Check(within(t, patience), &grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Errorf("health: %v", err)
		}
		if err := r.stop(t); err != nil {
			t.Error(err)
		}
	})
}

// Requests that do not come take the places of readers for as long as they may. Each is of one caller.
func TestRequestsThatDoNotComeHoldUpNobodyElse(t *testing.T) {
	r := start(t, rpc.TCP(), &service{}, rpc.WithPublic(&doorman{}))
	hog := metadata.AppendToOutgoingContext(t.Context(), "who", "hog")
	for range 4 {
		conn, err := r.cfg.Net.Dial(r.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		for range 50 {
			half(t, conn, hog, unaryCall)
		}
	}
	eventually(t, "the reader's places of one caller to be taken", func() bool { reading, _ := r.server.Reading(); return reading == rpc.ReadAtOnce/2 })
	for i := range 100 {
		if _, err := r.client.UnaryCall(as(t, fmt.Sprint("honest ", i%3)), payload(100)); err != nil {
			t.Fatalf("an honest caller, beside one who sends nothing: %v", err)
		}
	}
	if reading, _ := r.server.Reading(); reading > rpc.ReadAtOnce/2 {
		t.Errorf("%d requests of one caller are being read, want at most %d", reading, rpc.ReadAtOnce/2)
	}
}

func TestCallersWhoAreNotKnownAreToldApartByAddress(t *testing.T) {
	seen := make(chan string, 1)
	r := start(t, rpc.TCP(), &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		seen <- rpc.CallerOf(ctx)
		return &testgrpc.SimpleResponse{}, nil
	}}, rpc.WithPublic(nil))
	// What a stranger says of itself is not believed.
	if _, err := r.client.UnaryCall(rpc.Forward(within(t, patience), "10.0.0.1"), &testgrpc.SimpleRequest{}); err != nil || <-seen != "127.0.0.1" {
		t.Errorf("%v, or the caller was not known by its address", err)
	}
	inside := start(t, rpc.Memory(), &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		seen <- rpc.CallerOf(ctx)
		return &testgrpc.SimpleResponse{}, nil
	}}, rpc.WithPublic(nil), rpc.WithForwarding())
	ctx := rpc.Forward(rpc.Forward(within(t, patience), "forged"), "10.0.0.1")
	if _, err := inside.client.UnaryCall(ctx, &testgrpc.SimpleRequest{}); err != nil || <-seen != "10.0.0.1" {
		t.Errorf("%v, or the process's word was not taken", err)
	}
	for address, want := range map[string]string{
		"192.0.2.7:80": "192.0.2.7", "[::ffff:192.0.2.7]:80": "192.0.2.7", "[2001:db8:1:2:3::4]:80": "2001:db8:1:2::/64", "memory": "",
	} {
		if got := rpc.AddressOf(addr(address)); got != want {
			t.Errorf("%s is told apart as %q, want %q", address, got, want)
		}
	}
}

type addr string

func (addr) Network() string  { return "test" }
func (a addr) String() string { return string(a) }

func TestStrangersDoNotChooseWhatIsSampled(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []rpc.Option
		kept bool // the caller's trace goes on
	}{{"public", []rpc.Option{rpc.WithPublic(nil)}, false}, {"inner", nil, true}} {
		t.Run(c.name, func(t *testing.T) {
			spans := tracetest.NewSpanRecorder()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
			logs := &logtest.Buffer{}
			r := startWith(t, rpc.Config{Net: rpc.TCP(), Log: slog.New(slog.NewTextHandler(logs, nil)), Metrics: prometheus.NewRegistry(), Trace: provider}, logs, &service{}, c.opts...)
			conn, err := r.cfg.Net.Dial(r.address) // without a tracer of its own
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			ctx := metadata.AppendToOutgoingContext(within(t, patience), "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
			if _, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{}); err != nil {
				t.Fatal(err)
			}
			if err := r.stop(t); err != nil {
				t.Error(err)
			}
			sampled := 0
			for _, s := range spans.Ended() {
				if s.SpanKind() == oteltrace.SpanKindServer {
					sampled++
				}
			}
			if (sampled > 0) != c.kept {
				t.Errorf("%d spans of a server that samples nothing itself, for a caller who says it should", sampled)
			}
		})
	}
}

// bound serves a listener of so many connections, and returns its address, its metrics, and what it has accepted.
func bound(t *testing.T, all, each int) (address string, metrics *prometheus.Registry, accepted <-chan net.Conn) {
	t.Helper()
	return boundBy(t, rpc.Bounds{All: all, Each: each})
}

func boundBy(t *testing.T, bounds rpc.Bounds) (address string, metrics *prometheus.Registry, accepted <-chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	metrics = prometheus.NewRegistry()
	bounds.Name, bounds.Metrics = "test", metrics
	limited := rpc.Bound(l, bounds)
	conns := make(chan net.Conn, 1000)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := limited.Accept()
			if err != nil {
				close(conns)
				return
			}
			conns <- conn
		}
	})
	t.Cleanup(func() {
		_ = limited.Close()
		serving.Wait()
		for conn := range conns {
			_ = conn.Close()
		}
	})
	return l.Addr().String(), metrics, conns
}

// connect connects from an address of this machine.
func connect(t *testing.T, from, to string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// isClosed waits until the other side has closed a connection.
func isClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	_, err := conn.Read(make([]byte, 1))
	if timeout := net.Error(nil); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("the connection is open: %v", err)
	}
}

func TestOneAddressDoesNotHaveAllConnections(t *testing.T) {
	address, metrics, accepted := bound(t, 8, 3)
	for range 3 {
		connect(t, "127.0.0.2", address)
		receive(t, accepted, "a connection")
	}
	isClosed(t, connect(t, "127.0.0.2", address))
	connect(t, "127.0.0.3", address)
	first := receive(t, accepted, "a connection from another address")
	if n := metric(t, metrics, "berth_connections_refused_total", map[string]string{"bound": "address"}); n != 1 {
		t.Errorf("%v refusals are counted, want 1", n)
	}
	_ = first.Close()
	connect(t, "127.0.0.3", address)
	receive(t, accepted, "a connection in place of one that was closed")
}

func TestWhereAllConnectionsAreTakenStrangersGiveWay(t *testing.T) {
	address, metrics, accepted := bound(t, 3, 3)
	known := connect(t, "127.0.0.2", address)
	rpc.Vouch(rpc.WithConn(t.Context(), receive(t, accepted, "a connection")), "ann")
	oldest := connect(t, "127.0.0.3", address)
	receive(t, accepted, "a connection")
	connect(t, "127.0.0.4", address)
	receive(t, accepted, "a connection")
	connect(t, "127.0.0.5", address)
	newest := receive(t, accepted, "a connection although there were all")
	isClosed(t, oldest)
	if n := metric(t, metrics, "berth_connections_refused_total", map[string]string{"bound": "gave-way"}); n != 1 {
		t.Errorf("%v connections gave way, want 1", n)
	}
	if _, err := newest.Write([]byte{1}); err != nil {
		t.Error(err)
	}
	_ = known.SetReadDeadline(time.Now())
	if _, err := known.Read(make([]byte, 1)); !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "timeout") {
		t.Errorf("the one that somebody has vouched for: %v, want it to be open", err)
	}
}

// isOpen reports a connection that the other side has closed.
func isOpen(t *testing.T, conn net.Conn, what string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: %v, want it to be open", what, err)
	}
}

func TestWhoIsThereStaysWhereNobodyIsVouchedFor(t *testing.T) {
	address, metrics, accepted := boundBy(t, rpc.Bounds{All: 2, Each: -1, Keep: true})
	first := connect(t, "127.0.0.2", address)
	receive(t, accepted, "a connection")
	connect(t, "127.0.0.3", address)
	receive(t, accepted, "a connection")
	isClosed(t, connect(t, "127.0.0.4", address))
	isOpen(t, first, "the first one")
	if n := metric(t, metrics, "berth_connections_refused_total", map[string]string{"bound": "all"}); n != 1 {
		t.Errorf("%v refusals are counted, want 1", n)
	}
}

func TestWhoFollowsHealthTakesNoWatchOfAnybody(t *testing.T) {
	r := start(t, rpc.TCP(), &service{}, rpc.WithPublic(&doorman{}))
	for i := range 12 { // each has half of what is left
		conn, err := r.cfg.Net.Dial(r.address, grpc.WithContextDialer(func(_ context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i))}}).Dial("tcp", address)
		}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		for {
			stream, err := grpc_health_v1.NewHealthClient(conn).Watch(within(t, patience), &grpc_health_v1.HealthCheckRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				break
			}
		}
	}
	if following, of := r.server.Following(); following != 0 || of != 100 {
		t.Errorf("%d places of those who watch are taken, and %d of health; want none and all 100", following, of)
	}
	stream, err := r.client.StreamingOutputCall(as(t, "ann"), &testgrpc.StreamingOutputCallRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("a watch: %v", err)
	}
}

// Whoever has a token, and may do nothing with it, is known too.
func TestOneCallerDoesNotHaveAllConnectionsThatStay(t *testing.T) {
	address, metrics, accepted := bound(t, 16, 16)
	var all []net.Conn
	for i := range 16 { // of one caller, who has many addresses
		connect(t, fmt.Sprint("127.0.0.", 2+i), address)
		conn := receive(t, accepted, "a connection")
		rpc.Vouch(rpc.WithConn(t.Context(), conn), "hog")
		rpc.Vouch(rpc.WithConn(t.Context(), conn), "hog") // at its next call
		all = append(all, conn)
	}
	for i := range 12 {
		connect(t, fmt.Sprint("127.0.1.", 1+i), address)
		conn := receive(t, accepted, "a connection of somebody else's")
		rpc.Vouch(rpc.WithConn(t.Context(), conn), "ann")
	}
	if n := metric(t, metrics, "berth_connections_refused_total", map[string]string{"bound": "gave-way"}); n != 12 {
		t.Errorf("%v connections gave way, want 12", n)
	}
	for _, conn := range all { // what is given back can be had again
		_ = conn.Close()
	}
	connect(t, "127.0.2.1", address)
	again := receive(t, accepted, "a connection")
	rpc.Vouch(rpc.WithConn(t.Context(), again), "ann")
	if n := rpc.Strangers(again); n != 10 {
		t.Errorf("%d connections may have to give way, want the 10 that ann has over her share", n)
	}
}

func TestOneAddressDrivesOutNobodyForMoreThanOthersHave(t *testing.T) {
	address, _, accepted := bound(t, 3, 3)
	others := []net.Conn{connect(t, "127.0.0.2", address), nil}
	receive(t, accepted, "a connection")
	others[1] = connect(t, "127.0.0.3", address)
	receive(t, accepted, "a connection")
	own := connect(t, "127.0.0.4", address)
	receive(t, accepted, "a connection")
	for range 5 { // each in place of the one before
		next := connect(t, "127.0.0.4", address)
		receive(t, accepted, "a connection in place of one's own")
		isClosed(t, own)
		own = next
	}
	for _, other := range others {
		isOpen(t, other, "a connection of somebody else's")
	}
}

// revoking is a doorman who lets nobody in any more from some time on.
type revoking struct {
	doorman
	now   atomic.Pointer[error]
	asked chan struct{}
}

func (r *revoking) Admit(ctx context.Context, method string) (context.Context, error) {
	if err := r.now.Load(); err != nil {
		select {
		case r.asked <- struct{}{}:
		default:
		}
		return nil, *err
	}
	return r.doorman.Admit(ctx, method)
}

func TestAStreamEndsWhenItsCallerMayNotHaveItAnyMore(t *testing.T) {
	guard := &revoking{asked: make(chan struct{})}
	r := start(t, rpc.TCP(), &service{stream: func(_ *testgrpc.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testgrpc.StreamingOutputCallResponse]) error {
		if err := stream.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}}, rpc.WithPublic(guard), rpc.WithReview(time.Millisecond))
	for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied} {
		guard.now.Store(nil)
		stream, err := r.client.StreamingOutputCall(as(t, "ann"), &testgrpc.StreamingOutputCallRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { _, err := stream.Recv(); ended <- err }()
		unknown := rpc.Error(codes.Unavailable, "NO_REVIEW", "who knows")
		guard.now.Store(&unknown)
		for range 3 { // it goes on while nobody can tell
			select {
			case <-guard.asked:
			case err := <-ended:
				t.Fatalf("the stream ended while nobody could tell: %v", err)
			}
		}
		refusal := rpc.Error(code, "GONE", "not any more")
		guard.now.Store(&refusal)
		if err := receive(t, ended, "the stream to end"); status.Code(err) != code || rpc.ReasonOf(err) != "GONE" {
			t.Errorf("the stream ended with %v, want %v", err, code)
		}
	}
}

func TestAStreamWhoseClientSaysNothingEndsWhenItsCallerMayNotHaveIt(t *testing.T) {
	guard := &revoking{asked: make(chan struct{})}
	r := start(t, rpc.TCP(), &service{}, rpc.WithPublic(guard), rpc.WithReview(time.Millisecond))
	stream, err := r.client.FullDuplexCall(as(t, "ann"))
	if err == nil {
		err = stream.Send(&testgrpc.StreamingOutputCallRequest{})
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream to begin", func() bool { following, _ := r.server.Talking(); return following == 1 })
	refusal := rpc.Error(codes.Unauthenticated, "GONE", "not any more")
	guard.now.Store(&refusal)
	ended := make(chan error, 1)
	go func() { _, err := stream.Recv(); ended <- err }()
	if err := receive(t, ended, "the stream to end"); rpc.ReasonOf(err) != "GONE" {
		t.Errorf("the stream ended with %v", err)
	}
	eventually(t, "its place to be free", func() bool { n, _ := r.server.Talking(); return n == 0 })
}
