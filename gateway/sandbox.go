package gateway

import (
	"context"
	"runtime"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
)

const (
	// sandboxWaiting is how many questions may wait for the sandbox. They are answered one at a time: each may use all cores, and
	// none may take the cores from scheduling for long.
	sandboxWaiting = 16
	// sandboxEntries bounds what the sandbox's evaluator remembers, in evaluations times nodes: some 40 bytes each.
	sandboxEntries = 4 << 20
	// sandboxSpan is for how many nodes each a question uses another core. What takes a millisecond or two is done sooner by one
	// goroutine than by two of which one still waits for a core.
	sandboxSpan = 16_384
	// tailLength is how many deltas are kept for the sandbox to follow. To copy the cluster costs less than what brings so many.
	tailLength = 1 << 16
)

// sandbox is the copy of the cluster that people's questions are tried on. It follows the log from one question to the next; if
// nobody has asked for long, the next one begins with a new copy. Its owner is whoever is in the gate.
type sandbox struct {
	gate *rpc.Gate
	box  *whatif.Sandbox // nil: none yet
	tail tail
}

func newSandbox() *sandbox { return &sandbox{gate: rpc.NewGate(1, sandboxWaiting)} }

// try calls look with the newest state, and then ask with a sandbox that is as that state is, and a context that ends with
// the time that one question may have it.
func (s *Service) try(ctx context.Context, look func(*cluster.State) error, ask func(context.Context, *whatif.Sandbox) error) error {
	if err := s.loaded(); err != nil {
		return err
	}
	leave, err := s.sandbox.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QuestionFor)
	defer cancel()
	turn, err := rpc.TakeTurn(ctx)
	if err != nil {
		return err
	}
	defer turn.End()
	b := s.sandbox
	var since []cluster.Delta
	var version cluster.Version
	var digest uint64
	err = s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error {
		if err := look(st); err != nil {
			return err
		}
		whole := false
		if since, whole = b.tail.take(); !whole || b.box == nil || b.box.Spoiled() != nil || b.box.Swollen() {
			b.copy(st)
			since = nil
		}
		version, digest = st.Version(), st.Digest()
		return nil
	})
	if err != nil {
		return replica.Status(err)
	}
	if err := turn.Yield(); err != nil { // a copy of the cluster is one piece of work, and so are many deltas
		b.box = nil
		return err
	}
	if err := b.box.Follow(since, version, digest); err != nil {
		return err // the next question gets a new copy
	}
	if err := turn.Yield(); err != nil {
		return err
	}
	ctx = whatif.WithPlugins(whatif.WithPause(ctx, turn.Yield), s)
	ctx = turn.During(ctx)
	return ask(whatif.WithAside(ctx, func(wait func() error) error { return rpc.Aside(ctx, wait) }), b.box)
}

// nothing is looked for.
func nothing(*cluster.State) error { return nil }

// tryPod calls ask with a sandbox and a pod that is in it, and returns what the ledger knows of the pod.
func (s *Service) tryPod(ctx context.Context, name podName, ask func(context.Context, *whatif.Sandbox, cluster.PodID) error) (*schedulingv1.Pod, error) {
	var id cluster.PodID
	var pod *schedulingv1.Pod
	err := s.try(ctx, func(st *cluster.State) error {
		var row *cluster.PodRow
		if id, row = s.names.find(st, name); row == nil {
			return errPodNotFound(name)
		}
		pod = podOf(st, row)
		return nil
	}, func(ctx context.Context, box *whatif.Sandbox) error { return ask(ctx, box, id) })
	return pod, err
}

// copy makes the sandbox one of this state.
func (b *sandbox) copy(st *cluster.State) {
	b.box = nil // so that there are never two
	b.box = whatif.New(st, engine.EvaluatorConfig{
		MaxEvaluations: max(sandboxEntries/max(st.Nodes.Len(), 1), 8),
		Parallelism:    min(1+st.Nodes.Len()/sandboxSpan, runtime.GOMAXPROCS(0)),
	})
}

// tail is what the log has told since the sandbox was last told. It is a subscriber of the replica; take is called while
// nobody changes the state.
type tail struct {
	mu     sync.Mutex
	whole  bool // it has kept everything
	deltas []cluster.Delta
}

// Reset implements replica.Subscriber.
func (t *tail) Reset(*cluster.State) { t.lose() }

// Applied implements replica.Subscriber.
func (t *tail) Applied(_ *cluster.State, d cluster.Delta) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.whole:
	case len(t.deltas) == tailLength:
		t.whole, t.deltas = false, nil
	default:
		t.deltas = append(t.deltas, d)
	}
}

func (t *tail) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.whole, t.deltas = false, nil
}

// take returns what was told since the last time, and whether that is all. From now on everything is kept.
func (t *tail) take() (deltas []cluster.Delta, whole bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	deltas, whole = t.deltas, t.whole
	t.deltas, t.whole = nil, true
	return deltas, whole
}
