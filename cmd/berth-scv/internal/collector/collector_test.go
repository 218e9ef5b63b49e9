package collector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/cards"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/driver"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/driver/drivertest"
	"github.com/berth-scheduler/berth/test/bubble"
)

// rig is a Collector of a DGX, in a bubble, and what it has written and logged.
type rig struct {
	*Collector
	dgx      *drivertest.Machine
	registry *prometheus.Registry
	loaded   bool // the kernel has the driver, as far as that can be seen without its library
	began    time.Time
	ending   time.Duration // how long its end took
	after    func()        // what comes after it, if not nil

	mu     sync.Mutex
	lines  bytes.Buffer
	writes []scv.Status
	at     []time.Duration // when each write began
	fail   error           // what writes come to
	chance func() float64  // if not nil: what is random
	hold   chan struct{}   // if not nil: a write waits for it
}

func (r *rig) Write(ctx context.Context, newest func() *scv.Status) (*scv.Status, error) {
	r.mu.Lock()
	r.at = append(r.at, time.Since(r.began))
	fail, hold := r.fail, r.hold
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if fail != nil {
		return nil, fail
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := newest()
	r.writes = append(r.writes, *s)
	return s, nil
}

// ordered is a driver whose readings see what has been changed before.
type ordered struct {
	*driver.Driver
	rig *rig
}

func (d *ordered) Read() (cards.Reading, error) {
	d.rig.change(func(*drivertest.Machine) {})
	return d.Driver.Read()
}

// change changes the machine between two readings.
func (r *rig) change(f func(m *drivertest.Machine)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.dgx)
}

// logWriter writes lines of a rig's log.
type logWriter struct{ *rig }

func (w logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines.Write(line)
}

func (r *rig) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines.String()
}

// written returns what has been written, and tried when writes began.
func (r *rig) written() []scv.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes)
}

func (r *rig) tried() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at)
}

// failing makes writes fail with an error, or not.
func (r *rig) failing(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

// random has a Collector take its random numbers from f.
func (r *rig) random(f func() float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.chance = f
}

// last returns the newest status that was written, and how many were.
func (r *rig) last(t *testing.T) (scv.Status, int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.writes) == 0 {
		t.Fatal("nothing has been written")
	}
	return r.writes[len(r.writes)-1], len(r.writes)
}

// run runs f beside a Collector, which ends with it. Each step of f that takes time ends half of a second after a turn of the Collector.
func run(t *testing.T, m *drivertest.Machine, f func(r *rig)) *rig {
	t.Helper()
	return runEach(t, m, time.Second, f)
}

func runEach(t *testing.T, m *drivertest.Machine, interval time.Duration, f func(r *rig)) *rig {
	t.Helper()
	return runWith(t, m, interval, time.Minute, f)
}

func runWith(t *testing.T, m *drivertest.Machine, interval, heartbeat time.Duration, f func(r *rig)) *rig {
	t.Helper()
	var r *rig
	bubble.Test(t, func(t *testing.T) {
		numbers := rand.New(rand.NewPCG(1, 2)).Float64
		r = &rig{dgx: m, registry: prometheus.NewRegistry(), began: time.Now()}
		c, err := New(Config{
			Driver: &ordered{Driver: driver.New(m, func() bool { return r.loaded }), rig: r}, Writer: r, Interval: interval, Timeout: 10 * time.Second, Heartbeat: heartbeat, StepMiB: 256, StepPercent: 2,
			Random: func() float64 {
				r.mu.Lock()
				chance := r.chance
				r.mu.Unlock()
				if chance == nil {
					chance = numbers
				}
				return chance()
			}, Log: slog.New(slog.NewTextHandler(logWriter{r}, nil)), Metrics: r.registry,
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Collector = c
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); c.Run(ctx) }()
		pass(500 * time.Millisecond)
		f(r)
		end := time.Now()
		cancel()
		<-done
		r.ending = time.Since(end)
		if r.after != nil {
			r.after()
		}
	})
	return r
}

// pass lets time pass, until everybody waits.
func pass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

// reasons returns the reasons of unhealthy cards, as "GPU-0: reason".
func reasons(s scv.Status) (all []string) {
	for _, c := range s.Cards {
		if c.Health != scv.Healthy {
			all = append(all, c.ID+": "+c.Reason)
		}
	}
	return all
}

