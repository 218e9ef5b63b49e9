package binder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/trace"
)

// Config is everything a Service needs.
type Config struct {
	ID       string           // the member's id; required
	Address  string           // where followers and shards reach it; required
	Coord    *coord.Client    // required
	Source   source.Source    // required
	Settings cluster.Settings // what it says at the start of its epochs; required

	// Lease, if not nil, says when the pods of those of the settings' scheduler names that are among SharedNames are this binder's to
	// place: other schedulers may have these names too.
	Lease       Lease
	SharedNames []string
	// Host, if it is not empty, is added to the name under which the Lease is held: that of the machine, where etcd is this process's alone, so that a copy of its data that runs on another
	// one does not take the Lease for its own.
	Host string

	// BindTimeouts say, by scheduler name, how long a placement waits for its claims to be bound; of one that is not there, 10 min.
	BindTimeouts map[string]time.Duration

	// Extenders are asked where pods go that interest them, by source.Pod.Extenders, and bind these; nil: there are none. Plugins are asked where pods go whose
	// profiles use plugins of services; nil: there are none. Objects are what both are sent; required with Extenders, and with services that are sent objects.
	Extenders *extender.Set
	Plugins   *pluginhost.Host
	Objects   Objects
	// Candidates say, by scheduler name, about how many nodes extenders are asked at least that have a say in preemption, if there are as many.
	Candidates map[string]engine.CandidateNodes

	// ReserveForGroups is for how long a gang waits before room is reserved for it that pods leave which end by themselves; 0: none ever is.
	ReserveForGroups time.Duration

	LeaseTTL    time.Duration         // how long the term outlives a silent binder; 0 means 5 s
	MaxUnbound  int                   // placements waiting for their bind, but for those whose binds have failed, beyond which, or beyond half of which for a namespace, commits are refused; 0 means 10,000
	BindWorkers int                   // concurrent Bind calls, but for late ones; 0 means 4, or 64 of one binding each
	EventLimit  int                   // events that may wait, and as many reports, and half of that of a namespace; 0 means 50,000
	Preemptions int                   // preemptions under way, but for late ones, beyond which others are refused, or beyond half of which for a namespace of victims; 0 means 1,000
	Parallelism int                   // goroutines of one evaluation; 0 means GOMAXPROCS
	Log         *slog.Logger          // required
	Metrics     prometheus.Registerer // nil keeps none
	Trace       *trace.Provider       // nil traces nothing

	now func() time.Time // by which it is looked for how long placements wait for plugin services; nil: time.Now
}

func (c *Config) check() error {
	switch {
	case c.ID == "":
		return errors.New("binder: ID is required")
	case c.Address == "":
		return errors.New("binder: Address is required")
	case c.Coord == nil || c.Source == nil || c.Log == nil:
		return errors.New("binder: Coord, Source and Log are required")
	case c.Settings.Shards < 1:
		return fmt.Errorf("binder: Settings.Shards is %d; want at least 1", c.Settings.Shards)
	case len(c.Settings.Profiles) == 0:
		return errors.New("binder: Settings.Profiles is empty")
	case c.Extenders != nil && c.Plugins != nil && c.Extenders.Len()+c.Plugins.Len() > extender.MaxExtenders:
		return fmt.Errorf("binder: %d extenders and %d plugin services; want at most %d in all", c.Extenders.Len(), c.Plugins.Len(), extender.MaxExtenders)
	case c.Plugins != nil && c.Plugins.NeedsObjects(^pluginhost.Set(0)>>(pluginhost.MaxServices-c.Plugins.Len())) && c.Objects == nil:
		return errors.New("binder: Objects is required with plugin services that are sent objects")
	case c.Extenders != nil && c.Objects == nil:
		return errors.New("binder: Objects is required with Extenders")
	case c.LeaseTTL != 0 && c.LeaseTTL < time.Second:
		return fmt.Errorf("binder: LeaseTTL is %v; want at least 1s", c.LeaseTTL)
	case c.ReserveForGroups < 0:
		return fmt.Errorf("binder: ReserveForGroups is %v; want 0, or more", c.ReserveForGroups)
	case c.MaxUnbound < 0 || c.BindWorkers < 0 || c.EventLimit < 0 || c.Preemptions < 0 || c.Parallelism < 0:
		return fmt.Errorf("binder: MaxUnbound %d, BindWorkers %d, EventLimit %d, Preemptions %d, Parallelism %d: negative",
			c.MaxUnbound, c.BindWorkers, c.EventLimit, c.Preemptions, c.Parallelism)
	}
	if c.LeaseTTL == 0 {
		c.LeaseTTL = 5 * time.Second
	}
	if c.MaxUnbound == 0 {
		c.MaxUnbound = 10_000
	}
	if c.BindWorkers == 0 {
		// A call of many bindings is a transaction, and etcd applies those that have come meanwhile in one go: of 32 of them, for
		// 20 ms in which it has no time for anything else. Pods that wait here instead make fuller ones.
		c.BindWorkers = 4
		if c.Source.MaxBatch() == 1 {
			c.BindWorkers = 64
		}
	}
	if c.EventLimit == 0 {
		c.EventLimit = 50_000
	}
	if c.Preemptions == 0 {
		c.Preemptions = 1_000
	}
	return nil
}

