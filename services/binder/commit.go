package binder

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

// The bounds of requests, as the protos say.
const (
	maxPods     = 10_000
	maxSubjects = 1_000
	maxReports  = 10_000
)

// violations collects what is wrong with a request, but not more than a caller can use.
type violations []rpc.Violation

func (v *violations) note(field, format string, args ...any) {
	if len(*v) < 20 {
		*v = append(*v, rpc.Violation{Field: field, Description: fmt.Sprintf(format, args...)})
	}
}

// validate returns the subjects' candidates of a request that makes sense.
func (t *term) validate(req *binderv1.CommitRequest) ([]engine.Candidates, error) {
	var bad violations
	t.checkShard(&bad, req.GetShard())
	t.checkVersion(&bad, req.GetVersion())
	if n := len(req.GetPods()); n == 0 || n > maxPods {
		bad.note("pods", "%d pods; want 1 to %d", n, maxPods)
	}
	if n := len(req.GetSubjects()); n > maxSubjects {
		bad.note("subjects", "%d subjects; want at most %d", n, maxSubjects)
	}
	for i, p := range req.GetPods() {
		if p.GetAttempt() < 1 {
			bad.note(fmt.Sprintf("pods[%d].attempt", i), "%d; attempts count from 1", p.GetAttempt())
		}
		if k := p.GetSubjectIndex(); k < -1 || int(k) >= len(req.GetSubjects()) {
			bad.note(fmt.Sprintf("pods[%d].subject_index", i), "%d of %d subjects", k, len(req.GetSubjects()))
		}
	}
	candidates := make([]engine.Candidates, len(req.GetSubjects()))
	for i, c := range req.GetSubjects() {
		groups, err := wire.Groups(c.GetGroups())
		if err != nil {
			bad.note(fmt.Sprintf("subjects[%d].groups", i), "%v", err)
		}
		candidates[i] = engine.Candidates{Subject: wire.Subject(c.GetSubject()), Groups: groups}
	}
	if len(bad) > 0 {
		return nil, rpc.Invalid(bad...)
	}
	return candidates, nil
}

func (t *term) checkShard(bad *violations, shard int32) {
	if shard < 0 || shard >= t.shardsOf {
		bad.note("shard", "%d; there are %d shards", shard, t.shardsOf)
	}
}

func (t *term) checkVersion(bad *violations, version *logv1.Version) {
	if v := wire.Version(version); v.Epoch < 0 || v.Seq < 0 {
		bad.note("version", "%v is negative", v)
	} else if now := t.ledger.version(); v.Epoch == now.Epoch && v.Seq > now.Seq {
		bad.note("version", "%v has not been yet: the log is at %v", v, now)
	}
}

// admit refuses what a shard asks for so many pods if it is of another epoch or the shard is not its own any more.
func (t *term) admit(what string, shard int32, revision int64, version *logv1.Version, pods int) error {
	if v := wire.Version(version); int64(v.Epoch) != t.epoch {
		t.metrics.conflicts.WithLabelValues(conflictOtherEpoch).Add(float64(pods))
		return rpc.Error(codes.Aborted, "OTHER_EPOCH", "%s at version %v: the epoch is %d", what, v, t.epoch)
	}
	if !t.shards.mayCommit(shard, revision) {
		t.metrics.conflicts.WithLabelValues(conflictShardLost).Add(float64(pods))
		return rpc.Error(codes.FailedPrecondition, "SHARD_LOST",
			"%s of shard %d claimed at revision %d: it has been claimed since", what, shard, revision)
	}
	return nil
}

func (t *term) conflict(reason string) { t.metrics.conflicts.WithLabelValues(reason).Inc() }

// commit places the pods of a request in order, and hands what it placed to the recorder. The first pod whose best
// node cannot be proven ends the batch: pods behind it are told to retry too, so that where batches are cut never
// changes what is placed where.
func (t *term) commit(req *binderv1.CommitRequest) (*binderv1.CommitResponse, error) {
	candidates, err := t.validate(req)
	if err != nil {
		return nil, err
	}
	// 1. May this shard commit at all?
	if err := t.admit("commit", req.GetShard(), req.GetShardRevision(), req.GetVersion(), len(req.GetPods())); err != nil {
		return nil, err
	}
	// 2. Is there room for more unbound pods?
	shares, wanted, long := t.wanted(req.GetPods())
	if !t.unbound.takeOf(wanted, long...) {
		return nil, rpc.Exhausted("TOO_MANY_UNBOUND", 50*time.Millisecond, "%d pods wait for their bind", t.unbound.count())
	}
	busy := beyond(shares, wanted)
	// 3. Place, and have that recorded.
	began := time.Now()
	resp, placed, err := t.place(req, candidates, busy)
	for _, p := range placed {
		wanted[t.shareOf(p.with())]--
	}
	t.unbound.giveAll(wanted)
	if err == nil {
		t.traceCommit(req, resp, placed, began, time.Now())
	}
	switch {
	case t.ended(): // then the log is closed, which is also an error of place
		return nil, errNotActive("the term has ended")
	case err != nil:
		t.fail(err)
		return nil, rpc.Error(codes.Internal, "BROKEN_LEDGER", "commit: the ledger is broken")
	}
	return resp, nil
}