// metric returns the value of a metric, with its labels as {a="b"} if it has any.
func (r *rig) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			full := f.GetName()
			if len(labels) > 0 {
				full += "{" + strings.Join(labels, ",") + "}"
			}
			if full == name {
				return map[dto.MetricType]float64{
					dto.MetricType_GAUGE: m.GetGauge().GetValue(), dto.MetricType_COUNTER: m.GetCounter().GetValue(), dto.MetricType_HISTOGRAM: float64(m.GetHistogram().GetSampleCount()),
				}[f.GetType()]
			}
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

func TestTheCardsAreWrittenAtOnceAndThenWithEachHeartbeat(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		s, n := r.last(t)
		if n != 1 || s.CardNumber != 8 || s.HealthyNumber != 8 || s.FreeMemoryMiB != 8*40000 || s.HeartbeatSeconds != 60 || s.Driver != "550.54.15" || !s.Heartbeat.Time.Equal(r.began) {
			t.Errorf("%d writes, of %+v: want one, of 8 healthy cards, now", n, s)
		}
		pass(time.Hour)
		beats := make(map[time.Duration]bool)
		all := r.written()
		for i := range all[1:] {
			gap := all[i+1].Heartbeat.Sub(all[i].Heartbeat.Time)
			if beats[gap] = true; gap > time.Minute || gap < 48*time.Second {
				t.Errorf("a heartbeat %v after another, want 48s to 1m", gap)
			}
		}
		if len(beats) < 50 {
			t.Errorf("%d different times between %d heartbeats, want jitter", len(beats), len(all))
		}
		if got := r.metric(t, `berth_scv_writes_total{result="ok"}`); got != float64(len(all)) {
			t.Errorf("%v writes are counted, want %d", got, len(all))
		}
		if got := r.metric(t, "berth_scv_seconds_since_write"); got <= 0 || got > 60 {
			t.Errorf("%v s since the last write", got)
		}
	})
}

func TestFreeMemoryIsWrittenInSteps(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		for i, c := range []struct {
			free   uint64 // MiB
			writes int
		}{{39500, 1}, {39182, 1}, {39181, 2}, {39999, 2}, {40000, 3}} { // 2 % of 40960 MiB are 819
			r.change(func(m *drivertest.Machine) { m.Cards[3].MemoryInfo.Free = c.free << 20 })
			pass(2 * time.Second)
			if _, n := r.last(t); n != c.writes {
				t.Errorf("step %d: %d writes, want %d", i, n, c.writes)
			}
		}
		// What is less than a step is told with the next heartbeat.
		r.change(func(m *drivertest.Machine) { m.Cards[3].MemoryInfo.Free = 39900 << 20 })
		pass(time.Minute)
		if s, _ := r.last(t); s.Cards[3].FreeMemoryMiB != 39900 {
			t.Errorf("%d MiB are free after a heartbeat, want 39900", s.Cards[3].FreeMemoryMiB)
		}
	})
}

func TestNoTwoWritesInASecond(t *testing.T) {
	runEach(t, drivertest.DGX(), 100*time.Millisecond, func(r *rig) {
		for i := range 100 {
			r.change(func(m *drivertest.Machine) { m.Cards[0].MemoryInfo.Free = uint64(i%2) << 34 })
			pass(130 * time.Millisecond)
		}
		all := r.tried()
		if len(all) < 4 || len(all) > 5 {
			t.Errorf("%d writes of ever new statuses in 13s, want 4 or 5", len(all))
		}
		for i, at := range all[1:] {
			if gap := at - all[i]; gap < time.Second {
				t.Errorf("a write %v after another", gap)
			}
		}
	})
}

