package binder

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

// failing is a source that does not take reports and events while fail says so.
type failing struct {
	*fakeSource
	fail  func() bool
	tries []time.Duration // of reports: when, since the test began
	began time.Time
}

func (f *failing) Unschedulable(ctx context.Context, r source.Report) error {
	f.change(func() { f.tries = append(f.tries, time.Since(f.began)) })
	if f.fail() {
		return errFake
	}
	return f.fakeSource.Unschedulable(ctx, r)
}

func (f *failing) Scheduled(ctx context.Context, b source.Binding) error {
	if f.fail() {
		return errFake
	}
	return f.fakeSource.Scheduled(ctx, b)
}

// failingTerm returns a term whose lanes write to such a source, and what they have given up.
func failingTerm(t *testing.T, limit int, fail func() bool) (*term, *failing, *[]error) {
	src := &failing{fakeSource: newFakeSource(), fail: fail, began: time.Now()}
	term := pureTerm(t, src, func(c *termConfig) { c.EventLimit = limit })
	givenUp := new([]error)
	note := func(err error) { src.change(func() { *givenUp = append(*givenUp, err) }) }
	term.events.ahead, term.events.dropped = nil, func() { t.Error("an event was dropped") }
	term.events.failed, term.reports.failed = note, note
	return term, src, givenUp
}

func TestDelaysDoubleUpToTheLast(t *testing.T) {
	b := backoff{100 * time.Millisecond, time.Second}
	for _, tt := range []struct {
		failures int
		want     time.Duration
	}{
		{1, 100 * time.Millisecond}, {2, 200 * time.Millisecond}, {4, 800 * time.Millisecond}, {5, time.Second}, {6, time.Second},
		{1 << 30, time.Second},
	} {
		if got := b.after(tt.failures); got != tt.want {
			t.Errorf("after %d failures %v, want %v", tt.failures, got, tt.want)
		}
	}
}

func TestTheLastTryIsTheLast(t *testing.T) {
	var a attempts
	now := time.Unix(100, 0)
	for n := range maxRetries {
		if !a.failed(now) || a.due.Sub(now) != writeBackoff.after(n+1) {
			t.Errorf("failure %d: next try %v later", n+1, a.due.Sub(now))
		}
	}
	if a.failed(now) {
		t.Error("there is one more try than there may be")
	}
}

func TestReportsAndEventsThatFailAreTriedAgainUntilTheyAreWritten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var away atomic.Bool
		away.Store(true)
		term, src, givenUp := failingTerm(t, 100, away.Load)
		observe(t, term, pod("p", 100))
		term.reports.add(reported("m", true, "a"))
		term.events.add("", func(ctx context.Context) error { return src.Scheduled(ctx, source.Binding{UID: "q"}) })
		defer runLanes(t, term)()
		elapse(2*time.Minute + time.Millisecond)
		synctest.Wait()
		if got := src.tries; len(got) < 6 || len(got) > 10 || got[1]-got[0] > 2*retryEvery || got[len(got)-1]-got[len(got)-2] < maxRetryDelay {
			t.Errorf("tried at %v", got)
		}
		if r, e := term.reports.depth(), term.events.depth(); r != 1 || e != 1 {
			t.Errorf("%d reports and %d events wait", r, e)
		}
		away.Store(false)
		elapse(time.Hour)
		synctest.Wait()
		if diff := cmp.Diff([]source.Report{reported("m", true, "a")}, src.reports); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]source.Binding{{UID: "q"}}, src.scheduled); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if len(*givenUp) > 0 || term.reports.depth()+term.events.depth() > 0 {
			t.Errorf("given up: %v; %d reports and %d events wait", *givenUp, term.reports.depth(), term.events.depth())
		}
	})
}

func TestWhatIsNewerTakesThePlaceOfAReportThatFailed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var away atomic.Bool
		away.Store(true)
		term, src, _ := failingTerm(t, 100, away.Load)
		observe(t, term, node("a", 1000), pod("p", 100), pod("placed", 100), pod("gone", 100))
		term.reports.add(reported("old", true, "a"))
		for _, uid := range []string{"placed", "gone"} {
			term.reports.add(source.Report{UID: uid, Reason: "Unschedulable", Message: "not true any more"})
		}
		defer runLanes(t, term)()
		elapse(time.Minute)
		synctest.Wait()
		away.Store(false)
		assume(t, term, "placed", "a")
		observe(t, term, gone("gone"))
		term.reports.add(reported("new", false, ""))
		elapse(courtesy) // long before the old one would have been tried again
		synctest.Wait()
		want := []source.Report{reported("new", true, "a")} // the nomination has not been written yet
		if diff := cmp.Diff(want, src.reports); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
		elapse(time.Hour)
		synctest.Wait()
		if diff := cmp.Diff(want, src.reports); diff != "" {
			t.Errorf("reports in the end (-want +got):\n%s", diff)
		}
		if l := term.reports; len(l.waiting)+len(l.writing)+l.turns.waiting()+l.room.count()+l.failing.count() > 0 {
			t.Errorf("left: %v, %v, %v, %d", l.waiting, l.turns.of, l.writing, l.failing.count())
		}
	})
}

func TestAReportThatComesWhileAnotherOfThePodFailsIsWrittenNext(t *testing.T) {
	l := newReportLane(reportLaneConfig{limit: 10, binds: new(bound)})
	l.add(reported("old", true, "a"))
	old, _ := l.next()
	l.add(reported("new", false, ""))
	if !l.again(old, time.Time{}) {
		t.Error("the old one is given up")
	}
	got, ok := l.next()
	if want := reported("new", true, "a"); !ok || got.Report != want || got.tries != 0 {
		t.Errorf("next is %+v, want %+v", got, want)
	}
	l.written("p")
	if len(l.waiting)+len(l.writing)+l.turns.waiting()+l.room.count()+l.failing.count() > 0 {
		t.Errorf("left: %v, %v, %v, %d", l.waiting, l.turns.of, l.writing, l.failing.count())
	}
}

func TestWritesThatKeepFailingAreGivenUpAndLeaveRoomForOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const limit = 10
		term, src, givenUp := failingTerm(t, limit, func() bool { return true })
		stop := runLanes(t, term)
		defer stop()
		for i := range limit {
			uid := fmt.Sprintf("p%d", i)
			observe(t, term, pod(uid, 10))
			if !term.reports.add(source.Report{UID: uid, Reason: "Unschedulable"}) {
				t.Errorf("the report of %s is refused", uid)
			}
			synctest.Wait()
		}
		if n := len(*givenUp); term.reports.depth() != limit/2 || n != limit/2 {
			t.Errorf("%d reports wait, %d are given up", term.reports.depth(), n)
		}
		for range limit + 1 {
			term.events.add("", func(ctx context.Context) error { return src.Scheduled(ctx, source.Binding{}) })
			synctest.Wait()
		}
		if n := len(*givenUp); term.events.depth() != limit || n != limit/2+1 {
			t.Errorf("%d events wait, %d writes are given up", term.events.depth(), n)
		}
		elapse(5 * time.Minute)
		synctest.Wait()
		if n := len(*givenUp); term.reports.depth()+term.events.depth() > 0 || n != 2*limit+1 {
			t.Errorf("after five minutes %d reports and %d events wait, %d writes are given up", term.reports.depth(), term.events.depth(), n)
		}
	})
}
