package queue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/services/queue"
)

// asks makes pods interest extenders whose names begin so.
func (w *world) asks(prefix string, answer func(ctx context.Context, name string, request *binderv1.AskRequest) (*binderv1.AskResponse, error)) {
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	w.binder.asking = answer
	w.binder.instead = func(name string) binderv1.Outcome_Result {
		if strings.HasPrefix(name, prefix) {
			return binderv1.Outcome_RESULT_ASK
		}
		return binderv1.Outcome_RESULT_UNSPECIFIED
	}
}

// gone removes a pod.
func (l *ledger) gone(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, _ := l.st.PodByUID("uid-" + name)
	l.applyLocked(cluster.PodRemoved{ID: id})
}

func answering(result binderv1.Outcome_Result) *binderv1.AskResponse {
	return &binderv1.AskResponse{Outcome: &binderv1.Outcome{Result: result}}
}

func refusedBy(reason string, nodes int32, unresolvable bool) *binderv1.AskResponse {
	r := answering(binderv1.Outcome_RESULT_REFUSED)
	r.Refusals = []*filterv1.VerdictCount{{Plugin: "Extender", Reason: reason, Count: nodes, Unresolvable: unresolvable}}
	return r
}

func TestAPodThatExtendersRefuseWaitsForAnything(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.ledger.node("n2", 1000)
	w.ledger.node("small", 10)
	var mu sync.Mutex
	asked, refuses := 0, true
	w.asks("gpu", func(_ context.Context, _ string, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; refuses {
			return refusedBy("no gpu", 2, false), nil
		}
		return w.binder.assume(request, "n2"), nil
	})
	w.ledger.pod("gpu", 600, nil)
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "gpu", queuev1.State_STATE_UNSCHEDULABLE)
	const want = "0/3 nodes are available: 1 Insufficient cpu, 2 no gpu. no new claims to deallocate, " +
		"preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
	until(t, "it is reported", func() bool { return w.binder.report("gpu") != "" })
	if got := w.binder.report("gpu"); got != want || p.GetMessage() != want {
		t.Errorf("reported %q, in the queue %q, want %q", got, p.GetMessage(), want)
	}
	mu.Lock()
	if asked != 1 {
		t.Errorf("asked %d times, want once", asked)
	}
	refuses = false
	mu.Unlock()
	// What happens says nothing of any node that Berth's plugins would see.
	w.ledger.pod("other", 100, bound("small"))
	w.untilPlaced("gpu")
	if got := w.ledger.nodeOf("gpu"); got != "n2" {
		t.Errorf("it is on %s, want n2", got)
	}
}

// A plugin may say that a pod is worth trying while its own refusal is on the way: the attempt that is rejected by that refusal asks nobody, and the pod is asked about again behind it.
func TestAPodThatIsWokenWhileItIsRefusedIsAskedAboutAgain(t *testing.T) {
	for _, delta := range []cluster.PodActivated{{}, {AfterBackoff: true}} {
		checkLeaks(t)
		w := newWorld(t, 1)
		w.filterWorker("f1", nil)
		w.scoreWorker("s1")
		w.ledger.node("n1", 1000)
		first := make(chan struct{}, 1)
		first <- struct{}{}
		w.asks("gpu", func(_ context.Context, _ string, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
			select {
			case <-first:
				w.ledger.wakes("gpu", delta)
				return refusedBy("no gpu", 1, false), nil
			default:
				return w.binder.assume(request, "n1"), nil
			}
		})
		w.ledger.pod("gpu", 600, nil)
		w.queueMember("q1")
		w.untilPlaced("gpu")
	}
}

// wakes says in the log that a pod is worth trying.
func (l *ledger) wakes(name string, delta cluster.PodActivated) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delta.ID, _ = l.st.PodByUID("uid-" + name)
	l.applyLocked(delta)
}

