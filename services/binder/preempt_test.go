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

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

// full returns a term with a node that so many pods of low priority fill, and one of high priority that needs it all.
func full(t testing.TB, src *fakeSource, victims int, change ...func(*termConfig)) (*term, *binderv1.PreemptRequest) {
	t.Helper()
	term := pureTerm(t, src, change...)
	observe(t, term, node("a", int64(10*victims)), prior(pod("high", int64(10*victims)), 10))
	var names []string
	for i := range victims {
		names = append(names, fmt.Sprintf("v%d", i))
		observe(t, term, on(pod(names[i], 10), "a"))
	}
	return term, preemptOf(term.ledger.state, "high", "a", names...)
}

// begin starts a preemption.
func begin(t testing.TB, term *term, req *binderv1.PreemptRequest) preemption {
	t.Helper()
	resp, err := term.preempt(req)
	if err != nil || resp.GetResult() != binderv1.PreemptResponse_RESULT_STARTED || term.preemptions.waiting() != 1 {
		t.Fatalf("preempt: %v, %v; %d wait", resp, err, term.preemptions.waiting())
	}
	p, of := term.preemptions.next()
	term.preemptions.done(of)
	return p
}

func TestPreemptionsThatMayNotBeAreRefused(t *testing.T) {
	term, good := full(t, newFakeSource(), 2)
	term.shards.learn([]coord.ShardOwner{{Shard: 2, Revision: 7}})
	for name, c := range map[string]struct {
		change func(*binderv1.PreemptRequest)
		code   codes.Code
		reason rpc.Reason
		fields []string
	}{
		"another epoch": {
			change: func(r *binderv1.PreemptRequest) { r.Version.Epoch++ },
			code:   codes.Aborted, reason: "OTHER_EPOCH",
		},
		"an older claim of the shard": {
			change: func(r *binderv1.PreemptRequest) { r.Shard, r.ShardRevision = 2, 6 },
			code:   codes.FailedPrecondition, reason: "SHARD_LOST",
		},
		"nothing": {
			change: func(r *binderv1.PreemptRequest) { *r = binderv1.PreemptRequest{Version: r.Version} },
			code:   codes.InvalidArgument, reason: rpc.ReasonInvalid,
			fields: []string{"pod.reason", "attempt", "candidate.victims"},
		},
		"garbage": {
			change: func(r *binderv1.PreemptRequest) {
				r.Shard, r.Version, r.Attempt = 4, &logv1.Version{Epoch: 1, Seq: 1000}, -1
				r.Pod.Reason, r.Pod.ClearNomination = "Because", true
				r.Candidate = &filterv1.PreemptionCandidate{Victims: []int32{1, 2, 1}, Violations: 4}
			},
			code: codes.InvalidArgument, reason: rpc.ReasonInvalid,
			fields: []string{
				"shard", "version", "pod.reason", "pod.clear_nomination", "attempt", "candidate.victims[2]", "candidate.violations",
			},
		},
		"too many victims": {
			change: func(r *binderv1.PreemptRequest) {
				r.Candidate.Victims = nil
				for i := range int32(maxPods + 1) {
					r.Candidate.Victims = append(r.Candidate.Victims, i)
				}
			},
			code: codes.InvalidArgument, reason: rpc.ReasonInvalid, fields: []string{"candidate.victims"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := preemptOf(term.ledger.state, "high", "a", "v0", "v1")
			c.change(req)
			_, err := term.preempt(req)
			wantError(t, err, c.code, c.reason)
			var fields []string
			for _, v := range rpc.Violations(err) {
				fields = append(fields, v.Field)
			}
			if diff := cmp.Diff(c.fields, fields); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
	if v := term.ledger.version(); v.Seq != cluster.Seq(good.Version.Seq) {
		t.Errorf("the log went on to %v", v)
	}
	good.Shard, good.ShardRevision = 2, 7
	begin(t, term, good)
}

func TestFullLaneRefusesAPreemptionBeforeAnythingIsChanged(t *testing.T) {
	for name, c := range map[string]struct {
		fill   func(*term)
		empty  func(*term)
		reason rpc.Reason
	}{
		"of preemptions": {
			func(term *term) { term.preempting.take(10) }, func(term *term) { term.preempting.give(1) }, "PREEMPTIONS_FULL",
		},
		"of reports": {
			func(term *term) { term.reports.room.limit = 1; term.reports.add(source.Report{UID: "other"}) },
			func(term *term) { term.reports.next() }, "REPORTS_FULL",
		},
	} {
		t.Run(name, func(t *testing.T) {
			term, req := full(t, newFakeSource(), 2)
			c.fill(term)
			before, taken := term.ledger.version(), term.preempting.count()
			_, err := term.preempt(req)
			wantError(t, err, codes.ResourceExhausted, c.reason)
			if after, ok := rpc.RetryAfter(err); !ok || after <= 0 {
				t.Errorf("RetryInfo is %v, %v", after, ok)
			}
			if v := term.ledger.version(); v != before || term.preempting.count() != taken {
				t.Errorf("the log went from %v to %v, and %d preemptions count, not %d", before, v, term.preempting.count(), taken)
			}
			c.empty(term)
			begin(t, term, req)
		})
	}
}

// evicting returns a term whose workers carry out preemptions, on a source that answers evictions in the namespace bad only after 10 s, with an
// error; and a function that has it carry out one more, of a pod of each of some namespaces, that are words.
func evicting(t *testing.T) (w *term, src *fakeSource, add func(namespaces string) preemption, stop func()) {
	src = newFakeSource()
	w = pureTerm(t, src)
	w.preempting.limit = 1000
	src.refuse = func(e source.Eviction) error {
		if e.Namespace == "bad" {
			elapse(10 * time.Second)
			return errFake
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range preemptionWorkers {
		running.Go(func() {
			if err := w.preemptionLane(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	observe(t, w, node("a", 1000))
	n := 0
	add = func(namespaces string) preemption {
		n++
		high := prior(pod(fmt.Sprint("high", n), 1), 10)
		observe(t, w, high)
		p := preemption{uid: high.UID, node: "a", since: time.Now(), of: make(map[string]int)}
		var ids []cluster.PodID
		for _, namespace := range strings.Fields(namespaces) {
			p.of[namespace] = 1
			row := on(pod(fmt.Sprint("v", n, "-", namespace), 1), "a")
			row.Namespace = namespace
			src.setPod(row)
			observe(t, w, row)
			w.ledger.Snapshot(func(st *cluster.State) {
				id, _ := st.PodByUID(row.UID)
				ids = append(ids, id)
				p.victims = append(p.victims, victim{id, source.Eviction{UID: row.UID, Namespace: namespace, Name: row.Name, Node: "a"}})
			})
		}
		p.evict = p.victims
		if !w.preempting.takeOf(p.of) {
			t.Errorf("a preemption of %s is refused", namespaces)
		}
		if err := w.ledger.update(func(tx *tx) error {
			p.pod, _ = tx.state.PodByUID(p.uid)
			tx.tell(func() { w.preemptions.add(p.whose(), p) })
			return tx.apply(cluster.PreemptionStarted{ID: p.pod, Node: tx.state.Nodes.ByName("a"), Victims: ids})
		}); err != nil {
			t.Error(err)
		}
		return p
	}
	return w, src, add, func() { cancel(); running.Wait() }
}

func TestEvictionsThatHangHoldUpOtherPreemptionsNoLongerThanUntilTheyAreLate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, src, add, stop := evicting(t)
		defer stop()
		for range 100 {
			add("bad")
		}
		for i := range 60 { // longer than the evictions are tried
			synctest.Wait()
			before := len(src.evictions())
			add("default")
			elapse(lateAfter + time.Millisecond)
			synctest.Wait()
			gone := 0
			src.mu.Lock()
			for _, e := range src.evicted {
				if e.Namespace == "default" {
					gone++
				}
			}
			src.mu.Unlock()
			if gone != i+1 {
				t.Fatalf("of %d other victims %d are evicted, and of all %d, %d of them in a second", i+1, gone, len(src.evictions()), len(src.evictions())-before)
			}
		}
		w.preemptions.mu.Lock()
		working := w.preemptions.working
		w.preemptions.mu.Unlock()
		if working > places(preemptionWorkers)/2 {
			t.Errorf("%d preemptions of one namespace are under way", working)
		}
		// Events give way to evictions, but not to those.
		began := time.Now()
		w.evicting.awaitIdle(t.Context(), time.Hour)
		w.preempting.mu.Lock()
		late := w.preempting.stuck
		w.preempting.mu.Unlock()
		if late == 0 || time.Since(began) > lateAfter {
			t.Errorf("events wait %v for evictions, of which %d are late", time.Since(began), late)
		}
		elapse(time.Hour)
		synctest.Wait()
		if n := w.preempting; n.taken != 0 || w.evicting.taken != 0 || n.stuck != 0 || len(n.of) != 0 || w.preemptions.working != 0 || len(w.preemptions.of) != 0 {
			t.Errorf("in the end %d count, %d are late, of %v", n.taken, n.stuck, n.of)
		}
	})
}

func TestAPreemptionWhoseTurnDoesNotComeFailsAfterAsLongAsAnotherMayTake(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, src, add, stop := evicting(t)
		defer stop()
		for range 100 {
			add("bad")
		}
		p := add("bad default")
		from := w.mark()
		defer runNoTurns(t, w)()
		elapse(turnWithin - time.Second)
		synctest.Wait()
		if !preemptionOf(w, p) {
			t.Error("it is given up at once")
		}
		elapse(2 * time.Second)
		synctest.Wait()
		var ended []cluster.Delta
		for _, d := range logSince(t, w, from) {
			if d, ok := d.(cluster.PreemptionEnded); ok && d.ID == p.pod {
				ended = append(ended, d)
			}
		}
		want := cluster.PreemptionEnded{ID: p.pod, Failed: true, Spared: []cluster.PodID{p.victims[0].id, p.victims[1].id}}
		if diff := cmp.Diff([]cluster.Delta{want}, ended); diff != "" {
			t.Errorf("log of the one (-want +got):\n%s", diff)
		}
		if n, working := w.preempting.countOf("bad"), places(preemptionWorkers)/2; n > working || w.preempting.countOf("default") > 0 || w.preemptions.waiting() > 0 {
			t.Errorf("%d preemptions of the namespace count, %d wait", n, w.preemptions.waiting())
		}
		for _, v := range p.victims {
			if slices.Contains(src.evictions(), v.Name) {
				t.Errorf("%s is evicted", v.Name)
			}
		}
		elapse(time.Hour)
		synctest.Wait()
		if n := w.preempting; n.taken != 0 || n.stuck != 0 || w.evicting.taken != 0 || w.preemptions.working != 0 || len(w.preemptions.of) != 0 {
			t.Errorf("in the end %d count, %d are late, of %v", n.taken, n.stuck, n.of)
		}
	})
}

func TestAPreemptionThatNeedsItsTurnNoMoreWaitsForNone(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(p preemption) []any
		want    cluster.PreemptionEnded // but for ids
		spared  int
	}{
		"its victims are gone":               {func(p preemption) []any { return []any{gone(p.victims[0].UID), gone(p.victims[1].UID)} }, cluster.PreemptionEnded{}, 0},
		"one is gone, one is being deleted":  {func(p preemption) []any { return []any{gone(p.victims[0].UID), deletingVictim(p.victims[1])} }, cluster.PreemptionEnded{}, 0},
		"the preemptor is gone":              {func(p preemption) []any { return []any{gone(p.uid)} }, cluster.PreemptionEnded{ID: cluster.NoPod}, 2},
		"the preemptor is gone, and one too": {func(p preemption) []any { return []any{gone(p.uid), gone(p.victims[0].UID)} }, cluster.PreemptionEnded{ID: cluster.NoPod}, 1},
		"the preemptor is placed by another": {func(p preemption) []any { return []any{on(prior(pod(p.uid, 1), 10), "a")} }, cluster.PreemptionEnded{ID: cluster.NoPod}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w, src, add, stop := evicting(t)
				defer stop()
				for range 100 {
					add("bad")
				}
				p := add("bad default")
				defer runNoTurns(t, w)()
				elapse(5 * time.Second)
				synctest.Wait()
				observe(t, w, c.happens(p)...)
				from := w.mark()
				elapse(noTurnEvery)
				synctest.Wait()
				want := c.want
				if want.ID == 0 {
					want.ID = p.pod
				}
				for _, v := range p.victims[len(p.victims)-c.spared:] {
					want.Spared = append(want.Spared, v.id)
				}
				if diff := cmp.Diff([]cluster.Delta{want}, logSince(t, w, from)); diff != "" {
					t.Errorf("log (-want +got):\n%s", diff)
				}
				if n := w.preempting.countOf("default"); n != 0 || w.preempting.countOf("bad") != 100 {
					t.Errorf("it counts, or others do not: %d and %d", n, w.preempting.countOf("bad"))
				}
				for _, v := range p.victims {
					if slices.Contains(src.evictions(), v.Name) {
						t.Errorf("%s is evicted", v.Name)
					}
				}
			})
		})
	}
}

