package binder

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

// fakeLease is a lease in memory that a test hands round.
type fakeLease struct {
	mu       sync.Mutex
	holder   string // "" is nobody: who tries gets it
	lasts    time.Duration
	err      error
	tries    int
	released int
	silent   bool          // one more Try is answered, and no other
	catchUp  chan struct{} // if not nil, CatchUp waits until it is closed
	caught   int
}

func newFakeLease() *fakeLease { return &fakeLease{lasts: time.Hour} }

func (l *fakeLease) String() string             { return "kube-system/kube-scheduler" }
func (l *fakeLease) Name() string               { return "kube-scheduler" }
func (l *fakeLease) Duration() time.Duration    { return 15 * time.Second }
func (l *fakeLease) RetryPeriod() time.Duration { return 5 * time.Millisecond }

func (l *fakeLease) Wait(string) time.Duration { return l.RetryPeriod() }

func (l *fakeLease) Try(ctx context.Context, holder string) (source.Claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries++
	if l.silent && l.lasts < time.Second {
		l.mu.Unlock()
		<-ctx.Done()
		l.mu.Lock()
		return source.Claim{}, ctx.Err()
	}
	if l.silent {
		l.lasts = 20 * time.Millisecond
	}
	if l.err != nil {
		return source.Claim{}, l.err
	}
	if l.holder == "" {
		l.holder = holder
	}
	if l.holder != holder {
		return source.Claim{Holder: l.holder}, nil
	}
	return source.Claim{Until: time.Now().Add(l.lasts), Holder: holder}, nil
}

func (l *fakeLease) Release(_ context.Context, holder string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holder == holder {
		l.holder = ""
		l.released++
	}
	return nil
}

func (l *fakeLease) CatchUp(ctx context.Context) error {
	l.mu.Lock()
	wait := l.catchUp
	l.caught++
	l.mu.Unlock()
	if wait == nil {
		return nil
	}
	select {
	case <-wait:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *fakeLease) set(change func(*fakeLease)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// give hands the lease to somebody; "" to nobody.
func (l *fakeLease) give(to string) { l.set(func(l *fakeLease) { l.holder = to }) }

func (l *fakeLease) heldBy() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}

// sharing makes a binder share default-scheduler, and place the pods of "own" besides.
func sharing(l *fakeLease) func(*Config) {
	return func(c *Config) {
		c.Lease, c.SharedNames = l, []string{scheduler}
		c.Settings.Profiles = append(c.Settings.Profiles, engine.DefaultProfile("own"))
	}
}

func own(p source.Pod) source.Pod {
	p.Class.SchedulerName = "own"
	return p
}

func (b *running) yields() (to string) {
	b.t.Helper()
	b.look(func(st *cluster.State) {
		if st.Settings.Yields(scheduler) {
			to = st.Settings.YieldedTo
		}
	})
	return to
}

func (b *running) awaitYield(part string) {
	b.t.Helper()
	eventually(b.t, "the name is yielded: "+part, func() bool { return strings.Contains(b.yields(), part) })
}

func (b *running) awaitOurs() {
	b.t.Helper()
	eventually(b.t, "the name is ours", func() bool { return b.yields() == "" })
}

func TestPodsOfANameThatAnotherSchedulerHasAreNotPlacedAndOthersAre(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	lease.give("kube-scheduler_1")
	src.setNode(node("a", 1000))
	src.setPod(pod("shared", 100))
	src.setPod(own(pod("own", 100)))
	b := start(t, etcd, src, sharing(lease))
	b.active()
	if got := b.yields(); got != "kube-scheduler_1 holds the lease kube-system/kube-scheduler" {
		t.Errorf("yielded because %q", got)
	}
	if got := b.commit(b.request(1, "shared", "own")); !cmp.Equal(got, []string{"gone", "assumed"}) {
		t.Errorf("a commit of a pod of each name: %v", got)
	}
	b.awaitPhase("own", "bound on a")
	if got := src.tried("shared"); len(got) > 0 {
		t.Errorf("bound: %v", got)
	}

	lease.give("")
	b.awaitOurs()
	if lease.caught != 1 {
		t.Errorf("what others had placed was read %d times, want once", lease.caught)
	}
	if got := b.commit(b.request(1, "shared")); got[0] != "assumed" {
		t.Errorf("with the lease, the pod is %s", got[0])
	}
	b.awaitPhase("shared", "bound on a")
}

// Whoever may write the lease chooses its holder.
func TestTheHolderOfALeaseMayHaveAnyName(t *testing.T) {
	for what, holder := range map[string]string{"not UTF-8": "bad\xff", "very long": strings.Repeat("é", 2<<20)} {
		t.Run(what, func(t *testing.T) {
			etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
			lease.give(holder) // before the ledger is open
			src.setNode(node("a", 1000))
			src.setPod(own(pod("own-1", 100)))
			src.setPod(own(pod("own-2", 100)))
			b := start(t, etcd, src, sharing(lease))
			b.active()
			b.awaitYield(holder[:2])
			if got := b.yields(); len(got) > 256 || !utf8.ValidString(got) {
				t.Errorf("yielded because %.300q, of %d bytes", got, len(got))
			}
			b.commitAndAwait("own-1")

			lease.give("")
			b.awaitOurs()
			lease.give(holder) // and after
			b.awaitYield(holder[:2])
			b.commitAndAwait("own-2")
		})
	}
}

// commitAndAwait commits a pod, which is to be bound on node a.
func (b *running) commitAndAwait(uid string) {
	b.t.Helper()
	if got := b.commit(b.request(1, uid)); !cmp.Equal(got, []string{"assumed"}) {
		b.t.Fatalf("the commit of %s: %v", uid, got)
	}
	b.awaitPhase(uid, "bound on a")
}

func TestABinderWithNothingToPlaceStandsByAndIsAvailable(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	lease.give("kube-scheduler_1")
	b := start(t, etcd, src, func(c *Config) { c.Lease, c.SharedNames = lease, []string{scheduler} })
	const want = "standing by: all pods are left to another scheduler: kube-scheduler_1 holds the lease kube-system/kube-scheduler"
	eventually(t, "it stands by", func() bool { return b.Ready() != nil && b.Ready().Error() == want })
	if err := b.Available(); err != nil {
		t.Errorf("Available: %v", err)
	}
	lease.give("")
	b.active()
}

func TestNothingIsPlacedBeforeWhatOthersPlacedIsTold(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	lease.give("another")
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 900))
	b := start(t, etcd, src, sharing(lease))
	b.active()
	told := make(chan struct{})
	lease.set(func(l *fakeLease) { l.holder, l.catchUp = "", told })
	b.awaitYield("is being read")
	never(t, "a pod was placed", func() bool { return b.commit(b.request(1, "p"))[0] != "gone" })
	src.setPod(on(pod("theirs", 900), "a"))
	b.awaitPhase("theirs", "bound on a")
	close(told)
	b.awaitOurs()
	if got := b.commit(b.request(1, "p")); got[0] != "no fit" {
		t.Errorf("a pod that needs the room of another scheduler's is %s", got[0])
	}
}

