package sourcetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podPreemption(t *testing.T, c Cluster) {
	c.SetNode(t, Node("one"))
	start := metav1.NewTime(time.Unix(1700000000, 0))
	running := Pod("running")
	running.Spec.NodeName, running.Status.StartTime = "one", &start
	c.SetPod(t, running)
	never, priority := v1.PreemptNever, int32(7)
	patient := Pod("patient")
	patient.Spec.PriorityClassName, patient.Spec.Priority, patient.Spec.PreemptionPolicy = "patient", &priority, &never
	c.SetPod(t, patient)
	Record(t, c.Source(t)).Synced().View(func(v View) {
		if got := v.Pods[Namespace+"/running"]; got.Started != start.UnixNano() || got.NeverPreempts || got.Preempted {
			t.Errorf("the pod that runs was told as %+v", got.Pod)
		}
		if got := v.Pods[Namespace+"/patient"]; !got.NeverPreempts || got.Priority != 7 || got.Started != 0 {
			t.Errorf("the pod that never preempts was told as %+v", got.Pod)
		}
	})
}

func budgets(t *testing.T, c Cluster) {
	web := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status: policyv1.PodDisruptionBudgetStatus{
			DisruptionsAllowed: 2, DisruptedPods: map[string]metav1.Time{"web-1": metav1.NewTime(time.Unix(1700000000, 0))},
		},
	}
	want := &cluster.Budget{
		Namespace: Namespace, Name: "web", Selector: selecting("app", "web"), Allowed: 2, Disrupted: []string{"web-1"},
	}
	c.SetBudget(t, web)
	r := Record(t, c.Source(t)).Synced()
	is := func(want *cluster.Budget) func(View) bool {
		return func(v View) bool { return cmp.Equal(want, v.Budget(want.Namespace, want.Name)) }
	}
	r.View(func(v View) {
		if diff := cmp.Diff(want, v.Budget(Namespace, "web")); diff != "" {
			t.Errorf("the budget before Synced (-want +got):\n%s", diff)
		}
	})

	web.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 0}
	want.Allowed, want.Disrupted = 0, nil
	c.SetBudget(t, web)
	r.Await("a budget that is used up", is(want))
	web.Spec.Selector = &metav1.LabelSelector{}
	want.Selector = cluster.LabelSelector{}
	c.SetBudget(t, web)
	r.Await("a budget of everything", is(want))

	c.SetBudget(t, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "nothing"}})
	r.Await("a budget without a selector", is(&cluster.Budget{Namespace: Namespace, Name: "nothing", Selector: cluster.LabelSelector{Nothing: true}}))
	c.DeleteBudget(t, Namespace, "web")
	r.Await("the end of a budget", func(v View) bool {
		return v.Budget(Namespace, "web") == nil && v.Budget(Namespace, "nothing") != nil
	})
}

// waiting makes a pod and a source that has told it, and returns its nomination to a node.
func waiting(t *testing.T, c Cluster, name string) (source.Source, *Recorder, source.Nomination) {
	n := source.Nomination{UID: c.SetPod(t, Pod(name)), Namespace: Namespace, Name: name, Node: "one"}
	s := c.Source(t)
	r := Record(t, s).Synced()
	r.Pod(Namespace, name, "")
	return s, r, n
}

func awaitNomination(r *Recorder, name, node string) {
	r.t.Helper()
	r.Await("nomination of "+name+" to "+node, func(v View) bool { return v.Pods[Namespace+"/"+name].Nominated == node })
}

// settle waits until everything has been told that was written about pods before.
func settle(t *testing.T, c Cluster, r *Recorder, name string) {
	t.Helper()
	c.SetPod(t, Pod(name))
	r.Pod(Namespace, name, "")
}

func nominate(t *testing.T, c Cluster) {
	s, r, n := waiting(t, c, "nominated")
	write := func(node string) {
		t.Helper()
		n.Node = node
		if err := s.Nominate(within(t), n); err != nil {
			t.Fatal(err)
		}
		awaitNomination(r, "nominated", node)
	}
	write("one")
	write("two")
	Record(t, c.Source(t)).Synced().View(func(v View) {
		if got := v.Pods[Namespace+"/nominated"].Nominated; got != "two" {
			t.Errorf("the pod was told to a new sink as nominated to %q, want two", got)
		}
	})
	write("")
	told := func() (n int) {
		r.View(func(v View) { n = len(v.Events) })
		return n
	}
	before := told()
	write("")
	settle(t, c, r, "nominated-after")
	r.View(func(v View) {
		for _, e := range v.Events[before:] {
			if e.Pod.UID == n.UID {
				t.Errorf("the pod was told again after a nomination that changed nothing: %+v", e.Pod.Pod)
			}
		}
	})
	write("one")
	c.SetNode(t, Node("two"))
	bind(t, c, s, source.BindDone, source.Binding{UID: n.UID, Namespace: Namespace, Name: n.Name, Node: "two"})
	r.Await("the pod on its node, nominated to none", func(v View) bool {
		pod := v.Pods[Namespace+"/nominated"]
		return pod.NodeName == "two" && pod.Nominated == ""
	})
}

