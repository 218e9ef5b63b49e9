package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/whatif"
	"github.com/berth-scheduler/berth/internal/wire"
)

// groupWaits is what kube-scheduler says of a PodGroup for which others are being evicted.
const groupWaits = "pod group is waiting for preemption to complete"

// preemptForGroup has others evicted for a PodGroup that fits nowhere, if that makes room for it: all of them are found before anybody goes, on the copy of the ledger, and whether that is so still is looked at on the live one.
// The caller has the turn of groups.
func (t *term) preemptForGroup(ctx context.Context, g *grouped) error {
	switch {
	case len(g.pods) == 0, g.found.Placed, g.found.Waits, g.resp.GetPreempts():
		return nil
	case !t.groups.looks(g, time.Now()): // what has happened since it was looked may help: so it is said as of then
		return nil
	case t.preempting.full(): // else nothing might wake it
		g.end(binderv1.Outcome_RESULT_BUSY, "as many preemptions are under way as may be")
		return nil
	}
	for try := range triesAside {
		// 1. Who would have to go?
		now := &grouped{key: g.key, req: g.req}
		var apply func() error
		t.ledger.read(func(st *cluster.State) {
			apply = t.groups.follow(t.ledger)
			stint, _ := t.names.now()
			now.read(t, st, stint)
		})
		var found whatif.GroupPreemption
		why, ok := "", false
		err := apply()
		if err == nil {
			err = t.onCopy(ctx, g, searchFor, func(w *whatif.World) (err error) {
				found, why, ok, err = whatif.PreemptGroup(w, g.key, now.pods)
				return err
			})
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", errUntried, rpc.Error(codes.Unavailable, "NOT_TRIED", "%v", context.Cause(ctx)))
		case errors.Is(err, whatif.ErrSpoiled): // that says nothing of the group: the next try makes a new copy
			t.log.Error("the copy that PodGroups are tried on is made anew", "podGroup", g.key.String(), "err", err)
			if try < triesAside-1 {
				continue
			}
			t.comeBack(g)
			return nil
		case err != nil:
			why = "preemption: " + err.Error()
		case found.Fits || len(now.pods) == 0:
			t.comeBack(g)
			return nil
		}
		if err != nil || !ok {
			t.groups.hopeless(g, time.Now())
			g.resp.Message = joined(g.resp.GetMessage(), why)
			return nil
		}
		if t.groups.tried != nil {
			t.groups.tried()
		}
		// 2. Start it, if that is so still.
		if started, err := t.preemptAsFound(ctx, g, now, &found, try == triesAside-1); started || err != nil {
			return err
		}
		t.conflict(conflictVictims)
	}
	t.groups.hopeless(g, time.Now())
	g.resp.Message = joined(g.resp.GetMessage(), "preemption: "+whyDisturbed)
	return nil
}

// preemptAsFound has those evicted who have been found, if nothing has changed since, or, the last time, if that makes room still. Not done: something has. Now is the group as it was then.
func (t *term) preemptAsFound(ctx context.Context, g, now *grouped, found *whatif.GroupPreemption, last bool) (done bool, err error) {
	var p *preemption
	err = t.ledger.update(func(tx *tx) error {
		stint, err := t.stint(tx)
		if err != nil {
			return err
		}
		switch holds := stint == now.stint && now.same(tx.state); {
		case !holds, t.ledger.trail.disturbed && !last:
			return nil
		case t.ledger.trail.disturbed:
			if !t.confirmGroupPreemption(ctx, now, found) {
				return nil
			}
		}
		done = true
		p, err = t.startGroupPreemption(tx, now, found.Nodes, found.Found.Victims, stint)
		if p != nil {
			g.victims = len(p.victims)
		}
		if g.resp.Preempts = now.resp.GetPreempts(); g.resp.GetPreempts() {
			g.resp.Message = groupWaits
		} else {
			g.end(binderv1.Outcome_RESULT_BUSY, "as many preemptions are under way as may be")
		}
		g.resp.Version = wire.ToVersion(tx.state.Version()) // with the nominations, which are no news to the pods
		return err
	})
	if log := logs.V(t.log, logs.Outcomes); log != nil && p != nil && err == nil {
		log.Info("victims for a PodGroup have been found", "podGroup", g.key.String(), "pods", len(p.victims))
	}
	return done, err
}

// confirmGroupPreemption reports whether what was found makes room for a group still, without those victims that are gone. The caller has the turn and holds the ledger's lock, so no more than that is asked.
func (t *term) confirmGroupPreemption(ctx context.Context, g *grouped, found *whatif.GroupPreemption) (holds bool) {
	if t.groups.follow(t.ledger)() != nil {
		return false
	}
	err := t.onCopy(ctx, g, confirmFor, func(w *whatif.World) error {
		now, ok, err := whatif.ConfirmGroupPreemption(w, g.key, g.pods, found)
		if ok {
			*found = now
		}
		holds = ok
		return err
	})
	return err == nil && holds
}

