package pending

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// ranked returns a queue of pods with these priorities, which are their ids too.
func ranked(t *testing.T, now time.Time, priorities ...int32) (*Queue, *cluster.State) {
	t.Helper()
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	apply(t, q, st, now, settings(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)})
	for i, p := range priorities {
		name := nameOf(cluster.PodID(i))
		apply(t, q, st, now, cluster.PodSet{ID: cluster.PodID(i), Pod: cluster.Pod{UID: name, Name: name, Created: now.UnixNano(), Priority: p}})
	}
	return q, st
}

func nameOf(id cluster.PodID) string { return string(rune('a' + id)) }

func popped(batch []Attempt) (names []string) {
	for _, a := range batch {
		names = append(names, a.UID)
	}
	return names
}

func TestPopAboveLeavesWhatIsBelowTheFloor(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		floor     int32
		limit     int
		want      []string
		outranked bool
	}{
		{AnyPriority, 9, []string{"c", "b", "d", "a"}, false},
		{3, 9, []string{"c", "b", "d", "a"}, false},
		{4, 9, []string{"c", "b", "d"}, true},
		{4, 3, []string{"c", "b", "d"}, false}, // the limit keeps the next as well
		{5, 2, []string{"c", "b"}, false},
		{9, 9, []string{"c"}, true},
		{10, 9, nil, true},
	} {
		q, _ := ranked(t, now, 3, 5, 9, 5)
		batch, outranked := q.PopAbove(now, c.limit, c.floor)
		if got := popped(batch); !slices.Equal(got, c.want) || outranked != c.outranked {
			t.Errorf("%d pods of %d and above: %v, outranked %v, want %v, %v", c.limit, c.floor, got, outranked, c.want, c.outranked)
		}
	}
	q, _ := ranked(t, now)
	if batch, outranked := q.PopAbove(now, 9, 10); batch != nil || outranked {
		t.Errorf("of an empty queue: %v, outranked %v", batch, outranked)
	}
}

func TestPodsLeaveTheirBackoffEarlyOnlyAboveTheFloor(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := ranked(t, now, 5)
	a := pop(t, q, now)
	// A node has come since it was evaluated: it is not waiting, but backs off.
	apply(t, q, st, now, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(1000)}})
	q.Reject(now, st, a, Diagnosis{Version: cluster.Version{Epoch: 1, Seq: 1}})
	if got := place(t, q); got != Backoff {
		t.Fatalf("the pod is %v, want in backoff", got)
	}
	if batch, outranked := q.PopAbove(now, 9, 6); batch != nil || !outranked {
		t.Errorf("with a floor of 6: %v, outranked %v, want none that is outranked", popped(batch), outranked)
	}
	if got := place(t, q); got != Backoff {
		t.Errorf("the pod is %v, want still in backoff", got)
	}
	if batch, _ := q.PopAbove(now, 9, 5); len(batch) != 1 {
		t.Errorf("with a floor of 5: %v, want the pod", popped(batch))
	}
}

// Where extenders have left nobody to go for a pod, any change of a node where others would do brings it back: it serves its backoff, so that they are not asked without a pause.
func TestPodsWhosePreemptionExtendersHaveRefusedServeTheirBackoff(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, asked := range []bool{false, true} {
		q, st := ranked(t, now, 5)
		a := pop(t, q, now)
		apply(t, q, st, now, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(1000)}})
		q.Reject(now, st, a, Diagnosis{Version: cluster.Version{Epoch: 1, Seq: 1}, Asked: asked})
		if got := place(t, q); got != Backoff {
			t.Fatalf("the pod is %v, want in backoff", got)
		}
		q.Reset(now, st) // a member that loads the log anew has not forgotten it
		if at, ok := q.Next(); !ok || at.IsZero() == asked {
			t.Errorf("asked: %v: the next is popped at %v, %v", asked, at, ok)
		}
		batch := q.Pop(now, 9)
		if (len(batch) == 0) != asked {
			t.Errorf("asked: %v: %v before the backoff has passed", asked, popped(batch))
		}
		if !asked {
			continue
		}
		a = pop(t, q, now.Add(2*time.Second))
		q.Reject(now, st, a, Diagnosis{Version: cluster.Version{Epoch: 1, Seq: 1}})
		if batch := q.Pop(now, 9); len(batch) != 1 {
			t.Errorf("once they have not been asked: %v, want the pod", popped(batch))
		}
	}
}
