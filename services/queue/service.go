package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/trace"
	"github.com/berth-scheduler/berth/services/queue/fanout"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// Replica is this member's copy of the ledger, as internal/replica keeps it.
type Replica interface {
	// Read calls fn with the state, at version least or later, while nobody changes it.
	Read(ctx context.Context, least cluster.Version, fn func(*cluster.State) error) error
	// Subscribe makes s hear of every change from now on, beginning with a Reset if there is a state.
	Subscribe(s replica.Subscriber) (cancel func())
	// Ready returns why the state is not good, or nil.
	Ready() error
}

// Evaluator judges nodes for pods, as engine.Evaluator does.
type Evaluator interface {
	Node(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) (engine.Verdict, bool)
	Signature(st *cluster.State, s engine.Subject) engine.Signature
	Refusal(st *cluster.State, s engine.Subject) *engine.VerdictCount
	FailsAsNominated(st *cluster.State, pod cluster.PodID) *engine.VerdictCount
	FailsForAll(st *cluster.State, s engine.Subject) bool
	Possible(st *cluster.State, s engine.Subject, but cluster.NodeIndex) bool
	CrossNode(st *cluster.State, s engine.Subject) bool
	Preempts(st *cluster.State, pod cluster.PodID) (why string, ok bool)
	Preemptable(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) bool
	LimitedDrivers(st *cluster.State, pod cluster.PodID) []string
	UndetachedDrivers(st *cluster.State, pod cluster.PodID) []string
	StandsAttached(st *cluster.State, pod cluster.PodID, found *engine.Preemption) bool
}

// judge makes an Evaluator the Judge of a queue.
type judge struct{ Evaluator }

func (j judge) Feasible(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) bool {
	verdict, known := j.Node(st, s, self, node)
	return known && verdict.Feasible()
}

// Coord says who is alive, as coord.Client does. The channels are closed when ctx ends.
type Coord interface {
	WatchMembers(ctx context.Context) <-chan []coord.Member
	WatchLeader(ctx context.Context) <-chan coord.Leader
	WatchShards(ctx context.Context) <-chan []coord.ShardOwner
}

// Session is the lease that shards are owned under, as coord.Session is.
type Session interface {
	ClaimShard(ctx context.Context, shard int, owner string) (revision int64, err error)
	ReleaseShard(ctx context.Context, shard int) error
	Done() <-chan struct{}
	Close(ctx context.Context) error
}

// Clients are connections to other members, as rpc.Clients keeps them.
type Clients interface {
	Conn(address string) (*grpc.ClientConn, error)
}

// Config is everything a Service needs.
type Config struct {
	ID        string // this member's id, as it is registered; required
	Replica   Replica
	Evaluator Evaluator
	Coord     Coord
	// NewSession opens a session to own shards under, and waits for etcd to do so. It is called again when a session
	// is lost; the place to register the member, so that both live and die together.
	NewSession func(ctx context.Context) (Session, error)
	Clients    Clients

	BatchSize     int           // the most pods of one cycle; 0 means 256; at most 1000
	WorkerTimeout time.Duration // how long one worker may take for its range before another is asked; 0 means 3 s
	HedgeAfter    time.Duration // how long one worker is waited for, at least, before another is asked besides; 0 means 100 ms
	CommitTimeout time.Duration // how long the binder may take before the commit is sent again; 0 means 5 s
	DrainTimeout  time.Duration // how long a cycle may go on in a shard that another member should own; 0 means 5 s

	Metrics prometheus.Registerer // nil keeps none
	Trace   *trace.Provider       // nil traces nothing
	Log     *slog.Logger          // nil discards
}

// maxBatch keeps the number of subjects within what a worker accepts.
const maxBatch = 1000

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.ID == "":
		return c, errors.New("create queue: ID is empty")
	case c.Replica == nil || c.Evaluator == nil || c.Coord == nil || c.NewSession == nil || c.Clients == nil:
		return c, errors.New("create queue: Replica, Evaluator, Coord, NewSession and Clients are required")
	case c.BatchSize < 0 || c.BatchSize > maxBatch:
		return c, fmt.Errorf("create queue: BatchSize: %d, want 0 to %d", c.BatchSize, maxBatch)
	case c.WorkerTimeout < 0 || c.HedgeAfter < 0 || c.CommitTimeout < 0 || c.DrainTimeout < 0:
		return c, errors.New("create queue: a timeout is negative")
	}
	if c.BatchSize == 0 {
		c.BatchSize = 256
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&c.WorkerTimeout, 3 * time.Second}, {&c.HedgeAfter, 100 * time.Millisecond},
		{&c.CommitTimeout, 5 * time.Second}, {&c.DrainTimeout, 5 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = logs.Bounded(c.Log)
	return c, nil
}