func TestALeaseThatIsHeldBeforeTheClusterIsReadNeedsNoSecondReading(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	b := start(t, etcd, src, sharing(lease))
	b.active()
	b.awaitOurs()
	if lease.caught != 0 {
		t.Errorf("read %d times again", lease.caught)
	}
}

func TestTheHoldersClockEndsItsStintEvenIfNobodySaysSo(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 100))
	b := start(t, etcd, src, sharing(lease))
	b.active()
	req := b.request(1, "p")
	// The next renewal says that the lease is held for a moment, and the one after it has no answer at all.
	lease.set(func(l *fakeLease) { l.silent = true })
	eventually(t, "the time is over", func() bool {
		n := b.term.Load().names
		n.mu.Lock()
		defer n.mu.Unlock()
		return time.Now().After(n.until)
	})
	if b.yields() != "" {
		t.Error("the log says that the time is over, before anybody looked at the clock")
	}
	resp, err := b.Commit(t.Context(), req)
	if err != nil || resp.GetOutcomes()[0].GetResult() != binderv1.Outcome_RESULT_GONE {
		t.Fatalf("a commit after the stint: %v, %v", resp, err)
	}
	// The refusal is explained at the version that it names.
	if seq := resp.GetVersion().GetSeq(); seq < 1 || b.yields() == "" {
		t.Errorf("at version %d the log says %q", seq, b.yields())
	}
	if got := src.tried("p"); len(got) > 0 {
		t.Errorf("bound: %v", got)
	}
	if got := b.yields(); !strings.Contains(got, "could not be renewed in time") {
		t.Errorf("yielded because %q", got)
	}
}