// runNoTurns ends preemptions whose turn does not come until it is stopped.
func runNoTurns(t *testing.T, w *term) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.noTurnLane(ctx); err != nil {
			t.Error(err)
		}
	})
	return func() { cancel(); running.Wait() }
}

// preemptionOf reports whether pods are evicted for the preemptor of a preemption.
func preemptionOf(w *term, p preemption) (is bool) {
	w.ledger.Snapshot(func(st *cluster.State) { is = st.Pod(p.pod) != nil && st.Pod(p.pod).Preempting })
	return is
}

// deletingVictim is a victim that somebody has deleted.
func deletingVictim(v victim) source.Pod {
	row := on(pod(v.UID, 1), v.Node)
	row.Namespace = v.Namespace
	return deletingPod(row)
}

// wantPutOff has a preemption put off alone, with nothing changed.
func wantPutOff(t *testing.T, term *term, req *binderv1.PreemptRequest) {
	t.Helper()
	version, preemptions, reports := term.ledger.version(), term.preempting.count(), term.reports.depth()
	resp, err := term.preempt(req)
	if err != nil || resp.GetResult() != binderv1.PreemptResponse_RESULT_RETRY {
		t.Errorf("preempt: %v, %v", resp, err)
	}
	if term.ledger.version() != version || term.preempting.count() != preemptions || term.reports.depth() != reports || term.preemptions.waiting() != 0 {
		t.Errorf("the log is at %v, was at %v; %d preemptions count, %d reports wait", term.ledger.version(), version, term.preempting.count(), term.reports.depth())
	}
}

