package queue_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/services/queue"
)

func TestPodThatTheBinderRetriesForEverBacksOffAndHoldsUpNobody(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.binder.instead = func(name string) binderv1.Outcome_Result {
		if name == "stuck" {
			return binderv1.Outcome_RESULT_RETRY
		}
		return binderv1.Outcome_RESULT_UNSPECIFIED
	}
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

// toldWhy reports whether the only pod that waits has been told why: it has backed off.
func toldWhy(t *testing.T, q *queue.Service) (bool, error) {
	pods, err := q.ListPending(t.Context(), &queuev1.ListPendingRequest{PageSize: 10})
	return len(pods.GetPods()) == 1 && pods.GetPods()[0].GetMessage() != "", err
}

func TestACommitThatIsAbortedSettlesNothing(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	q, _ := w.queueMember("q1")
	misfits, aborted, failed := 0, 0, 0
	w.binder.before = func(int, *binderv1.CommitRequest) error {
		told, err := toldWhy(t, q)
		if failed == 0 && told {
			failed = misfits
		}
		if err == nil && aborted < misfits { // after each misfit
			aborted++
			return status.Error(codes.Aborted, "too old")
		}
		return err
	}
	w.binder.instead = func(string) (answer binderv1.Outcome_Result) {
		if misfits == 4 {
			return binderv1.Outcome_RESULT_UNSPECIFIED
		}
		misfits++
		return binderv1.Outcome_RESULT_NO_FIT
	}
	w.ledger.pod("p", 100, nil)
	w.untilPlaced("p")
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	if failed != 3 {
		t.Errorf("it backed off after %d misfits, want 3", failed)
	}
}

// TestRetriesAndMisfitsOfAPodAreCountedApart has the binder answer a pod's commits with what the case says, and then as the ledger has it.
func TestRetriesAndMisfitsOfAPodAreCountedApart(t *testing.T) {
	retry, misfit := binderv1.Outcome_RESULT_RETRY, binderv1.Outcome_RESULT_NO_FIT
	for _, c := range []struct {
		name    string
		answers []binderv1.Outcome_Result
		fails   int // the answer, from 1, at which the pod backs off; 0: none
	}{
		{"seven retries and a misfit", append(slices.Repeat([]binderv1.Outcome_Result{retry}, 7), misfit), 0},
		{"two misfits and seven retries", append([]binderv1.Outcome_Result{misfit, misfit}, slices.Repeat([]binderv1.Outcome_Result{retry}, 7)...), 0},
		{"three misfits", []binderv1.Outcome_Result{misfit, misfit, misfit}, 3},
		{"one after the other", slices.Repeat([]binderv1.Outcome_Result{retry, misfit}, 3), 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkLeaks(t)
			w := newWorld(t, 1)
			w.filterWorker("f1", nil)
			w.scoreWorker("s1")
			w.ledger.node("n1", 1000)
			q, _ := w.queueMember("q1")
			left, failed := c.answers, 0
			w.binder.before = func(n int, _ *binderv1.CommitRequest) error {
				told, err := toldWhy(t, q)
				if failed == 0 && told {
					failed = n - 1
				}
				return err
			}
			w.binder.instead = func(string) (answer binderv1.Outcome_Result) {
				if len(left) > 0 {
					answer, left = left[0], left[1:]
				}
				return answer
			}
			w.ledger.pod("p", 100, nil)
			w.untilPlaced("p")
			w.binder.mu.Lock()
			defer w.binder.mu.Unlock()
			if failed != c.fails || len(left) > 0 {
				t.Errorf("it backed off after %d answers, want %d; %d answers are left", failed, c.fails, len(left))
			}
		})
	}
}
