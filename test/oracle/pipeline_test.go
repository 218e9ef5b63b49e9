package oracle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/services/binder"
	"github.com/berth-scheduler/berth/services/filter"
	"github.com/berth-scheduler/berth/services/queue"
	"github.com/berth-scheduler/berth/services/score"
)

// crew says how many there are of each role, and how large batches are.
type crew struct {
	queues, filters, scores int
	batch                   int
	extenders               *extender.Set // nil: there are none
}

// leaseTTL is longer than any pause of a busy machine: no member is lost.
const leaseTTL = time.Minute

// pipeline is a whole Berth in this process: a binder, its log, and the workers, each with a replica of its own. They
// talk over gRPC in memory, and find each other through etcd.
type pipeline struct {
	network rpc.Network
	rpc     rpc.Config
	clients *rpc.Clients
	etcd    *coord.Client
	log     *slog.Logger
	members *errgroup.Group
	cancel  context.CancelFunc
	stopped bool

	source  *script
	binder  *binder.Service
	queues  []*queue.Service
	follows []*replica.Replica // of the queues
	record  *record
}

// startEtcd runs an etcd that ends with the test.
func startEtcd(t *testing.T) []string {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	etcd, err := coord.StartEmbedded(ctx, coord.EmbeddedConfig{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
	})
	return etcd.Endpoints()
}

