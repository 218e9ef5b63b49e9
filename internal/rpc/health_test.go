package rpc_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestHealthStartsAsNotServingAndServicesFollowTheServer(t *testing.T) {
	r := start(t, rpc.Memory(), &service{})
	client, health := healthgrpc.NewHealthClient(r.conn), r.server.Health()
	service := testgrpc.TestService_ServiceDesc.ServiceName
	expect := func(when, service string, want healthgrpc.HealthCheckResponse_ServingStatus, why string) {
		t.Helper()
		resp, err := client.Check(within(t, patience), &healthgrpc.HealthCheckRequest{Service: service})
		if err != nil || resp.GetStatus() != want || health.Why(service) != why {
			t.Errorf("%s, %q is %v (%v), %q; want %v, %q", when, service, resp.GetStatus(), err, health.Why(service), want, why)
		}
	}
	const yes, no = healthgrpc.HealthCheckResponse_SERVING, healthgrpc.HealthCheckResponse_NOT_SERVING

	expect("at first", "", no, "starting")
	expect("at first", service, no, "starting")
	health.Set("", true, "")
	expect("once set", "", yes, "")
	expect("once set", service, yes, "")
	health.Set(service, false, "log is behind")
	expect("set alone", "", yes, "")
	expect("set alone", service, no, "log is behind")
	health.Set("", false, "")
	health.Set("", true, "left over")
	expect("set again", "", yes, "")
	expect("set again", service, no, "log is behind")

	if _, err := client.Check(within(t, patience), &healthgrpc.HealthCheckRequest{Service: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown service: %v, want NOT_FOUND", err)
	}
	if why := health.Why("nobody"); why != "unknown service" {
		t.Errorf("Why of an unknown service: %q", why)
	}

	watch, err := client.Watch(within(t, patience), &healthgrpc.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := watch.Recv(); err != nil || resp.GetStatus() != yes {
		t.Errorf("watch: %v, %v", resp, err)
	}
	if err := r.stop(t); err != nil { // a watcher must not hold it up
		t.Error(err)
	}
	health.Set("", true, "")
	if why := health.Why(""); why != "draining" {
		t.Errorf("after the stop, health says %q, want draining for good", why)
	}
}