func TestNoNamespaceOfVictimsHasMorePreemptionsThanAreFree(t *testing.T) {
	term, req := full(t, newFakeSource(), 2)
	term.preempting.giveOf("default", -5) // half of all
	wantPutOff(t, term, req)              // and no other preemption of the shard is
	v := on(pod("elsewhere", 10), "b")
	v.Namespace = "other"
	observe(t, term, node("b", 10), v, prior(pod("high2", 10), 10))
	p := begin(t, term, preemptOf(term.ledger.state, "high2", "b", "elsewhere"))
	if len(p.of) != 1 || p.of["other"] != 1 || term.preempting.countOf("other") != 1 {
		t.Errorf("it has %v", p.of)
	}
}

// A nomination that ends is reported, too: where the namespace of its pod has its share of the reports, that is the matter of this preemption alone.
func TestAPreemptionWaitsAloneForReportsOfANamespaceThatHasItsShare(t *testing.T) {
	term, req := full(t, newFakeSource(), 2)
	waits := prior(pod("waits", 10), 5)
	waits.Namespace, waits.Nominated = "other", "a"
	observe(t, term, waits)
	for i := 0; term.reports.add(source.Report{UID: fmt.Sprint("r", i), Namespace: "other", Reason: reasonUnschedulable}); i++ {
	}
	wantPutOff(t, term, req)
	term.reports.next()
	begin(t, term, req)
}

