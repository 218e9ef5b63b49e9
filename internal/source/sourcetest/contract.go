// Package sourcetest is what every source.Source must do, as tests that run on any of them. It is test code: no server
// imports it.
package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Namespace is where the pods of the contract are.
const Namespace = metav1.NamespaceDefault

// Scheduler is the scheduler name of the pods of the contract. The source under test must be for it.
const Scheduler = "berth"

// Cluster is a cluster with a source in front of it, and the back door by which the tests change it. Its methods fail
// the test if they cannot do what they say.
type Cluster interface {
	// Source returns a new source of the cluster.
	Source(t testing.TB) source.Source
	// Fence returns a guard that holds.
	Fence(t testing.TB) coord.Cond
	// SetNode creates or updates a node, its status included.
	SetNode(t testing.TB, node *v1.Node)
	DeleteNode(t testing.TB, name string)
	// SetPod creates a pod, its status.startTime included, or updates one in what can be updated, and returns its uid. A pod
	// of a priority class has the class's priority and preemption policy, which SetPod makes if there is none.
	SetPod(t testing.TB, pod *v1.Pod) (uid string)
	DeletePod(t testing.TB, namespace, name string)
	// EndPod makes a pod succeed.
	EndPod(t testing.TB, namespace, name string)
	SetNamespace(t testing.TB, namespace *v1.Namespace)
	// Nominate sets status.nominatedNodeName of a pod.
	Nominate(t testing.TB, namespace, name, node string)
	// SetSelector creates or updates a service or controller, of one of cluster's kinds, that selects these labels. There
	// are services of no labels.
	SetSelector(t testing.TB, kind, namespace, name string, labels map[string]string)
	DeleteSelector(t testing.TB, kind, namespace, name string)
	// SetBudget creates or updates a PodDisruptionBudget, its status included.
	SetBudget(t testing.TB, budget *policyv1.PodDisruptionBudget)
	DeleteBudget(t testing.TB, namespace, name string)
	// SetObject creates or updates a PodGroup, or an object of those that volumes are made of, its status included.
	SetObject(t testing.TB, object metav1.Object)
	DeleteObject(t testing.TB, kind, namespace, name string)
	// Reported returns how many writes the reports on a pod have made, and the message that stands there.
	Reported(t testing.TB, namespace, name, uid string) (writes int64, message string)
}

// Pod returns a pod of the contract, of one container that requests 250m of CPU.
func Pod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec: v1.PodSpec{
			SchedulerName: Scheduler,
			Containers: []v1.Container{{
				Name: "main", Image: "example.com/app:1",
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")}},
			}},
		},
	}
}

// Node returns a node of the contract, with 4 CPUs and room for 110 pods.
func Node(name string) *v1.Node {
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourcePods: resource.MustParse("110")}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a"}},
		Status: v1.NodeStatus{
			Capacity: list, Allocatable: list,
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
}

// within bounds what a test waits for.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Run runs the contract.
func Run(t *testing.T, c Cluster) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Cluster)
	}{
		{"EverythingThereIsIsToldBeforeSynced", everythingBeforeSynced},
		{"ChangesOfPodsAreTold", podChanges},
		{"LabelsControllerAndNominationOfPodsAreTold", podRelations},
		{"ChangesOfNodesAndNamespacesAreTold", nodeChanges},
		{"ServicesAndControllersAreTold", selectors},
		{"AServiceThatSelectsNothingIsNotTold", emptyService},
		{"AHeartbeatLeavesTheReducedNodeEqual", heartbeat},
		{"APodThatEndsIsGone", podEnds},
		{"ABoundPodIsToldOnItsNode", bound},
		{"BindingAgainIsDone", bindAgain},
		{"APodOnAnotherNodeIsElsewhere", bindElsewhere},
		{"APodThatIsGoneOrReplacedIsNotBound", bindGone},
		{"EachBindingOfABatchHasAnOutcomeOfItsOwn", bindBatch},
		{"BindWithoutWatchWorks", bindWithoutWatch},
		{"BindUnderAnEndedContextIsUnknown", bindEnded},
		{"AWithdrawnBindingDoesNotHappen", withdraw},
		{"WhatHasBecomeOfAPodIsNotWithdrawn", withdrawTooLate},
		{"LookupReadsUIDAndNode", lookup},
		{"AReportIsWrittenOnce", reportOnce},
		{"WhatPreemptionReadsOfAPodIsTold", podPreemption},
		{"BudgetsAreTold", budgets},
		{"ClaimsAndDisksOfPodsAreTold", podVolumes},
		{"WhatVolumesAreMadeOfIsTold", volumes},
		{"GroupsOfPodsAreTold", podGroups},
		{"AVolumeIsBoundToTheClaimThatItWasChosenFor", bindVolumes},
		{"ANominationIsToldAndCleared", nominate},
		{"ANominationIsWrittenTogetherWithAReport", nominateInReport},
		{"ANominationOfAPodThatIsGoneOrReplacedIsNotWritten", nominateGone},
		{"AnEvictedPodGoesAndSaysWhy", evict},
		{"OnlyThePodOfTheUIDIsEvicted", evictReplaced},
		{"NothingIsWrittenUnderAnEndedContext", preemptEnded},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c) })
	}
}

