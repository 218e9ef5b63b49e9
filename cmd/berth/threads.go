package main

import (
	"os"
	"runtime"
)

// minThreads is how many threads run Go code where all roles and etcd are one process. With two on two cores, both always busy,
// Go looks at the network every 10 ms only, and whoever asks waits in line behind batches of pods and the garbage collector; with
// four the kernel takes turns between them. See docs/performance.md.
const minThreads = 4

// threads returns how many threads are to run Go code. Fewer than there are cores are somebody's choice, or a limit of the container.
func threads(now, cores int, set bool) int {
	if set || now != cores {
		return now
	}
	return max(now, minThreads)
}

// useThreads is for commands that run all roles.
func useThreads() {
	_, set := os.LookupEnv("GOMAXPROCS")
	now := runtime.GOMAXPROCS(0)
	if n := threads(now, runtime.NumCPU(), set); n != now { // even to set the same would keep Go from following a limit that changes
		runtime.GOMAXPROCS(n)
	}
}