func TestACardThatFallsOffTheBusStaysAndIsUnhealthy(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		handle := r.dgx.DeviceGetHandleByIndexFunc
		r.change(func(m *drivertest.Machine) {
			m.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
				if i == 3 {
					return nil, nvml.ERROR_GPU_IS_LOST
				}
				return handle(i)
			}
		})
		pass(2 * time.Second)
		s, n := r.last(t)
		if diff := cmp.Diff([]string{"GPU-3: has fallen off the bus"}, reasons(s)); diff != "" || n != 2 || s.CardNumber != 8 || s.HealthyNumber != 7 || s.FreeMemoryMiB != 7*40000 {
			t.Errorf("%d writes, of %+v: want GPU-3 unhealthy in the second\n%s", n, s, diff)
		}
		if healthy, sick := r.metric(t, `berth_scv_cards{health="Healthy"}`), r.metric(t, `berth_scv_cards{health="Unhealthy"}`); healthy != 7 || sick != 1 {
			t.Errorf("%v healthy cards and %v unhealthy are counted", healthy, sick)
		}
		pass(time.Minute)
		r.change(func(m *drivertest.Machine) { m.DeviceGetHandleByIndexFunc = handle })
		pass(2 * time.Second)
		if s, _ := r.last(t); s.HealthyNumber != 8 {
			t.Errorf("%d healthy cards when it is back", s.HealthyNumber)
		}
		for _, line := range []string{"a card is unhealthy", "a card is healthy again", "something was not read"} {
			if n := strings.Count(r.log(), line); n != 1 {
				t.Errorf("%d lines %q, want one:\n%s", n, line, r.log())
			}
		}
	})
}

func TestAHangOfTheDriverMakesAllCardsUnhealthyUntilItIsOver(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		hang, calls := make(chan struct{}), 0
		memory := r.dgx.Cards[2].GetMemoryInfoFunc
		r.change(func(m *drivertest.Machine) {
			m.Cards[2].GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
				calls++
				<-hang
				return memory()
			}
		})
		pass(9 * time.Second) // the last answer was at 0
		if s, _ := r.last(t); s.HealthyNumber != 8 {
			t.Errorf("%d healthy cards before the timeout", s.HealthyNumber)
		}
		pass(time.Second)
		s, n := r.last(t)
		if n != 2 || s.HealthyNumber != 0 || s.CardNumber != 8 || s.Cards[0].Reason != "the driver has not answered for more than 10 seconds" {
			t.Errorf("%d writes, of %+v: want 8 unhealthy cards in the second", n, s)
		}
		pass(59 * time.Minute)
		if s, n := r.last(t); n > 80 || s.HealthyNumber != 0 || s.Cards[0].Reason != "the driver has not answered for more than 15 minutes" {
			t.Errorf("%d writes, of %+v: want heartbeats, and a reason that says so", n, s)
		}
		if calls != 1 {
			t.Errorf("%d readings at a time", calls)
		}
		if got := r.metric(t, `berth_scv_readings_total{result="late"}`); got != 1 {
			t.Errorf("%v late readings are counted", got)
		}
		if err := r.Healthy(); err != nil {
			t.Errorf("another process would hang too: %v", err)
		}
		close(hang)
		pass(2 * time.Second)
		if s, _ := r.last(t); s.HealthyNumber != 8 {
			t.Errorf("%d healthy cards when it answers again, want 8", s.HealthyNumber)
		}
		for _, line := range []string{"the driver does not answer", "the driver answers again"} {
			if n := strings.Count(r.log(), line); n != 1 {
				t.Errorf("%d lines %q, want one:\n%s", n, line, r.log())
			}
		}
	})
}

func TestTheEndDoesNotWaitForADriverThatHangs(t *testing.T) {
	r := run(t, drivertest.DGX(), func(r *rig) {
		hang := make(chan struct{})
		r.change(func(m *drivertest.Machine) {
			m.DeviceGetCountFunc = func() (int, nvml.Return) { <-hang; return 0, nvml.SUCCESS }
		})
		pass(time.Hour)
		r.after = func() { close(hang) } // all goroutines of a bubble have to end
	})
	if r.ending > 0 {
		t.Errorf("the end took %v", r.ending)
	}
	if n := len(r.dgx.ShutdownCalls()); n != 0 {
		t.Errorf("%d shutdowns of a driver that hangs", n)
	}
}

