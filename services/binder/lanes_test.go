package binder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

func TestABindOfUnknownOutcomeKeepsItsRoomUntilItIsKnown(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 900))
	src.setPod(pod("greedy", 900))
	var known atomic.Bool
	src.answers(func(source.Binding) source.Outcome {
		if known.Load() {
			return source.Outcome{Result: source.BindDone}
		}
		return source.Outcome{Result: source.BindUnknown, Err: errFake}
	})
	b := start(t, etcd, src)
	b.active()
	b.commit(b.request(1, "p"))
	eventually(t, "the bind was tried three times", func() bool { return len(src.tried("p")) >= 3 })
	if got := b.phase("p"); got != "assumed on a" {
		t.Errorf("p is %s", got)
	}
	if got := b.commit(b.request(1, "greedy")); got[0] != "no fit" {
		t.Errorf("a pod that needs the room is %s", got[0])
	}
	if got := intents(t, connect(t, etcd, prefix))["p"]; got != "a" {
		t.Errorf("the intent in etcd is %q", got)
	}
	known.Store(true)
	b.awaitPhase("p", "bound on a")
	eventually(t, "nothing counts as unbound", func() bool { return b.term.Load().unbound.count() == 0 })
	eventually(t, "its event is written", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.scheduled) == 1
	})
}

func TestTheWatchDecidesABindOfUnknownOutcome(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	for _, uid := range []string{"done", "deleted"} {
		src.setPod(pod(uid, 100))
	}
	src.answers(func(source.Binding) source.Outcome {
		return source.Outcome{Result: source.BindUnknown, Err: errFake}
	})
	b := start(t, etcd, src)
	b.active()
	b.commit(b.request(1, "done", "deleted"))
	eventually(t, "both were tried", func() bool { return len(src.tried("done")) > 0 && len(src.tried("deleted")) > 0 })
	src.setPod(on(pod("done", 100), "a")) // the bind was done, only the answer was lost
	src.deletePod("deleted")
	b.awaitPhase("done", "bound on a")
	b.awaitPhase("deleted", "gone")
	eventually(t, "nothing counts as unbound", func() bool { return b.term.Load().unbound.count() == 0 })
	other := connect(t, etcd, prefix)
	eventually(t, "no intent is left", func() bool { return len(intents(t, other)) == 0 })
	before := len(src.tried(""))
	never(t, "a decided bind is tried again", func() bool { return len(src.tried("")) > before })
}

func TestAPodWhoseBindNeverGetsAnAnswerHoldsUpNoOther(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	uids := []string{"stuck"}
	for i := range 20 {
		uids = append(uids, fmt.Sprintf("p%d", i))
	}
	for _, uid := range uids {
		src.setPod(pod(uid, 10))
	}
	src.answers(func(b source.Binding) source.Outcome {
		if b.UID == "stuck" {
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		}
		return source.Outcome{Result: source.BindDone}
	})
	b := start(t, etcd, src, func(c *Config) { c.BindWorkers = 1 })
	b.active()
	b.commit(b.request(1, "stuck"))
	eventually(t, "its delay has grown", func() bool { return len(src.tried("stuck")) >= 3 })
	attempt := int32(0)
	for _, uid := range uids[1:] { // one by one: while one of the namespace fails, it may have no more than there are places
		eventually(t, uid+" is placed", func() bool {
			attempt++
			return b.commit(b.request(attempt, uid))[0] != "busy"
		})
		b.awaitPhase(uid, "bound on a")
	}
}

func TestARefusedBindIsForgottenWithAReport(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 900))
	src.setPod(pod("greedy", 900))
	src.answers(func(b source.Binding) source.Outcome {
		if b.UID == "p" {
			return source.Outcome{Result: source.BindRefused, Err: errFake}
		}
		return source.Outcome{Result: source.BindDone}
	})
	b := start(t, etcd, src)
	b.active()
	b.commit(b.request(1, "p"))
	eventually(t, "the report is written", func() bool { return len(src.reported("p")) == 1 })
	want := source.Report{
		UID: "p", Namespace: "default", Name: "p", Reason: "SchedulerError",
		Message: "binding to a was refused: the fake source says so", Nominate: true,
	}
	if got := src.reported("p")[0]; got != want {
		t.Errorf("report is %+v", got)
	}
	if got := b.phase("p"); got != "pending" {
		t.Errorf("p is %s", got)
	}
	b.commit(b.request(1, "greedy"))
	b.awaitPhase("greedy", "bound on a")
	if n := len(src.tried("p")); n != 1 {
		t.Errorf("%d binds of the refused pod, want 1", n)
	}
	eventually(t, "nothing counts as unbound", func() bool { return b.term.Load().unbound.count() == 0 })
}

