package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

const page = 512 << 10 // a large answer, encoded; unreadShare and unreadLimit are so many of them

func answer(size int) *testgrpc.SimpleResponse {
	a := &testgrpc.SimpleResponse{Payload: &testgrpc.Payload{Body: make([]byte, size)}}
	a.Payload.Body = a.Payload.Body[proto.Size(a)-size:]
	return a
}

// pages is a service with large answers.
func pages() *service {
	return &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		return answer(page), nil
	}}
}

// deaf is a connection whose client asks and never reads: its streams' windows stay shut.
type deaf struct {
	*grpc.ClientConn
	t *testing.T
}

func (r *running) deaf(t *testing.T, opts ...grpc.DialOption) deaf {
	t.Helper()
	opts = append(opts, grpc.WithStaticStreamWindowSize(1<<16), grpc.WithStaticConnWindowSize(1<<16))
	conn, err := r.cfg.Net.Dial(r.address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return deaf{conn, t}
}

// ask asks for an answer until ctx ends.
func (d deaf) ask(ctx context.Context, opts ...grpc.CallOption) {
	d.t.Helper()
	stream, err := d.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, testgrpc.TestService_UnaryCall_FullMethodName, opts...)
	if err == nil {
		err = stream.SendMsg(&testgrpc.SimpleRequest{})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// fill asks for as many large answers as a connection may leave unread.
func (d deaf) fill(ctx context.Context, r *running) {
	d.t.Helper()
	before := r.server.Unread()
	for range rpc.UnreadShare / page {
		d.ask(ctx)
	}
	eventually(d.t, "the answers to be counted", func() bool { return r.server.Unread() == before+rpc.UnreadShare })
}

// large asks for a large answer and reads it.
func large(t *testing.T, conn *grpc.ClientConn) error {
	t.Helper()
	_, err := testgrpc.NewTestServiceClient(conn).UnaryCall(within(t, patience), &testgrpc.SimpleRequest{})
	return err
}

func small(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	if _, err := testgrpc.NewTestServiceClient(conn).EmptyCall(within(t, patience), &testgrpc.Empty{}); err != nil {
		t.Errorf("a small answer: %v", err)
	}
}

func checkRefused(t *testing.T, err error) {
	t.Helper()
	if after, ok := rpc.RetryAfter(err); status.Code(err) != codes.ResourceExhausted || rpc.ReasonOf(err) != rpc.ReasonQueueFull || !ok || after <= 0 {
		t.Errorf("got %v, retry after %v; want RESOURCE_EXHAUSTED, QUEUE_FULL and a time", err, after)
	}
}

func TestClientThatReadsNothingIsRefusedAndOthersAreAnswered(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		r := start(t, network, pages())
		conn := r.deaf(t)
		conn.fill(within(t, patience), r)
		for range 500 {
			conn.ask(within(t, patience))
		}
		eventually(t, "the connection to be refused by its own bound, not by the gate", func() bool {
			err := large(t, conn.ClientConn)
			checkRefused(t, err)
			return strings.Contains(err.Error(), "not read yet")
		})
		small(t, conn.ClientConn)
		if err := large(t, r.conn); err != nil {
			t.Errorf("the large answer of another connection: %v", err)
		}
		eventually(t, "what was read to be given back, and only that", func() bool { return r.server.Unread() == rpc.UnreadShare })
	})
}