func TestTheEndWaitsForAReadingAndShutsTheDriverDown(t *testing.T) {
	r := run(t, drivertest.DGX(), func(r *rig) {
		count, slow := r.dgx.DeviceGetCountFunc, make(chan struct{})
		time.AfterFunc(5500*time.Millisecond, func() { close(slow) })
		r.change(func(m *drivertest.Machine) {
			m.DeviceGetCountFunc = func() (int, nvml.Return) { <-slow; return count() }
		})
		pass(time.Second) // the reading began half of a second ago
	})
	if r.ending != 4500*time.Millisecond {
		t.Errorf("the end took %v, want 4.5s", r.ending)
	}
	if n := len(r.dgx.ShutdownCalls()); n != 1 {
		t.Errorf("%d shutdowns, want one", n)
	}
}

func TestADriverThatHangsFromTheBeginningIsToldWithNoCards(t *testing.T) {
	m := drivertest.DGX()
	var hang chan struct{}
	m.InitFunc = func() nvml.Return {
		hang = make(chan struct{}) // in the bubble
		<-hang
		return nvml.SUCCESS
	}
	run(t, m, func(r *rig) {
		// What the process before has written stays as long as it is believed.
		pass(3*time.Minute - time.Second)
		if len(r.tried()) != 0 {
			t.Error("something was written before anything is known")
		}
		if !strings.Contains(r.log(), "the driver does not answer") {
			t.Errorf("nobody is told:\n%s", r.log())
		}
		pass(time.Second)
		if s, n := r.last(t); n != 1 || s.Cards == nil || s.CardNumber != 0 {
			t.Errorf("%d writes, of %+v: want one of no cards", n, s)
		}
		close(hang)
		pass(2 * time.Second)
		if s, _ := r.last(t); s.HealthyNumber != 8 {
			t.Errorf("%d healthy cards when it answers, want 8", s.HealthyNumber)
		}
	})
}

func TestADriverThatIsSlowInTheBeginningTakesNoCardsAway(t *testing.T) {
	m := drivertest.DGX()
	m.InitFunc = func() nvml.Return {
		<-time.NewTimer(time.Minute).C
		return nvml.SUCCESS
	}
	run(t, m, func(r *rig) {
		pass(2 * time.Minute)
		for i, s := range r.written() {
			if s.HealthyNumber != 8 {
				t.Errorf("write %d has %d healthy cards, want 8", i, s.HealthyNumber)
			}
		}
		if at := r.tried(); len(at) == 0 || at[0] != time.Minute {
			t.Errorf("writes at %v, want the first one when the cards are read", at)
		}
	})
}

func TestADriverThatFailsFromTheBeginningIsToldWithNoCards(t *testing.T) {
	m := drivertest.DGX()
	m.InitFunc = func() nvml.Return { return nvml.ERROR_UNKNOWN }
	run(t, m, func(r *rig) {
		pass(9 * time.Second)
		if len(r.tried()) != 0 {
			t.Error("something was written before the driver's timeout")
		}
		pass(time.Second)
		if s, n := r.last(t); n != 1 || s.CardNumber != 0 {
			t.Errorf("%d writes, of %+v: want one of no cards", n, s)
		}
	})
}

func TestAPanicMakesReadingsFailAndIsLoggedOnce(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		name := r.dgx.Cards[1].GetNameFunc
		r.change(func(m *drivertest.Machine) {
			m.Cards[1].GetNameFunc = func() (string, nvml.Return) { panic("no such page") }
		})
		pass(9 * time.Second)
		if s, _ := r.last(t); s.HealthyNumber != 8 {
			t.Errorf("%d healthy cards before the timeout", s.HealthyNumber)
		}
		pass(2 * time.Second)
		if s, _ := r.last(t); s.HealthyNumber != 0 || s.CardNumber != 8 {
			t.Errorf("%d healthy cards of %d, want none of 8", s.HealthyNumber, s.CardNumber)
		}
		r.change(func(m *drivertest.Machine) { m.Cards[1].GetNameFunc = name })
		pass(2 * time.Second)
		if s, _ := r.last(t); s.HealthyNumber != 8 {
			t.Errorf("%d healthy cards afterwards, want 8", s.HealthyNumber)
		}
		if n := strings.Count(r.log(), "no such page"); n != 1 {
			t.Errorf("%d lines of the panic, want one:\n%s", n, r.log())
		}
		if got := r.metric(t, `berth_scv_readings_total{result="failed"}`); got != 11 {
			t.Errorf("%v failed readings are counted, want 11", got)
		}
	})
}