func TestAPodBoundElsewhereCountsHereUntilTheWatchTells(t *testing.T) {
	src := newFakeSource()
	term := pureTerm(t, src)
	observe(t, term, node("a", 1000), node("b", 1000), pod("p", 100))
	in := assume(t, term, "p", "a")
	src.answers(func(source.Binding) source.Outcome {
		return source.Outcome{Result: source.BindElsewhere, Err: errFake}
	})
	if err := term.bind(t.Context(), []*placement{in}); err != nil {
		t.Fatal(err)
	}
	if got := where(term, "p"); got != "assumed on a" {
		t.Errorf("p is %s", got)
	}
	if n := term.unbound.count(); n != 0 {
		t.Errorf("%d count as unbound", n)
	}
	observe(t, term, on(pod("p", 100), "b"))
	if got := where(term, "p"); got != "bound on b" {
		t.Errorf("p is %s", got)
	}
}

func TestAPodThatVanishesBeforeItsBindLeavesNothing(t *testing.T) {
	src := newFakeSource() // it has no such pod
	term := pureTerm(t, src)
	observe(t, term, node("a", 1000), pod("p", 100))
	in := assume(t, term, "p", "a")
	if err := term.bind(t.Context(), []*placement{in}); err != nil {
		t.Fatal(err)
	}
	finished := record(t, term).finished
	if got := where(term, "p"); got != "pending" { // until the watch tells
		t.Errorf("p is %s", got)
	}
	if n := term.unbound.count(); n != 0 {
		t.Errorf("%d count as unbound", n)
	}
	if got := finished; !slices.Equal(got, []int64{in.batch}) {
		t.Errorf("finished batches: %v", got)
	}
}

func TestAFencedBindEndsTheTermAndTakesNothingBack(t *testing.T) {
	src := newFakeSource()
	term := pureTerm(t, src)
	observe(t, term, node("a", 1000), pod("p", 100))
	in := assume(t, term, "p", "a")
	src.answers(func(source.Binding) source.Outcome {
		return source.Outcome{Result: source.BindRefused, Err: fmt.Errorf("place: %w", coord.ErrFenced)}
	})
	if err := term.bind(t.Context(), []*placement{in}); err == nil || !strings.Contains(err.Error(), coord.ErrFenced.Error()) {
		t.Errorf("bind returned %v", err)
	}
	if got := where(term, "p"); got != "assumed on a" {
		t.Errorf("p is %s", got)
	}
	if got := term.reports.depth(); got != 0 {
		t.Errorf("%d reports", got)
	}
}

func report(st *running, uid, reason, message string) *binderv1.PodReport {
	id := st.request(1, uid).Pods[0].Id
	return &binderv1.PodReport{Id: id, Uid: uid, Reason: reason, Message: message}
}

func TestReportsAreWrittenOfPodsThatAreNotPlaced(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	for _, uid := range []string{"waits", "placed", "placed meanwhile"} {
		src.setPod(pod(uid, 100))
	}
	b := start(t, etcd, src)
	b.active()
	b.commit(b.request(1, "placed"))
	b.awaitPhase("placed", "bound on a")
	eventually(t, "its event is written", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.scheduled) == 1
	})

	block := make(chan struct{})
	src.change(func() { src.block = block })
	send := func(reports ...*binderv1.PodReport) {
		t.Helper()
		if _, err := b.Report(t.Context(), &binderv1.ReportRequest{Reports: reports}); err != nil {
			t.Fatal(err)
		}
	}
	// All workers of the lane are busy with a first report each; what comes behind waits.
	for i := range reportWorkers {
		uid := fmt.Sprintf("busy%d", i)
		src.setPod(pod(uid, 10))
		send(report(b, uid, "Unschedulable", "busy"))
	}
	eventually(t, "all workers are busy", func() bool { return b.term.Load().reports.depth() == 0 })
	stranger := report(b, "waits", "Unschedulable", "of another pod")
	stranger.Uid = "someone"
	send(
		report(b, "waits", "Unschedulable", "old"), report(b, "waits", "Unschedulable", "new"),
		report(b, "placed", "Unschedulable", "it is not so"), report(b, "placed meanwhile", "Unschedulable", "not any more"), stranger,
	)
	b.commit(b.request(1, "placed meanwhile"))
	close(block)
	eventually(t, "the report is written", func() bool { return len(src.reported("waits")) > 0 })
	if got := src.reported("waits"); len(got) != 1 || got[0].Message != "new" {
		t.Errorf("reports: %+v", got)
	}
	eventually(t, "both placements have events", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.scheduled) == 2
	})
	if got := append(src.reported("placed"), src.reported("placed meanwhile")...); len(got) > 0 {
		t.Errorf("reports of placed pods: %+v", got)
	}
}