func TestAPreemptionIsUnderWayForEachNamespaceOfItsVictims(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 20), on(pod("v0", 10), "a"), prior(pod("high", 20), 10))
	other := on(pod("v1", 10), "a")
	other.Namespace = "other"
	observe(t, term, other)
	if resp, err := term.preempt(preemptOf(term.ledger.state, "high", "a", "v0", "v1")); err != nil || term.preemptions.waiting() != 1 {
		t.Fatalf("preempt: %v, %v", resp, err)
	}
	_, of := term.preemptions.next()
	for _, namespace := range []string{"default", "other"} {
		if n := term.preemptions.of[namespace]; n == nil || n.workers != 1 {
			t.Errorf("for %s there is %+v under way", namespace, n)
		}
	}
	if term.preemptions.done(of); len(term.preemptions.of) != 0 {
		t.Errorf("%v is left", term.preemptions.of)
	}
}

func TestPreemptionEndsBehindItsEvictions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		term, req := full(t, src, 20)
		p := begin(t, term, req)
		var atOnce, most atomic.Int32
		src.refuse = func(source.Eviction) error {
			most.Store(max(most.Load(), atOnce.Add(1)))
			elapse(time.Second)
			atOnce.Add(-1)
			term.ledger.Snapshot(func(st *cluster.State) {
				if !st.Pod(p.pod).Preempting {
					t.Error("the preemption ended before its last eviction")
				}
			})
			return nil
		}
		began := time.Now()
		if err := term.carryOut(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); most.Load() != evictionsAtOnce || took != 3*time.Second {
			t.Errorf("20 evictions of 1 s took %v, %d at once; want 3 s with %d at once", took, most.Load(), evictionsAtOnce)
		}
		term.ledger.Snapshot(func(st *cluster.State) {
			if row := st.Pod(p.pod); row.Preempting || row.Nominated != "a" {
				t.Errorf("the preemptor is held back: %v, nominated to %q", row.Preempting, row.Nominated)
			}
		})
		want := source.Eviction{
			UID: "v7", Namespace: "default", Name: "v7", Node: "a", PreemptorUID: "high", PreemptorNamespace: "default",
			PreemptorName: "high", PreemptorScheduler: scheduler,
		}
		if !slices.Contains(src.evicted, want) {
			t.Errorf("evictions: %+v", src.evicted)
		}
		// Each victim has its event.
		for e, of := term.events.turns.next(); of != nil; e, of = term.events.turns.next() {
			term.events.turns.done(of)
			if err := e.write(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if len(src.preempted) != 20 || !slices.Contains(src.preempted, want) {
			t.Errorf("%d events: %+v", len(src.preempted), src.preempted)
		}
	})
}

func TestFailedEvictionIsTriedAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		term, req := full(t, src, 1)
		p := begin(t, term, req)
		src.refuse = func(source.Eviction) error {
			if len(src.evicted) < evictionTries-1 {
				return errFake
			}
			return nil
		}
		from, began := term.mark(), time.Now()
		if err := term.carryOut(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); len(src.evicted) != evictionTries || took != 700*time.Millisecond {
			t.Errorf("%d tries in %v, want %d in 700 ms", len(src.evicted), took, evictionTries)
		}
		if diff := cmp.Diff([]cluster.Delta{cluster.PreemptionEnded{ID: p.pod}}, logSince(t, term, from)); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

