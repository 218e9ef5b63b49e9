package rpc_test

import (
	"context"
	"encoding/binary"
	"runtime"
	"testing"
	"testing/synctest"

	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

// gRPC keeps each frame of HTTP/2 by itself until the message that it is of is there.
func TestARequestInSmallFramesTakesLittleMoreThanItsBytes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) { // where nothing is too slow
		const calls, size = 2, 256 << 10
		got := make(chan int, calls)
		network := newRawNetwork()
		start(t, network, &service{unary: func(_ context.Context, request *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			got <- len(request.GetPayload().GetBody())
			return &testgrpc.SimpleResponse{}, nil
		}}, rpc.WithPublic(nil))
		encoded, err := proto.Marshal(payload(size))
		if err != nil {
			t.Fatal(err)
		}
		message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(encoded))), encoded...)
		c := dialRaw(t, network)
		live := func() int {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int(m.HeapAlloc)
		}
		before := live()
		for k := range calls {
			stream := uint32(2*k + 1)
			c.call(t, stream, unaryCall)
			c.drip(t, stream, message[:len(message)-1])
		}
		synctest.Wait()
		// A window of each may be in frames, and its bytes twice, as the buffer grows.
		taken, most := live()-before, calls*(8<<16+2*size)
		t.Logf("%d bytes of requests take %d", calls*size, taken)
		if taken > most {
			t.Errorf("%d requests of %d bytes take %d bytes before their last one, want %d at most", calls, size, taken, most)
		}
		for k := range calls {
			c.drip(t, uint32(2*k+1), message[len(message)-1:])
			c.write(t, frame(0, 1, uint32(2*k+1), nil)) // which ends it
			if n := receive(t, got, "a request"); n != size {
				t.Errorf("%d bytes have come", n)
			}
		}
	})
}
