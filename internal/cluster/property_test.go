package cluster_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

var start = cluster.Version{Epoch: 7}

// draws makes rapid the source of randomness, so that it can shrink what fails.
func draws(t *rapid.T) clustertest.Intn {
	return func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
}

// walk calls visit after each of up to steps random deltas. The before is what prepare returned before the delta.
func walk[T any](t *rapid.T, prepare func(*cluster.State) T, visit func(st *cluster.State, d cluster.Delta, before T)) {
	st := cluster.New(start)
	intn := draws(t)
	for range rapid.IntRange(1, 80).Draw(t, "steps") {
		d := clustertest.Delta(intn, st)
		before := prepare(st)
		if err := st.Apply(d); err != nil {
			t.Fatalf("Apply(%+v) behind %v: %v", d, st.Version(), err)
		}
		visit(st, d, before)
	}
}

func nothing(*cluster.State) struct{} { return struct{}{} }

func version(st *cluster.State) cluster.Version { return st.Version() }

func TestEveryDeltaAdvancesTheVersionByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		walk(t, version, func(st *cluster.State, d cluster.Delta, before cluster.Version) {
			if want := (cluster.Version{Epoch: before.Epoch, Seq: before.Seq + 1}); st.Version() != want {
				t.Fatalf("version after %T is %v, want %v", d, st.Version(), want)
			}
		})
	})
}

func TestSumsEqualARecomputation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		walk(t, nothing, func(st *cluster.State, d cluster.Delta, _ struct{}) {
			if err := clustertest.Recompute(st); err != nil {
				t.Fatalf("after %+v: %v", d, err)
			}
		})
	})
}

// restored returns what a snapshot of st builds.
func restored(t interface{ Fatalf(string, ...any) }, st *cluster.State) *cluster.State {
	other := cluster.New(st.Version())
	for d := range st.Snapshot() {
		if err := other.Apply(d); err != nil {
			t.Fatalf("load %T of the snapshot at %v: %v", d, st.Version(), err)
		}
	}
	other.Restore(st.Version())
	return other
}

func TestSnapshotBuildsAnEqualState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var last *cluster.State
		walk(t, nothing, func(st *cluster.State, _ cluster.Delta, _ struct{}) { last = st })
		other := restored(t, last)
		if diff := cmp.Diff(clustertest.Dump(last), clustertest.Dump(other)); diff != "" {
			t.Fatalf("restored state (-want +got):\n%s", diff)
		}
		if other.Version() != last.Version() || other.Digest() != last.Digest() {
			t.Fatalf("restored state is %v, digest %x, want %v, %x", other.Version(), other.Digest(), last.Version(), last.Digest())
		}
		if err := clustertest.Recompute(other); err != nil {
			t.Fatalf("restored state: %v", err)
		}

		// And both go on alike, which images whose size was pinned and pods without a node would show.
		intn := draws(t)
		for range 20 {
			d := clustertest.Delta(intn, last)
			if err := errors.Join(last.Apply(d), other.Apply(d)); err != nil {
				t.Fatalf("Apply(%+v): %v", d, err)
			}
			if last.Digest() != other.Digest() {
				t.Fatalf("digests differ after %+v (-original +restored):\n%s", d, cmp.Diff(clustertest.Dump(last), clustertest.Dump(other)))
			}
		}
	})
}

func TestDigestsAreEqualExactlyForEqualStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		twin := cluster.New(start)
		digests := map[string]uint64{clustertest.Dump(twin): twin.Digest()}
		dumps := map[uint64]string{twin.Digest(): clustertest.Dump(twin)}
		walk(t, nothing, func(st *cluster.State, d cluster.Delta, _ struct{}) {
			if err := twin.Apply(d); err != nil || twin.Digest() != st.Digest() {
				t.Fatalf("twin after %+v has digest %x, %v, want %x", d, twin.Digest(), err, st.Digest())
			}
			dump := clustertest.Dump(st)
			if digest, seen := digests[dump]; seen && digest != st.Digest() {
				t.Fatalf("after %+v the state is as once before, and its digest is not", d)
			}
			if other, seen := dumps[st.Digest()]; seen && other != dump {
				t.Fatalf("after %+v the digest is as once before, and the state is not (-then +now):\n%s", d, cmp.Diff(other, dump))
			}
			digests[dump], dumps[st.Digest()] = st.Digest(), dump
		})
	})
}