// hangs is a source whose evictions never get an answer.
type hangs struct{ *fakeSource }

func (s hangs) Evict(ctx context.Context, _ coord.Cond, e source.Eviction) error {
	s.change(func() { s.evicted = append(s.evicted, e) })
	<-ctx.Done()
	return ctx.Err()
}

func TestEvictionsWithoutAnswerSpareTheirVictimsAfterAWhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		term, req := full(t, src, 2)
		term.source = hangs{src}
		p := begin(t, term, req)
		from, began := term.mark(), time.Now()
		if err := term.carryOut(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != evictionTries*writeTimeout+700*time.Millisecond {
			t.Errorf("given up after %v", took)
		}
		want := cluster.PreemptionEnded{ID: p.pod, Failed: true, Spared: []cluster.PodID{p.victims[0].id, p.victims[1].id}}
		if diff := cmp.Diff([]cluster.Delta{want}, logSince(t, term, from)); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestOneVictimThatStaysSparesThoseThatAreNotEvictedYet(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		const victims = evictionsAtOnce + 12
		term, req := full(t, src, victims)
		p := begin(t, term, req)
		src.refuse = func(e source.Eviction) error {
			if e.Name == "v0" {
				return errFake
			}
			elapse(400 * time.Millisecond) // the first of the others are done before v0 is given up, the second are not
			return nil
		}
		from := term.mark()
		if err := term.carryOut(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		var spared []cluster.PodID
		for _, v := range p.victims {
			if !slices.Contains(src.evictions(), v.Name) || v.Name == "v0" {
				spared = append(spared, v.id)
			}
		}
		if len(spared) < 2 || len(spared) > victims-evictionsAtOnce {
			t.Errorf("%d are spared", len(spared))
		}
		want := cluster.PreemptionEnded{ID: p.pod, Failed: true, Spared: spared}
		if diff := cmp.Diff([]cluster.Delta{want}, logSince(t, term, from)); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestNobodyIsEvictedOnceTheLeaseMayHaveExpired(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for tries := range 2 {
			src := newFakeSource()
			term, req := full(t, src, 1)
			p := begin(t, term, req)
			lease := make(chan struct{})
			term.lease = lease
			src.refuse = func(source.Eviction) error {
				close(lease) // between two tries
				return errFake
			}
			if tries == 0 {
				close(lease)
			}
			from := term.ledger.version()
			if err := term.carryOut(t.Context(), p); !errors.Is(err, errDeposed) {
				t.Errorf("carryOut: %v", err)
			}
			if len(src.evicted) != tries || term.ledger.version() != from {
				t.Errorf("%d evictions, want %d; the log is at %v, was at %v", len(src.evicted), tries, term.ledger.version(), from)
			}
		}
	})
}

func TestFencedEvictionEndsTheTerm(t *testing.T) {
	fenced := fmt.Errorf("evict: %w", coord.ErrFenced)
	for name, c := range map[string]struct {
		byEtcd  error // before the first eviction
		evicted bool
	}{
		"by etcd": {fenced, false}, "by the source": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			src := newFakeSource()
			term, req := full(t, src, 3)
			p := begin(t, term, req)
			term.confirm = func(context.Context) error { return c.byEtcd }
			src.refuse = func(source.Eviction) error { return fenced }
			from := term.ledger.version()
			if err := term.carryOut(t.Context(), p); !errors.Is(err, coord.ErrFenced) {
				t.Errorf("carryOut: %v", err)
			}
			if v := term.ledger.version(); v != from || len(src.evicted) > 0 != c.evicted {
				t.Errorf("the log is at %v, was at %v; evictions: %v", v, from, src.evictions())
			}
		})
	}
}

func TestNobodyIsEvictedBeforeEtcdSaysThatTheTermHolds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		term, req := full(t, src, 1)
		p := begin(t, term, req)
		asked := 0
		term.confirm = func(context.Context) error {
			if len(src.evicted) > 0 {
				t.Error("evicted too early")
			}
			if asked++; asked < 5 {
				return errFake
			}
			return nil
		}
		if err := term.carryOut(t.Context(), p); err != nil || asked != 5 || len(src.evicted) != 1 {
			t.Errorf("carryOut: %v; etcd was asked %d times, evicted: %v", err, asked, src.evictions())
		}
	})
}

func TestVictimThatIsGoneOrDeletedMeanwhileIsNotEvicted(t *testing.T) {
	src := newFakeSource()
	term, req := full(t, src, 4)
	p := begin(t, term, req)
	deleting := on(pod("v1", 10), "a")
	deleting.Deleting = true
	replacement := on(pod("another", 10), "a")
	replacement.Name = "v2"
	observe(t, term, gone("v0"), deleting, gone("v2"), replacement)
	if err := term.carryOut(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"v3"}, src.evictions()); diff != "" {
		t.Errorf("evicted (-want +got):\n%s", diff)
	}
}

