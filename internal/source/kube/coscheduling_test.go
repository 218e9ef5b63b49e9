package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
)

// TestPodGroupsOfCoschedulingAreFollowedOnceTheyAreServed has two groups of one name, of Coscheduling and of scheduling.k8s.io, and pods that name the first, the second and both.
func TestPodGroupsOfCoschedulingAreFollowedOnceTheyAreServed(t *testing.T) {
	c := startCluster(t)
	cfg := c.config()
	cfg.Coscheduling = source.Coscheduling{sourcetest.Scheduler: true}
	labelled := func(name, scheduler string) *v1.Pod {
		pod := sourcetest.Pod(name)
		pod.Labels, pod.Spec.SchedulerName = map[string]string{"scheduling.x-k8s.io/pod-group": "gang"}, scheduler
		return pod
	}
	theirs := cluster.CoschedulingGroup("gang")
	c.SetPod(t, labelled("labelled", sourcetest.Scheduler))
	both := labelled("both", sourcetest.Scheduler)
	both.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("gang")}
	c.SetPod(t, both)
	other := labelled("other", "somebody") // is told once it is on a node
	other.Spec.NodeName = "one"
	c.SetNode(t, sourcetest.Node("one"))
	c.SetPod(t, other)
	c.SetObject(t, &schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: sourcetest.Namespace, Name: "gang"}, Spec: schedulingv1alpha2.PodGroupSpec{
		SchedulingPolicy: schedulingv1alpha2.PodGroupSchedulingPolicy{Basic: &schedulingv1alpha2.BasicSchedulingPolicy{}},
	}})
	s := newSource(t, cfg)
	r := sourcetest.Record(t, s).Synced()
	awaitReady(t, s)
	for name, want := range map[string]string{"labelled": theirs, "both": "gang"} {
		if got := r.Pod(sourcetest.Namespace, name, "").Group; got != want {
			t.Errorf("the pod %s is told to be of the group %q, want %q", name, got, want)
		}
	}
	if got := r.Pod(sourcetest.Namespace, "other", "one").Group; got != "" {
		t.Errorf("a pod of another scheduler is told to be of the group %q", got)
	}

	// 1. They are not served, and nobody waits for that.
	lacking := cluster.ObjectKey{Kind: cluster.UnservedKind, Name: cluster.CoschedulingResource}
	key := func(name string) cluster.ObjectKey {
		return cluster.ObjectKey{Kind: cluster.PodGroupKind, Namespace: sourcetest.Namespace, Name: name}
	}
	r.View(func(v sourcetest.View) {
		if u, ok := v.Objects[lacking].(*cluster.Unserved); !ok || u.Why != "the API server does not serve it" {
			t.Errorf("of the resource it is told %+v", v.Objects[lacking])
		}
		if v.Objects[key("gang")] == nil || v.Objects[key(theirs)] != nil {
			t.Errorf("told are %v and %v, want the native one", v.Objects[key("gang")], v.Objects[key(theirs)])
		}
	})

	// 2. They are.
	if err := c.plane.ServeCoscheduling(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.plane.CreateCoschedulingGroup(within(t), sourcetest.Namespace, "gang", 3); err != nil {
		t.Fatal(err)
	}
	r.Await("Coscheduling's group", func(v sourcetest.View) bool { return v.Objects[key(theirs)] != nil && v.Objects[lacking] == nil })
	var uid string
	r.View(func(v sourcetest.View) {
		got, _ := v.Objects[key(theirs)].(*cluster.PodGroup)
		want := &cluster.PodGroup{Namespace: sourcetest.Namespace, Name: theirs, Gang: true, MinCount: 3}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(cluster.PodGroup{}, "UID", "Created")); diff != "" || got.UID == "" || got.Created == 0 {
			t.Fatalf("the group is told as %+v (-want +got):\n%s", got, diff)
		}
		uid = got.UID
		if is, _ := v.Objects[key("gang")].(*cluster.PodGroup); is == nil || is.Gang {
			t.Errorf("the native group is told as %+v", is)
		}
	})

	// 3. Of neither is written what has come of Coscheduling's.
	if err := s.GroupDecided(within(t), source.Report{UID: uid, Namespace: sourcetest.Namespace, Name: theirs, Reason: "Unschedulable", Message: "no room", Group: true}); err != nil {
		t.Errorf("what has come of a group of Coscheduling: %v", err)
	}
	is, err := c.client.SchedulingV1alpha2().PodGroups(sourcetest.Namespace).Get(within(t), "gang", metav1.GetOptions{})
	if err != nil || len(is.Status.Conditions) > 0 {
		t.Errorf("of the native group it is written %v, %v", is.Status.Conditions, err)
	}
	if ref := s.objectReference(source.Unsupported{Kind: "PodGroup", Namespace: "a", Name: "b"}); ref.APIVersion != "scheduling.k8s.io/v1alpha2" {
		t.Errorf("an event of a native PodGroup refers to %+v", ref)
	}

	// 4. When one has gone, the other is there.
	_, err = c.plane.Client().RESTClient().Delete().AbsPath("/apis/scheduling.x-k8s.io/v1alpha1/namespaces/"+sourcetest.Namespace+"/podgroups/gang").SetHeader("Accept", "application/json").DoRaw(within(t))
	if err != nil {
		t.Fatal(err)
	}
	r.Await("the end of Coscheduling's group", func(v sourcetest.View) bool { return v.Objects[key(theirs)] == nil })
	r.View(func(v sourcetest.View) {
		if v.Objects[key("gang")] == nil {
			t.Error("the native group has gone with it")
		}
	})
}

func TestPodGroupsOfCoschedulingAreNotAskedForUnlessAProfileHasIt(t *testing.T) {
	for want, names := range map[bool]source.Coscheduling{false: nil, true: {"a": true}} {
		s := newSource(t, Config{Master: "http://127.0.0.1:1", SchedulerNames: []string{"a"}, Coscheduling: names})
		follows := false
		for _, r := range s.resources {
			follows = follows || r.name == cluster.CoschedulingResource
		}
		if follows != want {
			t.Errorf("with Coscheduling in %v they are followed is %v", names, follows)
		}
	}
}
