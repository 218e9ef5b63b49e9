package replica_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/coord"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

// stream opens a stream by hand.
func stream(t *testing.T, network rpc.Network, address string, req *logv1.FollowRequest) logv1.LogService_FollowClient {
	t.Helper()
	clients := rpc.NewClients(rpc.Config{Net: network})
	conn, err := clients.Conn(address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(func() {
		cancel()
		if err := clients.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := logv1.NewLogServiceClient(conn).Follow(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func recv(t *testing.T, s logv1.LogService_FollowClient) *logv1.FollowResponse {
	t.Helper()
	m, err := s.Recv()
	if err != nil {
		t.Fatalf("Recv: %v", err)
	}
	return m
}

// drain reads to the end of the stream.
func drain(s logv1.LogService_FollowClient) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

// wide is a namespace that fills messages quickly.
func wide(n int) cluster.Delta {
	return cluster.NamespaceSet{Name: "default", Labels: []cluster.Label{{Key: "pad", Value: strings.Repeat("x", n)}}}
}

func TestFollowersOutlastASnapshotThatTakesLong(t *testing.T) {
	networks(t, func(t *testing.T, network rpc.Network, address string) {
		l := newLedger(t, replica.FeedConfig{})
		l.open(3)
		l.grow(t, 5)
		l.hold = make(chan struct{})
		at, _ := serve(t, network, address, l)

		impatient := func(cfg *replica.Config) { cfg.HeartbeatTimeout = 500 * time.Millisecond }
		f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), impatient)
		s := stream(t, network, at, &logv1.FollowRequest{Follower: "other"})
		for range 50 { // a second of them: more than the follower's patience
			if m := recv(t, s); m.GetKind() != logv1.FollowResponse_KIND_SNAPSHOT_FIRST || len(m.GetDeltas()) > 0 {
				t.Fatalf("while the snapshot is taken, the binder says %v", m)
			}
		}
		close(l.hold)
		f.reaches(t, l)
		for recv(t, s).GetKind() != logv1.FollowResponse_KIND_SNAPSHOT_LAST {
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.taken != 1 {
			t.Errorf("%d snapshots were taken for two followers that waited together", l.taken)
		}
	})
}

func TestFollowersBeyondTheBoundAreToldWhenToComeBack(t *testing.T) {
	networks(t, func(t *testing.T, network rpc.Network, address string) {
		l := newLedger(t, replica.FeedConfig{Followers: 1})
		l.open(3)
		at, _ := serve(t, network, address, l)
		recv(t, stream(t, network, at, &logv1.FollowRequest{Follower: "first"}))
		_, err := stream(t, network, at, &logv1.FollowRequest{Follower: "second"}).Recv()
		after, asked := rpc.RetryAfter(err)
		if status.Code(err) != codes.ResourceExhausted || rpc.ReasonOf(err) != replica.ReasonTooManyFollowers || !asked || after <= 0 {
			t.Errorf("the second is told %v, want RESOURCE_EXHAUSTED with %s and a time", err, replica.ReasonTooManyFollowers)
		}
	})
}

func TestOneRoleDoesNotKeepOthersFromFollowing(t *testing.T) {
	networks(t, func(t *testing.T, network rpc.Network, address string) {
		who := func(ctx context.Context) string {
			return strings.Join(metadata.ValueFromIncomingContext(ctx, "who"), "")
		}
		l := newLedger(t, replica.FeedConfig{Followers: 8, Caller: who})
		l.open(3)
		at, _ := serve(t, network, address, l)
		conn, err := network.Dial(at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		t.Cleanup(cancel)
		as := func(role string) error {
			s, err := logv1.NewLogServiceClient(conn).Follow(metadata.AppendToOutgoingContext(ctx, "who", role), &logv1.FollowRequest{})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		}
		for i := range 4 {
			if err := as("filter-worker"); err != nil {
				t.Fatalf("follower %d of 8: %v", i, err)
			}
		}
		if err := as("filter-worker"); rpc.ReasonOf(err) != replica.ReasonTooManyFollowers {
			t.Errorf("who has as many as are free: %v, want %s", err, replica.ReasonTooManyFollowers)
		}
		if err := as("queue"); err != nil {
			t.Errorf("another role: %v", err)
		}
	})
}

// To take one holds the ledger up, whoever asks for it.
func TestWhoFollowsAndLeavesAgainAndAgainHasOneSnapshotTaken(t *testing.T) {
	networks(t, func(t *testing.T, network rpc.Network, address string) {
		l := newLedger(t, replica.FeedConfig{KeepSnapshot: time.Hour})
		l.open(3)
		l.grow(t, 5)
		l.hold = make(chan struct{})
		at, _ := serve(t, network, address, l)
		conn, err := network.Dial(at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		for i := range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			s, err := logv1.NewLogServiceClient(conn).Follow(ctx, &logv1.FollowRequest{})
			if err != nil {
				t.Fatal(err)
			}
			recv(t, s)
			cancel()
			_ = drain(s)
			if i == 25 { // half of them leave before it is made
				close(l.hold)
			}
			l.grow(t, 1)
		}
		f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), nil)
		f.reaches(t, l)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.taken != 1 {
			t.Errorf("%d snapshots were taken for 50 followers, want 1", l.taken)
		}
	})
}

func TestASnapshotThatNobodyUsesIsDroppedInTime(t *testing.T) {
	networks(t, func(t *testing.T, network rpc.Network, address string) {
		l := newLedger(t, replica.FeedConfig{KeepSnapshot: time.Millisecond})
		l.open(3)
		at, _ := serve(t, network, address, l)
		until(t, func() bool {
			recv(t, stream(t, network, at, &logv1.FollowRequest{}))
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.taken > 1
		}, func() string { return "the one that is older than it may be is used on" })
	})
}

func TestASnapshotThatMayFallOutOfTheLogSoonIsNotGivenToNewcomers(t *testing.T) {
	networks(t, func(t *testing.T, network rpc.Network, address string) {
		l := newLedger(t, replica.FeedConfig{Ring: 8, KeepSnapshot: time.Hour})
		l.open(3)
		at, _ := serve(t, network, address, l)
		for taken := 1; taken <= 3; taken++ {
			f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), nil)
			f.reaches(t, l)
			l.mu.Lock()
			if l.taken != taken {
				t.Errorf("%d snapshots have been taken, want %d: the one before does not last", l.taken, taken)
			}
			l.mu.Unlock()
			l.grow(t, 5) // more than half of what is kept
		}
	})
}

func TestAFollowerThatReadsNothingIsCutOffWhileTheLogRests(t *testing.T) {
	networks(t, func(t *testing.T, network rpc.Network, address string) {
		l := newLedger(t, replica.FeedConfig{Heartbeat: time.Millisecond, SendWithin: time.Second})
		l.open(3)
		for range 300 {
			l.apply(t, wide(100_000)) // 30 MB, more than any buffer on the way
		}
		at, _ := serve(t, network, address, l)
		slow := stream(t, network, at, &logv1.FollowRequest{Follower: "slow"})
		until(t, func() bool { return value(t, l.metrics, "berth_log_followers_cut_off_total", "") == 1 }, func() string { return "it is not cut off" })
		if err := drain(slow); rpc.ReasonOf(err) != replica.ReasonSlowReader {
			t.Errorf("the stream ended with %v, want %s", err, replica.ReasonSlowReader)
		}
	})
}

func TestSlowFollowerIsCutOffAndOthersAreNot(t *testing.T) {
	networks(t, func(t *testing.T, network rpc.Network, address string) {
		l := newLedger(t, replica.FeedConfig{Ring: 64})
		l.open(3)
		at, _ := serve(t, network, address, l)
		f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), nil)
		l.grow(t, 5)
		f.reaches(t, l)

		slow := stream(t, network, at, &logv1.FollowRequest{Follower: "slow"})
		recv(t, slow) // and no more
		for range 300 {
			l.apply(t, wide(100_000)) // 30 MB, more than any buffer on the way
			f.reaches(t, l)
		}
		until(t, func() bool { return value(t, l.metrics, "berth_log_followers_cut_off_total", "") == 1 }, func() string { return "nobody is cut off" })
		until(t, func() bool { return value(t, l.metrics, "berth_log_followers", "") == 1 }, func() string { return "the stream is not over" })
		if n := f.count(t, "berth_replica_snapshots_total", ""); n != 1 {
			t.Errorf("the follower that reads loaded %v snapshots, want 1", n)
		}

		err := drain(slow)
		if status.Code(err) != codes.ResourceExhausted || rpc.ReasonOf(err) != replica.ReasonSlowReader {
			t.Errorf("the slow follower is told %v, want RESOURCE_EXHAUSTED with %s", err, replica.ReasonSlowReader)
		}
		if after, ok := rpc.RetryAfter(err); !ok || after != 0 {
			t.Errorf("the slow follower may come back after %v, %v; want at once", after, ok)
		}
	})
}