// TestEveryFieldCountsInTheDigest changes one field at a time, however deep.
func TestEveryFieldCountsInTheDigest(t *testing.T) {
	digest := func(t *testing.T, d cluster.Delta) uint64 {
		st := cluster.New(start)
		for _, d := range []cluster.Delta{
			cluster.ClassDefined{ID: 1}, cluster.ClassDefined{ID: 2}, cluster.LabelsDefined{ID: 1},
			cluster.NodeSet{Index: 5, Node: cluster.Node{Name: "there"}}, d,
		} {
			if err := st.Apply(d); err != nil {
				t.Fatal(err)
			}
		}
		return st.Digest()
	}
	selector := cluster.LabelSelector{Requirements: []cluster.Requirement{{Values: []string{""}}}}
	// The deltas share no memory, so that a field that is changed is changed once.
	podTerm := func() cluster.PodTerm {
		return cluster.PodTerm{Namespaces: []string{""}, NamespaceSelector: clone(selector), Selector: clone(selector)}
	}
	for _, d := range []cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{clustertest.Profile("a")}}},
		cluster.ClassDefined{ID: 9, Spec: cluster.ClassSpec{
			Requests: []cluster.Quantity{{}}, ScoreRequests: []cluster.Quantity{{}}, Tolerations: []cluster.Toleration{{}},
			NodeSelector: []cluster.Label{{}}, Required: []cluster.NodeSelectorTerm{{Fields: []cluster.Requirement{{Values: []string{""}}}}},
			Preferred: []cluster.PreferredTerm{{}}, HostPorts: []cluster.HostPort{{}}, Images: []string{""},
			Affinity: []cluster.PodTerm{podTerm()}, AntiAffinity: []cluster.PodTerm{podTerm()},
			PreferredAffinity:     []cluster.WeightedPodTerm{{Term: podTerm()}},
			PreferredAntiAffinity: []cluster.WeightedPodTerm{{Term: podTerm()}},
			Spread:                []cluster.SpreadConstraint{{Selector: clone(selector)}}, Features: []string{""},
		}},
		cluster.LabelsDefined{ID: 9, Set: cluster.LabelSet{Labels: []cluster.Label{{}}}},
		cluster.SelectorSet{Kind: cluster.KindService, Selector: clone(selector)},
		cluster.SelectorSet{Kind: cluster.KindReplicaSet, Selector: clone(selector)},
		cluster.NodeSet{Index: 1, Node: cluster.Node{
			Labels: []cluster.Label{{}}, Taints: []cluster.Taint{{}}, Allocatable: []cluster.Quantity{{}}, Images: []cluster.Image{{Names: []string{""}}},
			Features: []string{""},
		}},
		cluster.NamespaceSet{Labels: []cluster.Label{{}}},
		cluster.ObjectSet{Object: &cluster.Budget{Selector: clone(selector), Disrupted: []string{""}}},
		cluster.ObjectSet{Object: &clustertest.Made{Zones: []string{""}, Parts: []clustertest.Part{{}}}},
		cluster.ObjectSet{Object: &cluster.Unread{ObjectKey: cluster.ObjectKey{Kind: 999}}},
		cluster.PodSet{ID: 3, Pod: cluster.Pod{Class: 1, Gates: []string{""}}},                      // pending
		cluster.PodSet{ID: 3, Pod: cluster.Pod{Class: 1, Gates: []string{""}, NodeName: "missing"}}, // bound, its node unknown
		cluster.PodSet{ID: 3, Pod: cluster.Pod{Class: 1, Gates: []string{""}, NodeName: "there"}},
		cluster.PodSet{ID: 3, Pod: cluster.Pod{Class: 1, Gates: []string{""}, NodeName: "there"}, Assumed: true, Volumes: []cluster.VolumeChoice{{Claim: "c"}}},
	} {
		v := reflect.New(reflect.TypeOf(d)).Elem()
		v.Set(reflect.ValueOf(d))
		plain := digest(t, d)
		leaves := 0
		eachLeaf(t, fmt.Sprintf("%T", d), v, func(path string) {
			leaves++
			changed := v.Interface().(cluster.Delta)
			if pod, ok := changed.(cluster.PodSet); ok && (pod.Assumed && pod.Pod.NodeName == "" || !pod.Assumed && len(pod.Volumes) > 0) {
				return // refused
			}
			if pod, ok := changed.(cluster.PodSet); ok && (pod.Preempting && pod.Pod.NodeName != "" || pod.Victim && pod.Pod.NodeName == "") {
				return // such a pod is neither
			}
			if s, ok := changed.(cluster.SelectorSet); ok && path == "cluster.SelectorSet.Kind" {
				s.Kind = cluster.KindStatefulSet // another one that is not refused
				changed = s
			}
			if digest(t, changed) == plain {
				t.Errorf("%s does not count in the digest", path)
			}
		})
		if leaves < 2 {
			t.Errorf("%T: %d fields changed", d, leaves)
		}
	}
}