// wanted returns whose share of the unbound pods each pod of a commit takes of, how much of each it asks for, and of whose it is content with
// as much as there is. It asks for no more than a namespace may have by how its binds go: pods beyond that would only wait, and hold up whom
// they share a shard with.
//
// A namespace whose binds take long, but are not late, is at its share for long. That holds up no others, of the commit or behind it: a commit
// is content with what there is for such, for whose pods come first. It waits for a namespace whose binds are quick: that has room again before
// a pod could back off.
func (t *term) wanted(pods []*binderv1.PodAttempt) (shares []string, wanted map[string]int, long []string) {
	shares, wanted = make([]string, len(pods)), make(map[string]int)
	if t.flights.most == 0 {
		wanted[""] = len(pods)
		return shares, wanted, nil
	}
	shares = t.ledger.shares(pods, func(row *cluster.PodRow) string { return bindsWith(row.Namespace, t.binders(row.UID)) })
	now := time.Now()
	for _, namespace := range shares {
		if wanted[namespace]++; wanted[namespace] == 1 && t.windows.long(namespace, now) {
			long = append(long, namespace)
		}
	}
	for namespace, n := range wanted {
		wanted[namespace] = max(0, min(n, t.roomOf(namespace, now)))
	}
	return shares, wanted, long
}

// beyond returns which pods of a commit are beyond what is taken for them.
func beyond(shares []string, taken map[string]int) []bool {
	busy, has := make([]bool, len(shares)), make(map[string]int)
	for i, of := range shares {
		if busy[i] = has[of] >= taken[of]; !busy[i] {
			has[of]++
		}
	}
	return busy
}

// roomOf returns how many more unbound pods a namespace may have by how its binds go.
func (b *backlog) roomOf(namespace string, now time.Time) int {
	return b.windows.allows(namespace, now) - b.unbound.countOf(namespace)
}

// shareOf returns whose share of the unbound pods a namespace's are: where binds have no places, nobody's, for no namespace can hold up others.
func (b *backlog) shareOf(namespace string) string {
	if b.flights.most == 0 {
		return ""
	}
	return namespace
}

// shares returns whose the pods are by what is said of each, "" for pods that are not there.
func (l *ledger) shares(pods []*binderv1.PodAttempt, of func(*cluster.PodRow) string) []string {
	shares := make([]string, len(pods))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range pods {
		if row := l.state.Pod(cluster.PodID(p.GetId())); row != nil && row.UID == p.GetUid() {
			shares[i] = of(row)
		}
	}
	return shares
}

