package ingest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// folded is a fold with the deltas it has made.
type folded struct {
	t      *testing.T
	state  *cluster.State
	fold   *Fold
	deltas []cluster.Delta
}

func newFolded(t *testing.T) *folded {
	f := &folded{t: t, state: cluster.New(cluster.Version{Epoch: 1})}
	f.fold = New(f.state, func(d cluster.Delta) error {
		f.deltas = append(f.deltas, d)
		return f.state.Apply(d)
	})
	return f
}

func (f *folded) do(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// A pod that has moved, told as that or told anew with all that it is, makes the same deltas, whatever the binder has done with
// it meanwhile.
func TestAMoveIsWhatTellingThePodAnewIs(t *testing.T) {
	const pods, nodes, steps = 6, 3, 4000
	rng := rand.New(rand.NewPCG(1, 2))
	moved, anew := newFolded(t), newFolded(t)
	both := func(do func(f *folded) error) {
		t.Helper()
		moved.do(do(moved))
		anew.do(do(anew))
	}
	for i := range nodes {
		both(func(f *folded) error {
			return f.fold.Observe(source.Event{Kind: source.NodeSet, Node: cluster.Node{Name: fmt.Sprintf("node-%d", i)}})
		})
	}
	node := func() string { return []string{"", "node-0", "node-1", "node-2", "unknown"}[rng.IntN(5)] }
	told := make(map[string]source.Pod)
	moves := 0
	for step := range steps {
		uid := fmt.Sprintf("uid-%d", rng.IntN(pods))
		pod, known := told[uid]
		id, _ := moved.state.PodByUID(uid)
		switch op := rng.IntN(10); {
		case !known || op == 0:
			pod = source.Pod{
				Pod:   cluster.Pod{UID: uid, Name: uid, Namespace: "default", Priority: rng.Int32N(3), Deleting: rng.IntN(4) == 0, Nominated: node()},
				Class: cluster.ClassSpec{SchedulerName: fmt.Sprint(rng.IntN(2))}, Labels: cluster.LabelSet{Namespace: "default"},
			}
			both(func(f *folded) error { return f.fold.Observe(source.Event{Kind: source.PodSet, Pod: pod}) })
			told[uid] = pod
		case op == 1:
			both(func(f *folded) error { return f.fold.Observe(source.Event{Kind: source.PodGone, Pod: pod}) })
			delete(told, uid)
		case op < 4 && moved.state.Pod(id).Phase == cluster.Pending && !moved.state.Pod(id).Deleting:
			on := cluster.NodeIndex(rng.IntN(nodes))
			both(func(f *folded) error {
				return f.state.Apply(cluster.PodAssumed{ID: id, Node: on, Attempt: int32(step)})
			})
		case op < 6 && moved.state.Pod(id).Phase == cluster.Pending:
			to := node()
			both(func(f *folded) error { return f.fold.Nominate(id, to) })
		case op < 6:
		default:
			pod.NodeName, pod.Nominated = node(), node()
			moves++
			moved.do(moved.fold.Observe(source.Event{Kind: source.PodMoved, Pod: source.Pod{Pod: cluster.Pod{
				UID: uid, NodeName: pod.NodeName, Nominated: pod.Nominated,
			}}}))
			anew.do(anew.fold.Observe(source.Event{Kind: source.PodSet, Pod: pod}))
			told[uid] = pod
		}
		if !reflect.DeepEqual(moved.deltas, anew.deltas) {
			t.Fatalf("step %d: deltas %+v, told anew %+v", step, moved.deltas, anew.deltas)
		}
		moved.deltas, anew.deltas = nil, nil
	}
	if moved.state.Digest() != anew.state.Digest() || moves < steps/10 {
		t.Errorf("after %d moves the digests are %x and %x", moves, moved.state.Digest(), anew.state.Digest())
	}
}

func TestAMoveOfAPodThatIsNotKnownIsNothing(t *testing.T) {
	f := newFolded(t)
	f.do(f.fold.Observe(source.Event{Kind: source.PodMoved, Pod: source.Pod{Pod: cluster.Pod{UID: "gone", NodeName: "node"}}}))
	if len(f.deltas) > 0 {
		t.Errorf("deltas %+v", f.deltas)
	}
}

// Of a node of which only what extenders read has changed it is told that it has been touched, and no more: it counts as unchanged.
func TestANodeThatIsTouchedIsToldAgain(t *testing.T) {
	label := func(value string) []cluster.Label { return []cluster.Label{{Key: "a", Value: value}} }
	for name, node := range map[string]cluster.Node{"as it is": {Name: "n", Labels: label("b")}, "otherwise": {Name: "n", Labels: label("untold")}} {
		f := newFolded(t)
		f.fold.tellable = func(d cluster.Delta) error {
			if set, is := d.(cluster.NodeSet); is && slices.Equal(set.Node.Labels, label("untold")) {
				return errors.New("it cannot be told")
			}
			return nil
		}
		for i, step := range []struct{ touched, want bool }{{false, true}, {false, false}, {true, true}, {false, false}} {
			f.deltas = nil
			f.do(f.fold.Observe(source.Event{Kind: source.NodeSet, Node: node, Touched: step.touched}))
			if got := len(f.deltas) == 1; got != step.want {
				t.Errorf("%s, step %d: told %d times", name, i, len(f.deltas))
			}
			if step.touched && len(f.deltas) > 0 && f.deltas[0] != (cluster.NodeTouched{Index: 0}) {
				t.Errorf("%s, step %d: told %+v", name, i, f.deltas)
			}
		}
		if f.state.Nodes.Count() != 1 || f.state.Nodes.SpecModified[0] != 1 {
			t.Errorf("%s: %d nodes at %v, changed at %d", name, f.state.Nodes.Count(), f.state.Version(), f.state.Nodes.Modified[0])
		}
	}
}
