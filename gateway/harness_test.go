package gateway_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ledger is a replica whose log is the test.
type ledger struct {
	mu          sync.RWMutex
	state       *cluster.State // nil: not loaded
	head        cluster.Version
	subscribers []replica.Subscriber
	afterRead   func() // called once, after the next read
}

func (l *ledger) Read(_ context.Context, min cluster.Version, fn func(*cluster.State) error) error {
	defer func() {
		l.mu.Lock()
		after := l.afterRead
		l.afterRead = nil
		l.mu.Unlock()
		if after != nil {
			after()
		}
	}()
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.state == nil {
		return replica.ErrNotLoaded
	}
	if have := l.state.Version(); !min.IsZero() && (have.Epoch != min.Epoch || have.Less(min)) {
		return &replica.BehindError{Have: have, Want: min}
	}
	return fn(l.state)
}

func (l *ledger) Subscribe(s replica.Subscriber) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscribers = append(l.subscribers, s)
	if l.state != nil {
		s.Reset(l.state)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.subscribers = slices.DeleteFunc(l.subscribers, func(o replica.Subscriber) bool { return o == s })
	}
}

func (l *ledger) Version() cluster.Version {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.state == nil {
		return cluster.Version{}
	}
	return l.state.Version()
}

func (l *ledger) Head() cluster.Version {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.head
}

func (l *ledger) Heard() time.Time { return time.Now().Add(-time.Second) }

func (l *ledger) Ready() error {
	if l.Version().IsZero() {
		return replica.ErrNotLoaded
	}
	return nil
}

// reset replaces the state, as a snapshot does.
func (l *ledger) reset(st *cluster.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = st
	if st == nil {
		return
	}
	l.head = st.Version()
	for _, s := range l.subscribers {
		s.Reset(st)
	}
}

func (l *ledger) apply(t testing.TB, deltas ...cluster.Delta) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range deltas {
		if err := l.state.Apply(d); err != nil {
			t.Fatal(err)
		}
		l.head = l.state.Version()
		for _, s := range l.subscribers {
			s.Applied(l.state, d)
		}
	}
}

// stateOf returns a state of version (epoch, 0) that the deltas have built.
func stateOf(t testing.TB, epoch cluster.Epoch, deltas ...cluster.Delta) *cluster.State {
	t.Helper()
	st := cluster.New(cluster.Version{Epoch: epoch})
	for _, d := range deltas {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	st.Restore(cluster.Version{Epoch: epoch})
	return st
}

var oneClass = []cluster.Delta{
	cluster.SettingsSet{Settings: cluster.Settings{Shards: 2, Source: "local"}},
	cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{
		SchedulerName: "berth", Requests: []cluster.Quantity{{Name: "cpu", Value: 500}, {Name: "memory", Value: 1 << 30}},
	}},
}

// node returns a node of 8 CPUs.
func node(i int) cluster.NodeSet {
	return cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{
		Name:        fmt.Sprintf("node-%02d", i),
		Labels:      []cluster.Label{{Key: "zone", Value: "a"}},
		Allocatable: []cluster.Quantity{{Name: "cpu", Value: 8000}, {Name: "memory", Value: 16 << 30}, {Name: "pods", Value: 110}},
	}}
}

// pod returns a pending pod of namespace default.
func pod(i int) cluster.PodSet {
	return cluster.PodSet{ID: cluster.PodID(i), Pod: cluster.Pod{
		UID: fmt.Sprintf("uid-%d", i), Namespace: "default", Name: fmt.Sprintf("pod-%04d", i), Class: 1,
	}}
}

// assumed places pod i on node n.
func assumed(i, n int) cluster.PodAssumed {
	return cluster.PodAssumed{ID: cluster.PodID(i), Node: cluster.NodeIndex(n), Attempt: 1}
}

// cast is who coordination says is there.
type cast struct {
	mu      sync.Mutex
	members []coord.Member
	leader  coord.Leader
	shards  []coord.ShardOwner
	silent  bool // it says nothing at all
	changed chan struct{}
}

