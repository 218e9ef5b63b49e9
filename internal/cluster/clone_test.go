package cluster_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// grown returns a state after random deltas, and the deltas.
func grown(t *rapid.T, steps int) (*cluster.State, []cluster.Delta) {
	st, intn := cluster.New(start), draws(t)
	var log []cluster.Delta
	for range rapid.IntRange(0, steps).Draw(t, "steps") {
		log = append(log, grow(t, intn, st))
	}
	return st, log
}

// grow applies a random delta and returns it.
func grow(t *rapid.T, intn clustertest.Intn, st *cluster.State) cluster.Delta {
	d := clustertest.Delta(intn, st)
	if err := st.Apply(d); err != nil {
		t.Fatalf("Apply(%+v): %v", d, err)
	}
	return d
}

// same fails unless two states are equal, as far as anybody can tell.
func same(t *rapid.T, what string, a, b *cluster.State) {
	t.Helper()
	if a.Version() != b.Version() || a.Digest() != b.Digest() {
		t.Fatalf("%s: version %v and digest %016x, want %v and %016x", what, b.Version(), b.Digest(), a.Version(), a.Digest())
	}
	if diff := cmp.Diff(clustertest.Dump(a), clustertest.Dump(b)); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
	if diff := cmp.Diff(changes(a), changes(b)); diff != "" {
		t.Fatalf("%s, changes (-want +got):\n%s", what, diff)
	}
}

// changes describes what incremental evaluation reads.
func changes(st *cluster.State) []string {
	var out []string
	st.Changes(0, func(c *cluster.NodeChange) { out = append(out, fmt.Sprintf("%+v", *c)) })
	for i := range st.Nodes.Modified {
		out = append(out, fmt.Sprint(i, st.Nodes.Modified[i], st.Nodes.SpecModified[i], st.Nodes.PodsModified[i]))
	}
	return append(out, fmt.Sprint(st.ImagesModified, st.KeysModified, st.NamespacesModified, st.TermsModified, objectsModified(st),
		st.FreePod(), st.Nodes.Free(), st.Symbols.Len(), st.Resources()))
}

func objectsModified(st *cluster.State) map[cluster.ObjectKind]cluster.Seq {
	out := make(map[cluster.ObjectKind]cluster.Seq)
	for _, kind := range append(cluster.ObjectKinds(), 999) {
		out[kind] = st.ObjectsModified(kind)
	}
	return out
}

// fold returns the state that a log builds.
func fold(t *rapid.T, log []cluster.Delta) *cluster.State {
	st := cluster.New(start)
	for _, d := range log {
		if err := st.Apply(d); err != nil {
			t.Fatalf("Apply(%+v): %v", d, err)
		}
	}
	return st
}

func TestCloneIsWhatTheLogBuilds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st, log := grown(t, 60)
		clone := st.Clone()
		same(t, "the clone", fold(t, log), clone)
		intn := draws(t)
		for range rapid.IntRange(0, 30).Draw(t, "more") { // to both, turn and turn about
			d := grow(t, intn, st)
			if err := clone.Apply(d); err != nil {
				t.Fatalf("Apply(%+v) to the clone: %v", d, err)
			}
			log = append(log, d)
		}
		same(t, "the original, later", fold(t, log), st)
		same(t, "the clone, later", st, clone)
		if err := clustertest.Recompute(clone); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloneAndOriginalNeverChangeEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st, log := grown(t, 60)
		clone := st.Clone()
		logs := map[*cluster.State][]cluster.Delta{st: log, clone: append([]cluster.Delta(nil), log...)}
		intn := draws(t)
		for range rapid.IntRange(1, 30).Draw(t, "more") {
			changed := st
			if intn(2) == 0 {
				changed = clone
			}
			logs[changed] = append(logs[changed], grow(t, intn, changed))
		}
		same(t, "the original", fold(t, logs[st]), st)
		same(t, "the clone", fold(t, logs[clone]), clone)
	})
}

