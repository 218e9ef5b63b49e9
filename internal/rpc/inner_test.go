package rpc_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// counting is TCP whose clients count what they send.
type counting struct {
	rpc.Network
	sent atomic.Int64
}

func (n *counting) Dial(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return n.Network.Dial(address, append(opts, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		return countingConn{conn, &n.sent}, err
	}))...)
}

type countingConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.sent.Add(int64(len(b)))
	return c.Conn.Write(b)
}

// many is a request of many windows; unread is more than a client sends of one that nobody reads, and far less than it.
const (
	many   = 16 << 20
	unread = many / 8
)

// startInner serves the test service as a binder does, with TLS.
func startInner(t *testing.T, files certs.Files) *running {
	t.Helper()
	logs := &logtest.Buffer{}
	cfg := rpc.Config{Net: rpc.TCP(), Log: slog.New(slog.NewTextHandler(logs, nil)), Metrics: prometheus.NewRegistry(), TLS: tlsOf(t, files, false)}
	return startWith(t, cfg, logs, &service{}, binderCallers)
}

// countingClient returns a connection that shows these files, and what it has sent.
func countingClient(t *testing.T, files certs.Files, address string) (*grpc.ClientConn, *atomic.Int64) {
	t.Helper()
	network := &counting{Network: rpc.TCP()}
	clients := rpc.NewClients(rpc.Config{Net: network, TLS: tlsOf(t, files, false)})
	t.Cleanup(func() { clients.Close() })
	conn, err := clients.Conn(address)
	if err != nil {
		t.Fatal(err)
	}
	return conn, &network.sent
}

func TestNothingIsReadOfARoleThatMayNotCall(t *testing.T) {
	ca := newIssuer(t)
	r := startInner(t, ca.give(t.TempDir(), "binder", ca))
	conn, sent := countingClient(t, ca.give(t.TempDir(), "score-worker", ca), r.address)
	// The message never comes: only who need not read it can answer.
	if err := half(t, conn, within(t, patience), unaryCall).RecvMsg(&testgrpc.SimpleResponse{}); rpc.ReasonOf(err) != rpc.ReasonWrongRole {
		t.Errorf("a call whose message has not come: %v, want %s at once", err, rpc.ReasonWrongRole)
	}
	if _, err := testgrpc.NewTestServiceClient(conn).UnaryCall(within(t, patience), payload(many)); rpc.ReasonOf(err) != rpc.ReasonWrongRole {
		t.Errorf("a large call: %v, want %s", err, rpc.ReasonWrongRole)
	}
	if n := sent.Load(); n > unread {
		t.Errorf("the server has taken in %d bytes", n)
	}
	// They are in metrics as what they are.
	if n := metric(t, r.cfg.Metrics, "grpc_server_handled_total", map[string]string{
		"grpc_type": "unary", "grpc_method": "UnaryCall", "grpc_code": "PermissionDenied"}); n != 2 {
		t.Errorf("%v refused unary calls are counted, want 2", n)
	}
	queue, _ := countingClient(t, ca.give(t.TempDir(), "queue", ca), r.address)
	if answer, err := testgrpc.NewTestServiceClient(queue).UnaryCall(within(t, patience), payload(many)); err != nil || len(answer.GetPayload().GetBody()) != many {
		t.Errorf("who may call: %d bytes, %v", len(answer.GetPayload().GetBody()), err)
	}
}

func TestALargeRequestForHealthIsRefusedBeforeItComes(t *testing.T) {
	ca := newIssuer(t)
	refused := func(err error) bool { // for its size; a machine that is busy may not even read that in the time that strangers have
		return status.Code(err) == codes.InvalidArgument || rpc.ReasonOf(err) == rpc.ReasonSlowRequest
	}
	for what, opts := range map[string][]rpc.Option{"inner": nil, "public": {rpc.WithPublic(nil)}} {
		t.Run(what, func(t *testing.T) {
			logs := &logtest.Buffer{}
			cfg := rpc.Config{Net: rpc.TCP(), Metrics: prometheus.NewRegistry(), TLS: tlsOf(t, ca.give(t.TempDir(), "binder", ca), false)}
			r := startWith(t, cfg, logs, &service{}, append(opts, binderCallers)...)
			for _, role := range []string{"metrics", "queue"} {
				conn, sent := countingClient(t, ca.give(t.TempDir(), role, ca), r.address)
				health := healthgrpc.NewHealthClient(conn)
				if _, err := health.Check(within(t, patience), &healthgrpc.HealthCheckRequest{Service: strings.Repeat("x", many)}); !refused(err) {
					t.Errorf("Check by a %s: %v, want INVALID_ARGUMENT", role, err)
				}
				stream, err := health.Watch(within(t, patience), &healthgrpc.HealthCheckRequest{Service: strings.Repeat("x", many)})
				if err == nil {
					_, err = stream.Recv()
				}
				if !refused(err) {
					t.Errorf("Watch by a %s: %v, want INVALID_ARGUMENT", role, err)
				}
				if n := sent.Load(); n > unread {
					t.Errorf("the server has taken in %d bytes of a %s", n, role)
				}
				eventually(t, "a small one to be answered", func() bool {
					_, err := health.Check(within(t, patience), &healthgrpc.HealthCheckRequest{})
					return err == nil
				})
			}
		})
	}
}

