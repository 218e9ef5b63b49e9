package child

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// attributes have the child end with the thread that starts it, and keep a terminal's Ctrl-C from it: it ends when it is told to.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

func terminate(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

// resident returns how many bytes of memory a process has, 0 if that is not known.
func resident(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// preferred has the system end the process before others, if memory runs out. If that cannot be had, nothing is lost.
func preferred(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0o644)
}
