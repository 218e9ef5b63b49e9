package berthapp

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	inTree "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// keptFor is how long what plugins have said of nodes is taken for further pods: kube-scheduler's maxBatchAge.
const keptFor = 500 * time.Millisecond

// kept is what the plugins of a profile, all of which sign its pods (fwk.SignPlugin), have said of nodes for pods of one signature that come one behind the other. By what kube-scheduler has them promise, placing one of these changes what is
// said of its node, and of no other one. So it is void once anything else has been placed, for keptFor at most, and of each node until that changes. It is as kube-scheduler's batches, but that nodes which change are judged anew, and so need not be full.
// Nobody is refused by it alone, and the node that a pod gets is judged for it itself: Berth asks about that one once more.
type kept struct {
	signature string
	first     int       // the attempt that it has begun with
	ends      time.Time // later, no other attempt takes anything of it
	pods      map[types.UID]bool
	nodes     map[string]*keptNode

	lists   int              // counts the lists of nodes that have been scored
	looks   int              // counts whether lists are the same
	newest  int64            // generation of a node, when they were scored last
	skipped sets.Set[string] // plugins that have not scored them
}

// keptNode is what is kept of a node, as it is in a generation.
type keptNode struct {
	generation int64
	attempt    int // the last in which Filter plugins have run for the node
	judged     bool
	verdict    *fwk.Status // nil: it can run such a pod
	list       int         // the last list that it was in
	look       int         // the last in which it was in both lists
	scores     []int64     // by profile.scorers, not normalised
}

// signs reports whether anything may be kept for pods of a profile: there are no extenders, as in kube-scheduler, and no other plugins that judge and sign nothing, which are those of plugin services. Of its own plugins, Berth sees itself to what they say.
func (p *plugins) signs(cfg *loaded, full *config.KubeSchedulerProfile) bool {
	known := inTree.NewInTreeRegistry()
	return len(cfg.Extenders) == 0 && !slices.ContainsFunc([]*config.PluginSet{
		&full.Plugins.PreFilter, &full.Plugins.Filter, &full.Plugins.PreScore, &full.Plugins.Score, &full.Plugins.MultiPoint,
	}, func(set *config.PluginSet) bool {
		return slices.ContainsFunc(set.Enabled, func(e config.Plugin) bool { return p.registry[e.Name] == nil && known[e.Name] == nil })
	})
}

// sign returns the signature of a pod, "" if there is none.
func (p *profile) sign(ctx context.Context, pod *v1.Pod) string {
	if !p.signs || !p.framework.HasFilterPlugins() && !p.framework.HasScorePlugins() {
		return ""
	}
	return string(p.framework.SignPod(ctx, pod))
}

// keptOf returns what is kept for a pod that is judged, nil if it is not signed. What was kept for pods of another signature is not any more.
func (w *world) keptOf(k *kind, pod *v1.Pod) *kept {
	if k.signature == "" {
		w.kept = nil
		return nil
	}
	if is := w.kept; is == nil || is.signature != k.signature || is.first != k.attempt && w.profile.now().After(is.ends) {
		w.kept = &kept{signature: k.signature, first: k.attempt, pods: make(map[types.UID]bool), nodes: make(map[string]*keptNode)}
	}
	w.kept.pods[pod.UID] = true
	return w.kept
}

// lasts has what is kept last from now on, if it is of the attempt that it has begun with.
func (is *kept) lasts(k *kind, now time.Time) {
	if is.first == k.attempt {
		is.ends = now.Add(keptFor)
	}
}

// comes says that a pod has come to a node.
func (w *world) comes(uid types.UID) {
	if w.kept != nil && !w.kept.pods[uid] {
		w.kept = nil
	}
}

// of returns what is kept of a node, in its generation.
func (is *kept) of(node fwk.NodeInfo) *keptNode {
	name := node.Node().Name
	n := is.nodes[name]
	if n == nil {
		n = new(keptNode)
		is.nodes[name] = n
	}
	if n.generation != node.GetGeneration() {
		*n = keptNode{generation: node.GetGeneration()}
	}
	return n
}

