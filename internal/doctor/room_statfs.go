//go:build linux || darwin

package doctor

import (
	"runtime"
	"syscall"
)

// tmpfs is the number of a file system in memory, on Linux.
const tmpfs = 0x01021994

// roomOf returns how many bytes a user may write to the file system of a folder, and whether that is in memory.
func roomOf(dir string) (free uint64, memory bool, err error) {
	var is syscall.Statfs_t
	if err := syscall.Statfs(dir, &is); err != nil {
		return 0, false, err
	}
	return uint64(is.Bavail) * uint64(is.Bsize), runtime.GOOS == "linux" && int64(is.Type) == tmpfs, nil
}