func TestTheRequestOfAnInnerStreamIsSmall(t *testing.T) {
	r := start(t, rpc.TCP(), &service{})
	ask := func(size int) error {
		stream, err := r.client.StreamingOutputCall(within(t, patience), &testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, size)}})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if err := ask(1 << 20); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a large one: %v, want INVALID_ARGUMENT", err)
	}
	if err := ask(32 << 10); !errors.Is(err, io.EOF) {
		t.Errorf("a small one: %v", err)
	}
}

func TestARequestForHealthThatDoesNotComeIsGivenUp(t *testing.T) {
	ca := newIssuer(t)
	r := startInner(t, ca.give(t.TempDir(), "binder", ca))
	for _, role := range []string{"metrics", "queue"} {
		conn, _ := countingClient(t, ca.give(t.TempDir(), role, ca), r.address)
		stream := half(t, conn, within(t, patience), healthgrpc.Health_Check_FullMethodName)
		if err := stream.RecvMsg(&healthgrpc.HealthCheckResponse{}); rpc.ReasonOf(err) != rpc.ReasonSlowRequest {
			t.Errorf("of a %s: %v, want %s", role, err, rpc.ReasonSlowRequest)
		}
	}
}

func TestWhoseCertificateNamesNoRoleOfBerthsHasFewCallsOpen(t *testing.T) {
	ca := newIssuer(t)
	r := startInner(t, ca.give(t.TempDir(), "binder", ca))
	// fill follows health until that is refused, and returns how often it was not, and how to end it.
	fill := func(role certs.Files) (open int, end func()) {
		t.Helper()
		conn := client(t, tlsOf(t, role, false), r.address)
		ctx, cancel := context.WithCancel(within(t, patience))
		for ; ; open++ {
			if open > 2*rpc.StrangersOpen {
				return open, cancel
			}
			stream, err := healthgrpc.NewHealthClient(conn).Watch(ctx, &healthgrpc.HealthCheckRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				checkRefused(t, err)
				return open, cancel
			}
		}
	}
	metrics, nobody, queue := ca.give(t.TempDir(), "metrics", ca), nameless(t, ca), ca.give(t.TempDir(), "queue", ca)
	var ends []func()
	total := 0
	for total < rpc.StrangersOpen/2 {
		n, end := fill(metrics)
		ends = append(ends, end)
		if total += n; n != rpc.StrangersStreams {
			t.Fatalf("%d streams of one connection, want %d", n, rpc.StrangersStreams)
		}
	}
	if n, end := fill(metrics); n != 0 {
		t.Errorf("%d more streams of who has half of all, want none", n)
		end()
	}
	if n, end := fill(nobody); n == 0 {
		t.Error("who has none is refused with him")
	} else {
		ends = append(ends, end)
	}
	if n, end := fill(queue); n <= 2*rpc.StrangersOpen {
		t.Errorf("a role of Berth's has %d streams at most", n)
	} else {
		ends = append(ends, end)
	}
	for _, end := range ends {
		end()
	}
	eventually(t, "what has ended to be given back", func() bool { return r.server.StrangersOpen() == 0 })
	n, end := fill(metrics)
	end()
	if n != rpc.StrangersStreams {
		t.Errorf("%d streams when all have ended, want %d", n, rpc.StrangersStreams)
	}
}

