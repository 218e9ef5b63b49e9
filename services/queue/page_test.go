package queue

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
)

func TestAPageEndsWhereItsBytesDo(t *testing.T) {
	pods := make([]*queuev1.PendingPod, 10)
	for i := range pods {
		pods[i] = &queuev1.PendingPod{Message: strings.Repeat("x", 100)} // 102 bytes
	}
	for bytes, want := range map[int]int{1: 1, 102: 1, 103: 2, 500: 5, 1020: 10, 5000: 10} {
		if got := len(fitting(pods, bytes)); got != want {
			t.Errorf("%d pods within %d bytes, want %d", got, bytes, want)
		}
	}
	if got := fitting(nil, 100); len(got) != 0 {
		t.Errorf("%d pods of none", len(got))
	}
}

func TestAListOfManyPodsDoesNotHoldTheQueue(t *testing.T) {
	st := cluster.New(cluster.Version{Epoch: 1})
	deltas := []cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}},
		cluster.ClassDefined{Spec: cluster.ClassSpec{SchedulerName: "default-scheduler"}},
	}
	const count = 5 * entriesAtATime / 2
	for k := range count {
		deltas = append(deltas, cluster.PodSet{ID: cluster.PodID(k), Pod: cluster.Pod{UID: fmt.Sprint(k)}})
	}
	sh := newShard(0, 0, nil, nil)
	for _, d := range deltas {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	sh.reset(st)
	listed, parts := 0, 0
	for some := range sh.entries() {
		if !sh.mu.TryLock() {
			t.Fatal("the queue is held")
		}
		sh.mu.Unlock()
		if len(some) > entriesAtATime {
			t.Errorf("%d pods at a time, want at most %d", len(some), entriesAtATime)
		}
		listed += len(some)
		parts++
	}
	if listed != count || parts != 3 {
		t.Errorf("%d pods in %d parts, want %d in 3", listed, parts, count)
	}
}