func TestACriticalErrorMakesItsCardUnhealthyUntilTheDriverIsLoadedAnew(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		r.change(func(m *drivertest.Machine) {
			m.Events = []nvml.EventData{
				{Device: r.dgx.Cards[1], EventType: nvml.EventTypeXidCriticalError, EventData: 31},
				{Device: r.dgx.Cards[2], EventType: nvml.EventTypeXidCriticalError, EventData: 48},
			}
		})
		want := []string{"GPU-2: has had critical errors since the driver was loaded (XID 48)"}
		all := make([]string, 8)
		for i := range all {
			all[i] = fmt.Sprintf("GPU-%d: may have had critical errors that the driver names no card for (XID 119)", i)
		}
		all[2] = want[0] + "; " + strings.TrimPrefix(all[2], "GPU-2: ")
		for range 3 {
			pass(time.Minute)
			if s, _ := r.last(t); !slices.Equal(reasons(s), want) {
				t.Errorf("unhealthy are %q, want %q", reasons(s), want)
			}
		}
		r.change(func(m *drivertest.Machine) {
			m.Events = []nvml.EventData{{EventType: nvml.EventTypeXidCriticalError, EventData: 119}}
		})
		for range 3 {
			pass(time.Minute)
			if s, _ := r.last(t); !slices.Equal(reasons(s), all) {
				t.Errorf("unhealthy are %q, want %q", reasons(s), all)
			}
		}
		if app, critical := r.metric(t, `berth_scv_xids_total{critical="false",xid="31"}`), r.metric(t, `berth_scv_xids_total{critical="true",xid="48"}`); app != 1 || critical != 1 {
			t.Errorf("%v and %v errors are counted", app, critical)
		}
		if !strings.Contains(r.log(), "xid=119") {
			t.Errorf("an error of nobody is not logged:\n%s", r.log())
		}
		count := r.dgx.DeviceGetCountFunc
		r.change(func(m *drivertest.Machine) {
			m.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_DRIVER_NOT_LOADED }
		})
		pass(2 * time.Second)
		if s, _ := r.last(t); s.HealthyNumber != 0 || s.Cards[0].Reason != "the driver is not loaded" {
			t.Errorf("cards of a driver that is not loaded: %+v", s.Cards)
		}
		r.change(func(m *drivertest.Machine) { m.DeviceGetCountFunc = count })
		pass(2 * time.Second)
		if s, _ := r.last(t); s.HealthyNumber != 8 {
			t.Errorf("unhealthy are %q when it is loaded anew", reasons(s))
		}
	})
}

func TestANodeWithoutADriverHasHeartbeatsAndOneLineAndTheDriverMayComeLate(t *testing.T) {
	m := drivertest.DGX()
	m.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	run(t, m, func(r *rig) {
		pass(10 * time.Minute)
		s, n := r.last(t)
		if n < 10 || n > 14 || s.Cards == nil || s.CardNumber != 0 {
			t.Errorf("%d writes, of %+v: want heartbeats, of no cards", n, s)
		}
		if lines := strings.Count(r.log(), "\n"); lines != 1 || !strings.Contains(r.log(), "level=INFO") {
			t.Errorf("want one line of information:\n%s", r.log())
		}
		r.change(func(m *drivertest.Machine) { m.InitFunc = func() nvml.Return { return nvml.SUCCESS } })
		pass(2 * time.Second)
		if s, _ := r.last(t); s.HealthyNumber != 8 {
			t.Errorf("%d healthy cards when the driver has come, want 8", s.HealthyNumber)
		}
	})
}

func TestANodeWithoutCardsHasHeartbeatsAndOneLine(t *testing.T) {
	m := drivertest.DGX()
	m.Devices = nil
	run(t, m, func(r *rig) {
		pass(10 * time.Minute)
		if s, n := r.last(t); n < 10 || n > 14 || s.Cards == nil || s.CardNumber != 0 {
			t.Errorf("%d writes, of %+v: want heartbeats, of no cards", n, s)
		}
		if lines := strings.Count(r.log(), "\n"); lines != 1 || !strings.Contains(r.log(), "level=INFO") {
			t.Errorf("want one line of information:\n%s", r.log())
		}
	})
}

