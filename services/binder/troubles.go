package binder

import (
	"maps"
	"sync"
	"time"
)

const (
	troubleLasts = time.Minute
	// maxTroubles bounds the namespaces that are remembered.
	maxTroubles = 10_000
)

// troubles are the namespaces of which binds were withdrawn, each since that was last so. It is safe for concurrent use.
type troubles struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// note says that a namespace was in trouble at a time.
func (t *troubles) note(namespace string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.since) >= maxTroubles {
		maps.DeleteFunc(t.since, func(_ string, since time.Time) bool { return now.Sub(since) >= troubleLasts })
	}
	if t.since == nil || len(t.since) >= maxTroubles {
		t.since = make(map[string]time.Time)
	}
	t.since[namespace] = now
}

// over says that a namespace is not in trouble any more.
func (t *troubles) over(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.since, namespace)
}

// has reports whether a namespace has been in trouble lately.
func (t *troubles) has(namespace string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, noted := t.since[namespace]
	return noted && now.Sub(since) < troubleLasts
}
