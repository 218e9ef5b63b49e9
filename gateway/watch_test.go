package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/cluster"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// watch opens a stream and waits until it has begun.
func (b *berth) watch(from *schedulingv1.Version) grpc.ServerStreamingClient[schedulingv1.WatchPlacementsResponse] {
	b.t.Helper()
	stream, err := b.client.WatchPlacements(b.ctx, &schedulingv1.WatchPlacementsRequest{From: from})
	if err != nil {
		b.t.Fatal(err)
	}
	return stream
}

// line is a message in one line; heartbeats are "".
func line(m *schedulingv1.WatchPlacementsResponse) string {
	if m.GetUid() == "" {
		return ""
	}
	return fmt.Sprintf("%d/%d %s %s %s %t", m.GetVersion().GetEpoch(), m.GetVersion().GetSeq(), m.GetPod(), m.GetUid(), m.GetNode(), m.GetPlaced())
}

// lines reads n placements, skipping heartbeats.
func (b *berth) lines(stream grpc.ServerStreamingClient[schedulingv1.WatchPlacementsResponse], n int) []string {
	b.t.Helper()
	var all []string
	for len(all) < n {
		m, err := stream.Recv()
		if err != nil {
			b.t.Fatalf("after %q: %v", all, err)
		}
		if text := line(m); text != "" {
			all = append(all, text)
		}
	}
	return all
}

// refused returns the error that ends a stream.
func refused(stream grpc.ServerStreamingClient[schedulingv1.WatchPlacementsResponse]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func TestPlacementsAreWatchedFromAVersionOn(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(3)...)))
	b.ledger.apply(t, assumed(0, 0), assumed(1, 0), cluster.PodBound{ID: 0}, cluster.PodForgotten{ID: 1, Reason: "refused"})
	want := []string{
		"7/1 default/pod-0000 uid-0 node-00 true",
		"7/2 default/pod-0001 uid-1 node-00 true",
		"7/4 default/pod-0001 uid-1 node-00 false",
		"7/5 default/pod-0002 uid-2 node-00 true",
	}
	all, rest := b.watch(&schedulingv1.Version{Epoch: 7}), b.watch(&schedulingv1.Version{Epoch: 7, Seq: 2})
	if diff := cmp.Diff(want[:3], b.lines(all, 3)); diff != "" {
		t.Errorf("from 7/0 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[2:3], b.lines(rest, 1)); diff != "" {
		t.Errorf("from 7/2 (-want +got):\n%s", diff)
	}
	b.ledger.apply(t, assumed(2, 0))
	for what, stream := range map[string]grpc.ServerStreamingClient[schedulingv1.WatchPlacementsResponse]{"7/0": all, "7/2": rest} {
		if diff := cmp.Diff(want[3:], b.lines(stream, 1)); diff != "" {
			t.Errorf("live, from %s (-want +got):\n%s", what, diff)
		}
	}
}

func TestIdleWatchBeatsWithTheNewestVersion(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(1)...)), with(func(cfg *gateway.Config) { cfg.Heartbeat = 10 * time.Millisecond }))
	stream := b.watch(nil)
	if m, err := stream.Recv(); err != nil || m.GetUid() != "" || m.GetVersion().GetSeq() != 0 {
		t.Fatalf("first heartbeat %v, %v", m, err)
	}
	b.ledger.apply(t, node(1)) // no placement, but progress
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetVersion().GetSeq() == 1 {
			return
		}
	}
}