func TestReportsAreRefusedWhenTheLaneIsFull(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	block := make(chan struct{})
	src.block = block
	var uids []string
	for i := range reportWorkers + 10 {
		uids = append(uids, fmt.Sprintf("p%d", i))
		src.setPod(pod(uids[i], 100))
	}
	b := start(t, etcd, src, func(c *Config) { c.EventLimit = 1 })
	b.active()
	var refused error
	eventually(t, "a report is refused", func() bool {
		for _, uid := range uids {
			_, err := b.Report(t.Context(), &binderv1.ReportRequest{Reports: []*binderv1.PodReport{report(b, uid, "Unschedulable", "m")}})
			if err != nil {
				refused = err
				return true
			}
		}
		return false
	})
	wantError(t, refused, codes.ResourceExhausted, "REPORTS_FULL")
	if after, ok := rpc.RetryAfter(refused); !ok || after <= 0 {
		t.Errorf("RetryInfo is %v, %v", after, ok)
	}
	close(block)
	eventually(t, "reports are taken again", func() bool {
		_, err := b.Report(t.Context(), &binderv1.ReportRequest{Reports: []*binderv1.PodReport{report(b, uids[9], "Unschedulable", "last")}})
		return err == nil
	})
	eventually(t, "the last one is written", func() bool {
		got := src.reported(uids[9])
		return len(got) > 0 && got[len(got)-1].Message == "last"
	})
	_, err := b.Report(t.Context(), &binderv1.ReportRequest{Reports: []*binderv1.PodReport{{Reason: "Because"}}})
	wantError(t, err, codes.InvalidArgument, rpc.ReasonInvalid)
	if v := rpc.Violations(err); len(v) != 1 || v[0].Field != "reports[0].reason" {
		t.Errorf("violations: %v", v)
	}
}

// single is a source whose binds are a call each.
type single struct{ *fakeSource }

func (single) MaxBatch() int { return 1 }

// runBinds runs workers of the bind lane of a term until stop.
func runBinds(t testing.TB, term *term, workers int) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	term.spawn = func(run func() error) {
		running.Go(func() {
			if err := run(); err != nil {
				t.Errorf("bind lane: %v", err)
			}
		})
	}
	for range workers {
		term.spawn(func() error { return term.bindLane(ctx) })
	}
	term.spawn(func() error { return term.noPlaceLane(ctx) })
	return func() { cancel(); running.Wait() }
}

// asking is a source that sees whether the term has ended while it binds.
type asking struct {
	*fakeSource
	ask func(context.Context)
}

func (a asking) Bind(ctx context.Context, fence coord.Cond, bindings []source.Binding) []source.Outcome {
	a.ask(ctx)
	return a.fakeSource.Bind(ctx, fence, bindings)
}

func TestASourceSeesThatTheTermHasEndedWhileItBinds(t *testing.T) {
	for _, shared := range []bool{false, true} {
		src := newFakeSource()
		term := pureTerm(t, src)
		lease, asked := make(chan struct{}), false
		term.lease = lease
		stint, _ := term.names.taken(time.Now().Add(time.Hour))
		term.names.begin(stint)
		term.source = asking{src, func(ctx context.Context) {
			before := source.Ended(ctx)
			close(lease)
			if asked = true; before || !source.Ended(ctx) {
				t.Errorf("shared %v: ended is %v, and with the lease %v", shared, before, source.Ended(ctx))
			}
		}}
		src.setPod(pod("p", 10))
		observe(t, term, node("a", 100), pod("p", 10))
		p := assume(t, term, "p", "a")
		if p.shared = shared; shared {
			p.stint = stint
		}
		if err := term.bind(t.Context(), []*placement{p}); err != nil || !asked {
			t.Errorf("shared %v: %v, asked: %v", shared, err, asked)
		}
	}
}

func TestBindsThatGetNoAnswerHoldUpNoOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const workers, stuck = 4, 12
		src := newFakeSource()
		src.setNode(node("a", 1000))
		src.answers(func(b source.Binding) source.Outcome {
			if b.UID == "good" {
				return source.Outcome{Result: source.BindDone}
			}
			elapse(10 * time.Second)
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		})
		term := pureTerm(t, single{src})
		observe(t, term, node("a", 1000))
		uids := make([]string, 0, stuck+1)
		for i := range stuck {
			uids = append(uids, fmt.Sprintf("stuck%d", i))
		}
		uids = append(uids, "good")
		for _, uid := range uids {
			src.setPod(pod(uid, 10))
			observe(t, term, pod(uid, 10))
			term.binds <- assume(t, term, uid, "a")
		}
		stop := runBinds(t, term, workers)
		defer stop()
		elapse(stuck/workers*lateAfter + lateAfter/2)
		synctest.Wait()
		if got := where(term, "good"); got != "bound on a" {
			t.Errorf("good is %s", got)
		}
		if got, n := where(term, "stuck0"), term.late.count(); got != "assumed on a" || n != stuck {
			t.Errorf("stuck0 is %s, %d binds are late", got, n)
		}
		if n := term.unbound.count(); n != stuck {
			t.Errorf("%d count as unbound", n)
		}
		src.answers(nil) // what comes back is tried again, and known
		elapse(time.Minute)
		synctest.Wait()
		if got, n := where(term, "stuck0"), term.late.count(); got != "bound on a" || n != 0 {
			t.Errorf("in the end stuck0 is %s, %d binds are late", got, n)
		}
	})
}

