package system

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// awaitBound waits until the API server shows n pods with a node, and checks everything else it shows.
func awaitBound(t *testing.T, cp *kubetest.ControlPlane, n int) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, fmt.Sprintf("%d pods to be bound", n), func(ctx context.Context) error {
		if t.Failed() {
			t.FailNow() // what plays the part of others may have come to its end
		}
		r, err := kubetest.Check(ctx, cp.Kubeconfig())
		if err != nil {
			return err
		}
		if r.Bound != n {
			return fmt.Errorf("%d are", r.Bound)
		}
		return nil
	})
	checkCluster(t, cp)
}

func checkCluster(t *testing.T, cp *kubetest.ControlPlane) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r, err := kubetest.Check(ctx, cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems() {
		t.Errorf("the API server shows: %s", p)
	}
}

func TestPodsOfARealAPIServerAreBoundWithEventsAndConditions(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := cp.CreateNodes(ctx, 20, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	watcher, err := kubetest.Watch(ctx, cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	if err := cp.CreatePods(ctx, 200, kubetest.PlainPod); err != nil {
		t.Fatal(err)
	}
	huge := kubetest.PlainPod(1000)
	huge.Name, huge.GenerateName = "huge", ""
	huge.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("100")
	foreign := kubetest.PlainPod(1001)
	foreign.Name, foreign.GenerateName, foreign.Spec.SchedulerName = "foreign", "", "another-scheduler"
	if err := cp.CreatePods(ctx, 2, func(i int) *corev1.Pod { return []*corev1.Pod{huge, foreign}[i] }); err != nil {
		t.Fatal(err)
	}

	b := berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), Shards: 2})
	awaitBound(t, cp, 200)
	if twice := watcher.BoundTwice(); len(twice) > 0 {
		t.Errorf("bound twice: %v", twice)
	}

	// The pod that fits nowhere says so as kube-scheduler would.
	const message = "0/20 nodes are available: 20 Insufficient cpu. no new claims to deallocate, " +
		"preemption: 0/20 nodes are available: 20 Preemption is not helpful for scheduling."
	berthtest.Await(t, berthtest.Patience, "the condition of the pod that does not fit", func(ctx context.Context) error {
		p, err := cp.Client().CoreV1().Pods("default").Get(ctx, "huge", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == "Unschedulable" && c.Message == message {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", p.Status.Conditions)
	})
	berthtest.Await(t, berthtest.Patience, "the events", func(ctx context.Context) error {
		events, err := cp.Client().EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		scheduled, failed := 0, 0
		for _, e := range events.Items {
			switch {
			case e.Reason == "Scheduled" && e.Action == "Binding" && strings.HasPrefix(e.Note, "Successfully assigned default/"+e.Regarding.Name+" to "):
				scheduled++
			case e.Reason == "FailedScheduling" && e.Regarding.Name == "huge" && e.Note == message && e.Type == corev1.EventTypeWarning:
				failed++
			}
		}
		if scheduled != 200 || failed < 1 {
			return fmt.Errorf("%d Scheduled and %d FailedScheduling", scheduled, failed)
		}
		return nil
	})
	if p, err := cp.Client().CoreV1().Pods("default").Get(ctx, "foreign", metav1.GetOptions{}); err != nil || p.Spec.NodeName != "" {
		t.Errorf("the pod of another scheduler: node %q, %v", p.Spec.NodeName, err)
	}
	if got := statusOf(t, b).GetSource(); got != "kube" {
		t.Errorf("the source is %q, want kube", got)
	}
	if _, err := b.SchedulingServiceClient.Apply(ctx, &schedulingv1.ApplyRequest{Manifests: berthtest.Node("n1", "1", "1Gi")}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("apply a manifest: %v, want FAILED_PRECONDITION", err)
	}
	if _, known := b.Pods()["default/foreign"]; known {
		t.Error("Berth knows a pending pod of another scheduler")
	}
}

func TestHeartbeatsAppendNothingToTheLog(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := cp.CreateNodes(ctx, 2, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	b := berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig()})
	before := statusOf(t, b).GetVersion()
	nodes, err := cp.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		for _, n := range nodes.Items {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(time.Unix(int64(1e9+i), 0))}}
			n.ResourceVersion = ""
			if _, err := cp.Client().CoreV1().Nodes().UpdateStatus(ctx, &n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A change that scheduling reads comes after them, and is the only one.
	n, err := cp.Client().CoreV1().Nodes().Get(ctx, nodes.Items[0].Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Spec.Unschedulable = true
	if _, err := cp.Client().CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	berthtest.Await(t, berthtest.Patience, "the cordon to be seen", func(context.Context) error {
		if statusOf(t, b).GetVersion().GetSeq() == before.GetSeq() {
			return fmt.Errorf("still at %v", before)
		}
		return nil
	})
	if got := statusOf(t, b).GetVersion().GetSeq() - before.GetSeq(); got != 1 {
		t.Errorf("ten heartbeats and a cordon appended %d deltas, want 1", got)
	}
}

func TestAnAPIServerThatGoesAndComesBackLosesNothing(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := cp.CreateNodes(ctx, 10, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig()})
	if err := cp.CreatePods(ctx, 100, kubetest.PlainPod); err != nil {
		t.Fatal(err)
	}
	cp.StopAPIServer()
	if err := cp.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	second := func(i int) *corev1.Pod { return kubetest.PlainPod(100 + i) }
	if err := cp.CreatePods(ctx, 100, second); err != nil {
		t.Fatal(err)
	}
	awaitBound(t, cp, 200)
}

func TestKilledProcessesOnARealAPIServer(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	if err := cp.CreateNodes(ctx, 50, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	watcher, err := kubetest.Watch(ctx, cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	p := berthtest.StartProcesses(t, berthtest.Crew{Binders: 2, Queues: 2, FilterWorkers: 3, ScoreWorkers: 2, Shards: 4, Kubeconfig: cp.Kubeconfig()})
	const step = 200
	for i, id := range []string{"filter-worker-0", "score-worker-0", "queue-0", p.Leader("")} {
		if err := cp.CreatePods(ctx, step, func(n int) *corev1.Pod { return kubetest.PlainPod(i*step + n) }); err != nil {
			t.Fatal(err)
		}
		p.ByID[id].Kill()
	}
	awaitBound(t, cp, 4*step)
	if twice := watcher.BoundTwice(); len(twice) > 0 {
		t.Errorf("bound twice: %v", twice)
	}
}
