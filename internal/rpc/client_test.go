package rpc_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

func TestNoCallIsMadeAgain(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		var calls atomic.Int64
		r := start(t, network, &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			calls.Add(1)
			return nil, rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "no")
		}})
		_, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{})
		if status.Code(err) != codes.Unavailable || calls.Load() != 1 {
			t.Errorf("%d calls, %v; want one, UNAVAILABLE", calls.Load(), err)
		}
	})
}

func TestCallsOnClosedClientsAreUnavailable(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		entered := make(chan struct{}, 2)
		r := start(t, network, &service{
			unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				entered <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			},
			stream: func(_ *testgrpc.StreamingOutputCallRequest, stream output) error {
				entered <- struct{}{}
				<-stream.Context().Done()
				return stream.Context().Err()
			},
		})
		ctx := within(t, patience)
		answered := make(chan error, 2)
		go func() {
			_, err := r.client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
			answered <- err
		}()
		go func() {
			stream, err := r.client.StreamingOutputCall(ctx, &testgrpc.StreamingOutputCallRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			answered <- err
		}()
		receive(t, entered, "a call to arrive")
		receive(t, entered, "the other call to arrive")

		if err := r.clients.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := receive(t, answered, "a call to end"); status.Code(err) != codes.Unavailable || rpc.ReasonOf(err) != rpc.ReasonCallCut {
				t.Errorf("a call on the closed connection got %v (%s), want UNAVAILABLE (CALL_CUT)", err, rpc.ReasonOf(err))
			}
		}
		if err := r.stop(t); err != nil {
			t.Error(err)
		}
	})
}

func TestConnectionsToMembersThatAreGoneAreClosed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cfg := rpc.Config{Net: rpc.Memory()}
		serve := func(address string) (stop func()) {
			l, err := cfg.Net.Listen(address)
			if err != nil {
				t.Fatal(err)
			}
			server := rpc.NewServer(cfg, "tester")
			testgrpc.RegisterTestServiceServer(server.Registrar(), &service{})
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- server.Serve(ctx, l) }()
			return func() {
				cancel()
				if err := <-served; err != nil {
					t.Error(err)
				}
			}
		}
		clients := rpc.NewClients(cfg)
		call := func(address string) *grpc.ClientConn {
			conn, err := clients.Conn(address)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := testgrpc.NewTestServiceClient(conn).EmptyCall(t.Context(), &testgrpc.Empty{}); err != nil {
				t.Errorf("call %s: %v", address, err)
			}
			return conn
		}
		leave, stay, come, late := serve("leaves"), serve("stays"), serve("comes"), serve("late")
		gone, kept := call("leaves"), call("stays")
		leave()
		synctest.Wait()
		call("comes")
		if state := gone.GetState(); state == connectivity.Shutdown {
			t.Error("a connection that was used just now is closed")
		}
		time.Sleep(2 * time.Minute) // of the bubble's fake clock: longer than a connection stays that nobody asks for
		call("late")
		if state := gone.GetState(); state != connectivity.Shutdown {
			t.Errorf("the connection to the member that is gone is %v", state)
		}
		if call("stays") != kept {
			t.Error("the connection to the member that stays was replaced")
		}
		leave = serve("leaves")
		if call("leaves") == gone {
			t.Error("the closed connection was handed out again")
		}
		if err := clients.Close(); err != nil {
			t.Error(err)
		}
		for _, stop := range []func(){leave, stay, come, late} {
			stop()
		}
	})
}

