package coord

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	unixScheme = "unix"
	socketName = "etcd.sock"
	// maxSocketPath is the longest path of a socket that every system takes: Linux has room for 107 bytes and the end, others for less.
	maxSocketPath = 103
	// shortDirs is how the directories begin that hold sockets whose own directory has too long a name.
	shortDirs = "berth-"
)

// socket is where an embedded etcd listens: etcd.sock in its directory. Where that path is too long for a socket, it is a symbolic
// link to one in a short directory for temporary files, which is as closed to others, and new with each start.
type socket struct {
	path string
	link string // "" if there is none
}

// newSocket finds a place for the socket, and removes what an earlier process has left. dir is locked.
func newSocket(dir string) (*socket, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, socketName)
	if target, err := os.Readlink(path); err == nil && isShort(target) {
		err = (&socket{path: target, link: path}).remove() // of a process that was killed
		if err != nil {
			return nil, err
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if len(path) <= maxSocketPath {
		return &socket{path: path}, nil
	}
	short, err := os.MkdirTemp("", shortDirs)
	if err != nil {
		return nil, fmt.Errorf("find a short place for a socket: %w", err)
	}
	s := &socket{path: filepath.Join(short, socketName), link: path}
	if len(s.path) > maxSocketPath {
		err = fmt.Errorf("%s and %s: too long for a socket, which has %d bytes: name another directory", path, s.path, maxSocketPath)
	} else {
		err = os.Symlink(s.path, s.link)
	}
	if err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// isShort reports whether a path is one that newSocket makes in place of one that is too long.
func isShort(path string) bool {
	dir := filepath.Dir(path)
	return filepath.Base(path) == socketName && strings.HasPrefix(filepath.Base(dir), shortDirs) &&
		filepath.Dir(dir) == filepath.Clean(os.TempDir())
}

// remove removes the socket, and what was made for it.
func (s *socket) remove() error {
	paths := []string{s.path}
	if s.link != "" {
		paths = append(paths, filepath.Dir(s.path), s.link)
	}
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
