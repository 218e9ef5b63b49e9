package binder

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

// reported is a report of a pod; without a message it has a nomination alone.
func reported(message string, nominate bool, node string) source.Report {
	r := source.Report{UID: "p", Namespace: "default", Name: "p", Nominate: nominate, Nominated: node}
	if message != "" {
		r.Reason, r.Message = "Unschedulable", message
	}
	return r
}

// next takes the oldest report whose turn has come, as a worker does.
func (l *reportLane) next() (waitingReport, bool) {
	uid, of := l.turns.next()
	if l.turns.done(of); of == nil {
		return waitingReport{}, false
	}
	return l.take(uid), true
}

// placedReport is reported, of a pod that is placed.
func placedReport(message string, nominate bool, node string) source.Report {
	r := reported(message, nominate, node)
	r.Assumed = true
	return r
}

func TestReportsOfAPodThatWaitAreOne(t *testing.T) {
	for name, c := range map[string]struct {
		older, newer, want source.Report
	}{
		"the newer message":                                      {reported("old", false, ""), reported("new", false, ""), reported("new", false, "")},
		"the older nomination stays":                             {reported("old", true, "a"), reported("new", false, ""), reported("new", true, "a")},
		"the newer nomination":                                   {reported("old", true, "a"), reported("new", true, "b"), reported("new", true, "b")},
		"a nomination joins a message":                           {reported("old", false, ""), reported("", true, "a"), reported("old", true, "a")},
		"a message joins a nomination":                           {reported("", true, "a"), reported("new", false, ""), reported("new", true, "a")},
		"the end of a nomination":                                {reported("old", true, "a"), reported("", true, ""), reported("old", true, "")},
		"trouble of one that is placed, and is to be so no more": {placedReport("", true, "a"), placedReport("new", false, "a"), placedReport("new", false, "a")},
		"a nomination replaces a lone one":                       {reported("", true, "a"), reported("", true, ""), reported("", true, "")},
	} {
		l := newReportLane(reportLaneConfig{limit: 10, binds: new(bound)})
		other := source.Report{UID: "q", Reason: "Unschedulable"}
		l.add(c.older, other)
		l.add(c.newer)
		if n := l.depth(); n != 2 {
			t.Errorf("%s: %d wait", name, n)
		}
		got, _ := l.next()
		if diff := cmp.Diff(c.want, got.Report); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got, _ := l.next(); got.Report != other {
			t.Errorf("%s: the other pod's is %+v", name, got)
		}
		if _, more := l.next(); more {
			t.Errorf("%s: there are more", name)
		}
	}
}

func TestReportsOfAPodAreWrittenOneAfterTheOther(t *testing.T) {
	l := newReportLane(reportLaneConfig{limit: 10, binds: new(bound)})
	l.add(reported("first", false, ""))
	first, _ := l.next()
	l.add(reported("second", true, "a"))
	l.add(reported("third", false, ""))
	if r, ok := l.next(); ok {
		t.Fatalf("%+v is written while another of the pod is", r)
	}
	l.written(first.UID)
	if r, ok := l.next(); !ok || r.Report != reported("third", true, "a") {
		t.Errorf("then comes %+v", r)
	}
	l.written("p")
	if _, ok := l.next(); ok || len(l.waiting)+len(l.writing)+l.turns.waiting()+l.room.count() > 0 {
		t.Errorf("left: %v, %v, %v", l.waiting, l.writing, l.turns.of)
	}
}

// runLanes runs the event and the report lane of a term until stop.
func runLanes(t *testing.T, term *term) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	work := func(workers int, run func(context.Context) error) {
		for range workers {
			running.Go(func() {
				if err := run(ctx); err != nil {
					t.Errorf("lane: %v", err)
				}
			})
		}
	}
	work(1, term.retryWrites)
	work(eventWorkers, term.events.run)
	work(reportWorkers, term.reports.run)
	return func() { cancel(); running.Wait() }
}

