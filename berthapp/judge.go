package berthapp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

// answer takes up what a request tells, and answers what it asks.
func (w *world) answer(ctx context.Context, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
	if err := w.fold(r); err != nil {
		return nil, err
	}
	out := &pluginv1.JudgeResponse{Id: r.GetId()}
	if len(r.GetQuestions()) == 0 {
		return out, nil
	}
	var behind error
	w.profile.hints.begin(slices.ContainsFunc(r.GetQuestions(), func(q *pluginv1.Question) bool {
		k := w.kinds[q.GetKind()]
		return k != nil && k.state != nil && k.version == w.version
	}))
	if w.goesOn(r) { // plugins may have noted of earlier nodes what they score them by
		w.show()
	} else {
		behind = w.sync(ctx)
	}
	if behind != nil && !errors.As(behind, new(notYet)) {
		return nil, status.Errorf(codes.Internal, "take up what was told: %v", behind)
	}
	for i, q := range r.GetQuestions() {
		k := w.kinds[q.GetKind()]
		if k == nil {
			return nil, pluginproto.Invalid(fmt.Sprintf("there is no kind %d", q.GetKind()), "questions[%d].kind", i)
		}
		switch n := len(q.GetTotals()); {
		case n == 0 && len(q.GetFilters()) > 0 && len(q.GetScores()) > 0:
			return nil, pluginproto.Invalid("scores are asked for by a question of their own, or with totals", "questions[%d].scores", i)
		case n > 0 && n != len(q.GetNodes()):
			return nil, pluginproto.Invalid(fmt.Sprintf("%d, of %d nodes", n, len(q.GetNodes())), "questions[%d].totals", i)
		case n > 0 && len(q.GetWeights()) != len(q.GetScores()):
			return nil, pluginproto.Invalid(fmt.Sprintf("%d, of %d scores", len(q.GetWeights()), len(q.GetScores())), "questions[%d].weights", i)
		}
		nodes, err := w.asked(q.GetNodes(), i)
		if err != nil {
			return nil, err
		}
		answer, err := &pluginv1.Answer{}, behind
		switch {
		case err != nil:
		case len(q.GetPostFilters()) > 0:
			answer, err = w.postFilter(ctx, k, q, nodes)
		case len(q.GetTotals()) > 0:
			answer, err = w.choose(ctx, k, q, slices.Clone(nodes))
		case len(q.GetScores()) > 0:
			answer, err = w.score(ctx, k, q.GetScores(), nodes)
		default:
			answer, err = w.filter(ctx, k, q.GetFilters(), nodes)
		}
		if err != nil {
			answer = &pluginv1.Answer{Error: pluginproto.Cut(err.Error())}
		}
		out.Answers = append(out.Answers, answer)
	}
	return out, nil
}

// goesOn reports whether a request goes on with questions about pods of which plugins have begun to judge nodes, in the same state.
func (w *world) goesOn(r *pluginv1.JudgeRequest) bool {
	if len(w.touched)+len(w.moved)+len(r.GetNodes())+len(r.GetForgottenNodes()) > 0 {
		return false
	}
	for _, q := range r.GetQuestions() {
		if k := w.kinds[q.GetKind()]; k == nil || k.state == nil || k.version != w.version {
			return false
		}
	}
	return true
}

// prefiltered is what PreFilter plugins have said of a pod.
type prefiltered struct {
	result *fwk.PreFilterResult
	status *fwk.Status
	chose  []string // the plugins that have chosen nodes, sorted
}

// leaves reports whether Filter plugins are asked about a node.
func (p *prefiltered) leaves(node string) bool {
	return p.result.AllNodes() || p.result.NodeNames.Has(node)
}

// by returns the first plugin that has chosen nodes; "": none has.
func (p *prefiltered) by() string {
	if len(p.chose) == 0 {
		return ""
	}
	return p.chose[0]
}

// prefilter runs the PreFilter plugins for a pod, unless they have run for it in this state.
func (w *world) prefilter(ctx context.Context, k *kind, pod *v1.Pod) prefiltered {
	if k.state == nil || k.version != w.version {
		state := newState()
		result, status, by := w.profile.framework.RunPreFilterPlugins(ctx, state, pod)
		k.state, k.version, k.filtered = state, w.version, prefiltered{result, status, sets.List(by)}
		w.attempts++
		k.attempt, k.signature, k.took = w.attempts, w.profile.sign(ctx, pod), false
	}
	w.profile.judge(pod.UID, k.state, w.view())
	return k.filtered
}

