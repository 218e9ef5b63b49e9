package binder

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
)

// preemption is what is left to be done of one that has been started.
type preemption struct {
	pod    cluster.PodID // the preemptor
	uid    string
	by     attempt
	node   string
	shared bool // the preemptor's scheduler name is
	stint  int64
	since  time.Time // it waits for its turn
	began  time.Time // it has its turn
	// victims are all that have to go, evict those of them that nobody has asked to go yet.
	victims, evict []victim
	of             map[string]int // what it has of term.preempting: one for each namespace of those in evict
}

// whose returns whose turn it is: a namespace's of its victims. It is under way for all of them: nobody knows which will keep it.
func (p *preemption) whose() string { return p.evict[0].Namespace }

func (p *preemption) remembered() lastPreemption {
	uids := make([]string, len(p.victims))
	for i, v := range p.victims {
		uids[i] = v.UID
	}
	return lastPreemption{p.by, uids}
}

// newPreemptions returns the turns of preemptions.
func newPreemptions() *turns[string, preemption] {
	t := newTurns[preemption](preemptionWorkers)
	t.all = func(p preemption) []string { return slices.Collect(maps.Keys(p.of)) }
	return t
}

// victim is a pod that has to go.
type victim struct {
	id cluster.PodID
	source.Eviction
}

// validatePreempt says what is wrong with a request.
func (t *term) validatePreempt(req *binderv1.PreemptRequest) error {
	bad := t.validatePreemptor(req)
	victims := req.GetCandidate().GetVictims()
	if n := len(victims); n == 0 || n > maxPods {
		bad.note("candidate.victims", "%d victims; want 1 to %d", n, maxPods)
	}
	seen := make(map[int32]bool, len(victims))
	for i, id := range victims {
		if seen[id] {
			bad.note(fmt.Sprintf("candidate.victims[%d]", i), "%d is there twice", id)
		}
		seen[id] = true
	}
	if v := req.GetCandidate().GetViolations(); v < 0 || int(v) > len(victims) {
		bad.note("candidate.violations", "%d of %d victims", v, len(victims))
	}
	return rpc.Invalid(bad...)
}

// validatePreemptor says what is wrong with a request, but for its candidate.
func (t *term) validatePreemptor(req *binderv1.PreemptRequest) (bad violations) {
	t.checkShard(&bad, req.GetShard())
	t.checkVersion(&bad, req.GetVersion())
	bad.checkReason("pod.reason", req.GetPod().GetReason())
	if req.GetPod().GetClearNomination() {
		bad.note("pod.clear_nomination", "set; a preemption nominates the pod")
	}
	if a := req.GetAttempt(); a < 1 {
		bad.note("attempt", "%d; attempts count from 1", a)
	}
	return bad
}

// preempt starts a preemption if the live ledger agrees with it.
func (t *term) preempt(req *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
	if err := t.validatePreempt(req); err != nil {
		return nil, err
	}
	// 1. May this shard preempt at all?
	if err := t.admit("preempt", req.GetShard(), req.GetShardRevision(), req.GetVersion(), 1); err != nil {
		return nil, err
	}
	// 2. Is there room for one more?
	if t.preempting.full() {
		return nil, t.errPreemptionsFull()
	}
	// 3. Start it.
	resp, refused, err := t.startPreemption(req, false, func(id cluster.PodID) (engine.Preemption, bool) { return t.judged(id, req.GetCandidate()) })
	return t.started(resp, refused, err)
}

// started returns what startPreemption has come to, and ends the term if the ledger is broken.
func (t *term) started(resp *binderv1.PreemptResponse, refused, err error) (*binderv1.PreemptResponse, error) {
	switch {
	case t.ended(): // then the log is closed, which is also an error of startPreemption
		return nil, errNotActive("the term has ended")
	case err != nil:
		t.fail(err)
		return nil, rpc.Error(codes.Internal, "BROKEN_LEDGER", "preempt: the ledger is broken")
	}
	return resp, refused
}

func (t *term) errPreemptionsFull() error {
	t.metrics.laneDropped.WithLabelValues(lanePreemptions).Inc()
	return rpc.Exhausted("PREEMPTIONS_FULL", 50*time.Millisecond, "%d preemptions wait for their evictions", t.preempting.count())
}

// agrees returns who goes for a pod, by the live ledger, whose lock is held, and whether that is what was asked for.
type agrees func(pod cluster.PodID) (engine.Preemption, bool)

// startPreemption nominates the pod and marks the victims, in one transaction, with which the lane gets the preemption. Instead of a
// response it returns why it is refused, if a lane is full. Asked: extenders have had their say. An error means a broken ledger.
func (t *term) startPreemption(req *binderv1.PreemptRequest, asked bool, victims agrees) (resp *binderv1.PreemptResponse, refused, err error) {
	var p *preemption
	err = t.ledger.update(func(tx *tx) error {
		var err error
		if resp, p, refused, err = t.startPreemptionIn(tx, req, asked, victims); p != nil {
			tx.tell(func() {
				t.metrics.preemptionVictims.Observe(float64(len(p.victims)))
				t.preemptions.add(p.whose(), *p)
			})
		}
		return err
	})
	if log := logs.V(t.log, logs.Outcomes); log != nil && p != nil && err == nil {
		by := p.victims[0]
		log.Info("the target node for the preemption is determined", "node", p.node, "pod", by.PreemptorNamespace+"/"+by.PreemptorName)
	}
	return resp, refused, err
}

