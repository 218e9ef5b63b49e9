package binder

import (
	"cmp"
	"slices"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
)

// sight is what is to be asked about a pod, as the ledger was at a version.
type sight struct {
	version cluster.Version
	nodes   []seenNode // in no order, unless some are asked about first
	first   int        // so many of the nodes are asked about first, and those behind them, in order, only if too few of these are left; 0: all are
	again   bool       // those are what was left for the last pod: as many as are left of them are enough, if plugin services take what they have said for it
	count   int        // how many nodes there are
	apart   bool       // the node that the pod is nominated to can run it, and is not among these
	sure    *seenNode  // nil: plugin services are to be asked; else the best, whatever they would say
	known   *seenNode  // the best of all other nodes, of which it is known what they would say; nil: there are no others, or these are among the nodes

	others []engine.NodeTotal // those besides the nodes of which it is known what plugin services say, and that they do not refuse: scores are normalised over all of them together
}

// any reports whether there is a node that can run the pod, as far as that is known.
func (s *sight) any() bool { return len(s.nodes)+len(s.others) > 0 || s.sure != nil }

// seenNode is a node that can run the pod, and what it scores.
type seenNode struct {
	engine.NodeTotal
	name string // "": what plugin services have said of it says whether it is that node still
}

// scratch is room that questions use one after the other: nodes are many, and most of them are looked at for one pod and no more.
type scratch struct {
	totals  []engine.NodeTotal
	unknown []engine.NodeTotal
	seen    []seenNode
	inTurn  []seenNode
	indexes []cluster.NodeIndex
	left    cluster.Bitmap
	sums    []int64
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// look returns which nodes can run the pod: the only one that it may go to, or the one that it is nominated to, if that is asked for, or all. False: it is not
// nominated to one that can run it. If none can, that is the result.
func (a *asked) look(nominated bool) (s sight, ok bool) {
	result, conflict := binderv1.Outcome_RESULT_UNSPECIFIED, ""
	a.read(func(st *cluster.State, row *cluster.PodRow) {
		s.version, s.count, a.most = st.Version(), st.Nodes.Count(), 1
		if nominated && (row.Nominated == "" || row.RequiredNode != "") {
			return
		}
		judged := a.judge(row, func() {
			id := cluster.PodID(a.req.GetId())
			one := st.Nodes.ByName(cmp.Or(row.RequiredNode, row.Nominated))
			var verdict engine.Verdict
			known := false
			if one != cluster.NoNode {
				verdict, known = a.evaluator.Node(st, a.subject, id, one)
			}
			switch fits := known && verdict.Feasible(); {
			case nominated, row.RequiredNode != "":
				if fits {
					s.nodes = []seenNode{{engine.NodeTotal{Node: one}, st.Nodes.Spec[one].Name}}
					a.collect(st, s.nodes)
				}
				if why := a.evaluator.FailsAsNominated(st, id); why != nil && !fits && nominated {
					result, conflict = binderv1.Outcome_RESULT_NO_FIT, conflictNoFit // the next attempt says why
				}
				return
			case known && !fits: // the others are judged as if it were there already
				a.see(st, &s, a.all(st, row, one))
			default:
				a.see(st, &s, a.all(st, row, cluster.NoNode))
				if known { // judged as the pod's class is, it may have no room beside the nomination of the pod itself
					others, _ := a.evaluator.Node(st, a.subject, cluster.NoPod, one)
					s.apart = !others.Feasible()
				}
			}
		})
		if !judged || !nominated && !s.any() && !(s.apart && a.alone.failed()) {
			result, conflict = binderv1.Outcome_RESULT_NO_FIT, conflictNoFit
		}
	})
	if result != binderv1.Outcome_RESULT_UNSPECIFIED {
		a.result(result, conflict)
	}
	return s, s.any()
}

// see has of all nodes that can run the pod those seen that are to be asked about. The caller holds the ledger's lock.
func (a *asked) see(st *cluster.State, s *sight, all []engine.NodeTotal) {
	kept := a.kept(st)
	if len(all) <= a.most {
		if others, unknown, is := a.splitKnown(kept, all); is {
			s.others, s.nodes = others, a.named(st, unknown)
			a.collect(st, s.nodes)
			return
		}
	}
	best, unknown := a.known(kept, all)
	switch {
	case best == nil:
		s.nodes = a.named(st, all)
	case best.sure && len(unknown) <= a.extenders.mostUnknown:
		s.sure = &seenNode{best.NodeTotal, st.Nodes.Spec[best.Node].Name}
		return
	case len(all) > a.most:
		s.nodes = a.named(st, all)
	default:
		s.nodes, s.known = a.named(st, unknown), &seenNode{best.NodeTotal, st.Nodes.Spec[best.Node].Name}
	}
	first := s.nodes
	if len(all) > a.most && a.anew() {
		if s.first = min(a.again(s.nodes), a.most); s.first > 0 {
			s.again = true
			if a.collectBest(st, s.nodes[:s.first]) {
				return
			}
		} else {
			s.nodes = a.inTurn(s.nodes)
			s.first = min(max(a.most, a.turn.sufficed+a.turn.sufficed/8), len(s.nodes)) // pods that come one behind the other are often alike
		}
		first = s.nodes[:s.first]
	}
	a.collect(st, first)
}

// inTurn returns nodes in the order in which their turn comes, until it is called again.
func (a *asked) inTurn(nodes []seenNode) []seenNode {
	a.scratch.inTurn = a.extenders.inTurn(nodes, a.scratch.inTurn[:0])
	return a.scratch.inTurn
}

// again puts those of some nodes first that were left for the last pod of the turn, if what plugin services have said of them may be taken for this one, and returns how many these are.
func (a *asked) again(nodes []seenNode) (first int) {
	if a.turn.left == nil {
		return 0
	}
	for k, n := range nodes {
		if a.turn.left.Has(n.Node) {
			nodes[first], nodes[k] = n, nodes[first]
			first++
		}
	}
	return first
}

// all returns all nodes that can run the pod but for one, which may be cluster.NoNode, or as many as the profile says, and what these score among themselves. Those that plugin services
// are known to refuse are not among them, unless there are no others. What was returned before is not that any more. The caller holds the ledger's lock.
func (a *asked) all(st *cluster.State, row *cluster.PodRow, but cluster.NodeIndex) []engine.NodeTotal {
	var among cluster.Bitmap
	if but != cluster.NoNode {
		among = slices.Clone(st.Nodes.Live)
		among.Clear(but)
	}
	var nodes []engine.NodeTotal
	if a.judges != nil {
		left := slices.Clone(among)
		if left == nil {
			left = slices.Clone(st.Nodes.Live)
		}
		if a.judges.Excluded(st, a.subject, left) {
			nodes = a.totals(st, left)
		}
	}
	if len(nodes) == 0 {
		nodes = a.totals(st, among)
	}
	a.most = len(nodes)
	if p := a.ledger.profile(row); p != nil {
		a.most = enough(st.Nodes.Count(), p.PercentageOfNodesToScore, a.anew())
	}
	if len(nodes) <= a.most || a.judges != nil { // as many as plugins leave
		return nodes
	}
	return a.totals(st, bitmapOf(st, a.extenders.sample(a.named(st, nodes), a.most)))
}

// totals returns the nodes among some that can run the pod, and what they score if these are all; nil are all. What was returned before is not that any more. The caller holds the
// ledger's lock.
func (a *asked) totals(st *cluster.State, some cluster.Bitmap) []engine.NodeTotal {
	totals, alike, ok := a.evaluator.TotalsAmong(st, a.subject, some, a.scratch.totals[:0])
	if a.alike = alike; !ok {
		return nil
	}
	a.scratch.totals = totals
	return totals
}

// among is totals, with the names of the nodes.
func (a *asked) among(st *cluster.State, some cluster.Bitmap) []seenNode {
	return a.named(st, a.totals(st, some))
}

// named returns nodes with their names. What was returned before is not that any more. The caller holds the ledger's lock.
func (a *asked) named(st *cluster.State, nodes []engine.NodeTotal) []seenNode {
	out := a.scratch.seen[:0]
	for _, n := range nodes {
		out = append(out, seenNode{n, st.Nodes.Spec[n.Node].Name})
	}
	a.scratch.seen = out
	return out
}

func bitmapOf(st *cluster.State, nodes []seenNode) cluster.Bitmap {
	set := make(cluster.Bitmap, (st.Nodes.Len()+63)/64)
	for _, n := range nodes {
		set.Set(n.Node)
	}
	return set
}

// left returns those of some nodes that can still run the pod, with what they score if these are all.
func (a *asked) left(nodes []seenNode) (out []seenNode) {
	a.read(func(st *cluster.State, row *cluster.PodRow) {
		out = slices.DeleteFunc(nodes, func(n seenNode) bool { return !a.isNode(st, n) })
		if row.RequiredNode != "" || len(out) < 2 {
			return
		}
		some := bitmapOf(st, out)
		out = nil
		a.judge(row, func() { out = a.among(st, some) })
	})
	return out
}

// isNode reports whether a node that was seen is that of its index still.
func (a *asked) isNode(st *cluster.State, n seenNode) bool {
	return int(n.Node) < st.Nodes.Len() && st.Nodes.Live.Has(n.Node) && (n.name == "" || st.Nodes.Spec[n.Node].Name == n.name)
}

// changed reports whether what has happened to a node since a version has the extenders asked once more.
func (a *asked) changed(st *cluster.State, i cluster.NodeIndex, since cluster.Version) bool {
	if a.last {
		return st.Nodes.SpecModified[i] > since.Seq
	}
	return st.Nodes.Modified[i] > since.Seq
}

// choose returns the node with the highest total once the extenders' scores have been added; of equal ones, as in kube-scheduler, one that an
// extender has scored, and else the first in the class's order.
func choose(nodes []seenNode, scores map[string]int64) seenNode {
	var best seenNode
	has := false
	for i, n := range nodes {
		score, scored := scores[n.name]
		n.Total += extender.Scale * score
		if i == 0 || n.Total > best.Total || n.Total == best.Total && (scored && !has || scored == has && n.Tie < best.Tie) {
			best, has = n, scored
		}
	}
	return best
}