// What changes in place must not be shared: every slice and every map of a state, but for those that are replaced whole.
func TestCloneSharesOnlyWhatNeverChanges(t *testing.T) {
	shared := map[string]bool{
		"State.Settings":                true, // replaced
		"State.termClasses":             true, // replaced
		"State.shapes":                  true, // of pointers to what never changes
		"State.before":                  true, // empty
		"State.scratch":                 true, // empty
		"State.Nodes.Spec[]":            true, // shapes never change
		"State.Nodes.Labels[]":          true, // replaced
		"State.Nodes.symbols":           true, // see below
		"State.pods[]":                  true, // their gates are replaced
		"State.namespaces{}":            true, // replaced
		"State.services{}{}":            true, // replaced
		"State.controllers{}":           true, // replaced
		"State.objects.kinds[].all{}{}": true, // replaced
		"State.classes{}.Spec":          true, // never changes
		"State.labels{}.Labels":         true, // never changes
		"State.classes{}.requests":      true, // replaced
		"State.classes{}.lacked":        true, // replaced
		"State.classes{}.ports":         true, // never changes
		"State.labels{}.LabelSet":       true, // never changes

		"State.volumes.supply.classes{}.shelves{}.Shelf.Volumes[]": true, // objects never change
		"State.volumes.supply.classes{}.shelves{}.places":          true, // never changes
		"State.volumes.supply.classes{}.room{}":                    true, // never changes
		"State.volumes.supply.classes{}.volumes":                   true, // made anew, of what is in shelves
		"State.volumes.supply.classes{}.capacities":                true, // likewise, of what is in room
		"State.volumes.choices{}":                                  true, // never changes
	}
	rapid.Check(t, func(t *rapid.T) {
		st, _ := grown(t, 100)
		clone := st.Clone()
		var visit func(path string, a, b reflect.Value)
		visit = func(path string, a, b reflect.Value) {
			if shared[path] {
				return
			}
			switch a.Kind() {
			case reflect.Slice:
				if a.Cap() > 0 && a.Len() > 0 && a.Pointer() == b.Pointer() {
					t.Fatalf("%s is shared", path)
				}
				for k := range a.Len() {
					visit(path+"[]", a.Index(k), b.Index(k))
				}
			case reflect.Map:
				if a.Len() > 0 && a.Pointer() == b.Pointer() {
					t.Fatalf("%s is shared", path)
				}
				for _, key := range a.MapKeys() {
					visit(path+"{}", a.MapIndex(key), b.MapIndex(key))
				}
			case reflect.Pointer:
				if !a.IsNil() && a.Pointer() == b.Pointer() {
					t.Fatalf("%s is shared", path)
				}
				if !a.IsNil() {
					visit(path, a.Elem(), b.Elem())
				}
			case reflect.Struct:
				for k := range a.NumField() {
					visit(path+"."+a.Type().Field(k).Name, a.Field(k), b.Field(k))
				}
			}
		}
		visit("State", reflect.ValueOf(st).Elem(), reflect.ValueOf(clone).Elem())
		if at := reflect.ValueOf(clone).Elem().FieldByName("Nodes").FieldByName("symbols").Pointer(); at != reflect.ValueOf(&clone.Symbols).Pointer() {
			t.Fatal("the clone's nodes have other symbols than the clone")
		}
	})
}

// BenchmarkClone copies a cluster with so many nodes, and two pods on each.
func BenchmarkClone(b *testing.B) {
	for _, nodes := range []int{5000, 100_000} {
		st := loaded(b, nodes)
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				st.Clone()
			}
		})
	}
}

// loaded returns a state with so many nodes in ten zones, two pods on each, of 100 classes and 1,000 label sets.
func loaded(b *testing.B, nodes int) *cluster.State {
	b.Helper()
	st := cluster.New(start)
	apply := func(d cluster.Delta) {
		if err := st.Apply(d); err != nil {
			b.Fatal(err)
		}
	}
	apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{clustertest.Profile("default-scheduler")}}})
	for k := range 100 {
		asks := []cluster.Quantity{{Name: "cpu", Value: int64(100 + k)}, {Name: "memory", Value: 256 << 20}}
		apply(cluster.ClassDefined{ID: cluster.ClassID(k), Spec: cluster.ClassSpec{SchedulerName: "default-scheduler", Requests: asks, ScoreRequests: asks}})
	}
	for k := range 1000 {
		apply(cluster.LabelsDefined{ID: cluster.LabelsID(k + 1), Set: cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: fmt.Sprint(k)}}}})
	}
	for k := range nodes {
		name := fmt.Sprintf("node-%d", k)
		apply(cluster.NodeSet{Index: cluster.NodeIndex(k), Node: cluster.Node{
			Name: name,
			Labels: []cluster.Label{
				{Key: "kubernetes.io/hostname", Value: name}, {Key: "topology.kubernetes.io/zone", Value: fmt.Sprintf("zone-%d", k%10)},
			},
			Allocatable: []cluster.Quantity{{Name: "cpu", Value: 32_000}, {Name: "memory", Value: 128 << 30}, {Name: "pods", Value: 110}},
		}})
	}
	for k := range 2 * nodes {
		name := fmt.Sprintf("pod-%d", k)
		apply(cluster.PodSet{ID: cluster.PodID(k), Pod: cluster.Pod{
			UID: "01234567-0123-0123-0123-" + name, Namespace: "default", Name: name, Class: cluster.ClassID(k % 100),
			Labels: cluster.LabelsID(k%1000 + 1), NodeName: fmt.Sprintf("node-%d", k/2),
		}})
	}
	return st
}
