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
