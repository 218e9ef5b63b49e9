package queue_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
)

// TestAPodOfWhichAPluginFailsOnItsNominatedNodeIsToldSoAtOnce: filters find n2, for to them the pod is on n1 already, where its own disk keeps it off.
func TestAPodOfWhichAPluginFailsOnItsNominatedNodeIsToldSoAtOnce(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	filters, _ := w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.ledger.node("n2", 1000)
	w.ledger.pod("low", 100, bound("n2"))
	w.ledger.apply(cluster.ObjectSet{Object: &cluster.CSINode{Name: "n1", Migrated: []string{"aws"}}})
	w.ledger.pod("p", 100, func(p *cluster.Pod, spec *cluster.ClassSpec) {
		p.Nominated, p.Priority = "n1", 10
		spec.Disks = []cluster.Disk{{Kind: cluster.DiskEBS, ID: "d", Migration: cluster.Migration{Plugin: "aws", Error: "no name"}}}
	})
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "p", queuev1.State_STATE_UNSCHEDULABLE)
	if got, want := p.GetMessage(), "0/2 nodes are available: 2 no name."; got != want || p.GetAttempts() != 1 {
		t.Errorf("%q at attempt %d, want %q at the first", got, p.GetAttempts(), want)
	}
	if n := len(filters.asked()); n != 0 {
		t.Errorf("%d dry runs, want none", n)
	}
	if sent := w.binder.sent(); len(sent) != 0 {
		t.Errorf("the binder was asked to place %v", sent)
	}
	// n1 takes no pods of that plugin any more.
	w.ledger.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.CSINodeKind, Name: "n1"}})
	w.untilPlaced("p")
}
