package queue_test

import (
	"sync"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
)

func TestRDRefused(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	var again sync.Once
	filters, _ := w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 50)
	set := w.ledger.claiming("a")
	w.ledger.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeClaimKind, Namespace: "default", Name: "a"}})
	w.ledger.pod("p", 100, with(labelled(set), requiring("n1")))
	filters.refuse = func(*filterv1.FilterRequest) error {
		again.Do(func() { w.ledger.apply(claimOf("a")) })
		return nil
	}
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "p", queuev1.State_STATE_UNSCHEDULABLE)
	t.Logf("%q", p.GetMessage())
}
