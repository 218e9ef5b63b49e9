//go:build unix

package roles

import (
	"io/fs"
	"os"
	"syscall"
)

// ownedByThisUser reports whether a file is that of this process's user.
func ownedByThisUser(is fs.FileInfo) bool {
	s, ok := is.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}
