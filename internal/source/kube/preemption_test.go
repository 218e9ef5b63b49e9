package kube

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
)

// setVictim makes a pod on a node, which a finalizer keeps from going, and returns its eviction.
func (c *testCluster) setVictim(t *testing.T, name string) source.Eviction {
	t.Helper()
	c.SetNode(t, sourcetest.Node("one"))
	pod := sourcetest.Pod(name)
	pod.Spec.NodeName, pod.Finalizers = "one", []string{"example.com/stays"}
	return source.Eviction{
		UID: c.SetPod(t, pod), Namespace: "default", Name: name, Node: "one",
		PreemptorUID: "uid-of-preemptor", PreemptorNamespace: "other", PreemptorName: "preemptor", PreemptorScheduler: "second-berth",
	}
}

func TestAVictimReadsAsKubeSchedulersDo(t *testing.T) {
	c := startCluster(t)
	e := c.setVictim(t, "victim")
	cfg := c.config()
	registry := prometheus.NewRegistry()
	cfg.Metrics = registry
	s := newSource(t, cfg)
	before := c.pod(t, "default", "victim")
	if err := s.Evict(within(t), coord.Cond{}, e); err != nil {
		t.Fatal(err)
	}
	pod := c.pod(t, "default", "victim")
	got := conditionOf(pod, v1.DisruptionTarget)
	if got == nil || got.Status != v1.ConditionTrue || got.Reason != "PreemptionByScheduler" ||
		got.Message != "second-berth: preempting to accommodate a higher priority pod" ||
		got.ObservedGeneration != before.Generation || got.LastTransitionTime.IsZero() {
		t.Errorf("condition: %+v, pod generation %d", got, before.Generation)
	}
	if grace := pod.DeletionGracePeriodSeconds; pod.DeletionTimestamp == nil || grace == nil || *grace != 30 {
		t.Errorf("deleted at %v with a grace period of %v, want the pod's own of 30 s", pod.DeletionTimestamp, grace)
	}
	if err := s.Evict(within(t), coord.Cond{}, e); err != nil {
		t.Error(err)
	}
	if got := writes(t, registry); got["preemption"] != 2 {
		t.Errorf("requests after two evictions of the same pod: %v, want 2 of the preemption lane", got)
	}

	if err := s.Preempted(within(t), e); err != nil {
		t.Fatal(err)
	}
	events := c.events(t, e.UID)
	if len(events) != 1 {
		t.Fatalf("%d events, want 1", len(events))
	}
	canceled := e
	canceled.Canceled = true
	if err := s.Preempted(within(t), canceled); err != nil {
		t.Fatal(err)
	}
	const text = "Preempted by pod uid-of-preemptor on node one (in kube-scheduler memory)."
	if all := c.events(t, e.UID); !slices.ContainsFunc(all, func(e eventsv1.Event) bool { return e.Note == text }) {
		t.Errorf("of one that was not deleted: %+v", all)
	}
	event := events[0]
	if event.Type != "Normal" || event.Reason != "Preempted" || event.Action != "Preempting" ||
		event.Note != "Preempted by pod uid-of-preemptor on node one" || event.ReportingController != "second-berth" ||
		event.Regarding.Name != "victim" || event.Regarding.Kind != "Pod" {
		t.Errorf("event: %+v", event)
	}
	if r := event.Related; r == nil || r.Kind != "Pod" || r.Namespace != "other" || r.Name != "preemptor" || r.UID != "uid-of-preemptor" {
		t.Errorf("related: %+v, want the preemptor", r)
	}
}

func TestAPodThatIsOnItsWayOutIsNotEvicted(t *testing.T) {
	c := startCluster(t)
	deleted, ended := c.setVictim(t, "deleted"), c.setVictim(t, "ended")
	c.DeletePod(t, "default", "deleted")
	c.EndPod(t, "default", "ended")
	s := newSource(t, c.config())
	for _, e := range []source.Eviction{deleted, ended} {
		if err := s.Evict(within(t), coord.Cond{}, e); err != nil {
			t.Error(err)
		}
		if got := conditionOf(c.pod(t, "default", e.Name), v1.DisruptionTarget); got != nil {
			t.Errorf("condition of the pod %s: %+v", e.Name, got)
		}
	}
	if pod := c.pod(t, "default", "ended"); pod.DeletionTimestamp != nil {
		t.Error("a pod that has ended was deleted")
	}
}

