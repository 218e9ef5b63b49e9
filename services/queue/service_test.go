package queue_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

// checkLeaks is called first, so that it looks last.
func checkLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

func TestPodsGoThroughFilterScoreAndCommit(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 2)
	w.filterWorker("f1", nil)
	w.filterWorker("f2", nil)
	w.scoreWorker("s1")
	w.scoreWorker("s2")
	for k := range 1500 { // enough for two ranges
		w.ledger.node(fmt.Sprintf("n%d", k), 1000)
	}
	w.queueMember("q1")
	w.queueMember("q2")
	var names []string
	for k := range 60 {
		name := fmt.Sprintf("p%d", k)
		w.ledger.pod(name, int64(100+k%7*100), nil)
		names = append(names, name)
	}
	w.ledger.pod("daemon", 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.RequiredNode = "n1400" })
	w.untilPlaced(append(names, "daemon")...)
	if got := w.ledger.nodeOf("daemon"); got != "n1400" {
		t.Errorf("daemon is on %s, want n1400", got)
	}
}

// A binder of a version that does not know of images in groups takes two that only differ in them for one, and drops the other.
func TestABinderThatHasNotSaidThatItKnowsImagesGetsNoGroupsByThem(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	for k := range 8 {
		w.ledger.node(fmt.Sprintf("n%d", k), 1000)
	}
	w.ledger.apply(cluster.NodeSet{Index: 3, Node: cluster.Node{
		Name: "n3", Allocatable: quantities(1000), Images: []cluster.Image{{Names: []string{"app:1"}, Size: 1 << 30}},
	}})
	const old = 2 // commits that a binder of the version before answers
	w.binder.after = func(n int, response *binderv1.CommitResponse) error {
		response.ByImages = n > old
		return nil
	}
	w.queueMember("q1")
	w.ledger.pod("p", 100, func(_ *cluster.Pod, c *cluster.ClassSpec) { c.Images, c.ImageContainers = []string{"app:1"}, 1 })
	w.untilPlaced("p")
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	for k, commit := range w.binder.commits {
		groups := commit.GetSubjects()[0].GetGroups()
		nodes, byImages := 0, false
		for _, g := range groups {
			nodes += len(g.GetNodes())
			byImages = byImages || len(g.GetImages()) > 0 || g.GetImageLocality() != 0
		}
		switch known := k > old; { // it is known after the first answer that says so
		case byImages != known:
			t.Errorf("commit %d: groups by images: %v, want %v", k+1, byImages, known)
		case !known && (len(groups) != 1 || groups[0].GetCount() != 8 || groups[0].GetNodes()[0] != 3):
			t.Errorf("commit %d: %v, want one group of all nodes, that with the image first", k+1, groups)
		}
	}
	if len(w.binder.commits) != old+2 {
		t.Errorf("%d commits, want %d", len(w.binder.commits), old+2)
	}
}

func TestRangeOfADeadWorkerGoesToAnother(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	_, kill := w.filterWorker("f1", nil)
	alive, _ := w.filterWorker("f2", nil)
	killScore := w.scoreWorker("s1")
	w.scoreWorker("s2")
	for k := range 1100 {
		w.ledger.node(fmt.Sprintf("n%d", k), 0)
	}
	w.ledger.node("n3", 1000) // in the dead worker's range
	kill()
	killScore()
	w.queueMember("q1")
	w.ledger.pod("p", 500, nil)
	w.untilPlaced("p")
	if n := alive.calls.Load(); n != 2 {
		t.Errorf("the live worker was asked %d times, want 2: for its range and for that of the dead one", n)
	}
}

