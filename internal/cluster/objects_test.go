package cluster_test

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// filled returns an object of a kind in which every field, however deep, has a value of its own.
func filled(t *testing.T, kind cluster.ObjectKind) cluster.Object {
	o := cluster.NewObject(cluster.ObjectKey{Kind: kind})
	n := 0
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		n++
		switch v.Kind() {
		case reflect.String:
			v.SetString(fmt.Sprint("value-", n))
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int32, reflect.Int64:
			v.SetInt(int64(-n))
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			for i := range v.Len() {
				fill(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if !v.Type().Field(i).IsExported() {
					t.Errorf("%v.%s: the fields of objects are exported", v.Type(), v.Type().Field(i).Name)
					continue
				}
				fill(v.Field(i))
			}
		default:
			t.Errorf("%v has a %v: objects are made of texts, numbers, flags, structs and lists", kind, v.Type())
		}
	}
	fill(reflect.ValueOf(o).Elem())
	return o
}

// A field that is added to a kind and forgotten in its encoding would be in no digest, and in no replica.
func TestEveryFieldOfEveryKindIsInItsBody(t *testing.T) {
	for _, kind := range cluster.ObjectKinds() {
		t.Run(kind.String(), func(t *testing.T) {
			set := cluster.ObjectSet{Object: filled(t, kind)}
			body := set.Body()
			back, err := cluster.DecodeObject(set.Object.Key(), body)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(set, back); diff != "" {
				t.Errorf("(-encoded +decoded):\n%s", diff)
			}
			leaves := 0
			eachLeaf(t, kind.String(), reflect.ValueOf(&set).Elem(), func(path string) {
				leaves++
				if set.Object.Key() == back.Object.Key() && bytes.Equal(set.Body(), body) || set.Same(back) {
					t.Errorf("%s does not count", path)
				}
			})
			if leaves < 3 {
				t.Errorf("%d fields changed", leaves)
			}
			if !set.Same(back) {
				t.Error("an object is not the same as itself")
			}
		})
	}
}

func TestAnObjectThatCannotBeToldBecomesASmallOneOfItsName(t *testing.T) {
	for _, kind := range cluster.ObjectKinds() {
		o := filled(t, kind)
		small := cluster.ObjectSet{Object: o.Unsupported("why")}
		if small.Object.Key() != o.Key() || len(small.Body()) > 100 || small.Same(cluster.ObjectSet{Object: o}) {
			t.Errorf("%v becomes %+v", kind, small.Object)
		}
	}
}

func TestAKindHasOneNumberAndName(t *testing.T) {
	names := make(map[string]bool)
	for _, kind := range cluster.ObjectKinds() {
		key := cluster.NewObject(cluster.ObjectKey{Kind: kind, Namespace: "a", Name: "b"}).Key()
		if in := key.Namespace; key.Kind != kind || key.Name != "b" || in != "a" && in != "" { // "": objects of the kind are in none
			t.Errorf("%v makes %+v", kind, key)
		}
		if !kind.Possible() || names[kind.String()] {
			t.Errorf("kind %d is %q", kind, kind)
		}
		names[kind.String()] = true
	}
	if got := cluster.ObjectKind(999).String(); got != "kind 999" {
		t.Errorf("a kind that is not known is called %q", got)
	}
}

func TestABodyThatNobodyWritesIsNotDecoded(t *testing.T) {
	key := cluster.ObjectKey{Kind: cluster.BudgetKind, Name: "b"}
	for what, body := range map[string][]byte{
		"nothing":                  {},
		"a flag that is 2":         {4, 0, 0, 0},
		"a number in two ways":     {0, 0, 0x80, 0, 0},
		"a number out of bounds":   append([]byte{0, 0}, 0xfe, 0xff, 0xff, 0xff, 0x7f, 0),
		"a number without its end": {0, 0, 0x80},
		"a text that is too short": {0, 0, 0, 2, 8, 'a'},
		"a list that is too short": {0, 0, 0, 8, 2, 'a'},
		"a list of less than none": {0, 0, 0, 1},
		"a list of very many":      append([]byte{0}, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f),
		"a text that is not UTF-8": {0, 0, 0, 2, 2, 0xff},
	} {
		if set, err := cluster.DecodeObject(key, body); err == nil {
			t.Errorf("%s: decoded as %+v", what, set)
		}
	}
}

