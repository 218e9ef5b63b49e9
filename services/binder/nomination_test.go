package binder

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/source"
)

// nominee returns the node that a pod is nominated to.
func nominee(term *term, uid string) (node string) {
	term.ledger.Snapshot(func(st *cluster.State) {
		id, _ := st.PodByUID(uid)
		node = st.Pod(id).Nominated
	})
	return node
}

func TestTheLedgersNominationStandsUntilTheSourceTellsAnother(t *testing.T) {
	for name, c := range map[string]struct {
		said string // by the source, when the ledger nominates the pod to b
		then []string
		want []string
	}{
		"the source repeats that there is none":         {"", []string{"", ""}, []string{"b", "b"}},
		"the source repeats an older one":               {"a", []string{"a", "a"}, []string{"b", "b"}},
		"what the ledger wrote comes back":              {"", []string{"b", "b"}, []string{"b", "b"}},
		"what the ledger wrote is taken away":           {"", []string{"b", ""}, []string{"b", ""}},
		"another nominates it":                          {"", []string{"c", "c"}, []string{"c", "c"}},
		"another ends the older one":                    {"a", []string{"", "a"}, []string{"", "a"}},
		"what the ledger wrote comes back behind older": {"", []string{"", "b", "c"}, []string{"b", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			term := pureTerm(t, newFakeSource())
			observe(t, term, nominated(pod("p", 1), c.said))
			id, _ := term.ledger.state.PodByUID("p")
			if err := nominate(term, id, "b"); err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, node := range c.then {
				seen := nominated(prior(pod("p", 1), int32(i+1)), node) // something else changes, too
				observe(t, term, seen)
				got = append(got, nominee(term, "p"))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("nominated to (-want +got):\n%s", diff)
			}
		})
	}
}

// nominate nominates a pod in the ledger.
func nominate(term *term, id cluster.PodID, node string) error {
	return term.ledger.update(func(*tx) error { return term.ledger.fold.Nominate(id, node) })
}

func TestLedgerNominatesAPodAnewBeforeTheSourceTellsAnything(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, pod("p", 1))
	id, _ := term.ledger.state.PodByUID("p")
	before := term.ledger.version().Seq
	for _, node := range []string{"a", "b", "b"} {
		if err := nominate(term, id, node); err != nil {
			t.Fatal(err)
		}
	}
	if n := term.ledger.version().Seq - before; n != 2 {
		t.Errorf("two nominations, and the same again, took %d deltas", n)
	}
	observe(t, term, prior(pod("p", 1), 1))
	if got := nominee(term, "p"); got != "b" {
		t.Errorf("p is nominated to %q", got)
	}
	observe(t, term, nominated(prior(pod("p", 1), 1), "a")) // the first one comes back: the second is on its way
	if got := nominee(term, "p"); got != "a" {
		t.Errorf("p is nominated to %q", got)
	}
}

func TestNominationThatTheSourceRepeatsTakesNoDelta(t *testing.T) {
	term, req := full(t, newFakeSource(), 1)
	begin(t, term, req)
	if n := observe(t, term, prior(pod("high", 10), 10)); n != 0 {
		t.Errorf("what the source told before took %d deltas", n)
	}
	if n := observe(t, term, nominated(prior(pod("high", 10), 10), "a")); n != 0 {
		t.Errorf("the preemption's own nomination took %d deltas", n)
	}
	if n := observe(t, term, prior(pod("high", 10), 10)); n != 1 || nominee(term, "high") != "" {
		t.Errorf("its end took %d deltas, and high is nominated to %q", n, nominee(term, "high"))
	}
}

