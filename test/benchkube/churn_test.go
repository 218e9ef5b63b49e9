package main

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/test/bubble"
	"github.com/berth-scheduler/berth/test/measure"
)

func TestPaceKeepsItsRateWhateverAnOperationTakes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		takes time.Duration
		want  int64 // of 200 in 2 seconds
	}{
		{"at once", 0, 200},
		{"as long as there are workers", 40 * time.Millisecond, 200}, // four at 25 per second each
		{"longer", 80 * time.Millisecond, 100},
		{"for ever", time.Hour, 4},
	} {
		bubble.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var began []int
			p := &pace{perSecond: 100, workers: 4, do: func(_ context.Context, i int) (bool, error) {
				mu.Lock()
				began = append(began, i)
				mu.Unlock()
				time.Sleep(tt.takes) // fake time, of synctest
				return true, nil
			}}
			now := time.Now()
			if err := p.run(t.Context(), now, now.Add(2*time.Second)); err != nil {
				t.Fatal(err)
			}
			slices.Sort(began)
			if p.made.Load() != tt.want || int64(len(slices.Compact(began))) != tt.want || began[len(began)-1] != int(tt.want)-1 {
				t.Errorf("an operation takes %s: %d are made, want %d, each once", tt.name, p.made.Load(), tt.want)
			}
		})
	}
}

func TestPaceBeginsOperationsWhenTheyAreDue(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		now := time.Now()
		var mu sync.Mutex
		at := map[int]time.Duration{}
		p := &pace{perSecond: 10, workers: 3, do: func(_ context.Context, i int) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			at[i] = time.Since(now)
			return i%2 == 0, nil
		}}
		if err := p.run(t.Context(), now.Add(time.Second), now.Add(1500*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		const ms = time.Millisecond
		if diff := cmp.Diff(map[int]time.Duration{0: 1000 * ms, 1: 1100 * ms, 2: 1200 * ms, 3: 1300 * ms, 4: 1400 * ms}, at); diff != "" {
			t.Errorf("operations began (-want +got):\n%s", diff)
		}
		if p.made.Load() != 3 {
			t.Errorf("%d operations were made, want the three that had something to do", p.made.Load())
		}
	})
}

func TestPaceEndsWithTheFirstErrorAndWithItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		p := &pace{perSecond: 10, workers: 2, do: func(_ context.Context, i int) (bool, error) {
			if i == 3 {
				return false, broken
			}
			return true, nil
		}}
		now := time.Now()
		if err := p.run(t.Context(), now, now.Add(time.Hour)); !errors.Is(err, broken) || p.made.Load() > 4 {
			t.Errorf("run = %v after %d operations, want the error of the fourth", err, p.made.Load())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		idle := &pace{perSecond: 1, workers: 2, do: p.do}
		if err := idle.run(ctx, now.Add(time.Hour), now.Add(2*time.Hour)); !errors.Is(err, context.Canceled) {
			t.Errorf("run = %v, want the end of its context", err)
		}
	})
}

func TestLatenciesAreOfThePodsOfTheWindow(t *testing.T) {
	from := time.Unix(1000, 0)
	at := func(ms int) time.Time { return from.Add(time.Duration(ms) * time.Millisecond) }
	bound := map[types.UID]time.Time{"early": at(500), "first": at(7), "seen": at(99), "slow": at(4999), "end": at(1001)}
	got := latencies([]birth{{uid: "early", at: at(-1)}, {uid: "first", at: at(0)}, {uid: "seen", at: at(100)}, {uid: "slow", at: at(999)}, {uid: "lost", at: at(500)}, {uid: "end", at: at(1000)}},
		from, at(1000), func(uid types.UID) (time.Time, bool) {
			t, ok := bound[uid]
			return t, ok
		})
	if diff := cmp.Diff(measure.Sample{7, 0, 4000, math.Inf(1)}, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
		t.Errorf("latencies in ms (-want +got):\n%s", diff)
	}
}

// What a scheduler reads of a node is its labels, allocatable, taints and, for some, annotations: most reports change nothing of
// it.
func TestOneNodeInTenChangesWithItsReport(t *testing.T) {
	l := newLoad(config{pods: 1, classes: 1, nodeCPU: 4}, workloadOf(t, "churn"))
	now := time.Unix(1000, 0)
	var memory, annotations int
	for i := range 100 {
		a, b := l.report(i, 4, now), l.report(i, 5, now.Add(time.Second))
		if a.Status.Conditions[0].LastHeartbeatTime.Equal(&b.Status.Conditions[0].LastHeartbeatTime) {
			t.Errorf("node %d says nothing new", i)
		}
		if !cmp.Equal(a.Annotations, b.Annotations) {
			annotations++
		}
		if !cmp.Equal(a.Status.Allocatable, b.Status.Allocatable) {
			memory++
		}
		if cpu := a.Status.Allocatable[corev1.ResourceCPU]; cpu.Value() != 4 || !cmp.Equal(a.Labels, b.Labels) {
			t.Errorf("node %d changes otherwise", i)
		}
	}
	if memory != 5 || annotations != 5 {
		t.Errorf("of 100 nodes, %d change their memory and %d an annotation, want 5 and 5", memory, annotations)
	}
}
