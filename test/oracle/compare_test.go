package oracle

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// tally is how much has been compared.
type tally struct {
	decisions, verdicts, scores, infeasible, unscored, unjudged int
	sequences, placements, proven, noFit, retries               int
}

func (n *tally) report(t *testing.T) {
	t.Logf("%d decisions compared (%d of them without a feasible node), with %d verdicts on nodes that are not feasible and the scores of %d that are", n.decisions, n.infeasible, n.verdicts, n.scores)
	t.Logf("besides %d whose scores kube-scheduler fails on, %d that Berth says it cannot judge", n.unscored, n.unjudged)
	if n.decisions >= 1000 && n.infeasible > n.decisions*3/4 {
		t.Error("the clusters are too full to compare scores")
	}
	if n.sequences > 0 {
		t.Logf("%d sequences, %d attempts: %d placed on one of kube-scheduler's best nodes, %d fit none, %d sent to the next batch", n.sequences, n.placements, n.proven, n.noFit, n.retries)
	}
}

// compare judges a pending pod both ways and fails the test on any difference but those in the package's comment.
// It returns kube-scheduler's decision.
func (w *world) compare(id cluster.PodID, pod *v1.Pod, ranges []cluster.Range, n *tally) *decision {
	want, got := w.kube.judge(w.t, pod), w.judge(id, ranges)
	feasible := want.feasible(w.nodeNames())
	if w.unjudged(id) {
		n.unjudged++
		if len(feasible) > 0 && want.scoreError == nil {
			w.fail(pod, "Berth cannot judge the pod: %s", w.state.Class(w.state.Pod(id).Class).Spec.Unsupported)
		}
		return want
	}
	n.decisions++
	n.verdicts += len(want.Verdicts)
	n.scores += len(want.Scores)
	if len(feasible) == 0 {
		n.infeasible++
	}
	if want.scoreError != nil {
		n.unscored++
		if !strings.Contains(want.scoreError.Error(), "returns an invalid score") {
			w.fail(pod, "kube-scheduler does not score: %v", want.scoreError)
		}
	}
	if want.scoreError != nil || w.state.Pod(id).Pin != "" {
		want.Scores, got.Scores = nil, nil
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(decision{})); diff != "" {
		w.fail(pod, "the decisions differ (-kube-scheduler +Berth):\n%s", diff)
	}
	return want
}

// fail prints the pod and the cluster.
func (w *world) fail(pod *v1.Pod, format string, args ...any) {
	var b strings.Builder
	show := func(what string, object any) {
		text, err := yaml.Marshal(object)
		if err != nil {
			w.t.Fatalf("print %s: %v", what, err)
		}
		fmt.Fprintf(&b, "--- %s\n%s", what, text)
	}
	show("pod", pod)
	for _, name := range w.nodeNames() {
		show(fmt.Sprintf("node at index %d", w.state.Nodes.ByName(name)), w.nodes[name])
	}
	for _, p := range w.pods {
		show("pod on "+p.Spec.NodeName, p)
	}
	show("profile", w.state.Profile(pod.Spec.SchedulerName))
	w.t.Fatalf("%s\n%s", b.String(), fmt.Sprintf(format, args...))
}

// shortRun is the number of random cases per test, if -rapid.checks does not say otherwise.
const shortRun = "1000"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", shortRun); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}

func TestOneDecisionIsTheSame(t *testing.T) {
	var n tally
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.IntRange(1, 16).Draw(t, "width"))
		for i := range w.width {
			if !oneIn(t, 5, "no node") {
				w.setNode(drawNode(t, nodeName(i)))
			}
		}
		for range rapid.IntRange(0, w.width).Draw(t, "pods") {
			pod := named(drawPod(t, w.width), w.name())
			w.run(onNode(pod, nodeName(rapid.IntRange(0, w.width).Draw(t, "node")), drawStatus(t, pod)))
		}
		// The same pods are judged again after each change, from what the evaluator has kept.
		type pending struct {
			id  cluster.PodID
			pod *v1.Pod
		}
		var waiting []pending
		for range rapid.IntRange(1, 4).Draw(t, "judged") {
			pod := named(drawPod(t, w.width), w.name())
			if oneIn(t, 32, "names its node") {
				pod.Spec.NodeName = nodeName(rapid.IntRange(0, w.width).Draw(t, "its node"))
			}
			waiting = append(waiting, pending{w.enter(pod), pod})
		}
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			ranges := w.drawRanges()
			for _, p := range waiting {
				w.compare(p.id, p.pod, ranges, &n)
			}
			w.change()
		}
	})
	n.report(t)
}

// TestEachPlacementIsOneOfTheBest places pods in batches, as a shard and the binder do, while the cluster changes.
func TestEachPlacementIsOneOfTheBest(t *testing.T) {
	var n tally
	rapid.Check(t, func(t *rapid.T) {
		n.sequences++
		w := newWorld(t, rapid.IntRange(4, 24).Draw(t, "width"))
		var kinds []*v1.Node
		for range rapid.IntRange(1, 5).Draw(t, "kinds of nodes") {
			kinds = append(kinds, drawNode(t, ""))
		}
		// There is room for some.
		kinds[0].Spec = v1.NodeSpec{}
		maps.Copy(kinds[0].Status.Allocatable, v1.ResourceList{
			"cpu": resource.MustParse("64"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110"),
		})
		for i := range w.width {
			node := rapid.SampledFrom(kinds).Draw(t, "kind").DeepCopy()
			node.Name, node.Labels["kubernetes.io/hostname"] = nodeName(i), nodeName(i)
			w.setNode(node)
		}
		var templates []*v1.Pod
		for range rapid.IntRange(1, 5).Draw(t, "kinds of pods") {
			templates = append(templates, drawPod(t, w.width))
		}
		var queue []attempt
		length := rapid.IntRange(50, 80).Draw(t, "pods")
		if oneIn(t, 25, "long") {
			length = 500
		}
		for range length {
			pod := named(rapid.SampledFrom(templates).Draw(t, "kind"), w.name())
			queue = append(queue, attempt{w.enter(pod), pod})
		}
		largest := pick(t, "batches up to", 20, 1, 80)
		for len(queue) > 0 {
			size := min(len(queue), rapid.IntRange(1, largest).Draw(t, "batch"))
			again := w.placeBatch(queue[:size], &n)
			queue = slices.Concat(queue[size:], again)
		}
	})
	n.report(t)
}
