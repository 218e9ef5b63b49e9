package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

// full returns a world with two nodes and a pod of priority 0 that fills each.
func full(t *testing.T) (*world, *filterServer) {
	checkLeaks(t)
	w := newWorld(t, 1)
	filters, _ := w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.ledger.node("n2", 1000)
	w.ledger.pod("low1", 1000, bound("n1"))
	w.ledger.pod("low2", 1000, bound("n2"))
	return w, filters
}

func (w *world) row(name string) cluster.PodRow {
	w.t.Helper()
	w.ledger.mu.RLock()
	defer w.ledger.mu.RUnlock()
	id, ok := w.ledger.st.PodByUID("uid-" + name)
	if !ok {
		w.t.Fatalf("no pod %s", name)
	}
	return *w.ledger.st.Pod(id)
}

const insufficient = "0/2 nodes are available: 2 Insufficient cpu."

func TestPodThatFitsNowherePreemptsAndGoesToItsNodeWhenTheVictimIsGone(t *testing.T) {
	w, _ := full(t)
	w.ledger.pod("high", 600, priority(10))
	q, _ := w.queueMember("q1")
	until(t, "a preemption has begun", func() bool { return len(w.binder.preempted()) == 1 })
	node := w.row("high").Nominated
	if want := []string{"high/1 on " + node + ": low" + node[1:]}; !slices.Equal(w.binder.preempted(), want) {
		t.Errorf("preemptions %v, want %v", w.binder.preempted(), want)
	}
	if got := w.binder.report("high"); got != insufficient {
		t.Errorf("reported %q, want %q: no word of PostFilter, since it has begun", got, insufficient)
	}
	until(t, "the preemptor is not in flight", func() bool {
		s := pending(t, q)["high"].GetState()
		return s != queuev1.State_STATE_IN_FLIGHT && s != queuev1.State_STATE_ACTIVE
	})
	w.binder.evict(1)
	w.untilPlaced("high")
	if got := w.ledger.nodeOf("high"); got != node {
		t.Errorf("high is on %s, want %s", got, node)
	}
	if n := len(w.binder.preempted()); n != 1 {
		t.Errorf("%d preemptions, want 1", n)
	}
}

func TestPodsThatFitAreCommittedBeforeAnyPreemption(t *testing.T) {
	w, _ := full(t)
	w.ledger.node("n3", 100)
	var placedFirst bool
	w.binder.preempting = func(int, *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		placedFirst = w.ledger.nodeOf("small") != ""
		return nil, nil
	}
	w.ledger.pod("high", 600, priority(10))
	w.ledger.pod("small", 100, nil)
	w.queueMember("q1")
	until(t, "a preemption has begun", func() bool { return len(w.binder.preempted()) == 1 })
	if !placedFirst {
		t.Error("small waits behind the preemption of high")
	}
}

func TestPreemptorsOfABatchSeeEachOther(t *testing.T) {
	w, filters := full(t)
	for k := range 3 {
		w.ledger.pod(fmt.Sprintf("high%d", k), 600, priority(10))
	}
	q, _ := w.queueMember("q1")
	until(t, "two preemptions", func() bool { return len(w.binder.preempted()) == 2 })
	untilState(t, q, "high2", queuev1.State_STATE_UNSCHEDULABLE)
	if a, b := w.row("high0").Nominated, w.row("high1").Nominated; a == b || a == "" || b == "" {
		t.Errorf("high0 is nominated to %q, high1 to %q, want to different nodes", a, b)
	}
	asked := filters.asked()
	if len(asked) != 3 {
		t.Fatalf("%d dry runs, want 3", len(asked))
	}
	for k := 1; k < len(asked); k++ {
		before, least := asked[k-1].GetMinVersion().GetSeq(), asked[k].GetMinVersion().GetSeq()
		if least <= before {
			t.Errorf("dry run %d at version %d or later, want later than %d, at which the one before began", k, least, before)
		}
	}
	if n := len(w.binder.sent()); n != 0 {
		t.Errorf("%d commits, want none", n)
	}
}

