//go:build race

package bubble

import (
	"runtime"
	"sync"
)

var (
	mu      sync.Mutex
	bubbles int
	before  int // GOMAXPROCS, while there are bubbles
)

// alone has one goroutine run at a time until end is called.
func alone() (end func()) {
	mu.Lock()
	defer mu.Unlock()
	if bubbles++; bubbles == 1 {
		before = runtime.GOMAXPROCS(1)
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if bubbles--; bubbles == 0 {
			runtime.GOMAXPROCS(before)
		}
	}
}
