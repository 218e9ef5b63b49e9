package binder

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/source"
)

// reported is a report of a pod; without a message it has a nomination alone.
func reported(message string, nominate bool, node string) source.Report {
	r := source.Report{UID: "p", Namespace: "default", Name: "p", Nominate: nominate, Nominated: node}
	if message != "" {
		r.Reason, r.Message = "Unschedulable", message
	}
	return r
}

func TestReportsOfAPodThatWaitAreOne(t *testing.T) {
	for name, c := range map[string]struct {
		older, newer, want source.Report
	}{
		"the newer message":                {reported("old", false, ""), reported("new", false, ""), reported("new", false, "")},
		"the older nomination stays":       {reported("old", true, "a"), reported("new", false, ""), reported("new", true, "a")},
		"the newer nomination":             {reported("old", true, "a"), reported("new", true, "b"), reported("new", true, "b")},
		"a nomination joins a message":     {reported("old", false, ""), reported("", true, "a"), reported("old", true, "a")},
		"a message joins a nomination":     {reported("", true, "a"), reported("new", false, ""), reported("new", true, "a")},
		"the end of a nomination":          {reported("old", true, "a"), reported("", true, ""), reported("old", true, "")},
		"a nomination replaces a lone one": {reported("", true, "a"), reported("", true, ""), reported("", true, "")},
	} {
		l := newReportLane(nil, 10, new(bound), nil, nil)
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
	l := newReportLane(nil, 10, new(bound), nil, nil)
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
	if _, ok := l.next(); ok || len(l.waiting)+len(l.writing)+len(l.order) > 0 {
		t.Errorf("left: %v, %v, %v", l.waiting, l.writing, l.order)
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
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		term := pureTerm(t, src)
		term.reports.waits = func(string) (time.Time, bool) { return time.Time{}, true }
		written := func() (events, reports int) {
			synctest.Wait()
			src.mu.Lock()
			defer src.mu.Unlock()
			return len(src.scheduled), len(src.reports)
		}
		add := func(name string) {
			b := source.Binding{UID: name}
			term.events.add(func(ctx context.Context) error { return src.Scheduled(ctx, b) })
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
		// A lane that is more than half full does not wait.
		for i := range 100 {
			add(fmt.Sprintf("c%d", i))
		}
		elapse(courtesy) // of those workers that began before it was
		if events, reports := written(); events < 3+40 || reports < 3+40 {
			t.Errorf("of full lanes %d events and %d reports were written", events, reports)
		}
	})
}

func TestBurstOfPlacementsAndReportsIsDeliveredWithin30Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 10_000
		src := newFakeSource()
		src.took = 20 * time.Millisecond // of each write, of which a report has two
		term := pureTerm(t, src)
		term.events = newEventLane(50_000, []*bound{term.unbound, term.evicting}, func() { t.Error("an event was dropped") }, func(error) {})
		term.reports.limit = 50_000
		term.reports.waits = func(string) (time.Time, bool) { return time.Time{}, true }
		began := time.Now()
		for i := range pods {
			b := source.Binding{UID: fmt.Sprintf("placed%d", i)}
			term.events.add(func(ctx context.Context) error { return src.Scheduled(ctx, b) })
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
		synctest.Test(t, func(t *testing.T) {
			src := silent{newFakeSource(), c.events, c.reports}
			term := pureTerm(t, src.fakeSource)
			fails := func(err error) { t.Errorf("given up: %v", err) }
			term.events = newEventLane(100, []*bound{term.unbound, term.evicting}, func() {}, fails)
			term.reports = newReportLane(src, 100, term.unbound, func(string) (time.Time, bool) { return time.Time{}, true }, fails)
			for i := range 100 {
				b := source.Binding{UID: fmt.Sprintf("placed%d", i)}
				term.events.add(func(ctx context.Context) error { return src.Scheduled(ctx, b) })
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
			if c.events && len(term.events.failing) != eventWorkers || c.reports && term.reports.failing != reportWorkers {
				t.Errorf("%+v: %d events and %d reports have failed", c, len(term.events.failing), term.reports.failing)
			}
		})
	}
}

func TestEventsBeyondTheBoundAreDropped(t *testing.T) {
	dropped := 0
	l := newEventLane(2, nil, func() { dropped++ }, nil)
	for range 5 {
		l.add(func(context.Context) error { return nil })
	}
	if len(l.waiting) != 2 || dropped != 3 {
		t.Errorf("%d wait, %d were dropped", len(l.waiting), dropped)
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