func TestWhoHasAllItsCallsOpenIsRefusedHealthToo(t *testing.T) {
	ca := newIssuer(t)
	r := startInner(t, ca.give(t.TempDir(), "binder", ca))
	health := healthgrpc.NewHealthClient(client(t, tlsOf(t, ca.give(t.TempDir(), "metrics", ca), false), r.address))
	for range rpc.StrangersStreams {
		stream, err := health.Watch(within(t, patience), &healthgrpc.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := health.Check(within(t, patience), &healthgrpc.HealthCheckRequest{})
	checkRefused(t, err)
}

// tracked is a connection of a server whose end in memory can be told.
type tracked struct{ net.Conn }

type tracking struct {
	net.Listener
	gone chan struct{} // gets one for each connection that is garbage
}

func (l tracking) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &tracked{conn}
	runtime.AddCleanup(c, func(gone chan struct{}) { gone <- struct{}{} }, l.gone)
	return c, nil
}

// gRPC leaves the timer of a call, which its caller sets as late as it likes, where a call is refused before it begins.
func TestRefusedCallsLeaveNothingBehind(t *testing.T) {
	ca := newIssuer(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := tracking{l, make(chan struct{}, 1)}
	ctx, stop := context.WithCancel(t.Context())
	server := rpc.NewServer(rpc.Config{TLS: tlsOf(t, ca.give(t.TempDir(), "binder", ca), false)}, "tester", binderCallers)
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := receive(t, done, "Serve to return"); err != nil {
			t.Error(err)
		}
	})
	clients := rpc.NewClients(rpc.Config{TLS: tlsOf(t, ca.give(t.TempDir(), "metrics", ca), false)})
	conn, err := clients.Conn(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	calls, cancel := context.WithTimeout(t.Context(), time.Hour)
	refused := 0
	for range 2 * rpc.StrangersStreams {
		stream, err := healthgrpc.NewHealthClient(conn).Watch(calls, &healthgrpc.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			checkRefused(t, err)
			refused++
		}
	}
	if refused != rpc.StrangersStreams || server.StrangersOpen() != rpc.StrangersStreams {
		t.Errorf("%d calls are refused, and %d open", refused, server.StrangersOpen())
	}
	cancel()
	if err := clients.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what has ended to be given back", func() bool { return server.StrangersOpen() == 0 })
	eventually(t, "the connection to be garbage", func() bool {
		runtime.GC()
		return len(listener.gone) > 0
	})
}

func TestAServerKnowsTheRoleOfItsCaller(t *testing.T) {
	ca, logs, seen := newIssuer(t), &logtest.Buffer{}, make(chan string, 1)
	say := &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		seen <- rpc.RoleOf(ctx)
		return &testgrpc.SimpleResponse{}, nil
	}}
	r := startWith(t, rpc.Config{Net: rpc.TCP(), TLS: tlsOf(t, ca.give(t.TempDir(), "binder", ca), false)}, logs, say, binderCallers)
	queue := client(t, tlsOf(t, ca.give(t.TempDir(), "queue", ca), false), r.address)
	plain := start(t, rpc.TCP(), say)
	for _, c := range []struct {
		conn *grpc.ClientConn
		want string
	}{{queue, "queue"}, {plain.conn, ""}} {
		if _, err := testgrpc.NewTestServiceClient(c.conn).UnaryCall(within(t, patience), payload(1)); err != nil {
			t.Fatal(err)
		}
		if got := <-seen; got != c.want {
			t.Errorf("it is called by %q, want %q", got, c.want)
		}
	}
}

// Whoever has a certificate is not thereby one of those that others live by.
func TestOnlyRolesStayWhereConnectionsAreFew(t *testing.T) {
	ca := newIssuer(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := accepts{rpc.Bound(l, rpc.Bounds{Name: "test", All: 8, Each: -1}), make(chan net.Conn, 8)}
	ctx, cancel := context.WithCancel(t.Context())
	server := rpc.NewServer(rpc.Config{TLS: tlsOf(t, ca.give(t.TempDir(), "binder", ca), false)}, "tester", binderCallers)
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, accepted) }()
	t.Cleanup(func() {
		cancel()
		if err := receive(t, done, "Serve to return"); err != nil {
			t.Error(err)
		}
	})
	mayGiveWay := 0
	for _, c := range []struct {
		who   string
		files certs.Files
		stays bool
	}{
		{"a queue", ca.give(t.TempDir(), "queue", ca), true}, {"a scraper", ca.give(t.TempDir(), "metrics", ca), false}, {"nobody", nameless(t, ca), false},
	} {
		conn, _, err := tlsOf(t, c.files, false).Client.ClientHandshake(within(t, patience), "member.berth.internal", connect(t, "127.0.0.2", l.Addr().String()))
		if err != nil {
			t.Fatal(err)
		}
		// The server's first frames come when its side of the handshake is over.
		if _, err := conn.Read(make([]byte, 9)); err != nil {
			t.Fatal(err)
		}
		if !c.stays {
			mayGiveWay++
		}
		if n := rpc.Strangers(receive(t, accepted.conns, "a connection")); n != mayGiveWay {
			t.Errorf("with that of %s, %d connections may have to give way, want %d", c.who, n, mayGiveWay)
		}
	}
}

// accepts is a listener that tells what it accepts.
type accepts struct {
	net.Listener
	conns chan net.Conn
}

func (l accepts) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.conns <- conn
	}
	return conn, err
}
