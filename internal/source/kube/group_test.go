package kube

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
)

func TestThePodGroupScheduledConditionOfAPodGroupSaysWhatHasComeOfIt(t *testing.T) {
	c := startCluster(t)
	groups := c.client.SchedulingV1alpha2().PodGroups(sourcetest.Namespace)
	create := func() *schedulingv1alpha2.PodGroup {
		t.Helper()
		group, err := groups.Create(within(t), &schedulingv1alpha2.PodGroup{
			ObjectMeta: metav1.ObjectMeta{Name: "gang"},
			Spec: schedulingv1alpha2.PodGroupSpec{SchedulingPolicy: schedulingv1alpha2.PodGroupSchedulingPolicy{
				Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: 2},
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return group
	}
	end := func() { // without the controller that lets it go when no pod names it
		t.Helper()
		err := groups.Delete(within(t), "gang", metav1.DeleteOptions{})
		if err == nil {
			_, err = groups.Patch(within(t), "gang", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	group := create()
	cfg := c.config()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	cfg.Now = func() time.Time { return now }
	s := newSource(t, cfg)
	report := source.Report{UID: string(group.UID), Namespace: sourcetest.Namespace, Name: "gang", Group: true}
	decided := func(reason, message string) *schedulingv1alpha2.PodGroup {
		t.Helper()
		report.Reason, report.Message = reason, message
		if err := s.GroupDecided(within(t), report); err != nil {
			t.Fatalf("%s, %q: %v", reason, message, err)
		}
		is, err := groups.Get(within(t), "gang", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	scheduled := func(status metav1.ConditionStatus, reason, message string, at time.Time) metav1.Condition {
		return metav1.Condition{
			Type: "PodGroupScheduled", Status: status, Reason: reason, Message: message, ObservedGeneration: group.Generation, LastTransitionTime: metav1.NewTime(at.Local()),
		}
	}
	if is := decided("Unschedulable", "nobody watches"); len(is.Status.Conditions) > 0 {
		t.Errorf("of a group that was never seen it is written %v", is.Status.Conditions)
	}
	sourcetest.Record(t, s).Synced()

	// 1. It says why, and nothing twice: neither the watch nor another call need have come in between.
	began, last := now, group.ResourceVersion
	for _, step := range []struct {
		reason, message string
		writes          bool
		want            metav1.Condition
	}{
		{"Unschedulable", "no room", true, scheduled("False", "Unschedulable", "no room", began)},
		{"Unschedulable", "no room", false, scheduled("False", "Unschedulable", "no room", began)},
		{"SchedulerError", "broken", true, scheduled("False", "SchedulerError", "broken", began)},
		{"Scheduled", "", true, scheduled("True", "Scheduled", "", began.Add(3*time.Hour))},
		{"Scheduled", "", false, scheduled("True", "Scheduled", "", began.Add(3*time.Hour))},
		{"Unschedulable", "one pod more does not fit", false, scheduled("True", "Scheduled", "", began.Add(3*time.Hour))},
		{"SchedulerError", "broken", false, scheduled("True", "Scheduled", "", began.Add(3*time.Hour))},
	} {
		is := decided(step.reason, step.message)
		if diff := cmp.Diff([]metav1.Condition{step.want}, is.Status.Conditions); diff != "" {
			t.Errorf("after %s, %q (-want +got):\n%s", step.reason, step.message, diff)
		}
		if wrote := is.ResourceVersion != last; wrote != step.writes {
			t.Errorf("after %s, %q: it was written is %v, want %v", step.reason, step.message, wrote, step.writes)
		}
		last = is.ResourceVersion
		now = now.Add(time.Hour)
	}

	// 2. Another source knows it from the watch, and leaves the conditions of others.
	const target = `{"status":{"conditions":[{"type":"DisruptionTarget","status":"False","reason":"No","message":"","lastTransitionTime":"2030-01-01T00:00:00Z"},` +
		`{"type":"PodGroupScheduled","status":"False","reason":"Unschedulable","message":"by hand","lastTransitionTime":"2030-01-01T00:00:00Z"}]}}`
	if _, err := groups.Patch(within(t), "gang", types.StrategicMergePatchType, []byte(target), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	s = newSource(t, cfg)
	r := sourcetest.Record(t, s).Synced()
	is := decided("Scheduled", "")
	if len(is.Status.Conditions) != 2 || !meta.IsStatusConditionTrue(is.Status.Conditions, "PodGroupScheduled") || !meta.IsStatusConditionFalse(is.Status.Conditions, "DisruptionTarget") {
		t.Errorf("the conditions are %+v", is.Status.Conditions)
	}

	// 3. Nothing is said of a group of another uid, nor of one that is gone.
	end()
	second := create()
	key := cluster.ObjectKey{Kind: cluster.PodGroupKind, Namespace: sourcetest.Namespace, Name: "gang"}
	r.Await("the second group", func(v sourcetest.View) bool {
		group, ok := v.Objects[key].(*cluster.PodGroup)
		return ok && group.UID == string(second.UID)
	})
	if is := decided("Unschedulable", "of the first"); len(is.Status.Conditions) > 0 {
		t.Errorf("of the second group it is said what the first was: %v", is.Status.Conditions)
	}
	end()
	r.Await("the end of the group", func(v sourcetest.View) bool { return v.Objects[key] == nil })
	report.UID = string(second.UID)
	if err := s.GroupDecided(within(t), report); err != nil {
		t.Errorf("of a group that is gone: %v", err)
	}
}

// TestTheConditionOfAPodGroupSaysWhichGenerationItIsOf: API servers of 1.36 count no generations of PodGroups yet.
func TestTheConditionOfAPodGroupSaysWhichGenerationItIsOf(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := source.Report{Reason: "Unschedulable", Message: "no room", Group: true}
	is := &groupStatus{generation: 1}
	is.scheduled = groupCondition(is, r, now)
	if is.scheduled == nil || is.scheduled.ObservedGeneration != 1 {
		t.Fatalf("the first is %+v", is.scheduled)
	}
	is.generation = 2
	if c := groupCondition(is, r, now.Add(time.Hour)); c == nil || c.ObservedGeneration != 2 || !c.LastTransitionTime.Time.Equal(now) {
		t.Errorf("of the next generation it is %+v", c)
	}
}
