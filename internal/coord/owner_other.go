//go:build !unix

package coord

import "io/fs"

// OwnedByThisUser is true where files have no users.
func OwnedByThisUser(fs.FileInfo) bool { return true }