func everythingBeforeSynced(t *testing.T, c Cluster) {
	c.SetNode(t, Node("before-node"))
	uid := c.SetPod(t, Pod("before-pod"))
	s := c.Source(t)
	if err := s.Ready(); err == nil {
		t.Error("Ready before Watch: nil")
	}
	Record(t, s).Synced().View(func(v View) {
		if got := v.Pods[Namespace+"/before-pod"]; got.UID != uid {
			t.Errorf("the pod was told with uid %q before Synced, want %q", got.UID, uid)
		}
		want := []cluster.Quantity{{Name: "cpu", Value: 4000}, {Name: "pods", Value: 110}}
		if diff := cmp.Diff(want, v.Nodes["before-node"].Allocatable); diff != "" {
			t.Errorf("allocatable of the node (-want +got):\n%s", diff)
		}
		if _, ok := v.Namespaces[Namespace]; !ok {
			t.Error("the namespace was not told before Synced")
		}
	})
	deadline := time.Now().Add(patience)
	for s.Ready() != nil && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if err := s.Ready(); err != nil {
		t.Errorf("Ready after Synced: %v", err)
	}
}

func podChanges(t *testing.T, c Cluster) {
	r := Record(t, c.Source(t)).Synced()
	gated := Pod("changes")
	gated.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/hold"}}
	uid := c.SetPod(t, gated)
	got := r.Pod(Namespace, "changes", "")
	if got.UID != uid || !slices.Equal(got.Gates, []string{"example.com/hold"}) || got.Created == 0 {
		t.Errorf("the new pod was told as %+v", got.Pod)
	}
	if want := []cluster.Quantity{{Name: "cpu", Value: 250}}; !slices.Equal(got.Class.Requests, want) {
		t.Errorf("it requests %v, want %v", got.Class.Requests, want)
	}
	c.SetPod(t, Pod("changes"))
	r.Await("the pod without its gate", func(v View) bool { return len(v.Pods[Namespace+"/changes"].Gates) == 0 })

	c.DeletePod(t, Namespace, "changes")
	second := c.SetPod(t, Pod("changes"))
	if second == uid {
		t.Fatal("the second pod has the uid of the first")
	}
	r.Await("the pod that took its place", func(v View) bool { return v.Pods[Namespace+"/changes"].UID == second })
	c.DeletePod(t, Namespace, "changes")
	r.PodGone(Namespace, "changes")
}

func nodeChanges(t *testing.T, c Cluster) {
	r := Record(t, c.Source(t)).Synced()
	c.SetNode(t, Node("changing"))
	r.Await("the new node", func(v View) bool { return v.Nodes["changing"].Name != "" })
	node := Node("changing")
	node.Spec.Unschedulable = true
	node.Labels["zone"] = "b"
	c.SetNode(t, node)
	r.Await("the node's update", func(v View) bool {
		n := v.Nodes["changing"]
		return n.Unschedulable && slices.Contains(n.Labels, cluster.Label{Key: "zone", Value: "b"})
	})
	c.DeleteNode(t, "changing")
	r.Await("the node's end", func(v View) bool { return v.Nodes["changing"].Name == "" })

	c.SetNamespace(t, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "labelled", Labels: map[string]string{"team": "x"}}})
	r.Await("the namespace", func(v View) bool {
		return slices.Contains(v.Namespaces["labelled"], cluster.Label{Key: "team", Value: "x"})
	})
}

