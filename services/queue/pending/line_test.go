package pending

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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
	q, _ := ranked(t, now, priorities...)
	found := make([]Standing, pods)
	for id := range found {
		var ok bool
		if found[id], ok = q.Standing(cluster.PodID(id), 10); !ok {
			t.Fatalf("pod %d has no position", id)
		}
	}
	ahead := make(map[int32][]cluster.PodID) // that were popped so far, by priority
	batch, _ := q.PopAbove(now, pods, AnyPriority)
	for k, a := range batch {
		if got := found[a.ID].Position; got != k {
			t.Errorf("pod %d is at %d, and was popped at %d", a.ID, got, k)
		}
		told := 0
		for _, group := range found[a.ID].Ahead {
			popped := ahead[group.Priority]
			if len(popped) != group.Pods || nameOf(popped[0]) != group.Name {
				t.Errorf("ahead of pod %d are %d of priority %d, first %s; %v were popped", a.ID, group.Pods, group.Priority, group.Name, popped)
			}
			told += group.Pods
		}
		if told != k {
			t.Errorf("%d are told to be ahead of pod %d, %d were popped", told, a.ID, k)
		}
		ahead[priorities[a.ID]] = append(ahead[priorities[a.ID]], a.ID)
	}
	if len(batch) != pods {
		t.Fatalf("%d pods were popped, want all %d", len(batch), pods)
	}
}

func TestPodThatIsNotActiveHasNoPosition(t *testing.T) {
	now := time.Unix(1000, 0)
	q, _ := ranked(t, now, 5, 5)
	a := pop(t, q, now)
	for id, want := range map[cluster.PodID]bool{a.ID: false, 1 - a.ID: true, 2: false} {
		if standing, ok := q.Standing(id, 10); ok != want || standing.Position != 0 {
			t.Errorf("pod %d: %v, %v; want only pod %d in line, as the first", id, standing, ok, 1-a.ID)
		}
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
		for _, most := range []int{0, 1, 10} {
			want := want
			if len(want.Ahead) > most {
				want.Ahead = want.Ahead[:most]
			}
			got, _ := q.Standing(id, most)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("of pod %d and %d priorities (-want +got):\n%s", id, most, diff)
			}
		}
	}
}

// longLine returns a queue of 300,000 active pods of a class.
func longLine(b *testing.B) (*Queue, *cluster.State) {
	const pods = 300_000
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	apply(b, q, st, now, settings(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)})
	for i := range pods {
		name := strconv.Itoa(i)
		apply(b, q, st, now, cluster.PodSet{ID: cluster.PodID(i), Pod: cluster.Pod{
			UID: name, Name: name, Created: now.UnixNano() + int64(i%1000), Priority: int32(i % 7),
		}})
	}
	return q, st
}

// BenchmarkStanding asks where one of 300,000 pods is.
func BenchmarkStanding(b *testing.B) {
	q, _ := longLine(b)
	for k := 0; b.Loop(); k++ {
		q.Standing(cluster.PodID(k*7919%q.Count(Active)), 10)
	}
}

// BenchmarkPop takes pods from a line of 300,000, and lets each come back.
func BenchmarkPop(b *testing.B) {
	q, _ := longLine(b)
	now := time.Unix(2000, 0)
	for b.Loop() {
		for _, a := range q.Pop(now, 1) {
			q.Retry(now, a)
		}
	}
}

// BenchmarkReset puts 300,000 pods in line.
func BenchmarkReset(b *testing.B) {
	q, st := longLine(b)
	for b.Loop() {
		q.Reset(time.Unix(2000, 0), st)
	}
}

// BenchmarkRejected reads what plugins are against 300,000 pods, as every read of the metrics does.
func BenchmarkRejected(b *testing.B) {
	q, _ := longLine(b)
	for b.Loop() {
		for range q.Rejected() {
			b.Fatal("nothing is against them")
		}
	}
}