func TestAfterWritesThatFailedTheNewestIsWritten(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		r.failing(errors.New("no route"))
		for i := range uint64(40) {
			r.change(func(m *drivertest.Machine) { m.Cards[0].MemoryInfo.Free = (30000 - 500*i) << 20 })
			pass(15 * time.Second)
		}
		_, n := r.last(t)
		tried := len(r.tried()) - n
		if n != 1 || tried < 15 || tried > 50 {
			t.Errorf("%d writes, and %d were tried in 10 minutes: want one, and a try each 15 to 30 s", n, tried)
		}
		if lines := strings.Count(r.log(), "no route"); lines != 1 {
			t.Errorf("%d lines of the error, want one:\n%s", lines, r.log())
		}
		r.failing(errors.New("refused"))
		pass(time.Minute)
		r.failing(nil)
		pass(time.Minute)
		if s, n := r.last(t); n != 2 && n != 3 || s.Cards[0].FreeMemoryMiB != 30000-500*39 {
			t.Errorf("%d writes, the last of %d MiB: want the newest, and no other", n, s.Cards[0].FreeMemoryMiB)
		}
		for _, line := range []string{"refused", "the resource is written again"} {
			if n := strings.Count(r.log(), line); n != 1 {
				t.Errorf("%d lines %q, want one:\n%s", n, line, r.log())
			}
		}
	})
}

func TestAWriteThatHangsHoldsUpNoReadingAndNoOtherIsBegun(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		hold := make(chan struct{})
		r.mu.Lock()
		r.hold = hold
		r.mu.Unlock()
		r.change(func(m *drivertest.Machine) { m.Cards[0].MemoryInfo.Free = 0 })
		before := r.metric(t, `berth_scv_readings_total{result="ok"}`)
		pass(time.Minute)
		if got := r.metric(t, `berth_scv_readings_total{result="ok"}`) - before; got != 60 {
			t.Errorf("%v readings in a minute, want 60", got)
		}
		if len(r.tried()) != 2 {
			t.Errorf("%d writes were begun, want 2", len(r.tried()))
		}
		close(hold)
		pass(time.Second)
		if s, _ := r.last(t); s.Cards[0].FreeMemoryMiB != 0 {
			t.Errorf("the last write has %d MiB", s.Cards[0].FreeMemoryMiB)
		}
	})
}

func TestAWriteThatWasHeldUpTellsWhatIsKnownThen(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		hold := make(chan struct{})
		r.mu.Lock()
		r.hold = hold
		r.mu.Unlock()
		r.change(func(m *drivertest.Machine) { m.Cards[0].MemoryInfo.Free = 0 })
		pass(30 * time.Second)
		r.change(func(m *drivertest.Machine) { m.Cards[0].MemoryInfo.Free = 20000 << 20 })
		pass(2 * time.Second)
		close(hold)
		pass(time.Second)
		all := r.written()
		if len(all) != 2 || all[1].Cards[0].FreeMemoryMiB != 20000 || all[1].Heartbeat.Sub(r.began) != 32*time.Second {
			t.Errorf("%d writes, the last of %d MiB after %v: want a second one, of 20000 after 32s", len(all), all[len(all)-1].Cards[0].FreeMemoryMiB, all[len(all)-1].Heartbeat.Sub(r.began))
		}
		// And is compared with what comes then.
		pass(10 * time.Second)
		if n := len(r.written()); n != 2 {
			t.Errorf("%d writes though nothing has changed, want 2", n)
		}
	})
}

func TestAWriteHasTheTimeOfAHeartbeat(t *testing.T) {
	for _, x := range []struct{ heartbeat, want time.Duration }{{time.Minute, time.Minute}, {time.Second, 10 * time.Second}} {
		runWith(t, drivertest.DGX(), time.Second, x.heartbeat, func(r *rig) {
			r.mu.Lock()
			r.hold = make(chan struct{})
			r.mu.Unlock()
			r.change(func(m *drivertest.Machine) { m.Cards[0].MemoryInfo.Free = 0 })
			pass(time.Second)
			began := r.tried()
			last := began[len(began)-1]
			pass(last + x.want - time.Since(r.began) - time.Millisecond)
			if got := r.metric(t, `berth_scv_writes_total{result="failed"}`); got != 0 {
				t.Errorf("heartbeats each %v: a write has failed before %v", x.heartbeat, x.want)
			}
			pass(time.Millisecond)
			if got := r.metric(t, `berth_scv_writes_total{result="failed"}`); got != 1 {
				t.Errorf("heartbeats each %v: %v writes have failed after %v, want one", x.heartbeat, got, x.want)
			}
		})
	}
}