// verdicts fills in which verdicts on nodes are kept, and returns the places of all others. A node that is asked about by itself is judged.
func (is *kept) verdicts(k *kind, nodes []node, verdicts []*fwk.Status) (others []int) {
	others = make([]int, 0, len(nodes))
	for i, node := range nodes {
		if is != nil && len(nodes) > 1 && node.info != nil && k.filtered.leaves(node.name) {
			if n := is.of(node.info); n.judged {
				verdicts[i] = n.verdict
				continue
			}
		}
		others = append(others, i)
	}
	return others
}

// keep keeps verdicts on some nodes. If one is not what was said for an earlier pod, nothing is kept of what was said then.
func (is *kept) keep(w *world, k *kind, nodes []node, some []int, verdicts []*fwk.Status) {
	for _, i := range some {
		if nodes[i].info == nil || !k.filtered.leaves(nodes[i].name) {
			continue
		}
		n := is.of(nodes[i].info)
		if n.judged && n.verdict.IsSuccess() != verdicts[i].IsSuccess() {
			w.kept = nil
			return
		}
		n.attempt, n.judged, n.verdict = k.attempt, true, verdicts[i]
	}
	is.lasts(k, w.profile.now())
}

// scored reports whether a node was scored with the last ones that were.
func (is *kept) scored(n *keptNode) bool { return n.scores != nil && n.list == is.lists }

// list returns what is kept of nodes that are to be scored, and whether these are those that were scored last, but for nodes that have changed since: only then scores are what they would be, for PreScore sees all of them.
func (is *kept) list(w *world, nodes []fwk.NodeInfo) (of []*keptNode, same bool) {
	if is == nil {
		return nil, false
	}
	of = make([]*keptNode, len(nodes))
	for i, node := range nodes {
		of[i] = is.of(node)
	}
	return of, is.sameList(w, of)
}