func TestPodsOfASubjectWithoutACandidateAskOnce(t *testing.T) {
	w, filters := full(t)
	for k := range 4 {
		w.ledger.pod(fmt.Sprintf("p%d", k), 600, nil) // not above anybody
	}
	q, _ := w.queueMember("q1")
	const want = insufficient + " no new claims to deallocate, preemption: " +
		"0/2 nodes are available: 2 No preemption victims found for incoming pod."
	for k := range 4 {
		name := fmt.Sprintf("p%d", k)
		if got := untilState(t, q, name, queuev1.State_STATE_UNSCHEDULABLE).GetMessage(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		until(t, "the report of "+name, func() bool { return w.binder.report(name) == want })
	}
	if n := len(filters.asked()); n != 1 {
		t.Errorf("%d dry runs, want 1", n)
	}
}

func TestPodsKeptFromPreemptingByWhatIsElsewherePreemptWhenThatGoes(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	zone := []cluster.Label{{Key: "zone", Value: "a"}}
	w.ledger.apply(
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Labels: zone, Allocatable: quantities(1000)}},
		cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n2", Labels: zone, Allocatable: quantities(1000)}},
		cluster.NodeSet{Index: 2, Node: cluster.Node{Name: "n3", Labels: zone, Allocatable: quantities(100)}},
	)
	w.ledger.pod("low1", 1000, bound("n1"))
	w.ledger.pod("low2", 1000, bound("n2"))
	app := w.ledger.labels("app", "x")
	w.ledger.pod("enemy", 100, func(p *cluster.Pod, spec *cluster.ClassSpec) {
		bound("n3")(p, spec)
		p.Labels, p.Priority = app, 100
	})
	for k := range 2 { // only the first one's dry run is made
		w.ledger.pod(fmt.Sprintf("p%d", k), 600, func(p *cluster.Pod, spec *cluster.ClassSpec) {
			p.Priority = 10
			spec.AntiAffinity = []cluster.PodTerm{{
				TopologyKey: "zone", Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true},
				Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "Exists"}}},
			}}
		})
	}
	q, _ := w.queueMember("q1")
	for k := range 2 {
		untilState(t, q, fmt.Sprintf("p%d", k), queuev1.State_STATE_UNSCHEDULABLE)
	}
	w.ledger.mu.RLock()
	enemy, _ := w.ledger.st.PodByUID("uid-enemy")
	w.ledger.mu.RUnlock()
	w.ledger.apply(cluster.PodRemoved{ID: enemy})
	for k := range 2 {
		name := fmt.Sprintf("p%d", k)
		until(t, name+" is nominated", func() bool { return w.row(name).Nominated != "" })
	}
}

func TestPodThatMayNotPreemptIsUnschedulableWithTheReason(t *testing.T) {
	w, filters := full(t)
	w.ledger.pod("never", 600, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority, p.NeverPreempts = 10, true })
	w.ledger.pod("unsupported", 600, func(p *cluster.Pod, c *cluster.ClassSpec) {
		p.Priority = 10
		c.Unsupported, c.UnsupportedPlugin = "devices are not judged", "DynamicResources"
	})
	q, _ := w.queueMember("q1")
	for name, want := range map[string]string{
		"never":       insufficient + " no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never.",
		"unsupported": "0/2 nodes are available: 2 devices are not judged.",
	} {
		if got := untilState(t, q, name, queuev1.State_STATE_UNSCHEDULABLE).GetMessage(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if n := len(filters.asked()); n != 0 {
		t.Errorf("%d dry runs, want none", n)
	}
}

func TestProfileWithoutPostFiltersSaysNothingOfPreemptionAndClearsTheNomination(t *testing.T) {
	w, _ := full(t)
	settings := w.ledger.st.Settings
	settings.Profiles = []cluster.Profile{engine.DefaultProfile("default-scheduler")}
	settings.Profiles[0].PostFilters = nil
	w.ledger.apply(cluster.SettingsSet{Settings: settings})
	w.ledger.pod("high", 600, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority, p.Nominated = 10, "n1" })
	w.queueMember("q1")
	until(t, "the report", func() bool { return w.binder.report("high") == insufficient })
	if !w.binder.clears("high") {
		t.Error("the nomination stays")
	}
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	if got, want := w.binder.meant["uid-high"], "n1 of attempt 1 under 101"; got != want { // the first claim of the fake etcd
		t.Errorf("it is that on %q, want %q", got, want)
	}
}