func TestFollowerThatNeverReadsIsCutOffInTheMiddleOfItsSnapshot(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{Ring: 10})
	l.open(3)
	l.apply(t, cluster.ClassDefined{ID: 1})
	for i := range 40 {
		l.apply(t, cluster.PodSet{ID: cluster.PodID(i), Pod: cluster.Pod{UID: string(rune('a' + i)), Class: 1, Gates: []string{strings.Repeat("x", 200_000)}}})
	}
	at, _ := serve(t, network, "", l)
	stuck := stream(t, network, at, &logv1.FollowRequest{Follower: "stuck"})
	until(t, func() bool { return value(t, l.metrics, "berth_log_snapshots_sent_total", "") == 1 }, func() string { return "no snapshot" })
	for range 20 {
		l.apply(t, wide(10))
	}
	until(t, func() bool { return value(t, l.metrics, "berth_log_followers", "") == 0 }, func() string { return "the stream is not over" })
	if err := drain(stuck); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the follower is told %v, want RESOURCE_EXHAUSTED", err)
	}
}

func TestMessagesAndSnapshotsAreCutToSize(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{Heartbeat: time.Hour})
	l.open(3)
	l.apply(t, cluster.ClassDefined{ID: 1})
	const pods = 50
	for i := range pods {
		l.apply(t, cluster.PodSet{ID: cluster.PodID(i), Pod: cluster.Pod{UID: string(rune('a' + i)), Class: 1, Gates: []string{strings.Repeat("x", 100_000)}}})
	}
	at, _ := serve(t, network, "", l)

	t.Run("snapshot", func(t *testing.T) {
		s := stream(t, network, at, &logv1.FollowRequest{})
		deltas, kinds := 0, ""
		for last := false; !last; {
			m := recv(t, s)
			size := 0
			for _, d := range m.GetDeltas() {
				size += len(d)
			}
			if size > 1<<20 {
				t.Errorf("a part of %d bytes", size)
			}
			if wire.Version(m.GetVersion()) != l.version() {
				t.Errorf("a part of version %v, want %v", m.GetVersion(), l.version())
			}
			deltas += len(m.GetDeltas())
			kinds += strings.TrimPrefix(m.GetKind().String(), "KIND_SNAPSHOT_") + " "
			last = m.GetKind() == logv1.FollowResponse_KIND_SNAPSHOT_LAST
			if _, digest := l.describe(); last && m.GetDigest() != digest {
				t.Errorf("digest %x, want %x", m.GetDigest(), digest)
			}
		}
		if deltas != pods+1 || kinds != "FIRST MORE MORE MORE MORE LAST " {
			t.Errorf("%d deltas in parts %s, want %d in 6", deltas, kinds, pods+1)
		}
	})
	t.Run("deltas by bytes", func(t *testing.T) {
		s := stream(t, network, at, &logv1.FollowRequest{From: &logv1.Version{Epoch: 3, Seq: 1}})
		for seq, size := cluster.Seq(1), 10; seq < l.version().Seq; {
			m := recv(t, s)
			seq += cluster.Seq(len(m.GetDeltas()))
			if want := min(size, int(l.version().Seq-seq)+len(m.GetDeltas())); len(m.GetDeltas()) != want || wire.Version(m.GetVersion()).Seq != seq {
				t.Fatalf("%d deltas up to %v, want %d up to %d", len(m.GetDeltas()), m.GetVersion(), want, seq)
			}
		}
	})
	t.Run("one large delta", func(t *testing.T) {
		from := l.version()
		l.apply(t, wide(3<<20))
		l.apply(t, wide(1))
		s := stream(t, network, at, &logv1.FollowRequest{From: wire.ToVersion(from)})
		if m := recv(t, s); len(m.GetDeltas()) != 1 {
			t.Errorf("%d deltas with one of 3 MiB, want it alone", len(m.GetDeltas()))
		}
	})
	t.Run("deltas by number", func(t *testing.T) {
		from := l.version()
		for range 5000 {
			l.apply(t, cluster.NamespaceRemoved{Name: "x"})
		}
		s := stream(t, network, at, &logv1.FollowRequest{From: wire.ToVersion(from)})
		if m := recv(t, s); len(m.GetDeltas()) != 4096 {
			t.Errorf("%d deltas, want 4096", len(m.GetDeltas()))
		}
		if m := recv(t, s); len(m.GetDeltas()) != 5000-4096 {
			t.Errorf("%d deltas, want the rest", len(m.GetDeltas()))
		}
	})
}