func TestEventsAndReportsGiveWayToBindsButNotForLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		term := pureTerm(t, src)
		term.reports.waits = func(source.Report) (time.Time, bool) { return time.Time{}, true }
		written := func() (events, reports int) {
			synctest.Wait()
			src.mu.Lock()
			defer src.mu.Unlock()
			return len(src.scheduled), len(src.reports)
		}
		add := func(name string) {
			b := source.Binding{UID: name}
			term.events.add("", func(ctx context.Context) error { return src.Scheduled(ctx, b) })
			term.reports.add(source.Report{UID: name, Reason: "Unschedulable"})
		}
		defer runLanes(t, term)()

		// While a bind is under way they wait, until it has ended.
		term.unbound.take(1)
		add("a")
		elapse(courtesy / 2)
		if events, reports := written(); events+reports > 0 {
			t.Errorf("during a bind %d events and %d reports were written", events, reports)
		}
		term.unbound.give(1)
		if events, reports := written(); events != 1 || reports != 1 {
			t.Errorf("after the bind there are %d events and %d reports", events, reports)
		}
		// While pods are being evicted, the reports that hold room for others go on.
		term.evicting.take(1)
		add("e")
		elapse(courtesy / 2)
		if events, reports := written(); events != 1 || reports != 2 {
			t.Errorf("during an eviction there are %d events and %d reports", events, reports)
		}
		term.evicting.give(1)
		if events, reports := written(); events != 2 || reports != 2 {
			t.Errorf("after the eviction there are %d events and %d reports", events, reports)
		}
		// Binds that do not end do not hold them up for ever.
		term.unbound.take(1)
		add("b")
		elapse(courtesy)
		if events, reports := written(); events != 3 || reports != 3 {
			t.Errorf("beside a long bind there are %d events and %d reports", events, reports)
		}
		// A lane that is more than a quarter full does not wait.
		for i := range 100 {
			add(fmt.Sprintf("c%d", i))
		}
		elapse(courtesy) // of those workers that began before it was
		if events, reports := written(); events < 3+70 || reports < 3+70 {
			t.Errorf("of full lanes %d events and %d reports were written", events, reports)
		}
	})
}

// A lone namespace has no more than half of a lane, and what has failed counts among its reports.
func TestLanesThatAreFullToOneNamespaceGiveWayNoMore(t *testing.T) {
	for _, failed := range []int{0, 25} {
		bubble.Test(t, func(t *testing.T) {
			src := newFakeSource()
			term := pureTerm(t, src)
			term.reports.waits = func(source.Report) (time.Time, bool) { return time.Time{}, true }
			dropped := 0
			term.events.dropped = func() { dropped++ }
			refused := false
			for i := 0; dropped == 0 || !refused; i++ {
				b := source.Binding{UID: fmt.Sprint("p", i), Namespace: "tenant"}
				term.events.add(b.Namespace, func(ctx context.Context) error { return src.Scheduled(ctx, b) })
				refused = refused || !term.reports.add(source.Report{UID: b.UID, Namespace: b.Namespace, Reason: "Unschedulable"})
			}
			for range failed {
				if r, ok := term.reports.next(); !ok || !term.reports.again(r, time.Now().Add(time.Hour)) {
					t.Fatal("not so many may have failed")
				}
			}
			events := term.events.room.count()
			reports, _ := term.reports.ready()
			term.unbound.take(1) // for good
			defer runLanes(t, term)()
			synctest.Wait()
			src.mu.Lock()
			defer src.mu.Unlock()
			if len(src.scheduled) < events/4 || len(src.reports) < reports/4 {
				t.Errorf("beside a bind %d of %d events and %d of %d reports are written, with %d failed", len(src.scheduled), events, len(src.reports), reports, failed)
			}
		})
	}
}

// What is under way for somebody is a share of the lane, and a write that takes long is late.
func TestAnEventThatGivesWayIsNotUnderWay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := newFakeSource()
		term := pureTerm(t, src)
		term.unbound.take(1)
		var written []string
		add := func(namespace string) {
			term.events.add(namespace, func(context.Context) error {
				src.change(func() { written = append(written, namespace) })
				elapse(writeTimeout / 2)
				return nil
			})
		}
		for range eventWorkers {
			add("tenant")
		}
		defer runLanes(t, term)()
		synctest.Wait()
		term.events.turns.mu.Lock()
		n := term.events.turns.working
		term.events.turns.mu.Unlock()
		if n != 0 {
			t.Errorf("%d are under way during a bind", n)
		}
		add("default") // not behind those of the other that came before
		term.unbound.give(1)
		synctest.Wait()
		src.mu.Lock()
		defer src.mu.Unlock()
		if len(written) != eventWorkers || !slices.Contains(written, "default") {
			t.Errorf("after it %v are written", written)
		}
	})
}

