package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// ownerOf returns which of the processes has a loopback TCP socket with this local address. That is how a proxy knows
// who has connected to it. It reads Linux's /proc; elsewhere there is no owner to be found, and false.
func ownerOf(local netip.AddrPort, pids map[string]int) (string, bool) {
	ip := local.Addr().Unmap().As4()
	address := fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], local.Port())
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[1] != address {
			continue
		}
		socket := "socket:[" + fields[9] + "]"
		for name, pid := range pids {
			if hasFile(pid, socket) {
				return name, true
			}
		}
	}
	return "", false
}

// hasFile reports whether a process has an open file of that name.
func hasFile(pid int, name string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false // it has ended
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == name {
			return true
		}
	}
	return false
}
