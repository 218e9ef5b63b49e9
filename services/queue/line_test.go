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

// standings walks the line in parts of three.
func standings(q *Queue, ids ...cluster.PodID) map[cluster.PodID]Standing {
	line := q.Line(ids)
	for q.Walk(line, 3) {
	}
	return line.Standings()
}

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
		found := standings(q, append(ids, pods)...) // and one that is not there
		if len(found) != asked {
			t.Fatalf("%d positions, want %d", len(found), asked)
		}
		ahead := make(map[int32][]cluster.PodID) // that were popped so far, by priority
		batch, _ := q.PopAbove(now, pods, anyPriority)
		for k, a := range batch {
			if got, ok := found[a.ID]; ok && got.Position != k {
				t.Errorf("of %d asked about: pod %d is at %d, and was popped at %d", asked, a.ID, got.Position, k)
			}
			for _, group := range found[a.ID].Ahead {
				popped := ahead[group.Priority]
				if len(popped) != group.Pods || nameOf(popped[0]) != group.Name {
					t.Errorf("ahead of pod %d are %d of priority %d, first %s; %v were popped", a.ID, group.Pods, group.Priority, group.Name, popped)
				}
			}
			ahead[priorities[a.ID]] = append(ahead[priorities[a.ID]], a.ID)
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
	if found := standings(q, a.ID, 1-a.ID); len(found) != 1 || found[1-a.ID].Position != 0 {
		t.Errorf("positions %v, want only that of pod %d, which is the first", found, 1-a.ID)
	}
}

func TestWhoIsAheadByPriority(t *testing.T) {
	q, _ := ranked(t, time.Unix(1000, 0), 5, 9, 5, 9, 5, 1, 5) // a to g; of a priority they come in this order
	for id, want := range map[cluster.PodID]Standing{
		1: {0, nil}, // the first of all
		3: {1, []Ahead{{9, 1, "", "b"}}},
		4: {4, []Ahead{{9, 2, "", "b"}, {5, 2, "", "a"}}},
		5: {6, []Ahead{{9, 2, "", "b"}, {5, 4, "", "a"}}},
	} {
		if diff := cmp.Diff(map[cluster.PodID]Standing{id: want}, standings(q, id)); diff != "" {
			t.Errorf("of pod %d alone (-want +got):\n%s", id, diff)
		}
		if diff := cmp.Diff(want, standings(q, 0, 1, 2, 3, 4, 5, 6, 99)[id]); diff != "" {
			t.Errorf("of pod %d among all (-want +got):\n%s", id, diff)
		}
	}
}

// BenchmarkStandings asks where some of 300,000 pods of a class are.
func BenchmarkStandings(b *testing.B) {
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
				line := q.Line(ids)
				for q.Walk(line, walkAtOnce) {
				}
				line.Standings()
			}
		})
	}
}
