package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

const (
	// mostAsks is how often extenders are asked in one go about a pod whose best node has changed meanwhile. The last time, only a change of the node itself counts:
	// so pods that no extender is asked about do not keep others from being placed beside them.
	mostAsks = 3
	// A pod that the API server does not tell is read mostReads times, notRead apart, and for no longer than readWithin: then the attempt has failed.
	mostReads  = 3
	notRead    = time.Second
	readWithin = 5 * time.Second
	// askPods is about how many pods an Ask may be where plugin services are asked, and no extenders, and for askFor further ones are begun with: so long others wait for the turn, of a higher priority too.
	// maxMore is the bound of requests.
	askPods = 64
	askFor  = 100 * time.Millisecond
	maxMore = 255
	// askSlack is what an Ask may take besides what extenders take: to read the pod, and for its part under the ledger's lock.
	askSlack = 15 * time.Second
)

// Objects are those of a source as extenders are sent them.
type Objects interface {
	// Pod reads a pod, as new as there is, nil if there is none of the name. Nobody else has what is returned.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// Node returns a node as it was told last, which nobody changes, nil if it is not known. As long as it does not change, it is the same.
	Node(name string) *corev1.Node
	// LastPod returns a pod as it was told last, or is about to be, without managedFields, which nobody changes; nil if it is not known. Those have one that are told of victims in full, and of pods that
	// wait those that plugin services are sent.
	LastPod(namespace, name string) *corev1.Pod
}

var (
	errTermEnded = errors.New("the term has ended")
	errNoTurn    = rpc.Exhausted("EXTENDER_BUSY", turnPause, "extenders are being asked about other pods")
	errCrowd     = rpc.Exhausted("EXTENDER_BUSY", crowdPause, "extenders are being asked about other pods, and many wait for them")
)

// within returns a context that ends with the term, too. done waits for who looks after that.
func (t *term) within(ctx context.Context) (within context.Context, done func()) {
	within, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-t.done:
		case <-t.lease:
		case <-within.Done():
			return
		}
		cancel(errTermEnded)
	}()
	return within, func() { cancel(nil); <-ended }
}

// asks returns which extenders and plugin services are to be asked where a pod goes. The caller holds the ledger's lock.
func (t *term) asks(st *cluster.State, row *cluster.PodRow) extender.Interest {
	if t.extenders == nil {
		return 0
	}
	return t.extenders.asked(t.ledger.interests[row.UID], st.Class(row.Class).Spec.SchedulerName)
}

// binders returns which extenders and plugin services bind a pod. The caller holds the ledger's lock.
func (t *term) binders(uid string) extender.Interest {
	if t.extenders == nil {
		return 0
	}
	in := t.ledger.interests[uid] & t.extenders.binds
	if id, ok := t.ledger.state.PodByUID(uid); ok && t.extenders.services != nil {
		class := t.ledger.state.Class(t.ledger.state.Pod(id).Class)
		in |= extender.Interest(t.extenders.services.Binds(class.Spec.SchedulerName)) << t.extenders.set.Len()
	}
	return in
}

// tellAsk says that extenders or plugin services are to be asked about a pod.
func (t *term) tellAsk(out *binderv1.Outcome, in extender.Interest) {
	out.Result, out.Turn, out.AskPods = binderv1.Outcome_RESULT_ASK, uint64(in), 1
	if t.extenders.extendersOf(in) == 0 {
		out.AskPods = askPods
	}
	out.AskMilliseconds = ((mostAsks+1)*2*t.extenders.longest(in) + askSlack + t.extenders.askFor).Milliseconds() // twice: of the node that it is nominated to, too; and once more if the pod before it is not reserved
}