func TestAnExtenderThatFailsIsAnErrorOfTheAttempt(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	w.asks("gpu", func(_ context.Context, _ string, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
		select {
		case <-first:
			r := answering(binderv1.Outcome_RESULT_FAILED)
			r.Error = "Post http://extender: no answer"
			return r, nil
		default:
			return w.binder.assume(request, "n1"), nil
		}
	})
	w.ledger.pod("gpu", 600, nil)
	w.queueMember("q1")
	until(t, "it is reported", func() bool { return w.binder.report("gpu") == "Post http://extender: no answer" })
	w.untilPlaced("gpu") // behind its backoff
}

// One extender hangs, with pods of the highest priority: those of another, of another shard, and those that interest none, go on.
func TestNobodyWaitsForAnExtenderThatHangs(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 2)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 10_000)
	hangs := make(chan struct{})
	var mu sync.Mutex
	var order []string
	w.asks("gpu", func(ctx context.Context, name string, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
		mu.Lock()
		order = append(order, name)
		mu.Unlock()
		if strings.HasPrefix(name, "gpu-hangs") {
			select {
			case <-hangs:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return w.binder.assume(request, "n1"), nil
	})
	w.binder.turn = func(name string) uint64 {
		if strings.HasPrefix(name, "gpu-hangs") {
			return 1
		}
		return 2
	}
	q, _ := w.queueMember("q1")
	w.ledger.pod("gpu-hangs", 100, priority(100))
	until(t, "it is asked about", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(order) == 1
	})
	for k := range 4 { // these wait, in queue order
		w.ledger.pod(fmt.Sprintf("gpu-hangs-then-%d", k), 100, priority(int32(50+10*k)))
	}
	until(t, "they wait", func() bool {
		n := 0
		for _, p := range pending(t, q) {
			if p.GetState() == queuev1.State_STATE_IN_FLIGHT {
				n++
			}
		}
		return n == 5
	})
	for k := range 8 { // of several classes, and so of both shards
		w.ledger.pod(fmt.Sprintf("plain-%d", k), int64(10+k), priority(int32(k-4)))
		w.ledger.pod(fmt.Sprintf("gpu-well-%d", k), int64(20+k), priority(int32(k-4)))
	}
	for k := range 8 {
		w.untilPlaced(fmt.Sprintf("plain-%d", k), fmt.Sprintf("gpu-well-%d", k))
	}
	close(hangs)
	w.untilPlaced("gpu-hangs", "gpu-hangs-then-0", "gpu-hangs-then-1", "gpu-hangs-then-2", "gpu-hangs-then-3")
	mu.Lock()
	defer mu.Unlock()
	order = slices.DeleteFunc(order, func(name string) bool { return !strings.HasPrefix(name, "gpu-hangs") })
	if want := []string{"gpu-hangs", "gpu-hangs-then-3", "gpu-hangs-then-2", "gpu-hangs-then-1", "gpu-hangs-then-0"}; !slices.Equal(order, want) {
		t.Errorf("asked about in the order %v, want %v", order, want)
	}
}

// The preemption of a pod that fits where extenders do not let it go says so: that it fits there is no reason against it.
func TestAPodThatExtendersRefusePreemptsElsewhere(t *testing.T) {
	w, _ := full(t)
	w.ledger.node("n3", 1000)
	w.asks("gpu", func(context.Context, string, *binderv1.AskRequest) (*binderv1.AskResponse, error) {
		return refusedBy("no gpu", 1, true), nil
	})
	w.ledger.pod("gpu", 600, priority(10))
	w.queueMember("q1")
	until(t, "a preemption has begun", func() bool { return len(w.binder.preempted()) == 1 })
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	if r := w.binder.preempts[0]; !r.GetRefused() || r.GetPod().GetMessage() != "0/3 nodes are available: 1 no gpu, 2 Insufficient cpu." {
		t.Errorf("refused %v, %q", r.GetRefused(), r.GetPod().GetMessage())
	}
}

