package queue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/test/bubble"
)

type agreement func(ctx context.Context, name string, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error)

// asksWhoGoes has extenders have a say in whom pods preempt whose names begin so.
func (w *world) asksWhoGoes(prefix string, answer agreement) {
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	w.binder.agreeing = answer
	w.binder.preempting = func(_ int, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		if !strings.HasPrefix(request.GetPod().GetUid(), "uid-"+prefix) {
			return nil, nil
		}
		w.ledger.mu.RLock()
		defer w.ledger.mu.RUnlock()
		return &binderv1.PreemptResponse{Version: wire.ToVersion(w.ledger.st.Version()), Result: binderv1.PreemptResponse_RESULT_ASK, Turn: 1, AskMilliseconds: patience.Milliseconds()}, nil
	}
}

// startOn starts the preemption of a question on a node, of some pods.
func (w *world) startOn(request *binderv1.PreemptRequest, node string, victims ...string) *binderv1.PreemptResponse {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	d := cluster.PreemptionStarted{ID: cluster.PodID(request.GetPod().GetId()), Node: w.ledger.st.Nodes.ByName(node)}
	for _, v := range victims {
		id, _ := w.ledger.st.PodByUID("uid-" + v)
		d.Victims = append(d.Victims, id)
	}
	w.ledger.applyLocked(d)
	return &binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_STARTED}
}

// end ends a preemption: a victim is gone.
func (w *world) end(preemptor, victim string) {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	id, _ := w.ledger.st.PodByUID("uid-" + preemptor)
	gone, _ := w.ledger.st.PodByUID("uid-" + victim)
	w.ledger.applyLocked(cluster.PreemptionEnded{ID: id})
	w.ledger.applyLocked(cluster.PodRemoved{ID: gone})
}

func TestAPodWhosePreemptionExtendersAgreeToGoesToItsNodeWhenTheVictimIsGone(t *testing.T) {
	w, _ := full(t)
	var asked *binderv1.PreemptRequest
	w.asksWhoGoes("gpu", func(_ context.Context, _ string, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		asked = request
		return w.startOn(request, "n2", "low2"), nil
	})
	w.ledger.pod("gpu", 600, priority(10))
	q, _ := w.queueMember("q1")
	until(t, "the pod is nominated", func() bool { return w.row("gpu").Nominated == "n2" })
	until(t, "the preemptor is not in flight", func() bool {
		s := pending(t, q)["gpu"].GetState()
		return s != queuev1.State_STATE_IN_FLIGHT && s != queuev1.State_STATE_ACTIVE
	})
	if asked.GetCandidate() != nil || asked.GetAttempt() != 1 || asked.GetPod().GetMessage() != insufficient || asked.GetVersion().GetSeq() == 0 {
		t.Errorf("asked with %v", asked)
	}
	if w.binder.handedIn("gpu") {
		t.Error("it is reported by itself, too")
	}
	w.end("gpu", "low2")
	w.untilPlaced("gpu")
	if got := w.ledger.nodeOf("gpu"); got != "n2" {
		t.Errorf("it is on %s, want n2", got)
	}
}

// kube-scheduler's texts; in both cases a nomination stays.
func TestWhatIsSaidWhereExtendersLeaveNobodyOrFail(t *testing.T) {
	for name, c := range map[string]struct {
		response  *binderv1.PreemptResponse
		nominated string
		want      string
	}{
		"they leave nobody": {
			&binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_NO_CANDIDATE}, "",
			insufficient + " no new claims to deallocate, preemption: no candidate node for preemption",
		},
		"one fails": {
			&binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_FAILED, Error: "Post http://extender: no answer"}, "",
			insufficient + " preemption: Post http://extender: no answer",
		},
		"they leave nobody, of a pod that is nominated": {
			&binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_NO_CANDIDATE}, "n1",
			insufficient + " no new claims to deallocate, preemption: no candidate node for preemption",
		},
		"one fails, of a pod that is nominated": {
			&binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_FAILED, Error: "no"}, "n1", insufficient + " preemption: no",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := full(t)
			var mu sync.Mutex
			n := 0
			w.asksWhoGoes("gpu", func(_ context.Context, _ string, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
				mu.Lock()
				defer mu.Unlock()
				if n++; n == 1 {
					return c.response, nil
				}
				return w.startOn(request, "n1", "low1"), nil
			})
			w.ledger.pod("gpu", 600, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority, p.Nominated = 10, c.nominated })
			q, _ := w.queueMember("q1")
			p := untilState(t, q, "gpu", queuev1.State_STATE_UNSCHEDULABLE)
			until(t, "it is reported", func() bool { return w.binder.handedIn("gpu") })
			if got := w.binder.report("gpu"); got != c.want || p.GetMessage() != c.want {
				t.Errorf("reported %q, in the queue %q, want %q", got, p.GetMessage(), c.want)
			}
			if w.binder.clears("gpu") {
				t.Error("its nomination ends")
			}
			if c.nominated != "" {
				if got := w.row("gpu").Nominated; got != c.nominated {
					t.Errorf("nominated to %q", got)
				}
				return
			}
			w.ledger.pod("other", 1, bound("n1")) // where it could preempt, something has changed
			until(t, "it is asked again", func() bool { mu.Lock(); defer mu.Unlock(); return n == 2 })
		})
	}
}

