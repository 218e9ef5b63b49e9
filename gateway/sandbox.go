package gateway

import (
	"context"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// sandboxWaiting is how many questions may wait for the sandbox. They are answered one at a time: each may use all cores, and
// none may take the cores from scheduling for long.
const sandboxWaiting = 16

// sandbox is the copy of the cluster that people's questions are tried on, made anew when it is too old. Its owner is whoever
// is in the gate.
type sandbox struct {
	gate  *rpc.Gate
	box   *whatif.Sandbox // nil: none yet
	fresh whatif.Freshness
}

func newSandbox() sandbox { return sandbox{gate: rpc.NewGate(1, sandboxWaiting)} }

// try calls ask with a sandbox that is of the newest version, or fresh enough, and good, which is asked of its state and the
// newest one; nil if any is.
func (s *Service) try(ctx context.Context, good func(copied, newest *cluster.State) bool, ask func(*whatif.Sandbox) error) error {
	if err := s.loaded(); err != nil {
		return err
	}
	leave, err := s.sandbox.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	b := &s.sandbox
	begun := time.Now()
	renewed := false
	err = s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error {
		renewed = b.renew(ctx, begun, st, good)
		return nil
	})
	if err != nil {
		return replica.Status(err)
	}
	err = ask(b.box)
	if renewed { // the first question is part of what a new one costs: it knows nothing yet
		b.fresh = whatif.NewFreshness(b.box.Version(), begun, time.Since(begun))
	}
	return err
}

// renew makes the sandbox one of this state, unless the one there is will do.
func (b *sandbox) renew(ctx context.Context, now time.Time, st *cluster.State, good func(copied, newest *cluster.State) bool) bool {
	if b.box != nil && b.fresh.Fresh(now, st.Version()) {
		willDo := false
		err := b.box.Try(ctx, func(w *whatif.World) error {
			willDo = good == nil || good(w.State(), st)
			return nil
		})
		if err == nil && willDo {
			return false
		}
	}
	b.box = nil // so that there are never two
	b.box = whatif.New(st, engine.EvaluatorConfig{})
	b.fresh = whatif.Freshness{}
	return true
}

// named is a pod that is asked about.
type named struct{ namespace, name string }

// in returns the pod in a state, nil if it has none.
func (n named) in(st *cluster.State) (cluster.PodID, *cluster.PodRow) {
	for id, row := range st.Pods() {
		if row.Name == n.name && row.Namespace == n.namespace {
			return id, row
		}
	}
	return cluster.NoPod, nil
}

// good reports whether the copied state tells of the pod what the newest does.
func (n named) good(copied, newest *cluster.State) bool {
	_, is := n.in(newest)
	_, was := n.in(copied)
	if is == nil || was == nil {
		return is == was
	}
	return is.UID == was.UID && is.Phase == was.Phase && is.NodeName == was.NodeName && is.Class == was.Class &&
		is.Attempt == was.Attempt && is.Nominated == was.Nominated
}