func TestRangeOfAWorkerThatHangsGoesToAnother(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.hedge, w.timeout = 100*time.Millisecond, time.Hour // enough to connect: the one that hangs is to be asked
	hangs, _ := w.filterWorker("f1", nil)
	hangs.stuck.Store(true)
	w.filterWorker("f2", nil)
	w.scoreWorker("s1")
	for k := range 1100 {
		w.ledger.node(fmt.Sprintf("n%d", k), 0)
	}
	w.ledger.node("n3", 1000) // in the range of the worker that hangs
	w.queueMember("q1")
	w.ledger.pod("p", 500, nil)
	w.untilPlaced("p")
	hangs.mu.Lock()
	defer hangs.mu.Unlock()
	if len(hangs.requests) == 0 {
		t.Error("the worker that hangs was not asked at all")
	}
}

func TestRetryKeepsTheOrder(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.binder.after = func(n int, response *binderv1.CommitResponse) error {
		if n == 1 {
			// While b is tried again, c comes; it is younger.
			w.ledger.pod("c", 100, nil)
		}
		return nil
	}
	w.binder.before = func(n int, request *binderv1.CommitRequest) error {
		if n == 1 {
			request.Pods[1].SubjectIndex = 0
			request.Subjects[0].Groups[0].Nodes, request.Subjects[0].Groups[0].Fixed, request.Subjects[0].Groups[0].Raw = nil, nil, nil
		}
		return nil
	}
	w.ledger.pod("a", 100, nil)
	w.ledger.pod("b", 100, nil)
	w.queueMember("q1")
	w.untilPlaced("a", "b", "c")
	sent := w.binder.sent()
	if want := []string{"a/1", "b/1"}; !slices.Equal(sent[0], want) {
		t.Fatalf("first commit %v, want %v", sent[0], want)
	}
	if want := []string{"a/2", "b/2", "c/1"}; !slices.Equal(sent[1], want) {
		t.Errorf("second commit %v, want %v", sent[1], want)
	}
}

func TestHelpfulDeltaBetweenEvaluationAndItsEndWakesThePod(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", func(call int64) {
		if call == 1 {
			w.ledger.node("n1", 1000) // after the worker has looked at it
		}
	})
	w.scoreWorker("s1")
	w.ledger.node("n1", 100)
	w.ledger.pod("p", 500, nil)
	w.queueMember("q1")
	w.untilPlaced("p")
}

func TestUnschedulablePodIsReportedAndWakesWithTheDeltaThatHelps(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	filters, _ := w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 100)
	w.ledger.node("n2", 200)
	w.ledger.pod("p", 500, nil)
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "p", queuev1.State_STATE_UNSCHEDULABLE)
	const want = "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: " +
		"0/2 nodes are available: 2 Preemption is not helpful for scheduling."
	if p.GetMessage() != want || len(p.GetVerdicts()) != 1 || p.GetVerdicts()[0].GetPlugin() != "NodeResourcesFit" || p.GetVerdicts()[0].GetCount() != 2 {
		t.Errorf("message %q and verdicts %v, want %q and 2 nodes of NodeResourcesFit", p.GetMessage(), p.GetVerdicts(), want)
	}
	until(t, "the report is handed in", func() bool { return w.binder.report("p") == want })
	w.ledger.node("n2", 300) // does not help
	if n := filters.calls.Load(); n != 1 {
		t.Errorf("filter-worker asked %d times, want once", n)
	}
	w.ledger.node("n1", 600)
	w.untilPlaced("p")
}

func TestPodThatLacksWhatNoNodeHasIsToldOfDeviceClasses(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.ledger.pod("p", 100, func(_ *cluster.Pod, c *cluster.ClassSpec) {
		c.Requests = append(c.Requests, cluster.Quantity{Name: "example.com/gpu", Value: 1})
	})
	q, _ := w.queueMember("q1")
	const want = "0/1 nodes are available: 1 Insufficient example.com/gpu. no new claims to deallocate, preemption: " +
		"0/1 nodes are available: 1 Preemption is not helpful for scheduling. No node has example.com/gpu; Berth does not judge device classes that offer it yet."
	if got := untilState(t, q, "p", queuev1.State_STATE_UNSCHEDULABLE).GetMessage(); got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	until(t, "the report is handed in", func() bool { return w.binder.report("p") == want })
}

