package roles

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/gateway/web"
	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/kube"
	"github.com/berth-scheduler/berth/internal/source/local"
	"github.com/berth-scheduler/berth/services/binder"
	"github.com/berth-scheduler/berth/services/filter"
	"github.com/berth-scheduler/berth/services/queue"
	"github.com/berth-scheduler/berth/services/score"
)

// Cluster says where the cluster comes from and how its pods are scheduled. Only binders need it.
type Cluster struct {
	Source     string // "kube" or "local"
	Kubeconfig string // of the kube source; "" means the service account of the pod Berth runs in
	Master     string // the URL of its API server, instead of that of the kubeconfig; "" means that one
	KubeQPS    float32
	KubeBurst  int
	Settings   cluster.Settings
	// ReserveForGroups is for how long a gang waits before room is reserved for it; 0: none ever is.
	ReserveForGroups time.Duration
	// BindTimeouts say, by scheduler name, how long VolumeBinding waits for claims to be bound.
	BindTimeouts map[string]time.Duration
	// Candidates say, by scheduler name, how many nodes extenders are told of at least that have a say in preemption.
	Candidates map[string]engine.CandidateNodes
	// Coscheduling are the scheduler names of the profiles with the plugin Coscheduling that is Berth's own; with a kube source only.
	Coscheduling source.Coscheduling
	// Extenders are asked where pods go that interest them, and bind these; with a kube source only.
	Extenders []configv1.Extender
	// PluginServices have the plugins of Settings' profiles that are not Berth's own; PluginArguments are what the profiles give these, and PluginSteps what else these do for them, by
	// scheduler name.
	PluginServices  []config.PluginService
	PluginArguments config.Arguments
	PluginSteps     map[string]config.Steps
	// PluginEnvironment is the environment of the processes of services that Berth runs, but for what it says there itself.
	PluginEnvironment []string
	// InProcess serve those of PluginServices that are in the binder's process, by their names.
	InProcess map[string]InProcess

	CompiledIn *CompiledIn     // plugins that the program itself has; nil: it has none
	Election   *Election       // by which names are shared with other schedulers of a kube source; nil: none is
	Gates      []config.Gate   // kube-scheduler's feature gates, as they are
	Config     json.RawMessage // the KubeSchedulerConfiguration that the settings are of, with all defaults, for /configz; nil: not said
}

// Election says which scheduler names other schedulers of the cluster may have too, and by which Lease all agree who places their pods.
type Election struct {
	Names                                     []string
	Namespace, Name                           string        // of the Lease
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration // as of kube-scheduler's leaderElection
}

// Public is where the gateway serves people.
type Public struct {
	HTTPListen   string   // JSON; "" means nowhere
	AllowedHosts []string // names that JSON is asked for by, besides addresses, localhost, and what the certificate names
	Access       Access
}

// Queue is what queue members need to be told.
type Queue struct {
	BatchSize int // pods a shard attempts at once; 0 means the service's default
}

// Binder runs a binder until ctx ends.
func Binder(ctx context.Context, c Common, cl Cluster) error {
	return withEnv(ctx, c, coord.RoleBinder, rpc.TCP(), func(ctx context.Context, e *env, g *errgroup.Group) error {
		return e.binder(ctx, g, c.ID, c.Listen, cl)
	})
}

// QueueMember runs a queue member until ctx ends.
func QueueMember(ctx context.Context, c Common, q Queue) error {
	return withEnv(ctx, c, coord.RoleQueue, rpc.TCP(), func(ctx context.Context, e *env, g *errgroup.Group) error {
		rep, err := e.newReplica(ctx, g)
		if err != nil {
			return err
		}
		return e.queue(ctx, g, follower{c.ID, c.Listen, rep, newEvaluator()}, q)
	})
}

// FilterWorker runs a filter-worker until ctx ends.
func FilterWorker(ctx context.Context, c Common) error {
	return withEnv(ctx, c, coord.RoleFilterWorker, rpc.TCP(), func(ctx context.Context, e *env, g *errgroup.Group) error {
		rep, err := e.newReplica(ctx, g)
		if err != nil {
			return err
		}
		return e.filterWorker(ctx, g, follower{c.ID, c.Listen, rep, newEvaluator()})
	})
}

