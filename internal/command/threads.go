package command

import (
	"os"
	"runtime"
)

// minThreads is how many threads run Go code where all roles and etcd are one process. With two on two cores, both always busy,
// Go looks at the network every 10 ms only, and whoever asks waits in line behind batches of pods and the garbage collector; with
// four the kernel takes turns between them. See docs/performance.md.
const minThreads = 4

// spareThreads is how many threads more than cores a gateway has. The work of people's calls has a turn for each core at most (rpc.Turns);
// the others look at the network meanwhile, and do what is short.
const spareThreads = 2

// threads returns how many threads are to run Go code, of at least so many. Fewer than there are cores are somebody's choice, or a limit of
// the container.
func threads(now, cores, least int, set bool) int {
	if set || now != cores {
		return now
	}
	return max(now, least)
}

// useThreads sees to it that at least so many threads run Go code.
func useThreads(least int) {
	_, set := os.LookupEnv("GOMAXPROCS")
	now := runtime.GOMAXPROCS(0)
	if n := threads(now, runtime.NumCPU(), least, set); n != now { // even to set the same would keep Go from following a limit that changes
		runtime.GOMAXPROCS(n)
	}
}