func TestUnsupportedPodIsUnschedulableWithItsVerdict(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.ledger.node("n2", 1000)
	w.ledger.pod("p", 100, func(_ *cluster.Pod, c *cluster.ClassSpec) {
		c.Unsupported, c.UnsupportedPlugin = "inter-pod affinity is not judged yet", "InterPodAffinity"
	})
	w.ledger.pod("ordinary", 100, nil)
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "p", queuev1.State_STATE_UNSCHEDULABLE)
	if want := "0/2 nodes are available: 2 inter-pod affinity is not judged yet."; p.GetMessage() != want {
		t.Errorf("message %q, want %q", p.GetMessage(), want)
	}
	if v := p.GetVerdicts(); len(v) != 1 || v[0].GetPlugin() != "InterPodAffinity" || v[0].GetCount() != 2 || !v[0].GetUnresolvable() {
		t.Errorf("verdicts %v", v)
	}
	w.untilPlaced("ordinary")
	w.ledger.node("n3", 1000)
	if got := pending(t, q)["p"].GetState(); got != queuev1.State_STATE_UNSCHEDULABLE {
		t.Errorf("after a node came: %v", got)
	}
}

func TestAPodWithARequiredNodeIsToldAboutItsNodeAndTheOthers(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	for k := range 3 {
		w.ledger.node(fmt.Sprintf("n%d", k), 100)
	}
	requiring := func(node string) func(*cluster.Pod, *cluster.ClassSpec) {
		return func(p *cluster.Pod, _ *cluster.ClassSpec) { p.RequiredNode = node }
	}
	w.ledger.pod("full", 500, requiring("n1"))
	w.ledger.pod("absent", 50, requiring("n7"))
	q, _ := w.queueMember("q1")
	const hopeless = " no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
	for name, want := range map[string]string{
		"full":   "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]." + hopeless,
		"absent": "0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [NodeAffinity]." + hopeless,
	} {
		if got := untilState(t, q, name, queuev1.State_STATE_UNSCHEDULABLE).GetMessage(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	w.ledger.node("n7", 100)
	w.untilPlaced("absent")
}

func TestPodsWithoutNodesWaitForTheFirst(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.pod("p", 100, nil)
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "p", queuev1.State_STATE_UNSCHEDULABLE)
	if want := "no nodes available to schedule pods"; p.GetMessage() != want {
		t.Errorf("message %q, want %q", p.GetMessage(), want)
	}
	w.ledger.node("n1", 1000)
	w.untilPlaced("p")
}

func TestReadyNamesWhoIsMissing(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.ledger.node("n1", 1000)
	w.ledger.pod("p", 100, nil)
	w.etcd.change(func() { w.etcd.leader = coord.Leader{} })
	q, _ := w.queueMember("q1")
	says := func(want string) {
		t.Helper()
		until(t, "Ready says "+want, func() bool { err := q.Ready(); return err != nil && strings.Contains(err.Error(), want) })
	}
	says("no live filter-worker")
	w.filterWorker("f1", nil)
	says("no live score-worker")
	w.scoreWorker("s1")
	says("no active binder")
	if p := pending(t, q)["p"]; p.GetState() != queuev1.State_STATE_ACTIVE || p.GetAttempts() != 0 {
		t.Errorf("meanwhile the pod is %v after %d attempts, want active after none", p.GetState(), p.GetAttempts())
	}
	w.etcd.change(func() { w.etcd.leader = coord.Leader{Epoch: epoch, ID: "binder", Address: "binder"} })
	w.untilPlaced("p")
	if err := q.Ready(); err != nil {
		t.Errorf("Ready with everybody there: %v", err)
	}
}

func TestCommitOfUnknownOutcomeIsSentAgainWithTheSameAttempt(t *testing.T) {
	for name, lost := range map[string]error{
		"unavailable": status.Error(codes.Unavailable, "the connection broke"),
		"deadline":    status.Error(codes.DeadlineExceeded, "too late"),
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			w := newWorld(t, 1)
			w.filterWorker("f1", nil)
			w.scoreWorker("s1")
			w.ledger.node("n1", 1000)
			// The first commit is done, but nobody hears of it.
			w.binder.after = func(n int, _ *binderv1.CommitResponse) error {
				if n == 1 {
					return lost
				}
				return nil
			}
			w.ledger.pod("p", 100, nil)
			q, _ := w.queueMember("q1")
			until(t, "two commits", func() bool { return len(w.binder.sent()) == 2 })
			if diff := cmp.Diff([][]string{{"p/1"}, {"p/1"}}, w.binder.sent()); diff != "" {
				t.Errorf("commits (-want +got):\n%s", diff)
			}
			until(t, "the pod is out of the queue", func() bool { return len(pending(t, q)) == 0 })
		})
	}
}