func TestDeltasFollowEachOtherFromWhereTheFollowerIs(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{Heartbeat: time.Hour})
	l.open(3)
	var want []cluster.Delta
	random := clustertest.Intn(l.random.IntN)
	for range 20 {
		d := clustertest.Delta(random, l.st)
		want = append(want, d)
		l.apply(t, d)
	}
	at, _ := serve(t, network, "", l)
	s := stream(t, network, at, &logv1.FollowRequest{From: &logv1.Version{Epoch: 3, Seq: 5}})
	var got []cluster.Delta
	for len(got) < 15 {
		for _, b := range recv(t, s).GetDeltas() {
			d, err := wire.Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, d)
		}
	}
	if diff := cmp.Diff(want[5:], got); diff != "" {
		t.Errorf("deltas after 3/5 (-want +got):\n%s", diff)
	}
}

func TestFollowerGetsASnapshotUnlessTheLedgerWasAsItSays(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{Ring: 20, Heartbeat: time.Hour})
	l.open(3)
	l.grow(t, 30)
	_, digest := l.describe()
	at30 := l.version()
	l.grow(t, 5)
	at, _ := serve(t, network, "", l)
	for _, c := range []struct {
		name string
		req  *logv1.FollowRequest
		want logv1.FollowResponse_Kind
	}{
		{"nothing", &logv1.FollowRequest{}, logv1.FollowResponse_KIND_SNAPSHOT_FIRST},
		{"its digest", &logv1.FollowRequest{From: wire.ToVersion(at30), Digest: digest}, logv1.FollowResponse_KIND_DELTAS},
		{"no digest", &logv1.FollowRequest{From: wire.ToVersion(at30)}, logv1.FollowResponse_KIND_DELTAS},
		{"another digest", &logv1.FollowRequest{From: wire.ToVersion(at30), Digest: digest + 1}, logv1.FollowResponse_KIND_SNAPSHOT_FIRST},
		{"the oldest that is kept", &logv1.FollowRequest{From: &logv1.Version{Epoch: 3, Seq: 15}}, logv1.FollowResponse_KIND_DELTAS},
		{"one older", &logv1.FollowRequest{From: &logv1.Version{Epoch: 3, Seq: 14}}, logv1.FollowResponse_KIND_SNAPSHOT_FIRST},
		{"the future", &logv1.FollowRequest{From: &logv1.Version{Epoch: 3, Seq: 36}}, logv1.FollowResponse_KIND_SNAPSHOT_FIRST},
		{"another epoch", &logv1.FollowRequest{From: &logv1.Version{Epoch: 2, Seq: 30}}, logv1.FollowResponse_KIND_SNAPSHOT_FIRST},
	} {
		t.Run(c.name, func(t *testing.T) {
			if m := recv(t, stream(t, network, at, c.req)); m.GetKind() != c.want {
				t.Errorf("first message is %v, want %v", m.GetKind(), c.want)
			}
		})
	}
	for field, req := range map[string]*logv1.FollowRequest{
		"from":     {From: &logv1.Version{Epoch: -1}},
		"follower": {Follower: strings.Repeat("x", 257)},
	} {
		_, err := stream(t, network, at, req).Recv()
		if v := rpc.Violations(err); status.Code(err) != codes.InvalidArgument || len(v) != 1 || v[0].Field != field {
			t.Errorf("a bad %s is answered %v", field, err)
		}
	}
}