// A pod that cannot be read is no misfit: it backs off, as one does that extenders cannot be asked about.
func TestAPodThatCannotBeReadForItsPreemptionBacksOff(t *testing.T) {
	w, _ := full(t)
	w.asksWhoGoes("gpu", func(context.Context, string, *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		return &binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_UNREAD, Error: "read the pod: no"}, nil
	})
	w.ledger.pod("gpu", 600, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority, p.Nominated = 10, "n1" })
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "gpu", queuev1.State_STATE_BACKOFF)
	until(t, "it is reported", func() bool { return w.binder.handedIn("gpu") })
	if got := w.binder.report("gpu"); got != "read the pod: no" || p.GetMessage() != got || !w.binder.clears("gpu") {
		t.Errorf("reported %q, in the queue %q, its nomination ends: %v", got, p.GetMessage(), w.binder.clears("gpu"))
	}
}

// What is not known yet is asked again; what is taken back too often backs off.
func TestAQuestionAboutPreemptionIsAskedUntilItIsKnownWhatBecameOfIt(t *testing.T) {
	w, _ := full(t)
	var mu sync.Mutex
	n := 0
	w.asksWhoGoes("gpu", func(_ context.Context, _ string, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		switch n++; n {
		case 1:
			return nil, rpc.Error(codes.Unavailable, "NOT_ACTIVE", "not yet")
		case 2:
			return nil, rpc.Exhausted("EXTENDER_BUSY", time.Millisecond, "later")
		case 3:
			return nil, rpc.Exhausted(rpc.ReasonQueueFull, time.Millisecond, "later")
		case 4, 5, 6:
			if attempt := request.GetAttempt(); attempt != int32(n-3) { // it is the first that is asked about until it is answered
				t.Errorf("asked the %d. time about attempt %d", n, attempt)
			}
			return &binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_RETRY}, nil
		}
		return w.startOn(request, "n1", "low1"), nil
	})
	w.ledger.pod("gpu", 600, priority(10))
	w.queueMember("q1")
	until(t, "it backs off", func() bool { return strings.HasPrefix(w.binder.report("gpu"), "its preemption was put off") })
	until(t, "the pod is nominated", func() bool { return w.row("gpu").Nominated == "n1" })
	mu.Lock()
	defer mu.Unlock()
	if n != 7 {
		t.Errorf("asked %d times, want 7", n)
	}
}

// While an extender hangs, other pods of the shard are placed, and preempt.
func TestNobodyWaitsForExtendersThatHaveASayInPreemption(t *testing.T) {
	w, _ := full(t)
	w.ledger.node("small", 100)
	hangs := make(chan struct{})
	w.asksWhoGoes("gpu", func(ctx context.Context, _ string, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		select {
		case <-hangs:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return w.startOn(request, "n1", "low1"), nil
	})
	q, _ := w.queueMember("q1")
	w.ledger.pod("gpu", 600, priority(100))
	untilState(t, q, "gpu", queuev1.State_STATE_IN_FLIGHT)
	w.ledger.pod("plain", 100, nil)
	w.untilPlaced("plain")
	w.ledger.pod("high", 700, priority(10))
	until(t, "another preemption has begun", func() bool {
		return slices.ContainsFunc(w.binder.preempted(), func(s string) bool { return strings.HasPrefix(s, "high/") })
	})
	close(hangs)
	until(t, "the pod is nominated", func() bool { return w.row("gpu").Nominated == "n1" })
}

// A pod that goes while extenders are asked about it ends nothing but itself.
func TestAPodThatGoesWhileExtendersAreAskedWhomItPreempts(t *testing.T) {
	w, _ := full(t)
	w.asksWhoGoes("gpu", func(_ context.Context, _ string, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		w.ledger.apply(cluster.PodRemoved{ID: cluster.PodID(request.GetPod().GetId())})
		return &binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_GONE}, nil
	})
	q, _ := w.queueMember("q1")
	w.ledger.pod("gpu", 600, priority(10))
	until(t, "it is gone", func() bool { _, there := pending(t, q)["gpu"]; return !there })
	w.ledger.pod("high", 700, priority(10))
	until(t, "another preemption has begun", func() bool { return w.row("high").Nominated != "" })
}