func TestCommitWaitsAsLongAsTheBinderAsks(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	var refused, came atomic.Int64
	w.binder.before = func(n int, _ *binderv1.CommitRequest) error {
		if n == 1 {
			refused.Store(time.Now().UnixNano())
			return rpc.WithRetry(rpc.Error(codes.ResourceExhausted, "TOO_MANY_UNBOUND", "later"), 200*time.Millisecond)
		}
		came.Store(time.Now().UnixNano())
		return nil
	}
	w.ledger.pod("p", 100, nil)
	w.queueMember("q1")
	w.untilPlaced("p")
	if waited := time.Duration(came.Load() - refused.Load()); waited < 200*time.Millisecond {
		t.Errorf("sent again after %v, want 200 ms at least", waited)
	}
}

func TestWorkersAreLeftAloneAsLongAsTheyAsk(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	const asked = 200 * time.Millisecond
	var mu sync.Mutex
	var came []time.Time
	refuse := func(*filterv1.FilterRequest) error {
		mu.Lock()
		defer mu.Unlock()
		if came = append(came, time.Now()); len(came) <= 2 { // both workers, once
			return rpc.Exhausted(rpc.ReasonQueueFull, asked, "full")
		}
		return nil
	}
	for _, id := range []string{"f1", "f2"} {
		server, _ := w.filterWorker(id, nil)
		server.refuse = refuse
	}
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.ledger.pod("p", 100, nil)
	w.queueMember("q1")
	w.untilPlaced("p")
	mu.Lock()
	defer mu.Unlock()
	if waited := came[2].Sub(came[1]); waited < asked {
		t.Errorf("a worker was asked again after %v, want %v at least", waited, asked)
	}
}

func TestAbortedCommitIsRunAgain(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	filters, _ := w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.binder.before = func(n int, _ *binderv1.CommitRequest) error {
		if n == 1 {
			return rpc.Error(codes.Aborted, rpc.ReasonStale, "too old")
		}
		return nil
	}
	w.ledger.pod("p", 100, nil)
	w.queueMember("q1")
	w.untilPlaced("p")
	if n := filters.calls.Load(); n != 2 {
		t.Errorf("filter-worker asked %d times, want twice", n)
	}
}

func TestShardThatTheBinderSaysIsLostIsClaimedAgain(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	var first atomic.Int64
	w.binder.before = func(n int, request *binderv1.CommitRequest) error {
		if n == 1 {
			first.Store(request.GetShardRevision())
			return rpc.Error(codes.FailedPrecondition, rpc.ReasonShardLost, "owned by another")
		}
		if request.GetShardRevision() <= first.Load() {
			return rpc.Error(codes.FailedPrecondition, rpc.ReasonShardLost, "still owned by another")
		}
		return nil
	}
	w.ledger.pod("p", 100, nil)
	w.queueMember("q1")
	w.untilPlaced("p")
}