// All who ask by JSON come by one connection.
func TestWhoIsForwardedTakesHisOwnShareOnly(t *testing.T) {
	r := start(t, rpc.Memory(), pages(), rpc.WithPublic(nil), rpc.WithForwarding())
	conn := r.deaf(t)
	conn.fill(rpc.Forward(within(t, patience), "192.0.2.1"), r)
	if _, err := testgrpc.NewTestServiceClient(conn).UnaryCall(rpc.Forward(within(t, patience), "192.0.2.2"), &testgrpc.SimpleRequest{}); err != nil {
		t.Errorf("the answer of somebody else: %v", err)
	}
	for range 2 * rpc.UnreadShare / page {
		conn.ask(rpc.Forward(within(t, patience), "192.0.2.1"))
	}
	eventually(t, "who reads nothing to have half of all, and no more", func() bool {
		conn.ask(rpc.Forward(within(t, patience), "192.0.2.1")) // one may have been refused for something else
		_, err := testgrpc.NewTestServiceClient(conn).UnaryCall(rpc.Forward(within(t, patience), "192.0.2.1"), &testgrpc.SimpleRequest{})
		return rpc.ReasonOf(err) == rpc.ReasonQueueFull && r.server.Unread() == rpc.UnreadLimit/2
	})
}

func TestUnreadAnswersOfAllConnectionsAreBounded(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		r := start(t, network, pages())
		var last deaf
		for range rpc.UnreadLimit / rpc.UnreadShare {
			last = r.deaf(t)
			last.fill(within(t, patience), r)
		}
		checkRefused(t, large(t, r.conn))
		small(t, r.conn)
		if held := r.server.Unread(); held != rpc.UnreadLimit {
			t.Errorf("%d bytes are counted, %d are the bound", held, rpc.UnreadLimit)
		}
		if err := last.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a connection that ended to make room", func() bool { return large(t, r.conn) == nil })
	})
}

func TestConnectionsThatReadNothingAreCutWhenRoomIsNeeded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := start(t, rpc.Memory(), pages())
		reads := r.deaf(t)
		one, cancel := context.WithCancel(t.Context())
		reads.ask(one)
		for range rpc.UnreadShare/page - 1 {
			reads.ask(t.Context())
		}
		synctest.Wait()
		for range rpc.UnreadLimit/rpc.UnreadShare - 1 {
			r.deaf(t).fill(t.Context(), r)
		}
		time.Sleep(rpc.UnreadFor - time.Second)
		cancel()
		synctest.Wait()
		reads.ask(t.Context())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if held := r.server.Unread(); held != rpc.UnreadLimit {
			t.Errorf("%d bytes are counted before the room is needed", held)
		}
		checkRefused(t, large(t, r.conn))
		synctest.Wait()
		if held := r.server.Unread(); held != rpc.UnreadShare {
			t.Errorf("%d bytes are counted, want those of the connection that gave some back", held)
		}
		if err := large(t, r.conn); err != nil {
			t.Errorf("once there is room: %v", err)
		}
		if !strings.Contains(r.logs.String(), "does not read its answers") {
			t.Errorf("the cut is not logged:\n%s", r.logs)
		}
	})
}

func TestEndOfStreamsGivesUnreadAnswersBack(t *testing.T) {
	withoutCollection(t)
	bubble.Test(t, func(t *testing.T) {
		r := start(t, rpc.Memory(), pages())
		conn := r.deaf(t)
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			conn.fill(ctx, r)
			synctest.Wait() // until gRPC has them all: see TestDroppedAnswerIsGivenBackWhenItIsCollected
			cancel()
			synctest.Wait()
			if held := r.server.Unread(); held != 0 {
				t.Errorf("%d bytes are counted for streams that are over", held)
			}
		}
	})
}

func TestEndOfAConnectionGivesUnreadAnswersBack(t *testing.T) {
	withoutCollection(t)
	onEach(t, func(t *testing.T, network rpc.Network) {
		r := start(t, network, pages())
		for range 2 {
			conn := r.deaf(t)
			conn.fill(within(t, patience), r)
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "all to be given back", func() bool { return r.server.Unread() == 0 })
		}
	})
}

// withoutCollection ends garbage collection for the test's time: what it waits for must not come of that.
func withoutCollection(t *testing.T) {
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
}

