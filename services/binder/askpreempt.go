package binder

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

// mostTried is how many nodes that extenders have left are tried at most under the ledger's lock.
const mostTried = 64

// defaultCandidates are the defaults of DefaultPreemption's arguments.
var defaultCandidates = engine.CandidateNodes{Percentage: 10, Absolute: 100}

// asksPreempt returns which extenders have a say in who goes for a pod. The caller holds the ledger's lock.
func (t *term) asksPreempt(uid string) extender.Interest {
	if t.extenders == nil {
		return 0
	}
	return t.ledger.interests[uid] & t.extenders.preempts
}

// tellAskPreempt says that extenders are to be asked who goes for a pod.
func (t *term) tellAskPreempt(resp *binderv1.PreemptResponse, in extender.Interest) {
	resp.Turn, resp.AskMilliseconds = uint64(in), (mostAsks*t.extenders.set.LongestPreempt(in) + askSlack).Milliseconds()
}

// askPreempt looks for nodes where a pod would fit if others were gone, asks the extenders that it interests and that have a say in that, and starts the preemption that is best of
// those which they leave. As with ask, one pod is asked about at a time, and no lock is held while an extender is asked.
//
// What they leave may be other victims, of any priority, on any node: they go, as in kube-scheduler, if nothing on their node has changed
// since the extenders were asked; who they were told of, if the dry run of the node finds the same again.
//
// A candidate counts only, if attached, if the same pods would have to go as long as volumes are attached.
func (t *term) askPreempt(ctx context.Context, req *binderv1.PreemptRequest, attached bool) (*binderv1.PreemptResponse, error) {
	bad := t.validatePreemptor(req)
	if req.GetCandidate() != nil {
		bad.note("candidate", "set; the binder looks for candidates")
	}
	if len(bad) > 0 {
		return nil, rpc.Invalid(bad...)
	}
	if err := t.admit("preempt", req.GetShard(), req.GetShardRevision(), req.GetVersion(), 1); err != nil {
		return nil, err
	}
	ctx, done := t.within(ctx)
	defer done()
	a := askedPreemption{term: t, req: req, attached: attached}
	a.run(ctx)
	switch {
	case t.ended():
		return nil, errNotActive("the term has ended")
	case a.err != nil:
		return nil, a.err
	}
	t.metrics.asked.WithLabelValues("preempt_" + preemptResult(a.resp.GetResult())).Inc()
	return a.resp, nil
}

func preemptResult(r binderv1.PreemptResponse_Result) string {
	switch r {
	case binderv1.PreemptResponse_RESULT_STARTED:
		return "started"
	case binderv1.PreemptResponse_RESULT_GONE:
		return "gone"
	case binderv1.PreemptResponse_RESULT_NO_CANDIDATE:
		return "no_candidate"
	case binderv1.PreemptResponse_RESULT_FAILED:
		return "failed"
	case binderv1.PreemptResponse_RESULT_UNREAD:
		return "unread"
	}
	return "retry"
}

// askedPreemption is a pod for which extenders are asked who goes, and what has come of it: resp or err.
type askedPreemption struct {
	*term
	req      *binderv1.PreemptRequest
	attached bool

	in   extender.Interest
	pod  cluster.Pod // as it was when it was first looked at
	told *extender.Pod
	from int // with which 64 nodes the search begins
	seed uint64

	// Of the question that is being put:
	since   cluster.Version          // the search has begun then
	nodes   map[string]candidateNode // that extenders are asked about, by name
	pods    map[string]podThere      // that extenders were told of, or have named, by uid
	brought map[string]bool          // nodes that extenders have named, and that were there

	resp *binderv1.PreemptResponse
	err  error // to be answered instead
}

// candidateNode is a node as a dry run has found it.
type candidateNode struct {
	engine.Preemption
	since   cluster.Version // it is of
	victims []podThere      // as those of the dry run
	told    []*corev1.Pod   // the victims as extenders are told of them; nil: they are not told of the node
}