func TestPodThatTheBinderCallsGoneIsTriedAgainIfTheLogKeepsIt(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.binder.before = func(n int, request *binderv1.CommitRequest) error {
		if n == 1 {
			request.Pods[0].Uid = "uid-somebody else"
		}
		return nil
	}
	w.ledger.pod("p", 100, nil)
	w.queueMember("q1")
	w.untilPlaced("p")
}

// Its namespace has enough pods that wait for binds which take long: behind them it would hold up everybody.
func TestAPodThatTheBinderCallsBusyBacksOffAndHoldsUpNoOther(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	at := -1 // of the pod in the request
	w.binder.before = func(n int, request *binderv1.CommitRequest) error {
		if at = slices.IndexFunc(request.Pods, func(p *binderv1.PodAttempt) bool { return p.Uid == "uid-slow" && p.Attempt == 1 }); at >= 0 {
			request.Pods[at].Uid = "uid-nobody" // so that it is not placed
		}
		return nil
	}
	w.binder.after = func(n int, response *binderv1.CommitResponse) error {
		if at >= 0 {
			response.Outcomes[at].Result = binderv1.Outcome_RESULT_BUSY
		}
		return nil
	}
	w.ledger.pod("slow", 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Nominated = "n1" })
	w.ledger.pod("good", 100, nil)
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "slow", queuev1.State_STATE_BACKOFF)
	until(t, "that is reported", func() bool { return w.binder.report("slow") != "" })
	if w.binder.clears("slow") {
		t.Error("its nomination ends: what was made free for it may be another's")
	}
	if !strings.Contains(p.GetMessage(), "binds in its namespace take long") || p.GetBackoffUntil() == nil {
		t.Errorf("message %q, backoff until %v", p.GetMessage(), p.GetBackoffUntil())
	}
	w.untilPlaced("good", "slow")
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	if diff := cmp.Diff([]string{"good", "slow"}, w.binder.placed); diff != "" {
		t.Errorf("placed (-want +got):\n%s", diff)
	}
}

func TestBindThatFailsBringsThePodBack(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.ledger.pod("p", 100, nil)
	q, _ := w.queueMember("q1")
	w.untilPlaced("p")
	w.ledger.apply(cluster.PodForgotten{ID: 0, Reason: "bind refused"})
	p := untilState(t, q, "p", queuev1.State_STATE_BACKOFF)
	if p.GetMessage() != "bind refused" || p.GetBackoffUntil() == nil {
		t.Errorf("message %q, backoff until %v", p.GetMessage(), p.GetBackoffUntil())
	}
	w.untilPlaced("p")
	if want := [][]string{{"p/1"}, {"p/2"}}; !cmp.Equal(want, w.binder.sent()) {
		t.Errorf("commits %v, want %v", w.binder.sent(), want)
	}
}

func TestLostSessionDropsItsShardsAtOnceAndANewOneTakesThemAgain(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 4)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	q, _ := w.queueMember("q1")
	shards := func() int {
		r, err := q.GetShards(t.Context(), &queuev1.GetShardsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(r.GetShards(), func(a, b *queuev1.Shard) int { return int(a.GetShard() - b.GetShard()) }) {
			t.Fatalf("shards are not told by their numbers: %v", r.GetShards())
		}
		return len(r.GetShards())
	}
	until(t, "4 shards are owned", func() bool { return shards() == 4 })
	lost := w.lastSession("q1")
	w.etcd.mu.Lock() // no claim can be made
	lost.once.Do(func() { close(lost.done) })
	until(t, "no shard is owned", func() bool { return shards() == 0 })
	w.etcd.mu.Unlock()
	lost.lose()
	until(t, "4 shards are owned again", func() bool { return shards() == 4 })
	w.ledger.node("n1", 1000)
	w.ledger.pod("p", 100, nil)
	w.untilPlaced("p")
}