// A preemption that is put off each time backs off, though extenders are asked about the pod in between.
func TestAPodThatExtendersRefuseAndWhosePreemptionIsPutOffBacksOff(t *testing.T) {
	w, _ := full(t)
	w.ledger.node("n3", 1000)
	w.asks("gpu", func(context.Context, string, *binderv1.AskRequest) (*binderv1.AskResponse, error) {
		return refusedBy("no gpu", 1, true), nil
	})
	var mu sync.Mutex
	n := 0
	w.binder.mu.Lock()
	w.binder.preempting = func(int, *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		n++
		return &binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_RETRY}, nil
	}
	w.binder.mu.Unlock()
	w.ledger.pod("gpu", 600, priority(10))
	w.queueMember("q1")
	until(t, "it is reported", func() bool { return w.binder.report("gpu") != "" })
	mu.Lock()
	defer mu.Unlock()
	if n != 3 {
		t.Errorf("it backs off after %d preemptions, want 3", n)
	}
}

// Answers of no use have a pod back off if they come one after the other, and not if it has been unschedulable in between.
func TestAnswersOfNoUseCountInARow(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	var mu sync.Mutex
	n := 0
	other := func(n int) string { return fmt.Sprint("other-", n) }
	w.asks("gpu", func(_ context.Context, _ string, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		if n++; n <= 3 {
			w.ledger.pod(other(n), 600, bound("n1"))
			return answering(binderv1.Outcome_RESULT_NO_FIT), nil
		}
		return w.binder.assume(request, "n1"), nil
	})
	w.ledger.pod("gpu", 600, nil)
	q, _ := w.queueMember("q1")
	for k := range 3 {
		p := untilState(t, q, "gpu", queuev1.State_STATE_UNSCHEDULABLE)
		if want := "Insufficient cpu"; !strings.Contains(p.GetMessage(), want) {
			t.Fatalf("%d: %q, want %q", k, p.GetMessage(), want)
		}
		w.ledger.gone(other(k + 1))
		until(t, "it has been asked about again", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return n > k+1
		})
	}
	w.untilPlaced("gpu")
	if got := w.binder.report("gpu"); strings.Contains(got, "again and again") {
		t.Errorf("reported %q", got)
	}
}

// What the binder does not know yet is asked again; what it takes back too often backs off.
func TestAQuestionIsAskedAgainUntilItIsKnownWhatBecameOfIt(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	var mu sync.Mutex
	n := 0
	w.asks("gpu", func(_ context.Context, _ string, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		switch n++; n {
		case 1:
			return nil, rpc.Error(codes.Unavailable, "NOT_ACTIVE", "not yet")
		case 2:
			return nil, rpc.Exhausted("EXTENDER_BUSY", time.Millisecond, "later")
		case 3, 4:
			return answering(binderv1.Outcome_RESULT_RETRY), nil
		}
		return w.binder.assume(request, "n1"), nil
	})
	w.ledger.pod("gpu", 600, nil)
	w.queueMember("q1")
	w.untilPlaced("gpu")
	if got := w.binder.report("gpu"); got != "" {
		t.Errorf("reported %q, want nothing: it has been in vain twice only", got)
	}
}

// A pod that goes while it waits is not asked about.
func TestAPodThatIsGoneIsNotAskedAbout(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 10_000)
	hangs := make(chan struct{})
	var mu sync.Mutex
	var order []string
	w.asks("gpu", func(ctx context.Context, name string, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
		mu.Lock()
		order = append(order, name)
		mu.Unlock()
		select {
		case <-hangs:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return w.binder.assume(request, "n1"), nil
	})
	q, _ := w.queueMember("q1")
	for _, name := range []string{"gpu-1", "gpu-2", "gpu-3"} {
		w.ledger.pod(name, 100, nil)
		untilState(t, q, name, queuev1.State_STATE_IN_FLIGHT)
	}
	until(t, "one is asked about", func() bool { mu.Lock(); defer mu.Unlock(); return len(order) == 1 })
	w.ledger.gone("gpu-3")
	close(hangs)
	w.untilPlaced("gpu-1", "gpu-2")
	w.ledger.pod("gpu-4", 100, nil)
	w.untilPlaced("gpu-4")
	mu.Lock()
	defer mu.Unlock()
	if slices.Contains(order, "gpu-3") {
		t.Errorf("asked about %v", order)
	}
}