func (t *term) startPreemptionIn(tx *tx, req *binderv1.PreemptRequest, asked bool, victims agrees) (resp *binderv1.PreemptResponse, p *preemption, refused, err error) {
	l := t.ledger
	answer := func(r binderv1.PreemptResponse_Result) *binderv1.PreemptResponse {
		return &binderv1.PreemptResponse{Version: wire.ToVersion(l.state.Version()), Result: r}
	}
	stint, err := t.stint(tx)
	if err != nil {
		return nil, nil, nil, err
	}
	// 1. Is the pod still what the attempt was made for?
	id, this := cluster.PodID(req.GetPod().GetId()), attempt{req.GetShardRevision(), req.GetAttempt()}
	row, result, conflict := t.preemptor(req, func(row *cluster.PodRow) bool { return stint == 0 && t.names.shares(l.state, row.Class) })
	if result != binderv1.PreemptResponse_RESULT_UNSPECIFIED {
		if conflict != "" {
			t.conflict(conflict)
		}
		return answer(result), nil, nil, nil
	}
	// 2. May the pod preempt? An earlier attempt may have started a preemption that this one did not know of. Must any go? And are these the
	// pods, no others, and do no more of them violate a budget?
	var now engine.Preemption
	may, agreed := false, false
	if !t.judge(row, func() {
		if _, may = t.evaluator.Preempts(l.state, id); may && (asked || t.asksPreempt(row.UID) == 0) {
			now, agreed = victims(id)
			agreed = agreed && !t.goes(req, id, row)
		}
	}) {
		return answer(binderv1.PreemptResponse_RESULT_RETRY), nil, nil, nil
	}
	switch {
	case !may:
		t.conflict(conflictGone)
		return answer(binderv1.PreemptResponse_RESULT_GONE), nil, nil, nil
	case !asked && t.asksPreempt(row.UID) != 0:
		resp = answer(binderv1.PreemptResponse_RESULT_ASK)
		t.tellAskPreempt(resp, t.asksPreempt(row.UID))
		return resp, nil, nil, nil
	case !agreed:
		t.conflict(conflictVictims)
		return answer(binderv1.PreemptResponse_RESULT_RETRY), nil, nil, nil
	}
	p = l.plan(id, now)
	p.by, p.shared, p.stint = this, t.names.shares(l.state, row.Class), stint
	if len(p.evict) > 0 && !t.preempting.takeOf(p.of) { // a namespace of these has its share: that puts off no other preemption of the shard
		t.conflict(conflictBusy)
		return answer(binderv1.PreemptResponse_RESULT_RETRY), nil, nil, nil
	}
	// 3. Have it reported; the lane may be full. What a report says is looked up in the ledger before it is written: not before the
	// transaction has ended, and never if that fails.
	report := reportOf(row, req.GetPod().GetReason(), req.GetPod().GetMessage())
	report.Attempt = req.GetPod().GetAttempt()
	report.Nominate, report.Nominated = true, p.node
	reports := []source.Report{report}
	var cleared []cluster.PodID
	if len(p.evict) > 0 { // else no room is taken from anyone
		cleared = l.nominatedTo(p.node, func(other *cluster.PodRow) bool { return other.Priority < row.Priority })
		reports = append(reports, l.clearings(cleared)...)
	}
	if !t.reports.add(reports...) {
		t.preempting.giveAll(p.of)
		if t.reports.room.full() {
			return nil, nil, t.errReportsFull(1), nil
		}
		t.conflict(conflictBusy) // so it is with a namespace of these pods
		return answer(binderv1.PreemptResponse_RESULT_RETRY), nil, nil, nil
	}
	// 4. Start it.
	l.preempted[row.UID] = p.remembered()
	if len(p.evict) == 0 {
		if err := l.fold.Nominate(id, p.node); err != nil {
			return nil, nil, nil, err
		}
		return answer(binderv1.PreemptResponse_RESULT_STARTED), nil, nil, nil
	}
	for _, other := range cleared {
		if err := l.fold.Nominate(other, ""); err != nil {
			return nil, nil, nil, err
		}
	}
	l.fold.KeepNomination(row)
	if err := tx.apply(cluster.PreemptionStarted{ID: id, Node: now.Node, Victims: now.Victims}); err != nil {
		return nil, nil, nil, err
	}
	return answer(binderv1.PreemptResponse_RESULT_STARTED), p, nil, nil
}