// Service is a binder: a candidate, and while elected the active one.
type Service struct {
	binderv1.UnimplementedBinderServiceServer
	logv1.UnimplementedLogServiceServer

	cfg       Config
	shared    []string // the names that Lease is about
	metrics   *metrics
	feed      *replica.Feed        // the log of the open term; closed while there is none
	extenders *extenders           // nil: there are no extenders
	passing   *rpc.Gate            // streams about what might be
	term      atomic.Pointer[term] // the open term; nil while there is none
	waits     atomic.Pointer[string]
}

// New returns a binder that does nothing until Run.
func New(cfg Config) (*Service, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, shared: sharedNames(cfg.Settings, cfg.SharedNames),
		feed:    replica.NewFeed(replica.FeedConfig{Log: cfg.Log, Metrics: cfg.Metrics}),
		passing: rpc.NewGate(passingAtOnce, passingWaiting),
	}
	if cfg.Extenders != nil || cfg.Plugins != nil {
		s.extenders = newExtenders(cfg.Extenders, cfg.Plugins, cfg.Objects)
		s.extenders.candidates = cfg.Candidates
	}
	s.wait("starting")
	var err error
	if s.metrics, err = newMetrics(cfg.Metrics, s.depths, s.sizes); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if cfg.Lease == nil {
		s.shared = nil
	}
	if len(s.shared) > 0 && cfg.Metrics != nil {
		if err := registerNames(cfg.Metrics, cfg.Lease.Name(), s.yielded, s.leads); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return s, nil
}

// depths returns how many wait in each lane.
func (s *Service) depths() map[string]int {
	t := s.open()
	if t == nil {
		return map[string]int{laneBinds: 0, laneLateBinds: 0, laneEvents: 0, laneReports: 0, lanePreemptions: 0, laneVolumes: 0, lanePreparing: 0, laneSteps: 0}
	}
	return map[string]int{
		laneBinds: len(t.binds) + t.turns.waiting() + t.flights.waiting(), laneLateBinds: t.late.count(), laneEvents: t.events.depth(), laneReports: t.reports.depth(),
		lanePreemptions: t.preemptions.waiting(), laneVolumes: t.preparing.turns.waiting(), lanePreparing: t.preparing.bound.count(), laneSteps: t.stepping.bound.count(),
	}
}

// Register adds the binder's services to a server.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	binderv1.RegisterBinderServiceServer(r, s)
	logv1.RegisterLogServiceServer(r, s)
}

// Run competes for the term, holds it, and competes again after losing it, until ctx ends. It then waits for
// everything it started, and gives the term up so that another can follow at once. It is called once, and returns nil.
func (s *Service) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := s.candidate(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.Error("not the active binder any more, competing again", "err", err)
			s.wait(fmt.Sprintf("competing again soon, after: %v", err))
			select { // whatever it was, do not spin on it
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
	return nil
}

// candidate waits to be elected and serves one term.
func (s *Service) candidate(ctx context.Context) error {
	// A lease that is not needed yet is not there for others to take.
	if err := s.awaitSource(ctx); err != nil {
		return err
	}
	s.wait("waiting for etcd")
	session, err := s.cfg.Coord.NewSession(ctx, s.cfg.LeaseTTL)
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if err := session.Close(ctx); err != nil {
			s.cfg.Log.Warn("session not closed; its lease will expire", "err", err)
		}
	}()
	held, err := s.campaign(ctx, session)
	if err != nil {
		return err
	}
	s.cfg.Log.Info("elected", "epoch", held.Epoch())
	s.metrics.terms.Inc()
	err = s.serve(ctx, held)
	if s.extenders != nil {
		s.extenders.endSessions(context.WithoutCancel(ctx), cluster.Epoch(held.Epoch()))
	}
	return err
}

