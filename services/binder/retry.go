package binder

import "time"

// backoff is how long what has failed waits before it is tried again.
type backoff struct{ first, last time.Duration }

// after returns the delay after so many failures, at least one: the first, and then twice as long each time, up to the last.
func (b backoff) after(failures int) time.Duration {
	return min(b.first<<min(failures-1, 30), b.last)
}

// attempts are those of a write of the event lane or of the report lane. The zero value is a write that has not failed.
type attempts struct {
	tries int       // that failed
	due   time.Time // of the next; zero if none has failed, or if it is due
}

// failed counts a try that failed. False: it was the last.
func (a *attempts) failed(now time.Time) bool {
	a.tries++
	a.due = now.Add(writeBackoff.after(a.tries))
	return a.tries <= maxRetries
}
