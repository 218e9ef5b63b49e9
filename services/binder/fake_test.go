package binder

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// fakeSource is a cluster in memory. It outlives binders, as a real one does.
type fakeSource struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
	away    error         // why nothing is told at the moment; nil: it is reachable
	nodes   map[string]cluster.Node
	pods    map[string]source.Pod // by uid
	log     []source.Event        // everything that ever changed
	watches int                   // running at the moment
	told    int                   // how many of log the watch has told that began last
	fakeVolumes

	fenced bool // its binds are
	// answer, if not nil, is asked before a bind happens; BindDone lets it happen.
	answer   func(source.Binding) source.Outcome
	binds    []source.Binding // all that were tried
	prepared func()           // if not nil, is called by Prepare
	// withdraw, if not nil, is asked before a withdrawal happens; BindRefused lets it happen.
	withdraw  func(source.Binding) source.Outcome
	withdrawn []source.Report // what all that were tried said
	scheduled []source.Binding
	reports   []source.Report
	block     chan struct{} // if not nil, events and conditions are written when it is closed
	took      time.Duration // of each write of an event, a condition or a nomination

	// refuse, if not nil, is asked before an eviction happens; an error prevents it.
	refuse      func(source.Eviction) error
	graceful    bool              // pods that are evicted stay, deleting, until deletePod
	evicted     []source.Eviction // all that were tried
	preempted   []source.Eviction // those with an event
	nominations []source.Nomination
	unsupported []source.Unsupported
}

func newFakeSource() *fakeSource {
	return &fakeSource{changed: make(chan struct{}), nodes: make(map[string]cluster.Node), pods: make(map[string]source.Pod)}
}

// change runs fn under the lock and wakes the watches.
func (s *fakeSource) change(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeSource) setNode(n cluster.Node) {
	s.change(func() {
		s.nodes[n.Name] = n
		s.log = append(s.log, source.Event{Kind: source.NodeSet, Node: n})
	})
}

func (s *fakeSource) removeNode(name string) {
	s.change(func() {
		delete(s.nodes, name)
		s.log = append(s.log, source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: name}})
	})
}

func (s *fakeSource) setPod(p source.Pod) {
	s.change(func() {
		s.pods[p.UID] = p
		s.log = append(s.log, source.Event{Kind: source.PodSet, Pod: p})
	})
}

func (s *fakeSource) deletePod(uid string) {
	s.change(func() { s.remove(uid) })
}

// remove takes a pod away. The caller holds the lock.
func (s *fakeSource) remove(uid string) {
	gone := source.Event{Kind: source.PodGone}
	gone.Pod.UID, gone.Pod.Namespace, gone.Pod.Name = uid, s.pods[uid].Namespace, s.pods[uid].Name
	delete(s.pods, uid)
	s.log = append(s.log, gone)
}

// goAway makes the watch tell nothing until goAway(nil).
func (s *fakeSource) goAway(why error) { s.change(func() { s.away = why }) }

// answers sets what binds are answered; nil: as the cluster would.
func (s *fakeSource) answers(answer func(source.Binding) source.Outcome) {
	s.change(func() { s.answer = answer })
}

// tried returns the binds that were sent, of one pod if uid is not empty.
func (s *fakeSource) tried(uid string) []source.Binding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.binds), func(b source.Binding) bool { return uid != "" && b.UID != uid })
}

// nodeOf returns the node a pod is on.
func (s *fakeSource) nodeOf(uid string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[uid].NodeName
}

func (s *fakeSource) Name() string  { return "fake" }
func (s *fakeSource) MaxBatch() int { return 16 }
func (s *fakeSource) Fenced() bool  { return s.fenced }

func (s *fakeSource) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

