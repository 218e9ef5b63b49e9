package main

import (
	"math"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestRateIsFromTheFirstBindSentToTheLastDone(t *testing.T) {
	sent := []time.Duration{1500 * ms, 1000 * ms, 1990 * ms, 1200 * ms} // in any order
	b, ok := burstOf(sent, 10*ms, nil)
	if !ok || b.first != time.Second || math.Abs(b.rate-4) > 1e-9 {
		t.Errorf("burst = %+v, %t, want 4 pods in 1 s from 1 s on", b, ok)
	}
	if b, ok := burstOf(nil, 10*ms, nil); ok {
		t.Errorf("without binds: %+v", b)
	}
	if b, ok := burstOf([]time.Duration{7 * ms}, 0, nil); !ok || b.rate != 0 || b.first != 7*ms {
		t.Errorf("one bind that took no time: %+v, %t, want no rate", b, ok)
	}
}

func TestCPUOfTheBurstLeavesOutWhatWasBefore(t *testing.T) {
	samples := []sample{{1000 * ms, 700 * ms}, {1100 * ms, 800 * ms}, {1200 * ms, 1000 * ms}, {5000 * ms, 1100 * ms}}
	b, _ := burstOf([]time.Duration{1050 * ms, 1140 * ms}, 10*ms, samples)
	if want := 150 * ms; b.cpu != want { // from 750 ms, half way between two samples, to 900 ms
		t.Errorf("cpu = %v, want %v", b.cpu, want)
	}
	for at, want := range map[time.Duration]time.Duration{0: 0, 500 * ms: 350 * ms, 1000 * ms: 700 * ms, time.Minute: 1100 * ms} {
		if got := cpuAt(samples, at); got != want {
			t.Errorf("used by %v: %v, want %v", at, got, want)
		}
	}
}

func TestOnlyBindsThatAreDoneCount(t *testing.T) {
	b, err := bindsIn([]byte(`# TYPE berth_binder_binds_total counter
berth_binder_bind_seconds_bucket{member="a",le="0.0005"} 7
berth_binder_bind_seconds_sum{member="a"} 1.5
berth_binder_bind_seconds_count{member="a"} 3
berth_binder_binds_total{member="a",result="done"} 1.2e+06
berth_binder_binds_total{member="a",result="unknown"} 40
berth_binder_binds_total{member="b",result="done"} 2
berth_binder_placed_total{member="a"} 9
go_goroutines 5
`))
	if want := (binds{done: 1_200_002, calls: 3, took: 1500 * ms}); err != nil || b != want {
		t.Errorf("binds = %+v, %v, want %+v", b, err, want)
	}
	if got := b.mean(); got != 500*ms {
		t.Errorf("mean of 3 calls in 1.5 s: %v", got)
	}
	if got := (binds{}).mean(); got != 0 {
		t.Errorf("mean of no calls: %v", got)
	}
	if _, err := bindsIn([]byte(`berth_binder_binds_total{result="done"} many`)); err == nil {
		t.Error("a value that is no number was read")
	}
}

func TestLossIsWhatTurnsWithQuestionsOrChangesLackOfThoseAround(t *testing.T) {
	turns := []turn{{0, time.Second, false}, {time.Second, 2 * time.Second, true}, {2 * time.Second, 4 * time.Second, false}, {4 * time.Second, 5 * time.Second, true},
		{5 * time.Second, 6 * time.Second, false}, {6 * time.Second, 7 * time.Second, true}, {7 * time.Second, 8 * time.Second, false}}
	// binds returns the times of so many binds in each turn, and one at 7.5 s: the last turn is not over.
	binds := func(counts ...int) []time.Duration {
		sent := []time.Duration{7500 * ms}
		for k, n := range counts {
			for i := range n {
				sent = append(sent, turns[k].from+time.Duration(i)*(turns[k].to-turns[k].from)/time.Duration(n))
			}
		}
		return sent
	}
	for _, c := range []struct {
		what   string
		counts []int
		want   float64
	}{
		{"the same pace", []int{100, 100, 200, 100, 100, 100}, 0}, // the third takes two seconds
		{"a tenth less", []int{100, 90, 200, 90, 100, 0}, 0.1},    // what has nothing after it does not count
		{"a pace that grows", []int{100, 110, 240, 130, 140, 150}, 0},
		{"more of them", []int{100, 120, 200, 120, 100, 0}, -0.2},
	} {
		if got, ok := lossOf(binds(c.counts...), turns); !ok || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, %t, want %v", c.what, got, ok, c.want)
		}
	}
	if got, ok := lossOf(binds(100, 90), turns[:2]); ok {
		t.Errorf("of two turns: %v", got)
	}
	if got, ok := lossOf(nil, turns); ok {
		t.Errorf("without binds: %v", got)
	}
}