func TestNobodyIsEvictedForAPreemptorThatNeedsNoRoomAnyMore(t *testing.T) {
	for name, now := range map[string][]any{
		"it is gone":          {gone("high")},
		"it is being deleted": {deletingPod(prior(pod("high", 20), 10))},
		"it is placed":        {on(prior(pod("high", 20), 10), "b")},
		"another has its id, for which others are to go": {gone("high"), prior(pod("another", 20), 10)},
	} {
		for before := range 2 { // evictions
			t.Run(fmt.Sprint(name, " after ", before), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					src := newFakeSource()
					term, req := full(t, src, 2)
					p := begin(t, term, req)
					observe(t, term, node("b", 20))
					happens := sync.OnceFunc(func() {
						observe(t, term, now...)
						if err := term.ledger.update(func(tx *tx) error {
							id, came := tx.state.PodByUID("another")
							if !came {
								return nil
							}
							if id != p.pod {
								t.Errorf("its id is %d, want %d", id, p.pod)
							}
							return tx.apply(cluster.PreemptionStarted{ID: id, Node: tx.state.Nodes.ByName("a"), Victims: []cluster.PodID{p.victims[0].id}})
						}); err != nil {
							t.Error(err)
						}
					})
					src.refuse = func(source.Eviction) error { happens(); return errFake }
					if before == 0 {
						happens()
					}
					if err := term.carryOut(t.Context(), p); err != nil {
						t.Fatal(err)
					}
					if n := len(src.evicted); before == 0 && n > 0 || n > 2 {
						t.Errorf("%d evictions are tried: %v", n, src.evictions())
					}
					term.ledger.Snapshot(func(st *cluster.State) {
						for _, v := range p.victims {
							if st.Pod(v.id).Victim {
								t.Errorf("%s is still to go", v.Name)
							}
						}
					})
				})
			})
		}
	}
}

// Who preempted others on the node has them go, and needs none of those that are spared.
func TestASparedVictimEndsNoNominationThatDoesNotRelyOnIt(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *term){
		"its preemptor is gone": func(t *testing.T, w *term) {
			p, of := w.preemptions.next()
			w.preemptions.done(of)
			observe(t, w, gone("p"))
			if err := w.carryOut(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		},
		"its preemptor's turn does not come": func(t *testing.T, w *term) {
			defer runNoTurns(t, w)()
			elapse(turnWithin + noTurnEvery)
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := pureTerm(t, newFakeSource())
				observe(t, w, node("a", 30), on(pod("v1", 10), "a"), on(pod("v2", 10), "a"), on(prior(pod("v3", 10), 5), "a"),
					prior(pod("q", 20), 10), prior(pod("p", 10), 10), prior(pod("r", 25), 20))
				first := begin(t, w, preemptOf(w.ledger.state, "q", "a", "v1", "v2"))
				if err := w.carryOut(t.Context(), first); err != nil {
					t.Fatal(err)
				}
				observe(t, w, deletingPod(on(pod("v1", 10), "a")), deletingPod(on(pod("v2", 10), "a")))
				for _, name := range []string{"p", "r"} { // r has nobody evicted, but relies on p's victim
					resp, err := w.preempt(preemptOf(w.ledger.state, name, "a", "v1", "v2", "v3"))
					if err != nil || resp.GetResult() != binderv1.PreemptResponse_RESULT_STARTED {
						t.Fatalf("preempt for %s: %v, %v", name, resp, err)
					}
				}
				end(t, w)
				w.ledger.Snapshot(func(st *cluster.State) {
					if id, _ := st.PodByUID("v3"); st.Pod(id).Victim {
						t.Error("v3 is still to go")
					}
				})
				if q, r := nominee(w, "q"), nominee(w, "r"); q != "a" || r != "" {
					t.Errorf("q is nominated to %q, r to %q", q, r)
				}
			})
		})
	}
}

