package sourcetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

func podGroups(t *testing.T, c Cluster) {
	pod := Pod("grouped")
	pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("gang")}
	c.SetPod(t, pod)
	group := &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{
		Namespace: Namespace, Name: "gang", Annotations: map[string]string{source.PreferredTopology: "example.com/hall, example.com/block"},
	}, Spec: schedulingv1alpha2.PodGroupSpec{
		SchedulingPolicy:      schedulingv1alpha2.PodGroupSchedulingPolicy{Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: 3}},
		SchedulingConstraints: &schedulingv1alpha2.PodGroupSchedulingConstraints{Topology: []schedulingv1alpha2.TopologyConstraint{{Key: "example.com/rack"}}},
		DisruptionMode:        new(schedulingv1alpha2.DisruptionModePodGroup),
		Priority:              new(int32(0)), // which API servers with WorkloadAwarePreemption give those without
	}}
	c.SetObject(t, group)
	r := Record(t, c.Source(t)).Synced()
	if got := r.Pod(Namespace, "grouped", "").Group; got != "gang" {
		t.Errorf("the pod is told to be of the group %q", got)
	}
	want := &cluster.PodGroup{Namespace: Namespace, Name: "gang", Gang: true, MinCount: 3, Topology: []string{"example.com/rack"}, HasPriority: true, Whole: true, Preferred: []string{"example.com/hall", "example.com/block"}}
	key := want.Key()
	r.View(func(v View) {
		got, _ := v.Objects[key].(*cluster.PodGroup)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(cluster.PodGroup{}, "UID", "Created")); diff != "" || got.UID == "" || got.Created == 0 {
			t.Errorf("the group is told as %+v (-want +got):\n%s", got, diff)
		}
	})
	c.DeleteObject(t, key.Kind.String(), key.Namespace, key.Name)
	r.Await("the end of the group", func(v View) bool { return v.Objects[key] == nil })
}
