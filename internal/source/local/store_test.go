package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

func results(applied []Applied) string {
	var out []string
	for _, a := range applied {
		out = append(out, fmt.Sprintf("%s %s/%s %s", a.Kind, a.Namespace, a.Name, a.Result))
	}
	return strings.Join(out, ", ")
}

const nodeAndPod = `
apiVersion: v1
kind: Node
metadata: {name: n1, annotations: {a: "1"}}
status: {allocatable: {cpu: %s}, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: %s}, uid: their-own, creationTimestamp: "2001-01-01T00:00:00Z"}
spec: {containers: [{name: a, resources: {requests: {cpu: 500m}}}]}
`

func TestApplyTellsWhatItDid(t *testing.T) {
	c := startCluster(t)
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	store := NewStore(c.etcd, Config{Now: func() time.Time { return now }})
	apply := func(dryRun bool, text string, args ...any) string {
		t.Helper()
		applied, err := store.Apply(within(t), parse(t, fmt.Sprintf(text, args...)), dryRun)
		if err != nil {
			t.Fatal(err)
		}
		return results(applied)
	}
	for i, step := range []struct {
		dryRun bool
		cpu    string
		app    string
		want   string
	}{
		{true, "4", "x", "Node /n1 created, Pod default/p created"},
		{false, "4", "x", "Node /n1 created, Pod default/p created"},
		{false, "4", "x", "Node /n1 unchanged, Pod default/p unchanged"},
		{false, "4000m", "x", "Node /n1 unchanged, Pod default/p unchanged"},
		{true, "8", "x", "Node /n1 configured, Pod default/p unchanged"},
		{false, "4", "w", "Node /n1 unchanged, Pod default/p configured"},
	} {
		if got := apply(step.dryRun, nodeAndPod, step.cpu, step.app); got != step.want {
			t.Errorf("step %d: %s; want %s", i, got, step.want)
		}
	}
	kv, _, err := c.etcd.Get(within(t), podKey("default", "p"))
	if err != nil || kv == nil {
		t.Fatal(kv, err)
	}
	var pod v1.Pod
	if err := json.Unmarshal(kv.Value, &pod); err != nil {
		t.Fatal(err)
	}
	if pod.UID == "their-own" || len(pod.UID) != 36 || !pod.CreationTimestamp.Time.Equal(now) || pod.Labels["app"] != "w" {
		t.Errorf("stored: %+v", pod.ObjectMeta)
	}
	if kv.CreateRevision == kv.ModRevision {
		t.Error("the pod was not updated in place")
	}
}