func TestNominationIsClearedOnlyIfPreemptionFindsNothing(t *testing.T) {
	w, _ := full(t)
	nominated := func(priority int32) func(p *cluster.Pod, _ *cluster.ClassSpec) {
		return func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority, p.Nominated = priority, "n1" }
	}
	w.ledger.pod("nothing", 600, nominated(0))
	// The one it waits for is on its way out.
	w.ledger.apply(cluster.PodSet{ID: 0, Pod: func() cluster.Pod {
		p := w.row("low1").Pod
		p.Deleting, p.Preempted = true, true
		return p
	}()})
	w.ledger.pod("waits", 600, nominated(10))
	w.queueMember("q1")
	for name, want := range map[string]bool{"nothing": true, "waits": false} {
		until(t, "the report of "+name, func() bool { return w.binder.report(name) != "" })
		if got := w.binder.clears(name); got != want {
			t.Errorf("%s: cleared %v, want %v, with %q", name, got, want, w.binder.report(name))
		}
	}
	if got := w.binder.report("waits"); !strings.HasSuffix(got, "preemption: not eligible due to a terminating pod on the nominated node.") {
		t.Errorf("waits: %q", got)
	}
}

func TestPreemptionThatTheBinderFindsOtherwiseIsTriedAgainAndThenBacksOff(t *testing.T) {
	w, filters := full(t)
	w.binder.preempting = func(int, *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		return &binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_RETRY}, nil
	}
	w.ledger.pod("high", 600, priority(10))
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "high", queuev1.State_STATE_BACKOFF)
	if want := "its preemption was put off: the pods to be preempted had changed, or as many binds in its namespace, or evictions in theirs, are under way as may be"; p.GetMessage() != want {
		t.Errorf("message %q, want %q", p.GetMessage(), want)
	}
	if n := len(filters.asked()); n != 3 {
		t.Errorf("%d dry runs, want 3", n)
	}
}

func TestPreemptionIsPutOffWhileTheBinderHasTooMuchToDoAndOthersArePlaced(t *testing.T) {
	w, _ := full(t)
	const asked = 50 * time.Millisecond
	var refused time.Time // only the one driver asks
	w.binder.preempting = func(n int, _ *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		if waited := time.Since(refused); waited < asked {
			t.Errorf("asked again after %v, want %v at least", waited, asked)
		}
		if w.row("small").Phase == cluster.Pending {
			refused = time.Now()
			return nil, rpc.Exhausted("REPORTS_FULL", asked, "later")
		}
		return nil, nil
	}
	w.ledger.pod("small", 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Gates = []string{"wait"} })
	w.ledger.pod("high", 600, priority(10))
	w.queueMember("q1")
	until(t, "the binder has refused twice", func() bool { return len(w.binder.preempted()) > 1 })
	w.ledger.node("n3", 100)
	small := w.row("small").Pod
	small.Gates = nil
	id, _ := w.ledger.st.PodByUID(small.UID)
	w.ledger.apply(cluster.PodSet{ID: id, Pod: small})
	w.untilPlaced("small")
	until(t, "high is nominated", func() bool { return w.row("high").Nominated != "" })
}

func TestPodsThatWaitForABinderThatTakesNoPreemptionHoldUpNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.batch = 2
		w.filterWorker("f1", nil)
		w.scoreWorker("s1")
		w.ledger.node("n1", 1000)
		w.ledger.node("n2", 100)
		w.ledger.pod("low", 1000, bound("n1"))
		full := true
		w.binder.preempting = func(int, *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
			if full {
				return nil, rpc.Exhausted("PREEMPTIONS_FULL", 50*time.Millisecond, "as many preemptions wait for their evictions as may")
			}
			return nil, nil
		}
		for k := range 6 { // three batches
			w.ledger.pod(fmt.Sprintf("high%d", k), 600, priority(10))
		}
		w.ledger.pod("small", 100, nil)
		w.queueMember("q1")
		elapse(time.Second)
		if w.ledger.nodeOf("small") == "" {
			t.Error("a pod that fits waits behind pods that may not preempt yet")
		}
		asked := len(w.binder.preempted())
		if asked > 3 {
			t.Errorf("the binder is asked %d times in a second, want once per batch at most", asked)
		}
		elapse(time.Minute)
		if n := len(w.binder.preempted()); n == asked {
			t.Error("the binder is not asked again in a minute")
		}
		w.binder.mu.Lock()
		full = false
		w.binder.mu.Unlock()
		elapse(time.Minute)
		nominated := 0
		for k := range 6 {
			if w.row(fmt.Sprintf("high%d", k)).Nominated != "" {
				nominated++
			}
		}
		if nominated != 1 {
			t.Errorf("%d pods are nominated once the binder takes preemptions again, want the one for which there is a victim", nominated)
		}
	})
}