func heartbeat(t *testing.T, c Cluster) {
	c.SetNode(t, Node("beating"))
	r := Record(t, c.Source(t)).Synced()
	before := -1
	var first cluster.Node
	r.View(func(v View) { before, first = len(v.Events), v.Nodes["beating"] })
	node := Node("beating")
	node.Annotations = map[string]string{"beat": "1"}
	node.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
	node.Status.Conditions[0].Message = "alive"
	c.SetNode(t, node)
	c.SetNode(t, Node("after-beat")) // is told after whatever the heartbeat tells
	r.Await("the next node", func(v View) bool { return v.Nodes["after-beat"].Name != "" })
	r.View(func(v View) {
		for _, e := range v.Events[before:] {
			if e.Kind != source.NodeSet || e.Node.Name != "beating" {
				continue
			}
			if diff := cmp.Diff(first, e.Node); diff != "" {
				t.Errorf("the node after a heartbeat (-before +after):\n%s", diff)
			}
		}
	})
}

func podEnds(t *testing.T, c Cluster) {
	c.SetNode(t, Node("ending"))
	pod := Pod("ends")
	pod.Spec.NodeName = "ending"
	c.SetPod(t, pod)
	r := Record(t, c.Source(t)).Synced()
	r.Pod(Namespace, "ends", "ending")
	c.EndPod(t, Namespace, "ends")
	r.PodGone(Namespace, "ends")
	Record(t, c.Source(t)).Synced().View(func(v View) {
		if _, ok := v.Pods[Namespace+"/ends"]; ok {
			t.Error("a pod that has succeeded is told to a new sink")
		}
	})
}

// binding makes a pod and two nodes, and returns the pod's binding to the first.
func binding(t *testing.T, c Cluster, name string) source.Binding {
	c.SetNode(t, Node("one"))
	c.SetNode(t, Node("two"))
	return source.Binding{UID: c.SetPod(t, Pod(name)), Namespace: Namespace, Name: name, Node: "one"}
}

func bind(t *testing.T, c Cluster, s source.Source, want source.Result, b source.Binding) error {
	t.Helper()
	out := s.Bind(within(t), c.Fence(t), []source.Binding{b})
	if len(out) != 1 || out[0].Result != want {
		t.Fatalf("Bind %s to %s: %+v, want result %d", b.Name, b.Node, out, want)
	}
	if (out[0].Err == nil) != (want == source.BindDone) {
		t.Errorf("Bind %s to %s: result %d with error %v", b.Name, b.Node, want, out[0].Err)
	}
	return out[0].Err
}

func bound(t *testing.T, c Cluster) {
	b := binding(t, c, "bound")
	s := c.Source(t)
	r := Record(t, s).Synced()
	if before := r.Pod(Namespace, "bound", ""); before.UID != b.UID {
		t.Fatalf("the pod was told with uid %s, want %s", before.UID, b.UID)
	}
	bind(t, c, s, source.BindDone, b)
	r.Pod(Namespace, "bound", "one")
	// Whoever looks for the first time sees it too, and never without its node.
	Record(t, c.Source(t)).Synced().View(func(v View) {
		for _, e := range v.Events {
			if e.Kind == source.PodSet && e.Pod.UID == b.UID && e.Pod.NodeName != "one" {
				t.Errorf("the pod was told on %q to a new sink", e.Pod.NodeName)
			}
		}
		if v.Pods[Namespace+"/bound"].NodeName != "one" {
			t.Error("the pod was not told on its node before Synced")
		}
	})
	c.DeletePod(t, Namespace, "bound")
	r.PodGone(Namespace, "bound")
	r.View(func(v View) {
		var last source.Event
		for _, e := range v.Events {
			if e.Pod.UID == b.UID {
				if e.Kind != source.PodGone && last.Pod.NodeName == "one" && e.Pod.NodeName == "" {
					t.Error("the pod was told without its node on its way out")
				}
				last = e
			}
		}
	})
}

func bindAgain(t *testing.T, c Cluster) {
	b := binding(t, c, "again")
	s := c.Source(t)
	r := Record(t, s).Synced()
	bind(t, c, s, source.BindDone, b)
	bind(t, c, s, source.BindDone, b)
	r.Pod(Namespace, "again", "one")
	bind(t, c, s, source.BindDone, b)
	bind(t, c, c.Source(t), source.BindDone, b)
}

