package engine

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Choose returns the node for a pending pod, which the state has, and what to make of it. It is the one choice there is: a commit
// makes it, and whoever says beforehand or afterwards what a commit does. Index is of the candidates that are meant for the pod, negative
// for none.
//
// Like kube-scheduler it takes the only node that the pod may go to, if it requires one; else the node that it is nominated to, if it
// fits there, without a look at scores; else, unless a plugin fails on the nominated one, the best of all; see choose. Candidates of another signature
// prove nothing about this pod, and the answer is Retry. They were of its own when they were found, but what tells signatures apart may have come since.
//
// All nodes are judged for all pods of a signature at once, and so the one to which this pod is nominated as if it were there: that may suit it, if it
// shares its volumes with itself. Where it was refused there, it is never placed there.
//
// A caller that is told Placed applies PodAssumed to the state before it calls again. Choose does not ask whether the pod
// is to be placed at all: whether it is placed, gated, being deleted, or another scheduler's.
func (p *Placer) Choose(id cluster.PodID, index int) (cluster.NodeIndex, Placement) {
	row := p.st.Pod(id)
	subject := SubjectOf(&row.Pod)
	if row.RequiredNode != "" {
		node := p.st.Nodes.ByName(row.RequiredNode)
		if node == cluster.NoNode {
			return node, NoFit
		}
		return node, p.PlaceOn(subject, id, node)
	}
	refused := cluster.NoNode
	if row.Nominated != "" {
		if refused = p.st.Nodes.ByName(row.Nominated); refused != cluster.NoNode {
			switch verdict, placement := p.placeOn(subject, id, refused); {
			case placement == Placed:
				return refused, Placed
			case verdict.fails():
				return cluster.NoNode, NoFit
			}
		}
	}
	return p.placeAs(index, subject, refused)
}

// Answers are what filters have said of a pod that can go nowhere, by one Evaluator or merged over the ranges of many.
type Answers struct {
	Nodes       int           // how many there are
	Unsupported *VerdictCount // of UnsupportedVerdict, for the pod's class

	// Of a pod that requires a node, only what is said of that one node counts, unless it is refused before any node is looked at.
	Required bool
	Refused  *VerdictCount // of Evaluator.Refusal
	Known    bool          // there is such a node
	There    []VerdictCount

	// Of any other, what is said of all nodes: of how many, and why not these.
	Seen       int
	Everywhere []VerdictCount
	// There is one that it is nominated to. What is said everywhere counts it there already: see Nominated.
	Nominated *Nominated
}

// Nominated is what is said of the node that a pod is nominated to: to the pod itself, and to pods of its signature, for which it is there already.
type Nominated struct{ Itself, Others []VerdictCount }

// correct returns what is said of all nodes to the pod itself. Where it is not known to say of that node what is said to others, which may have been of
// another version, it stays what it is.
func (n *Nominated) correct(all []VerdictCount) []VerdictCount {
	if n == nil {
		return all
	}
	out := make([]VerdictCount, 0, len(all))
	wrong := 0
	for _, v := range all {
		if k := slices.IndexFunc(n.Others, func(other VerdictCount) bool { return compareVerdicts(v, other) == 0 }); k >= 0 {
			wrong++
			v.Count--
			v.Examples = slices.DeleteFunc(slices.Clone(v.Examples), func(name string) bool { return slices.Contains(n.Others[k].Examples, name) })
		}
		if v.Count > 0 {
			out = append(out, v)
		}
	}
	if wrong != len(n.Others) {
		return all
	}
	return MergeVerdicts(out, n.Itself)
}

// Unschedulable returns what a pod is made unschedulable with: of how many nodes that is said, and why it can go to none of them, each
// reason with the number of nodes that have it. FitMessage makes kube-scheduler's text of it. Without nodes there is nothing to say; a class
// that Berth cannot judge fits none; and all nodes but the one that a pod requires are set aside.
func (a Answers) Unschedulable() (nodes int, why []VerdictCount) {
	switch {
	case a.Nodes == 0:
		return 0, nil
	case a.Unsupported != nil:
		return a.Nodes, []VerdictCount{*a.Unsupported}
	case !a.Required:
		return a.Seen, a.Nominated.correct(a.Everywhere)
	case a.Refused != nil:
		return a.Nodes, []VerdictCount{*a.Refused}
	case !a.Known:
		return a.Nodes, outside(a.Nodes)
	}
	return a.Nodes, MergeVerdicts(a.There, outside(a.Nodes-1))
}

// outside is what is said of all nodes but the one that a pod requires.
func outside(nodes int) []VerdictCount {
	if nodes <= 0 {
		return nil
	}
	name, code := requiredElsewhere()
	return []VerdictCount{{Plugin: name, Reason: reasonOf(code), Unresolvable: true, Count: int32(nodes)}}
}

