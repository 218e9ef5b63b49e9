package binder

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// takeUpAbsent has a term take up an intent of p for a node that it does not know.
func takeUpAbsent(t *testing.T, term *term) []*placement {
	t.Helper()
	taken, err := term.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 1, Intents: []coord.Intent{meant("p", "a")}}}})
	if err != nil || len(taken) != 1 || !taken[0].absent {
		t.Fatalf("taken up: %+v, %v", taken, err)
	}
	return taken
}

func TestAnIntentForAnUnknownNodeTakesNothingFromALaterPlacement(t *testing.T) {
	for _, later := range []string{"a", "b"} {
		t.Run("on "+later, func(t *testing.T) {
			src := newFakeSource()
			src.setPod(pod("p", 900))
			term := pureTerm(t, src)
			observe(t, term, node("b", 1000), pod("p", 900))
			taken := takeUpAbsent(t, term)
			observe(t, term, node("a", 1000)) // it comes back, and a shard commits the pod
			assume(t, term, "p", later)
			if err := term.bind(t.Context(), taken); err != nil {
				t.Fatal(err)
			}
			record(t, term)
			if got, want := where(term, "p"), "assumed on "+later; got != want {
				t.Errorf("p is %s, want it %s", got, want)
			}
			if got := src.withdrawals(); len(got) != 1 {
				t.Errorf("%d withdrawals, want the earlier bind withdrawn: it may still happen", len(got))
			}
		})
	}
}

func TestANodeThatComesBackWhileItsIntentIsWithdrawnIsNotOvercommitted(t *testing.T) {
	src := newFakeSource()
	src.setPod(pod("p", 900))
	src.setPod(pod("q", 900))
	term := pureTerm(t, src)
	observe(t, term, node("b", 1000), pod("p", 900), pod("q", 900))
	taken := takeUpAbsent(t, term)
	var later *placement
	src.change(func() {
		src.withdraw = func(source.Binding) source.Outcome {
			observe(t, term, node("a", 1000))
			later = assume(t, term, "p", "a")
			return source.Outcome{Result: source.BindRefused, Err: errFake}
		}
	})
	if err := term.bind(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	src.answers(func(b source.Binding) source.Outcome {
		record(t, term) // what was taken back is given back while the later bind is on its way
		return source.Outcome{Result: source.BindDone}
	})
	if err := term.bind(t.Context(), []*placement{later}); err != nil {
		t.Fatal(err)
	}
	if got := where(term, "p"); src.nodeOf("p") != "a" || got != "bound on a" {
		t.Errorf("p is on %q, and %s in the ledger", src.nodeOf("p"), got)
	}
}

// removing removes a node from a term's ledger when something is logged.
type removing struct {
	slog.Handler
	remove func()
}

func (h removing) Handle(ctx context.Context, r slog.Record) error {
	h.remove()
	return h.Handler.Handle(ctx, r)
}

func TestAnIntentWhoseNodeGoesAmidTheTakeoverIsWithdrawn(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	cordoned := func(name string) cluster.Node {
		n := node(name, 1000)
		n.Unschedulable = true
		return n
	}
	observe(t, term, cordoned("a"), cordoned("b"), pod("p", 100), pod("q", 100))
	term.log = slog.New(removing{term.log.Handler(), func() { // of the first it is known by then that it does not fit
		observe(t, term, source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "b"}})
	}})
	taken, err := term.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 1, Intents: []coord.Intent{meant("p", "a"), meant("q", "b")}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range taken {
		if p.state != stateWithdrawing || p.absent != (p.UID == "q") {
			t.Errorf("%s is %v, absent: %v", p.UID, p.state, p.absent)
		}
	}
	if len(taken) != 2 {
		t.Errorf("%d of 2 are taken over", len(taken))
	}
}

func TestAnIntentPutAsideForAnUnknownNodeTakesNothingFromThePlacementOfTheNextStint(t *testing.T) {
	src := newFakeSource()
	src.setPod(pod("p", 900))
	term := pureTerm(t, src, withNames)
	observe(t, term, node("b", 1000), pod("p", 900))
	if err := term.bind(t.Context(), takeUpAbsent(t, term)); err != nil { // there is no stint: it is put aside
		t.Fatal(err)
	}
	observe(t, term, node("a", 1000))
	stint, _ := term.names.taken(time.Now().Add(time.Hour))
	term.names.begin(stint)
	assume(t, term, "p", "a")
	if err := term.judgeAside(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := term.bind(t.Context(), []*placement{<-term.binds}); err != nil {
		t.Fatal(err)
	}
	record(t, term)
	if got := where(term, "p"); got != "assumed on a" {
		t.Errorf("p is %s", got)
	}
}

func TestABatchThatEndsWithoutADeltaLeavesEtcdWithALaterVersion(t *testing.T) {
	src := newFakeSource()
	src.setPod(on(pod("p", 900), "b")) // somebody else has bound it, and the watch is late
	term := pureTerm(t, src)
	observe(t, term, node("a", 1000), pod("p", 900))
	l := term.ledger
	if _, err := term.commit(requestOf(l.state, evaluate(l.state, 4), 1, "p")); err != nil {
		t.Fatal(err)
	}
	record(t, term)
	if err := term.bind(t.Context(), []*placement{<-term.binds}); err != nil {
		t.Fatal(err)
	}
	if left := record(t, term).batches; len(left) != 1 {
		t.Errorf("at the version of the record %d batches are left, want it to stay", len(left))
	}
	observe(t, term, node("b", 1000))
	if left := record(t, term).batches; len(left) != 0 {
		t.Errorf("at a later version %d batches are left", len(left))
	}
}

func TestNothingIsWrittenToAPodAfterItsStint(t *testing.T) {
	shared := func(t *testing.T) (*fakeSource, *term, int64) {
		src := newFakeSource()
		src.setPod(pod("p", 100))
		term := pureTerm(t, src, withNames)
		observe(t, term, node("a", 1000), pod("p", 100))
		stint, _ := term.names.taken(time.Now().Add(time.Hour))
		term.names.begin(stint)
		if err := term.tellNames(); err != nil {
			t.Fatal(err)
		}
		return src, term, stint
	}
	t.Run("by a bind that failed", func(t *testing.T) {
		src, term, stint := shared(t)
		term.troubles.note("default", time.Now()) // so that the first failure is enough
		in := assume(t, term, "p", "a")
		in.shared, in.stint = true, stint
		src.answers(func(source.Binding) source.Outcome {
			term.names.lost("another holds it")
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		})
		if err := term.bind(t.Context(), []*placement{in}); err != nil {
			t.Fatal(err)
		}
		if got := src.withdrawals(); len(got) > 0 {
			t.Errorf("withdrawn: %+v", got)
		}
	})
	t.Run("by a report", func(t *testing.T) {
		src, term, _ := shared(t)
		term.names.lost("another holds it") // of which the log does not tell yet
		report := source.Report{UID: "p", Namespace: "default", Name: "p", Reason: reasonUnschedulable, Message: "no room"}
		if err := term.reports.write(t.Context(), report); err != nil {
			t.Fatal(err)
		}
		if got := src.reported("p"); len(got) > 0 {
			t.Errorf("written: %+v", got)
		}
	})
}

func TestATryThatFailedIsLoggedLessAndLess(t *testing.T) {
	var said []int
	for tries := range 40 {
		if p := (placement{tries: tries}); p.says() {
			said = append(said, tries)
		}
	}
	if len(said) != 7 || said[0] != 0 || said[6] != 32 {
		t.Errorf("logged behind so many tries: %v", said)
	}
}
