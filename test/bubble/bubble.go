// Package bubble runs tests in bubbles of testing/synctest, where time passes when nobody has anything to do.
//
// With the race detector, a timer that is due at once is run by whoever makes it, on account of one thread of the detector that a bubble has for
// all of its timers. Two at a time are more than that can take: the process dies, seldom, by "ThreadSanitizer: CHECK failed" or a segmentation
// fault in it (go.dev/issue/78156, as of Go 1.26). So goroutines take turns while there is a bubble and the detector looks. It
// knows of two accesses that nothing orders by what they waited for, not by when they were; but what else goes wrong only when goroutines run at the same
// time, it is for tests without a bubble, or without the detector, to meet.
package bubble

import (
	"testing"
	"testing/synctest"
)

// Test is synctest.Test.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	defer alone()()
	synctest.Test(t, f)
}