func TestAShardIsLostByAnAnswerAboutPreemption(t *testing.T) {
	w, _ := full(t)
	var mu sync.Mutex
	var first int64
	w.asksWhoGoes("gpu", func(_ context.Context, _ string, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		if first == 0 {
			first = request.GetShardRevision()
		}
		if request.GetShardRevision() == first {
			return nil, rpc.Error(codes.FailedPrecondition, "SHARD_LOST", "claimed since")
		}
		return w.startOn(request, "n1", "low1"), nil
	})
	w.ledger.pod("gpu", 600, priority(10))
	w.queueMember("q1")
	until(t, "the pod is nominated", func() bool { return w.row("gpu").Nominated == "n1" })
}

// A pod that an extender refuses wherever it fits, and whose preemption comes to nothing each time, backs off: that it is refused in between settles nothing.
func TestAPodThatIsRefusedAndWhosePreemptionIsTakenBackBacksOff(t *testing.T) {
	for name, c := range map[string]struct {
		first binderv1.PreemptResponse_Result // what Preempt answers the first time, the third, and so on
		tries int
	}{
		"by what extenders are asked about":                   {binderv1.PreemptResponse_RESULT_ASK, 3},
		"by that in turn with what the binder is asked first": {binderv1.PreemptResponse_RESULT_RETRY, 5},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t, 1)
				w.filterWorker("f1", nil)
				w.scoreWorker("s1")
				w.ledger.node("n1", 1000)
				w.ledger.node("n2", 1000)
				w.ledger.pod("low", 1000, bound("n1"))
				w.asks("gpu", func(context.Context, string, *binderv1.AskRequest) (*binderv1.AskResponse, error) {
					return refusedBy("no gpu", 1, false), nil
				})
				w.asksWhoGoes("gpu", func(_ context.Context, _ string, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
					if v := wire.Version(request.GetRefusedVersion()); !request.GetRefused() || v.IsZero() || wire.Version(request.GetVersion()).Less(v) {
						t.Errorf("extenders have refused it: %v, at %v of %v", request.GetRefused(), v, request.GetVersion())
					}
					return &binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_RETRY}, nil
				})
				ask := w.binder.preempting
				w.binder.preempting = func(n int, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
					if n > 20 {
						return nil, rpc.Error(codes.Unavailable, "NOT_ACTIVE", "the test has ended")
					}
					response, err := ask(n, request)
					if n%2 == 1 {
						response.Result = c.first
					}
					return response, err
				}
				w.ledger.pod("gpu", 600, priority(10))
				w.queueMember("q1")
				elapse(900 * time.Millisecond) // the first backoff is longer
				if got, n := w.binder.report("gpu"), len(w.binder.preempted()); !strings.HasPrefix(got, "its preemption was put off") || n != c.tries {
					t.Errorf("tried %d times without a pause, and reported %q, want %d", n, got, c.tries)
				}
			})
		})
	}
}

// A pod that could preempt on a node comes back with any change there, at once if its shard has nothing else to do; not if extenders have had nobody go.
func TestExtendersThatLetAPodPreemptNobodyAreNotAskedWithoutAPause(t *testing.T) {
	for name, result := range map[string]binderv1.PreemptResponse_Result{
		"they leave nobody": binderv1.PreemptResponse_RESULT_NO_CANDIDATE, "one fails": binderv1.PreemptResponse_RESULT_FAILED,
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t, 1)
				w.filterWorker("f1", nil)
				w.scoreWorker("s1")
				w.ledger.node("n1", 1000)
				w.ledger.pod("low", 1000, bound("n1"))
				var n atomic.Int32
				w.asksWhoGoes("gpu", func(context.Context, string, *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
					w.ledger.pod(fmt.Sprint("comes", n.Add(1)), 0, bound("n1"))
					if n.Load() > 20 {
						return nil, rpc.Error(codes.Unavailable, "NOT_ACTIVE", "the test has ended")
					}
					return &binderv1.PreemptResponse{Result: result}, nil
				})
				w.ledger.pod("gpu", 600, priority(10))
				w.queueMember("q1")
				elapse(900 * time.Millisecond) // the first backoff is longer
				if n := n.Load(); n != 1 {
					t.Errorf("asked %d times without a pause, want once", n)
				}
				elapse(2 * time.Second)
				if n := n.Load(); n != 2 {
					t.Errorf("asked %d times by then, want twice", n)
				}
			})
		})
	}
}