// UnsupportedVerdict returns why so many nodes, which are all, cannot run a class that Berth cannot judge; nil if it can be judged.
func UnsupportedVerdict(spec *cluster.ClassSpec, nodes int) *VerdictCount {
	if spec.Unsupported == "" {
		return nil
	}
	return &VerdictCount{Plugin: spec.UnsupportedPlugin, Reason: spec.Unsupported, Unresolvable: true, Count: int32(nodes)}
}

// Refusal returns why pods of a subject are refused before any node is looked at, which is said of all nodes, because of what their volumes
// are; nil if they are not. Filter says so too, but knows nothing of a required node that does not exist.
func (e *Evaluator) Refusal(st *cluster.State, s Subject) *VerdictCount {
	_, r := e.relationsOf(st, s)
	if r == nil || r.volumes == nil || r.volumes.refusal == "" {
		return nil
	}
	return &VerdictCount{Plugin: r.volumes.refusedBy, Reason: r.volumes.refusal, Unresolvable: true, Count: int32(st.Nodes.Count())}
}

// FailsAsNominated returns why a plugin fails on the node that a pod is nominated to, and so the pod is feasible on none, which is said of all
// nodes; nil if none does, or there is no such pod. As everywhere where plugins fail, that is kube-scheduler's decision when its search comes to that
// node. Filter does not know: to it the pod is there already, so that another plugin may refuse the node before. Whoever asks Filter asks this too.
func (e *Evaluator) FailsAsNominated(st *cluster.State, id cluster.PodID) *VerdictCount {
	row := st.Pod(id)
	if row == nil || row.Nominated == "" {
		return nil
	}
	s, node := SubjectOf(&row.Pod), st.Nodes.ByName(row.Nominated)
	if _, r := e.relationsOf(st, s); node == cluster.NoNode || r == nil || r.volumes == nil {
		return nil // only volumes make plugins fail
	}
	v, _ := e.Node(st, s, id, node)
	if !v.fails() {
		return nil
	}
	why := e.Explain(st, s, v, node)[0]
	why.Count = int32(st.Nodes.Count())
	return &why
}

// RefusedAsNominated returns the node that a pod is nominated to if it refuses the pod, though by what Filter finds for its signature it may be eligible;
// else cluster.NoNode. A commit leaves that node out, and so does whoever says what a commit would do.
func (e *Evaluator) RefusedAsNominated(st *cluster.State, id cluster.PodID) cluster.NodeIndex {
	row := st.Pod(id)
	if row == nil || row.Nominated == "" {
		return cluster.NoNode
	}
	node := st.Nodes.ByName(row.Nominated)
	if v, known := e.Node(st, SubjectOf(&row.Pod), id, node); !known || v.Feasible() {
		return cluster.NoNode
	}
	return node
}

// FailsForAll reports whether pods of a subject are feasible on no node because a plugin fails on one: then all that is said of any node is that, but to
// a pod that requires it or is nominated to it.
func (e *Evaluator) FailsForAll(st *cluster.State, s Subject) (fails bool) {
	if _, r := e.relationsOf(st, s); r == nil || r.volumes == nil {
		return false // only volumes make plugins fail
	}
	e.withFilters(st, s, func(c *evaluation) { fails = c.failing.refuses() })
	return fails
}

// AnswersOf asks about a pending pod on the state as it is.
func (e *Evaluator) AnswersOf(st *cluster.State, id cluster.PodID) Answers {
	row := st.Pod(id)
	subject := SubjectOf(&row.Pod)
	a := Answers{
		Nodes: st.Nodes.Count(), Unsupported: UnsupportedVerdict(&st.Class(row.Class).Spec, st.Nodes.Count()), Required: row.RequiredNode != "",
	}
	switch {
	case a.Nodes == 0 || a.Unsupported != nil:
	case a.Required:
		a.Refused = e.Refusal(st, subject)
		node := st.Nodes.ByName(row.RequiredNode)
		var v Verdict
		if v, a.Known = e.Node(st, subject, id, node); a.Known {
			a.There = e.Explain(st, subject, v, node)
		}
	default:
		found, _ := e.Filter(st, subject, cluster.Range{First: 0, End: cluster.NodeIndex(st.Nodes.Len())})
		a.Seen, a.Everywhere = int(found.Nodes), found.Verdicts
		node := st.Nodes.ByName(row.Nominated)
		if why := e.FailsAsNominated(st, id); why != nil {
			a.Everywhere = []VerdictCount{*why}
		} else if v, known := e.Node(st, subject, id, node); known && !e.FailsForAll(st, subject) {
			others, _ := e.Node(st, subject, cluster.NoPod, node)
			a.Nominated = &Nominated{e.Explain(st, subject, v, node), e.Explain(st, subject, others, node)}
		}
	}
	return a
}

// CrossNode reports whether pods on other nodes may be the only reason against some node: if they are, the verdict is of one of
// these plugins.
func CrossNode(verdicts []VerdictCount) bool {
	return slices.ContainsFunc(verdicts, func(v VerdictCount) bool {
		p := PluginOf(v.Plugin)
		return p != nil && p.relate != nil
	})
}
