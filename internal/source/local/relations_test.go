package local

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	"github.com/google/go-cmp/cmp"
)

const shop = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: a, image: "app:1"}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec: {selector: {matchExpressions: [{key: app, operator: Exists}]}, serviceName: db}
---
apiVersion: v1
kind: ReplicationController
metadata: {name: old, namespace: shop}
spec: {template: {metadata: {labels: {app: old}}, spec: {containers: [{name: a}]}}}
`

func TestOfServicesAndControllersOnlyWhatSchedulingReadsIsKept(t *testing.T) {
	c := startCluster(t)
	if got, want := results(c.apply(t, parse(t, shop)...)), "Service shop/web created, ReplicaSet shop/web created, StatefulSet shop/db created, ReplicationController shop/old created"; got != want {
		t.Errorf("applied: %s, want %s", got, want)
	}
	changed := strings.NewReplacer("port: 80", "port: 81", "app:1", "app:2", "replicas: 3", "replicas: 4", "app, operator: Exists", "app, operator: DoesNotExist").Replace(shop)
	if got, want := results(c.apply(t, parse(t, changed)...)), "Service shop/web unchanged, ReplicaSet shop/web unchanged, StatefulSet shop/db configured, ReplicationController shop/old unchanged"; got != want {
		t.Errorf("applied again: %s, want %s", got, want)
	}
	kv, _, err := c.etcd.Get(within(t), "local/replicasets/shop/web")
	if err != nil || kv == nil || strings.Contains(string(kv.Value), "app:1") || !strings.Contains(string(kv.Value), `"kind":"ReplicaSet"`) {
		t.Errorf("stored: %+v, %v; want a replica set without the containers of its template", kv, err)
	}
	in := func(key, value string) cluster.LabelSelector {
		return cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: key, Operator: "In", Values: []string{value}}}}
	}
	sourcetest.Record(t, c.Source(t)).Synced().View(func(v sourcetest.View) {
		want := map[sourcetest.SelectorName]cluster.LabelSelector{
			{Kind: cluster.KindService, Namespace: "shop", Name: "web"}:               in("app", "web"),
			{Kind: cluster.KindReplicaSet, Namespace: "shop", Name: "web"}:            in("app", "web"),
			{Kind: cluster.KindStatefulSet, Namespace: "shop", Name: "db"}:            {Requirements: []cluster.Requirement{{Key: "app", Operator: "DoesNotExist"}}},
			{Kind: cluster.KindReplicationController, Namespace: "shop", Name: "old"}: in("app", "old"),
		}
		if diff := cmp.Diff(want, v.Selectors); diff != "" {
			t.Errorf("selectors told (-want +got):\n%s", diff)
		}
	})
	c.delete(t, manifest.KindReplicaSet, "shop", "web")
	if err := c.store.Delete(within(t), manifest.KindReplicaSet, "shop", "web"); !errors.Is(err, ErrNotFound) {
		t.Errorf("delete again: %v, want ErrNotFound", err)
	}
	if kv, _, err := c.etcd.Get(within(t), "local/services/shop/web"); kv == nil || err != nil {
		t.Errorf("the service of the same name is gone too: %v", err)
	}
}

const related = `
apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: {app: web, version: "1"}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: u, controller: true}]
spec:
  containers: [{name: a}]
  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {}, matchLabelKeys: [version]}]}}
status: {nominatedNodeName: one}
`

func TestAPodIsToldWithItsRelations(t *testing.T) {
	c := startCluster(t)
	c.apply(t, parse(t, related)...)
	s := New(c.etcd, Config{})
	r := sourcetest.Record(t, s).Synced()
	pod := r.Pod("default", "p", "")
	wantLabels := cluster.LabelSet{
		Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "web"}, {Key: "version", Value: "1"}},
		Controller: cluster.Controller{Kind: cluster.KindReplicaSet, Name: "web"},
	}
	wantTerms := []cluster.PodTerm{{
		TopologyKey: "zone", Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true},
		Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "version", Operator: "In", Values: []string{"1"}}}},
	}}
	if diff := cmp.Diff(wantLabels, pod.Labels) + cmp.Diff(wantTerms, pod.Class.AntiAffinity); diff != "" {
		t.Errorf("the pod is told (-want +got):\n%s", diff)
	}
	if pod.Nominated != "one" {
		t.Errorf("nominated to %q, want one", pod.Nominated)
	}
	b := source.Binding{UID: pod.UID, Namespace: "default", Name: "p", Node: "two"}
	if out := s.Bind(within(t), coord.IfAbsent("nothing"), []source.Binding{b}); out[0].Result != source.BindDone {
		t.Fatal(out[0])
	}
	if pod = r.Pod("default", "p", "two"); pod.Nominated != "" {
		t.Errorf("a pod on a node is nominated to %q", pod.Nominated)
	}
}

func TestALabelThatIsPartOfASelectorCannotBeChanged(t *testing.T) {
	c := startCluster(t)
	c.apply(t, parse(t, related)...)
	if got := results(c.apply(t, parse(t, related)...)); got != "Pod default/p unchanged" {
		t.Errorf("the same again: %s", got)
	}
	if got := results(c.apply(t, parse(t, strings.Replace(related, "app: web", "app: db", 1))...)); got != "Pod default/p configured" {
		t.Errorf("another label changed: %s", got)
	}
	_, err := c.store.Apply(within(t), parse(t, strings.Replace(related, `version: "1"`, `version: "2"`, 1)), false)
	invalid, ok := errors.AsType[*manifest.Error](err)
	const field = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchExpressions[0].values[0]"
	if !ok || len(invalid.Violations) != 1 || invalid.Violations[0].Field != field {
		t.Errorf("the label of a match key changed: %v, want a violation of %s", err, field)
	}
}
