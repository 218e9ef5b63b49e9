package whatif

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/manifest"
)

// What kubectl get -A -o json gives, with fields of the status, kinds that nobody asked for, and a field of the future.
const fromKubectl = `{"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "uid": "n1", "resourceVersion": "7", "managedFields": [{"manager": "kubelet", "operation": "Update"}],
  "annotations": {"node.alpha.kubernetes.io/ttl": "0"}, "labels": {"kubernetes.io/hostname": "a", "topology.kubernetes.io/zone": "z1"}},
  "spec": {"podCIDR": "10.0.0.0/24", "fromTheFuture": 1},
  "status": {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "110"}, "capacity": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}],
    "nodeInfo": {"kernelVersion": "6.1"}, "images": [{"names": ["i:latest"], "sizeBytes": 5}]}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bound", "namespace": "team", "uid": "p1", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web"}},
  "spec": {"nodeName": "a", "schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1500m"}}, "terminationMessagePath": "/dev/termination-log"}], "volumes": [{"name": "t", "projected": {"defaultMode": 420, "sources": []}}]},
  "status": {"phase": "Running", "podIP": "10.0.0.9", "qosClass": "Burstable", "containerStatuses": [{"name": "c", "ready": true, "restartCount": 0, "image": "i", "imageID": ""}]}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits", "namespace": "team", "uid": "p2"},
  "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}, "status": {"phase": "Pending"}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ended", "namespace": "team", "uid": "p3"}, "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Succeeded"}},
{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "team"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}}, "status": {"replicas": 1}},
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of no matter", "namespace": "team"}, "data": {"k": "v"}}
]}`

