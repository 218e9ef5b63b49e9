//go:build !linux

package etcdtest

import "os/exec"

// dieWithParent does nothing where the kernel has no such notion.
func dieWithParent(*exec.Cmd) {}