func TestCallsCancelledWhileTheyAreAnsweredGiveTheirRoomBack(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		answering := make(chan context.CancelFunc, 1)
		r := start(t, network, &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			(<-answering)()
			return answer(page), nil
		}})
		for range 300 {
			ctx, cancel := context.WithCancel(within(t, patience))
			answering <- cancel
			if _, err := r.client.UnaryCall(ctx, &testgrpc.SimpleRequest{}); status.Code(err) != codes.Canceled && err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "all to be given back", func() bool {
			runtime.GC() // should gRPC have dropped one, see TestDroppedAnswerIsGivenBackWhenItIsCollected
			return r.server.Unread() == 0
		})
	})
}

func TestCallsThatFailTakeNoRoom(t *testing.T) {
	garbled := answer(page)
	garbled.Username = "\xff" // not UTF-8: it cannot be encoded
	withoutCollection(t)
	for name, handler := range map[string]func() (*testgrpc.SimpleResponse, error){
		"error":   func() (*testgrpc.SimpleResponse, error) { return answer(page), errors.New("broken") },
		"panic":   func() (*testgrpc.SimpleResponse, error) { panic("broken") },
		"garbled": func() (*testgrpc.SimpleResponse, error) { return garbled, nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, rpc.TCP(), &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				return handler()
			}})
			if err := large(t, r.conn); status.Code(err) != codes.Internal {
				t.Errorf("got %v, want INTERNAL", err)
			}
			if held := r.server.Unread(); held != 0 {
				t.Errorf("%d bytes are counted", held)
			}
		})
	}
}

func TestLargeAnswersArriveUnchanged(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	check := func(t *testing.T, r *running, conn *grpc.ClientConn, sent *testgrpc.SimpleResponse, opts ...grpc.CallOption) {
		t.Helper()
		got, err := testgrpc.NewTestServiceClient(conn).UnaryCall(within(t, patience), &testgrpc.SimpleRequest{Payload: sent.GetPayload()}, opts...)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, sent) {
			t.Errorf("%d bytes arrived changed", len(sent.GetPayload().GetBody()))
		}
		eventually(t, "what was read to be given back", func() bool { return r.server.Unread() == 0 })
	}
	onEach(t, func(t *testing.T, network rpc.Network) {
		r := start(t, network, &service{})
		for _, size := range []int{0, 1, 16<<10 - 1, 16 << 10, page, rpc.UnreadShare + 1} {
			body := make([]byte, size)
			_, _ = random.Read(body)
			sent := &testgrpc.SimpleResponse{Payload: &testgrpc.Payload{Body: body}}
			check(t, r, r.conn, sent)
			check(t, r, r.conn, sent, grpc.UseCompressor(gzip.Name))
		}
	})
}

func TestUnreadAnswersAreCountedOverTLS(t *testing.T) {
	ca, logs := newIssuer(t), &logtest.Buffer{}
	cfg := rpc.Config{Net: rpc.TCP(), TLS: tlsOf(t, ca.give(t.TempDir(), "binder", ca), false)}
	r := startWith(t, cfg, logs, pages(), binderCallers)
	own := tlsOf(t, ca.give(t.TempDir(), "queue", ca), false)
	conn := r.deaf(t, grpc.WithTransportCredentials(own.Client))
	conn.fill(within(t, patience), r)
	if err := large(t, client(t, own, r.address)); err != nil {
		t.Errorf("the large answer of another connection: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all to be given back", func() bool { return r.server.Unread() == 0 })
}

func TestAnswersToClientsThatCompressAreCounted(t *testing.T) {
	body := bytes.Repeat([]byte("a page that is easy to compress "), page/32)
	r := start(t, rpc.TCP(), &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		return &testgrpc.SimpleResponse{Payload: &testgrpc.Payload{Body: body}}, nil
	}})
	r.deaf(t).ask(within(t, patience), grpc.UseCompressor(gzip.Name))
	eventually(t, "the answer to be counted", func() bool { return r.server.Unread() >= page })
}
