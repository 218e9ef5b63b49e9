//go:build unix && !linux

package kubetest

import (
	"errors"
	"syscall"
)

// procAttr leaves children in their parent's process group, so that a terminal's Ctrl-C ends them too.
func procAttr() *syscall.SysProcAttr { return nil }

// usage is known only where there is a /proc.
func usage(int) (Usage, error) { return Usage{}, errors.ErrUnsupported }