func TestOnlySomeOfAPodCanBeChanged(t *testing.T) {
	c := startCluster(t)
	base := `
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {a: b}}
spec:
  schedulingGates: [{name: one}, {name: two}]
  tolerations: [{key: k, operator: Exists}]
  containers: [{name: a, image: x, resources: {requests: {cpu: 500m}}}]
`
	c.apply(t, parse(t, base)...)
	for _, test := range []struct{ from, to, field string }{
		{"cpu: 500m", "cpu: 600m", "spec.containers[0].resources.requests.cpu"},
		{"image: x", "image: z", "spec.containers[0].image"},
		{"spec:", "spec:\n  priority: 5", "spec.priority"},
		{"spec:", "spec:\n  nodeSelector: {a: b}", "spec.nodeSelector"},
		{"[{name: one}, {name: two}]", "[{name: one}, {name: two}, {name: three}]", "spec.schedulingGates"},
		{"[{key: k, operator: Exists}]", "[]", "spec.tolerations"},
		{"containers: [", "containers: [{name: b}, ", "spec.containers"},
	} {
		_, err := c.store.Apply(within(t), parse(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n---"+strings.Replace(base, test.from, test.to, 1)), false)
		invalid, ok := errors.AsType[*manifest.Error](err)
		if !ok || len(invalid.Violations) != 1 {
			t.Fatalf("%s instead of %s: %v, want a *manifest.Error of one violation", test.to, test.from, err)
		}
		if v := invalid.Violations[0]; v.Field != test.field || v.Object != "Pod default/p" || v.Document != 2 {
			t.Errorf("%s instead of %s: %s, want the field %s", test.to, test.from, v, test.field)
		}
		if kv, _, err := c.etcd.Get(within(t), namespaceKeys+"other"); kv != nil || err != nil {
			t.Fatal("something was written together with a change that is not possible", err)
		}
	}
	changed := strings.NewReplacer("[{name: one}, {name: two}]", "[{name: two}]", "{key: k, operator: Exists}", "{key: l, value: v}, {key: k, operator: Exists}",
		"a: b", "a: c", "cpu: 500m", "cpu: 0.5").Replace(base)
	if got := results(c.apply(t, parse(t, changed)...)); got != "Pod default/p configured" {
		t.Errorf("fewer gates, more tolerations, another label: %s", got)
	}
	r := sourcetest.Record(t, c.Source(t)).Synced()
	pod := r.Pod("default", "p", "")
	if diff := cmp.Diff([]string{"two"}, pod.Gates); diff != "" || len(pod.Class.Tolerations) != 2 {
		t.Errorf("told with gates %v and tolerations %v", pod.Gates, pod.Class.Tolerations)
	}
}

func TestDeletingAPodDeletesAllThatIsItsAndANodeNothingElse(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	uid := c.SetPod(t, sourcetest.Pod("p"))
	s := New(c.etcd, Config{})
	b := source.Binding{UID: uid, Namespace: "default", Name: "p", Node: "one"}
	if err := s.Unschedulable(within(t), source.Report{UID: uid, Namespace: "default", Name: "p", Reason: "Unschedulable", Message: "m"}); err != nil {
		t.Fatal(err)
	}
	if out := s.Bind(within(t), c.Fence(t), []source.Binding{b}); out[0].Result != source.BindDone {
		t.Fatal(out[0])
	}
	c.DeleteNode(t, "one")
	c.delete(t, manifest.KindNamespace, "", "default")
	if node := c.stored(t, "default", "p").node; node != "one" {
		t.Errorf("after its node was deleted the pod is on %q", node)
	}
	c.DeletePod(t, "default", "p")
	if kvs, _, err := c.etcd.List(within(t), root); err != nil || len(kvs) != 0 {
		t.Errorf("left in etcd: %v, %v", kvs, err)
	}
	for _, gone := range []struct{ kind, namespace, name string }{
		{manifest.KindPod, "default", "p"}, {manifest.KindNode, "", "one"}, {manifest.KindNamespace, "", "default"},
	} {
		if err := c.store.Delete(within(t), gone.kind, gone.namespace, gone.name); !errors.Is(err, ErrNotFound) {
			t.Errorf("delete %v: %v, want ErrNotFound", gone, err)
		}
	}
	if err := c.store.Delete(within(t), "Deployment", "", "x"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("delete of an unknown kind: %v", err)
	}
}

func TestTwoWritersOfTheSameObjectsDoNotLoseEachOther(t *testing.T) {
	c := startCluster(t)
	const n = 40
	var writers sync.WaitGroup
	for w := range 4 {
		var objects []manifest.Object
		for i := range n {
			pod := sourcetest.Pod(fmt.Sprintf("p-%d", i))
			pod.Labels = map[string]string{"writer": fmt.Sprint(w)}
			objects = append(objects, manifest.Object{Pod: pod})
		}
		writers.Go(func() {
			if _, err := NewStore(c.etcd, Config{}).Apply(within(t), objects, false); err != nil && !errors.Is(err, ErrConflict) {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	kvs, _, err := c.etcd.List(within(t), podKeys)
	if err != nil || len(kvs) != n {
		t.Fatalf("%d pods, %v", len(kvs), err)
	}
	uids := map[string]bool{}
	for _, kv := range kvs {
		var pod v1.Pod
		if err := json.Unmarshal(kv.Value, &pod); err != nil {
			t.Fatal(err)
		}
		uids[string(pod.UID)] = true
	}
	if len(uids) != n {
		t.Errorf("%d uids of %d pods", len(uids), n)
	}
}

func TestNoPlacementOutlivesItsPod(t *testing.T) {
	c := startCluster(t)
	s := New(c.etcd, Config{})
	const n = 200
	uids := make([]string, n)
	for i := range n {
		uids[i] = c.SetPod(t, sourcetest.Pod(fmt.Sprintf("p-%d", i)))
	}
	var deleting sync.WaitGroup
	defer deleting.Wait()
	for i, uid := range uids {
		b := source.Binding{UID: uid, Namespace: "default", Name: fmt.Sprintf("p-%d", i), Node: "one"}
		deleting.Go(func() { c.DeletePod(t, b.Namespace, b.Name) })
		if out := s.Bind(within(t), c.Fence(t), []source.Binding{b}); out[0].Result != source.BindDone && out[0].Result != source.BindGone {
			t.Errorf("%s: %+v", b.Name, out[0])
		}
	}
	deleting.Wait()
	if kvs, _, err := c.etcd.List(within(t), placementKeys); err != nil || len(kvs) > 0 {
		t.Errorf("%d placements of pods that are gone, %v", len(kvs), err)
	}
}

func TestManyObjectsAreAppliedInFewTransactions(t *testing.T) {
	c := startCluster(t)
	const n = 10_000
	objects := make([]manifest.Object, n)
	for i := range objects {
		objects[i] = manifest.Object{Pod: sourcetest.Pod(fmt.Sprintf("p-%05d", i))}
	}
	_, before, err := c.etcd.Get(within(t), "x")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	applied := c.apply(t, objects...)
	t.Logf("applied %d pods in %v", n, time.Since(began))
	_, after, err := c.etcd.Get(within(t), "x")
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(n/coord.MaxTxnOps + 1); after-before > want {
		t.Errorf("%d transactions, want at most %d", after-before, want)
	}
	for i, a := range applied {
		if a.Result != Created || a.Name != objects[i].Pod.Name {
			t.Fatalf("object %d: %+v", i, a)
		}
	}
	if again := c.apply(t, objects...); again[n-1].Result != Unchanged {
		t.Errorf("applied again: %+v", again[n-1])
	}
	began = time.Now()
	sourcetest.Record(t, c.Source(t)).Synced().View(func(v sourcetest.View) {
		if len(v.Pods) != n {
			t.Errorf("%d pods told", len(v.Pods))
		}
	})
	t.Logf("told %d pods in %v", n, time.Since(began))
}

func TestAStoredNodeHasNoEmptyFieldsAndLosesNothing(t *testing.T) {
	o := parse(t, `
apiVersion: v1
kind: Node
metadata: {name: one, labels: {zone: a}, annotations: {a: b}}
spec: {unschedulable: true, podCIDR: 10.0.0.0/24, taints: [{key: k, value: v, effect: NoSchedule}]}
status:
  capacity: {cpu: 4}
  allocatable: {cpu: 3500m, memory: 1Gi}
  images: [{names: [a, b], sizeBytes: 7}]
  declaredFeatures: [F]
  nodeInfo: {kubeletVersion: v1}
`)[0]
	stored := kept(o)
	value, err := encode(stored)
	if err != nil {
		t.Fatal(err)
	}
	var got v1.Node
	if err := json.Unmarshal(value, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(stored.Node, &got); diff != "" {
		t.Errorf("a stored node (-put in +read):\n%s", diff)
	}
	for _, field := range []string{"nodeInfo", "daemonEndpoints", "null", `""`, "{}"} {
		if strings.Contains(strings.Replace(string(value), `"creationTimestamp":null`, "", 1), field) {
			t.Errorf("a stored node has %s: %s", field, value)
		}
	}
}
