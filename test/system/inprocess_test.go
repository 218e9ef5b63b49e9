package system

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/demo"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/test/berthtest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == pluginProcess {
		if err := servePlugin(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "plugin service:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func TestPodsArePlacedAndBoundThroughEveryRole(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{Nodes: 3, Shards: 3})
	var pods []string
	for i := range 30 {
		pods = append(pods, berthtest.Pod(fmt.Sprintf("p%02d", i), fmt.Sprintf("%dm", 100+i*10), "64Mi", "")) // 30 classes
	}
	b.Apply(pods...)
	b.AwaitDecided(30)
	if got := len(b.Placements()); got != 30 {
		t.Errorf("%d pods placed, want 30", got)
	}
	for name, p := range b.Pods() {
		if p.GetState() != schedulingv1.PodState_POD_STATE_BOUND {
			t.Errorf("%s is %v, want bound", name, p.GetState())
		}
	}
	b.CheckCapacity()
}

func TestFullClusterSaysWhyAndWakesWhenANodeComes(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{Nodes: 2})
	var pods []string
	for i := range 5 {
		pods = append(pods, berthtest.Pod(fmt.Sprintf("p%d", i), "4", "1Gi", ""))
	}
	b.Apply(pods...)
	b.AwaitDecided(5) // two nodes of 8 CPU take four
	var left *schedulingv1.Pod
	for _, p := range b.Pods() {
		if p.GetNode() == "" {
			left = p
		}
	}
	if left == nil {
		t.Fatal("all five pods were placed on room for four")
	}
	const want = "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, " +
		"preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
	if left.GetMessage() != want || left.GetState() != schedulingv1.PodState_POD_STATE_UNSCHEDULABLE || left.GetAttempts() < 1 {
		t.Errorf("unplaced pod: message %q, state %v, attempts %d; want %q, unschedulable", left.GetMessage(), left.GetState(), left.GetAttempts(), want)
	}
	verdicts := left.GetVerdicts()
	if len(verdicts) != 1 || verdicts[0].GetPlugin() != "NodeResourcesFit" || verdicts[0].GetNodes() != 2 || verdicts[0].GetUnresolvable() {
		t.Errorf("verdicts %v, want NodeResourcesFit on 2 nodes, resolvable", verdicts)
	}
	b.Apply(berthtest.Node("late", "4", "8Gi"))
	berthtest.Await(t, berthtest.Patience, "the pod to wake and bind", func(context.Context) error {
		if got := b.Placements()["default/"+left.GetName()]; got != "late" {
			return fmt.Errorf("it is on %q", got)
		}
		return nil
	})
}

func TestDeletingAPodWakesTheOneThatWaitsForItsRoom(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{Nodes: 1})
	b.Apply(berthtest.Pod("first", "8", "1Gi", ""))
	b.AwaitDecided(1)
	b.Apply(berthtest.Pod("second", "8", "1Gi", ""))
	b.AwaitDecided(2)
	if _, err := b.Delete(b.Context(), &schedulingv1.DeleteRequest{Kind: "Pod", Name: "first"}); err != nil {
		t.Fatal(err)
	}
	berthtest.Await(t, berthtest.Patience, "the second pod to be bound", func(context.Context) error {
		if b.Placements()["default/second"] != "node-0000" {
			return fmt.Errorf("placements: %v", b.Placements())
		}
		return nil
	})
}

func TestHigherPriorityGetsTheRoom(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{})
	var pods []string
	for i := range 20 {
		pods = append(pods, berthtest.Pod(fmt.Sprintf("p%02d", i), "1", "1Gi", fmt.Sprintf("priority: %d, ", i)))
	}
	b.Apply(pods...)
	b.AwaitDecided(20) // nowhere to go
	b.Apply(berthtest.Node("only", "5", "64Gi"))
	berthtest.Await(t, berthtest.Patience, "five pods to be bound", func(context.Context) error {
		if n := len(b.Placements()); n != 5 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	want := map[string]string{}
	for i := 15; i < 20; i++ {
		want[fmt.Sprintf("default/p%02d", i)] = "only"
	}
	if diff := cmp.Diff(want, b.Placements()); diff != "" {
		t.Errorf("placements (-want +got):\n%s", diff)
	}
}

func TestGatedPodsWaitForTheirGates(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{Nodes: 1})
	b.Apply(berthtest.Pod("gated", "1", "1Gi", "schedulingGates: [{name: example.com/later}], "), berthtest.Pod("free", "1", "1Gi", ""))
	berthtest.Await(t, berthtest.Patience, "the free pod to be bound", func(context.Context) error {
		if b.Placements()["default/free"] == "" {
			return fmt.Errorf("placements: %v", b.Placements())
		}
		return nil
	})
	if p := b.Pods()["default/gated"]; p.GetState() != schedulingv1.PodState_POD_STATE_GATED {
		t.Errorf("the gated pod is %v", p.GetState())
	}
	b.Apply(berthtest.Pod("gated", "1", "1Gi", ""))
	b.AwaitDecided(2)
	if b.Placements()["default/gated"] == "" {
		t.Error("the pod was not placed after its gate was removed")
	}
}

