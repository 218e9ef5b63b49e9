package gateway_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// TestBadRequestsNameTheField: every field of every request, wrong in every way.
func TestBadRequestsNameTheField(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(3)...)), withObjects(&objects{}))
	first, err := b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	podsToken := first.GetNextPageToken()
	long := strings.Repeat("x", 300)
	pods := func(req *schedulingv1.ListPodsRequest) error { _, err := b.client.ListPods(b.ctx, req); return err }
	getPod := func(req *schedulingv1.GetPodRequest) error { _, err := b.client.GetPod(b.ctx, req); return err }
	nodes := func(req *schedulingv1.ListNodesRequest) error { _, err := b.client.ListNodes(b.ctx, req); return err }
	getNode := func(name string) error {
		_, err := b.client.GetNode(b.ctx, &schedulingv1.GetNodeRequest{Name: name})
		return err
	}
	apply := func(manifests string) error {
		_, err := b.client.Apply(b.ctx, &schedulingv1.ApplyRequest{Manifests: manifests})
		return err
	}
	remove := func(req *schedulingv1.DeleteRequest) error { _, err := b.client.Delete(b.ctx, req); return err }
	for _, test := range []struct {
		err  error
		want string
	}{
		{pods(&schedulingv1.ListPodsRequest{PageSize: -1}), "page_size"},
		{pods(&schedulingv1.ListPodsRequest{PageSize: math.MinInt32}), "page_size"},
		{pods(&schedulingv1.ListPodsRequest{PageToken: "garbage"}), "page_token"},
		{pods(&schedulingv1.ListPodsRequest{PageToken: "\x00\x01ÿ"}), "page_token"},
		{pods(&schedulingv1.ListPodsRequest{PageToken: podsToken, Namespace: "other"}), "page_token"},
		{pods(&schedulingv1.ListPodsRequest{PageToken: podsToken, PendingOnly: true}), "page_token"},
		{pods(&schedulingv1.ListPodsRequest{Namespace: long}), "namespace"},
		{pods(&schedulingv1.ListPodsRequest{Node: long}), "node"},
		{getPod(&schedulingv1.GetPodRequest{}), "name"},
		{getPod(&schedulingv1.GetPodRequest{Name: long}), "name"},
		{getPod(&schedulingv1.GetPodRequest{Name: "a/b"}), "name"},
		{getPod(&schedulingv1.GetPodRequest{Name: "a", Namespace: long}), "namespace"},
		{nodes(&schedulingv1.ListNodesRequest{PageSize: -7}), "page_size"},
		{nodes(&schedulingv1.ListNodesRequest{PageToken: podsToken}), "page_token"},
		{getNode(""), "name"},
		{getNode(long), "name"},
		{apply(""), "manifests"},
		{apply(" \n"), "manifests"},
		{apply("# nothing"), "manifests"},
		{apply("{"), "documents[0]"},
		{apply("\x00\x01\x02"), "documents[0]"},
		{apply("kind: Deployment\napiVersion: apps/v1\nmetadata: {name: x}"), "documents[0]"},
		{apply("- 1\n- 2"), "documents[0]"},
		{remove(&schedulingv1.DeleteRequest{}), "name"},
		{remove(&schedulingv1.DeleteRequest{Name: "x"}), "kind"},
		{remove(&schedulingv1.DeleteRequest{Kind: "Deployment", Name: "x"}), "kind"},
		{remove(&schedulingv1.DeleteRequest{Kind: "Pod"}), "name"},
		{remove(&schedulingv1.DeleteRequest{Kind: "Pod", Name: long}), "name"},
	} {
		violations := rpc.Violations(test.err)
		if status.Code(test.err) != codes.InvalidArgument || len(violations) == 0 {
			t.Errorf("%v, want INVALID_ARGUMENT with a violation of %s", test.err, test.want)
			continue
		}
		if !strings.HasPrefix(violations[0].Field, test.want) {
			t.Errorf("violations %v, want one of %s", violations, test.want)
		}
	}
}

// noise is a codec that sends bytes as they are.
type noise struct{}

func (noise) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (noise) Unmarshal(mem.BufferSlice, any) error { return nil }
func (noise) Name() string                         { return "proto" }

var _ encoding.CodecV2 = noise{}

// TestNoiseIsAnsweredWithAnError: bytes that are no message at all, to every RPC.
func TestNoiseIsAnsweredWithAnError(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(3)...)), withObjects(&objects{}))
	for _, method := range schedulingv1.SchedulingService_ServiceDesc.Methods {
		for _, bytes := range []string{"\xff\xff\xff\xff", "\x0a\xff\xff\xff\xff\x0f", strings.Repeat("\x0b", 100_000)} {
			err := b.conn.Invoke(b.ctx, "/berth.scheduling.v1.SchedulingService/"+method.MethodName, []byte(bytes), nil, grpc.ForceCodecV2(noise{}))
			if err == nil {
				t.Errorf("%s took noise for a request", method.MethodName)
			}
		}
	}
	stream, err := b.conn.NewStream(b.ctx, &grpc.StreamDesc{ServerStreams: true},
		schedulingv1.SchedulingService_WatchPlacements_FullMethodName, grpc.ForceCodecV2(noise{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg([]byte("\xff\xff\xff\xff")); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(nil); err == nil {
		t.Error("WatchPlacements took noise for a request")
	}
	if _, err := b.client.GetStatus(b.ctx, &schedulingv1.GetStatusRequest{}); err != nil {
		t.Errorf("after the noise: %v", err)
	}
}

func TestTenMegabytesOfLabelsAreRefused(t *testing.T) {
	store := &objects{}
	b := start(t, withState(from(t, "local")), withObjects(store))
	var labels strings.Builder
	for labels.Len() < 10<<20 {
		labels.WriteString("    " + strings.Repeat("k", 60) + ": " + strings.Repeat("v", 60) + "\n")
	}
	manifests := "apiVersion: v1\nkind: Node\nmetadata:\n  name: n\n  labels:\n" + labels.String()
	if _, err := b.client.Apply(b.ctx, &schedulingv1.ApplyRequest{Manifests: manifests}); !rpc.TooLarge(err) {
		t.Errorf("10 MiB: %.200v, want %s", err, rpc.ReasonTooLarge)
	}
	if _, err := b.client.Apply(b.ctx, &schedulingv1.ApplyRequest{Manifests: manifests[:3<<20]}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("3 MiB in a document: %.200v, want INVALID_ARGUMENT", err)
	}
	if len(store.applied) > 0 {
		t.Errorf("%v were applied", store.applied)
	}
}

func TestCancelledListIsNoError(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(3)...)))
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	if _, err := b.client.ListPods(ctx, &schedulingv1.ListPodsRequest{}); status.Code(err) != codes.Canceled {
		t.Errorf("ListPods: %v, want CANCELED", err)
	}
}
