package wire_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

func TestMain(m *testing.M) {
	clustertest.KnowMade()
	m.Run()
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A follower of the last release knows no other form; a binder of the next release may send the other one.
func TestABudgetIsSentAsTheLastReleaseReadsItAndReadInBothForms(t *testing.T) {
	b := &cluster.Budget{
		Namespace: "shop", Name: "web", Allowed: 3, Disrupted: []string{"web-1"},
		Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}},
	}
	set := cluster.ObjectSet{Object: b}
	before := &logv1.Delta{Change: &logv1.Delta_BudgetSet{BudgetSet: &logv1.BudgetSet{
		Namespace: "shop", Name: "web", Allowed: 3, Disrupted: []string{"web-1"},
		Selector: &logv1.LabelSelector{Requirements: []*logv1.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}},
	}}}
	next := &logv1.Delta{Change: &logv1.Delta_ObjectSet{ObjectSet: &logv1.ObjectSet{Kind: 11, Namespace: "shop", Name: "web", Body: set.Body()}}}
	gone := cluster.ObjectRemoved{ObjectKey: b.Key()}
	goneBefore := &logv1.Delta{Change: &logv1.Delta_BudgetRemoved{BudgetRemoved: &logv1.BudgetRemoved{Namespace: "shop", Name: "web"}}}
	goneNext := &logv1.Delta{Change: &logv1.Delta_ObjectRemoved{ObjectRemoved: &logv1.ObjectRemoved{Kind: 11, Namespace: "shop", Name: "web"}}}
	for _, c := range []struct {
		d            cluster.Delta
		before, next *logv1.Delta
	}{{set, before, next}, {gone, goneBefore, goneNext}} {
		sent, err := wire.Encode(c.d)
		if err != nil {
			t.Fatal(err)
		}
		var m logv1.Delta
		if err := proto.Unmarshal(sent, &m); err != nil || !proto.Equal(&m, c.before) {
			t.Errorf("%+v is sent as %v, %v", c.d, &m, err)
		}
		for _, form := range []*logv1.Delta{c.before, c.next} {
			got, err := wire.Decode(encoded(t, form))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.d, got); diff != "" {
				t.Errorf("%v (-want +got):\n%s", form, diff)
			}
		}
	}
}

// A binder of the next release may have a kind that this one does not know.
func TestAnObjectOfAKindThatIsNotKnownIsKeptAsItHasCome(t *testing.T) {
	set, gone := cluster.ObjectSet{Object: &clustertest.Made{Namespace: "n", Name: "o", Size: 3, Zones: []string{"z"}}}, cluster.ObjectRemoved{}
	gone.ObjectKey = set.Object.Key()
	ledger, follower := cluster.New(cluster.Version{Epoch: 1}), cluster.New(cluster.Version{Epoch: 1})
	for _, d := range []cluster.Delta{set, gone, set} {
		b, err := wire.Encode(d)
		if err != nil {
			t.Fatal(err)
		}
		var m logv1.Delta
		if err := proto.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		if s := m.GetObjectSet(); s != nil {
			s.Kind = 999
		} else {
			m.GetObjectRemoved().Kind = 999
		}
		d, err := wire.Decode(encoded(t, &m))
		if err != nil {
			t.Fatal(err)
		}
		again, err := wire.Encode(d)
		if err != nil || string(again) != string(encoded(t, &m)) {
			t.Errorf("%+v comes back as %x, %v", d, again, err)
		}
		if err := follower.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	key := gone.ObjectKey
	key.Kind = 999
	kept, ok := follower.Object(key)
	if !ok || string(kept.Body()) != string(set.Body()) {
		t.Errorf("it has %+v", kept)
	}
	if err := ledger.Apply(cluster.ObjectSet{Object: &cluster.Unread{ObjectKey: key}, More: string(set.Body())}); err != nil {
		t.Fatal(err)
	}
	if ledger.Digest() != follower.Digest() {
		t.Errorf("the digest is %x, want %x", follower.Digest(), ledger.Digest())
	}
}
