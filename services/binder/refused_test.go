package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

func TestARestartDoesNotResurrectARefusedBind(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	for name, cpu := range map[string]int64{"p": 900, "slow": 10, "r": 900} {
		src.setPod(pod(name, cpu))
	}
	src.answers(func(b source.Binding) source.Outcome {
		switch b.UID {
		case "p":
			return source.Outcome{Result: source.BindRefused, Err: errFake}
		case "slow":
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		}
		return source.Outcome{Result: source.BindDone}
	})
	first := start(t, etcd, src, named("first"))
	first.active()
	if got := first.commit(first.request(1, "p", "slow")); !slices.Equal(got, []string{"assumed", "assumed"}) {
		t.Fatalf("p and slow are %v", got)
	}
	first.awaitPhase("p", "pending")
	if got := intents(t, connect(t, etcd, prefix)); len(got) != 1 || got["slow"] != "a" {
		t.Errorf("recorded is %v, want slow on a alone: p's room may be another's", got)
	}
	if got := first.commit(first.request(1, "r")); got[0] != "assumed" {
		t.Fatalf("r is %s", got[0])
	}
	first.awaitPhase("r", "bound on a")
	first.stop()
	tried := len(src.tried("p"))
	src.answers(nil)

	second := start(t, etcd, src, named("second"))
	second.active()
	second.awaitPhase("slow", "bound on a")
	other := connect(t, etcd, prefix)
	eventually(t, "no intent is left", func() bool { return len(intents(t, other)) == 0 })
	if got := second.phase("p"); got != "pending" || len(src.tried("p")) > tried {
		t.Errorf("p is %s, its bind was tried %d times since", got, len(src.tried("p"))-tried)
	}
	second.look(func(st *cluster.State) {
		if over := overcommitted(st); over != "" {
			t.Errorf("%s has more than it can take", over)
		}
	})
}

// Intents that were left by a binder which gave the room of a refused one away, or that came with an etcd that was restored.
func TestATakeoverDropsIntentsThatDoNotFit(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setNode(node("b", 1000))
	src.setPod(pod("refused", 900))
	src.setPod(pod("slow", 10))
	src.setPod(on(pod("bound", 900), "a"))
	src.setPod(pod("older", 900))
	src.setPod(pod("newer", 900))
	leave(t, etcd,
		coord.Batch{ID: 1, Intents: []coord.Intent{meant("refused", "a"), meant("slow", "a"), meant("older", "b")}},
		coord.Batch{ID: 2, Intents: []coord.Intent{meant("newer", "b")}},
	)
	registry := prometheus.NewRegistry()
	b := start(t, etcd, src, func(c *Config) { c.Metrics = registry })
	b.active()
	b.awaitPhase("slow", "bound on a")
	b.awaitPhase("newer", "bound on b")
	b.awaitPhase("refused", "pending")
	b.awaitPhase("older", "pending")
	if diff := cmp.Diff([]string{"newer to b", "slow to a"}, sent(src)); diff != "" {
		t.Errorf("binds (-want +got):\n%s", diff)
	}
	if got := counts(t, registry, "berth_binder_intents_dropped_total"); got["misfit"] != 2 || got["foreign"] != 0 {
		t.Errorf("counted are %v, want 2 misfits", got)
	}
	eventually(t, "it is said why", func() bool { return len(src.reported("refused")) > 0 })
	want := "binding to a was refused: a binder before meant to, but now: Insufficient cpu"
	if got := src.reported("refused")[0]; got.Message != want || got.Reason != reasonError {
		t.Errorf("report %+v, want %q", got, want)
	}
	other := connect(t, etcd, prefix)
	eventually(t, "no intent is left", func() bool { return len(intents(t, other)) == 0 })
	eventually(t, "nothing counts as unbound", func() bool { return b.term.Load().unbound.count() == 0 })
	b.look(func(st *cluster.State) {
		if over := overcommitted(st); over != "" {
			t.Errorf("%s has more than it can take", over)
		}
	})
}