// ask asks the extenders that a pod interests, and places it on the node that is best then. One pod is asked about at a time, as far as its
// extenders go, and what they are asked is of a state with all that has been placed before; the node that it gets has not changed since. So it goes where it would if pods had
// been placed one at a time. No lock is held while an extender is asked.
//
// Further pods of the request are asked about behind it in the same turn, each as if it had come by itself, as long as there is time. One that must be tried again ends the request, as in
// a commit, and so does one that has to be waited for: those behind it are for the shard to ask about next.
func (t *term) ask(ctx context.Context, req *binderv1.AskRequest) (*binderv1.AskResponse, error) {
	if err := t.validateAsk(req); err != nil {
		return nil, err
	}
	pods := append([]*binderv1.PodAttempt{{Id: req.GetId(), Uid: req.GetUid(), Attempt: req.GetAttempt()}}, req.GetMore()...)
	if err := t.admit("ask", req.GetShard(), req.GetShardRevision(), req.GetVersion(), 1); err != nil {
		return nil, err
	}
	shares, wanted, long := t.wanted(pods)
	for !t.unbound.takeOf(wanted, long...) {
		if len(pods) == 1 {
			return nil, rpc.Exhausted("TOO_MANY_UNBOUND", 50*time.Millisecond, "%d pods wait for their bind", t.unbound.count())
		}
		pods = pods[:len(pods)/2]
		shares, wanted, long = t.wanted(pods)
	}
	var all []*asked
	defer func() { // whatever becomes of it, a panic too
		for _, a := range all {
			if a.placed != nil {
				wanted[t.shareOf(a.placed.with())]--
			}
		}
		t.unbound.giveAll(wanted)
	}()
	ctx, done := t.within(ctx)
	defer done()
	turn := newAskTurn(t.extenders)
	defer turn.end()
	if len(pods) > 1 {
		turn.taken = t.recorder.expect
	}
	busy := beyond(shares, wanted)
	waiting := 0 // while extenders think, events and reports do not give way to these: they are no binds yet
	for _, busy := range busy {
		if !busy {
			waiting++
		}
	}
	t.unbound.addStuck(waiting)
	defer func() { t.unbound.addStuck(-waiting) }()
	ran := 0 // pods that have been asked about, and count as waiting
	for k, busy := range busy {
		if k > 0 && (ctx.Err() != nil || time.Since(turn.began) >= t.extenders.askFor) {
			break
		}
		a := &asked{term: t, turn: turn, scratch: turn.scratch, req: &binderv1.AskRequest{
			Shard: req.GetShard(), ShardRevision: req.GetShardRevision(), Version: req.GetVersion(), Id: pods[k].GetId(), Uid: pods[k].GetUid(), Attempt: pods[k].GetAttempt(),
		}, began: time.Now()}
		all = append(all, a)
		if busy {
			a.result(binderv1.Outcome_RESULT_BUSY, conflictBusy)
		} else {
			a.run(ctx)
			ran++
			if over := ran - turn.lettings(); over > 0 {
				ran, waiting = ran-over, waiting-over
				t.unbound.addStuck(-over)
			}
		}
		a.ended = time.Now()
		if a.resp.GetOutcome().GetResult() == binderv1.Outcome_RESULT_RETRY || a.err != nil || a.broken != nil {
			break
		}
	}
	all[len(all)-1].lets()
	return t.answered(all)
}

// validateAsk checks that a request makes sense.
func (t *term) validateAsk(req *binderv1.AskRequest) error {
	var bad violations
	t.checkShard(&bad, req.GetShard())
	t.checkVersion(&bad, req.GetVersion())
	if n := req.GetAttempt(); n < 1 {
		bad.note("attempt", "%d; attempts count from 1", n)
	}
	if n := len(req.GetMore()); n > maxMore {
		bad.note("more", "%d pods; want at most %d", n, maxMore)
	}
	for i, p := range req.GetMore() {
		if n := p.GetAttempt(); n < 1 {
			bad.note(fmt.Sprintf("more[%d].attempt", i), "%d; attempts count from 1", n)
		}
	}
	if len(bad) > 0 {
		return rpc.Invalid(bad...)
	}
	return nil
}

// answered returns what is said of pods that were asked about, in order, of which there is one at least. What has kept one of the others waiting is not said.
func (t *term) answered(all []*asked) (*binderv1.AskResponse, error) {
	last := all[len(all)-1]
	if last.broken != nil && !t.ended() {
		t.fail(last.broken)
		return nil, rpc.Error(codes.Internal, "BROKEN_LEDGER", "ask: the ledger is broken")
	}
	switch {
	case t.ended():
		return nil, errNotActive("the term has ended")
	case all[0].err != nil:
		return nil, all[0].err
	case last.err != nil:
		all = all[:len(all)-1]
	}
	for k, a := range all {
		t.metrics.asked.WithLabelValues(commitResult(a.resp.GetOutcome().GetResult())).Inc()
		var placed []*placement
		if a.placed != nil {
			placed = []*placement{a.placed}
			t.metrics.placed.Inc()
		}
		pods := []*binderv1.PodAttempt{{Id: a.req.GetId(), Uid: a.req.GetUid(), Attempt: a.req.GetAttempt()}}
		t.traceCommit(&binderv1.CommitRequest{Pods: pods}, &binderv1.CommitResponse{Outcomes: []*binderv1.Outcome{a.resp.GetOutcome()}}, placed, a.began, a.ended)
		if r := a.resp; k > 0 {
			all[0].resp.More = append(all[0].resp.More, &binderv1.AskedPod{Version: r.GetVersion(), Outcome: r.GetOutcome(), Refusals: r.GetRefusals(), Error: r.GetError()})
		}
	}
	return all[0].resp, nil
}

