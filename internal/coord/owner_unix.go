//go:build unix

package coord

import (
	"io/fs"
	"os"
	"syscall"
)

// OwnedByThisUser reports whether a file is that of this process's user.
func OwnedByThisUser(is fs.FileInfo) bool {
	s, ok := is.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}
