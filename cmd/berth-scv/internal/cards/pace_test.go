package cards

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// status is one of two cards, of 40 GiB and 8 GiB, with a heartbeat of 60 s.
func status(after time.Duration, free, freeOfSmall int64) *scv.Status {
	return &scv.Status{
		Heartbeat: metav1.NewMicroTime(began.Add(after)), HeartbeatSeconds: 60, Driver: "550", CardNumber: 2, HealthyNumber: 2,
		Cards: []scv.Card{{ID: "a", Health: scv.Healthy, TotalMemoryMiB: 40960, FreeMemoryMiB: free}, {ID: "b", Health: scv.Healthy, TotalMemoryMiB: 8192, FreeMemoryMiB: freeOfSmall}},
	}
}

func TestAStatusIsWrittenAtOnceWhenItIsAnotherOneBeyondAStep(t *testing.T) {
	// 2 % of 40960 MiB are 819.2, of 8192 MiB 163.84.
	for name, c := range map[string]struct {
		change func(*scv.Status)
		want   bool
	}{
		"nothing":                 {func(*scv.Status) {}, false},
		"less than 2 % is taken":  {func(s *scv.Status) { s.Cards[0].FreeMemoryMiB -= 818 }, false},
		"2 % are taken":           {func(s *scv.Status) { s.Cards[0].FreeMemoryMiB -= 819 }, true},
		"2 % are given":           {func(s *scv.Status) { s.Cards[0].FreeMemoryMiB += 819 }, true},
		"less than 256 MiB":       {func(s *scv.Status) { s.Cards[1].FreeMemoryMiB += 255 }, false},
		"256 MiB":                 {func(s *scv.Status) { s.Cards[1].FreeMemoryMiB += 256 }, true},
		"health":                  {func(s *scv.Status) { s.Cards[1].Health = scv.Unhealthy }, true},
		"a reason":                {func(s *scv.Status) { s.Cards[1].Reason = "x" }, true},
		"an index":                {func(s *scv.Status) { s.Cards[1].Index = 5 }, true},
		"power, and a little":     {func(s *scv.Status) { s.Cards[1].PowerWatts, s.Cards[1].FreeMemoryMiB = 300, 8001 }, true},
		"the driver":              {func(s *scv.Status) { s.Driver = "560" }, true},
		"a card":                  {func(s *scv.Status) { s.Cards = s.Cards[:1] }, true},
		"what people are told of": {func(s *scv.Status) { s.FreeMemoryMiB = 1 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := Pace{StepMiB: 256, StepPercent: 2, Heartbeat: time.Minute}
			p.Begin(began)
			p.Wrote(status(0, 30000, 8000), 0.5)
			next := status(2*time.Second, 30000, 8000)
			c.change(next)
			want := began.Add(time.Minute * 9 / 10)
			if c.want {
				want = began.Add(time.Second)
			}
			if at := p.At(next); !at.Equal(want) {
				t.Errorf("written after %v, want %v", at.Sub(began), want.Sub(began))
			}
		})
	}
}

// What is below a step adds up: it is compared with what was written, not with what was read before.
func TestSmallStepsAddUp(t *testing.T) {
	p := Pace{StepMiB: 256, StepPercent: 2, Heartbeat: time.Minute}
	p.Begin(began)
	p.Wrote(status(0, 30000, 8000), 0.5)
	writes := 0
	for i := range int64(40) {
		now := began.Add(time.Duration(i+1) * time.Second)
		if s := status(now.Sub(began), 30000-100*i, 8000); !p.At(s).After(now) {
			writes++
			p.Begin(now)
			p.Wrote(s, 0.5)
		}
	}
	if writes != 4 { // at 900, 1800, 2700 and 3600 MiB less
		t.Errorf("%d writes, want 4", writes)
	}
}

func TestTheFirstStatusIsWrittenAtOnce(t *testing.T) {
	p := Pace{Heartbeat: time.Minute}
	if at := p.At(status(0, 0, 0)); at.After(began) {
		t.Errorf("written at %v", at)
	}
}

func TestHeartbeatsAreSpreadAndNeverLate(t *testing.T) {
	for _, c := range []struct {
		random float64
		want   time.Duration
	}{{0, 48600 * time.Millisecond}, {0.5, 54 * time.Second}, {1, 59400 * time.Millisecond}} {
		p := Pace{Heartbeat: time.Minute}
		p.Begin(began)
		p.Wrote(status(0, 1, 1), c.random)
		if got := p.At(status(0, 1, 1)).Sub(began); got.Round(time.Millisecond) != c.want {
			t.Errorf("with %v a heartbeat after %v, want %v", c.random, got, c.want)
		}
	}
}

