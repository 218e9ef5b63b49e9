package replica_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/coord"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 5 * time.Minute

// until waits for condition, which why explains when it does not come.
func until(t *testing.T, condition func() bool, why func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatal("waited too long: " + why())
		}
		<-time.After(time.Millisecond)
	}
}

// ledger is a binder reduced to what the log needs.
type ledger struct {
	logv1.UnimplementedLogServiceServer
	feed    *replica.Feed
	metrics *prometheus.Registry

	mu     sync.Mutex
	st     *cluster.State
	random *rand.Rand
	taken  int           // snapshots
	hold   chan struct{} // if not nil, snapshots wait until it is closed

	// change, if set, may change a message before it is sent; a nil one is not sent.
	change func(*logv1.FollowResponse) *logv1.FollowResponse
}

func newLedger(t *testing.T, cfg replica.FeedConfig) *ledger {
	t.Helper()
	l := &ledger{metrics: prometheus.NewRegistry(), random: rand.New(rand.NewPCG(1, 2))}
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = 20 * time.Millisecond
	}
	cfg.Metrics = l.metrics
	l.feed = replica.NewFeed(cfg)
	t.Cleanup(l.feed.Close)
	return l
}

// open begins an epoch with an empty ledger.
func (l *ledger) open(epoch cluster.Epoch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.st = cluster.New(cluster.Version{Epoch: epoch})
	l.feed.Open(l.st.Version(), l.st.Digest())
}

func (l *ledger) apply(t *testing.T, d cluster.Delta) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.st.Apply(d); err != nil {
		t.Fatal(err)
	}
	if err := l.feed.Append(l.st.Version(), replica.Change{Delta: d, Digest: l.st.Digest()}); err != nil {
		t.Fatal(err)
	}
}

// grow applies n random deltas.
func (l *ledger) grow(t *testing.T, n int) {
	t.Helper()
	for range n {
		l.mu.Lock()
		d := clustertest.Delta(l.random.IntN, l.st)
		l.mu.Unlock()
		l.apply(t, d)
	}
}

func (l *ledger) version() cluster.Version {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.st.Version()
}

func (l *ledger) describe() (string, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return clustertest.Dump(l.st), l.st.Digest()
}

func (l *ledger) Snapshot(encode func(*cluster.State)) {
	if l.hold != nil {
		<-l.hold
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken++
	encode(l.st)
}

func (l *ledger) Follow(req *logv1.FollowRequest, stream logv1.LogService_FollowServer) error {
	return l.feed.Follow(req, &changedStream{stream, l}, l)
}

type changedStream struct {
	logv1.LogService_FollowServer
	l *ledger
}

func (s *changedStream) Send(m *logv1.FollowResponse) error {
	s.l.mu.Lock()
	if s.l.change != nil {
		m = s.l.change(m)
	}
	s.l.mu.Unlock()
	if m == nil {
		return nil
	}
	return s.LogService_FollowServer.Send(m)
}

// intercept sets change.
func (l *ledger) intercept(change func(*logv1.FollowResponse) *logv1.FollowResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.change = change
}

// serve serves the ledger until stop is called. The address may be "".
func serve(t *testing.T, network rpc.Network, address string, l *ledger) (at string, stop func()) {
	t.Helper()
	listener, err := network.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer(rpc.Config{Net: network}, "binder", rpc.WithDrain(time.Second))
	logv1.RegisterLogServiceServer(server.Registrar(), l)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return network.Advertise(listener, ""), stop
}

// leaders says who leads.
type leaders struct{ ch chan coord.Leader }

func (l *leaders) WatchLeader(context.Context) <-chan coord.Leader { return l.ch }

func newLeaders(first ...coord.Leader) *leaders {
	l := &leaders{ch: make(chan coord.Leader, 16)}
	for _, leader := range first {
		l.ch <- leader
	}
	return l
}

// follower is a replica that runs.
type follower struct {
	*replica.Replica
	metrics *prometheus.Registry
}

func (f *follower) count(t *testing.T, name, label string) float64 {
	return value(t, f.metrics, name, label)
}

func value(t *testing.T, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func follow(t *testing.T, network rpc.Network, l replica.Leaders, change func(*replica.Config)) *follower {
	t.Helper()
	clients := rpc.NewClients(rpc.Config{Net: network})
	f := &follower{metrics: prometheus.NewRegistry()}
	cfg := replica.Config{Member: t.Name(), Leaders: l, Conns: clients, Metrics: f.metrics}
	if change != nil {
		change(&cfg)
	}
	var err error
	if f.Replica, err = replica.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := clients.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// reaches waits until the replica has the ledger's version, and compares the two whole.
func (f *follower) reaches(t *testing.T, l *ledger) {
	t.Helper()
	want := l.version()
	until(t, func() bool { return f.Version() == want }, func() string {
		return fmt.Sprintf("replica is at %v, the ledger at %v: %v", f.Version(), want, f.Ready())
	})
	dump, digest := l.describe()
	if f.Digest() != digest {
		t.Errorf("digest at %v is %x, the ledger's is %x", want, f.Digest(), digest)
	}
	err := f.Read(t.Context(), want, func(st *cluster.State) error {
		if diff := cmp.Diff(dump, clustertest.Dump(st)); diff != "" {
			t.Errorf("replica at %v (-ledger +replica):\n%s", want, diff)
		}
		return nil
	})
	if err != nil {
		t.Errorf("Read at %v: %v", want, err)
	}
}

// journal writes down what a subscriber is told. It lives under the replica's lock.
type journal struct {
	t      *testing.T
	last   cluster.Version
	resets int
	deltas int
	twin   *cluster.State // folds the deltas on its own
}

func (j *journal) Reset(st *cluster.State) {
	j.resets++
	j.twin = cluster.New(st.Version())
	for d := range st.Snapshot() {
		if err := j.twin.Apply(d); err != nil {
			j.t.Errorf("Reset: %v", err)
		}
	}
	j.twin.Restore(st.Version())
	j.last = st.Version()
}

func (j *journal) Applied(st *cluster.State, d cluster.Delta) {
	j.deltas++
	if want := (cluster.Version{Epoch: j.last.Epoch, Seq: j.last.Seq + 1}); st.Version() != want {
		j.t.Errorf("subscriber hears of %v behind %v", st.Version(), j.last)
	}
	j.last = st.Version()
	if err := j.twin.Apply(d); err != nil || j.twin.Digest() != st.Digest() {
		j.t.Errorf("subscriber's own fold at %v: %v, digest %x, want %x", st.Version(), err, j.twin.Digest(), st.Digest())
	}
}

func networks(t *testing.T, test func(t *testing.T, network rpc.Network, address string)) {
	t.Run("memory", func(t *testing.T) { test(t, rpc.Memory(), "") })
	t.Run("tcp", func(t *testing.T) { test(t, rpc.TCP(), "127.0.0.1:0") })
}