// podThere is a pod on a node.
type podThere struct {
	id                         cluster.PodID
	at                         cluster.NodeIndex
	uid, namespace, name, node string
	priority                   int32
	started                    int64 // Unix nanoseconds; the largest number if it has not
}

func podOn(id cluster.PodID, row *cluster.PodRow) podThere {
	p := podThere{id, row.Node, row.UID, row.Namespace, row.Name, row.NodeName, row.Priority, row.Started}
	if p.started == 0 {
		p.started = math.MaxInt64
	}
	return p
}

// result sets what has come of the pod, unless something has.
func (a *askedPreemption) result(r binderv1.PreemptResponse_Result, conflict string) {
	if a.over() {
		return
	}
	a.resp = &binderv1.PreemptResponse{Version: wire.ToVersion(a.ledger.version()), Result: r}
	if conflict != "" {
		a.conflict(conflict)
	}
}

// over reports whether something has come of the pod.
func (a *askedPreemption) over() bool { return a.resp != nil || a.err != nil }

// failed sets that nothing has come of it, as the error says, unless the context has ended.
func (a *askedPreemption) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		a.err = context.Cause(ctx)
		return
	}
	a.result(binderv1.PreemptResponse_RESULT_FAILED, "")
	a.resp.Error = extender.Short(err.Error())
}

// unread sets that the pod cannot be read, unless the context has ended.
func (a *askedPreemption) unread(ctx context.Context, err error) {
	a.log.Warn("pod not read that extenders are to be asked about", "pod", a.pod.Namespace+"/"+a.pod.Name, "err", err)
	if ctx.Err() != nil {
		a.err = context.Cause(ctx)
		return
	}
	a.result(binderv1.PreemptResponse_RESULT_UNREAD, "")
	a.resp.Error = extender.Short("read the pod: " + err.Error())
}

func (a *askedPreemption) run(ctx context.Context) {
	// 1. Is there anything to ask?
	var may, fits, judged bool
	a.read(func(st *cluster.State, row *cluster.PodRow) {
		a.pod, a.in, a.seed = row.Pod, a.asksPreempt(row.UID), st.Settings.Seed
		judged = a.judge(row, func() {
			id := cluster.PodID(a.req.GetPod().GetId())
			_, may = a.evaluator.Preempts(st, id)
			fits = may && a.goes(a.req, id, row)
		})
	})
	switch {
	case a.over():
		return
	case !judged:
		a.result(binderv1.PreemptResponse_RESULT_RETRY, "")
		return
	case !may:
		a.result(binderv1.PreemptResponse_RESULT_GONE, conflictGone)
		return
	case fits:
		a.result(binderv1.PreemptResponse_RESULT_RETRY, conflictVictims)
		return
	case a.in == 0: // an earlier binder had other extenders
		a.result(binderv1.PreemptResponse_RESULT_RETRY, conflictRetry)
		return
	case a.preempting.full():
		a.err = a.errPreemptionsFull()
		return
	case a.reports.room.full():
		a.err = a.errReportsFull(1)
		return
	case a.extenders.crowd(a.in):
		a.err = errCrowd
		return
	}
	// 2. About what pod?
	object, err := a.object(ctx, a.pod.Namespace, a.pod.Name)
	switch {
	case err != nil:
		a.unread(ctx, err)
		return
	case object == nil || string(object.UID) != a.pod.UID: // the log will tell
		a.result(binderv1.PreemptResponse_RESULT_UNREAD, conflictGone)
		a.resp.Error = "the API server has no such pod any more"
		return
	}
	object.TypeMeta, object.ManagedFields = metav1.TypeMeta{}, nil
	a.told = extender.NewPod(object)
	leave, err := a.extenders.take(ctx, a.in)
	if err != nil {
		if a.err = err; ctx.Err() != nil {
			a.err = context.Cause(ctx)
		}
		return
	}
	defer leave()
	// 3. Ask, until what is best has not changed meanwhile.
	a.from = a.extenders.searchFrom(0)
	for k := range mostAsks {
		if changed := a.try(ctx, k == mostAsks-1); !changed {
			return
		}
	}
	a.result(binderv1.PreemptResponse_RESULT_RETRY, conflictVictims)
}