// campaign stands for election, for as long as the source answers, until this binder is elected.
func (s *Service) campaign(ctx context.Context, session *coord.Session) (*coord.Term, error) {
	if err := s.awaitSource(ctx); err != nil {
		return nil, err
	}
	if err := session.Stand(ctx, s.cfg.ID); err != nil {
		return nil, err
	}
	s.wait(standingBy)
	standing, withdraw := context.WithCancelCause(ctx)
	var contact sync.WaitGroup
	contact.Go(func() {
		if err := s.keepContact(standing, withdrawAfter, func(context.Context) bool { return true }); err != nil {
			withdraw(err)
		}
	})
	held, err := s.cfg.Coord.Campaign(standing, session, s.cfg.ID, s.cfg.Address)
	withdraw(nil)
	contact.Wait()
	return held, err
}

// sizes returns how much the ledger holds, in kube-scheduler's words: its pods are those that have a place.
func (s *Service) sizes() map[string]int {
	sizes := map[string]int{"nodes": 0, "pods": 0, "assumed_pods": 0}
	if t := s.open(); t != nil {
		t.ledger.Snapshot(func(st *cluster.State) {
			assumed := st.Count(cluster.Assumed)
			sizes["nodes"], sizes["assumed_pods"], sizes["pods"] = st.Nodes.Count(), assumed, assumed+st.Count(cluster.Bound)
		})
	}
	return sizes
}

// open returns the open term, nil while there is none.
func (s *Service) open() *term {
	if t := s.term.Load(); t != nil && !t.ended() {
		return t
	}
	return nil
}

// Ready returns nil while this binder is active, its epoch is open and its source is heard, else why it is not so.
func (s *Service) Ready() error {
	if t := s.open(); t != nil {
		if err := t.source.Ready(); err != nil {
			return fmt.Errorf("active, but the source is not followed: %w", err)
		}
		if why := s.yieldsAll(t); why != "" {
			return fmt.Errorf("%w: %s", errYields, why)
		}
		return nil
	}
	return errors.New(*s.waits.Load())
}

// Active reports whether this binder is active, and has something to place. What its source has lost sight of for a moment does not matter.
func (s *Service) Active() bool {
	t := s.open()
	return t != nil && s.yieldsAll(t) == ""
}

// errYields says that the active binder has nothing to place.
var errYields = errors.New("standing by: all pods are left to another scheduler")

// yieldsAll says why all scheduler names are another scheduler's at the moment, "" if one is not.
func (s *Service) yieldsAll(t *term) string {
	if len(s.shared) < len(s.cfg.Settings.Profiles) {
		return ""
	}
	if stint, _ := t.names.now(); len(t.names.shared) == 0 || stint != 0 {
		return ""
	}
	return t.names.reason()
}

// yielded returns how many scheduler names are left to another scheduler.
func (s *Service) yielded() int {
	t := s.open()
	if t == nil {
		return 0
	}
	if stint, _ := t.names.now(); stint != 0 {
		return 0
	}
	return len(t.names.shared)
}

// leads returns 1 while this binder holds the lease of its shared names.
func (s *Service) leads() int {
	if t := s.open(); t != nil {
		if stint, _ := t.names.now(); stint != 0 {
			return 1
		}
	}
	return 0
}

// Elects returns an error if this binder still counts itself as the holder of the lease of its shared names, and has not renewed it for so long that something in it stands still. It is what
// kube-scheduler's check leaderElection is.
func (s *Service) Elects() error { return s.elects(time.Now()) }

func (s *Service) elects(now time.Time) error {
	if t := s.open(); t != nil {
		return t.names.overdue(now)
	}
	return nil
}

// Available returns nil while this binder does its part: it is ready, or it stands by for the binder, or another scheduler, that is elected.
// Between its election and the opening of its epoch, and without etcd, it is neither.
func (s *Service) Available() error {
	err := s.Ready()
	if err != nil && (err.Error() == standingBy || errors.Is(err, errYields)) {
		return nil
	}
	return err
}