func clone(s cluster.LabelSelector) cluster.LabelSelector {
	s.Requirements = slices.Clone(s.Requirements)
	for i := range s.Requirements {
		s.Requirements[i].Values = slices.Clone(s.Requirements[i].Values)
	}
	return s
}

// eachLeaf calls visit with one leaf of v changed at a time.
func eachLeaf(t *testing.T, path string, v reflect.Value, visit func(path string)) {
	switch v.Kind() {
	case reflect.Interface: // an object, which is a pointer
		eachLeaf(t, path, v.Elem().Elem(), visit)
		return
	case reflect.Struct:
		for i := range v.NumField() {
			eachLeaf(t, path+"."+v.Type().Field(i).Name, v.Field(i), visit)
		}
		return
	case reflect.Slice:
		// The elements are shared with the original: each is put back.
		for i := range v.Len() {
			eachLeaf(t, fmt.Sprintf("%s[%d]", path, i), v.Index(i), visit)
		}
		before := reflect.ValueOf(v.Interface())
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		visit(path + " (longer)")
		v.Set(before)
		return
	}
	before := reflect.ValueOf(v.Interface())
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	default:
		t.Fatalf("%s is a %v: teach this test to change it", path, v.Type())
	}
	visit(path)
	v.Set(before)
}

// refused returns deltas that st must refuse.
func refused(st *cluster.State) []cluster.Delta {
	bad := []cluster.Delta{
		nil,
		cluster.SettingsSet{},
		cluster.NodeSet{Index: -1, Node: cluster.Node{Name: "new"}},
		cluster.NodeSet{Index: cluster.MaxIndex, Node: cluster.Node{Name: "new"}},
		cluster.NodeRemoved{Index: -1},
		cluster.NodeRemoved{Index: cluster.NodeIndex(st.Nodes.Len())},
		cluster.PodSet{ID: -1}, cluster.PodSet{ID: cluster.MaxIndex},
		cluster.PodSet{ID: st.FreePod(), Pod: cluster.Pod{UID: "new", Class: -7}},
		cluster.LabelsDefined{ID: cluster.NoLabels},
		cluster.SelectorSet{Name: "new"}, cluster.SelectorSet{Kind: "Deployment", Namespace: "default", Name: "new"},
		cluster.ObjectSet{}, cluster.ObjectSet{Object: &cluster.Unread{}},
		cluster.ObjectSet{Object: cluster.NewObject(cluster.ObjectKey{Kind: cluster.BudgetKind - 1})},
		cluster.ObjectSet{Object: cluster.NewObject(cluster.ObjectKey{Kind: 1 << 10})},
		cluster.PodAssumed{ID: st.FreePod()}, cluster.PodBound{ID: st.FreePod()}, cluster.PodForgotten{ID: -1}, cluster.PodRemoved{ID: st.FreePod()},
		cluster.PodNominated{ID: st.FreePod(), Node: "node-a"}, cluster.PreemptionEnded{ID: st.FreePod()},
		cluster.PreemptionStarted{ID: st.FreePod(), Victims: []cluster.PodID{0}},
	}
	for _, c := range st.Classes() {
		bad = append(bad, cluster.ClassDefined{ID: c.ID},
			cluster.PodSet{ID: st.FreePod(), Pod: cluster.Pod{UID: "new", Class: c.ID}, Assumed: true},
			cluster.PodSet{ID: st.FreePod(), Pod: cluster.Pod{UID: "new", Class: c.ID, Labels: -7}})
	}
	for _, l := range st.LabelSets() {
		bad = append(bad, cluster.LabelsDefined{ID: l.ID, Set: cluster.LabelSet{Namespace: "other"}})
	}
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if st.Nodes.Live.Has(i) {
			bad = append(bad, cluster.NodeSet{Index: i, Node: cluster.Node{Name: "other"}},
				cluster.NodeSet{Index: i + 1, Node: cluster.Node{Name: st.Nodes.Spec[i].Name}})
		} else {
			bad = append(bad, cluster.NodeRemoved{Index: i})
		}
	}
	for id, p := range st.Pods() {
		bad = append(bad,
			cluster.PodSet{ID: id, Pod: cluster.Pod{UID: "other", Class: p.Class}},
			cluster.PodSet{ID: id, Pod: cluster.Pod{UID: p.UID, Class: p.Class, Labels: -7, Nominated: "elsewhere"}},
			cluster.PodSet{ID: st.FreePod(), Pod: cluster.Pod{UID: p.UID, Class: p.Class}},
			cluster.PodAssumed{ID: id, Node: cluster.NodeIndex(st.Nodes.Len())})
		if p.Phase != cluster.Pending {
			bad = append(bad, cluster.PodAssumed{ID: id, Node: max(p.Node, 0)}, cluster.PodNominated{ID: id, Node: "node-a"})
		}
		if !p.Preempting {
			bad = append(bad, cluster.PreemptionEnded{ID: id})
		}
		bad = append(bad, cluster.PreemptionStarted{ID: id, Node: max(p.Node, 0)}, // no victims
			cluster.PreemptionStarted{ID: id, Node: max(p.Node, 0), Victims: []cluster.PodID{st.FreePod()}})
		if p.Phase != cluster.Pending || p.Preempting {
			bad = append(bad, cluster.PreemptionStarted{ID: id, Node: max(p.Node, 0), Victims: []cluster.PodID{id}})
		}
		if p.Phase != cluster.Assumed {
			bad = append(bad, cluster.PodBound{ID: id}, cluster.PodForgotten{ID: id})
		}
	}
	return bad
}

func TestRefusedDeltasChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		walk(t, nothing, func(st *cluster.State, _ cluster.Delta, _ struct{}) {
			version, digest, dump, resources := st.Version(), st.Digest(), clustertest.Dump(st), st.Resources()
			for _, d := range refused(st) {
				if err := st.Apply(d); !errors.Is(err, cluster.ErrRefused) {
					t.Fatalf("Apply(%+v) at %v: %v, want a refusal", d, st.Version(), err)
				}
			}
			if st.Version() != version || st.Digest() != digest || st.Resources() != resources {
				t.Fatalf("refused deltas moved the state from %v to %v", version, st.Version())
			}
			if diff := cmp.Diff(dump, clustertest.Dump(st)); diff != "" {
				t.Fatalf("refused deltas changed the state (-before +after):\n%s", diff)
			}
		})
	})
}

// TestLongRunsStaySound is one long walk, where the ones above are many short ones.
func TestLongRunsStaySound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	st := cluster.New(start)
	for range 5000 {
		d := clustertest.Delta(random.IntN, st)
		if err := st.Apply(d); err != nil {
			t.Fatalf("Apply(%+v): %v", d, err)
		}
		if st.Version().Seq%50 == 0 {
			if err := clustertest.Recompute(st); err != nil {
				t.Fatalf("at %v: %v", st.Version(), err)
			}
			if other := restored(t, st); other.Digest() != st.Digest() {
				t.Fatalf("at %v: the restored state has another digest", st.Version())
			}
		}
	}
}