// read calls fn between two transactions with the pod, if it is still what the attempt was made for. If it is not, that is the result.
func (a *askedPreemption) read(fn func(*cluster.State, *cluster.PodRow)) {
	var result binderv1.PreemptResponse_Result
	var conflict string
	a.ledger.read(func(st *cluster.State) {
		var row *cluster.PodRow
		row, result, conflict = a.preemptor(a.req, func(row *cluster.PodRow) bool { return a.names.shares(st, row.Class) && st.Yields(row.Class) })
		switch {
		case result != binderv1.PreemptResponse_RESULT_UNSPECIFIED:
		case !a.same(row):
			result, conflict = binderv1.PreemptResponse_RESULT_RETRY, conflictRetry
		default:
			fn(st, row)
		}
	})
	if result != binderv1.PreemptResponse_RESULT_UNSPECIFIED {
		a.result(result, conflict)
	}
}

// same reports whether the pod is what it was when it was first looked at.
func (a *askedPreemption) same(row *cluster.PodRow) bool {
	return a.pod.UID == "" || engine.SubjectOf(&row.Pod) == engine.SubjectOf(&a.pod) && row.RequiredNode == a.pod.RequiredNode && row.Nominated == a.pod.Nominated
}

// try looks for candidates, asks about them, and starts the best preemption that is left, unless its node has changed meanwhile: then all of it is to be asked again, but
// the last time it starts the best one whose node is what it was. If nothing has changed, there is a result.
func (a *askedPreemption) try(ctx context.Context, last bool) (changed bool) {
	// 1. Who could go?
	if a.search(ctx); a.over() {
		return false
	}
	asked := make(map[string]*extenderv1.Victims, len(a.nodes))
	full := a.extenders.set.Full(a.in)
	for name, n := range a.nodes {
		if pods, all := a.objectsOf(n.victims, full); all {
			n.told = pods
			a.nodes[name], asked[name] = n, &extenderv1.Victims{Pods: pods, NumPDBViolations: int64(n.Violations)}
		}
	}
	if len(asked) == 0 {
		a.result(binderv1.PreemptResponse_RESULT_RETRY, conflictVictims)
		return false
	}
	// 2. What do the extenders leave?
	left, err := a.extenders.set.Preempt(ctx, a.told, asked, func(node string) ([]*corev1.Pod, bool, bool) { return a.on(node, full) })
	switch _, outdated := errors.AsType[extender.Outdated](err); {
	case outdated && ctx.Err() == nil:
		return true
	case err != nil:
		a.failed(ctx, err)
		return false
	case len(left) == 0:
		a.result(binderv1.PreemptResponse_RESULT_NO_CANDIDATE, "")
		return false
	}
	// 3. Take the best of that.
	ranked := a.rank(left)
	if !last {
		ranked = ranked[:1]
	}
	return a.start(ranked)
}

// search looks for nodes where the pod would fit if others were gone, as many as are to be found at least, or all. Each 64 nodes are looked at under the ledger's lock, between others'
// transactions; the search goes round, and the next one begins where this one ends. As in kube-scheduler, it goes on until there is a node where no budget
// is violated.
func (a *askedPreemption) search(ctx context.Context) {
	a.nodes, a.pods, a.brought, a.since = make(map[string]candidateNode), make(map[string]podThere), make(map[string]bool), cluster.Version{}
	words, enough, unviolating := 1, 0, 0
	k := 0
	for ; k < words && (unviolating == 0 || len(a.nodes) < enough); k++ {
		if ctx.Err() != nil {
			a.err = context.Cause(ctx)
			return
		}
		judged := true
		a.read(func(st *cluster.State, row *cluster.PodRow) {
			words = (st.Nodes.Len() + 63) / 64
			of, ok := a.extenders.candidates[st.Class(row.Class).Spec.SchedulerName]
			if !ok {
				of = defaultCandidates
			}
			if enough = of.Of(st.Nodes.Count()); a.since.IsZero() {
				a.since = st.Version()
			}
			if words > 0 {
				judged = a.judge(row, func() { unviolating += a.searchAmong(st, (a.from+k)%words, enough) })
			}
		})
		if !judged {
			a.result(binderv1.PreemptResponse_RESULT_RETRY, "")
		}
		if a.over() {
			return
		}
	}
	if words > 0 {
		a.extenders.searchFrom(k % words)
	}
}