// startPipeline runs a Berth whose keys in etcd have a prefix of their own. It has no cluster yet.
func startPipeline(t *testing.T, endpoints []string, prefix string, settings cluster.Settings, c crew) *pipeline {
	etcd, err := coord.Connect(coord.Config{Endpoints: endpoints, Prefix: prefix, RequestTimeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	p := &pipeline{
		network: rpc.Memory(), etcd: etcd, source: newScript(), record: newRecord(),
		log: slog.New(slog.NewTextHandler(logWriter{t}, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	p.rpc = rpc.Config{Net: p.network, Log: p.log}
	p.clients = rpc.NewClients(p.rpc)
	ctx, cancel := context.WithCancel(t.Context())
	p.cancel = cancel
	p.members, ctx = errgroup.WithContext(ctx)
	t.Cleanup(func() { p.stop(t) })
	if err := p.start(ctx, settings, c); err != nil {
		t.Fatalf("start Berth: %v", err)
	}
	p.await(t, "Berth to be ready", p.ready)
	return p
}

// start makes and runs every role.
func (p *pipeline) start(ctx context.Context, settings cluster.Settings, c crew) error {
	var err error
	cfg := binder.Config{
		ID: "binder", Address: "binder", Coord: p.etcd, Source: p.source, Settings: settings, BindTimeouts: bindTimeouts(settings), LeaseTTL: leaseTTL, Log: p.log,
	}
	if c.extenders != nil {
		cfg.Extenders, cfg.Objects = c.extenders, p.source
		p.source.interest = func(pod *v1.Pod) uint64 { return uint64(c.extenders.Interest(extender.ResourceNames(pod))) }
	}
	p.binder, err = binder.New(cfg)
	if err != nil {
		return err
	}
	p.members.Go(func() error { return p.binder.Run(ctx) })
	if err := p.serve(ctx, coord.RoleBinder, "binder", p.binder.Register); err != nil {
		return err
	}
	follower, err := p.follow(ctx, "follower")
	if err != nil {
		return err
	}
	follower.Subscribe(p.record)
	for i := range c.filters {
		id := fmt.Sprintf("filter-%d", i)
		r, err := p.follow(ctx, id)
		if err != nil {
			return err
		}
		s, err := filter.New(filter.Config{Replica: r, Evaluator: engine.NewEvaluator(engine.EvaluatorConfig{})})
		if err != nil {
			return err
		}
		if err := p.serve(ctx, coord.RoleFilterWorker, id, s.Register); err != nil {
			return err
		}
	}
	for i := range c.scores {
		id := fmt.Sprintf("score-%d", i)
		r, err := p.follow(ctx, id)
		if err != nil {
			return err
		}
		s, err := score.New(score.Config{Replica: r, Evaluator: engine.NewEvaluator(engine.EvaluatorConfig{})})
		if err != nil {
			return err
		}
		if err := p.serve(ctx, coord.RoleScoreWorker, id, s.Register); err != nil {
			return err
		}
	}
	for i := range c.queues {
		if err := p.startQueue(ctx, fmt.Sprintf("queue-%d", i), c.batch); err != nil {
			return err
		}
	}
	return nil
}

// bindTimeouts say how long Berth waits for claims to be bound: long enough for the controller of volumes that is played, and no longer, for some it does not bind.
func bindTimeouts(settings cluster.Settings) map[string]time.Duration {
	out := make(map[string]time.Duration)
	for i := range settings.Profiles {
		out[settings.Profiles[i].SchedulerName] = 3 * time.Second
	}
	return out
}

func (p *pipeline) startQueue(ctx context.Context, id string, batch int) error {
	r, err := p.follow(ctx, id)
	if err != nil {
		return err
	}
	s, err := queue.New(queue.Config{
		ID: id, Replica: r, Evaluator: engine.NewEvaluator(engine.EvaluatorConfig{}), Coord: p.etcd, Clients: p.clients,
		NewSession: func(ctx context.Context) (queue.Session, error) { return p.etcd.NewSession(ctx, leaseTTL) },
		BatchSize:  batch, Log: p.log,
	})
	if err != nil {
		return err
	}
	p.queues, p.follows = append(p.queues, s), append(p.follows, r)
	p.members.Go(func() error { return s.Run(ctx) })
	return p.serve(ctx, coord.RoleQueue, id, s.Register)
}

// follow runs a replica of the log.
func (p *pipeline) follow(ctx context.Context, id string) (*replica.Replica, error) {
	r, err := replica.New(replica.Config{
		Member: id, Leaders: p.etcd, Conns: p.clients, Log: p.log, Wait: 10 * time.Second, HeartbeatTimeout: leaseTTL,
	})
	if err != nil {
		return nil, err
	}
	p.members.Go(func() error { return r.Run(ctx) })
	return r, nil
}

// serve serves a member under its id, and registers it.
func (p *pipeline) serve(ctx context.Context, role coord.Role, id string, register func(grpc.ServiceRegistrar)) error {
	listener, err := p.network.Listen(id)
	if err != nil {
		return err
	}
	server := rpc.NewServer(p.rpc, string(role), rpc.WithDrain(time.Second))
	register(server.Registrar())
	p.members.Go(func() error { return server.Serve(ctx, listener) })
	session, err := p.etcd.NewSession(ctx, leaseTTL)
	if err != nil {
		return err
	}
	return session.Register(ctx, coord.Member{Role: role, ID: id, Address: id})
}

// stop ends all members and waits for them. It may be called again.
func (p *pipeline) stop(t *testing.T) {
	if p.stopped {
		return
	}
	p.stopped = true
	p.cancel()
	if err := p.members.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Berth ended with: %v", err)
	}
	if err := errors.Join(p.clients.Close(), p.etcd.Close()); err != nil {
		t.Errorf("close: %v", err)
	}
}

// ready returns why no pod can be scheduled.
func (p *pipeline) ready() error {
	for _, q := range p.queues {
		if err := q.Ready(); err != nil {
			return err
		}
	}
	return p.record.ready()
}

// settled returns why Berth still has something to do: it has not been told everything, or a pod is neither bound nor
// unschedulable nor gated.
func (p *pipeline) settled() error {
	if n := p.source.untold(); n > 0 {
		return fmt.Errorf("the binder has not been told %d events", n)
	}
	version, queued := p.binder.Version(), 0
	for i, q := range p.queues {
		if v := p.follows[i].Version(); v != version {
			return fmt.Errorf("a queue is at version %v, the binder at %v", v, version)
		}
		shards, err := q.GetShards(context.Background(), &queuev1.GetShardsRequest{})
		if err != nil {
			return err
		}
		for _, shard := range shards.GetShards() {
			if shard.GetLooks() {
				return fmt.Errorf("shard %d has not looked at all that has happened", shard.GetShard())
			}
		}
		for token := ""; ; {
			page, err := q.ListPending(context.Background(), &queuev1.ListPendingRequest{PageSize: 1000, PageToken: token})
			if err != nil {
				return err
			}
			queued += len(page.GetPods())
			for _, pod := range page.GetPods() {
				if s := pod.GetState(); s != queuev1.State_STATE_UNSCHEDULABLE && s != queuev1.State_STATE_GATED {
					return fmt.Errorf("pod %s is %v", pod.GetName(), s)
				}
			}
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
	}
	if err := p.record.settled(version, queued); err != nil {
		return err
	}
	if p.source.untold() > 0 || p.binder.Version() != version {
		return fmt.Errorf("something has happened since version %v", version)
	}
	return nil
}

// patience bounds how long anything may take.
const patience = 3 * time.Minute

// await polls until nothing is in the way any more.
func (p *pipeline) await(t *testing.T, what string, inTheWay func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for {
		err := inTheWay()
		if err == nil {
			return
		}
		select {
		case <-late:
			t.Fatalf("waited %v for %s: %v", patience, what, err)
		case <-tick.C:
		}
	}
}

// logWriter hands what Berth logs to the test's log.
type logWriter struct{ t *testing.T }

func (w logWriter) Write(line []byte) (int, error) {
	w.t.Logf("%s", line)
	return len(line), nil
}
