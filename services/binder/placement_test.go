package binder

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// steps are all that a placement can take: a row is where it is, a column where it goes, in the order of the states.
const steps = `
	             as pm re pr pb bi wi si ea bo rd
	assumed      -  x  x  -  -  -  -  -  x  -  -
	permitting   x  -  -  -  -  -  -  -  x  x  x
	recorded     -  -  -  x  x  x  x  x  x  x  x
	preparing    -  -  x  -  -  -  x  x  x  x  x
	prebinding   -  -  x  -  -  -  x  x  x  x  x
	binding      -  -  x  -  -  -  x  -  x  x  x
	withdrawing  -  -  x  -  -  -  -  x  x  x  x
	aside        -  -  x  -  -  -  x  -  x  x  x
	releasing    -  -  -  -  -  -  -  -  -  -  x
	bound        -  -  -  -  -  -  -  -  -  -  -
	released     -  -  -  -  -  -  -  -  -  -  -`

func TestAPlacementTakesNoStepThatIsNotInTheTable(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(steps), "\n")[1:]
	if len(lines) != int(states) {
		t.Fatalf("%d rows for %d states", len(lines), states)
	}
	for from := range states {
		row := strings.Fields(lines[from])
		if row[0] != from.String() || len(row) != 1+int(states) {
			t.Fatalf("row %d is %q, want one of %v", from, row, from)
		}
		for next := range states {
			term := pureTerm(t, newFakeSource())
			var logged bytes.Buffer
			term.log = slog.New(slog.NewTextHandler(&logged, nil))
			p := &placement{UID: "p", Namespace: "default", Name: "p", choice: choice{Node: "a"}, state: from}
			before := 7
			term.unbound.giveOf("default", -before)
			moved := term.move(p, next)
			refused := refusals(t, term)
			if row[1+next] == "x" {
				after := before
				counts := func(s placementState) bool {
					return s != statePreparing && s != statePermitting && s != statePreBinding && s != stateAside && s != stateBound && s != stateReleased
				}
				switch {
				case counts(from) && !counts(next):
					after--
				case !counts(from) && counts(next):
					after++
				}
				if n := term.unbound.count(); !moved || p.state != next || n != after || refused != 0 || logged.Len() > 0 {
					t.Errorf("%v to %v: moved %v to %v, %d unbound, want %d; refused %v, logged %q", from, next, moved, p.state, n, after, refused, &logged)
				}
				continue
			}
			said := logged.String()
			if n := term.unbound.count(); moved || p.state != from || n != before || refused != 1 {
				t.Errorf("%v to %v: moved %v to %v, %d unbound, want %d as before; refused %v, want once", from, next, moved, p.state, n, before, refused)
			}
			if !strings.Contains(said, "level=ERROR") || !strings.Contains(said, "default/p") || !strings.Contains(said, "that is "+from.String()+" cannot be "+next.String()) {
				t.Errorf("%v to %v: logged %q", from, next, said)
			}
		}
	}
}

// Two that take a placement for their own: what the second says of it counts nothing twice, and takes nothing from others.
func TestAPlacementIsEndedOnce(t *testing.T) {
	outcomes := map[string]source.Outcome{
		"done": {Result: source.BindDone}, "elsewhere": {Result: source.BindElsewhere, Err: errFake}, "refused": {Result: source.BindRefused, Err: errFake},
		"gone": {Result: source.BindGone, Err: errFake}, "told": {Result: source.BindGone, Err: errTold},
	}
	for one, first := range outcomes {
		for other, second := range outcomes {
			term := pureTerm(t, newFakeSource())
			observe(t, term, node("a", 1000), pod("p", 100), pod("q", 100))
			p, q := assume(t, term, "p", "a"), assume(t, term, "q", "a")
			term.recorder.adopt(q.batch, 0, []*placement{p, q}) // they share a batch
			p.batch, q.index = q.batch, 1
			term.recorder.term.(*recorded).batches[q.batch] = []coord.Intent{p.intent(), q.intent()}
			for _, o := range []source.Outcome{first, second} {
				if err := term.settle(p, o); err != nil {
					t.Fatal(err)
				}
			}
			left := record(t, term).batches[q.batch]
			if n := term.unbound.count(); n != 1 || !slices.ContainsFunc(left, func(in coord.Intent) bool { return in.PodUID == q.UID }) || q.state != stateRecorded || len(term.recorder.open) == 0 {
				t.Errorf("%s, then %s: %d count as unbound, want q alone, which is %v; recorded is %v", one, other, n, q.state, left)
			}
			if refusals(t, term) == 0 {
				t.Errorf("%s, then %s: nothing was refused", one, other)
			}
			if n := term.events.turns.waiting(); n > 1 || n == 1 && one != "done" {
				t.Errorf("%s, then %s: %d events", one, other, n)
			}
		}
	}
}

// refusals returns how many steps were refused.
func refusals(t *testing.T, term *term) float64 {
	t.Helper()
	var m dto.Metric
	if err := term.metrics.transitionsRefused.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

func TestTheStatesOfAPlacementOnItsWay(t *testing.T) {
	src := newFakeSource()
	src.setPod(pod("p", 100))
	term := pureTerm(t, src)
	observe(t, term, node("a", 1000), pod("p", 100))
	st := term.ledger.state
	if _, err := term.commit(requestOf(st, evaluate(st, 4), 1, "p")); err != nil {
		t.Fatal(err)
	}
	p := term.recorder.waiting[0]
	is := func(want placementState) {
		t.Helper()
		if p.state != want {
			t.Errorf("it is %v, want %v", p.state, want)
		}
	}
	is(stateAssumed)
	record(t, term)
	is(stateRecorded)
	var answer source.Outcome
	src.answers(func(source.Binding) source.Outcome { is(stateBinding); return answer })
	src.change(func() {
		src.withdraw = func(source.Binding) source.Outcome {
			is(stateWithdrawing)
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		}
	})
	bind := func() {
		t.Helper()
		if err := term.bind(t.Context(), []*placement{p}); err != nil {
			t.Fatal(err)
		}
	}
	answer = source.Outcome{Result: source.BindUnknown, Err: errFake}
	bind()
	is(stateRecorded)
	answer = source.Outcome{Result: source.BindRefused, Err: errFake} // behind a try without an answer
	bind()
	is(stateRecorded)
	if len(src.withdrawals()) != 1 {
		t.Errorf("%d withdrawals", len(src.withdrawals()))
	}
	src.change(func() { src.withdraw = nil })
	bind()
	is(stateReleasing)
	if got := where(term, "p"); got != "assumed on a" {
		t.Errorf("before that is recorded, p is %s", got)
	}
	record(t, term)
	is(stateReleased)
	if got := where(term, "p"); got != "pending" || refusals(t, term) != 0 {
		t.Errorf("p is %s, %v steps were refused", got, refusals(t, term))
	}
}