// ScoreWorker runs a score-worker until ctx ends.
func ScoreWorker(ctx context.Context, c Common) error {
	return withEnv(ctx, c, coord.RoleScoreWorker, rpc.TCP(), func(ctx context.Context, e *env, g *errgroup.Group) error {
		rep, err := e.newReplica(ctx, g)
		if err != nil {
			return err
		}
		return e.scoreWorker(ctx, g, follower{c.ID, c.Listen, rep, newEvaluator()})
	})
}

// Gateway runs a gateway until ctx ends.
func Gateway(ctx context.Context, c Common, p Public) error {
	return withEnv(ctx, c, coord.RoleGateway, rpc.TCP(), func(ctx context.Context, e *env, g *errgroup.Group) error {
		rep, err := e.newReplica(ctx, g)
		if err != nil {
			return err
		}
		return e.gateway(ctx, g, follower{id: c.ID, listen: c.Listen, replica: rep}, p)
	})
}

// AllOptions says how many of each role one process runs, and where an embedded etcd keeps its data.
type AllOptions struct {
	Cluster
	Public
	Queue
	DataDir       string // of the embedded etcd; "" means a folder that is gone when the process ends, and no waiting for the disk
	UnsafeNoFsync bool   // the embedded etcd does not wait for the disk: for tests and the demo
	Ephemeral     bool   // as coord.EmbeddedConfig has it; set where DataDir is empty
	Peers         *Peers // with whose embedded etcds this process's is one cluster, and whose roles are one Berth; nil: it is alone. It needs a DataDir
	Queues        int    // 0 means 1
	FilterWorkers int    // 0 means 1
	ScoreWorkers  int    // 0 means 1
	// Net is what the roles talk over among themselves, each at its id: for tests that ask a role itself. nil means memory of their own.
	Net rpc.Network
	// Serving, if not nil, is called with the addresses of the public API once it listens.
	Serving func(grpcAddress, httpAddress string)
}

// yieldWithin is how long roles go on for another etcd to lead.
const yieldWithin = 2 * time.Second

// All runs every role in this process, over in-memory gRPC; only the gateway listens on TCP, at c.Listen, if that is not empty. All but the
// binder share one replica, and what has been evaluated on it. With peers, roles reach those of other processes too, at the ports of these.
func All(ctx context.Context, c Common, o AllOptions) error {
	if len(c.EtcdEndpoints) == 0 {
		if o.DataDir == "" {
			dir, err := coord.Ephemeral()
			if err != nil {
				return fmt.Errorf("make a folder for the embedded etcd, which goes with the process: %w", err)
			}
			defer func() {
				if err := dir.Close(); err != nil {
					c.Log.Warn("folder of the embedded etcd not taken away", "err", err)
				}
			}()
			o.DataDir, o.Ephemeral = dir.Path, true
		}
		if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
			return fmt.Errorf("make data directory: %w", err)
		}
		embedded := coord.EmbeddedConfig{Dir: filepath.Join(o.DataDir, "etcd"), Log: c.Log, UnsafeNoFsync: o.UnsafeNoFsync, Ephemeral: o.Ephemeral}
		if o.Peers != nil {
			network, identity, err := o.Peers.open(c.Log)
			if err != nil {
				return err
			}
			defer network.Close()
			o.Net, c.peer, embedded.Peers = network, identity, o.Peers.etcd(network)
			embedded.Dir = filepath.Join(o.DataDir, "etcd-of-peers") // what an etcd was that was alone, it never is among others
		}
		etcd, err := c.startEmbedded(ctx, embedded)
		if err != nil {
			return err
		}
		defer etcd.Close()
		c.embedded = etcd
		if o.Peers != nil { // another leads before what is here ends
			asked := ctx
			var end context.CancelFunc
			ctx, end = context.WithCancel(context.WithoutCancel(ctx))
			var yielding sync.WaitGroup
			defer yielding.Wait()
			defer end()
			yielding.Go(func() {
				defer end()
				select {
				case <-asked.Done():
				case <-ctx.Done():
					return
				}
				late := time.AfterFunc(yieldWithin, end)
				defer late.Stop()
				if err := etcd.Yield(); err != nil {
					c.Log.Warn("etcd is left as it is", "err", err)
				}
			})
		}
	}
	if o.Net == nil {
		o.Net = rpc.Memory()
	}
	return withEnv(ctx, c, coord.RoleGateway, o.Net, func(ctx context.Context, e *env, g *errgroup.Group) error {
		if c.embedded != nil {
			g.Go(func() error { return c.embedded.Wait(ctx) })
		}
		return e.all(ctx, g, o)
	})
}

