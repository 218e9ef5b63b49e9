package queue_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/services/queue"
	"github.com/berth-scheduler/berth/test/bubble"
)

// storm returns a world with a full node and so many pods that fit nowhere, each of a subject of its own and with nobody to evict.
func storm(t *testing.T, pods int) (*world, *filterServer, *prometheus.Registry) {
	t.Helper()
	w := newWorld(t, 1)
	registry := prometheus.NewRegistry()
	w.metrics = registry
	filters, _ := w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.ledger.pod("low", 1000, bound("n1"))
	for k := range pods {
		w.ledger.pod(fmt.Sprintf("hopeless%d", k), 2000+int64(k), priority(10))
	}
	return w, filters, registry
}

// tried returns how often each pod was tried that a member holds, or that the binder was asked about.
func (w *world) tried(q *queue.Service) map[string]int {
	w.t.Helper()
	all := make(map[string]int)
	for name, p := range pending(w.t, q) {
		all[name] = int(p.GetAttempts())
	}
	for _, batch := range w.binder.sent() {
		for _, attempt := range batch {
			name, number, _ := strings.Cut(attempt, "/")
			n, err := strconv.Atoi(number)
			if err != nil {
				w.t.Fatal(err)
			}
			all[name] = max(all[name], n)
		}
	}
	return all
}

// countedAgain returns how many attempts the metrics say came to no end. What was asked of the binder again is none.
func countedAgain(t *testing.T, registry *prometheus.Registry) (all int, reasons []string) {
	t.Helper()
	for name, n := range samples(t, registry) {
		reason, ok := strings.CutPrefix(name, `berth_queue_retries_total{reason="`)
		if ok && !strings.HasPrefix(reason, "binder_") {
			all += int(n)
			reasons = append(reasons, fmt.Sprintf("%s: %v", strings.TrimSuffix(reason, `"}`), n))
		}
	}
	return all, reasons
}

// A batch of preemptors that takes long gives back those it has not come to: how often a pod is tried follows from how many a batch has, and
// how many dry runs there are in the time it takes for them.
func TestAStormOfPodsThatFitNowhereIsTriedNoOftenerThanBatchesTakeLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const pods, batch, slow, within = 96, 32, 25 * time.Millisecond, 500 * time.Millisecond
		w, filters, registry := storm(t, pods)
		w.batch, filters.slow = batch, slow
		q, _ := w.queueMember("q1")
		elapse(time.Minute)
		const ends = int(within/slow) + 1 // attempts in a batch, at least
		most := 0
		for left := pods; left > ends; left -= ends {
			most += min(left, batch) - ends
		}
		again := 0
		for name, n := range w.tried(q) {
			if again += n - 1; n < 1 || n > 2 {
				t.Errorf("%s was tried %d times", name, n)
			}
		}
		if again == 0 || again > most {
			t.Errorf("%d pods were tried %d times again, want %d times at most", pods, again, most)
		}
		if counted, reasons := countedAgain(t, registry); counted != again {
			t.Errorf("%d attempts came to no end, and %d are counted: %v", again, counted, reasons)
		}
		if n := len(filters.asked()); n != pods {
			t.Errorf("%d dry runs, want one a pod", n)
		}
	})
}

func TestEveryAttemptThatComesToNoEndIsCountedOnce(t *testing.T) {
	const pods = 4 // of the batch that meets with something
	later := rpc.Error(codes.Unavailable, "LOADING", "later")
	aborted := rpc.Error(codes.Aborted, "OTHER_EPOCH", "later")
	preemption := func(response *binderv1.PreemptResponse, err error) func(*world, *filterServer) {
		return func(w *world, _ *filterServer) {
			w.binder.preempting = func(n int, _ *binderv1.PreemptRequest) (*binderv1.PreemptResponse, error) {
				if n > 1 {
					return nil, nil
				}
				return response, err
			}
		}
	}
	dryRun := func(response *filterv1.DryRunPreemptionResponse, err error) func(*world, *filterServer) {
		return func(_ *world, filters *filterServer) {
			filters.dryRun = func(n int) (*filterv1.DryRunPreemptionResponse, error) {
				if n > 1 {
					return nil, nil
				}
				return response, err
			}
		}
	}
	filter := func(err error) func(*world, *filterServer) {
		return func(_ *world, filters *filterServer) {
			filters.refuse = func(*filterv1.FilterRequest) error {
				if filters.calls.Add(1) > 1 {
					return nil
				}
				return err
			}
		}
	}
	commit := func(err error) func(*world, *filterServer) {
		return func(w *world, _ *filterServer) {
			w.binder.before = func(n int, _ *binderv1.CommitRequest) error {
				if n > 1 {
					return nil
				}
				return err
			}
		}
	}
	retry := &binderv1.PreemptResponse{Result: binderv1.PreemptResponse_RESULT_RETRY}
	gone := &filterv1.DryRunPreemptionResponse{Version: wire.ToVersion(cluster.Version{Epoch: epoch, Seq: 1})}
	for name, c := range map[string]struct {
		fit   bool // the pods; else they would have to preempt
		meets func(*world, *filterServer)
		why   string
		want  int
	}{
		"the binder aborts a preemption":        {false, preemption(nil, aborted), "preempt_aborted", pods},
		"a preemption is to be tried again":     {false, preemption(retry, nil), "preempt", 1},
		"a dry run has no answer":               {false, dryRun(nil, later), "preempt", pods},
		"a dry run knows nothing of its pod":    {false, dryRun(gone, nil), "unresolved", 1},
		"no worker answers":                     {true, filter(later), "filter", pods},
		"the batch is refused":                  {true, filter(rpc.Error(codes.InvalidArgument, "WRONG", "no")), "refused", pods},
		"the binder aborts a commit":            {true, commit(aborted), "aborted", pods},
		"the binder has room for half a commit": {true, commit(rpc.Exhausted("TOO_MANY_UNBOUND", time.Millisecond, "later")), "too_many_unbound", pods / 2},
		"there is no state any more": {false, func(w *world, filters *filterServer) {
			filters.answered = func(call int64) {
				if call == 1 {
					w.ledger.unloaded.Store(true)
					go func() {
						elapse(time.Second)
						w.ledger.unloaded.Store(false)
					}()
				}
			}
		}, "no_outcome", pods},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w, filters, registry := storm(t, 0)
				for k := range pods {
					if node := fmt.Sprintf("n%d", k+2); c.fit {
						w.ledger.node(node, 1000)
						w.ledger.pod(fmt.Sprintf("fits%d", k), 600, nil)
					} else {
						w.ledger.node(node, 500)
						w.ledger.pod("low"+node, 500, bound(node))
						w.ledger.pod(fmt.Sprintf("high%d", k), 600, priority(10))
					}
				}
				c.meets(w, filters)
				q, _ := w.queueMember("q1")
				elapse(time.Minute)
				again := 0
				for _, n := range w.tried(q) {
					again += n - 1
				}
				if again != c.want {
					t.Errorf("%d attempts came to no end, want %d", again, c.want)
				}
				_, reasons := countedAgain(t, registry)
				if diff := cmp.Diff([]string{fmt.Sprintf("%s: %d", c.why, c.want)}, reasons); diff != "" {
					t.Errorf("attempts counted (-want +got):\n%s", diff)
				}
			})
		})
	}
}
