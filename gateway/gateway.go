package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// Coord says who is alive, who leads and who owns which shard. Each watch sends the whole at once and after each
// change, and closes its channel when ctx ends. *coord.Client implements it.
type Coord interface {
	WatchMembers(ctx context.Context) <-chan []coord.Member
	WatchLeader(ctx context.Context) <-chan coord.Leader
	WatchShards(ctx context.Context) <-chan []coord.ShardOwner
}

// Conns returns the connection to an address. *rpc.Clients implements it.
type Conns interface {
	Conn(address string) (*grpc.ClientConn, error)
}

// Config is everything a Service needs.
type Config struct {
	Replica   Replica      // the ledger; required
	Coord     Coord        // who is where; required
	Conns     Conns        // how to reach them; required
	Manifests Manifests    // where Apply and Delete go while the settings in the log say that the source is local; nil: nowhere
	Build     string       // what the program was built from; "" means not known
	Log       *slog.Logger // nil discards
	// Etcd says how full etcd was when it was last asked, and whether that is known. It does not block; nil: it never is.
	Etcd func() (d coord.Database, known bool)

	PeerTimeout time.Duration // how long one other member may take to answer; 0 means 1s
	QuestionFor time.Duration // how long one question may have the sandbox, whatever its caller's deadline; 0 means 30s
	Heartbeat   time.Duration // how often an idle WatchPlacements says so; 0 means 3s
	Stall       time.Duration // how long a watcher may leave a message unread before it is cut off; 0 means 10s
	History     int           // how many placements are kept for watchers that resume; 0 means 16384
	MaxWatchers int           // how many WatchPlacements may run at a time; 0 means 1000
}

// Service implements SchedulingService. Its methods are safe for concurrent use.
type Service struct {
	schedulingv1.UnimplementedSchedulingServiceServer
	cfg      Config
	peers    peers
	feed     *feed
	rates    *rates
	names    *names
	sandbox  *sandbox
	drains   *rpc.Gate // one at a time
	watchers watchers

	unsubscribe func()
}

// New returns a service that follows cfg.Replica until Run has ended; cfg.Coord is followed by Run.
// An error names the field of cfg that is missing or makes no sense.
func New(cfg Config) (*Service, error) {
	for _, f := range []struct {
		name    string
		missing bool
	}{
		{"Replica", cfg.Replica == nil}, {"Coord", cfg.Coord == nil}, {"Conns", cfg.Conns == nil},
	} {
		if f.missing {
			return nil, fmt.Errorf("create gateway: %s is missing", f.name)
		}
	}
	for _, f := range []struct {
		name     string
		value    *time.Duration
		fallback time.Duration
	}{
		{"PeerTimeout", &cfg.PeerTimeout, time.Second},
		{"QuestionFor", &cfg.QuestionFor, 30 * time.Second},
		{"Heartbeat", &cfg.Heartbeat, 3 * time.Second},
		{"Stall", &cfg.Stall, 10 * time.Second},
	} {
		if *f.value < 0 {
			return nil, fmt.Errorf("create gateway: %s: %v is negative", f.name, *f.value)
		}
		if *f.value == 0 {
			*f.value = f.fallback
		}
	}
	for _, f := range []struct {
		name     string
		value    *int
		fallback int
	}{{"History", &cfg.History, 16384}, {"MaxWatchers", &cfg.MaxWatchers, 1000}} {
		if *f.value < 0 {
			return nil, fmt.Errorf("create gateway: %s: %d is negative", f.name, *f.value)
		}
		if *f.value == 0 {
			*f.value = f.fallback
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{cfg: cfg, feed: newFeed(cfg.History), rates: newRates(time.Now), names: &names{}, sandbox: newSandbox(), drains: rpc.NewGate(1, drainsWaiting)}
	s.watchers.running = rpc.NewShare(cfg.MaxWatchers, watchesOfOne)
	s.watchers.limit = cfg.MaxWatchers
	s.watchers.stopping = make(chan struct{})
	var stops []func()
	for _, sub := range []replica.Subscriber{s.feed, s.rates, s.names, &s.sandbox.tail} {
		stops = append(stops, cfg.Replica.Subscribe(sub))
	}
	s.unsubscribe = func() {
		for _, stop := range stops {
			stop()
		}
	}
	return s, nil
}

// Register makes the service answer on a server.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	schedulingv1.RegisterSchedulingServiceServer(r, s)
}

// Run keeps track of members, leader and shards until ctx ends; then it ends all watches and returns nil.
// An error means that coordination has ended although ctx has not, and the process should exit.
func (s *Service) Run(ctx context.Context) error {
	defer s.unsubscribe()
	defer s.watchers.stop()
	g, following := errgroup.WithContext(ctx)
	g.Go(func() error {
		return follow(following, "members", s.cfg.Coord.WatchMembers(following), s.peers.setMembers)
	})
	g.Go(func() error {
		return follow(following, "leader", s.cfg.Coord.WatchLeader(following), s.peers.setLeader)
	})
	g.Go(func() error {
		return follow(following, "shards", s.cfg.Coord.WatchShards(following), s.peers.setShards)
	})
	if err := g.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// follow passes on what a watch sends. It returns nil when ctx ends.
func follow[T any](ctx context.Context, what string, updates <-chan T, set func(T)) error {
	for {
		select {
		case update, open := <-updates:
			switch {
			case open:
				set(update)
			case ctx.Err() != nil:
				return nil
			default:
				return fmt.Errorf("watch %s: the watch has ended", what)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// Ready returns why the service cannot answer yet, nil if it can. It goes on answering, with the age of what it knows,
// while there is no binder.
func (s *Service) Ready() error {
	if err := s.loaded(); err != nil {
		return errors.New(status.Convert(err).Message())
	}
	if !s.peers.known() {
		return errors.New("waiting for etcd to tell the members")
	}
	return nil
}

// Replica is the gateway's copy of the ledger. *replica.Replica implements it.
type Replica interface {
	// Read calls fn with the state, of version min or later; the zero version stands for any. Nobody changes the state
	// until fn returns.
	Read(ctx context.Context, min cluster.Version, fn func(*cluster.State) error) error
	// Subscribe makes sub hear of every change from now on, beginning with the state there is, until cancel.
	Subscribe(sub replica.Subscriber) (cancel func())
	// Version is the version of the state.
	Version() cluster.Version
	// Head is the end of the log as last heard.
	Head() cluster.Version
	// Heard is when the binder was last heard from; zero: never.
	Heard() time.Time
	// Ready returns why the replica is not loaded.
	Ready() error
}

// watchers counts the running watches and owns the goroutines that send for them.
type watchers struct {
	limit    int
	running  *rpc.Share
	stopping chan struct{} // closed when the service stops

	mu      sync.Mutex
	stopped bool
	senders sync.WaitGroup
}

// start runs send for a caller, unless there are too many already or the service stops.
// The returned func says that the watch is over; send may end later.
func (w *watchers) start(caller string, send func()) (over func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return nil, errStopping()
	}
	if !w.running.Take(caller, 1) {
		return nil, errTooManyWatchers(w.limit)
	}
	w.senders.Go(send)
	return func() { w.running.Give(caller, 1) }, nil
}

// stop ends all watches and waits for their goroutines.
func (w *watchers) stop() {
	w.mu.Lock()
	if !w.stopped {
		w.stopped = true
		close(w.stopping)
	}
	w.mu.Unlock()
	w.senders.Wait()
}
