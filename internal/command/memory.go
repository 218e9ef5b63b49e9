package command

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryFile is where Linux says how much memory a container may have.
const memoryFile = "/sys/fs/cgroup/memory.max"

// memoryLimit returns what Go is to keep to, in bytes: a tenth less than the container may have, since not all memory is Go's. It is 0
// if there is no limit.
func memoryLimit(text string) int64 {
	limit, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || limit <= 0 || limit == math.MaxInt64 { // "max"
		return 0
	}
	return limit - limit/10
}

// useMemory has the garbage collector know of the container's limit. GOMEMLIMIT has precedence.
func useMemory() {
	if _, set := os.LookupEnv("GOMEMLIMIT"); set {
		return
	}
	text, err := os.ReadFile(memoryFile)
	if err != nil {
		return
	}
	if limit := memoryLimit(string(text)); limit > 0 {
		debug.SetMemoryLimit(limit)
	}
}

// mostFloor is how much heapFloor returns where there is memory for it.
const mostFloor = 64 << 20

// heapFloor returns memory that holds nothing and, since nobody touches it, takes none. Go collects garbage when there is as much of it as the
// heap holds besides: where a cluster is small, so is the heap of its gateway, which would collect again after every few answers, and use more
// of the processors for that than for the answers. With this, there are 64 MiB of garbage first.
func heapFloor() []byte {
	_, set := os.LookupEnv("GOGC")
	return make([]byte, floorBytes(debug.SetMemoryLimit(-1), set))
}

// floorBytes returns how much of a limit on memory is for heapFloor: none if it is set when garbage is collected.
func floorBytes(limit int64, set bool) int64 {
	if set {
		return 0
	}
	return min(mostFloor, limit/16)
}