func TestAPreemptionActsForNoLaterOneOfItsPod(t *testing.T) {
	src := newFakeSource()
	w, req := full(t, src, 2)
	older := begin(t, w, req)
	if err := w.ledger.update(func(tx *tx) error {
		if err := tx.apply(cluster.PodAssumed{ID: older.pod, Node: tx.state.Nodes.ByName("a"), Attempt: 1}); err != nil {
			return err
		}
		if err := tx.apply(cluster.PodForgotten{ID: older.pod, Reason: "the test says so"}); err != nil {
			return err
		}
		return w.ledger.fold.Nominate(older.pod, "")
	}); err != nil {
		t.Fatal(err)
	}
	observe(t, w, node("a", 30), on(pod("v2", 10), "a"), prior(pod("high", 30), 10))
	req = preemptOf(w.ledger.state, "high", "a", "v0", "v1", "v2")
	req.Attempt = 2
	newer := begin(t, w, req)
	from := w.mark()
	if err := w.carryOut(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	want := cluster.PreemptionEnded{ID: cluster.NoPod, Spared: []cluster.PodID{older.victims[0].id, older.victims[1].id}}
	if diff := cmp.Diff([]cluster.Delta{want}, logSince(t, w, from)); diff != "" || len(src.evictions()) > 0 {
		t.Errorf("it evicts %v; log (-want +got):\n%s", src.evictions(), diff)
	}
	if !preemptionOf(w, newer) {
		t.Error("the newer one has ended")
	}
}

func TestVictimThatIsDeletedThoughItsEvictionFailedIsNotSpared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		term, req := full(t, src, 1)
		p := begin(t, term, req)
		src.refuse = func(source.Eviction) error {
			if len(src.evicted) == evictionTries-1 {
				observe(t, term, deletingPod(on(pod("v0", 10), "a"))) // only the answer was lost
			}
			return errFake
		}
		from := term.mark()
		if err := term.carryOut(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		log := logSince(t, term, from)
		if diff := cmp.Diff(cluster.Delta(cluster.PreemptionEnded{ID: p.pod}), log[len(log)-1]); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestVictimSparedByAnotherPreemptionBringsItsPreemptorBack(t *testing.T) {
	src := newFakeSource()
	term, req := full(t, src, 2)
	first := begin(t, term, req)
	// The room of both victims and of a third is wanted by a more important pod: it evicts the third, and relies on the
	// first preemption for the others.
	observe(t, term, node("a", 30), on(pod("v2", 10), "a"), prior(pod("higher", 30), 20))
	second := begin(t, term, preemptOf(term.ledger.state, "higher", "a", "v0", "v1", "v2"))
	if len(second.victims) != 3 || len(second.evict) != 1 {
		t.Fatalf("%d victims of which %d are to be evicted", len(second.victims), len(second.evict))
	}
	if err := term.ledger.endPreemption(first, []cluster.PodID{first.victims[0].id}, func([]source.Report) {}); err != nil {
		t.Fatal(err)
	}
	from := term.mark()
	if err := term.carryOut(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	want := cluster.PreemptionEnded{ID: second.pod, Failed: true}
	if diff := cmp.Diff([]cluster.Delta{want}, logSince(t, term, from)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// crowd fills a node with two pods of low priority; a third is nominated to it, and one of high priority needs it all.
func crowd(src *fakeSource) {
	src.setNode(node("a", 1000))
	src.setPod(on(pod("v0", 500), "a"))
	src.setPod(on(pod("v1", 500), "a"))
	src.setPod(nominated(prior(pod("waits", 100), 5), "a"))
	src.setPod(prior(pod("high", 1000), 10))
}

// preempt must succeed.
func (b *running) preempt(attempt int32) {
	b.t.Helper()
	resp, err := b.tryPreempt(attempt)
	if err != nil || resp.GetResult() != binderv1.PreemptResponse_RESULT_STARTED {
		b.t.Fatalf("preempt: %v, %v", resp, err)
	}
}

func (b *running) tryPreempt(attempt int32) (*binderv1.PreemptResponse, error) {
	b.t.Helper()
	var req *binderv1.PreemptRequest
	b.look(func(st *cluster.State) { req = preemptOf(st, "high", "a", "v0", "v1") })
	req.Attempt = attempt
	return b.Preempt(b.t.Context(), req)
}

// is asks the ledger about a pod.
func (b *running) is(uid string, fn func(*cluster.PodRow) bool) (is bool) {
	b.look(func(st *cluster.State) {
		if id, ok := st.PodByUID(uid); ok {
			is = fn(st.Pod(id))
		}
	})
	return is
}

func preempting(row *cluster.PodRow) bool { return row.Preempting }

func beingDeleted(row *cluster.PodRow) bool { return row.Deleting }

func TestPreemptedPodsMakeRoomForTheirPreemptor(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	crowd(src)
	src.graceful = true
	b := start(t, etcd, src)
	b.active()
	b.preempt(1)
	eventually(t, "the preemption has ended", func() bool { return !b.is("high", preempting) })
	if diff := cmp.Diff([]string{"v0", "v1"}, src.evictions()); diff != "" {
		t.Errorf("evicted (-want +got):\n%s", diff)
	}
	eventually(t, "no preemption counts", func() bool { return b.term.Load().preempting.count() == 0 })
	eventually(t, "victims and preemptor have their events, and nominations are written", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.preempted) == 2 && len(src.reports) == 1 && len(src.nominations) == 1
	})
	want := source.Report{
		UID: "high", Namespace: "default", Name: "high", Reason: "Unschedulable", Message: "no room", Nominate: true, Nominated: "a",
	}
	if got := src.reports[0]; got != want {
		t.Errorf("report: %+v", got)
	}
	if got, want := src.nominations[0], (source.Nomination{UID: "waits", Namespace: "default", Name: "waits"}); got != want {
		t.Errorf("nomination: %+v", got)
	}
	// They have their grace period; then there is room for the one that it was made for, and for nobody else.
	eventually(t, "the victims are being deleted", func() bool {
		return b.is("v1", func(row *cluster.PodRow) bool { return row.Deleting && row.Preempted })
	})
	if got := b.commit(b.request(1, "high", "waits")); !slices.Equal(got, []string{"no fit", "no fit"}) {
		t.Errorf("while the victims are there: %v", got)
	}
	src.deletePod("v0")
	src.deletePod("v1")
	b.awaitPhase("v0", "gone")
	b.awaitPhase("v1", "gone")
	if got := b.commit(b.request(2, "waits", "high")); !slices.Equal(got, []string{"no fit", "assumed"}) {
		t.Errorf("when they are gone: %v", got)
	}
	b.awaitPhase("high", "bound on a")
}

func TestADeposedBinderEvictsNobody(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	crowd(src)
	one := start(t, etcd, src, named("one"))
	one.active()
	two := start(t, etcd, src, named("two"))
	depose(t, etcd)
	two.active()
	if resp, err := one.tryPreempt(1); err != nil { // it does not know yet
		wantError(t, err, codes.Unavailable, "NOT_ACTIVE") // the eviction was refused before the answer
	} else if got := resp.GetResult(); got != binderv1.PreemptResponse_RESULT_STARTED {
		t.Fatalf("preempt: %v", got)
	}
	eventually(t, "one has noticed", func() bool { return one.Ready() != nil })
	if got := src.evictions(); len(got) > 0 {
		t.Errorf("evicted by a deposed binder: %v", got)
	}
	if two.is("high", preempting) {
		t.Error("to the binder that leads, somebody is preempted")
	}
}

func TestNextBinderBeginsWithoutPreemptions(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	crowd(src)
	src.graceful = true
	held := make(chan struct{})
	src.refuse = func(e source.Eviction) error {
		if e.Name == "v1" {
			<-held
			return errFake // the request was lost
		}
		return nil
	}
	one := start(t, etcd, src, named("one"))
	one.active()
	one.preempt(1)
	eventually(t, "v0 is being deleted", func() bool { return one.is("v0", beingDeleted) })
	two := start(t, etcd, src, named("two"))
	stopped := make(chan struct{})
	go func() { defer close(stopped); one.stop() }()
	eventually(t, "one has stopped to serve", func() bool { return one.Ready() != nil })
	close(held)
	<-stopped
	two.active()
	src.mu.Lock()
	src.refuse = nil
	src.mu.Unlock()
	if two.is("high", preempting) || two.is("v1", func(row *cluster.PodRow) bool { return row.Victim }) {
		t.Error("a preemption of the last epoch goes on")
	}
	two.preempt(1) // the next attempt finds one of the victims on its way, and evicts the other
	eventually(t, "both are being deleted", func() bool { return two.is("v1", beingDeleted) })
	if diff := cmp.Diff([]string{"v0", "v1", "v1"}, src.evictions()); diff != "" {
		t.Errorf("evictions (-want +got):\n%s", diff)
	}
}

func TestStandbyBinderPreemptsNobody(t *testing.T) {
	s, err := New(Config{
		ID: "b", Address: "b", Coord: connect(t, []string{"127.0.0.1:1"}, prefix), Source: newFakeSource(),
		Settings: settings(), Log: testLog(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Preempt(t.Context(), nil)
	wantError(t, err, codes.Unavailable, "NOT_ACTIVE")
}

// An attempt may have begun before the queue knew that an earlier one has started a preemption, and arrive when that has ended.
func TestNoMoreGoForAPreemptorWhoseVictimsAreOnTheirWay(t *testing.T) {
	term, req := full(t, newFakeSource(), 1)
	observe(t, term, node("b", 10), on(pod("w", 10), "b"))
	p := begin(t, term, req)
	if err := term.carryOut(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	again := preemptOf(term.ledger.state, "high", "b", "w")
	again.Attempt = req.Attempt + 1
	resp, err := term.preempt(again)
	if err != nil || resp.GetResult() != binderv1.PreemptResponse_RESULT_GONE || term.preemptions.waiting() != 0 {
		t.Errorf("preempt again: %v, %v; %d wait", resp, err, term.preemptions.waiting())
	}
	if row := term.ledger.state.Pod(p.pod); row.Nominated != "a" {
		t.Errorf("nominated to %q", row.Nominated)
	}
	// When they are gone, and another has their room, it may.
	observe(t, term, gone("v0"), on(prior(pod("other", 10), 20), "a"))
	again = preemptOf(term.ledger.state, "high", "b", "w")
	again.Attempt = req.Attempt + 2
	begin(t, term, again)
}