func TestPlacementsOfALostStintAreJudgedAgainInTheNext(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	src.setNode(node("a", 1000))
	src.setNode(node("b", 1000))
	unanswered := make(chan struct{}, 100)
	src.answers(func(source.Binding) source.Outcome {
		unanswered <- struct{}{}
		return source.Outcome{Result: source.BindUnknown, Err: errFake}
	})
	src.setNode(node("c", 1000))
	for _, name := range []string{"stays", "loses", "theirs", "orphan"} {
		p := pod(name, 600)
		p.RequiredNode = map[string]string{"stays": "a", "loses": "b", "theirs": "a", "orphan": "c"}[name]
		if name == "theirs" {
			p = pod(name, 300)
			p.RequiredNode = "a"
		}
		src.setPod(p)
	}
	b := start(t, etcd, src, sharing(lease))
	b.active()
	if got := b.commit(b.request(1, "stays", "loses", "theirs", "orphan")); !cmp.Equal(got, []string{"assumed", "assumed", "assumed", "assumed"}) {
		t.Fatalf("the commit: %v", got)
	}
	<-unanswered
	lease.give("kube-scheduler_1")
	b.awaitYield("kube-scheduler_1")
	eventually(t, "all are put aside", func() bool {
		n := b.term.Load().names
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.aside) == 4
	})
	before := len(src.tried(""))
	other := connect(t, etcd, prefix)
	if got := intents(t, other); len(got) != 4 {
		t.Errorf("recorded: %v, want all four", got)
	}
	if got := b.term.Load().unbound.count(); got != 0 {
		t.Errorf("%d count as unbound: others would wait for them", got)
	}
	never(t, "a bind left without the lease", func() bool { return len(src.tried("")) != before })

	// The other scheduler places one of the pods elsewhere, and fills the node of another. A third node goes.
	src.removeNode("c")
	theirs := pod("theirs", 300)
	theirs.NodeName, theirs.RequiredNode = "b", "a"
	src.setPod(theirs)
	src.setPod(on(pod("stranger", 600), "b"))
	b.awaitPhase("theirs", "bound on b")
	b.awaitPhase("stranger", "bound on b")
	src.answers(nil)
	lease.give("")
	b.awaitOurs()
	b.awaitPhase("stays", "bound on a")
	b.awaitPhase("loses", "pending")
	b.awaitPhase("orphan", "pending")
	eventually(t, "no intent is left", func() bool { return len(intents(t, other)) == 0 })
	eventually(t, "nothing is open", func() bool {
		n := b.term.Load().names
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.open == 0 && len(n.aside) == 0 && b.term.Load().unbound.count() == 0
	})
	tried := src.tried("loses")
	for _, bind := range tried[min(1, len(tried)):] { // it may have been lost before it was tried
		t.Errorf("a placement that does not fit any more was bound again: %v", bind)
	}
}

func TestIntentsOfADeadBinderWaitUntilTheLeaseIsHeld(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	lease.give("kube-scheduler_1")
	src.setNode(node("a", 1000))
	src.setPod(pod("fits", 400))
	src.setPod(pod("full", 500))
	src.setPod(own(pod("mine", 100)))
	leave(t, etcd, coord.Batch{ID: 40, Intents: []coord.Intent{meant("fits", "a"), meant("full", "a"), meant("mine", "a")}})
	b := start(t, etcd, src, sharing(lease))
	b.active()
	b.awaitPhase("mine", "bound on a")
	never(t, "a pod of another scheduler was bound", func() bool { return len(src.tried("fits"))+len(src.tried("full")) > 0 })
	src.setPod(on(pod("theirs", 300), "a"))
	b.awaitPhase("theirs", "bound on a")
	other := connect(t, etcd, prefix)
	if got := intents(t, other); len(got) != 3 {
		t.Errorf("recorded: %v, want the batch as it was", got)
	}
	lease.give("")
	b.awaitOurs()
	eventually(t, "one of the two is bound, the other taken back", func() bool {
		return strings.HasPrefix(b.phase("fits"), "bound") != strings.HasPrefix(b.phase("full"), "bound") && len(intents(t, other)) == 0
	})
}