// startEmbedded starts the embedded etcd. One that has peers waits for a majority of them: whether the process is alive is told meanwhile.
func (c *Common) startEmbedded(ctx context.Context, embedded coord.EmbeddedConfig) (*coord.Embedded, error) {
	if embedded.Peers != nil && c.OpsPort != nil {
		stop, err := c.serveEarly(ctx)
		if err != nil {
			return nil, fmt.Errorf("listen for operators: %w", err)
		}
		defer stop()
	}
	return coord.StartEmbedded(ctx, embedded)
}

func (e *env) all(ctx context.Context, g *errgroup.Group, o AllOptions) error {
	rep, err := e.newReplica(ctx, g)
	if err != nil {
		return err
	}
	// The first member of each role shares an evaluator with the first of the others, and so on: members of one role are asked
	// about different ranges.
	evaluators := make([]*engine.Evaluator, max(o.FilterWorkers, o.ScoreWorkers, o.Queues, 1))
	for i := range evaluators {
		evaluators[i] = newEvaluator()
	}
	// In memory, a member's address is its id.
	start := func(name string, n int, one func(id string, evaluator *engine.Evaluator) error) error {
		for i := range max(n, 1) {
			id := fmt.Sprintf("%s-%s-%d", e.ID, name, i)
			if err := one(id, evaluators[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.Join(
		start("binder", 1, func(id string, _ *engine.Evaluator) error { return e.binder(ctx, g, id, id, o.Cluster) }),
		start("filter", o.FilterWorkers, func(id string, v *engine.Evaluator) error { return e.filterWorker(ctx, g, follower{id, id, rep, v}) }),
		start("score", o.ScoreWorkers, func(id string, v *engine.Evaluator) error { return e.scoreWorker(ctx, g, follower{id, id, rep, v}) }),
		start("queue", o.Queues, func(id string, v *engine.Evaluator) error { return e.queue(ctx, g, follower{id, id, rep, v}, o.Queue) }),
		start("gateway", 1, func(id string, _ *engine.Evaluator) error { return e.gatewayOfAll(ctx, g, id, rep, o) }),
	)
}

// embeddedBindWorkers is how many batches of pods are bound at once where etcd is embedded and holds the pods too: one is applied, and
// one is ready. etcd applies what has come in one go, in this process, and more would only keep others from a core for longer.
const embeddedBindWorkers = 2

// mostBindWorkers is how many pods are bound at once by way of an API server, each by a request of its own, or two if the pod has changed.
const mostBindWorkers = 64

// bindWorkersOf returns how many pods are bound at once where so many requests are let through in a second. A bind that waits for its turn is
// not to be taken for one that the API server is slow with, which is one of more than a second: of a namespace by itself, two binds for
// each worker may be under way, each of two requests.
func bindWorkersOf(qps float32) int { return max(1, min(mostBindWorkers, int(qps/4))) }

// mostShards is how many shards of the queue there are at most.
const mostShards = 256

func (e *env) binder(ctx context.Context, g *errgroup.Group, id, listen string, cl Cluster) error {
	r := role{role: coord.RoleBinder, id: id, options: []rpc.Option{
		rpc.WithStreamRequestLimit(binderv1.BinderService_JudgeHypothetical_FullMethodName, pluginhost.LargestMessage),
		rpc.WithAtOnce(binderv1.BinderService_PlaceGroup_FullMethodName, mostShards), // each asks for one group at a time, and those have the turn by priority
	}}
	if err := e.listen(&r, listen); err != nil {
		return err
	}
	cl.Settings.Source = cl.Source
	e.ops.sayBinder(cl)
	if err := e.measured.common.Register(gatesEnabled(cl.Gates)); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) { // by another binder of the process
		return err
	}
	extenders, err := e.extenders(cl, e.metrics(id))
	if err != nil {
		return err
	}
	src, err := e.source(cl, extenders, e.metrics(id))
	if err != nil {
		return err
	}
	bindWorkers := 0 // the binder's own choice
	switch {
	case e.embedded != nil && src.MaxBatch() > 1:
		bindWorkers = embeddedBindWorkers
	case src.MaxBatch() == 1 && cl.KubeQPS > 0:
		bindWorkers = bindWorkersOf(cl.KubeQPS)
	}
	cfg := binder.Config{
		ID: id, Address: r.address, Coord: e.coord, Source: src, Settings: cl.Settings, BindTimeouts: cl.BindTimeouts, LeaseTTL: e.LeaseTTL, BindWorkers: bindWorkers,
		Log: e.Log, Metrics: e.metrics(id), Trace: e.Trace, ReserveForGroups: cl.ReserveForGroups,
	}
	var objects pluginhost.Objects
	if cluster, ok := src.(*kube.Source); ok {
		cfg.Extenders, cfg.Objects, cfg.Candidates, objects = extenders, cluster, cl.Candidates, cluster
	}
	plugins, endPlugins, err := e.plugins(ctx, g, cl, objects, e.metrics(id))
	if err != nil {
		return err
	}
	cfg.Plugins = plugins
	if cluster, ok := src.(*kube.Source); ok && cl.Election != nil {
		by := cl.Election
		cfg.Lease, err = cluster.Lease(kube.LeaseConfig{
			Namespace: by.Namespace, Name: by.Name, Duration: by.LeaseDuration, RenewDeadline: by.RenewDeadline, RetryPeriod: by.RetryPeriod,
		})
		if err != nil {
			return err
		}
		cfg.SharedNames = by.Names
		if e.embedded != nil && e.OpsPort != nil && e.peer == nil {
			if cfg.Host, err = os.Hostname(); err != nil {
				return fmt.Errorf("find the name of this host: %w", err)
			}
		}
	}
	s, err := binder.New(cfg)
	if err != nil {
		return err
	}
	r.register, r.ready, r.available = s.Register, s.Ready, s.Available
	r.version, r.head, r.digest = s.Version, s.Version, s.Digest
	r.elects = s.Elects
	if cluster, ok := src.(*kube.Source); ok {
		e.ops.resources = newPodResources(ctx, cluster.PodResources, s.Active, e.Log)
	}
	g.Go(func() error {
		defer endPlugins()
		if extenders != nil {
			defer extenders.Close()
		}
		return s.Run(ctx)
	})
	if err := e.watchEtcd(ctx, g); err != nil {
		return err
	}
	e.filling.binder.Store(s)
	return e.serve(ctx, g, r)
}

// extenders returns those of the configuration, nil if there are none.
func (e *env) extenders(cl Cluster, metrics prometheus.Registerer) (*extender.Set, error) {
	switch {
	case len(cl.Extenders) == 0:
		return nil, nil
	case cl.Source != "kube":
		return nil, errors.New("extenders: they are sent objects of an API server: want --source=kube")
	}
	observe, err := extender.NewObserver(metrics, e.Log)
	if err != nil {
		return nil, fmt.Errorf("register metrics of extenders: %w", err)
	}
	return extender.New(extender.Config{Extenders: cl.Extenders, OnlyAsked: true, Observe: observe, Log: e.Log})
}

func (e *env) source(cl Cluster, extenders *extender.Set, metrics prometheus.Registerer) (source.Source, error) {
	switch cl.Source {
	case "local":
		return local.New(e.coord, local.Config{Log: e.Log}), nil
	case "kube":
		names := make([]string, len(cl.Settings.Profiles))
		for i, p := range cl.Settings.Profiles {
			names[i] = p.SchedulerName
		}
		cfg := kube.Config{
			Kubeconfig: cl.Kubeconfig, Master: cl.Master, SchedulerNames: names, Coscheduling: cl.Coscheduling, QPS: cl.KubeQPS, Burst: cl.KubeBurst, Log: e.Log, Metrics: metrics,
		}
		if extenders != nil {
			cfg.Interest = func(pod *corev1.Pod) uint64 { return uint64(extenders.Interest(extender.ResourceNames(pod))) }
			cfg.TouchedNodes = extenders.Can(extender.Filter) != 0 // others refuse none
			cfg.KeepNodes = extenders.Full(extenders.Can(extender.Filter) | extenders.Can(extender.Prioritize))
		}
		sent := cl.sentToPlugins()
		switch all := extenders != nil && extenders.Full(extenders.Can(extender.Preempt)); {
		case all:
			cfg.KeepPods = func(*corev1.Pod) bool { return true }
		case len(sent) > 0:
			cfg.KeepPods = func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" && sent[pod.Spec.SchedulerName] }
		}
		if cl.CompiledIn != nil || slices.ContainsFunc(cl.PluginServices, func(s config.PluginService) bool { return s.Objects }) {
			cfg.TouchedNodes, cfg.KeepNodes = true, true
		}
		e.measured.asksAPIServer()
		return kube.New(cfg)
	}
	return nil, fmt.Errorf("source %q: want kube or local", cl.Source)
}

func newEvaluator() *engine.Evaluator { return engine.NewEvaluator(engine.EvaluatorConfig{}) }

// follower is what a role that follows the log is made of, whichever it is.
type follower struct {
	id, listen string
	replica    *replica.Replica
	evaluator  *engine.Evaluator // a gateway has none
}

func (e *env) queue(ctx context.Context, g *errgroup.Group, f follower, q Queue) error {
	r := role{role: coord.RoleQueue, id: f.id}
	if err := e.listen(&r, f.listen); err != nil {
		return err
	}
	e.ops.own["queue"] = map[string]any{"batchSize": q.BatchSize}
	s, err := queue.New(queue.Config{
		ID: f.id, Replica: f.replica, Evaluator: f.evaluator, Coord: e.coord, Clients: e.clients,
		NewSession: func(ctx context.Context) (queue.Session, error) { return e.coord.NewSession(ctx, e.LeaseTTL) },
		BatchSize:  q.BatchSize, Log: e.Log, Metrics: e.metrics(f.id), Trace: e.Trace,
	})
	if err != nil {
		return err
	}
	r.register, r.ready = s.Register, s.Ready
	r.follows(f.replica)
	g.Go(func() error { return s.Run(ctx) })
	return e.serve(ctx, g, r)
}

func (e *env) filterWorker(ctx context.Context, g *errgroup.Group, f follower) error {
	r := role{role: coord.RoleFilterWorker, id: f.id}
	if err := e.listen(&r, f.listen); err != nil {
		return err
	}
	s, err := filter.New(filter.Config{Replica: f.replica, Evaluator: f.evaluator, Log: e.Log})
	if err != nil {
		return err
	}
	r.register, r.ready = s.Register, s.Ready
	r.follows(f.replica)
	return e.serve(ctx, g, r)
}

func (e *env) scoreWorker(ctx context.Context, g *errgroup.Group, f follower) error {
	r := role{role: coord.RoleScoreWorker, id: f.id}
	if err := e.listen(&r, f.listen); err != nil {
		return err
	}
	s, err := score.New(score.Config{Replica: f.replica, Evaluator: f.evaluator, Log: e.Log})
	if err != nil {
		return err
	}
	r.register, r.ready = s.Register, s.Ready
	r.follows(f.replica)
	return e.serve(ctx, g, r)
}

// publicOptions are those of a server that is open to people.
func publicOptions() []rpc.Option {
	return []rpc.Option{
		rpc.WithRequestLimit(rpc.PublicRequestLimit),
		rpc.WithConnectionAge(5*time.Minute, time.Minute),
	}
}

func (e *env) newGateway(ctx context.Context, g *errgroup.Group, rep *replica.Replica) (*gateway.Service, error) {
	if err := e.watchEtcd(ctx, g); err != nil {
		return nil, err
	}
	s, err := gateway.New(gateway.Config{
		Replica: rep, Coord: e.coord, Conns: e.clients, Manifests: local.NewStore(e.coord, local.Config{Log: e.Log}), Log: e.Log,
		Build: member.Build(), Etcd: e.filling.database,
	})
	if err != nil {
		return nil, err
	}
	g.Go(func() error { return s.Run(ctx) })
	return s, nil
}

func (e *env) gateway(ctx context.Context, g *errgroup.Group, f follower, p Public) error {
	e.ops.sayGateway(p)
	guard, err := e.newGuard(p.Access, "public")
	if err != nil {
		return err
	}
	r := role{role: coord.RoleGateway, id: f.id, options: append(publicOptions(), guarded(guard))}
	if err := e.listen(&r, f.listen); err != nil {
		return err
	}
	s, err := e.newGateway(ctx, g, f.replica)
	if err != nil {
		return err
	}
	r.register, r.ready = s.Register, s.Ready
	r.follows(f.replica)
	if err := e.serve(ctx, g, r); err != nil {
		return err
	}
	if p.HTTPListen == "" {
		return nil
	}
	_, err = e.serveJSON(ctx, g, s, guard, p)
	return err
}

// gatewayOfAll is a gateway that other roles reach in memory, and people over TCP.
func (e *env) gatewayOfAll(ctx context.Context, g *errgroup.Group, id string, rep *replica.Replica, o AllOptions) error {
	e.ops.sayGateway(o.Public)
	guard, err := e.newGuard(o.Access, "public")
	if err != nil {
		return err
	}
	r := role{role: coord.RoleGateway, id: id}
	if err := e.listen(&r, id); err != nil {
		return err
	}
	s, err := e.newGateway(ctx, g, rep)
	if err != nil {
		return err
	}
	r.register, r.ready = func(grpc.ServiceRegistrar) {}, s.Ready // people come by the servers below
	r.follows(rep)
	if err := e.serve(ctx, g, r); err != nil {
		return err
	}

	if e.Listen == "" && o.HTTPListen == "" {
		return nil
	}
	grpcAddress, httpAddress := "", ""
	if e.Listen != "" {
		if grpcAddress, err = e.servePublic(ctx, g, s, guard, r); err != nil {
			return err
		}
	}
	if o.HTTPListen != "" {
		if httpAddress, err = e.serveJSON(ctx, g, s, guard, o.Public); err != nil {
			return err
		}
	}
	e.Log.Info("public API", "grpc", grpcAddress, "http", httpAddress)
	if o.Serving != nil {
		o.Serving(grpcAddress, httpAddress)
	}
	return nil
}

// servePublic serves the public API over TCP where all roles are in one process, and returns its address.
func (e *env) servePublic(ctx context.Context, g *errgroup.Group, s *gateway.Service, guard *access.Guard, r role) (string, error) {
	l, err := net.Listen("tcp", e.Listen)
	if err != nil {
		return "", fmt.Errorf("listen for the public API: %w", err)
	}
	cfg := e.rpc
	cfg.Net, cfg.TLS = rpc.TCP(), e.tls(coord.RoleGateway)
	l = e.bound(l, "public")
	options := append(publicOptions(), guarded(guard), rpc.WithCallers(callersAt(coord.RoleGateway)))
	public := rpc.NewServer(cfg, "public", options...)
	s.Register(public.Registrar())
	g.Go(func() error { return public.Serve(ctx, l) })
	g.Go(func() error { return e.keepHealth(ctx, public.Health(), r) })
	return l.Addr().String(), nil
}

// serveJSON serves the public API as JSON, through a gRPC server in memory that nobody else can reach, and the page. It returns the
// address it listens on.
func (e *env) serveJSON(ctx context.Context, g *errgroup.Group, s *gateway.Service, guard *access.Guard, p Public) (string, error) {
	inside := e.rpc
	inside.Net, inside.TLS = rpc.Memory(), nil
	behind, err := inside.Net.Listen("json")
	if err != nil {
		return "", err
	}
	server := rpc.NewServer(inside, "json", rpc.WithRequestLimit(rpc.PublicRequestLimit), guarded(guard), rpc.WithForwarding())
	s.Register(server.Registrar())
	clients := rpc.NewClients(inside)
	conn, err := clients.Conn("json")
	if err != nil {
		return "", err
	}
	cfg := gateway.HTTPConfig{AllowedHost: gateway.AllowedHost(func() []string { return e.hosts(p) }), Turns: e.rpc.Turns}
	if guard != nil {
		cfg.Known, cfg.Expect = guard.Know, guard.Expect
	}
	api, err := gateway.Handler(conn, cfg)
	if err != nil {
		return "", err
	}
	handler, err := web.Handler(api)
	if err != nil {
		return "", err
	}
	l, err := e.listenHTTP(p.HTTPListen, "http")
	if err != nil {
		return "", fmt.Errorf("listen for JSON: %w", err)
	}
	address := l.Addr().String()
	g.Go(func() error { return server.Serve(ctx, behind) })
	g.Go(func() error {
		defer clients.Close()
		return gateway.ServeHTTP(ctx, l, handler, e.Log)
	})
	return address, nil
}

// hosts returns the names that JSON may be asked for by.
func (e *env) hosts(p Public) []string {
	names := p.AllowedHosts
	for _, address := range []string{p.HTTPListen, e.Advertise} {
		if host, _, err := net.SplitHostPort(address); err == nil {
			address = host
		}
		if address != "" { // a listener at all addresses has no name
			names = append(names[:len(names):len(names)], address)
		}
	}
	if e.certs != nil {
		names = append(names, e.certs.Names()...)
	}
	return names
}