func TestHeartbeatsOfASecondAreNotLate(t *testing.T) {
	runWith(t, drivertest.DGX(), time.Second, time.Second, func(r *rig) {
		pass(time.Minute)
		all := r.written()
		for i := range all[1:] {
			if gap := all[i+1].Heartbeat.Sub(all[i].Heartbeat.Time); gap >= time.Second || gap < 810*time.Millisecond {
				t.Errorf("a heartbeat %v after another, want 810ms to 1s", gap)
			}
		}
		if len(all) < 60 {
			t.Errorf("%d writes in a minute, want 60 at least", len(all))
		}
	})
}

func TestADriverWithoutALibraryNeedsAnotherContainer(t *testing.T) {
	m := drivertest.DGX()
	begin := m.InitFunc
	m.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	run(t, m, func(r *rig) {
		loaded := func(is bool) { r.change(func(*drivertest.Machine) { r.loaded = is }) }
		pass(time.Hour)
		if err := r.Healthy(); err != nil {
			t.Errorf("without a driver: %v", err)
		}
		for range 2 {
			loaded(true)
			pass(10 * time.Minute)
			if err := r.Healthy(); err != nil {
				t.Errorf("a driver that has just been loaded: %v", err)
			}
			loaded(false)
			pass(time.Minute)
		}
		loaded(true)
		pass(10*time.Minute + time.Second)
		if err := r.Healthy(); err == nil || !strings.Contains(err.Error(), "its library is not there: a new container may have it") {
			t.Errorf("error %v, want one that says why", err)
		}
		r.change(func(m *drivertest.Machine) { m.InitFunc = begin })
		pass(time.Second)
		if s, _ := r.last(t); r.Healthy() != nil || s.HealthyNumber != 8 {
			t.Errorf("when the library has come: %v, %d healthy cards", r.Healthy(), s.HealthyNumber)
		}
	})
}

func TestALibraryThatDoesNotFitTheDriverNeedsAnotherProcess(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		if err := r.Healthy(); err != nil {
			t.Errorf("unhealthy: %v", err)
		}
		r.change(func(m *drivertest.Machine) {
			m.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_LIB_RM_VERSION_MISMATCH }
		})
		pass(2 * time.Second)
		if err := r.Healthy(); err == nil || !strings.Contains(err.Error(), cards.ReasonMismatch) {
			t.Errorf("error %v, want one that says why", err)
		}
		if s, _ := r.last(t); s.HealthyNumber != 0 || s.CardNumber != 8 {
			t.Errorf("%d healthy cards of %d, want none of 8", s.HealthyNumber, s.CardNumber)
		}
	})
}

func TestConfigurationsThatCannotBeAreRefused(t *testing.T) {
	good := Config{Interval: time.Second, Timeout: time.Minute, Heartbeat: time.Second}
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"interval":           {func(c *Config) { c.Interval = 0 }, "--interval 0s"},
		"timeout":            {func(c *Config) { c.Timeout = -1 }, "--driver-timeout -1ns"},
		"no reading in time": {func(c *Config) { c.Interval = time.Minute }, "--interval 1m0s: want less than --driver-timeout, which is 1m0s"},
		"no turn in time":    {func(c *Config) { c.Interval, c.Timeout = 31*time.Second, time.Hour }, "--interval 31s: want 30s at most"},
		"no heartbeat":       {func(c *Config) { c.Heartbeat = 0 }, "a heartbeat of 0s"},
		"half a second":      {func(c *Config) { c.Heartbeat = 1500 * time.Millisecond }, "a heartbeat of 1.5s"},
		"two hours":          {func(c *Config) { c.Heartbeat = 2 * time.Hour }, "a heartbeat of 2h"},
		"a negative step":    {func(c *Config) { c.StepMiB = -1 }, "steps of -1 MiB"},
		"101 percent":        {func(c *Config) { c.StepPercent = 101 }, "101 %"},
	} {
		cfg := good
		cfg.Metrics = prometheus.NewRegistry()
		c.change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
	for _, interval := range []time.Duration{time.Second, 30 * time.Second} {
		good.Interval, good.Timeout, good.Metrics = interval, interval+1, prometheus.NewRegistry()
		if _, err := New(good); err != nil {
			t.Error(err)
		}
	}
}