func TestShardIsRebuiltAfterItsOwnerDies(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 3)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 100)
	q1, stop := w.queueMember("q1")
	q2, _ := w.queueMember("q2")
	for k := range 12 {
		w.ledger.pod(fmt.Sprintf("p%d", k), int64(500+k), nil)
	}
	until(t, "12 pods are unschedulable by both", func() bool {
		a, b := pending(t, q1), pending(t, q2)
		return len(a)+len(b) == 12 && len(a) > 0 && len(b) > 0 && len(w.etcd.ownersOf()) == 3
	})
	stop()
	until(t, "q2 holds all", func() bool { return len(pending(t, q2)) == 12 })
	w.ledger.node("n1", 100_000)
	for k := range 12 {
		w.untilPlaced(fmt.Sprintf("p%d", k))
	}
}

func TestShardsMoveToAMemberThatJoins(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 8)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.queueMember("q1")
	until(t, "q1 owns all", func() bool { return len(w.etcd.ownersOf()) == 8 })
	w.queueMember("q2")
	until(t, "both own some", func() bool {
		count := map[string]int{}
		for _, id := range w.etcd.ownersOf() {
			count[id]++
		}
		return count["q1"]+count["q2"] == 8 && count["q1"] > 0 && count["q2"] > 0
	})
}

func TestNewEpochVoidsTheAttemptsOfTheOldOne(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	// The binder dies with the first commit; the next one begins its epoch without it.
	w.binder.before = func(n int, _ *binderv1.CommitRequest) error {
		if n > 1 {
			return nil
		}
		l := w.ledger
		l.mu.Lock()
		defer l.mu.Unlock()
		next := cluster.New(cluster.Version{})
		for d := range l.st.Snapshot() {
			if err := next.Apply(d); err != nil {
				return err
			}
		}
		next.Restore(cluster.Version{Epoch: epoch + 1})
		l.st = next
		for _, s := range l.subs {
			s.Reset(l.st)
		}
		return status.Error(codes.Unavailable, "not active any more")
	}
	w.ledger.pod("p", 100, nil)
	w.queueMember("q1")
	w.untilPlaced("p")
	sent := w.binder.sent()
	if want := [][]string{{"p/1"}, {"p/1"}, {"p/2"}}; !cmp.Equal(want, sent) {
		t.Errorf("commits %v, want %v: one lost, one of the old epoch, one of the new", sent, want)
	}
}

// One pod that the workers cannot judge, be it that they find its question wrong or that they hit a bug with it, holds up no other.
func TestAPodWithWhichTheEnginePanicsEndsNoMember(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		filters, _ := w.filterWorker("f1", nil)
		filters.refuse = func(r *filterv1.FilterRequest) error {
			if w.broken.Load() && slices.ContainsFunc(r.GetSubjects(), func(s *filterv1.Subject) bool { return s.GetClass() == 0 }) {
				return status.Error(codes.Internal, "this class")
			}
			return nil
		}
		w.scoreWorker("s1")
		w.ledger.node("n1", 1000)
		w.ledger.pod("bad", 7777, nil) // the first class
		q, _ := w.queueMember("q1")
		untilState(t, q, "bad", queuev1.State_STATE_UNSCHEDULABLE)
		w.broken.Store(true)
		elapse(time.Minute)
		w.ledger.node("n2", 1000)
		w.ledger.pod("good", 100, nil)
		elapse(time.Minute)
		if w.ledger.nodeOf("good") == "" {
			t.Error("good is not placed")
		}
		if p := untilState(t, q, "bad", queuev1.State_STATE_BACKOFF); !strings.Contains(p.GetMessage(), "this class") {
			t.Errorf("the pod that cannot be judged is told %q", p.GetMessage())
		}
	})
}

