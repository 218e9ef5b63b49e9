//go:build !linux

package child

import (
	"os"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return nil }

func terminate(p *os.Process) error { return p.Signal(os.Interrupt) }

func resident(int) int64 { return 0 }

func preferred(int) {}

func kill9(p *os.Process) error { return p.Kill() }
