package binder

import (
	"sync"

	"github.com/berth-scheduler/berth/internal/coord"
)

// shardGuard knows the newest claim of each shard that etcd has shown. What requests say is not remembered: a request
// with a revision from nowhere would shut the true owner out.
type shardGuard struct {
	mu       sync.Mutex
	revision map[int32]int64
}

// mayCommit reports whether a claim is not older than the newest one known. It may be newer: the watch lags.
func (g *shardGuard) mayCommit(shard int32, revision int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return revision > 0 && revision >= g.revision[shard]
}

func (g *shardGuard) learn(owners []coord.ShardOwner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.revision == nil {
		g.revision = make(map[int32]int64)
	}
	for _, o := range owners {
		g.revision[int32(o.Shard)] = max(g.revision[int32(o.Shard)], o.Revision)
	}
}

// bound counts something that must not grow without end.
type bound struct {
	mu    sync.Mutex
	limit int
	taken int
}

// take reserves n, or nothing. A single request larger than the whole bound passes when nothing else is taken.
func (b *bound) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken+n > b.limit && b.taken > 0 {
		return false
	}
	b.taken += n
	return true
}

func (b *bound) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= n
}

func (b *bound) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}