// asked is a pod that extenders are asked about, and what has come of it: resp, err or broken.
type asked struct {
	*term
	req  *binderv1.AskRequest // of that pod alone
	turn *askTurn

	in      extender.Interest
	pod     cluster.Pod // as it was when it was first looked at
	subject engine.Subject
	told    *extender.Pod
	sent    *corev1.Pod        // nil: nobody is
	judges  *pluginhost.Asking // nil: no plugin service is asked, or it has to be begun
	scratch *scratch
	most    int  // of the nodes that [asked.all] has returned last, this many are enough
	alike   bool // of the nodes that [asked.totals] has returned last, none scores otherwise if others of them are taken away

	postFilters []string // plugins that look for a way, if it fits nowhere

	last     bool      // what is asked now is asked no more
	mistaken bool      // what has been asked was of a state that has not come about
	alone    rejection // of the node that it is nominated to, asked about by itself

	resp   *binderv1.AskResponse
	err    error      // to be answered instead
	broken error      // the ledger is
	placed *placement // nil: it is not

	began, ended time.Time
}

// rejection is what extenders have said that have left no node.
type rejection struct {
	version cluster.Version               // of what they were asked about
	refused map[string]pluginhost.Refusal // by node
	err     error
}

// result sets what has come of the pod, unless something has.
func (a *asked) result(r binderv1.Outcome_Result, conflict string) {
	if a.over() {
		return
	}
	a.resp = &binderv1.AskResponse{Version: wire.ToVersion(a.ledger.version()), Outcome: &binderv1.Outcome{Result: r}}
	if conflict != "" {
		a.conflict(conflict)
	}
}

// over reports whether something has come of the pod.
func (a *asked) over() bool { return a.resp != nil || a.err != nil || a.broken != nil }

// run asks about the pod.
func (a *asked) run(ctx context.Context) {
	// 1. Is there anything to ask?
	a.read(func(st *cluster.State, row *cluster.PodRow) {
		a.pod, a.subject, a.in = row.Pod, engine.SubjectOf(&row.Pod), a.asks(st, row)
	})
	if a.over() {
		return
	}
	if a.in == 0 { // an earlier binder had other extenders
		a.result(binderv1.Outcome_RESULT_RETRY, conflictRetry)
		return
	}
	switch had := a.turn.in != 0; {
	case !had && a.extenders.crowd(a.in):
		a.err = errCrowd
		return
	case had && a.extenders.extendersOf(a.in) != 0: // one at a time, whatever comes in a question
		a.err = errNoTurn
		return
	}
	// 2. What is it? Until that is known, it keeps nobody from their turn.
	if a.extenders.needsPod(a.in) && !a.readPod(ctx) {
		return
	}
	if err := a.turn.take(ctx, a.in); err != nil {
		a.err = a.ends(ctx, err)
		return
	}
	defer func() {
		if a.judges != nil {
			a.judges.Done()
		}
	}()
	// 3. Ask, until the node that is best has not changed meanwhile.
	for k := 0; k < mostAsks; k++ {
		if a.mistaken { // it has not been judged as things are
			a.mistaken = false
			k--
		}
		a.last, a.alone = k == mostAsks-1, rejection{}
		if !a.begin(ctx) {
			return
		}
		if k > 0 && a.judges != nil {
			a.judges.Again()
		}
		if a.pod.Nominated != "" {
			if s, is := a.lookNow(true); is {
				if changed := a.try(ctx, s, true); changed {
					continue
				}
			}
		}
		if a.over() || !a.begin(ctx) { // a call about that node may have ended a session
			return
		}
		s, is := a.lookNow(false)
		switch {
		case a.over():
			return
		case !is: // it fits on the one that it is nominated to alone
			a.end(a.alone)
			return
		}
		if a.try(ctx, s, false); a.over() {
			return
		}
	}
	a.result(binderv1.Outcome_RESULT_RETRY, conflictExhausted)
}

