package oracle

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// placeBatch takes pods through filter, score and placement, checks each placement against kube-scheduler on the state
// before it, and returns those whose best node could not be proven.
func (w *world) placeBatch(batch []cluster.PodID) (again []cluster.PodID) {
	// 1. What the workers say of the pods of each signature.
	t, n := w.t, w.n
	n.batches++
	ranges := w.drawRanges()
	limit, short := pick(t, "limit", len(batch)+16, len(batch), 1, 2), oneIn(t, 4, "short")
	evaluated := w.state.Version().Seq
	var candidates []engine.Candidates
	known := make(map[engine.Signature]bool)
	for _, id := range batch {
		row := w.state.Pod(id)
		subject := engine.SubjectOf(&row.Pod)
		signature := w.evaluator.Signature(w.state, subject)
		if known[signature] || row.RequiredNode != "" || w.unjudged(id) {
			continue
		}
		known[signature] = true
		w.compare(id, ranges)
		candidates = append(candidates, engine.Candidates{Subject: subject, Groups: w.ask(subject, ranges, limit, short, cluster.NoNode).groups})
	}
	// 2. Placement, in order, on the live state.
	placer := engine.NewPlacer(w.evaluator, w.state, evaluated, candidates)
	for k, id := range batch {
		n.attempts++
		pod := w.pending[id]
		want := w.kube.judge(pod)
		apart := w.kube.undecided(pod, want)
		if w.unjudged(id) || w.kube.unbound(pod) {
			w.compare(id, []cluster.Range{{End: cluster.MaxIndex}}) // nodes may have come beyond ranges
			w.leave(id)
			continue
		}
		node, placement := w.placeOne(placer, candidates, id)
		switch placement {
		case engine.Placed:
			name := w.state.Nodes.Spec[node].Name
			if why := want.refuses(name, w.nodeNames()); why != "" && apart == "" {
				w.fail(pod, "%s", why)
			}
			n.proven++
			if want.Nominated != "" {
				n.nominated++
			}
			w.place(id, name)
		case engine.NoFit:
			if feasible := want.feasible(w.nodeNames()); len(feasible) > 0 && apart == "" {
				w.fail(pod, "Berth finds no node, kube-scheduler %v", feasible)
			}
			n.noFit++
			w.leave(id)
		default:
			if k == 0 {
				w.fail(pod, "the first pod of a batch is not placed on the state its candidates are of: %v", placement)
			}
			n.retries++
			again = append(again, id)
		}
		// 3. What others do meanwhile.
		if oneIn(t, 10, "something happens") {
			w.change()
		}
	}
	return again
}

// placeOne chooses the node of a pod as the binder does, with the candidates of the pod's signature.
func (w *world) placeOne(placer *engine.Placer, candidates []engine.Candidates, id cluster.PodID) (cluster.NodeIndex, engine.Placement) {
	signature := w.evaluator.Signature(w.state, engine.SubjectOf(&w.state.Pod(id).Pod))
	return placer.Choose(id, slices.IndexFunc(candidates, func(c engine.Candidates) bool {
		return w.evaluator.Signature(w.state, c.Subject) == signature
	}))
}