// noted has Filter plugins see nodes, of which verdicts were taken that are kept, so that they note in the pod's state what they note of these. Of is what is kept of them; nil: nothing is.
func (w *world) noted(ctx context.Context, k *kind, pod *v1.Pod, nodes []fwk.NodeInfo, of []*keptNode) error {
	if !k.took {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	filters := w.filters(k)
	w.profile.framework.Parallelizer().Until(ctx, len(nodes), func(i int) {
		if of != nil && of[i].attempt == k.attempt {
			return
		}
		status := filterOne(ctx, filters, k.state, pod, nodes[i])
		if !status.IsSuccess() && !status.IsRejected() {
			cancel(fmt.Errorf("node %s: %w", nodes[i].Node().Name, status.AsError()))
			return
		}
		if of != nil {
			of[i].attempt = k.attempt
		}
	}, metrics.Filter)
	return context.Cause(ctx)
}

func (is *kept) sameList(w *world, nodes []*keptNode) bool {
	if is.lists == 0 {
		return false
	}
	is.looks++
	for _, n := range nodes {
		switch {
		case is.scored(n):
			n.look = is.looks
		case n.generation <= is.newest:
			return false
		}
	}
	for name, n := range is.nodes {
		if !is.scored(n) || n.look == is.looks {
			continue
		}
		if node, err := w.snapshot.Get(name); err == nil && node.GetGeneration() == n.generation {
			return false
		}
	}
	return true
}

// scoreEach returns what Score plugins say of nodes, by their places in profile.scorers, normalised; nil of those that have skipped the pod. It is kube-scheduler's RunScorePlugins, but that nobody measures how long all take, and that scores are kept for
// a pod that is signed, of which is and of say what is kept. Took: some were.
func (w *world) scoreEach(ctx context.Context, is *kept, k *kind, pod *v1.Pod, nodes []fwk.NodeInfo, of []*keptNode, same bool) (lists []fwk.NodeScoreList, took bool, err error) {
	skipped := k.state.GetSkipScorePlugins()
	lists = make([]fwk.NodeScoreList, len(w.profile.scorers))
	for n, plugin := range w.profile.scorers {
		if !skipped.Has(plugin.Name()) {
			lists[n] = make(fwk.NodeScoreList, len(nodes))
		}
	}
	if is == nil {
		if err := w.scoreSome(ctx, k, pod, nodes, nil, lists); err != nil {
			return nil, false, err
		}
		return lists, false, w.normalise(ctx, k, pod, lists)
	}
	// 1. Of which nodes is not known what plugins score them?
	same = same && is.skipped.Equal(skipped)
	some := make([]int, 0, len(nodes))
	var infos []fwk.NodeInfo
	var notes []*keptNode
	for i, n := range of {
		if same && is.scored(n) {
			for p, list := range lists {
				if list != nil {
					list[i] = fwk.NodeScore{Name: nodes[i].Node().Name, Score: n.scores[p]}
				}
			}
			continue
		}
		some, infos, notes = append(some, i), append(infos, nodes[i]), append(notes, n)
	}
	// 2. What do they? Who notes in Filter what it scores by has to have seen the node, and all of them before it scores any.
	if err := w.noted(ctx, k, pod, infos, notes); err != nil {
		return nil, false, err
	}
	if err := w.scoreSome(ctx, k, pod, nodes, some, lists); err != nil {
		return nil, false, err
	}
	// 3. That is kept.
	if !same {
		is.lists, is.skipped = is.lists+1, skipped
	}
	for _, i := range some {
		of[i].scores, of[i].list = make([]int64, len(lists)), is.lists
		for p, list := range lists {
			if list != nil {
				of[i].scores[p] = list[i].Score
			}
		}
	}
	is.newest = w.newest
	is.lasts(k, w.profile.now())
	return lists, len(some) < len(nodes), w.normalise(ctx, k, pod, lists)
}

// scoreSome fills in what Score plugins say of some nodes, by their places; nil are all. Those whose list is nil are not asked.
func (w *world) scoreSome(ctx context.Context, k *kind, pod *v1.Pod, nodes []fwk.NodeInfo, some []int, lists []fwk.NodeScoreList) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	count := len(nodes)
	if some != nil {
		count = len(some)
	}
	w.profile.framework.Parallelizer().Until(ctx, count, func(i int) {
		if some != nil {
			i = some[i]
		}
		for n, plugin := range w.profile.scorers {
			if lists[n] == nil {
				continue
			}
			score, status := plugin.Score(ctx, k.state, pod, nodes[i])
			if !status.IsSuccess() {
				cancel(fmt.Errorf("running Score plugins: plugin %q failed with: %w", plugin.Name(), status.AsError()))
				return
			}
			lists[n][i] = fwk.NodeScore{Name: nodes[i].Node().Name, Score: score}
		}
	}, metrics.Score)
	return context.Cause(ctx)
}

// normalise has plugins normalise their scores.
func (w *world) normalise(ctx context.Context, k *kind, pod *v1.Pod, lists []fwk.NodeScoreList) error {
	var failed atomic.Pointer[error]
	w.profile.framework.Parallelizer().Until(ctx, len(lists), func(n int) {
		plugin, list := w.profile.scorers[n], lists[n]
		if list == nil {
			return
		}
		err := error(nil)
		if extensions := plugin.ScoreExtensions(); extensions != nil {
			if status := extensions.NormalizeScore(ctx, k.state, pod, list); !status.IsSuccess() {
				err = fmt.Errorf("running Normalize on Score plugins: plugin %q failed with: %w", plugin.Name(), status.AsError())
			}
		}
		for i := 0; i < len(list) && err == nil; i++ {
			if s := list[i].Score; s > fwk.MaxScore || s < fwk.MinScore {
				err = fmt.Errorf("applying score defaultWeights on Score plugins: plugin %q returns an invalid score %v, it should in the range of [%v, %v] after normalizing", plugin.Name(), s, fwk.MinScore, fwk.MaxScore)
			}
		}
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		}
	}, metrics.Score)
	if err := failed.Load(); err != nil {
		return *err
	}
	return ctx.Err()
}
