package coord

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// bounds say how much is kept of keys that others write.
type bounds struct {
	key   int // of a longer key nothing is kept; 0 means no bound
	value int // of a longer value so many bytes and one more are; 0 means no bound
	each  int // how many keys are kept that have the same first part, up to a slash; 0 means no bound
	all   int // how many keys are kept; 0 means no bound

	without string // keys that have this behind their first part are not kept; "" means all are
}

const (
	boundedPage = 32 // keys: of values that may have etcd's 1.5 MiB
	listAgain   = 10 * time.Second
)

// keySet is a copy of the keys below a prefix, as far as bounds let it. It is safe for concurrent use.
type keySet struct {
	prefix string
	bounds bounds
	dirty  chan struct{} // capacity 1: it has changed since the last take

	mu      sync.Mutex
	keys    map[string]KV
	of      map[string]int // how many of a first part
	leftOut bool           // there are keys that are not in it
	unread  bool           // there are so many that some have not been read
}

func newKeySet(prefix string, b bounds) *keySet {
	return &keySet{prefix: prefix, bounds: b, dirty: make(chan struct{}, 1), keys: make(map[string]KV), of: make(map[string]int)}
}

// first returns the first part of a key, with its slash.
func (s *keySet) first(key string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(key, s.prefix), "/")
	return first + "/"
}

// put adds or replaces a key. It returns with what those begin, as this one does, of which none is kept any more; "" if there are no such.
func (s *keySet) put(kv KV) (nothing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.first(kv.Key)
	if others := s.prefix + first + s.bounds.without; s.bounds.without != "" && strings.HasPrefix(kv.Key, others) {
		return others
	}
	if _, exists := s.keys[kv.Key]; !exists {
		if s.bounds.each > 0 && s.of[first] >= s.bounds.each {
			s.leftOut = true
			return s.prefix + first
		}
		if s.bounds.all > 0 && len(s.keys) >= s.bounds.all {
			s.leftOut = true
			return s.prefix
		}
		if s.bounds.key > 0 && len(kv.Key) > s.bounds.key {
			s.leftOut = true
			return ""
		}
		s.of[first]++
	}
	if s.bounds.value > 0 && len(kv.Value) > s.bounds.value {
		kv.Value = bytes.Clone(kv.Value[:s.bounds.value+1])
	}
	s.keys[kv.Key] = kv
	return ""
}

// apply changes the keys as an update says. It reports whether there is room now for keys that were left out.
func (s *keySet) apply(u WatchUpdate) (room bool) {
	for _, e := range u.Events {
		if !e.Deleted {
			s.put(e.KV)
			continue
		}
		s.mu.Lock()
		if _, exists := s.keys[e.KV.Key]; exists {
			delete(s.keys, e.KV.Key)
			first := s.first(e.KV.Key)
			if s.of[first]--; s.of[first] == 0 {
				delete(s.of, first)
			}
			room = room || s.leftOut
		}
		room = room || s.unread
		s.mu.Unlock()
	}
	s.changed()
	return room
}

// replace makes the keys those of another set.
func (s *keySet) replace(by *keySet) {
	s.mu.Lock()
	s.keys, s.of, s.leftOut, s.unread = by.keys, by.of, by.leftOut, by.unread
	s.mu.Unlock()
	s.changed()
}

func (s *keySet) changed() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// take returns a copy of the keys, with all that has been applied.
func (s *keySet) take() map[string]KV {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.keys)
}

// follow keeps a copy of the keys that start with base+prefix and sends what build makes of it: at once, and after
// changes. What changes while something is built is built together. A reader that is slow misses states but always gets the newest
// one next. The channel is closed when ctx or the client ends.
func follow[T any](ctx context.Context, c *Client, base, prefix string, b bounds, build func(keys map[string]KV) T) <-chan T {
	out := make(chan T)
	set := newKeySet(prefix, b)
	started := c.start(ctx, func(ctx context.Context) { c.followKeys(ctx, base, set) })
	started = started && c.start(ctx, func(ctx context.Context) {
		defer close(out)
		var newest T
		var ready chan<- T // out while newest is not yet sent
		for {
			select {
			case <-ctx.Done():
				return
			case <-set.dirty:
				newest, ready = build(set.take()), out
			case ready <- newest:
				ready = nil
			}
		}
	})
	if !started {
		close(out)
	}
	return out
}

// followKeys keeps a set as the keys are, until ctx ends.
func (c *Client) followKeys(ctx context.Context, base string, set *keySet) {
	try := retryPace{log: c.log, what: "list " + set.prefix}
	for {
		listed := time.Now()
		there, revision, err := c.listBounded(ctx, base, set.prefix, set.bounds)
		if err != nil {
			if !try.wait(ctx, err) {
				return
			}
			continue
		}
		try.succeeded()
		if there.leftOut {
			c.log.Warn("keys are left out: there are too many, or too long ones", "prefix", set.prefix)
		}
		set.replace(there)
		watching, stop := context.WithCancel(ctx)
		var again *time.Timer // when there is room for what was left out, the keys are listed again, but seldom
		err = c.watch(watching, base, set.prefix, revision+1, func(u WatchUpdate) bool {
			if set.apply(u) && again == nil {
				again = time.AfterFunc(time.Until(listed.Add(listAgain)), stop)
			}
			return true
		})
		if again != nil {
			again.Stop()
		}
		stop()
		if ctx.Err() != nil {
			return
		}
		c.log.Info("keys are listed again", "prefix", set.prefix, "why", err)
	}
}

// listBounded reads the keys that start with base+prefix, as far as bounds let them be kept: no more of the others than a page.
func (c *Client) listBounded(ctx context.Context, base, prefix string, b bounds) (*keySet, int64, error) {
	for try := 1; ; try++ {
		set := newKeySet(prefix, b)
		revision, err := c.listOnce(ctx, base, set)
		switch {
		case err == nil:
			return set, revision, nil
		case !errors.Is(err, ErrCompacted) || try == listTries:
			return nil, 0, err
		}
	}
}

// readTimes is how many keys are read at most for each that may be kept.
const readTimes = 8

func (c *Client) listOnce(ctx context.Context, base string, set *keySet) (int64, error) {
	if set.bounds == (bounds{}) { // there is no more to read than to keep
		return c.scan(ctx, base, set.prefix, 0, func(kv KV) { set.put(kv) })
	}
	from, end := base+set.prefix, clientv3.GetPrefixRangeEnd(base+set.prefix)
	read := 0
	for revision := int64(0); ; {
		page, err := c.page(ctx, from, end, revision, boundedPage)
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		skip := ""
		for _, kv := range page.Kvs {
			skip = set.put(relative(kv, base))
		}
		if !page.More {
			return revision, nil
		}
		if read += len(page.Kvs); set.bounds.all > 0 && read >= readTimes*set.bounds.all { // too many are of no use
			set.leftOut, set.unread = true, true
			return revision, nil
		}
		last := string(page.Kvs[len(page.Kvs)-1].Key)
		if from = last + "\x00"; skip != "" {
			from = clientv3.GetPrefixRangeEnd(base + skip)
		}
		if from >= end {
			return revision, nil
		}
	}
}