// Another member owns the shard by now: the member that hears of it from an answer about extenders only asks about no other pod of it before it has claimed it again.
func TestAShardIsLostByAnAnswerAboutExtenders(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	var mu sync.Mutex
	var first int64
	n := 0
	w.asks("gpu", func(_ context.Context, _ string, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
		mu.Lock()
		if first == 0 {
			first = request.GetShardRevision()
		}
		lost := request.GetShardRevision() == first
		if lost {
			n++
		}
		mu.Unlock()
		if lost {
			return nil, rpc.Error(codes.FailedPrecondition, "SHARD_LOST", "claimed since")
		}
		return w.binder.assume(request, "n1"), nil
	})
	w.ledger.pod("gpu", 600, nil)
	w.queueMember("q1")
	w.untilPlaced("gpu")
	mu.Lock()
	defer mu.Unlock()
	if n != 1 {
		t.Errorf("asked %d times by the claim that is lost, want once", n)
	}
}

// questioned notes which pods questions are about, and has the first of each placed.
type questioned struct {
	w     *world
	hold  chan struct{} // the first question waits for it
	first string        // the pod that it is about
	fails func(names []string) error
	only  int // that are answered of each question at most

	mu    sync.Mutex
	asked [][]string
}

func (a *questioned) answer(ctx context.Context, name string, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
	names := []string{name}
	for _, p := range request.GetMore() {
		names = append(names, strings.TrimPrefix(p.GetUid(), "uid-"))
	}
	a.mu.Lock()
	a.asked = append(a.asked, names)
	a.mu.Unlock()
	if name == a.first {
		select {
		case <-a.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if a.fails != nil {
		if err := a.fails(names); err != nil {
			return nil, err
		}
	}
	response := a.w.binder.assume(request, "n1")
	for _, p := range request.GetMore()[:min(a.only-1, len(request.GetMore()))] {
		one := a.w.binder.assume(&binderv1.AskRequest{Id: p.GetId(), Attempt: p.GetAttempt()}, "n1")
		response.More = append(response.More, &binderv1.AskedPod{Version: one.GetVersion(), Outcome: one.GetOutcome()})
	}
	return response, nil
}

// behind has a pod placed in a cycle behind that of all others which are in flight: then those are in line that are to be.
func (w *world) behind(name string) {
	w.ledger.pod(name, 10, priority(-1))
	w.untilPlaced(name)
}

// line has pods wait in line behind one that is being asked about.
func (a *questioned) line(t *testing.T, q *queue.Service, names ...string) {
	t.Helper()
	a.w.ledger.pod(a.first, 100, priority(100))
	until(t, "it is asked about", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.asked) == 1 })
	for k, name := range names {
		a.w.ledger.pod(name, 100, priority(int32(50-k)))
	}
	for _, name := range names {
		untilState(t, q, name, queuev1.State_STATE_IN_FLIGHT)
	}
	a.w.behind("plain")
}

