package binder

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/pluginhost"
)

// What a question asks plugin services, besides extenders.

// begin has the plugin services ready that are asked, unless they are. False: that is the result.
func (a *asked) begin(ctx context.Context) bool {
	if a.extenders.servicesOf(a.in) == 0 {
		return true
	}
	if a.judges != nil {
		a.judges.Refresh()
		return true
	}
	var schedulerName string
	a.read(func(st *cluster.State, row *cluster.PodRow) { schedulerName = st.Class(row.Class).Spec.SchedulerName })
	if a.over() {
		return false
	}
	var judges *pluginhost.Asking
	err := a.extenders.services.BeginPlacing(ctx, cluster.Epoch(a.epoch), schedulerName) // they know of what stands before they are asked
	if err == nil {
		judges, err = a.extenders.services.BeginPostFilter(ctx, cluster.Epoch(a.epoch), schedulerName, a.postFilters)
	}
	if err == nil && a.sent != nil {
		err = judges.SetPod(a.sent)
	}
	switch {
	case ctx.Err() != nil:
		a.err = context.Cause(ctx)
	case err != nil:
		a.end(rejection{err: err})
	}
	if err != nil || a.over() {
		return false
	}
	a.judges = judges
	a.judges.Refresh()
	return true
}

// anew reports whether plugin services alone say which nodes are left, and say it anew for each pod. Whoever asks extenders besides asks about all that may be left of a pod.
func (a *asked) anew() bool {
	return a.judges != nil && a.extenders.extendersOf(a.in) == 0 && a.judges.Anew()
}

// isJudged reports whether all plugin services have judged a node as it is. The caller holds the ledger's lock.
func (a *asked) isJudged(st *cluster.State, i cluster.NodeIndex) bool {
	if a.extenders.servicesOf(a.in) == 0 {
		return true
	}
	return a.judges != nil && a.judges.Holds(st, i)
}

// collect notes what plugin services are to be asked about nodes. The caller holds the ledger's lock.
func (a *asked) collect(st *cluster.State, nodes []seenNode) {
	if a.judges != nil {
		a.judges.Collect(st, a.subject, a.indexesOf(nodes))
	}
}

// collectBest notes that plugin services are to be asked about nodes, in one question, all that there is to be asked until one is chosen. False: that cannot be asked for, or what all else scores the nodes depends on which of them are left. The caller holds the ledger's lock.
func (a *asked) collectBest(st *cluster.State, nodes []seenNode) bool {
	if !a.alike {
		return false
	}
	slices.SortFunc(nodes, func(a, b seenNode) int { return cmp.Compare(a.Tie, b.Tie) }) // of equal ones, the first is chosen
	totals := make([]int64, len(nodes))
	for k, n := range nodes {
		totals[k] = n.Total
	}
	return a.judges.CollectBest(st, a.subject, a.indexesOf(nodes), totals)
}

// answeredBest returns which of the nodes that are left is best, if all has been answered that is to be asked until one is chosen.
func (a *asked) answeredBest(left []seenNode) (best seenNode, is bool) {
	if a.judges == nil {
		return best, false
	}
	chosen := a.judges.Chosen(a.indexesOf(left))
	if chosen == cluster.NoNode {
		return best, false
	}
	left = slices.Clone(left)
	a.addScores(left)
	best = choose(left, nil)
	return best, best.Node == chosen
}

// indexesOf returns the indexes of nodes, until it is called again.
func (a *asked) indexesOf(nodes []seenNode) []cluster.NodeIndex {
	out := a.scratch.indexes[:0]
	for _, n := range nodes {
		out = append(out, n.Node)
	}
	a.scratch.indexes = out
	return out
}

// knownNode is the best of the nodes of which it is known what plugin services say of them.
type knownNode struct {
	engine.NodeTotal      // without their scores
	sure             bool // it is the best of all, whatever they would say of the others: even the most that these could score would not make one of them better
}

// kept returns what is known of what plugin services say of nodes. nil: they have to be asked about all, or extenders are asked besides, or what all else scores nodes depends on which are left. The caller holds the ledger's lock.
func (a *asked) kept(st *cluster.State) *pluginhost.Kept {
	if a.judges == nil || !a.alike || a.extenders.extendersOf(a.in) != 0 {
		return nil
	}
	kept, ok := a.judges.Kept(st, a.subject)
	if !ok {
		return nil
	}
	return kept
}

