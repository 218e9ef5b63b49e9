package binder

import (
	"strings"
	"testing"
	"time"

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

// They are judged again in one transaction. That is no matter of pods whose name nobody else has.
func TestPlacementsThatArePutAsideHaveABound(t *testing.T) {
	term := pureTerm(t, newFakeSource(), withNames)
	stint, _ := term.names.taken(time.Now().Add(time.Hour))
	term.names.begin(stint)
	observe(t, term, node("a", 1000), pod("p", 100))
	request := requestOf(term.ledger.state, evaluate(term.ledger.state, 10), 1, "p")
	for range term.unbound.limit {
		term.names.putAside(&placement{})
	}
	commit := func() binderv1.Outcome_Result {
		t.Helper()
		resp, err := term.commit(request)
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetOutcomes()[0].GetResult()
	}
	if got := commit(); got != binderv1.Outcome_RESULT_BUSY || term.unbound.count() != 0 {
		t.Errorf("with as many put aside as may be unbound a pod of a shared name is %v", got)
	}
	term.names.shared = []string{"another"}
	if got := commit(); got != binderv1.Outcome_RESULT_ASSUMED {
		t.Errorf("with as many put aside as may be unbound a pod of another name is %v", got)
	}
	term.names.shared = []string{scheduler}
	term.names.takeAside()
	observe(t, term, pod("q", 100))
	request = requestOf(term.ledger.state, evaluate(term.ledger.state, 10), 1, "q")
	if got := commit(); got != binderv1.Outcome_RESULT_ASSUMED {
		t.Errorf("once they are judged a pod of a shared name is %v", got)
	}
}

func TestWhatIsStuckIsSoStillWhenItComesBackFromAside(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	term.unbound.limit = 10
	p := &placement{state: stateRecorded}
	term.unbound.giveOf("", -1)
	term.noteStuck(p)
	for _, c := range []struct {
		next           placementState
		unbound, stuck int
	}{{stateAside, 0, 0}, {stateRecorded, 1, 1}, {stateAside, 0, 0}, {stateWithdrawing, 1, 1}, {stateReleasing, 1, 1}, {stateReleased, 0, 0}} {
		if !term.move(p, c.next) || term.unbound.count() != c.unbound || term.unbound.stuck != c.stuck {
			t.Errorf("one that is %v counts %d, and %d as stuck", c.next, term.unbound.count(), term.unbound.stuck)
		}
	}
}