func TestLiveWatchGoesOnInTheNextEpoch(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, append(crowd(4), assumed(0, 0), assumed(1, 0))...)),
		with(func(cfg *gateway.Config) { cfg.Heartbeat = time.Hour }))
	stream := b.watch(&schedulingv1.Version{Epoch: 7})
	b.ledger.apply(t, assumed(2, 0))
	b.lines(stream, 1)
	// The next binder finds pod 1 unplaced, pod 2 on another node and pod 3 placed.
	b.ledger.reset(stateOf(t, 9, append(crowd(4), node(1), assumed(0, 0), assumed(2, 1), assumed(3, 0))...))
	want := []string{
		"7/1 default/pod-0001 uid-1 node-00 false",
		"7/1 default/pod-0002 uid-2 node-00 false",
		"7/1 default/pod-0002 uid-2 node-01 true",
		"7/1 default/pod-0003 uid-3 node-00 true",
	}
	if diff := cmp.Diff(want, b.lines(stream, 4)); diff != "" {
		t.Errorf("the change of epoch (-want +got):\n%s", diff)
	}
	m, err := stream.Recv()
	if err != nil || m.GetUid() != "" || m.GetVersion().GetEpoch() != 9 {
		t.Fatalf("after it %v, %v; want the first version of epoch 9", m, err)
	}
	b.ledger.apply(t, assumed(1, 1))
	if diff := cmp.Diff([]string{"9/1 default/pod-0001 uid-1 node-01 true"}, b.lines(stream, 1)); diff != "" {
		t.Errorf("in the next epoch (-want +got):\n%s", diff)
	}
	err = refused(b.watch(&schedulingv1.Version{Epoch: 7, Seq: 1}))
	if status.Code(err) != codes.OutOfRange || rpc.ReasonOf(err) != rpc.ReasonLogCompacted {
		t.Errorf("from the old epoch: %v, want OUT_OF_RANGE", err)
	}
}

func TestVersionsThatCannotBeWatchedFromAreRefused(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(9)...)), with(func(cfg *gateway.Config) { cfg.History = 4 }))
	for i := range 9 {
		b.ledger.apply(t, assumed(i, 0))
	}
	for _, test := range []struct {
		from *schedulingv1.Version
		want codes.Code
	}{
		{&schedulingv1.Version{Epoch: 7, Seq: 4}, codes.OutOfRange},
		{&schedulingv1.Version{Epoch: 6, Seq: 9}, codes.OutOfRange},
		{&schedulingv1.Version{}, codes.OutOfRange},
		{&schedulingv1.Version{Epoch: 7, Seq: 10}, codes.Unavailable},
		{&schedulingv1.Version{Epoch: 8}, codes.Unavailable},
		{&schedulingv1.Version{Epoch: math.MaxInt64, Seq: math.MaxInt64}, codes.Unavailable},
		{&schedulingv1.Version{Epoch: -1}, codes.InvalidArgument},
		{&schedulingv1.Version{Epoch: 7, Seq: math.MinInt64}, codes.InvalidArgument},
	} {
		if err := refused(b.watch(test.from)); status.Code(err) != test.want {
			t.Errorf("from %v: %v, want %v", test.from, err, test.want)
		}
	}
	if got := b.lines(b.watch(&schedulingv1.Version{Epoch: 7, Seq: 5}), 4); len(got) != 4 {
		t.Errorf("from the oldest version that is kept: %v", got)
	}
}

