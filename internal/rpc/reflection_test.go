//lint:file-ignore SA1019 v1alpha is deprecated, and is what older clients speak.

package rpc_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/berth-scheduler/berth/internal/rpc"
)

// rationing is a doorman who lets somebody make so many calls, and counts them.
type rationing struct {
	doorman
	most, made atomic.Int32
}

func (c *rationing) Admit(ctx context.Context, method string) (context.Context, error) {
	if !rpc.Counted(ctx) && c.made.Add(1) > c.most.Load() {
		return nil, rpc.Exhausted("TOO_MANY_CALLS", time.Second, "not so fast")
	}
	return c.doorman.Admit(ctx, method)
}

// What a client says on one stream costs it what as many calls would.
func TestEachMessageOfAStreamCountsForItsCallersRate(t *testing.T) {
	const most = 5
	guard := &rationing{}
	guard.most.Store(most)
	r := start(t, rpc.TCP(), &service{}, rpc.WithPublic(guard))
	stream, err := reflectionv1.NewServerReflectionClient(r.conn).ServerReflectionInfo(as(t, "ann"))
	if err != nil {
		t.Fatal(err)
	}
	answers := 0
	for {
		err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil || answers > most {
			break
		}
		answers++
	}
	if answers != most || rpc.ReasonOf(err) != "TOO_MANY_CALLS" {
		t.Errorf("%d messages are answered, and then %v; want %d", answers, err, most)
	}
}

// Nobody has room for many large ones, which are read before it is known what they say.
func TestTheMessagesOfAStreamAreSmall(t *testing.T) {
	r := start(t, rpc.TCP(), &service{}, rpc.WithPublic(nil), rpc.WithRequestLimit(rpc.PublicRequestLimit))
	ask := func(size int) error {
		stream, err := reflectionv1.NewServerReflectionClient(r.conn).ServerReflectionInfo(within(t, patience))
		if err != nil {
			return err
		}
		name := &reflectionv1.ServerReflectionRequest_FileByFilename{FileByFilename: strings.Repeat("x", size)}
		if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: name}); err != nil {
			return err
		}
		_, err = stream.Recv()
		return errors.Join(err, stream.CloseSend())
	}
	if err := ask(65 << 10); rpc.ReasonOf(err) != rpc.ReasonTooLarge {
		t.Errorf("a large one: %v, want %s", err, rpc.ReasonTooLarge)
	}
	if err := ask(60 << 10); err != nil {
		t.Errorf("a small one: %v", err)
	}
}

func TestReflectionListsServicesOnBothVersions(t *testing.T) {
	r := start(t, rpc.Memory(), &service{})
	want := []string{"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection", "grpc.testing.TestService"}

	v1, err := reflectionv1.NewServerReflectionClient(r.conn).ServerReflectionInfo(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	if err := v1.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	answer, err := v1.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, service := range answer.GetListServicesResponse().GetService() {
		got = append(got, service.GetName())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("v1 (-want +got):\n%s", diff)
	}

	v1alpha, err := reflectionv1alpha.NewServerReflectionClient(r.conn).ServerReflectionInfo(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	if err := v1alpha.Send(&reflectionv1alpha.ServerReflectionRequest{MessageRequest: &reflectionv1alpha.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	alphaAnswer, err := v1alpha.Recv()
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	for _, service := range alphaAnswer.GetListServicesResponse().GetService() {
		got = append(got, service.GetName())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("v1alpha (-want +got):\n%s", diff)
	}
	for _, end := range []interface{ CloseSend() error }{v1, v1alpha} {
		if err := end.CloseSend(); err != nil {
			t.Error(err)
		}
	}
}
