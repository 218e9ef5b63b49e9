package oracle

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// compare judges a pending pod both ways and fails the test on any difference but those in the package's comment.
// It returns kube-scheduler's decision.
func (w *world) compare(id cluster.PodID, ranges []cluster.Range) *decision {
	want, difference := w.difference(id, ranges)
	if difference != "" {
		w.fail(w.pending[id], "%s", difference)
	}
	return want
}

// difference judges a pending pod both ways and says how the decisions differ, "" if they do not.
func (w *world) difference(id cluster.PodID, ranges []cluster.Range) (*decision, string) {
	n, pod := w.n, w.pending[id]
	want, got := w.kube.judge(pod), w.judge(id, ranges)
	feasible := want.feasible(w.nodeNames())
	if why := w.kube.undecided(pod, want); why != "" {
		n.countApart(why, want)
		return want, ""
	}
	if want.failed != nil {
		open := got.feasible(w.nodeNames())
		if want.Nominated == "" && got.Nominated == "" && len(open) > 0 && w.alikeNominated(id) {
			n.countApart(undecidedAlike, want)
			return want, ""
		}
		n.countFailed(want)
		if want.Nominated == "" && len(open) > 0 || want.Nominated != got.Nominated {
			return want, fmt.Sprintf("kube-scheduler's attempt fails: %v; Berth finds %v, and the nominated node %q", want.failed, open, got.Nominated)
		}
		return want, ""
	}
	if w.unjudged(id) {
		n.unjudged++
		if len(feasible) > 0 && want.scoreError == nil {
			return want, fmt.Sprintf("Berth cannot judge the pod: %s", w.state.Class(w.state.Pod(id).Class).Spec.Unsupported)
		}
		return want, ""
	}
	n.count(want, len(feasible))
	if want.scoreError != nil && !strings.Contains(want.scoreError.Error(), "returns an invalid score") {
		return want, fmt.Sprintf("kube-scheduler does not score: %v", want.scoreError)
	}
	told := *want
	if want.scoreError != nil || got.unscored || w.state.Pod(id).RequiredNode != "" {
		told.Scores, got.Scores = nil, nil
	}
	if diff := cmp.Diff(&told, got, cmpopts.IgnoreUnexported(decision{}, preemption{}), cmpopts.EquateEmpty()); diff != "" {
		return want, "the decisions differ (-kube-scheduler +Berth):\n" + diff
	}
	chosen := w.choose(id, got)
	for _, node := range feasible {
		if diff := n.differChosen(node, want.volumes[node], chosen[node]); diff != "" {
			return want, diff
		}
	}
	if want.Preemption != nil {
		return want, want.Preemption.misorders(got.Preemption.order)
	}
	return want, w.misplaces(id, got, want)
}

func TestOneDecisionIsTheSame(t *testing.T) {
	var n tally
	defer n.explain(t)
	check(t, func(t *rapid.T) {
		w := drawWorld(t, evenly(t, "width", [8]int{1, 2, 3, 4, 6, 8, 12, 16}), &n)
		pods := evenly(t, "pods", [8]int{0, 1, 2, 4, 8, 12, 16, 24})
		if rapid.Bool().Draw(t, "room") {
			pods *= 2
			for _, node := range drawFleet(t, w.width) {
				w.setNode(node, w.drawPlace())
			}
		} else {
			for i := range w.width {
				if !oneIn(t, 5, "no node") {
					w.setNode(drawNode(t, nodeName(i)), w.drawPlace())
				}
			}
		}
		for range pods {
			w.runDrawn()
		}
		// The same pods are judged again after each change, from what the evaluator has kept.
		for range rapid.IntRange(1, 4).Draw(t, "judged") {
			pod := w.named(w.drawPod())
			if oneIn(t, 32, "names its node") {
				pod.Spec.NodeName = nodeName(rapid.IntRange(0, w.width).Draw(t, "its node"))
			} else if pod.Status.NominatedNodeName = w.drawNomination(pod); oneIn(t, 12, "gated") {
				pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/later"}}
			}
			w.enter(pod)
		}
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			ranges := w.drawRanges()
			for _, id := range sortedKeys(w.pending) {
				w.compare(id, ranges)
			}
			w.change()
		}
	})
	n.report(t)
}

// TestPreemptionIsTheSame looks for victims where there is little room, again and again while pods are evicted.
func TestPreemptionIsTheSame(t *testing.T) {
	fewer(t, 2)
	var n tally
	defer n.explain(t)
	check(t, func(t *rapid.T) {
		w := drawWorld(t, evenly(t, "width", [8]int{1, 2, 2, 3, 3, 4, 6, 8}), &n)
		w.drawCrowd()
		for range rapid.IntRange(1, 4).Draw(t, "preemptors") {
			pod := w.named(w.drawPreemptor())
			pod.Status.NominatedNodeName = w.drawNomination(pod)
			w.enter(pod)
		}
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			ranges := w.drawRanges()
			for _, id := range sortedKeys(w.pending) {
				if _, waits := w.preempting[id]; waits {
					if rapid.Bool().Draw(t, "evictions are done") {
						w.evicted(id)
					}
					continue
				}
				if w.evicting(w.pending[id].Status.NominatedNodeName) {
					continue // see the package's comment
				}
				p := w.compare(id, ranges).Preemption
				if p != nil && len(p.Candidates) > 0 && oneIn(t, 2, "evicted") {
					node := rapid.SampledFrom(sortedKeys(p.Candidates)).Draw(t, "evicted from")
					w.evict(id, node, p.Candidates[node])
				}
			}
			w.change()
		}
	})
	n.report(t)
	if n.preemptions >= 500 && n.candidates < n.preemptions/4 {
		t.Error("there is hardly ever a candidate to compare")
	}
}

// TestEachPlacementIsOneOfTheBest places pods in batches, as a shard and the binder do, while the cluster changes.
func TestEachPlacementIsOneOfTheBest(t *testing.T) {
	fewer(t, 4)
	var n tally
	defer n.explain(t)
	check(t, func(t *rapid.T) {
		w := drawWorld(t, evenly(t, "width", [8]int{4, 6, 8, 10, 12, 16, 20, 24}), &n)
		for _, node := range drawFleet(t, w.width) {
			w.setNode(node, w.drawPlace())
		}
		var templates []*v1.Pod
		for range rapid.IntRange(1, 5).Draw(t, "kinds of pods") {
			templates = append(templates, w.drawPod())
		}
		var queue []cluster.PodID
		length := rapid.IntRange(50, 80).Draw(t, "pods")
		if oneIn(t, 25, "long") {
			length = 500
		}
		for range length {
			pod := w.named(rapid.SampledFrom(templates).Draw(t, "kind"))
			if oneIn(t, 4, "labels of its own") {
				pod.Labels = drawLabels(t, podLabels, 3)
			}
			if oneIn(t, 8, "nominated") {
				pod.Status.NominatedNodeName = w.drawNomination(pod)
			}
			queue = append(queue, w.enter(pod))
		}
		largest := pick(t, "batches up to", 20, 1, 80)
		for len(queue) > 0 {
			size := min(len(queue), rapid.IntRange(1, largest).Draw(t, "batch"))
			again := w.placeBatch(queue[:size])
			queue = slices.Concat(queue[size:], again)
		}
	})
	n.report(t)
}