// splitKnown is known where scores are normalised over all nodes that are left: it returns all nodes of which it is known what plugin services say, and that they do not refuse, and those that they have to be asked about. False: none is known. Nodes is not what it was any more. The caller holds the ledger's lock.
func (a *asked) splitKnown(kept *pluginhost.Kept, nodes []engine.NodeTotal) (known, unknown []engine.NodeTotal, is bool) {
	if kept == nil || !kept.Normalized {
		return nil, nil, false
	}
	all := nodes
	known, unknown = nodes[:0], a.scratch.unknown[:0]
	for _, n := range all {
		if kept.Known.Has(n.Node) {
			known = append(known, n)
			continue
		}
		switch is, refused, _ := kept.Of(n.Node); {
		case refused:
		case is:
			known = append(known, n)
		default:
			unknown = append(unknown, n)
		}
	}
	a.scratch.unknown = unknown
	return known, unknown, len(known) > 0
}

// bestOf returns the best of nodes of which it was known what plugin services say, and of others that these have left since, as they score among themselves. Known is not what it was any more.
func (a *asked) bestOf(known []engine.NodeTotal, left []seenNode) seenNode {
	for _, n := range left {
		known = append(known, n.NodeTotal)
	}
	indexes := a.scratch.indexes[:0]
	for k := range known {
		indexes = append(indexes, known[k].Node)
	}
	a.scratch.indexes, a.scratch.totals = indexes, known
	a.judges.ScoreTotals(indexes, known)
	best, most, tie := 0, int64(math.MinInt64), uint64(0)
	for k := range known {
		if n := &known[k]; n.Total > most || n.Total == most && n.Tie < tie {
			best, most, tie = k, n.Total, n.Tie
		}
	}
	if first := len(known) - len(left); best >= first {
		return left[best-first]
	}
	return seenNode{NodeTotal: known[best]}
}

// known returns the best of those nodes of which it is known what plugin services say of them, and those that have changed since they were asked. So of many pods of a kind, few have to be asked
// about, and about few nodes. nil: there is none, or what they say of one depends on others. The caller holds the ledger's lock.
func (a *asked) known(kept *pluginhost.Kept, nodes []engine.NodeTotal) (best *knownNode, unknown []engine.NodeTotal) {
	if kept == nil || kept.Normalized {
		return nil, nil
	}
	unknown = a.scratch.unknown[:0]
	var first, could engine.NodeTotal // with scores: the best that is known, and the best that could be, of the others
	for _, n := range nodes {
		switch is, refused, score := kept.Of(n.Node); {
		case refused:
		case is:
			scored := n
			if scored.Total += score; best == nil || better(scored, first) {
				first, best = scored, &knownNode{NodeTotal: n}
			}
		default:
			unknown = append(unknown, n)
			if n.Total += kept.Most; len(unknown) == 1 || better(n, could) {
				could = n
			}
		}
	}
	a.scratch.unknown = unknown
	if best != nil {
		best.sure = len(unknown) == 0 || !better(could, first)
	}
	return best, unknown
}

// better reports whether a node is chosen rather than another one.
func better(a, b engine.NodeTotal) bool {
	return a.Total > b.Total || a.Total == b.Total && a.Tie < b.Tie
}

// addKnown adds why plugin services refuse nodes that were left out since that was known.
func (a *asked) addKnown(why map[string]pluginhost.Refusal) {
	if a.judges == nil || a.pod.RequiredNode != "" {
		return
	}
	a.read(func(st *cluster.State, row *cluster.PodRow) {
		a.judge(row, func() {
			for _, n := range a.among(st, nil) {
				if r, known := a.judges.Known(st, n.Node); known {
					if _, told := why[n.name]; !told {
						why[n.name] = r
					}
				}
			}
		})
	})
}