func TestTheLeaseIsGivenUpAtTheEndUnlessABindMayStillArriveOrABinderStandsBy(t *testing.T) {
	t.Run("clean", func(t *testing.T) {
		etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
		src.setNode(node("a", 1000))
		src.setPod(pod("p", 100))
		answer := make(chan struct{})
		sent := make(chan struct{})
		src.answers(func(source.Binding) source.Outcome {
			close(sent)
			<-answer
			return source.Outcome{Result: source.BindDone}
		})
		b := start(t, etcd, src, sharing(lease))
		b.active()
		b.commit(b.request(1, "p"))
		<-sent
		go func() { // the answer comes while the binder stops
			elapse(50 * time.Millisecond)
			close(answer)
		}()
		b.stop()
		if got := lease.heldBy(); got != "" || src.nodeOf("p") != "a" {
			t.Errorf("held by %q, the pod on %q; want nobody, after the answer", got, src.nodeOf("p"))
		}
	})
	t.Run("no answer", func(t *testing.T) {
		etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
		src.setNode(node("a", 1000))
		src.setPod(pod("p", 100))
		src.answers(func(source.Binding) source.Outcome { return source.Outcome{Result: source.BindUnknown, Err: errFake} })
		b := start(t, etcd, src, sharing(lease))
		b.active()
		b.commit(b.request(1, "p"))
		eventually(t, "a bind has no answer", func() bool { return len(src.tried("p")) > 0 })
		b.stop()
		if lease.heldBy() == "" {
			t.Error("given up while a bind may still arrive")
		}
	})
	t.Run("standby", func(t *testing.T) {
		etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
		b := start(t, etcd, src, sharing(lease))
		b.active()
		b.awaitOurs()
		holder := lease.heldBy()
		next := start(t, etcd, src, sharing(lease), named("next"))
		eventually(t, "the next one stands by", func() bool { return next.Available() == nil })
		b.stop()
		next.active()
		next.awaitOurs()
		if lease.released != 0 || lease.heldBy() != holder {
			t.Errorf("released %d times, held by %q, before by %q", lease.released, lease.heldBy(), holder)
		}
		next.stop()
		if got := lease.heldBy(); got != "" {
			t.Errorf("after the last binder it is held by %q", got)
		}
	})
}

func TestPreemptionsAndReportsEndWithTheStint(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 100))
	b := start(t, etcd, src, sharing(lease))
	b.active()
	b.awaitOurs()
	p := preemption{shared: true, stint: 1}
	lease.give("another")
	b.awaitYield("another")
	gone, err := b.term.Load().evict(t.Context(), nil, p, victim{Eviction: source.Eviction{UID: "p"}})
	if gone || !errors.Is(err, errSpared) && err != nil {
		t.Errorf("evict: %v, %v", gone, err)
	}
	if got := src.evictions(); len(got) > 0 {
		t.Errorf("evicted %v", got)
	}
	if b.term.Load().ledger.stillSo(source.Report{UID: "p"}) {
		t.Error("reports about the pod are still written")
	}
}

// TestALeaseThatNobodyTriesAnyMoreIsOverdue, and no other: one that cannot be renewed for want of an API server is given up by the clock.
func TestALeaseThatNobodyTriesAnyMoreIsOverdue(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNames(newFakeLease(), []string{scheduler})
		limit := n.lease.Duration() + electionTolerance
		is := func(when string, after time.Duration, want bool) {
			t.Helper()
			err := n.overdue(time.Now().Add(after))
			if (err != nil) != want || want && err.Error() != "failed election to renew leadership on lease kube-scheduler" {
				t.Errorf("%s, after %v: %v, want an error: %v", when, after, err, want)
			}
		}
		takes := func() { n.taken(time.Now().Add(10 * time.Second)) }
		is("never held", time.Hour, false)
		takes()
		is("taken", limit, false)
		is("taken", limit+1, true)
		elapse(9 * time.Second)
		is("and not tried", limit-9*time.Second+1, true)
		takes()
		is("and renewed", limit, false)
		n.unknown("no answer")
		is("no answer, and held yet", limit+1, true)
		elapse(10 * time.Second)
		n.unknown("no answer")
		is("no answer, and its time is over", time.Hour, false)
		takes()
		is("taken again", limit+1, true)
		n.lost("another has it")
		is("another has it", time.Hour, false)
	})
}

func TestABinderSaysThatItsLeaseIsOverdueWhileItHasATerm(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	src.setNode(node("a", 1000))
	b := start(t, etcd, src, sharing(lease))
	b.active()
	b.awaitOurs()
	soon, late := time.Now(), time.Now().Add(time.Hour)
	if now, then := b.elects(soon), b.elects(late); now != nil || then == nil {
		t.Errorf("it holds the lease: %v, and if nobody renews it for an hour: %v", now, then)
	}
	lease.give("kube-scheduler_1")
	b.awaitYield("kube-scheduler_1")
	if err := b.elects(late); err != nil {
		t.Errorf("another holds the lease: %v", err)
	}
}