func FuzzDecodeObject(f *testing.F) {
	add := func(d cluster.ObjectSet) { f.Add(int32(d.Object.Key().Kind), d.Body()) }
	add(cluster.ObjectSet{Object: &cluster.Budget{Disrupted: []string{"a"}, Allowed: math.MaxInt32, Selector: cluster.LabelSelector{
		Requirements: []cluster.Requirement{{Key: "k", Operator: "In", Values: []string{"a", "b"}}},
	}}})
	add(cluster.ObjectSet{Object: &clustertest.Made{Size: 1, Zones: []string{"", "z"}, Parts: []clustertest.Part{{}, {Name: "p"}}}, More: "more"})
	add(cluster.ObjectSet{Object: &cluster.Unread{ObjectKey: cluster.ObjectKey{Kind: 999}}, More: "\xff"})
	f.Fuzz(func(t *testing.T, kind int32, body []byte) {
		key := cluster.NewObject(cluster.ObjectKey{Kind: cluster.ObjectKind(kind), Namespace: "n", Name: "o"}).Key()
		set, err := cluster.DecodeObject(key, body)
		if err == nil && !bytes.Equal(set.Body(), body) {
			t.Errorf("%x was decoded as %+v, whose body is %x", body, set, set.Body())
		}
	})
}

// older returns what a member sees that knows no kinds but some: the same bytes, less of them read.
func older(d cluster.Delta, knows ...cluster.ObjectKind) cluster.Delta {
	set, ok := d.(cluster.ObjectSet)
	if !ok || slices.Contains(knows, set.Object.Key().Kind) {
		return d
	}
	return cluster.ObjectSet{Object: &cluster.Unread{ObjectKey: set.Object.Key()}, More: string(set.Body())}
}

// A replica of the release before that of the binder has the binder's digest, and goes on having it.
func TestWhoDoesNotKnowAKindHasTheSameDigest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old := cluster.New(start)
		walk(t, nothing, func(st *cluster.State, d cluster.Delta, _ struct{}) {
			if err := old.Apply(older(d, cluster.BudgetKind)); err != nil {
				t.Fatalf("Apply(%+v): %v", d, err)
			}
			if old.Digest() != st.Digest() {
				t.Fatalf("after %+v the digest is %x, want %x", d, old.Digest(), st.Digest())
			}
			if again := restored(t, old); again.Digest() != st.Digest() {
				t.Fatalf("after %+v the digest of its snapshot is %x, want %x", d, again.Digest(), st.Digest())
			}
		})
	})
}