// The node may come back, and the bind of the binder before may still happen.
func TestATakeoverWithdrawsAnIntentWhoseNodeIsNotKnown(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 900))
	leave(t, etcd, coord.Batch{ID: 1, Intents: []coord.Intent{meant("p", "gone")}})
	b := start(t, etcd, src)
	b.active()
	eventually(t, "the bind is withdrawn", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.withdrawn) == 1 && src.withdrawn[0].UID == "p"
	})
	other := connect(t, etcd, prefix)
	eventually(t, "no intent is left", func() bool { return len(intents(t, other)) == 0 })
	if got := sent(src); len(got) > 0 || b.phase("p") != "pending" {
		t.Errorf("binds %v, p is %s", got, b.phase("p"))
	}
}

func TestATakeoverDropsIntentsThatNoBinderCanHaveMeant(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	registry := counted(t, term)
	gated, theirs, unsupported := pod("gated", 10), pod("theirs", 10), pod("unsupported", 10)
	gated.Gates = []string{"hold"}
	theirs.Class.SchedulerName = "somebody-else"
	unsupported.Class.Unsupported, unsupported.Class.UnsupportedPlugin = "volumes", "VolumeBinding"
	unschedulable := node("cordoned", 1000)
	unschedulable.Unschedulable = true
	observe(t, term, node("a", 1000), node("b", 1000), unschedulable, gated, theirs, unsupported,
		requiring(pod("elsewhere", 10), "b"), pod("renamed", 10), pod("cordoned", 10), pod("fits", 10))
	renamed := meant("renamed", "a")
	renamed.Name = "another"
	taken, err := term.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 3, Intents: []coord.Intent{
		meant("gated", "a"), meant("theirs", "a"), meant("unsupported", "a"), meant("elsewhere", "a"), renamed,
		meant("cordoned", "cordoned"), meant("nobody", "a"), meant("fits", "a"),
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	var binds, withdrawals []string
	for _, in := range taken {
		if in.misfit == nil {
			binds = append(binds, in.UID)
		} else {
			withdrawals = append(withdrawals, in.UID)
		}
	}
	slices.Sort(withdrawals)
	if diff := cmp.Diff([]string{"fits"}, binds); diff != "" {
		t.Errorf("to be bound (-want +got):\n%s", diff)
	}
	// An earlier binder may have had other profiles, by which a pod was its own, or not pinned.
	if diff := cmp.Diff([]string{"cordoned", "elsewhere", "theirs", "unsupported"}, withdrawals); diff != "" {
		t.Errorf("to be withdrawn (-want +got):\n%s", diff)
	}
	for _, uid := range []string{"gated", "renamed"} {
		if got := where(term, uid); got != "pending" {
			t.Errorf("%s is %s", uid, got)
		}
	}
	if got := counts(t, registry, "berth_binder_intents_dropped_total"); got["misfit"] != 4 || got["foreign"] != 2 {
		t.Errorf("counted are %v, want 4 misfits and 2 foreign", got)
	}
}

// Pods of one batch may need each other, and the newest is judged first.
func TestATakeoverKeepsIntentsThatNeedEachOther(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	wanted, wants, last := app(pod("wanted", 10), "db"), app(pod("wants", 10), "web"), pod("last", 10)
	wants.Class.Affinity, last.Class.Affinity = apps("db"), apps("web")
	zoned := node("a", 1000)
	zoned.Labels = []cluster.Label{{Key: "zone", Value: "z"}}
	observe(t, term, zoned, wanted, wants, last)
	taken, err := term.adopt([]coord.StoredBatch{
		{Batch: coord.Batch{ID: 1, Intents: []coord.Intent{meant("wanted", "a")}}},
		{Batch: coord.Batch{ID: 2, Intents: []coord.Intent{meant("wants", "a")}}},
		{Batch: coord.Batch{ID: 3, Intents: []coord.Intent{meant("last", "a")}}},
	})
	if err != nil || len(taken) != 3 {
		t.Fatalf("taken %v, %v", taken, err)
	}
	for _, in := range taken {
		if in.misfit != nil {
			t.Errorf("%s: %v", in.UID, in.misfit)
		}
	}
}

// The binder before may have sent the bind before the node was cordoned, and it arrives now.
func TestAnIntentThatDoesNotFitKeepsItsRoomUntilItsBindIsWithdrawn(t *testing.T) {
	src := newFakeSource()
	term := pureTerm(t, src)
	cordoned := node("a", 1000)
	cordoned.Unschedulable = true
	src.setPod(pod("p", 900))
	src.setPod(pod("q", 50))
	observe(t, term, cordoned, pod("p", 900), pod("q", 50))
	taken, err := term.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 1, Intents: []coord.Intent{meant("p", "a"), meant("q", "a")}}}})
	if err != nil || len(taken) != 2 {
		t.Fatalf("taken %v, %v", taken, err)
	}
	src.change(func() {
		src.withdraw = func(source.Binding) source.Outcome { return source.Outcome{Err: errFake} }
	})
	if err := term.bind(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	record(t, term)
	if got := where(term, "p"); got != "assumed on a" {
		t.Errorf("while it is not known, p is %s", got)
	}
	src.setPod(on(pod("p", 900), "a")) // and the watch is late
	src.change(func() { src.withdraw = nil })
	if err := term.bind(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	if got := where(term, "p"); got != "bound on a" {
		t.Errorf("p, which was bound by the binder before, is %s", got)
	}
	if got := where(term, "q"); got != "assumed on a" {
		t.Errorf("before that is recorded, q is %s", got)
	}
	if got := record(t, term); len(got.batches) > 0 || where(term, "q") != "pending" {
		t.Errorf("recorded is %v, q is %s", got.batches, where(term, "q"))
	}
	if got := sent(src); len(got) > 0 {
		t.Errorf("sent: %v", got)
	}
}

func TestARefusedBindKeepsItsRoomUntilThatIsRecorded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		term := pureTerm(t, src)
		observe(t, term, node("a", 1000), pod("p", 900), pod("q", 10))
		l, written := term.ledger, term.recorder.term.(*recorded)
		req := requestOf(l.state, evaluate(l.state, 4), 1, "p", "q")
		if _, err := term.commit(req); err != nil {
			t.Fatal(err)
		}
		record(t, term)
		batch := []*placement{<-term.binds, <-term.binds}
		tries := 0
		written.fail = func() error {
			if got := where(term, "p"); got != "assumed on a" {
				t.Errorf("before that is recorded, p is %s", got)
			}
			if tries++; tries < 3 {
				return fmt.Errorf("shrink: %w", coord.ErrUnknown)
			}
			return nil
		}
		if err := term.settle(batch[0], source.Outcome{Result: source.BindRefused, Err: errFake}); err != nil {
			t.Fatal(err)
		}
		record(t, term)
		want := map[int64][]coord.Intent{1: {meant("q", "a")}}
		if diff := cmp.Diff(want, written.batches); diff != "" || tries != 3 {
			t.Errorf("recorded after %d tries (-want +got):\n%s", tries, diff)
		}
		if got := where(term, "p"); got != "pending" {
			t.Errorf("p is %s", got)
		}
		if n := term.unbound.count(); n != 1 {
			t.Errorf("%d count as unbound, want q alone", n)
		}
		// The last of the batch takes it with it.
		written.fail = nil
		if err := term.settle(batch[1], source.Outcome{Result: source.BindRefused, Err: errFake}); err != nil {
			t.Fatal(err)
		}
		if record(t, term); len(written.batches) > 0 || where(term, "q") != "pending" {
			t.Errorf("recorded is %v, q is %s", written.batches, where(term, "q"))
		}
	})
}