func TestAPodThatOthersChangeIsTriedAgainAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		src.setPod(pod("p", 100))
		term := pureTerm(t, single{src})
		observe(t, term, node("a", 1000), pod("p", 100))
		var logged bytes.Buffer
		term.log = slog.New(slog.NewTextHandler(&logged, nil))
		began := time.Now()
		var last time.Duration
		tries := 0
		src.answers(func(source.Binding) source.Outcome {
			if n := term.unbound.stuck; n != 0 {
				t.Errorf("%d are stuck", n)
			}
			if tries++; tries <= changedTries {
				return source.Outcome{Result: source.BindUnknown, Err: errors.Join(source.ErrChanged, errFake)}
			}
			last = time.Since(began)
			return source.Outcome{Result: source.BindDone}
		})
		term.binds <- assume(t, term, "p", "a")
		defer runBinds(t, term, 1)()
		elapse(time.Minute)
		synctest.Wait()
		if want := changedTries * bindBackoff.first; where(term, "p") != "bound on a" || last != want {
			t.Errorf("p is %s, after %v; want it bound after %v", where(term, "p"), last, want)
		}
		if logged.Len() > 0 {
			t.Errorf("it is told as if something were the matter: %s", &logged)
		}
	})
}

// A webhook that does not answer, in one namespace or several.
func TestANamespaceWhoseBindsHangLeavesOthersTheirShare(t *testing.T) {
	for _, hanging := range []int{1, 3} {
		bubble.Test(t, func(t *testing.T) {
			const workers, each = 8, 300
			src := newFakeSource()
			term := pureTerm(t, single{src}, inPlaces(places(workers)), func(c *termConfig) { c.MaxUnbound = 2000 })
			out := make(chan *placement, 2000)
			term.recorder.out = out
			observe(t, term, node("a", 1_000_000))
			src.answers(func(b source.Binding) source.Outcome {
				if b.Namespace == "default" {
					return source.Outcome{Result: source.BindDone}
				}
				elapse(10 * time.Second)
				return source.Outcome{Result: source.BindUnknown, Err: errFake}
			})
			place := func(uid, namespace string) {
				p := pod(uid, 1)
				p.Namespace = namespace
				src.setPod(p)
				observe(t, term, p)
				term.binds <- assume(t, term, uid, "a")
			}
			for i := range each * hanging {
				place(fmt.Sprint("hangs", i), fmt.Sprint("tenant-", i%hanging))
			}
			stop := runBinds(t, term, workers)
			// However long it goes on, a pod of another namespace is bound within little more than a worker waits for an answer.
			for i := range 20 {
				elapse(30 * time.Second)
				uid := fmt.Sprint("good", i)
				place(uid, "default")
				elapse(2 * lateAfter)
				synctest.Wait()
				if got := where(term, uid); got != "bound on a" {
					t.Errorf("%d namespaces hang: after %d times 30 s %s is %s", hanging, i+1, uid, got)
				}
				record(t, term)
			}
			src.answers(func(b source.Binding) source.Outcome { return source.Outcome{Result: source.BindDone} })
			elapse(10 * time.Minute)
			synctest.Wait()
			stop()
			record(t, term)
			if n := term.unbound.count(); n != 0 {
				t.Errorf("in the end %d count as unbound", n)
			}
		})
	}
}

func TestLateBindsAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const workers, late = 4, 5
		var now, most atomic.Int32
		src := newFakeSource()
		src.answers(func(source.Binding) source.Outcome {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			elapse(time.Minute)
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		})
		term := pureTerm(t, single{src})
		term.late.limit = late
		observe(t, term, node("a", 1000))
		for i := range 30 {
			uid := fmt.Sprintf("p%d", i)
			observe(t, term, pod(uid, 10))
			term.binds <- assume(t, term, uid, "a")
		}
		defer runBinds(t, term, workers)()
		elapse(time.Hour)
		synctest.Wait()
		if got := most.Load(); got != workers+late {
			t.Errorf("%d binds were under way at once, want %d", got, workers+late)
		}
	})
}