func nominateInReport(t *testing.T, c Cluster) {
	s, r, n := waiting(t, c, "merged")
	report := source.Report{
		UID: n.UID, Namespace: Namespace, Name: "merged", Reason: "Unschedulable", Message: "first", Nominate: true, Nominated: "one",
	}
	write := func() (int64, string) {
		t.Helper()
		if err := s.Unschedulable(within(t), report); err != nil {
			t.Fatal(err)
		}
		return c.Reported(t, Namespace, "merged", n.UID)
	}
	before := 0
	r.View(func(v View) { before = len(v.Events) })
	first, message := write()
	awaitNomination(r, "merged", "one")
	settle(t, c, r, "merged-after")
	r.View(func(v View) {
		told := 0
		for _, e := range v.Events[before:] {
			if e.Pod.UID == n.UID {
				told++
			}
		}
		if told != 1 || message != "first" {
			t.Errorf("the pod was told %d times after a report with a nomination, its message is %q; want it once, with the message", told, message)
		}
	})
	if again, _ := write(); again != first {
		t.Errorf("the same report and nomination again: %d writes, want %d as after the first", again, first)
	}
	report.Message, report.Nominate, report.Nominated = "second", false, ""
	write()
	settle(t, c, r, "merged-second")
	if pod := r.Pod(Namespace, "merged", ""); pod.Nominated != "one" {
		t.Errorf("after a report without a nomination the pod is nominated to %q, want one as before", pod.Nominated)
	}
	report.Nominate = true
	if _, message := write(); message != "second" {
		t.Errorf("after the nomination was cleared the message is %q, want second as before", message)
	}
	awaitNomination(r, "merged", "")
}

func nominateGone(t *testing.T, c Cluster) {
	s, r, n := waiting(t, c, "nominated-late")
	c.DeletePod(t, Namespace, n.Name)
	if err := s.Nominate(within(t), n); err != nil {
		t.Errorf("nomination of a pod that is gone: %v", err)
	}
	second := c.SetPod(t, Pod(n.Name))
	if err := s.Nominate(within(t), n); err != nil {
		t.Errorf("nomination of a pod that was replaced: %v", err)
	}
	r.Await("the pod that took its place", func(v View) bool { return v.Pods[Namespace+"/"+n.Name].UID == second })
	if err := s.Nominate(within(t), n); err != nil {
		t.Errorf("nomination of a pod that was replaced, as is known: %v", err)
	}
	settle(t, c, r, "nominated-late-after")
	if pod := r.Pod(Namespace, n.Name, ""); pod.Nominated != "" || pod.UID != second {
		t.Errorf("the second pod is nominated to %q", pod.Nominated)
	}
}

// victim makes a pod on a node and returns its eviction.
func victim(t *testing.T, c Cluster, name string) source.Eviction {
	c.SetNode(t, Node("one"))
	pod := Pod(name)
	pod.Spec.NodeName = "one"
	return source.Eviction{
		UID: c.SetPod(t, pod), Namespace: Namespace, Name: name, Node: "one",
		PreemptorUID: "00000000-0000-0000-0000-000000000002", PreemptorNamespace: Namespace, PreemptorName: "preemptor", PreemptorScheduler: Scheduler,
	}
}

func evict(t *testing.T, c Cluster) {
	e := victim(t, c, "victim")
	c.SetPod(t, Pod("bystander"))
	s := c.Source(t)
	r := Record(t, s).Synced()
	for range 2 {
		if err := s.Evict(within(t), c.Fence(t), e); err != nil {
			t.Fatal(err)
		}
		r.Await("the end of the victim, or that it is being preempted", func(v View) bool {
			pod, ok := v.Pods[Namespace+"/victim"]
			return !ok || pod.Deleting && pod.Preempted
		})
	}
	if err := s.Preempted(within(t), e); err != nil {
		t.Errorf("Preempted: %v", err)
	}
	r.View(func(v View) {
		for _, told := range v.Events {
			if told.Kind == source.PodSet && told.Pod.UID == e.UID && told.Pod.Deleting && !told.Pod.Preempted {
				t.Error("the victim was told as deleted before it was told why")
			}
		}
		if pod := v.Pods[Namespace+"/bystander"]; pod.UID == "" || pod.Deleting {
			t.Errorf("the bystander is %+v", pod.Pod)
		}
	})
	// Pods that were never placed go as well, and whoever has not watched can evict.
	e.UID, e.Name = c.SetPod(t, Pod("unplaced")), "unplaced"
	r.Pod(Namespace, "unplaced", "")
	if err := c.Source(t).Evict(within(t), c.Fence(t), e); err != nil {
		t.Fatal(err)
	}
	r.PodGone(Namespace, "unplaced")
	if err := s.Evict(within(t), c.Fence(t), e); err != nil {
		t.Errorf("eviction of a pod that is gone: %v", err)
	}
}

func evictReplaced(t *testing.T, c Cluster) {
	e := victim(t, c, "replaced-victim")
	s := c.Source(t)
	r := Record(t, s).Synced()
	c.DeletePod(t, Namespace, e.Name)
	second := victim(t, c, e.Name)
	if err := s.Evict(within(t), c.Fence(t), e); err != nil {
		t.Errorf("eviction of a pod that was replaced: %v", err)
	}
	r.Await("the pod that took its place", func(v View) bool { return v.Pods[Namespace+"/"+e.Name].UID == second.UID })
	settle(t, c, r, "replaced-victim-after")
	if pod := r.Pod(Namespace, e.Name, "one"); pod.UID != second.UID || pod.Deleting {
		t.Errorf("the second pod was told as %+v", pod.Pod)
	}
}

func preemptEnded(t *testing.T, c Cluster) {
	s, r, n := waiting(t, c, "spared")
	e := victim(t, c, "spared-victim")
	r.Pod(Namespace, e.Name, "one")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for what, err := range map[string]error{"Evict": s.Evict(ctx, c.Fence(t), e), "Nominate": s.Nominate(ctx, n)} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s under a canceled context: %v", what, err)
		}
	}
	settle(t, c, r, "spared-after")
	if pod := r.Pod(Namespace, e.Name, "one"); pod.Deleting {
		t.Errorf("the victim was told as %+v", pod.Pod)
	}
	if pod := r.Pod(Namespace, n.Name, ""); pod.Nominated != "" {
		t.Errorf("the pod is nominated to %q", pod.Nominated)
	}
}