func TestATermThatEndsBeforeARefusalIsRecordedGivesNothingBack(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), pod("p", 900))
	in := assume(t, term, "p", "a")
	term.recorder.term.(*recorded).fail = func() error { return coord.ErrFenced }
	if err := term.settle(in, source.Outcome{Result: source.BindRefused, Err: errFake}); err != nil {
		t.Fatal(err)
	}
	if _, err := term.recorder.recordOnce(t.Context()); !errors.Is(err, coord.ErrFenced) {
		t.Errorf("the recorder returns %v", err)
	}
	if got := where(term, "p"); got != "assumed on a" || term.reports.depth() > 0 {
		t.Errorf("p is %s, %d reports", got, term.reports.depth())
	}
}

// What a binding names of its pod is from before the look at the lease: whoever withdraws it later does so of all that was sent.
func TestABindThatWasPreparedIsNotSentWhenTheLeaseHasEndedMeanwhile(t *testing.T) {
	src, lease := newFakeSource(), make(chan struct{})
	src.setPod(pod("p", 900))
	src.prepared = func() { close(lease) }
	term := pureTerm(t, src)
	term.lease = lease
	observe(t, term, node("a", 1000), pod("p", 900))
	if err := term.bind(t.Context(), []*placement{assume(t, term, "p", "a")}); err != nil {
		t.Fatal(err)
	}
	if got := sent(src); len(got) > 0 {
		t.Errorf("sent: %v", got)
	}
}

