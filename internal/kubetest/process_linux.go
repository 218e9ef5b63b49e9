package kubetest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTick is the unit of the times in /proc/<pid>/stat: 1/100 s on every architecture that Go supports.
const clockTick = 10 * time.Millisecond

// procAttr makes children die with their parent, and keeps a terminal's Ctrl-C from reaching them: it is the parent
// that ends them, in its order.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// usage reads what a living process has consumed. The peak is VmHWM and not rusage's maxrss, which a child inherits
// from its parent at fork.
func usage(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	// The second field is the program's name in parentheses, which may contain anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return Usage{}, fmt.Errorf("parse /proc/%d/stat: %d fields", pid, len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return Usage{}, fmt.Errorf("parse /proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Usage{}, err
	}
	for line := range strings.Lines(string(status)) {
		value, ok := strings.CutPrefix(line, "VmHWM:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return Usage{}, fmt.Errorf("parse /proc/%d/status: %w", pid, err)
		}
		return Usage{CPU: time.Duration(ticks) * clockTick, PeakRSS: kib << 10}, nil
	}
	return Usage{}, fmt.Errorf("parse /proc/%d/status: no VmHWM", pid) // a zombie has no memory
}
