package queue_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/trace"
	"github.com/berth-scheduler/berth/services/filter"
	"github.com/berth-scheduler/berth/services/queue"
	"github.com/berth-scheduler/berth/services/score"
)

// world is a small Berth on a memory network: real queue, filter and score services, real gRPC.
type world struct {
	t       *testing.T
	ctx     context.Context
	log     *slog.Logger
	net     rpc.Network
	ledger  *ledger
	etcd    *etcd
	binder  *binder
	clients *rpc.Clients
	metrics prometheus.Registerer  // of queue members
	trace   *trace.Provider        // of queue members
	batch   int                    // of queue members; 0: the standard
	timeout time.Duration          // of workers' answers, for queue members
	hedge   time.Duration          // likewise
	broken  atomic.Bool            // the engine of queue members panics with the first class
	judging atomic.Pointer[func()] // called before the engine of queue members judges; nil: nothing

	mu       sync.Mutex
	sessions map[string][]*session
}

func newWorld(t *testing.T, shards int32) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &world{
		t: t, ctx: ctx, log: slog.New(slog.DiscardHandler), net: rpc.Memory(), ledger: newLedger(shards), etcd: newEtcd(),
		sessions: make(map[string][]*session), timeout: time.Second, hedge: time.Hour,
	}
	w.binder = &binder{
		ledger: w.ledger, evaluator: engine.NewEvaluator(engine.EvaluatorConfig{}),
		reports: make(map[string]string), cleared: make(map[string]bool), meant: make(map[string]string),
	}
	w.clients = rpc.NewClients(rpc.Config{Net: w.net})
	t.Cleanup(func() {
		cancel()
		if err := w.clients.Close(); err != nil {
			t.Error(err)
		}
	})
	w.serve("binder", func(r grpc.ServiceRegistrar) { binderv1.RegisterBinderServiceServer(r, w.binder) })
	w.etcd.change(func() { w.etcd.leader = coord.Leader{Epoch: epoch, ID: "binder", Address: "binder"} })
	return w
}

// serve runs a server until stop, or the end of the test.
func (w *world) serve(address string, register func(grpc.ServiceRegistrar)) (stop func()) {
	w.t.Helper()
	listener, err := w.net.Listen(address)
	if err != nil {
		w.t.Fatal(err)
	}
	server := rpc.NewServer(rpc.Config{Net: w.net}, address, rpc.WithDrain(2*time.Second))
	register(server.Registrar())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("serve %s: %v", address, err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// filterServer lets a test act between the evaluation and the answer.
type filterServer struct {
	*filter.Service
	calls    atomic.Int64
	answered func(call int64)
	refuse   func(request *filterv1.FilterRequest) error // nil: nothing
	amend    func(response *filterv1.FilterResponse)     // nil: nothing
	stuck    atomic.Bool                                 // it never answers
	slow     time.Duration                               // how long a dry run takes; only with fake time
	// dryRun lets a test answer the n-th dry run, from 1; nil, or if it answers nothing: as the ledger has it.
	dryRun func(n int) (*filterv1.DryRunPreemptionResponse, error)

	mu       sync.Mutex
	requests []*filterv1.FilterRequest
	dryRuns  []*filterv1.DryRunPreemptionRequest
}

func (f *filterServer) DryRunPreemption(
	ctx context.Context, request *filterv1.DryRunPreemptionRequest,
) (*filterv1.DryRunPreemptionResponse, error) {
	f.mu.Lock()
	f.dryRuns = append(f.dryRuns, request)
	n := len(f.dryRuns)
	f.mu.Unlock()
	elapse(f.slow)
	if f.dryRun != nil {
		if response, err := f.dryRun(n); response != nil || err != nil {
			return response, err
		}
	}
	return f.Service.DryRunPreemption(ctx, request)
}

// asked returns the dry runs so far.
func (f *filterServer) asked() []*filterv1.DryRunPreemptionRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.dryRuns)
}

func (f *filterServer) Filter(ctx context.Context, request *filterv1.FilterRequest) (*filterv1.FilterResponse, error) {
	f.mu.Lock()
	f.requests = append(f.requests, request)
	f.mu.Unlock()
	if f.stuck.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if f.refuse != nil {
		if err := f.refuse(request); err != nil {
			return nil, err
		}
	}
	response, err := f.Service.Filter(ctx, request)
	if err == nil && f.amend != nil {
		f.amend(response)
	}
	if n := f.calls.Add(1); f.answered != nil {
		f.answered(n)
	}
	return response, err
}