func bindElsewhere(t *testing.T, c Cluster) {
	b := binding(t, c, "elsewhere")
	s := c.Source(t)
	Record(t, s).Synced()
	bind(t, c, s, source.BindDone, b)
	b.Node = "two"
	bind(t, c, s, source.BindElsewhere, b)
	if _, node, found, err := s.Lookup(within(t), Namespace, "elsewhere"); node != "one" || !found || err != nil {
		t.Errorf("Lookup: on %q, %v, %v; want it on one", node, found, err)
	}
}

func bindGone(t *testing.T, c Cluster) {
	b := binding(t, c, "replaced")
	s := c.Source(t)
	r := Record(t, s).Synced()
	c.DeletePod(t, Namespace, "replaced")
	bind(t, c, s, source.BindGone, b)
	second := c.SetPod(t, Pod("replaced"))
	bind(t, c, s, source.BindGone, b)
	r.Await("the pod that took its place", func(v View) bool { return v.Pods[Namespace+"/replaced"].UID == second })
	bind(t, c, s, source.BindGone, b)
	bind(t, c, s, source.BindGone, source.Binding{
		UID: "00000000-0000-0000-0000-000000000000", Namespace: Namespace, Name: "replaced", Node: "one",
	})
	if _, node, _, err := s.Lookup(within(t), Namespace, "replaced"); node != "" || err != nil {
		t.Errorf("the second pod is on %q, %v", node, err)
	}
}

