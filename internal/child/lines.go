package child

import (
	"bytes"
	"log/slog"
	"sync"
	"time"
)

const (
	// A line is cut at longestLine bytes. mostLines may come at once, and one more every lineEvery; others are counted.
	longestLine = 4 << 10
	mostLines   = 500
	lineEvery   = 50 * time.Millisecond
)

// lines logs what a process writes, line by line, within bounds.
type lines struct {
	log *slog.Logger

	mu      sync.Mutex // guards what is below
	line    []byte     // that has not ended yet
	cut     bool       // more of it has come than is kept
	free    int        // lines that may be logged
	at      time.Time  // when free was counted
	dropped int
}

func newLines(log *slog.Logger) *lines { return &lines{log: log, free: mostLines, at: time.Now()} }

// Write never fails.
func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(data)
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		part := data
		if end >= 0 {
			part = data[:end]
		}
		if room := longestLine - len(l.line); len(part) > room {
			part, l.cut = part[:room], true
		}
		l.line = append(l.line, part...)
		if end < 0 {
			break
		}
		l.tell()
		data = data[end+1:]
	}
	return n, nil
}

// flush logs the line that has not ended, and how many have been left out.
func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.line) > 0 {
		l.tell()
	}
	l.tellDropped()
}

// tell logs a line, if one may be logged. The caller holds the lock.
func (l *lines) tell() {
	text := string(l.line)
	if l.cut {
		text += "…"
	}
	l.line, l.cut = l.line[:0], false
	if more := int(time.Since(l.at) / lineEvery); more > 0 {
		l.free, l.at = min(mostLines, l.free+more), l.at.Add(time.Duration(more)*lineEvery)
	}
	if l.free == 0 {
		l.dropped++
		return
	}
	l.free--
	l.tellDropped()
	l.log.Info("process", "line", text)
}

func (l *lines) tellDropped() {
	if l.dropped > 0 {
		l.log.Warn("lines of the process were left out: there were too many", "lines", l.dropped)
		l.dropped = 0
	}
}
