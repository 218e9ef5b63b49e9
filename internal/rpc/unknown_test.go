package rpc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/rpc"
)

// gRPC's own answer repeats the name, and takes nine bytes for one of it, in headers, which no window holds back.
func TestAMethodThatIsUnknownIsRefusedWithoutItsName(t *testing.T) {
	const name = "some-name"
	for what, opts := range map[string][]rpc.Option{"open to people": {rpc.WithPublic(&doorman{})}, "for other roles": nil} {
		t.Run(what, func(t *testing.T) {
			r := start(t, rpc.TCP(), &service{}, opts...)
			for _, method := range []string{"/" + name + "/UnaryCall", "/grpc.testing.TestService/" + name, "/" + name + "/" + name + "/x"} {
				began := time.Now()
				err := r.conn.Invoke(within(t, patience), method, &testgrpc.SimpleRequest{}, &testgrpc.SimpleResponse{})
				if status.Code(err) != codes.Unimplemented || strings.Contains(err.Error(), name) {
					t.Errorf("%s: %v", method, err)
				}
				if took := time.Since(began); opts != nil && took < 100*time.Millisecond {
					t.Errorf("%s is refused after %v", method, took)
				}
			}
			families, err := r.cfg.Metrics.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range families {
				if strings.HasPrefix(family.GetName(), "grpc_server_") && strings.Contains(family.String(), name) {
					t.Errorf("metrics have a label by it: %v", family)
				}
			}
			if text := r.logs.String(); strings.Contains(text, name) {
				t.Errorf("the log names it: %s", text)
			}
		})
	}
}

// What is malformed gRPC answers before anybody is asked, and repeats it, in four bytes for one.
func TestAnswersToMalformedCallsAreBounded(t *testing.T) {
	const most = 4 * 26 << 10
	for _, size := range []int{20_000, 25_000, 31_000} {
		long := strings.Repeat("\xff", size)
		for name, block := range map[string][]byte{
			"a path without a method":  headers(long),
			"an unknown path":          headers("/" + long + "/x"),
			"an encoding":              headers(unaryCall, [2]string{"grpc-encoding", long}),
			"a header that is no text": headers(unaryCall, [2]string{"x-bin", long}),
			"a timeout":                headers(unaryCall, [2]string{"grpc-timeout", long}),
		} {
			t.Run(fmt.Sprint(name, " of ", size), func(t *testing.T) {
				network := newRawNetwork()
				start(t, network, &service{}, rpc.WithPublic(nil))
				c := dialRaw(t, network)
				c.write(t, append(frame(1, 1, 1, block[:16000]), frame(9, 4, 1, block[16000:])...))
				eventually(t, "an answer, or none", func() bool { return c.endOf(1) || c.hasEnded() })
				if n := c.answerOf(1); n > most {
					t.Errorf("%d bytes are sent back", n)
				}
			})
		}
	}
}

func TestTheLongestTokenHasRoomInTheHeadersOfACall(t *testing.T) {
	r := start(t, rpc.TCP(), &service{}, rpc.WithPublic(&doorman{}))
	ctx := metadata.AppendToOutgoingContext(as(t, "ann"), "authorization", "Bearer "+strings.Repeat("x", 16<<10))
	if _, err := r.client.UnaryCall(ctx, &testgrpc.SimpleRequest{}); err != nil {
		t.Error(err)
	}
}