func (c *cast) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *cast) WatchMembers(ctx context.Context) <-chan []coord.Member {
	return watch(ctx, c, func() []coord.Member { return slices.Clone(c.members) })
}
func (c *cast) WatchLeader(ctx context.Context) <-chan coord.Leader {
	return watch(ctx, c, func() coord.Leader { return c.leader })
}
func (c *cast) WatchShards(ctx context.Context) <-chan []coord.ShardOwner {
	return watch(ctx, c, func() []coord.ShardOwner { return slices.Clone(c.shards) })
}

func watch[T any](ctx context.Context, c *cast, read func() T) <-chan T {
	out := make(chan T)
	go func() {
		defer close(out)
		for {
			c.mu.Lock()
			value, changed, silent := read(), c.changed, c.silent
			c.mu.Unlock()
			if !silent {
				select {
				case out <- value:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// berth is a gateway with everything around it, over a memory network.
type berth struct {
	t       testing.TB
	ctx     context.Context
	ledger  *ledger
	cast    *cast
	net     rpc.Network
	clients *rpc.Clients
	guard   rpc.Guard // nil: everyone is let in
	behind  bool      // the server is one that this process forwards to
	service *gateway.Service
	client  schedulingv1.SchedulingServiceClient
	conn    *grpc.ClientConn
	endRun  func() // ends Run and leaves the server as it is
	stop    func()
}

type option func(*gateway.Config, *berth)

func withState(st *cluster.State) option {
	return func(_ *gateway.Config, b *berth) { b.ledger.state, b.ledger.head = st, st.Version() }
}

func with(change func(*gateway.Config)) option {
	return func(cfg *gateway.Config, _ *berth) { change(cfg) }
}

func start(t testing.TB, options ...option) *berth {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b := &berth{
		t: t, ctx: ctx, net: rpc.Memory(), ledger: &ledger{},
		cast: &cast{changed: make(chan struct{}), leader: coord.Leader{Epoch: 7, ID: "binder-0", Address: "binder"}},
	}
	config := rpc.Config{Net: b.net}
	b.clients = rpc.NewClients(config)
	cfg := gateway.Config{Replica: b.ledger, Coord: b.cast, Conns: b.clients, PeerTimeout: patience} // who is silent is the fact of tests that say so
	for _, o := range options {
		o(&cfg, b)
	}
	var err error
	if b.service, err = gateway.New(cfg); err != nil {
		t.Fatal(err)
	}
	opts := []rpc.Option{rpc.WithRequestLimit(rpc.PublicRequestLimit), rpc.WithPublic(b.guard), rpc.WithReview(10 * time.Millisecond)}
	if b.behind {
		opts = append(opts, rpc.WithForwarding())
	}
	server := rpc.NewServer(config, "gateway", opts...)
	b.service.Register(server.Registrar())
	var running sync.WaitGroup
	runCtx, endRun := context.WithCancel(ctx)
	b.endRun = endRun
	running.Go(func() {
		if err := b.service.Run(runCtx); err != nil {
			t.Errorf("run gateway: %v", err)
		}
	})
	b.serve(&running, "gateway", server)
	if b.conn, err = b.clients.Conn("gateway"); err != nil {
		t.Fatal(err)
	}
	b.client = schedulingv1.NewSchedulingServiceClient(b.conn)
	b.stop = sync.OnceFunc(func() {
		endRun()
		cancel()
		if err := b.clients.Close(); err != nil {
			t.Error(err)
		}
		running.Wait()
	})
	t.Cleanup(b.stop)
	b.eventually("the gateway is ready", func() bool { return b.service.Ready() == nil || b.ledger.Version().IsZero() || b.cast.silent })
	return b
}

func (b *berth) serve(running *sync.WaitGroup, address string, server *rpc.Server) {
	b.t.Helper()
	l, err := b.net.Listen(address)
	if err != nil {
		b.t.Fatal(err)
	}
	running.Go(func() {
		if err := server.Serve(b.ctx, l); err != nil {
			b.t.Errorf("serve %s: %v", address, err)
		}
	})
}

// patience is for hangs only: how fast a machine is, is no fact about the gateway.
const patience = 5 * time.Minute

// eventually waits for a fact.
func (b *berth) eventually(what string, holds func() bool) {
	b.t.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			b.t.Fatalf("not within %v: %s", patience, what)
		}
		<-ticker.C
	}
}

// started is when all peers started.
var started = time.Unix(1_700_000_000, 0)

// peer is another member.
type peer struct {
	queuev1.UnimplementedQueueServiceServer
	role    coord.Role
	id      string
	version cluster.Version
	ready   error
	standby bool   // it does its part all the same
	drain   func() // nil: it shares its process
	shards  []*queuev1.Shard

	mu      sync.Mutex
	pending map[string]*queuev1.PendingPod // by uid
	calls   [][]string                     // the uids of each GetPending
	block   chan struct{}                  // if not nil, answers wait for it or for the caller to give up
}

func (p *peer) wait(ctx context.Context) error {
	if p.block == nil {
		return nil
	}
	select {
	case <-p.block:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *peer) GetShards(ctx context.Context, _ *queuev1.GetShardsRequest) (*queuev1.GetShardsResponse, error) {
	return &queuev1.GetShardsResponse{Shards: p.shards}, p.wait(ctx)
}

func (p *peer) GetPending(ctx context.Context, req *queuev1.GetPendingRequest) (*queuev1.GetPendingResponse, error) {
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, req.GetUids())
	response := &queuev1.GetPendingResponse{}
	for _, uid := range req.GetUids() {
		if pod := p.pending[uid]; pod != nil {
			pod = proto.CloneOf(pod)
			if !req.GetAhead() {
				pod.Ahead = nil
			}
			response.Pods = append(response.Pods, pod)
		}
	}
	return response, nil
}

// join serves a peer at an address named like its id, and makes it a member.
func (b *berth) join(p *peer) {
	b.t.Helper()
	server := rpc.NewServer(rpc.Config{Net: b.net}, string(p.role))
	m, err := member.New(member.Config{
		ID: p.id, Role: string(p.role), Version: func() cluster.Version { return p.version }, Ready: func() error { return p.ready },
		Available: func() error {
			if p.standby {
				return nil
			}
			return p.ready
		},
		Drain: p.drain, Build: "v1.2.3", Started: started,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	m.Register(server.Registrar())
	if p.role == coord.RoleQueue {
		queuev1.RegisterQueueServiceServer(server.Registrar(), p)
	}
	var running sync.WaitGroup
	b.serve(&running, p.id, server)
	stop := b.stop
	b.stop = sync.OnceFunc(func() { stop(); running.Wait() })
	b.t.Cleanup(b.stop)
	b.member(coord.Member{Role: p.role, ID: p.id, Address: p.id})
}

// member makes coordination tell of a member, whether there is one or not.
func (b *berth) member(m coord.Member) {
	b.cast.change(func() { b.cast.members = append(b.cast.members, m) })
}

// objects keeps manifests in memory.
type objects struct {
	mu      sync.Mutex
	applied []string
	err     error
	there   map[string]bool // for Delete
}

func (o *objects) Apply(_ context.Context, all []manifest.Object, dryRun bool) ([]local.Applied, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil, o.err
	}
	var out []local.Applied
	for _, x := range all {
		if !dryRun {
			o.applied = append(o.applied, x.String())
		}
		out = append(out, local.Applied{Kind: x.Kind(), Namespace: x.NamespaceName(), Name: x.Name(), Result: local.Created})
	}
	return out, nil
}

func (o *objects) Delete(_ context.Context, kind, namespace, name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if key := kind + " " + namespace + "/" + name; !o.there[key] {
		return fmt.Errorf("delete %s: %w", key, local.ErrNotFound)
	}
	return o.err
}

// listen opens a TCP socket on loopback.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