// standingBy is what a binder waits for that is in the race, while another one is elected.
const standingBy = "standing by until elected"

func (s *Service) wait(why string) { s.waits.Store(&why) }

// Version returns the ledger's version, zero while not active.
func (s *Service) Version() cluster.Version {
	if t := s.open(); t != nil {
		return t.ledger.version()
	}
	return cluster.Version{}
}

// Digest returns the ledger's digest, 0 while not active.
func (s *Service) Digest() uint64 {
	if t := s.open(); t != nil {
		return t.ledger.digest()
	}
	return 0
}

func (s *Service) active() (*term, error) {
	if t := s.open(); t != nil {
		return t, nil
	}
	return nil, errNotActive(*s.waits.Load())
}

func errNotActive(why string) error {
	return rpc.Error(codes.Unavailable, "NOT_ACTIVE", "this binder is not active: %s", why)
}

// Follow implements LogService.
func (s *Service) Follow(req *logv1.FollowRequest, stream logv1.LogService_FollowServer) error {
	t, err := s.active()
	if err != nil {
		return err
	}
	return t.feed.Follow(req, stream, t.ledger)
}

// Commit implements BinderService.
func (s *Service) Commit(_ context.Context, req *binderv1.CommitRequest) (*binderv1.CommitResponse, error) {
	t, err := s.active()
	if err != nil {
		return nil, err
	}
	return t.commit(req)
}

// Ask implements BinderService.
func (s *Service) Ask(ctx context.Context, req *binderv1.AskRequest) (*binderv1.AskResponse, error) {
	t, err := s.active()
	if err != nil {
		return nil, err
	}
	return t.ask(ctx, req)
}

// Report implements BinderService.
func (s *Service) Report(_ context.Context, req *binderv1.ReportRequest) (*binderv1.ReportResponse, error) {
	t, err := s.active()
	if err != nil {
		return nil, err
	}
	if err := validateReports(req); err != nil {
		return nil, err
	}
	left, taken, err := t.report(req)
	switch {
	case t.ended(): // then the log is closed, which is also an error of report
		return nil, errNotActive("the term has ended")
	case err != nil:
		t.fail(err)
		return nil, rpc.Error(codes.Internal, "BROKEN_LEDGER", "report: the ledger is broken")
	case !taken:
		return nil, t.errReportsFull(len(req.GetReports()))
	}
	return &binderv1.ReportResponse{Left: left}, nil
}

func (t *term) errReportsFull(refused int) error {
	t.metrics.laneDropped.WithLabelValues(laneReports).Add(float64(refused))
	return rpc.Exhausted("REPORTS_FULL", time.Second, "the report lane is full")
}

// Preempt implements BinderService.
func (s *Service) Preempt(_ context.Context, req *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
	t, err := s.active()
	if err != nil {
		return nil, err
	}
	return t.preempt(req)
}

// AskPreempt implements BinderService.
func (s *Service) AskPreempt(ctx context.Context, req *binderv1.AskPreemptRequest) (*binderv1.AskPreemptResponse, error) {
	t, err := s.active()
	if err != nil {
		return nil, err
	}
	resp, err := t.askPreempt(ctx, req.GetPreemption(), req.GetAsAttached())
	if err != nil {
		return nil, err
	}
	return &binderv1.AskPreemptResponse{Preemption: resp}, nil
}

// AskPostFilter implements BinderService.
func (s *Service) AskPostFilter(ctx context.Context, req *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error) {
	t, err := s.active()
	if err != nil {
		return nil, err
	}
	return t.askPostFilter(ctx, req)
}

// PlaceGroup implements BinderService.
func (s *Service) PlaceGroup(ctx context.Context, req *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
	t, err := s.active()
	if err != nil {
		return nil, err
	}
	return t.placeGroup(ctx, req)
}

// AskPreEnqueue implements BinderService.
func (s *Service) AskPreEnqueue(ctx context.Context, req *binderv1.AskPreEnqueueRequest) (*binderv1.AskPreEnqueueResponse, error) {
	t, err := s.active()
	if err != nil {
		return nil, err
	}
	return t.askPreEnqueue(ctx, req)
}
