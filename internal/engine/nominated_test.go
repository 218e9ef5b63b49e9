package engine

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// crowdedOut is a pod with a volume of its own that is nominated to n0, as are two of higher priority whose volumes take all the room that there is
// for volumes. But for that n0 would be the best.
func crowdedOut(t *testing.T, nodes int) (*storage, cluster.PodID) {
	w := newStorage(t, nodes)
	for k, priority := range []int32{10, 11} {
		claim := fmt.Sprint("theirs-", k)
		w.bound(claim, nil)
		w.apply(cluster.PodNominated{ID: w.pod(claim, "", priority, nil, claims(claim)...), Node: "n0"})
	}
	for i := cluster.NodeIndex(1); int(i) < nodes; i++ {
		node := w.st.Node(i)
		node.Taints = []cluster.Taint{{Key: "reserved", Effect: "PreferNoSchedule"}}
		w.apply(cluster.NodeSet{Index: i, Node: node})
	}
	w.bound("mine", nil)
	id := w.pod("mine", "", 0, nil, claims("mine")...)
	w.apply(cluster.PodNominated{ID: id, Node: "n0"})
	return w, id
}

func TestANominatedPodDoesNotShareItsVolumeWithItself(t *testing.T) {
	w, id := crowdedOut(t, 1)
	e := NewEvaluator(EvaluatorConfig{})
	if on, got := w.batch(e, id).Choose(id, 0); got != NoFit {
		t.Errorf("%v on %d, want no fit: two others are nominated there, which come first", got, on)
	}
	nodes, why := e.AnswersOf(w.st, id).Unschedulable()
	want := []VerdictCount{{Plugin: NodeVolumeLimits, Reason: ReasonVolumeLimit, Count: 1, Examples: []string{"n0"}}}
	if diff := cmp.Diff(want, why); diff != "" || nodes != 1 {
		t.Errorf("of %d nodes (-want +got):\n%s", nodes, diff)
	}
	s := SubjectOf(&w.st.Pod(id).Pod)
	if e.Possible(w.st, s, 0) {
		t.Error("it may go somewhere, leaving out the only node")
	}
}

func TestANominatedPodThatIsCrowdedOutGoesElsewhere(t *testing.T) {
	w, id := crowdedOut(t, 3)
	e := NewEvaluator(EvaluatorConfig{})
	p := w.batch(e, id)
	for round := range 2 {
		on, got := p.Choose(id, 0)
		if got != Placed || on == 0 {
			t.Errorf("%v on %d, want it placed on another node than n0", got, on)
		}
		if round == 0 { // those that share the candidates see all of them
			w.apply(cluster.NodeSet{Index: 0, Node: w.st.Node(0)})
		}
	}
	s := SubjectOf(&w.st.Pod(id).Pod)
	if !e.Possible(w.st, s, 0) {
		t.Error("it can go nowhere")
	}
	// One that shares its volume may go to n0, where the volume is to be anyway, and is not kept from it by the other's having been refused there.
	other := w.pod("sharing", "", 0, nil, claims("mine")...)
	p = w.batch(e, id)
	p.Choose(id, 0)
	if on, got := p.Choose(other, 0); got != Placed || on != 0 {
		t.Errorf("a pod that shares the volume: %v on %d, want it placed on n0", got, on)
	}
}
