package source

import "time"

// Claim is what trying to take, or to renew, a lease has brought.
type Claim struct {
	// Until is until when, by the local clock, the caller may act as its holder. Zero: it may not.
	Until time.Time
	// Holder is who holds the lease.
	Holder string
}
