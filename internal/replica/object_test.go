package replica_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/whatif"
	"github.com/berth-scheduler/berth/internal/wire"
)

// madeOf is the row that a source would have for clustertest.MadeKind.
var madeOf = source.ObjectReduction(clustertest.MadeKind, func(o *v1.ConfigMap) *clustertest.Made {
	m := &clustertest.Made{Namespace: o.Namespace, Name: o.Name, Size: int64(len(o.Data)), Ready: o.Immutable != nil, Zones: slices.Sorted(maps.Keys(o.Data))}
	for _, zone := range m.Zones {
		m.Parts = append(m.Parts, clustertest.Part{Name: o.Data[zone]})
	}
	return m
})

func configMap(name string, data map[string]string) source.Event {
	tell := madeOf.Reduce(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Data: data})
	return tell()
}

// told is a ledger that a source tells of objects, and what it has been told otherwise for.
type told struct {
	*ledger
	fold        *ingest.Fold
	unsupported []source.Unsupported
}

func tells(t *testing.T) *told {
	l := &told{ledger: newLedger(t, replica.FeedConfig{})}
	l.open(3)
	apply := func(d cluster.Delta) error {
		l.apply(t, d)
		return nil
	}
	l.fold = ingest.New(l.st, apply, ingest.Telling(wire.Tellable, func(u source.Unsupported) { l.unsupported = append(l.unsupported, u) }))
	return l
}

// observe returns how many deltas an event has led to.
func (l *told) observe(t *testing.T, e source.Event) cluster.Seq {
	t.Helper()
	before := l.version()
	if err := l.fold.Observe(e); err != nil {
		t.Fatal(err)
	}
	return l.version().Seq - before.Seq
}

func keyOf(name string) cluster.ObjectKey {
	return cluster.ObjectKey{Kind: clustertest.MadeKind, Namespace: "shop", Name: name}
}

