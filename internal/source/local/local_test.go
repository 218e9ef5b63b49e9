package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func startEtcd(t testing.TB, dir string) *coord.Embedded {
	t.Helper()
	e, err := coord.StartEmbedded(within(t), coord.EmbeddedConfig{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func connect(t testing.TB, endpoints []string) *coord.Client {
	t.Helper()
	c, err := coord.Connect(coord.Config{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// testCluster is the cluster of manifests behind the contract.
type testCluster struct {
	etcd  *coord.Client
	store *Store
	term  *coord.Term
}

func startCluster(t testing.TB) *testCluster {
	t.Helper()
	etcd := connect(t, startEtcd(t, t.TempDir()).Endpoints())
	c := &testCluster{etcd: etcd, store: NewStore(etcd, Config{})}
	c.term = elect(t, etcd, "binder-1")
	c.apply(t, manifest.Object{Namespace: parse(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: default}")[0].Namespace})
	return c
}

// elect makes id the binder and returns its term.
func elect(t testing.TB, etcd *coord.Client, id string) *coord.Term {
	t.Helper()
	session, err := etcd.NewSession(within(t), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(within(t)); err != nil {
			t.Error(err)
		}
	})
	term, err := etcd.Campaign(within(t), session, id, "nowhere:1")
	if err != nil {
		t.Fatal(err)
	}
	return term
}

func parse(t testing.TB, text string) []manifest.Object {
	t.Helper()
	objects, err := manifest.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func (c *testCluster) apply(t testing.TB, objects ...manifest.Object) []Applied {
	t.Helper()
	applied, err := c.store.Apply(within(t), objects, false)
	if err != nil {
		t.Fatal(err)
	}
	return applied
}

func (c *testCluster) delete(t testing.TB, kind, namespace, name string) {
	t.Helper()
	if err := c.store.Delete(within(t), kind, namespace, name); err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) Source(testing.TB) source.Source { return New(c.etcd, Config{}) }
func (c *testCluster) Fence(testing.TB) coord.Cond     { return c.term.Guard() }

func (c *testCluster) SetNode(t testing.TB, node *v1.Node) {
	c.apply(t, manifest.Object{Node: node})
}
func (c *testCluster) DeleteNode(t testing.TB, name string) {
	c.delete(t, manifest.KindNode, "", name)
}
func (c *testCluster) SetPod(t testing.TB, pod *v1.Pod) string {
	t.Helper()
	c.apply(t, manifest.Object{Pod: pod})
	return c.stored(t, pod.Namespace, pod.Name).uid
}
func (c *testCluster) DeletePod(t testing.TB, namespace, name string) {
	c.delete(t, manifest.KindPod, namespace, name)
}
func (c *testCluster) SetNamespace(t testing.TB, namespace *v1.Namespace) {
	c.apply(t, manifest.Object{Namespace: namespace})
}

func (c *testCluster) EndPod(t testing.TB, namespace, name string) {
	t.Helper()
	kv, _, err := c.etcd.Get(within(t), podKey(namespace, name))
	if err != nil || kv == nil {
		t.Fatal(kv, err)
	}
	var pod v1.Pod
	if err := json.Unmarshal(kv.Value, &pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = v1.PodSucceeded
	c.apply(t, manifest.Object{Pod: &pod})
}

func (c *testCluster) Nominate(t testing.TB, namespace, name, node string) {
	t.Helper()
	kv, _, err := c.etcd.Get(within(t), podKey(namespace, name))
	if err != nil || kv == nil {
		t.Fatal(kv, err)
	}
	var pod v1.Pod
	if err := json.Unmarshal(kv.Value, &pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.NominatedNodeName = node
	c.apply(t, manifest.Object{Pod: &pod})
}

func (c *testCluster) SetSelector(t testing.TB, kind, namespace, name string, labels map[string]string) {
	t.Helper()
	version, selector := "v1", any(labels)
	if kind == cluster.KindReplicaSet || kind == cluster.KindStatefulSet {
		version, selector = "apps/v1", map[string]any{"matchLabels": labels}
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": version, "kind": kind,
		"metadata": map[string]any{"namespace": namespace, "name": name}, "spec": map[string]any{"selector": selector},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, parse(t, string(text))...)
}

func (c *testCluster) DeleteSelector(t testing.TB, kind, namespace, name string) {
	t.Helper()
	c.delete(t, kind, namespace, name)
}

func (c *testCluster) SetBudget(t testing.TB, budget *policyv1.PodDisruptionBudget) {
	t.Helper()
	c.apply(t, manifest.Object{Other: budget})
}

func (c *testCluster) DeleteBudget(t testing.TB, namespace, name string) {
	t.Helper()
	c.delete(t, manifest.KindPodDisruptionBudget, namespace, name)
}

func (c *testCluster) SetObject(t testing.TB, object metav1.Object) {
	t.Helper()
	c.apply(t, manifest.Object{Other: object})
}

func (c *testCluster) DeleteObject(t testing.TB, kind, namespace, name string) {
	t.Helper()
	c.delete(t, kind, namespace, name)
}

func (c *testCluster) Reported(t testing.TB, _, _, uid string) (int64, string) {
	t.Helper()
	kv, _, err := c.etcd.Get(within(t), conditionKeys+uid)
	if err != nil || kv == nil {
		t.Fatal(kv, err)
	}
	var stored condition
	if err := json.Unmarshal(kv.Value, &stored); err != nil {
		t.Fatal(err)
	}
	return kv.ModRevision, stored.Message
}

func (c *testCluster) stored(t testing.TB, namespace, name string) storedPod {
	t.Helper()
	p, err := New(c.etcd, Config{}).read(within(t), namespace, name)
	if err != nil || p == nil {
		t.Fatalf("read pod %s/%s: %v, %v", namespace, name, p, err)
	}
	return *p
}

func TestContract(t *testing.T) { sourcetest.Run(t, startCluster(t)) }

func TestAFencedBinderPlacesNothing(t *testing.T) {
	c := startCluster(t)
	var batch []source.Binding
	for i := range 3 {
		name := fmt.Sprintf("pod-%d", i)
		batch = append(batch, source.Binding{UID: c.SetPod(t, sourcetest.Pod(name)), Namespace: "default", Name: name, Node: "one"})
	}
	old := New(c.etcd, Config{})
	sourcetest.Record(t, old).Synced()
	guard := c.term.Guard()
	if err := c.term.Resign(within(t)); err != nil {
		t.Fatal(err)
	}
	next := elect(t, c.etcd, "binder-2")

	for _, s := range []source.Source{old, New(c.etcd, Config{})} { // one that knows the pods, one that has to read them
		for i, o := range s.Bind(within(t), guard, batch) {
			if o.Result != source.BindRefused || !errors.Is(o.Err, coord.ErrFenced) {
				t.Errorf("binding %d of a deposed binder: %+v, want BindRefused with ErrFenced", i, o)
			}
		}
	}
	for i := range batch {
		if node := c.stored(t, "default", batch[i].Name).node; node != "" {
			t.Errorf("%s is on %s", batch[i].Name, node)
		}
	}
	for i, o := range old.Bind(within(t), next.Guard(), batch) {
		if o.Result != source.BindDone {
			t.Errorf("binding %d of the next binder: %+v", i, o)
		}
	}
}

func TestABatchIsOneTransaction(t *testing.T) {
	c := startCluster(t)
	s := New(c.etcd, Config{})
	var batch []source.Binding
	for i := range s.MaxBatch() {
		name := fmt.Sprintf("pod-%02d", i)
		batch = append(batch, source.Binding{UID: c.SetPod(t, sourcetest.Pod(name)), Namespace: "default", Name: name, Node: "one"})
	}
	sourcetest.Record(t, s).Synced()
	for i, o := range s.Bind(within(t), c.Fence(t), batch) {
		if o.Result != source.BindDone {
			t.Fatalf("binding %d: %+v", i, o)
		}
	}
	placed, _, err := c.etcd.List(within(t), placementKeys)
	if err != nil || len(placed) != len(batch) {
		t.Fatalf("%d placements, %v", len(placed), err)
	}
	for _, kv := range placed {
		if kv.ModRevision != placed[0].ModRevision {
			t.Fatal("the placements of a batch were written at different revisions")
		}
	}
}

func TestEverythingSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	first, err := coord.StartEmbedded(within(t), coord.EmbeddedConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := coord.Connect(coord.Config{Endpoints: first.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{etcd: etcd, store: NewStore(etcd, Config{})}
	c.SetNode(t, sourcetest.Node("one"))
	uid := c.SetPod(t, sourcetest.Pod("lives"))
	out := New(etcd, Config{}).Bind(within(t), coord.IfAbsent("nothing"), []source.Binding{{UID: uid, Namespace: "default", Name: "lives", Node: "one"}})
	if out[0].Result != source.BindDone {
		t.Fatal(out[0])
	}
	if err := errors.Join(etcd.Close(), first.Close()); err != nil {
		t.Fatal(err)
	}

	again := connect(t, startEtcd(t, dir).Endpoints())
	r := sourcetest.Record(t, New(again, Config{})).Synced()
	if pod := r.Pod("default", "lives", "one"); pod.UID != uid {
		t.Errorf("the pod has uid %s after the restart, %s before", pod.UID, uid)
	}
	r.View(func(v sourcetest.View) {
		if v.Nodes["one"].Name == "" {
			t.Error("the node is gone after the restart")
		}
	})
}

func TestWatchWaitsForEtcdAndSaysSo(t *testing.T) {
	etcd, err := coord.Connect(coord.Config{Endpoints: []string{"127.0.0.1:1"}, RequestTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s := New(etcd, Config{})
	r := sourcetest.Record(t, s)
	deadline := time.Now().Add(5 * time.Minute)
	for !strings.Contains(s.Ready().Error(), "127.0.0.1:1") {
		if time.Now().After(deadline) {
			t.Fatalf("Ready: %v, want the endpoint that does not answer", s.Ready())
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.Stop()
	if err := etcd.Close(); err != nil {
		t.Error(err)
	}
}

func TestTheDifferenceIsToldWhenChangesWereMissed(t *testing.T) {
	c := startCluster(t)
	s := New(c.etcd, Config{})
	var got []string
	v := newView(s, func(e source.Event) {
		object := e.Key.Name
		if e.Object != nil {
			object = e.Object.Key().Name
		}
		got = append(got, fmt.Sprintf("%d %s%s%s%s %s", e.Kind, e.Node.Name, e.Pod.Name, e.Namespace, e.Selector.Name+object, e.Pod.NodeName+e.Pod.Nominated))
	})
	list := func() []string {
		t.Helper()
		got = nil
		if _, err := v.list(within(t)); err != nil {
			t.Fatal(err)
		}
		return got
	}
	c.SetNode(t, sourcetest.Node("stays"))
	c.SetNode(t, sourcetest.Node("goes"))
	placed := c.SetPod(t, sourcetest.Pod("placed"))
	c.SetPod(t, sourcetest.Pod("goes"))
	c.SetPod(t, sourcetest.Pod("replaced"))
	c.SetPod(t, sourcetest.Pod("stays"))
	app := map[string]string{"app": "x"}
	c.SetSelector(t, cluster.KindReplicaSet, "default", "goes", app)
	c.SetSelector(t, cluster.KindService, "default", "empties", app)
	c.SetSelector(t, cluster.KindService, "default", "stays", app)
	for _, name := range []string{"goes", "stays"} {
		c.SetBudget(t, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})
	}
	want := []string{"5 default ", "1 goes ", "1 stays ", "9 goes ", "9 stays ", "7 goes ", "7 empties ", "7 stays ", "3 goes ", "3 placed ", "3 replaced ", "3 stays "}
	if got := list(); !slices.Equal(got, want) {
		t.Fatalf("first list told %q, want %q", got, want)
	}

	c.DeleteNode(t, "goes")
	c.DeletePod(t, "default", "goes")
	c.DeletePod(t, "default", "replaced")
	c.SetPod(t, sourcetest.Pod("replaced"))
	s.Bind(within(t), c.Fence(t), []source.Binding{{UID: placed, Namespace: "default", Name: "placed", Node: "stays"}})
	c.DeleteSelector(t, cluster.KindReplicaSet, "default", "goes")
	c.SetSelector(t, cluster.KindService, "default", "empties", nil)
	c.DeleteBudget(t, "default", "goes")
	waits := c.stored(t, "default", "stays").uid
	if err := s.Nominate(within(t), source.Nomination{UID: waits, Namespace: "default", Name: "stays", Node: "there"}); err != nil {
		t.Fatal(err)
	}
	want = []string{"2 goes ", "10 goes ", "8 goes ", "8 empties ", "4 replaced ", "3 replaced ", "4 goes ", "11 placed stays", "11 stays there"}
	got = list()
	slices.Sort(got[len(got)-2:]) // of the pods that are told last the order is open
	if !slices.Equal(got, want) {
		t.Errorf("second list told %q, want %q", got, want)
	}
	if got := list(); len(got) != 0 {
		t.Errorf("third list, of the same keys, told %q", got)
	}
	if _, _, err := c.etcd.Txn(within(t), nil, []coord.Op{coord.Delete(placementKeys + placed)}); err != nil {
		t.Fatal(err)
	}
	if want, got := []string{"11 placed "}, list(); !slices.Equal(got, want) {
		t.Errorf("fourth list, without a placement, told %q, want %q", got, want)
	}
}

// A pod and its placement have keys of their own: whichever is seen first, and whatever ends first, the pod is told where it is.
func TestAPodIsToldOnTheNodeOfItsPlacement(t *testing.T) {
	var got []string
	v := newView(New(nil, Config{}), func(e source.Event) {
		got = append(got, fmt.Sprintf("%d %s/%s %s %s", e.Kind, e.Pod.Namespace, e.Pod.Name, e.Pod.UID, e.Pod.NodeName))
	})
	revision := int64(0)
	put := func(key, value string) coord.Event {
		revision++
		return coord.Event{KV: coord.KV{Key: key, Value: []byte(value), CreateRevision: 1, ModRevision: revision}}
	}
	gone := func(key string) coord.Event { return coord.Event{KV: coord.KV{Key: key}, Deleted: true} }
	const pod, placement = podKeys + "default/p", placementKeys + "u"
	manifest := func(phase string) coord.Event {
		return put(pod, `{"metadata": {"namespace": "default", "name": "p", "uid": "u"}, "status": {"phase": "`+phase+`"}}`)
	}
	for _, step := range []struct {
		what  string
		event coord.Event
		want  []string
	}{
		{"a placement of a pod that is not known", put(placement, `{"node": "a"}`), nil},
		{"its pod", manifest(""), []string{"3 default/p u a"}},
		{"the placement as it was", put(placement, `{"node": "a"}`), nil},
		{"the end of the placement", gone(placement), []string{"11 default/p u "}},
		{"another one", put(placement, `{"node": "b"}`), []string{"11 default/p u b"}},
		{"the pod, updated", manifest("Running"), []string{"3 default/p u b"}},
		{"the pod, finished", manifest("Failed"), []string{"4 default/p u "}},
		{"the pod, running after all", manifest("Running"), []string{"3 default/p u b"}},
		{"the end of the pod", gone(pod), []string{"4 default/p u "}},
		{"the end of the placement of no pod", gone(placement), nil},
		{"a pod of the same uid", manifest(""), []string{"3 default/p u "}},
	} {
		got = nil
		if v.update([]coord.Event{step.event}); !slices.Equal(got, step.want) {
			t.Errorf("%s: told %q, want %q", step.what, got, step.want)
		}
	}
	if bound := v.source.lookup("u"); bound.key != pod || bound.told.node != "" {
		t.Errorf("known is %+v", bound)
	}
}

func TestEveryKindIsListed(t *testing.T) {
	want := append(slices.Collect(maps.Keys(objectKeys)), placementKeys, conditionKeys)
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(listOrder)); !slices.Equal(got, want) {
		t.Errorf("prefixes that are listed: %q, want %q", got, want)
	}
	if listOrder[len(listOrder)-1] != podKeys {
		t.Errorf("pods are not listed last: %q", listOrder)
	}
}

// What is stored stays where it is looked for.
func TestObjectsAreKeptUnderTheirResource(t *testing.T) {
	want := map[string]string{
		"local/nodes/": "Node", "local/pods/": "Pod", "local/namespaces/": "Namespace", "local/services/": "Service",
		"local/replicationcontrollers/": "ReplicationController", "local/replicasets/": "ReplicaSet", "local/statefulsets/": "StatefulSet",
		"local/poddisruptionbudgets/": "PodDisruptionBudget", "local/persistentvolumes/": "PersistentVolume",
		"local/persistentvolumeclaims/": "PersistentVolumeClaim", "local/storageclasses/": "StorageClass", "local/csinodes/": "CSINode",
		"local/csidrivers/": "CSIDriver", "local/csistoragecapacities/": "CSIStorageCapacity", "local/volumeattachments/": "VolumeAttachment", "local/podgroups/": "PodGroup",
	}
	if !maps.Equal(objectKeys, want) {
		t.Errorf("objects are kept under %q, want %q", objectKeys, want)
	}
	for kind, want := range map[string]string{"Node": "local/nodes/b", "PodDisruptionBudget": "local/poddisruptionbudgets/a/b", "CSINode": "local/csinodes/b", "Deployment": ""} {
		if got, ok := keyOf(kind, "a", "b"); got != want || ok != (want != "") {
			t.Errorf("the key of a %s is %q, want %q", kind, got, want)
		}
	}
}

func TestAListThatBreaksOffIsFinishedByTheNext(t *testing.T) {
	c := startCluster(t)
	for _, name := range []string{"a", "b", "goes"} {
		c.SetNode(t, sourcetest.Node(name))
	}
	c.SetPod(t, sourcetest.Pod("pod"))
	var got []string
	told := func(source.Event) {}
	v := newView(New(c.etcd, Config{}), func(e source.Event) {
		got = append(got, fmt.Sprintf("%d %s%s%s", e.Kind, e.Node.Name, e.Pod.Name, e.Namespace))
		told(e)
	})
	ctx, cancel := context.WithCancel(within(t))
	told = func(e source.Event) {
		if e.Node.Name == "goes" {
			cancel()
		}
	}
	if _, err := v.list(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("a list whose context ends while it tells: %v", err)
	}
	if want := []string{"5 default", "1 a", "1 b", "1 goes"}; !slices.Equal(got, want) {
		t.Errorf("told before the list broke off: %q, want %q", got, want)
	}
	c.DeleteNode(t, "goes")
	got = nil
	if _, err := v.list(within(t)); err != nil {
		t.Fatal(err)
	}
	if want := []string{"2 goes", "3 pod"}; !slices.Equal(got, want) {
		t.Errorf("the next list told %q, want %q", got, want)
	}
}

// An etcd keeps a minute or two of the past, and to read all there is may take longer.
func TestAListThatTakesLongerThanEtcdKeepsIsFinishedByTheNext(t *testing.T) {
	c := startCluster(t)
	for _, name := range []string{"a", "b", "goes"} {
		c.SetNode(t, sourcetest.Node(name))
	}
	c.SetPod(t, sourcetest.Pod("pod"))
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	var got []string
	err := New(c.etcd, Config{}).Watch(ctx, func(e source.Event) {
		got = append(got, fmt.Sprintf("%d %s%s%s", e.Kind, e.Node.Name, e.Pod.Name, e.Namespace))
		switch {
		case e.Kind == source.NodeSet && e.Node.Name == "goes": // told when nothing that is behind the nodes has been read
			c.DeleteNode(t, "goes")
			d, err := c.etcd.Database(ctx)
			if err == nil {
				err = c.etcd.Compact(ctx, d.Revision)
			}
			if err != nil {
				t.Error(err)
			}
		case e.Kind == source.Synced:
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if want := []string{"5 default", "1 a", "1 b", "1 goes", "2 goes", "3 pod", "12 "}; !slices.Equal(got, want) {
		t.Errorf("told: %q, want %q", got, want)
	}
}