func TestCallTheCallerCancelsIsCancelled(t *testing.T) {
	entered := make(chan struct{})
	r := start(t, rpc.Memory(), &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(within(t, patience))
	answered := make(chan error, 1)
	go func() {
		_, err := r.client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		answered <- err
	}()
	receive(t, entered, "the call to arrive")
	cancel()
	if err := receive(t, answered, "the call to end"); status.Code(err) != codes.Canceled {
		t.Errorf("got %v, want CANCELLED", err)
	}
}

func TestClosedClientsGiveNoConnections(t *testing.T) {
	clients := rpc.NewClients(rpc.Config{Net: rpc.Memory()})
	for _, address := range []string{"", "b", "b"} {
		if _, err := clients.Conn(address); (err == nil) != (address != "") {
			t.Errorf("Conn(%q): %v", address, err)
		}
	}
	for range 2 {
		if err := clients.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := clients.Conn("b"); err == nil {
		t.Error("closed clients gave a connection")
	}
}

// The idle minutes are fake time, on a memory network inside the bubble.
func TestIdleConnectionSurvivesItsOwnPings(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cfg := rpc.Config{Net: rpc.Memory()}
		l, err := cfg.Net.Listen("role")
		if err != nil {
			t.Fatal(err)
		}
		var accepted, read atomic.Int64
		counted := countingListener{Listener: l, accepted: func() { accepted.Add(1) }, read: &read}
		server := rpc.NewServer(cfg, "tester")
		testgrpc.RegisterTestServiceServer(server.Registrar(), &service{})
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- server.Serve(ctx, counted) }()
		clients := rpc.NewClients(cfg)
		conn, err := clients.Conn("role")
		if err != nil {
			t.Fatal(err)
		}
		client := testgrpc.NewTestServiceClient(conn)
		if _, err := client.EmptyCall(ctx, &testgrpc.Empty{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := read.Load()

		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if state := conn.GetState(); state != connectivity.Ready {
			t.Errorf("after ten idle minutes the connection is %v", state)
		}
		// The server reads the client's pings and the client's answers to its own, of which there are at most 20.
		const pingFrame = 17
		if frames := (read.Load() - before) / pingFrame; frames < 50 {
			t.Errorf("the server read %d ping frames in ten idle minutes: the client sent too few", frames)
		}
		if _, err := client.EmptyCall(ctx, &testgrpc.Empty{}); err != nil || accepted.Load() != 1 {
			t.Errorf("call after ten idle minutes: %v, over connection %d", err, accepted.Load())
		}
		if err := clients.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func TestClientNoticesASilentPeer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cfg := rpc.Config{Net: rpc.Memory()}
		l, err := cfg.Net.Listen("role")
		if err != nil {
			t.Fatal(err)
		}
		var silent atomic.Bool
		muted := countingListener{Listener: l, accepted: func() {}, read: new(atomic.Int64), silent: &silent}
		entered := make(chan struct{})
		server := rpc.NewServer(cfg, "tester")
		testgrpc.RegisterTestServiceServer(server.Registrar(), &service{stream: func(_ *testgrpc.StreamingOutputCallRequest, stream output) error {
			close(entered)
			<-stream.Context().Done()
			return stream.Context().Err()
		}})
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- server.Serve(ctx, muted) }()
		clients := rpc.NewClients(cfg)
		conn, err := clients.Conn("role")
		if err != nil {
			t.Fatal(err)
		}
		stream, err := testgrpc.NewTestServiceClient(conn).StreamingOutputCall(ctx, &testgrpc.StreamingOutputCallRequest{})
		if err != nil {
			t.Fatal(err)
		}
		<-entered
		silent.Store(true) // what the server writes is lost from here on

		began := time.Now()
		_, err = stream.Recv()
		if took := time.Since(began); status.Code(err) != codes.Unavailable || took > 30*time.Second {
			t.Errorf("the stream of a silent peer ended with %v after %v", err, took)
		}
		if err := clients.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// silencedConn counts what it reads, and loses what it writes once it is silent.
type silencedConn struct {
	net.Conn
	read   *atomic.Int64
	silent *atomic.Bool
}

func (c silencedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func (c silencedConn) Write(p []byte) (int, error) {
	if c.silent != nil && c.silent.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// countingListener counts the connections that it accepts.
type countingListener struct {
	net.Listener
	accepted func()
	read     *atomic.Int64
	silent   *atomic.Bool // nil means never
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.accepted()
	return silencedConn{conn, l.read, l.silent}, nil
}