// Service owns shards and schedules their pods. It is safe for concurrent use.
type Service struct {
	queuev1.UnimplementedQueueServiceServer

	cfg       Config
	log       *slog.Logger
	metrics   *metrics
	directory *directory
	fanout    *fanout.Fanout
	floors    *floors
	binding   *binding
	asks      askSlots

	mu        sync.Mutex       // guards what follows
	shards    map[int32]*shard // owned
	count     int32            // of shards there are; 0: not known yet
	hasLeases bool             // there is a session
}

// New returns a service that owns nothing until Run.
func New(cfg Config) (*Service, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg.Evaluator = &guarded{Evaluator: cfg.Evaluator, log: cfg.Log}
	s := &Service{
		cfg: cfg, log: cfg.Log, directory: newDirectory(), floors: newFloors(), binding: newBinding(), shards: make(map[int32]*shard),
	}
	if s.metrics, err = newMetrics(cfg.Metrics, s); err != nil {
		return nil, fmt.Errorf("create queue: %w", err)
	}
	s.fanout = fanout.New(fanout.Config{
		Clients: cfg.Clients, Timeout: cfg.WorkerTimeout, HedgeAfter: cfg.HedgeAfter, Hedges: s.metrics.hedges, Trace: cfg.Trace,
	})
	return s, nil
}

// Register makes the service answer on a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { queuev1.RegisterQueueServiceServer(r, s) }

// Run owns shards and schedules their pods until ctx ends; then it gives up the shards and returns nil.
func (s *Service) Run(ctx context.Context) error {
	unsubscribe := s.cfg.Replica.Subscribe(s)
	defer unsubscribe()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.directory.follow(ctx, s.cfg.Coord) })
	g.Go(func() error { return s.followFloors(ctx) })
	g.Go(func() error { return s.keepShards(ctx) })
	return g.Wait()
}

// Ready returns why no pod can be scheduled by this member, or nil.
func (s *Service) Ready() error {
	if err := s.cfg.Replica.Ready(); err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	s.mu.Lock()
	hasLeases := s.hasLeases
	s.mu.Unlock()
	if !hasLeases {
		return errors.New("no session with etcd")
	}
	now, _ := s.directory.get()
	return now.missing()
}

// missing returns who has to be alive for a cycle and is not.
func (v view) missing() error {
	switch {
	case len(v.filters) == 0:
		return errors.New("no live filter-worker")
	case len(v.scores) == 0:
		return errors.New("no live score-worker")
	case !v.hasLeader():
		return errors.New("no active binder")
	}
	return nil
}

// Reset follows the replica to another state. The replica calls it with its state locked.
func (s *Service) Reset(st *cluster.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setCount(st)
	s.binding.reset()
	for _, sh := range s.shards {
		sh.reset(st)
	}
	s.floors.announce()
}

// Applied follows one delta of the log; st is the state after it. The replica calls it with its state locked.
func (s *Service) Applied(st *cluster.State, d cluster.Delta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := d.(cluster.SettingsSet); ok {
		s.setCount(st)
	}
	s.binding.apply(st, d, s.metrics) // ahead of the queues: of what they have forgotten it has heard
	for _, sh := range s.shards {
		sh.apply(st, d)
	}
	s.floors.announce()
}

func (s *Service) setCount(st *cluster.State) {
	if s.count != st.Settings.Shards {
		s.count = st.Settings.Shards
		s.directory.poke()
	}
}

// depths returns how many pods each owned shard has in each place.
func (s *Service) depths() map[int32][pending.Places]int {
	depths := make(map[int32][pending.Places]int)
	for _, sh := range s.owned() {
		depths[sh.number], _ = sh.depth()
	}
	return depths
}
