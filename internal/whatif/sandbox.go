package whatif

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
)

const (
	// MaxChanges bounds how many deltas one Try may apply: each is remembered until it is undone.
	MaxChanges = 1 << 20
	// maxRemembered bounds for how many classes and label sets that are gone again a Sandbox remembers the ids.
	maxRemembered = 1 << 16
	// maxRememberedBytes bounds how long these are, as keys.
	maxRememberedBytes = 16 << 20
	// swollenBy is how many places for nodes do not matter: a question may add 10,000.
	swollenBy = 1 << 14
	// swollenClasses is for how many more names of StorageClasses the state may remember what claims have asked for: what a question brings is
	// never forgotten of that.
	swollenClasses = 1 << 14
)

// ErrTooMuch is wrapped by errors that say that a question is larger than its bound.
var ErrTooMuch = errors.New("too much is asked")

// ErrSpoiled is wrapped by errors of a Sandbox that is no copy of the cluster any more: its owner makes a new one.
var ErrSpoiled = errors.New("the sandbox is spoiled")

// Sandbox is a copy of the cluster to try things on, with an Evaluator of its own, which remembers from one Try to the next
// what it has found: the second question about a class costs little. It can follow the ledger: what it has found of nodes
// that do not change goes on to hold. A Sandbox is not for concurrent use.
type Sandbox struct {
	version   cluster.Version // of the ledger, that it is a copy of
	state     *cluster.State
	evaluator *engine.Evaluator
	fold      *ingest.Fold
	zoning    zoning
	world     *World // of the Try that is under way; nil: none is
	remembers int    // how many classes and label sets the fold may know, and
	bytes     int    // how long they may be
	nodes     int    // how many places for nodes there were at the beginning, and
	classes   int    // StorageClasses by name
	spoiled   error
}

// New returns a Sandbox of a state, which it copies: nobody may change the state meanwhile. See cluster.State.Clone for what
// that costs.
func New(st *cluster.State, config engine.EvaluatorConfig) *Sandbox {
	return sandboxOf(st.Clone(), config)
}

// sandboxOf returns a Sandbox that owns the state.
func sandboxOf(st *cluster.State, config engine.EvaluatorConfig) *Sandbox {
	s := &Sandbox{version: st.Version(), state: st, evaluator: engine.NewEvaluator(config), nodes: st.Nodes.Len(), classes: st.SuppliedClasses()}
	s.fold = ingest.New(st, s.apply, ingest.KeepIDs, ingest.SeparateIDs)
	s.remembers, s.bytes = s.known()+maxRemembered, s.fold.KnownBytes()+maxRememberedBytes
	return s
}

// Version returns the version of the ledger that the Sandbox is a copy of: answers are of it.
func (s *Sandbox) Version() cluster.Version { return s.version }

// Follow makes happen what the ledger's log tells after the Sandbox's version, up to a version at which the ledger has a digest.
// An error, which wraps ErrSpoiled, says that this is not what the log tells.
func (s *Sandbox) Follow(deltas []cluster.Delta, version cluster.Version, digest uint64) error {
	switch {
	case s.world != nil:
		return errors.New("follow: the sandbox is being tried")
	case s.spoiled != nil:
		return s.spoiled
	}
	for _, d := range deltas {
		if err := s.state.Apply(d); err != nil {
			s.spoiled = fmt.Errorf("%w: follow: %w", ErrSpoiled, err)
			return s.spoiled
		}
	}
	if got := s.state.Digest(); got != digest {
		s.spoiled = fmt.Errorf("%w: follow: the digest at %v is %016x, the ledger's is %016x", ErrSpoiled, version, got, digest)
		return s.spoiled
	}
	s.version = version
	return nil
}

// Spoiled returns why the Sandbox can be used no more, nil if it can. The error wraps ErrSpoiled.
func (s *Sandbox) Spoiled() error { return s.spoiled }

// Swollen reports whether the Sandbox has places for far more nodes than it had at the beginning: those of nodes that were tried stay,
// and with them columns of all there is; or that it remembers far more names of StorageClasses. Its owner makes a new one.
func (s *Sandbox) Swollen() bool {
	return s.state.Nodes.Len() > 2*s.nodes+swollenBy || s.state.SuppliedClasses() > 2*s.classes+swollenClasses
}

type pauseKey struct{}

// WithPause returns a context of questions that take long: between their parts they call pause, and end with its error.
func WithPause(ctx context.Context, pause func() error) context.Context {
	return context.WithValue(ctx, pauseKey{}, pause)
}

// between is called between the parts of what takes long.
func between(ctx context.Context) error {
	if pause, ok := ctx.Value(pauseKey{}).(func() error); ok {
		if err := pause(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Try calls ask with a World that is as the cluster is. What ask changes in it is undone when ask returns. The World must not
// be used later. Try returns ask's error, or one that wraps ErrSpoiled. When ctx has ended, changes and questions return its
// error.
func (s *Sandbox) Try(ctx context.Context, ask func(*World) error) error {
	switch {
	case s.world != nil:
		return errors.New("try: the sandbox is being tried")
	case s.spoiled != nil:
		return s.spoiled
	}
	before := s.state.Digest()
	s.world = &World{ctx: ctx, s: s, placed: make(map[string]int), brought: make(map[string]*corev1.Pod)}
	s.spoiled = fmt.Errorf("%w: a try has not come to its end", ErrSpoiled) // unless this one does
	defer s.world.asking.end()
	err := ask(s.world)
	undone := s.world.undo(0)
	s.world = nil
	if undone == nil && s.state.Digest() != before {
		undone = fmt.Errorf("the digest is %016x, it was %016x", s.state.Digest(), before)
	}
	if undone != nil {
		s.spoiled = fmt.Errorf("%w: undo: %w", ErrSpoiled, undone)
		return errors.Join(err, s.spoiled)
	}
	s.spoiled = nil
	if s.known() > s.remembers || s.fold.KnownBytes() > s.bytes {
		s.fold.Relearn()
	}
	return err
}

// known returns how many classes and label sets the fold knows.
func (s *Sandbox) known() int {
	classes, labels := s.fold.Known()
	return classes + labels
}

// apply is where the fold's deltas go.
func (s *Sandbox) apply(d cluster.Delta) error {
	if s.world == nil {
		return errors.New("apply: the sandbox is not being tried")
	}
	return s.world.Apply(d)
}
