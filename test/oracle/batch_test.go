package oracle

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// attempt is a pod in the queue.
type attempt struct {
	id  cluster.PodID
	pod *v1.Pod
}

// placeBatch takes pods through filter, score and placement, checks each placement against kube-scheduler on the state
// before it, and returns those whose best node could not be proven.
func (w *world) placeBatch(batch []attempt, n *tally) (again []attempt) {
	// 1. What the workers say of the classes.
	t := w.t
	ranges := w.drawRanges()
	limit, short := pick(t, "limit", len(batch)+16, len(batch), 1, 2), oneIn(t, 4, "short")
	evaluated := w.state.Version().Seq
	var candidates []engine.Candidates
	index := make(map[cluster.ClassID]int)
	for _, a := range batch {
		row := w.state.Pod(a.id)
		if _, ok := index[row.Class]; ok || row.Pin != "" || w.unjudged(a.id) {
			continue
		}
		w.compare(a.id, a.pod, ranges, n)
		index[row.Class] = len(candidates)
		candidates = append(candidates, engine.Candidates{Class: row.Class, Groups: w.ask(row.Class, ranges, limit, short).groups})
	}
	// 2. Placement, in order, on the live state.
	placer := engine.NewPlacer(w.evaluator, w.state, evaluated, candidates)
	for k, a := range batch {
		n.placements++
		row := w.state.Pod(a.id)
		if w.unjudged(a.id) {
			w.compare(a.id, a.pod, ranges, n)
			w.leave(a.id)
			continue
		}
		want := w.kube.judge(t, a.pod)
		node, placement := cluster.NoNode, engine.NoFit
		if row.Pin == "" {
			node, placement = placer.Place(index[row.Class])
		} else if i := w.state.Nodes.ByName(row.Pin); i != cluster.NoNode {
			node, placement = i, placer.PlacePinned(row.Class, i)
		}
		switch placement {
		case engine.Placed:
			w.checkPlaced(a.pod, want, w.state.Nodes.Spec[node].Name)
			n.proven++
			w.place(a.id, a.pod, w.state.Nodes.Spec[node].Name)
		case engine.NoFit:
			if feasible := want.feasible(w.nodeNames()); len(feasible) > 0 {
				w.fail(a.pod, "Berth finds no node, kube-scheduler %v", feasible)
			}
			n.noFit++
			w.leave(a.id)
		default:
			if k == 0 {
				w.fail(a.pod, "the first pod of a batch is not placed on the state its candidates are of: %v", placement)
			}
			n.retries++
			again = append(again, a)
		}
		// 3. What others do meanwhile.
		if oneIn(t, 10, "something happens") {
			w.change()
		}
	}
	return again
}

// checkPlaced fails if kube-scheduler would not have chosen the node.
func (w *world) checkPlaced(pod *v1.Pod, want *decision, node string) {
	if want.scoreError != nil {
		if feasible := want.feasible(w.nodeNames()); !slices.Contains(feasible, node) {
			w.fail(pod, "Berth chooses %s, feasible are %v", node, feasible)
		}
		return
	}
	if best := want.best(); !slices.Contains(best, node) {
		w.fail(pod, "Berth chooses %s with %+v, the best are %v of %+v", node, want.Scores[node], best, want.Scores)
	}
}