func TestHeartbeatsProveTheDigestAlsoWhileTheLogIsBusy(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{})
	l.open(3)
	at, _ := serve(t, network, "", l)
	s := stream(t, network, at, &logv1.FollowRequest{})
	digests := sync.Map{}
	done := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				l.grow(t, 1)
				_, digest := l.describe()
				digests.Store(l.version().Seq, digest)
			}
		}
	})
	defer writer.Wait()
	defer close(done)
	for beats := 0; beats < 10; {
		m := recv(t, s)
		if m.GetKind() != logv1.FollowResponse_KIND_HEARTBEAT {
			continue
		}
		beats++
		if want, known := digests.Load(cluster.Seq(m.GetVersion().GetSeq())); known && m.GetDigest() != want {
			t.Errorf("heartbeat at %v has digest %x, want %x", m.GetVersion(), m.GetDigest(), want)
		}
	}
}

func TestStreamsEndUnavailableWhenTheTermDoes(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{})
	at, _ := serve(t, network, "", l)
	if _, err := stream(t, network, at, &logv1.FollowRequest{}).Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("before the first term: %v, want UNAVAILABLE", err)
	}
	l.open(3)
	l.grow(t, 5)
	for _, end := range []func(){l.feed.Close, func() { l.open(5) }} {
		s := stream(t, network, at, &logv1.FollowRequest{})
		recv(t, s)
		end()
		if err := drain(s); status.Code(err) != codes.Unavailable || rpc.ReasonOf(err) != rpc.ReasonNotReady {
			t.Errorf("the stream ends with %v, want UNAVAILABLE", err)
		}
		l.open(4)
	}
	l.feed.Close()
	l.feed.Close()
	if head := l.feed.Head(); !head.IsZero() {
		t.Errorf("head of a closed feed is %v", head)
	}
}