// absent has a machine's readings end with an error of NVML, or, if that is none, be as before.
func absent(r *rig, ret nvml.Return) {
	r.change(func(m *drivertest.Machine) {
		m.InitFunc = func() nvml.Return { return ret }
		m.DeviceGetCountFunc = func() (int, nvml.Return) { return len(m.Devices), ret }
	})
}

func TestAProcessThatHasReadNoCardsIsNotMendedByAnother(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_UNKNOWN} {
		m := drivertest.DGX()
		m.InitFunc = func() nvml.Return { return ret }
		run(t, m, func(r *rig) {
			pass(time.Hour)
			if err := r.Healthy(); err != nil {
				t.Errorf("%v from the beginning: %v", ret, err)
			}
		})
	}
}

func TestReadingsThatFailForLongNeedAnotherProcess(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		for range 3 {
			absent(r, nvml.ERROR_UNKNOWN)
			pass(5 * time.Minute)
			if err := r.Healthy(); err != nil {
				t.Errorf("before 5 minutes: %v", err)
			}
			absent(r, nvml.SUCCESS)
			pass(time.Minute)
		}
		absent(r, nvml.ERROR_UNKNOWN)
		pass(5*time.Minute + time.Second)
		if err := r.Healthy(); err == nil || !strings.Contains(err.Error(), "readings have failed for more than 5m0s: ") {
			t.Errorf("error %v, want one that says that readings fail", err)
		}
		absent(r, nvml.SUCCESS)
		pass(time.Second)
		if err := r.Healthy(); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestACollectorWithoutATurnIsNotHealthy(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		hold := make(chan struct{})
		r.random(func() float64 { <-hold; return 0 })
		pass(time.Minute)
		if err := r.Healthy(); err != nil {
			t.Error(err)
		}
		pass(2 * time.Minute)
		if err := r.Healthy(); err == nil || !strings.Contains(err.Error(), "no turn for ") {
			t.Errorf("error %v, want one that says that it is stuck", err)
		}
		close(hold)
		pass(time.Second)
		if err := r.Healthy(); err != nil {
			t.Error(err)
		}
	})
}

func TestOfWhatFlapsThereIsALineAMinute(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		handle := r.dgx.DeviceGetHandleByIndexFunc
		n := 0
		r.change(func(m *drivertest.Machine) {
			m.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
				if n++; i == 3 && n%16 < 8 {
					return nil, nvml.ERROR_GPU_IS_LOST
				}
				return handle(i)
			}
		})
		pass(10*time.Minute - time.Second)
		if n := strings.Count(r.log(), "something was not read"); n < 9 || n > 10 {
			t.Errorf("%d lines in 10 minutes, want one a minute", n)
		}
	})
}

func TestOfAWriteThatFailedItIsNotKnownWhetherItWasApplied(t *testing.T) {
	run(t, drivertest.DGX(), func(r *rig) {
		r.random(func() float64 { return 1 })
		r.failing(errors.New("no answer"))
		r.change(func(m *drivertest.Machine) { m.Cards[0].MemoryInfo.Free = 0 })
		pass(time.Second) // one write, which fails
		r.change(func(m *drivertest.Machine) { m.Cards[0].MemoryInfo.Free = 40000 << 20 })
		pass(2 * time.Second) // and another one
		r.failing(nil)
		pass(2 * time.Second)
		if s, n := r.last(t); n != 2 || s.Cards[0].FreeMemoryMiB != 40000 {
			t.Errorf("%d writes, the last of %d MiB: want a second one, of 40000", n, s.Cards[0].FreeMemoryMiB)
		}
	})
}