func TestFailedWritesAreTriedMoreAndMoreSeldom(t *testing.T) {
	p := Pace{Heartbeat: time.Minute}
	now := began
	var waits []time.Duration
	for range 8 {
		p.Begin(now)
		p.Failed(now, 1)
		at := p.At(status(0, 1, 1))
		waits = append(waits, at.Sub(now))
		now = at
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		if waits[i] != want*time.Second {
			t.Fatalf("waits %v, want 1s, 2s, 4s, 8s, 16s, 30s, 30s, 30s", waits)
		}
	}
	// With the least jitter, half of it; but a second is between writes.
	p = Pace{Heartbeat: time.Minute}
	p.Begin(began)
	p.Failed(began, 0)
	if at := p.At(status(0, 1, 1)); at.Sub(began) != time.Second {
		t.Errorf("tried again after %v, want 1s", at.Sub(began))
	}
	// After one that succeeds it begins anew.
	p.Begin(now)
	p.Wrote(status(now.Sub(began), 1, 1), 0)
	p.Begin(now)
	p.Failed(now, 1)
	if at := p.At(status(0, 9999, 1)); at.Sub(now) != time.Second {
		t.Errorf("tried again after %v, want 1s", at.Sub(now))
	}
}

// A write may have been applied although it failed.
func TestAfterAWriteThatFailedTheStatusIsWrittenThoughItIsTheOneBefore(t *testing.T) {
	p := Pace{StepMiB: 256, Heartbeat: time.Hour}
	p.Begin(began)
	p.Wrote(status(0, 30000, 8000), 0)
	now := began.Add(time.Minute)
	p.Begin(now)
	p.Failed(now, 1)
	if at := p.At(status(time.Minute, 30000, 8000)); at.Sub(now) != time.Second {
		t.Errorf("written after %v, want 1s", at.Sub(now))
	}
}

// writes returns after how many seconds there are writes, if a status is asked for each second.
func writes(p *Pace, seconds int, of func(second int) *scv.Status) (all []int) {
	for i := range seconds {
		now := began.Add(time.Duration(i) * time.Second)
		s := of(i)
		if s.Heartbeat = metav1.NewMicroTime(now); !p.At(s).After(now) {
			p.Begin(now)
			p.Wrote(s, 0.5)
			all = append(all, i)
		}
	}
	return all
}

func TestChangesThatGoOnAreWrittenMoreAndMoreSeldom(t *testing.T) {
	changing := func(i int) *scv.Status { return status(0, int64(i%2)*10000, 8000) }
	p := Pace{StepMiB: 256, Heartbeat: time.Minute}
	// Each second one, it is that which was written.
	if diff := cmp.Diff([]int{0, 1, 4, 9, 18, 29, 40}, writes(&p, 50, changing)); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	ever := func(i int) *scv.Status { return status(0, int64(i)*1000, 8000) }
	p = Pace{StepMiB: 256, Heartbeat: time.Minute}
	if diff := cmp.Diff([]int{0, 1, 3, 7, 15, 25, 35, 45}, writes(&p, 50, ever)); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	// After a while without any, a change is written at once, and the next ones soon.
	p = Pace{StepMiB: 256, Heartbeat: time.Hour}
	pausing := func(i int) *scv.Status {
		if i >= 40 && i < 70 {
			i = 40
		}
		return ever(i)
	}
	if diff := cmp.Diff([]int{0, 1, 3, 7, 15, 25, 35, 45, 70, 71, 73, 77}, writes(&p, 80, pausing)); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	// A heartbeat does not wait.
	p = Pace{StepMiB: 256, Heartbeat: 3 * time.Second}
	if all := writes(&p, 30, ever); len(all) < 10 {
		t.Errorf("writes at %v, want one each 3 s", all)
	}
}

func TestACardThatBecomesUnhealthyDoesNotWait(t *testing.T) {
	p := Pace{StepMiB: 256, Heartbeat: time.Minute}
	got := writes(&p, 60, func(i int) *scv.Status {
		s := status(0, int64(i)*1000, 8000)
		if i >= 28 && i < 30 || i >= 32 {
			s.Cards[1].Health, s.Cards[1].Reason = scv.Unhealthy, "x"
		}
		return s
	})
	if diff := cmp.Diff([]int{0, 1, 3, 7, 15, 25, 28, 38, 48, 58}, got); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}