// judged asks plugin services about the nodes that were seen, and returns which they leave, and, if that may be told, why they refuse others, by name: if none is left, or extenders may leave none.
func (a *asked) judged(ctx context.Context, s sight) (left []seenNode, why map[string]pluginhost.Refusal, err error) {
	why = make(map[string]pluginhost.Refusal)
	if a.judges == nil {
		return s.nodes, why, nil
	}
	nodes, err := a.exchange(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	if a.extenders.extendersOf(a.in) != 0 || s.known == nil && len(s.others) == 0 && !a.leavesAny(nodes) {
		for _, n := range nodes {
			if r, is := a.judges.Refusal(n.Node); is {
				why[n.name] = r
			}
		}
	}
	again := s.again && a.takesKept()
	if s.first > 0 && !again {
		nodes = a.enoughOf(nodes, s)
	}
	left = a.leftOf(nodes) // nobody looks at the others any more
	a.turn.left = nil
	if keeps, _ := a.judges.Keeps(); keeps && s.first > 0 && s.again == again { // else these have been first once, and it was of no use
		a.turn.left = a.setOf(left)
	}
	if s.known != nil {
		left = append(left, *s.known)
	}
	return left, why, nil
}

// exchange asks plugin services about the nodes that were seen, and returns those that were asked about: all, or where some come first, these and as many more as it takes until enough are left.
func (a *asked) exchange(ctx context.Context, s sight) (nodes []seenNode, err error) {
	services := a.judges.Services()
	if nodes = s.nodes; s.first > 0 {
		nodes = s.nodes[:s.first]
	}
	for {
		if err := a.judges.Exchange(ctx); err != nil {
			a.failed()
			return nil, err
		}
		if (s.known != nil || len(s.others) > 0) && a.judges.Services() != services { // what is known of the others is not what is asked for any more
			return nil, pluginhost.ErrAgain
		}
		more := s.nodes[len(nodes):]
		if len(more) == 0 {
			return nodes, nil
		}
		leaves := a.leaves(nodes)
		if leaves >= a.most || leaves > 0 && s.again && a.takesKept() {
			return nodes, nil
		}
		if s.again && len(nodes) == s.first {
			copy(more, a.inTurn(more))
		}
		more = more[:min(max(len(nodes), a.most-leaves), len(more))] // twice as many each time: it takes few calls, however few are left
		a.judges.CollectMore(a.indexesOf(more))
		nodes = s.nodes[:len(nodes)+len(more)]
	}
}

// setOf returns a set of nodes, until it is called again.
func (a *asked) setOf(nodes []seenNode) cluster.Bitmap {
	set := a.scratch.left[:0]
	for _, n := range nodes {
		set = set.Grow(int(n.Node) + 1)
		set.Set(n.Node)
	}
	a.scratch.left = set
	return set
}

// takesKept reports whether plugin services have taken what they had said for an earlier pod.
func (a *asked) takesKept() bool {
	_, kept := a.judges.Keeps()
	return kept
}

// failed has whatever plugin services are asked next begin anew.
func (a *asked) failed() {
	a.judges.Done()
	a.judges, a.turn.left = nil, nil
}

// enoughOf returns so many of some nodes of a sight that were asked about in turn, from the first on, that enough of them are left, or all. Whose turn it is next is behind them.
func (a *asked) enoughOf(nodes []seenNode, s sight) []seenNode {
	left := 0
	for k, n := range nodes {
		if a.judges.Refuses(n.Node) {
			continue
		}
		if left++; left == a.most {
			a.turn.sufficed = k + 1
			if !s.again || k >= s.first { // else they have had their turn
				a.extenders.passed(n)
			}
			return nodes[:k+1]
		}
	}
	a.turn.sufficed = 0
	return nodes
}

// leaves returns how many of some nodes plugin services do not refuse, which they were asked about.
func (a *asked) leaves(nodes []seenNode) (n int) {
	for k := range nodes {
		if !a.judges.Refuses(nodes[k].Node) {
			n++
		}
	}
	return n
}

// leavesAny reports whether leaves is more than 0.
func (a *asked) leavesAny(nodes []seenNode) bool {
	for k := range nodes {
		if !a.judges.Refuses(nodes[k].Node) {
			return true
		}
	}
	return false
}

// leftOf returns those of some nodes that plugin services do not refuse, where these were.
func (a *asked) leftOf(nodes []seenNode) []seenNode {
	left := nodes[:0]
	for k := range nodes {
		if !a.judges.Refuses(nodes[k].Node) {
			left = append(left, nodes[k])
		}
	}
	return left
}

// askScores has plugin services score nodes that normalise their scores themselves, over exactly these nodes. False: some of them have gone.
func (a *asked) askScores(ctx context.Context, nodes []seenNode) (ok bool, err error) {
	if a.judges == nil || !a.judges.ScoresApart() {
		return true, nil
	}
	a.read(func(st *cluster.State, _ *cluster.PodRow) {
		if ok = !slices.ContainsFunc(nodes, func(n seenNode) bool { return !a.isNode(st, n) }); ok {
			a.judges.CollectScores(st, a.subject, a.indexesOf(nodes))
		}
	})
	if !ok || a.over() {
		return false, nil
	}
	if err = a.judges.Exchange(ctx); err != nil {
		a.failed()
	}
	return err == nil, err
}

// askChosen has plugin services say once more whether the pod can run on the node that it is to get, if what they have said was said for an earlier pod alike. False: it cannot.
func (a *asked) askChosen(ctx context.Context, n seenNode) (ok bool, err error) {
	if a.judges == nil || !a.judges.CollectChosen(n.Node) {
		return true, nil
	}
	if err := a.judges.Exchange(ctx); err != nil {
		a.failed()
		return false, err
	}
	return !a.judges.Refuses(n.Node), nil
}

// addScores adds to totals what plugin services score.
func (a *asked) addScores(nodes []seenNode) {
	if a.judges == nil {
		return
	}
	sums := append(a.scratch.sums[:0], make([]int64, len(nodes))...)
	a.judges.Score(a.indexesOf(nodes), sums)
	for k := range nodes {
		nodes[k].Total += sums[k]
	}
	a.scratch.sums = sums
}