func TestWatcherThatNeverReadsIsCutOffAndHurtsNobody(t *testing.T) {
	const pods = 6000 // more than the buffers of a stream hold
	b := start(t, withState(stateOf(t, 7, crowd(pods)...)), with(func(cfg *gateway.Config) {
		cfg.Stall, cfg.MaxWatchers, cfg.Heartbeat = time.Second, 2, 20*time.Millisecond
	}))
	// A client widens its windows by what it sees of the network, unless it is told not to: then nothing would be too much for it.
	narrow, err := b.net.Dial("gateway", grpc.WithStaticStreamWindowSize(1<<16), grpc.WithStaticConnWindowSize(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = narrow.Close() }()
	idle, err := schedulingv1.NewSchedulingServiceClient(narrow).WatchPlacements(b.ctx, &schedulingv1.WatchPlacementsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	diligent := b.watch(nil)
	for _, stream := range []grpc.ServerStreamingClient[schedulingv1.WatchPlacementsResponse]{idle, diligent} {
		if _, err := stream.Recv(); err != nil { // a heartbeat: it has begun
			t.Fatal(err)
		}
	}
	if err := refused(b.watch(nil)); status.Code(err) != codes.ResourceExhausted || rpc.ReasonOf(err) != gateway.ReasonTooManyWatchers {
		t.Errorf("a third watcher: %v, want RESOURCE_EXHAUSTED", err)
	}
	var got []string
	for i := range pods {
		b.ledger.apply(t, assumed(i, 0))
		if n := i + 1; n%100 == 0 { // it reads as they come
			got = append(got, b.lines(diligent, 100)...)
		}
	}
	if want := fmt.Sprintf("7/%d default/pod-%04d uid-%d node-00 true", pods, pods-1, pods-1); got[pods-1] != want {
		t.Errorf("the last placement is %q, want %q", got[pods-1], want)
	}
	b.eventually("the place of the one that does not read is free", func() bool {
		_, err := b.watch(&schedulingv1.Version{Epoch: 7, Seq: pods - 1}).Recv()
		return err == nil
	})
	// What was on its way to it arrives; then it is told why there is no more.
	received := 0
	for {
		_, err := idle.Recv()
		if err == nil {
			received++
			continue
		}
		if status.Code(err) != codes.ResourceExhausted || rpc.ReasonOf(err) != gateway.ReasonTooSlow {
			t.Errorf("the end of the one that did not read: %v", err)
		}
		break
	}
	if received >= pods {
		t.Errorf("the one that did not read got all %d placements", received)
	}
}

func TestWatchersEndWhenTheGatewayStops(t *testing.T) {
	const pods = 6000
	b := start(t, withState(stateOf(t, 7, crowd(pods)...)), with(func(cfg *gateway.Config) {
		cfg.Stall, cfg.Heartbeat = time.Hour, 20*time.Millisecond
	}))
	from := &schedulingv1.Version{Epoch: 7}
	waiting, stuck := b.watch(nil), b.watch(from)
	if _, err := waiting.Recv(); err != nil { // a heartbeat: what comes from here on is for it
		t.Fatal(err)
	}
	for i := range pods {
		b.ledger.apply(t, assumed(i, 0))
	}
	b.lines(waiting, 1)
	b.lines(stuck, 1)
	begin := time.Now()
	b.stop()
	if took := time.Since(begin); took > patience {
		t.Errorf("the gateway took %v to stop", took)
	}
	if err := refused(waiting); errors.Is(err, io.EOF) {
		t.Error("a watch that was cut ended as if it were complete")
	}
}

func TestWatchersAreSentElsewhereWhenOnlyTheServiceEnds(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(1)...)), with(func(cfg *gateway.Config) { cfg.Heartbeat = time.Hour }))
	stream := b.watch(&schedulingv1.Version{Epoch: 7})
	b.ledger.apply(t, assumed(0, 0))
	b.lines(stream, 1)
	b.endRun()
	for what, err := range map[string]error{"a running watch": refused(stream), "a new one": refused(b.watch(nil))} {
		if status.Code(err) != codes.Unavailable || rpc.ReasonOf(err) != rpc.ReasonDraining {
			t.Errorf("%s: %v, want UNAVAILABLE, DRAINING", what, err)
		}
	}
}

func TestTwoGatewaysOfOneLedgerResumeEachOther(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(6)...)))
	other := start(t, func(cfg *gateway.Config, o *berth) { cfg.Replica, o.ledger = b.ledger, b.ledger })
	b.ledger.apply(t, assumed(0, 0), assumed(1, 0))
	stream := b.watch(&schedulingv1.Version{Epoch: 7})
	b.lines(stream, 2)
	b.ledger.apply(t, assumed(2, 0), assumed(3, 0))
	got := other.lines(other.watch(&schedulingv1.Version{Epoch: 7, Seq: 2}), 2)
	want := []string{"7/3 default/pod-0002 uid-2 node-00 true", "7/4 default/pod-0003 uid-3 node-00 true"}
	if !slices.Equal(got, want) {
		t.Errorf("resumed elsewhere: %q, want %q", got, want)
	}
}

// answered notes how an answer is compressed.
type answered chan string

func (a answered) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (a answered) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (a answered) HandleConn(context.Context, stats.ConnStats)                       {}
func (a answered) HandleRPC(_ context.Context, s stats.RPCStats) {
	if header, ok := s.(*stats.InHeader); ok {
		a <- header.Compression
	}
}

// By default a server of gRPC compresses each message for who compresses its request.
func TestAWatchIsNotCompressed(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, crowd(1)...)))
	headers := make(answered, 1)
	conn, err := b.net.Dial("gateway", grpc.WithStatsHandler(headers))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := schedulingv1.NewSchedulingServiceClient(conn).WatchPlacements(b.ctx, &schedulingv1.WatchPlacementsRequest{From: &schedulingv1.Version{Epoch: 7}}, grpc.UseCompressor(gzip.Name))
	if err != nil {
		t.Fatal(err)
	}
	b.ledger.apply(t, assumed(0, 0))
	b.lines(stream, 1)
	if by := <-headers; by != "" && by != encoding.Identity {
		t.Errorf("each message is compressed by %s", by)
	}
}
