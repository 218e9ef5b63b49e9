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

// kill9 ends a process, and all that it has started which is in its group still.
func kill9(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGKILL) }

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

// nicer is by how much a process gives way to others where there are too few processors.
const nicer = 5

// preferred has the system end the process before others, if memory runs out, and run others before it. If that cannot be had, nothing is lost.
func preferred(pid int) {
	_ = syscall.Setpriority(syscall.PRIO_PGRP, pid, nicer)
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0o644)
}