// filterWorker starts a filter-worker; its stop leaves it among the members, as a dead one is until its lease ends.
func (w *world) filterWorker(id string, answered func(call int64)) (server *filterServer, stop func()) {
	w.t.Helper()
	s, err := filter.New(filter.Config{Replica: w.ledger, Evaluator: engine.NewEvaluator(engine.EvaluatorConfig{})})
	if err != nil {
		w.t.Fatal(err)
	}
	server = &filterServer{Service: s, answered: answered}
	stop = w.serve(id, func(r grpc.ServiceRegistrar) { filterv1.RegisterFilterServiceServer(r, server) })
	w.etcd.join(coord.RoleFilterWorker, id)
	return server, stop
}

func (w *world) scoreWorker(id string) (stop func()) {
	w.t.Helper()
	s, err := score.New(score.Config{Replica: w.ledger, Evaluator: engine.NewEvaluator(engine.EvaluatorConfig{})})
	if err != nil {
		w.t.Fatal(err)
	}
	stop = w.serve(id, s.Register)
	w.etcd.join(coord.RoleScoreWorker, id)
	return stop
}

// queueMember starts a queue member; its stop makes it leave.
func (w *world) queueMember(id string) (s *queue.Service, stop func()) {
	w.t.Helper()
	s, err := queue.New(queue.Config{
		ID: id, Replica: w.ledger, Evaluator: &evaluator{engine.NewEvaluator(engine.EvaluatorConfig{}), w}, Coord: w.etcd, Clients: w.clients,
		NewSession: func(context.Context) (queue.Session, error) {
			s := &session{etcd: w.etcd, owner: id, done: make(chan struct{})}
			w.mu.Lock()
			w.sessions[id] = append(w.sessions[id], s)
			w.mu.Unlock()
			return s, nil
		},
		BatchSize: w.batch, WorkerTimeout: w.timeout, HedgeAfter: w.hedge, CommitTimeout: 300 * time.Millisecond, Log: w.log, Metrics: w.metrics,
		Trace: w.trace,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	unserve := w.serve(id, s.Register)
	w.etcd.join(coord.RoleQueue, id)
	stop = sync.OnceFunc(func() {
		w.etcd.leave(id)
		unserve()
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run queue %s: %v", id, err)
		}
	})
	w.t.Cleanup(stop)
	return s, stop
}

func (w *world) noSession(ctx context.Context) (queue.Session, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (w *world) lastSession(id string) *session {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.sessions[id]
	return all[len(all)-1]
}

// patience is for hangs only.
const patience = 5 * time.Minute

// until polls a condition, and ends the test if it does not come true.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func (w *world) untilPlaced(names ...string) {
	w.t.Helper()
	for _, name := range names {
		until(w.t, name+" is placed", func() bool { return w.ledger.nodeOf(name) != "" })
	}
}

// pending returns what a member holds, by name.
func pending(t *testing.T, s *queue.Service) map[string]*queuev1.PendingPod {
	t.Helper()
	response, err := s.ListPending(t.Context(), &queuev1.ListPendingRequest{PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	pods := make(map[string]*queuev1.PendingPod)
	for _, p := range response.GetPods() {
		pods[p.GetName()] = p
	}
	return pods
}

func untilState(t *testing.T, s *queue.Service, name string, want queuev1.State) *queuev1.PendingPod {
	t.Helper()
	var p *queuev1.PendingPod
	until(t, fmt.Sprintf("%s is %v", name, want), func() bool {
		p = pending(t, s)[name]
		return p.GetState() == want
	})
	return p
}

// elapse lets fake time pass. Its callers run under testing/synctest, where a sleep takes no real time, and ends when all
// other goroutines of the test have nothing left to do before that moment.
func elapse(d time.Duration) { time.Sleep(d) }

// evaluator panics with the first class while its world is broken.
type evaluator struct {
	queue.Evaluator
	in *world
}

func (e *evaluator) judges(class cluster.ClassID) {
	if judging := e.in.judging.Load(); judging != nil {
		(*judging)()
	}
	if e.in.broken.Load() && class == 0 {
		panic("this class")
	}
}

func (e *evaluator) Node(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) (engine.Verdict, bool) {
	e.judges(s.Class)
	return e.Evaluator.Node(st, s, self, node)
}

func (e *evaluator) Signature(st *cluster.State, s engine.Subject) engine.Signature {
	e.judges(s.Class)
	return e.Evaluator.Signature(st, s)
}

func (e *evaluator) Possible(st *cluster.State, s engine.Subject, but cluster.NodeIndex) bool {
	e.judges(s.Class)
	return e.Evaluator.Possible(st, s, but)
}

func (e *evaluator) CrossNode(st *cluster.State, s engine.Subject) bool {
	e.judges(s.Class)
	return e.Evaluator.CrossNode(st, s)
}

func (e *evaluator) Preempts(st *cluster.State, pod cluster.PodID) (why string, ok bool) {
	e.judges(st.Pod(pod).Class)
	return e.Evaluator.Preempts(st, pod)
}

func (e *evaluator) Preemptable(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) bool {
	e.judges(s.Class)
	return e.Evaluator.Preemptable(st, s, self, node)
}