func (s *fakeSource) Watch(ctx context.Context, sink func(source.Event)) error {
	s.mu.Lock()
	s.watches++
	s.mu.Unlock()
	defer s.change(func() { s.watches-- })
	told := -1 // nothing yet
	for {
		s.mu.Lock()
		var events []source.Event
		switch {
		case s.away != nil:
		case told < 0:
			for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
				events = append(events, source.Event{Kind: source.NodeSet, Node: s.nodes[name]})
			}
			for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
				events = append(events, source.Event{Kind: source.PodSet, Pod: s.pods[uid]})
			}
			for _, object := range s.objects {
				events = append(events, source.Event{Kind: source.ObjectSet, Object: object})
			}
			events = append(events, source.Event{Kind: source.Synced})
			told = len(s.log)
		default:
			events = s.log[told:]
			told = len(s.log)
		}
		changed := s.changed
		s.mu.Unlock()
		for _, e := range events {
			sink(e)
		}
		if len(events) > 0 {
			s.change(func() { s.told = told })
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

var errFake = errors.New("the fake source says so")

func (s *fakeSource) Bind(ctx context.Context, _ coord.Cond, bindings []source.Binding) []source.Outcome {
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	out := make([]source.Outcome, len(bindings))
	for i, b := range bindings {
		if answer != nil {
			out[i] = answer(b) // without the lock: it may wait, and look
		} else {
			out[i].Result = source.BindDone
		}
	}
	s.change(func() {
		for i, b := range bindings {
			s.binds = append(s.binds, b)
			if out[i].Result == source.BindDone {
				out[i] = s.place(b)
			}
		}
	})
	return out
}

// place binds as an API server does. The caller holds the lock.
func (s *fakeSource) place(b source.Binding) source.Outcome {
	p, ok := s.pods[b.UID]
	switch {
	case !ok || p.Deleting:
		return source.Outcome{Result: source.BindGone, Err: errFake}
	case p.NodeName == b.Node:
		return source.Outcome{Result: source.BindDone}
	case p.NodeName != "":
		return source.Outcome{Result: source.BindElsewhere, Err: errFake}
	}
	p.NodeName = b.Node
	s.pods[b.UID] = p
	s.log = append(s.log, source.Event{Kind: source.PodSet, Pod: p})
	return source.Outcome{Result: source.BindDone}
}

func (s *fakeSource) Prepare([]source.Binding) {
	if s.prepared != nil {
		s.prepared()
	}
}

func (s *fakeSource) Withdraw(_ context.Context, _ coord.Cond, b source.Binding, why source.Report) source.Outcome {
	s.mu.Lock()
	answer := s.withdraw
	s.mu.Unlock()
	out := source.Outcome{Result: source.BindRefused, Err: errFake}
	if answer != nil {
		out = answer(b) // without the lock: it may wait, and look
	}
	s.change(func() {
		s.withdrawn = append(s.withdrawn, why)
		if out.Result != source.BindRefused {
			return
		}
		switch p, ok := s.pods[b.UID]; {
		case !ok || p.Deleting:
			out.Result = source.BindGone
		case p.NodeName == b.Node:
			out = source.Outcome{Result: source.BindDone}
		case p.NodeName != "":
			out.Result = source.BindElsewhere
		}
	})
	return out
}

// withdrawals returns what all withdrawals that were tried said.
func (s *fakeSource) withdrawals() []source.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.withdrawn)
}

func (s *fakeSource) Lookup(_ context.Context, namespace, name string) (uid, node string, found bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away != nil {
		return "", "", false, s.away
	}
	for _, p := range s.pods {
		if p.Namespace == namespace && p.Name == name {
			return p.UID, p.NodeName, true, nil
		}
	}
	return "", "", false, nil
}

// write waits until events may be written, and then for as long as so many writes take.
func (s *fakeSource) write(ctx context.Context, writes int, fn func()) error {
	s.mu.Lock()
	block, took := s.block, s.took
	s.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if took > 0 {
		elapse(time.Duration(writes) * took)
	}
	s.change(fn)
	return nil
}

func (s *fakeSource) Scheduled(ctx context.Context, b source.Binding) error {
	return s.write(ctx, 1, func() { s.scheduled = append(s.scheduled, b) })
}

func (s *fakeSource) Unschedulable(ctx context.Context, r source.Report) error {
	return s.write(ctx, 2, func() { s.reports = append(s.reports, r) })
}

func (s *fakeSource) GroupDecided(ctx context.Context, r source.Report) error {
	return s.write(ctx, 1, func() { s.reports = append(s.reports, r) })
}

func (s *fakeSource) reported(uid string) []source.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.reports), func(r source.Report) bool { return r.UID != uid })
}

func (s *fakeSource) Nominate(ctx context.Context, n source.Nomination) error {
	return s.write(ctx, 1, func() { s.nominations = append(s.nominations, n) })
}

func (s *fakeSource) Preempted(ctx context.Context, e source.Eviction) error {
	return s.write(ctx, 1, func() { s.preempted = append(s.preempted, e) })
}

func (s *fakeSource) Unsupported(ctx context.Context, u source.Unsupported) error {
	return s.write(ctx, 1, func() { s.unsupported = append(s.unsupported, u) })
}

func (s *fakeSource) Evict(_ context.Context, _ coord.Cond, e source.Eviction) error {
	s.mu.Lock()
	refuse := s.refuse
	s.mu.Unlock()
	var err error
	if refuse != nil {
		err = refuse(e) // without the lock: it may wait, and look
	}
	s.change(func() {
		s.evicted = append(s.evicted, e)
		p, ok := s.pods[e.UID]
		if err != nil || !ok {
			return
		}
		if s.graceful {
			p.Deleting, p.Preempted = true, true
			s.pods[e.UID] = p
			s.log = append(s.log, source.Event{Kind: source.PodSet, Pod: p})
			return
		}
		s.remove(e.UID)
	})
	return err
}

// evictions returns the names of the pods whose eviction was tried, in order of names.
func (s *fakeSource) evictions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, e := range s.evicted {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names
}

var _ source.Source = (*fakeSource)(nil)
