package gateway_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// small is a cluster of a full node and one of half a CPU, with a pod (pod-0001) that is on the full one and one
// (pod-0002) that fits nowhere.
func small() []cluster.Delta {
	full, half := node(0), node(1)
	full.Node.Allocatable = []cluster.Quantity{{Name: "cpu", Value: 600}, {Name: "memory", Value: 16 << 30}, {Name: "pods", Value: 110}}
	half.Node.Allocatable = []cluster.Quantity{{Name: "cpu", Value: 400}, {Name: "memory", Value: 16 << 30}, {Name: "pods", Value: 110}}
	return append(oneClass, cluster.SettingsSet{Settings: cluster.Settings{
		Shards: 1, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")},
	}}, full, half, pod(1), pod(2), assumed(1, 0), cluster.PodBound{ID: 1})
}

func TestExplainPodAddsUpAndNamesAChange(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	got, err := b.client.ExplainPod(b.ctx, &schedulingv1.ExplainPodRequest{Name: "pod-0002"})
	if err != nil {
		t.Fatal(err)
	}
	rejected := got.GetFeasible()
	for _, r := range got.GetRejected() {
		rejected += r.GetNodes()
	}
	if got.GetNodes() != 2 || rejected != 2 || got.GetFeasible() != 0 {
		t.Errorf("%d nodes, %d feasible, %d in all, want 2, 0, 2", got.GetNodes(), got.GetFeasible(), rejected)
	}
	if len(got.GetMisses()) != 2 || got.GetMisses()[0].GetNode() != "node-01" {
		t.Fatalf("nearest misses %v, want node-01 (lacks 100m) before node-00 (lacks 400m)", got.GetMisses())
	}
	lack := got.GetMisses()[0].GetObstacles()[0].GetShortfall()
	if lack.GetResource() != "cpu" || lack.GetWanted() != 500 || lack.GetFree() != 400 || lack.GetAllocatable() != 400 {
		t.Errorf("node-01 lacks %v, want 500 of 400 cpu", lack)
	}
	if len(got.GetSuggestions()) == 0 || got.GetSuggestions()[0].GetKind() != schedulingv1.SuggestionKind_SUGGESTION_KIND_REDUCE_REQUEST ||
		got.GetSuggestions()[0].GetNode() != "node-01" {
		t.Errorf("suggestions %v, want to ask for less, on node-01, first", got.GetSuggestions())
	}
	if got.GetSummary() == "" || !strings.HasPrefix(got.GetText(), got.GetSummary()) || got.GetClassPods().GetPending() != 1 {
		t.Errorf("summary %q, class %v, text:\n%s", got.GetSummary(), got.GetClassPods(), got.GetText())
	}

	placed, err := b.client.ExplainPod(b.ctx, &schedulingv1.ExplainPodRequest{Name: "pod-0001"})
	if err != nil {
		t.Fatal(err)
	}
	if len(placed.GetCandidates()) != 1 || !placed.GetCandidates()[0].GetChosen() || placed.GetCandidates()[0].GetNode() != "node-00" {
		t.Errorf("candidates of the placed pod: %v, want node-00 alone, chosen", placed.GetCandidates())
	}
	var sum int64
	for _, s := range placed.GetCandidates()[0].GetScores() {
		sum += s.GetNormalized() * s.GetWeight()
	}
	if sum != placed.GetCandidates()[0].GetTotal() || sum == 0 {
		t.Errorf("the weighted scores add up to %d, the total is %d", sum, placed.GetCandidates()[0].GetTotal())
	}
}

