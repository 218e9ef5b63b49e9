package queue_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
)

func TestPodThatTheBinderRetriesForEverBacksOffAndHoldsUpNobody(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.binder.retries = func(name string) bool { return name == "stuck" }
	w.ledger.pod("stuck", 100, priority(10))
	w.ledger.pod("behind", 200, nil)
	q, _ := w.queueMember("q1")
	until(t, "the pod behind it is placed", func() bool { return w.row("behind").Phase != cluster.Pending })
	p := untilState(t, q, "stuck", queuev1.State_STATE_BACKOFF)
	if want := "again and again, the nodes that were found for the pod were not what the binder found when its turn came"; p.GetMessage() != want {
		t.Errorf("message %q, want %q", p.GetMessage(), want)
	}
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	commits := 0
	for _, c := range w.binder.commits {
		if len(c.GetPods()) == 2 {
			commits++
		}
	}
	if commits != 8 {
		t.Errorf("both were in %d commits, want 8", commits)
	}
}