// ends returns why a question has come to nothing: its context has ended, or else err.
func (a *asked) ends(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// failed reports whether extenders have been asked about the node, and have not left it.
func (w *rejection) failed() bool { return w.err != nil || w.refused != nil }

// try asks about some nodes, and places the pod on the best, unless that has changed meanwhile. Of the one that the pod is nominated to, neither that it is
// refused, nor that an extender fails, is a result: then all are asked about.
func (a *asked) try(ctx context.Context, s sight, nominated bool) (changed bool) {
	if s.sure != nil {
		if a.lets() {
			a.place(*s.sure, s.version)
		}
		return !a.over()
	}
	// 1. Filter.
	left, why, told, err := a.filter(ctx, s, !nominated)
	switch may := a.lets(); {
	case !may:
		return !a.over()
	case errors.Is(err, pluginhost.ErrAgain):
		return true
	case ctx.Err() != nil:
		a.err = context.Cause(ctx)
		return false
	case err != nil && nominated:
		a.log.Error("the node that a pod is nominated to cannot be asked about", "pod", a.pod.Namespace+"/"+a.pod.Name, "node", s.nodes[0].name, "err", extender.Short(err.Error()))
		a.alone = rejection{version: s.version, err: err}
		return false
	case err != nil:
		a.end(rejection{err: err})
		return false
	case len(left) == 0 && nominated:
		a.alone = rejection{version: s.version, refused: why}
		return false
	case len(left)+len(s.others) == 0:
		a.addKnown(why)
		if a.over() {
			return false
		}
		why := rejection{version: s.version, refused: why}
		if a.alone.failed() { // what happened behind either question may help
			why.version = a.alone.version
			for name, r := range a.alone.refused {
				if _, again := why.refused[name]; !again { // it is apart, or not in the sample
					why.refused[name] = r
				}
			}
			if s.apart {
				why.err = a.alone.err
			}
		}
		a.end(why)
		return false
	}
	if len(s.others) > 0 {
		a.place(a.bestOf(s.others, left), s.version)
		return !a.over()
	}
	if best, is := a.answeredBest(left); is {
		a.place(best, s.version)
		return !a.over()
	}
	// 2. What do those score that are left, among themselves? Nodes that are alike score what they did.
	if s.known == nil && !a.alike && len(left) < len(s.nodes) {
		if left = a.left(left); a.over() || len(left) == 0 {
			return true
		}
	}
	// 3. Prioritize, and choose.
	best := left[0]
	if len(left) > 1 || len(told) > 1 {
		switch ok, err := a.askScores(ctx, left); {
		case a.over():
			return false
		case ctx.Err() != nil:
			a.err = context.Cause(ctx)
			return false
		case errors.Is(err, pluginhost.ErrAgain), err == nil && !ok:
			return true
		case err != nil:
			a.end(rejection{err: err})
			return false
		}
		a.addScores(left)
		var scores map[string]int64
		if len(told) > 0 {
			if scores, err = a.extenders.set.Prioritize(ctx, a.told, told); err != nil {
				a.err = a.ends(ctx, err)
				return false
			}
		}
		best = choose(left, scores)
	}
	// 4. Place, if it can run there still: scores may be those of an earlier pod, as may be that it can.
	switch ok, err := a.askChosen(ctx, best); {
	case ctx.Err() != nil:
		a.err = context.Cause(ctx)
		return false
	case errors.Is(err, pluginhost.ErrAgain), err == nil && !ok:
		return true
	case err != nil:
		a.end(rejection{err: err})
		return false
	}
	a.place(best, s.version)
	return !a.over()
}

// filter asks who filters: plugins first, as in kube-scheduler, and extenders about what these leave, or, if sampled, so many of it as are enough. It returns the nodes that are left, and those of them that extenders have
// left as these were told of them, and why others are refused, by name. If it returns [pluginhost.ErrAgain], what is asked about has changed.
func (a *asked) filter(ctx context.Context, s sight, sampled bool) (left []seenNode, why map[string]pluginhost.Refusal, told []*extender.Node, err error) {
	left, why, err = a.judged(ctx, s)
	if a.judges != nil && sampled && len(left) > a.most {
		left = a.extenders.sample(left, a.most)
	}
	ext := a.extenders.extendersOf(a.in)
	if err != nil || len(left) == 0 || ext == 0 {
		return left, why, nil, err
	}
	asked := a.extenders.nodesOf(left, a.extenders.set.Full(ext), s.count)
	if len(asked) == 0 { // they have all gone
		return nil, nil, nil, pluginhost.ErrAgain
	}
	filtered, err := a.extenders.set.Filter(ctx, a.told, asked)
	if err != nil {
		return nil, nil, nil, err
	}
	names := namesOf(filtered.Nodes)
	left = slices.DeleteFunc(slices.Clone(left), func(n seenNode) bool { return !names[n.name] })
	for name, r := range filtered.Refused {
		why[name] = pluginhost.Refusal{Plugin: extender.Plugin, Reason: r.Reason, Unresolvable: r.Unresolvable}
	}
	if len(filtered.Nodes) > 0 && len(left) == 0 { // they have gone
		return nil, nil, nil, pluginhost.ErrAgain
	}
	return left, why, filtered.Nodes, nil
}

// end says that extenders have left no node, and why.
func (a *asked) end(why rejection) {
	if a.over() {
		return
	}
	if why.err != nil {
		a.result(binderv1.Outcome_RESULT_FAILED, "")
		a.resp.Error = extender.Short(why.err.Error())
		return
	}
	a.result(binderv1.Outcome_RESULT_REFUSED, "")
	a.resp.Version, a.resp.Refusals = wire.ToVersion(why.version), wire.ToVerdicts(countRefusals(why.refused))
}

// namesOf returns the names of nodes.
func namesOf(nodes []*extender.Node) map[string]bool {
	names := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		names[n.Name()] = true
	}
	return names
}