func TestAPodThatNoWorkerCanJudgeHoldsUpNoOther(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.InvalidArgument} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			for k := range 2 {
				f, _ := w.filterWorker(fmt.Sprintf("f%d", k), nil)
				f.refuse = func(r *filterv1.FilterRequest) error {
					if slices.ContainsFunc(r.GetSubjects(), func(s *filterv1.Subject) bool { return s.GetClass() == 0 }) {
						return status.Error(code, "this class")
					}
					return nil
				}
			}
			w.scoreWorker("s1")
			w.ledger.node("n1", 10000)
			w.ledger.pod("bad", 777, nil) // the first class
			good := []string{"a", "b", "c", "d", "e"}
			for _, name := range good {
				w.ledger.pod(name, 100, nil)
			}
			q, _ := w.queueMember("q1")
			elapse(5 * time.Second)
			for _, name := range good {
				if w.ledger.nodeOf(name) == "" {
					t.Errorf("%v: %s is not placed", code, name)
				}
			}
			p := untilState(t, q, "bad", queuev1.State_STATE_BACKOFF)
			if !strings.Contains(p.GetMessage(), "this class") {
				t.Errorf("%v: the pod that cannot be judged is told %q", code, p.GetMessage())
			}
		})
	}
}

func TestALookThatTakesLongHoldsUpNoPodThatIsActive(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	const nodes, classes = 20, 200
	for k := range nodes {
		w.ledger.node(fmt.Sprintf("n%d", k), 1000)
	}
	for k := range classes {
		w.ledger.pod(fmt.Sprintf("large%d", k), int64(2000+k), nil)
	}
	q, _ := w.queueMember("q1")
	until(t, "all are unschedulable", func() bool {
		waiting := pending(t, q)
		for _, p := range waiting {
			if p.GetState() != queuev1.State_STATE_UNSCHEDULABLE {
				return false
			}
		}
		return len(waiting) == classes
	})
	var asked atomic.Int64
	slowly := func() { // a millisecond of work, or the look would be over at once
		asked.Add(1)
		for began := time.Now(); time.Since(began) < time.Millisecond; {
			runtime.Gosched()
		}
	}
	w.judging.Store(&slowly)
	for k := range nodes {
		w.ledger.node(fmt.Sprintf("n%d", k), 1001)
	}
	until(t, "the shard looks", func() bool { return asked.Load() > 0 })
	w.ledger.pod("small", 100, nil)
	w.untilPlaced("small")
	w.judging.Store(nil)
	if n := asked.Load(); n > nodes*classes {
		t.Errorf("%d questions have been asked when the pod is placed, want few of %d", n, 2*nodes*classes)
	}
}

func TestTheLogDoesNotWaitForAWholeBatchToBeRejected(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	const nodes, classes = 5, 50
	var asked atomic.Int64
	told := make(chan int64, 1)
	judging := func() {
		if asked.Add(1) == 1 { // the pods are compared with what has changed since their verdicts
			go func() {
				w.ledger.node("small", 10)
				told <- asked.Load()
			}()
		}
		for began := time.Now(); time.Since(began) < time.Millisecond; { // a millisecond of work, or all would be over at once
			runtime.Gosched()
		}
	}
	w.filterWorker("f1", func(int64) {
		for k := range nodes {
			w.ledger.node(fmt.Sprintf("n%d", k), 1001)
		}
		w.judging.Store(&judging)
	})
	w.scoreWorker("s1")
	for k := range nodes {
		w.ledger.node(fmt.Sprintf("n%d", k), 1000)
	}
	for k := range classes {
		w.ledger.pod(fmt.Sprintf("large%d", k), int64(2000+k), func(p *cluster.Pod, _ *cluster.ClassSpec) { p.NeverPreempts = true })
	}
	w.queueMember("q1")
	select {
	case n := <-told:
		if n > nodes*classes/2 {
			t.Errorf("the log has waited for %d questions of %d, want those about a pod", n, nodes*classes)
		}
	case <-time.After(patience):
		t.Error("nothing was asked")
	}
	w.judging.Store(nil)
}
