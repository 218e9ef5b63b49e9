package main

import (
	"slices"
	"time"
)

// sample is what a running Berth had used at one moment. Times are since its start.
type sample struct{ at, cpu time.Duration }

// burst is the time in which pods were bound, from when the first bind was sent until the last was done.
type burst struct {
	first time.Duration // from the start of Berth
	rate  float64       // pods per second
	cpu   time.Duration // used in the meantime
}

// burstOf returns the burst of pods whose binds were sent at these times after the start of Berth, in any order, and took so
// long. There is none without binds. Samples are in order of their time.
func burstOf(sent []time.Duration, took time.Duration, samples []sample) (burst, bool) {
	if len(sent) == 0 {
		return burst{}, false
	}
	from, to := slices.Min(sent), slices.Max(sent)+took
	b := burst{first: from, cpu: cpuAt(samples, to) - cpuAt(samples, from)}
	if to > from {
		b.rate = float64(len(sent)) / (to - from).Seconds()
	}
	return b, true
}

// cpuAt returns what had been used at a time: a part of what was used between the two samples around it.
func cpuAt(samples []sample, at time.Duration) time.Duration {
	var before sample
	for _, s := range samples {
		if s.at >= at {
			part := float64(at-before.at) / float64(max(s.at-before.at, 1))
			return before.cpu + time.Duration(part*float64(s.cpu-before.cpu))
		}
		before = s
	}
	return before.cpu
}

// lossOf returns the share of the binds that are missing in the turns with questions or changes, compared with those before and after each:
// where the pace of all changes steadily, that is none. There is no such share without three turns before the last bind.
func lossOf(sent []time.Duration, turns []turn) (float64, bool) {
	if len(sent) == 0 {
		return 0, false
	}
	last := slices.Max(sent)
	var rates []float64
	for _, t := range turns {
		if t.to > last {
			break
		}
		binds := 0
		for _, at := range sent {
			if at >= t.from && at < t.to {
				binds++
			}
		}
		rates = append(rates, float64(binds)/(t.to-t.from).Seconds())
	}
	var with, without float64
	for k := range rates {
		if turns[k].on && k > 0 && k+1 < len(rates) {
			with += rates[k]
			without += (rates[k-1] + rates[k+1]) / 2
		}
	}
	return 1 - with/without, without > 0
}
