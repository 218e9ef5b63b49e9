package source_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

func TestTheLabelOfCoschedulingIsReadInProfilesThatHaveIt(t *testing.T) {
	const here = "podgroup.scheduling.x-k8s.io/train"
	pod := func(scheduler, label string, named *string) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Spec: v1.PodSpec{SchedulerName: scheduler}}
		if label != "" {
			p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": label}
		}
		if named != nil {
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: named}
		}
		return p
	}
	with := source.Coscheduling{"with": true}
	for _, test := range []struct {
		name string
		with source.Coscheduling
		pod  *v1.Pod
		want string
	}{
		{"with the plugin", with, pod("with", "train", nil), here},
		{"on a node", with, func() *v1.Pod { p := pod("with", "train", nil); p.Spec.NodeName = "n"; return p }(), here},
		{"of another profile", with, pod("other", "train", nil), ""},
		{"no profile has it", nil, pod("with", "train", nil), ""},
		{"no label", with, pod("with", "", nil), ""},
		{"both: the native one wins", with, pod("with", "train", new("native")), "native"},
		{"both of one name", with, pod("with", "train", new("train")), "train"},
		{"native alone", with, pod("with", "", new("train")), "train"},
	} {
		got := test.with.ReducePod(test.pod)
		if got.Group != test.want {
			t.Errorf("%s: the group is %q, want %q", test.name, got.Group, test.want)
		}
		want := source.ReducePod(test.pod)
		want.Group = got.Group
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: more than the group differs (-without +with):\n%s", test.name, diff)
		}
	}
}

func TestPodGroupsOfCoschedulingAreGangsOfTheirMinMember(t *testing.T) {
	created := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		name string
		spec any
		want cluster.PodGroup
	}{
		{"a gang", map[string]any{"minMember": int64(3), "scheduleTimeoutSeconds": int64(10), "minResources": map[string]any{"cpu": "3"}}, cluster.PodGroup{Gang: true, MinCount: 3}},
		{"more than there is a number for", map[string]any{"minMember": int64(1 << 40)}, cluster.PodGroup{Gang: true, MinCount: 1<<31 - 1}},
		{"none at least", map[string]any{"minMember": int64(0)}, cluster.PodGroup{}},
		{"less", map[string]any{"minMember": int64(-1)}, cluster.PodGroup{}},
		{"an empty spec", map[string]any{}, cluster.PodGroup{}},
		{"no spec", nil, cluster.PodGroup{}},
		{"a text", map[string]any{"minMember": "3"}, cluster.PodGroup{Untold: "spec.minMember of the PodGroup is no integer"}},
		{"a spec that is none", "x", cluster.PodGroup{Untold: "spec.minMember of the PodGroup is no integer"}},
	} {
		object := map[string]any{
			"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
			"metadata": map[string]any{"namespace": "a", "name": "train", "uid": "u", "creationTimestamp": created.Format(time.RFC3339)},
		}
		if test.spec != nil {
			object["spec"] = test.spec
		}
		tell := source.CoschedulingReduction.Reduce(&unstructured.Unstructured{Object: object})
		if tell == nil {
			t.Fatalf("%s: nothing is told", test.name)
		}
		want := test.want
		want.Namespace, want.Name, want.UID, want.Created = "a", "podgroup.scheduling.x-k8s.io/train", "u", created.UnixNano()
		if diff := cmp.Diff(source.Event{Kind: source.ObjectSet, Object: &want}, tell()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		gone := source.Event{Kind: source.ObjectGone, Key: want.Key()}
		if diff := cmp.Diff(gone, source.CoschedulingReduction.Gone("a", "train")); diff != "" {
			t.Errorf("%s: its end is another's (-want +got):\n%s", test.name, diff)
		}
	}
}