func TestNothingIsRememberedOfPodsThatAreGone(t *testing.T) {
	term, req := full(t, newFakeSource(), 1)
	p := begin(t, term, req)
	observe(t, term, gone("v0"))
	if err := term.carryOut(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if term.ledger.fold.Nominations() != 1 || len(term.ledger.preempted) != 1 {
		t.Fatalf("remembered: %d nominations, attempts %v", term.ledger.fold.Nominations(), term.ledger.preempted)
	}
	assume(t, term, "high", "a")
	observe(t, term, on(prior(pod("high", 10), 10), "a"))
	if term.ledger.fold.Nominations() != 0 {
		t.Errorf("nominations of placed pods: %d", term.ledger.fold.Nominations())
	}
	// The ledger has uids as they can be told.
	unsound := pod("uid\xff", 10)
	observe(t, term, unsound)
	id, _ := term.ledger.state.PodByUID(ingest.Sound(unsound.UID))
	term.ledger.preempted[term.ledger.state.Pod(id).UID] = lastPreemption{by: attempt{1, 1}}
	observe(t, term, gone("high"), gone(unsound.UID))
	if len(term.ledger.preempted) != 0 {
		t.Errorf("attempts of pods that are gone: %v", term.ledger.preempted)
	}
}

func TestReportCanEndANomination(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 100), nominated(pod("p", 1), "a"), nominated(pod("q", 1), "a"), nominated(pod("placed", 1), "a"))
	assume(t, term, "placed", "a")
	req := &binderv1.ReportRequest{}
	for _, uid := range []string{"p", "q", "placed"} {
		id, _ := term.ledger.state.PodByUID(uid)
		req.Reports = append(req.Reports, &binderv1.PodReport{
			Id: int32(id), Uid: uid, Reason: "Unschedulable", Message: "m", ClearNomination: uid != "q",
		})
	}
	// A lane without room takes nothing, and nothing changes.
	term.reports.room.limit = 1
	term.reports.add(source.Report{UID: "other"})
	before := term.ledger.version()
	if _, taken, err := term.report(req); taken || err != nil || term.ledger.version() != before {
		t.Errorf("taken: %v, %v; the log is at %v, was at %v", taken, err, term.ledger.version(), before)
	}
	term.reports.next()
	if _, taken, err := term.report(req); !taken || err != nil {
		t.Fatalf("taken: %v, %v", taken, err)
	}
	if p, q := nominee(term, "p"), nominee(term, "q"); p != "" || q != "a" {
		t.Errorf("p is nominated to %q, q to %q", p, q)
	}
	var got []source.Report
	for range 2 {
		r, _ := term.reports.next()
		got = append(got, r.Report)
	}
	want := []source.Report{
		{UID: "p", Namespace: "default", Name: "p", Reason: "Unschedulable", Message: "m", Nominate: true},
		{UID: "q", Namespace: "default", Name: "q", Reason: "Unschedulable", Message: "m"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
}

func TestReportsOfANamespaceThatHasItsShareHoldUpNoOthers(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 100))
	req := &binderv1.ReportRequest{ShardRevision: 7}
	for _, uid := range []string{"gone", "many", "few", "many2", "few2", "placed"} {
		p := nominated(pod(uid, 1), "a")
		if p.Namespace = strings.TrimSuffix(uid, "2"); uid == "placed" {
			p.Namespace = "many"
		}
		observe(t, term, p)
		id, _ := term.ledger.state.PodByUID(uid)
		req.Reports = append(req.Reports, &binderv1.PodReport{
			Id: int32(id), Uid: uid, Reason: "Unschedulable", Message: "m", ClearNomination: true, Nominated: "a", Attempt: 1,
		})
	}
	observe(t, term, gone("gone"))
	assume(t, term, "placed", "a")
	for i := 0; term.reports.add(source.Report{UID: fmt.Sprint("r", i), Namespace: "many", Reason: "Unschedulable"}); i++ {
	}
	before := term.reports.depth()
	left, taken, err := term.report(req)
	if !slices.Equal(left, []int32{1, 3}) || !taken || err != nil || term.reports.depth() != before+2 {
		t.Errorf("left: %v; taken: %v, %v; %d wait, %d did before", left, taken, err, term.reports.depth(), before)
	}
	for _, uid := range []string{"many", "few", "many2", "few2"} {
		if on := nominee(term, uid); on != "" {
			t.Errorf("%s is nominated to %s, which keeps room from others", uid, on)
		}
	}
	// When there is room for them they still say that the nomination has ended.
	for range before {
		term.reports.next()
	}
	if left, taken, err = term.report(&binderv1.ReportRequest{ShardRevision: 7, Reports: req.Reports[1:2]}); len(left) > 0 || !taken || err != nil {
		t.Errorf("then left: %v; taken: %v, %v", left, taken, err)
	}
	if r := term.reports.waiting["many"]; !r.Nominate || r.Nominated != "" {
		t.Errorf("it is written as %+v", r.Report)
	}
}

// The report that ended a nomination may never have been written.
func TestEveryReportSaysWhatTheSourceDoesNotKnowOfANomination(t *testing.T) {
	for name, c := range map[string]struct {
		told, now string // the node that the pod is nominated to: by the source, and in the ledger
		then      *string
		want      bool
	}{
		"it has ended":                           {told: "a", want: true},
		"it is another":                          {told: "a", now: "b", want: true},
		"there was none":                         {now: "b", want: true},
		"it has ended, and the source knows":     {told: "a", then: new(string)},
		"it never was":                           {},
		"it is as the source has told it":        {told: "a", now: "a"},
		"it has ended, but the source says more": {told: "a", then: &[]string{"b"}[0]},
	} {
		t.Run(name, func(t *testing.T) {
			term := pureTerm(t, newFakeSource())
			observe(t, term, node("a", 100), node("b", 100), nominated(pod("p", 1), c.told))
			id, _ := term.ledger.state.PodByUID("p")
			if err := nominate(term, id, c.now); err != nil {
				t.Fatal(err)
			}
			if c.then != nil {
				observe(t, term, nominated(pod("p", 1), *c.then))
			}
			if _, taken, err := term.report(&binderv1.ReportRequest{ShardRevision: 7, Reports: []*binderv1.PodReport{{
				Id: int32(id), Uid: "p", Reason: "Unschedulable", Message: "m", Attempt: 2,
			}}}); !taken || err != nil {
				t.Fatalf("taken: %v, %v", taken, err)
			}
			want := ""
			if c.want {
				want = c.now
			}
			if r, _ := term.reports.next(); r.Message != "m" || r.Nominate != c.want || r.Nominated != want {
				t.Errorf("it is written as %+v", r.Report)
			}
		})
	}
}