func bindBatch(t *testing.T, c Cluster) {
	s := c.Source(t)
	var batch []source.Binding
	want := make([]source.Result, max(10, s.MaxBatch()))
	for i := range want {
		name := fmt.Sprintf("batch-%d", i)
		batch = append(batch, source.Binding{UID: c.SetPod(t, Pod(name)), Namespace: Namespace, Name: name, Node: "one"})
		want[i] = source.BindDone
	}
	c.SetNode(t, Node("one"))
	r := Record(t, s).Synced()
	other := batch[3]
	other.Node = "two"
	bind(t, c, c.Source(t), source.BindDone, other)
	want[3] = source.BindElsewhere
	c.DeletePod(t, Namespace, "batch-5")
	want[5] = source.BindGone
	out := s.Bind(within(t), c.Fence(t), batch)
	got := make([]source.Result, len(out))
	for i, o := range out {
		got[i] = o.Result
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	r.Pod(Namespace, fmt.Sprintf("batch-%d", len(batch)-1), "one")
}

func bindWithoutWatch(t *testing.T, c Cluster) {
	b := binding(t, c, "unwatched")
	bind(t, c, c.Source(t), source.BindDone, b)
	if uid, node, found, err := c.Source(t).Lookup(within(t), Namespace, "unwatched"); uid != b.UID || node != "one" || !found || err != nil {
		t.Errorf("Lookup: %s on %q, %v, %v", uid, node, found, err)
	}
}

func bindEnded(t *testing.T, c Cluster) {
	b := binding(t, c, "ended")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	out := c.Source(t).Bind(ctx, c.Fence(t), []source.Binding{b})
	if len(out) != 1 || out[0].Result != source.BindUnknown || !errors.Is(out[0].Err, context.Canceled) {
		t.Errorf("Bind under a canceled context: %+v, want BindUnknown", out)
	}
}

// withdrawal is why the contract withdraws a binding.
func withdrawal(b source.Binding) source.Report {
	return source.Report{UID: b.UID, Namespace: b.Namespace, Name: b.Name, Reason: "SchedulerError", Message: "it is refused for ever", Nominate: true}
}

func withdraw(t *testing.T, c Cluster) {
	b := binding(t, c, "withdrawn")
	c.Nominate(t, Namespace, "withdrawn", "one")
	s := c.Source(t)
	r := Record(t, s).Synced()
	r.Await("the nomination", func(v View) bool { return v.Pods[Namespace+"/withdrawn"].Nominated == "one" })
	for range 3 { // within a second, and with the same words
		late := []source.Binding{b}
		s.Prepare(late)
		if out := s.Withdraw(within(t), c.Fence(t), b, withdrawal(b)); out.Result != source.BindRefused || out.Err == nil {
			t.Fatalf("Withdraw: %+v, want BindRefused", out)
		}
		if s.Fenced() {
			continue // a late bind is one of an earlier term, whose fence does not hold
		}
		for _, of := range []source.Source{s, c.Source(t)} { // of this binder, or another one
			if out := of.Bind(within(t), c.Fence(t), late); out[0].Result != source.BindUnknown || out[0].Err == nil {
				t.Errorf("a Bind that was prepared before the withdrawal: %+v, want BindUnknown", out[0])
			}
		}
	}
	if _, node, _, err := s.Lookup(within(t), Namespace, "withdrawn"); node != "" || err != nil {
		t.Fatalf("the pod is on %q, %v", node, err)
	}
	again := []source.Binding{b}
	s.Prepare(again)
	bind(t, c, s, source.BindDone, again[0])
	r.Pod(Namespace, "withdrawn", "one")
}

func withdrawTooLate(t *testing.T, c Cluster) {
	b := binding(t, c, "too-late")
	s := c.Source(t)
	r := Record(t, s).Synced()
	r.Pod(Namespace, "too-late", "")
	check := func(want source.Result, b source.Binding) {
		t.Helper()
		out := s.Withdraw(within(t), c.Fence(t), b, withdrawal(b))
		if out.Result != want || (out.Err == nil) != (want == source.BindDone) {
			t.Errorf("Withdraw: %+v, want result %d", out, want)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if out := s.Withdraw(ended, c.Fence(t), b, withdrawal(b)); out.Result != source.BindUnknown || out.Err == nil {
		t.Errorf("Withdraw under a canceled context: %+v, want BindUnknown", out)
	}
	bind(t, c, s, source.BindDone, b)
	check(source.BindDone, b)
	other := b
	other.Node = "two"
	check(source.BindElsewhere, other)
	c.DeletePod(t, Namespace, "too-late")
	check(source.BindGone, b)
	c.SetPod(t, Pod("too-late"))
	check(source.BindGone, b)
}

func lookup(t *testing.T, c Cluster) {
	uid := c.SetPod(t, Pod("looked-up"))
	s := c.Source(t)
	got, node, found, err := s.Lookup(within(t), Namespace, "looked-up")
	if got != uid || node != "" || !found || err != nil {
		t.Errorf("Lookup of a pod that waits: %q, %q, %v, %v", got, node, found, err)
	}
	if _, _, found, err := s.Lookup(within(t), Namespace, "nowhere"); found || err != nil {
		t.Errorf("Lookup of no pod: found %v, %v", found, err)
	}
}

func reportOnce(t *testing.T, c Cluster) {
	uid := c.SetPod(t, Pod("reported"))
	s := c.Source(t)
	r := Record(t, s).Synced()
	r.Pod(Namespace, "reported", "")
	report := func(message string) (int64, string) {
		t.Helper()
		err := s.Unschedulable(within(t), source.Report{
			UID: uid, Namespace: Namespace, Name: "reported", Reason: "Unschedulable", Message: message,
		})
		if err != nil {
			t.Fatal(err)
		}
		return c.Reported(t, Namespace, "reported", uid)
	}
	first, message := report("0/1 nodes are available: 1 Insufficient cpu.")
	if first == 0 || message != "0/1 nodes are available: 1 Insufficient cpu." {
		t.Errorf("after a report: %d writes, message %q", first, message)
	}
	if again, _ := report("0/1 nodes are available: 1 Insufficient cpu."); again != first {
		t.Errorf("the same report again: %d writes, want %d as after the first", again, first)
	}
	if other, message := report("0/2 nodes are available: 2 Insufficient cpu."); other <= first || message != "0/2 nodes are available: 2 Insufficient cpu." {
		t.Errorf("another report: %d writes after %d, message %q", other, first, message)
	}
	c.DeletePod(t, Namespace, "reported")
	r.PodGone(Namespace, "reported")
	if err := s.Unschedulable(within(t), source.Report{UID: uid, Namespace: Namespace, Name: "reported", Reason: "Unschedulable", Message: "late"}); err != nil {
		t.Errorf("a report on a pod that is gone: %v", err)
	}
	if err := s.Scheduled(within(t), source.Binding{UID: uid, Namespace: Namespace, Name: "reported", Node: "one"}); err != nil {
		t.Errorf("Scheduled: %v", err)
	}
}