func TestAppendRefusesWhatFollowersCouldNotFold(t *testing.T) {
	feed := replica.NewFeed(replica.FeedConfig{})
	v := func(epoch cluster.Epoch, seq cluster.Seq) cluster.Version {
		return cluster.Version{Epoch: epoch, Seq: seq}
	}
	d := cluster.NamespaceSet{Name: "dev"}
	if err := feed.Append(v(3, 1), replica.Change{Delta: d, Digest: 1}); err == nil {
		t.Error("a closed feed takes deltas")
	}
	feed.Open(v(3, 7), 1)
	defer feed.Close()
	for _, c := range []struct {
		name string
		d    cluster.Delta
		v    cluster.Version
	}{
		{"repeated", d, v(3, 7)},
		{"gap", d, v(3, 9)},
		{"other epoch", d, v(4, 8)},
		{"not UTF-8", cluster.NamespaceSet{Name: "\xff"}, v(3, 8)},
		{"too large", wide(17 << 20), v(3, 8)},
	} {
		if err := feed.Append(c.v, replica.Change{Delta: c.d, Digest: 2}); err == nil {
			t.Errorf("%s: Append of %T at %v succeeded", c.name, c.d, c.v)
		}
	}
	// Of a transaction that cannot be told whole, nothing is.
	if err := feed.Append(v(3, 9), replica.Change{Delta: d}, replica.Change{Delta: cluster.NamespaceSet{Name: "\xff"}}); err == nil {
		t.Error("a transaction of which a delta cannot be told is taken")
	}
	if err := feed.Append(v(3, 9), replica.Change{Delta: wide(9 << 20)}, replica.Change{Delta: wide(9 << 20)}); err == nil {
		t.Error("a transaction larger than a message is taken")
	}
	if err := feed.Append(v(3, 8), replica.Change{Delta: d, Digest: 2}); err != nil {
		t.Errorf("Append of the next delta: %v", err)
	}
	if feed.Head() != v(3, 8) {
		t.Errorf("head is %v, want 3/8", feed.Head())
	}
}

