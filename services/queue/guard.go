package queue

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// guarded is an Evaluator in which a panic is that pod's alone about which it was asked. It would come again wherever the pod's
// shard goes, and no member may end by one pod: what cannot be judged here is tried, so that it fails with the workers, by itself, and
// backs off.
type guarded struct {
	Evaluator
	log *slog.Logger

	mu   sync.Mutex
	told time.Time
}

// panicsToldEvery bounds how often a panic is logged: each look meets it again.
const panicsToldEvery = 10 * time.Second

// recovered is to be deferred.
func (g *guarded) recovered(s engine.Subject, instead func()) {
	p := recover()
	if p == nil {
		return
	}
	instead()
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); now.Sub(g.told) >= panicsToldEvery {
		g.told = now
		g.log.Error("pods cannot be judged", "err", fmt.Errorf("class %d: panic: %v\n%s", s.Class, p, debug.Stack()))
	}
}

func (g *guarded) Node(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) (v engine.Verdict, known bool) {
	defer g.recovered(s, func() { v, known = engine.Verdict(0), true }) // feasible
	return g.Evaluator.Node(st, s, self, node)
}

func (g *guarded) Signature(st *cluster.State, s engine.Subject) (k engine.Signature) {
	defer g.recovered(s, func() { k = engine.SignatureAlone(s) })
	return g.Evaluator.Signature(st, s)
}

func (g *guarded) Refusal(st *cluster.State, s engine.Subject) (why *engine.VerdictCount) {
	defer g.recovered(s, func() { why = nil })
	return g.Evaluator.Refusal(st, s)
}

func (g *guarded) FailsAsNominated(st *cluster.State, pod cluster.PodID) (why *engine.VerdictCount) {
	defer g.recovered(engine.Subject{}, func() { why = nil })
	return g.Evaluator.FailsAsNominated(st, pod)
}

func (g *guarded) FailsForAll(st *cluster.State, s engine.Subject) (fails bool) {
	defer g.recovered(s, func() { fails = false })
	return g.Evaluator.FailsForAll(st, s)
}

func (g *guarded) Possible(st *cluster.State, s engine.Subject, but cluster.NodeIndex) (ok bool) {
	defer g.recovered(s, func() { ok = true })
	return g.Evaluator.Possible(st, s, but)
}

func (g *guarded) CrossNode(st *cluster.State, s engine.Subject) (ok bool) {
	defer g.recovered(s, func() { ok = true })
	return g.Evaluator.CrossNode(st, s)
}

func (g *guarded) Preempts(st *cluster.State, pod cluster.PodID) (why string, ok bool) {
	defer g.recovered(engine.Subject{}, func() { why, ok = "it cannot be judged", false })
	return g.Evaluator.Preempts(st, pod)
}

func (g *guarded) LimitedDrivers(st *cluster.State, pod cluster.PodID) (names []string) {
	defer g.recovered(engine.Subject{}, func() { names = nil })
	return g.Evaluator.LimitedDrivers(st, pod)
}

func (g *guarded) UndetachedDrivers(st *cluster.State, pod cluster.PodID) (names []string) {
	defer g.recovered(engine.Subject{}, func() { names = nil })
	return g.Evaluator.UndetachedDrivers(st, pod)
}

func (g *guarded) StandsAttached(st *cluster.State, pod cluster.PodID, found *engine.Preemption) (stands bool) {
	defer g.recovered(engine.Subject{}, func() { stands = false })
	return g.Evaluator.StandsAttached(st, pod, found)
}

func (g *guarded) Preemptable(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) (ok bool) {
	defer g.recovered(s, func() { ok = true })
	return g.Evaluator.Preemptable(st, s, self, node)
}