// searchAmong adds the candidates among 64 nodes, and returns how many of them violate no budget. Of those that do, there are no more than so many. The caller holds the ledger's lock.
func (a *askedPreemption) searchAmong(st *cluster.State, word, most int) (unviolating int) {
	id := cluster.PodID(a.req.GetPod().GetId())
	violating := 0
	for _, n := range a.nodes {
		if n.Violations > 0 {
			violating++
		}
	}
	first := cluster.NodeIndex(64 * word)
	found, _ := a.evaluator.DryRun(st, id, cluster.Range{First: first, End: first + 64}, 64)
	for _, p := range found.Candidates {
		switch {
		case a.attached && !a.evaluator.StandsAttached(st, id, &p):
			continue
		case p.Violations == 0:
			unviolating++
		case violating >= most:
			continue
		default:
			violating++
		}
		n := candidateNode{Preemption: p, since: st.Version()}
		for _, v := range p.Victims {
			n.victims = append(n.victims, podOn(v, st.Pod(v)))
		}
		a.nodes[st.Nodes.Spec[p.Node].Name] = n
	}
	return unviolating
}

// objectsOf returns pods as extenders are told of them, in full or by what tells them apart. False: one is gone, which the ledger has not been told yet.
func (a *askedPreemption) objectsOf(pods []podThere, full bool) (objects []*corev1.Pod, all bool) {
	objects, all = make([]*corev1.Pod, len(pods)), true
	for k, p := range pods {
		a.pods[p.uid] = p
		if full {
			if told := a.extenders.objects.LastPod(p.namespace, p.name); told != nil && string(told.UID) == p.uid {
				object := *told
				object.TypeMeta, object.Spec.NodeName = metav1.TypeMeta{}, p.node // it may not be bound yet
				objects[k] = &object
				continue
			}
			all = false
		}
		objects[k] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, UID: types.UID(p.uid)}}
	}
	return objects, all
}

// on is extender.PodsOn. Who was to go from a node by the search, and has gone, is on it still: what is left of other nodes is not void by that. A node of which
// extenders were told, or which they have named, is not made up.
func (a *askedPreemption) on(node string, full bool) (objects []*corev1.Pod, known, changed bool) {
	var pods []podThere
	n := a.nodes[node]
	a.ledger.read(func(st *cluster.State) {
		i := st.Nodes.ByName(node)
		if known = i != cluster.NoNode; !known {
			return
		}
		changed = st.Nodes.Modified[i] > a.asOf(node).Seq
		for id, row := range st.PodsOn(i) {
			pods = append(pods, podOn(id, row))
		}
	})
	if !known {
		known, changed = n.told != nil, n.told != nil || a.brought[node]
	}
	objects, _ = a.objectsOf(pods, full)
	for k, told := range n.told {
		if !slices.ContainsFunc(pods, func(p podThere) bool { return p.uid == string(told.UID) }) {
			objects, a.pods[string(told.UID)] = append(objects, told), n.victims[k]
		}
	}
	a.brought[node] = a.brought[node] || known
	return objects, known, changed
}

// asOf returns the version of which extenders have judged a node.
func (a *askedPreemption) asOf(node string) cluster.Version {
	if n, found := a.nodes[node]; found {
		return n.since
	}
	return a.since
}