func TestWhatBerthCannotJudgeIsParkedWithAVerdict(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{Nodes: 2})
	asks := map[string]string{
		"volume": "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}], ",
		"claim":  "resourceClaims: [{name: gpu, resourceClaimName: c}], ",
	}
	plugins := map[string]string{"volume": "VolumeRestrictions", "claim": "DynamicResources"} // there is no such volume claim
	for name, ask := range asks {
		b.Apply(berthtest.Pod(name, "1", "1Gi", ask))
	}
	b.AwaitDecided(len(asks))
	pods := b.Pods()
	for name, plugin := range plugins {
		p := pods["default/"+name]
		if p.GetNode() != "" {
			t.Errorf("%s was placed on %s as if it had not asked", name, p.GetNode())
		}
		if len(p.GetVerdicts()) != 1 || p.GetVerdicts()[0].GetPlugin() != plugin || p.GetVerdicts()[0].GetNodes() != 2 || p.GetMessage() == "" {
			t.Errorf("%s: verdicts %v, message %q; want one of %s on 2 nodes", name, p.GetVerdicts(), p.GetMessage(), plugin)
		}
	}
}

func TestProfilesRunSideBySide(t *testing.T) {
	packing := engine.DefaultProfile("packing")
	packing.FitStrategy = cluster.MostAllocated
	packing.Weights = []cluster.PluginWeight{{Name: "NodeResourcesFit", Weight: 1}}
	b := berthtest.Start(t, berthtest.Options{Nodes: 6, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler"), packing}})
	bound := func(want int) {
		berthtest.Await(t, berthtest.Patience, "the pods to be bound", func(context.Context) error {
			if n := len(b.Placements()); n != want {
				return fmt.Errorf("%d are, want %d", n, want)
			}
			return nil
		})
	}
	for i := range 6 {
		b.Apply(berthtest.Pod(fmt.Sprintf("other%d", i), "1", "1Gi", "schedulerName: somebody-else, "), berthtest.Pod(fmt.Sprintf("spread%d", i), "1", "1Gi", ""))
	}
	bound(6)
	for i := range 6 {
		b.Apply(berthtest.Pod(fmt.Sprintf("pack%d", i), "500m", "1Gi", "schedulerName: packing, "))
	}
	bound(12)
	nodes := map[string]map[string]bool{}
	for pod, node := range b.Placements() {
		kind := strings.TrimRight(strings.TrimPrefix(pod, "default/"), "0123456789")
		if nodes[kind] == nil {
			nodes[kind] = map[string]bool{}
		}
		nodes[kind][node] = true
	}
	if len(nodes["spread"]) != 6 || len(nodes["pack"]) != 1 || nodes["other"] != nil {
		t.Errorf("nodes by profile %v: want six of the default one, one of the packing one, and none of another scheduler's", nodes)
	}
}

func TestEverythingSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	b := berthtest.Start(t, berthtest.Options{Nodes: 4, DataDir: dir})
	for i := range 8 {
		b.Apply(berthtest.Pod(fmt.Sprintf("p%d", i), "3", "1Gi", ""))
	}
	b.AwaitDecided(8)
	before := b.Placements()
	epoch := statusOf(t, b).GetVersion().GetEpoch()
	b.Stop()

	again := berthtest.Start(t, berthtest.Options{DataDir: dir})
	berthtest.Await(t, berthtest.Patience, "the pods to be known again", func(context.Context) error {
		if n := len(again.Pods()); n != 8 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	if diff := cmp.Diff(before, again.Placements()); diff != "" {
		t.Errorf("placements over a restart (-before +after):\n%s", diff)
	}
	if e := statusOf(t, again).GetVersion().GetEpoch(); e <= epoch {
		t.Errorf("epoch %d after the restart, %d before: it must grow", e, epoch)
	}
}

func statusOf(t *testing.T, b *berthtest.Berth) *schedulingv1.GetStatusResponse {
	t.Helper()
	s, err := b.GetStatus(b.Context(), &schedulingv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// placeFleet places the first pods of the demo's fleet, on nodes enough for several ranges.
func placeFleet(t *testing.T, o berthtest.Options, pods int) map[string]string {
	b := berthtest.Start(t, o)
	b.Apply(demo.NodeManifests()...)
	var more []string
	for i := range 1600 { // 3,123 nodes: six ranges
		more = append(more, berthtest.Node(fmt.Sprintf("more-%04d", i), "16", "64Gi"))
	}
	b.Apply(more...)
	b.Apply(demo.PodManifests(o.Seed)[:pods]...)
	b.AwaitDecided(pods)
	b.CheckCapacity()
	placements := b.Placements()
	b.Stop()
	return placements
}

func TestWorkersAndRangesDoNotChangeDecisions(t *testing.T) {
	const pods = 1200
	one := placeFleet(t, berthtest.Options{Seed: 42}, pods)
	five := placeFleet(t, berthtest.Options{Seed: 42, FilterWorkers: 5, ScoreWorkers: 5, BatchSize: 64}, pods)
	if len(one) != pods {
		t.Errorf("%d of %d pods placed", len(one), pods)
	}
	if !maps.Equal(one, five) {
		differ := 0
		for pod, node := range one {
			if five[pod] != node {
				differ++
			}
		}
		t.Errorf("%d of %d placements differ between 1 and 5 workers", differ, pods)
	}
}

func TestTenMegabytesOfLabelsAreRefusedClearly(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{Nodes: 1})
	huge := strings.Repeat("x", 10<<20)
	_, err := b.SchedulingServiceClient.Apply(b.Context(), &schedulingv1.ApplyRequest{Manifests: "apiVersion: v1\nkind: Node\nmetadata: {name: n, labels: {a: " + huge + "}}"})
	if err == nil || !strings.Contains(err.Error(), "none of this method has more than 4194304") {
		t.Errorf("10 MB of labels: %v, want a refusal that says it is too large", err)
	}
	b.Apply(berthtest.Pod("after", "1", "1Gi", ""))
	b.AwaitDecided(1)
}