// What a later release adds to a kind, the one before keeps as it has come.
func TestAFieldOfALaterReleaseIsKeptAndCounts(t *testing.T) {
	later := cluster.ObjectSet{Object: &clustertest.Made{Name: "m", Size: 7, Later: "later"}}
	now := cluster.ObjectSet{Object: &clustertest.Made{Name: "m", Size: 7}}
	// This release encodes the same and knows no field Later: it stops before it.
	rest := string(bytes.TrimPrefix(later.Body(), now.Body()))
	if rest == "" || len(rest)+len(now.Body()) != len(later.Body()) {
		t.Fatalf("the field does not come last: %x and %x", later.Body(), now.Body())
	}
	read := cluster.ObjectSet{Object: now.Object, More: rest}
	a, b := cluster.New(start), cluster.New(start)
	for st, d := range map[*cluster.State]cluster.Delta{a: later, b: read} {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	if a.Digest() != b.Digest() || !later.Same(read) || later.Same(now) {
		t.Errorf("the digests are %x and %x", a.Digest(), b.Digest())
	}
	got, err := cluster.DecodeObject(later.Object.Key(), append(later.Body(), "later still"...))
	if want := (cluster.ObjectSet{Object: later.Object, More: "later still"}); err != nil || cmp.Diff(want, got, cmpopts.EquateEmpty()) != "" {
		t.Errorf("decoded %+v, %v", got, err)
	}
	// And the release before wrote it without the field.
	if got, err := cluster.DecodeObject(now.Object.Key(), now.Body()); err != nil || !got.Same(now) {
		t.Errorf("decoded %+v, %v", got, err)
	}
}

func TestObjectsAreFoundByKindNamespaceAndName(t *testing.T) {
	st := cluster.New(start)
	made := func(namespace, name string) *clustertest.Made {
		return &clustertest.Made{Namespace: namespace, Name: name}
	}
	for _, o := range []cluster.Object{made("b", "x"), made("a", "y"), made("a", "x"), &cluster.Budget{Namespace: "b", Name: "x"}, made("", "z")} {
		if err := st.Apply(cluster.ObjectSet{Object: o}); err != nil {
			t.Fatal(err)
		}
	}
	var all []cluster.ObjectKey
	for d := range st.Objects() {
		all = append(all, d.Object.Key())
	}
	key := func(kind cluster.ObjectKind, namespace, name string) cluster.ObjectKey {
		return cluster.ObjectKey{Kind: kind, Namespace: namespace, Name: name}
	}
	want := []cluster.ObjectKey{
		key(cluster.BudgetKind, "b", "x"), key(clustertest.MadeKind, "", "z"), key(clustertest.MadeKind, "a", "x"), key(clustertest.MadeKind, "a", "y"),
		key(clustertest.MadeKind, "b", "x"),
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("Objects (-want +got):\n%s", diff)
	}
	if n := len(slices.Collect(cluster.ObjectsIn[*clustertest.Made](st, clustertest.MadeKind, "a"))); n != 2 {
		t.Errorf("%d objects in namespace a", n)
	}
	if m := cluster.ObjectAt[*clustertest.Made](st, key(clustertest.MadeKind, "a", "x")); m == nil || m.Name != "x" {
		t.Errorf("a/x is %+v", m)
	}
	if m := cluster.ObjectAt[*clustertest.Made](st, key(cluster.BudgetKind, "b", "x")); m != nil {
		t.Errorf("an object of another kind is %+v", m)
	}
	if st.Budget("b", "x") == nil || st.Budget("a", "x") != nil {
		t.Error("budgets are found where they are not")
	}
}

func TestAKindIsModifiedByItsOwnObjectsOnly(t *testing.T) {
	st := cluster.New(start)
	modified := func() [2]cluster.Seq {
		return [2]cluster.Seq{st.ObjectsModified(cluster.BudgetKind), st.ObjectsModified(clustertest.MadeKind)}
	}
	key := cluster.ObjectKey{Kind: clustertest.MadeKind, Name: "m"}
	for _, step := range []struct {
		d    cluster.Delta
		want [2]cluster.Seq
	}{
		{cluster.ObjectSet{Object: &cluster.Budget{Name: "b"}}, [2]cluster.Seq{1, 0}},
		{cluster.ObjectSet{Object: cluster.NewObject(key)}, [2]cluster.Seq{1, 2}},
		{cluster.NamespaceSet{Name: "n"}, [2]cluster.Seq{1, 2}},
		{cluster.ObjectRemoved{ObjectKey: key}, [2]cluster.Seq{1, 4}},
		{cluster.ObjectRemoved{ObjectKey: key}, [2]cluster.Seq{1, 4}}, // it is gone already
	} {
		if err := st.Apply(step.d); err != nil {
			t.Fatal(err)
		}
		if got := modified(); got != step.want {
			t.Errorf("after %+v: %v, want %v", step.d, got, step.want)
		}
	}
	st.Restore(cluster.Version{Epoch: 7, Seq: 3})
	if got := modified(); got != [2]cluster.Seq{3, 3} {
		t.Errorf("of a snapshot: %v", got)
	}
}
