package main

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
