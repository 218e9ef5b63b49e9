package binder

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// leave records batches of intents, as a binder that died leaves them, and returns its epoch.
func leave(t *testing.T, endpoints []string, batches ...coord.Batch) int64 {
	t.Helper()
	client := connect(t, endpoints, prefix)
	session, err := client.NewSession(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	term, err := client.Campaign(t.Context(), session, "the dead", "nowhere")
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range batches {
		if err := term.Record(t.Context(), coord.Version{Epoch: term.Epoch(), Seq: int64(100 + i)}, &b, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return term.Epoch()
}

func meant(uid, node string) coord.Intent {
	return coord.Intent{PodUID: uid, Namespace: "default", Name: uid, Node: node}
}

// sent returns the pods whose bind was tried, and where.
func sent(src *fakeSource) []string {
	seen := make(map[string]bool)
	for _, b := range src.tried("") {
		seen[b.UID+" to "+b.Node] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

func TestTakeoverBindsRecordedIntentsThatAreNotVisible(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setNode(node("b", 1000))
	src.setPod(pod("recorded", 900))
	src.setPod(on(pod("visible", 100), "b"))
	src.setPod(on(pod("elsewhere", 100), "b"))
	src.setPod(pod("without node", 100))
	dead := leave(t, etcd,
		coord.Batch{ID: 40, Intents: []coord.Intent{meant("visible", "b"), meant("gone", "a"), meant("elsewhere", "a")}},
		coord.Batch{ID: 41, Intents: []coord.Intent{meant("recorded", "a"), meant("without node", "deleted")}},
	)
	hold := make(chan struct{})
	src.answers(func(source.Binding) source.Outcome {
		<-hold
		return source.Outcome{Result: source.BindDone}
	})
	b := start(t, etcd, src)
	if epoch := b.active(); int64(epoch) <= dead {
		t.Errorf("epoch %d is not after %d", epoch, dead)
	}
	// The epoch opens with the intent assumed: its room is taken.
	if got := b.phase("recorded"); got != "assumed on a" {
		t.Errorf("recorded is %s", got)
	}
	src.setPod(pod("greedy", 1000))
	src.setPod(pod("later", 100))
	if got := b.commit(b.request(1, "greedy")); got[0] != "no fit" {
		t.Errorf("a pod that needs the room is %s", got[0])
	}
	// Batches of this epoch do not clash with those of the dead one.
	if got := b.commit(b.request(1, "later")); got[0] != "assumed" {
		t.Errorf("later is %s", got[0])
	}
	close(hold)
	b.awaitPhase("recorded", "bound on a")
	eventually(t, "later is bound", func() bool { return src.nodeOf("later") != "" })
	want := []string{"later to " + src.nodeOf("later"), "recorded to a"}
	if diff := cmp.Diff(want, sent(src)); diff != "" {
		t.Errorf("binds (-want +got):\n%s", diff)
	}
	other := connect(t, etcd, prefix)
	eventually(t, "no intent is left", func() bool { return len(intents(t, other)) == 0 })
	if got := b.Version().Epoch; int64(got) <= dead {
		t.Errorf("the term was lost meanwhile: epoch %d", got)
	}
	eventually(t, "nothing counts as unbound", func() bool { return b.term.Load().unbound.count() == 0 })
}

func TestTakeoverOfAPodThatWasPlacedTwiceKeepsTheNewerPlacement(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setNode(node("b", 1000))
	src.setPod(pod("p", 900))
	src.setPod(pod("slow", 10))
	leave(t, etcd,
		coord.Batch{ID: 1, Intents: []coord.Intent{meant("p", "a"), meant("slow", "a")}}, // p's was refused
		coord.Batch{ID: 2, Intents: []coord.Intent{meant("p", "b")}},
	)
	b := start(t, etcd, src)
	b.active()
	b.awaitPhase("p", "bound on b")
	b.awaitPhase("slow", "bound on a")
	if diff := cmp.Diff([]string{"p to b", "slow to a"}, sent(src)); diff != "" {
		t.Errorf("binds (-want +got):\n%s", diff)
	}
	other := connect(t, etcd, prefix)
	eventually(t, "no intent is left", func() bool { return len(intents(t, other)) == 0 })
}

func TestTheNextBinderFinishesWhatTheLastOneRecorded(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 900))
	src.answers(func(source.Binding) source.Outcome {
		return source.Outcome{Result: source.BindUnknown, Err: errFake}
	})
	first := start(t, etcd, src, named("first"))
	first.active()
	first.commit(first.request(1, "p"))
	eventually(t, "the bind was tried", func() bool { return len(src.tried("p")) > 0 })
	second := start(t, etcd, src, named("second"))
	first.stop()
	second.active()
	if got := second.phase("p"); got != "assumed on a" {
		t.Errorf("p is %s", got)
	}
	src.answers(nil)
	second.awaitPhase("p", "bound on a")
}

func TestAnAdoptedBindThatTheSourceShowsMeanwhileIsNotSentAgain(t *testing.T) {
	src := newFakeSource()
	term := pureTerm(t, src)
	observe(t, term, node("a", 1000), pod("p", 100), pod("vanished", 100))
	adopted, err := term.adopt([]coord.StoredBatch{
		{Batch: coord.Batch{ID: 7, Intents: []coord.Intent{meant("p", "a"), meant("vanished", "a")}}},
	})
	if err != nil || len(adopted) != 2 || term.unbound.count() != 2 {
		t.Fatalf("adopted %v, %d unbound, %v", adopted, term.unbound.count(), err)
	}
	observe(t, term, on(pod("p", 100), "a"), gone("vanished"))
	if err := term.bind(t.Context(), adopted); err != nil {
		t.Fatal(err)
	}
	if got := sent(src); len(got) > 0 {
		t.Errorf("sent: %v", got)
	}
	if n := term.unbound.count(); n != 0 {
		t.Errorf("%d count as unbound", n)
	}
	if got := term.recorder.finished; !slices.Equal(got, []finishedBatch{{id: 7}}) {
		t.Errorf("finished batches: %v", got)
	}
}

// A binder whose configuration had a profile for them has sent their binds, and they may still happen.
func TestIntentsOfPodsWhoseProfileIsGoneKeepTheirRoomUntilTheyAreWithdrawn(t *testing.T) {
	src := newFakeSource()
	theirs, q := pod("theirs", 900), pod("q", 900)
	theirs.Class.SchedulerName = "gone"
	src.setPod(theirs)
	term := pureTerm(t, src)
	observe(t, term, node("a", 1000), theirs, q)
	taken, err := term.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 1, Intents: []coord.Intent{meant("theirs", "a")}}}})
	if err != nil || len(taken) != 1 {
		t.Fatalf("taken %v, %v; want the intent, to be withdrawn", taken, err)
	}
	st := term.ledger.state
	if got := commitPods(t, term, requestOf(st, evaluate(st, 4), 1, "q")); !slices.Equal(got, []string{"q: no fit"}) {
		t.Errorf("a pod that needs the room is %v", got)
	}
	if err := term.bind(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	record(t, term)
	if got := src.withdrawals(); len(got) != 1 || got[0].Nominate {
		t.Errorf("withdrawn: %+v, want it once, and its nomination left to its scheduler", got)
	}
	if got := sent(src); len(got) > 0 || where(term, "theirs") != "pending" {
		t.Errorf("binds %v, theirs is %s", got, where(term, "theirs"))
	}
	if _, ours := term.names.waits(term.ledger, source.Report{UID: "theirs"}); ours {
		t.Error("what Berth says of it is written to it")
	}
}

// A pod whose node is not known is not assumed: it may be placed elsewhere before the bind is withdrawn that may still happen.
func TestIntentsThatAreWithdrawnGoFirst(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	cordoned := node("cordoned", 1000)
	cordoned.Unschedulable = true
	observe(t, term, node("a", 1000), cordoned, pod("p", 10), pod("misfit", 10), pod("absent", 10))
	taken, err := term.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 1, Intents: []coord.Intent{
		meant("p", "a"), meant("misfit", "cordoned"), meant("absent", "nowhere"),
	}}}})
	if err != nil || len(taken) != 3 {
		t.Fatalf("taken %v, %v", taken, err)
	}
	if got := []string{taken[0].UID, taken[1].UID, taken[2].UID}; !slices.Equal(got, []string{"absent", "misfit", "p"}) {
		t.Errorf("they go in the order %v", got)
	}
}
