package sourcetest

import (
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podRelations(t *testing.T, c Cluster) {
	yes := true
	pod := Pod("related")
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: cluster.KindReplicaSet, Name: "owner", UID: "00000000-0000-0000-0000-000000000001", Controller: &yes,
	}}
	c.SetPod(t, pod)
	r := Record(t, c.Source(t)).Synced()
	before := r.Pod(Namespace, "related", "")
	want := cluster.LabelSet{
		Namespace: Namespace, Labels: []cluster.Label{{Key: "app", Value: "related"}},
		Controller: cluster.Controller{Kind: cluster.KindReplicaSet, Name: "owner"},
	}
	if diff := cmp.Diff(want, before.Labels); diff != "" || before.Nominated != "" {
		t.Errorf("the pod is nominated to %q; its labels (-want +got):\n%s", before.Nominated, diff)
	}

	c.Nominate(t, Namespace, "related", "there")
	r.Await("the nomination", func(v View) bool { return v.Pods[Namespace+"/related"].Nominated == "there" })
	c.Nominate(t, Namespace, "related", "")
	r.Await("the end of the nomination", func(v View) bool { return v.Pods[Namespace+"/related"].Nominated == "" })

	pod.Labels = map[string]string{"app": "related", "a": "b"}
	c.SetPod(t, pod)
	r.Await("the pod's new label", func(v View) bool {
		return slices.Equal(v.Pods[Namespace+"/related"].Labels.Labels, []cluster.Label{{Key: "a", Value: "b"}, {Key: "app", Value: "related"}})
	})
	after := r.Pod(Namespace, "related", "")
	if diff := cmp.Diff(before.Class, after.Class); diff != "" || after.Labels.Controller != want.Controller {
		t.Errorf("with another label the pod is controlled by %+v and its class (-before +after):\n%s", after.Labels.Controller, diff)
	}
}

// selecting returns the selector of a label.
func selecting(key, value string) cluster.LabelSelector {
	return cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: key, Operator: "In", Values: []string{value}}}}
}

func selectors(t *testing.T, c Cluster) {
	all := []string{cluster.KindService, cluster.KindReplicationController, cluster.KindReplicaSet, cluster.KindStatefulSet}
	for _, kind := range all {
		c.SetSelector(t, kind, Namespace, "before", map[string]string{"app": kind})
	}
	r := Record(t, c.Source(t)).Synced()
	r.View(func(v View) {
		for _, kind := range all {
			if diff := cmp.Diff(selecting("app", kind), v.Selectors[SelectorName{kind, Namespace, "before"}]); diff != "" {
				t.Errorf("selector of the %s before Synced (-want +got):\n%s", kind, diff)
			}
		}
	})
	for _, kind := range all {
		name := SelectorName{kind, Namespace, "after"}
		is := func(want cluster.LabelSelector) func(View) bool {
			return func(v View) bool { return cmp.Equal(want, v.Selectors[name]) }
		}
		c.SetSelector(t, kind, Namespace, "after", map[string]string{"app": "new"})
		r.Await("a new "+kind, is(selecting("app", "new")))
		c.DeleteSelector(t, kind, Namespace, "after")
		r.Await("the end of the "+kind, func(v View) bool {
			_, ok := v.Selectors[name]
			return !ok
		})
		c.SetSelector(t, kind, Namespace, "after", map[string]string{"app": "again"})
		r.Await("the "+kind+" that took its place", is(selecting("app", "again")))
	}
	for _, kind := range all[:2] { // the selectors of the others cannot be changed
		c.SetSelector(t, kind, Namespace, "before", map[string]string{"tier": "changed"})
		r.Await("another selector of the "+kind, func(v View) bool {
			return cmp.Equal(selecting("tier", "changed"), v.Selectors[SelectorName{kind, Namespace, "before"}])
		})
	}
	r.View(func(v View) {
		for _, kind := range all {
			if _, ok := v.Selectors[SelectorName{kind, Namespace, "before"}]; !ok {
				t.Errorf("the %s before is gone with another", kind)
			}
		}
	})
}

func emptyService(t *testing.T, c Cluster) {
	name := SelectorName{cluster.KindService, Namespace, "empty"}
	c.SetSelector(t, name.Kind, name.Namespace, name.Name, nil)
	r := Record(t, c.Source(t)).Synced()
	r.View(func(v View) {
		if _, ok := v.Selectors[name]; ok {
			t.Error("a service without a selector was told")
		}
	})
	c.SetSelector(t, name.Kind, name.Namespace, name.Name, map[string]string{"app": "x"})
	r.Await("the service's selector", func(v View) bool { return cmp.Equal(selecting("app", "x"), v.Selectors[name]) })
	c.SetSelector(t, name.Kind, name.Namespace, name.Name, nil)
	r.Await("the end of the service's selector", func(v View) bool {
		_, ok := v.Selectors[name]
		return !ok
	})
	c.DeleteSelector(t, name.Kind, name.Namespace, name.Name)
}