func TestBurstOfPlacementsAndReportsIsDeliveredWithin30Seconds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const pods = 10_000
		src := newFakeSource()
		src.took = 20 * time.Millisecond // of each write, of which a report has two
		term := pureTerm(t, src)
		term.events = newEventLane(50_000, []*bound{term.unbound, term.evicting}, func() { t.Error("an event was dropped") }, func(error) {})
		term.reports.room.limit = 50_000
		term.reports.waits = func(source.Report) (time.Time, bool) { return time.Time{}, true }
		began := time.Now()
		for i := range pods {
			b := source.Binding{UID: fmt.Sprintf("placed%d", i)}
			term.events.add("", func(ctx context.Context) error { return src.Scheduled(ctx, b) })
			if !term.reports.add(source.Report{UID: fmt.Sprintf("waits%d", i), Reason: "Unschedulable"}) {
				t.Fatal("a report was refused")
			}
		}
		stop := runLanes(t, term)
		defer stop()
		elapse(30 * time.Second)
		synctest.Wait()
		if events, reports := len(src.scheduled), len(src.reports); events != pods || reports != pods {
			t.Errorf("after %v there are %d events and %d reports", time.Since(began), events, reports)
		}
	})
}

// silent is a source that answers nothing about reports, or about events.
type silent struct {
	*fakeSource
	events, reports bool
}

func (s silent) Unschedulable(ctx context.Context, r source.Report) error {
	if s.reports {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.fakeSource.Unschedulable(ctx, r)
}

func (s silent) Scheduled(ctx context.Context, b source.Binding) error {
	if s.events {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.fakeSource.Scheduled(ctx, b)
}

func TestEventsAndReportsNeverWaitForEachOther(t *testing.T) {
	for _, c := range []struct{ events, reports bool }{{true, false}, {false, true}} {
		bubble.Test(t, func(t *testing.T) {
			src := silent{newFakeSource(), c.events, c.reports}
			term := pureTerm(t, src)
			term.reports.waits = func(source.Report) (time.Time, bool) { return time.Time{}, true }
			for i := range 100 {
				b := source.Binding{UID: fmt.Sprintf("placed%d", i)}
				term.events.add("", func(ctx context.Context) error { return src.Scheduled(ctx, b) })
				term.reports.add(source.Report{UID: fmt.Sprintf("waits%d", i), Reason: "Unschedulable"})
			}
			stop := runLanes(t, term)
			defer stop()
			synctest.Wait()
			events, reports := len(src.scheduled), len(src.fakeSource.reports)
			if c.events && reports != 100 || c.reports && events != 100 {
				t.Errorf("%+v: %d events and %d reports are written", c, events, reports)
			}
			// A write that gets no answer holds up its own lane no longer than its timeout either.
			elapse(writeTimeout + time.Millisecond)
			synctest.Wait()
			if c.events && len(term.events.failing) != eventWorkers || c.reports && term.reports.failing.count() != reportWorkers {
				t.Errorf("%+v: %d events and %d reports have failed", c, len(term.events.failing), term.reports.failing.count())
			}
		})
	}
}

// silentIn is a source that answers nothing about pods of a namespace.
type silentIn struct {
	*fakeSource
	namespace string
}

func (s silentIn) Unschedulable(ctx context.Context, r source.Report) error {
	return silent{s.fakeSource, false, r.Namespace == s.namespace}.Unschedulable(ctx, r)
}

func (s silentIn) Scheduled(ctx context.Context, b source.Binding) error {
	return silent{s.fakeSource, b.Namespace == s.namespace, false}.Scheduled(ctx, b)
}

func TestWritesThatHangDelayThoseOfOtherNamespacesNoLongerThanUntilTheyAreLate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		src := silentIn{newFakeSource(), "bad"}
		term := pureTerm(t, src.fakeSource)
		term.events = newEventLane(5000, []*bound{term.unbound, term.evicting}, func() { t.Error("an event was dropped") }, func(error) {})
		term.reports = newReportLane(reportLaneConfig{
			source: src, limit: 5000, binds: term.unbound, failed: func(error) {}, dropped: func() {},
			waits: func(source.Report) (time.Time, bool) { return time.Time{}, true },
		})
		add := func(uid, namespace string) {
			b := source.Binding{UID: uid, Namespace: namespace}
			term.events.add(namespace, func(ctx context.Context) error { return src.Scheduled(ctx, b) })
			if !term.reports.add(source.Report{UID: uid, Namespace: namespace, Reason: "Unschedulable"}) {
				t.Errorf("the report of %s is refused", uid)
			}
		}
		for i := range 1000 {
			add(fmt.Sprint("bad", i), "bad")
		}
		stop := runLanes(t, term)
		for i := range 300 { // longer than what fails is tried again
			synctest.Wait()
			add(fmt.Sprint("good", i), "default")
			elapse(lateAfter + time.Millisecond)
			synctest.Wait()
			src.mu.Lock()
			events, reports := len(src.scheduled), len(src.reports)
			src.mu.Unlock()
			if events != i+1 || reports != i+1 {
				t.Fatalf("of %d others %d events and %d reports are written", i+1, events, reports)
			}
		}
		stop()
		if e, r := term.events.turns.working, term.reports.turns.working; e != 0 || r != 0 {
			t.Errorf("in the end %d events and %d reports are being written", e, r)
		}
	})
}