// filter answers which nodes can run a pod.
func (w *world) filter(ctx context.Context, k *kind, plugins []string, nodes []node) (*pluginv1.Answer, error) {
	pod, err := k.podOf()
	if err != nil {
		return nil, err
	}
	goesOn := k.state != nil && k.version == w.version
	if !goesOn { // what was said of it last does not count any more
		w.profile.hints.forget(pod.UID)
	}
	verdicts, took, err := w.verdicts(ctx, k, pod, plugins, nodes)
	w.profile.hints.end(pod, verdicts, k.filtered.chose, goesOn)
	if err != nil {
		return nil, err
	}
	out := w.refusals(verdicts, k.filtered.by())
	out.Kept, out.Keeps = took, k.signature != ""
	return out, nil
}

// verdicts returns what plugins say of nodes, of each nil if it can run the pod. Took: some was kept.
func (w *world) verdicts(ctx context.Context, k *kind, pod *v1.Pod, plugins []string, nodes []node) (verdicts []*fwk.Status, took bool, err error) {
	verdicts = make([]*fwk.Status, len(nodes))
	switch pre := w.prefilter(ctx, k, pod); {
	case !pre.status.IsSuccess() && !pre.status.IsRejected():
		k.state = nil
		return nil, false, pre.status.AsError()
	case !pre.status.IsSuccess():
		for i := range verdicts {
			verdicts[i] = pre.status
		}
	default:
		is := w.keptOf(k, pod)
		some := is.verdicts(k, nodes, verdicts)
		err = w.filterEach(ctx, k, pod, plugins, nodes, some, verdicts)
		if took = len(some) < len(nodes); err == nil && took && !slices.Contains(verdicts, nil) { // what was said for an earlier pod refuses nobody
			rest := besides(some, len(nodes))
			for _, i := range rest {
				verdicts[i] = nil
			}
			err = w.filterEach(ctx, k, pod, plugins, nodes, rest, verdicts)
			some, took = append(some, rest...), false
		}
		if err != nil {
			return nil, false, err
		}
		if k.took = k.took || took; is != nil {
			is.keep(w, k, nodes, some, verdicts)
		}
	}
	return verdicts, took, nil
}

// besides returns the places of n that are not among some, which go up.
func besides(some []int, n int) (rest []int) {
	for i := range n {
		if len(some) > 0 && some[0] == i {
			some = some[1:]
		} else {
			rest = append(rest, i)
		}
	}
	return rest
}

// filterEach runs the Filter plugins for each of some nodes, by their places, that PreFilter plugins leave.
func (w *world) filterEach(ctx context.Context, k *kind, pod *v1.Pod, plugins []string, nodes []node, some []int, verdicts []*fwk.Status) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "FilterWithNominatedPods"))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed atomic.Pointer[error]
	fail := func(err error) {
		failed.CompareAndSwap(nil, &err)
		cancel()
	}
	filters := w.filters(k)
	w.profile.framework.Parallelizer().Until(ctx, len(some), func(j int) {
		i := some[j]
		if !k.filtered.leaves(nodes[i].name) {
			verdicts[i] = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) [%s]", k.filtered.by())).WithPlugin(k.filtered.by())
			return
		}
		if nodes[i].info == nil {
			if len(plugins) == 0 { // nobody is asked
				return
			}
			verdicts[i] = fwk.NewStatus(fwk.Unschedulable, "node(s) are not known to the plugins").WithPlugin(plugins[0])
			return
		}
		switch status := filterOne(ctx, filters, k.state, pod, nodes[i].info); {
		case status.IsSuccess():
		case status.IsRejected():
			verdicts[i] = status
		default:
			fail(fmt.Errorf("node %s: %w", nodes[i].name, status.AsError()))
		}
	}, metrics.Filter)
	if err := failed.Load(); err != nil {
		return *err
	}
	return ctx.Err()
}

// filters returns the Filter plugins that have not skipped a pod, for which PreFilter has run.
func (w *world) filters(k *kind) []*filterPlugin {
	skipped := k.state.GetSkipFilterPlugins()
	return slices.DeleteFunc(slices.Clone(w.profile.filters), func(p *filterPlugin) bool { return skipped.Has(p.Name()) })
}

// filterOne returns what plugins say of a node: kube-scheduler's RunFilterPlugins, but that nobody measures how long all take. No pod is nominated to it.
func filterOne(ctx context.Context, filters []*filterPlugin, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	for _, plugin := range filters {
		status := plugin.Filter(ctx, state, pod, node)
		if status.IsSuccess() {
			continue
		}
		if !status.IsRejected() {
			status = fwk.AsStatus(fmt.Errorf("running %q filter plugin: %w", plugin.Name(), status.AsError()))
		}
		status.SetPlugin(plugin.Name())
		return status
	}
	return nil
}