// The first try had no answer, and may still happen when the second is refused.
func TestARefusalBehindAnUnknownTryIsWithdrawn(t *testing.T) {
	src := newFakeSource()
	src.setPod(pod("p", 900))
	term := pureTerm(t, src)
	observe(t, term, node("a", 1000), pod("p", 900))
	in := assume(t, term, "p", "a")
	in.tries = 1
	src.answers(func(b source.Binding) source.Outcome {
		src.setPod(on(pod("p", 900), "a")) // the first one
		return source.Outcome{Result: source.BindRefused, Err: errFake}
	})
	if err := term.bind(t.Context(), []*placement{in}); err != nil {
		t.Fatal(err)
	}
	record(t, term)
	if got := where(term, "p"); got != "bound on a" || len(src.withdrawals()) != 1 {
		t.Errorf("p is %s after %d withdrawals", got, len(src.withdrawals()))
	}
}

// broken is a namespace whose binds fail for ever.
const broken = "broken"

func inBroken(p source.Pod) source.Pod {
	p.Namespace, p.Labels.Namespace = broken, broken
	return p
}

func failsBroken(b source.Binding) source.Outcome {
	if b.Namespace == broken {
		return source.Outcome{Result: source.BindUnknown, Err: errFake}
	}
	return source.Outcome{Result: source.BindDone}
}

func TestABindThatKeepsFailingIsGivenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		src.answers(failsBroken)
		term := pureTerm(t, src)
		observe(t, term, node("a", 1000), inBroken(pod("p", 900)), inBroken(pod("q", 10)))
		src.setPod(inBroken(pod("p", 900)))
		src.setPod(inBroken(pod("q", 10)))
		term.binds <- assume(t, term, "p", "a")
		stop := runBinds(t, term, 2)
		defer stop()
		began := time.Now()
		elapse(giveBackAfter - time.Millisecond)
		synctest.Wait()
		if len(src.withdrawals()) > 0 {
			t.Errorf("withdrawn after %v", time.Since(began))
		}
		elapse(2 * giveBackAfter)
		synctest.Wait()
		record(t, term)
		if got := where(term, "p"); got != "pending" || len(src.tried("p")) < giveBackTries {
			t.Errorf("p is %s after %d tries", got, len(src.tried("p")))
		}
		want := source.Report{
			UID: "p", Namespace: broken, Name: "p", Reason: reasonError, Nominate: true,
			Message: "binding to a was refused: the fake source says so",
		}
		if got := src.withdrawals(); len(got) != 1 || got[0] != want || term.reports.depth() != 1 {
			t.Errorf("withdrawn with %+v, %d reports wait", got, term.reports.depth())
		}
		// The next one of the namespace is not waited for.
		term.binds <- assume(t, term, "q", "a")
		elapse(time.Millisecond)
		synctest.Wait()
		record(t, term)
		if got := where(term, "q"); got != "pending" || len(src.tried("q")) != 1 {
			t.Errorf("q is %s after %d tries", got, len(src.tried("q")))
		}
		if n := term.unbound.count(); n != 0 {
			t.Errorf("%d count as unbound", n)
		}
	})
}