func TestANamespaceHasNoMoreOfALaneThanIsFree(t *testing.T) {
	dropped := 0
	l := newReportLane(reportLaneConfig{limit: 10, binds: new(bound), dropped: func() { dropped++ }})
	n := 0
	some := func(namespaces ...string) (reports []source.Report) {
		for _, namespace := range namespaces {
			n++
			reports = append(reports, source.Report{UID: fmt.Sprint("p", n), Namespace: namespace, Reason: "Unschedulable"})
		}
		return reports
	}
	first := some("bad")
	if !l.add(first...) || !l.add(some("bad", "bad", "bad", "bad")...) {
		t.Error("it does not get its share")
	}
	if l.add(some("bad")...) || l.add(some("default", "bad")...) {
		t.Error("it gets more")
	}
	if !l.add(first...) || !l.add(some("default", "default")...) {
		t.Error("others do not get theirs, or a report that waits cannot be replaced")
	}
	// It is slow: nobody waits for it to have room.
	for range places(reportWorkers) {
		l.turns.add("bad", "")
		l.turns.next()
	}
	if !l.add(some("bad", "default", "bad")...) || dropped != 2 || l.depth() != 8 || l.room.count() != 8 {
		t.Errorf("%d are dropped, %d wait, of %v", dropped, l.depth(), l.room.of)
	}
	for uid := range l.waiting {
		l.take(uid)
	}
	if dropped = 0; !l.add(some("bad")...) || dropped != 0 || l.depth() != 1 {
		t.Errorf("with room %d are dropped, %d wait", dropped, l.depth())
	}

	dropped = 0
	e := newEventLane(10, nil, func() { dropped++ }, nil)
	for range 10 {
		e.add("bad", nil)
	}
	if e.depth() != 5 || dropped != 5 {
		t.Errorf("%d events wait, %d are dropped", e.depth(), dropped)
	}
	for range 4 {
		e.add("default", nil)
	}
	if e.depth() != 8 || dropped != 6 {
		t.Errorf("with others %d events wait, %d are dropped", e.depth(), dropped)
	}
	for e.again(event{namespace: "bad"}, time.Time{}) {
	}
	if n := e.retries.count(); n != 5 || len(e.failing) != 5 || !e.again(event{namespace: "default"}, time.Time{}) {
		t.Errorf("of %d that have failed all are of one namespace", n)
	}
}

func TestEventsBeyondTheBoundAreDropped(t *testing.T) {
	dropped := 0
	l := newEventLane(2, nil, func() { dropped++ }, nil)
	for range 5 {
		l.add("", func(context.Context) error { return nil })
	}
	if n := l.turns.waiting(); n != 2 || dropped != 3 {
		t.Errorf("%d wait, %d were dropped", n, dropped)
	}
}

func TestBindsNeverWaitForEventsAndReports(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.block = make(chan struct{}) // nothing is written to the end of the test
	src.setNode(node("a", 10_000))
	b := start(t, etcd, src, func(c *Config) { c.EventLimit = 10 })
	b.active()
	var uids []string
	for i := range 100 { // more than both lanes hold
		uids = append(uids, fmt.Sprintf("p%d", i))
		src.setPod(pod(uids[i], 10))
	}
	for i := 0; i < len(uids); i += 50 {
		b.commit(b.request(1, uids[i:i+50]...))
	}
	for _, uid := range uids {
		b.awaitPhase(uid, "bound on a")
	}
	if len(src.scheduled) > 0 {
		t.Errorf("%d events were written", len(src.scheduled))
	}
}
