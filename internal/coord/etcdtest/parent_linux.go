package etcdtest

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the process when the thread that starts it ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