// refusals returns verdicts as berth.plugin.v1 has them. by is who has said what no plugin is named for.
func (w *world) refusals(verdicts []*fwk.Status, by string) *pluginv1.Answer {
	type key struct {
		plugin, reason string
		unresolvable   bool
	}
	out, known := &pluginv1.Answer{}, make(map[key]uint32)
	for i, s := range verdicts {
		if s == nil {
			continue
		}
		if out.Verdicts == nil {
			out.Verdicts = make([]uint32, len(verdicts))
		}
		k := key{plugin: w.profile.called(s.Plugin(), by), reason: pluginproto.Cut(s.Message()), unresolvable: s.Code() == fwk.UnschedulableAndUnresolvable}
		if k.reason == "" {
			k.reason = "node(s) didn't satisfy plugin " + k.plugin
		}
		if known[k] == 0 && len(out.Refusals) >= pluginproto.MaxRefusals-2*len(w.profile.names) {
			k.reason = pluginproto.OtherReason
		}
		if known[k] == 0 {
			out.Refusals = append(out.Refusals, &pluginv1.Refusal{Plugin: k.plugin, Reason: k.reason, Unresolvable: k.unresolvable})
			known[k] = uint32(len(out.Refusals))
		}
		out.Verdicts[i] = known[k]
	}
	return out
}

// score answers what plugins score nodes, which are all that are left.
func (w *world) score(ctx context.Context, k *kind, plugins []string, asked []node) (*pluginv1.Answer, error) {
	pod, err := k.podOf()
	if err != nil {
		return nil, err
	}
	if k.state == nil { // nobody has asked for verdicts on this stream
		if pre := w.prefilter(ctx, k, pod); !pre.status.IsSuccess() && !pre.status.IsRejected() {
			k.state = nil
			return nil, pre.status.AsError()
		}
	}
	nodes := make([]fwk.NodeInfo, len(asked))
	for i, n := range asked {
		if nodes[i] = n.info; n.info == nil {
			return nil, fmt.Errorf("node %s: the API server has none of that name any more", n.name)
		}
	}
	var is *kept // what is said of nodes in another state than the verdicts is not kept
	if k.version == w.version {
		is = w.keptOf(k, pod)
	}
	of, same := is.list(w, nodes)
	if !same { // PreScore sees of all nodes what Filter has noted
		if err := w.noted(ctx, k, pod, nodes, of); err != nil {
			return nil, err
		}
	}
	if status := w.profile.framework.RunPreScorePlugins(ctx, k.state, pod, nodes); !status.IsSuccess() {
		return nil, status.AsError()
	}
	lists, took, err := w.scoreEach(ctx, is, k, pod, nodes, of, same)
	if err != nil {
		return nil, err
	}
	w.log(ctx, pod, lists)
	out := &pluginv1.Answer{Kept: took}
	for _, name := range plugins {
		scores := make([]int32, len(nodes))
		for n, list := range lists { // those that have skipped the pod score nothing
			if w.profile.called(w.profile.scorers[n].Name(), "") == name {
				for i := range list {
					scores[i] = int32(list[i].Score)
				}
			}
		}
		out.Scores = append(out.Scores, &pluginv1.Scores{Scores: scores})
	}
	return out, nil
}

// choose answers which nodes can run a pod, and if that was said for an earlier one, which of them is best, judged for this one: all that is asked of a signed pod behind another one, in one question.
func (w *world) choose(ctx context.Context, k *kind, q *pluginv1.Question, nodes []node) (*pluginv1.Answer, error) {
	out, err := w.filter(ctx, k, q.GetFilters(), nodes)
	if err != nil || !out.GetKept() {
		return out, err
	}
	var left []node
	var places []int
	for i, n := range nodes {
		if len(out.GetVerdicts()) == 0 || out.GetVerdicts()[i] == 0 {
			left, places = append(left, n), append(places, i)
		}
	}
	if len(left) > 1 { // one that is alone is not scored, as in kube-scheduler
		scored, err := w.score(ctx, k, q.GetScores(), left)
		if err != nil {
			return nil, err
		}
		out.Scores = scored.GetScores()
	}
	best, most := 0, int64(math.MinInt64)
	for i, place := range places {
		total := q.GetTotals()[place]
		for n, s := range out.GetScores() {
			total += q.GetWeights()[n] * int64(s.GetScores()[i])
		}
		if total > most {
			best, most = i, total
		}
	}
	switch is, err := w.filter(ctx, k, q.GetFilters(), left[best:best+1]); {
	case err != nil:
		return nil, err
	case len(is.GetVerdicts()) > 0: // and nothing is kept any more
		return w.filter(ctx, k, q.GetFilters(), nodes)
	}
	out.Chosen = uint32(places[best] + 1)
	return out, nil
}

// log logs what plugins score each node where as much is logged, in kube-scheduler's words, but not times what they weigh.
func (w *world) log(ctx context.Context, pod *v1.Pod, lists []fwk.NodeScoreList) {
	log := klog.FromContext(ctx).V(10)
	if !log.Enabled() {
		return
	}
	for n, list := range lists {
		for _, s := range list {
			log.Info("Plugin scored node for pod", "pod", klog.KObj(pod), "plugin", w.profile.scorers[n].Name(), "node", s.Name, "score", s.Score)
		}
	}
}