// Pods that are next are asked about together, as many as the binder takes, in queue order; those that it has not come to are next.
func TestPodsThatAreNextAreAskedAboutTogether(t *testing.T) {
	for name, tt := range map[string]struct {
		pods  int32
		only  int
		fails func(names []string) error
		want  [][]string
	}{
		"one at a time":               {0, 1, nil, [][]string{{"gpu-a"}, {"gpu-b"}, {"gpu-c"}, {"gpu-d"}}},
		"three at a time":             {3, 3, nil, [][]string{{"gpu-a", "gpu-b", "gpu-c"}, {"gpu-d"}}},
		"three, and two are answered": {3, 2, nil, [][]string{{"gpu-a", "gpu-b", "gpu-c"}, {"gpu-c", "gpu-d"}}},
		"an older binder answers one": {4, 1, nil, [][]string{{"gpu-a", "gpu-b", "gpu-c", "gpu-d"}, {"gpu-b", "gpu-c", "gpu-d"}, {"gpu-c", "gpu-d"}, {"gpu-d"}}},
		"one is too much": {4, 4, func(names []string) error {
			if len(names) > 2 {
				return rpc.Error(codes.Internal, "PANIC", "mine")
			}
			return nil
		}, [][]string{{"gpu-a", "gpu-b", "gpu-c", "gpu-d"}, {"gpu-a"}, {"gpu-b", "gpu-c", "gpu-d"}, {"gpu-b"}, {"gpu-c", "gpu-d"}}},
		"the binder is busy": {4, 4, func(names []string) error {
			if len(names) == 4 {
				return rpc.Exhausted("EXTENDER_BUSY", time.Millisecond, "later")
			}
			return nil
		}, [][]string{{"gpu-a", "gpu-b", "gpu-c", "gpu-d"}, {"gpu-a"}, {"gpu-b", "gpu-c", "gpu-d"}}},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			w := newWorld(t, 1)
			w.filterWorker("f1", nil)
			w.scoreWorker("s1")
			w.ledger.node("n1", 10_000)
			a := &questioned{w: w, hold: make(chan struct{}), first: "gpu-first", fails: tt.fails, only: tt.only}
			w.asks("gpu", a.answer)
			w.binder.pods = tt.pods
			q, _ := w.queueMember("q1")
			a.line(t, q, "gpu-a", "gpu-b", "gpu-c", "gpu-d")
			close(a.hold)
			w.untilPlaced("gpu-first", "gpu-a", "gpu-b", "gpu-c", "gpu-d")
			a.mu.Lock()
			defer a.mu.Unlock()
			if diff := cmp.Diff(tt.want, a.asked[1:]); diff != "" {
				t.Errorf("asked about (-want +got):\n%s", diff)
			}
			for _, name := range []string{"gpu-a", "gpu-b", "gpu-c", "gpu-d"} {
				if got := w.binder.report(name); got != "" {
					t.Errorf("of %s is reported %q", name, got)
				}
			}
		})
	}
}

// Who comes while a question waits for its turn is not kept waiting by pods of a lower priority that were asked about together.
func TestPodsThatWereAskedAboutTogetherLetOthersAhead(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 10_000)
	came := false
	var q *queue.Service
	a := &questioned{w: w, hold: make(chan struct{}), first: "gpu-first", only: 9}
	a.fails = func(names []string) error {
		if names[0] == "gpu-a" && !came {
			came = true
			w.ledger.pod("gpu-urgent", 100, priority(1000))
			untilState(t, q, "gpu-urgent", queuev1.State_STATE_IN_FLIGHT)
			w.behind("plain-too")
			return rpc.Exhausted("EXTENDER_BUSY", time.Millisecond, "later")
		}
		return nil
	}
	w.asks("gpu", a.answer)
	w.binder.pods = 9
	q, _ = w.queueMember("q1")
	a.line(t, q, "gpu-a", "gpu-b", "gpu-c")
	close(a.hold)
	w.untilPlaced("gpu-a", "gpu-b", "gpu-c", "gpu-urgent")
	a.mu.Lock()
	defer a.mu.Unlock()
	if diff := cmp.Diff([][]string{{"gpu-a", "gpu-b", "gpu-c"}, {"gpu-a"}, {"gpu-urgent", "gpu-b", "gpu-c"}}, a.asked[1:]); diff != "" {
		t.Errorf("asked about (-want +got):\n%s", diff)
	}
}

// Of pods that were to be asked about together, one that has gone is left out.
func TestAPodThatIsGoneIsNotAskedAboutBehindAnother(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 10_000)
	a := &questioned{w: w, hold: make(chan struct{}), first: "gpu-first", only: 9}
	w.asks("gpu", a.answer)
	w.binder.pods = 9
	q, _ := w.queueMember("q1")
	a.line(t, q, "gpu-a", "gpu-b", "gpu-c")
	w.ledger.gone("gpu-b")
	until(t, "the queue knows", func() bool { return pending(t, q)["gpu-b"] == nil })
	close(a.hold)
	w.untilPlaced("gpu-a", "gpu-c")
	a.mu.Lock()
	defer a.mu.Unlock()
	if diff := cmp.Diff([][]string{{"gpu-a", "gpu-c"}}, a.asked[1:]); diff != "" {
		t.Errorf("asked about (-want +got):\n%s", diff)
	}
}