// preemptionLeft is what extenders have left on a node.
type preemptionLeft struct {
	engine.Preemption            // but for Violations; the victims as often as they are named
	victims           []podThere // each once: to be named twice means nothing
	node              string
	violations        int64
}

// rank returns what extenders have left, first what kube-scheduler would pick: it takes their word for how many budgets are violated, and takes the first victim for the most
// important one. Of equal ones it picks any, and so does this, always the same.
func (a *askedPreemption) rank(left map[string]*extenderv1.Victims) []preemptionLeft {
	var all []preemptionLeft
	for _, node := range slices.Sorted(maps.Keys(left)) {
		all = append(all, a.leftOn(node, left[node]))
	}
	slices.SortStableFunc(all, func(p, q preemptionLeft) int {
		return cmp.Or(cmp.Compare(p.violations, q.violations), p.Compare(&q.Preemption, a.seed))
	})
	return all
}

func (a *askedPreemption) leftOn(node string, victims *extenderv1.Victims) preemptionLeft {
	p := preemptionLeft{node: node, violations: victims.NumPDBViolations}
	first := a.pods[string(victims.Pods[0].UID)]
	p.Node, p.HighestPriority, p.EarliestStart = first.at, first.priority, math.MaxInt64
	highest := int32(math.MinInt32)
	for _, object := range victims.Pods {
		v := a.pods[string(object.UID)]
		if !slices.Contains(p.Victims, v.id) {
			p.victims = append(p.victims, v)
		}
		p.Victims, p.PrioritySum = append(p.Victims, v.id), p.PrioritySum+int64(v.priority)+1<<31
		if v.priority > highest {
			highest, p.EarliestStart = v.priority, v.started
		} else if v.priority == highest {
			p.EarliestStart = min(p.EarliestStart, v.started)
		}
	}
	return p
}

// start starts the first of what extenders have left whose node is what it was. If there is none, it has changed; else there is a result.
func (a *askedPreemption) start(ranked []preemptionLeft) (changed bool) {
	if a.err = a.admit("preempt", a.req.GetShard(), a.req.GetShardRevision(), a.req.GetVersion(), 1); a.err != nil { // while extenders thought
		return false
	}
	resp, refused, err := a.startPreemption(a.req, true, func(id cluster.PodID) (engine.Preemption, bool) {
		changed = false
		for _, left := range ranked[:min(len(ranked), mostTried)] {
			if now, stands := a.stands(id, left.node, left.victims); stands {
				return now, true
			}
		}
		changed = true
		return engine.Preemption{}, false
	})
	if changed && err == nil && refused == nil && resp.GetResult() == binderv1.PreemptResponse_RESULT_RETRY {
		return true
	}
	a.resp, a.err = a.started(resp, refused, err)
	return false
}

// stands returns who goes from a node if extenders have said so, and whether that is still what they were asked about. The caller holds the ledger's lock.
func (a *askedPreemption) stands(id cluster.PodID, node string, victims []podThere) (engine.Preemption, bool) {
	st := a.ledger.state
	i := st.Nodes.ByName(node)
	if i == cluster.NoNode || !a.same(st.Pod(id)) {
		return engine.Preemption{}, false
	}
	var ids []cluster.PodID
	for _, v := range victims {
		if row := st.Pod(v.id); row == nil || row.UID != v.uid { // another has its id by now
			return engine.Preemption{}, false
		}
		ids = append(ids, v.id)
	}
	n, told := a.nodes[node]
	if told && n.Node == i && sameSet(n.Victims, ids) {
		now, ok := a.evaluator.DryRunNode(st, id, i)
		return now, ok && now.Violations <= n.Violations && sameSet(now.Victims, ids) && (!a.attached || a.evaluator.StandsAttached(st, id, &now))
	}
	return engine.Preemption{Node: i, Victims: ids}, st.Nodes.Modified[i] <= a.asOf(node).Seq
}

// searchFrom returns with which 64 nodes the next search begins, and has the one after that begin so many further on.
func (a *extenders) searchFrom(further int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.from += further
	return a.from
}
