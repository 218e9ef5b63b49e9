package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// refusedError says that the kernel does not let this process do what a Docker daemon does first.
type refusedError struct {
	what string
	err  error
}

func (e *refusedError) Error() string { return e.what + ": " + e.err.Error() }

// refusals are the kernel's ways to say that a process may not: no capability or a filter of system calls, one it does not
// have, and cgroups that are mounted to be read only.
var refusals = []error{syscall.EPERM, syscall.EACCES, syscall.ENOSYS, syscall.EROFS}

// tryNamespaces makes and leaves the namespaces, a mount and a cgroup that a daemon needs. A *refusedError is the kernel's
// no to one of them, as in a container without CAP_SYS_ADMIN; any other error is a fault.
func tryNamespaces() error {
	refused := func(what string, err error) error {
		for _, refusal := range refusals {
			if errors.Is(err, refusal) {
				return &refusedError{what, err}
			}
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	// With a mount namespace, Go mounts / again as private before it starts the program.
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	if err := cmd.Run(); err != nil {
		return refused("unshare network, mounts and processes", err)
	}
	cgroup, err := os.MkdirTemp(cgroupRoots()[0], "berth-compose-")
	if err != nil {
		return refused("make a cgroup", err)
	}
	return os.Remove(cgroup)
}

// cgroupRoots are the folders in which cgroups are made: one for all controllers, or, with cgroups v1, one per controller.
func cgroupRoots() []string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{root}
	}
	perController, err := filepath.Glob(root + "/*/cgroup.procs")
	if err != nil || len(perController) == 0 {
		return []string{root}
	}
	for i, file := range perController {
		perController[i] = filepath.Dir(file)
	}
	return perController
}