func TestANamespaceWhoseBindsFailDoesNotStopTheOthers(t *testing.T) {
	const most = 20
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1_000_000))
	refused := make(chan struct{}) // good is; before that, nobody knows that the binds of the namespace fail
	src.answers(func(b source.Binding) source.Outcome {
		if b.Namespace == broken {
			<-refused
		}
		return failsBroken(b)
	})
	var bad []string
	for i := range 3 * most {
		bad = append(bad, fmt.Sprintf("bad%d", i))
		src.setPod(inBroken(pod(bad[i], 10)))
	}
	b := start(t, etcd, src, func(c *Config) { c.MaxUnbound = most })
	b.active()
	b.commit(b.request(1, bad[:most]...))
	src.setPod(pod("good", 10))
	good := b.request(1, "good")
	_, err := b.Commit(t.Context(), good)
	wantError(t, err, codes.ResourceExhausted, "TOO_MANY_UNBOUND")
	close(refused)
	// A shard takes them up again and again, as many as there is room for.
	ctx, cancel := context.WithCancel(t.Context())
	var pressing sync.WaitGroup
	var attempt atomic.Int32
	pressing.Go(func() {
		for ctx.Err() == nil {
			for k := range 3 {
				req := b.request(attempt.Load()+2, bad[k*most:(k+1)*most]...)
				_, _ = b.Commit(ctx, req)
			}
			attempt.Add(1)
		}
	})
	eventually(t, "good is placed", func() bool {
		_, err := b.Commit(t.Context(), good)
		return err == nil
	})
	b.awaitPhase("good", "bound on a")
	cancel()
	pressing.Wait()
	eventually(t, "nothing counts as unbound", func() bool { return b.term.Load().unbound.count() == 0 })
	for _, uid := range bad {
		b.awaitPhase(uid, "pending")
	}
	eventually(t, "it is said why", func() bool { return len(src.reported(bad[0])) > 0 })
}

func TestWhatIsToldOfARefusalIsBoundedText(t *testing.T) {
	r := refusal(&placement{UID: "p", choice: choice{Node: "a"}}, errors.New("a\xffb"+strings.Repeat("é", 1<<20)))
	if !utf8.ValidString(r.Message) || len(r.Message) > maxReason+8 || !strings.HasPrefix(r.Message, "binding to a was refused: a?b") {
		t.Errorf("%d bytes: %.100q", len(r.Message), r.Message)
	}
}

func TestTroublesAreForgotten(t *testing.T) {
	var now time.Time
	var list troubles
	for i := range maxTroubles {
		list.note(fmt.Sprint(i), now)
	}
	if !list.has("7", now.Add(troubleLasts-1)) || list.has("7", now.Add(troubleLasts)) {
		t.Error("a namespace is in trouble for another time than it should be")
	}
	list.over("7")
	if list.has("7", now) {
		t.Error("a bind was done, and the namespace is still in trouble")
	}
	for i := range 3 * maxTroubles {
		list.note(fmt.Sprint(-i), now)
	}
	if len(list.since) > maxTroubles {
		t.Errorf("%d namespaces are remembered", len(list.since))
	}
}

func TestAPodThatOthersChangeIsNotOneWhoseBindsFail(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	long := time.Now().Add(-giveBackAfter)
	changed := fmt.Errorf("bind: %w", source.ErrChanged)
	p := &placement{Namespace: "n", failing: long}
	for tries := range changedTries {
		if term.givesBack(p, long, changed) {
			t.Errorf("given back, changed by others %d times before", tries)
		}
	}
	for tries := range giveBackTries { // what others changed before does not count
		if got, want := term.givesBack(p, long, errFake), tries+1 >= giveBackTries; got != want {
			t.Errorf("failed %d times before: given back is %v, want %v", tries, got, want)
		}
	}
	if !term.givesBack(p, long, changed) {
		t.Error("a change by others is no failure after so many")
	}
}
