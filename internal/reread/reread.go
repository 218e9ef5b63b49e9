// Package reread keeps what files mean while they change.
//
// A [Value] reads its files again when it is asked for, no more than once a second. New contents that make no sense, which half-written
// ones do not, are logged once and ignored until they change. It watches nothing and has no goroutine.
package reread

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// Every is how often, at most, files are read.
const Every = time.Second

// Config says what a Value is of.
type Config[T any] struct {
	Files []string // their names; "" stands for one that is not there, whose contents are nil
	// Parse returns what the contents of the files mean, in the order of Files.
	Parse func(contents [][]byte) (T, error)
	What  string           // the files are, in the log: "certificates"
	Log   *slog.Logger     // nil discards
	Now   func() time.Time // nil means time.Now
}

// Value is what the newest usable contents of some files mean. It is safe for concurrent use.
type Value[T any] struct {
	cfg Config[T]

	mu      sync.Mutex
	checked time.Time // when the files were last read
	read    [][]byte  // what they held then
	broken  string    // why that could not be used, or ""
	failed  string    // why the files could not be used when they were last read, or not be read, or ""
	current T
}

// Open reads the files.
func Open[T any](cfg Config[T]) (*Value[T], error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	v := &Value[T]{cfg: cfg, checked: cfg.Now()}
	var err error
	if v.read, err = v.contents(); err != nil {
		return nil, err
	}
	if v.current, err = cfg.Parse(v.read); err != nil {
		return nil, err
	}
	return v, nil
}

// Latest returns what the files mean now; if they mean nothing, what they meant last.
func (v *Value[T]) Latest() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.cfg.Now()
	if now.Sub(v.checked) < Every {
		return v.current
	}
	v.checked = now
	read, err := v.contents()
	if err == nil {
		if equal(read, v.read) {
			v.failed = v.broken // they may have been away
			return v.current
		}
		v.read = read
		var next T
		if next, err = v.cfg.Parse(read); err != nil {
			v.broken = err.Error()
		} else {
			v.current, v.broken, v.failed = next, "", ""
			v.cfg.Log.Info(v.cfg.What+" read again", "file", strings.Join(v.cfg.Files, " "))
			return v.current
		}
	}
	if why := err.Error(); why != v.failed {
		v.failed = why
		v.cfg.Log.Warn(v.cfg.What+" have changed but cannot be used; those read before are kept", "err", err)
	}
	return v.current
}

// Stale reports whether the files, as they are now, cannot be used.
func (v *Value[T]) Stale() bool {
	v.Latest()
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.failed != ""
}

func (v *Value[T]) contents() ([][]byte, error) {
	all := make([][]byte, len(v.cfg.Files))
	for i, name := range v.cfg.Files {
		if name == "" {
			continue
		}
		var err error
		if all[i], err = os.ReadFile(name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func equal(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