// What keeps a pod from preempting where extenders were not asked about brings it back when it goes, whatever they have said of other nodes.
func TestAPodWhosePreemptionExtendersRefuseIsKeptFromOthersByWhatIsElsewhere(t *testing.T) {
	for name, result := range map[string]binderv1.PreemptResponse_Result{
		"they leave nobody": binderv1.PreemptResponse_RESULT_NO_CANDIDATE, "one fails": binderv1.PreemptResponse_RESULT_FAILED,
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t, 1)
				w.filterWorker("f1", nil)
				w.scoreWorker("s1")
				w.ledger.zoneNode("n1", "a", 1000)
				w.ledger.zoneNode("n2", "b", 1000)
				w.ledger.zoneNode("n3", "b", 100)
				w.ledger.pod("low1", 1000, bound("n1"))
				w.ledger.pod("low2", 1000, bound("n2"))
				w.ledger.pod("enemy", 100, with(labelled(w.ledger.labels("app", "db")), bound("n3"), priority(100)))
				var n atomic.Int32
				w.asksWhoGoes("gpu", func(context.Context, string, *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
					n.Add(1)
					return &binderv1.PreemptResponse{Result: result}, nil
				})
				w.ledger.pod("gpu", 600, with(farFrom("db"), priority(10)))
				w.queueMember("q1")
				elapse(time.Minute)
				before := n.Load()
				w.ledger.gone("enemy")
				elapse(time.Second)
				if after := n.Load(); before != 1 || after != 2 {
					t.Errorf("asked %d times before it is gone, and %d in all; want once, and once more", before, after)
				}
			})
		})
	}
}

// Who is to come back for evictions or reports does not keep the turn of an extender meanwhile.
func TestAPreemptionThatTheBinderHasNoRoomForHoldsUpNobodyOfItsExtender(t *testing.T) {
	for _, reason := range []rpc.Reason{"PREEMPTIONS_FULL", "REPORTS_FULL"} {
		t.Run(string(reason), func(t *testing.T) {
			w, _ := full(t)
			w.ledger.node("n3", 100)
			w.asks("gpu-fits", func(_ context.Context, _ string, request *binderv1.AskRequest) (*binderv1.AskResponse, error) {
				return w.binder.assume(request, "n3"), nil
			})
			refused := make(chan struct{}, 100)
			w.asksWhoGoes("gpu", func(context.Context, string, *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
				refused <- struct{}{}
				return nil, rpc.Exhausted(reason, time.Hour, "later")
			})
			w.ledger.pod("gpu", 600, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority, p.Nominated = 10, "n1" })
			q, _ := w.queueMember("q1")
			<-refused
			w.ledger.pod("gpu-fits", 100, nil)
			w.untilPlaced("gpu-fits")
			const want = "its preemption was put off: the binder has too much to do"
			until(t, "it is reported", func() bool { return w.binder.report("gpu") != "" })
			if got := w.binder.report("gpu"); got != want || w.binder.clears("gpu") {
				t.Errorf("reported %q, its nomination ends: %v; want %q, and that it stays", got, w.binder.clears("gpu"), want)
			}
			// Nor does the binder want to be asked about others' preemptions.
			asked := len(w.binder.preempted())
			w.ledger.pod("high", 700, priority(10))
			if got := untilState(t, q, "high", queuev1.State_STATE_BACKOFF).GetMessage(); got != want {
				t.Errorf("another pod: %q, want %q", got, want)
			}
			if n := len(w.binder.preempted()); n != asked {
				t.Errorf("asked about %d preemptions, want %d", n, asked)
			}
		})
	}
}

// Each answer is a try to make room; an attempt counts if the pod is there still.
func TestAnswersAboutPreemptionAreMeasured(t *testing.T) {
	w, _ := full(t)
	registry := prometheus.NewRegistry()
	w.metrics = registry
	answers := make(chan error, 1)
	answers <- rpc.Error(codes.Aborted, "OTHER_EPOCH", "later")
	asked, gone := make(chan struct{}), make(chan struct{})
	w.asksWhoGoes("gpu", func(_ context.Context, name string, request *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
		if name == "gpu2" {
			return w.startOn(request, "n1", "low1"), nil
		}
		select {
		case err := <-answers:
			return nil, err
		default:
		}
		close(asked)
		<-gone
		return &binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_NO_CANDIDATE}, nil
	})
	q, _ := w.queueMember("q1")
	w.ledger.pod("gpu1", 600, priority(20))
	<-asked
	w.ledger.gone("gpu1")
	until(t, "it is gone", func() bool { _, there := pending(t, q)["gpu1"]; return !there })
	close(gone)
	w.ledger.pod("gpu2", 600, priority(10))
	until(t, "the next is nominated", func() bool { return w.row("gpu2").Nominated == "n1" })
	const unschedulable = `scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"}`
	until(t, "its attempt is measured", func() bool { return samples(t, registry)[unschedulable] > 0 })
	got := samples(t, registry)
	for name, want := range map[string]float64{
		unschedulable:                                          1,
		`scheduler_preemption_attempts_total`:                  3,
		`berth_queue_preemptions_total{result="error"}`:        1,
		`berth_queue_preemptions_total{result="no_candidate"}`: 1,
		`berth_queue_preemptions_total{result="started"}`:      1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
