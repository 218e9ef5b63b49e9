package cards

import (
	"time"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

const (
	// writeEvery is the least time between the beginnings of two writes, if a heartbeat does not come sooner.
	writeEvery = time.Second
	// gapMost is the most time that a change waits since the write before.
	gapMost = 10 * time.Second
	// backoffMost is the most time that is waited after writes that failed, if a heartbeat does not come sooner.
	backoffMost = 30 * time.Second
)

// Pace decides when a status is written: at once if it is another one beyond a step, and else with the next heartbeat; never twice in a second, or in 81 % of a shorter heartbeat, and ever more seldom
// while writes fail. While one change comes after the other they wait for ever longer after the write before, but for cards that become unhealthy.
type Pace struct {
	// StepMiB and StepPercent say by how much the free memory of a card changes before that is written: by StepMiB, or StepPercent of the card's memory, whichever is more.
	StepMiB, StepPercent int64
	// Heartbeat is how long after a write the next one is at the latest.
	Heartbeat time.Duration

	written   *scv.Status // nil: none yet, or not known
	beat      time.Time   // when the next heartbeat is
	notBefore time.Time
	begun     time.Time     // when the last write began
	gap       time.Duration // for how long after it changes wait
	failures  int
}

// At returns when a status is to be written: now, if that has passed.
func (p *Pace) At(s *scv.Status) time.Time {
	if p.written == nil || p.worse(s) {
		return p.notBefore
	}
	at := p.beat
	if change := p.begun.Add(p.gap); change.Before(at) && p.changed(s) {
		at = change
	}
	if at.Before(p.notBefore) {
		return p.notBefore
	}
	return at
}

// Begin says that a write has begun. If it comes as late as two might have, changes do not go on.
func (p *Pace) Begin(now time.Time) {
	if now.Sub(p.begun) >= 2*p.gap {
		p.gap = writeEvery
	} else {
		p.gap = min(2*p.gap, gapMost)
	}
	p.begun, p.notBefore = now, now.Add(min(writeEvery, p.after(0)))
}

// Wrote says that a status has been written, whose heartbeat is when its write began. Random is 0 to 1.
//
// Heartbeats come after 81 % to 99 % of their time, so that nodes that have begun together do not write together, and none comes late.
func (p *Pace) Wrote(s *scv.Status, random float64) {
	p.written, p.failures = s, 0
	p.beat = s.Heartbeat.Add(p.after(random))
}

// after returns after how long a heartbeat comes.
func (p *Pace) after(random float64) time.Duration {
	return time.Duration(0.9 * (0.9 + 0.2*random) * float64(p.Heartbeat))
}

// Failed says that a write has failed, or is not known to have succeeded. The next one is not compared with what was written before. Random is 0 to 1.
func (p *Pace) Failed(now time.Time, random float64) {
	wait := min(backoffMost, p.Heartbeat/2)
	if p.failures < 5 {
		wait = min(wait, writeEvery<<p.failures)
	}
	p.written = nil
	p.failures++
	if at := now.Add(time.Duration((0.5 + 0.5*random) * float64(wait))); at.After(p.notBefore) {
		p.notBefore = at
	}
}

// worse reports whether a card is unhealthy that was written as healthy.
func (p *Pace) worse(s *scv.Status) bool {
	healthy := make(map[string]bool, len(s.Cards))
	for _, c := range s.Cards {
		healthy[c.ID] = c.Health == scv.Healthy
	}
	for _, c := range p.written.Cards {
		if is, there := healthy[c.ID]; there && !is && c.Health == scv.Healthy {
			return true
		}
	}
	return false
}

// changed reports whether a status differs from the one that was written by more than its heartbeat and steps of free memory.
func (p *Pace) changed(s *scv.Status) bool {
	w := p.written
	if s.HeartbeatSeconds != w.HeartbeatSeconds || s.Driver != w.Driver || len(s.Cards) != len(w.Cards) {
		return true
	}
	for i, is := range s.Cards {
		was := w.Cards[i]
		d := is.FreeMemoryMiB - was.FreeMemoryMiB
		if max(d, -d) >= max(p.StepMiB, p.StepPercent*is.TotalMemoryMiB/100, 1) {
			return true
		}
		if was.FreeMemoryMiB = is.FreeMemoryMiB; is != was {
			return true
		}
	}
	return false
}