func TestPreemptionOfUnknownOutcomeIsAskedForAgain(t *testing.T) {
	w, _ := full(t)
	w.binder.preempting = func(n int, _ *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		if n == 1 {
			return nil, rpc.Error(codes.Unavailable, "NOT_ACTIVE", "the connection broke")
		}
		return nil, nil
	}
	w.ledger.pod("high", 600, priority(10))
	w.queueMember("q1")
	until(t, "high is nominated", func() bool { return w.row("high").Nominated != "" })
	got := w.binder.preempted()
	if len(got) != 2 || got[0] != got[1] {
		t.Errorf("preemptions %v, want the same one twice", got)
	}
}

func TestShardLostAtAPreemptionIsClaimedAgain(t *testing.T) {
	w, _ := full(t)
	w.binder.preempting = func(n int, r *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		if n == 1 {
			return nil, rpc.Error(codes.FailedPrecondition, rpc.ReasonShardLost, "owned by another")
		}
		return nil, nil
	}
	w.ledger.pod("high", 600, priority(10))
	w.queueMember("q1")
	until(t, "high is nominated", func() bool { return w.row("high").Nominated != "" })
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	if a, b := w.binder.preempts[0].GetShardRevision(), w.binder.preempts[1].GetShardRevision(); a >= b {
		t.Errorf("revisions %d, then %d, want a newer one", a, b)
	}
}

func TestReportOfAnEarlierAttemptDoesNotFollowThePreemption(t *testing.T) {
	w, _ := full(t)
	w.binder.refuseReports(true)
	q, _ := w.queueMember("q1")
	w.ledger.pod("first", 600, nil) // the reporter is busy with it
	untilState(t, q, "first", queuev1.State_STATE_UNSCHEDULABLE)
	w.ledger.pod("high", 600, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Nominated = "n1" })
	untilState(t, q, "high", queuev1.State_STATE_UNSCHEDULABLE)
	raised := w.row("high").Pod
	raised.Priority = 10
	w.ledger.mu.RLock()
	id, _ := w.ledger.st.PodByUID(raised.UID)
	w.ledger.mu.RUnlock()
	w.ledger.apply(cluster.PodSet{ID: id, Pod: raised})
	until(t, "a preemption has begun", func() bool { return len(w.binder.preempted()) == 1 })
	w.ledger.pod("last", 700, nil)
	untilState(t, q, "last", queuev1.State_STATE_UNSCHEDULABLE)
	w.binder.refuseReports(false)
	until(t, "all reports are handed in", func() bool { return w.binder.report("last") != "" })
	if got := w.binder.report("high"); got != insufficient || w.binder.handedIn("high") {
		t.Errorf("reported %q, and by itself: %v, want only what came with the preemption", got, w.binder.handedIn("high"))
	}
}

func TestManyPreemptionsDoNotKeepAPodThatFitsWaiting(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		filters, _ := w.filterWorker("f1", nil)
		filters.slow = 100 * time.Millisecond
		w.scoreWorker("s1")
		const count = 20
		for k := range count {
			node := fmt.Sprintf("n%d", k)
			w.ledger.node(node, 1000)
			w.ledger.pod("low"+node, 1000, bound(node))
			w.ledger.pod(fmt.Sprintf("high%d", k), 600, priority(10))
		}
		w.binder.preempting = func(n int, _ *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
			if n == 1 {
				w.ledger.node("free", 100)
				w.ledger.pod("small", 100, priority(10))
			}
			return nil, nil
		}
		w.queueMember("q1")
		w.untilPlaced("small")
		if n := len(w.binder.preempted()); n > 7 {
			t.Errorf("%d preemptions have been made before the pod was placed, want those of half a second", n)
		}
		elapse(time.Minute)
		if n := len(w.binder.preempted()); n != count {
			t.Errorf("%d preemptions after a minute, want %d", n, count)
		}
	})
}
