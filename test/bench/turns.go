package main

import (
	"math/rand/v2"
	"time"
)

// turn is a time in which all questions or changes come, or none. Times are since Berth's start.
type turn struct {
	from, to time.Duration
	on       bool
}

// turnLength is how long they come, or do not, in the mean, where that is by turns. Berth places some batches of pods meanwhile,
// and the machine's own pace, which changes from minute to minute, is the same before and after.
const turnLength = 500 * time.Millisecond

// nextTurn returns how long a turn lasts: half a turnLength to one and a half. Turns of one length would keep step with what comes at
// steady intervals, like garbage collections, and take it for the questions' doing; so they are others in each run, too.
func nextTurn() time.Duration { return turnLength/2 + rand.N(turnLength) }

// turns are the turns of a run, the first of which is without questions or changes.
type turns struct {
	over   []turn
	since  time.Time // Berth's start
	now    turn
	length time.Duration // of now
}

func takeTurns(since time.Time) *turns {
	return &turns{since: since, now: turn{from: time.Since(since)}, length: nextTurn()}
}

// on reports whether questions or changes are to come now.
func (t *turns) on() bool {
	if t.now.to = time.Since(t.since); t.now.to-t.now.from >= t.length {
		t.over = append(t.over, t.now)
		t.now, t.length = turn{from: t.now.to, on: !t.now.on}, nextTurn()
	}
	return t.now.on
}