// countedSnapshots counts how often the ledger is encoded.
type countedSnapshots struct {
	*ledger
	n     int
	block chan struct{}
}

func (c *countedSnapshots) Snapshot(encode func(*cluster.State)) {
	c.n++ // one at a time
	c.ledger.Snapshot(encode)
}

func (c *countedSnapshots) Follow(req *logv1.FollowRequest, s logv1.LogService_FollowServer) error {
	return c.feed.Follow(req, &blockedStream{s, c.block}, c)
}

// blockedStream holds up the last part of a snapshot.
type blockedStream struct {
	logv1.LogService_FollowServer
	block chan struct{}
}

func (s *blockedStream) Send(m *logv1.FollowResponse) error {
	if m.GetKind() == logv1.FollowResponse_KIND_SNAPSHOT_LAST {
		<-s.block
	}
	return s.LogService_FollowServer.Send(m)
}

func TestFollowersOfTheSameMomentShareASnapshot(t *testing.T) {
	network := rpc.Memory()
	// With a heartbeat, an empty first part would say that a snapshot takes long.
	l := newLedger(t, replica.FeedConfig{Heartbeat: time.Hour, KeepSnapshot: time.Millisecond})
	l.open(3)
	l.grow(t, 50)
	c := &countedSnapshots{ledger: l, block: make(chan struct{})}
	listener, err := network.Listen("")
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer(rpc.Config{Net: network}, "binder", rpc.WithDrain(time.Second))
	logv1.RegisterLogServiceServer(server.Registrar(), c)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()

	at := network.Advertise(listener, "")
	var streams []logv1.LogService_FollowClient
	for range 5 {
		s := stream(t, network, at, &logv1.FollowRequest{})
		recv(t, s)
		streams = append(streams, s)
	}
	l.grow(t, 10)
	close(c.block)
	for _, s := range streams {
		for wire.Version(recv(t, s).GetVersion()) != l.version() {
		}
	}
	if c.n != 1 {
		t.Errorf("the ledger was encoded %d times for 5 followers", c.n)
	}
	until(t, func() bool { // that one is old enough
		return wire.Version(recv(t, stream(t, network, at, &logv1.FollowRequest{})).GetVersion()) == l.version()
	}, func() string { return "a later follower gets no new snapshot" })
	if c.n != 2 {
		t.Errorf("a later follower gets the %dth snapshot, want the 2nd", c.n)
	}
}

// failing ends with an error after the messages it was given.
type failing struct{ logv1.LogService_FollowServer }

func (failing) Context() context.Context         { return context.Background() }
func (failing) Send(*logv1.FollowResponse) error { return io.ErrClosedPipe }

func TestFollowEndsWhenItsStreamBreaks(t *testing.T) {
	l := newLedger(t, replica.FeedConfig{})
	l.open(3)
	if err := l.feed.Follow(&logv1.FollowRequest{}, failing{}, l); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Follow: %v, want what Send returned", err)
	}
}
