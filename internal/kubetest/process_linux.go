package kubetest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// procAttr makes children die with their parent, and keeps a terminal's Ctrl-C from reaching them: it is the parent
// that ends them, in its order.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// usage reads what a living process has consumed. The peak is VmHWM and not rusage's maxrss, which a child inherits
// from its parent at fork.
func usage(pid int) (Usage, error) {
	// The clock of a process: more exact than the ticks in /proc/<pid>/stat.
	var spent unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &spent); err != nil {
		return Usage{}, fmt.Errorf("read the clock of process %d: %w", pid, err)
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
		return Usage{CPU: time.Duration(spent.Nano()), PeakRSS: kib << 10}, nil
	}
	return Usage{}, fmt.Errorf("parse /proc/%d/status: no VmHWM", pid) // a zombie has no memory
}
