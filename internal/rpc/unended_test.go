package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/berth-scheduler/berth/internal/rpc"
)

// A stranger asks whether the server serves, with as many headers as there may be, and opens no window for the answers: their handlers
// have ended, and what the calls take is not given back.
func TestAnswersThatAreNotReadToTheirEndAreBounded(t *testing.T) {
	r := start(t, rpc.TCP(), &service{}, rpc.WithPublic(nil))
	const check = "/grpc.health.v1.Health/Check"
	var conns []*rawConn
	const streams = 50 // of a connection: so many may ask at once
	for range 80 {     // some are told that too many ask
		if slices.ContainsFunc(conns, (*rawConn).hasEnded) {
			break
		}
		conn, err := net.Dial("tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		c := newRawConn(t, conn)
		conns = append(conns, c)
		if _, err := c.Write(frame(4, 0, 0, []byte{0, 4, 0, 0, 0, 0})); err != nil { // SETTINGS: no window
			t.Fatal(err)
		}
		for k := range uint32(streams) {
			if c.hasEnded() {
				break
			}
			block := headers(check)
			if k == 0 {
				block = append(block, 0x40, 1, 'x', 1, 'a') // into the table of headers, from which each takes a byte
			}
			block = append(block, strings.Repeat("\xbe", 500)...)
			_, _ = c.Write(append(frame(1, 4, 2*k+1, block), frame(0, 1, 2*k+1, []byte{0, 0, 0, 0, 0})...))
		}
		eventually(t, "all to be answered, or cut", func() bool { return c.answered() >= streams || c.hasEnded() })
	}
	// One address has half of what there is: 1,024 of 2,048.
	if !slices.ContainsFunc(conns, (*rawConn).hasEnded) {
		t.Errorf("%d connections go on, with %d streams", len(conns), r.server.HeldStreams())
	}
	if n := r.server.HeldStreams(); n > 1024 {
		t.Errorf("%d streams are held", n)
	}
	other := dialFrom(t, "127.0.0.2", r.address)
	if _, err := healthgrpc.NewHealthClient(other).Check(within(t, patience), &healthgrpc.HealthCheckRequest{}); err != nil {
		t.Errorf("from another address: %v", err)
	}
	if text := r.logs.String(); !strings.Contains(text, "cut a client whose answers do not come to their end") {
		t.Errorf("nothing is said of it: %s", text)
	}
}

// gRPC takes back what deadlines there are when its handshake is over, behind which it may have read many calls.
func TestAConnectionIsCutForWhatItsFirstPacketHolds(t *testing.T) {
	r := start(t, rpc.TCP(), &service{}, rpc.WithPublic(nil))
	const check = "/grpc.health.v1.Health/Check"
	var conns []*rawConn
	const streams = 50 // of a connection
	for range 30 {     // one address has 1,024 in all
		frames := [][]byte{frame(4, 0, 0, []byte{0, 4, 0, 0, 0, 0})} // SETTINGS: no window
		for k := range uint32(streams) {
			frames = append(frames, frame(1, 4, 2*k+1, headers(check)), frame(0, 1, 2*k+1, []byte{0, 0, 0, 0, 0}))
		}
		conn, err := net.Dial("tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		c := newRawConn(t, conn, frames...)
		conns = append(conns, c)
		eventually(t, "all to be answered, or cut", func() bool { return c.answered() >= streams || c.hasEnded() })
	}
	if n := r.server.HeldStreams(); n > 1024 || !slices.ContainsFunc(conns, (*rawConn).hasEnded) {
		t.Errorf("%d connections go on, with %d streams that are counted", len(conns), n)
	}
}

// What gRPC does not understand it does not remember: the same stream may be opened again, and the reset of what came before goes behind that.
func TestAStreamThatIsResetBeforeItIsOpenedIsNotAnswered(t *testing.T) {
	const check = "/grpc.health.v1.Health/Check"
	for name, before := range map[string][]byte{
		"malformed headers": frame(1, 4, 1, headers(check, [2]string{"NOT-LOWER", "x"})),
		"a window of none":  frame(8, 0, 1, []byte{0, 0, 0, 0}),
	} {
		t.Run(name, func(t *testing.T) {
			network := newRawNetwork()
			start(t, network, &service{}, rpc.WithPublic(nil))
			c := dialRaw(t, network)
			noWindow := frame(4, 0, 0, []byte{0, 4, 0, 0, 0, 0}) // SETTINGS
			c.write(t, bytes.Join([][]byte{noWindow, before, frame(1, 4, 1, headers(check)), frame(0, 1, 1, []byte{0, 0, 0, 0, 0})}, nil))
			eventually(t, "an answer, or the end of the connection", func() bool { return c.answered() > 0 || c.hasEnded() })
			if c.answered() > 0 {
				t.Error("it is answered")
			}
		})
	}
}

// gRPC keeps what it is told while it waits to write: each stream with its headers, though it has been reset.
func TestAClientThatOpensAndResetsAndDoesNotReadIsCut(t *testing.T) {
	network := newRawNetwork()
	r := start(t, network, &service{}, rpc.WithPublic(nil))
	conn, err := network.listener.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(preface()); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("\xff", 7_000) // names no method, and the answer says it
	const calls = 5000
	for k := range uint32(calls) {
		frames := append(frame(1, 5, 2*k+1, headers("/x/unknown")), frame(3, 0, 2*k+1, []byte{0, 0, 0, 8})...)
		if k < 60 { // more than there is room for on the way
			frames = frame(1, 5, 2*k+1, headers(long))
		}
		_, err := conn.Write(frames)
		if errors.Is(err, io.ErrClosedPipe) {
			eventually(t, "what was held to be given back", func() bool { return r.server.HeldStreams() == 0 })
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("after %d calls, which are reset, %d streams are held", calls, r.server.HeldStreams())
}

// A handler may outlive its call, which its client has reset. It has no stream then, and stands for none that is held.
func TestCallsThatAreResetHideNoAnswersThatAreNotRead(t *testing.T) {
	const reset, held = 16, 10 // so many of a method run at a time
	began, release := make(chan struct{}, reset), make(chan struct{})
	network := newRawNetwork()
	r := start(t, network, &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		began <- struct{}{}
		<-release // whatever becomes of the call
		return &testgrpc.SimpleResponse{}, nil
	}}, rpc.WithPublic(nil))
	defer close(release)
	c := dialRaw(t, network)
	c.write(t, frame(4, 0, 0, []byte{0, 4, 0, 0, 0, 0})) // SETTINGS: no window
	ask := func(k int, method string) {
		stream := uint32(2*k + 1)
		c.call(t, stream, method)
		c.write(t, frame(0, 1, stream, []byte{0, 0, 0, 0, 0}))
	}
	for k := range reset {
		ask(k, unaryCall)
		receive(t, began, "a handler to begin")
	}
	for k := range reset {
		c.write(t, frame(3, 0, uint32(2*k+1), []byte{0, 0, 0, 8})) // RST_STREAM: cancelled
	}
	for k := range held {
		ask(reset+k, "/grpc.health.v1.Health/Check")
	}
	eventually(t, "all answers that are not read to be counted", func() bool { return c.answered() == held && r.server.HeldStreams() == held })
}

// What a handler has is bounded elsewhere, for as long as it takes.
func TestACallThatAHandlerHasIsNotHeldWithoutOne(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	r := start(t, rpc.TCP(), &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		close(began)
		<-release
		return &testgrpc.SimpleResponse{}, nil
	}}, rpc.WithPublic(nil))
	answered := make(chan error, 1)
	go func() {
		_, err := r.client.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{})
		answered <- err
	}()
	receive(t, began, "the handler to begin")
	if n := r.server.HeldStreams(); n != 0 {
		t.Errorf("%d streams are held that no handler has", n)
	}
	close(release)
	if err := receive(t, answered, "the answer"); err != nil {
		t.Error(err)
	}
}

func dialFrom(t *testing.T, from, to string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+to, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return connect(t, from, to), nil }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
