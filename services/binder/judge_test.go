package binder

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
)

func TestAPodThatCannotBeJudgedEndsNoTerm(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	term.fail = func(err error) { t.Errorf("the term has ended: %v", err) }
	observe(t, term, node("a", 1000), pod("p", 100), pod("q", 100))
	request := requestOf(term.ledger.state, evaluate(term.ledger.state, 10), 1, "p", "q")
	term.evaluator = nil // with which the engine panics
	response, err := term.commit(request)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []binderv1.Outcome_Result{binderv1.Outcome_RESULT_NO_FIT, binderv1.Outcome_RESULT_RETRY} {
		if got := response.GetOutcomes()[i].GetResult(); got != want {
			t.Errorf("pod %d: %v, want %v", i, got, want)
		}
	}
	if n := term.unbound.count(); n != 0 {
		t.Errorf("%d pods are counted as placed", n)
	}
	response, err = term.commit(request)
	if err != nil {
		t.Fatal(err)
	}
	for i, outcome := range response.GetOutcomes() {
		if outcome.GetResult() != binderv1.Outcome_RESULT_ASSUMED {
			t.Errorf("pod %d, judged again: %v", i, outcome.GetResult())
		}
	}
}

// Nor is it bound by what is recorded of it. Its room is kept until that is sure.
func TestAPodThatCannotBeJudgedEndsNoTakeover(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), pod("p", 100), pod("q", 100))
	term.evaluator = nil
	taken, err := term.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 1, Intents: []coord.Intent{meant("p", "a"), meant("q", "a")}}}})
	if err != nil || len(taken) != 2 {
		t.Fatalf("%d are taken over, %v", len(taken), err)
	}
}

func TestATransactionThatPanicsEndsTheTerm(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	var failed error
	term.ledger.abandoned = func(err error) { failed = err }
	func() {
		defer func() { _ = recover() }()
		_ = term.ledger.update(func(*tx) error { panic("broken") })
	}()
	if failed == nil || !strings.Contains(failed.Error(), "panicked") {
		t.Errorf("the term ends by %v", failed)
	}
}

func TestPlacementsThatArePutAsideHaveABound(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), pod("p", 100))
	request := requestOf(term.ledger.state, evaluate(term.ledger.state, 10), 1, "p")
	for range term.unbound.limit {
		term.names.putAside(&placement{})
	}
	if _, err := term.commit(request); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("with as many put aside as may be unbound: %v", err)
	}
	term.names.takeAside()
	if _, err := term.commit(request); err != nil {
		t.Errorf("once they are judged: %v", err)
	}
}