// lookAgain is how long nobody is looked for who could go for a group when nobody was found.
const lookAgain = 10 * time.Second

// mostHopeless bounds of how many groups it is remembered that nobody was found.
const mostHopeless = 1 << 12

// lookedInVain is that nobody was found who could go for a group as it was.
type lookedInVain struct {
	at      time.Time
	version cluster.Version // of the state
	group   *cluster.PodGroup
	before  int // how many of its pods were placed
}

// looks reports whether it is looked for who could go for a group: that takes long where pods are many. It is if its PodGroup is another one than when it was looked last, or others of it are placed: less may be enough for it now. If not, what is said of the group is as of when it was looked last; where the log tells of some of its pods, up to the version that
// is said, that cannot be, and it is looked unless nothing has happened since.
func (g *groups) looks(of *grouped, now time.Time) bool {
	was, ok := g.vain[of.uid]
	if !ok || now.Sub(was.at) >= lookAgain || was.group != of.group || was.before != of.before {
		return true
	}
	if !was.version.Less(of.version) {
		return false
	}
	told := slices.ContainsFunc(of.resp.GetPods(), func(p *binderv1.GroupedPod) bool {
		r := p.GetOutcome().GetResult()
		return r == binderv1.Outcome_RESULT_GONE || r == binderv1.Outcome_RESULT_PLACED
	})
	if !told {
		of.resp.Version = wire.ToVersion(was.version)
	}
	return told
}

// hopeless notes that nobody was found.
func (g *groups) hopeless(of *grouped, now time.Time) {
	if g.vain == nil || len(g.vain) >= mostHopeless {
		g.vain = make(map[string]lookedInVain)
	}
	g.vain[of.uid] = lookedInVain{now, of.version, of.group, of.before}
}

// joined adds a text to another.
func joined(text, more string) string {
	switch {
	case more == "":
		return text
	case text == "":
		return more
	}
	return text + ", " + more
}

// startGroupPreemption nominates the pods of a group to their nodes, and marks the victims. One of the pods, the leader, is held back until all evictions have been accepted, and with it all others of the group; it is nil if nobody
// has to be evicted any more, or a lane is full. An error means a broken ledger.
func (t *term) startGroupPreemption(tx *tx, g *grouped, nodes []string, victims []cluster.PodID, stint int64) (*preemption, error) {
	l, st := t.ledger, tx.state
	leader := -1
	for n, node := range nodes {
		if node != "" && leader < 0 {
			leader = n
		}
	}
	if leader < 0 {
		return nil, nil
	}
	id := g.pods[leader]
	row := st.Pod(id)
	p := l.plan(id, engine.Preemption{Node: st.Nodes.ByName(nodes[leader]), Victims: victims})
	p.by = attempt{g.req.GetShardRevision(), g.req.GetPods()[g.open[leader]].GetAttempt()}
	p.shared, p.stint = t.names.shares(st, row.Class), stint
	if len(p.evict) > 0 && !t.preempting.takeOf(p.of) {
		t.conflict(conflictBusy)
		return nil, nil
	}
	// 1. Have it reported; the lane may be full.
	var reports []source.Report
	var cleared []cluster.PodID
	seen := make(map[string]bool)
	for n, node := range nodes {
		if node == "" {
			continue
		}
		report := reportOf(st.Pod(g.pods[n]), "Unschedulable", groupWaits)
		report.Attempt = g.req.GetPods()[g.open[n]].GetAttempt()
		report.Nominate, report.Nominated = true, node
		reports = append(reports, report)
		if !seen[node] && len(p.evict) > 0 {
			seen[node] = true
			cleared = append(cleared, l.nominatedTo(node, func(other *cluster.PodRow) bool {
				key, named := cluster.GroupOf(&other.Pod)
				return other.Priority < row.Priority && !(named && key == g.key)
			})...)
		}
	}
	if !t.reports.add(append(reports, l.clearings(cleared)...)...) {
		t.preempting.giveAll(p.of)
		t.conflict(conflictBusy)
		return nil, nil
	}
	// 2. Start it.
	l.preempted[row.UID] = p.remembered()
	for _, other := range cleared {
		if err := l.fold.Nominate(other, ""); err != nil {
			return nil, err
		}
	}
	for n, node := range nodes {
		if node == "" || n == leader && len(p.evict) > 0 {
			continue
		}
		if err := l.fold.Nominate(g.pods[n], node); err != nil {
			return nil, err
		}
	}
	g.resp.Preempts = true
	if len(p.evict) == 0 {
		return nil, nil
	}
	l.fold.KeepNomination(row)
	if err := tx.apply(cluster.PreemptionStarted{ID: id, Node: st.Nodes.ByName(nodes[leader]), Victims: victims}); err != nil {
		return nil, fmt.Errorf("preempt for %v: %w", g.key, err)
	}
	tx.tell(func() {
		t.metrics.preemptionVictims.Observe(float64(len(p.victims)))
		t.preemptions.add(p.whose(), *p)
	})
	return p, nil
}