// preemptor returns the pod of a request, or what is to be said of one that is not what the attempt was made for, or for which nobody is to go now. yields says
// whether its scheduler name is another's. The caller holds the ledger's lock.
func (t *term) preemptor(req *binderv1.PreemptRequest, yields func(*cluster.PodRow) bool) (row *cluster.PodRow, result binderv1.PreemptResponse_Result, conflict string) {
	l, this := t.ledger, attempt{req.GetShardRevision(), req.GetAttempt()}
	row = l.state.Pod(cluster.PodID(req.GetPod().GetId()))
	last := l.preempted[req.GetPod().GetUid()].by
	switch {
	case row == nil || row.UID != req.GetPod().GetUid() || row.Placed() || row.Deleting || len(row.Gates) > 0:
		return row, binderv1.PreemptResponse_RESULT_GONE, conflictGone
	case yields(row):
		return row, binderv1.PreemptResponse_RESULT_GONE, conflictYielded
	case this == last:
		return row, binderv1.PreemptResponse_RESULT_STARTED, ""
	case row.Preempting:
		return row, binderv1.PreemptResponse_RESULT_GONE, conflictGone
	case row.Attempt >= this.number, last.claim == this.claim && last.number > this.number: // the attempt is over
		return row, binderv1.PreemptResponse_RESULT_RETRY, conflictRetry
	case t.flights.most > 0 && t.roomOf(bindsWith(row.Namespace, t.binders(row.UID)), time.Now()) <= 0: // nobody goes for a pod that would not be placed then
		return row, binderv1.PreemptResponse_RESULT_RETRY, conflictBusy
	}
	return row, binderv1.PreemptResponse_RESULT_UNSPECIFIED, ""
}

// judged returns what would have to go from the candidate of a request, if that is what the request says. The caller
// holds the ledger's lock.
func (t *term) judged(pod cluster.PodID, candidate *filterv1.PreemptionCandidate) (engine.Preemption, bool) {
	now, ok := t.evaluator.DryRunNode(t.ledger.state, pod, cluster.NodeIndex(candidate.GetNode()))
	return now, ok && now.Violations <= candidate.GetViolations() && sameSet(now.Victims, wire.PodIDs(candidate.GetVictims()))
}

// goes reports whether the pod of a request goes somewhere by now, without anybody going for it: not where it fits, if extenders have refused that, unless the node
// is another one since. The caller holds the ledger's lock.
func (t *term) goes(req *binderv1.PreemptRequest, id cluster.PodID, row *cluster.PodRow) bool {
	if !req.GetRefused() || t.asks(t.ledger.state, row) == 0 {
		return t.fits(id, row)
	}
	st, since := t.ledger.state, wire.Version(req.GetRefusedVersion())
	if since.Epoch != st.Version().Epoch {
		return false
	}
	fits, own := false, st.Nodes.ByName(cmp.Or(row.RequiredNode, row.Nominated))
	st.ChangedSince(since.Seq, func(i cluster.NodeIndex) {
		if fits || st.Nodes.SpecModified[i] <= since.Seq || !st.Nodes.Live.Has(i) || row.RequiredNode != "" && i != own {
			return // that pods have come there or left, extenders are not asked again for
		}
		self := cluster.NoPod
		if i == own {
			self = id
		}
		verdict, known := t.evaluator.Node(st, engine.SubjectOf(&row.Pod), self, i)
		fits = known && verdict.Feasible()
	})
	return fits
}

// fits reports whether a pod fits somewhere by now, without anybody going. The caller holds the ledger's lock.
func (t *term) fits(id cluster.PodID, row *cluster.PodRow) bool {
	st, subject := t.ledger.state, engine.SubjectOf(&row.Pod)
	own := st.Nodes.ByName(cmp.Or(row.RequiredNode, row.Nominated)) // where its own nomination does not count
	if verdict, known := t.evaluator.Node(st, subject, id, own); known && verdict.Feasible() {
		return true
	}
	return row.RequiredNode == "" && t.evaluator.Possible(st, subject, own)
}

// plan returns what has to be done for a pod that preempts others. The caller holds the lock.
func (l *ledger) plan(pod cluster.PodID, now engine.Preemption) *preemption {
	st, row := l.state, l.state.Pod(pod)
	p := &preemption{pod: pod, uid: row.UID, node: st.Nodes.Spec[now.Node].Name, since: time.Now(), of: make(map[string]int)}
	for _, id := range now.Victims {
		other := st.Pod(id)
		v := victim{id, source.Eviction{
			UID: other.UID, Namespace: other.Namespace, Name: other.Name, Node: other.NodeName,
			PreemptorUID: row.UID, PreemptorNamespace: row.Namespace, PreemptorName: row.Name,
			PreemptorScheduler: st.Class(row.Class).Spec.SchedulerName,
		}}
		p.victims = append(p.victims, v)
		if !other.Deleting && !other.Victim {
			p.evict = append(p.evict, v)
			p.of[v.Namespace] = 1
		}
	}
	return p
}

// sameSet reports whether two lists without repetitions hold the same.
func sameSet(a, b []cluster.PodID) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