// place assumes the pod on a node, if that has not changed since a version, and fits still.
func (a *asked) place(n seenNode, since cluster.Version) {
	if a.err = a.admit("ask", a.req.GetShard(), a.req.GetShardRevision(), a.req.GetVersion(), 1); a.err != nil { // while extenders thought
		return
	}
	result, conflict := binderv1.Outcome_RESULT_UNSPECIFIED, ""
	var node cluster.NodeIndex
	var placed *placement
	a.broken = a.ledger.update(func(tx *tx) error {
		st := tx.state
		stint, err := a.stint(tx)
		if err != nil {
			return err
		}
		id := cluster.PodID(a.req.GetId())
		row := st.Pod(id)
		if result, conflict = a.stands(st, row); result != binderv1.Outcome_RESULT_UNSPECIFIED {
			if result == binderv1.Outcome_RESULT_PLACED {
				node = row.Node
			}
			return nil
		}
		if shares := a.names.shares(st, row.Class); shares && stint == 0 {
			result, conflict = binderv1.Outcome_RESULT_GONE, conflictYielded
			return nil
		} else if shares && a.names.countAside() >= a.unbound.limit {
			result, conflict = binderv1.Outcome_RESULT_BUSY, conflictBusy
			return nil
		}
		if !a.isNode(st, n) || a.changed(st, n.Node, since) || !a.isJudged(st, n.Node) {
			return nil
		}
		chosen := engine.NoFit
		var volumes []cluster.VolumeChoice
		if !a.judge(row, func() {
			if verdict, known := a.evaluator.Node(st, a.subject, id, n.Node); known && verdict.Feasible() {
				volumes, chosen = a.chooseVolumes(row, n.Node)
			}
		}) {
			result, conflict = binderv1.Outcome_RESULT_NO_FIT, conflictNoFit
			return nil
		}
		if chosen != engine.Placed {
			return nil
		}
		prep, steps, room := a.takeSteps(row, n.Node, volumes)
		if !room {
			result, conflict = binderv1.Outcome_RESULT_BUSY, conflictBusy
			return nil
		}
		if placed, err = a.assume(tx, id, n.Node, a.req.GetAttempt(), volumes, prep, steps, stint); err != nil {
			return err
		}
		result, node = binderv1.Outcome_RESULT_ASSUMED, n.Node
		if placed.progress == nil || !placed.progress.reserves {
			tx.tell(func() { a.recorder.addOne(placed) })
		}
		return nil
	})
	if a.broken != nil || result == binderv1.Outcome_RESULT_UNSPECIFIED {
		return
	}
	if a.placed = placed; placed != nil && placed.progress != nil && placed.progress.reserves {
		a.turn.letting = a.let(placed, a.sent)
		if !a.turn.letting.ahead {
			if a.lets(); a.broken != nil {
				return
			}
		}
	}
	a.result(result, conflict)
	a.resp.Outcome.Node = int32(node)
}
