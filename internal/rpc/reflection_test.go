//lint:file-ignore SA1019 v1alpha is deprecated, and is what older clients speak.

package rpc_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/berth-scheduler/berth/internal/rpc"
)

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