// place assumes what fits, in order, but those that are busy, in one transaction: no other commit and nothing the source tells comes in between, and the recorder
// gets all of it or nothing. An error means a broken ledger, and nothing is placed.
func (t *term) place(
	req *binderv1.CommitRequest, candidates []engine.Candidates, busy []bool,
) (resp *binderv1.CommitResponse, placed []*placement, err error) {
	err = t.ledger.update(func(tx *tx) (err error) {
		if resp, placed, err = t.placeIn(tx, req, candidates, busy); err == nil && len(placed) > 0 {
			tx.tell(func() { t.recorder.add(placed) })
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	t.metrics.placed.Add(float64(len(placed)))
	return resp, placed, nil
}

// placeIn is what place does in its transaction.
func (t *term) placeIn(
	tx *tx, req *binderv1.CommitRequest, candidates []engine.Candidates, busy []bool,
) (*binderv1.CommitResponse, []*placement, error) {
	st := tx.state
	stint, err := t.stint(tx)
	if err != nil {
		return nil, nil, err
	}
	placer := engine.NewPlacer(t.evaluator, st, wire.Version(req.GetVersion()).Seq, candidates)
	resp := &binderv1.CommitResponse{ByImages: true, Outcomes: make([]*binderv1.Outcome, len(req.GetPods()))}
	outcomes := make([]binderv1.Outcome, len(req.GetPods()))
	placed := make([]*placement, 0, len(req.GetPods()))
	ended := false
	manyAside := t.names.countAside() >= t.unbound.limit // they are judged again in one transaction, which has a bound
	for i, p := range req.GetPods() {
		out := &outcomes[i]
		resp.Outcomes[i] = out
		id := cluster.PodID(p.GetId())
		row := st.Pod(id)
		switch {
		case row == nil || row.UID != p.GetUid():
			out.Result = binderv1.Outcome_RESULT_GONE
			t.conflict(conflictGone)
			continue
		case row.Placed():
			out.Result, out.Node = binderv1.Outcome_RESULT_PLACED, int32(row.Node)
			continue
		case row.Deleting || len(row.Gates) > 0 || !candidatesFor(row, candidates, p):
			out.Result = binderv1.Outcome_RESULT_GONE
			t.conflict(conflictGone)
			continue
		case stint == 0 && t.names.shares(st, row.Class): // the log says so, and the shard holds it back
			out.Result = binderv1.Outcome_RESULT_GONE
			t.conflict(conflictYielded)
			continue
		case busy[i], manyAside && t.names.shares(st, row.Class):
			out.Result = binderv1.Outcome_RESULT_BUSY
			t.conflict(conflictBusy)
			continue
		case row.Attempt < p.GetAttempt() && t.asks(st, row) != 0: // whether others are retried or not
			t.tellAsk(out, t.asks(st, row))
			continue
		case ended || row.Attempt >= p.GetAttempt(): // an attempt that was placed and forgotten is over
			out.Result = binderv1.Outcome_RESULT_RETRY
			t.conflict(conflictRetry)
			continue
		}
		var node cluster.NodeIndex
		var chosen engine.Placement
		var volumes []cluster.VolumeChoice // for claims of a pod that is placed
		if !t.judge(row, func() {
			if node, chosen = placer.Choose(id, int(p.GetSubjectIndex())); chosen == engine.Placed {
				volumes, chosen = t.chooseVolumes(row, node)
			}
		}) {
			ended = true                                // the placer is not what it was
			out.Result = binderv1.Outcome_RESULT_NO_FIT // the shard tries that twice, and backs off
			continue
		}
		var prep *preparation
		var steps *progress
		if chosen == engine.Placed {
			var room bool
			if prep, steps, room = t.takeSteps(row, node, volumes); !room {
				out.Result = binderv1.Outcome_RESULT_BUSY
				t.conflict(conflictBusy)
				continue
			}
		}
		switch chosen {
		case engine.Placed:
			now, err := t.assume(tx, id, node, p.GetAttempt(), volumes, prep, steps, stint)
			if err != nil {
				return nil, nil, err
			}
			out.Result, out.Node = binderv1.Outcome_RESULT_ASSUMED, int32(node)
			placed = append(placed, now)
		case engine.NoFit:
			out.Result = binderv1.Outcome_RESULT_NO_FIT
			t.conflict(conflictNoFit)
		default:
			ended = true
			out.Result = binderv1.Outcome_RESULT_RETRY
			t.conflict(conflictExhausted)
		}
	}
	resp.Version = wire.ToVersion(st.Version())
	return resp, placed, nil
}

// takeSteps counts a pod that is to be placed against the bounds of what comes between its placement and its bind: of claims, and of plugin services. False: of one there is as much as may be. The caller holds the
// ledger's lock.
func (t *term) takeSteps(row *cluster.PodRow, node cluster.NodeIndex, volumes []cluster.VolumeChoice) (prep *preparation, steps *progress, room bool) {
	if steps, room = t.follow(row); !room {
		return nil, nil, false
	}
	if len(volumes) > 0 {
		if prep = t.reserve(row, node, volumes); prep == nil {
			t.unfollow(steps)
			return nil, nil, false
		}
	}
	return prep, steps, true
}

// assume gives a pod that waits a node, with what was chosen for its claims.
func (t *term) assume(
	tx *tx, id cluster.PodID, node cluster.NodeIndex, attempt int32, volumes []cluster.VolumeChoice, prep *preparation, steps *progress, stint int64,
) (*placement, error) {
	if err := tx.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: attempt, Volumes: volumes}); err != nil {
		return nil, err
	}
	row := tx.state.Pod(id)
	p := &placement{
		UID: row.UID, Namespace: row.Namespace, Name: row.Name, choice: choice{Node: tx.state.Nodes.Spec[node].Name, Volumes: volumes}, state: stateAssumed, preparation: prep, binders: t.binders(row.UID),
		attempt: t.trace.Attempt(row.UID, attempt), shared: t.names.shares(tx.state, row.Class), stint: stint,
	}
	if p.progress = steps; steps != nil {
		steps.told.Node = p.Node
	}
	if prep != nil {
		t.preparing.hold(p)
	}
	if t.flights.most > 0 && t.windows.trust(p.with(), time.Now()) == slow {
		t.noteStuck(p)
	}
	return p, nil
}

// candidatesFor reports whether the pod is still what the attempt was made for: of the class that its candidates are
// of, or without any and with one node that matters by itself; and with a required node exactly if it had one.
func candidatesFor(row *cluster.PodRow, candidates []engine.Candidates, p *binderv1.PodAttempt) bool {
	if k := p.GetSubjectIndex(); k >= 0 {
		return row.RequiredNode == "" && candidates[k].Subject.Class == row.Class
	}
	return row.RequiredNode != "" || row.Nominated != ""
}
