package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

// limitMessages makes the queue's messages small.
func (w *world) limitMessages(bytes int) {
	w.t.Helper()
	if err := w.clients.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.clients = rpc.NewClients(rpc.Config{Net: w.net, Largest: bytes})
}

func TestABatchThatIsTooLargeForAMessageIsHalved(t *testing.T) {
	checkLeaks(t)
	const bits, pods, limit = 8, 60, 4 << 10
	w := newWorld(t, 1)
	w.limitMessages(limit)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	for i := range 1 << bits {
		n := cluster.Node{Name: fmt.Sprintf("n%d", i), Allocatable: quantities(100_000)}
		for bit := range bits {
			n.Labels = append(n.Labels, cluster.Label{Key: fmt.Sprint("bit", bit), Value: fmt.Sprint(i >> bit & 1)})
		}
		w.ledger.apply(cluster.NodeSet{Index: cluster.NodeIndex(i), Node: n})
	}
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprintf("p%d", i))
		w.ledger.pod(names[i], int64(10+i), nil) // each of a class of its own, with candidates of its own
	}
	// It prefers each node to another degree, so every node is a group by itself: what is to be said of it alone is too large.
	w.ledger.pod("giant", 10, func(p *cluster.Pod, c *cluster.ClassSpec) {
		p.Nominated = "gone"
		for bit := range bits {
			c.Preferred = append(c.Preferred, cluster.PreferredTerm{Weight: 1 << bit, Term: cluster.NodeSelectorTerm{
				Expressions: []cluster.Requirement{{Key: fmt.Sprint("bit", bit), Operator: "In", Values: []string{"1"}}},
			}})
		}
	})
	w.ledger.pod("behind", 10, nil)
	q, _ := w.queueMember("q1")
	w.untilPlaced(append(names, "behind")...)
	giant := untilState(t, q, "giant", queuev1.State_STATE_UNSCHEDULABLE)
	if !strings.Contains(giant.GetMessage(), "too large for a message") {
		t.Errorf("the giant waits because of %q", giant.GetMessage())
	}
	until(t, "it is reported", func() bool { return strings.Contains(w.binder.report("giant"), "too large for a message") })
	w.ledger.mu.RLock()
	id, _ := w.ledger.st.PodByUID("uid-giant")
	w.ledger.mu.RUnlock()
	w.ledger.apply(cluster.PodNominated{ID: id}) // the report says so
	sent := w.binder.sent()
	most := 0
	for _, batch := range sent {
		most = max(most, len(batch))
	}
	if most < 2 || most > pods/2 {
		t.Errorf("%d commits, of at most %d pods", len(sent), most)
	}
	// It is not tried again and again, and batches grow again.
	for i := range 3 {
		names := []string{fmt.Sprintf("later%d", i)}
		w.ledger.pod(names[0], 10, nil)
		w.untilPlaced(names...)
	}
	if p := untilState(t, q, "giant", queuev1.State_STATE_UNSCHEDULABLE); p.GetAttempts() != giant.GetAttempts() {
		t.Errorf("the giant was tried %d times more", p.GetAttempts()-giant.GetAttempts())
	}
}

func TestReportsThatAreTooLargeForAMessageAreSplit(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.limitMessages(2 << 10)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 10)
	w.binder.refuseReports(true)
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprintf("p%d", i))
		w.ledger.pod(names[i], 500, nil)
	}
	q, _ := w.queueMember("q1")
	for _, name := range names {
		untilState(t, q, name, queuev1.State_STATE_UNSCHEDULABLE)
	}
	w.binder.refuseReports(false)
	for _, name := range names {
		until(t, name+" is reported", func() bool { return w.binder.report(name) != "" })
	}
}

func TestReportsThatTheBinderLeavesAreHandedInAgainAndHoldUpNoOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.filterWorker("f1", nil)
		w.scoreWorker("s1")
		w.ledger.node("n1", 10)
		full, calls := true, 0
		w.binder.leaves = func(r *binderv1.PodReport) bool {
			calls++
			return full && slices.Contains([]string{"uid-many1", "uid-many2"}, r.GetUid())
		}
		for _, name := range []string{"many1", "few", "many2"} {
			w.ledger.pod(name, 500, nil)
		}
		w.queueMember("q1")
		elapse(10 * time.Second)
		synctest.Wait()
		if w.binder.report("few") == "" || w.binder.report("many1") != "" {
			t.Errorf("reported: %q and %q", w.binder.report("few"), w.binder.report("many1"))
		}
		w.binder.mu.Lock()
		if full = false; calls > 3*20 {
			t.Errorf("3 reports are handed in %d times in 10 s", calls)
		}
		w.binder.mu.Unlock()
		elapse(2 * time.Second)
		synctest.Wait()
		if w.binder.report("many1") == "" || w.binder.report("many2") == "" {
			t.Error("they are lost")
		}
	})
}

func TestABatchForWhichThereIsNoRoomIsHalvedUntilThereIs(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 10_000)
	w.binder.before = func(_ int, request *binderv1.CommitRequest) error {
		if len(request.GetPods()) > 3 { // as much room as there ever is, for others take the rest
			return rpc.Exhausted("TOO_MANY_UNBOUND", time.Millisecond, "later")
		}
		return nil
	}
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprintf("p%d", i))
		w.ledger.pod(names[i], 100, nil)
	}
	w.queueMember("q1")
	w.untilPlaced(names...)
	if got := w.binder.order(); !slices.Equal(got, names) {
		t.Errorf("placed in the order %v", got)
	}
}

func TestABatchThatHasToWaitWhateverItsSizeIsNotHalved(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 10_000)
	w.binder.before = func(n int, request *binderv1.CommitRequest) error {
		if n < 5 {
			return rpc.Exhausted("TOO_MANY_ASIDE", time.Millisecond, "later")
		}
		if n := len(request.GetPods()); n != 8 {
			t.Errorf("%d pods are sent, want all 8", n)
		}
		return nil
	}
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprintf("p%d", i))
		w.ledger.pod(names[i], 100, nil)
	}
	w.queueMember("q1")
	w.untilPlaced(names...)
}