// made returns an object of a replica, nil if it has none of that name that it can read.
func (f *follower) made(t *testing.T, at cluster.Version, name string) *clustertest.Made {
	t.Helper()
	var m *clustertest.Made
	if err := f.Read(t.Context(), at, func(st *cluster.State) error {
		m = cluster.ObjectAt[*clustertest.Made](st, keyOf(name))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

// A kind that has nothing but its type and its rows is read, told, folded, sent, kept, copied, tried and undone.
func TestAKindThatHasOnlyItsRowsGoesTheWholeWay(t *testing.T) {
	t.Cleanup(clustertest.KnowMade())
	network, l := rpc.Memory(), tells(t)
	at, _ := serve(t, network, "", l.ledger)
	leads := func() *leaders { return newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}) }
	f := follow(t, network, leads(), nil)

	// 1. From the API to a replica, once.
	zones := map[string]string{"a": "x", "b": "y"}
	for _, step := range []struct {
		what  string
		event source.Event
		want  cluster.Seq
	}{
		{"a new one", configMap("web", zones), 1},
		{"the same", configMap("web", zones), 0},
		{"another one", configMap("db", nil), 1},
		{"a change", configMap("web", map[string]string{"a": "x"}), 1},
		{"an end", madeOf.Gone("shop", "db"), 1},
		{"the end again", madeOf.Gone("shop", "db"), 0},
		{"the end of one that never was", madeOf.Gone("shop", "x"), 0},
	} {
		if n := l.observe(t, step.event); n != step.want {
			t.Errorf("%s took %d deltas, want %d", step.what, n, step.want)
		}
	}
	f.reaches(t, l.ledger)
	want := &clustertest.Made{Namespace: "shop", Name: "web", Size: 1, Zones: []string{"a"}, Parts: []clustertest.Part{{Name: "x"}}}
	if diff := gocmp.Diff(want, f.made(t, l.version(), "web")); diff != "" {
		t.Errorf("the replica's (-want +got):\n%s", diff)
	}

	// 2. What cannot be told is told otherwise, and that is said.
	odd := configMap("odd", map[string]string{"a": "\xff"})
	l.observe(t, odd)
	if m := odd.Object.(*clustertest.Made); m.Parts[0].Name != "\xff" {
		t.Errorf("what the source has told was changed: %+v", m)
	}
	l.observe(t, configMap("huge", map[string]string{"a": "x", "b": strings.Repeat("many ", wire.MaxTold)}))
	l.observe(t, configMap("\xff", nil))
	many := make(map[string]string)
	for len(many) < wire.MaxTold/64 {
		many[strings.Repeat("z", 64)+string(rune(len(many)+0x1000))] = "x"
	}
	l.observe(t, configMap("wide", many))
	f.reaches(t, l.ledger)
	if m := f.made(t, l.version(), "wide"); m == nil || m.Zones != nil || !strings.Contains(m.Why, "more than 1048576") {
		t.Errorf("one that is too large is told as %+v", m)
	}
	if m := f.made(t, l.version(), "odd"); m == nil || m.Parts[0].Name == "" || m.Parts[0].Name == "\xff" {
		t.Errorf("one with an odd text is told as %+v", m)
	}
	slices.SortFunc(l.unsupported, func(a, b source.Unsupported) int { return cmp.Compare(a.Name, b.Name) })
	var of []string
	for _, u := range l.unsupported {
		of = append(of, u.Kind+" "+u.Namespace+"/"+u.Name)
		if !strings.HasPrefix(u.Why, "Berth cannot tell its parts of it: ") || u.Name == "odd" && !strings.Contains(u.Why, "Made.Parts[0].Name is not valid UTF-8") {
			t.Errorf("%s is told otherwise: %q", u.Name, u.Why)
		}
	}
	if want := []string{`Made shop/"\xff"`, "Made shop/huge", "Made shop/odd", "Made shop/wide"}; !slices.Equal(of, want) {
		t.Errorf("told otherwise were %q, want %q", of, want)
	}
	if n := l.observe(t, madeOf.Gone("shop", "\xff")); n != 1 {
		t.Errorf("the end of one with an odd name took %d deltas", n)
	}

	// 3. A new replica has them from a snapshot.
	follow(t, network, leads(), nil).reaches(t, l.ledger)

	// 4. On a copy they are tried, and it is undone.
	sandbox := whatif.New(l.st, engine.EvaluatorConfig{})
	digest := l.st.Digest()
	if err := sandbox.Try(context.Background(), func(w *whatif.World) error {
		for _, e := range []source.Event{configMap("web", zones), madeOf.Gone("shop", "odd"), configMap("new", nil)} {
			if err := w.Observe(e); err != nil {
				return err
			}
		}
		if m := cluster.ObjectAt[*clustertest.Made](w.State(), keyOf("web")); m == nil || m.Size != 2 {
			t.Errorf("in the trial it is %+v", m)
		}
		if _, ok := w.State().Object(keyOf("odd")); ok || w.State().Digest() == digest {
			t.Error("nothing is tried")
		}
		return nil
	}); err != nil || sandbox.Spoiled() != nil {
		t.Errorf("Try: %v; spoiled: %v", err, sandbox.Spoiled())
	}
	if diff := gocmp.Diff(want, cluster.ObjectAt[*clustertest.Made](l.st, keyOf("web"))); diff != "" || l.st.Digest() != digest {
		t.Errorf("the ledger has changed (-want +got):\n%s", diff)
	}
}

// A replica of the last release follows a binder that has a kind more. It has the binder's digest all the time, and never begins anew.
func TestAReplicaThatDoesNotKnowAKindFollows(t *testing.T) {
	network, l := rpc.Memory(), tells(t)
	at, _ := serve(t, network, "", l.ledger)
	leader := coord.Leader{Epoch: 3, ID: "binder-1", Address: at}
	l.observe(t, configMap("web", map[string]string{"a": "x"}))
	f := follow(t, network, newLeaders(leader), nil) // which gets a snapshot, and then deltas
	agrees := func() {
		t.Helper()
		want, digest := l.version(), l.st.Digest()
		until(t, func() bool { return f.Version() == want }, func() string { return f.Ready().Error() })
		if f.Digest() != digest {
			t.Errorf("its digest is %x, want %x", f.Digest(), digest)
		}
	}
	agrees()
	for _, e := range []source.Event{
		configMap("db", nil), configMap("web", map[string]string{"a": "y", "b": "z"}), madeOf.Gone("shop", "db"),
		{Kind: source.ObjectSet, Object: &cluster.Budget{Namespace: "shop", Name: "web", Allowed: 1}},
	} {
		l.observe(t, e)
		agrees()
	}
	if m := f.made(t, l.version(), "web"); m != nil {
		t.Errorf("it reads %+v", m)
	}
	if err := f.Read(t.Context(), l.version(), func(st *cluster.State) error {
		if st.Budget("shop", "web") == nil {
			t.Error("the budget is missing")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	// Heartbeats have compared the digests by then.
	heard := f.count(t, "berth_replica_snapshots_total", "")
	if resyncs := f.count(t, "berth_replica_resyncs_total", ""); resyncs != 0 || heard != 1 {
		t.Errorf("it has begun anew %v times and loaded %v snapshots", resyncs, heard)
	}
}
