package queue

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

func TestPodThatIsNotActiveHasNoPosition(t *testing.T) {
	now := time.Unix(1000, 0)
	q, _ := ranked(t, now, 5, 5)
	a := pop(t, q, now)
	if positions := q.Positions([]cluster.PodID{a.ID, 1 - a.ID}); len(positions) != 1 || positions[1-a.ID] != 0 {
		t.Errorf("positions %v, want only that of pod %d, which is the first", positions, 1-a.ID)
	}
}

func TestWhoIsAheadByPriority(t *testing.T) {
	q, _ := ranked(t, time.Unix(1000, 0), 5, 9, 5, 9, 5, 1, 5) // a to g; of a priority they come in this order
	for _, c := range []struct {
		id   cluster.PodID
		want []Ahead
	}{
		{1, []Ahead{}}, // the first of all
		{3, []Ahead{{9, 1, "", "b"}}},
		{4, []Ahead{{9, 2, "", "b"}, {5, 2, "", "a"}}},
		{5, []Ahead{{9, 2, "", "b"}, {5, 4, "", "a"}}},
		{99, nil},
	} {
		got := q.Ahead(c.id)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("of pod %d (-want +got):\n%s", c.id, diff)
		}
		sum := 0
		for _, a := range got {
			sum += a.Pods
		}
		if position := q.Positions([]cluster.PodID{c.id})[c.id]; sum != position {
			t.Errorf("%d are ahead of pod %d, its position is %d", sum, c.id, position)
		}
	}
}

// BenchmarkPositions asks where one of 300,000 pods of a class is.
func BenchmarkPositions(b *testing.B) {
	const pods = 300_000
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	apply(b, q, st, now, settings(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)})
	for i := range pods {
		name := strconv.Itoa(i)
		apply(b, q, st, now, cluster.PodSet{ID: cluster.PodID(i), Pod: cluster.Pod{UID: name, Name: name, Created: now.UnixNano() + int64(i%1000)}})
	}
	for _, asked := range []int{1, 500} {
		ids := make([]cluster.PodID, asked)
		for k := range ids {
			ids[k] = cluster.PodID((k*7919 + 150_000) % pods)
		}
		b.Run(fmt.Sprintf("asked=%d", asked), func(b *testing.B) {
			for b.Loop() {
				q.Positions(ids)
			}
		})
	}
}