const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 3, selector: {matchLabels: {app: web}},
  template: {metadata: {labels: {app: web}}, spec: {schedulerName: berth, containers: [{name: c, image: i, resources: {requests: {cpu: 300m}}}]}}}}`

func TestWhatIfSaysWhatWouldHappenAndChangesNothing(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	ask := func(req *schedulingv1.WhatIfRequest) *schedulingv1.WhatIfResponse {
		t.Helper()
		got, err := b.client.WhatIf(b.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	where := func(r *schedulingv1.WhatIfResponse) (out string) {
		for _, o := range r.GetOutcomes() {
			out += fmt.Sprintf("%s:%s ", o.GetName(), o.GetNode())
		}
		return out
	}
	// As it is, one of three fits, on node-01.
	if got := ask(&schedulingv1.WhatIfRequest{Manifests: deployment}); got.GetPlaced() != 1 || got.GetUnplaced() != 2 {
		t.Errorf("now: %v", got)
	}
	// With a node like node-00 two more do, and the pending pod has no room.
	got := ask(&schedulingv1.WhatIfRequest{
		Manifests: deployment,
		Changes:   []*schedulingv1.Change{{Change: &schedulingv1.Change_AddNodes{AddNodes: &schedulingv1.AddNodes{Like: "node-00"}}}},
	})
	if got.GetPlaced() != 3 || got.GetBefore().GetNodes() != 2 || got.GetAfter().GetNodes() != 3 || got.GetAfter().GetPods() != 4 {
		t.Errorf("with a node: %v", got)
	}
	// Drained, node-00's pod has nowhere to go; with a node it has.
	drain := &schedulingv1.Change{Change: &schedulingv1.Change_Drain{Drain: "node-00"}}
	if got := ask(&schedulingv1.WhatIfRequest{Changes: []*schedulingv1.Change{drain}}); where(got) != "pod-0001: " ||
		got.GetOutcomes()[0].GetFrom() != "node-00" || got.GetOutcomes()[0].GetMessage() == "" {
		t.Errorf("drained: %v", got)
	}
	got = ask(&schedulingv1.WhatIfRequest{Changes: []*schedulingv1.Change{
		{Change: &schedulingv1.Change_AddNodes{AddNodes: &schedulingv1.AddNodes{Like: "node-00"}}}, drain,
	}})
	if where(got) != "pod-0001:node-00-what-if-0 " {
		t.Errorf("drained, with a node: %v", got)
	}
	// Removed, its pod is gone with it.
	got = ask(&schedulingv1.WhatIfRequest{Pending: true, Changes: []*schedulingv1.Change{{Change: &schedulingv1.Change_RemoveNode{RemoveNode: "node-00"}}}})
	if where(got) != "pod-0002: " || got.GetAfter().GetPods() != 0 {
		t.Errorf("removed: %v", got)
	}
	// Nothing has happened.
	if got := ask(&schedulingv1.WhatIfRequest{Pending: true}); got.GetBefore().GetNodes() != 2 || got.GetBefore().GetPods() != 1 || got.GetUnplaced() != 1 {
		t.Errorf("afterwards: %v", got)
	}
}

func TestAnswersAreOfTheNewestVersion(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	feasible := func(what string, want int32) {
		t.Helper()
		got, err := b.client.ExplainPod(b.ctx, &schedulingv1.ExplainPodRequest{Name: "pod-0002"})
		if err != nil {
			t.Fatal(err)
		}
		version := cluster.Version{Epoch: cluster.Epoch(got.GetVersion().GetEpoch()), Seq: cluster.Seq(got.GetVersion().GetSeq())}
		if version != b.ledger.Version() || got.GetFeasible() != want {
			t.Errorf("%s: %d feasible nodes at %v, want %d at %v", what, got.GetFeasible(), version, want, b.ledger.Version())
		}
	}
	feasible("at first", 0)
	larger := node(1) // there is room for one more
	b.ledger.apply(t, larger)
	feasible("with a larger node", 1)
	b.ledger.apply(t, cluster.NodeRemoved{Index: 1})
	feasible("when it is gone", 0)
	// More than the sandbox follows.
	for range 1 << 15 {
		b.ledger.apply(t, larger, cluster.NodeRemoved{Index: 1})
	}
	b.ledger.apply(t, larger)
	feasible("after more deltas than are kept", 1)
	b.ledger.reset(stateOf(t, 8, small()...))
	feasible("in another epoch", 0)
}

func TestExplanationOfAnActivePodSaysWhoIsAhead(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	b.join(&peer{role: coord.RoleQueue, id: "q-0", pending: map[string]*queuev1.PendingPod{"uid-2": {
		Uid: "uid-2", State: queuev1.State_STATE_ACTIVE, Position: 7, Ahead: []*queuev1.Ahead{{Priority: 9, Pods: 7, Namespace: "shop", Name: "first"}},
	}}})
	b.eventually("the queue member is known", func() bool {
		got, err := b.client.GetPod(b.ctx, &schedulingv1.GetPodRequest{Name: "pod-0002"})
		if len(got.GetPod().GetAhead()) > 0 {
			t.Errorf("who is ahead is told unasked: %v", got.GetPod().GetAhead())
		}
		return err == nil && got.GetPod().GetPosition() == 7
	})
	got, err := b.client.ExplainPod(b.ctx, &schedulingv1.ExplainPodRequest{Name: "pod-0002"})
	if err != nil {
		t.Fatal(err)
	}
	want := []*schedulingv1.Ahead{{Priority: 9, Pods: 7, Namespace: "shop", Name: "first"}}
	if diff := cmp.Diff(want, got.GetPod().GetAhead(), protocmp.Transform()); diff != "" {
		t.Errorf("ahead (-want +got):\n%s", diff)
	}
}

// What keeps a pod from being tried is why it is not placed, whatever nodes there are.
func TestExplanationOfAPodThatAPluginGatesSaysSo(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	b.join(&peer{role: coord.RoleQueue, id: "q-0", pending: map[string]*queuev1.PendingPod{"uid-2": {Uid: "uid-2", State: queuev1.State_STATE_GATED, Message: "gated by plugin Doorman: not yet"}}})
	b.eventually("the queue member is known", func() bool {
		got, err := b.client.GetPod(b.ctx, &schedulingv1.GetPodRequest{Name: "pod-0002"})
		return err == nil && got.GetPod().GetMessage() != ""
	})
	got, err := b.client.ExplainPod(b.ctx, &schedulingv1.ExplainPodRequest{Name: "pod-0002"})
	if err != nil {
		t.Fatal(err)
	}
	const want = "default/pod-0002 is not tried: gated by plugin Doorman: not yet."
	if got.GetSummary() != want || !strings.HasPrefix(got.GetText(), want+"\n") {
		t.Errorf("it says %q, in a text that begins with %.100q", got.GetSummary(), got.GetText())
	}
	// Whatever plugins say, it is left to another scheduler.
	b.ledger.mu.Lock()
	settings := b.ledger.state.Settings.Yielding([]string{b.ledger.state.Settings.Profiles[0].SchedulerName}, "another")
	b.ledger.mu.Unlock()
	b.ledger.apply(t, cluster.SettingsSet{Settings: settings})
	if got, err = b.client.ExplainPod(b.ctx, &schedulingv1.ExplainPodRequest{Name: "pod-0002"}); err != nil || !strings.Contains(got.GetSummary(), "left to another scheduler: another") {
		t.Errorf("and then %q, %v", got.GetSummary(), err)
	}
}

// The queue is asked about the pod that was found first, the sandbox about the one that is there when its turn comes.
func TestExplanationIsOfThePodThatIsThereInTheEnd(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	b.join(&peer{role: coord.RoleQueue, id: "q-0", pending: map[string]*queuev1.PendingPod{
		"uid-2": {Uid: "uid-2", State: queuev1.State_STATE_ACTIVE, Position: 7},
		"again": {Uid: "again", State: queuev1.State_STATE_BACKOFF},
	}})
	b.eventually("the queue member is known", func() bool {
		got, err := b.client.GetPod(b.ctx, &schedulingv1.GetPodRequest{Name: "pod-0002"})
		return err == nil && got.GetPod().GetPosition() == 7
	})
	again := pod(2)
	again.ID, again.Pod.UID = 9, "again"
	for _, step := range []struct {
		what     string
		deltas   []cluster.Delta // after it was found
		uid      string
		state    schedulingv1.PodState
		position int32
	}{
		{"stays", nil, "uid-2", schedulingv1.PodState_POD_STATE_ACTIVE, 7},
		{"is placed", []cluster.Delta{assumed(2, 1)}, "uid-2", schedulingv1.PodState_POD_STATE_ASSUMED, 0},
		{"is not placed after all", []cluster.Delta{cluster.PodForgotten{ID: 2}}, "uid-2", schedulingv1.PodState_POD_STATE_ACTIVE, 7},
		{"is another one", []cluster.Delta{cluster.PodRemoved{ID: 2}, again}, "again", schedulingv1.PodState_POD_STATE_BACKOFF, 0},
	} {
		b.ledger.mu.Lock()
		b.ledger.afterRead = func() { b.ledger.apply(t, step.deltas...) }
		b.ledger.mu.Unlock()
		got, err := b.client.ExplainPod(b.ctx, &schedulingv1.ExplainPodRequest{Name: "pod-0002"})
		if err != nil {
			t.Fatalf("a pod that %s: %v", step.what, err)
		}
		if p := got.GetPod(); p.GetUid() != step.uid || p.GetState() != step.state || p.GetPosition() != step.position {
			t.Errorf("a pod that %s is %s, %v, at %d; want %s, %v, at %d", step.what, p.GetUid(), p.GetState(), p.GetPosition(), step.uid, step.state, step.position)
		}
	}
}

func TestPodIsFoundByItsName(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	uid := func() string {
		t.Helper()
		got, err := b.client.GetPod(b.ctx, &schedulingv1.GetPodRequest{Name: "pod-0002"})
		if status.Code(err) == codes.NotFound {
			return "none"
		}
		if err != nil {
			t.Fatal(err)
		}
		return got.GetPod().GetUid()
	}
	again := pod(2)
	again.ID, again.Pod.UID = 9, "again"
	for _, step := range []struct {
		what  string
		delta cluster.Delta
		want  string
	}{
		{"one of the name comes before the other has gone", again, "again"},
		{"the other goes", cluster.PodRemoved{ID: 2}, "again"},
		{"it changes", again, "again"},
		{"it goes", cluster.PodRemoved{ID: 9}, "none"},
		{"another takes its id", cluster.PodSet{ID: 9, Pod: cluster.Pod{UID: "other", Namespace: "default", Name: "other", Class: again.Pod.Class}}, "none"},
		{"it comes again", pod(2), pod(2).Pod.UID},
	} {
		b.ledger.apply(t, step.delta)
		if got := uid(); got != step.want {
			t.Errorf("%s: found %s, want %s", step.what, got, step.want)
		}
	}
	b.ledger.reset(stateOf(t, 8, append(small(), cluster.PodRemoved{ID: 2})...))
	if got := uid(); got != "none" {
		t.Errorf("in another epoch, without it: found %s", got)
	}
}

func TestWrongQuestionsNameTheField(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	change := func(c *schedulingv1.Change) *schedulingv1.WhatIfRequest {
		return &schedulingv1.WhatIfRequest{Changes: []*schedulingv1.Change{c}}
	}
	for field, req := range map[string]*schedulingv1.WhatIfRequest{
		"changes":                  {},
		"changes[0].change":        change(&schedulingv1.Change{}),
		"changes[0].cordon":        change(&schedulingv1.Change{Change: &schedulingv1.Change_Cordon{Cordon: "nobody"}}),
		"changes[0].add_nodes":     change(&schedulingv1.Change{Change: &schedulingv1.Change_AddNodes{AddNodes: &schedulingv1.AddNodes{Count: 3}}}),
		"changes[0].drain":         change(&schedulingv1.Change{Change: &schedulingv1.Change_Drain{Drain: "nobody"}}),
		"changes[0].configuration": change(&schedulingv1.Change{Change: &schedulingv1.Change_Configuration{Configuration: "kind: Nothing"}}),
		"manifests":                {Manifests: "kind: ConfigMap"},
		"times":                    {Manifests: deployment, Times: -1},
	} {
		_, err := b.client.WhatIf(b.ctx, req)
		if status.Code(err) != codes.InvalidArgument || !namesField(err, field) {
			t.Errorf("%s: %v, want INVALID_ARGUMENT that names it", field, err)
		}
	}
	for _, req := range []*schedulingv1.GetCapacityRequest{
		{}, {Name: "pod-0001", Manifest: deployment}, {Name: "pod-0001", Limit: -1}, {Name: "pod-0001", PodGroup: "g"}, {PodGroup: "g", Manifest: deployment}, {PodGroup: strings.Repeat("g", 254)},
	} {
		if _, err := b.client.GetCapacity(b.ctx, req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v, want INVALID_ARGUMENT", req, err)
		}
	}
	if _, err := b.client.GetCapacity(b.ctx, &schedulingv1.GetCapacityRequest{PodGroup: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("how many more of a PodGroup that there is not: %v, want NOT_FOUND", err)
	}
	if _, err := b.client.ExplainPod(b.ctx, &schedulingv1.ExplainPodRequest{Name: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("explain nobody: %v, want NOT_FOUND", err)
	}
}

func namesField(err error, field string) bool {
	for _, v := range rpc.Violations(err) {
		if v.Field == field {
			return true
		}
	}
	return false
}

func TestCapacityAndComparison(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	room, err := b.client.GetCapacity(b.ctx, &schedulingv1.GetCapacityRequest{Name: "pod-0001", Changes: []*schedulingv1.Change{
		{Change: &schedulingv1.Change_AddNodes{AddNodes: &schedulingv1.AddNodes{Like: "node-00", Count: 7}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if room.GetFit() != 7 || room.GetAtLeast() || !strings.Contains(room.GetMessage(), "Insufficient cpu") {
		t.Errorf("room for %v, want 7, and cpu to stop the next one", room)
	}
	only := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: other}]\n"
	got, err := b.client.Compare(b.ctx, &schedulingv1.CompareRequest{Other: only, Manifests: deployment})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetOnlyOne() != 1 || got.GetOnlyTwo() != 0 || len(got.GetMoves()) != 1 || got.GetMoves()[0].GetOne() != "node-01" {
		t.Errorf("compared with a configuration that has no such profile: %v", got)
	}
}

func TestQuestionsAtOnceAreAnsweredOrRefused(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	var asking sync.WaitGroup
	for range 64 {
		asking.Go(func() {
			_, err := b.client.ExplainPod(b.ctx, &schedulingv1.ExplainPodRequest{Name: "pod-0002"})
			if code := status.Code(err); code != codes.OK && (code != codes.ResourceExhausted || rpc.ReasonOf(err) != rpc.ReasonQueueFull) {
				t.Errorf("%v, want an answer or QUEUE_FULL", err)
			}
		})
	}
	asking.Wait()
}

func TestAQuestionHasTheSandboxForALimitedTime(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)), with(func(cfg *gateway.Config) { cfg.QuestionFor = time.Nanosecond }))
	if _, err := b.client.GetCapacity(b.ctx, &schedulingv1.GetCapacityRequest{Name: "pod-0001"}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a question that takes longer than it may: %v, want DEADLINE_EXCEEDED", err)
	}
}
