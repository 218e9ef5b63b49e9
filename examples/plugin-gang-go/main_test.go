package main

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/test/bubble"
)

func TestAGangGoesWhenAllOfItHaveNodes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := bufconn.Listen(1 << 20)
		ended := make(chan error, 1)
		go func() { ended <- plugin.Serve(ctx, plugin.Config{Listener: l, Plugins: []plugin.Plugin{gang()}}) }()
		conn, err := grpc.NewClient("passthrough:gang", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		place, err := pluginv1.NewPluginServiceClient(conn).Place(ctx)
		if err != nil {
			t.Fatal(err)
		}
		id := int64(0)
		send := func(uid, gang string, step pluginv1.Step) {
			id++
			req := &pluginv1.PlaceRequest{Id: id}
			if step != 0 {
				req.Step, req.Plugins = step, []string{"Gang"}
				req.Placement = &pluginv1.Placement{Uid: uid, Namespace: "ns", Name: uid, Node: "n", Object: fmt.Appendf(nil, `{"metadata":{"labels":{%s}}}`, gang)}
			}
			if err := place.Send(req); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(id int64, want string) {
			t.Helper()
			resp, err := place.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%d%s %v", resp.GetWaitsMilliseconds()/1000, resp.GetRejection().GetReason(), resp.GetError() != ""); resp.GetId() != id || got != want {
				t.Errorf("response %d: %s, want %d: %s", resp.GetId(), got, id, want)
			}
		}
		const waits, goes, failed = "300 false", "0 false", "0 true"
		let := func(uid, gang, want string) (permit int64) {
			send(uid, gang, pluginv1.Step_STEP_RESERVE)
			expect(id, goes)
			send(uid, gang, pluginv1.Step_STEP_PERMIT)
			expect(id, want)
			return id
		}
		const of2, of3 = `"example.com/gang":"a","example.com/gang-size":"2"`, `"example.com/gang":"b","example.com/gang-size":"3"`
		send("", "", 0)
		let("alone", "", goes)
		let("odd", `"example.com/gang":"a","example.com/gang-size":"two"`, failed)
		other := let("b0", of3, waits)
		lost := let("a0", of2, waits)
		send("a0", of2, pluginv1.Step_STEP_UNRESERVE)
		expect(lost, failed)
		expect(id, goes)
		first := let("a1", of2, waits)
		send("a2", of2, pluginv1.Step_STEP_RESERVE)
		expect(id, goes)
		send("a2", of2, pluginv1.Step_STEP_PERMIT)
		got := map[int64]bool{}
		for range 2 {
			resp, err := place.Recv()
			if err != nil || resp.GetRejection() != nil || resp.GetError() != "" {
				t.Fatal(resp, err)
			}
			got[resp.GetId()] = true
		}
		if !got[first] || !got[id] {
			t.Errorf("%v went, want %d and %d", got, first, id)
		}
		time.Sleep(5 * time.Minute)
		expect(other, "0rejected due to timeout after waiting 5m0s at plugin Gang false")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		synctest.Wait()
	})
}
