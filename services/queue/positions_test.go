package queue

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestPositionIsHowManyPodsArePoppedBefore(t *testing.T) {
	const pods = 200
	now := time.Unix(1000, 0)
	random := rand.New(rand.NewPCG(1, 1))
	priorities := make([]int32, pods)
	for i := range priorities {
		priorities[i] = random.Int32N(7)
	}
	for _, asked := range []int{0, 1, 2, 17, pods} {
		q, _ := ranked(t, now, priorities...)
		ids := make([]cluster.PodID, 0, asked+1)
		for _, i := range random.Perm(pods)[:asked] {
			ids = append(ids, cluster.PodID(i))
		}
		positions := q.Positions(append(ids, pods)) // and one that is not there
		if len(positions) != asked {
			t.Fatalf("%d positions, want %d", len(positions), asked)
		}
		batch, _ := q.PopAbove(now, pods, anyPriority)
		for k, a := range batch {
			if got, ok := positions[a.ID]; ok && got != k {
				t.Errorf("of %d asked about: pod %d is at %d, and was popped at %d", asked, a.ID, got, k)
			}
		}
		if len(batch) != pods {
			t.Fatalf("%d pods were popped, want all %d", len(batch), pods)
		}
	}
}

// What is asked about one pod must not look at the whole line, which is locked meanwhile.
func TestPodsBehindAreNotLookedAt(t *testing.T) {
	q, _ := ranked(t, time.Unix(1000, 0), 9, 8, 7, 6, 5, 4, 3)
	h := &q.active
	// Below the second pod, which is not ahead of itself, is one that says it is ahead of all.
	h.ranked[3].priority = 100
	h.before(&h.ranked[1].rank, func(r *rank) {
		if r != &h.ranked[0].rank {
			t.Errorf("a pod of priority %d was looked at, behind one that is not ahead", r.priority)
		}
	})
}

func TestPodThatIsNotActiveHasNoPosition(t *testing.T) {
	now := time.Unix(1000, 0)
	q, _ := ranked(t, now, 5, 5)
	a := pop(t, q, now)
	if positions := q.Positions([]cluster.PodID{a.ID, 1 - a.ID}); len(positions) != 1 || positions[1-a.ID] != 0 {
		t.Errorf("positions %v, want only that of pod %d, which is the first", positions, 1-a.ID)
	}
}