func TestWhatKubectlGivesIsRead(t *testing.T) {
	s, err := FromObjects([]byte(fromKubectl), settings(), engine.EvaluatorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.state.Selector(cluster.KindReplicaSet, "team", "web"); !ok {
		t.Error("the ReplicaSet is not known")
	}
	if labels, ok := s.state.Namespace("team"); !ok || len(labels) != 1 {
		t.Errorf("the namespace that only pods name: %v, %v", labels, ok)
	}
	try(t, s, func(w *World) error {
		got, err := Place(w, Pending(w), PlaceOptions{Preempt: true})
		if err != nil {
			return err
		}
		want := "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
		if len(got) != 1 || got[0].Name != "waits" || got[0].Message != want {
			t.Errorf("%+v", got)
		}
		return w.Cordon("a", true)
	})
	if n := s.state.Count(cluster.Bound); n != 1 {
		t.Errorf("%d pods are bound, want 1", n)
	}
}

// What others call as Kubernetes does is something else: Coscheduling's PodGroups, Longhorn's Nodes.
func TestObjectsOfOtherGroupsArePassedOver(t *testing.T) {
	const native = `{"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "train"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}`
	for what, other := range map[string]string{
		"by itself": `{"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "train"}, "spec": {"minMember": 5}}`,
		"in a list": `{"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroupList", "items": [{"metadata": {"name": "train"}, "spec": {"minMember": 5}}]}`,
		"a node":    `{"apiVersion": "longhorn.io/v1beta2", "kind": "Node", "metadata": {"name": "a"}, "spec": {"disks": {}}}`,
	} {
		s, err := FromObjects([]byte(native+"\n---\n"+other), settings(), engine.EvaluatorConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if g := s.state.PodGroup(cluster.GroupKey{Namespace: "default", Name: "train"}); g == nil || g.MinCount != 3 {
			t.Errorf("%s: the PodGroup is %+v, want one of 3 pods", what, g)
		}
		if n := s.state.Nodes.Count(); n != 0 {
			t.Errorf("%s: there are %d nodes, want none", what, n)
		}
		if nodes, err := Nodes(t.Context(), []byte(other), 10); err != nil || len(nodes) != 0 {
			t.Errorf("%s: nodes %v, %v, want none", what, nodes, err)
		}
	}
	const list = `{"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroupList", "items": [{"metadata": {"name": "train"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}]}`
	if events, err := Events([]byte(list)); err != nil || len(events) != 1 {
		t.Errorf("of a list of PodGroups: %v, %v, want one", events, err)
	}
}

func TestListsOfOneKindAndSeveralDocumentsAreRead(t *testing.T) {
	in := `{"kind": "NodeList", "apiVersion": "v1", "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: team, labels: {tier: one}}
---
`
	s, err := FromObjects([]byte(in), settings(), engine.EvaluatorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.state.Namespace("team"); !ok || s.state.Nodes.Count() != 2 {
		t.Errorf("%d nodes, namespace %v", s.state.Nodes.Count(), ok)
	}
}

func TestWhatIsNoObjectIsRefusedWithItsPlace(t *testing.T) {
	for in, want := range map[string]string{
		`{"kind": "List", "items": [{"kind": "Node", "metadata": {"name": "a"}}, {"kind": "Pod"}]}`: "read objects: document 1: items[1]: Pod: metadata.name is missing",
		`{"kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "many"}}}`:   "document 1: Node: quantities must match",
		"a: b": "document 1: want an object with apiVersion, kind and metadata",
		"[1]":  "document 1: json: cannot unmarshal array",
		"{":    "document 1: ",
	} {
		_, err := FromObjects([]byte(in), settings(), engine.EvaluatorConfig{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: team, creationTimestamp: null}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, creationTimestamp: null}
    spec:
      containers: [{name: c, image: i, resources: {requests: {cpu: 100m}}}]
`

func TestWorkloadIsThePodsThatControllersWouldMake(t *testing.T) {
	job := strings.NewReplacer("apps/v1", "batch/v1", "Deployment", "Job", "web", "batch", "replicas: 3", "parallelism: 5, completions: 2", "selector: {matchLabels: {app: batch}}", "").Replace(deployment)
	job = strings.Replace(job, "parallelism: 5, completions: 2", "parallelism: 5\n  completions: 2", 1)
	load, err := ReadWorkload(t.Context(), []byte(deployment+"---"+job), 2, 100)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range load.Pods {
		names = append(names, p.Namespace+"/"+p.Name+" "+p.Labels.Controller.Name)
	}
	want := []string{
		"team/web-0 web-what-if", "team/web-1 web-what-if", "team/web-2 web-what-if", "team/web-3 web-what-if", "team/web-4 web-what-if",
		"team/web-5 web-what-if", "team/batch-0 ", "team/batch-1 ", "team/batch-2 ", "team/batch-3 ",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The default constraints spread them over zones, which need the selector.
	var events []string
	for k := range 6 {
		events = append(events, fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: n%d, labels: {kubernetes.io/hostname: n%d, topology.kubernetes.io/zone: z%d}}, status: {allocatable: {cpu: "%d", memory: 64Gi, pods: "9"}}}`, k, k, k%3, 1+k%3))
	}
	s, err := FromObjects([]byte(strings.Join(events, "\n---\n")), settings(), engine.EvaluatorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	try(t, s, func(w *World) error {
		load, err := ReadWorkload(t.Context(), []byte(deployment), 1, 3)
		if err != nil {
			return err
		}
		ids, err := w.Add(load)
		if err != nil {
			return err
		}
		if _, err := Place(w, ids, PlaceOptions{}); err != nil {
			return err
		}
		use := UsageOf(w.State())
		if use.Spread() != 0 || use.Pods != 3 {
			t.Errorf("%+v", use)
		}
		if _, err := w.Add(load); err == nil {
			t.Error("the same pods are added twice")
		}
		return nil
	})
}

func TestWorkloadThatIsWrongIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"too many":   {deployment, "stand for more than 2 pods"},
		"no pods":    {"# nothing", "stand for no pod"},
		"a service":  {"{apiVersion: v1, kind: Service, metadata: {name: s}}", `kind: "Service" makes no pods`},
		"a mistake":  {strings.Replace(deployment, "image:", "imag:", 1), "spec.containers[0].imag"},
		"no pod":     {"{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}", "spec.template is missing"},
		"no replica": {strings.Replace(deployment, "replicas: 3", "replicas: 0", 1), "stand for no pod"},
	} {
		_, err := ReadWorkload(t.Context(), []byte(c.in), 1, 2)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	_, err := ReadWorkload(t.Context(), []byte(strings.Replace(deployment, "image:", "imag:", 1)), 1, 10)
	if wrong := (*manifest.Error)(nil); !errors.As(err, &wrong) {
		t.Errorf("%v is no *manifest.Error", err)
	}
}

// TestListsInListsAreRefused: to read them took time with the square of how deep they were, minutes for a few hundred kB.
func TestListsInListsAreRefused(t *testing.T) {
	deep := strings.Repeat(`{"kind":"List","items":[`, 2000) + strings.Repeat("]}", 2000)
	for _, data := range []string{deep, `{"kind":"List","items":[{"kind":"PodList","items":[]}]}`, `{"kind":"List","items":[{"kind":"List","items":[]}]}`} {
		if _, err := FromObjects([]byte(data), settings(), engine.EvaluatorConfig{}); !errors.Is(err, errNestedList) {
			t.Errorf("objects: %.200v", err)
		}
	}
	if _, err := ReadWorkload(t.Context(), []byte(deep), 1, 10); !errors.Is(err, errNestedList) {
		t.Errorf("workload: %.200v", err)
	}
}