// A report may be long on its way: the pod may have been nominated anew meanwhile.
func TestReportEndsNoNominationButTheOneItMeans(t *testing.T) {
	for name, c := range map[string]struct {
		claim   int64   // of the report, which is of attempt 3
		means   string  // the node
		by      attempt // which has nominated the pod since; zero: no preemption has
		node    string  // that it is nominated to now
		cleared bool
	}{
		"it is as it was":                              {7, "a", attempt{}, "a", true},
		"another has nominated it":                     {7, "a", attempt{}, "b", false},
		"its attempt was on the node that was meant":   {7, "a", attempt{7, 2}, "a", true},
		"a later attempt has taken it there":           {7, "a", attempt{7, 4}, "b", false},
		"a later attempt has taken it there again":     {7, "a", attempt{7, 4}, "a", false},
		"its own attempt has taken it there":           {7, "a", attempt{7, 3}, "a", false},
		"an attempt of a later owner has":              {7, "a", attempt{8, 1}, "a", false},
		"an attempt of an earlier owner had":           {7, "a", attempt{6, 9}, "a", true},
		"a queue that does not say what it means":      {0, "", attempt{}, "b", true},
		"a queue that does not say it, of a preemptor": {0, "", attempt{7, 4}, "b", true},
	} {
		t.Run(name, func(t *testing.T) {
			term := pureTerm(t, newFakeSource())
			observe(t, term, node("a", 100), node("b", 100), nominated(pod("p", 1), c.node))
			id, _ := term.ledger.state.PodByUID("p")
			if c.by != (attempt{}) {
				term.ledger.preempted["p"] = lastPreemption{by: c.by}
			}
			_, taken, err := term.report(&binderv1.ReportRequest{ShardRevision: c.claim, Reports: []*binderv1.PodReport{{
				Id: int32(id), Uid: "p", Reason: "Unschedulable", Message: "m", ClearNomination: true, Nominated: c.means, Attempt: 3,
			}}})
			if !taken || err != nil {
				t.Fatalf("taken: %v, %v", taken, err)
			}
			want := c.node
			if c.cleared {
				want = ""
			}
			if got := nominee(term, "p"); got != want {
				t.Errorf("p is nominated to %q, want %q", got, want)
			}
			if r, _ := term.reports.next(); r.Message != "m" || r.Nominate != c.cleared || r.Nominated != "" {
				t.Errorf("it is written as %+v", r.Report)
			}
		})
	}
}

func TestRefusedBindEndsTheNomination(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 100), nominated(pod("p", 1), "a"))
	in := assume(t, term, "p", "a")
	if err := term.settle(in, source.Outcome{Result: source.BindRefused, Err: errFake}); err != nil {
		t.Fatal(err)
	}
	record(t, term)
	if got := nominee(term, "p"); got != "" {
		t.Errorf("p is nominated to %q", got)
	}
	if r, ok := term.reports.next(); !ok || !r.Nominate || r.Nominated != "" {
		t.Errorf("report: %+v", r)
	}
}

func TestBudgetsReachTheLogOnce(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	budget := func(allowed int32) source.Event {
		return source.Event{Kind: source.ObjectSet, Object: &cluster.Budget{
			Namespace: "default", Name: "web", Allowed: allowed, Disrupted: []string{"a"},
			Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "Exists"}}},
		}}
	}
	gone := source.Event{Kind: source.ObjectGone, Key: cluster.ObjectKey{Kind: cluster.BudgetKind, Namespace: "default", Name: "web"}}
	for _, c := range []struct {
		name  string
		event source.Event
		want  int
	}{
		{"a new budget", budget(1), 1},
		{"the same", budget(1), 0},
		{"another status", budget(0), 1},
		{"its end", gone, 1},
		{"its end again", gone, 0},
		{"its return", budget(0), 1},
	} {
		if n := observe(t, term, c.event); n != c.want {
			t.Errorf("%s took %d deltas, want %d", c.name, n, c.want)
		}
	}
	term.ledger.Snapshot(func(st *cluster.State) {
		if b := st.Budget("default", "web"); b == nil || b.Allowed != 0 || len(b.Selector.Requirements) != 1 {
			t.Errorf("the budget: %+v", b)
		}
	})
}