func TestAnEvictionThatIsLateDoesNotTouchThePodThatTookTheVictimsPlace(t *testing.T) {
	c := startCluster(t)
	c.setVictim(t, "p")
	before := c.pod(t, "default", "p")
	s := newSource(t, c.config())
	name, first := types.NamespacedName{Namespace: "default", Name: "p"}, types.UID("uid-of-the-first")
	if written, err := s.patchStatus(within(t), s.preemptions, name, first, statusPatch{
		Conditions: []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}},
	}); written != nil || err != nil {
		t.Errorf("the condition was written: %v, %v", written, err)
	}
	if err := s.delete(within(t), name, first); err != nil {
		t.Error(err)
	}
	if pod := c.pod(t, "default", "p"); pod.ResourceVersion != before.ResourceVersion {
		t.Errorf("the second pod was changed: deleted at %v, %+v", pod.DeletionTimestamp, pod.Status.Conditions)
	}
}

func TestANominationAndAReportAreOnePatch(t *testing.T) {
	c := startCluster(t)
	uid := c.SetPod(t, sourcetest.Pod("p"))
	cfg := c.config()
	registry := prometheus.NewRegistry()
	cfg.Metrics = registry
	s := newSource(t, cfg)
	r := sourcetest.Record(t, s).Synced()
	r.Pod("default", "p", "")
	r.Stop() // what is written is remembered, though the watch does not show it
	report := source.Report{UID: uid, Namespace: "default", Name: "p", Reason: "Unschedulable", Message: "m", Nominate: true, Nominated: "one"}
	nomination := source.Nomination{UID: uid, Namespace: "default", Name: "p", Node: "one"}
	for range 2 {
		if err := s.Unschedulable(within(t), report); err != nil {
			t.Fatal(err)
		}
		if err := s.Nominate(within(t), nomination); err != nil {
			t.Fatal(err)
		}
	}
	if got := writes(t, registry); got["event"] != 1 || got["condition"] != 0 || got["preemption"] != 1 {
		t.Errorf("requests: %v, want one event and one patch of the preemption lane", got)
	}
	pod := c.pod(t, "default", "p")
	if condition := scheduled(pod); pod.Status.NominatedNodeName != "one" || condition == nil || condition.Message != "m" {
		t.Errorf("nominated to %q, condition %+v", pod.Status.NominatedNodeName, condition)
	}
	nomination.Node, report.Message = "", "another"
	if err := s.Nominate(within(t), nomination); err != nil {
		t.Fatal(err)
	}
	report.Nominated = ""
	if err := s.Unschedulable(within(t), report); err != nil {
		t.Fatal(err)
	}
	if got := writes(t, registry); got["condition"] != 1 || got["preemption"] != 2 {
		t.Errorf("requests after the nomination was cleared and another report: %v, want 2 of the preemption lane and 1 condition", got)
	}
	if got := c.pod(t, "default", "p").Status.NominatedNodeName; got != "" {
		t.Errorf("nominated to %q after it was cleared", got)
	}
}

func TestEvictionsAndBindsDoNotWaitForEachOtherNorForEvents(t *testing.T) {
	c := startCluster(t)
	e := c.setVictim(t, "victim")
	uid := c.SetPod(t, sourcetest.Pod("quick"))
	cfg := c.config()
	cfg.QPS, cfg.Burst = 0.001, 3 // an eviction takes three requests
	s := newSource(t, cfg)
	b := source.Binding{UID: uid, Namespace: "default", Name: "quick", Node: "one"}
	for range 3 {
		if err := s.Scheduled(within(t), b); err != nil { // takes the events there may be in a quarter of an hour
			t.Fatal(err)
		}
	}
	if err := s.Evict(within(t), coord.Cond{}, e); err != nil {
		t.Errorf("Evict while events have to wait: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := s.Evict(ctx, coord.Cond{}, e); err == nil {
		t.Error("an eviction over the limit was made")
	}
	if out := s.Bind(within(t), coord.Cond{}, []source.Binding{b}); out[0].Result != source.BindDone {
		t.Errorf("Bind while evictions have to wait: %+v", out[0])
	}
}
