package etcdtest

import "golang.org/x/sys/unix"

// awaitStopped waits until every thread of a child that was sent SIGSTOP has stopped: the signal is only delivered when
// the system call returns, and on another CPU the child may still answer for a while.
func awaitStopped(pid int) error {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil); err != unix.EINTR {
			return err
		}
	}
}
